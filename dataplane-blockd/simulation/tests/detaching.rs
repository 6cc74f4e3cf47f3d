//! A disk that is given back while nodes are away: within the limit, with a word on what is safe; and again when they are back.

use bytes::Bytes;
use firn_blockd_client::{Attachable, AttachedDisk, DetachFailed, Mode, NodesAway, attach};
use firn_blockd_disk::{FlushPolicy, journal::JournalOptions};
use firn_blockd_nbd::{BlockDevice, Durability, Piece};
use firn_blockd_simulation::{
    cluster::{Host, access, placement},
    setting::{BLOCK_BYTES, Client, Setting},
};
use firn_env::Env;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

fn setting(mode: Mode) -> Setting {
    Setting {
        nodes: 3,
        model: None,
        node_tracts: 16,
        copies: 2,
        mode,
        flush: FlushPolicy::Durable,
        segment_tracts: 3,
        blocks: 64,
    }
}

async fn write(attached: &AttachedDisk, block: u64, byte: u8) {
    let data = Bytes::from(vec![byte; BLOCK_BYTES as usize]);
    let offset = block * BLOCK_BYTES;
    attached
        .device
        .write(offset, data, Durability::Acknowledged)
        .await
        .expect("it is answered from memory or from the journal");
}

/// What a detach says while no node is there; it takes as long as it may.
async fn refused(env: &Env, attached: &AttachedDisk, hosts: &[Host]) -> NodesAway {
    attached.device.flush().await.expect("nodes are there");
    hosts.iter().for_each(|host| host.machine.crash());
    for block in 0..8 {
        write(attached, block, 7).await;
    }
    let began = env.now();
    let Err(DetachFailed::NodesAway(away)) = attached.detach_within(LIMIT).await else {
        panic!("no node has what was written");
    };
    assert_eq!((env.now().since(began), away.waited), (LIMIT, LIMIT));
    away
}

async fn detached_when_nodes_are_back(client: &Client, attached: &AttachedDisk) -> Result<(), String> {
    client.hosts.iter().for_each(Host::revive);
    let env = client.machine.env();
    let patient = env.timeout(Duration::from_secs(300), attached.detach());
    let detached = patient.await.map_err(|_| "it takes too long")?;
    detached.map_err(|error| error.to_string())?;
    let wanted = Attachable {
        force: false,
        ..setting(attached.mode).attachable(client.disk)
    };
    let again = attach(&env, &placement(&env, &client.table), &access(&env), wanted).await;
    let again = again.map_err(|error| format!("it was not given back: {error}"))?;
    assert_eq!(again.reconciled_regions, 0, "it was given back clean");
    for block in 0..8 {
        let read = again.disk.read(block * BLOCK_BYTES, BLOCK_BYTES as u32).await;
        let expected = Piece::Data(vec![7; BLOCK_BYTES as usize].into());
        assert_eq!(read.map_err(|error| error.to_string())?, [expected]);
    }
    Ok(())
}

#[test]
fn without_a_journal_what_is_in_memory_is_named_and_stays_there() {
    for mode in [Mode::WriteBack, Mode::Log] {
        let work = |client: Client| async move {
            let env = client.machine.env();
            let away = refused(&env, &client.attached, &client.hosts).await;
            assert_eq!((away.dirty_bytes, &away.journal), (8 * BLOCK_BYTES, &None));
            let text = away.to_string();
            assert!(
                text.contains("within 20 s") && text.contains("32768 bytes that were not"),
                "{text}"
            );
            detached_when_nodes_are_back(&client, &client.attached).await
        };
        setting(mode)
            .run(3, work)
            .unwrap_or_else(|error| panic!("{mode}: {error}"));
    }
}

#[test]
fn with_a_journal_it_has_all_that_was_answered() {
    for mode in [Mode::WriteBack, Mode::Log] {
        let work = move |client: Client| async move {
            let env = client.machine.env();
            let journal = JournalOptions {
                after: Duration::from_millis(500),
                ..JournalOptions::new(env.clone(), "journal", 1 << 20)
            };
            let wanted = Attachable {
                journal: Some(journal),
                ..setting(mode).attachable(client.disk)
            };
            let attached = attach(&env, &placement(&env, &client.table), &access(&env), wanted).await;
            let attached = attached.map_err(|error| error.to_string())?;
            let away = refused(&env, &attached, &client.hosts).await;
            assert!(away.journal.as_ref().is_some_and(|journal| journal.holds_all));
            assert!(
                away.to_string().contains("everything that was answered is safe"),
                "{away}"
            );
            detached_when_nodes_are_back(&client, &attached).await
        };
        setting(mode)
            .run(4, work)
            .unwrap_or_else(|error| panic!("{mode}: {error}"));
    }
}

//! A disk with a journal, its nodes away.

use crate::nodes::*;
use bytes::Bytes;
use firn_blockd_disk::{
    Change, FlushPolicy, VirtualDisk, WritePolicy,
    journal::{Journal, JournalError, JournalOptions, JournalReader, Journaled},
};
use firn_blockd_nbd::{BlockDevice, DeviceError, Durability};
use firn_env::{
    Env,
    sim::{Machine, Simulation},
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

const DISK: [u8; 16] = [3; 16];
const KEY: [u8; 32] = [4; 32];
const SECOND: Duration = Duration::from_secs(1);
/// Of the journals here: some forty writes of a block.
const JOURNAL_BYTES: u64 = 24_000;

fn options(env: &Env) -> JournalOptions {
    JournalOptions {
        file_bytes: 2000,
        after: Duration::from_millis(500),
        ..JournalOptions::new(env.clone(), "journals", JOURNAL_BYTES)
    }
}

/// The disk with its journal, claimed as attach `fence`.
async fn journaled(disk: VirtualDisk, options: JournalOptions, fence: u64) -> Journaled {
    let env = options.env.clone();
    let journal = Journal::claim(options, DISK, &KEY, fence)
        .await
        .expect("it can be used");
    assert_eq!(journal.salvaged, None);
    Journaled::new(&env, disk, FlushPolicy::Durable, Some(journal))
        .await
        .expect("the disk can be read")
}

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK_BYTES as usize])
}

async fn write(device: &Journaled, number: u64, byte: u8) -> Result<(), DeviceError> {
    device
        .write(
            number * u64::from(BLOCK_BYTES),
            block(byte),
            Durability::Acknowledged,
        )
        .await
}

fn away(cluster: &Arc<Mutex<Cluster>>, away: bool) {
    cluster.lock().unwrap().away = away;
}

/// In both kinds of fast modes, from some seeds.
fn on_a_machine<F: Future<Output = ()> + Send + 'static>(test: impl Fn(Machine, Kind) -> F) {
    for kind in [Kind::Striped(WritePolicy::Memory), Kind::Log] {
        for seed in 0..4 {
            let simulation = Simulation::new(seed);
            let machine = simulation.machine("client");
            simulation.run(test(machine, kind)).expect("the run ends");
        }
    }
}

/// Writes until nobody answers any more; how many were answered.
async fn fill(env: &Env, device: &Journaled) -> u64 {
    for number in 0.. {
        let write = write(device, number % BLOCKS, number as u8 + 1);
        match env.timeout(SECOND * 20, write).await {
            Ok(answer) => answer.expect("no write fails"),
            Err(_) => return number,
        }
    }
    unreachable!("there is a bound")
}

#[test]
fn writes_are_answered_without_nodes_up_to_the_bound_and_all_of_them_arrive() {
    on_a_machine(|machine, kind| async move {
        let env = machine.env();
        let cluster = new_cluster(&env, kind).await;
        let disk = attach(&env, &cluster, kind, &mut 1).await;
        let device = journaled(disk.clone(), options(&env), 7).await;
        write(&device, 0, 1).await.unwrap();
        device.flush().await.unwrap();
        away(&cluster, true);
        let answered = fill(&env, &device).await;
        let status = device.status().expect("it has a journal");
        assert!(
            status.session.is_some() && status.used_bytes <= JOURNAL_BYTES + 4096 + 4096,
            "{status:?}"
        );
        assert!(answered > 24, "more than memory holds, which is 8: {answered}");
        let seen = content(&device).await;
        // What was written last is read, also what nobody has answered.
        assert_eq!(
            seen[((answered % BLOCKS) * u64::from(BLOCK_BYTES)) as usize],
            answered as u8 + 1
        );
        away(&cluster, false);
        env.timeout(SECOND * 600, device.settle()).await.unwrap().unwrap();
        let status = device.status().expect("it has a journal");
        assert_eq!((status.session, status.used_bytes, status.waiting), (None, 0, 0));
        assert_eq!(content(&disk).await, seen);
        write(&device, 3, 99).await.unwrap();
        device.flush().await.unwrap();
    });
}

#[test]
fn what_promises_durability_waits_for_nodes() {
    on_a_machine(|machine, kind| async move {
        let env = machine.env();
        let cluster = new_cluster(&env, kind).await;
        let disk = attach(&env, &cluster, kind, &mut 1).await;
        let device = journaled(disk, options(&env), 7).await;
        away(&cluster, true);
        write(&device, 0, 1).await.unwrap();
        env.sleep(SECOND * 2).await;
        write(&device, 1, 2).await.unwrap();
        assert!(device.status().is_some_and(|status| status.session.is_some()));
        let durable = device.write(1024, block(3), Durability::Durable);
        assert!(env.timeout(SECOND * 60, durable).await.is_err());
        assert!(env.timeout(SECOND * 60, device.flush()).await.is_err());
        write(&device, 4, 4).await.unwrap();
        let waiting = device.clone();
        let flush = env.spawn("flush", async move { waiting.flush().await });
        away(&cluster, false);
        flush.await.unwrap().unwrap();
    });
}

#[test]
fn writes_fail_after_the_configured_time_and_not_before() {
    on_a_machine(|machine, kind| async move {
        let env = machine.env();
        let cluster = new_cluster(&env, kind).await;
        let disk = attach(&env, &cluster, kind, &mut 1).await;
        let wanted = JournalOptions {
            give_up: Some(SECOND * 100),
            ..options(&env)
        };
        let device = journaled(disk, wanted, 7).await;
        away(&cluster, true);
        let began = env.now();
        let answered = fill(&env, &device).await;
        assert!(env.now().since(began) < SECOND * 90 && answered > 24);
        // At the bound: it waits, then it is told.
        let failed = write(&device, 0, 200).await;
        assert!(matches!(failed, Err(DeviceError::Io(_))), "{failed:?}");
        assert!(env.now().since(began) >= SECOND * 100);
        away(&cluster, false);
        env.timeout(SECOND * 600, device.settle()).await.unwrap().unwrap();
        write(&device, 0, 201).await.unwrap();
    });
}

#[test]
fn the_next_attach_goes_on_and_one_after_another_puts_the_journal_aside() {
    on_a_machine(|machine, kind| async move {
        let env = machine.env();
        let cluster = new_cluster(&env, kind).await;
        let mut incarnation = 1;
        let disk = attach(&env, &cluster, kind, &mut incarnation).await;
        let device = journaled(disk, options(&env), 7).await;
        away(&cluster, true);
        write(&device, 0, 1).await.unwrap();
        env.sleep(SECOND * 2).await;
        for number in 1..16 {
            write(&device, number, number as u8 + 1).await.unwrap();
        }
        device
            .write_zeroes(1024, 1024, true, Durability::Acknowledged)
            .await
            .unwrap();
        let seen = content(&device).await;
        let taken = Journal::claim(options(&env), DISK, &KEY, 8).await.err();
        assert!(
            matches!(taken, Some(JournalError::Disk(_))),
            "one process at a time: {taken:?}"
        );
        for aside in [false, true] {
            // On the simulator's side of the crash: its tasks are gone.
            machine.crash();
            let env = machine.restart();
            away(&cluster, false);
            let disk = attach(&env, &cluster, kind, &mut incarnation).await;
            if aside {
                let journal = Journal::claim(options(&env), DISK, &KEY, 20).await.unwrap();
                let path = journal.salvaged.clone().expect("it is put aside");
                let mut reader = JournalReader::open(&env, &path, DISK, &KEY).await.unwrap();
                let mut found = vec![0; DISK_BYTES as usize];
                while let Some(change) = reader.next().await.unwrap() {
                    match change {
                        Change::Data { first, data } => {
                            let at = (first * u64::from(BLOCK_BYTES)) as usize;
                            found[at..at + data.len()].copy_from_slice(&data);
                        }
                        Change::Zero { blocks } => {
                            let at = |block: u64| (block * u64::from(BLOCK_BYTES)) as usize;
                            found[at(blocks.start)..at(blocks.end)].fill(0);
                        }
                        Change::Flush => {}
                    }
                }
                let written: Vec<usize> = (0..found.len()).filter(|at| found[*at] != 0).collect();
                assert_eq!(written, (8192..8192 + 512).collect::<Vec<usize>>());
                let device = Journaled::new(&env, disk, FlushPolicy::Durable, Some(journal))
                    .await
                    .unwrap();
                assert_eq!(device.status().and_then(|status| status.session), None);
                return;
            }
            let device = journaled(disk.clone(), options(&env), 8).await;
            assert_eq!(content(&device).await, seen, "read at once");
            env.timeout(SECOND * 600, device.settle()).await.unwrap().unwrap();
            assert_eq!(content(&disk).await, seen);
            // Something is left for whoever comes next.
            away(&cluster, true);
            write(&device, 16, 7).await.unwrap();
            env.sleep(SECOND * 2).await;
            write(&device, 16, 7).await.unwrap();
        }
    });
}

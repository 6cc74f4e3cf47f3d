//! A disk is taken over while a replica joins one of its rows, which whoever had the disk has written to already: that replica must
//! be told of the takeover as well, or what is still under way from before gets in there, and stays when it is active.

use bytes::Bytes;
use firn_blockd_client::{Attachable, AttachedDisk, Mode, attach};
use firn_blockd_disk::{Body, Copy, FlushPolicy, Incarnation, Replicas, Unit, Version};
use firn_blockd_nbd::{BlockDevice, Durability};
use firn_blockd_placement::row_index;
use firn_blockd_protocol::{NodeId, ReplicaState, Replication, Row};
use firn_blockd_simulation::{
    cluster::{Cluster, Host, access, placement, whole},
    setting::{BLOCK_BYTES, Client, Setting},
};
use firn_env::{Env, mutants::planting};
use std::time::Duration;

const SETTING: Setting = Setting {
    nodes: 8,
    model: None,
    node_tracts: 16,
    copies: 2,
    mode: Mode::WriteBack,
    flush: FlushPolicy::Durable,
    // With the one of the dirty-region log that is two tracts, so that most nodes have no part in the disk.
    segment_tracts: 1,
    blocks: 64,
};
/// Times that something is looked at, one each second of virtual time.
const LOOKS_MAX: usize = 600;
/// What the loser still has under way when the disk is somebody else's.
const LATE: u64 = 5;

async fn write(attached: &AttachedDisk, block: u64, byte: u8) -> Result<(), String> {
    let data = Bytes::from(vec![byte; BLOCK_BYTES as usize]);
    let written = attached
        .device
        .write(block * BLOCK_BYTES, data, Durability::Durable)
        .await;
    written.map_err(|error| error.to_string())
}

/// The row of the disk's dirty-region log, and that of its blocks.
async fn rows(client: &Client) -> Result<[Row; 2], String> {
    let placement = placement(&client.machine.env(), &client.table);
    let replication = Replication::new(SETTING.copies).ok_or("two")?;
    let cluster = placement.cluster().await.map_err(|error| error.to_string())?;
    let row = async |tract| {
        let index = row_index(client.disk, tract, cluster.rows(replication));
        let row = placement.row(replication, index).await;
        row.map_err(|error| error.to_string())
    };
    Ok([row(0).await?, row(1).await?])
}

fn host_of(client: &Client, node: NodeId) -> Result<&Host, String> {
    let mut hosts = client.hosts.iter();
    hosts
        .find(|host| host.node() == Some(node))
        .ok_or("it runs".into())
}

/// Nodes reach each other, or do not: then who joins goes on joining.
fn cut_between_nodes(cluster: &Cluster, cut: bool) {
    for (at, one) in cluster.hosts.iter().enumerate() {
        for other in &cluster.hosts[..at] {
            cluster.simulation.partition(&one.machine, &other.machine, cut);
        }
    }
}

/// Waits until a node joins the row of the disk's blocks; nothing if it had a part in the disk before.
async fn joined(client: &Client, before: &[Row; 2]) -> Result<Option<NodeId>, String> {
    for _ in 0..LOOKS_MAX {
        client.machine.env().sleep(Duration::from_secs(1)).await;
        let [_, row] = rows(client).await?;
        let mut joining = row.replicas.iter();
        let Some(joining) = joining.find(|replica| replica.state == ReplicaState::Joining) else {
            continue;
        };
        let knew = before.iter().any(|row| row.replica(joining.node).is_some());
        return Ok((!knew).then_some(joining.node));
    }
    Err("nobody joins".into())
}

/// Whether chance brought what this is about: a node joins that has no other part in the disk.
async fn taken_over_while_one_joins(client: Client) -> Result<bool, String> {
    let env = client.machine.env();
    write(&client.attached, LATE, 1).await?;
    let before = rows(&client).await?;
    let [log, blocks] = &before;
    let dies = blocks
        .replicas
        .iter()
        .find(|replica| log.replica(replica.node).is_none());
    let Some(dies) = dies else {
        return Ok(false);
    };
    let dies = host_of(&client, dies.node)?;
    cut_between_nodes(&client.cluster, true);
    dies.machine.crash();
    let Some(joining) = joined(&client, &before).await? else {
        return Ok(false);
    };
    // From here on it has the fence of this attach.
    write(&client.attached, LATE + 1, 1).await?;
    client
        .attached
        .detach()
        .await
        .map_err(|error| error.to_string())?;
    let other = client.cluster.simulation.machine("winner");
    let wanted = Attachable {
        force: false,
        ..SETTING.attachable(client.disk)
    };
    let (there, taking) = (other.env(), placement(&other.env(), &client.table));
    let winner = attach(&there, &taking, &access(&there), wanted).await;
    let winner = winner.map_err(|error| error.to_string())?;
    let [_, row] = rows(&client).await?;
    let still = row.replica(joining).map(|replica| replica.state);
    assert_eq!(
        still,
        Some(ReplicaState::Joining),
        "that is what this test is about"
    );
    // Something of the attach before arrives late.
    let version = Version {
        incarnation: Incarnation(client.attached.fence.0.into()),
        sequence: 1000,
    };
    let late = Body::Data(vec![9; BLOCK_BYTES as usize].into());
    let stored = client
        .attached
        .replicas
        .store(0, Unit::Block(LATE), version, late)
        .await;
    assert!(stored.is_err(), "the active replica was told: {stored:?}");
    cut_between_nodes(&client.cluster, false);
    all_hold(&env, &client, &winner).await?;
    Ok(true)
}

/// All copies of the block are what was written in time, once as many as there should be can be read.
async fn all_hold(env: &Env, client: &Client, winner: &AttachedDisk) -> Result<(), String> {
    let placement = placement(env, &client.table);
    let replication = Replication::new(SETTING.copies).ok_or("two")?;
    let expected = Body::Data(vec![1; BLOCK_BYTES as usize].into());
    for _ in 0..LOOKS_MAX {
        if !whole(env, &placement, replication).await {
            break;
        }
        let copies = winner.replicas.load_all(Unit::Block(LATE)).await;
        let copies = copies.map_err(|error| error.to_string())?;
        let differs = |copy: &Copy| {
            !matches!(copy, Copy::Joining) && !matches!(copy, Copy::Holds(stored) if stored.body == expected)
        };
        if let Some(at) = copies.iter().position(differs) {
            return Err(format!("copy {at} is not what was written"));
        }
        // Rows move a little until nodes are balanced in them.
        if copies.len() == usize::from(SETTING.copies) && !copies.contains(&Copy::Joining) {
            return Ok(());
        }
        env.sleep(Duration::from_secs(1)).await;
    }
    Err("the row never became whole again".into())
}

#[test]
fn a_replica_that_is_joining_is_told_of_a_takeover() {
    let run = |seed, planted| planting(planted, || SETTING.run(seed, taken_over_while_one_joins));
    let seed = (1..20)
        .find(|seed| run(*seed, None).expect("the late write is refused"))
        .expect("one of some seeds has a node join that is new to the disk");
    let noticed = run(seed, Some("client.fences_active_only"));
    assert!(
        noticed
            .as_ref()
            .is_err_and(|error| error.ends_with("is not what was written")),
        "the absence of the guard is noticed: {noticed:?}"
    );
}

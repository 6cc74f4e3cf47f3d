//! Fencing across membership: who lost a disk tries it at a node that joined a row after the takeover, and is refused there too.

use crate::support::*;
use firn_blockd_node::Store;
use firn_blockd_placement::{NodeState, Placement};
use firn_blockd_protocol::*;
use std::time::Duration;

/// A block of every tract that nobody has written.
const UNTOUCHED: u16 = 9;
/// Times that something is looked at, or asked for, before it is given up; one each half second, of virtual time.
const LOOKS_MAX: usize = 240;

/// Waits until a node has a part in a row of the disk; a tract there, and the row.
async fn in_a_row(client: &Client, node: NodeId) -> Result<(u32, Row), String> {
    for _ in 0..LOOKS_MAX {
        for index in 0..TRACTS {
            let row = row_of(client, index).await;
            if row.replica(node).is_some() {
                return Ok((index, row));
            }
        }
        client.env.sleep(Duration::from_millis(500)).await;
    }
    Err("the node never joins a row of the disk".into())
}

async fn row_of(client: &Client, index: u32) -> Row {
    let row = client.row(index).await;
    client.refresh(row.index).await;
    client.row(index).await
}

/// Waits until a node has no part in any row of the disk.
async fn out_of_rows(client: &Client, node: NodeId) -> Result<(), String> {
    for _ in 0..LOOKS_MAX {
        let mut has_part = false;
        for index in 0..TRACTS {
            has_part |= row_of(client, index).await.replica(node).is_some();
        }
        if !has_part {
            return Ok(());
        }
        client.env.sleep(Duration::from_millis(500)).await;
    }
    Err("the node never leaves the disk's rows".into())
}

/// A write that one replica alone is sent, as often as it takes until it says what it does with it.
async fn write_there(client: &Client, node: NodeId, index: u32) -> Result<Reply, Refusal> {
    let (tract, generation) = (client.tract(index), Generation::new(client.fence, 1000));
    let range = BlockRange::new(UNTOUCHED, 1).expect("within the tract");
    let data = content(tract, UNTOUCHED, generation);
    let mut said = Refusal::Busy;
    for _ in 0..LOOKS_MAX {
        let row = row_of(client, index).await;
        let write = durable_write(tract, row.version, generation, range, data.clone());
        let Some(replica) = row.replica(node) else {
            break;
        };
        match client.call(node, &replica.address, write).await {
            Ok(reply) => return Ok(reply),
            Err(CallError::Refused(refusal @ (Refusal::Fenced { .. } | Refusal::NotFenced))) => {
                return Err(refusal);
            }
            Err(CallError::Refused(refusal)) => said = refusal,
            Err(error) => said = Refusal::NotServing(error.to_string()),
        }
        client.env.sleep(Duration::from_millis(500)).await;
    }
    Err(said)
}

/// No replica has what nobody wrote and was told so, once all rows are whole.
async fn nothing_is_left(owner: &Client, placement: &Placement) -> Result<(), String> {
    if !whole(&owner.env, placement, 2).await {
        return Err("the rows never became whole again".into());
    }
    for index in 0..TRACTS {
        let row = owner.row(index).await;
        owner.refresh(row.index).await;
        for (found, data) in owner.every_copy(index, UNTOUCHED).await {
            if found != Generation::ZERO || data.is_some() {
                return Err(format!("a replica of tract {index} has {found}"));
            }
        }
    }
    Ok(())
}

fn refused(what: &str, answer: Result<Reply, Refusal>, by: Fence) -> Result<(), String> {
    match answer {
        Err(Refusal::Fenced { current }) if current == by => Ok(()),
        other => Err(format!("{what}: {other:?}")),
    }
}

/// The loser cannot write to that node, and nothing of what it tried is found anywhere.
async fn nothing_can_be_written(
    loser: &Client,
    node: NodeId,
    index: u32,
    winner: &Client,
    placement: &Placement,
) -> Result<(), String> {
    let answer = write_there(loser, node, index).await;
    refused("the loser wrote", answer, winner.fence)?;
    nothing_is_left(winner, placement).await
}

/// A node is new in the cluster and has never heard of the disk. The loser tells it its own fence.
fn a_new_node_is_not_told_an_older_fence() -> Result<(), String> {
    let Stage { cluster, client } = stage(11, 3, 2);
    let mut winner = cluster.client("winner");
    let newcomer = Host::new(cluster.simulation.machine("newcomer"));
    let (old, table) = (cluster.hosts[0].machine.clone(), cluster.table.clone());
    let placement = placement(&cluster.simulation.env(), &table);
    let work = async move {
        fill(&client, 1).await;
        winner.attach(client.disk).await;
        Store::format(&newcomer.machine.env(), small_geometry())
            .await
            .expect("it is formatted");
        launch(&newcomer, &table);
        old.crash();
        let id = || {
            let running = newcomer.running.lock().expect("no panic");
            running.as_ref().map(|node| node.store().node())
        };
        while id().is_none() {
            client.env.sleep(Duration::from_millis(100)).await;
        }
        let node = id().ok_or("it runs")?;
        let (index, row) = in_a_row(&client, node).await?;
        let address = row.replica(node).map_or("", |replica| &replica.address);
        let set = Request::SetFence {
            disk: client.disk,
            fence: client.fence,
        };
        let answer = match client.call(node, address, set).await {
            Err(CallError::Refused(refusal)) => Err(refusal),
            Err(error) => return Err(error.to_string()),
            Ok(reply) => Ok(reply),
        };
        refused("the loser set its fence", answer, winner.fence)?;
        nothing_can_be_written(&client, node, index, &winner, &placement).await
    };
    cluster.simulation.run(work).map_err(|error| error.to_string())?
}

/// A node had the disk under the loser's fence, left its rows, missed the takeover, and joins again, all within one life.
fn a_node_that_was_away_does_not_believe_its_old_fence() -> Result<(), String> {
    let Stage { cluster, client } = stage(12, 4, 2);
    let mut winner = cluster.client("winner");
    let placement = placement(&cluster.simulation.env(), &cluster.table);
    let running = cluster.hosts[0].running.clone();
    let work = async move {
        fill(&client, 1).await;
        let node = {
            let running = running.lock().expect("no panic");
            running
                .as_ref()
                .map(|node| node.store().node())
                .ok_or("it runs")?
        };
        let drain = async |state| {
            let changed = placement.set_node_state(node, state).await;
            changed.map_err(|error| error.to_string())
        };
        drain(NodeState::Draining).await?;
        out_of_rows(&client, node).await?;
        winner.attach(client.disk).await;
        drain(NodeState::Serving).await?;
        let (index, _) = in_a_row(&client, node).await?;
        {
            let running = running.lock().expect("no panic");
            let fence = running
                .as_ref()
                .and_then(|running| running.store().fence(client.disk));
            if fence != Some(client.fence) {
                return Err(format!("it was to have missed the takeover, and has {fence:?}"));
            }
        }
        nothing_can_be_written(&client, node, index, &winner, &placement).await
    };
    cluster.simulation.run(work).map_err(|error| error.to_string())?
}

const SCENARIOS: [(&str, Scenario); 3] = [
    (
        "node.fences_without_the_table",
        a_new_node_is_not_told_an_older_fence,
    ),
    (
        "node.trusts_its_own_fence",
        a_node_that_was_away_does_not_believe_its_old_fence,
    ),
    (
        "node.believes_an_old_record",
        a_node_that_was_away_does_not_believe_its_old_fence,
    ),
];

#[test]
fn who_lost_a_disk_is_refused_by_nodes_that_join_later() {
    each_is_noticed(&SCENARIOS);
}

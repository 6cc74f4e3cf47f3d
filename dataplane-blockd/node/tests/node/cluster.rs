//! Whole clusters: nodes, placement and a client through crashes, deaths, drains and forced attaches.

use crate::support::*;
use bytes::Bytes;
use firn_blockd_node::*;
use firn_blockd_placement::*;
use firn_blockd_protocol::*;
use firn_env::{mutants::planting, sim::DiskImage};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

const BLOCKS: u16 = 12;

/// What may stand in a block: the last acknowledged write, or one that came after it and was never answered.
#[derive(Clone, Debug, Default)]
struct Allowed {
    /// Generation, and whether it was a trim; nothing: never written.
    acknowledged: Option<(Generation, bool)>,
    in_doubt: Vec<(Generation, bool)>,
}

type Model = Arc<Mutex<BTreeMap<(u32, u16), Allowed>>>;

impl Allowed {
    fn permits(&self, tract: TractId, block: u16, found: &Option<Bytes>) -> bool {
        let matches = |(generation, trimmed): &(Generation, bool)| match found {
            None => *trimmed,
            Some(data) => !trimmed && *data == content(tract, block, *generation),
        };
        (self.acknowledged.is_none() && found.is_none())
            || self.acknowledged.iter().any(matches)
            || self.in_doubt.iter().any(matches)
    }
}

/// Writes, trims and reads at random, one after the other.
async fn use_disk(client: &Client, model: &Model, steps: u64) -> Result<(), String> {
    for sequence in 1..=steps {
        let index = client.env.random_below(u64::from(TRACTS)) as u32;
        let block = client.env.random_below(u64::from(BLOCKS)) as u16;
        let tract = client.tract(index);
        if client.env.random_below(3) == 0 {
            let found = client
                .read(index, block)
                .await
                .map_err(|error| format!("{error:?}"))?;
            let allowed = model
                .lock()
                .expect("no panic")
                .get(&(index, block))
                .cloned()
                .unwrap_or_default();
            if !allowed.permits(tract, block, &found) {
                return Err(format!(
                    "a read of {index}/{block} found something else than {allowed:?}"
                ));
            }
            continue;
        }
        let generation = Generation::new(client.fence, sequence);
        let trimmed = client.env.random_below(5) == 0;
        model
            .lock()
            .expect("no panic")
            .entry((index, block))
            .or_default()
            .in_doubt
            .push((generation, trimmed));
        let data = (!trimmed).then(|| content(tract, block, generation));
        client
            .write(index, block, generation, data)
            .await
            .map_err(|error| format!("a write: {error:?}"))?;
        {
            let mut model = model.lock().expect("no panic");
            let allowed = model.entry((index, block)).or_default();
            allowed.acknowledged = Some((generation, trimmed));
            allowed.in_doubt.clear();
        }
        let pause = client.env.random_below(300);
        client.env.sleep(Duration::from_millis(pause)).await;
    }
    Ok(())
}

/// After a new attach every replica of every block holds the same, and it is allowed.
async fn check(client: &Client, model: &Model) -> Result<(), String> {
    let model = model.lock().expect("no panic").clone();
    for ((index, block), allowed) in model {
        let copies = client.every_copy(index, block).await;
        let Some(first) = copies.first() else {
            return Err(format!("nobody has {index}/{block}"));
        };
        if copies.iter().any(|copy| copy != first) {
            let generations: Vec<_> = copies.iter().map(|copy| copy.0).collect();
            return Err(format!("replicas of {index}/{block} differ: {generations:?}"));
        }
        if !allowed.permits(client.tract(index), block, &first.1) {
            return Err(format!(
                "{index}/{block} at {} is not one of {allowed:?}",
                first.0
            ));
        }
    }
    Ok(())
}

/// A history: a client uses a disk while nodes crash, stay away, come back, and one loses its disk for good; then another
/// client takes over.
fn history(seed: u64) -> Result<(), String> {
    let cluster = TestCluster::new(seed, 4);
    let model: Model = Arc::default();
    let mut client = cluster.client("client");
    let client_machine = cluster.simulation.machine("user");
    let user_env = client_machine.env();
    let table = cluster.table.clone();
    let disk = cluster
        .simulation
        .run(async move {
            client.create(2, u64::from(TRACTS)).await;
            client.disk
        })
        .map_err(|error| error.to_string())?;
    let verdict: Arc<Mutex<Option<Result<(), String>>>> = Arc::default();
    let (using, told, user_table) = (model.clone(), verdict.clone(), table.clone());
    let spawning = user_env.clone();
    drop(spawning.spawn("user", async move {
        let mut client = Client::new(user_env, &user_table);
        client.attach(disk).await;
        let outcome = use_disk(&client, &using, 150).await;
        *told.lock().expect("no panic") = Some(outcome);
    }));
    let controller = cluster.simulation.env();
    let user = client_machine.clone();
    let chaos_env = controller.clone();
    let hosts = cluster.hosts.clone();
    let outcome = verdict.clone();
    let result = cluster.simulation.run(async move {
        let env = chaos_env;
        let placement = placement(&env, &table);
        for _ in 0..6 {
            env.sleep(Duration::from_millis(env.random_below(4000))).await;
            let host = &hosts[env.random_below(hosts.len() as u64) as usize];
            match env.random_below(3) {
                0 => host.machine.crash(),
                1 => host.machine.kill(),
                _ => {
                    host.machine.crash_at_any(1 + env.random_below(60));
                    env.sleep(Duration::from_secs(2)).await;
                    host.machine.faults().disarm();
                }
            }
            // Sometimes short enough to be missed by nobody, sometimes long enough to be taken for dead.
            env.sleep(Duration::from_millis(env.random_below(12_000))).await;
            if !host.machine.is_running() {
                revive(host, &table);
            }
        }
        if env.random_below(2) == 0 && whole(&env, &placement, 2).await {
            // A disk is lost for good; an empty node comes in its place.
            let host = &hosts[env.random_below(hosts.len() as u64) as usize];
            host.machine.crash();
            host.machine.disk().restore(&DiskImage::default());
            env.sleep(Duration::from_secs(8)).await;
            *host.running.lock().expect("no panic") = None;
            let fresh = host.machine.restart();
            Store::format(&fresh, small_geometry())
                .await
                .expect("it is formatted");
            launch(host, &table);
        }
        if env.random_below(2) == 0 {
            user.crash();
        } else {
            for _ in 0..1200 {
                if outcome.lock().expect("no panic").is_some() {
                    break;
                }
                env.sleep(Duration::from_millis(500)).await;
            }
        }
        if !whole(&env, &placement, 2).await {
            return Err("the rows never became whole again".to_owned());
        }
        let mut successor = Client::new(env, &table);
        successor.attach(disk).await;
        check(&successor, &model).await
    });
    if let Some(Err(wrong)) = verdict.lock().expect("no panic").take() {
        return Err(wrong);
    }
    result.map_err(|error| error.to_string())?
}

#[test]
fn no_acknowledged_write_is_lost_and_replicas_agree() {
    for seed in 0..30 {
        if let Err(wrong) = history(seed) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    let run = |seed| {
        let cluster = TestCluster::new(seed, 3);
        let mut client = cluster.client("client");
        cluster
            .simulation
            .run(async move {
                client.create(2, 2).await;
                client.attach(client.disk).await;
                let generation = Generation::new(client.fence, 1);
                let data = content(client.tract(0), 3, generation);
                client
                    .write(0, 3, generation, Some(data))
                    .await
                    .expect("it is written");
            })
            .expect("the run ends");
        cluster.simulation.trace_hash()
    };
    assert_eq!(run(5), run(5));
}

#[test]
fn bugs_planted_in_nodes_are_caught_by_histories() {
    for bug in ["node.keep_earlier_membership", "store.acknowledge_before_sync"] {
        let caught = (0..40).find(|seed| planting(Some(bug), || history(*seed)).is_err());
        assert!(caught.is_some(), "{bug} was not noticed");
        eprintln!("{bug}: caught with seed {}", caught.unwrap_or_default());
    }
}

fn the_loser_of_a_forced_attach_can_do_nothing_more() -> Result<(), String> {
    let Stage { cluster, client } = stage(1, 3, 2);
    let mut winner = cluster.client("winner");
    cluster
        .simulation
        .run(async move {
            fill(&client, 1).await;
            winner.attach(client.disk).await;
            let generation = Generation::new(client.fence, 2);
            let data = content(client.tract(0), 2, generation);
            if client.write(0, 2, generation, Some(data)).await.is_ok() {
                return Err("the loser wrote".to_owned());
            }
            match client.read(0, 1).await {
                Err(GaveUp::Fenced) => Ok(()),
                other => Err(format!("the loser read {other:?}")),
            }
        })
        .map_err(|error| error.to_string())?
}

/// A node is drained while a client, which believes in the row as it was, goes on writing to the two replicas it knows:
/// whatever both acknowledge must be on all that come after them.
fn a_stale_row_is_refused() -> Result<(), String> {
    let Stage { cluster, client } = stage(2, 4, 2);
    let placement = placement(&cluster.simulation.env(), &cluster.table);
    cluster
        .simulation
        .run(async move {
            fill(&client, 1).await;
            let old = client.row(0).await;
            let drained = old.replicas[0].node;
            placement
                .set_node_state(drained, NodeState::Draining)
                .await
                .expect("the table answers");
            let (tract, range) = (client.tract(0), BlockRange::new(1, 1).expect("within the tract"));
            let (mut acknowledged, mut gone) = (1, false);
            for sequence in 2..5000 {
                let generation = Generation::new(client.fence, sequence);
                let data = content(tract, 1, generation);
                let write = Request::Write {
                    tract,
                    row: old.version,
                    generation,
                    range,
                    blocks: WriteBlocks::new(tract, range, data).expect("one block"),
                };
                let calls = old
                    .replicas
                    .iter()
                    .map(|replica| client.call(replica.node, &replica.address, write.clone()));
                if futures::future::join_all(calls).await.iter().all(Result::is_ok) {
                    acknowledged = sequence;
                }
                let row = placement
                    .row(client.replication, old.index)
                    .await
                    .expect("it answers");
                gone = row.replica(drained).is_none();
                if gone {
                    break;
                }
                client.env.sleep(Duration::from_millis(20)).await;
            }
            if !gone {
                return Err("the node is never drained".into());
            }
            client.refresh(old.index).await;
            let least = Generation::new(client.fence, acknowledged);
            for (found, _) in client.every_copy(0, 1).await {
                if found < least {
                    return Err(format!("a replica has {found} although {least} was acknowledged"));
                }
            }
            Ok(())
        })
        .map_err(|error| error.to_string())?
}

fn a_joining_replica_serves_no_reads() -> Result<(), String> {
    let Stage { cluster, client } = stage(3, 3, 2);
    let machines: Vec<_> = cluster.hosts.iter().map(|host| host.machine.clone()).collect();
    let shared = Arc::new(cluster);
    let world = shared.clone();
    shared
        .simulation
        .run(async move {
            fill(&client, 1).await;
            let row = client.row(0).await;
            let dead = machines
                .iter()
                .position(|machine| row.replicas[0].address.starts_with(&machine.address()))
                .expect("a machine of ours");
            // Nobody can copy from anybody: who joins goes on joining.
            for one in 0..machines.len() {
                for other in 0..one {
                    world.simulation.partition(&machines[one], &machines[other], true);
                }
            }
            machines[dead].crash();
            for _ in 0..100 {
                client.env.sleep(Duration::from_millis(500)).await;
                client.refresh(row.index).await;
                let now = client.row(0).await;
                let Some(joining) = now
                    .replicas
                    .iter()
                    .find(|replica| replica.state == ReplicaState::Joining)
                else {
                    continue;
                };
                let read = |fence| Request::Fetch {
                    tract: client.tract(0),
                    row: now.version,
                    fence,
                    range: BlockRange::new(1, 1).expect("within the tract"),
                };
                let set = Request::SetFence {
                    disk: client.disk,
                    fence: client.fence,
                };
                client
                    .call(joining.node, &joining.address, set)
                    .await
                    .expect("it is fenced");
                let answer = client
                    .call(joining.node, &joining.address, read(client.fence))
                    .await;
                return match answer {
                    Err(CallError::Refused(Refusal::Joining)) => Ok(()),
                    other => Err(format!("a joining replica answered {other:?}")),
                };
            }
            Err("nobody joined".to_owned())
        })
        .map_err(|error| error.to_string())?
}

/// The row of the first tract, once nobody joins or leaves it any more: rows move a little until nodes are balanced in them.
async fn settled_row(client: &Client) -> Result<Row, String> {
    for _ in 0..200 {
        let row = client.row(0).await;
        if row.replicas.len() == 2 {
            return Ok(row);
        }
        client.env.sleep(Duration::from_millis(500)).await;
        client.refresh(row.index).await;
    }
    Err("the row never settles".into())
}

fn what_was_copied_is_durable_before_it_is_served() -> Result<(), String> {
    let Stage { cluster, client } = stage(4, 3, 2);
    let placement = placement(&cluster.simulation.env(), &cluster.table);
    let hosts = cluster.hosts.clone();
    let table = cluster.table.clone();
    cluster
        .simulation
        .run(async move {
            fill(&client, 1).await;
            let row = settled_row(&client).await?;
            let at = |address: &str| {
                hosts
                    .iter()
                    .position(|host| address.starts_with(&host.machine.address()))
                    .expect("a machine of ours")
            };
            hosts[at(&row.replicas[0].address)].machine.crash();
            let mut joined = None;
            for _ in 0..2000 {
                client.env.sleep(Duration::from_millis(20)).await;
                let now = placement
                    .row(client.replication, row.index)
                    .await
                    .expect("it answers");
                let newcomer = now
                    .active()
                    .find(|replica| row.replica(replica.node).is_none())
                    .cloned();
                if let Some(newcomer) = newcomer {
                    joined = Some(newcomer);
                    break;
                }
            }
            let joined = joined.ok_or("nobody joined")?;
            let host = &hosts[at(&joined.address)];
            host.machine.crash();
            revive(host, &table);
            client.env.sleep(Duration::from_secs(1)).await;
            for index in 0..ROWS {
                client.refresh(RowIndex(index)).await;
            }
            for index in (0..TRACTS).filter(|index| row_index(client.disk, *index, ROWS) == row.index) {
                let generation = Generation::new(client.fence, 1);
                for (found, _) in client.every_copy(index, 1).await {
                    if found != generation {
                        return Err(format!("a replica has {found} instead of {generation}"));
                    }
                }
            }
            Ok(())
        })
        .map_err(|error| error.to_string())?
}

fn a_late_write_does_not_bring_back_what_was_trimmed() -> Result<(), String> {
    let Stage { cluster, client } = stage(5, 3, 2);
    let placement = placement(&cluster.simulation.env(), &cluster.table);
    let machines: Vec<_> = cluster.hosts.iter().map(|host| host.machine.clone()).collect();
    cluster
        .simulation
        .run(async move {
            fill(&client, 1).await;
            for index in 0..TRACTS {
                let generation = Generation::new(client.fence, 2);
                client
                    .write(index, 1, generation, None)
                    .await
                    .expect("it is trimmed");
            }
            machines[0].crash();
            client.env.sleep(Duration::from_secs(6)).await;
            for _ in 0..200 {
                let rows = placement.rows(client.replication).await.expect("it answers");
                if rows.iter().all(|row| row.active().count() == 2) {
                    break;
                }
                client.env.sleep(Duration::from_millis(500)).await;
            }
            // The first writes arrive once more, as after a lost reply.
            fill(&client, 1).await;
            let trimmed = Generation::new(client.fence, 2);
            for index in 0..TRACTS {
                for (found, data) in client.every_copy(index, 1).await {
                    if found != trimmed || data.is_some() {
                        return Err(format!("a replica of tract {index} has {found} again"));
                    }
                }
            }
            Ok(())
        })
        .map_err(|error| error.to_string())?
}

const SCENARIOS: [(&str, Scenario); 5] = [
    (
        "node.skip_fence",
        the_loser_of_a_forced_attach_can_do_nothing_more,
    ),
    ("node.any_row_version", a_stale_row_is_refused),
    ("node.joining_reads", a_joining_replica_serves_no_reads),
    (
        "node.promote_before_flush",
        what_was_copied_is_durable_before_it_is_served,
    ),
    (
        "node.copy_without_tombstones",
        a_late_write_does_not_bring_back_what_was_trimmed,
    ),
];

#[test]
fn each_guard_of_a_node_holds_and_its_absence_is_noticed() {
    each_is_noticed(&SCENARIOS);
}

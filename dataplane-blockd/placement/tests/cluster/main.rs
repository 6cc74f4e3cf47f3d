//! The table's side of a cluster: rows, disks and attaches, with nodes that only beat.

mod disks;
mod room;

use firn_blockd_placement::*;
use firn_blockd_protocol::*;
use firn_env::{Env, sim::Simulation};
use firn_table::{FaultRates, MemoryTable};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const TENANT: TenantId = TenantId([9; 16]);

fn placement(env: &Env, table: &MemoryTable) -> Placement {
    Placement::new(env.clone(), table.connect(env), "test").expect("the name is fine")
}

fn node(number: u8) -> NodeId {
    NodeId([number; 16])
}

const REPORT: NodeReport = NodeReport {
    capacity_tracts: 1000,
    used_tracts: 0,
    condition: NodeCondition::Writable,
};

/// Registers a node and lets it beat until its machine ends.
async fn live(env: &Env, placement: &Placement, number: u8, domain: &str) {
    let address = format!("10.0.0.{number}:7300");
    let registration = placement
        .register(node(number), 1, &address, domain, REPORT)
        .await
        .expect("it registers");
    let (sleeper, placement) = (env.clone(), placement.clone());
    drop(env.spawn("beat", async move {
        loop {
            sleeper.sleep(Duration::from_secs(1)).await;
            if placement.heartbeat(&registration, REPORT).await.is_err() {
                sleeper.observe("missed beat", 1);
            }
        }
    }));
}

async fn all_rows(placement: &Placement) -> Vec<Row> {
    let mut rows = Vec::new();
    for replication in Replication::ALL {
        rows.extend(placement.rows(replication).await.expect("the table answers"));
    }
    rows
}

/// Makes every joining replica active, as nodes do that have nothing to copy.
async fn promote_all(placement: &Placement) {
    for row in all_rows(placement).await {
        for replica in &row.replicas {
            if replica.state == ReplicaState::Joining {
                let at = RowAt {
                    replication: row.replication,
                    index: row.index,
                    version: row.version,
                };
                placement
                    .promote(replica.node, &[at])
                    .await
                    .expect("the table answers");
            }
        }
    }
}

async fn settle(env: &Env, coordinator: &mut Coordinator, placement: &Placement) {
    for _ in 0..60 {
        coordinator.tick().await.expect("the table answers");
        promote_all(placement).await;
        env.sleep(Duration::from_secs(1)).await;
    }
}

/// Makes the first `nodes` nodes live, each in a domain of its own, and has rows built on them.
async fn populate(env: &Env, placement: &Placement, nodes: u8) -> Coordinator {
    let mut coordinator = Coordinator::new(placement.clone(), CoordinatorSettings::default());
    for number in 1..=nodes {
        live(env, placement, number, &format!("d{number}")).await;
    }
    settle(env, &mut coordinator, placement).await;
    coordinator
}

/// A new cluster with so many rows in each table, built on that many nodes.
async fn settled(env: &Env, table: &MemoryTable, rows: u32, nodes: u8) -> (Placement, Coordinator) {
    let placement = placement(env, table);
    placement.initialise([rows; 3]).await.expect("it is set up");
    let coordinator = populate(env, &placement, nodes).await;
    (placement, coordinator)
}

/// Runs a test with an empty table.
fn run<F>(seed: u64, test: impl FnOnce(Env, MemoryTable) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let simulation = Simulation::new(seed);
    let tested = test(simulation.env(), MemoryTable::new());
    simulation.run(tested).expect("the run ends");
}

fn check(rows: &[Row]) {
    for row in rows {
        let nodes: BTreeSet<_> = row.replicas.iter().map(|replica| replica.node).collect();
        assert_eq!(nodes.len(), row.replicas.len(), "a node stands once in a row");
        assert!(row.active().count() >= 1, "a row has an active replica");
    }
}

#[test]
fn rows_lie_in_different_domains_and_loads_are_even() {
    run(1, |env, table| async move {
        let placement = placement(&env, &table);
        placement.initialise([60, 60, 60]).await.expect("it is set up");
        let mut coordinator = Coordinator::new(placement.clone(), CoordinatorSettings::default());
        for number in 1..=6 {
            live(&env, &placement, number, ["a", "b", "c"][usize::from(number) % 3]).await;
        }
        settle(&env, &mut coordinator, &placement).await;
        let rows = all_rows(&placement).await;
        check(&rows);
        assert_eq!(rows.len(), 180);
        for row in &rows {
            assert_eq!(row.active().count(), row.replication.copies());
            let domains: BTreeSet<_> = row.replicas.iter().map(|replica| replica.node.0[0] % 3).collect();
            assert_eq!(domains.len(), row.replicas.len(), "replicas lie apart");
        }
        for number in 1..=6 {
            let load = rows
                .iter()
                .filter(|row| row.replica(node(number)).is_some())
                .count();
            assert!((55..=65).contains(&load), "node {number} carries {load} of 360");
        }
    });
}

#[test]
fn neighbouring_rows_lie_on_different_nodes_and_those_who_share_rows_are_many() {
    const NODES: u8 = 12;
    run(8, |env, table| async move {
        let (placement, _) = settled(&env, &table, 144, NODES).await;
        for replication in Replication::ALL {
            let rows = placement.rows(replication).await.expect("the table answers");
            let mut loads = BTreeMap::new();
            for row in &rows {
                for replica in &row.replicas {
                    *loads.entry(replica.node).or_insert(0_usize) += 1;
                }
            }
            let even = 144 / usize::from(NODES) * replication.copies();
            assert!(
                loads.values().all(|load| load.abs_diff(even) <= 2),
                "{replication:?}: {loads:?}"
            );
            for segment in rows.windows(NODES.into()) {
                let first: BTreeSet<_> = segment.iter().map(|row| row.replicas[0].node).collect();
                assert_eq!(first.len(), usize::from(NODES), "from {:?}", segment[0].index);
            }
            if replication.copies() == 1 {
                continue;
            }
            for number in 1..=NODES {
                let shared = rows.iter().filter(|row| row.replica(node(number)).is_some());
                let others: BTreeSet<_> = shared
                    .flat_map(|row| row.replicas.iter().map(|replica| replica.node))
                    .collect();
                assert!(
                    others.len() >= usize::from(NODES) - 2,
                    "node {number} shares rows with {}",
                    others.len()
                );
            }
        }
    });
}

#[test]
fn a_dead_node_leaves_its_rows_and_the_last_living_replica_never_does() {
    let simulation = Simulation::new(2);
    let table = MemoryTable::new();
    let machines: Vec<_> = (1..=4)
        .map(|number| simulation.machine(&format!("n{number}")))
        .collect();
    let env = simulation.env();
    simulation
        .run(async move {
            let placement = placement(&env, &table);
            placement.initialise([8, 8, 8]).await.expect("it is set up");
            let mut coordinator = Coordinator::new(placement.clone(), CoordinatorSettings::default());
            for (number, machine) in (1..).zip(&machines) {
                let env = machine.env();
                live(
                    &env,
                    &self::placement(&env, &table),
                    number,
                    &format!("d{number}"),
                )
                .await;
            }
            settle(&env, &mut coordinator, &placement).await;
            let before = all_rows(&placement).await;
            machines[0].crash();
            settle(&env, &mut coordinator, &placement).await;
            let after = all_rows(&placement).await;
            check(&after);
            for (before, after) in before.iter().zip(&after) {
                let was_there = before.replica(node(1)).is_some();
                if before.replication.copies() > 1 {
                    assert!(after.replica(node(1)).is_none(), "the dead node has left");
                    assert_eq!(
                        after.active().count(),
                        after.replication.copies(),
                        "and was replaced"
                    );
                } else if was_there {
                    assert_eq!(
                        before.replicas, after.replicas,
                        "the only copy waits for its node"
                    );
                }
                assert_eq!(
                    was_there && before.replication.copies() > 1,
                    after.version > before.version
                );
            }
            // All others die at once: nothing changes any more, whoever comes back first.
            machines[1..].iter().for_each(firn_env::sim::Machine::crash);
            settle(&env, &mut coordinator, &placement).await;
            let stranded = all_rows(&placement).await;
            assert_eq!(after, stranded);
        })
        .expect("the run ends");
}

#[test]
fn a_drained_node_keeps_its_replicas_until_others_have_copied_them() {
    run(3, |env, table| async move {
        let (placement, mut coordinator) = settled(&env, &table, 8, 4).await;
        placement
            .set_node_state(node(2), NodeState::Draining)
            .await
            .expect("the table answers");
        for _ in 0..20 {
            coordinator.tick().await.expect("the table answers");
            env.sleep(Duration::from_secs(1)).await;
        }
        let copying = all_rows(&placement).await;
        check(&copying);
        assert!(
            copying.iter().any(|row| row.replica(node(2)).is_some()),
            "it stays while others copy"
        );
        let in_use = placement.remove_node(node(2)).await;
        assert!(matches!(in_use, Err(PlacementError::NodeInUse(_))), "{in_use:?}");
        settle(&env, &mut coordinator, &placement).await;
        let drained = all_rows(&placement).await;
        check(&drained);
        assert!(
            drained.iter().all(|row| row.replica(node(2)).is_none()),
            "then it is empty"
        );
        assert!(
            drained
                .iter()
                .all(|row| row.active().count() == row.replication.copies())
        );
        assert!(
            placement
                .is_node_unused(node(2))
                .await
                .expect("the table answers")
        );
        let serves = placement.remove_node(node(1)).await;
        assert!(matches!(serves, Err(PlacementError::NodeInUse(_))), "{serves:?}");
        for _ in 0..2 {
            placement
                .remove_node(node(2))
                .await
                .expect("unused, and then gone");
        }
        let nodes = placement.nodes().await.expect("the table answers");
        assert!(nodes.iter().all(|left| left.node != node(2)), "{nodes:?}");
    });
}

#[test]
fn a_drain_that_cannot_end_is_known_before_it_begins() {
    run(5, |env, table| async move {
        let placement = placement(&env, &table);
        let too_few = |checked: Result<(), PlacementError>| match checked {
            Err(PlacementError::TooFewNodes { copies, remaining }) => Some((copies, remaining)),
            Ok(()) => None,
            Err(other) => panic!("{other}"),
        };
        placement.initialise([8, 8, 8]).await.expect("it is set up");
        // Without rows nobody is needed.
        assert_eq!(too_few(placement.check_drain(node(1)).await), None);
        populate(&env, &placement, 3).await;
        assert_eq!(too_few(placement.check_drain(node(1)).await), Some((3, 2)));
        // One that has no row may always go.
        assert_eq!(too_few(placement.check_drain(node(77)).await), None);
        live(&env, &placement, 4, "rack-4").await;
        assert_eq!(too_few(placement.check_drain(node(1)).await), None);
        // A node that is being emptied itself takes nothing in.
        placement
            .set_node_state(node(4), NodeState::Draining)
            .await
            .expect("the table answers");
        assert_eq!(too_few(placement.check_drain(node(1)).await), Some((3, 2)));
        // It has no row yet, so it can go itself.
        assert_eq!(too_few(placement.check_drain(node(4)).await), None);
    });
}

#[test]
fn a_new_node_gets_its_share() {
    run(4, |env, table| async move {
        let (placement, mut coordinator) = settled(&env, &table, 30, 3).await;
        live(&env, &placement, 4, "d4").await;
        for _ in 0..3 {
            settle(&env, &mut coordinator, &placement).await;
        }
        let rows = all_rows(&placement).await;
        check(&rows);
        let share = rows.iter().filter(|row| row.replica(node(4)).is_some()).count();
        assert!((35..=50).contains(&share), "it carries {share} of 180");
        assert!(
            rows.iter()
                .all(|row| row.replicas.len() == row.replication.copies())
        );
    });
}

#[test]
fn two_coordinators_never_both_act_and_the_second_takes_over() {
    for seed in 0..20 {
        let simulation = Simulation::new(100 + seed);
        let table = MemoryTable::new();
        let (one, two) = (simulation.machine("one"), simulation.machine("two"));
        let env = simulation.env();
        simulation
            .run(async move {
                let placement = placement(&env, &table);
                placement.initialise([8, 8, 8]).await.expect("it is set up");
                for number in 1..=4 {
                    live(&env, &placement, number, &format!("d{number}")).await;
                }
                let mut coordinators = Vec::new();
                for machine in [&one, &two] {
                    let env = machine.env();
                    let client = table.connect(&env);
                    client.set_rates(FaultRates {
                        throttle_per_mille: 30,
                        lose_reply_per_mille: 30,
                        late_per_mille: 30,
                        ..FaultRates::default()
                    });
                    let placement = Placement::new(env, client, "test").expect("the name is fine");
                    coordinators.push(Coordinator::new(placement, CoordinatorSettings::default()));
                }
                let mut versions = Vec::new();
                for round in 0..60 {
                    let mut leaders = 0;
                    for (at, coordinator) in coordinators.iter_mut().enumerate() {
                        // The first sleeps for half of the time.
                        if at == 0 && (20..40).contains(&round) {
                            continue;
                        }
                        leaders += usize::from(coordinator.tick().await.is_ok_and(|tick| tick.leads));
                    }
                    assert!(leaders <= 1, "one acts in a round");
                    promote_all(&placement).await;
                    let rows = all_rows(&placement).await;
                    check(&rows);
                    let now: Vec<_> = rows.iter().map(|row| row.version).collect();
                    if versions.len() == now.len() {
                        assert!(
                            versions.iter().zip(&now).all(|(before, now)| before <= now),
                            "versions rise"
                        );
                    }
                    versions = now;
                    env.sleep(Duration::from_secs(1)).await;
                }
                assert_eq!(all_rows(&placement).await.len(), 24);
            })
            .expect("the run ends");
    }
}

//! Rows are placed by what is promised in them, and by whether nodes take writes.

use super::{TENANT, all_rows, check, node, placement, run, settle};
use firn_blockd_placement::*;
use firn_blockd_protocol::*;
use firn_env::Env;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

/// What a node says at its next heartbeat; nothing: it is silent.
type Says = Arc<Mutex<Option<NodeReport>>>;

fn room_for(capacity_tracts: u64) -> NodeReport {
    NodeReport {
        capacity_tracts,
        used_tracts: 0,
        condition: NodeCondition::Writable,
    }
}

async fn live(env: &Env, placement: &Placement, number: u8, report: NodeReport) -> Says {
    let (address, domain) = (format!("10.0.0.{number}:7300"), format!("d{number}"));
    let registration = placement
        .register(node(number), 1, &address, &domain, report)
        .await
        .expect("it registers");
    let says: Says = Arc::new(Mutex::new(Some(report)));
    let (sleeper, placement, saying) = (env.clone(), placement.clone(), says.clone());
    drop(env.spawn("beat", async move {
        loop {
            sleeper.sleep(Duration::from_secs(1)).await;
            let report = *saying.lock().expect("no panic under this lock");
            if let Some(report) = report {
                placement
                    .heartbeat(&registration, report)
                    .await
                    .expect("it beats");
            }
        }
    }));
    says
}

fn say(says: &Says, report: Option<NodeReport>) {
    *says.lock().expect("no panic under this lock") = report;
}

fn new_disk(name: &str, tracts: u64) -> NewDisk {
    NewDisk {
        tenant: TENANT,
        name: name.into(),
        size_bytes: tracts * TRACT_BYTES,
        tracts: None,
        replication: Replication::new(2).expect("two copies"),
        settings: "{}".into(),
    }
}

/// Tracts promised in each node's rows.
async fn promised(placement: &Placement) -> BTreeMap<NodeId, u64> {
    let cluster = placement.cluster().await.expect("it answers");
    let disks = placement.disks(None).await.expect("it answers");
    let promises = Promises::of(&cluster, disks.iter());
    let mut promised = BTreeMap::new();
    for row in all_rows(placement).await {
        for replica in &row.replicas {
            *promised.entry(replica.node).or_default() += promises.tracts(&row);
        }
    }
    promised
}

async fn two_copies(placement: &Placement) -> usize {
    let copies = Replication::new(2).expect("two copies");
    let rows = placement.rows(copies).await.expect("it answers");
    check(&rows);
    let whole = |row: &&Row| row.active().count() == 2 && row.replicas.len() == 2;
    rows.iter().filter(whole).count()
}

/// Three nodes of 35 tracts, on which all is promised that may be.
async fn full(env: &Env, placement: &Placement) -> (Coordinator, Vec<Says>) {
    placement.initialise([24; 3]).await.expect("it is set up");
    let mut coordinator = Coordinator::new(placement.clone(), CoordinatorSettings::default());
    let mut says = Vec::new();
    for number in 1..=3 {
        says.push(live(env, placement, number, room_for(35)).await);
    }
    settle(env, &mut coordinator, placement).await;
    let over = placement.create_disk(new_disk("over", 36)).await;
    assert!(
        matches!(
            over,
            Err(PlacementError::NoCapacity {
                needed_tracts: 72,
                free_tracts: 70
            })
        ),
        "82 or 98 of 105 were promised before: {over:?}"
    );
    placement
        .create_disk(new_disk("one", 20))
        .await
        .expect("there is room");
    placement
        .create_disk(new_disk("two", 15))
        .await
        .expect("there is room");
    settle(env, &mut coordinator, placement).await;
    (coordinator, says)
}

#[test]
fn what_is_promised_fits_the_nodes_that_are_left_and_a_late_one_gets_its_share() {
    for seed in 0..6 {
        run(400 + seed, |env, table| async move {
            let placement = placement(&env, &table);
            let (mut coordinator, says) = full(&env, &placement).await;
            say(&says[seed as usize % 3], None);
            settle(&env, &mut coordinator, &placement).await;
            assert_eq!(
                two_copies(&placement).await,
                24,
                "all rows have two copies without it"
            );
            let on_nodes = promised(&placement).await;
            assert!(on_nodes.values().all(|tracts| *tracts <= 35), "{on_nodes:?}");
            let late = live(&env, &placement, 4, room_for(35)).await;
            settle(&env, &mut coordinator, &placement).await;
            let on_nodes = promised(&placement).await;
            assert!(on_nodes[&node(4)] >= 12, "an empty one gets rows: {on_nodes:?}");
            say(&late, None);
            say(&says[seed as usize % 3], Some(room_for(35)));
            settle(&env, &mut coordinator, &placement).await;
            assert_eq!(
                two_copies(&placement).await,
                24,
                "the one that is back takes its place"
            );
        });
    }
}

#[test]
fn a_node_that_takes_no_writes_is_done_without_and_taken_back() {
    run(411, |env, table| async move {
        let placement = placement(&env, &table);
        let (mut coordinator, says) = full(&env, &placement).await;
        let read_only = NodeReport {
            condition: NodeCondition::ReadOnly,
            ..room_for(35)
        };
        say(&says[1], Some(read_only));
        coordinator.tick().await.expect("it answers");
        let rows = all_rows(&placement).await;
        assert!(
            rows.iter().any(|row| row.replica(node(2)).is_some()),
            "a moment is no reason"
        );
        settle(&env, &mut coordinator, &placement).await;
        let rows = all_rows(&placement).await;
        check(&rows);
        let left: Vec<_> = rows.iter().filter(|row| row.replica(node(2)).is_some()).collect();
        assert!(left.is_empty(), "also rows of one copy are with others: {left:?}");
        assert_eq!(two_copies(&placement).await, 24);
        let verdict = placement.verdict().await.expect("it answers");
        assert_eq!(
            (verdict.dead.len(), verdict.read_only),
            (0, vec![node(2).to_string()])
        );
        say(&says[1], Some(room_for(35)));
        settle(&env, &mut coordinator, &placement).await;
        let on_nodes = promised(&placement).await;
        assert!(on_nodes[&node(2)] >= 12, "it takes writes again: {on_nodes:?}");
    });
}

#[test]
fn a_joining_replica_whose_node_has_no_frame_left_makes_way_for_another() {
    run(412, |env, table| async move {
        let placement = placement(&env, &table);
        placement.initialise([8; 3]).await.expect("it is set up");
        let mut coordinator = Coordinator::new(placement.clone(), CoordinatorSettings::default());
        let mut says = Vec::new();
        for number in 1..=4 {
            says.push(live(&env, &placement, number, room_for(100)).await);
        }
        settle(&env, &mut coordinator, &placement).await;
        placement
            .create_disk(new_disk("one", 16))
            .await
            .expect("there is room");
        // It says that it has no frame, whatever was counted.
        let out = NodeReport {
            condition: NodeCondition::OutOfTracts,
            ..room_for(100)
        };
        say(&says[0], None);
        for _ in 0..14 {
            coordinator.tick().await.expect("it answers");
            env.sleep(Duration::from_secs(1)).await;
        }
        let joining = |rows: &[Row]| -> Vec<NodeId> {
            let replicas = rows.iter().flat_map(|row| &row.replicas);
            let joining = replicas.filter(|replica| replica.state == ReplicaState::Joining);
            joining.map(|replica| replica.node).collect()
        };
        let before = joining(&all_rows(&placement).await);
        let stuck = *before
            .first()
            .expect("somebody joins in the place of the dead one");
        say(&says[usize::from(stuck.0[0]) - 1], Some(out));
        for _ in 0..3 {
            env.sleep(Duration::from_secs(1)).await;
            coordinator.tick().await.expect("it answers");
        }
        let after = joining(&all_rows(&placement).await);
        assert!(
            !after.contains(&stuck),
            "who writes would wait for it for ever: {after:?}"
        );
        assert!(!after.is_empty(), "others join instead");
    });
}

#[test]
fn a_drain_that_would_leave_no_room_is_known_before_it_begins() {
    run(413, |env, table| async move {
        let placement = placement(&env, &table);
        placement.initialise([8, 8, 8]).await.expect("it is set up");
        let mut coordinator = Coordinator::new(placement.clone(), CoordinatorSettings::default());
        for number in 1..=4 {
            live(&env, &placement, number, room_for(35)).await;
        }
        settle(&env, &mut coordinator, &placement).await;
        placement
            .create_disk(new_disk("one", 40))
            .await
            .expect("there is room");
        assert_eq!(
            placement.check_drain(node(1)).await.ok(),
            Some(()),
            "105 are left for 80"
        );
        placement
            .set_node_state(node(1), NodeState::Draining)
            .await
            .expect("it answers");
        settle(&env, &mut coordinator, &placement).await;
        assert!(placement.is_node_unused(node(1)).await.expect("it answers"));
        let second = placement.check_drain(node(2)).await;
        assert!(
            matches!(
                second,
                Err(PlacementError::TooFewNodes { .. } | PlacementError::NoRoomToDrain { .. })
            ),
            "{second:?}"
        );
    });
}

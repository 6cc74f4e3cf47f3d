//! A cluster that shared a table with other things gets one of its own.

use super::*;
use firn_table::{Condition, ItemKey, Table as _, Write};

const OTHERS: &str = "tenant/of-the-control-plane";

async fn is_readable(env: &Env, table: &MemoryTable, partition: &str) -> bool {
    let page = table
        .connect(env)
        .query(partition, "", None, 10)
        .await
        .expect("it answers");
    !page.items.is_empty()
}

#[test]
fn a_cluster_moves_with_all_it_has_and_takes_nothing_of_others_along() {
    let simulation = Simulation::new(5);
    let env = simulation.machine("operator").env();
    let node_machine = simulation.machine("node");
    let node_env = node_machine.env();
    let (shared, own) = (MemoryTable::new(), MemoryTable::new());
    simulation
        .run(async move {
            let secret = Write::Put {
                key: ItemKey::new(OTHERS, "api-key/1"),
                value: "hash".into(),
                condition: Condition::Absent,
            };
            shared
                .connect(&env)
                .transact(vec![secret])
                .await
                .expect("it is put");
            let (old, new) = (placement(&env, &shared), placement(&env, &own));
            assert!(matches!(
                new.move_from(&old, Duration::ZERO).await,
                Err(PlacementError::NoCluster)
            ));
            old.initialise([8; 3]).await.expect("it is set up");
            live(&node_env, &placement(&node_env, &shared), 1, "a").await;
            let settings = CoordinatorSettings::default();
            let coordinator = Coordinator::new(placement(&node_env, &shared), settings);
            drop(node_env.spawn("coordinator", coordinator.run(Duration::from_millis(200))));
            let new_disk = NewDisk {
                tenant: TENANT,
                name: "d".into(),
                size_bytes: 4 * TRACT_BYTES,
                tracts: None,
                replication: Replication::ALL[0],
                settings: String::new(),
            };
            let mut created = None;
            for _ in 0..100 {
                env.sleep(Duration::from_millis(200)).await;
                created = old.create_disk(new_disk.clone()).await.ok();
                if created.is_some() {
                    break;
                }
            }
            let disk = created.expect("there is room").disk;
            let attached = old
                .attach_disk(disk, "client", false)
                .await
                .expect("nobody has it");
            // While a node runs nothing is moved: it would go on in the old table.
            let moved = new.move_from(&old, Duration::from_secs(5)).await;
            assert!(matches!(moved, Err(PlacementError::NodeAlive(_))), "{moved:?}");
            assert!(matches!(new.cluster().await, Err(PlacementError::NoCluster)));
            node_machine.crash();
            let (rows, before) = (all_rows(&old).await, old.disk(disk).await.expect("it is there"));
            let moved = new
                .move_from(&old, Duration::from_secs(5))
                .await
                .expect("nothing runs");
            assert!(moved > 5, "{moved} items");
            assert_eq!(all_rows(&new).await, rows);
            assert_eq!(new.disk(disk).await.expect("it came along"), before);
            assert_eq!(new.disk_named(TENANT, "d").await.expect("by its name").disk, disk);
            assert_eq!(new.disk(disk).await.expect("it is there").fence(), attached.fence);
            // What is still configured for the old table finds nothing there, and what opens the new one nothing else.
            assert!(matches!(old.cluster().await, Err(PlacementError::NoCluster)));
            for partition in ["cluster", "nodes", "disks", "rows/1"] {
                let partition = format!("blockd/test/{partition}");
                assert!(!is_readable(&env, &shared, &partition).await, "{partition}");
                assert!(is_readable(&env, &own, &partition).await, "{partition}");
            }
            assert!(is_readable(&env, &shared, OTHERS).await && !is_readable(&env, &own, OTHERS).await);
            assert_eq!(
                new.move_from(&old, Duration::ZERO).await.ok(),
                Some(0),
                "again is nothing"
            );
        })
        .expect("the run ends");
}

/// The operator's machine dies in the middle, or the table does not answer, as often as not.
#[test]
fn a_move_that_is_cut_off_is_begun_again() {
    for seed in 0..30 {
        let simulation = Simulation::new(seed);
        let machine = simulation.machine("operator");
        let env = simulation.env();
        let (shared, own) = (MemoryTable::new(), MemoryTable::new());
        let tables = (shared.clone(), own.clone());
        simulation
            .run(async move {
                let old = placement(&env, &tables.0);
                old.initialise([8; 3]).await.expect("it is set up");
                for number in 1..=3 {
                    old.register(node(number), 1, "10.0.0.1:7300", "a", REPORT)
                        .await
                        .expect("it registers");
                }
            })
            .expect("set-up ends");
        let env = simulation.env();
        let mut tries = 0;
        loop {
            tries += 1;
            assert!(tries < 200, "seed {seed}");
            let (moving, tables) = (machine.env(), (shared.clone(), own.clone()));
            let steps = Duration::from_micros(50 * tries);
            let (outcome, cut) = (machine.clone(), env.clone());
            let done = std::sync::Arc::new(std::sync::Mutex::new(false));
            let noted = done.clone();
            simulation
                .run(async move {
                    drop(moving.clone().spawn("move", async move {
                        let (old, new) = (placement(&moving, &tables.0), placement(&moving, &tables.1));
                        if new.move_from(&old, Duration::ZERO).await.is_ok() {
                            *noted.lock().unwrap() = true;
                        }
                    }));
                    cut.sleep(steps).await;
                    outcome.crash();
                })
                .expect("the run ends");
            machine.restart();
            if *done.lock().unwrap() {
                break;
            }
        }
        let env = simulation.env();
        simulation
            .run(async move {
                let (old, new) = (placement(&env, &shared), placement(&env, &own));
                assert!(matches!(old.cluster().await, Err(PlacementError::NoCluster)));
                assert_eq!(new.nodes().await.expect("it answers").len(), 3);
            })
            .expect("the run ends");
    }
}

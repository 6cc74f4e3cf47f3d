//! A node whose file system is full: it goes on reading, refuses writes, loses nothing, and takes writes again when there is room.

use crate::support::store::{formatted, generation, place, put, read};
use firn_blockd_node::*;
use firn_env::sim::{DiskOptions, Machine, Simulation};
use std::time::Duration;

/// Leaves no room on a machine's disk.
fn fill_up(machine: &Machine) {
    let free = machine.disk().free_bytes();
    machine.disk().configure(|options| options.capacity_bytes -= free);
}

/// Gives the disk its capacity back.
fn restore_capacity(machine: &Machine) {
    machine
        .disk()
        .configure(|options| options.capacity_bytes = DiskOptions::default().capacity_bytes);
}

#[test]
fn a_store_without_room_for_a_checkpoint_reads_on_and_goes_on_by_itself() {
    for seed in 0..8 {
        let simulation = Simulation::new(seed);
        let machine = simulation.machine("node");
        let outcome = simulation.run(async move {
            let env = machine.env();
            let store = formatted(&env).await;
            fill_up(&machine);
            // The journal's files fill, and the state file that would let one be used again finds no room.
            let mut acknowledged = 0;
            let mut refused = false;
            for sequence in 1..=4000 {
                let block = (sequence % 512) as u16;
                match store.put(place(0), &[put(0, block, generation(sequence))]).await {
                    Ok(batch) => {
                        let durable = env.timeout(Duration::from_secs(2), store.durable(batch)).await;
                        if durable.is_ok() {
                            acknowledged = sequence;
                        }
                    }
                    Err(StoreError::ReadOnly) => {
                        refused = true;
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(
                refused && store.is_read_only() && store.is_full().await,
                "it is read-only"
            );
            assert!(acknowledged > 100, "{acknowledged} were acknowledged before");
            let block = (acknowledged % 512) as u16;
            assert!(read(&store, 0, block).await.0.generation >= generation(acknowledged));
            restore_capacity(&machine);
            env.sleep(Duration::from_secs(3)).await;
            assert!(
                !store.is_read_only() && !store.is_full().await,
                "it takes writes again"
            );
            let later = [put(0, 1000, generation(5000))];
            let batch = store.put(place(0), &later).await.expect("there is room again");
            store.durable(batch).await;
            drop(store);
            machine.crash();
            let env = machine.restart();
            let store = Store::open(&env, StoreOptions::default())
                .await
                .expect("it opens");
            assert!(read(&store, 0, block).await.0.generation >= generation(acknowledged));
            assert_eq!(read(&store, 0, 1000).await.0.generation, generation(5000));
        });
        outcome.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn a_sync_that_fails_ends_the_machine_and_not_one_task_of_it() {
    let simulation = Simulation::new(3);
    let machine = simulation.machine("node");
    machine.may_panic(true);
    let (dying, env) = (machine.clone(), simulation.env());
    simulation
        .run(async move {
            let inside = dying.env();
            let failing = dying.clone();
            drop(inside.clone().spawn("test", async move {
                let store = formatted(&inside).await;
                failing
                    .disk()
                    .configure(|options| options.sync_failures = 1_000_000);
                let batch = store.put(place(0), &[put(0, 1, generation(1))]).await;
                store.durable(batch.expect("there is room")).await;
            }));
            for _ in 0..100 {
                if !dying.is_running() {
                    return;
                }
                env.sleep(Duration::from_millis(100)).await;
            }
            panic!("the machine lives on");
        })
        .expect("the run ends");
    let panics = machine.panics().join("; ");
    assert!(panics.contains("cannot be synced"), "{panics}");
}

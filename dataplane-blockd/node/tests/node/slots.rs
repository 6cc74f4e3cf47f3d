//! Overwriting: however much of a disk, and however many at once, nobody waits for more than commits.

use crate::support::{
    content,
    store::{formatted, generation, place, put, read},
};
use firn_blockd_node::*;
use firn_blockd_protocol::*;
use firn_env::sim::Simulation;
use std::{sync::atomic::Ordering::Relaxed, time::Duration};

#[test]
fn overwriting_the_same_blocks_for_ever_needs_no_more_room() {
    let simulation = Simulation::new(3);
    let env = simulation.machine("node").env();
    simulation
        .run(async move {
            let store = formatted(&env).await;
            // Both tracts full, and then every block again: more versions than there are scratch slots.
            for round in 1..=4 {
                for index in 0..2 {
                    for first in (0..TRACT_BLOCKS).step_by(256) {
                        let puts: Vec<Put> = (first..first + 256)
                            .map(|block| put(index, block, generation(round)))
                            .collect();
                        store.put(place(index), &puts).await.expect("there is room");
                    }
                }
            }
            store.flush().await;
            for block in (0..TRACT_BLOCKS).step_by(97) {
                assert_eq!(read(&store, 1, block).await.0.generation, generation(4));
            }
            let third = store.put(place(2), &[put(2, 0, generation(1))]).await;
            assert!(matches!(third, Err(StoreError::Full)), "{third:?}");
            store.release(place(0)).await;
            store
                .put(place(2), &[put(2, 0, generation(1))])
                .await
                .expect("there is room again");
        })
        .expect("the run ends");
}

#[test]
fn many_who_overwrite_everything_at_once_all_get_their_turn() {
    let simulation = Simulation::new(5);
    let env = simulation.machine("node").env();
    simulation
        .run(async move {
            let store = formatted(&env).await;
            // Each round asks for twice as many slots as there are in scratch, all at the same moment.
            for round in 1..=6 {
                let asking = (0..2).flat_map(|index| {
                    let store = store.clone();
                    (0..TRACT_BLOCKS).step_by(256).map(move |first| {
                        let (store, last) = (store.clone(), first + 256);
                        async move {
                            let puts: Vec<Put> = (first..last)
                                .map(|block| put(index, block, generation(round)))
                                .collect();
                            store.put(place(index), &puts).await
                        }
                    })
                });
                for outcome in futures::future::join_all(asking).await {
                    outcome.expect("it gets its permit");
                }
            }
            // What a round asks for is there after two commits: nobody waits for blocks to be moved.
            let counts = store.counts();
            let (commits, homed) = (
                counts.commits.load(Relaxed),
                counts.defragmented_blocks.load(Relaxed),
            );
            assert!(commits <= 3 * 6 && homed == 0, "{commits} commits, {homed} homed");
            store.flush().await;
            let written: Vec<_> = [0, TRACT_BLOCKS - 1]
                .into_iter()
                .flat_map(|block| [(0, block), (1, block)])
                .collect();
            for (index, block) in written {
                let (version, data) = read(&store, index, block).await;
                assert_eq!(version.generation, generation(6));
                assert_eq!(data, content(place(index).tract, block, generation(6)));
            }
            // Left alone, blocks move home until a quarter of scratch is free again.
            env.sleep(Duration::from_secs(60)).await;
            let homed = store.counts().defragmented_blocks.load(Relaxed);
            assert!(
                homed >= u64::from(TRACT_BLOCKS) / 4,
                "{homed} blocks were moved home"
            );
            drop(store);
            let store = Store::open(&env, StoreOptions::default())
                .await
                .expect("it opens again");
            for block in (0..TRACT_BLOCKS).step_by(97) {
                let (version, data) = read(&store, 1, block).await;
                assert_eq!(version.generation, generation(6));
                assert_eq!(data, content(place(1).tract, block, generation(6)));
            }
        })
        .expect("the run ends");
}

//! A disk at work on simulated machines: slow replicas that are away at times, many requests at once, takeovers.

use bytes::Bytes;
use firn_blockd_disk::{AttachError, GrowError, Incarnation, ReplicaError, WritePolicy};
use firn_blockd_nbd::{AnyAlignment, BlockDevice, DeviceError, Durability, Piece};
use firn_env::{Env, sim::Simulation};
use futures::future::join_all;
use std::{sync::Arc, time::Duration};

mod journal;
mod nodes;

use nodes::*;

fn on_machines<F: Future<Output = ()> + Send + 'static>(test: impl Fn(Env, Kind) -> F) {
    for kind in [
        Kind::Striped(WritePolicy::Durable),
        Kind::Striped(WritePolicy::Memory),
        Kind::Log,
    ] {
        for seed in 0..6 {
            let simulation = Simulation::new(seed);
            let env = simulation.machine("client").env();
            simulation
                .run(test(env, kind))
                .unwrap_or_else(|error| panic!("{kind:?}, seed {seed}: {error}"));
        }
    }
}

#[test]
fn concurrent_users_read_what_they_wrote_and_all_of_it_survives_a_detach() {
    on_machines(|env, kind| async move {
        let cluster = new_cluster(&env, kind).await;
        let mut attaches = 100;
        let disk = attach(&env, &cluster, kind, &mut attaches).await;
        let device = Arc::new(AnyAlignment::new(disk.clone()));
        // Each user has a quarter, which begins and ends within blocks that are shared.
        let users = (0..4_u64).map(|user| {
            let (env, device) = (env.clone(), device.clone());
            async move {
                let start = 100 + user * 3900;
                let mut model = vec![0_u8; 3900];
                for round in 0..30_u8 {
                    let from = env.random_below(3000) as usize;
                    let length = 1 + env.random_below(900) as usize;
                    let at = start + from as u64;
                    match env.random_below(5) {
                        0 => {
                            device
                                .write_zeroes(at, length as u64, true, Durability::Acknowledged)
                                .await
                                .unwrap();
                            model[from..from + length].fill(0);
                        }
                        1 => device.flush().await.unwrap(),
                        kind => {
                            let durability = if kind == 2 {
                                Durability::Durable
                            } else {
                                Durability::Acknowledged
                            };
                            device
                                .write(at, Bytes::from(vec![round + 1; length]), durability)
                                .await
                                .unwrap();
                            model[from..from + length].fill(round + 1);
                        }
                    }
                    let mut read = Vec::new();
                    for piece in device.read(start, 3900).await.unwrap() {
                        match piece {
                            Piece::Data(data) => read.extend_from_slice(&data),
                            Piece::Zeroes(length) => read.resize(read.len() + length as usize, 0),
                        }
                    }
                    assert!(read == model, "user {user}, round {round}");
                }
            }
        });
        join_all(users).await;
        let before = content(&disk).await;
        disk.detach().await.unwrap();
        assert_eq!(disk.dirty_bytes(), 0);
        assert_eq!(disk.flush().await, Err(DeviceError::Closing));
        let disk = attach(&env, &cluster, kind, &mut attaches).await;
        assert!(content(&disk).await == before);
    });
}

#[test]
fn whoever_was_taken_over_is_told_and_can_do_nothing_more() {
    on_machines(|env, kind| async move {
        let cluster = new_cluster(&env, kind).await;
        let mut attaches = 100;
        let loser = attach(&env, &cluster, kind, &mut attaches).await;
        let block = |byte| Bytes::from(vec![byte; BLOCK_BYTES as usize]);
        loser.write(0, block(1), Durability::Durable).await.unwrap();
        let winner = attach(&env, &cluster, kind, &mut attaches).await;
        winner.write(512, block(2), Durability::Durable).await.unwrap();
        assert_eq!(
            loser.write(0, block(3), Durability::Durable).await,
            Err(DeviceError::Fenced)
        );
        assert_eq!(loser.read(0, 512).await, Err(DeviceError::Fenced));
        assert_eq!(loser.flush().await, Err(DeviceError::Fenced));
        assert_eq!(winner.read(0, 512).await, Ok(vec![Piece::Data(block(1))]));
    });
}

/// A table that was restored from a backup gives a fence out a second time. The attach that gets it must neither seal other content
/// under the names of the first nor write what loses against it; the next fence is as good as any.
#[test]
fn a_fence_that_was_given_out_before_is_refused() {
    on_machines(|env, kind| async move {
        let cluster = new_cluster(&env, kind).await;
        // Nodes that were away when they were asked are asked by another attempt, which has the next fence or another salt.
        let attempt = async |attempts: Vec<Incarnation>| {
            for incarnation in attempts {
                match attach_as(&env, &cluster, kind, incarnation).await {
                    Err(AttachError::Replica(ReplicaError::Unreachable { .. })) => {}
                    attached => return (incarnation.fence(), attached),
                }
            }
            panic!("the nodes are never there together");
        };
        let fences = |first: u32| {
            (first..first + 1000)
                .map(|fence| Incarnation::new(fence, 1))
                .collect()
        };
        let (used, first) = attempt(fences(5)).await;
        let first = first.expect("nobody had this fence");
        let block = Bytes::from(vec![7; BLOCK_BYTES as usize]);
        first.write(0, block.clone(), Durability::Durable).await.unwrap();
        // Its machine dies, and the table is put back to before it.
        drop(first);
        for fence in [used - 1, used] {
            // The nodes are as forgetful as they could be: what the disk itself says has to do.
            cluster.lock().unwrap().fences.fill(Incarnation(0));
            let salts = (1000..2000).map(|salt| Incarnation::new(fence, salt)).collect();
            match attempt(salts).await.1.map(drop) {
                Err(AttachError::Reused { given, newest }) => {
                    assert_eq!((given.fence(), newest.fence()), (fence, used));
                }
                other => panic!("fence {fence}: {other:?}"),
            }
        }
        let next = attempt(fences(used + 1)).await.1.expect("it follows");
        assert_eq!(next.read(0, BLOCK_BYTES).await, Ok(vec![Piece::Data(block)]));
    });
}

#[test]
fn an_idle_disk_sends_nothing() {
    on_machines(|env, kind| async move {
        let cluster = new_cluster(&env, kind).await;
        let mut attaches = 100;
        let disk = attach(&env, &cluster, kind, &mut attaches).await;
        for round in 0..100_u64 {
            let block = Bytes::from(vec![round as u8; BLOCK_BYTES as usize]);
            let offset = round % BLOCKS * u64::from(BLOCK_BYTES);
            disk.write(offset, block, Durability::Acknowledged).await.unwrap();
        }
        disk.flush().await.unwrap();
        env.sleep(Duration::from_secs(60)).await;
        let before = cluster.lock().unwrap().stores;
        env.sleep(Duration::from_secs(3600)).await;
        assert_eq!(cluster.lock().unwrap().stores, before);
    });
}

#[test]
fn a_disk_grows_under_load_and_keeps_its_size() {
    on_machines(|env, kind| async move {
        let cluster = new_cluster(&env, kind).await;
        let mut attaches = 100;
        let disk = attach(&env, &cluster, kind, &mut attaches).await;
        let block = |byte: u64| Bytes::from(vec![byte as u8; BLOCK_BYTES as usize]);
        let writing = {
            let (env, disk) = (env.clone(), disk.clone());
            env.clone().spawn("writer", async move {
                for round in 1..200_u64 {
                    let offset = env.random_below(BLOCKS) * u64::from(BLOCK_BYTES);
                    disk.write(offset, block(round), Durability::Acknowledged)
                        .await
                        .unwrap();
                }
            })
        };
        let refused = GrowError::NotLarger {
            has_blocks: BLOCKS,
            blocks: BLOCKS,
        };
        assert_eq!(disk.grow(BLOCKS, 1000).await, Err(refused));
        disk.grow(BLOCKS + 8, BLOCKS + 40).await.unwrap();
        assert_eq!(disk.geometry().size_bytes, (BLOCKS + 8) * u64::from(BLOCK_BYTES));
        disk.write(DISK_BYTES, block(7), Durability::Durable)
            .await
            .unwrap();
        writing.await.unwrap();
        if matches!(kind, Kind::Log) {
            let disk = attach(&env, &cluster, kind, &mut attaches).await;
            assert_eq!(disk.geometry().size_bytes, (BLOCKS + 8) * u64::from(BLOCK_BYTES));
            assert_eq!(
                disk.read(DISK_BYTES, BLOCK_BYTES).await,
                Ok(vec![Piece::Data(block(7))])
            );
        }
    });
}

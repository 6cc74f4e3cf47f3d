//! Disks and attaches, on rows that stand.

use super::{TENANT, placement, populate, run, settled};
use firn_blockd_placement::*;
use firn_blockd_protocol::*;
use firn_env::Env;
use firn_table::{FaultRates, MemoryTable};
use std::time::Duration;

/// The table through a connection that loses answers and delivers requests late.
fn doubtful(env: &Env, table: &MemoryTable, lose_reply_per_mille: u32) -> Placement {
    let client = table.connect(env);
    client.set_rates(FaultRates {
        lose_reply_per_mille,
        late_per_mille: 50,
        ..FaultRates::default()
    });
    Placement::new(env.clone(), client, "test").expect("the name is fine")
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

#[test]
fn disks_are_created_found_grown_and_deleted_within_the_room_there_is() {
    for seed in 0..10 {
        run(200 + seed, |env, table| async move {
            let placement = doubtful(&env, &table, 50);
            let retry = || env.sleep(Duration::from_millis(50));
            while placement.initialise([8, 8, 8]).await.is_err() {
                retry().await;
            }
            assert!(
                matches!(
                    placement.create_disk(new_disk("early", 1)).await,
                    Err(PlacementError::NotEnoughNodes { copies: 2 } | PlacementError::Unavailable(_))
                ),
                "no nodes, no disks"
            );
            let calm = self::placement(&env, &table);
            populate(&env, &calm, 2).await;
            assert_eq!(calm.capacity().await.expect("it answers").total_tracts, 2000);
            let disk = loop {
                match placement.create_disk(new_disk("one", 400)).await {
                    Ok(record) => break record.disk,
                    Err(PlacementError::DiskExists { disk, .. }) => break disk,
                    Err(_) => retry().await,
                }
            };
            let taken = calm.create_disk(new_disk("one", 1)).await;
            assert!(
                matches!(taken, Err(PlacementError::DiskExists { .. })),
                "{taken:?}"
            );
            let large = calm.create_disk(new_disk("two", 601)).await;
            assert!(
                matches!(
                    large,
                    Err(PlacementError::NoCapacity {
                        free_tracts: 1200,
                        ..
                    })
                ),
                "{large:?}"
            );
            while placement.grow_disk(disk, 1000 * TRACT_BYTES, None).await.is_err() {
                retry().await;
            }
            let shrunk = calm.grow_disk(disk, TRACT_BYTES, None).await;
            assert!(matches!(shrunk, Err(PlacementError::Size { .. })), "{shrunk:?}");
            assert_eq!(calm.capacity().await.expect("it answers").free_tracts(), 0);
            assert_eq!(
                calm.disk_named(TENANT, "one").await.expect("it is there").tracts,
                1000
            );
            while placement.delete_disk(disk).await.is_err() {
                retry().await;
            }
            assert_eq!(calm.capacity().await.expect("it answers").free_tracts(), 2000);
            let gone = calm.disk_named(TENANT, "one").await;
            assert!(matches!(gone, Err(PlacementError::NoDisk(_))), "{gone:?}");
            let attached = calm.attach_disk(disk, "somebody", true).await;
            assert!(
                matches!(attached, Err(PlacementError::Deleting(_))),
                "{attached:?}"
            );
        });
    }
}

#[test]
fn a_disk_with_a_chosen_identifier_is_made_once_and_removed_for_good() {
    for seed in 0..10 {
        run(300 + seed, |env, table| async move {
            let doubtful = doubtful(&env, &table, 200);
            let (calm, _) = settled(&env, &table, 8, 2).await;
            let (disk, late) = (DiskId([7; 16]), DiskId([8; 16]));
            for _ in 0..3 {
                while doubtful.create_disk_as(disk, new_disk("one", 400)).await.is_err() {
                    env.sleep(Duration::from_millis(50)).await;
                }
            }
            assert_eq!(
                calm.capacity().await.expect("it answers").free_tracts(),
                1200,
                "room is taken once"
            );
            let attached = calm
                .attach_disk(disk, "somebody", false)
                .await
                .expect("nobody has it");
            for removed in [disk, late] {
                for _ in 0..2 {
                    while doubtful.remove_disk(TENANT, removed).await.is_err() {
                        env.sleep(Duration::from_millis(50)).await;
                    }
                }
                let again = calm.create_disk_as(removed, new_disk("again", 1)).await;
                assert!(
                    matches!(again, Err(PlacementError::Deleting(_))),
                    "a creation that comes late finds it removed: {again:?}"
                );
            }
            assert_eq!(calm.capacity().await.expect("it answers").free_tracts(), 2000);
            let record = calm.disk(disk).await.expect("it is remembered");
            assert!(record.fence() > attached.fence, "whoever had it is fenced");
            let free = calm.create_disk(new_disk("one", 1)).await;
            assert!(free.is_ok(), "the name is free: {free:?}");
        });
    }
}

#[test]
fn one_holder_at_a_time_and_force_raises_the_fence() {
    run(5, |env, table| async move {
        let (placement, _) = settled(&env, &table, 8, 2).await;
        let disk = placement
            .create_disk(new_disk("one", 4))
            .await
            .expect("there is room")
            .disk;
        let first = placement
            .attach_disk(disk, "first", false)
            .await
            .expect("nobody has it");
        assert!(first.clean);
        let second = placement.attach_disk(disk, "second", false).await;
        assert!(
            matches!(second, Err(PlacementError::Attached { .. })),
            "{second:?}"
        );
        let second = placement
            .attach_disk(disk, "second", true)
            .await
            .expect("by force");
        assert!(second.fence > first.fence);
        assert!(!second.clean, "the first did not end");
        let late = placement.detach_disk(disk, first.fence, true).await;
        assert!(matches!(late, Err(PlacementError::Fenced { .. })), "{late:?}");
        placement
            .detach_disk(disk, second.fence, true)
            .await
            .expect("it has it");
        let third = placement
            .attach_disk(disk, "third", false)
            .await
            .expect("nobody has it");
        assert!(third.clean);
        assert!(third.fence > second.fence);
    });
}

#[test]
fn a_disk_is_asked_for_or_taken_away_and_only_its_holder_gives_it_back() {
    run(900, |env, table| async move {
        let (placement, _) = settled(&env, &table, 8, 2).await;
        let disk = placement
            .create_disk(new_disk("one", 4))
            .await
            .expect("there is room")
            .disk;
        for record in [
            placement.ask_to_detach(disk).await.expect("it answers"),
            placement.end_attach(disk).await.expect("it answers"),
        ] {
            assert_eq!((record.fence, record.attached), (0, None), "nobody has it");
        }
        let attached = placement.attach_disk_as(disk, "there", Some("aa"), false).await;
        let attached = attached.expect("nobody has it");
        let holder = attached.disk.attached.expect("it is attached");
        assert_eq!((holder.key.as_deref(), holder.asked_to_end), (Some("aa"), false));
        for _ in 0..2 {
            let asked = placement.ask_to_detach(disk).await.expect("it answers");
            assert_eq!(asked.fence(), attached.fence, "it is asked, nothing more");
            assert!(asked.attached.expect("it is still attached").asked_to_end);
        }
        let ended = placement.end_attach(disk).await.expect("it answers");
        assert_eq!((ended.fence, ended.clean, ended.attached), (2, false, None));
        assert!(matches!(
            placement.detach_disk(disk, attached.fence, true).await,
            Err(PlacementError::Fenced { current: Fence(2) })
        ));
        let next = placement
            .attach_disk(disk, "here", false)
            .await
            .expect("nobody has it");
        assert!(!next.clean, "the loser did not flush");
        assert!(
            !next.disk.attached.expect("it is attached").asked_to_end,
            "that was asked of another"
        );
    });
}

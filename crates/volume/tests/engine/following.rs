//! A volume that is followed: what an adoption keeps and costs, and roots that are not adopted.

use crate::{
    files::{create, look, name, read, write},
    world::{World, config, root},
};
use firn_anchor::Anchor;
use firn_env::{mutants::planting, sim::Simulation};
use firn_table::FaultRates;
use firn_vfs::{Vfs, VfsError};
use firn_volume::{FollowOptions, FollowerVfs, Parts, ServingState, StaleReads, Volume, VolumeError};
use std::time::Duration;

const STRICT: FollowOptions = FollowOptions {
    freshness: Duration::ZERO,
    stale_reads: StaleReads::Wait,
};

async fn follow(parts: Parts) -> Volume {
    let followed = Volume::follow(parts, config(), STRICT).await;
    followed.expect("it is followed")
}

#[test]
fn an_adoption_drops_what_changed_and_keeps_the_rest() {
    let simulation = Simulation::new(1);
    let world = World::new(&simulation);
    let made = world.format_and_open();
    let beside = world.machine_beside(&simulation, "follower");
    let meter = world.meter();
    simulation
        .run(async move {
            let owner = made.await;
            for number in 0..200 {
                let file = create(&owner, owner.root(), &format!("file {number}")).await;
                write(&owner, file, 0, vec![number as u8; 10_000]).await;
            }
            owner.sync().await.expect("committed");
            let volume = follow(beside).await;
            let vfs = FollowerVfs::new(volume.clone());
            for number in 0..200 {
                let file = look(&vfs, &[&format!("file {number}")])
                    .await
                    .expect("it is there");
                let content = read(&vfs, file, 0, 10_000).await.expect("it is read");
                assert_eq!(content, vec![number as u8; 10_000]);
            }
            let changed = look(&owner, &["file 7"]).await.expect("it is there");
            write(&owner, changed, 0, vec![99; 10_000]).await;
            owner.sync().await.expect("committed");

            let before = meter.usage().requests();
            let seen = look(&vfs, &["file 7"]).await.expect("it is there");
            assert_eq!(seen, changed, "a handle means the same file everywhere");
            assert_eq!(read(&vfs, seen, 0, 10_000).await, Ok(vec![99; 10_000]));
            for number in 8..200 {
                let file = look(&vfs, &[&format!("file {number}")])
                    .await
                    .expect("it is there");
                read(&vfs, file, 0, 10_000).await.expect("it is read");
            }
            let status = volume.status().following.expect("it follows");
            assert_eq!((status.adoptions, status.alarms), (1, 0));
            assert_eq!(status.dropped_entries, 1, "of two hundred entries one differs");
            let asked = meter.usage().requests() - before;
            assert!(asked <= 4, "{asked} requests to the store for one changed file");
        })
        .expect("the run ends");
}

#[test]
fn readers_that_wait_share_a_read_of_the_root_and_nobody_writes() {
    let simulation = Simulation::new(2);
    let world = World::new(&simulation);
    let made = world.format_and_open();
    let beside = world.machine_beside(&simulation, "follower");
    let table = world.table();
    // A read of the root takes a while.
    let client = table.connect(&beside.env);
    client.set_rates(FaultRates {
        delay: Duration::from_millis(5)..=Duration::from_millis(5),
        ..FaultRates::default()
    });
    let anchor = Anchor::new(client, beside.env.clone(), beside.anchor.family());
    let beside = Parts { anchor, ..beside };
    simulation
        .run(async move {
            let owner = made.await;
            create(&owner, owner.root(), "file").await;
            owner.sync().await.expect("committed");
            let volume = follow(beside).await;
            let vfs = FollowerVfs::new(volume.clone());
            let before = table.counts().requests();
            let looks = (0..100).map(|_| look(&vfs, &["file"]));
            for found in futures::future::join_all(looks).await {
                found.expect("it is there");
            }
            let asked = table.counts().requests() - before;
            // The first comes while none is under way, all others during its read.
            assert!(asked <= 2, "{asked} reads of the root for a hundred readers");
            let refused = vfs.remove(&root(), vfs.root(), &name("file")).await;
            assert_eq!(refused.map(drop), Err(VfsError::ReadOnly));
            // Nor past the layer.
            let refused = volume.remove(&root(), volume.root(), &name("file")).await;
            assert_eq!(refused.map(drop), Err(VfsError::ReadOnly));
            assert!(matches!(volume.drain().await, Err(VolumeError::Follows)));
            assert!(volume.sync().await.is_err());
            volume.stop().await.expect("it stops");
            look(&owner, &["file"]).await.expect("the owner does not care");
        })
        .expect("the run ends");
}

/// The table is put back and another machine goes on from there: its versions rise above those that the follower has seen.
fn forked() -> ServingState {
    let simulation = Simulation::new(3);
    let world = World::new(&simulation);
    let made = world.format_and_open();
    let own = world.own_parts();
    let beside = world.machine_beside(&simulation, "follower");
    let other = world.machine_beside(&simulation, "other");
    let table = world.table();
    simulation
        .run(async move {
            let owner = made.await;
            create(&owner, owner.root(), "first").await;
            owner.sync().await.expect("committed");
            let image = table.image();
            create(&owner, owner.root(), "second").await;
            owner.sync().await.expect("committed");
            let volume = follow(beside).await;
            let vfs = FollowerVfs::new(volume.clone());
            look(&vfs, &["second"]).await.expect("it is there");

            owner.stop().await.expect("it stops");
            table.restore(&image);
            let going_on = Volume::accept_rollback(&other, &config()).await;
            going_on.expect("an administrator says so");
            let (fork, _) = Volume::open(other, config()).await.expect("it opens");
            for number in 0..3 {
                create(&fork, fork.root(), &format!("other {number}")).await;
                fork.sync().await.expect("committed");
            }
            let _ = look(&vfs, &["second"]).await;
            drop(own);
            volume.status().serving_state
        })
        .expect("the run ends")
}

#[test]
fn a_root_whose_history_is_another_one_ends_the_service() {
    let stands = forked();
    let ServingState::Failed(why) = &stands else {
        panic!("it is {stands:?}");
    };
    assert!(why.contains("two stories"), "{why}");
    let stands = planting(Some("volume.follower_adopts_anything"), forked);
    assert_eq!(stands, ServingState::Serving, "the history is all that tells");
}

#[test]
fn who_owned_the_volume_and_has_writes_in_its_journal_does_not_follow_it() {
    let simulation = Simulation::new(4);
    let world = World::new(&simulation);
    let made = world.format_and_open();
    let own = world.own_parts();
    simulation
        .run(async move {
            let owner = made.await;
            create(&owner, owner.root(), "only here").await;
            owner.stop().await.expect("it stops");
            let followed = Volume::follow(own.clone(), config(), STRICT).await;
            assert!(matches!(followed, Err(VolumeError::NotDrained)));
            let (owner, _) = Volume::open(own.clone(), config()).await.expect("it opens");
            owner.drain().await.expect("drained");
            let volume = follow(own).await;
            look(&FollowerVfs::new(volume), &["only here"])
                .await
                .expect("it is there");
        })
        .expect("the run ends");
}

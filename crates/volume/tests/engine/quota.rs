//! The quota from outside: what it refuses, what goes on, and that it is taken back.

use crate::{
    files::{create, directory, look, name, read, write},
    world::{World, config, root},
};
use bytes::Bytes;
use firn_env::sim::Simulation;
use firn_vfs::{CreateMode, FileHandle, FileKind, SetAttributes, Stability, Vfs, VfsError, XattrMode};
use firn_volume::{
    AUTOMATIC, KeptPolicy, RestoreError, RetentionPolicy, RetentionTiers, Volume, VolumeConfig,
};
use std::time::Duration;

async fn put(volume: &Volume, file: FileHandle) -> Result<(), VfsError> {
    let data = vec![Bytes::from_static(b"more")];
    volume
        .write(&root(), file, 0, data, Stability::Unstable)
        .await
        .map(drop)
}

async fn resize(volume: &Volume, file: FileHandle, size_bytes: u64) -> Result<(), VfsError> {
    let change = SetAttributes {
        size_bytes: Some(size_bytes),
        ..SetAttributes::default()
    };
    volume.set_attributes(&root(), file, change, None).await.map(drop)
}

/// Everything that adds something, tried on a volume with the file `f`.
async fn additions(volume: &Volume) -> Vec<Result<(), VfsError>> {
    let (caller, top) = (root(), volume.root());
    let file = look(volume, &["f"]).await.expect("it is there");
    let none = SetAttributes::default;
    vec![
        put(volume, file).await,
        resize(volume, file, 1 << 20).await,
        volume
            .create(&caller, top, &name("new"), CreateMode::Guarded(none()))
            .await
            .map(drop),
        volume
            .create(&caller, top, &name("once"), CreateMode::Exclusive([1; 8]))
            .await
            .map(drop),
        volume
            .make_directory(&caller, top, &name("directory"), none())
            .await
            .map(drop),
        volume
            .make_symlink(&caller, top, &name("symlink"), Bytes::from_static(b"f"), none())
            .await
            .map(drop),
        volume
            .make_node(&caller, top, &name("fifo"), FileKind::Fifo, none())
            .await
            .map(drop),
        volume.link(&caller, file, top, &name("link")).await.map(drop),
        volume
            .set_xattr(
                &caller,
                file,
                b"user.a",
                Bytes::from_static(b"b"),
                XattrMode::Either,
            )
            .await
            .map(drop),
    ]
}

#[test]
fn nothing_is_added_once_the_quota_is_reached_and_all_else_goes_on() {
    let simulation = Simulation::new(1);
    let mut world = World::new(&simulation);
    let opening = world.format_and_open();
    let first = async move {
        let volume = opening.await;
        let (caller, top) = (root(), volume.root());
        let file = create(&volume, top, "f").await;
        write(&volume, file, 0, vec![7; 100_000]).await;
        let held = directory(&volume, top, "d").await;
        create(&volume, held, "victim").await;
        volume.snapshot_create("before", 0).await.expect("a snapshot");
        // Acknowledged, and not committed yet.
        write(&volume, file, 0, vec![8; 50_000]).await;
        volume.set_quota_reached(true);
        for (number, refused) in additions(&volume).await.into_iter().enumerate() {
            assert_eq!(refused, Err(VfsError::QuotaExceeded), "addition {number}");
        }
        let restored = volume.restore(b"before", b"f", b"back", false, &|_| ()).await;
        assert!(
            matches!(
                &restored,
                Err(RestoreError::Stopped {
                    error: VfsError::QuotaExceeded,
                    ..
                })
            ),
            "{restored:?}"
        );
        // What may not anyway is told so, not that the quota is reached.
        let guarded = CreateMode::Guarded(SetAttributes::default());
        let exists = volume.create(&caller, top, &name("f"), guarded).await.map(drop);
        assert_eq!(exists, Err(VfsError::Exists));

        let content = read(&volume, file, 0, 1 << 20).await.expect("it is read");
        assert!(content[..50_000].iter().all(|byte| *byte == 8) && content.len() == 100_000);
        volume
            .commit(&caller, file)
            .await
            .expect("what is acknowledged is flushed");
        let unchecked = CreateMode::Unchecked(SetAttributes::default());
        volume
            .create(&caller, top, &name("f"), unchecked)
            .await
            .expect("it is opened");
        resize(&volume, file, 60_000).await.expect("it is made shorter");
        let mode = SetAttributes {
            mode: Some(0o600),
            ..SetAttributes::default()
        };
        volume
            .set_attributes(&caller, file, mode, None)
            .await
            .expect("its mode is changed");
        volume
            .remove(&caller, held, &name("victim"))
            .await
            .expect("removed");
        volume
            .rename(&caller, top, &name("d"), top, &name("e"))
            .await
            .expect("renamed");
        volume
            .remove_directory(&caller, top, &name("e"))
            .await
            .expect("removed");
        volume.snapshot_create("reached", 0).await.expect("a snapshot");
        volume.snapshot_delete(b"before").await.expect("deleted");
        volume.sync().await.expect("committed");
        assert!(volume.status().quota_reached);
    };
    simulation.run(first).expect("the run ends");

    // What is stored knows nothing of it, and a replay is never refused.
    let volume = world.power_cut(&simulation);
    let second = async move {
        assert!(!volume.status().quota_reached);
        volume.set_quota_reached(true);
        let file = look(&volume, &["f"]).await.expect("it is there");
        assert_eq!(put(&volume, file).await, Err(VfsError::QuotaExceeded));
        volume.set_quota_reached(false);
        for (number, done) in additions(&volume).await.into_iter().enumerate() {
            assert_eq!(done, Ok(()), "addition {number}");
        }
        volume.drain().await.expect("drained");
    };
    simulation.run(second).expect("the run ends");
}

#[test]
fn a_quota_below_what_is_stored_refuses_what_adds_and_takes_nothing_away() {
    let simulation = Simulation::new(3);
    let mut world = World::new(&simulation);
    let opening = world.format_and_open();
    let first = async move {
        let volume = opening.await;
        let file = create(&volume, volume.root(), "f").await;
        write(&volume, file, 0, vec![7; 300_000]).await;
        volume.sync().await.expect("committed");
        // Acknowledged, and only in the journal.
        write(&volume, file, 300_000, vec![8; 100_000]).await;
    };
    simulation.run(first).expect("the run ends");

    world.power_cut_only();
    let parts = world.own_parts();
    let lowered = VolumeConfig {
        quota_bytes: 100_000,
        ..config()
    };
    let second = async move {
        let (volume, _) = Volume::open(parts, lowered).await.expect("it opens");
        let file = look(&volume, &["f"]).await.expect("it is there");
        let content = read(&volume, file, 0, 1 << 20).await.expect("it is read");
        assert!(content[300_000..].iter().all(|byte| *byte == 8) && content.len() == 400_000);
        assert_eq!(put(&volume, file).await, Err(VfsError::NoSpace));
        volume.sync().await.expect("what was acknowledged is committed");
        resize(&volume, file, 50_000).await.expect("it is made shorter");
        assert_eq!(put(&volume, file).await, Ok(()));
        volume.drain().await.expect("drained");
    };
    simulation.run(second).expect("the run ends");
}

/// Of the policy's own snapshots, how many there are.
fn automatic(volume: &Volume) -> usize {
    let own = volume.snapshots();
    own.iter()
        .filter(|snapshot| snapshot.name.starts_with(AUTOMATIC.as_bytes()))
        .count()
}

#[test]
fn snapshots_follow_a_policy_that_changes_while_the_volume_is_served() {
    let simulation = Simulation::new(2);
    let world = World::new(&simulation);
    let (env, opening) = (world.env(), world.format_and_open());
    let hourly = |hourly| {
        let tiers = RetentionTiers {
            hourly,
            ..RetentionTiers::default()
        };
        RetentionPolicy::new(tiers, "UTC", Some(Duration::from_secs(3600)), None).expect("a policy")
    };
    let (many, one) = (hourly(10), hourly(1));
    let life = async move {
        let volume = opening.await;
        let policy = KeptPolicy::default();
        let _keeper = volume.keep_snapshots(&policy);
        let file = create(&volume, volume.root(), "f").await;
        let hours = async |count: u64| {
            for _ in 0..count {
                write(&volume, file, 0, vec![1; 1000]).await;
                volume.sync().await.expect("committed");
                env.sleep(Duration::from_secs(3700)).await;
            }
        };
        hours(3).await;
        assert_eq!(automatic(&volume), 0, "no policy, no snapshot");
        policy.set(Some(many.clone()));
        hours(4).await;
        assert_eq!(automatic(&volume), 4);
        // The next commit deletes what the new policy does not keep, though no snapshot is due.
        write(&volume, file, 0, vec![2; 1000]).await;
        volume.sync().await.expect("committed");
        env.sleep(Duration::from_secs(60)).await;
        let before = automatic(&volume);
        policy.set(Some(one));
        write(&volume, file, 0, vec![3; 1000]).await;
        volume.sync().await.expect("committed");
        env.sleep(Duration::from_secs(60)).await;
        assert_eq!((before, automatic(&volume)), (5, 1));
        policy.set(None);
        hours(2).await;
        assert_eq!(automatic(&volume), 1, "who has no policy deletes nothing");
    };
    simulation.run(life).expect("the run ends");
}

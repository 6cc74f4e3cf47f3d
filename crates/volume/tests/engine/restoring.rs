//! Restoring from snapshots, and cloning them.

use crate::{
    files::{create, directory, look, name, write},
    world::{World, config, root},
};
use bytes::Bytes;
use firn_env::sim::Simulation;
use firn_vfs::{
    Acl, AclEntry, AclTag, Compare, FileHandle, Name, SetAttributes, SetTime, Timestamp, Vfs, VfsError,
    XattrMode, compare_trees,
};
use firn_volume::{CloneError, Parts, RestoreError, SnapshotError, Volume};

async fn file(vfs: &dyn Vfs, within: FileHandle, text: &str, offset: u64, bytes: Vec<u8>) -> FileHandle {
    let made = create(vfs, within, text).await;
    write(vfs, made, offset, bytes).await;
    made
}

/// A tree with one of everything, below `tree`.
async fn fill(vfs: &dyn Vfs) {
    let tree = directory(vfs, vfs.root(), "tree").await;
    let inner = directory(vfs, tree, "inner").await;
    for number in 0..40 {
        file(
            vfs,
            inner,
            &format!("small{number}"),
            0,
            vec![number; 10 + usize::from(number) * 50],
        )
        .await;
    }
    let large = file(
        vfs,
        tree,
        "large",
        0,
        (0..300_000_u32).map(|at| (at % 251) as u8).collect(),
    )
    .await;
    file(vfs, tree, "sparse", 5_000_000, vec![7; 100]).await;
    vfs.link(&root(), large, inner, &name("linked"))
        .await
        .expect("linked");
    vfs.make_symlink(
        &root(),
        tree,
        &name("symlink"),
        Bytes::from_static(b"inner/linked"),
        SetAttributes::default(),
    )
    .await
    .expect("made");
    vfs.make_node(
        &root(),
        tree,
        &name("pipe"),
        firn_vfs::FileKind::Fifo,
        SetAttributes::default(),
    )
    .await
    .expect("made");
    vfs.set_xattr(
        &root(),
        large,
        b"user.note",
        Bytes::from_static(b"kept"),
        XattrMode::Create,
    )
    .await
    .expect("set");
    let odd = SetAttributes {
        mode: Some(0o4751),
        uid: Some(1000),
        gid: Some(100),
        modified: SetTime::To(Timestamp {
            seconds: 1_000_000_000,
            nanoseconds: 5,
        }),
        ..SetAttributes::default()
    };
    for handle in [large, inner] {
        vfs.set_attributes(&root(), handle, odd.clone(), None)
            .await
            .expect("set");
    }
}

fn compare() -> Compare {
    Compare {
        times: false,
        ..Compare::default()
    }
}

fn on<T: Send + 'static>(simulation: &Simulation, future: impl Future<Output = T> + Send + 'static) -> T {
    simulation.run(future).expect("the run ends")
}

async fn remove_all(vfs: &dyn Vfs, within: FileHandle, text: &str) {
    let mut open = vec![(within, name(text), false)];
    while let Some((parent, entry, emptied)) = open.pop() {
        let (handle, attributes) = vfs.lookup(&root(), parent, &entry).await.expect("there");
        if attributes.kind != firn_vfs::FileKind::Directory {
            vfs.remove(&root(), parent, &entry).await.expect("removed");
        } else if emptied {
            vfs.remove_directory(&root(), parent, &entry)
                .await
                .expect("removed");
        } else {
            open.push((parent, entry, true));
            let page = vfs
                .read_directory(&root(), handle, 2, 4096, false)
                .await
                .expect("listed");
            assert!(page.end);
            for found in page.entries {
                open.push((handle, Name::new(found.name).expect("a name"), false));
            }
        }
    }
}

async fn restored(volume: &Volume) -> Result<firn_volume::RestoreReport, RestoreError> {
    volume.restore(b"s", b"/tree", b"tree", false, &|_| {}).await
}

#[test]
fn what_a_new_file_would_inherit_its_restored_copy_does_not_have() {
    let simulation = Simulation::new(2);
    let opening = World::new(&simulation).format_and_open();
    on(&simulation, async move {
        let volume = opening.await;
        let tree = directory(&volume, volume.root(), "tree").await;
        file(&volume, tree, "plain", 0, vec![1; 10]).await;
        volume.snapshot_create("s", 0).await.expect("a snapshot");
        let entries = [
            (AclTag::UserObject, 7),
            (AclTag::User(1000), 7),
            (AclTag::GroupObject, 5),
            (AclTag::Mask, 7),
            (AclTag::Other, 5),
        ];
        let entries = entries.map(|(tag, permissions)| AclEntry { tag, permissions });
        let default = Acl {
            entries: entries.to_vec(),
        };
        volume
            .set_acl(&root(), volume.root(), None, Some(default))
            .await
            .expect("a default ACL");
        let report = volume.restore(b"s", b"tree", b"copy", false, &|_| {}).await;
        assert_eq!(report.expect("restored").files, 1);
        for path in [&["copy"][..], &["copy", "plain"]] {
            let copy = look(&volume, path).await.expect("there");
            let acls = volume.get_acl(&root(), copy).await.expect("its ACLs");
            assert_eq!(acls, (Acl::default(), Acl::default()), "{path:?}");
        }
    });
}

#[test]
fn a_deleted_tree_comes_back_with_everything_that_hung_on_it() {
    let simulation = Simulation::new(1);
    let world = World::new(&simulation);
    let (model, opening) = (world.model(), world.format_and_open());
    on(&simulation, async move {
        let volume = opening.await;
        fill(&volume).await;
        fill(&*model).await;
        volume.snapshot_create("s", 0).await.expect("a snapshot");
        let before = look(&volume, &["tree", "large"]).await.expect("there");
        remove_all(&volume, volume.root(), "tree").await;
        volume.sync().await.expect("synced");
        let report = restored(&volume).await.expect("restored");
        assert_eq!((report.directories, report.kept, report.split_links), (2, 0, 0));
        assert_eq!(report.files, 45);
        assert!(report.bytes < 1_500_000, "holes are not copied: {report:?}");
        volume.sync().await.expect("synced");
        volume.drop_caches().await;
        let differences = compare_trees(&*model, &volume, &compare()).await;
        assert!(differences.is_empty(), "{differences:#?}");
        let large = look(&volume, &["tree", "large"]).await.expect("there");
        assert_ne!(large.inode, before.inode, "a restore copies");
        assert_eq!(look(&volume, &["tree", "inner", "linked"]).await, Ok(large));
        let times = volume.attributes(large).await.expect("there");
        assert_eq!(
            (times.modified.seconds, times.modified.nanoseconds),
            (1_000_000_000, 5)
        );
        assert!(volume.verify(&|_| {}).await.expect("readable").is_whole());
    });
}

#[test]
fn what_cannot_be_restored_is_refused_and_changes_nothing() {
    let simulation = Simulation::new(2);
    let world = World::new(&simulation);
    let opening = world.format_and_open();
    on(&simulation, async move {
        let volume = opening.await;
        fill(&volume).await;
        volume.snapshot_create("s", 0).await.expect("a snapshot");
        let none = &|_: &firn_volume::RestoreReport| {};
        let refused = volume.restore(b"t", b"tree", b"back", false, none).await;
        assert!(matches!(
            refused,
            Err(RestoreError::Snapshot(SnapshotError::NoSuchSnapshot { .. }))
        ));
        let refused = volume.restore(b"s", b"nothing", b"back", false, none).await;
        assert!(
            matches!(refused, Err(RestoreError::NotThere { .. })),
            "{refused:?}"
        );
        let refused = volume.restore(b"s", b"tree/../tree", b"back", false, none).await;
        assert!(
            matches!(refused, Err(RestoreError::BadPath { .. })),
            "{refused:?}"
        );
        let refused = volume.restore(b"s", b"tree", b"no/where", false, none).await;
        assert!(
            matches!(refused, Err(RestoreError::NoDirectory { .. })),
            "{refused:?}"
        );
        let refused = volume.restore(b"s", b"tree", b"tree", true, none).await;
        assert!(matches!(refused, Err(RestoreError::Exists { .. })), "{refused:?}");
        let refused = volume
            .restore(b"s", b"tree/large", b"tree/sparse", false, none)
            .await;
        assert!(matches!(refused, Err(RestoreError::Exists { .. })), "{refused:?}");
        volume
            .restore(b"s", b"tree/large", b"tree/sparse", true, none)
            .await
            .expect("replaced");
        let file = look(&volume, &["tree", "sparse"]).await.expect("there");
        assert_eq!(volume.attributes(file).await.expect("there").size_bytes, 300_000);
    });
}

#[test]
fn an_interrupted_restore_goes_on_and_nobody_sees_half_of_it() {
    for (seed, interrupted_by) in (10..).zip(["anything", "restore.before_rename"]) {
        let simulation = Simulation::new(seed);
        let mut world = World::new(&simulation);
        let (model, opening) = (world.model(), world.format_and_open());
        let volume = on(&simulation, async move {
            let volume = opening.await;
            fill(&volume).await;
            fill(&*model).await;
            volume.snapshot_create("s", 0).await.expect("a snapshot");
            remove_all(&volume, volume.root(), "tree").await;
            volume
        });
        match interrupted_by {
            "anything" => world.crash_at_any(200),
            point => world.crash_at(point),
        }
        let working = volume.clone();
        world.attempt(&simulation, async move {
            let done = restored(&working).await;
            panic!("the machine should have gone down before: {done:?}");
        });
        let model = world.model();
        let volume = world.power_cut(&simulation);
        on(&simulation, async move {
            fill(&*model).await;
            assert_eq!(look(&volume, &["tree"]).await, Err(VfsError::NotFound));
            let report = restored(&volume).await.expect("restored");
            assert!(report.kept > 0, "{interrupted_by}: {report:?}");
            let differences = compare_trees(&*model, &volume, &compare()).await;
            assert!(differences.is_empty(), "{interrupted_by}: {differences:#?}");
        });
    }
}

async fn opened(parts: Parts) -> Volume {
    Volume::open(parts, config()).await.expect("it opens").0
}

#[test]
fn a_clone_begins_as_its_snapshot_and_goes_its_own_way() {
    let simulation = Simulation::new(3);
    let world = World::new(&simulation);
    let (model, opening) = (world.model(), world.format_and_open());
    let volume = on(&simulation, opening);
    let (working, expected) = (volume.clone(), model.clone());
    let report = on(&simulation, async move {
        fill(&working).await;
        fill(&*expected).await;
        working.snapshot_create("s", 0).await.expect("a snapshot");
        remove_all(&working, working.root(), "tree").await;
        let report = working.clone_snapshot(b"s", "copy").await.expect("cloned");
        assert!(matches!(
            working.clone_snapshot(b"s", "copy").await,
            Err(CloneError::Exists { .. })
        ));
        working
            .snapshot_delete(b"s")
            .await
            .expect("a clone does not need its snapshot");
        working.sync().await.expect("synced");
        report
    });
    let head = world.requests();
    let working = volume.clone();
    let another = on(&simulation, async move {
        working.clone_head("empty").await.expect("cloned")
    });
    assert!(world.requests() - head < 40, "cloning asks for little");
    let parts = world.elsewhere(&simulation, report.volume);
    on(&simulation, async move {
        let clone = opened(parts).await;
        let differences = compare_trees(&*model, &clone, &compare()).await;
        assert!(differences.is_empty(), "{differences:#?}");
        file(&clone, clone.root(), "only here", 0, vec![1; 100_000]).await;
        clone
            .snapshot_create("of the clone", 0)
            .await
            .expect("a snapshot");
        clone.drop_caches().await;
        assert!(clone.verify(&|_| {}).await.expect("readable").is_whole());
        assert_eq!(look(&volume, &["only here"]).await, Err(VfsError::NotFound));
        assert_eq!(look(&volume, &["tree"]).await, Err(VfsError::NotFound));
        assert!(
            look(&clone, &[".snapshots", "of the clone", "tree", "large"])
                .await
                .is_ok()
        );
    });
    let parts = world.elsewhere(&simulation, another.volume);
    on(&simulation, async move {
        let clone = opened(parts).await;
        assert_eq!(look(&clone, &["tree"]).await, Err(VfsError::NotFound));
    });
}

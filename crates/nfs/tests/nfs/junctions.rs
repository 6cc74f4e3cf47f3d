//! Junctions: an export that is shown at a directory of another one.

use crate::served::{KEY, Served, TIMEOUT, env, guarded, memory, mode, open_rule, root, status};
use firn_nfs::{
    ClientRule, Export, Exports, HandleKey, JunctionError, JunctionState, NfsService, PortMapping,
    ServiceConfig, WireHandle,
    client::{NfsClient, entry},
    mount::MountStatus,
    v3::{
        Status,
        types::{DirectoryEntryPlus, StableHow},
    },
};
use firn_vfs::Vfs;
use std::{path::Path, process::Command, sync::Arc};

/// `/files` (file system 1) with `/dept/projects`, at which `/projects` (file system 2) is shown.
struct Tree {
    exports: Arc<Exports>,
    served: Served,
    client: NfsClient,
    files: WireHandle,
    dept: WireHandle,
    projects: WireHandle,
}

impl Tree {
    async fn of(rules: Vec<ClientRule>) -> Self {
        let tree = Self::without_directory(rules).await;
        let made = tree
            .client
            .make_directory(&tree.dept, "projects", mode(0o755))
            .await;
        let made = made.unwrap().unwrap();
        assert_eq!(
            (made.file, made.attributes),
            (None, None),
            "the client looks it up"
        );
        tree
    }

    async fn without_directory(rules: Vec<ClientRule>) -> Self {
        let files = Export::new("/files", memory(1), vec![open_rule()]).unwrap();
        let projects = Export::new("/projects", memory(2), rules).unwrap();
        let exports = Exports::new(HandleKey::new(&KEY), [files, projects]).unwrap();
        let exports = exports
            .with_junction("/files", "/dept/projects", "/projects/")
            .unwrap();
        let (env, exports) = (env(), Arc::new(exports));
        let config = ServiceConfig {
            address: "127.0.0.1:0".into(),
            port_mapping: PortMapping::None,
            ..ServiceConfig::default()
        };
        let service = NfsService::start(&env, config, exports.clone(), vec![])
            .await
            .unwrap();
        let client = NfsClient::connect(&env, service.address(), root(), TIMEOUT)
            .await
            .unwrap();
        let files = client.mount("/files").await.unwrap().unwrap().handle;
        let projects = match client.mount("/projects").await.unwrap() {
            Ok(mounted) => mounted.handle,
            // Of no use where it may not be mounted.
            Err(_) => files.clone(),
        };
        let made = client
            .make_directory(&files, "dept", mode(0o755))
            .await
            .unwrap()
            .unwrap();
        Self {
            exports,
            served: Served { env, service },
            client,
            dept: made.file.unwrap(),
            files,
            projects,
        }
    }

    async fn listed(&self) -> DirectoryEntryPlus {
        let listed = self
            .client
            .read_directory_plus(&self.dept, 0, [0; 8], 4096, 16384)
            .await;
        let listed = listed.unwrap().unwrap();
        let mut entries = listed.entries.into_iter();
        entries
            .find(|entry| &entry.name.0[..] == b"projects")
            .expect("it is listed")
    }
}

#[tokio::test]
async fn a_lookup_and_a_listing_give_the_root_of_the_other_export_with_its_own_file_system() {
    let tree = Tree::of(vec![open_rule()]).await;
    let found = tree.client.lookup(&tree.dept, "projects").await.unwrap().unwrap();
    assert_eq!(found.file, tree.projects);
    let shown = found.attributes.unwrap();
    let around = found.directory.unwrap();
    assert_ne!(shown.file_system, around.file_system);
    assert_eq!(shown.file_system, 2);

    let listed = tree.listed().await;
    assert_eq!(listed.handle, Some(tree.projects.clone()));
    assert_eq!(listed.attributes.unwrap().file_system, 2);
    // The number in both listings is that of the directory which is hidden.
    let plain = tree
        .client
        .read_directory(&tree.dept, 0, [0; 8], 4096)
        .await
        .unwrap()
        .unwrap();
    let plain = plain
        .entries
        .iter()
        .find(|entry| &entry.name.0[..] == b"projects")
        .unwrap();
    assert_eq!(listed.inode, plain.inode);
    assert_ne!(listed.inode, shown.inode);

    // The way back, and none from an export that is shown nowhere.
    let back = tree.client.lookup(&tree.projects, "..").await.unwrap().unwrap();
    assert_eq!(back.file, tree.dept);
    let top = tree.client.lookup(&tree.files, "..").await.unwrap().unwrap();
    assert_eq!(top.file, tree.files);
    let space = tree
        .client
        .file_system_status(&found.file)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(space.attributes.unwrap().file_system, 2);
    assert!(tree.served.service.retransmissions() == 0);
}

#[tokio::test]
async fn what_is_written_behind_a_junction_is_in_the_other_volume_and_nothing_moves_or_links_across() {
    let tree = Tree::of(vec![open_rule()]).await;
    let inside = tree
        .client
        .lookup(&tree.dept, "projects")
        .await
        .unwrap()
        .unwrap()
        .file;
    let made = tree
        .client
        .create(&inside, "plan", guarded(0o644))
        .await
        .unwrap()
        .unwrap();
    let file = made.file.unwrap();
    let wrote = tree
        .client
        .write(&file, 0, bytes::Bytes::from_static(b"beta"), StableHow::FileSync)
        .await;
    wrote.unwrap().unwrap();
    assert!(tree.client.lookup(&tree.projects, "plan").await.unwrap().is_ok());
    let renamed = tree
        .client
        .rename(entry(&inside, "plan"), entry(&tree.dept, "plan"))
        .await;
    assert_eq!(status(renamed.unwrap()), Status::CrossDevice);
    let linked = tree.client.link(&file, entry(&tree.dept, "plan")).await;
    assert_eq!(status(linked.unwrap()), Status::CrossDevice);
}

#[tokio::test]
async fn the_directories_that_a_junction_needs_are_neither_removed_nor_renamed() {
    let tree = Tree::of(vec![open_rule()]).await;
    let (client, files, dept) = (&tree.client, &tree.files, &tree.dept);
    let removed = client.remove_directory(dept, "projects").await.unwrap();
    assert_eq!(status(removed), Status::AccessDenied);
    let renamed = client
        .rename(entry(dept, "projects"), entry(dept, "other"))
        .await
        .unwrap();
    assert_eq!(status(renamed), Status::AccessDenied);
    let renamed = client
        .rename(entry(files, "dept"), entry(files, "other"))
        .await
        .unwrap();
    assert_eq!(status(renamed), Status::AccessDenied);
    // Nor is another directory put there, or on the way; the same names elsewhere are nothing special.
    let made = client.make_directory(files, "projects", mode(0o755)).await;
    let elsewhere = made.unwrap().unwrap().file.expect("it is no junction");
    let found = client.lookup(files, "projects").await.unwrap().unwrap();
    assert_eq!(found.file, elsewhere);
    let renamed = client
        .rename(entry(files, "projects"), entry(dept, "projects"))
        .await
        .unwrap();
    assert_eq!(status(renamed), Status::AccessDenied);
    client
        .rename(entry(files, "projects"), entry(dept, "dept"))
        .await
        .unwrap()
        .unwrap();
    client.remove_directory(dept, "dept").await.unwrap().unwrap();
    let found = client.lookup(dept, "projects").await.unwrap().unwrap();
    assert_eq!(found.file, tree.projects);
}

#[tokio::test]
async fn a_junction_shows_nothing_until_there_is_a_directory() {
    let tree = Tree::without_directory(vec![open_rule()]).await;
    let client = &tree.client;
    let junction = &tree.exports.junctions()[0];
    assert_eq!(junction.look().await, Ok(JunctionState::NoDirectory));
    assert_eq!(
        status(client.lookup(&tree.dept, "projects").await.unwrap()),
        Status::NoEntry
    );
    // A file is a file, and may go again.
    let made = client
        .create(&tree.dept, "projects", guarded(0o600))
        .await
        .unwrap()
        .unwrap();
    let found = client.lookup(&tree.dept, "projects").await.unwrap().unwrap();
    assert_eq!(Some(found.file), made.file);
    assert_eq!(tree.listed().await.handle, made.file);
    client
        .rename(entry(&tree.dept, "projects"), entry(&tree.dept, "file"))
        .await
        .unwrap()
        .unwrap();
    client
        .make_directory(&tree.dept, "projects", mode(0o755))
        .await
        .unwrap()
        .unwrap();
    let found = client.lookup(&tree.dept, "projects").await.unwrap().unwrap();
    assert_eq!(found.file, tree.projects);
    assert_eq!(junction.look().await, Ok(JunctionState::Shown));
}

#[tokio::test]
async fn the_rules_of_the_export_that_is_shown_hold_behind_the_junction() {
    // Only reading.
    let reads = ClientRule {
        read_only: true,
        ..open_rule()
    };
    let tree = Tree::of(vec![reads]).await;
    let inside = tree
        .client
        .lookup(&tree.dept, "projects")
        .await
        .unwrap()
        .unwrap()
        .file;
    let made = tree.client.create(&inside, "plan", guarded(0o644)).await.unwrap();
    assert_eq!(status(made), Status::ReadOnly);

    // Not at all: the place is seen, and no more; not by a path of MOUNT either.
    let elsewhere = ClientRule {
        network: "192.0.2.0/24".parse().unwrap(),
        ..open_rule()
    };
    let tree = Tree::of(vec![elsewhere]).await;
    let found = tree.client.lookup(&tree.dept, "projects").await.unwrap();
    assert_eq!(status(found), Status::AccessDenied);
    let listed = tree.listed().await;
    assert_eq!((listed.handle, listed.attributes), (None, None));
    let mounted = tree.client.mount("/files/dept/projects").await.unwrap();
    assert_eq!(mounted, Err(MountStatus::AccessDenied));
}

#[tokio::test]
async fn a_path_of_mount_goes_through_a_junction() {
    let tree = Tree::of(vec![open_rule()]).await;
    let made = tree
        .client
        .make_directory(&tree.projects, "alpha", mode(0o755))
        .await;
    let alpha = made.unwrap().unwrap().file;
    let mount = async |path: &str| {
        tree.client
            .mount(path)
            .await
            .unwrap()
            .map(|mounted| mounted.handle)
    };
    assert_eq!(
        mount("/files/dept/projects").await.ok(),
        Some(tree.projects.clone())
    );
    assert_eq!(mount("/files//dept/projects/alpha").await.ok(), alpha);
    assert_eq!(
        mount("/files/dept/projects/beta").await,
        Err(MountStatus::NoEntry)
    );
}

#[tokio::test]
async fn while_the_other_volume_is_away_the_hidden_directory_is_not_seen() {
    let tree = Tree::of(vec![open_rule()]).await;
    let target = tree.exports.junctions()[0].target().clone();
    target.withdraw();
    let found = tree.client.lookup(&tree.dept, "projects").await.unwrap();
    assert_eq!(status(found), Status::Jukebox);
    assert_eq!(tree.listed().await.handle, None);
    let again: Arc<dyn Vfs> = memory(2);
    target.serve(again, HandleKey::new(&KEY));
    assert!(tree.client.lookup(&tree.dept, "projects").await.unwrap().is_ok());
}

#[test]
fn junctions_that_cannot_be_are_refused_with_their_reason() {
    let exports = || {
        let export = |path: &str| Export::new(path, memory(1), vec![open_rule()]).unwrap();
        Exports::new(HandleKey::new(&KEY), ["/a", "/b", "/c"].map(export)).unwrap()
    };
    for wrong in [
        "",
        "p",
        "/",
        "/p/",
        "/../p",
        "/p/./q",
        "//p",
        "/.snapshots",
        &"/p".repeat(17),
    ] {
        let refused = exports().with_junction("/a", wrong, "/b").unwrap_err();
        assert_eq!(refused, JunctionError::Place(wrong.to_owned()));
    }
    let none = JunctionError::NoExport("/d".into());
    assert_eq!(exports().with_junction("/a", "/p", "/d").unwrap_err(), none);
    assert_eq!(exports().with_junction("/d", "/p", "/a").unwrap_err(), none);
    let one = || exports().with_junction("/a", "/p/q", "/b").unwrap();
    for beside in ["/p", "/p/q", "/p/q/r"] {
        let nested = JunctionError::Nested("/p/q".into(), beside.into());
        assert_eq!(one().with_junction("/a", beside, "/c").unwrap_err(), nested);
    }
    assert!(one().with_junction("/a", "/p/r", "/c").is_ok());
    let twice = JunctionError::TwoPlaces("/b".into());
    assert_eq!(one().with_junction("/c", "/p", "/b").unwrap_err(), twice);
    for (at, shown) in [("/a", "/a"), ("/b", "/a")] {
        let looped = JunctionError::Loop(shown.into());
        assert_eq!(one().with_junction(at, "/x", shown).unwrap_err(), looped);
    }
    let deeper = one().with_junction("/b", "/x", "/c").unwrap();
    assert_eq!(
        deeper.with_junction("/c", "/x", "/a").unwrap_err(),
        JunctionError::Loop("/a".into())
    );
}

#[test]
fn more_junctions_than_are_possible_are_refused() {
    let export = |path: String| Export::new(&path, memory(1), vec![open_rule()]).unwrap();
    let names = (0..=firn_nfs::JUNCTIONS_MAX).map(|at| export(format!("/e{at}")));
    let mut exports = Exports::new(HandleKey::new(&KEY), names.chain([export("/a".into())])).unwrap();
    for at in 0..firn_nfs::JUNCTIONS_MAX {
        exports = exports
            .with_junction("/a", &format!("/p{at}"), &format!("/e{at}"))
            .unwrap();
    }
    let last = firn_nfs::JUNCTIONS_MAX;
    let refused = exports
        .with_junction("/a", "/p", &format!("/e{last}"))
        .unwrap_err();
    assert_eq!(refused, JunctionError::TooMany(last + 1));
}

/// A client that is not ours: libnfs (Debian package libnfs-utils).
#[tokio::test(flavor = "multi_thread")]
async fn libnfs_walks_through_a_junction() {
    let tree = Tree::of(vec![open_rule()]).await;
    let (_, port) = tree.served.service.address().rsplit_once(':').unwrap();
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    std::fs::write(&source, b"written by libnfs").unwrap();
    let url = |path: &str| {
        format!("nfs://127.0.0.1/files{path}?nfsport={port}&mountport={port}&version=3&uid=0&gid=0")
    };
    let run = async |tool: &str, arguments: &[String]| {
        let mut command = Command::new(tool);
        command.args(arguments);
        let output = tokio::task::spawn_blocking(move || command.output())
            .await
            .unwrap();
        let output = output.unwrap_or_else(|error| panic!("{tool} (install libnfs-utils): {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{tool}: {said}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    // Below the place: libnfs mounts /files, and looks the rest up.
    run("nfs-cp", &[text(&source), url("/dept/projects/plan")]).await;
    let listed = run("nfs-ls", &["-R".into(), url("")]).await;
    assert!(
        listed
            .lines()
            .any(|line| line.ends_with("plan") && line.starts_with("-rw")),
        "{listed}"
    );
    let found = tree.client.lookup(&tree.projects, "plan").await.unwrap().unwrap();
    assert_eq!(found.attributes.unwrap().size_bytes, 17);
}

//! Procedures that make, move and remove names.

use crate::served::{guarded, handle, mode, shows_change, shows_no_change, simple, status};
use bytes::Bytes;
use firn_nfs::{
    client::entry,
    v3::{
        Status,
        types::{CreateHow, Device, FileType, NewAttributes, NewNode, StableHow},
    },
};

#[tokio::test]
async fn lookup_finds_names_dot_and_dot_dot() {
    let nfs = simple().await;
    let directory = nfs.directory("d").await;
    let found = nfs.client.lookup(&nfs.root, "d").await.unwrap().unwrap();
    assert_eq!(found.file, directory);
    assert_eq!(found.attributes.unwrap().kind, FileType::Directory);
    assert!(found.directory.is_some());
    assert_eq!(
        nfs.client.lookup(&directory, ".").await.unwrap().unwrap().file,
        directory
    );
    assert_eq!(
        nfs.client.lookup(&directory, "..").await.unwrap().unwrap().file,
        nfs.root
    );
    let above = nfs.client.lookup(&nfs.root, "..").await.unwrap().unwrap();
    assert_eq!(above.file, nfs.root, "there is no way out of an export");
}

#[tokio::test]
async fn symlinks_keep_their_text() {
    let nfs = simple().await;
    let made = nfs
        .client
        .make_symlink(&nfs.root, "link", "../to/nowhere", NewAttributes::default())
        .await;
    let made = made.unwrap().unwrap();
    shows_change(&made.directory);
    assert_eq!(made.attributes.as_ref().unwrap().kind, FileType::Symlink);
    let target = nfs.client.read_link(&handle(made)).await.unwrap().unwrap();
    assert_eq!(&target.target.0[..], b"../to/nowhere");
    assert!(target.attributes.is_some());
    let file = nfs.file("file").await;
    assert_eq!(
        status(nfs.client.read_link(&file).await.unwrap()),
        Status::Invalid
    );
    let long = "x".repeat(5000);
    let answer = nfs
        .client
        .make_symlink(&nfs.root, "long", &long, NewAttributes::default())
        .await
        .unwrap();
    assert_eq!(status(answer), Status::NameTooLong);
}

#[tokio::test]
async fn create_unchecked_opens_what_exists_and_guarded_refuses_it() {
    let nfs = simple().await;
    let made = nfs
        .client
        .create(&nfs.root, "f", CreateHow::Unchecked(mode(0o640)))
        .await
        .unwrap()
        .unwrap();
    shows_change(&made.directory);
    assert_eq!(made.attributes.as_ref().unwrap().mode, 0o640);
    let first = handle(made);
    nfs.client
        .write(&first, 0, Bytes::from_static(b"abc"), StableHow::FileSync)
        .await
        .unwrap()
        .unwrap();
    let truncate = NewAttributes {
        size_bytes: Some(0),
        ..NewAttributes::default()
    };
    let again = nfs
        .client
        .create(&nfs.root, "f", CreateHow::Unchecked(truncate))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(again.attributes.as_ref().unwrap().size_bytes, 0);
    assert_eq!(handle(again), first);
    let failed = nfs
        .client
        .create(&nfs.root, "f", guarded(0o640))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(failed.status, Status::Exists);
    shows_no_change(&failed.body);
}

#[tokio::test]
async fn create_exclusive_knows_its_own_file_by_the_verifier() {
    let nfs = simple().await;
    let create = |verifier| nfs.client.create(&nfs.root, "f", CreateHow::Exclusive(verifier));
    let first = handle(create([1; 8]).await.unwrap().unwrap());
    assert_eq!(handle(create([1; 8]).await.unwrap().unwrap()), first);
    assert_eq!(status(create([2; 8]).await.unwrap()), Status::Exists);
}

#[tokio::test]
async fn dot_and_dot_dot_are_refused_where_names_are_made_or_removed() {
    let nfs = simple().await;
    let (client, root) = (&nfs.client, &nfs.root);
    let file = nfs.file("file").await;
    for (dots, rmdir) in [(".", Status::Invalid), ("..", Status::Exists)] {
        assert_eq!(
            status(client.create(root, dots, guarded(0o600)).await.unwrap()),
            Status::Exists
        );
        assert_eq!(
            status(client.make_directory(root, dots, mode(0o700)).await.unwrap()),
            Status::Exists
        );
        let link = client
            .make_symlink(root, dots, "x", NewAttributes::default())
            .await
            .unwrap();
        assert_eq!(status(link), Status::Exists);
        let node = client
            .make_node(root, dots, NewNode::Fifo(mode(0o600)))
            .await
            .unwrap();
        assert_eq!(status(node), Status::Exists);
        assert_eq!(
            status(client.link(&file, entry(root, dots)).await.unwrap()),
            Status::Exists
        );
        assert_eq!(
            status(client.remove(root, dots).await.unwrap()),
            Status::AccessDenied
        );
        assert_eq!(status(client.remove_directory(root, dots).await.unwrap()), rmdir);
        for (from, to) in [(dots, "other"), ("file", dots)] {
            let renamed = client.rename(entry(root, from), entry(root, to)).await.unwrap();
            assert_eq!(status(renamed), Status::Invalid);
        }
    }
}

#[tokio::test]
async fn mkdir_and_rmdir_change_the_link_count_of_the_parent() {
    let nfs = simple().await;
    let links = async || nfs.client.get_attributes(&nfs.root).await.unwrap().unwrap().links;
    let directory = nfs.directory("d").await;
    assert_eq!(links().await, 3);
    handle(
        nfs.client
            .create(&directory, "inside", guarded(0o600))
            .await
            .unwrap()
            .unwrap(),
    );
    let failed = nfs
        .client
        .remove_directory(&nfs.root, "d")
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(failed.status, Status::NotEmpty);
    shows_no_change(&failed.body);
    nfs.client.remove(&directory, "inside").await.unwrap().unwrap();
    shows_change(
        &nfs.client
            .remove_directory(&nfs.root, "d")
            .await
            .unwrap()
            .unwrap(),
    );
    assert_eq!(links().await, 2);
    assert_eq!(
        status(nfs.client.get_attributes(&directory).await.unwrap()),
        Status::Stale
    );
}

#[tokio::test]
async fn mknod_makes_every_kind_of_node_and_refuses_other_kinds() {
    let nfs = simple().await;
    let device = Device { major: 8, minor: 17 };
    for (name, node, kind, expected) in [
        (
            "fifo",
            NewNode::Fifo(mode(0o600)),
            FileType::Fifo,
            Device { major: 0, minor: 0 },
        ),
        (
            "socket",
            NewNode::Socket(mode(0o600)),
            FileType::Socket,
            Device { major: 0, minor: 0 },
        ),
        (
            "block",
            NewNode::BlockDevice(mode(0o600), device),
            FileType::BlockDevice,
            device,
        ),
        (
            "char",
            NewNode::CharacterDevice(mode(0o600), device),
            FileType::CharacterDevice,
            device,
        ),
    ] {
        let made = nfs
            .client
            .make_node(&nfs.root, name, node)
            .await
            .unwrap()
            .unwrap();
        let attributes = made.attributes.unwrap();
        assert_eq!((attributes.kind, attributes.device), (kind, expected));
    }
    let answer = nfs
        .client
        .make_node(&nfs.root, "x", NewNode::Other(FileType::Directory))
        .await
        .unwrap();
    assert_eq!(status(answer), Status::BadType);
}

#[tokio::test]
async fn remove_takes_the_name_and_with_the_last_one_the_file() {
    let nfs = simple().await;
    let file = nfs.file("one").await;
    let linked = nfs
        .client
        .link(&file, entry(&nfs.root, "two"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(linked.attributes.unwrap().links, 2);
    shows_change(&linked.directory);
    shows_change(&nfs.client.remove(&nfs.root, "one").await.unwrap().unwrap());
    assert_eq!(nfs.client.get_attributes(&file).await.unwrap().unwrap().links, 1);
    nfs.client.remove(&nfs.root, "two").await.unwrap().unwrap();
    assert_eq!(
        status(nfs.client.get_attributes(&file).await.unwrap()),
        Status::Stale
    );
    let failed = nfs.client.remove(&nfs.root, "two").await.unwrap().unwrap_err();
    assert_eq!(failed.status, Status::NoEntry);
    shows_no_change(&failed.body);
    nfs.directory("d").await;
    assert_eq!(
        status(nfs.client.remove(&nfs.root, "d").await.unwrap()),
        Status::IsDirectory
    );
    assert_eq!(
        status(nfs.client.remove_directory(&nfs.root, "missing").await.unwrap()),
        Status::NoEntry
    );
}

#[tokio::test]
async fn rename_replaces_its_target_and_reports_both_directories() {
    let nfs = simple().await;
    let (from, to) = (nfs.directory("from").await, nfs.directory("to").await);
    let file = handle(
        nfs.client
            .create(&from, "a", guarded(0o600))
            .await
            .unwrap()
            .unwrap(),
    );
    handle(
        nfs.client
            .create(&to, "b", guarded(0o600))
            .await
            .unwrap()
            .unwrap(),
    );
    let renamed = nfs
        .client
        .rename(entry(&from, "a"), entry(&to, "b"))
        .await
        .unwrap()
        .unwrap();
    shows_change(&renamed.from);
    shows_change(&renamed.to);
    assert_eq!(nfs.client.lookup(&to, "b").await.unwrap().unwrap().file, file);
    let failed = nfs
        .client
        .rename(entry(&from, "a"), entry(&to, "c"))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(failed.status, Status::NoEntry);
    shows_no_change(&failed.body.from);
    shows_no_change(&failed.body.to);
    let into_itself = nfs
        .client
        .rename(entry(&nfs.root, "to"), entry(&to, "x"))
        .await
        .unwrap();
    assert_eq!(status(into_itself), Status::Invalid);
}

#[tokio::test]
async fn link_refuses_an_existing_name() {
    let nfs = simple().await;
    let file = nfs.file("a").await;
    nfs.file("b").await;
    let failed = nfs
        .client
        .link(&file, entry(&nfs.root, "b"))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(failed.status, Status::Exists);
    assert_eq!(failed.body.attributes.unwrap().links, 1);
    shows_no_change(&failed.body.directory);
}

//! What each procedure does, and what it says about attributes when it did and when it did not.

use crate::served::{Simple, guarded, handle, mode, simple, status, user};
use bytes::Bytes;
use firn_nfs::{
    client::entry,
    v3::{
        Status,
        types::{
            ACCESS_EXECUTE, ACCESS_LOOKUP, ACCESS_MODIFY, ACCESS_READ, CreateHow, Device, FileType,
            NewAttributes, NewNode, NewTime, StableHow, Time, WccData,
        },
    },
};

/// The directory did not change, and the client can see so.
#[track_caller]
fn shows_no_change(wcc: &WccData) {
    let (before, after) = (
        wcc.before.as_ref().expect("before"),
        wcc.after.as_ref().expect("after"),
    );
    assert_eq!(
        (before.size_bytes, before.modified, before.changed),
        (after.size_bytes, after.modified, after.changed)
    );
}

/// One change, told from the instant before to the instant after.
#[track_caller]
fn shows_change(wcc: &WccData) {
    let (before, after) = (
        wcc.before.as_ref().expect("before"),
        wcc.after.as_ref().expect("after"),
    );
    assert!(before.changed < after.changed, "{wcc:?}");
}

#[tokio::test]
async fn null_answers() {
    simple().await.client.null().await.unwrap();
}

#[tokio::test]
async fn getattr_shows_what_a_file_is() {
    let nfs = simple().await;
    let root = nfs.client.get_attributes(&nfs.root).await.unwrap().unwrap();
    assert_eq!(
        (root.kind, root.mode, root.links),
        (FileType::Directory, 0o777, 2)
    );
    let file = nfs.file("file").await;
    let attributes = nfs.client.get_attributes(&file).await.unwrap().unwrap();
    assert_eq!(
        (attributes.kind, attributes.mode, attributes.links),
        (FileType::Regular, 0o644, 1)
    );
    assert_eq!(attributes.file_system, root.file_system);
    assert_ne!(attributes.inode, root.inode);
}

#[tokio::test]
async fn setattr_changes_what_it_is_asked_to_and_nothing_else() {
    let nfs = simple().await;
    let file = nfs.file("file").await;
    let change = NewAttributes {
        mode: Some(0o100_600),
        uid: Some(5),
        size_bytes: Some(100),
        modified: NewTime::ClientTime(Time {
            seconds: 7,
            nanoseconds: 8,
        }),
        ..NewAttributes::default()
    };
    let wcc = nfs
        .client
        .set_attributes(&file, change, None)
        .await
        .unwrap()
        .unwrap();
    shows_change(&wcc);
    let after = wcc.after.unwrap();
    assert_eq!(
        (after.mode, after.uid, after.gid, after.size_bytes),
        (0o600, 5, 0, 100)
    );
    assert_eq!((after.modified.seconds, after.modified.nanoseconds), (7, 8));
    let now = NewAttributes {
        modified: NewTime::ServerTime,
        ..NewAttributes::default()
    };
    let wcc = nfs
        .client
        .set_attributes(&file, now, None)
        .await
        .unwrap()
        .unwrap();
    assert!(wcc.after.unwrap().modified.seconds > 7);
}

#[tokio::test]
async fn setattr_with_a_guard_changes_only_the_file_the_client_saw() {
    let nfs = simple().await;
    let file = nfs.file("file").await;
    let seen = nfs.client.get_attributes(&file).await.unwrap().unwrap().changed;
    nfs.client
        .set_attributes(&file, mode(0o600), Some(seen))
        .await
        .unwrap()
        .unwrap();
    let failed = nfs
        .client
        .set_attributes(&file, mode(0o777), Some(seen))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(failed.status, Status::NotSynchronised);
    shows_no_change(&failed.body);
    assert_eq!(failed.body.after.unwrap().mode, 0o600);
}

#[tokio::test]
async fn setattr_refuses_an_impossible_time() {
    let nfs = simple().await;
    let file = nfs.file("file").await;
    let time = NewTime::ClientTime(Time {
        seconds: 1,
        nanoseconds: 1_000_000_000,
    });
    let change = NewAttributes {
        accessed: time,
        ..NewAttributes::default()
    };
    let answer = nfs.client.set_attributes(&file, change, None).await.unwrap();
    assert_eq!(status(answer), Status::Invalid);
}

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
async fn lookup_says_why_not() {
    let nfs = simple().await;
    let file = nfs.file("file").await;
    let missing = nfs
        .client
        .lookup(&nfs.root, "missing")
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(missing.status, Status::NoEntry);
    assert_eq!(
        missing.body.unwrap().kind,
        FileType::Directory,
        "the directory's attributes come along"
    );
    for (directory, name, expected) in [
        (&file, "x", Status::NotDirectory),
        (&file, ".", Status::NotDirectory),
        (&nfs.root, "", Status::AccessDenied),
        (&nfs.root, "a/b", Status::AccessDenied),
        (&nfs.root, "a\0b", Status::AccessDenied),
        (&nfs.root, &"n".repeat(256), Status::NameTooLong),
        (&nfs.root, &"n".repeat(4096), Status::NameTooLong),
        (&nfs.root, &"n".repeat(255), Status::NoEntry),
    ] {
        let answer = nfs.client.lookup(directory, name).await.unwrap();
        assert_eq!(status(answer), expected, "{name}");
    }
}

#[tokio::test]
async fn access_grants_what_the_mode_grants() {
    let nfs = simple().await;
    let file = nfs.file("file").await;
    let asked = ACCESS_READ | ACCESS_MODIFY | ACCESS_EXECUTE;
    let stranger = nfs.served.client(user(1000)).await;
    let granted = stranger.access(&file, asked).await.unwrap().unwrap();
    assert_eq!(granted.mask, ACCESS_READ);
    assert!(granted.attributes.is_some());
    let granted = nfs.client.access(&file, asked).await.unwrap().unwrap();
    assert_eq!(
        granted.mask,
        ACCESS_READ | ACCESS_MODIFY,
        "root executes only what somebody may"
    );
    let granted = stranger.access(&nfs.root, ACCESS_LOOKUP).await.unwrap().unwrap();
    assert_eq!(granted.mask, ACCESS_LOOKUP, "what was not asked is not answered");
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

async fn written(nfs: &Simple, content: &'static [u8]) -> firn_nfs::WireHandle {
    let file = nfs.file("data").await;
    let answer = nfs
        .client
        .write(&file, 0, Bytes::from_static(content), StableHow::FileSync)
        .await;
    answer.unwrap().unwrap();
    file
}

#[tokio::test]
async fn read_gives_what_was_written_and_says_where_the_file_ends() {
    let nfs = simple().await;
    let file = written(&nfs, b"0123456789").await;
    for (offset, count, expected, end) in [
        (0, 4, &b"0123"[..], false),
        (4, 6, b"456789", true),
        (4, 100, b"456789", true),
        (10, 5, b"", true),
        (u64::MAX, 5, b"", true),
        (3, 0, b"", false),
    ] {
        let read = nfs.client.read(&file, offset, count).await.unwrap().unwrap();
        assert_eq!(
            (&read.data.to_vec()[..], read.end_of_file),
            (expected, end),
            "{offset} {count}"
        );
        assert_eq!(read.count as usize, expected.len());
        assert_eq!(read.attributes.unwrap().size_bytes, 10);
    }
    assert_eq!(
        status(nfs.client.read(&nfs.root, 0, 1).await.unwrap()),
        Status::IsDirectory
    );
}

#[tokio::test]
async fn large_data_goes_through_in_one_call_and_back_unchanged() {
    let nfs = simple().await;
    let file = nfs.file("large").await;
    let data: Bytes = (0..1u32 << 18)
        .flat_map(|word| (word.wrapping_mul(2_654_435_761)).to_be_bytes())
        .collect();
    let wrote = nfs
        .client
        .write(&file, 5, data.clone(), StableHow::Unstable)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(wrote.count, 1 << 20);
    let read = nfs.client.read(&file, 5, 1 << 20).await.unwrap().unwrap();
    assert!(read.data.to_vec() == data);
    let more = nfs.client.read(&file, 0, u32::MAX).await.unwrap().unwrap();
    assert_eq!(more.count, 1 << 20, "no more than the server's largest read");
}

#[tokio::test]
async fn write_tells_how_stable_it_is_and_commit_repeats_the_verifier() {
    let nfs = simple().await;
    let file = nfs.file("file").await;
    let write = |stable| nfs.client.write(&file, 0, Bytes::from_static(b"abc"), stable);
    let unstable = write(StableHow::Unstable).await.unwrap().unwrap();
    assert_eq!((unstable.count, unstable.committed), (3, StableHow::Unstable));
    shows_change(&unstable.file);
    let stable = write(StableHow::FileSync).await.unwrap().unwrap();
    assert_eq!(stable.committed, StableHow::FileSync);
    let committed = nfs.client.commit(&file, 0, 0).await.unwrap().unwrap();
    assert_eq!(committed.verifier, unstable.verifier);
    assert_eq!(committed.verifier, stable.verifier);
    assert!(committed.file.after.is_some());
}

#[tokio::test]
async fn the_verifier_changes_when_unstable_data_may_be_lost() {
    let nfs = simple().await;
    let file = nfs.file("file").await;
    let data = Bytes::from_static(b"abc");
    let before = nfs
        .client
        .write(&file, 0, data, StableHow::Unstable)
        .await
        .unwrap()
        .unwrap();
    nfs.vfs.crash(|_, _| 0);
    let after = nfs.client.commit(&file, 0, 0).await.unwrap().unwrap();
    assert_ne!(before.verifier, after.verifier);
}

#[tokio::test]
async fn write_refuses_what_cannot_be_written() {
    let nfs = simple().await;
    let file = nfs.file("file").await;
    let write = |file, offset| {
        nfs.client
            .write(file, offset, Bytes::from_static(b"abc"), StableHow::FileSync)
    };
    let failed = write(&file, u64::MAX - 1).await.unwrap().unwrap_err();
    assert_eq!(failed.status, Status::FileTooLarge);
    shows_no_change(&failed.body);
    assert_eq!(status(write(&nfs.root, 0).await.unwrap()), Status::IsDirectory);
    let stranger = nfs.served.client(user(1000)).await;
    let answer = stranger
        .write(&file, 0, Bytes::from_static(b"abc"), StableHow::FileSync)
        .await
        .unwrap();
    assert_eq!(status(answer), Status::AccessDenied);
}

#[tokio::test]
async fn a_write_that_exceeds_the_largest_is_done_in_part() {
    let nfs = simple().await;
    let file = nfs.file("file").await;
    let data = Bytes::from(vec![1; (1 << 20) + 100]);
    let wrote = nfs
        .client
        .write(&file, 0, data, StableHow::Unstable)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(wrote.count, 1 << 20);
    assert_eq!(wrote.file.after.unwrap().size_bytes, 1 << 20);
}

#[tokio::test]
async fn the_owner_reads_and_writes_regardless_of_the_mode_as_over_any_nfs() {
    let nfs = simple().await;
    let owner = nfs.served.client(user(1000)).await;
    let file = handle(
        owner
            .create(&nfs.root, "f", guarded(0o000))
            .await
            .unwrap()
            .unwrap(),
    );
    let data = Bytes::from_static(b"abc");
    owner
        .write(&file, 0, data.clone(), StableHow::FileSync)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        owner.read(&file, 0, 3).await.unwrap().unwrap().data.to_vec(),
        b"abc"
    );
    let other = nfs.served.client(user(1001)).await;
    assert_eq!(
        status(other.read(&file, 0, 3).await.unwrap()),
        Status::AccessDenied
    );
    assert_eq!(
        status(other.write(&file, 0, data, StableHow::FileSync).await.unwrap()),
        Status::AccessDenied
    );
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

#[tokio::test]
async fn the_file_system_tells_its_size_and_limits() {
    let nfs = simple().await;
    let status = nfs.client.file_system_status(&nfs.root).await.unwrap().unwrap();
    assert_eq!(status.total_bytes, 1 << 50);
    assert!(status.available_bytes <= status.total_bytes && status.attributes.is_some());
    let information = nfs
        .client
        .file_system_information(&nfs.root)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (information.read_maximum, information.write_maximum),
        (1 << 20, 1 << 20)
    );
    assert_eq!(information.properties, 0x1b);
    assert!(information.attributes.is_some());
    let configuration = nfs.client.path_configuration(&nfs.root).await.unwrap().unwrap();
    assert_eq!(configuration.name_maximum, 255);
    assert!(configuration.no_truncation && configuration.case_preserving && !configuration.case_insensitive);
}

#[tokio::test]
async fn every_procedure_counts_calls_failures_and_bytes() {
    let nfs = simple().await;
    nfs.file("a").await;
    nfs.client
        .create(&nfs.root, "a", guarded(0o600))
        .await
        .unwrap()
        .unwrap_err();
    let statistics = nfs.served.service.statistics();
    let create = statistics.iter().find(|one| one.procedure == "CREATE").unwrap();
    assert_eq!((create.calls, create.failed, create.refused), (2, 1, 0));
    assert!(create.received_bytes > 200 && create.sent_bytes > 200);
    assert_eq!(create.latency.iter().sum::<u64>(), 2);
}

//! Procedures of NFSv3, each with what it does, and what it says about attributes when it did and when it did not.

use crate::served::{Simple, guarded, handle, mode, shows_change, shows_no_change, simple, status, user};
use bytes::Bytes;
use firn_nfs::v3::{
    Status,
    types::{
        ACCESS_EXECUTE, ACCESS_LOOKUP, ACCESS_MODIFY, ACCESS_READ, FileType, NewAttributes, NewTime,
        StableHow, Time,
    },
};

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

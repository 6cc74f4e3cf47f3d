//! READDIR and READDIRPLUS: sizes to the byte, cookies that last.

use crate::served::{Simple, guarded, mode, simple, status};
use firn_nfs::{
    WireHandle,
    v3::{
        Procedure, Status,
        types::{ReadDirectoryCall, ReadDirectoryPlusCall},
    },
};
use std::collections::BTreeMap;

async fn fill(nfs: &Simple, directory: &WireHandle, names: impl IntoIterator<Item = String>) {
    for name in names {
        nfs.client
            .create(directory, name, guarded(0o600))
            .await
            .unwrap()
            .unwrap();
    }
}

/// All names with how often they were listed, `.` and `..` too.
async fn list(nfs: &Simple, directory: &WireHandle, count: u32) -> BTreeMap<Vec<u8>, u32> {
    let (mut names, mut cookie, mut verifier) = (BTreeMap::new(), 0, [0; 8]);
    for _ in 0..100_000 {
        let page = nfs
            .client
            .read_directory(directory, cookie, verifier, count)
            .await
            .unwrap()
            .unwrap();
        assert!(page.attributes.is_some());
        verifier = page.verifier;
        for entry in page.entries {
            *names.entry(entry.name.0.to_vec()).or_default() += 1;
            cookie = entry.cookie;
        }
        if page.end {
            return names;
        }
    }
    panic!("the directory does not end");
}

async fn list_plus(
    nfs: &Simple,
    directory: &WireHandle,
    names_bytes: u32,
    bytes: u32,
) -> Vec<(Vec<u8>, WireHandle)> {
    let (mut entries, mut cookie, mut verifier) = (Vec::new(), 0, [0; 8]);
    for _ in 0..100_000 {
        let page = nfs
            .client
            .read_directory_plus(directory, cookie, verifier, names_bytes, bytes)
            .await;
        let page = page.unwrap().unwrap();
        verifier = page.verifier;
        for entry in page.entries {
            assert_eq!(entry.attributes.unwrap().inode, entry.inode);
            entries.push((entry.name.0.to_vec(), entry.handle.unwrap()));
            cookie = entry.cookie;
        }
        if page.end {
            return entries;
        }
    }
    panic!("the directory does not end");
}

#[tokio::test]
async fn an_empty_directory_lists_itself_and_its_parent() {
    let nfs = simple().await;
    let directory = nfs.directory("d").await;
    let page = nfs
        .client
        .read_directory(&directory, 0, [0; 8], 4096)
        .await
        .unwrap()
        .unwrap();
    let names: Vec<_> = page.entries.iter().map(|entry| &entry.name.0[..]).collect();
    assert_eq!((names, page.end), (vec![&b"."[..], b".."], true));
    let root = nfs.client.get_attributes(&nfs.root).await.unwrap().unwrap().inode;
    assert_eq!(page.entries[1].inode, root);
}

#[tokio::test]
async fn every_entry_is_listed_once_whatever_the_size_of_the_replies() {
    let nfs = simple().await;
    let directory = nfs.directory("d").await;
    fill(
        &nfs,
        &directory,
        (0..300).map(|number| "x".repeat(1 + number % 40) + &number.to_string()),
    )
    .await;
    for count in [200, 512, 1000, 4096, 65_536, u32::MAX] {
        let names = list(&nfs, &directory, count).await;
        assert_eq!(names.len(), 302, "{count}");
        assert!(names.values().all(|times| *times == 1), "{count}");
        let plus = list_plus(&nfs, &directory, count, count.max(400)).await;
        assert_eq!(plus.len(), 302, "{count}");
    }
}

#[tokio::test]
async fn readdirplus_gives_the_handles_that_lookup_gives() {
    let nfs = simple().await;
    let directory = nfs.directory("d").await;
    fill(&nfs, &directory, (0..20).map(|number| number.to_string())).await;
    for (name, handle) in list_plus(&nfs, &directory, 4096, 4096).await {
        assert_eq!(
            nfs.client.lookup(&directory, &name).await.unwrap().unwrap().file,
            handle
        );
    }
}

#[tokio::test]
async fn no_reply_exceeds_what_the_client_takes_and_none_leaves_room_for_another_entry() {
    let nfs = simple().await;
    let directory = nfs.directory("d").await;
    fill(
        &nfs,
        &directory,
        (0..100).map(|number| "n".repeat(1 + number % 9) + &number.to_string()),
    )
    .await;
    for count in 150..600 {
        let call = ReadDirectoryCall {
            directory: directory.clone(),
            cookie: 0,
            verifier: [0; 8],
            count,
        };
        let transaction = nfs.client.rpc().next_transaction();
        let reply = nfs
            .client
            .call_as(transaction, Procedure::ReadDirectory, &call)
            .await
            .unwrap();
        let page = nfs
            .client
            .read_directory(&directory, 0, [0; 8], count)
            .await
            .unwrap()
            .unwrap();
        // Without the status, which is not part of the result (RFC 1813 §3.3.16).
        let bytes = reply.len() - 4;
        assert!(bytes <= count as usize, "{bytes} bytes where {count} are allowed");
        let last = page.entries.last().unwrap().cookie;
        let next = nfs
            .client
            .read_directory(&directory, last, page.verifier, 4096)
            .await
            .unwrap()
            .unwrap();
        let next_bytes = 24 + next.entries[0].name.0.len().next_multiple_of(4);
        assert!(
            bytes + next_bytes > count as usize,
            "another entry of {next_bytes} bytes fits {bytes} of {count}"
        );
    }
}

#[tokio::test]
async fn readdirplus_keeps_to_both_of_its_limits() {
    let nfs = simple().await;
    let directory = nfs.directory("d").await;
    fill(&nfs, &directory, (0..50).map(|number| format!("name{number:04}"))).await;
    for (directory_count, maximum_count) in [(4096, 700), (4096, 1500), (300, 8192), (100, 8192), (64, 1000)]
    {
        let call = ReadDirectoryPlusCall {
            directory: directory.clone(),
            cookie: 0,
            verifier: [0; 8],
            directory_count,
            maximum_count,
        };
        let transaction = nfs.client.rpc().next_transaction();
        let reply = nfs
            .client
            .call_as(transaction, Procedure::ReadDirectoryPlus, &call)
            .await
            .unwrap();
        assert!(reply.len() - 4 <= maximum_count as usize);
        let page = nfs
            .client
            .read_directory_plus(&directory, 0, [0; 8], directory_count, maximum_count)
            .await;
        let page = page.unwrap().unwrap();
        let names: usize = page
            .entries
            .iter()
            .map(|entry| 24 + entry.name.0.len().next_multiple_of(4))
            .sum();
        assert!(names <= directory_count as usize, "{names} of {directory_count}");
        assert!(!page.entries.is_empty() && !page.end);
    }
}

#[tokio::test]
async fn what_cannot_hold_one_entry_is_too_small() {
    let nfs = simple().await;
    for count in [0, 1, 103, 104, 131] {
        let answer = nfs
            .client
            .read_directory(&nfs.root, 0, [0; 8], count)
            .await
            .unwrap();
        assert_eq!(status(answer), Status::TooSmall, "{count}");
    }
    assert!(
        nfs.client
            .read_directory(&nfs.root, 0, [0; 8], 132)
            .await
            .unwrap()
            .is_ok()
    );
    let answer = nfs
        .client
        .read_directory_plus(&nfs.root, 0, [0; 8], 27, 4096)
        .await
        .unwrap();
    assert_eq!(status(answer), Status::TooSmall);
}

#[tokio::test]
async fn a_directory_that_ends_exactly_at_the_limit_says_so() {
    let nfs = simple().await;
    let directory = nfs.directory("d").await;
    fill(&nfs, &directory, ["abcd".into()]).await;
    // Empty result 104; `.` and `..` 28 each; `abcd` 28.
    let page = nfs
        .client
        .read_directory(&directory, 0, [0; 8], 104 + 3 * 28)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((page.entries.len(), page.end), (3, true));
    let page = nfs
        .client
        .read_directory(&directory, 0, [0; 8], 104 + 3 * 28 - 1)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((page.entries.len(), page.end), (2, false));
}

#[tokio::test]
async fn a_cookie_with_a_verifier_that_was_never_given_is_bad() {
    let nfs = simple().await;
    let page = nfs
        .client
        .read_directory(&nfs.root, 0, [0; 8], 4096)
        .await
        .unwrap()
        .unwrap();
    let cookie = page.entries[0].cookie;
    let answer = nfs
        .client
        .read_directory(&nfs.root, cookie, [1; 8], 4096)
        .await
        .unwrap();
    assert_eq!(status(answer), Status::BadCookie);
    assert!(
        nfs.client
            .read_directory(&nfs.root, cookie, page.verifier, 4096)
            .await
            .unwrap()
            .is_ok()
    );
}

#[tokio::test]
async fn a_file_is_no_directory() {
    let nfs = simple().await;
    let file = nfs.file("f").await;
    let failed = nfs
        .client
        .read_directory(&file, 0, [0; 8], 4096)
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(failed.status, Status::NotDirectory);
    assert!(failed.body.is_some());
}

#[tokio::test]
async fn entries_that_stay_are_listed_once_while_others_come_and_go() {
    let nfs = simple().await;
    let directory = nfs.directory("d").await;
    let stays = |number: u32| format!("stays-{number:03}");
    fill(&nfs, &directory, (0..200).map(stays)).await;
    let other = nfs.served.client(crate::served::root()).await;
    let changing = async {
        for round in 0..400u32 {
            other
                .create(&directory, format!("comes-{round}"), guarded(0o600))
                .await
                .unwrap()
                .unwrap();
            if round >= 20 {
                other
                    .remove(&directory, format!("comes-{}", round - 20))
                    .await
                    .unwrap()
                    .unwrap();
            }
            if round % 50 == 0 {
                other
                    .make_directory(&directory, format!("d{round}"), mode(0o700))
                    .await
                    .unwrap()
                    .unwrap();
            }
        }
    };
    let reading = async {
        for round in 0..20 {
            let names = list(&nfs, &directory, 300 + 100 * round).await;
            for number in 0..200 {
                assert_eq!(
                    names.get(stays(number).as_bytes()),
                    Some(&1),
                    "{number} in round {round}"
                );
            }
            assert!(names.values().all(|times| *times == 1), "nothing is listed twice");
        }
    };
    futures::join!(changing, reading);
}

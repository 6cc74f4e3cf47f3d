//! Calls that are sent twice are executed once, also when the server was restarted in between.

use crate::served::{Simple, guarded, memory, mode, simple, simple_on, status};
use bytes::Bytes;
use firn_nfs::{
    WireHandle,
    client::entry,
    v3::{
        Procedure, Status,
        types::{
            CreateCall, Failed, LinkCall, Made, MakeDirectoryCall, RenameCall, SetAttributesCall, Time,
            WccData,
        },
    },
    xdr::{Decode, Decoder, Encode, Encoder},
};

async fn send(nfs: &Simple, transaction: u32, procedure: Procedure, call: &impl Encode) -> Bytes {
    nfs.client.call_as(transaction, procedure, call).await.unwrap()
}

fn decode<R: Decode>(reply: Bytes) -> R {
    R::decode(&mut Decoder::new(reply)).unwrap()
}

fn status_of(reply: &Bytes) -> Status {
    Status::decode(&mut Decoder::new(reply.clone())).unwrap()
}

#[tokio::test]
async fn a_retransmitted_change_gets_the_same_reply_and_is_not_made_again() {
    let nfs = simple().await;
    nfs.file("f").await;
    let remove = entry(&nfs.root, "f");
    let first = send(&nfs, 1, Procedure::Remove, &remove).await;
    assert_eq!(status_of(&first), Status::Ok);
    nfs.file("f").await;
    let second = send(&nfs, 1, Procedure::Remove, &remove).await;
    assert_eq!(first, second, "to the byte");
    assert_eq!(nfs.served.service.retransmissions(), 1);
    assert!(
        nfs.client.lookup(&nfs.root, "f").await.unwrap().is_ok(),
        "the new file is still there"
    );
    let another = send(&nfs, 2, Procedure::Remove, &remove).await;
    assert_eq!(status_of(&another), Status::Ok);
    assert_eq!(
        status(nfs.client.lookup(&nfs.root, "f").await.unwrap()),
        Status::NoEntry
    );
}

#[tokio::test]
async fn a_retransmission_on_another_connection_is_recognised() {
    let nfs = simple().await;
    let make = MakeDirectoryCall {
        at: entry(&nfs.root, "d"),
        attributes: mode(0o700),
    };
    let first = send(&nfs, 1, Procedure::MakeDirectory, &make).await;
    let again = nfs.served.client(crate::served::root()).await;
    let second = again.call_as(1, Procedure::MakeDirectory, &make).await.unwrap();
    assert_eq!(first, second);
}

#[tokio::test]
async fn the_same_transaction_id_with_other_arguments_is_another_call() {
    let nfs = simple().await;
    for name in ["a", "b"] {
        let create = CreateCall {
            at: entry(&nfs.root, name),
            how: guarded(0o600),
        };
        assert_eq!(
            status_of(&send(&nfs, 1, Procedure::Create, &create).await),
            Status::Ok
        );
        assert!(nfs.client.lookup(&nfs.root, name).await.unwrap().is_ok());
    }
}

/// Arguments as they go over the wire.
struct Encoded(Bytes);

impl Encode for Encoded {
    fn encode(&self, out: &mut Encoder) {
        out.raw(self.0.clone());
    }
}

/// Calls of every kind of change, in an order in which each succeeds once.
fn history(root: &WireHandle, file: &WireHandle, seen: Time) -> Vec<(Procedure, Encoded)> {
    fn call(procedure: Procedure, arguments: impl Encode) -> (Procedure, Encoded) {
        let mut out = Encoder::new();
        arguments.encode(&mut out);
        (procedure, Encoded(out.into_bytes()))
    }
    let at = |name: &str| entry(root, name);
    let set = SetAttributesCall {
        file: file.clone(),
        attributes: mode(0o640),
        guard: Some(seen),
    };
    let create = CreateCall {
        at: at("new"),
        how: guarded(0o600),
    };
    let make_directory = MakeDirectoryCall {
        at: at("directory"),
        attributes: mode(0o700),
    };
    let link = LinkCall {
        file: file.clone(),
        at: at("linked"),
    };
    let rename = RenameCall {
        from: at("linked"),
        to: at("renamed"),
    };
    vec![
        call(Procedure::SetAttributes, set),
        call(Procedure::Create, create),
        call(Procedure::MakeDirectory, make_directory),
        call(Procedure::Link, link),
        call(Procedure::Rename, rename),
        call(Procedure::Remove, at("renamed")),
        call(Procedure::RemoveDirectory, at("directory")),
    ]
}

#[tokio::test]
async fn changes_made_before_a_restart_are_answered_and_not_made_again_after_it() {
    let vfs = memory(1);
    let before = simple_on(vfs.clone()).await;
    let file = before.file("file").await;
    let seen = before
        .client
        .get_attributes(&file)
        .await
        .unwrap()
        .unwrap()
        .changed;
    let history = history(&before.root, &file, seen);
    let mut replies = Vec::new();
    for (transaction, (procedure, call)) in (100..).zip(&history) {
        let reply = send(&before, transaction, *procedure, call).await;
        assert_eq!(status_of(&reply), Status::Ok, "{procedure:?}");
        replies.push(reply);
    }
    drop(before);
    vfs.crash(|_, _| 0);
    let after = simple_on(vfs).await;
    let names = async || {
        let page = after
            .client
            .read_directory(&after.root, 0, [0; 8], 4096)
            .await
            .unwrap()
            .unwrap();
        page.entries
            .iter()
            .map(|entry| entry.name.0.to_vec())
            .collect::<Vec<_>>()
    };
    let listed = names().await;
    for (transaction, (procedure, call)) in (100..).zip(&history) {
        let reply = send(&after, transaction, *procedure, call).await;
        assert_eq!(status_of(&reply), Status::Ok, "{procedure:?} once more");
    }
    assert_eq!(names().await, listed, "nothing happened twice");
    // A file that was created is named in the answer, with the handle it had.
    let create: Result<Made, Failed<WccData>> =
        decode(send(&after, 101, Procedure::Create, &history[1].1).await);
    let original: Result<Made, Failed<WccData>> = decode(replies[1].clone());
    let (create, original) = (create.unwrap(), original.unwrap());
    assert_eq!(create.file, original.file);
    assert_eq!(create.attributes.unwrap().mode, 0o600);
    assert_eq!(
        create.directory.before, None,
        "what was before is not known any more"
    );
    assert!(create.directory.after.is_some());
    // Sent as new calls they are executed: so it was the cache that answered.
    for (transaction, (procedure, call)) in (200..).zip(&history) {
        let reply = send(&after, transaction, *procedure, call).await;
        let expected = match procedure {
            Procedure::SetAttributes => Status::NotSynchronised,
            Procedure::Create => Status::Exists,
            _ => Status::Ok,
        };
        assert_eq!(status_of(&reply), expected, "{procedure:?}");
    }
}

#[tokio::test]
async fn a_change_that_failed_before_a_restart_is_tried_again_after_it() {
    let vfs = memory(1);
    let before = simple_on(vfs.clone()).await;
    let remove = entry(&before.root, "f");
    assert_eq!(
        status_of(&send(&before, 1, Procedure::Remove, &remove).await),
        Status::NoEntry
    );
    drop(before);
    vfs.crash(|_, _| 0);
    let after = simple_on(vfs).await;
    after.file("f").await;
    assert_eq!(
        status_of(&send(&after, 1, Procedure::Remove, &remove).await),
        Status::Ok
    );
}

//! The table of errors in `docs/semantics.md`: each reaches a client, and no other can be sent.

use crate::served::{Served, guarded, handle, memory, mode, open_rule, root, status, user};
use async_trait::async_trait;
use bytes::Bytes;
use firn_nfs::{
    ClientRule, Export, WireHandle,
    client::entry,
    v3::{
        Status,
        types::{FileType, NewAttributes, NewNode, NewTime, StableHow, Time},
    },
    xdr::{Decode, Decoder},
};
use firn_vfs::{
    Caller, FileHandle, Limits, MemoryOptions, MemoryVfs, Stability, Vfs, VfsError, VfsLayer, WriteReply,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex},
};

/// As the standard writes it (RFC 1813, section 2.6).
fn name(status: Status) -> &'static str {
    match status {
        Status::Ok => "NFS3_OK",
        Status::NotPermitted => "NFS3ERR_PERM",
        Status::NoEntry => "NFS3ERR_NOENT",
        Status::Io => "NFS3ERR_IO",
        Status::NoSuchDevice => "NFS3ERR_NXIO",
        Status::AccessDenied => "NFS3ERR_ACCES",
        Status::Exists => "NFS3ERR_EXIST",
        Status::CrossDevice => "NFS3ERR_XDEV",
        Status::NoDevice => "NFS3ERR_NODEV",
        Status::NotDirectory => "NFS3ERR_NOTDIR",
        Status::IsDirectory => "NFS3ERR_ISDIR",
        Status::Invalid => "NFS3ERR_INVAL",
        Status::FileTooLarge => "NFS3ERR_FBIG",
        Status::NoSpace => "NFS3ERR_NOSPC",
        Status::ReadOnly => "NFS3ERR_ROFS",
        Status::TooManyLinks => "NFS3ERR_MLINK",
        Status::NameTooLong => "NFS3ERR_NAMETOOLONG",
        Status::NotEmpty => "NFS3ERR_NOTEMPTY",
        Status::QuotaExceeded => "NFS3ERR_DQUOT",
        Status::Stale => "NFS3ERR_STALE",
        Status::Remote => "NFS3ERR_REMOTE",
        Status::BadHandle => "NFS3ERR_BADHANDLE",
        Status::NotSynchronised => "NFS3ERR_NOT_SYNC",
        Status::BadCookie => "NFS3ERR_BAD_COOKIE",
        Status::NotSupported => "NFS3ERR_NOTSUPP",
        Status::TooSmall => "NFS3ERR_TOOSMALL",
        Status::ServerFault => "NFS3ERR_SERVERFAULT",
        Status::BadType => "NFS3ERR_BADTYPE",
        Status::Jukebox => "NFS3ERR_JUKEBOX",
        Status::Unanswered => unreachable!("it is never sent"),
    }
}

/// What the standard has, by the name that the code has for it.
fn statuses() -> BTreeMap<String, Status> {
    (0..=10_100_u32)
        .filter_map(|number| {
            let bytes = Bytes::copy_from_slice(&number.to_be_bytes());
            Status::decode(&mut Decoder::new(bytes)).ok()
        })
        .map(|status| (format!("{status:?}"), status))
        .collect()
}

fn workspace() -> PathBuf {
    PathBuf::from("../..")
}

/// Everything that begins as an error's name does.
fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|one: char| !(one.is_ascii_alphanumeric() || one == '_'));
    words
        .filter(|word| word.starts_with("NFS3ERR_"))
        .map(str::to_owned)
        .collect()
}

struct Documented {
    /// First column of the table.
    sent: BTreeSet<String>,
    /// Of the sentence below it.
    never_sent: BTreeSet<String>,
}

fn documented() -> Documented {
    let text = std::fs::read_to_string(workspace().join("docs/semantics.md")).expect("it is there");
    let (_, table) = text.split_once("| status | when |").expect("the table of errors");
    let (rows, below) = table.split_once("\n\n").expect("it ends");
    let sent = rows
        .lines()
        .filter_map(|row| row.strip_prefix("| ")?.split_once(" |"))
        .flat_map(|(cell, _)| names_in(cell))
        .collect();
    let sentence = below.split("\n\n").next().expect("a paragraph");
    assert!(sentence.contains("are not sent"), "{sentence}");
    Documented {
        sent,
        never_sent: names_in(sentence),
    }
}

/// Names of the code's own for errors that its text makes, after `prefix`.
fn made_in(text: &str, prefix: &str) -> BTreeSet<String> {
    text.match_indices(prefix)
        .map(|(at, _)| {
            let rest = &text[at + prefix.len()..];
            rest.chars().take_while(char::is_ascii_alphanumeric).collect()
        })
        .collect()
}

/// What the server's own code can answer a file operation with, by the standard's names.
fn sendable() -> BTreeSet<String> {
    let source = PathBuf::from("src");
    let mut files = vec![
        source.join("v3.rs"),
        source.join("exports.rs"),
        source.join("handle.rs"),
    ];
    for entry in std::fs::read_dir(source.join("v3")).expect("a directory") {
        files.push(entry.expect("an entry").path());
    }
    let mut made = BTreeSet::new();
    for file in files.iter().filter(|file| file.is_file()) {
        let text = std::fs::read_to_string(file).expect("text");
        if file.ends_with("v3/status.rs") {
            // Behind the enumeration itself: what other errors become.
            let (_, conversions) = text.split_once("\nimpl From").expect("conversions");
            made.extend(made_in(conversions, "Self::"));
        } else {
            made.extend(made_in(&text, "Status::"));
        }
    }
    let all = statuses();
    made.iter()
        .filter_map(|made| all.get(made))
        .filter(|status| **status != Status::Ok)
        .map(|status| name(*status).to_owned())
        .collect()
}

#[test]
fn the_table_has_what_the_code_can_send_and_nothing_else() {
    let Documented { sent, never_sent } = documented();
    let sendable = sendable();
    assert!(sendable.len() > 20, "the code is not understood: {sendable:?}");
    let missing: Vec<_> = sendable
        .iter()
        .filter(|name| !sent.contains(*name) && !never_sent.contains(*name))
        .collect();
    assert!(missing.is_empty(), "not in docs/semantics.md: {missing:?}");
    let unknown: Vec<_> = sent.difference(&sendable).collect();
    assert!(unknown.is_empty(), "no code sends {unknown:?}");
    assert_eq!(
        never_sent.intersection(&sent).count(),
        0,
        "{never_sent:?} are in the table as well"
    );
}

/// A file system whose next write fails as it is told to; all else is the model's.
struct Failing {
    model: Arc<MemoryVfs>,
    next: Mutex<Option<VfsError>>,
}

#[async_trait]
impl VfsLayer for Failing {
    fn below(&self) -> &dyn Vfs {
        &*self.model
    }

    async fn write(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        data: Vec<Bytes>,
        stability: Stability,
    ) -> Result<WriteReply, VfsError> {
        let fails = self.next.lock().expect("no panic under this lock").take();
        match fails {
            Some(error) => Err(error),
            None => self.below().write(caller, file, offset, data, stability).await,
        }
    }
}

#[tokio::test]
async fn every_error_of_the_table_reaches_a_client() {
    let options = MemoryOptions {
        file_system: 1,
        root_mode: 0o777,
        quota_bytes: 512 << 10,
        limits: Limits {
            links: 3,
            ..MemoryOptions::default().limits
        },
        ..MemoryOptions::default()
    };
    let failing = Arc::new(Failing {
        model: Arc::new(MemoryVfs::new(&crate::served::env(), options)),
        next: Mutex::default(),
    });
    let own = |rule| Export::new("/own", failing.clone() as Arc<dyn Vfs>, vec![rule]);
    let read_only = ClientRule {
        read_only: true,
        ..open_rule()
    };
    let served = Served::start([
        own(open_rule()).unwrap(),
        Export::new("/other", memory(2), vec![open_rule()]).unwrap(),
        Export::new("/read-only", memory(3), vec![read_only]).unwrap(),
    ])
    .await;
    let client = served.client(root()).await;
    let stranger = served.client(user(1000)).await;
    let mount = async |path| client.mount(path).await.unwrap().unwrap().handle;
    let (top, other, unwritable) = (
        mount("/own").await,
        mount("/other").await,
        mount("/read-only").await,
    );
    let made = async |name: &str| handle(client.create(&top, name, guarded(0o600)).await.unwrap().unwrap());
    let file = made("file").await;
    let directory = client
        .make_directory(&top, "directory", mode(0o755))
        .await
        .unwrap()
        .unwrap();
    let directory = handle(directory);
    handle(
        client
            .create(&directory, "inside", guarded(0o600))
            .await
            .unwrap()
            .unwrap(),
    );
    let mut seen = BTreeSet::new();
    let mut note = |expected: &str, found: Status| {
        assert_eq!(name(found), expected);
        seen.insert(expected.to_owned());
    };
    let none = NewAttributes::default;
    let byte = || Bytes::from_static(b"x");
    let write = async |data: Bytes, at: u64| {
        let written = client.write(&file, at, data, StableHow::FileSync).await;
        status(written.unwrap())
    };

    note(
        "NFS3ERR_PERM",
        status(stranger.set_attributes(&file, mode(0o777), None).await.unwrap()),
    );
    note(
        "NFS3ERR_NOENT",
        status(client.lookup(&top, "missing").await.unwrap()),
    );
    note("NFS3ERR_ACCES", status(stranger.read(&file, 0, 1).await.unwrap()));
    note(
        "NFS3ERR_EXIST",
        status(client.create(&top, "file", guarded(0o600)).await.unwrap()),
    );
    note(
        "NFS3ERR_XDEV",
        status(client.link(&file, entry(&other, "link")).await.unwrap()),
    );
    note("NFS3ERR_NOTDIR", status(client.lookup(&file, "x").await.unwrap()));
    note("NFS3ERR_ISDIR", status(client.read(&top, 0, 1).await.unwrap()));
    let absurd = NewAttributes {
        accessed: NewTime::ClientTime(Time {
            seconds: 1,
            nanoseconds: 1_000_000_000,
        }),
        ..none()
    };
    note(
        "NFS3ERR_INVAL",
        status(client.set_attributes(&file, absurd, None).await.unwrap()),
    );
    note("NFS3ERR_FBIG", write(byte(), u64::MAX - 1).await);
    note(
        "NFS3ERR_NOSPC",
        write(Bytes::from(vec![1; 1 << 20]), 1 << 20).await,
    );
    note(
        "NFS3ERR_ROFS",
        status(client.create(&unwritable, "x", guarded(0o600)).await.unwrap()),
    );
    for name in ["second", "third"] {
        client.link(&file, entry(&top, name)).await.unwrap().unwrap();
    }
    note(
        "NFS3ERR_MLINK",
        status(client.link(&file, entry(&top, "fourth")).await.unwrap()),
    );
    note(
        "NFS3ERR_NAMETOOLONG",
        status(client.lookup(&top, "n".repeat(256)).await.unwrap()),
    );
    note(
        "NFS3ERR_NOTEMPTY",
        status(client.remove_directory(&top, "directory").await.unwrap()),
    );
    let gone = made("gone").await;
    client.remove(&top, "gone").await.unwrap().unwrap();
    note(
        "NFS3ERR_STALE",
        status(client.get_attributes(&gone).await.unwrap()),
    );
    let forged = WireHandle::from(Bytes::from(vec![0; 64]));
    note(
        "NFS3ERR_BADHANDLE",
        status(client.get_attributes(&forged).await.unwrap()),
    );
    let before = client.get_attributes(&file).await.unwrap().unwrap().changed;
    client
        .set_attributes(&file, mode(0o600), Some(before))
        .await
        .unwrap()
        .unwrap();
    note(
        "NFS3ERR_NOT_SYNC",
        status(
            client
                .set_attributes(&file, mode(0o600), Some(before))
                .await
                .unwrap(),
        ),
    );
    let page = client
        .read_directory(&top, 0, [0; 8], 4096)
        .await
        .unwrap()
        .unwrap();
    let cookie = page.entries[0].cookie;
    note(
        "NFS3ERR_BAD_COOKIE",
        status(client.read_directory(&top, cookie, [1; 8], 4096).await.unwrap()),
    );
    note(
        "NFS3ERR_TOOSMALL",
        status(client.read_directory(&top, 0, [0; 8], 1).await.unwrap()),
    );
    let no_node = NewNode::Other(FileType::Directory);
    note(
        "NFS3ERR_BADTYPE",
        status(client.make_node(&top, "x", no_node).await.unwrap()),
    );
    // What a store, another edge or a budget brings about, the engine's and the edge's own tests do; here it is how it is told.
    for (error, expected) in [
        (VfsError::Io("the disk failed".into()), "NFS3ERR_IO"),
        (VfsError::NotInCloud, "NFS3ERR_IO"),
        (VfsError::QuotaExceeded, "NFS3ERR_DQUOT"),
        (
            VfsError::TryAgain {
                reason: "the store is away",
            },
            "NFS3ERR_JUKEBOX",
        ),
    ] {
        *failing.next.lock().expect("no panic under this lock") = Some(error);
        note(expected, write(byte(), 0).await);
    }
    assert_eq!(seen, documented().sent);
}

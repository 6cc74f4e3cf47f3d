//! `firn-edge id`: what it names as the cause is why the running edge refuses, and what it calls allowed is granted.

use crate::machine::{Cloud, Files, Machine, status};
use bytes::Bytes;
use firn_nfs::{
    WireHandle,
    v3::{
        Status,
        types::{
            ACCESS_EXECUTE, ACCESS_LOOKUP, ACCESS_MODIFY, ACCESS_READ, ACL_ACCESS, CreateHow, NewAttributes,
            SetAclCall, StableHow, WireAcl, WireAclEntry,
        },
    },
    xdr::Array,
};
use serde_json::Value;

/// Whose the files are.
const OWNER: u32 = 1000;
const GROUP: u32 = 100;
/// Whom the ACL shuts out, though everybody else may read.
const SHUT_OUT: u32 = 2001;
/// Somebody else.
const OTHER: u32 = 2002;

/// Further exports of the one volume: for offices and this machine, for the client's kernel alone.
const EXPORTS: &str = r#"
[[export]]
path = "/office"
clients = ["10.0.0.0/8"]
read_only_clients = ["127.0.0.0/8"]
require_privileged_port = false
[[export]]
path = "/plain"
clients = ["127.0.0.0/8"]
require_privileged_port = false
[[export]]
path = "/kernel"
clients = ["127.0.0.0/8"]
"#;

/// A verdict of NFS, or of what else comes first.
fn explained(edge: &Machine, user: u32, path: &str, access: &str, more: &[&str]) -> Value {
    let user = user.to_string();
    let asked = [
        "id", &user, "--path", path, "--access", access, "--output", "json",
    ];
    let from: &[&str] = if more.contains(&"--from") {
        &[]
    } else {
        &["--from", "127.0.0.1"]
    };
    let said = edge.succeed(&[&asked[..], from, more].concat());
    let answer: Value = serde_json::from_str(&said).expect("JSON");
    answer["explanations"][0].clone()
}

/// It is refused with this error, and the cause has all of these words.
fn refused(explanation: &Value, error: &str, words: &[&str]) {
    assert_eq!(explanation["is_allowed"], false, "{explanation:#}");
    assert_eq!(explanation["error"], error, "{explanation:#}");
    let cause = explanation["cause"].as_str().expect("a cause");
    for word in words {
        assert!(cause.contains(word), "{word}: {explanation:#}");
    }
}

fn allowed(explanation: &Value) {
    assert_eq!(explanation["is_allowed"], true, "{explanation:#}");
    assert!(explanation["cause"].is_null(), "{explanation:#}");
}

fn attributes(uid: u32, mode: u32) -> NewAttributes {
    NewAttributes {
        mode: Some(mode),
        uid: Some(uid),
        gid: Some(GROUP),
        ..NewAttributes::default()
    }
}

async fn directory(files: &Files, parent: &WireHandle, name: &str, uid: u32, mode: u32) -> WireHandle {
    let made = files
        .client()
        .make_directory(parent, name, attributes(uid, mode))
        .await;
    made.expect("an answer").expect("made").file.expect("its handle")
}

async fn file(files: &Files, parent: &WireHandle, name: &str, uid: u32, mode: u32) -> WireHandle {
    let how = CreateHow::Guarded(attributes(uid, mode));
    let made = files.client().create(parent, name, how).await;
    made.expect("an answer").expect("made").file.expect("its handle")
}

/// A deny for one user: others read, the one does not.
async fn shut_out(files: &Files, file: &WireHandle) {
    let entries = [(1, 0, 6), (2, SHUT_OUT, 0), (4, 0, 4), (0x10, 0, 4), (0x20, 0, 4)];
    let access = WireAcl {
        count: 5,
        entries: Array(
            entries
                .map(|(tag, id, permissions)| WireAclEntry { tag, id, permissions })
                .to_vec(),
        ),
    };
    let call = SetAclCall {
        file: file.clone(),
        mask: ACL_ACCESS,
        access,
        default: WireAcl::default(),
    };
    files
        .client()
        .set_acl(&call)
        .await
        .expect("an answer")
        .expect("set");
}

/// An edge, and what lies on it.
async fn prepared(cloud: &Cloud) -> Machine {
    let mut edge = Machine::new(cloud, "a", "main");
    edge.edit("[log]", &format!("{EXPORTS}\n[log]"));
    edge.format();
    edge.start(&[]);
    let root = edge.client().await;
    let plans = directory(&root, root.root(), "plans", OWNER, 0o755).await;
    let plan = file(&root, &plans, "a", OWNER, 0o644).await;
    shut_out(&root, &plan).await;
    file(&root, &plans, "own", OWNER, 0o640).await;
    file(&root, &plans, "tool", OWNER, 0o755).await;
    let closed = directory(&root, root.root(), "closed", OWNER, 0o700).await;
    file(&root, &closed, "b", OWNER, 0o666).await;
    let shared = directory(&root, root.root(), "shared", OWNER, 0o1777).await;
    file(&root, &shared, "c", OWNER, 0o666).await;
    edge
}

/// What an NFS client gets that opens a path as Linux's does: LOOKUP by LOOKUP, then ACCESS. The error is that of LOOKUP.
async fn opens(files: &Files, path: &str, mask: u32) -> Result<bool, Status> {
    let client = files.client();
    let mut at = files.root().clone();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let found = client.lookup(&at, name).await.expect("an answer");
        at = found.map_err(|failed| failed.status)?.file;
    }
    let granted = client
        .access(&at, mask)
        .await
        .expect("an answer")
        .expect("granted");
    Ok(granted.mask == mask)
}

async fn found(files: &Files, path: &str) -> WireHandle {
    let mut at = files.root().clone();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = files
            .client()
            .lookup(&at, name)
            .await
            .expect("an answer")
            .expect("found")
            .file;
    }
    at
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cause_that_is_named_is_the_one_that_refuses() {
    let cloud = Cloud::new();
    let mut edge = prepared(&cloud).await;

    // A POSIX ACL shuts one user out.
    let shut_out = edge.client_as_of("/plain", SHUT_OUT).await;
    let plan = found(&shut_out, "plans/a").await;
    let read = shut_out.client().read(&plan, 0, 10).await.expect("an answer");
    assert_eq!(read.expect_err("shut out").status, Status::AccessDenied);
    let why = explained(&edge, SHUT_OUT, "/plain/plans/a", "read", &[]);
    refused(
        &why,
        "EACCES",
        &["/plans/a", "the ACL entry user:2001:---", "needs r--"],
    );
    let other = edge.client_as_of("/plain", OTHER).await;
    assert!(
        other
            .client()
            .read(&plan, 0, 10)
            .await
            .expect("an answer")
            .is_ok()
    );
    allowed(&explained(&edge, OTHER, "/plain/plans/a", "read", &[]));

    // Root is squashed: the root directory is root's.
    let squashed = edge.client_of("/plain").await;
    let how = CreateHow::Guarded(NewAttributes::default());
    let made = squashed
        .client()
        .create(squashed.root(), "new", how.clone())
        .await;
    assert_eq!(
        made.expect("an answer").expect_err("squashed").status,
        Status::AccessDenied
    );
    let why = explained(&edge, 0, "/plain/new", "write", &[]);
    refused(&why, "EACCES", &["/: others' bits r-x", "make a name"]);
    let caller = why["steps"][2].to_string();
    assert!(
        caller.contains("uid 65534, gid 65534, made of uid 0, gid 0"),
        "{why:#}"
    );
    allowed(&explained(&edge, 0, "/export/new", "write", &[]));

    // One network only reads.
    let reader = edge.client_as_of("/office", OWNER).await;
    let own = found(&reader, "plans/own").await;
    let data = Bytes::from_static(b"text");
    let written = reader
        .client()
        .write(&own, 0, data.clone(), StableHow::FileSync)
        .await;
    assert_eq!(
        written.expect("an answer").expect_err("read-only").status,
        Status::ReadOnly
    );
    let why = explained(&edge, OWNER, "/office/plans/own", "write", &[]);
    refused(&why, "EROFS", &["/office is read-only for 127.0.0.0/8"]);
    allowed(&explained(&edge, OWNER, "/office/plans/own", "read", &[]));
    allowed(&explained(
        &edge,
        OWNER,
        "/office/plans/own",
        "write",
        &["--from", "10.1.2.3"],
    ));
    let owner = edge.client_as_of("/plain", OWNER).await;
    let own = found(&owner, "plans/own").await;
    let written = owner.client().write(&own, 0, data, StableHow::FileSync).await;
    written.expect("an answer").expect("written");
    allowed(&explained(&edge, OWNER, "/plain/plans/own", "write", &[]));

    // A stranger, and a port that anybody of the client may have.
    assert!(other.mounted("/kernel").await.is_none());
    let why = explained(&edge, OTHER, "/kernel", "read", &["--port", "40000"]);
    refused(&why, "EACCES", &["client rule", "below 1024", "not from 40000"]);
    allowed(&explained(&edge, OTHER, "/kernel", "read", &[]));
    let why = explained(&edge, OTHER, "/kernel", "read", &["--from", "192.0.2.1"]);
    refused(&why, "EACCES", &["192.0.2.1 is in none of 127.0.0.0/8"]);

    // A directory on the way, and a sticky one.
    assert_eq!(
        opens(&other, "closed/b", ACCESS_READ).await,
        Err(Status::AccessDenied)
    );
    let why = explained(&edge, OTHER, "/plain/closed/b", "read", &[]);
    refused(
        &why,
        "EACCES",
        &["/closed: others' bits ---", "search", "needs --x"],
    );
    let shared = found(&other, "shared").await;
    let removed = other.client().remove(&shared, "c").await.expect("an answer");
    assert_eq!(removed.expect_err("sticky").status, Status::NotPermitted);
    let why = explained(&edge, OTHER, "/plain/shared/c", "delete", &[]);
    refused(&why, "EPERM", &["/shared", "sticky bit", "uid 1000"]);
    allowed(&explained(&edge, OWNER, "/plain/shared/c", "delete", &[]));
    let removed = owner.client().remove(&shared, "c").await.expect("an answer");
    assert!(removed.is_ok(), "what was called allowed is refused: {removed:?}");
    let why = explained(&edge, OWNER, "/plain/shared/c", "delete", &[]);
    refused(&why, "ENOENT", &["/shared", "\"c\" is not in it"]);
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verdict_is_what_a_client_gets() {
    let cloud = Cloud::new();
    let mut edge = prepared(&cloud).await;
    let paths = [
        "",
        "plans",
        "plans/a",
        "plans/own",
        "plans/tool",
        "closed",
        "closed/b",
        "shared",
    ];
    let mut verdicts = [0, 0];
    for export in ["/plain", "/office"] {
        for user in [0, OWNER, SHUT_OUT, OTHER] {
            let files = edge.client_as_of(export, user).await;
            for path in paths {
                let is_directory = ["", "plans", "closed", "shared"].contains(&path);
                let execute = if is_directory {
                    ACCESS_LOOKUP
                } else {
                    ACCESS_EXECUTE
                };
                for (access, mask) in [
                    ("read", ACCESS_READ),
                    ("write", ACCESS_MODIFY),
                    ("execute", execute),
                ] {
                    let is_granted = opens(&files, path, mask).await.unwrap_or(false);
                    let why = explained(
                        &edge,
                        user,
                        &format!("{export}/{path}"),
                        access,
                        &["--gid", &user.to_string()],
                    );
                    assert_eq!(
                        why["is_allowed"], is_granted,
                        "{export} {user} {path} {access}: {why:#}"
                    );
                    verdicts[usize::from(is_granted)] += 1;
                }
            }
        }
    }
    assert!(
        verdicts.iter().all(|count| *count > 40),
        "both kinds: {verdicts:?}"
    );
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn people_read_the_steps_and_what_is_asked_wrongly_is_said() {
    let cloud = Cloud::new();
    let mut edge = prepared(&cloud).await;
    let text = edge.succeed(&[
        "id",
        "2001",
        "--from",
        "127.0.0.1",
        "--path",
        "/plain/plans/a",
        "--access",
        "read",
    ]);
    for line in [
        "note: uid 2001 is in no table here",
        "over NFS: read /plain/plans/a from 127.0.0.1",
        "  ok       export       /plain",
        "  REFUSES  /plans/a",
        "refused (EACCES), because of /plans/a: the ACL entry user:2001:---",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // Of the table of this machine; nothing is asked of files.
    let root = edge.succeed(&["id", "root"]);
    assert!(
        root.contains("root: uid 0, gid 0") && root.contains("/etc/passwd"),
        "{root}"
    );
    assert!(!root.contains("over NFS"), "{root}");
    let said = edge.fail(1, &["id", "nobody-has-this-name"]);
    assert!(
        said.contains("no table of this edge has nobody-has-this-name"),
        "{said}"
    );
    let said = edge.fail(2, &["id", "root", "--from", "127.0.0.1"]);
    assert!(said.contains("--from needs --path"), "{said}");
    let said = edge.fail(1, &["id", "root", "--from", "127.0.0.1", "--share", "files"]);
    assert!(said.contains("no [smb]"), "{said}");
    let why = explained(&edge, OTHER, "/nowhere/a", "read", &[]);
    refused(&why, "ENOENT", &["no export has this path", "/office", "/plain"]);

    // More groups than a client can send: the one that would help is not sent.
    let many: Vec<String> = (3000..3016).chain([9000]).map(|gid| gid.to_string()).collect();
    let why = explained(
        &edge,
        OTHER,
        "/plain/plans",
        "read",
        &["--groups", &many.join(",")],
    );
    let steps = why["steps"].to_string();
    assert!(
        steps.contains("AUTH_SYS carries 16 groups, so these are not sent: 9000"),
        "{why:#}"
    );

    // A snapshot is nobody's to change, though modes say otherwise.
    edge.succeed(&["snapshot", "create", "one"]);
    let in_snapshot = "/plain/.snapshots/one/plans/own";
    allowed(&explained(&edge, OWNER, in_snapshot, "read", &[]));
    let why = explained(&edge, OWNER, in_snapshot, "write", &[]);
    refused(&why, "EROFS", &["/.snapshots/one/plans/own", "in a snapshot"]);
    let owner = edge.client_as_of("/plain", OWNER).await;
    let kept = found(&owner, ".snapshots/one/plans/own").await;
    let data = Bytes::from_static(b"text");
    let written = owner.client().write(&kept, 0, data, StableHow::FileSync).await;
    assert_eq!(
        written.expect("an answer").expect_err("a snapshot").status,
        Status::ReadOnly
    );
    assert_eq!(status(&edge)["volume"]["state"], "serving");
    edge.stop();
    let said = edge.fail(1, &["id", "root"]);
    assert!(said.contains("no firn-edge is running"), "{said}");
}

//! Bad input over SMB: names, attributes and ACLs that cannot be had. Refused in SMB's words, or shown otherwise; never half done, and
//! nothing beside it is in the way.

use super::{
    ALICE, BOB, Shared,
    agent::Agent,
    raw_client::{RawClient, has_raw_client},
    said, shared,
};
use crate::machine::{Cloud, Files};
use firn_nfs::v3::types::{CreateHow, NewAttributes};
use serde_json::{Value, json};
use std::fs;

#[tokio::test]
async fn names_that_one_side_cannot_have() {
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    let nfs = edge.edge.client_as(1001).await;
    let here = cloud.path();
    fs::write(here.join("local"), b"content").expect("written");
    // 127 letters are 254 bytes here; 200 are 400, and still a name for Windows.
    let longest = "ä".repeat(127);
    edge.run(ALICE, "files", &format!("put local {longest}; get {longest} got"));
    assert_eq!(nfs.read(&longest).await.as_deref(), Some(&b"content"[..]));
    for too_long in ["ä".repeat(200), "ä".repeat(255)] {
        edge.refused(ALICE, "files", &format!("put local {too_long}"), "NT_STATUS_");
        // smbclient's exit status is not that of mkdir.
        let answered = said(&edge.try_run(ALICE, "files", &format!("mkdir {too_long}")));
        assert!(answered.contains("NT_STATUS_"), "{answered}");
        edge.refused(
            ALICE,
            "files",
            &format!("rename {longest} {too_long}"),
            "NT_STATUS_",
        );
    }
    // A letter of two units, beyond the first plane.
    edge.run(ALICE, "files", "put local smile-😀");
    assert_eq!(nfs.read("smile-😀").await.as_deref(), Some(&b"content"[..]));
    // Names that Windows does not have are shown by short ones, and open by these.
    let foreign = [
        "dot.",
        "space ",
        "a:b",
        "what?",
        "back\\slash",
        "star*",
        "less<more>",
        "quote\"",
        "pipe|",
    ];
    for (number, name) in foreign.iter().enumerate() {
        make_readable(&nfs, name).await;
        nfs.write(name, format!("of {number}").as_bytes()).await;
    }
    let listed = edge.run(ALICE, "files", "ls");
    let shown: Vec<&str> = listed
        .lines()
        .filter(|line| line.contains('~'))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(shown.len(), foreign.len(), "{listed}");
    let mut seen = Vec::new();
    for short in shown {
        edge.run(ALICE, "files", &format!("get {short} got"));
        seen.push(fs::read_to_string(here.join("got")).expect("got"));
    }
    seen.sort();
    let expected: Vec<String> = (0..foreign.len()).map(|number| format!("of {number}")).collect();
    assert_eq!(seen, expected);
    edge.edge.stop();
}

/// A file that others may read.
async fn make_readable(nfs: &Files, name: &str) {
    let readable = CreateHow::Unchecked(NewAttributes {
        mode: Some(0o644),
        ..NewAttributes::default()
    });
    let made = nfs.client().create(nfs.root(), name, readable).await;
    made.expect("an answer").expect("made");
}

/// Gives a file an ACL over SMB: what that was answered, and the descriptor that the file has then.
fn set_acl(edge: &Shared, file: &str, acl: &str) -> (String, String) {
    let mut client = RawClient::new(edge, file, acl);
    let told = (client.says(), client.says());
    client.end();
    told
}

#[test]
fn acls_and_attributes_that_cannot_be_had_change_nothing() {
    if !has_raw_client() {
        return;
    }
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.add_user(BOB, &["--uid", "1002"]);
    edge.start();
    let here = cloud.path();
    fs::write(here.join("local"), b"content").expect("written");
    // What an ACL of Windows says and no mode can: it is kept for Windows, or refused; nobody gets more by it.
    let (all, stranger) = ("0x1f01ff", "S-1-5-21-1-2-3-4567");
    let many: String = (0..2_000)
        .map(|number| format!("(A;;0x120089;;;S-1-5-21-1-2-3-{})", 5_000 + number))
        .collect();
    for (name, acl) in [
        ("beside", format!("D:P(A;;{all};;;OW)(A;;{all};;;{stranger})")),
        ("alone", format!("D:P(A;;{all};;;{stranger})")),
        ("denied", "D:P(D;;0x2;;;WD)(A;;0x1f01fd;;;OW)".to_owned()),
        ("many", format!("D:P(A;;{all};;;OW){many}")),
    ] {
        edge.run(ALICE, "files", &format!("put local {name}"));
        let (told, has) = set_acl(&edge, name, &acl);
        println!("{name}: {told}, {}", &has[..has.len().min(400)]);
        edge.refused(
            BOB,
            "files",
            &format!("put local {name}"),
            "NT_STATUS_ACCESS_DENIED",
        );
        let is_kept = told == "set" && has.contains(stranger);
        match name {
            "beside" => {
                assert!(is_kept, "{told}, {has}");
                edge.run(ALICE, "files", &format!("get {name} got; put local {name}"));
            }
            "many" => assert!(told.starts_with("refused"), "{told}"),
            _ => {}
        }
    }
    edge.run(ALICE, "files", "put local plan");
    // An attribute that fits, one that is too large for the volume, and as a stream.
    edge.run(ALICE, "files", "setea plan small value; geteas plan");
    fs::write(here.join("large"), vec![b'x'; 70_000]).expect("written");
    fs::write(here.join("fits"), vec![b'y'; 4_000]).expect("written");
    edge.run(ALICE, "files", "put fits plan:stream; get plan:stream got");
    assert_eq!(fs::read(here.join("got")).expect("got"), vec![b'y'; 4_000]);
    edge.refused(ALICE, "files", "put large plan:more", "NT_STATUS_");
    edge.run(ALICE, "files", "get plan:stream got; get plan got");
    assert_eq!(fs::read(here.join("got")).expect("got"), b"content");
    edge.edge.stop();
    assert_eq!(edge.edge.log().matches("ERROR").count(), 0, "{}", edge.edge.log());
}

/// NT_STATUS_ILLEGAL_CHARACTER, _OBJECT_NAME_INVALID and _INVALID_PARAMETER.
const NO_TEXT: &str = "0xc0000161";
const NO_NAME: &str = "0xc0000033";
const NO_PARAMETER: &str = "0xc000000d";

/// NT_STATUS_FILE_SYSTEM_LIMITATION and _DISK_FULL.
const TOO_LARGE: &str = "0xc0000427";
const FULL: &str = "0xc000007f";

/// A name as a client sends it: UTF-16 units.
fn units(name: &str) -> Value {
    name.encode_utf16().collect::<Vec<u16>>().into()
}

#[tokio::test]
async fn names_that_are_no_text_or_too_long_are_refused_and_the_connection_goes_on() {
    if !has_raw_client() {
        return;
    }
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    let nfs = edge.edge.client_as(1001).await;
    let mut client = Agent::raw(&edge, ALICE);
    client.call(json!(["make", "file"])).expect("made");
    let file = client.call(json!(["open", "file", 0x0013_019F])).expect("open");
    client.call(json!(["write", file, "content"])).expect("written");
    // Half a letter beyond the first plane: the first half, the second, both in the wrong order; at the end, the beginning, alone.
    let half: [Vec<u16>; 5] = [
        vec![0x61, 0xd800, 0x62],
        vec![0x61, 0xd83d],
        vec![0xde00, 0x61],
        vec![0xde00, 0xd83d],
        vec![0xdc00],
    ];
    // 255 units and fewer, for Windows a name, and more than 255 bytes.
    let long = ["\u{20ac}".repeat(255), "\u{e4}".repeat(128), "a".repeat(256)].map(|name| units(&name));
    let half = half.map(Value::from);
    for (name, because) in half
        .iter()
        .map(|name| (name, NO_TEXT))
        .chain(long.iter().map(|name| (name, NO_NAME)))
    {
        let renaming = match because {
            NO_TEXT => NO_PARAMETER,
            other => other,
        };
        for (request, answered) in [
            (json!(["make", name]), because),
            (json!(["make", name, true]), because),
            (json!(["rename", file, name]), renaming),
        ] {
            assert_eq!(
                client.call(request.clone()),
                Err(answered.to_owned()),
                "{request}"
            );
        }
        if because == NO_TEXT {
            assert_eq!(client.call(json!(["list", name])), Err(because.to_owned()));
        }
        assert_eq!(
            client.call(json!(["read", file, 100])),
            Ok("content".into()),
            "the same connection"
        );
    }
    // As long as a name can be that is made over SMB: the module that asks the mount for names takes no 255 bytes.
    for name in [
        "a".repeat(254),
        "\u{e4}".repeat(127),
        format!("{}ab", "\u{20ac}".repeat(84)),
    ] {
        client
            .call(json!(["make", name]))
            .unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(nfs.read(&name).await.as_deref(), Some(&b""[..]), "{name}");
        nfs.remove(&name).await;
    }
    // One that NFS made is opened by its spelling.
    let longest = "a".repeat(255);
    assert_eq!(client.call(json!(["make", longest])), Err(NO_NAME.to_owned()));
    make_readable(&nfs, &longest).await;
    nfs.write(&longest, b"of NFS").await;
    let opened = client.call(json!(["open", longest, 0x0012_0089])).expect("open");
    assert_eq!(client.call(json!(["read", opened, 100])), Ok("of NFS".into()));
    client.call(json!(["close", opened])).expect("closed");
    nfs.remove(&longest).await;
    let listed = edge.run(ALICE, "files", "ls");
    let entries = listed.lines().filter(|line| line.contains(" 20")).count();
    assert_eq!(entries, 3, "the file, `.` and `..`: {listed}");
    edge.edge.stop();
    assert_eq!(edge.edge.log().matches("ERROR").count(), 0, "{}", edge.edge.log());
}

#[tokio::test]
async fn attributes_and_streams_beyond_their_limits_are_refused_and_what_was_there_stays() {
    if !has_raw_client() {
        return;
    }
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    let mut client = Agent::raw(&edge, ALICE);
    client.call(json!(["make", "file"])).expect("made");
    client.call(json!(["make", "file:stream"])).expect("made");
    let file = client.call(json!(["open", "file"])).expect("open");
    let stream = client.call(json!(["open", "file:stream"])).expect("open");
    client.call(json!(["write", file, "content"])).expect("written");
    client.call(json!(["write", stream, "beside"])).expect("written");
    // A stream's value may have 64 KiB, with what Samba adds to it.
    for at in [65_530, 65_536, 1 << 20, 1_u64 << 40] {
        let refused = client.call(json!(["write", stream, "more than fits", at]));
        assert_eq!(refused, Err(TOO_LARGE.to_owned()), "{at}");
        assert_eq!(
            client.call(json!(["read", stream, 100])),
            Ok("beside".into()),
            "{at}"
        );
        assert_eq!(
            client.call(json!(["read", file, 100])),
            Ok("content".into()),
            "the same connection"
        );
    }
    // As large as SMB can say; then names until their list is full.
    client
        .call(json!(["attribute", file, "largest", 65_535]))
        .expect("64 KiB but one");
    let mut full = None;
    for number in 0..400 {
        let name = format!("{number:0>200}");
        if let Err(why) = client.call(json!(["attribute", file, name, 10])) {
            full = Some((number, why));
            break;
        }
    }
    let (number, why) = full.expect("the list has a bound");
    assert!(number > 200, "{number}");
    assert_eq!(why, FULL);
    assert_eq!(
        client.call(json!(["read", file, 100])),
        Ok("content".into()),
        "the same connection"
    );
    assert_eq!(client.call(json!(["read", stream, 100])), Ok("beside".into()));
    // What was taken can be replaced and removed, which makes room for another.
    let last = format!("{:0>200}", number - 1);
    let another = format!("{:1>200}", number);
    client
        .call(json!(["attribute", file, last, 20]))
        .expect("replaced");
    assert_eq!(
        client.call(json!(["attribute", file, another, 10])),
        Err(FULL.to_owned())
    );
    client.call(json!(["attribute", file, last, 0])).expect("removed");
    client
        .call(json!(["attribute", file, another, 10]))
        .expect("there is room");
    edge.edge.stop();
    assert_eq!(edge.edge.log().matches("ERROR").count(), 0, "{}", edge.edge.log());
}

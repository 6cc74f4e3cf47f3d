//! Bad input over SMB: names, attributes and ACLs that cannot be had. Refused in SMB's words, or shown otherwise; never half done, and
//! nothing beside it is in the way.

use super::{
    ALICE, BOB, Shared,
    raw_client::{RawClient, has_raw_client},
    said, shared,
};
use crate::machine::Cloud;
use firn_nfs::v3::types::{CreateHow, NewAttributes};
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
        let readable = CreateHow::Unchecked(NewAttributes {
            mode: Some(0o644),
            ..NewAttributes::default()
        });
        nfs.client()
            .create(nfs.root(), name, readable)
            .await
            .expect("an answer")
            .expect("made");
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

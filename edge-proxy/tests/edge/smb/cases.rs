//! Names in whatever case: what SMB clients find, make and rename, beside names of NFS that differ in nothing else, without a listing of the
//! directory for each.

use super::{ALICE, Shared, agent::Agent, raw_client::has_raw_client, said, shared};
use crate::machine::{Cloud, status};
use serde_json::json;
use std::fs;

/// Requests by which smbd listed directories, questions it asked instead, and listings that those took.
fn listings(edge: &Shared) -> (u64, u64, u64) {
    let mount = &status(&edge.edge)["smb"]["mount"];
    let of = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{mount}"));
    (
        of(&mount["listings"]),
        of(&mount["case_index"]["questions"]),
        of(&mount["case_index"]["listings"]),
    )
}

#[tokio::test]
async fn a_name_is_found_made_and_renamed_in_whatever_case() {
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    let nfs = edge.edge.client().await;
    let here = cloud.path();
    fs::write(here.join("local"), b"content").expect("written");
    edge.run(ALICE, "files", "mkdir Directory; put local Directory/Report.TXT");
    edge.run(
        ALICE,
        "files",
        "get dIRECTORY/rEPORT.txt got; put local directory/REPORT.txt",
    );
    assert_eq!(fs::read(here.join("got")).expect("got"), b"content");
    let listed = edge.run(ALICE, "files", "ls DIRECTORY/*");
    assert!(
        listed.contains("Report.TXT") && !listed.contains("REPORT.txt"),
        "the one file, by its name: {listed}"
    );
    // Only the case is another.
    edge.run(ALICE, "files", "rename Directory/Report.TXT Directory/report.txt");
    let listed = edge.run(ALICE, "files", "ls directory/*");
    assert!(
        listed.contains("report.txt") && !listed.contains("Report.TXT"),
        "{listed}"
    );
    edge.run(
        ALICE,
        "files",
        "rename DIRECTORY/REPORT.TXT Directory/other; get directory/OTHER got",
    );
    edge.refused(
        ALICE,
        "files",
        "get directory/report.txt got",
        "NT_STATUS_OBJECT_NAME_NOT_FOUND",
    );
    edge.run(ALICE, "files", "del DIRECTORY/Other; rmdir DIRECTORY");
    // Beyond ASCII.
    for (made, asked) in [
        ("Ärger über Größe.txt", "äRGER ÜBER GRÖßE.TXT"),
        ("ПРОТОКОЛ № 7", "протокол № 7"),
        ("Οδυσσέας", "οΔΥΣΣΈΑσ"),
        ("日本語 Ａ", "日本語 ａ"),
    ] {
        edge.run(ALICE, "files", &format!("put local \"{made}\""));
        edge.run(ALICE, "files", &format!("get \"{asked}\" got"));
        edge.run(ALICE, "files", &format!("del \"{asked}\""));
    }
    edge.run(ALICE, "files", "put local Straße");
    edge.refused(
        ALICE,
        "files",
        "get STRASSE got",
        "NT_STATUS_OBJECT_NAME_NOT_FOUND",
    );
    // Two names that are one to SMB: each is found by itself, and one of them by any other spelling.
    edge.run(ALICE, "files", "put local double");
    nfs.write("DOUBLE", b"from NFS").await;
    fs::write(here.join("mine"), b"mine").expect("written");
    edge.run(ALICE, "files", "put mine double; get double got");
    assert_eq!(fs::read(here.join("got")).expect("got"), b"mine");
    assert_eq!(nfs.read("DOUBLE").await.as_deref(), Some(&b"from NFS"[..]));
    nfs.remove("DOUBLE").await;
    edge.run(ALICE, "files", "get dOUBLE got");
    assert_eq!(fs::read(here.join("got")).expect("got"), b"mine");
    // What NFS makes after the index has the directory.
    nfs.write("Made Later", b"later").await;
    let seen = edge.run(ALICE, "files", "allinfo \"mADE lATER\"");
    assert!(seen.contains("attributes"), "{seen}");
    nfs.remove("Made Later").await;
    let gone = said(&edge.try_run(ALICE, "files", "allinfo \"mADE lATER\""));
    assert!(gone.contains("NT_STATUS_OBJECT_NAME_NOT_FOUND"), "{gone}");
    // Longer than can be asked for: 117 letters of two bytes.
    let (long, asked) = ("Ж".repeat(117), "ж".repeat(117));
    edge.run(
        ALICE,
        "files",
        &format!("put local short; rename short {long}; get {asked} got"),
    );
    edge.refused(
        ALICE,
        "files",
        &format!("get {asked}x got"),
        "NT_STATUS_OBJECT_NAME_NOT_FOUND",
    );
    edge.run(
        ALICE,
        "files",
        &format!("put mine {asked}; get {long} got; del {asked}"),
    );
    assert_eq!(fs::read(here.join("got")).expect("got"), b"mine");
    edge.edge.stop();
    assert_eq!(edge.edge.log().matches("ERROR").count(), 0, "{}", edge.edge.log());
}

#[tokio::test]
async fn a_new_name_is_written_as_it_is_given_though_another_spelling_was_there_before() {
    if !has_raw_client() {
        return;
    }
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    let nfs = edge.edge.client().await;
    let mut client = Agent::raw(&edge, ALICE);
    for name in ["Made", "Renamed", "other"] {
        client.call(json!(["make", name])).expect("made");
    }
    // Known by another spelling, and then removed by another protocol.
    for name in ["MADE", "RENAMED"] {
        let handle = client.call(json!(["open", name])).expect("found");
        client.call(json!(["close", handle])).expect("closed");
    }
    nfs.remove("Made").await;
    nfs.remove("Renamed").await;
    client.call(json!(["make", "MADE"])).expect("made");
    let other = client.call(json!(["open", "other", 0x0013_019F])).expect("open");
    client.call(json!(["rename", other, "RENAMED"])).expect("renamed");
    for name in ["MADE", "RENAMED"] {
        assert!(nfs.read(name).await.is_some(), "{name}: as it was given");
    }
    edge.edge.stop();
}

#[tokio::test]
async fn new_names_in_a_large_directory_cost_no_listing_of_it() {
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    let nfs = edge.edge.client().await;
    let here = cloud.path();
    fs::write(here.join("local"), b"content").expect("written");
    // The kernel lists some hundred names by one request: two thousand take several.
    for number in 0..2000 {
        nfs.write(&format!("Filler {number}"), b"").await;
    }
    let before = listings(&edge);
    let commands: Vec<String> = (0..40)
        .map(|number| format!("put local \"New {number}\"; allinfo \"fILLER {number}\""))
        .collect();
    edge.run(ALICE, "files", &commands.join("; "));
    let after = listings(&edge);
    assert_eq!(after.0 - before.0, 0, "{before:?} {after:?}");
    assert!(
        after.1 - before.1 >= 80,
        "smbd asks for each: {before:?} {after:?}"
    );
    assert!(after.2 <= 1, "one listing is for all: {after:?}");
    edge.edge.stop();
}

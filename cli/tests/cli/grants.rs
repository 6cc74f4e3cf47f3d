//! One tenant's office follows another tenant's volume: what people on both sides type, over a real service, with real edges and an NFS client.
#![allow(clippy::disallowed_methods, reason = "real processes, real time")]

use crate::sharing::{Offices, TIMEOUT, add_lines, read, shared};
use firn_rig::{Client, EXPORT};
use serde_json::Value;
use std::{
    fs,
    time::{Duration, Instant},
};

#[tokio::test(flavor = "multi_thread")]
async fn an_office_of_another_tenant_follows_a_volume_and_is_refused_once_the_grant_is_revoked() {
    let place = tempfile::tempdir().unwrap();
    let mut offices = Offices::new(place.path(), "--read").await;
    let mut one = Client::mount(offices.owner.address, EXPORT).await.unwrap();
    let root = one.root.clone();
    let plan = b"what is planned".repeat(9000);
    one.write_file(&root, b"plan", 0o644, &plan).await.unwrap();
    offices.owner.sync().await.unwrap();

    // Bob's edge has no volume of its own. Nothing of the volume is its before all three have been typed.
    let typed = offices.offer();
    let approve = ["share", "approve", "files", "--with", &offices.bob.tenant];
    let early = offices.ada.tries(&approve);
    assert_eq!(early.code(), 6, "{}", early.err());
    let lines = offices.accept(&typed) + "\nfreshness = \"0 s\"\nstale_reads = \"allow\"\n";
    add_lines(&offices.other, &lines);
    let refused = offices.other.refused(2, "enrol", &[]).await.unwrap();
    assert!(refused.contains("has not approved this edge yet"), "{refused}");
    let listed = offices.ada.person.firn(&["share", "list"]).good().out();
    assert!(listed.contains("accepted"), "{listed}");
    offices.approve();
    let listed = offices.bob.person.firn(&["share", "list"]).good().out();
    assert!(listed.contains("files") && listed.contains("active"), "{listed}");

    offices.other.command("enrol", &[]).await.unwrap();
    offices.other.start().await.unwrap();
    let mut two = Client::mount(offices.other.address, EXPORT).await.unwrap();
    assert_eq!(read(&mut two, "plan").await.unwrap(), blake3::hash(&plan));
    let root_there = two.root.clone();
    let written = two.write_file(&root_there, b"mine", 0o644, b"x").await;
    assert!(written.unwrap_err().to_string().contains("ROFS"));
    one.write_file(&root, b"plan", 0o644, b"another").await.unwrap();
    offices.owner.sync().await.unwrap();
    assert_eq!(read(&mut two, "plan").await.unwrap(), blake3::hash(b"another"));

    // A file that is open there when it is revoked: a plain error at the next read, also where stale reads are allowed.
    let open = two.lookup(&root_there, b"plan").await.unwrap();
    let epochs = |volume: &Value| volume["key_ring_generation"].as_u64().unwrap();
    let before = epochs(&offices.ada.person.json(&["volume", "show", "files"]));
    let revoked = offices.revoke(&[]);
    assert_eq!(
        (&revoked["grant"]["state"], &revoked["new_key_epoch"]),
        (&"revoked".into(), &true.into())
    );
    let error = two.checksum(&open).await.unwrap_err().to_string();
    assert!(error.contains("ACCES"), "{error}");
    let error = read(&mut two, "plan").await.unwrap_err().to_string();
    assert!(error.contains("ACCES"), "{error}");
    let status = offices.other.status().await.unwrap();
    let (away, is_denied) = (
        status["following"]["away"].as_str().unwrap(),
        &status["following"]["is_denied"],
    );
    assert!(away.contains("grant_revoked") && *is_denied == true, "{away}");
    let log = fs::read_to_string(offices.other.config.with_file_name("edge.log")).unwrap();
    assert!(log.contains("the anchor refuses this edge"), "{log}");
    let shown = offices.ada.person.json(&["volume", "show", "files"]);
    assert_eq!(epochs(&shown), before + 1);
    assert_eq!(
        shown["keys_wrapped_to"].as_array().unwrap().len(),
        2,
        "recovery and ada's edge"
    );
    // The owner's clients see nothing of it.
    one.write_file(&root, b"later", 0o644, b"goes on").await.unwrap();
    offices.owner.sync().await.unwrap();

    // A restart finds the same, and says so.
    offices.other.stop().await.unwrap();
    let said = offices.other.refused(2, "run", &[]).await.unwrap();
    assert!(said.contains("grant of"), "{said}");

    // Granted anew, it is accepted and approved anew, and reads what was written meanwhile.
    offices.offer();
    offices.accept(&typed);
    offices.approve();
    offices.other.start().await.unwrap();
    let mut two = Client::mount(offices.other.address, EXPORT).await.unwrap();
    let end = Instant::now() + TIMEOUT;
    while read(&mut two, "later").await.ok() != Some(blake3::hash(b"goes on")) {
        assert!(Instant::now() < end, "{}", offices.other.status().await.unwrap());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    offices.other.stop().await.unwrap();
    offices.owner.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_office_of_another_tenant_writes_by_turns_and_what_it_kept_at_a_revocation_is_salvaged_when_it_is_let_in_again()
 {
    let place = tempfile::tempdir().unwrap();
    let mut offices = Offices::new(place.path(), "--write").await;
    let typed = offices.offer();
    // What is accepted is what was granted: to read only is another grant.
    let less: Vec<&str> = typed
        .iter()
        .map(String::as_str)
        .filter(|word| *word != "--write")
        .collect();
    assert_ne!(offices.bob.tries(&less).code(), 0);
    let lines = offices.accept(&typed);
    add_lines(&offices.other, &(lines + "\nfreshness = \"0 s\"\n"));
    offices.approve();
    offices.other.command("enrol", &[]).await.unwrap();
    offices.other.start().await.unwrap();

    // By turns.
    let mut one = Client::mount(offices.owner.address, EXPORT).await.unwrap();
    let mut two = Client::mount(offices.other.address, EXPORT).await.unwrap();
    let (root, there) = (one.root.clone(), two.root.clone());
    one.write_file(&root, b"from-head", 0o644, b"ada wrote this")
        .await
        .unwrap();
    two.write_file(&there, b"from-office", 0o644, b"bob wrote this")
        .await
        .unwrap();
    assert_eq!(shared(&offices.other).await["role"], "owning");
    offices.other.sync().await.unwrap();
    assert_eq!(
        read(&mut one, "from-office").await.unwrap(),
        blake3::hash(b"bob wrote this")
    );
    assert_eq!(
        read(&mut two, "from-head").await.unwrap(),
        blake3::hash(b"ada wrote this")
    );

    // Revoked while it has the volume, and something that the cloud has not: its clients hear it, the owner's go on after a minute.
    two.write_file(&there, b"kept", 0o644, b"acknowledged, not uploaded")
        .await
        .unwrap();
    let open = two.lookup(&there, b"from-office").await.unwrap();
    offices.revoke(&[]);
    let end = Instant::now() + TIMEOUT;
    let error = loop {
        match two.checksum(&open).await {
            Err(error) => break error.to_string(),
            Ok(_) => assert!(Instant::now() < end, "{}", shared(&offices.other).await),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(error.contains("ACCES"), "{error}");
    let error = two
        .write_file(&there, b"more", 0o644, b"x")
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("ACCES"), "{error}");
    let status = shared(&offices.other).await;
    assert!(
        status["denied"].as_str().unwrap().contains("grant_revoked"),
        "{status}"
    );
    one.write_file(&root, b"later", 0o644, b"goes on").await.unwrap();
    assert_eq!(shared(&offices.owner).await["breaks"], 1);
    offices.owner.sync().await.unwrap();

    // Let in again, it puts aside what it kept, and goes on as one of two.
    offices.offer();
    offices.accept(&typed);
    offices.approve();
    let end = Instant::now() + TIMEOUT;
    let salvaged = loop {
        let status = shared(&offices.other).await;
        if let Some(salvaged) = status["salvaged"].get(0) {
            break salvaged.clone();
        }
        assert!(Instant::now() < end, "{status}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(
        salvaged["paths"].as_array().unwrap().contains(&"/kept".into()),
        "{salvaged}"
    );
    let end = Instant::now() + TIMEOUT;
    while read(&mut two, "later").await.ok() != Some(blake3::hash(b"goes on")) {
        assert!(Instant::now() < end, "{}", shared(&offices.other).await);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    offices.other.stop().await.unwrap();
    offices.owner.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_is_declined_and_another_is_left_and_revoked_with_everything_sealed_anew() {
    let place = tempfile::tempdir().unwrap();
    let mut offices = Offices::new(place.path(), "--read").await;
    let mut one = Client::mount(offices.owner.address, EXPORT).await.unwrap();
    let root = one.root.clone();
    one.write_file(&root, b"plan", 0o644, b"old").await.unwrap();
    offices.owner.sync().await.unwrap();
    let state = |side: &Value| side["state"].as_str().unwrap().to_owned();
    let given = |offices: &Offices| offices.ada.person.json(&["share", "list"])["given"][0].clone();

    // Declined: nothing of bob's is let in, whoever tries.
    let typed = offices.offer();
    let declined = offices.bob.person.json(&["share", "decline", &typed[2]]);
    assert_eq!(state(&declined), "left");
    assert_eq!(state(&given(&offices)), "left");
    let approve = ["share", "approve", "files", "--with", &offices.bob.tenant];
    assert_ne!(offices.ada.tries(&approve).code(), 0);
    let unknown = format!("{}/{}", offices.bob.tenant, offices.volume);
    let refused = offices.bob.person.firn(&["share", "decline", &unknown]);
    assert_eq!(refused.code(), 5, "{}", refused.err());
    // Whoever declined may still accept, as long as the offer stands.
    offices.share().await;
    assert_eq!(state(&given(&offices)), "active");
    let mut two = Client::mount(offices.other.address, EXPORT).await.unwrap();
    assert_eq!(read(&mut two, "plan").await.unwrap(), blake3::hash(b"old"));

    // Left: refused at once, by nobody's doing at the owner.
    let left = offices.bob.person.json(&["share", "leave", "files", "--yes"]);
    assert_eq!(state(&left), "left");
    let error = read(&mut two, "plan").await.unwrap_err().to_string();
    assert!(error.contains("ACCES"), "{error}");
    let status = offices.other.status().await.unwrap();
    let away = status["following"]["away"].as_str().unwrap();
    assert!(away.contains("this tenant left the grant"), "{away}");
    let listed = offices.ada.person.firn(&["share", "list"]).good();
    assert!(listed.out().contains("left"), "{}", listed.out());
    let again = offices.bob.person.firn(&["share", "leave", "files", "--yes"]);
    assert_eq!(again.code(), 5, "{}", again.err());

    // The owner's part: the keys. Nothing that clients see is sealed under one that bob's edge has had; a snapshot of before may be.
    let revoked = offices.revoke(&["--rekey"]);
    assert_eq!(revoked["new_key_epoch"], true);
    let epoch = revoked["rekey"]["order"]["to_epoch"].as_u64().unwrap();
    let shown = offices.ada.person.json(&["volume", "show", "files"]);
    assert_eq!(shown["keys_wrapped_to"].as_array().unwrap().len(), 2);
    let end = Instant::now() + TIMEOUT;
    loop {
        // An edge that does something asks for orders every half minute.
        one.write_file(&root, b"later", 0o644, b"new").await.unwrap();
        offices.owner.sync().await.unwrap();
        let status = offices.ada.person.json(&["volume", "rekey", "files", "--status"]);
        let rekey = &status["edges"][0]["rekey"];
        if rekey["last_end"] == "done" {
            assert_eq!(rekey["oldest_epoch"].as_u64(), Some(epoch), "{rekey}");
            break;
        }
        assert!(Instant::now() < end, "{status}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(read(&mut one, "plan").await.unwrap(), blake3::hash(b"old"));
    offices.other.stop().await.unwrap();
    offices.owner.stop().await.unwrap();
}

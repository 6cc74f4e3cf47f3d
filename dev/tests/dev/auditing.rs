//! Damage that an audit of an edge which joined found, as the customer sees it in the service.

use crate::{
    branch::Branch,
    machine::{mount, wait_for},
    story::bytes_below,
};
use firn_rig::EXPORT;
use std::{
    fs,
    path::{Path, PathBuf},
};

const FILES: u8 = 30;

/// Segments below a store, oldest first.
fn segments(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        let below = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        let mut found: Vec<PathBuf> = below.flat_map(|path| segments(&path)).collect();
        found.sort();
        return found;
    }
    let is_segment = path.display().to_string().contains("/log/");
    Vec::from_iter(is_segment.then(|| path.to_owned()))
}

/// The largest of them, that of data; not the newest, which has the root, without which an audit can say nothing.
fn victim(store: &Path) -> PathBuf {
    let mut segments = segments(store);
    segments.pop();
    let largest = segments.into_iter().max_by_key(|path| bytes_below(path));
    largest.expect("two segments")
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_that_an_audit_finds_is_told_by_the_service_until_an_audit_finds_it_right() {
    let Branch {
        _place: place,
        mut machine,
        mut edge,
        ..
    } = Branch::joined().await;
    let mut client = mount(edge.address, EXPORT).await;
    let root = client.root.clone();
    for number in 0..FILES {
        let mut data = vec![0; 200_000];
        let mut noise = blake3::Hasher::new();
        noise.update(&[number]).finalize_xof().fill(&mut data);
        let name = format!("file{number}");
        client
            .write_file(&root, name.as_bytes(), 0o644, &data)
            .await
            .unwrap();
    }
    drop(client);
    edge.sync().await.unwrap();
    edge.command("audit", &[]).await.unwrap();
    let status = machine.shows(&["status"]);
    assert!(!status.contains("an audit found"), "{status}");

    let victim = victim(&place.path().join("branch/store"));
    let whole = fs::read(&victim).unwrap();
    fs::remove_file(&victim).unwrap();
    edge.refused(6, "audit", &[]).await.unwrap();
    let status = wait_for("the customer is told", || {
        let status = machine.shows(&["status"]);
        status.contains("edge office: an audit found").then_some(status)
    });
    assert!(
        status.contains("lost or damaged") && status.contains("on its machine: firn-edge status"),
        "{status}"
    );
    let shown = machine.shows(&["edge", "show", "office"]);
    assert!(shown.contains("last error: an audit found"), "{shown}");
    let told = edge.command("status", &[]).await.unwrap();
    assert!(told.contains("lost or damaged"), "{told}");

    fs::write(&victim, &whole).unwrap();
    edge.command("audit", &[]).await.unwrap();
    wait_for("the customer is told that it is right again", || {
        (!machine.shows(&["status"]).contains("an audit found")).then_some(())
    });

    // The three reports, as the edge signed them: newest first, checked by this machine.
    let listed = wait_for("the reports are brought", || {
        let listed = machine.shows(&["audit", "list", "files"]);
        listed
            .contains("chain: whole, from report 1 to report 3")
            .then_some(listed)
    });
    let rows: Vec<&str> = listed.lines().skip(1).take(3).collect();
    for (row, (number, outcome)) in rows
        .iter()
        .zip([("3", "intact"), ("2", "damaged"), ("1", "intact")])
    {
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            (cells[0], cells[2], cells[3]),
            (number, "office", outcome),
            "{listed}"
        );
        assert!(row.contains("of 688 draws") && row.contains("right"), "{listed}");
        assert!(row.contains("99.90 %"), "{listed}");
    }
    assert!(rows[1].contains("lost or damaged"), "{listed}");
    // The same as the bucket's.
    let own = edge
        .command("audit", &["list", "--output", "json"])
        .await
        .unwrap();
    let json = machine.tell(&["audit", "list", "files"], "");
    assert_eq!(json["holds"], true, "{json}");
    let key = json["reports"][0]["key"].as_str().unwrap();
    assert!(own.contains(key), "{own}");
    edge.stop().await.unwrap();
    machine.stop();
}

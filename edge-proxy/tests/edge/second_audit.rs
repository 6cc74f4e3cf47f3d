//! Audits of the second store by a running edge: what was altered or is missing there is named, with what to do, and clients notice nothing.

use crate::{
    administration::http,
    machine::{Cloud, Files, Machine, free_port},
    second_store::{Second, commit, content, damage, wait_until_current},
};
use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// An edge with a manifest and an empty second store.
async fn mirrored(cloud: &Cloud, settings: &str, more: &str) -> (Second, Machine, Files) {
    let second = Second::beside(cloud);
    let mut edge = Machine::new(cloud, "a", "main");
    edge.configure(cloud, "a", "main", &(second.section(settings) + more));
    edge.format_with(&["--manifest"]);
    edge.start(&[]);
    let files = edge.client().await;
    (second, edge, files)
}

fn copy_of(cloud: &Cloud, second: &Second, segment: &Path) -> PathBuf {
    second
        .0
        .join(segment.strip_prefix(cloud.path().join("store")).expect("below"))
}

/// The object's name in its store.
fn key(cloud: &Cloud, segment: &Path) -> String {
    let key = segment.strip_prefix(cloud.path().join("store"));
    key.expect("below").display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_altered_in_the_second_store_is_named_and_the_first_is_not_blamed() {
    let cloud = Cloud::new();
    let port = free_port();
    let metrics = format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n");
    let (second, mut edge, files) = mirrored(&cloud, "repair = false", &metrics).await;
    let ledger = commit(&cloud, &edge, &files, "ledger").await;
    let minutes = commit(&cloud, &edge, &files, "minutes").await;
    commit(&cloud, &edge, &files, "notes").await;
    wait_until_current(&edge);
    // What a commit of the edge's own puts meanwhile may wait for its copy.
    let mut audits = 0;
    let told = loop {
        let told = edge.succeed(&["audit"]);
        audits += 1;
        println!("{told}");
        if told.contains(" 0 wait, 0 are missing") {
            break told;
        }
        assert!(audits < 30, "{told}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    assert!(told.contains("  second store: of "), "{told}");
    assert!(
        told.contains("688 of 688 challenges answered: 688 intact, 0 missing or altered"),
        "{told}"
    );

    // Challenges and the mirror's copies are background work at the stores.
    let text = edge.succeed(&["status"]);
    assert!(
        text.contains("Background") && text.contains("requests to the stores under way"),
        "{text}"
    );
    let exposed = http(port, "/metrics");
    let admitted = exposed
        .lines()
        .find_map(|line| line.strip_prefix("firn_background_requests_total "))
        .and_then(|value| value.parse::<f64>().ok());
    assert!(admitted > Some(1000.0), "{exposed}");

    // As long as before, so that no comparison of listings shows it.
    let copy = copy_of(&cloud, &second, &ledger);
    damage(&copy);
    let told = edge.fail(6, &["audit", "--challenges", "3000"]);
    println!("{told}");
    let named = format!(
        "  in the second store: {}: it is not as it was put",
        key(&cloud, &ledger)
    );
    assert!(told.contains(&named), "{named}: {told}");
    assert!(
        told.contains("Delete what is altered from the second store"),
        "{told}"
    );
    assert!(
        !told.contains("damaged: inode") && !told.contains("lost: segment"),
        "{told}"
    );
    let exposed = http(port, "/metrics");
    for line in ["firn_audit_damaged 0", "firn_audit_second_damaged 1"] {
        assert!(exposed.contains(&format!("\n{line}\n")), "{line}: {exposed}");
    }
    let listed = edge.succeed(&["audit", "list"]);
    println!("{listed}");
    assert!(
        listed.contains("in the second store 0 segments missing, 1 objects altered"),
        "{listed}"
    );
    // Signed, in a form of its own, and checked by who has nothing but the file.
    let number = (audits + 1).to_string();
    let file = edge.succeed(&["audit", "show", &number, "--output", "json"]);
    assert!(
        file.contains("\"version\":2,") && file.contains("\"second\":{"),
        "{file}"
    );
    let line = file.lines().next().expect("a line");
    let report: serde_json::Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(report["audited"]["second"]["altered"], 1, "{report}");
    let path = cloud.path().join("report.json");
    std::fs::write(&path, &file).expect("written");
    let path = path.to_str().expect("a path");
    let signer = report["signer"]["key"].as_str().expect("a key");
    edge.succeed(&["audit", "verify", path, "--key", signer]);
    let shown = edge.succeed(&["audit", "show", &number]);
    assert!(shown.contains(&named), "{shown}");
    // Who does not ask for it is not told, in the form of before.
    edge.succeed(&["audit", "--first-store-alone"]);
    let file = edge.succeed(&["audit", "show", &(audits + 2).to_string(), "--output", "json"]);
    assert!(
        file.contains("\"version\":1,") && !file.contains("second"),
        "{file}"
    );
    assert!(files.read("ledger").await == Some(content("ledger")));

    // What the message says, done.
    std::fs::remove_file(&copy).expect("deleted by hand");
    edge.stop();
    edge.start(&[]);
    wait_until_current(&edge);
    assert!(copy.exists(), "the mirror copied it anew");
    edge.succeed(&["audit", "--challenges", "3000"]);
    let exposed = http(port, "/metrics");
    assert!(exposed.contains("\nfirn_audit_second_damaged 0\n"), "{exposed}");

    // What is gone is named by the listing alone, unless it is so young that it may wait.
    let copy = copy_of(&cloud, &second, &minutes);
    std::fs::remove_file(&copy).expect("removed");
    let told = edge.succeed(&["audit", "--challenges", "1"]);
    assert!(told.contains(" 1 wait, 0 are missing"), "{told}");
    let old = SystemTime::now() - Duration::from_secs(72 * 3600);
    let file = std::fs::File::options()
        .append(true)
        .open(&minutes)
        .expect("a segment");
    file.set_modified(old).expect("a time");
    // While anything waits for its copy, everything that is absent may.
    let mut asked = 0;
    let told = loop {
        wait_until_current(&edge);
        let output = edge.command(&["audit", "--challenges", "1"]);
        let told = String::from_utf8(output.stdout).expect("text");
        if output.status.code() == Some(6) {
            break told;
        }
        asked += 1;
        assert!(asked < 30 && told.contains(" wait, 0 are missing"), "{told}");
    };
    let named = format!(
        "  in the second store: {}: it is not there",
        key(&cloud, &minutes)
    );
    assert!(
        told.contains(" 0 wait, 1 are missing") && told.contains(&named),
        "{told}"
    );

    // A second store that is away takes nothing from what the first is told to have.
    let away = second.0.with_extension("away");
    std::fs::rename(&second.0, &away).expect("renamed");
    std::fs::write(&second.0, "no directory").expect("written");
    let told = edge.fail(1, &["audit"]);
    assert!(
        told.contains("688 intact, 0 lost or damaged")
            && told.contains("second store: it could not be audited"),
        "{told}"
    );
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn members_without_copies_are_audited_through_their_groups() {
    let cloud = Cloud::new();
    let grouped = "repair = false\ncompare_every = \"1 s\"\n[parity]\nafter = \"1 s\"\ncopies = \"drop\"\n";
    let (second, mut edge, files) = mirrored(&cloud, grouped, "").await;
    for name in ["ledger", "minutes", "letters", "notes"] {
        commit(&cloud, &edge, &files, name).await;
    }
    edge.wait_for_status(|seen| {
        let hold = &seen["second"]["parity"]["hold"];
        hold["without_copy"].as_u64() >= Some(4) && hold["copies_to_drop"] == 0
    });
    let told = edge.succeed(&["audit", "--output", "json"]);
    let report: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let found = &report["volumes"][0]["second"];
    assert!(found["in_groups"].as_u64() >= Some(4), "{found}");
    assert!(found["groups"].as_u64() >= Some(1), "{found}");
    assert_eq!(
        (&found["intact"], &found["missing"]),
        (&688.into(), &0.into()),
        "{found}"
    );

    // One of three parities is wrong: no member is lost by it, and one less may be. A pass may make a group anew meanwhile, from members
    // that are whole: then what was altered is of the group no more.
    let mut tries = 0;
    loop {
        let parities = objects(&second.0.join("parity"), "parity-1");
        let whole: Vec<Vec<u8>> = parities
            .iter()
            .map(|path| std::fs::read(path).expect("a parity"))
            .collect();
        for path in &parities {
            let mut bytes = std::fs::read(path).expect("a parity");
            bytes.iter_mut().step_by(10_000).for_each(|byte| *byte ^= 1);
            std::fs::write(path, bytes).expect("altered");
        }
        let audited = edge.command(&["audit"]);
        let told = String::from_utf8_lossy(&audited.stdout);
        tries += 1;
        if audited.status.code() == Some(0) && tries < 10 {
            assert_ne!(objects(&second.0.join("parity"), "parity-1"), parities, "{told}");
            continue;
        }
        assert_eq!(audited.status.code(), Some(6), "{told}");
        assert!(
            told.contains("  in the second store: parity/") && told.contains("/parity-1: row "),
            "{told}"
        );
        for (path, bytes) in parities.iter().zip(whole) {
            // Of a generation that is no more there is nothing to bring back.
            if path.exists() {
                std::fs::write(path, bytes).expect("brought back");
            }
        }
        break;
    }
    edge.succeed(&["audit"]);
    edge.stop();
}

/// Objects of this last name below a directory.
fn objects(directory: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(objects(&path, name));
        } else if path.file_name().is_some_and(|found| found == name) {
            found.push(path);
        }
    }
    found.sort();
    found
}

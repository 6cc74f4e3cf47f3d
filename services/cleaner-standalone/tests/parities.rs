//! Parities in place of copies: the real programs group, drop, lose, read, repair, and wait for each other.
#![allow(
    clippy::disallowed_methods,
    reason = "it starts real programs, and waits for them in real time"
)]

mod written;

use firn_rig::{Client, EXPORT, Edge, Settings};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use written::{Written, answer, names, run, segments};

/// Writes down what is wanted of the second store and its parities.
struct Wanted {
    config: PathBuf,
    text: String,
    second: PathBuf,
}

impl Wanted {
    fn of(written: &Written) -> Self {
        let second = written.place.path().join("second");
        std::fs::create_dir(&second).expect("a second store");
        Self {
            config: written.config.clone(),
            text: std::fs::read_to_string(&written.config).expect("a configuration"),
            second,
        }
    }

    fn write(&self, keep_deleted: &str, copies: &str) {
        let text = format!(
            "{}[second]\nstore = \"file://{}\"\nkeep_deleted = \"{keep_deleted}\"\n[parity]\nafter = \"1 s\"\n{copies}\n",
            self.text,
            self.second.display()
        );
        std::fs::write(&self.config, text).expect("a configuration");
    }

    async fn mirror(&self) -> Value {
        // What is there is cold then, and has waited long enough not to wait for more.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (code, report, said) = answer(&self.config, &["mirror"]);
        assert_eq!(code, Some(0), "{report}: {said}");
        report["mirror"].clone()
    }
}

fn bytes_below(place: &Path) -> u64 {
    let mut bytes = 0;
    let mut directories = vec![place.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let entry = entry.expect("an entry");
            match entry.path().is_dir() {
                true => directories.push(entry.path()),
                false => bytes += entry.metadata().expect("a file").len(),
            }
        }
    }
    bytes
}

fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).expect("a segment");
    bytes.iter_mut().step_by(5_000).for_each(|byte| *byte ^= 1);
    std::fs::write(path, bytes).expect("altered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_store_of_parities_gives_back_what_the_first_lost_and_cleaners_wait_for_it() {
    let mut written = Written::new(3, "[limits]\ngrace_seconds = 0\n").await;
    let (store, family) = (written.store(), written.family.clone());
    let wanted = Wanted::of(&written);
    wanted.write("1 h", "copies = \"drop\"");
    let (code, report, said) = answer(&wanted.config, &["mirror"]);
    assert_eq!(code, Some(0), "{report}: {said}");
    let report = wanted.mirror().await;
    let all = segments(&store, &family).len() as u64;
    let parity = &report["parity"];
    assert_eq!(
        (&parity["members"], &parity["without_copy"]),
        (&all.into(), &all.into()),
        "{report}"
    );
    assert_eq!(parity["copies_to_drop"], 0, "{report}");
    assert!(!wanted.second.join(&family).join("log").exists() || names(&wanted.second, &family).is_empty());
    let (first_bytes, second_bytes) = (bytes_below(&store), bytes_below(&wanted.second));
    println!(
        "the first store has {first_bytes} bytes, the second {second_bytes} in place of them: {:.1} %",
        second_bytes as f64 / first_bytes as f64 * 100.0
    );
    assert!(second_bytes < first_bytes / 2, "a small group has long parities");
    // What is not there is not missed.
    let report = wanted.mirror().await;
    assert_eq!(
        (&report["copied"], &report["lost_segments"]),
        (&0.into(), &0.into()),
        "{report}"
    );

    // Alone it cannot bring the volume back, and says so.
    let place = written.place.path();
    let phrase = place.join("recovery-phrase").display().to_string();
    let mut settings = Settings::local(&place.join("new"));
    settings.store = format!("file://{}", wanted.second.display());
    let binary = Edge::binary().expect("the edge's program");
    let new = Edge::configure(binary, &place.join("new"), settings).expect("a configuration");
    let recover = ["--phrase-file", phrase.as_str(), "--yes"];
    let said = new.refused(1, "recover", &recover).await.expect("refused");
    assert!(
        said.contains(&format!("parities in place of {all} segments"))
            && said.contains("cannot bring the volume back alone")
            && said.contains("Nothing was changed"),
        "{said}"
    );

    // Of what was written last, and is needed: two are gone from the first store, one is altered in it.
    let mut victims = segments(&store, &family);
    victims.retain(|path| path.metadata().expect("a segment").len() > 1 << 20);
    victims.sort();
    let victims = victims.split_off(victims.len() - 3);
    std::fs::remove_file(&victims[0]).expect("removed");
    flip(&victims[1]);
    std::fs::remove_file(&victims[2]).expect("removed");
    let section = format!(
        "\n[second]\nstore = \"file://{}\"\nrepair = false\n",
        wanted.second.display()
    );
    let edge = &mut written.edge;
    let change = |settings: &mut Settings| settings.limits.push_str(&section);
    edge.reconfigure(change).expect("a configuration");
    edge.wipe_cache().expect("an empty cache");
    edge.start().await.expect("it starts");
    let mut client = Client::mount(edge.address, EXPORT).await.expect("a mount");
    written
        .tree
        .is_what_is_there(&mut client)
        .await
        .expect("everything, by parities");
    let said = edge.command("status", &[]).await.expect("how it stands");
    assert!(
        said.contains("have no copy: this store alone cannot bring the volume back"),
        "{said}"
    );
    let said = edge.refused(6, "verify", &[]).await.expect("damage is told");
    println!("{said}");
    let said = edge.command("repair", &["--all"]).await.expect("written anew");
    assert!(said.contains("were written anew"), "{said}");
    let said = edge.command("verify", &[]).await.expect("no damage");
    assert!(said.starts_with("whole"), "{said}");
    drop(client);
    edge.stop().await.expect("a clean end");

    // What the cleaner and the repair retired stays until the groups are written without it.
    let before = segments(&store, &family);
    let mut report = Value::Null;
    for _ in 0..4 {
        report = run(&wanted.config, "run")["report"].clone();
        assert_eq!(report["deleted_segments"], 0, "{report}");
    }
    let held = report["hold_segments"].as_u64().expect("a number");
    assert!(held > 3, "{report}");
    let after = segments(&store, &family);
    assert!(
        before.iter().all(|segment| after.contains(segment)),
        "nothing went"
    );
    // What is gone leaves its group at once, the rest once `keep_deleted` is over.
    let report = wanted.mirror().await;
    let parity = &report["parity"];
    assert_eq!(
        (&parity["hold_segments"], &parity["absent"]),
        (&(held - 2).into(), &0.into()),
        "{report}"
    );
    let report = run(&wanted.config, "run")["report"].clone();
    assert_eq!(report["hold_segments"], held - 2, "{report}");
    assert!(victims[1].exists(), "it was retired, and its group still has it");

    wanted.write("1 s", "copies = \"drop\"");
    let report_of_mirror = wanted.mirror().await;
    assert_eq!(
        report_of_mirror["parity"]["hold_segments"], 0,
        "{report}: {report_of_mirror}"
    );
    let report = run(&wanted.config, "run")["report"].clone();
    assert!(report["deleted_segments"].as_u64() >= Some(held - 2), "{report}");
    assert_eq!(report["hold_segments"], 0, "{report}");
    assert!(!victims[1].exists());

    // Copies come back.
    wanted.write("1 s", "copies = \"keep\"");
    for _ in 0..3 {
        wanted.mirror().await;
    }
    assert_eq!(names(&wanted.second, &family), names(&store, &family));
    edge.wipe_cache().expect("an empty cache");
    edge.start().await.expect("it starts");
    let mut client = Client::mount(edge.address, EXPORT).await.expect("a mount");
    written
        .tree
        .is_what_is_there(&mut client)
        .await
        .expect("everything");
    let said = edge.command("verify", &[]).await.expect("no damage");
    assert!(said.starts_with("whole"), "{said}");
    drop(client);
    edge.stop().await.expect("a clean end");
}

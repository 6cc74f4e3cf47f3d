//! This build beside the release before it, on one state directory: upgraded, rolled back where that is said to be possible, with nothing lost.
//!
//! ```text
//! scripts/upgrade-matrix            # builds the release before, and runs this among others
//! ```

use firn_integration::Tree;
use firn_rig::{Client, EXPORT, Edge, Settings};
use std::path::{Path, PathBuf};

/// A program of the release before this one.
fn previous(name: &str) -> PathBuf {
    let directory = std::env::var_os("FIRN_PREVIOUS")
        .expect("FIRN_PREVIOUS names its programs, as scripts/upgrade-matrix sets it");
    Path::new(&directory).join(name)
}

/// An office's machine on which edges of several builds run one after the other.
struct Machine {
    place: tempfile::TempDir,
    tree: Tree,
}

impl Machine {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(place.path().join("store")).expect("a store");
        Self {
            place,
            tree: Tree::default(),
        }
    }

    /// This build's edge, or that of the release before it.
    fn edge(&self, binary: PathBuf) -> Edge {
        let settings = Settings::local(self.place.path());
        Edge::configure(binary, &self.place.path().join("a"), settings).expect("a configuration")
    }

    /// What was acknowledged by whichever build is there, and files are added: some are committed, some only in the journal (level 1).
    async fn works(&mut self, edge: &mut Edge, salt: &str) {
        edge.start().await.expect("it serves");
        let mut client = Client::mount(edge.address, EXPORT).await.expect("a mount");
        self.tree
            .is_what_is_there(&mut client)
            .await
            .expect("everything acknowledged");
        let directory = format!("of-{salt}");
        self.tree
            .write(&mut client, &directory, 60, 90_000, salt)
            .await
            .expect("files");
        edge.sync().await.expect("everything in the store");
        self.tree
            .write(&mut client, "everybodys", 40, 60_000, salt)
            .await
            .expect("files that are in the journal only");
    }
}

/// What this build's judgement says.
async fn judged(edge: &Edge) -> String {
    match edge.command("upgrade", &["--check"]).await {
        Ok(said) => said,
        Err(_) => edge
            .refused(7, "upgrade", &["--check"])
            .await
            .expect("it can serve what is here"),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the release before this one: scripts/upgrade-matrix"]
async fn previous_an_edge_is_upgraded_and_rolled_back_with_nothing_lost() {
    let mut machine = Machine::new();
    let ours = Edge::binary().expect("the edge's program");
    let mut old = machine.edge(previous("firn-edge"));
    old.format().await.expect("a new volume");
    machine.works(&mut old, "old").await;
    old.kill().await.expect("power is lost");

    let mut new = machine.edge(ours.clone());
    let said = judged(&new).await;
    assert!(said.contains("this build reads the root"), "{said}");
    machine.works(&mut new, "new").await;
    new.kill().await.expect("power is lost, with much in the journal");

    let said = judged(&new).await;
    let back = said
        .lines()
        .find(|line| line.contains("going back"))
        .expect("a verdict");
    println!("{back}");
    let mut rolled = machine.edge(previous("firn-edge"));
    if back.starts_with("fine") {
        machine.works(&mut rolled, "back").await;
    } else if back.contains("firn-edge drain first") {
        let mut new = machine.edge(ours.clone());
        machine.works(&mut new, "drained").await;
        new.command("drain", &[]).await.expect("the journal is empty");
        rolled = machine.edge(previous("firn-edge"));
        machine.works(&mut rolled, "back").await;
    } else {
        // Whether it is the journal or the checkpoint that it meets first: it serves nothing, and says why.
        rolled
            .start()
            .await
            .expect_err("an older build does not serve newer data");
        let log = std::fs::read_to_string(rolled.config.with_file_name("edge.log")).expect("a log");
        let last = log.lines().last().unwrap_or_default();
        println!("{last}");
        assert!(last.contains("version") || last.contains("build"), "{log}");
        let mut again = machine.edge(ours);
        machine.works(&mut again, "again").await;
        again.stop().await.expect("a clean end");
        return;
    }
    rolled.kill().await.expect("power is lost");

    let mut again = machine.edge(ours);
    machine.works(&mut again, "again").await;
    let said = again.command("verify", &[]).await.expect("no damage");
    assert!(said.starts_with("whole"), "{said}");
    again.stop().await.expect("a clean end");
}

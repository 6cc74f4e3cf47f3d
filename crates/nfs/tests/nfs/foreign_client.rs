//! A client that is not ours: libnfs, by its tools (Debian package libnfs-utils).

use crate::served::{Served, memory, open_rule};
use firn_nfs::Export;
use std::{path::Path, process::Command};

struct Foreign {
    served: Served,
}

impl Foreign {
    async fn start() -> Self {
        let served = Served::start([Export::new("/share", memory(1), vec![open_rule()]).unwrap()]).await;
        Self { served }
    }

    fn url(&self, path: &str) -> String {
        let (_, port) = self.served.service.address().rsplit_once(':').unwrap();
        format!("nfs://127.0.0.1/share{path}?nfsport={port}&mountport={port}&version=3&uid=0&gid=0")
    }

    /// What a tool prints.
    async fn run(&self, tool: &str, arguments: &[&str]) -> Vec<u8> {
        let mut command = Command::new(tool);
        command.args(arguments);
        let output = tokio::task::spawn_blocking(move || command.output())
            .await
            .unwrap();
        let output = output.unwrap_or_else(|error| panic!("{tool} (install libnfs-utils): {error}"));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{tool} {arguments:?}: {} {text}",
            output.status
        );
        output.stdout
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn libnfs_copies_lists_and_reads_back_what_it_copied() {
    let foreign = Foreign::start().await;
    let directory = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..3_000_000u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    std::fs::write(&source, &content).unwrap();
    foreign
        .run("nfs-cp", &[text(&source), &foreign.url("/file")])
        .await;
    let listed = String::from_utf8(foreign.run("nfs-ls", &[&foreign.url("")]).await).unwrap();
    let line = listed
        .lines()
        .find(|line| line.ends_with("file"))
        .unwrap_or_else(|| panic!("{listed}"));
    assert!(line.starts_with("-rw") && line.contains("3000000"), "{line}");
    assert!(foreign.run("nfs-cat", &[&foreign.url("/file")]).await == content);
    foreign.run("nfs-cp", &[&foreign.url("/file"), text(&copy)]).await;
    assert!(std::fs::read(&copy).unwrap() == content);
}

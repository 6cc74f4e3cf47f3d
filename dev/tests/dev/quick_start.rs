//! The README's quick start, word for word, by a shell.
//!
//! Only `sudo mount` is another program here: not every machine that tests has an NFS client in its kernel, or a root to ask. It
//! notes what it was told, and a client that is not ours mounts just that.

use crate::machine::{good, mount, program};
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

/// At most so many commands lie between a built tree and a mounted share.
const COMMANDS_MAX: usize = 6;

/// The indented lines below a heading of the README.
fn lines(heading: &str) -> Vec<String> {
    let readme = fs::read_to_string("../README.md").unwrap();
    let section = readme.split_once(heading).expect("the README has the heading").1;
    let section = section.split("\n## ").next().unwrap_or(section);
    section
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .map(str::to_owned)
        .collect()
}

/// Ends what the quick start left running, also when the test fails.
struct Stop<'a>(&'a Path);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        let ended = Command::new(program("firn"))
            .args(["dev", "--stop"])
            .current_dir(self.0)
            .status();
        assert!(std::thread::panicking() || ended.unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_readme_leads_from_a_built_tree_to_a_mounted_share() {
    let all = lines("## Try it");
    let built = all
        .iter()
        .position(|line| line.starts_with("cargo build"))
        .expect("it is built first");
    let mounted = all
        .iter()
        .position(|line| line.starts_with("sudo mount"))
        .expect("it is mounted");
    assert!(mounted - built <= COMMANDS_MAX, "{all:?}");
    let typed = &all[built + 1..=mounted];
    assert!(typed[0].starts_with("export PATH="), "{typed:?}");

    let place = tempfile::tempdir().unwrap();
    let shims = place.path().join("shims");
    fs::create_dir(&shims).unwrap();
    let noted = place.path().join("mounted");
    let shim = shims.join("sudo");
    fs::write(&shim, format!("#!/bin/sh\necho \"$@\" > {}\n", noted.display())).unwrap();
    fs::set_permissions(&shim, fs::Permissions::from_mode(0o755)).unwrap();
    // What `export PATH=` finds in a built tree, whose directory is another in a test.
    let built = place.path().join("target/release");
    fs::create_dir_all(&built).unwrap();
    for name in ["firn", "firn-dev"] {
        std::os::unix::fs::symlink(program(name), built.join(name)).unwrap();
    }
    let script = format!("set -e\nPATH={}:$PATH\n{}\n", shims.display(), typed.join("\n"));
    let _stop = Stop(place.path());
    let said = good(
        Command::new("bash")
            .args(["-c", &script])
            .current_dir(place.path()),
        "",
    );
    assert!(said.contains("Ready in"), "{said}");

    let noted = fs::read_to_string(noted).unwrap();
    let words: Vec<&str> = noted.split_whitespace().collect();
    let ["mount", "-t", "nfs", "-o", options, from, _] = words[..] else {
        panic!("{noted}")
    };
    let option = |name: &str| {
        let found = options
            .split(',')
            .find_map(|option| option.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("{options} has no {name}"))
    };
    assert_eq!(option("port"), option("mountport"), "one port serves both");
    let (host, export) = from.split_once(':').unwrap();
    let address = format!("{host}:{}", option("port")).parse().unwrap();
    let mut client = mount(address, export).await;
    let root = client.root.clone();
    client
        .write_file(&root, b"first", 0o644, b"written")
        .await
        .unwrap();
    let listed = client.list(&root).await.unwrap();
    assert_eq!(listed.len(), 1);
    let (checksum, _) = client.checksum(&listed[0].handle).await.unwrap();
    assert_eq!(checksum, blake3::hash(b"written"));

    // And what the README says to do next.
    let after = all[mounted + 1..]
        .iter()
        .filter(|line| line.starts_with("firn ") || line.starts_with("export "));
    let script = after.cloned().collect::<Vec<_>>().join("\n");
    let path = format!("{}:{}", built.display(), std::env::var("PATH").unwrap());
    let said = good(
        Command::new("bash")
            .args(["-ec", &script])
            .env("PATH", path)
            .current_dir(place.path()),
        "",
    );
    assert!(said.contains("files") && said.contains("USD"), "{said}");
}

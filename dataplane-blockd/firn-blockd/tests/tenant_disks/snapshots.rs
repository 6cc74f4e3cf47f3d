//! Snapshots of tenants' disks and disks made of them, as they are typed, with a real NBD client.

use crate::lab::{Lab, Person, Told, done, eventually};
use std::{
    fs,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

/// O_NONBLOCK of Linux: opening a pipe fails until somebody reads it.
const NONBLOCK: i32 = 0o4000;

fn names(ada: &Person, disk: &str) -> Vec<String> {
    let listed = ada.json(&["disk", "snapshot", "list", disk]);
    let listed = listed.as_array().unwrap();
    assert!(
        listed
            .iter()
            .all(|one| one["taken"].as_str().unwrap().ends_with('Z'))
    );
    listed
        .iter()
        .map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
#[ignore = "needs QEMU's tools, and firn beside firn-blockd"]
fn real_snapshots_are_taken_while_a_disk_is_used_and_restored_into_new_ones() {
    let lab = Lab::new(super::HOURS);
    let ada = Person::sign_up(&lab, "ada");
    ada.firn(&["disk", "create", "data", "64MiB", "--replicas", "2", "--wait"])
        .good();
    let store = format!("file://{}", lab.path("snapshots"));
    fs::create_dir(lab.path("snapshots")).unwrap();
    let nowhere = ada.firn(&["disk", "snapshot", "list", "data"]);
    nowhere.refused(2, "--store");

    let attached = ada.attach("data", &[]);
    done(&attached.uri, "write -P 1 0 1M");
    let first = ada.firn(&["disk", "snapshot", "create", "data", "first", "--store", &store]);
    let said = first.good().text();
    assert!(said.contains("snapshot first of disk data is taken"), "{said}");
    done(&attached.uri, "write -P 2 0 1M");
    // The store is remembered, and a name is given once.
    ada.firn(&["disk", "snapshot", "create", "data", "second"]).good();
    ada.firn(&["disk", "snapshot", "create", "data", "second"])
        .refused(1, "a snapshot named second exists");
    assert_eq!(names(&ada, "data"), ["second", "first"]);
    let shown = ada.firn(&["disk", "snapshot", "list", "data"]).good().text();
    assert!(
        shown.contains("64 MiB") && shown.contains(" ago)") | shown.contains("just now"),
        "{shown}"
    );
    // Whoever has it attached takes snapshots, and nobody else.
    let there = ada.elsewhere(&lab, "there");
    there
        .firn(&["disk", "snapshot", "create", "data", "third", "--store", &store])
        .refused(1, "take the snapshot there");

    ada.firn(&[
        "disk",
        "restore",
        "data",
        "first",
        "--into",
        "before",
        "--replicas",
        "2",
    ])
    .good();
    done(&attached.uri, "read -P 2 0 1M");
    let before = ada.attach("before", &[]);
    done(&before.uri, "read -P 1 0 1M");
    done(&before.uri, "read -P 0 1M 1M");
    done(&before.uri, "write -P 3 0 1M");
    let keys = [ada.key_of("data"), ada.key_of("before")].map(|path| fs::read_to_string(path).unwrap());
    assert_ne!(keys[0], keys[1], "each disk has a key of its own");
    // What is used is not written over.
    before.interrupt();
    assert_eq!(before.ended().0, 0);
    let used = ada.firn(&["disk", "restore", "data", "second", "--into", "before"]);
    used.refused(2, "was used before");
    let before = ada.attach("before", &[]);
    done(&before.uri, "read -P 3 0 1M");

    // Nobody has it: it is attached for as long as it takes.
    attached.interrupt();
    assert_eq!(attached.ended().0, 0);
    ada.firn(&["disk", "snapshot", "create", "data", "third"]).good();
    assert!(ada.json(&["disk", "show", "data"]).get("attached").is_none());
    assert_eq!(names(&ada, "data"), ["third", "second", "first"]);
    ada.firn(&["disk", "snapshot", "delete", "data", "first", "--yes"])
        .good();
    assert_eq!(names(&ada, "data"), ["third", "second"]);
    ada.firn(&["disk", "restore", "data", "first", "--into", "gone"])
        .refused(5, "has no snapshot first");

    // The disk is gone, its snapshots are not: by its id, with its key.
    let id = ada.json(&["disk", "show", "data"])["id"]
        .as_str()
        .unwrap()
        .to_owned();
    ada.firn(&["disk", "delete", "data", "--yes", "--wait"]).good();
    ada.firn(&[
        "disk",
        "restore",
        &id,
        "third",
        "--into",
        "again",
        "--replicas",
        "2",
    ])
    .good();
    let again = ada.attach("again", &[]);
    done(&again.uri, "read -P 2 0 1M");
}

/// The files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

#[test]
#[ignore = "needs QEMU's tools, and firn beside firn-blockd"]
fn real_a_restore_that_was_killed_goes_on_and_its_disk_is_nobodys_until_then() {
    let lab = Lab::new(super::HOURS);
    let ada = Person::sign_up(&lab, "ada");
    ada.firn(&["disk", "create", "data", "64MiB", "--replicas", "2", "--wait"])
        .good();
    let store = format!("file://{}", lab.path("snapshots"));
    fs::create_dir(lab.path("snapshots")).unwrap();
    let attached = ada.attach("data", &[]);
    done(&attached.uri, "write -P 7 0 1M");
    ada.firn(&["disk", "snapshot", "create", "data", "one", "--store", &store])
        .good();

    // What it reads next never comes: a pipe that nobody writes to stands in the place of the tract.
    let tracts: Vec<PathBuf> = files(Path::new(&lab.path("snapshots")))
        .into_iter()
        .filter(|path| path.components().any(|part| part.as_os_str() == "tracts"))
        .collect();
    let [tract] = &*tracts else {
        panic!("one tract holds something: {tracts:?}");
    };
    let aside = lab.path("aside");
    fs::rename(tract, &aside).unwrap();
    assert!(Command::new("mkfifo").arg(tract).status().unwrap().success());
    let arguments = [
        "disk",
        "restore",
        "data",
        "one",
        "--into",
        "copy",
        "--replicas",
        "2",
    ];
    let mut child = ada.start(&arguments);
    let mut writer = None;
    eventually("the restore reads the tract, with its disk attached", || {
        writer = fs::OpenOptions::new()
            .write(true)
            .custom_flags(NONBLOCK)
            .open(tract)
            .ok();
        writer.is_some()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    fs::remove_file(tract).unwrap();
    fs::rename(&aside, tract).unwrap();

    let key = ada.key_of("copy").display().to_string();
    let refused: Told = ada.firn(&["disk", "attach", "copy", "--key", &key, "--force"]);
    refused.refused(2, "restore it again");
    ada.firn(&arguments).good();
    let copy = ada.attach("copy", &[]);
    done(&copy.uri, "read -P 7 0 1M");
}

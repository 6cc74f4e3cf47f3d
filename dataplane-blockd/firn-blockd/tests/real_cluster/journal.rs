//! A disk that goes on while all of its nodes are away, its client that dies meanwhile, and a journal that another attach made old.

use crate::lab::*;
use std::{thread, time::Duration};

/// Something with a disk whose nodes are away: QEMU's tools would flush when they close it, which waits for nodes.
fn nbdsh(uri: &str, command: &str) {
    // The system's Python has libnbd's module, whatever other one comes first.
    let nbdsh = [
        "PATH=/usr/bin:/bin",
        "timeout",
        "60",
        "nbdsh",
        "-u",
        uri,
        "-c",
        command,
    ];
    let output = run("env", &nbdsh);
    assert!(output.status.success(), "{command}: {}", text(&output));
}

fn write(uri: &str, byte: u8, offset: u32, length: u32) {
    nbdsh(uri, &format!("h.pwrite(bytes([{byte}]) * {length}, {offset})"));
}

fn all_nodes(lab: &Lab) -> Vec<Process> {
    ["node0", "node1", "node2"].map(|name| lab.node(name).0).into()
}

#[test]
#[ignore = "needs DynamoDB Local and QEMU's tools: make test"]
fn real_a_disk_goes_on_without_nodes_and_an_old_journal_is_salvaged() {
    let lab = Lab::new();
    let (client, nodes) = lab.cluster(3600);
    let key = lab.path("disk.key");
    let create = |name: &str| {
        let arguments = [
            "--config", &client, "create", name, "--size", "32MiB", "--key", &key,
        ];
        eventually("the disk is created", || run(BINARY, &arguments).status.success());
    };
    create("disk");
    let journal = lab.path("journal");
    let with_journal = [
        "--journal",
        &journal,
        "--journal-size",
        "8MiB",
        "--journal-after-ms",
        "500",
        "--force",
    ];
    let journaling = || {
        eventually("the journal begins", || {
            lab.status(&client)["disks"][0]["journal"]["journaling"] == true
        });
    };

    let (attached, uri) = lab.attach(&client, "one.sock", &with_journal);
    reads(&uri, "write -P 0x65 0 1M");
    nodes.into_iter().for_each(|(node, _)| node.kill());
    write(&uri, 0x66, 1 << 20, 64 << 10);
    journaling();
    write(&uri, 0x67, 2 << 20, 1 << 20);
    nbdsh(&uri, "h.zero(64 << 10, 256 << 10)");
    nbdsh(
        &uri,
        "assert h.pread(1 << 20, 2 << 20) == bytes([0x67]) * (1 << 20)",
    );
    nbdsh(&uri, "assert h.pread(64 << 10, 256 << 10) == bytes(64 << 10)");
    // A durable flush waits for nodes. The client dies before they are back.
    let flush = thread::spawn({
        let uri = uri.clone();
        move || run("qemu-io", &["-f", "raw", "-c", "flush", &uri])
    });
    thread::sleep(Duration::from_secs(1));
    assert!(!flush.is_finished(), "nobody has made anything durable");
    attached.kill();
    assert!(!flush.join().unwrap().status.success());

    let nodes = all_nodes(&lab);
    let (attached, uri) = lab.attach(&client, "two.sock", &with_journal);
    for command in [
        "read -P 0x65 0 256k",
        "read -P 0 256k 64k",
        "read -P 0x66 1M 64k",
        "read -P 0x67 2M 1M",
    ] {
        reads(&uri, command);
    }
    reads(&uri, "write -P 0x68 3M 64k");
    eventually("nodes have all of it", || {
        lab.status(&client)["disks"][0]["journal"]["journaling"] == false
    });

    // Another attach has the disk before this machine comes back.
    nodes.into_iter().for_each(Process::kill);
    write(&uri, 0x69, 4 << 20, 64 << 10);
    journaling();
    write(&uri, 0x6a, 5 << 20, 64 << 10);
    attached.kill();
    let _nodes = all_nodes(&lab);
    let other = lab.config("other", "secret", TENANT, 3600);
    let (winner, won) = lab.attach(&other, "three.sock", &["--force"]);
    reads(&won, "read -P 0x68 3M 64k");
    reads(&won, "write -P 0x70 5M 64k");
    winner.kill();
    let (attached, uri) = lab.attach(&client, "four.sock", &with_journal);
    reads(&uri, "read -P 0x70 5M 64k");
    let of = ["--key", &key, "--journal", &journal];
    let command = |what: &[&str], more: &[&str]| {
        done(
            BINARY,
            &[&["--config", &client, "journal"], what, &of[..], more].concat(),
        )
    };
    let shown = command(&["show", "disk"], &[]);
    let aside = shown
        .lines()
        .find_map(|line| line.strip_prefix("put aside: "))
        .unwrap_or_else(|| panic!("{shown}"))
        .to_owned();
    let of_aside = ["--aside", &aside];
    let shown = command(&["show", "disk"], &of_aside);
    assert!(
        shown.contains(&format!("bytes {} to {}", 4 << 20, (4 << 20) + (64 << 10))),
        "{shown}"
    );
    assert!(
        shown.contains(&format!("bytes {} to {}", 5 << 20, (5 << 20) + (64 << 10))),
        "{shown}"
    );

    create("copy");
    command(&["apply", "disk"], &[&of_aside[..], &["--into", "copy"]].concat());
    let image = lab.path("image");
    command(
        &["export", "disk"],
        &[&of_aside[..], &["--into", &image]].concat(),
    );
    let (_copied, copy) = lab.attach_disk(&client, "copy", "five.sock", &[]);
    for source in [&copy, &image] {
        reads(source, "read -P 0x69 4M 64k");
        reads(source, "read -P 0x6a 5M 64k");
    }
    drop(attached);
}

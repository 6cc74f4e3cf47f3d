//! Clusters that are as full as they may be, and nodes whose file system is.

use super::lab::*;
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

/// A block in each of so many tracts of a disk, with a limit: a write that waits for ever fails the test and not its runner.
fn write_all(uri: &str, tracts: u64, pattern: u8) {
    let commands: Vec<String> = (0..tracts)
        .map(|tract| format!("write -P {pattern} {}M 4k", tract * 8))
        .chain(["flush".to_owned()])
        .collect();
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    let arguments = [&["120", "qemu-io", "-f", "raw"], &commands[..], &[uri]].concat();
    let output = run("timeout", &arguments);
    let text = text(&output);
    assert!(output.status.success() && !text.contains("failed"), "{text}");
}

#[test]
#[ignore = "needs DynamoDB Local and QEMU's tools: make test"]
fn real_a_full_cluster_goes_on_without_one_of_its_nodes_and_takes_it_back() {
    let lab = Lab::new();
    let (client, mut nodes) = lab.cluster(60);
    let key = lab.path("disk.key");
    let create = |name: &str, size: &str| {
        let arguments = [
            "create",
            name,
            "--size",
            size,
            "--replication",
            "2",
            "--key",
            &key,
        ];
        run(BINARY, &[&["--config", &client], &arguments[..]].concat())
    };
    // Three nodes of 28 tracts: 56 survive the loss of one. 27 and one of the dirty-region log, in two copies.
    eventually("three nodes are counted", || {
        lab.status(&client)["total_tracts"] == 84
    });
    assert_eq!(lab.status(&client)["promisable_tracts"], 56);
    // Until rows are laid out on the nodes it is refused for want of nodes.
    eventually("a disk that is too large is refused for want of room", || {
        let over = create("over", "224MiB");
        assert!(!over.status.success(), "{}", text(&over));
        text(&over).contains("loss of the largest failure domain")
    });
    let made = create("disk", "216MiB");
    assert!(made.status.success(), "{}", text(&made));
    assert_eq!(lab.status(&client)["free_tracts"], 0);
    let (_attached, uri) = lab.attach(&client, "one.sock", &[]);
    write_all(&uri, 27, 1);

    let (victim, address) = nodes.remove(0);
    victim.kill();
    write_all(&uri, 27, 2);
    let node = |status: &serde_json::Value| {
        let nodes = status["nodes"].as_array().unwrap();
        nodes
            .iter()
            .find(|node| node["address"] == address.as_str())
            .cloned()
    };
    eventually(
        "all is on two nodes again, and the dead one is shown as dead",
        || {
            let status = lab.status(&client);
            let rows = &status["rows"][1];
            rows["degraded"] == 0
                && rows["copying"] == 0
                && node(&status).is_some_and(|node| node["state"] == "dead" && node["rows"][1] == 0)
        },
    );
    write_all(&uri, 27, 3);
    let returned = lab.node("node0");
    eventually("the node that came back has its share", || {
        let status = lab.status(&client);
        let back = status["nodes"].as_array().unwrap().iter().any(|node| {
            node["address"] == returned.1.as_str() && node["state"] == "serving" && node["rows"][1] != 0
        });
        back && status["rows"][1]["copying"] == 0
    });
    write_all(&uri, 27, 4);
    for tract in 0..27 {
        reads(&uri, &format!("read -P 4 {}M 4k", tract * 8));
    }
}

/// A node in a mount namespace of its own, whose directory is a tmpfs that its store just fits.
fn node_on_small_tmpfs(lab: &Lab, name: &str) -> (Process, String) {
    let directory = lab.path(&format!("{name}.disk"));
    fs::create_dir_all(&directory).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=332m tmpfs {directory} && exec {BINARY} --config {} node",
        lab.path(&format!("{name}.toml"))
    );
    let log = lab.path(&format!("{name}.log"));
    Process::serve_by("unshare", &["--mount", "sh", "-c", &script], Path::new(&log))
}

#[test]
#[ignore = "needs root, DynamoDB Local, QEMU's tools and fio: make test"]
fn real_a_node_on_a_full_file_system_is_read_only_and_takes_writes_again() {
    let lab = Lab::new();
    let (client, _nodes) = lab.cluster(60);
    lab.config("small", "secret", TENANT, 60);
    let (small, address) = node_on_small_tmpfs(&lab, "small");
    let key = lab.path("disk.key");
    let state = || {
        let status = lab.status(&client);
        let nodes = status["nodes"].as_array().unwrap();
        let found = nodes.iter().find(|node| node["address"] == address.as_str());
        found.map_or(String::new(), |node| node["state"].as_str().unwrap().to_owned())
    };
    eventually("the small node has rows", || {
        let status = lab.status(&client);
        let nodes = status["nodes"].as_array().unwrap();
        nodes
            .iter()
            .any(|node| node["address"] == address.as_str() && node["rows"][1].as_u64() > Some(4))
            && status["rows"][1]["copying"] == 0
    });
    let create = [
        "create",
        "disk",
        "--size",
        "64MiB",
        "--mode",
        "write-through",
        "--key",
        &key,
    ];
    let made = run(BINARY, &[&["--config", &client], &create[..]].concat());
    assert!(made.status.success(), "{}", text(&made));
    let (_attached, uri) = lab.attach(&client, "one.sock", &[]);
    write_all(&uri, 8, 1);
    // What fills it is not the node's.
    let filler = format!("/proc/{}/root{}/filler", small.0.id(), lab.path("small.disk"));
    let filled = run("dd", &["if=/dev/zero", &format!("of={filler}"), "bs=1M"]);
    assert!(text(&filled).contains("No space left"), "{}", text(&filled));
    // Small durable writes, until the node's journal wants its other file and the state file has no room.
    let fio = Command::new("fio")
        .args([
            "--name=small",
            "--ioengine=nbd",
            "--thread",
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=4",
            "--size=64m",
            "--time_based",
            "--runtime=1200",
            &format!("--uri={uri}"),
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let fio = Process(fio);
    eventually("the node says that it is read-only", || state() == "read-only");
    eventually("it is done without", || {
        lab.status(&client)["rows"][1]["degraded"] == 0
    });
    write_all(&uri, 8, 2);
    fs::remove_file(&filler).unwrap();
    eventually("it takes writes again", || state() == "serving");
    drop(fio);
    thread::sleep(Duration::from_secs(1));
    write_all(&uri, 8, 3);
    for tract in 0..8 {
        reads(&uri, &format!("read -P 3 {}M 4k", tract * 8));
    }
    let log = fs::read_to_string(lab.path("small.log")).unwrap();
    assert!(
        log.contains("this node is read-only") && log.contains("there is room again"),
        "{log}"
    );
    assert!(!log.contains("panicked"), "{log}");
}

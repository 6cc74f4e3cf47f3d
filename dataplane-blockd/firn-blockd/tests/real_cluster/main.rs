//! Whole clusters of real processes under real clients, through `kill -9`.
//!
//! ```text
//! tests/lab/cloud/with dynamodb -- cargo test -p firn-blockd -- --ignored real_
//! ```
#![allow(
    clippy::disallowed_methods,
    reason = "it starts real programs, and waits for them in real time"
)]

mod full;
mod journal;
mod lab;
mod previous_release;

use lab::*;
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

#[test]
#[ignore = "needs DynamoDB Local, libnbd's tools, QEMU's and fio: make test"]
fn real_a_disk_survives_a_node_and_its_client_and_refuses_strangers() {
    let lab = Lab::new();
    let config = |name: &str| lab.config(name, "secret", TENANT, 2);
    let (client, mut nodes) = lab.cluster(2);
    let key = lab.path("disk.key");
    let create = [
        "--config",
        &client,
        "create",
        "disk",
        "--size",
        "64MiB",
        "--replication",
        "2",
        "--key",
        &key,
    ];
    eventually("the disk is created", || run(BINARY, &create).status.success());
    let again = run(BINARY, &create);
    assert!(
        text(&again).contains("a disk named disk exists"),
        "{}",
        text(&again)
    );

    let (attached, uri) = lab.attach(&client, "one.sock", &[]);
    let source = lab.path("source");
    fs::write(&source, pattern(24 << 20)).unwrap();
    done("nbdcopy", &["--connections=4", "--flush", &source, &uri]);
    done("qemu-img", &["compare", "-f", "raw", "-F", "raw", &source, &uri]);

    // A node dies for good under load. Capabilities end and are renewed all the while.
    let fio = thread::spawn({
        let uri = uri.clone();
        move || {
            run(
                "fio",
                &[
                    "--name=verify",
                    "--ioengine=nbd",
                    "--thread",
                    "--rw=randrw",
                    "--iodepth=16",
                    "--offset=32m",
                    "--size=24m",
                    "--bsrange=4k-64k",
                    "--fsync=32",
                    "--verify=crc32c",
                    "--verify_state_save=0",
                    "--verify_fatal=1",
                    "--do_verify=1",
                    "--loops=3",
                    &format!("--uri={uri}"),
                ],
            )
        }
    });
    thread::sleep(Duration::from_secs(2));
    let (victim, address) = nodes.remove(0);
    let carried = |status: &serde_json::Value| {
        let nodes = status["nodes"].as_array().unwrap();
        let node = nodes.iter().find(|node| node["address"] == address.as_str());
        node.unwrap()["used_tracts"].as_u64().unwrap()
    };
    let tracts = carried(&lab.status(&client));
    assert!(tracts > 0, "the node that dies had something");
    let killed = Instant::now();
    victim.kill();
    let fio = fio.join().unwrap();
    let report = text(&fio);
    assert!(fio.status.success() && report.contains("err= 0"), "{report}");
    eventually("all is on two nodes again", || {
        let status = lab.status(&client);
        let dead = status["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|node| node["address"] == address.as_str() && node["rows"][1] != 0);
        let rows = &status["rows"][1];
        !dead && rows["degraded"] == 0 && rows["copying"] == 0
    });
    let seconds = killed.elapsed().as_secs_f64();
    // The disk's tracts are of 8 MiB, and three quarters of it are written.
    eprintln!(
        "re-replicated {tracts} tracts {seconds:.1} s after the kill, 3 s of them to notice: at most {:.0} MB/s",
        tracts as f64 * 8.4 / (seconds - 3.0).max(0.1)
    );
    let image = lab.path("image");
    done("nbdcopy", &[&uri, &image]);
    assert!(fs::read(&image).unwrap()[..24 << 20] == pattern(24 << 20)[..]);

    // The client dies; what was flushed is there, what was not is there or not, block by block.
    reads(&uri, "write -P 0x55 1M 1M");
    let flushed = qemu_io(&uri, &["write -P 0x56 2M 64k", "flush"]);
    assert!(flushed.status.success(), "{}", text(&flushed));
    attached.kill();
    let other = config("other");
    let nbd = format!("unix:{}", lab.path("two.sock"));
    let attach = ["attach", "disk", "--key", &key, "--nbd", &nbd];
    let refused = run(BINARY, &[&["--config", &other], &attach[..]].concat());
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused));
    let (winner, won) = lab.attach(&other, "two.sock", &["--force"]);
    for command in ["read -P 0x55 1M 1M", "read -P 0x56 2M 64k"] {
        reads(&won, command);
    }

    // Taken over while it is in use: the loser can do nothing more.
    let (loser, lost) = (winner, won);
    let (_winner, won) = lab.attach(&client, "three.sock", &["--force"]);
    let beaten = qemu_io(&lost, &["write -P 0x77 1M 4k", "flush"]);
    assert!(
        !beaten.status.success() || text(&beaten).contains("failed"),
        "{}",
        text(&beaten)
    );
    reads(&won, "read -P 0x55 1M 1M");
    // It says so and ends, though nobody asks it for anything any more.
    let (mut loser, mut code) = (loser, None);
    eventually("the loser ends", || {
        code = loser.0.try_wait().unwrap().map(|status| status.code());
        code.is_some()
    });
    assert_eq!(code, Some(Some(4)));
    let said = fs::read_to_string(lab.path("two.sock.log")).unwrap();
    assert!(
        said.contains("was attached by") && said.contains("is on the disk"),
        "{said}"
    );

    // Growing shows to clients that connect.
    done(BINARY, &["--config", &client, "grow", "disk", "80MiB"]);
    let info = done("qemu-img", &["info", "-f", "raw", &won]);
    assert!(info.contains("80 MiB"), "{info}");
    reads(&won, "write -P 0x11 79M 1M");

    // Strangers: another tenant, another cluster's secret, the wrong key, and no certificate at all.
    let tenant = lab.config("tenant", "secret", "ten_ffffffffffffffffffffffffffffffff", 60);
    let stranger = run(BINARY, &[&["--config", &tenant], &attach[..]].concat());
    assert!(
        text(&stranger).contains("there is no disk disk"),
        "{}",
        text(&stranger)
    );
    done(BINARY, &["--config", &client, "detach", "disk"]);
    done(BINARY, &["secret", &lab.path("forged")]);
    let forged = lab.config("forger", "forged", TENANT, 60);
    let timeout = ["--attach-timeout-s", "1"];
    let refused = run(BINARY, &[&["--config", &forged], &attach[..], &timeout].concat());
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    let wrong_key = lab.path("forged");
    let attach_wrongly = [
        "--config", &client, "attach", "disk", "--key", &wrong_key, "--nbd", &nbd,
    ];
    let refused = run(BINARY, &attach_wrongly);
    assert!(
        text(&refused).contains("not the disk's key"),
        "{}",
        text(&refused)
    );
    let mut plain = TcpStream::connect(&nodes[0].1).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    plain
        .write_all(b"FBD1 and no certificate, thirty-two bytes")
        .unwrap();
    let mut answer = Vec::new();
    // It ends, with TLS's alert or without.
    let _ = plain.read_to_end(&mut answer);
    assert!(
        !answer.starts_with(b"FBD1"),
        "a node answered somebody without a certificate"
    );

    // Nothing of all that did any harm.
    let (_attached, uri) = lab.attach(&client, "four.sock", &[]);
    for command in ["read -P 0x55 1M 1M", "read -P 0x56 2M 64k", "read -P 0x11 79M 1M"] {
        reads(&uri, command);
    }
}

#[test]
#[ignore = "needs libnbd's tools and QEMU's"]
fn real_a_cluster_in_one_command_keeps_its_disk_in_every_mode() {
    // Most of the time they wait: for disks to be laid out, and for the lease of those that were killed.
    thread::scope(|scope| {
        for mode in ["write-through", "write-back", "flush-epoch", "log"] {
            scope.spawn(move || keeps_its_disk(mode));
        }
    });
}

fn keeps_its_disk(mode: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (root, log) = (path("dev"), PathBuf::from(path("log")));
    let start = || {
        let arguments = [
            "dev",
            "--directory",
            &root,
            "--node-size",
            "320MiB",
            "--size",
            "32MiB",
            "--mode",
            mode,
        ];
        let (process, _) = Process::serve(&arguments, &log);
        (process, format!("nbd+unix:///?socket={root}/nbd.sock"))
    };
    let source = path("source");
    fs::write(&source, pattern(32 << 20)).unwrap();
    let (process, uri) = start();
    done("nbdcopy", &["--flush", &source, &uri]);
    // All of the cluster dies at once.
    process.kill();
    let (_process, uri) = start();
    done("qemu-img", &["compare", "-f", "raw", "-F", "raw", &source, &uri]);
}

#[test]
#[ignore = "needs DynamoDB Local and QEMU's tools: make test"]
fn real_a_snapshot_is_an_instant_and_survives_its_disk() {
    // Several disks, one of them a log, in what survives the loss of a node.
    let lab = Lab::of_nodes("960MiB");
    let (client, _nodes) = lab.cluster(60);
    let blockd = |arguments: &[&str]| run(BINARY, &[&["--config", &client], arguments].concat());
    let succeeds = |arguments: &[&str]| {
        let output = blockd(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        text(&output)
    };
    let (key, other_key) = (lab.path("disk.key"), lab.path("other.key"));
    let create = [
        "create", "disk", "--size", "64MiB", "--role", "light", "--key", &key,
    ];
    eventually("the disk is created", || blockd(&create).status.success());
    let (attached, uri) = lab.attach(&client, "one.sock", &[]);
    for command in ["write -P 0x11 0 9M", "write -P 0x12 40M 1M"] {
        reads(&uri, command);
    }
    // In memory only, most of it; and the disk goes on being written while the snapshot is taken.
    let writing = thread::spawn({
        let uri = uri.clone();
        move || qemu_io(&uri, &["write -P 0x99 1M 7M", "write -P 0x99 41M 6M", "flush"])
    });
    succeeds(&["snapshot", "disk", "begun-under-load"]);
    assert!(writing.join().unwrap().status.success());
    for command in ["write -P 0x21 0 9M", "write -z 40M 1M", "flush"] {
        reads(&uri, command);
    }
    succeeds(&["snapshot", "disk", "second"]);
    reads(&uri, "write -P 0x31 0 1M");
    succeeds(&["snapshot", "disk", "third"]);
    let again = blockd(&["snapshot", "disk", "third"]);
    assert!(
        !again.status.success() && text(&again).contains("exists"),
        "{}",
        text(&again)
    );

    // The client dies while it takes one: it exists wholly or not at all, and the next is right.
    reads(&uri, "write -P 0x41 0 10M");
    let mut taking = Command::new(BINARY)
        .args(["--config", &client, "snapshot", "disk", "interrupted"])
        .envs(credentials())
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_millis(100));
    attached.kill();
    taking.wait().unwrap();
    let listed = succeeds(&["snapshot", "list", "disk", "--key", &key]);
    assert!(listed.contains("second") && listed.contains("third"), "{listed}");
    let (attached, uri) = lab.attach(&client, "two.sock", &["--force"]);
    reads(&uri, "write -P 0x51 0 2M");
    succeeds(&["snapshot", "disk", "fourth"]);
    let source = lab.path("source");
    done("nbdcopy", &[&uri, &source]);
    succeeds(&["detach", "disk"]);
    drop(attached);

    // Into another mode, under another key; and from a disk that nobody has attached.
    let without_key = blockd(&["snapshot", "disk", "fifth"]);
    assert_eq!(without_key.status.code(), Some(2), "{}", text(&without_key));
    succeeds(&["snapshot", "disk", "fifth", "--key", &key]);
    let restore = |snapshot: &str, into: &str, more: &[&str]| {
        let arguments = [
            "restore",
            "disk",
            snapshot,
            "--key",
            &key,
            "--into",
            into,
            "--new-key",
            &other_key,
        ];
        succeeds(&[&arguments[..], more].concat());
        let (socket, nbd) = (
            format!("{into}.sock"),
            format!("unix:{}", lab.path(&format!("{into}.sock"))),
        );
        let attach = [
            "--config", &client, "attach", into, "--key", &other_key, "--nbd", &nbd,
        ];
        let (process, _) = Process::serve(&attach, Path::new(&lab.path(&format!("{socket}.log"))));
        (
            process,
            format!("nbd+unix:///{into}?socket={}", lab.path(&socket)),
        )
    };
    let (_second, uri) = restore("second", "restored", &["--replication", "1"]);
    for command in [
        "read -P 0x21 0 9M",
        "read -P 0 9M 31M",
        "read -P 0 40M 1M",
        "read -P 0x99 41M 6M",
        "read -P 0 47M 17M",
    ] {
        reads(&uri, command);
    }
    // What others share stays when one is deleted; twice is as good as once, and says what is so.
    for gone in ["begun-under-load", "third"] {
        succeeds(&["snapshot", "delete", "disk", gone, "--key", &key]);
    }
    let again = blockd(&["snapshot", "delete", "disk", "third", "--key", &key]);
    assert!(
        text(&again).contains("there is no snapshot third"),
        "{}",
        text(&again)
    );
    let listed = succeeds(&["snapshot", "list", "disk", "--key", &key]);
    assert!(listed.contains("fifth") && !listed.contains("third"), "{listed}");
    let (fifth, uri) = restore("fifth", "as-a-log", &["--replication", "1", "--mode", "log"]);
    done("qemu-img", &["compare", "-f", "raw", "-F", "raw", &source, &uri]);
    drop(fifth);

    // Over TLS, and only so.
    let (certificate, private) = (lab.path("tls/ca-cert.pem"), lab.path("tls/key.pem"));
    fs::create_dir(lab.path("tls")).unwrap();
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(&certificate, issued.cert.pem()).unwrap();
    fs::write(&private, issued.signing_key.serialize_pem()).unwrap();
    let attach = [
        "--config", &client, "attach", "as-a-log", "--key", &other_key, "--force",
    ];
    let tls = [
        "--nbd",
        "tcp:127.0.0.1:0",
        "--tls-certificate",
        &certificate,
        "--tls-key",
        &private,
    ];
    let log = lab.path("tls.log");
    let (_private, address) = Process::serve(&[&attach[..], &tls].concat(), Path::new(&log));
    let port = address.rsplit_once(':').unwrap().1;
    let plain = run("nbdinfo", &[&format!("nbd://localhost:{port}/as-a-log")]);
    assert!(!plain.status.success(), "{}", text(&plain));
    let private = format!(
        "nbds://localhost:{port}/as-a-log?tls-certificates={}",
        lab.path("tls")
    );
    let image = lab.path("image");
    done("nbdcopy", &[&private, &image]);
    assert!(fs::read(&image).unwrap() == fs::read(&source).unwrap());
    let taken = blockd(&[
        "restore",
        "disk",
        "second",
        "--key",
        &key,
        "--into",
        "restored",
        "--new-key",
        &other_key,
    ]);
    assert_eq!(taken.status.code(), Some(2), "{}", text(&taken));
    let wrong_key = blockd(&["snapshots", "disk", "--key", &other_key]);
    assert!(text(&wrong_key).contains("another key"), "{}", text(&wrong_key));
    succeeds(&["rebalance", "--dry-run"]);
}

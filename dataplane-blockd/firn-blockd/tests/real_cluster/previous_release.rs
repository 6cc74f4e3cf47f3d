//! Nodes and clients of this build beside those of the release before it, under a disk that is written all the while.

use crate::lab::*;
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

#[test]
#[ignore = "needs the release before this one: scripts/upgrade-matrix"]
fn previous_nodes_are_upgraded_one_after_the_other_and_back_while_a_disk_is_written() {
    let directory = std::env::var("FIRN_PREVIOUS")
        .expect("FIRN_PREVIOUS names its programs, as scripts/upgrade-matrix sets it");
    let previous = Path::new(&directory).join("firn-blockd").display().to_string();
    let lab = Lab::new();
    let client = lab.config("client", "secret", TENANT, 60);
    done(&previous, &["--config", &client, "init", "--rows", "24"]);
    let start = |program: &str, name: &str| {
        let log = PathBuf::from(lab.path(&format!("{name}.log")));
        Process::serve_by(
            program,
            &["--config", &lab.path(&format!("{name}.toml")), "node"],
            &log,
        )
    };
    let names = ["node0", "node1", "node2"];
    let mut nodes: Vec<_> = names
        .iter()
        .map(|name| {
            lab.config(name, "secret", TENANT, 60);
            start(&previous, name)
        })
        .collect();
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
    eventually("the disk is created", || run(&previous, &create).status.success());
    let attached_by = |program: &str, socket: &str| {
        let nbd = format!("unix:{}", lab.path(socket));
        let arguments = [
            "--config", &client, "attach", "disk", "--key", &key, "--nbd", &nbd, "--force",
        ];
        let log = PathBuf::from(lab.path(&format!("{socket}.log")));
        let (process, _) = Process::serve_by(program, &arguments, &log);
        (process, format!("nbd+unix:///disk?socket={}", lab.path(socket)))
    };
    let source = lab.path("source");
    fs::write(&source, pattern(24 << 20)).unwrap();

    // A client of each build, over nodes that go from the one to the other and back.
    for (round, (attaching, replacing)) in [(previous.as_str(), BINARY), (BINARY, previous.as_str())]
        .into_iter()
        .enumerate()
    {
        let (attached, uri) = attached_by(attaching, &format!("{round}.sock"));
        if round == 0 {
            done("nbdcopy", &["--connections=4", "--flush", &source, &uri]);
        }
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
                        "--iodepth=8",
                        "--offset=32m",
                        "--size=16m",
                        "--bsrange=4k-64k",
                        "--fsync=32",
                        "--verify=crc32c",
                        "--verify_state_save=0",
                        "--verify_fatal=1",
                        "--do_verify=1",
                        "--loops=4",
                        &format!("--uri={uri}"),
                    ],
                )
            }
        });
        for (at, name) in names.iter().enumerate() {
            let (old, _) = nodes.remove(at);
            old.kill();
            nodes.insert(at, start(replacing, name));
            // One after the other: the next goes when everything is on two nodes again.
            eventually("all is on two nodes again", || {
                let rows = &lab.status(&client)["rows"][1];
                rows["degraded"] == 0 && rows["copying"] == 0
            });
        }
        let fio = fio.join().unwrap();
        let report = text(&fio);
        assert!(fio.status.success() && report.contains("err= 0"), "{report}");
        let image = lab.path("image");
        done("nbdcopy", &[&uri, &image]);
        assert!(fs::read(&image).unwrap()[..24 << 20] == pattern(24 << 20)[..]);
        attached.kill();
    }
}

//! `firn-edge check`: what is wrong with a machine is said in one line with what to do, before the first client, and nothing is left behind.

use crate::{
    machine::{Cloud, Machine},
    noise::noise,
    small_disk::SmallDisk,
};
use serde_json::Value;
use std::{
    io::{Read, Write},
    net::TcpListener,
    path::Path,
};

/// Findings of a check, with its exit code.
fn checked(edge: &Machine, environment: &[(&str, &str)]) -> (i32, Vec<Value>) {
    let mut command = edge.prepared(&["check", "--json"]);
    command.envs(environment.iter().copied());
    let output = command.output().expect("firn-edge runs");
    let whole: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let findings = whole["findings"].as_array().expect("findings").clone();
    (output.status.code().expect("an exit code"), findings)
}

/// The findings of one subject.
fn of<'a>(findings: &'a [Value], subject: &str) -> Vec<&'a Value> {
    let found: Vec<_> = findings
        .iter()
        .filter(|found| found["subject"] == subject)
        .collect();
    assert!(!found.is_empty(), "nothing about {subject}: {findings:#?}");
    found
}

/// That one finding of the subject has this verdict, says this, and what to do.
fn says(findings: &[Value], subject: &str, verdict: &str, said: &str, to_do: &str) {
    let holds = |found: &&Value| {
        let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        text("verdict") == verdict.replace(' ', "-")
            && text("said").contains(said)
            && (text("said") + &text("to_do")).contains(to_do)
    };
    let found = of(findings, subject);
    assert!(
        found.iter().any(holds),
        "no finding of {subject} is {verdict:?}, says {said:?} and {to_do:?}: {found:#?}"
    );
}

/// All names below a directory.
fn names(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in std::fs::read_dir(next).expect("a directory").flatten() {
            match entry.path().is_dir() {
                true => directories.push(entry.path()),
                false => found.push(entry.path().display().to_string()),
            }
        }
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn it_works_before_an_edge_is_set_up_and_beside_one_that_serves() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    let before = names(cloud.path());
    let (_, findings) = checked(&edge, &[]);
    says(&findings, "bucket", "fine", "deleted", "");
    says(&findings, "bucket", "fine", "up at", "");
    says(&findings, "anchor", "fine", "firn-edge format makes it", "");
    says(&findings, "port", "fine", "free", "");
    says(&findings, "memory", "fine", "may take", "");
    for (subject, figure) in [
        ("sync", "p50_us"),
        ("sync", "p99_us"),
        ("bucket", "get_us"),
        ("bucket", "up_bytes_per_s"),
        ("state disk", "free_bytes"),
        ("memory", "needed_bytes"),
    ] {
        let found = of(&findings, subject);
        assert!(
            found.iter().any(|found| found["figures"][figure].is_u64()),
            "{subject} has no {figure}: {found:#?}"
        );
    }
    assert_eq!(names(cloud.path()), before, "a check leaves nothing");
    assert!(!edge.state.exists(), "nor does it make the state directory");

    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    files.write("plan", &noise(1, 300_000)).await;
    let (_, findings) = checked(&edge, &[]);
    says(&findings, "port", "fine", "the running edge has it", "");
    says(&findings, "anchor", "fine", "the running edge has it open", "");
    assert_eq!(files.read("plan").await, Some(noise(1, 300_000)));
    edge.stop();

    let (_, findings) = checked(&edge, &[]);
    says(&findings, "anchor", "fine", "the volume is owned by a", "");
    assert!(of(&findings, "anchor")[0]["figures"]["load_us"].is_u64());
    // Lines are for people: one each, and the last says what it comes to.
    let output = edge.command(&["check"]);
    let said = String::from_utf8_lossy(&output.stdout);
    for line in said.lines() {
        let verdicts = ["fine", "not seen", "will hurt", "cannot work", "fit:"];
        assert!(verdicts.iter().any(|verdict| line.starts_with(verdict)), "{line}");
    }
}

/// A volume that another edge owns would be refused at the start.
#[test]
fn whose_the_volume_is_is_said_before_the_start() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    edge.kill();
    let other = Machine::new(&cloud, "b", "main");
    let identity = edge.state.join("identity");
    other.succeed(&["join", "--identity", identity.to_str().expect("a path")]);
    let (code, findings) = checked(&other, &[]);
    assert_eq!(code, 1);
    says(
        &findings,
        "anchor",
        "cannot work",
        "owned by a, and this edge is b",
        "firn-edge takeover here",
    );
}

#[test]
fn a_port_that_is_taken_is_told_with_who_has_it() {
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port();
    edge.edit(
        &format!("nfs_port = {}", edge.port),
        &format!("nfs_port = {port}"),
    );
    let (code, findings) = checked(&edge, &[]);
    assert_eq!(code, 1);
    let who = format!("(process {}) has it", std::process::id());
    says(
        &findings,
        "port",
        "cannot work",
        &who,
        "set nfs.nfs_port to another port",
    );
}

#[test]
fn port_111_in_other_hands_is_told_with_what_to_do() {
    // Where no rpcbind answers, nobody else may have it; needs the right to listen below 1024.
    let _taken = match TcpListener::bind("127.0.0.1:111") {
        Ok(listener) => Some(listener),
        // Somebody has it already, which is what the test wants.
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => None,
        Err(error) => panic!("port 111 needs root: {error}"),
    };
    if Path::new("/run/rpcbind.sock").exists() {
        eprintln!("rpcbind runs on this machine: nothing to see");
        return;
    }
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    edge.edit("portmap = false", "portmap = true");
    let (code, findings) = checked(&edge, &[]);
    assert_eq!(code, 1);
    says(
        &findings,
        "port",
        "cannot work",
        "nfs.portmap 111",
        "nfs.portmap = false",
    );
}

#[test]
fn an_address_that_this_machine_has_not_is_told() {
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    edge.edit("listen = \"127.0.0.1\"", "listen = \"[fd00:f1f1::1]\"");
    let (code, findings) = checked(&edge, &[]);
    assert_eq!(code, 1);
    says(
        &findings,
        "port",
        "cannot work",
        "has no such address",
        "without IPv6 \"0.0.0.0\"",
    );
}

#[test]
fn a_disk_that_is_full_or_memory_is_told() {
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    let disk = SmallDisk::mount(&edge.state, 8);
    disk.fill();
    let (code, findings) = checked(&edge, &[]);
    assert_eq!(code, 1);
    says(
        &findings,
        "state disk",
        "cannot work",
        "which is memory",
        "on a local disk",
    );
    says(&findings, "state disk", "cannot work", "0 B free", "free space");
    says(
        &findings,
        "sync",
        "cannot work",
        "is full",
        "what is acknowledged is safe",
    );
}

#[test]
fn a_store_directory_that_is_not_mounted_is_told() {
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    edge.edit("/store\"", "/nowhere\"");
    let (code, findings) = checked(&edge, &[]);
    assert_eq!(code, 1);
    says(&findings, "bucket", "cannot work", "nowhere", "mount its disk");
}

/// What S3 answers to a request for a bucket of another region. No emulator does.
#[test]
fn a_bucket_of_another_region_is_told_with_its_region() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let body = "<?xml version=\"1.0\"?><Error><Code>PermanentRedirect</Code><Message>The bucket you are attempting to access must be \
                addressed using the specified endpoint.</Message></Error>";
    let answer = format!(
        "HTTP/1.1 301 Moved Permanently\r\nContent-Type: application/xml\r\nx-amz-bucket-region: eu-west-1\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 16 << 10];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    let ours = format!("file://{}/store", cloud.path().display());
    let theirs = format!("s3://bucket?region=us-east-1&endpoint=http://127.0.0.1:{port}");
    edge.edit(&ours, &theirs);
    let keys = [
        ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];
    let (code, findings) = checked(&edge, &keys);
    assert_eq!(code, 1);
    says(
        &findings,
        "bucket",
        "cannot work",
        "the bucket is in region eu-west-1",
        "set region=eu-west-1",
    );
    says(&findings, "network", "fine", "IPv4", "");
    says(&findings, "clock", "not seen", "answers without a date", "");
}

//! Messages of the program: to people whose configuration is wrong, to pipes that are closed, and to log files.

use crate::{
    machine::{Cloud, Machine, free_port, status},
    noise::noise,
};
use std::{
    io::Read,
    process::{Command, Stdio},
};

#[test]
fn what_run_would_refuse_check_config_refuses_in_the_same_words() {
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    edge.format();
    let (port, metrics) = (edge.port, free_port());
    let nfs_port = format!("nfs_port = {port}");
    let second = "[[export]]\npath = \"/export/\"\nclients = [\"127.0.0.0/8\"]";
    let long = format!("state_directory = \"/tmp/{}\"", "long/".repeat(25));
    let state = format!("state_directory = \"{}\"", edge.state.display());
    let long_level = "level = \"firn=loud\"";
    let cases = [
        ("path = \"/export\"", "path = \"export\"".to_owned(), "absolute"),
        ("path = \"/export\"", "path = \"/a//b\"".to_owned(), "absolute"),
        ("[log]", format!("{second}\n[log]"), "exported twice"),
        (
            "clients = [\"127.0.0.0/8\"]",
            "clients = []".to_owned(),
            "exported to no network",
        ),
        (
            &nfs_port,
            format!("{nfs_port}\nmount_port = {port}"),
            "nfs.nfs_port and nfs.mount_port",
        ),
        (
            "[log]",
            format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n[log]"),
            "metrics.listen and nfs.nfs_port",
        ),
        (
            "journal = \"32 MiB\"",
            "memory_cache = \"1 PiB\"".to_owned(),
            "this machine has",
        ),
        (
            "journal = \"32 MiB\"",
            "disk_cache = \"1 PiB\"".to_owned(),
            "limits.disk_cache",
        ),
        (&state, long, "too long"),
        ("level = \"warn\"", long_level.to_owned(), "log.level"),
        (
            "[log]",
            "[costs]\nprice_book = \"s4\"\n[log]".to_owned(),
            "costs.price_book",
        ),
    ];
    let whole = std::fs::read_to_string(&edge.config).expect("the configuration");
    for (from, to, said) in cases {
        edge.edit(from, &to);
        let checked = edge.fail(2, &["check-config"]);
        assert!(checked.contains(said), "{checked}");
        assert_eq!(edge.fail(2, &["run"]), checked);
        std::fs::write(&edge.config, &whole).expect("the configuration");
    }
    edge.edit(
        "[log]",
        &format!("[metrics]\nlisten = \"127.0.0.1:{metrics}\"\n[log]"),
    );
    edge.succeed(&["check-config"]);
}

#[test]
fn a_size_without_a_unit_is_answered_with_how_to_write_one() {
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    edge.edit("journal = \"32 MiB\"", "journal = 4");
    let said = edge.fail(2, &["check-config"]);
    assert!(said.contains("such as \"4 GiB\""), "{said}");
    edge.edit("journal = 4", "journal = \"4\"");
    let said = edge.fail(2, &["check-config"]);
    assert!(said.contains("GiB\""), "{said}");
    edge.edit("journal = \"4\"", "checkpoint_bytes = 1.5");
    let said = edge.fail(2, &["check-config"]);
    assert!(said.contains("in quotes"), "{said}");
}

#[test]
fn a_machine_without_identity_is_told_of_every_way_to_one() {
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    for command in ["run", "takeover"] {
        let said = edge.fail(2, &[command]);
        for way in [
            "firn-edge format",
            "firn-edge join",
            "firn-edge enrol",
            "firn-edge recover",
        ] {
            assert!(said.contains(way), "{said}");
        }
    }
}

/// Runs the command and reads `bytes` of what it prints before the pipe is closed; what it says on standard error, and its
/// exit code.
fn cut_off(edge: &Machine, arguments: &[&str], bytes: usize) -> (String, Option<i32>) {
    let mut child = edge
        .prepared(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("firn-edge starts");
    let mut out = child.stdout.take().expect("piped");
    out.read_exact(&mut vec![0; bytes]).expect("it prints");
    drop(out);
    let output = child.wait_with_output().expect("an end");
    (
        String::from_utf8_lossy(&output.stderr).into_owned(),
        output.status.code(),
    )
}

#[test]
fn a_closed_pipe_ends_the_printing_and_not_the_work() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    for arguments in [
        &["status"][..],
        &["status", "--output", "json"],
        &["snapshot", "list"],
    ] {
        let (said, code) = cut_off(&edge, arguments, 0);
        assert_eq!((said.as_str(), code), ("", Some(0)), "{arguments:?}");
    }
    edge.stop();

    // What was lost is recovered whoever reads along.
    std::fs::remove_file(cloud.path().join("table.redb")).expect("a table");
    let phrase = edge.config.with_file_name("phrase");
    let phrase = phrase.to_str().expect("a path");
    let mut next = Machine::new(&cloud, "b", "main");
    let recover = ["recover", "--phrase-file", phrase, "--yes"];
    let (said, code) = cut_off(&next, &recover, 1);
    assert_eq!((said.as_str(), code), ("", Some(0)));
    next.start(&[]);
    next.stop();
}

#[test]
fn a_recovery_that_only_looks_succeeds() {
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    edge.format();
    let phrase = edge.config.with_file_name("phrase");
    let next = Machine::new(&cloud, "b", "main");
    let said = next.succeed(&["recover", "--phrase-file", phrase.to_str().expect("a path")]);
    assert!(
        said.contains("Nothing was changed") && said.contains("--yes"),
        "{said}"
    );
    assert!(!next.state.join("identity").exists());
}

#[test]
fn an_output_that_cannot_be_written_is_no_success() {
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    let full = std::fs::File::create("/dev/full").expect("/dev/full");
    let output = edge.prepared(&["check-config"]).stdout(full).output();
    let output = output.expect("firn-edge runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the output cannot be written"), "{said}");
}

#[test]
fn a_log_in_a_file_has_no_colours() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.edit("level = \"warn\"", "level = \"info\"");
    edge.start(&[]);
    edge.stop();
    let log = edge.log();
    assert!(log.contains("serving NFS") && !log.contains('\x1b'), "{log}");
}

#[test]
fn a_server_that_refuses_the_key_is_not_taken_for_a_missing_bucket() {
    // What S3 answers to an access key that it does not know, and what some of its kin do.
    for (status, code) in [
        ("403 Forbidden", "InvalidAccessKeyId"),
        ("404 Not Found", "InvalidAccessKeyID"),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let body = format!(
            "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>The AWS Access Key Id you provided does not exist in our \
             records.</Message></Error>"
        );
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        std::thread::spawn(move || {
            use std::io::Write;
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
        let phrase = edge.config.with_file_name("phrase");
        let command = |arguments: &[&str]| -> Command {
            let mut command = edge.prepared(arguments);
            command
                .env("AWS_ACCESS_KEY_ID", "AKIDUNKNOWN")
                .env("AWS_SECRET_ACCESS_KEY", "secret");
            command
        };
        let output = command(&["format", "--phrase-file", phrase.to_str().expect("a path")]).output();
        let said = String::from_utf8_lossy(&output.expect("firn-edge runs").stderr).into_owned();
        assert!(
            said.contains("does not know this access key") && !said.contains("create the bucket"),
            "{status}: {said}"
        );
    }
}

/// An administrator who is told "the share is slow" finds who waited, for which file, and what for.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_call_is_logged_with_what_it_waited_for() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    edge.client().await.write("plan", &noise(1, 300_000)).await;
    edge.succeed(&["sync"]);
    edge.stop();
    let slow = cloud.path().join("slow.toml");
    let faults = "seed = 1\n[faults]\n[[phases]]\nfrom_ms = 0\n[phases.faults]\nlatency_ms = 1500\n";
    std::fs::write(&slow, faults).expect("the faults");
    let faulty = ["--fault", slow.to_str().expect("a path")];

    edge.wipe_cache();
    edge.start(&faulty);
    let files = edge.client().await;
    assert_eq!(files.read("plan").await, Some(noise(1, 300_000)));
    let log = edge.log();
    let line = log
        .lines()
        .find(|line| line.contains("slow call"))
        .unwrap_or_else(|| panic!("no slow call: {log}"));
    for part in [
        "client=127.0.0.1:",
        "program=\"nfs\"",
        "xid=",
        "subject=\"export /export, inode ",
        "procedure=\"",
        "waited=1.5",
        "s for the object store or its cache on disk",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    // The second time it is in memory, and nobody hears of it.
    let slow_calls = |edge: &Machine| status(edge)["nfs"]["slow_calls"].as_u64().expect("a count");
    let before = slow_calls(&edge);
    assert!(before >= 1);
    assert_eq!(files.read("plan").await, Some(noise(1, 300_000)));
    assert_eq!(slow_calls(&edge), before);
    edge.stop();

    edge.edit("[log]", "[log]\nslow_call = \"0 s\"");
    edge.wipe_cache();
    edge.start(&faulty);
    let lines = edge.log().matches("slow call").count();
    assert_eq!(edge.client().await.read("plan").await, Some(noise(1, 300_000)));
    assert_eq!(edge.log().matches("slow call").count(), lines);
    edge.stop();
}

/// With more detail in the log, each request to the store stands with the client's call that it was made for.
#[tokio::test(flavor = "multi_thread")]
async fn requests_to_the_store_stand_in_the_log_with_the_call_they_are_for() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    edge.client().await.write("plan", &noise(1, 300_000)).await;
    edge.succeed(&["sync"]);
    edge.stop();
    edge.log_at("warn,firn_nfs=debug,firn_store=debug");
    edge.wipe_cache();
    edge.start(&[]);
    let read = edge.client().await.read("plan").await;
    assert_eq!(read, Some(noise(1, 300_000)));
    let log = edge.log();
    let line = log
        .lines()
        .find(|line| line.contains("call{") && line.contains("store{"))
        .unwrap_or_else(|| panic!("no request of a call: {log}"));
    for part in [
        "call{client=127.0.0.1:",
        "procedure=\"",
        "xid=",
        "request=\"get",
        "store{",
        "object=",
        "/log/",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    edge.stop();
}

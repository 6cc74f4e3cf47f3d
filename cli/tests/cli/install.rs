//! `firn edge install`, as docs/install.md types it against a real service. A shell runs what is printed, as it is printed, and it ends in an edge
//! that serves a client over NFS.
//!
//! The office's machine is a set of namespaces with directories of its own in the place of /etc and /var/lib. What packages and systemd do there is
//! played by a line each ([`STAND_INS`]).
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "real processes, real time")]

use crate::running::{Person, Service};
use firn_rig::{Client, Edge};
use serde_json::Value;
use std::{
    fs,
    io::Write as _,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Far longer than anything takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Whether this process is the one in the namespaces.
const INSIDE: &str = "FIRN_TEST_INSIDE";

/// Programs of Debian that are not, or do not work, in the office's namespaces.
const STAND_INS: [(&str, &str); 5] = [
    (
        "apt-get",
        "touch /var/lib/installed && mkdir -p /etc/firn && mkdir -m 700 /var/lib/firn",
    ),
    (
        "dpkg-query",
        "[ -e /var/lib/installed ] || exit 1; case \"$*\" in *Status-Status*) printf 'installed installed ';; esac",
    ),
    // runuser -u firn -- COMMAND
    ("runuser", "shift 3; exec \"$@\""),
    (
        "systemd-run",
        "while :; do case $1 in -p) shift 2;; -*) shift;; *) break;; esac; done; exec \"$@\"",
    ),
    // systemctl enable --now firn-edge, which returns when the edge serves.
    (
        "systemctl",
        "setsid firn-edge run < /dev/null > /var/lib/edge.log 2>&1 &\n\
         for _ in $(seq 600); do firn-edge status > /dev/null 2>&1 && exit; sleep 0.1; done; cat /var/lib/edge.log >&2; exit 1",
    ),
];

fn repository() -> PathBuf {
    std::env::current_dir().unwrap().join("..")
}

/// The first line of docs/install.md that types it, as words without `firn`.
fn documented() -> Vec<String> {
    let page = fs::read_to_string(repository().join("docs/install.md")).unwrap();
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix("    firn edge install "))
        .expect("the page types it");
    let line = line.split(" > ").next().unwrap();
    ["edge", "install"]
        .into_iter()
        .chain(line.split_whitespace())
        .map(str::to_owned)
        .collect()
}

/// The same, for this machine: a network of clients that is here, the secret in this file.
fn typed(secret_file: &str) -> Vec<String> {
    let mut words = documented();
    let after = |words: &[String], option: &str| {
        let at = words.iter().position(|word| word == option);
        at.expect("the page gives it") + 1
    };
    let (clients, secret) = (after(&words, "--clients"), after(&words, "--secret-file"));
    words[clients] = "127.0.0.0/8".into();
    words[secret] = secret_file.into();
    words
}

#[track_caller]
fn sh(command: &str) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The machine of the office: this process's namespaces.
struct Office {
    directory: PathBuf,
}

impl Office {
    /// On a disk that is one: what is in memory is no place for a journal, and the check says so.
    fn new(directory: &Path) -> Self {
        let path = |name: &str| directory.join(name);
        sh("mount --make-rprivate / && ip link set lo up");
        // The export wants clients whose ports only root has: the test's client gets such.
        fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0").unwrap();
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", "600 1023").unwrap();
        for name in ["etc", "lib", "bin", "packages"] {
            fs::create_dir(path(name)).unwrap();
        }
        for name in ["hosts", "nsswitch.conf", "ld.so.cache", "localtime"] {
            // Where one is missing nobody misses it.
            let _ = fs::copy(Path::new("/etc").join(name), path("etc").join(name));
        }
        fs::write(
            path("etc/passwd"),
            "root:x:0:0::/root:/bin/sh\nfirn:x:0:0::/var/lib/firn:/bin/sh\n",
        )
        .unwrap();
        fs::write(path("etc/group"), "root:x:0:\nfirn:x:0:\n").unwrap();
        for (name, script) in STAND_INS {
            let program = path("bin").join(name);
            fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        for package in ["firn-edge", "firn"] {
            fs::write(path("packages").join(format!("{package}_0.1.0_all.deb")), "").unwrap();
        }
        for (own, there) in [("etc", "/etc"), ("lib", "/var/lib")] {
            sh(&format!("mount --bind {} {there}", path(own).display()));
        }
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Runs the script there, by a shell and with the secret on its standard input.
    fn run(&self, script: &Path, secret: &str) -> Child {
        let built = Path::new(env!("CARGO_BIN_EXE_firn")).parent().unwrap();
        let path = format!(
            "{}:{}:/usr/sbin:/usr/bin:/sbin:/bin",
            self.directory.join("bin").display(),
            built.display()
        );
        let mut child = Command::new("sh")
            .arg(script)
            .env("PATH", path)
            .current_dir(self.directory.join("packages"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A script that does not come to it does not read it.
        let _ = child.stdin.take().unwrap().write_all(secret.as_bytes());
        child
    }
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// Runs this test again in namespaces of its own: network, mounts, processes, which all end with it.
fn enter(test: &str) {
    let mut command = Command::new("unshare");
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        command.args(["--user", "--map-root-user"]);
    }
    let status = command
        .args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success(), "the test in its namespaces: {status}");
}

/// A customer with a volume, `files`, of a service behind an authority of its own.
fn customer(place: &Path) -> (Service, Person) {
    customer_of(Service::start(place, false), place)
}

fn customer_of(service: Service, place: &Path) -> (Service, Person) {
    let ada = Person::new(place, "ada");
    ada.sign_up(&service, "ada@one.example");
    let phrase = ada.path("phrase");
    ada.json(&[
        "volume",
        "create",
        "files",
        "--region",
        "eu",
        "--phrase-file",
        &phrase,
    ]);
    (service, ada)
}

fn approve_once_joined(ada: &Person) {
    let (phrase, began) = (ada.path("phrase"), Instant::now());
    loop {
        let told = ada.firn(&["edge", "approve", "office", "--phrase-file", &phrase]);
        match told.code() {
            0 => return,
            // It did not join yet.
            6 => assert!(began.elapsed() < TIMEOUT, "{}", told.err()),
            other => panic!("{other}: {}", told.err()),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_printed_is_run_and_ends_in_an_edge_that_serves() {
    if std::env::var_os(INSIDE).is_none() {
        return enter("what_is_printed_is_run_and_ends_in_an_edge_that_serves");
    }
    // It is found beside `firn`, where the shell looks for it.
    Edge::binary().unwrap();
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let office = Office::new(place.path());
    let (_service, ada) = customer(place.path());
    let secret_file = ada.path("join-secret");
    let mut words = typed(&secret_file);
    words.extend(["--store", "file:///var/lib/store"].map(str::to_owned));
    let install: Vec<&str> = words.iter().map(String::as_str).collect();
    let printed = ada.firn(&install).good();
    let (script, said) = (printed.out(), printed.err());
    let secret = fs::read_to_string(&secret_file).unwrap();
    for (what, text) in [("script", &script), ("note", &said)] {
        assert!(!text.contains(secret.trim()), "the secret is in the {what}");
    }
    assert!(said.contains("firn edge approve office"), "{said}");
    let file = place.path().join("install.sh");
    fs::write(&file, &script).unwrap();

    // Somebody has a port of the edge's: nothing is done that could not be done again.
    let taken = TcpListener::bind("0.0.0.0:2049").unwrap();
    let output = office.run(&file, &secret).wait_with_output().unwrap();
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{out}\n{err}");
    assert!(
        out.contains("cannot work  port") && err.contains("The join secret was not used"),
        "{out}\n{err}"
    );
    assert!(!Path::new("/var/lib/firn/enrolment.json").exists());
    drop(taken);

    let child = office.run(&file, &secret);
    approve_once_joined(&ada);
    let output = child.wait_with_output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{out}\n{err}");
    assert!(!out.contains(secret.trim()) && !err.contains(secret.trim()));
    assert!(out.contains("fit:") || out.contains("will hurt"), "{out}");
    let mounts = out
        .lines()
        .find_map(|line| line.split_once("mount -t nfs -o vers=3,hard "));
    let export = mounts.expect("what clients mount").1;
    let export = export.split([':', ' ']).nth(1).unwrap();
    assert_eq!(export, "/files");

    // What its clients mount is served; nobody in particular may write, as the page says.
    let mut client = Client::mount("127.0.0.1:2049".parse().unwrap(), export)
        .await
        .unwrap();
    let root = client.root.clone();
    client
        .write_file(&root, b"plan", 0o644, b"of the house")
        .await
        .unwrap();
    let plan = client.lookup(&root, b"plan").await.unwrap();
    let (read, _) = client.checksum(&plan).await.unwrap();
    assert_eq!(read, blake3::hash(b"of the house"));
    drop(client);
    assert_eq!(ada.json(&["edge", "show", "office"])["state"], "active");

    // Once more, as after a failure that came last: nothing is asked, nothing is changed.
    let before = fs::read("/etc/firn/firn-edge.toml").unwrap();
    let output = office.run(&file, "").wait_with_output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{out}\n{err}");
    for part in [
        "was written before and is kept",
        "it joined before",
        "the running edge has it",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert_eq!(fs::read("/etc/firn/firn-edge.toml").unwrap(), before);
    let again = ada.firn(&install);
    assert_eq!(again.code(), 6, "{}", again.err());
}

/// What a gateway's port for machines is to the service: its bytes go through as they are.
fn machines_port() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    (listener, server)
}

fn pass(listener: TcpListener, service: SocketAddr) {
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, service) = (client.unwrap(), TcpStream::connect(service).unwrap());
            for (mut from, mut to) in [
                (client.try_clone().unwrap(), service.try_clone().unwrap()),
                (service, client),
            ] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
}

/// Behind a gateway people and machines call at two ports, and nobody who invites an edge has to know.
#[test]
fn an_edge_that_is_invited_calls_where_the_service_wants_its_machines() {
    let place = tempfile::tempdir().unwrap();
    let (listener, machines) = machines_port();
    let service = Service::start_with(place.path(), false, &["--machine-server", &machines], &[]);
    pass(listener, service.address);
    let (service, ada) = customer_of(service, place.path());
    let people = service.server()[1].clone();
    assert_ne!(machines, people);

    let made = ada.json(&["edge", "create", "office", "--volume", "files"]);
    let command = made["command"].as_str().unwrap();
    assert!(
        command.contains(&machines) && !command.contains(&people),
        "{command}"
    );
    let (secret, state) = (ada.path("secret"), ada.path("edge"));
    fs::write(&secret, made["secret"].as_str().unwrap()).unwrap();
    let mut words: Vec<String> = command.split(' ').skip(1).map(str::to_owned).collect();
    *words
        .iter_mut()
        .skip_while(|word| *word != "--state")
        .nth(1)
        .unwrap() = state.clone();
    words.extend(["--secret-file".into(), secret]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    ada.json(&words);
    let phrase = ada.path("phrase");
    ada.json(&["edge", "approve", "office", "--phrase-file", &phrase]);
    let kept: Vec<String> = fs::read_dir(&state)
        .unwrap()
        .filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok())
        .collect();
    assert!(
        kept.iter().any(|text| text.contains(&machines)),
        "the edge keeps where it calls"
    );
    assert!(kept.iter().all(|text| !text.contains(&people)));

    // The script for a branch office as well.
    let mut install = vec![
        "edge",
        "install",
        "annex",
        "--volume",
        "files",
        "--clients",
        "10.1.0.0/16",
    ];
    install.extend(["--store", "s3://b/p?region=eu-west-1"]);
    let script = ada.firn(&install).good().out();
    assert!(
        script.contains(&machines) && !script.contains(&people),
        "{script}"
    );
}

/// How often an invitation is made, and what is refused before one is.
#[test]
fn an_edge_is_invited_once_and_not_before_all_that_is_wanted_is_known() {
    let place = tempfile::tempdir().unwrap();
    let (_service, ada) = customer(place.path());
    let refused = |code: i32, arguments: &[&str], says: &str| {
        let mut all = vec!["edge", "install", "office"];
        all.extend(arguments);
        let told = ada.firn(&all);
        assert_eq!(told.code(), code, "{arguments:?}: {}", told.err());
        assert!(told.err().contains(says), "{arguments:?}: {}", told.err());
    };
    let clients = ["--clients", "10.1.0.0/16"];
    refused(2, &["--volume", "files"], "--clients");
    refused(2, &clients, "--volume VOLUME");
    refused(2, &["--volume", "files", "--clients", "office"], "is no network");
    refused(5, &["--volume", "fils", "--clients", "10.1.0.0/16"], "fils");
    refused(
        2,
        &["--volume", "files", "--clients", "10.1.0.0/16"],
        "does not say where volume files lies",
    );
    assert_eq!(
        ada.json(&["edge", "list"]),
        Value::Array(Vec::new()),
        "nobody was invited"
    );

    let mut words = vec![
        "edge",
        "install",
        "office",
        "--volume",
        "files",
        "--store",
        "s3://b/p?region=eu-west-1",
    ];
    words.extend(clients);
    let first = ada.json(&words);
    let secret = first["secret"].as_str().unwrap().to_owned();
    let configuration = first["configuration"].as_str().unwrap();
    for line in [
        "store = \"s3://b/p?region=eu-west-1\"",
        "anchor = \"service\"",
        "credentials = \"environment\"",
        "clients = [\"10.1.0.0/16\"]",
    ] {
        assert!(
            configuration.lines().any(|known| known == line),
            "{line}: {configuration}"
        );
    }
    assert_eq!(
        first["mounts"][0],
        "mount -t nfs -o vers=3,hard HOST:/files /mnt/files"
    );
    let script = first["script"].as_str().unwrap();
    assert!(
        !script.contains(&secret) && script.contains("--authority-der"),
        "{script}"
    );

    // For a machine with an engine, by the invitation that is there; what is in the image, as Compose has it.
    let mut words = vec![
        "edge",
        "install",
        "office",
        "--container",
        "--credentials",
        "service",
    ];
    words.extend(["--store", "s3://b/p?region=eu-west-1"]);
    words.extend(clients);
    let second = ada.json(&words);
    assert_eq!(
        (&second["secret"], &second["edge"]["id"]),
        (&first["secret"], &first["edge"]["id"])
    );
    let contained = second["script"].as_str().unwrap();
    let compose = fs::read_to_string(repository().join("packaging/compose/compose.yaml")).unwrap();
    let (_, of_edge) = compose.split_once("\n  edge:\n").unwrap();
    let ports = of_edge
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- \"")?.strip_suffix('"'));
    let ports: Vec<&str> = ports.collect();
    assert!(ports.len() >= 4, "{of_edge}");
    for port in ports {
        assert!(contained.contains(&format!("-p {port} ")), "{port}: {contained}");
    }
    let text = second["configuration"].as_str().unwrap();
    assert!(
        text.contains("credentials = \"service\"") && text.contains("mount_port = 20048"),
        "{text}"
    );
    for script in [script, contained] {
        let mut child = Command::new("sh")
            .arg("-n")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{script}");
    }
}

/// What the page says that the script and the check say, they say: every quoted text is in the source of one of them.
#[test]
fn the_page_quotes_what_is_said() {
    let page = fs::read_to_string(repository().join("docs/install.md")).unwrap();
    let mut sources = String::new();
    let mut take = |path: &str| {
        let path = repository().join(path);
        let paths = match path.is_dir() {
            true => fs::read_dir(path)
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .collect(),
            false => vec![path],
        };
        for path in paths {
            sources.push_str(&fs::read_to_string(path).unwrap());
        }
    };
    for path in [
        "edge-proxy/src/check",
        "edge-proxy/src/enrol.rs",
        "edge-proxy/src/finding.rs",
        "cli/src/commands/install",
        "crates/store-cloud/src/classify.rs",
    ] {
        take(path);
    }
    let (_, table) = page.split_once("| it says |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut quoted = 0;
    for row in rows {
        let said = row.split(" | ").next().unwrap();
        // A verdict and its subject stand in columns.
        for text in said
            .split('`')
            .skip(1)
            .step_by(2)
            .flat_map(|text| text.split("  "))
        {
            quoted += 1;
            assert!(sources.contains(text.trim()), "nobody says {text:?}");
        }
    }
    assert!(quoted >= 15, "{quoted}");
}

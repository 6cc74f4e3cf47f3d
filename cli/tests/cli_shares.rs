//! One tenant's office follows another tenant's volume: what people on both sides type, over a real service, with real edges and an NFS client.
#![allow(clippy::disallowed_methods, reason = "real processes, real time")]

mod running;

use firn_rig::{Client, EXPORT, Edge, Settings};
use running::{Person, Service};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// What two edges may take to see something, on a machine that does much else.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A tenant's administrator.
struct Side {
    person: Person,
    tenant: String,
    key: String,
    phrase: String,
}

impl Side {
    fn new(place: &Path, service: &Service, name: &str) -> Self {
        let person = Person::new(place, name);
        let welcome = person.sign_up(service, &format!("{name}@example.org"));
        Self {
            tenant: welcome["tenant"]["id"].as_str().unwrap().to_owned(),
            key: welcome["tenant"]["tenant_key"].as_str().unwrap().to_owned(),
            phrase: person.path("phrase"),
            person,
        }
    }

    /// Types a command that needs the recovery phrase.
    fn signs(&self, arguments: &[&str]) -> Value {
        let all = [arguments, &["--phrase-file", &self.phrase]].concat();
        self.person.json(&all)
    }

    /// Invites an edge, joins it in the directory, and approves it.
    fn joined(
        &self,
        service: &Service,
        name: &str,
        volumes: &[&str],
        settings: Settings,
        directory: &Path,
    ) -> Edge {
        let secret = self.person.path(&format!("{name}-join"));
        let mut create = vec!["edge", "create", name, "--secret-file", &secret];
        for volume in volumes {
            create.extend(["--volume", volume]);
        }
        self.person.json(&create);
        let edge = Edge::configure(Edge::binary().unwrap(), directory, settings).unwrap();
        let state = edge.state.display().to_string();
        let mut join = vec!["edge", "join", "--tenant", &self.tenant, "--state", &state];
        let server = service.server();
        join.extend(server.iter().map(String::as_str));
        let text = fs::read_to_string(&secret).unwrap();
        self.person.tell(&join, &text).good();
        self.signs(&["edge", "approve", name]);
        edge
    }
}

/// Puts these lines into the edge's section `[volume]`.
fn add_lines(edge: &Edge, lines: &str) {
    let text = fs::read_to_string(&edge.config).unwrap();
    let text = text.replacen("\n[limits]", &format!("{lines}\n[limits]"), 1);
    fs::write(&edge.config, text).unwrap();
}

async fn read(client: &mut Client, name: &str) -> Result<blake3::Hash, Box<dyn std::error::Error>> {
    let root = client.root.clone();
    let file = client.lookup(&root, name.as_bytes()).await?;
    Ok(client.checksum(&file).await?.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_office_of_another_tenant_follows_a_volume_and_is_refused_once_the_grant_is_revoked() {
    let place = tempfile::tempdir().unwrap();
    let service = Service::start(place.path(), false);
    let (ada, bob) = (
        Side::new(place.path(), &service, "ada"),
        Side::new(place.path(), &service, "bob"),
    );
    let volume = ada.signs(&["volume", "create", "files", "--region", "eu"]);
    let volume = volume["id"].as_str().unwrap();
    fs::create_dir(place.path().join("store")).unwrap();
    let settings = |name: &str| Settings {
        name: name.into(),
        table: "service".into(),
        limits: "checkpoint_busy = \"1 h\"\ncheckpoint_trickle = \"1 h\"".into(),
        ..Settings::local(place.path())
    };
    let head = place.path().join("head");
    let mut owner = ada.joined(&service, "head", &["files"], settings("head"), &head);
    owner.command("enrol", &[]).await.unwrap();
    owner.start().await.unwrap();
    let mut one = Client::mount(owner.address, EXPORT).await.unwrap();
    let root = one.root.clone();
    let plan = b"what is planned".repeat(9000);
    one.write_file(&root, b"plan", 0o644, &plan).await.unwrap();
    owner.sync().await.unwrap();

    // Bob's edge has no volume of its own. Nothing of the volume is its before all three have been typed.
    let office = place.path().join("office");
    let granted = Settings {
        volume: volume.to_owned(),
        ..settings("office")
    };
    let mut follower = bob.joined(&service, "office", &[], granted, &office);
    let offered = ada.person.json(&[
        "share",
        "files",
        "--with",
        &bob.tenant,
        "--key",
        &bob.key,
        "--read",
    ]);
    let command = offered["command"].as_str().unwrap().replace("EDGE", "office");
    let typed: Vec<&str> = command.split(' ').skip(1).collect();
    let early = ada.person.firn(&[
        "share",
        "approve",
        "files",
        "--with",
        &bob.tenant,
        "--phrase-file",
        &ada.phrase,
    ]);
    assert_eq!(early.code(), 6, "{}", early.err());
    let accepted = bob.signs(&typed);
    let lines = accepted["configuration"].as_str().unwrap();
    let lines: Vec<&str> = lines
        .lines()
        .filter(|line| line.starts_with("owner") || line.starts_with("follow"))
        .collect();
    add_lines(
        &follower,
        &(lines.join("\n") + "\nfreshness = \"0 s\"\nstale_reads = \"allow\"\n"),
    );
    let refused = follower.refused(2, "enrol", &[]).await.unwrap();
    assert!(refused.contains("has not approved this edge yet"), "{refused}");
    let listed = ada.person.firn(&["share", "list"]).good().out();
    assert!(listed.contains("accepted"), "{listed}");
    ada.signs(&["share", "approve", "files", "--with", &bob.tenant]);
    let listed = bob.person.firn(&["share", "list"]).good().out();
    assert!(listed.contains("files") && listed.contains("active"), "{listed}");

    follower.command("enrol", &[]).await.unwrap();
    follower.start().await.unwrap();
    let mut two = Client::mount(follower.address, EXPORT).await.unwrap();
    assert_eq!(read(&mut two, "plan").await.unwrap(), blake3::hash(&plan));
    let root_there = two.root.clone();
    let written = two.write_file(&root_there, b"mine", 0o644, b"x").await;
    assert!(written.unwrap_err().to_string().contains("ROFS"));
    one.write_file(&root, b"plan", 0o644, b"another").await.unwrap();
    owner.sync().await.unwrap();
    assert_eq!(read(&mut two, "plan").await.unwrap(), blake3::hash(b"another"));

    // A file that is open there when it is revoked: a plain error at the next read, also where stale reads are allowed.
    let open = two.lookup(&root_there, b"plan").await.unwrap();
    let epochs = |volume: &Value| volume["key_ring_generation"].as_u64().unwrap();
    let before = epochs(&ada.person.json(&["volume", "show", "files"]));
    let revoked = ada.signs(&["share", "revoke", "files", "--with", &bob.tenant, "--yes"]);
    assert_eq!(
        (&revoked["grant"]["state"], &revoked["new_key_epoch"]),
        (&"revoked".into(), &true.into())
    );
    let error = two.checksum(&open).await.unwrap_err().to_string();
    assert!(error.contains("ACCES"), "{error}");
    let error = read(&mut two, "plan").await.unwrap_err().to_string();
    assert!(error.contains("ACCES"), "{error}");
    let status = follower.status().await.unwrap();
    let (away, is_denied) = (
        status["following"]["away"].as_str().unwrap(),
        &status["following"]["is_denied"],
    );
    assert!(away.contains("grant_revoked") && *is_denied == true, "{away}");
    let log = fs::read_to_string(follower.config.with_file_name("edge.log")).unwrap();
    assert!(log.contains("the anchor refuses this edge"), "{log}");
    let shown = ada.person.json(&["volume", "show", "files"]);
    assert_eq!(epochs(&shown), before + 1);
    assert_eq!(
        shown["keys_wrapped_to"].as_array().unwrap().len(),
        2,
        "recovery and ada's edge"
    );
    // The owner's clients see nothing of it.
    one.write_file(&root, b"later", 0o644, b"goes on").await.unwrap();
    owner.sync().await.unwrap();

    // A restart finds the same, and says so.
    follower.stop().await.unwrap();
    let said = follower.refused(2, "run", &[]).await.unwrap();
    assert!(said.contains("grant of"), "{said}");

    // Granted anew, it is accepted and approved anew, and reads what was written meanwhile.
    ada.person.json(&[
        "share",
        "files",
        "--with",
        &bob.tenant,
        "--key",
        &bob.key,
        "--read",
    ]);
    bob.signs(&typed);
    ada.signs(&["share", "approve", "files", "--with", &bob.tenant]);
    follower.start().await.unwrap();
    let mut two = Client::mount(follower.address, EXPORT).await.unwrap();
    let end = Instant::now() + TIMEOUT;
    while read(&mut two, "later").await.ok() != Some(blake3::hash(b"goes on")) {
        assert!(Instant::now() < end, "{}", follower.status().await.unwrap());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    follower.stop().await.unwrap();
    owner.stop().await.unwrap();
}

/// What `status` says of an edge's share of a volume.
async fn shared(edge: &Edge) -> Value {
    edge.status().await.unwrap()["shared"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_office_of_another_tenant_writes_by_turns_and_what_it_kept_at_a_revocation_is_salvaged_when_it_is_let_in_again()
 {
    let place = tempfile::tempdir().unwrap();
    let service = Service::start(place.path(), false);
    let (ada, bob) = (
        Side::new(place.path(), &service, "ada"),
        Side::new(place.path(), &service, "bob"),
    );
    let volume = ada.signs(&["volume", "create", "files", "--region", "eu"]);
    let volume = volume["id"].as_str().unwrap();
    fs::create_dir(place.path().join("store")).unwrap();
    let settings = |name: &str| Settings {
        name: name.into(),
        table: "service".into(),
        limits: "checkpoint_busy = \"1 h\"\ncheckpoint_trickle = \"1 h\"".into(),
        ..Settings::local(place.path())
    };
    let (head, office) = (place.path().join("head"), place.path().join("office"));
    let mut owner = ada.joined(&service, "head", &["files"], settings("head"), &head);
    owner.command("enrol", &[]).await.unwrap();
    add_lines(&owner, "shared = true\nfreshness = \"0 s\"\n");
    owner.start().await.unwrap();
    let granted = Settings {
        volume: volume.to_owned(),
        ..settings("office")
    };
    let mut other = bob.joined(&service, "office", &[], granted, &office);
    let share = [
        "share",
        "files",
        "--with",
        &bob.tenant,
        "--key",
        &bob.key,
        "--write",
    ];
    let offered = ada.person.json(&share);
    let command = offered["command"].as_str().unwrap().replace("EDGE", "office");
    let typed: Vec<&str> = command.split(' ').skip(1).collect();
    // What is accepted is what was granted: to read only is another grant.
    let less: Vec<&str> = typed.iter().copied().filter(|word| *word != "--write").collect();
    let refused = bob
        .person
        .firn(&[&less[..], &["--phrase-file", &bob.phrase]].concat());
    assert_ne!(refused.code(), 0);
    let accepted = bob.signs(&typed);
    let lines = accepted["configuration"].as_str().unwrap();
    let lines: Vec<&str> = lines
        .lines()
        .filter(|line| line.starts_with("owner") || line.starts_with("shared"))
        .collect();
    add_lines(&other, &(lines.join("\n") + "\nfreshness = \"0 s\"\n"));
    ada.signs(&["share", "approve", "files", "--with", &bob.tenant]);
    other.command("enrol", &[]).await.unwrap();
    other.start().await.unwrap();

    // By turns.
    let mut one = Client::mount(owner.address, EXPORT).await.unwrap();
    let mut two = Client::mount(other.address, EXPORT).await.unwrap();
    let (root, there) = (one.root.clone(), two.root.clone());
    one.write_file(&root, b"from-head", 0o644, b"ada wrote this")
        .await
        .unwrap();
    two.write_file(&there, b"from-office", 0o644, b"bob wrote this")
        .await
        .unwrap();
    assert_eq!(shared(&other).await["role"], "owning");
    other.sync().await.unwrap();
    assert_eq!(
        read(&mut one, "from-office").await.unwrap(),
        blake3::hash(b"bob wrote this")
    );
    assert_eq!(
        read(&mut two, "from-head").await.unwrap(),
        blake3::hash(b"ada wrote this")
    );

    // Revoked while it has the volume, and something that the cloud has not: its clients hear it, the owner's go on after a minute.
    two.write_file(&there, b"kept", 0o644, b"acknowledged, not uploaded")
        .await
        .unwrap();
    let open = two.lookup(&there, b"from-office").await.unwrap();
    ada.signs(&["share", "revoke", "files", "--with", &bob.tenant, "--yes"]);
    let end = Instant::now() + TIMEOUT;
    let error = loop {
        match two.checksum(&open).await {
            Err(error) => break error.to_string(),
            Ok(_) => assert!(Instant::now() < end, "{}", shared(&other).await),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(error.contains("ACCES"), "{error}");
    let error = two
        .write_file(&there, b"more", 0o644, b"x")
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("ACCES"), "{error}");
    let status = shared(&other).await;
    assert!(
        status["denied"].as_str().unwrap().contains("grant_revoked"),
        "{status}"
    );
    one.write_file(&root, b"later", 0o644, b"goes on").await.unwrap();
    assert_eq!(shared(&owner).await["breaks"], 1);
    owner.sync().await.unwrap();

    // Let in again, it puts aside what it kept, and goes on as one of two.
    ada.person.json(&share);
    bob.signs(&typed);
    ada.signs(&["share", "approve", "files", "--with", &bob.tenant]);
    let end = Instant::now() + TIMEOUT;
    let salvaged = loop {
        let status = shared(&other).await;
        if let Some(salvaged) = status["salvaged"].get(0) {
            break salvaged.clone();
        }
        assert!(Instant::now() < end, "{status}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(
        salvaged["paths"].as_array().unwrap().contains(&"/kept".into()),
        "{salvaged}"
    );
    let end = Instant::now() + TIMEOUT;
    while read(&mut two, "later").await.ok() != Some(blake3::hash(b"goes on")) {
        assert!(Instant::now() < end, "{}", shared(&other).await);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    other.stop().await.unwrap();
    owner.stop().await.unwrap();
}

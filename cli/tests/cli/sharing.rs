//! Two tenants at a real service: ada, whose edge serves a volume, and bob, whose edge it is offered to.
#![allow(dead_code, reason = "each test file uses a part of it")]

use crate::running::{Person, Service, Told};
use firn_rig::{Client, Edge, Settings};
use serde_json::Value;
use std::{fs, path::Path, time::Duration};

/// What two edges may take to see something, on a machine that does much else.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// A tenant's administrator.
pub struct Side {
    pub person: Person,
    pub tenant: String,
    pub key: String,
    pub phrase: String,
}

impl Side {
    pub fn new(place: &Path, service: &Service, name: &str) -> Self {
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
    pub fn signs(&self, arguments: &[&str]) -> Value {
        let all = [arguments, &["--phrase-file", &self.phrase]].concat();
        self.person.json(&all)
    }

    /// The same, whatever it says.
    pub fn tries(&self, arguments: &[&str]) -> Told {
        self.person
            .firn(&[arguments, &["--phrase-file", &self.phrase]].concat())
    }

    /// Invites an edge, joins it in the directory, and approves it.
    pub fn joined(
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

/// Both tenants, ada's volume `files`, and their edges.
pub struct Offices {
    pub service: Service,
    pub ada: Side,
    pub bob: Side,
    pub volume: String,
    /// Ada's edge, which runs.
    pub owner: Edge,
    /// Bob's, which joined and has no volume yet.
    pub other: Edge,
    access: &'static str,
}

/// A service, and ada and bob, who have nothing there yet.
pub fn signed_up(place: &Path) -> (Service, (Side, Side)) {
    let service = Service::start(place, false);
    let sides = (
        Side::new(place, &service, "ada"),
        Side::new(place, &service, "bob"),
    );
    (service, sides)
}

impl Offices {
    /// Everything before the volume is offered. `access` is as it will be typed: `--read` or `--write`.
    pub async fn new(place: &Path, access: &'static str) -> Self {
        let (service, sides) = signed_up(place);
        Self::of(place, service, sides, access).await
    }

    /// The same of tenants that have nothing yet.
    pub async fn of(place: &Path, service: Service, (ada, bob): (Side, Side), access: &'static str) -> Self {
        let volume = ada.signs(&["volume", "create", "files", "--region", "eu"]);
        let volume = volume["id"].as_str().unwrap().to_owned();
        fs::create_dir(place.join("store")).unwrap();
        let settings = |name: &str| Settings {
            name: name.into(),
            table: "service".into(),
            limits: "checkpoint_busy = \"1 h\"\ncheckpoint_trickle = \"1 h\"".into(),
            ..Settings::local(place)
        };
        let (head, office) = (place.join("head"), place.join("office"));
        let mut owner = ada.joined(&service, "head", &["files"], settings("head"), &head);
        owner.command("enrol", &[]).await.unwrap();
        if access == "--write" {
            add_lines(&owner, "shared = true\nfreshness = \"0 s\"\n");
        }
        owner.start().await.unwrap();
        let granted = Settings {
            volume: volume.clone(),
            ..settings("office")
        };
        let other = bob.joined(&service, "office", &[], granted, &office);
        Self {
            service,
            ada,
            bob,
            volume,
            owner,
            other,
            access,
        }
    }

    /// Ada offers the volume; gives what bob is to type, as it was printed.
    pub fn offer(&self) -> Vec<String> {
        let (tenant, key) = (&*self.bob.tenant, &*self.bob.key);
        let share = ["share", "files", "--with", tenant, "--key", key, self.access];
        let offered = self.ada.person.json(&share);
        let command = offered["command"].as_str().unwrap().replace("EDGE", "office");
        command.split(' ').skip(1).map(str::to_owned).collect()
    }

    /// Bob types it; gives the lines for his edge's configuration.
    pub fn accept(&self, typed: &[String]) -> String {
        let typed: Vec<&str> = typed.iter().map(String::as_str).collect();
        let accepted = self.bob.signs(&typed);
        let lines = accepted["configuration"].as_str().unwrap().lines();
        let told = ["owner", "follow", "shared"];
        let lines = lines.filter(|line| told.iter().any(|word| line.starts_with(word)));
        lines.collect::<Vec<_>>().join("\n")
    }

    pub fn approve(&self) {
        self.ada
            .signs(&["share", "approve", "files", "--with", &self.bob.tenant]);
    }

    pub fn revoke(&self, more: &[&str]) -> Value {
        let revoke = ["share", "revoke", "files", "--with", &self.bob.tenant, "--yes"];
        self.ada.signs(&[&revoke[..], more].concat())
    }

    /// Offered, accepted, approved and served by both.
    pub async fn share(&mut self) {
        let typed = self.offer();
        let lines = self.accept(&typed);
        add_lines(&self.other, &(lines + "\nfreshness = \"0 s\"\n"));
        self.approve();
        self.other.command("enrol", &[]).await.unwrap();
        self.other.start().await.unwrap();
    }
}

/// Puts these lines into the edge's section `[volume]`.
pub fn add_lines(edge: &Edge, lines: &str) {
    let text = fs::read_to_string(&edge.config).unwrap();
    let text = text.replacen("\n[limits]", &format!("{lines}\n[limits]"), 1);
    fs::write(&edge.config, text).unwrap();
}

pub async fn read(client: &mut Client, name: &str) -> Result<blake3::Hash, Box<dyn std::error::Error>> {
    let root = client.root.clone();
    let file = client.lookup(&root, name.as_bytes()).await?;
    Ok(client.checksum(&file).await?.0)
}

/// What `status` says of an edge's share of a volume.
pub async fn shared(edge: &Edge) -> Value {
    edge.status().await.unwrap()["shared"].clone()
}

//! A service that changes what belongs to what: another volume's keys, more volumes for an edge, volumes left out, keys gone back.

use crate::running::{Liar, Person, Service};
use serde_json::Value;
use std::{fs, path::Path};

const UNTRUSTED: i32 = 9;

/// A tenant with two volumes, behind a liar who is honest until told otherwise.
struct World {
    directory: tempfile::TempDir,
    service: Service,
    liar: Liar,
    ada: Person,
    phrase: String,
    files: Value,
    secret: Value,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let service = Service::start(directory.path(), true);
        let liar = Liar::before(&service);
        let ada = Person::new(directory.path(), "ada");
        ada.sign_up(&service, "ada@one.example");
        let path = ada.path("profile.json");
        let text = fs::read_to_string(&path).unwrap();
        let lied_to = text.replace(&service.address.to_string(), &liar.address.to_string());
        fs::write(&path, lied_to).unwrap();
        let phrase = ada.path("phrase");
        let make = |name: &str| {
            let made = ada.json(&[
                "volume",
                "create",
                name,
                "--region",
                "eu",
                "--phrase-file",
                &phrase,
            ]);
            assert_eq!(made["key_ring_generation"], 1);
            made
        };
        let (files, secret) = (make("files"), make("secret"));
        Self {
            directory,
            service,
            liar,
            ada,
            phrase,
            files,
            secret,
        }
    }

    /// An edge that was invited to `files` and has joined, and waits to be approved.
    fn join_office(&self) {
        let secret_file = self.ada.path("join");
        let create = [
            "edge",
            "create",
            "office",
            "--volume",
            "files",
            "--secret-file",
            &secret_file,
        ];
        self.ada.json(&create);
        let tenant = self.ada.json(&["whoami"])["tenant"].as_str().unwrap().to_owned();
        let edge = Person::new(self.directory.path(), "edge");
        let (server, state) = (format!("http://{}", self.service.address), edge.path("state"));
        let join = [
            "edge", "join", "--server", &server, "--tenant", &tenant, "--state", &state,
        ];
        edge.tell(&join, &fs::read_to_string(&secret_file).unwrap())
            .good();
    }

    fn generation(&self, volume: &str) -> Value {
        self.ada.json(&["volume", "show", volume])["key_ring_generation"].clone()
    }

    /// A machine that is logged in and has seen nothing yet.
    fn newcomer(&self) -> Person {
        let other = Person::new(self.directory.path(), "other");
        let text = fs::read_to_string(self.ada.path("profile.json")).unwrap();
        let mut profile: Value = serde_json::from_str(&text).unwrap();
        for seen in ["volumes", "key_rings"] {
            if profile.get(seen).is_some() {
                profile[seen] = Value::Object(serde_json::Map::new());
            }
        }
        write_private(Path::new(&other.path("profile.json")), &profile.to_string());
        other
    }
}

fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap().to_owned()
}

#[track_caller]
fn untrusted(person: &Person, command: &[&str], why: &str) {
    let refused = person.firn(command);
    assert_eq!(
        refused.code(),
        UNTRUSTED,
        "{command:?}: {}{}",
        refused.out(),
        refused.err()
    );
    assert!(refused.err().contains(why), "{command:?}: {}", refused.err());
}

#[test]
fn an_edge_is_approved_for_what_it_was_invited_to_and_for_nothing_else() {
    let world = World::new();
    world.join_office();
    let (files, secret) = (text(&world.files, "id"), text(&world.secret, "id"));
    world.liar.tell(move |first, text| {
        if first.starts_with("GET") && first.contains("/edges") {
            text.replace(&format!("[\"{files}\"]"), &format!("[\"{files}\",\"{secret}\"]"))
        } else {
            text
        }
    });
    let approve = ["edge", "approve", "office", "--phrase-file", &world.phrase];
    untrusted(&world.ada, &approve, "was invited to");
    world.liar.be_honest();
    assert_eq!(
        world.generation("secret"),
        1,
        "another volume's keys were wrapped"
    );
    assert_eq!(world.generation("files"), 1);
    world.ada.firn(&approve).good();
    assert_eq!(world.generation("files"), 2);
}

#[test]
fn one_volumes_keys_are_never_taken_for_anothers() {
    let world = World::new();
    let (files, secret) = (world.files.clone(), world.secret.clone());
    let secret_ring = {
        let ring = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        let noted = ring.clone();
        world.liar.tell(move |first, text| {
            if first.contains("/keyring") {
                noted.lock().unwrap().clone_from(&text);
            }
            text
        });
        world.ada.json(&["volume", "show", "secret"]);
        ring.lock().unwrap().clone()
    };
    world.liar.tell(move |first, answer| {
        if first.starts_with("GET") && first.contains(&format!("{}/keyring", text(&files, "id"))) {
            secret_ring.clone()
        } else {
            answer.replace(&text(&files, "family"), &text(&secret, "family"))
        }
    });
    let show = ["volume", "show", "files"];
    untrusted(&world.ada, &show, "signed for volume");
    untrusted(&world.newcomer(), &show, "signed for volume");
}

#[test]
fn a_volume_that_is_hidden_while_an_edge_is_removed_is_named() {
    let world = World::new();
    world.join_office();
    let approve = ["edge", "approve", "office", "--phrase-file", &world.phrase];
    world.ada.firn(&approve).good();
    let files = text(&world.files, "id");
    let hidden = files.clone();
    world.liar.tell(move |first, text| {
        if !first.contains("/volumes?") {
            return text;
        }
        let mut page: Value = serde_json::from_str(&text).unwrap();
        let items = page["items"].as_array_mut().unwrap();
        items.retain(|item| item["id"] != *hidden);
        page.to_string()
    });
    let remove = [
        "edge",
        "remove",
        "office",
        "--yes",
        "--phrase-file",
        &world.phrase,
    ];
    untrusted(&world.ada, &remove, &files);
    world.liar.be_honest();
    assert_eq!(
        world.generation("files"),
        2,
        "its keys were not rotated, as it was told"
    );
    world.ada.firn(&remove).good();
    assert_eq!(world.generation("files"), 3);
}

#[test]
fn a_volume_made_by_a_command_that_was_interrupted_is_taken_up() {
    let world = World::new();
    // The answer to the first step is lost, and with it the second step.
    world.liar.tell(|first, text| {
        if first.starts_with("PUT") || first.starts_with("POST") && first.contains("/volumes") {
            "{".into()
        } else {
            text
        }
    });
    let create = [
        "volume",
        "create",
        "third",
        "--region",
        "eu",
        "--phrase-file",
        &world.phrase,
    ];
    assert_ne!(world.ada.firn(&create).code(), 0);
    world.liar.be_honest();
    assert_eq!(world.generation("third"), 0);
    let mut elsewhere = create;
    elsewhere[4] = "us";
    assert_ne!(world.ada.firn(&elsewhere).code(), 0, "not what was asked for");
    world.ada.firn(&create).good();
    assert_eq!(world.generation("third"), 1);
}

//! A service that lies: it puts keys of its own in the place of others', shows old key rings, rewrites its log. The client
//! refuses, says so with exit code 9, and wraps nothing.

use crate::running::{Liar, Person, Service};
use std::fs;

const UNTRUSTED: i32 = 9;

/// Everything through the liar, which is honest until told otherwise.
fn world(directory: &std::path::Path) -> (Service, Liar, Person, String) {
    let service = Service::start(directory, true);
    let liar = Liar::before(&service);
    let ada = Person::new(directory, "ada");
    ada.sign_up(&service, "ada@one.example");
    let path = ada.path("profile.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace(&service.address.to_string(), &liar.address.to_string()),
    )
    .unwrap();
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
    (service, liar, ada, phrase)
}

fn field(text: &str, name: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    value["items"][0][name].as_str().unwrap().to_owned()
}

/// An edge that was invited and has joined, and waits to be approved.
fn join_office(directory: &std::path::Path, service: &Service, ada: &Person) {
    let secret_file = ada.path("join");
    ada.json(&[
        "edge",
        "create",
        "office",
        "--volume",
        "files",
        "--secret-file",
        &secret_file,
    ]);
    let tenant = ada.json(&["whoami"])["tenant"].as_str().unwrap().to_owned();
    let edge = Person::new(directory, "edge");
    let server = format!("http://{}", service.address);
    edge.tell(
        &[
            "edge",
            "join",
            "--server",
            &server,
            "--tenant",
            &tenant,
            "--state",
            &edge.path("state"),
        ],
        &fs::read_to_string(&secret_file).unwrap(),
    )
    .good();
}

#[test]
fn a_key_put_in_the_place_of_the_edges_is_never_wrapped_to() {
    let directory = tempfile::tempdir().unwrap();
    let (service, liar, ada, phrase) = world(directory.path());
    join_office(directory.path(), &service, &ada);
    // The curve's base point is a key like any other, and its secret is known.
    let mine = format!("09{}", "00".repeat(31));
    liar.tell(move |first, text| {
        if first.contains("/edges") {
            let theirs = field(&text, "recipient_key");
            text.replace(&theirs, &mine)
        } else {
            text
        }
    });
    let refused = ada.firn(&["edge", "approve", "office", "--phrase-file", &phrase]);
    assert_eq!(refused.code(), UNTRUSTED, "{}", refused.err());
    assert!(
        refused.err().contains("not the one that the edge made"),
        "{}",
        refused.err()
    );
    liar.be_honest();
    assert_eq!(
        ada.json(&["volume", "show", "files"])["key_ring_generation"],
        1,
        "nothing was wrapped"
    );
    ada.firn(&["edge", "approve", "office", "--phrase-file", &phrase])
        .good();
}

#[test]
fn another_tenant_key_an_old_ring_and_a_rewritten_log_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (service, liar, ada, phrase) = world(directory.path());
    let path = ada.path("profile.json");
    let profile: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let pinned = profile["tenant_key"].as_str().unwrap().to_owned();
    let other = "ab".repeat(32);
    liar.tell(move |_, text| text.replace(&pinned, &other));
    for command in [
        vec!["whoami"],
        vec![
            "volume",
            "create",
            "more",
            "--region",
            "eu",
            "--phrase-file",
            &phrase,
        ],
        vec!["edge", "create", "e", "--volume", "files"],
        vec!["doctor"],
    ] {
        let refused = ada.firn(&command);
        assert_eq!(refused.code(), UNTRUSTED, "{command:?}: {}", refused.err());
    }
    liar.be_honest();

    // The ring of before an edge was added, shown again afterwards.
    let old = std::sync::Arc::new(std::sync::Mutex::new(Vec::<String>::new()));
    let noted = old.clone();
    liar.tell(move |first, text| {
        if first.contains("/keyring") {
            noted.lock().unwrap().push(text.clone());
        }
        text
    });
    ada.json(&["volume", "show", "files"]);
    let old_ring = old.lock().unwrap()[0].clone();
    join_office(directory.path(), &service, &ada);
    ada.firn(&["edge", "approve", "office", "--phrase-file", &phrase])
        .good();
    liar.tell(move |first, text| {
        if first.contains("GET") && first.contains("/keyring") {
            old_ring.clone()
        } else {
            text
        }
    });
    let refused = ada.firn(&["volume", "show", "files"]);
    assert_eq!(refused.code(), UNTRUSTED, "{}", refused.err());
    liar.be_honest();

    ada.firn(&["audit", "verify"]).good();
    liar.tell(|first, text| {
        if first.contains("/audit?") {
            text.replace("volume.create", "volume.crfate")
        } else {
            text
        }
    });
    let refused = ada.firn(&["audit", "verify"]);
    assert_eq!(refused.code(), UNTRUSTED, "{}", refused.err());
    assert!(refused.err().contains("was changed"), "{}", refused.err());
}

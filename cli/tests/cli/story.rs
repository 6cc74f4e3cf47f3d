//! The whole story a customer types, against a real `firn-api` over TLS.

use crate::running::{Person, Service};
use std::fs;

/// Everything below `directory` that the service stored, searched for `needle` as it is, in hex and in base64.
fn stored_holds(directory: &std::path::Path, needle: &[u8]) -> bool {
    use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
    let hex = data_encoding::HEXLOWER.encode(needle);
    let forms = [
        needle.to_vec(),
        hex.into_bytes(),
        STANDARD_NO_PAD.encode(needle).into_bytes(),
    ];
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        if forms
            .iter()
            .any(|form| bytes.windows(form.len()).any(|window| window == form))
        {
            return true;
        }
    }
    false
}

#[test]
fn sign_up_volume_edge_bill_and_check_up() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start(directory.path(), false);
    let ada = Person::new(directory.path(), "ada");
    let welcome = ada.sign_up(&service, "ada@one.example");
    let tenant = welcome["tenant"]["id"].as_str().unwrap();
    assert_eq!(ada.json(&["whoami"])["tenant"], *tenant);

    let phrase = ada.path("phrase");
    let volume = ada.json(&[
        "volume",
        "create",
        "files",
        "--region",
        "eu",
        "--phrase-file",
        &phrase,
    ]);
    assert_eq!(volume["key_ring_generation"], 1);
    let list = ada.firn(&["volume", "list"]).good().out();
    assert!(
        list.starts_with("ID") && list.contains("files") && !list.contains('\u{1b}'),
        "{list}"
    );
    let policy = ada.json(&["snapshot", "policy", "files", "--daily", "7"]);
    assert_eq!(
        (policy["daily"].as_u64(), policy["hourly"].as_u64()),
        (Some(7), Some(48))
    );

    // An edge: invited here, joined on its machine with the secret from standard input, approved here.
    let secret_file = ada.path("join");
    let invited = ada.json(&[
        "edge",
        "create",
        "office",
        "--volume",
        "files",
        "--secret-file",
        &secret_file,
    ]);
    let command = invited["command"].as_str().unwrap();
    let secret = fs::read_to_string(&secret_file).unwrap();
    assert!(
        !command.contains(secret.trim()),
        "the secret is never on a command line"
    );
    let edge_machine = Person::new(directory.path(), "edge");
    let state = edge_machine.path("state");
    let mut join = vec!["edge".to_owned(), "join".to_owned()];
    join.extend(service.server());
    join.extend(["--tenant", tenant, "--state", &state].map(str::to_owned));
    let join: Vec<&str> = join.iter().map(String::as_str).collect();
    let too_early = ada.firn(&["edge", "approve", "office", "--phrase-file", &phrase]);
    assert_eq!(too_early.code(), 6, "{}", too_early.err());
    edge_machine.tell(&join, &secret).good();
    let again = Person::new(directory.path(), "thief").tell(
        &join
            .iter()
            .map(|part| if *part == state { "other" } else { part })
            .collect::<Vec<_>>(),
        &secret,
    );
    assert_ne!(again.code(), 0, "a secret is used once");
    let _ = fs::remove_dir_all("other");
    let approved = ada.json(&["edge", "approve", "office", "--phrase-file", &phrase]);
    assert_eq!(approved["wrapped"][0], "files");
    let shown = ada.json(&["volume", "show", "files"]);
    assert_eq!(shown["keys_wrapped_to"].as_array().unwrap().len(), 2);
    assert_eq!(shown["key_ring_generation"], 2);

    // A new epoch of keys for the same ones.
    let rotated = ada.json(&["volume", "rotate", "files", "--phrase-file", &phrase]);
    assert_eq!(rotated["keys_wrapped_to"], shown["keys_wrapped_to"]);
    assert_eq!(rotated["key_ring_generation"], 3);
    let stranger = Person::new(directory.path(), "stranger");
    let other_phrase = stranger.path("phrase");
    let other = firn_seal::RecoveryPhrase::from_entropy([6; 32]);
    fs::write(&other_phrase, &*other.expose_words()).unwrap();
    let refused = ada.firn(&["volume", "rotate", "files", "--phrase-file", &other_phrase]);
    assert_ne!(refused.code(), 0, "another tenant's phrase");

    // The edge's own key opens the ring that the service keeps: fetched, verified with what the invitation pinned.
    let enrolment = fs::read_to_string(format!("{state}/enrolment.json")).unwrap();
    let enrolment: serde_json::Value = serde_json::from_str(&enrolment).unwrap();
    assert_eq!(enrolment["tenant_key"], welcome["tenant"]["tenant_key"]);

    // What is spent, and why: by requests so far, which are free.
    let cost = ada.firn(&["cost"]).good().out();
    assert!(
        cost.contains("USD") && cost.lines().count() <= 24,
        "one screen: {cost}"
    );
    assert!(
        ada.firn(&["invoice", "show"])
            .good()
            .out()
            .contains("draft invoice")
    );
    assert!(
        ada.firn(&["invoice", "export"])
            .good()
            .out()
            .starts_with("tenant,month,state,line,")
    );
    ada.firn(&["budget", "set", "--alert", "5", "--hard-cap", "12.50"])
        .good();
    assert!(
        ada.firn(&["budget", "show"])
            .good()
            .out()
            .contains("12.50 a month")
    );

    // A key of less right, for a colleague's machine: what it may not, it is told.
    let key_file = ada.path("reader");
    ada.json(&[
        "key",
        "create",
        "ci",
        "--role",
        "reader",
        "--secret-file",
        &key_file,
    ]);
    let bob = Person::new(directory.path(), "bob");
    let mut login = vec!["login".to_owned()];
    login.extend(service.server());
    let tenant_key = welcome["tenant"]["tenant_key"].as_str().unwrap();
    login.extend(
        [
            "--tenant",
            tenant,
            "--tenant-key",
            tenant_key,
            "--key-file",
            &key_file,
        ]
        .map(str::to_owned),
    );
    bob.firn(&login.iter().map(String::as_str).collect::<Vec<_>>())
        .good();
    let refused = bob.firn(&["key", "create", "x", "--role", "owner"]);
    assert_eq!(refused.code(), 4, "{}", refused.err());
    let missing = bob.firn(&["volume", "show", "nothing"]);
    assert_eq!(missing.code(), 5);
    assert!(
        missing.err().contains("firn volume list"),
        "it says what to do next: {}",
        missing.err()
    );
    ada.firn(&["key", "revoke", "ci"]).good();
    assert_eq!(
        bob.firn(&["volume", "list"]).code(),
        3,
        "a revoked key is refused"
    );

    // Removing the edge leaves it out of the next epoch.
    ada.json(&["edge", "remove", "office", "--yes", "--phrase-file", &phrase]);
    let shown = ada.json(&["volume", "show", "files"]);
    assert_eq!(shown["keys_wrapped_to"].as_array().unwrap().len(), 1);

    ada.firn(&["audit", "verify"]).good();
    let bundle = ada.path("bundle");
    ada.firn(&["doctor", "--bundle", &bundle]).good();
    let bundle = fs::read_to_string(bundle).unwrap();
    let profile: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(ada.path("profile.json")).unwrap()).unwrap();
    assert!(!bundle.contains(profile["api_key"].as_str().unwrap()));

    // Nothing that opens a volume lies at the service: not the phrase, not what derives from it, not the edge's secret.
    let words = fs::read_to_string(&phrase).unwrap();
    let parsed = firn_seal::RecoveryPhrase::parse(&words).unwrap();
    let edge_secret = fs::read(format!("{state}/recipient")).unwrap();
    let at_service = directory.path().join("state");
    let table = directory.path().join("api.redb");
    for secret in [
        words.trim().as_bytes(),
        &*parsed.recovery_secret().to_bytes(),
        &edge_secret,
        secret.trim().as_bytes(),
    ] {
        for place in [&at_service, &table] {
            assert!(!stored_holds(place, secret));
        }
    }
    // And the search does find what is there.
    assert!(stored_holds(&table, b"Nord"));
}

#[test]
fn what_a_person_gets_wrong_is_said_with_its_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    let nobody = Person::new(directory.path(), "nobody");
    let told = nobody.firn(&["volume", "list"]);
    assert_eq!(told.code(), 3);
    assert!(told.err().contains("firn login"), "{}", told.err());
    assert_eq!(nobody.firn(&["volume"]).code(), 2);
    assert_eq!(nobody.firn(&["disk", "create", "d", "10G"]).code(), 2);
    let clear = nobody.tell(
        &["login", "--server", "http://api.example.org", "--tenant", "x"],
        "k\n",
    );
    assert_eq!(clear.code(), 2);
    assert!(clear.err().contains("in the clear"), "{}", clear.err());
    let gone = nobody.tell(
        &["login", "--server", "http://127.0.0.1:9", "--tenant", "x"],
        "k\n",
    );
    assert_eq!(gone.code(), 8, "{}", gone.err());
    let pages = nobody.path("man");
    nobody.firn(&["man", &pages]).good();
    let page = fs::read_to_string(format!("{pages}/firn-edge-create.1")).unwrap();
    assert!(page.contains("join secret"), "{page}");
    for shell in ["bash", "zsh", "fish", "powershell"] {
        assert!(nobody.firn(&["completions", shell]).good().out().contains("firn"));
    }
}

#[test]
fn the_phrase_is_shown_once_and_words_of_it_are_asked_back_before_anything_is_sent() {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        process::{Command, Stdio},
    };
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start(directory.path(), false);
    for honest in [false, true] {
        let profile = directory.path().join("profile.json");
        let mut child = Command::new(env!("CARGO_BIN_EXE_firn"))
            .arg("--profile")
            .arg(&profile)
            .arg("signup")
            .args(service.server())
            .args(["--email", "ada@one.example", "--name", "Nord"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut words = Vec::new();
        for line in BufReader::new(child.stderr.take().unwrap())
            .lines()
            .map_while(Result::ok)
        {
            let parts: Vec<&str> = line.split_whitespace().collect();
            if parts.len() == 8 && parts[0].parse::<u8>().is_ok() {
                words.extend(parts.chunks(2).map(|pair| pair[1].to_owned()));
            } else if let Some(number) = line.split("type word ").nth(1) {
                let index: usize = number.trim_end_matches(':').parse().unwrap();
                let word = if honest {
                    words[index - 1].as_str()
                } else {
                    "wrong"
                };
                // After a wrong word the program is gone.
                let _ = writeln!(input, "{word}");
            } else if line.starts_with("Code from the letter") {
                writeln!(input, "{}", service.wait_for_letter("Code")).unwrap();
            }
        }
        assert_eq!(words.len(), 24);
        assert_eq!(child.wait().unwrap().code(), Some(if honest { 0 } else { 2 }));
        assert_eq!(profile.exists(), honest);
        assert_eq!(
            service.letter("Code").is_some(),
            honest,
            "nothing is sent before the words are right"
        );
    }
}

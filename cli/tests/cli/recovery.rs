//! An owner who has lost every profile and key gets in again, by the recovery phrase and a letter.

use crate::running::{Person, Service, Told};
use std::fs;

/// `firn recover` with the phrase in a file; `code` makes of the letter's code what is typed.
fn recover(
    who: &Person,
    service: &Service,
    email: &str,
    phrase: &str,
    code: impl Fn(&str) -> String,
) -> Told {
    let mut arguments = vec!["recover".to_owned()];
    arguments.extend(service.server());
    arguments.extend(["--email", email, "--phrase-file", phrase].map(str::to_owned));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let before = service.letter("Recovery");
    who.tell_later(&arguments, || {
        service.wait_for_another_letter("Recovery", before);
        format!("{}\n", code(&service.wait_for_letter("Code")))
    })
}

#[test]
fn an_owner_who_lost_every_key_gets_in_again() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start(directory.path(), false);
    let ada = Person::new(directory.path(), "ada");
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
    let tenant = ada.json(&["whoami"])["tenant"].as_str().unwrap().to_owned();

    // A new machine: nothing but the phrase on paper, and the mailbox.
    let anew = Person::new(directory.path(), "anew");
    let again = recover(&anew, &service, "ada@one.example", &phrase, |code| {
        format!("{code}x\n{code}")
    })
    .good();
    assert!(again.out().contains("You are in again"), "{}", again.out());
    assert!(
        again.err().contains("once more"),
        "a slip is forgiven: {}",
        again.err()
    );
    let who = anew.json(&["whoami"]);
    assert_eq!(
        (who["tenant"].as_str(), who["role"].as_str()),
        (Some(&*tenant), Some("owner"))
    );
    // Nothing was believed: the keys are those of the phrase, and it signs as before.
    anew.firn(&["volume", "show", "files"]).good();
    anew.firn(&["volume", "rotate", "files", "--phrase-file", &phrase])
        .good();
    anew.firn(&["audit", "verify"]).good();
    let log = anew.firn(&["audit", "list"]).good().out();
    assert!(
        log.contains("member.recover ") && log.contains("member.recover-asked"),
        "{log}"
    );

    // Whoever found the old machine is out.
    let lost = ada.firn(&["whoami"]);
    assert_eq!(lost.code(), 3, "{}", lost.err());
    let text = fs::read_to_string(ada.path("profile.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&text).unwrap();
    // And on that machine it says where to go on; what was seen there is kept.
    let key = ada.path("key");
    fs::write(&key, kept["api_key"].as_str().unwrap()).unwrap();
    let mut arguments = vec!["login".to_owned()];
    arguments.extend(service.server());
    arguments.extend(["--tenant", &tenant, "--key-file", &key].map(str::to_owned));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let refused = ada.firn(&arguments);
    assert_eq!(refused.code(), 3, "{}", refused.err());
    assert!(refused.err().contains("firn recover"), "{}", refused.err());
    recover(&ada, &service, "ada@one.example", &phrase, str::to_owned).good();
    let text = fs::read_to_string(ada.path("profile.json")).unwrap();
    let now: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(now["volumes"], kept["volumes"]);
    assert_ne!(now["api_key"], kept["api_key"]);
}

#[test]
fn another_phrase_and_another_address_get_no_letter() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start(directory.path(), false);
    let (ada, bob) = (
        Person::new(directory.path(), "ada"),
        Person::new(directory.path(), "bob"),
    );
    ada.sign_up(&service, "ada@one.example");
    bob.sign_up(&service, "bob@two.example");
    let anew = Person::new(directory.path(), "anew");
    for (email, phrase) in [
        ("ada@one.example", bob.path("phrase")),
        ("eve@one.example", ada.path("phrase")),
    ] {
        let mut arguments = vec!["recover".to_owned()];
        arguments.extend(service.server());
        arguments.extend(["--email", email, "--phrase-file", &phrase].map(str::to_owned));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let refused = anew.firn(&arguments);
        assert_eq!(refused.code(), 3, "{}", refused.err());
        assert!(refused.err().contains("no letter was sent"), "{}", refused.err());
        assert_eq!(service.letter("Recovery"), None);
    }
    // The profile of another tenant that is logged in is not replaced.
    let phrase = ada.path("phrase");
    let mut arguments = vec!["recover".to_owned()];
    arguments.extend(service.server());
    arguments.extend(["--email", "ada@one.example", "--phrase-file", &phrase].map(str::to_owned));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let refused = bob.firn(&arguments);
    assert_eq!(refused.code(), 2, "{}", refused.err());
    assert!(refused.err().contains("firn logout"), "{}", refused.err());
}

//! Keys, logging in and out: nobody locks a tenant's last owner out, and nothing that was seen of a tenant is forgotten.

use crate::running::{Person, Service, Told};
use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

impl Person {
    fn log_in(&self, service: &Service, tenant: &str, key_file: &str) -> Told {
        let mut arguments = vec!["login".to_owned()];
        arguments.extend(service.server());
        arguments.extend(["--tenant", tenant, "--key-file", key_file].map(str::to_owned));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.firn(&arguments)
    }

    /// Makes an owner's key; where it lies, and its id.
    fn make_key(&self, name: &str) -> (String, String) {
        let file = self.path(name);
        let made = self.json(&["key", "create", name, "--role", "owner", "--secret-file", &file]);
        (file, made["key"]["id"].as_str().unwrap().to_owned())
    }
}

#[test]
fn the_last_key_of_an_owner_stays_and_the_others_go() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start(directory.path(), false);
    let ada = Person::new(directory.path(), "ada");
    ada.sign_up(&service, "ada@one.example");
    let who = ada.json(&["whoami"]);
    assert_eq!(who["role"], "owner");
    let login = who["key"].as_str().unwrap().to_owned();

    for wanted in ["login", &login] {
        let refused = ada.firn(&["key", "revoke", wanted]);
        assert_eq!(refused.code(), 6, "{}", refused.err());
        assert!(refused.err().contains("firn key create"), "{}", refused.err());
    }
    let refused = ada.firn(&["logout", "--revoke"]);
    assert_eq!(refused.code(), 6, "{}", refused.err());
    ada.firn(&["whoami"]).good();

    // A key of less does not count, nor does one of an owner's that is revoked.
    let reader = ada.json(&["key", "create", "looks", "--role", "reader"]);
    assert_eq!(reader["key"]["role"], "reader");
    let (_, spare) = ada.make_key("spare");
    ada.firn(&["key", "revoke", &spare]).good();
    assert_eq!(ada.firn(&["key", "revoke", &login]).code(), 6);

    // With another one it may go; this profile is then nobody's.
    let (second, id) = ada.make_key("second");
    let gone = ada.firn(&["key", "revoke", &login]).good();
    assert!(gone.err().contains("log in with another"), "{}", gone.err());
    let nobody = ada.firn(&["whoami"]);
    assert_eq!(nobody.code(), 3);
    assert!(nobody.err().contains("firn login --server"), "{}", nobody.err());
    let tenant = who["tenant"].as_str().unwrap();
    ada.log_in(&service, tenant, &second).good();
    assert_eq!(ada.json(&["whoami"])["key"], *id);
    assert_eq!(ada.firn(&["key", "revoke", "second"]).code(), 6);
}

#[test]
fn an_owner_who_is_the_last_with_a_key_is_not_removed_or_demoted() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start(directory.path(), false);
    let (ada, bob) = (
        Person::new(directory.path(), "ada"),
        Person::new(directory.path(), "bob"),
    );
    ada.sign_up(&service, "ada@one.example");
    let who = ada.json(&["whoami"]);
    let invited = ada.json(&["member", "invite", "bob@one.example", "--role", "owner"]);
    let code = service.wait_for_letter("Code");
    let mut arguments = vec!["member".to_owned(), "confirm".to_owned()];
    arguments.extend(service.server());
    let (tenant, member) = (who["tenant"].as_str().unwrap(), invited["id"].as_str().unwrap());
    arguments.extend(["--tenant", tenant, "--member", member].map(str::to_owned));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // Mistyped once.
    let joined = bob.tell(&arguments, &format!("nonsense\n{code}\n")).good();
    assert!(joined.err().contains("once more"), "{}", joined.err());

    // Two owners with a key each: one of the keys may go, and then its owner's alone are left.
    ada.firn(&["logout", "--revoke"]).good();
    for arguments in [
        &["member", "remove", "bob@one.example", "--yes"][..],
        &["member", "role", "bob@one.example", "reader"][..],
    ] {
        let refused = bob.firn(arguments);
        assert_eq!(refused.code(), 6, "{arguments:?}: {}", refused.err());
        assert!(refused.err().contains("log in"), "{}", refused.err());
    }
    assert_eq!(bob.json(&["whoami"])["role"], "owner");
}

#[test]
fn logging_in_anew_keeps_what_was_seen_and_another_tenant_does_not_take_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start(directory.path(), false);
    let (ada, bob) = (
        Person::new(directory.path(), "ada"),
        Person::new(directory.path(), "bob"),
    );
    ada.sign_up(&service, "ada@one.example");
    bob.sign_up(&service, "bob@two.example");
    let tenants = [&ada, &bob].map(|who| who.json(&["whoami"])["tenant"].as_str().unwrap().to_owned());
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
    let (mine, _) = ada.make_key("mine");
    let (theirs, _) = bob.make_key("theirs");
    let seen = || {
        let text = fs::read_to_string(ada.path("profile.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["volumes"].clone()
    };
    let before = seen();
    assert!(before.as_object().is_some_and(|volumes| volumes.len() == 1));

    // A new key of the same tenant takes the old one's place, whether or not that is still good.
    ada.log_in(&service, &tenants[0], &mine).good();
    assert_eq!(seen(), before);
    let refused = ada.log_in(&service, &tenants[1], &theirs);
    assert_eq!(refused.code(), 2);
    assert!(refused.err().contains("firn logout"), "{}", refused.err());

    ada.firn(&["logout"]).good();
    let text = fs::read_to_string(ada.path("profile.json")).unwrap();
    let secret = fs::read_to_string(&mine).unwrap();
    assert!(!text.contains(secret.trim()), "the key is gone from the file");
    ada.log_in(&service, &tenants[1], &theirs).good();
    assert_eq!(ada.json(&["whoami"])["tenant"], *tenants[1]);
    assert_eq!(seen(), serde_json::json!({}));
    ada.firn(&["logout"]).good();
    ada.log_in(&service, &tenants[0], &mine).good();
    assert_eq!(seen(), before, "it was kept beside");
}

#[test]
fn a_mistyped_code_does_not_end_a_sign_up() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start(directory.path(), false);
    let ada = Person::new(directory.path(), "ada");
    let mut arguments = service.server();
    let phrase = ada.path("phrase");
    let profile = ada.path("profile.json");
    arguments.extend(
        [
            "--email",
            "ada@one.example",
            "--name",
            "One",
            "--phrase-file",
            &phrase,
        ]
        .map(str::to_owned),
    );
    let mut child = Command::new(env!("CARGO_BIN_EXE_firn"))
        .args(["--profile", &profile, "signup"])
        .args(&arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let code = service.wait_for_letter("Code");
    let mut input = child.stdin.take().unwrap();
    input.write_all(format!("{code}x\n{code}\n").as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("once more"), "{said}");
    assert_eq!(ada.json(&["whoami"])["role"], "owner");
}

//! A newcomer's first session at a terminal, and every word that `firn` shows there: compared with tests/newcomer.txt, in which
//! ids, times and this machine's paths are replaced. FIRN_WRITE_SESSION=1 writes that file anew, to be read before it is committed.
#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "real processes at a real terminal")]

mod running;

use running::{Person, Service, terminal::Session};
use std::{
    fs,
    net::TcpListener,
    path::Path,
    time::{Duration, Instant},
};

const EXPECTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/newcomer.txt");

/// The question whose answer is not shown.
const SECRET: &str = "Join secret";

/// A terminal, and all that was typed and shown there.
struct Desk<'a> {
    person: &'a Person,
    directory: &'a Path,
    transcript: String,
}

impl Desk<'_> {
    /// Types a command; answers what it asks for. What it showed, as it was.
    #[track_caller]
    fn types(&mut self, command: &[&str], answers: &[(&str, &str)], code: i32) -> String {
        let profile = self.person.path("profile.json");
        let mut arguments = vec!["--profile", &profile];
        arguments.extend(command);
        let mut session = Session::start(&arguments, &[("NO_COLOR", "1"), ("TZ", "UTC")]);
        for (question, answer) in answers {
            // The end of the line comes by a write of its own: what is typed before it would be shown in its place.
            session.wait_for(&format!("{question}:\n"));
            if *question == SECRET {
                session.wait_for_secrecy();
            }
            session.type_line(answer);
        }
        let (ended, shown) = session.end();
        assert_eq!(ended, code, "{command:?}: {shown}");
        let line = format!("$ firn {}\n{shown}[{code}]\n\n", command.join(" "));
        self.transcript.push_str(&self.plain(&line));
        shown
    }

    /// Without what is another one each time.
    fn plain(&self, text: &str) -> String {
        let text = text.replace(&self.directory.display().to_string(), "~");
        let mut plain = String::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let length = rest
                .find(|letter: char| !(letter.is_ascii_alphanumeric() || "_:/+-".contains(letter)))
                .unwrap_or(rest.len());
            if length == 0 {
                let letter = rest.chars().next().expect("there is more");
                plain.push(letter);
                rest = &rest[letter.len_utf8()..];
                continue;
            }
            plain.push_str(&replaced(&rest[..length]));
            rest = &rest[length..];
        }
        without_progress(&without_dates(&plain))
    }
}

/// Without the lines that say what an operation is at: which of its steps are seen, and whether any, depends on the moments at which
/// it is looked at.
fn without_progress(text: &str) -> String {
    let is_progress = |line: &&str| line.starts_with("volume.erase of files: ");
    text.split_inclusive('\n')
        .filter(|line| !is_progress(line))
        .collect()
}

/// Ids keep their kind, keys and addresses become what they are.
fn replaced(word: &str) -> String {
    for kind in ["ten", "vol", "edg", "key", "mem", "op"] {
        if let Some(digits) = word.strip_prefix(&format!("{kind}_"))
            && digits.len() >= 16
        {
            return format!("{kind}_ID");
        }
    }
    if let Some(port) = word.strip_prefix("https://localhost:")
        && !port.is_empty()
    {
        return "https://localhost:PORT".to_owned();
    }
    let is_hexadecimal = |word: &str| word.len() >= 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hexadecimal(word) {
        return if word.len() == 64 { "KEY" } else { "HEX" }.to_owned();
    }
    if word.strip_prefix("firn-").is_some_and(is_hexadecimal) {
        return "firn-HEX".to_owned();
    }
    if word.len() > 200 {
        return "BASE64".to_owned();
    }
    word.to_owned()
}

/// `2026-11-23 09:14 (3 minutes ago)` becomes `TIME`.
fn without_dates(text: &str) -> String {
    let is_date = |text: &str| {
        let form = "dddd-dd-dd dd:dd (";
        text.len() > form.len()
            && form.bytes().zip(text.bytes()).all(|(form, byte)| match form {
                b'd' => byte.is_ascii_digit(),
                other => other == byte,
            })
    };
    let mut plain = String::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        if is_date(rest) {
            plain.push_str("TIME");
            rest = rest.split_once(')').map_or("", |(_, rest)| rest);
        } else {
            plain.push(letter);
            rest = &rest[letter.len_utf8()..];
        }
    }
    // Columns are as wide as what stood there.
    let lines = plain.lines().map(|line| {
        let indent = line.len() - line.trim_start().len();
        let words: Vec<&str> = line
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect();
        format!("{}{}\n", &line[..indent], words.join("  "))
    });
    lines.collect()
}

#[test]
fn every_word_of_a_newcomers_first_session() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start(directory.path(), false);
    let ada = Person::new(directory.path(), "ada");
    ada.sign_up(&service, "ada@one.example");
    let phrase = ada.path("phrase");
    let mut desk = Desk {
        person: &ada,
        directory: directory.path(),
        transcript: String::new(),
    };
    desk.types(&["status"], &[], 0);
    desk.types(
        &[
            "volume",
            "create",
            "files",
            "--region",
            "EU west",
            "--phrase-file",
            &phrase,
        ],
        &[],
        2,
    );
    desk.types(
        &[
            "volume",
            "create",
            "files",
            "--region",
            "eu",
            "--phrase-file",
            &phrase,
        ],
        &[],
        0,
    );
    desk.types(&["disk", "create", "data", "10GiB", "--replicas", "5"], &[], 2);
    desk.types(&["disk", "create", "data", "1MiB"], &[], 2);
    desk.types(&["member", "invite", "bob@one.example", "--role", "king"], &[], 2);
    desk.types(&["edge", "create", "office", "--volume", "fils"], &[], 5);

    // The command is run as it is printed, on another machine, which trusts nothing but what stands in it.
    let secret_file = ada.path("join");
    let create = [
        "edge",
        "create",
        "office",
        "--volume",
        "files",
        "--secret-file",
        &secret_file,
    ];
    let shown = desk.types(&create, &[], 0);
    let printed = shown
        .lines()
        .find(|line| line.contains("firn edge join"))
        .unwrap();
    let state = ada.path("state");
    let printed = printed.replace("/var/lib/firn/edge", &state);
    let join: Vec<&str> = printed.split_whitespace().skip(1).collect();
    assert!(
        !join.contains(&"--authority"),
        "no file has to be carried: {printed}"
    );
    let machine = Person::new(directory.path(), "machine");
    let secret = fs::read_to_string(&secret_file).unwrap();
    let mut there = Desk {
        person: &machine,
        directory: directory.path(),
        transcript: String::new(),
    };
    // A slip of the hand costs nothing: the same command again.
    let wrong = firn_identity::JoinSecret::generate(&mut |bytes: &mut [u8]| bytes.fill(7)).expose();
    there.types(&join, &[(SECRET, wrong.trim())], 3);
    there.types(&join, &[(SECRET, secret.trim())], 0);
    there.types(&join, &[(SECRET, secret.trim())], 2);
    desk.transcript.push_str(&there.transcript);

    desk.types(&create[..5], &[], 6);
    desk.types(&["status"], &[], 0);
    desk.types(&["edge", "approve", "office", "--phrase-file", &phrase], &[], 0);
    desk.types(&["edge", "show", "office"], &[], 0);
    desk.types(&["edge", "list"], &[], 0);
    desk.types(&["volume", "show", "files"], &[], 0);
    desk.types(&["snapshot", "show", "files"], &[], 0);
    desk.types(&["budget", "raise", "80"], &[], 2);
    desk.types(&["budget", "set", "--hard-cap", "50"], &[], 0);
    desk.types(&["budget", "raise", "40"], &[], 2);
    desk.types(&["budget", "raise", "80"], &[], 0);
    desk.types(&["config"], &[], 0);
    let question = "Type yes to go on";
    desk.types(&["volume", "delete", "files"], &[(question, "no")], 2);
    desk.types(&["volume", "delete", "files"], &[(question, "yes")], 0);
    desk.types(&["volume", "erase", "files", "--yes", "--wait"], &[], 0);
    // One's own erasure is no tampering.
    desk.types(&["volume", "show", "files"], &[], 0);
    desk.types(&["doctor"], &[], 0);
    desk.types(&["whoami"], &[], 0);
    drop(service);
    let gone = desk.types(&["doctor"], &[], 1);
    assert!(
        !gone.contains("firn doctor"),
        "it does not send to itself: {gone}"
    );

    if std::env::var_os("FIRN_WRITE_SESSION").is_some() {
        fs::write(EXPECTED, &desk.transcript).unwrap();
    }
    let expected = fs::read_to_string(EXPECTED).unwrap();
    for (number, (expected, shown)) in expected.lines().zip(desk.transcript.lines()).enumerate() {
        assert_eq!(shown, expected, "line {} of {EXPECTED}", number + 1);
    }
    assert_eq!(desk.transcript.lines().count(), expected.lines().count());
}

#[test]
fn a_service_that_hangs_is_spoken_of_within_seconds() {
    let directory = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", silent.local_addr().unwrap());
    let profile = directory.path().join("profile.json").display().to_string();
    let key = directory.path().join("key");
    fs::write(&key, "key_anything").unwrap();
    let key = key.display().to_string();
    let arguments = [
        "--profile",
        &profile,
        "login",
        "--server",
        &server,
        "--tenant",
        "ten_x",
        "--key-file",
        &key,
    ];
    let began = Instant::now();
    let mut session = Session::start(&arguments, &[]);
    session.wait_for("waiting for http://127.0.0.1:");
    let waited = began.elapsed();
    assert!(
        waited >= Duration::from_secs(3),
        "not before it is worth saying: {waited:?}"
    );
    let shown = session.kill();
    assert!(shown.contains("try 1 of 3"), "{shown}");
}

#[test]
fn completions_are_put_where_the_shell_looks() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().display().to_string();
    let (code, shown) =
        Session::start(&["completions", "bash", "--install"], &[("XDG_DATA_HOME", &data)]).end();
    assert_eq!(code, 0, "{shown}");
    let path = directory.path().join("bash-completion/completions/firn");
    assert!(shown.contains(&path.display().to_string()), "{shown}");
    assert!(fs::read_to_string(path).unwrap().contains("complete -F _firn"));
    let (code, shown) = Session::start(&["completions", "powershell", "--install"], &[]).end();
    assert_eq!(code, 2, "{shown}");
}

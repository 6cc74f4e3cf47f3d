//! A newcomer's first session at a terminal, and every word that `firn` shows there: compared with tests/newcomer.txt, in which
//! ids, times and this machine's paths are replaced. FIRN_WRITE_SESSION=1 writes that file anew, to be read before it is committed.
//! Beside it, in newcomer-before.txt, stands what the same commands showed before (tests/newcomer-before writes it).
#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "real processes at a real terminal")]

use crate::running::{Person, Service, terminal::Session};
use std::{
    fs,
    net::TcpListener,
    path::Path,
    time::{Duration, Instant},
};

/// From the package's directory, where cargo runs its tests: no path of the tree is compiled in, so clones may share one build directory.
const EXPECTED: &str = "tests/newcomer.txt";

/// Questions whose answers are not shown, by their last words.
const SECRETS: [&str; 3] = [
    "Join secret",
    "Code from the letter",
    "Recovery phrase (24 words)",
];
const SECRET: &str = SECRETS[0];
const CODE: &str = SECRETS[1];
/// The same question, asked again.
const CODE_AGAIN: &str = "Type it once more, as it stands in the newest letter.\nCode from the letter";
const PHRASE: &str = SECRETS[2];

/// What is typed: what is known before, or what a letter says.
enum Typed<'a> {
    Words(&'a str),
    Letter(&'a dyn Fn() -> String),
}

impl<'a> From<&'a str> for Typed<'a> {
    fn from(words: &'a str) -> Self {
        Self::Words(words)
    }
}

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
        let answers: Vec<_> = answers
            .iter()
            .map(|(question, answer)| (*question, Typed::from(*answer)))
            .collect();
        self.answers(command, answers, code)
    }

    #[track_caller]
    fn answers(&mut self, command: &[&str], answers: Vec<(&str, Typed<'_>)>, code: i32) -> String {
        let profile = self.person.path("profile.json");
        let mut arguments = vec!["--profile", &profile];
        arguments.extend(command);
        let mut session = Session::start(&arguments, &[("NO_COLOR", "1"), ("TZ", "UTC")]);
        for (question, answer) in answers {
            // The end of the line comes by a write of its own: what is typed before it would be shown in its place.
            session.wait_for(&format!("{question}:\n"));
            if SECRETS.iter().any(|secret| question.ends_with(secret)) {
                session.wait_for_secrecy();
            }
            match answer {
                Typed::Words(words) => session.type_line(words),
                Typed::Letter(letter) => session.type_line(&letter()),
            }
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
        without_progress(&without_dates(&without_stamps(&plain)))
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
    for kind in ["ten", "vol", "edg", "key", "mem", "nod", "op"] {
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

/// Whether a text begins like this, where `d` is any digit.
fn has_form(text: &str, form: &str) -> bool {
    text.len() >= form.len()
        && form.bytes().zip(text.bytes()).all(|(form, byte)| match form {
            b'd' => byte.is_ascii_digit(),
            other => other == byte,
        })
}

/// `2026-11-23T09:14:00Z` becomes `RFC3339`, the month of a bill `MONTH`.
fn without_stamps(text: &str) -> String {
    const FORM: &str = "dddd-dd-ddTdd:dd:ddZ";
    const MONTH: &str = "dddd-dd;";
    let mut plain = String::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        if has_form(rest, FORM) {
            plain.push_str("RFC3339");
            rest = &rest[FORM.len()..];
        } else if has_form(rest, MONTH) {
            plain.push_str("MONTH;");
            rest = &rest[MONTH.len()..];
        } else {
            plain.push(letter);
            rest = &rest[letter.len_utf8()..];
        }
    }
    plain
}

/// `2026-11-23 09:14 (3 minutes ago)` becomes `TIME`.
fn without_dates(text: &str) -> String {
    let is_date = |text: &str| has_form(text, "dddd-dd-dd dd:dd (");
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
    let phrase = ada.path("phrase");
    let mut desk = Desk {
        person: &ada,
        directory: directory.path(),
        transcript: String::new(),
    };
    let server = service.server();
    let at_service = |command: &[&str]| -> Vec<String> {
        let more = server.iter().cloned();
        command.iter().map(|&word| word.to_owned()).chain(more).collect()
    };
    let words = |command: &'static [&str], more: &[&str]| -> Vec<String> {
        let more = more.iter().map(|&word| word.to_owned());
        at_service(command).into_iter().chain(more).collect()
    };
    fn all(words: &[String]) -> Vec<&str> {
        words.iter().map(String::as_str).collect()
    }

    // A mistyped code is forgiven.
    let letter = || service.wait_for_letter("Code");
    let mistyped = || format!("{}x", letter());
    let more = [
        "--email",
        "ada@one.example",
        "--name",
        "Büro Nord",
        "--phrase-file",
        &phrase,
    ];
    desk.answers(
        &all(&words(&["signup"], &more)),
        vec![
            (CODE, Typed::Letter(&mistyped)),
            (CODE_AGAIN, Typed::Letter(&letter)),
        ],
        0,
    );
    let tenant = ada.json(&["whoami"])["tenant"].as_str().unwrap().to_owned();

    // Nobody locks themselves out; another key takes the place of this one.
    desk.types(&["key", "revoke", "login"], &[], 6);
    let spare = ada.path("spare");
    let another = [
        "key",
        "create",
        "spare",
        "--role",
        "owner",
        "--secret-file",
        &spare,
    ];
    desk.types(&another, &[], 0);
    desk.types(&["key", "create", "Spare", "--role", "reader"], &[], 6);
    desk.types(&["logout"], &[], 0);
    desk.types(&["whoami"], &[], 3);
    let log_in = words(&["login"], &["--tenant", &tenant, "--key-file", &spare]);
    desk.types(&all(&log_in), &[], 0);
    desk.types(&["key", "revoke", "login"], &[], 0);
    desk.types(&all(&log_in), &[], 0);

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
    desk.types(&["--output", "json", "volume", "list"], &[], 0);
    desk.types(&["open", "files"], &[], 0);
    desk.types(&["open", "nothing"], &[], 5);
    let node = ["node", "create", "rack", "--failure-domain", "one"];
    let node_secret = ada.path("node");
    desk.types(&[&node[..], &["--secret-file", &node_secret]].concat(), &[], 0);
    desk.types(&["node", "create", "Rack", "--failure-domain", "two"], &[], 6);
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
    desk.types(&["logs", "--of", "files"], &[], 0);

    // All keys and profiles are gone: the phrase on paper, and the mailbox.
    let anew = Person::new(directory.path(), "anew");
    let words_on_paper = fs::read_to_string(&phrase).unwrap();
    let mut again = Desk {
        person: &anew,
        directory: directory.path(),
        transcript: String::new(),
    };
    let before = service.letter("Recovery");
    let recovery = || {
        service.wait_for_another_letter("Recovery", before.clone());
        letter()
    };
    let recover = words(&["recover"], &["--email", "ada@one.example"]);
    again.answers(
        &all(&recover),
        vec![
            (PHRASE, Typed::Words(words_on_paper.trim())),
            (CODE, Typed::Letter(&recovery)),
        ],
        0,
    );
    again.types(&["whoami"], &[], 0);
    desk.transcript.push_str(&again.transcript);
    desk.types(&["whoami"], &[], 3);
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

/// What the build before this work showed stands in newcomer-before.txt, written by the program tests/newcomer-before: the same commands in the
/// same order, but for the sign-up that a mistyped code ended, and for the join as that build printed it.
#[test]
fn what_was_shown_before_stands_beside_each_command() {
    let commands = |name: &str| {
        let path = Path::new(EXPECTED).with_file_name(name);
        let text = fs::read_to_string(path).unwrap();
        let commands = text.lines().filter_map(|line| line.strip_prefix("$ firn "));
        let mut commands: Vec<String> = commands
            .map(|command| match command.strip_prefix("edge join") {
                Some(_) => "edge join".to_owned(),
                None => command.to_owned(),
            })
            .collect();
        commands.dedup_by(|one, other| one.starts_with("signup") && one == other);
        commands
    };
    let (before, now) = (commands("newcomer-before.txt"), commands("newcomer.txt"));
    assert!(now.len() > 40);
    assert_eq!(before, now);
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

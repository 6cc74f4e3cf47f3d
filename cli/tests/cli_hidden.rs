//! A secret that a person types at a terminal is not shown on it.
#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "a real process at a real terminal")]

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, tcgetattr},
};
use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read as _, Write as _},
    process::Command,
    time::{Duration, Instant},
};

const SECRET: &str = "firnkey_that_nobody_may_read_over_a_shoulder";
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a terminal showed until everybody left it.
fn shown(mut terminal: File) -> String {
    let mut shown = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match terminal.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => shown.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Linux: EIO once nobody has the other end open.
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&shown).into_owned()
}

#[test]
fn a_typed_secret_is_not_shown() {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let end = || OpenOptions::new().read(true).write(true).open(&name).unwrap();
    let directory = tempfile::tempdir().unwrap();
    // A session of its own, whose terminal this is.
    let mut child = Command::new("setsid")
        .args(["--ctty", "--wait", env!("CARGO_BIN_EXE_firn"), "--profile"])
        .arg(directory.path().join("profile.json"))
        .args(["login", "--server", "http://127.0.0.1:9", "--tenant", "ten_x"])
        .stdin(end())
        .stdout(end())
        .stderr(end())
        .spawn()
        .unwrap();
    let began = Instant::now();
    // What is typed before would be shown: so it is waited for until the terminal shows nothing.
    while tcgetattr(&master).unwrap().local_modes.contains(LocalModes::ECHO) {
        assert!(
            began.elapsed() < TIMEOUT,
            "the terminal goes on showing what is typed"
        );
        assert!(child.try_wait().unwrap().is_none(), "it ended before it asked");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut terminal = File::from(master);
    terminal.write_all(format!("{SECRET}\n").as_bytes()).unwrap();
    let reader = std::thread::spawn(move || shown(terminal));
    let status = child.wait().unwrap();
    let shown = reader.join().unwrap();
    assert_eq!(status.code(), Some(8), "nobody listens there: {shown}");
    assert!(shown.contains("API key"), "{shown}");
    assert!(!shown.contains(SECRET), "{shown}");
}

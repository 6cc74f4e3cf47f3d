//! A secret that a person types at a terminal is not shown on it.
#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "a real process at a real terminal")]

use crate::running::terminal::Session;

const SECRET: &str = "firnkey_that_nobody_may_read_over_a_shoulder";

#[test]
fn a_typed_secret_is_not_shown() {
    let directory = tempfile::tempdir().unwrap();
    let profile = directory.path().join("profile.json").display().to_string();
    let arguments = [
        "--profile",
        &profile,
        "login",
        "--server",
        "http://127.0.0.1:9",
        "--tenant",
        "ten_x",
    ];
    let mut session = Session::start(&arguments, &[]);
    session.wait_for_secrecy();
    session.type_line(SECRET);
    let (code, shown) = session.end();
    assert_eq!(code, 8, "nobody listens there: {shown}");
    assert!(shown.contains("API key"), "{shown}");
    assert!(!shown.contains(SECRET), "{shown}");
}

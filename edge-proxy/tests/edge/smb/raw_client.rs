//! A client that speaks SMB's own words (`client.py`), for what smbclient has none for.

use super::{ALICE, Shared};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// A client's library for what smbclient has no words for.
const IMPACKET: &str = "/usr/lib/python3/dist-packages/impacket";

/// Whether `client.py` can run.
///
/// # Panics
/// If it cannot where it must.
pub fn has_raw_client() -> bool {
    let there = Path::new(IMPACKET).exists();
    if !there {
        let is_needed = std::env::var_os("FIRN_TEST_SMB").is_some();
        assert!(!is_needed, "{IMPACKET} is needed (python3-impacket)");
        eprintln!("SKIPPED: {IMPACKET} is needed (python3-impacket)");
    }
    there
}

/// `client.py`, as alice.
pub struct RawClient {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl RawClient {
    pub fn new(edge: &Shared, file: &str, what: &str) -> Self {
        let (name, password) = ALICE.split_once('%').expect("name%password");
        let script = "tests/edge/smb/client.py";
        let mut child = Command::new("/usr/bin/python3")
            .args([
                script,
                &edge.port.to_string(),
                name,
                password,
                "files",
                file,
                what,
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().expect("piped")),
            child,
        }
    }

    /// A line of it; empty if it ended without one.
    pub fn says(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("read");
        line.trim_end().to_owned()
    }

    /// Closes its input, and waits for its end.
    pub fn end(&mut self) {
        self.input = None;
        self.child.wait().expect("an end");
    }
}

impl Drop for RawClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

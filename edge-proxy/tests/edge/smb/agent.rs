//! Clients of SMB that keep files open, as processes of their own: requests and answers are lines of JSON.

use super::Shared;
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// Why a call was refused, in the protocol's own words.
pub type Refused = String;

/// A client of SMB as a process of its own.
pub struct Agent {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Agent {
    /// By Samba's own library, which connects to port 445 only.
    pub fn new(edge: &Shared, who: &str) -> Self {
        let configuration = edge.directory.join("agent.conf");
        fs::write(&configuration, "[global]\nclient smb encrypt = required\n").expect("written");
        let configuration = configuration.to_str().expect("a path").to_owned();
        Self::run(
            edge,
            who,
            ("agent.py", include_str!("agent.py")),
            |name, password| [&configuration, name, password].map(str::to_owned).to_vec(),
        )
    }

    /// In SMB's own words, right or wrong.
    pub fn raw(edge: &Shared, who: &str) -> Self {
        let port = edge.port.to_string();
        let script = ("raw_agent.py", include_str!("raw_agent.py"));
        Self::run(edge, who, script, |name, password| {
            [&port, name, password, "files"].map(str::to_owned).to_vec()
        })
    }

    fn run(
        edge: &Shared,
        who: &str,
        (script, text): (&str, &str),
        arguments: impl FnOnce(&str, &str) -> Vec<String>,
    ) -> Self {
        let (name, password) = who.split_once('%').expect("name%password");
        let place = edge.directory.join(script);
        fs::write(&place, text).expect("written");
        // The distribution's, for which Samba's library was built.
        let mut child = Command::new("/usr/bin/python3")
            .arg(&place)
            .args(arguments(name, password))
            .env("HOME", &edge.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let mut agent = Self {
            input: child.stdin.take().expect("piped"),
            output: BufReader::new(child.stdout.take().expect("piped")),
            child,
        };
        agent.answer().expect("it is connected");
        agent
    }

    fn answer(&mut self) -> Result<Value, Refused> {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("an answer");
        let mut answer: Value = serde_json::from_str(&line).expect("an answer of the agent's");
        match answer["error"].take() {
            Value::Null => Ok(answer["ok"].take()),
            error => Err(error.as_str().unwrap_or_default().to_owned()),
        }
    }

    /// One call, and its answer.
    pub fn call(&mut self, request: Value) -> Result<Value, Refused> {
        writeln!(self.input, "{request}").expect("it lives");
        self.answer()
    }

    /// SIGKILL: what it holds is the server's to notice.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("an end");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

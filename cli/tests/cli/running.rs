//! A real `firn-api` and a real `firn`, in a directory of their own; and a service that lies.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::disallowed_methods, reason = "real processes, real time")]

#[cfg(unix)]
pub mod terminal;

use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// The service's program: what `FIRN_API` names, or what was built beside this test.
pub fn firn_api() -> PathBuf {
    let path = match std::env::var_os("FIRN_API") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_BIN_EXE_firn")).with_file_name("firn-api"),
    };
    assert!(
        path.is_file(),
        "{} is not there: cargo build -p firn-api",
        path.display()
    );
    path
}

pub struct Service {
    process: Child,
    pub directory: PathBuf,
    pub address: SocketAddr,
    plain: bool,
}

impl Service {
    pub fn start(directory: &Path, plain: bool) -> Self {
        Self::start_with(directory, plain, &[], &[])
    }

    /// The same with more arguments and variables for `serve`.
    pub fn start_with(directory: &Path, plain: bool, more: &[&str], variables: &[(&str, &str)]) -> Self {
        let path = |name: &str| directory.join(name);
        let secret = Command::new(firn_api())
            .arg("new-secret")
            .arg(path("secret"))
            .status();
        assert!(secret.unwrap().success());
        let certified = Command::new(firn_api())
            .args(["certify", "anchor", "--directory"])
            .arg(path("anchor"))
            .arg("--secret")
            .arg(path("secret"))
            .stdout(Stdio::null())
            .status();
        assert!(certified.unwrap().success());
        let mut command = Command::new(firn_api());
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--table"])
            .arg(format!("redb:{}", path("api.redb").display()))
            .arg("--state")
            .arg(path("state"))
            .arg("--secret")
            .arg(path("secret"))
            .args(more)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if plain {
            command.arg("--plain");
        }
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .expect("it says where")
            .parse()
            .unwrap();
        Self {
            process,
            directory: directory.to_owned(),
            address,
            plain,
        }
    }

    /// How a client is told of it.
    pub fn server(&self) -> Vec<String> {
        if self.plain {
            return vec!["--server".into(), format!("http://{}", self.address)];
        }
        let authority = self.directory.join("anchor/authority.pem");
        vec![
            "--server".into(),
            format!("https://localhost:{}", self.address.port()),
            "--authority".into(),
            authority.display().to_string(),
        ]
    }

    /// What the newest letter says after `label: `.
    pub fn letter(&self, label: &str) -> Option<String> {
        let mut letters: Vec<PathBuf> = fs::read_dir(self.directory.join("state/mail"))
            .ok()?
            .map(|entry| entry.unwrap().path())
            .collect();
        letters.sort();
        let text = fs::read_to_string(letters.last()?).unwrap();
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{label}: ")));
        found.map(str::to_owned)
    }

    /// Waits until the newest letter says something else after `label: `, which is then given.
    pub fn wait_for_another_letter(&self, label: &str, before: Option<String>) -> String {
        let began = Instant::now();
        loop {
            match self.letter(label) {
                Some(found) if Some(&found) != before.as_ref() => return found,
                Some(_) | None => {}
            }
            assert!(began.elapsed() < Duration::from_secs(60), "no letter");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn wait_for_letter(&self, label: &str) -> String {
        let began = Instant::now();
        loop {
            if let Some(found) = self.letter(label) {
                return found;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "no letter");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Somebody with a machine of their own.
pub struct Person {
    directory: PathBuf,
}

pub struct Told {
    pub output: Output,
}

impl Told {
    pub fn code(&self) -> i32 {
        self.output.status.code().unwrap()
    }

    pub fn out(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    pub fn err(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).unwrap()
    }

    #[track_caller]
    pub fn good(self) -> Self {
        assert_eq!(self.code(), 0, "{}\n{}", self.out(), self.err());
        self
    }

    #[track_caller]
    pub fn json(self) -> Value {
        let told = self.good();
        serde_json::from_str(&told.out()).unwrap_or_else(|error| panic!("{error}: {}", told.out()))
    }
}

impl Person {
    pub fn new(directory: &Path, name: &str) -> Self {
        let directory = directory.join(name);
        fs::create_dir(&directory).unwrap();
        Self { directory }
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        command
            .args(["--profile", &self.path("profile.json")])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a command that reads `input`.
    pub fn tell(&self, arguments: &[&str], input: &str) -> Told {
        let mut child = self.command(arguments).spawn().unwrap();
        // One that does not read is gone already.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        Told {
            output: child.wait_with_output().unwrap(),
        }
    }

    /// Runs a command, and types what is known only once it runs.
    pub fn tell_later(&self, arguments: &[&str], input: impl FnOnce() -> String) -> Told {
        let mut child = self.command(arguments).spawn().unwrap();
        let typed = input();
        child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
        Told {
            output: child.wait_with_output().unwrap(),
        }
    }

    pub fn firn(&self, arguments: &[&str]) -> Told {
        self.tell(arguments, "")
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["--output", "json"];
        all.extend(arguments);
        self.firn(&all).json()
    }

    /// Signs up with the phrase in a file; the code comes by mail while the command waits.
    pub fn sign_up(&self, service: &Service, email: &str) -> Value {
        let phrase = self.path("phrase");
        let mut arguments = vec!["--output".to_owned(), "json".to_owned(), "signup".to_owned()];
        arguments.extend(service.server());
        arguments
            .extend(["--email", email, "--name", "Büro Nord", "--phrase-file", &phrase].map(str::to_owned));
        let before = service.letter("Code");
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut child = self.command(&arguments).spawn().unwrap();
        let mut code = service.wait_for_letter("Code");
        while Some(&code) == before.as_ref() {
            std::thread::sleep(Duration::from_millis(20));
            code = service.wait_for_letter("Code");
        }
        child
            .stdin
            .take()
            .unwrap()
            .write_all(format!("{code}\n").as_bytes())
            .unwrap();
        Told {
            output: child.wait_with_output().unwrap(),
        }
        .json()
    }
}

/// What a lying service changes in a reply: given the request's first line and the reply's text.
type Lie = Arc<Mutex<Box<dyn Fn(&str, String) -> String + Send>>>;

/// Stands before a plain service and lies when told to.
pub struct Liar {
    pub address: SocketAddr,
    lie: Lie,
}

impl Liar {
    pub fn before(service: &Service) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let lie: Lie = Arc::new(Mutex::new(Box::new(|_, text| text)));
        let (target, told) = (service.address, lie.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let told = told.clone();
                std::thread::spawn(move || {
                    // A client that goes away ends its own connection only.
                    let _ = relay(stream, target, &told);
                });
            }
        });
        Self { address, lie }
    }

    pub fn tell(&self, lie: impl Fn(&str, String) -> String + Send + 'static) {
        *self.lie.lock().unwrap() = Box::new(lie);
    }

    pub fn be_honest(&self) {
        self.tell(|_, text| text);
    }
}

/// One request and its reply; the connection is then closed.
fn relay(mut client: TcpStream, target: SocketAddr, lie: &Lie) -> std::io::Result<()> {
    let (head, body) = read_message(&mut client)?;
    let head = head.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let first = head.lines().next().unwrap_or_default().to_owned();
    let mut server = TcpStream::connect(target)?;
    server.write_all(head.as_bytes())?;
    server.write_all(&body)?;
    let (head, body) = read_message(&mut server)?;
    let text = lie.lock().unwrap()(&first, String::from_utf8(body).unwrap());
    let kept = |line: &&str| {
        let line = line.to_ascii_lowercase();
        !line.starts_with("content-length") && !line.starts_with("connection") && !line.is_empty()
    };
    let lines: Vec<&str> = head.lines().filter(kept).collect();
    let reply = format!(
        "{}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
        lines.join("\r\n"),
        text.len()
    );
    client.write_all(reply.as_bytes())
}

fn read_message(stream: &mut TcpStream) -> std::io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    let end = loop {
        let count = stream.read(&mut buffer)?;
        bytes.extend_from_slice(&buffer[..count]);
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let length = head
        .lines()
        .find_map(|line| {
            line.to_ascii_lowercase()
                .strip_prefix("content-length:")?
                .trim()
                .parse::<usize>()
                .ok()
        })
        .unwrap_or(0);
    let mut body = bytes.split_off(end);
    while body.len() < length {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        body.extend_from_slice(&buffer[..count]);
    }
    Ok((head, body))
}

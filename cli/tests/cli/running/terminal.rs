//! A command at a real terminal: what it shows there, and what is typed.

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};
use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read as _, Write as _},
    process::{Child, Command},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

const TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// A command that was started at a terminal of its own.
pub struct Session {
    pub child: Child,
    master: File,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Session {
    /// Starts `firn` with these arguments and variables.
    pub fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let size = Winsize {
            ws_row: 50,
            ws_col: 200,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).unwrap();
        let end = || OpenOptions::new().read(true).write(true).open(&name).unwrap();
        // A session of its own, whose terminal this is.
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", env!("CARGO_BIN_EXE_firn")])
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let master = File::from(master);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut source, kept) = (master.try_clone().unwrap(), shown.clone());
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                match source.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => kept.lock().unwrap().extend_from_slice(&buffer[..count]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // Linux: EIO once nobody has the other end open.
                    Err(_) => break,
                }
            }
        });
        Self {
            child,
            master,
            shown,
            reader,
        }
    }

    /// What it has shown until now.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).replace('\r', "")
    }

    /// Waits until it has shown this.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        self.wait_until(&format!("it shows {text:?}"), |session| {
            session.shown().contains(text)
        });
    }

    /// Waits until what is typed is not shown: what is typed before would be.
    #[track_caller]
    pub fn wait_for_secrecy(&mut self) {
        self.wait_until("what is typed is hidden", |session| {
            let modes = tcgetattr(&session.master).unwrap().local_modes;
            !modes.contains(LocalModes::ECHO)
        });
    }

    #[track_caller]
    fn wait_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < TIMEOUT, "not {what}: {}", self.shown());
            assert!(
                self.child.try_wait().unwrap().is_none() || is_so(self),
                "it ended, and not {what}: {}",
                self.shown()
            );
            std::thread::sleep(POLL);
        }
    }

    /// Types a line.
    pub fn type_line(&mut self, line: &str) {
        self.master.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Waits for its end: the exit code, and all it showed.
    pub fn end(mut self) -> (i32, String) {
        let status = self.child.wait().unwrap();
        self.reader.join().unwrap();
        let shown = String::from_utf8_lossy(&self.shown.lock().unwrap()).replace('\r', "");
        (status.code().unwrap(), shown)
    }

    /// Ends it by force.
    pub fn kill(mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.shown()
    }
}

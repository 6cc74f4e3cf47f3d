//! The copy of the log that goes to the machine's syslog: each line as a datagram to `/dev/log`, where rsyslog, syslog-ng or systemd's journal
//! listens.
//!
//! ```text
//! datagram = "<86>" "firn-edge[" PROCESS "]: " LINE          86: authpriv, informational
//! ```
//!
//! That is the local form of syslog (RFC 3164 without a time, which is in the line): what listens on that socket takes it, and the journal no
//! other. The socket never blocks. Its queue is as long as the kernel keeps it (`net.unix.max_dgram_qlen`); what finds it full is sent again for a tenth of a
//! second, then lost, and counted. Nobody listening is the same as a full queue. A line that says how many were lost goes before the next.

use crate::encode::own;
use firn_env::Env;
use serde_json::json;
use std::{
    io::{self, ErrorKind},
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

/// Facility authpriv, as what tells who did what is nobody else's business; severity informational.
const PRIORITY: u32 = 10 << 3 | 6;
/// Between two attempts to send what found the queue full, and how often for all lines at hand together.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(10);
const ATTEMPTS_MAX: u32 = 10;

/// How the copy stands, for the status page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyslogStatus {
    /// Lines that were taken.
    pub sent: u64,
    /// Lines that were not, since the start.
    pub lost: u64,
    /// Why the last one was not, until one is taken again.
    pub failing: Option<String>,
}

/// See the module.
pub(crate) struct Syslog {
    path: PathBuf,
    tag: String,
    socket: Option<UnixDatagram>,
    /// Lost since the last line that said so.
    untold: u64,
}

/// What the status page reads; `None` in it without a syslog.
pub(crate) type SharedSyslogStatus = Mutex<Option<SyslogStatus>>;

impl Syslog {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            tag: format!("<{PRIORITY}>firn-edge[{}]: ", std::process::id()),
            path,
            socket: None,
            untold: 0,
        }
    }

    fn send_once(&mut self, line: &[u8]) -> io::Result<()> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => connect(&self.path)?,
        };
        let message = [self.tag.as_bytes(), line].concat();
        let sent = socket.send(&message);
        // After any other error whoever listened is gone, and another may listen.
        if sent.is_ok()
            || sent
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        {
            self.socket = Some(socket);
        }
        sent.map(drop)
    }

    async fn send(&mut self, env: &Env, line: &[u8], attempts: &mut u32) -> io::Result<()> {
        let mut sent = self.send_once(line);
        while let Err(error) = &sent
            && *attempts < ATTEMPTS_MAX
            && matches!(
                error.kind(),
                ErrorKind::WouldBlock | ErrorKind::NotConnected | ErrorKind::ConnectionRefused
            )
        {
            *attempts += 1;
            if error.kind() == ErrorKind::WouldBlock {
                env.sleep(TRY_AGAIN_AFTER).await;
            }
            sent = self.send_once(line);
        }
        sent
    }

    /// Sends whole lines, as far as they are taken.
    pub(crate) async fn copy(&mut self, env: &Env, shown: &SharedSyslogStatus, lines: &[u8]) {
        let (mut sent, mut lost, mut failing) = (0, 0, None);
        let mut attempts = 0;
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            if self.untold > 0 {
                let told =
                    json!({"count": self.untold, "reason": "syslog did not take them; the file has them"});
                let told = own(env.wall(), "lost", told);
                if self.send(env, told.trim_ascii_end(), &mut attempts).await.is_ok() {
                    self.untold = 0;
                }
            }
            match self.send(env, line, &mut attempts).await {
                Ok(()) => {
                    sent += 1;
                    failing = None;
                }
                Err(error) => {
                    lost += 1;
                    self.untold += 1;
                    failing = Some(format!("{}: {error}", self.path.display()));
                }
            }
        }
        let mut shown = shown.lock().expect("no panic under this lock");
        let status = shown.get_or_insert_default();
        status.sent += sent;
        status.lost += lost;
        match (&status.failing, &failing) {
            (None, Some(reason)) => tracing::error!(
                reason,
                "syslog does not take the access log; the file has it, and what syslog loses is counted"
            ),
            (Some(_), None) => tracing::info!("syslog takes the access log again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        status.failing = failing;
    }
}

fn connect(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect(path)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> Vec<String> {
        socket.set_nonblocking(true).expect("a socket");
        let mut all = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(length) = socket.recv(&mut buffer) {
            all.push(String::from_utf8(buffer[..length].to_vec()).expect("text"));
        }
        all
    }

    #[tokio::test]
    async fn lines_are_datagrams_and_what_nobody_takes_is_counted_and_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let env = firn_env::real(directory.path()).expect("an environment");
        let shown = SharedSyslogStatus::default();
        let status = || shown.lock().expect("not poisoned").clone().unwrap_or_default();
        let mut syslog = Syslog::new(path.clone());
        syslog.copy(&env, &shown, b"{\"a\":1}\n{\"a\":2}\n").await;
        assert_eq!((status().sent, status().lost), (0, 2));
        assert!(status().failing.expect("a reason").contains("log: "));

        let listener = UnixDatagram::bind(&path).expect("bound");
        syslog.copy(&env, &shown, b"{\"a\":3}\n{\"a\":4}\n").await;
        let tag = format!("<86>firn-edge[{}]: ", std::process::id());
        let got = received(&listener);
        assert!(
            got[0].starts_with(&tag) && got[0].contains("\"event\":\"lost\""),
            "{got:?}"
        );
        assert!(got[0].contains("\"count\":2"), "{got:?}");
        assert_eq!(
            got[1..],
            [format!("{tag}{{\"a\":3}}"), format!("{tag}{{\"a\":4}}")]
        );
        assert_eq!(
            status(),
            SyslogStatus {
                sent: 2,
                lost: 2,
                failing: None
            }
        );

        // It listens and takes nothing: what the kernel keeps is sent, the rest lost, and nobody waits for ever.
        let many = "{}\n".repeat(5000);
        syslog.copy(&env, &shown, many.as_bytes()).await;
        let full = status();
        assert_eq!(full.sent + full.lost, 5004);
        assert!(full.lost > 2 && full.sent > 2, "{full:?}");
        assert!(full.failing.is_some());
        assert_eq!(received(&listener).len() as u64, full.sent - 2);

        // Another listens there.
        drop(listener);
        std::fs::remove_file(&path).expect("removed");
        let listener = UnixDatagram::bind(&path).expect("bound");
        syslog.copy(&env, &shown, b"{\"a\":5}\n").await;
        let got = received(&listener);
        assert!(
            got[0].contains(&format!("\"count\":{}", full.lost - 2)),
            "{got:?}"
        );
        assert_eq!((got.len(), status().failing), (2, None));
    }
}

//! A disk as a device of this machine's kernel: its NBD client, `/dev/nbdN` (decision 0142).
//!
//! ```text
//! file system ─▶ /dev/nbdN ─▶ kernel ══ a pair of sockets ══ NBD server of this process ─▶ disk
//!                               ▲ netlink: connect, resize, disconnect ([`netlink`])
//! ```
//!
//! | state of the device | find | connect |
//! |---|---|---|
//! | free | good | takes it |
//! | of a process that lives | refused | refused |
//! | of an attach whose process died | good | taken away from that, then taken |
//! | of a program that is not this one | refused | refused |
//!
//! Both ends are given to those who talk, so nothing is negotiated, no address is needed and nobody else can be at the other end.

pub mod netlink;

use crate::failure::Failure;
use firn_env::Env;
use netlink::{ExportTerms, NbdFamily};
use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, test_kill_process},
};
use std::{
    fmt, fs, io,
    os::{fd::AsFd, unix::fs::FileTypeExt as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::sync::oneshot;

/// The sector that the kernel is given: a page, the most that it takes on every machine. Whoever writes less reads a page first.
const BLOCK_BYTES: u64 = 4096;
/// Tries to take a device that its last process is just losing, and between two of them.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// Who may tell the kernel's NBD client something: `CAP_SYS_ADMIN`, a bit of a process's effective capabilities.
const ADMINISTRATOR: u64 = 1 << 21;
/// What every [`KernelDevice`] calls itself begins so.
const BACKEND: &str = "firn-blockd ";

/// A device that is there.
#[derive(Clone, Debug)]
pub struct KernelDevice {
    path: PathBuf,
    index: u32,
    backend: String,
}

/// Whether this process may administer the machine.
fn is_administrator() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .is_some_and(|bits| bits & ADMINISTRATOR != 0)
}

/// Whether a process lives. One that is another user's does.
fn lives(process: i32) -> bool {
    Pid::from_raw(process).is_some_and(|process| test_kill_process(process) != Err(rustix::io::Errno::SRCH))
}

/// Does what waits for the kernel where it holds up nothing else.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = oneshot::channel();
    #[allow(
        clippy::disallowed_methods,
        reason = "a call that may wait for as long as nodes are away; a thread of its own keeps no process from ending"
    )]
    std::thread::spawn(move || {
        // Whoever waited may have given up.
        let _ = done.send(work());
    });
    result.await.ok()
}

impl fmt::Display for KernelDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(formatter)
    }
}

impl KernelDevice {
    /// Looks whether this machine can do it, before anything is attached.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    pub fn find(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let none = || {
            Failure::usage(format!(
                "{shown} is no block device of the kernel's NBD client: load that as root with `modprobe nbd`, name one of /dev/nbd0, \
                 /dev/nbd1 and so on, or leave --device out and connect an NBD client of your own; nothing was attached"
            ))
        };
        let found = fs::metadata(path).map_err(|_| none())?;
        if !found.file_type().is_block_device() {
            return Err(none());
        }
        // Of any name, and wherever it was made: /sys knows what it is.
        let number = found.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let known = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).map_err(|_| none())?;
        let name = known.file_name().and_then(|name| name.to_str());
        let index = name
            .and_then(|name| name.strip_prefix("nbd")?.parse().ok())
            .ok_or_else(none)?;
        let device = Self {
            path: path.to_owned(),
            index,
            backend: format!("{BACKEND}{}", std::process::id()),
        };
        NbdFamily::open().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => none(),
            _ => device.failed("the kernel's NBD client cannot be asked", &error),
        })?;
        if !is_administrator() {
            return Err(Failure::usage(format!(
                "only root may give disks to the kernel: run this as root, or leave --device out and give {shown} the export with a client \
                 that root runs; nothing was attached"
            )));
        }
        if let Some(user) = device.user() {
            return Err(Failure::usage(format!(
                "{shown} is in use by {user}; name another device, nothing was attached"
            )));
        }
        Ok(device)
    }

    fn failed(&self, what: &str, error: &io::Error) -> Failure {
        Failure::new(format!("{}: {what}: {error}", self.path.display()))
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let text = fs::read_to_string(format!("/sys/block/nbd{}/{name}", self.index)).ok()?;
        Some(text.trim().to_owned())
    }

    /// Who has the device and may go on with it; nobody if its process has died, whose end is then a socket that is closed.
    fn user(&self) -> Option<String> {
        let task = self.attribute("pid")?;
        match self.last_process() {
            Some(process) if !lives(process) => None,
            Some(process) => Some(format!("process {process}, which has a disk attached there")),
            None => Some(format!("another program (task {task})")),
        }
    }

    /// The process of ours that has it, or had.
    fn last_process(&self) -> Option<i32> {
        self.attribute("backend")?.strip_prefix(BACKEND)?.parse().ok()
    }

    /// Gives the device to whoever serves the other end of `socket`.
    ///
    /// # Errors
    /// What the kernel says. The device is then as it was.
    pub async fn connect(
        &self,
        env: &Env,
        socket: impl AsFd + Send + Clone + 'static,
        size_bytes: u64,
        flags: u16,
    ) -> Result<(), Failure> {
        let export = ExportTerms {
            size_bytes,
            block_bytes: BLOCK_BYTES,
            flags,
        };
        for _ in 0..BUSY_TRIES {
            let (device, socket) = (self.clone(), socket.clone());
            let connected = apart(move || {
                let mut family = NbdFamily::open()?;
                if device.attribute("pid").is_some() && device.user().is_none() {
                    // If it is gone meanwhile, all the better.
                    let _ = family.disconnect(device.index);
                }
                family.connect(device.index, socket.as_fd(), export, &device.backend)
            });
            match connected.await {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                    env.sleep(BUSY_PAUSE).await;
                }
                Some(Err(error)) => return Err(self.failed("the kernel does not take the disk", &error)),
                None => return Err(self.failed("the kernel does not answer", &io::ErrorKind::Other.into())),
            }
        }
        Err(Failure::usage(format!(
            "{} is in use: unmount what is on it, or name another device",
            self.path.display()
        )))
    }

    /// Tells the kernel that the disk is larger.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn resize(&self, size_bytes: u64) -> Result<(), Failure> {
        let device = self.clone();
        let resized =
            apart(move || NbdFamily::open()?.resize(device.index, size_bytes, &device.backend)).await;
        let resized = resized.unwrap_or_else(|| Err(io::ErrorKind::Other.into()));
        resized.map_err(|error| self.failed("the kernel does not take the new size", &error))
    }

    /// Takes the disk out of the device, after the kernel has written what it still has; for that it is waited so long.
    pub async fn disconnect(&self, env: &Env, limit: Duration) {
        let device = self.clone();
        let writing = apart(move || device.write_back());
        match env.timeout(limit, writing).await {
            Ok(Some(Ok(()))) => {}
            Ok(Some(Err(error))) => {
                tracing::warn!(%error, device = %self.path.display(), "the kernel could not write all that it had");
            }
            Ok(None) | Err(_) => tracing::warn!(
                device = %self.path.display(),
                "the kernel did not write all that it had in time; what programs synced is safe"
            ),
        }
        let device = self.clone();
        let ended = apart(move || NbdFamily::open()?.disconnect(device.index)).await;
        if let Some(Err(error)) = ended {
            tracing::warn!(%error, device = %self.path.display(), "the device was not given up");
        }
    }

    /// What the kernel has of the disk goes to it: the device's pages, and those of a file system on it.
    fn write_back(&self) -> io::Result<()> {
        let open =
            |more| rustix::fs::open(&self.path, OFlags::RDONLY | OFlags::CLOEXEC | more, Mode::empty());
        if matches!(open(OFlags::EXCL), Err(rustix::io::Errno::BUSY)) {
            tracing::warn!(
                device = %self.path.display(),
                "the device is still mounted: what is there now is written, what is written later fails; unmount first next time"
            );
            rustix::fs::sync();
        }
        Ok(rustix::fs::fsync(open(OFlags::empty())?)?)
    }
}

//! A disk as a device of this machine's kernel: its NBD client, `/dev/nbdN`, which `nbd-client` sets up.

use crate::failure::Failure;
use std::path::{Path, PathBuf};
use tokio::process::Command;

const PROGRAM: &str = "nbd-client";

/// A device that is there, and a program that plugs disks into it.
#[derive(Debug)]
pub struct KernelDevice {
    path: PathBuf,
}

impl KernelDevice {
    /// Looks whether this machine can do it, before anything is attached.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    pub async fn find(path: &Path) -> Result<Self, Failure> {
        use std::os::unix::fs::FileTypeExt as _;
        let is_device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
        if !is_device {
            return Err(Failure::usage(format!(
                "{} is no block device: load the kernel's NBD client as root with `modprobe nbd`, or leave --device out and connect an \
                 NBD client of your own; nothing was attached",
                path.display()
            )));
        }
        // It says what it is and ends.
        let found = Command::new(PROGRAM).arg("--version").output().await;
        if found.is_err() {
            return Err(Failure::usage(format!(
                "{PROGRAM} is not installed: it plugs the disk into {}; nothing was attached",
                path.display()
            )));
        }
        Ok(Self {
            path: path.to_owned(),
        })
    }

    /// Plugs the export `name` of a server at `nbd` (`unix:/path` or `tcp:host:port`) into the device.
    ///
    /// # Errors
    /// What `nbd-client` says.
    pub async fn plug(&self, nbd: &str, name: &str) -> Result<(), Failure> {
        let mut command = Command::new(PROGRAM);
        match nbd.split_once(':') {
            Some(("unix", socket)) => command.arg("-unix").arg(socket).arg(&self.path),
            _ => {
                let address = nbd.strip_prefix("tcp:").unwrap_or(nbd);
                let (host, port) = address.rsplit_once(':').unwrap_or((address, "10809"));
                command.arg(host).arg(port).arg(&self.path)
            }
        };
        command.args(["-N", name, "-persist", "-block-size", "4096"]);
        self.run(command).await
    }

    /// Takes the disk out of the device, which writes what the kernel still has.
    pub async fn unplug(&self) {
        let mut command = Command::new(PROGRAM);
        command.arg("-d").arg(&self.path);
        if let Err(error) = self.run(command).await {
            tracing::warn!(%error, "the device was not given up");
        }
    }

    async fn run(&self, mut command: Command) -> Result<(), Failure> {
        let failed = |why: &dyn std::fmt::Display| Failure::new(format!("{}: {why}", self.path.display()));
        let output = command.output().await.map_err(|error| failed(&error))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(failed(&said.trim()))
    }
}

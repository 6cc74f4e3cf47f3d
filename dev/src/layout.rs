//! Directory layout of the installation.
//!
//! ```text
//! master.key  authority.pem          the service's secret; whom clients take for it
//! api.redb    api/                   the control plane's table, roots of volumes included; its state, with the letters it would mail
//! bucket/                            what a bucket would hold
//! node-0 … node-2  cluster.redb      disk nodes, and the table that they open
//! edge/  firn-edge.toml              the edge's state, as `firn edge join` makes it; its configuration
//! profile.json  recovery-phrase      the customer's, made by `firn`
//! disks/                             keys and sockets of disks that `firn disk attach` attached, which are the customer's
//! firn-dev.log  firn-dev.pid  lock   of the process
//! ```

use anyhow::{Context as _, Result, ensure};
use firn_api::MasterSecret;
use firn_env::Env;
use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// A directory that is a whole Firn.
#[derive(Clone)]
pub struct Layout {
    pub root: PathBuf,
}

impl Layout {
    /// Makes the directory if it is not there; only its owner may look into it.
    pub fn make(directory: &Path) -> Result<Self> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .with_context(|| directory.display().to_string())?;
        let layout = Self {
            root: directory.canonicalize()?,
        };
        ensure!(
            !layout.path("storage.redb").exists(),
            "{} was made by an earlier firn dev, which kept the volume's roots in a table of their own; nothing was changed. Begin in \
             another directory (--directory); the version that made this one still serves it, and `firn-edge recover` reads the volume \
             from its bucket with the recovery phrase",
            layout.root.display()
        );
        for name in ["api", "bucket"] {
            fs::create_dir_all(layout.path(name)).with_context(|| name.to_owned())?;
        }
        Ok(layout)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The same as text, for configurations and command lines.
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Whether an edge has joined.
    pub fn has_edge(&self) -> bool {
        self.path("edge/enrolment.json").exists()
    }

    pub fn master_secret(&self, env: &Env) -> Result<MasterSecret> {
        let path = self.path("master.key");
        let read = || -> Result<MasterSecret> {
            let bytes = Zeroizing::new(fs::read(&path)?);
            let bytes: &[u8; 32] = bytes.as_slice().try_into().context("not 32 bytes")?;
            Ok(MasterSecret::new(bytes))
        };
        if !path.exists() {
            let bytes = Zeroizing::new(env.random_bytes::<32>());
            write_whole(&path, &*bytes, 0o600)?;
        }
        read().with_context(|| path.display().to_string())
    }

    /// From here on the log goes to a file: the screen is for what to type next.
    pub fn start_log(&self) -> Result<()> {
        let path = self.path("firn-dev.log");
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| path.display().to_string())?;
        tracing_subscriber::fmt()
            .with_env_filter(
                tracing_subscriber::EnvFilter::try_from_env("FIRN_LOG").unwrap_or_else(|_| "info".into()),
            )
            .with_ansi(false)
            .with_writer(file)
            .init();
        Ok(())
    }

    pub fn note_process(&self) -> Result<()> {
        write_whole(
            &self.path("firn-dev.pid"),
            std::process::id().to_string().as_bytes(),
            0o600,
        )
    }

    pub fn forget_process(&self) {
        // If it stays, the lock shows that nobody is behind it.
        let _ = fs::remove_file(self.path("firn-dev.pid"));
    }
}

/// Replaces a file whole, so that a crash leaves the old one or the new one.
pub fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let next = path.with_extension("new");
    match fs::remove_file(&next) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&next)
        .with_context(|| next.display().to_string())?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    if let Some(directory) = path.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

//! The paths of SMB: everything is below the state directory, which only root may enter.
//!
//! ```text
//! smb/users.toml     the table of users            smb/private/  Samba's passwords (passdb.tdb), its own secrets
//! smb/smb.conf       written at each start         smb/run/      what Samba forgets with its end; emptied at each start
//! smb/passwd, group  what smbd sees as /etc's      smb/log/      bounded by Samba
//! smb/mnt            the private mount             smb/pid       of the process that runs it
//! ```

use std::path::{Path, PathBuf};

/// A module of the Samba that this smbd is of: distributions have them below `lib` of where `sbin` is.
pub fn module(program: &Path, name: &str) -> Option<PathBuf> {
    let lib = program.parent()?.parent()?.join("lib");
    let mut below = vec![lib.clone(), lib.with_file_name("lib64")];
    // `lib/x86_64-linux-gnu` and the like.
    below.extend(
        std::fs::read_dir(&lib)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path()),
    );
    let file = format!("samba/vfs/{name}.so");
    below
        .into_iter()
        .map(|directory| directory.join(&file))
        .find(|path| path.is_file())
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Paths {
    pub directory: PathBuf,
}

impl Paths {
    pub fn new(state_directory: &Path) -> Self {
        Self {
            directory: state_directory.join("smb"),
        }
    }

    pub fn users(&self) -> PathBuf {
        self.directory.join("users.toml")
    }

    pub fn lock(&self) -> PathBuf {
        self.directory.join("users.lock")
    }

    pub fn configuration(&self) -> PathBuf {
        self.directory.join("smb.conf")
    }

    pub fn passwd(&self) -> PathBuf {
        self.directory.join("passwd")
    }

    pub fn group(&self) -> PathBuf {
        self.directory.join("group")
    }

    /// Whom the C library asks for names (`nsswitch.conf`), with a domain.
    pub fn name_service(&self) -> PathBuf {
        self.directory.join("nsswitch.conf")
    }

    pub fn private(&self) -> PathBuf {
        self.directory.join("private")
    }

    /// Samba's passwords.
    pub fn passdb(&self) -> PathBuf {
        self.private().join("passdb.tdb")
    }

    pub fn run(&self) -> PathBuf {
        self.directory.join("run")
    }

    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// What smbd said before it had a log.
    pub fn start_log(&self) -> PathBuf {
        self.log().join("start.log")
    }

    pub fn mount(&self) -> PathBuf {
        self.directory.join("mnt")
    }

    pub fn pid(&self) -> PathBuf {
        self.directory.join("pid")
    }

    /// What smbd's own table of mounts has instead of a directory that every Linux system has and that hides nothing smbd needs: the
    /// volume in `files`, [`Paths::run`] in `run`. smbd's users must be able to walk to both, which they cannot below the state directory.
    /// To `run` because smbd looks there, as the user, whether who has a file open lives still: whom it cannot find it takes for dead,
    /// and his share modes for void.
    pub fn stage(&self) -> &'static str {
        if self.directory.starts_with("/mnt") {
            "/srv"
        } else {
            "/mnt"
        }
    }

    /// Where smbd sees the volume.
    pub fn seen_at(&self) -> String {
        format!("{}/files", self.stage())
    }

    /// Where smbd sees [`Paths::run`].
    pub fn run_seen_at(&self) -> String {
        format!("{}/run", self.stage())
    }

    /// Makes the directories, for root only; only what smbd's users must walk is open, behind parents that are not.
    ///
    /// # Errors
    /// What the disk says.
    pub fn make(&self) -> std::io::Result<()> {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
        for (directory, mode) in [
            (self.directory.clone(), 0o700),
            (self.private(), 0o700),
            (self.run(), 0o755),
            (self.run().join("samba"), 0o755),
            (self.log(), 0o700),
            (self.mount(), 0o700),
        ] {
            match std::fs::DirBuilder::new().mode(mode).create(&directory) {
                Ok(()) => std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode))?,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Forgets what a Samba that is gone kept for itself: its locks and sessions, by numbers of processes that mean others now.
    ///
    /// # Errors
    /// What the disk says.
    pub fn empty_run(&self) -> std::io::Result<()> {
        match std::fs::remove_dir_all(self.run()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => self.make(),
        }
    }
}

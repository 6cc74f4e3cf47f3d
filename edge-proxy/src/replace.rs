//! Replacing a file of the state directory whole, so that a crash leaves the old one or the new one.

use std::{fs, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path};

/// Writes `bytes` into a new file that only its owner reads, makes them durable, and puts it in the place of `path`.
pub fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let next = path.with_extension("new");
    match fs::remove_file(&next) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&next)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    match path.parent() {
        Some(directory) => fs::File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

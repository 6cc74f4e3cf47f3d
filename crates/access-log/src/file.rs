//! The log's files: `access.log` and the older ones, `access.log.1` being the youngest of them.
//!
//! A file is closed when the next lines would make it longer than wanted; the oldest is removed then, so that the log's size is bounded. Lines are
//! written whole: what a full disk or a kill left of one is overwritten by the next attempt, or cut off at the next start. Whoever moves
//! `access.log` away (logrotate does) or empties it is followed within a second: another is begun.

use firn_env::{Disk, DiskError, DiskFile, OpenMode};
use std::sync::Arc;

/// The file that is written.
pub(crate) const NAME: &str = "access.log";
/// The longest line is one with two paths of 4,096 bytes, of which each byte may take six; only this much of a file's end is looked at.
const TAIL_BYTES: u64 = 128 << 10;

/// How the log was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// There was none.
    New,
    /// Its last line says that the edge ended.
    Ended,
    /// The edge was killed, or its machine.
    CutOff,
    /// Somebody moved or emptied it while it was written.
    MovedAway,
}

impl Left {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::New => "none",
            Self::Ended => "ended",
            Self::CutOff => "cut off",
            Self::MovedAway => "moved away",
        }
    }
}

/// See the module.
pub(crate) struct LogFile {
    disk: Arc<dyn Disk>,
    file_bytes_max: u64,
    /// With the one that is written.
    files_max: u32,
    open: Option<(Arc<dyn DiskFile>, u64)>,
    is_synced: bool,
}

fn older(number: u32) -> String {
    format!("{NAME}.{number}")
}

impl LogFile {
    pub(crate) fn new(disk: Arc<dyn Disk>, file_bytes_max: u64, files_max: u32) -> Self {
        Self {
            disk,
            file_bytes_max,
            files_max,
            open: None,
            is_synced: true,
        }
    }

    /// Opens what is there, cut after its last whole line, or makes it.
    ///
    /// # Errors
    /// Of the disk; to be called again.
    pub(crate) async fn open(&mut self) -> Result<Left, DiskError> {
        let file = match self.disk.open(NAME, OpenMode::ReadWrite).await {
            Ok(file) => file,
            Err(DiskError::NotFound { .. }) => {
                self.make().await?;
                return Ok(Left::New);
            }
            Err(error) => return Err(error),
        };
        let length = file.length().await?;
        let from = length.saturating_sub(TAIL_BYTES);
        let tail = file.read_at(from, TAIL_BYTES as usize).await?;
        let whole = tail
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        // A file without one line is the rest of a first one, or nothing of ours.
        let end = match (whole, from) {
            (0, 1..) => length,
            (whole, from) => from + whole as u64,
        };
        let last = &tail[..whole.saturating_sub(1)];
        let begin = last
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        let is_ended = serde_json::from_slice::<serde_json::Value>(&last[begin..])
            .is_ok_and(|line| line["event"] == "end");
        if end < length {
            file.truncate(end).await?;
        }
        self.open = Some((file, end));
        Ok(match (end == length && is_ended, length) {
            (_, 0) => Left::New,
            (true, _) => Left::Ended,
            (false, _) => Left::CutOff,
        })
    }

    async fn make(&mut self) -> Result<(), DiskError> {
        let file = self.disk.open(NAME, OpenMode::CreateNew).await?;
        self.disk.sync_directory("").await?;
        self.open = Some((file, 0));
        Ok(())
    }

    /// Whether somebody moved or emptied the file; it is to be opened again then.
    pub(crate) async fn is_moved_away(&mut self) -> Result<bool, DiskError> {
        let Some((_, length)) = &self.open else {
            return Ok(false);
        };
        let is_gone = match self.disk.status(NAME).await {
            Ok(status) => status.length_bytes < *length,
            Err(DiskError::NotFound { .. }) => true,
            Err(error) => return Err(error),
        };
        if is_gone {
            self.open = None;
        }
        Ok(is_gone)
    }

    /// Appends whole lines, in the next file if they do not fit.
    ///
    /// # Errors
    /// Of the disk; nothing of them counts then, and they are to be given again.
    pub(crate) async fn append(&mut self, lines: &[u8]) -> Result<(), DiskError> {
        if self.open.is_none() {
            self.open().await?;
        }
        let is_long = self
            .open
            .as_ref()
            .is_some_and(|(_, length)| *length > 0 && length + lines.len() as u64 > self.file_bytes_max);
        if is_long {
            self.rotate().await?;
        }
        let (file, length) = self.open.as_mut().expect("opened above");
        file.write_at(*length, vec![lines.to_vec().into()]).await?;
        *length += lines.len() as u64;
        self.is_synced = false;
        Ok(())
    }

    async fn rotate(&mut self) -> Result<(), DiskError> {
        self.sync().await?;
        // From the oldest on, so that a kill in between loses none but that one.
        for number in (1..self.files_max).rev() {
            let from = if number == 1 {
                NAME.into()
            } else {
                older(number - 1)
            };
            match self.disk.rename(&from, &older(number)).await {
                Ok(()) | Err(DiskError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.open = None;
        if self.files_max == 1 {
            self.disk.remove(NAME).await?;
        }
        self.make().await
    }

    /// Syncs what was written.
    ///
    /// # Errors
    /// Of the disk.
    pub(crate) async fn sync(&mut self) -> Result<(), DiskError> {
        if let Some((file, _)) = self.open.as_ref().filter(|_| !self.is_synced) {
            file.sync_data().await?;
            self.is_synced = true;
        }
        Ok(())
    }
}

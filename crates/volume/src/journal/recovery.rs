//! Journal recovery: which files a start finds, where their whole records end, and whether they form one history.
//!
//! | found | next file's first sequence | verdict |
//! |---|---|---|
//! | records end cleanly or torn at s | s + 1 | fine: a crash tore the tail, the start after it went on from s |
//! | records end cleanly or torn at s | above s + 1, above covered | damage: durable records are gone |
//! | records end at s | above s + 1, all missing ones covered | fine: files between were trimmed |
//! | records end at s | at most s | damage: two histories |
//! | blank, or no opening record | | never used, passed over |
//!
//! Checksums are checked here, seals only by the replay (and for each file's opening record).

use super::{
    JournalConfig, JournalError,
    file::{FoundHeader, JournalFile, number_of, spare_number_of, spare_path_of},
    record::Sequence,
    scan::{FileEnd, Scanned, Scanner},
    spares::{SPARES_MAX, Spares},
};
use firn_env::{Disk, Env, OpenMode};
use firn_format::VolumeId;
use firn_seal::Keys;
use std::sync::Arc;

/// Read and written at a time when the last file is made durable.
const REWRITE_BYTES: u64 = 1 << 20;

/// What the survey is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The journal goes on after it.
    Serve,
    /// Nothing may change.
    Inspect,
}

/// A file that holds records, or held covered ones.
pub(super) struct FoundFile {
    pub(super) file: Arc<JournalFile>,
    /// Its last record; the one before its first if it has none.
    pub(super) last: Sequence,
    /// Where its whole records end.
    pub(super) end: FileEnd,
    /// What it takes on the disk.
    pub(super) bytes: u64,
}

/// All files of a directory, in order.
pub(super) struct Survey {
    pub(super) files: Vec<FoundFile>,
    /// Numbers and bytes of files that were never used.
    unused: Vec<(u64, u64)>,
    /// Numbers of those that wait to be used again.
    spares: Vec<u64>,
    /// The last record that stands, at least what is covered.
    pub(super) last: Sequence,
    covered: Sequence,
    pub(super) highest_number: u64,
    /// How the last file ends, if not cleanly.
    pub(super) torn_tail: Option<String>,
}

struct Candidate {
    scanner: Scanner,
    file: Arc<JournalFile>,
}

impl Survey {
    pub(super) async fn take(
        env: &Env,
        keys: &Keys,
        volume: VolumeId,
        directory: &str,
        covered: Sequence,
        purpose: Purpose,
    ) -> Result<Self, JournalError> {
        let mode = match purpose {
            Purpose::Serve => OpenMode::ReadWrite,
            Purpose::Inspect => OpenMode::Read,
        };
        let mut survey = Self {
            files: Vec::new(),
            unused: Vec::new(),
            spares: Vec::new(),
            last: covered,
            covered,
            highest_number: 0,
            torn_tail: None,
        };
        let mut candidates = Vec::new();
        let numbers;
        (numbers, survey.spares) = list(env, directory).await?;
        for number in numbers {
            survey.highest_number = number;
            let file = match JournalFile::found(env, keys, volume, directory, number, mode).await? {
                FoundHeader::Ours(file) => Arc::new(file),
                FoundHeader::Blank(bytes) => {
                    survey.unused.push((number, bytes));
                    continue;
                }
            };
            match Scanner::start(file.clone()).await? {
                (Some(scanner), _) => {
                    survey.torn_tail = None;
                    candidates.push(Candidate { scanner, file });
                }
                (None, torn) => {
                    survey.torn_tail = torn.map(|torn| format!("{}: {torn}", file.path));
                    survey.unused.push((number, file.handle.length().await?));
                }
            }
        }
        let firsts: Vec<Sequence> = candidates
            .iter()
            .map(|candidate| candidate.scanner.first())
            .collect();
        let mut expected: Option<Sequence> = None;
        for (index, candidate) in candidates.into_iter().enumerate() {
            let next_first = firsts.get(index + 1).copied();
            expected = Some(survey.examine(candidate, expected, next_first, purpose).await?);
        }
        if let Some(expected) = expected {
            survey.last = survey.last.max(Sequence(expected.0 - 1));
        }
        Ok(survey)
    }

    /// Checks that a file continues the history, finds its end, and returns the sequence that must follow it.
    async fn examine(
        &mut self,
        candidate: Candidate,
        expected: Option<Sequence>,
        next_first: Option<Sequence>,
        purpose: Purpose,
    ) -> Result<Sequence, JournalError> {
        let Candidate { mut scanner, file } = candidate;
        let first = scanner.first();
        self.check_continuity(&file, first, expected)?;
        let allocated = file.handle.length().await?;
        // What a committed root covers wholly is only passed over.
        if let Some(next) = next_first.filter(|next| next.0 <= self.covered.0 + 1 && *next >= first) {
            self.files.push(FoundFile {
                file,
                last: Sequence(next.0 - 1),
                end: FileEnd {
                    offset: 0,
                    slot: 0,
                    torn: None,
                },
                bytes: allocated,
            });
            return Ok(next);
        }
        let mut last = Sequence(first.0 - 1);
        let end = loop {
            match scanner.next().await? {
                Scanned::Record { record, .. } => last = record.sequence(),
                Scanned::End(end) => break end,
            }
        };
        let mut bytes = allocated;
        if let Some(torn) = &end.torn {
            if next_first.is_none() && self.torn_tail.is_none() {
                self.torn_tail = Some(torn.clone());
            }
        } else if purpose == Purpose::Serve
            && end.offset < allocated
            && file.is_blank_from(end.offset, end.slot).await?
        {
            // Preallocated and not used: returned, so that a hundred crashes in a row do not fill the disk.
            file.handle.truncate(end.offset).await?;
            bytes = end.offset;
        }
        self.files.push(FoundFile {
            file,
            last,
            end,
            bytes,
        });
        Ok(Sequence(last.0 + 1))
    }

    fn check_continuity(
        &self,
        file: &JournalFile,
        first: Sequence,
        expected: Option<Sequence>,
    ) -> Result<(), JournalError> {
        // The oldest file continues from what the root covers, or overlaps it.
        let before = expected.unwrap_or(Sequence(self.covered.0 + 1));
        if first.0 > before.0 && first.0 - 1 > self.covered.0 {
            let torn = self
                .files
                .last()
                .and_then(|found| found.end.torn.as_ref().map(|_| found));
            return Err(match torn {
                Some(found) => JournalError::Damaged {
                    path: found.file.path.clone(),
                    offset: found.end.offset,
                    detail: format!(
                        "the file after it proves that records {} to {} were durable, and they are not whole",
                        before.0,
                        first.0 - 1
                    ),
                },
                None => JournalError::Missing {
                    path: file.path.clone(),
                    first: before.0.max(self.covered.0 + 1),
                    last: first.0 - 1,
                    covered: self.covered.0,
                },
            });
        }
        if expected.is_some_and(|expected| first < expected) {
            return Err(JournalError::Damaged {
                path: file.path.clone(),
                offset: 0,
                detail: format!(
                    "it starts at record {first}, which the file before holds already: two histories in one directory"
                ),
            });
        }
        Ok(())
    }

    /// Makes what was found durable before anybody builds upon it: a process that was killed may have left records in the
    /// kernel's memory only.
    ///
    /// A sync is not enough for the last file. If its last sync failed, the kernel shows pages that are not on the disk and
    /// that it will not write any more, since it takes them for clean. So they are written again, the same bytes at the same
    /// place. Files before it were synced successfully, or the one after them would not have been written to.
    pub(super) async fn make_durable(&self, env: &Env, directory: &str) -> Result<(), JournalError> {
        if firn_env::planted!("volume.skip_resync_of_found_files") {
            return Ok(());
        }
        if let Some(found) = self.files.last().filter(|found| found.last > self.covered) {
            let file = &found.file.handle;
            let mut offset = 0;
            while offset < found.end.offset {
                let length = (found.end.offset - offset).min(REWRITE_BYTES);
                let bytes = file.read_at(offset, length as usize).await?;
                env.fault_point("journal.before_rewrite").await;
                file.write_at(offset, vec![bytes]).await?;
                offset += length;
            }
            env.fault_point("journal.before_resync").await;
            file.sync_data().await?;
        }
        if !self.files.is_empty() {
            env.disk().sync_directory(directory).await?;
        }
        Ok(())
    }

    /// Keeps files that were never used, that have no record or that the root covers as spares, or removes them.
    pub(super) async fn retire_useless(
        &self,
        env: &Env,
        directory: &str,
        config: &JournalConfig,
    ) -> Result<Spares, JournalError> {
        let spares = Spares::default();
        for number in &self.spares {
            let path = spare_path_of(directory, *number);
            let found = env.disk().status(&path).await?;
            if found.length_bytes == config.file_bytes && spares.count() < SPARES_MAX {
                spares.add(*number);
            } else {
                env.disk().remove(&path).await?;
            }
        }
        let (covered, kept): (Vec<_>, Vec<_>) =
            self.files.iter().partition(|found| found.last <= self.covered);
        let kept_bytes = kept.iter().map(|found| found.bytes).sum();
        let covered = covered.iter().map(|found| (found.file.number, found.bytes));
        for (number, bytes) in self.unused.iter().copied().chain(covered) {
            env.fault_point("journal.before_recovery_remove").await;
            spares
                .retire(env, directory, config, number, (bytes, kept_bytes))
                .await?;
        }
        Ok(spares)
    }
}

/// The numbers of the journal files in a directory and of its spares, ascending; other files are not ours to judge.
async fn list(env: &Env, directory: &str) -> Result<(Vec<u64>, Vec<u64>), JournalError> {
    let disk: &dyn Disk = &**env.disk();
    let (mut numbers, mut spares) = (Vec::new(), Vec::new());
    for name in disk.list(directory).await? {
        match (number_of(&name), spare_number_of(&name)) {
            (Some(number), _) => numbers.push(number),
            (None, Some(number)) => spares.push(number),
            (None, None) => tracing::warn!(directory, name, "not a journal file; left alone"),
        }
    }
    numbers.sort_unstable();
    spares.sort_unstable();
    Ok((numbers, spares))
}

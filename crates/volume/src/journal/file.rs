//! One journal file: its name, its header, and records sealed into it and opened from it.
//!
//! ```text
//! <directory>/<number, 16 hex digits>.journal       .spare: kept to be used again
//! slot 0      the opening record: first_sequence u64, the sequence of the record in slot 1
//! slot n > 0  the record with sequence first_sequence + n - 1
//! ```
//!
//! The header is durable before the file is used, so a file whose header cannot be read holds no acknowledged record unless
//! it was damaged. The opening record is sealed: it ties the file to the history before it, and tells a wrong key ring at once.

use super::{
    JournalError,
    layout::OPENING_BYTES,
    record::{RecordRef, Sequence},
    seal_buffers::SealBuffer,
    zeroing::zeros,
};
use bytes::Bytes;
use firn_env::{DiskError, DiskFile, Env, OpenMode};
use firn_format::{
    Framing, JOURNAL_HEADER_BYTES, JournalFileHeader, JournalUse, MAX_RECORD_BYTES, RECORD_HEAD_BYTES,
    RECORD_OVERHEAD_BYTES, RecordScan, VolumeId, WriterId,
};
use firn_seal::{Keys, RecordContext, RecordOpener, RecordSealer, SealError, framed_bytes};
use std::sync::Arc;

const SUFFIX: &str = ".journal";
const SPARE_SUFFIX: &str = ".spare";

/// Records that may stand behind a place at which one is not whole: more than one batch, or one sync, has.
const SLOTS_AHEAD: u32 = 1 << 16;

/// The path of file `number`.
pub(super) fn path_of(directory: &str, number: u64) -> String {
    format!("{directory}/{number:016x}{SUFFIX}")
}

/// The path of file `number` while it is a spare.
pub(super) fn spare_path_of(directory: &str, number: u64) -> String {
    format!("{directory}/{number:016x}{SPARE_SUFFIX}")
}

/// The number a file name stands for; `None` for files that are not the journal's.
pub(super) fn number_of(name: &str) -> Option<u64> {
    number_with(name, SUFFIX)
}

/// The number of a spare.
pub(super) fn spare_number_of(name: &str) -> Option<u64> {
    number_with(name, SPARE_SUFFIX)
}

fn number_with(name: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_suffix(suffix)?;
    let plain = digits.len() == 16
        && digits
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// An open journal file with the keys to its records.
pub(super) struct JournalFile {
    /// Counts the files of the volume's journal.
    pub(super) number: u64,
    /// For messages and removal.
    pub(super) path: String,
    /// The bytes.
    pub(super) handle: Arc<dyn DiskFile>,
    framing: Framing,
    keys: FileKeys,
}

/// Only a file made by this start can be sealed into: a found one may end in a torn record, whose slot is spent (I5).
enum FileKeys {
    New(RecordSealer),
    Found(RecordOpener),
}

/// What the header of a found file says.
pub(super) enum FoundHeader {
    /// A journal file of this volume that the keys open.
    Ours(JournalFile),
    /// Preallocated and never used; so many bytes.
    Blank(u64),
}

impl JournalFile {
    /// Makes file `number`: preallocated, its header and its name durable.
    pub(super) async fn create(
        env: &Env,
        keys: &Keys,
        (volume, writer): (VolumeId, WriterId),
        directory: &str,
        number: u64,
        file_bytes: u64,
    ) -> Result<Self, JournalError> {
        let path = path_of(directory, number);
        env.fault_point("journal.before_file_create").await;
        let handle = match env.disk().open(&path, OpenMode::CreateNew).await {
            // Left by an attempt that ran out of space half way; nothing was ever sealed under its salt.
            Err(DiskError::AlreadyExists { .. }) => {
                env.disk().remove(&path).await?;
                env.disk().open(&path, OpenMode::CreateNew).await?
            }
            other => other?,
        };
        let context = RecordContext::journal(volume, writer, number);
        let sealer = RecordSealer::new(keys, env.random_bytes(), context);
        let header = sealer.journal_header();
        let made = async {
            handle.allocate(file_bytes).await?;
            let bytes = Bytes::copy_from_slice(&header.encode());
            handle.write_at(0, vec![bytes]).await?;
            handle.sync_data().await
        }
        .await;
        if let Err(error) = made {
            // What was allocated of it goes back; if even that fails, the next attempt finds and removes it.
            let _ = env.disk().remove(&path).await;
            return Err(match error {
                DiskError::Full { .. } => JournalError::NoSpace {
                    path,
                    needed_bytes: file_bytes,
                    free_bytes: env.disk().free_bytes().await.unwrap_or(0),
                },
                other => other.into(),
            });
        }
        sync_names(env, directory).await?;
        Ok(Self::sealed_by(sealer, number, path, handle))
    }

    /// Makes file `number` of a spare: its new header and its name durable, its old records behind it.
    pub(super) async fn recycle(
        env: &Env,
        keys: &Keys,
        (volume, writer): (VolumeId, WriterId),
        directory: &str,
        (spare, number): (u64, u64),
        file_bytes: u64,
    ) -> Result<Self, JournalError> {
        /// Written at once with the header, so that nothing needs to be read for it.
        const FIRST_PAGE_BYTES: u64 = 4096;
        let (path, spare) = (path_of(directory, number), spare_path_of(directory, spare));
        env.fault_point("journal.before_file_recycle").await;
        // Under its former name another header would be damage.
        env.disk().sync_directory(directory).await?;
        let handle = env.disk().open(&spare, OpenMode::ReadWrite).await?;
        let found_bytes = handle.length().await?;
        if found_bytes != file_bytes {
            let detail = format!("it has {found_bytes} bytes, not {file_bytes}");
            return Err(JournalError::Unreadable { path: spare, detail });
        }
        let usage = if firn_env::planted!("volume.accept_stale_records") {
            JournalUse::Unseeded
        } else {
            JournalUse::Recycled
        };
        let context = RecordContext::journal(volume, writer, number);
        let sealer = RecordSealer::new(keys, env.random_bytes(), context).in_place_of(usage);
        let header = Bytes::copy_from_slice(&sealer.journal_header().encode());
        let rest = FIRST_PAGE_BYTES.min(file_bytes) - JOURNAL_HEADER_BYTES as u64;
        let parts = std::iter::once(header).chain(zeros(rest));
        handle.write_at(0, parts.collect()).await?;
        handle.sync_data().await?;
        env.fault_point("journal.before_recycled_name").await;
        env.disk().rename(&spare, &path).await?;
        sync_names(env, directory).await?;
        Ok(Self::sealed_by(sealer, number, path, handle))
    }

    fn sealed_by(sealer: RecordSealer, number: u64, path: String, handle: Arc<dyn DiskFile>) -> Self {
        Self {
            number,
            path,
            handle,
            framing: sealer.framing(),
            keys: FileKeys::New(sealer),
        }
    }

    /// How its records are framed.
    pub(super) fn framing(&self) -> &Framing {
        &self.framing
    }

    /// Whether all its blocks were written by an earlier use, and the records of that stand behind its own.
    pub(super) fn is_recycled(&self) -> bool {
        self.framing.is_recycled()
    }

    /// Opens a file that was found, and says whether it was ever used.
    pub(super) async fn found(
        env: &Env,
        keys: &Keys,
        volume: VolumeId,
        directory: &str,
        number: u64,
        mode: OpenMode,
    ) -> Result<FoundHeader, JournalError> {
        let path = path_of(directory, number);
        let handle = env.disk().open(&path, mode).await?;
        let bytes = handle.read_at(0, JOURNAL_HEADER_BYTES).await?;
        let header = match JournalFileHeader::decode(&bytes) {
            Ok(header) => header,
            // Its header is synced before its first record is written: without any record it was never used.
            Err(_)
                if is_zero_from(&*handle, 0).await?
                    || is_zero_from(&*handle, JOURNAL_HEADER_BYTES as u64).await? =>
            {
                return Ok(FoundHeader::Blank(handle.length().await?));
            }
            Err(error) => {
                return Err(JournalError::Unreadable {
                    path,
                    detail: error.to_string(),
                });
            }
        };
        if header.volume != volume {
            return Err(JournalError::ForeignVolume {
                path,
                found: header.volume.to_string(),
                expected: volume.to_string(),
            });
        }
        if header.number != number {
            return Err(JournalError::Unreadable {
                path,
                detail: format!("it was written as file {:016x} and renamed", header.number),
            });
        }
        match RecordOpener::of_journal(keys, &header) {
            Ok(opener) => Ok(FoundHeader::Ours(Self {
                number,
                path,
                handle,
                framing: header.framing(),
                keys: FileKeys::Found(opener),
            })),
            Err(error) => Err(JournalError::WrongKey {
                path,
                detail: error.to_string(),
            }),
        }
    }

    /// Appends the opening record to `group`.
    pub(super) fn seal_opening(&self, first: Sequence, group: &mut SealBuffer) -> Result<(), JournalError> {
        self.seal(0, &[Bytes::copy_from_slice(&first.0.to_le_bytes())], group)
    }

    /// Appends one sealed and framed record to `group`.
    pub(super) fn seal(
        &self,
        slot: u32,
        parts: &[Bytes],
        group: &mut SealBuffer,
    ) -> Result<(), JournalError> {
        let failed = |detail: String| JournalError::Failed { detail };
        match &self.keys {
            FileKeys::New(sealer) => {
                let slices: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
                sealer
                    .seal_framed(slot, &slices, group.room(framed_bytes(&slices)))
                    .map_err(|error| failed(error.to_string()))
            }
            FileKeys::Found(_) => Err(failed(format!(
                "{} was found, not made, by this start",
                self.path
            ))),
        }
    }

    /// Opens the sealed payload of the record in `slot`, whose checksum was right.
    pub(super) fn open(&self, slot: u32, offset: u64, sealed: Bytes) -> Result<Bytes, JournalError> {
        self.unseal(slot, sealed).map_err(|error| JournalError::Damaged {
            path: self.path.clone(),
            offset,
            detail: format!("its checksum is right but its seal is not: {error}"),
        })
    }

    fn unseal(&self, slot: u32, sealed: Bytes) -> Result<Bytes, SealError> {
        match &self.keys {
            FileKeys::New(sealer) => sealer.open(slot, sealed),
            FileKeys::Found(opener) => opener.open(slot, sealed),
        }
    }

    /// What the opening record says, given its sealed payload.
    pub(super) fn open_opening(&self, sealed: Bytes) -> Result<Sequence, JournalError> {
        let wrong = |detail: String| JournalError::WrongKey {
            path: self.path.clone(),
            detail,
        };
        let payload = self
            .unseal(0, sealed)
            .map_err(|error| wrong(format!("{error} (a wrong key ring, or the file was altered)")))?;
        let bytes: [u8; OPENING_BYTES as usize] = payload[..]
            .try_into()
            .map_err(|_| wrong(format!("its opening record has {} bytes", payload.len())))?;
        Ok(Sequence(u64::from_le_bytes(bytes)))
    }

    /// Reads one record back and opens it.
    pub(super) async fn read(&self, record: &RecordRef) -> Result<Bytes, JournalError> {
        let framed = self
            .handle
            .read_at(record.offset, record.framed_bytes() as usize)
            .await?;
        match self.framing.next(&framed, record.slot) {
            RecordScan::Record { payload, total_bytes } if total_bytes as u64 == record.framed_bytes() => {
                let sealed = framed.slice(payload);
                // Nobody else holds the bytes: they are opened where they lie.
                drop(framed);
                self.open(record.slot, record.offset, sealed)
            }
            RecordScan::Record { .. } | RecordScan::Torn | RecordScan::End => Err(JournalError::Damaged {
                path: self.path.clone(),
                offset: record.offset,
                detail: format!(
                    "record {} was written here and is not here any more",
                    record.sequence.0
                ),
            }),
        }
    }

    /// Whether no record of this use of the file stands at or behind `offset`, where that in `slot` would be, nor a part of one as
    /// far as that can be told: zeros, or what an earlier use left.
    pub(super) async fn is_blank_from(&self, offset: u64, slot: u32) -> Result<bool, JournalError> {
        if self.is_recycled() {
            return Ok(!self.has_record_from(offset, slot).await?);
        }
        is_zero_from(&*self.handle, offset).await
    }

    async fn has_record_from(&self, mut offset: u64, slot: u32) -> Result<bool, JournalError> {
        loop {
            let bytes = self
                .handle
                .read_at(offset, STEP_BYTES + RECORD_HEAD_BYTES - 1)
                .await?;
            for (index, head) in bytes.windows(RECORD_HEAD_BYTES).enumerate() {
                let Some(head) = head.first_chunk() else { continue };
                let (sealed_bytes, found) = self.framing.head(head);
                if found.wrapping_sub(slot) > SLOTS_AHEAD || !(1..=MAX_RECORD_BYTES).contains(&sealed_bytes) {
                    continue;
                }
                let framed_bytes = sealed_bytes + RECORD_OVERHEAD_BYTES;
                let framed = self.handle.read_at(offset + index as u64, framed_bytes).await?;
                if matches!(self.framing.next(&framed, found), RecordScan::Record { .. }) {
                    return Ok(true);
                }
            }
            if bytes.len() < STEP_BYTES {
                return Ok(false);
            }
            offset += STEP_BYTES as u64;
        }
    }
}

/// Makes the name of a file that is ready durable.
async fn sync_names(env: &Env, directory: &str) -> Result<(), JournalError> {
    if !firn_env::planted!("volume.skip_journal_directory_sync") {
        env.disk().sync_directory(directory).await?;
    }
    env.fault_point("journal.after_file_create").await;
    Ok(())
}

/// One read at a time: small beside the memory of one write batch.
const STEP_BYTES: usize = 1 << 20;

async fn is_zero_from(file: &dyn DiskFile, mut offset: u64) -> Result<bool, JournalError> {
    loop {
        let bytes = file.read_at(offset, STEP_BYTES).await?;
        if bytes.is_empty() {
            return Ok(true);
        }
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        offset += bytes.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::{number_of, path_of};

    #[test]
    fn a_name_gives_back_its_number_and_foreign_names_give_none() {
        for number in [0, 1, 0xabc, u64::MAX] {
            let path = path_of("journal", number);
            let name = path.strip_prefix("journal/").expect("within the directory");
            assert_eq!(number_of(name), Some(number));
        }
        for name in [
            "lock",
            "1.journal",
            "000000000000000G.journal",
            "000000000000000A.journal",
            "0000000000000001",
        ] {
            assert_eq!(number_of(name), None, "{name}");
        }
    }
}

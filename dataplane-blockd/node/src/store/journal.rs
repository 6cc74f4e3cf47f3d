//! The journal: the node's write-ahead log, two preallocated files that are written in turn.
//!
//! ```text
//! file  = batch* | anything
//! batch = magic "FBJB" | payload bytes u32 | file number u64 | batch in the file u32 | crc32c of header and payload u32
//!       | payload | zeros to a multiple of 512
//! ```
//!
//! File *n* is written over file *n* − 2 once everything in that one stands in index regions that are durable. Its old
//! content is told apart by the file number. A batch begins at a sector of its own, so writing it never touches a sector
//! that holds an older one, and it is written only after the one before is durable: a damaged batch with a whole one behind
//! it was not torn by a crash but rotted, and the node refuses to start instead of forgetting what it acknowledged.

use super::{fields::fields, layout, record::Record};
use bytes::Bytes;
use firn_codec::Writer;
use firn_env::{DiskError, DiskFile, Env, OpenMode};
use std::sync::Arc;

const MAGIC: [u8; 4] = *b"FBJB";
const HEADER_BYTES: usize = 24;
const SECTOR_BYTES: usize = 512;

pub(crate) struct Journal {
    files: [Arc<dyn DiskFile>; 2],
    file_bytes: u64,
    number: u64,
    batch: u32,
    offset: u64,
}

/// What a journal file holds.
pub(crate) struct Found {
    pub(crate) number: u64,
    pub(crate) records: Vec<Record>,
}

/// Why a journal cannot be read.
pub(crate) enum JournalDamage {
    Disk(DiskError),
    Rotten(String),
    /// A whole batch holds a record that this build does not know.
    Newer(String),
}

impl From<DiskError> for JournalDamage {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

impl Journal {
    /// Begins file `number`, which nothing needs what it is written over.
    pub(crate) async fn begin(env: &Env, file_bytes: u64, number: u64) -> Result<Self, DiskError> {
        Ok(Self {
            files: [
                env.disk()
                    .open(&layout::journal_path(0), OpenMode::ReadWrite)
                    .await?,
                env.disk()
                    .open(&layout::journal_path(1), OpenMode::ReadWrite)
                    .await?,
            ],
            file_bytes,
            number,
            batch: 0,
            offset: 0,
        })
    }

    /// The number of the file being written.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Bytes of payload that any file has room for.
    pub(crate) fn payload_max_bytes(&self) -> usize {
        usize::try_from(self.file_bytes / 2).unwrap_or(usize::MAX)
    }

    /// Whether a payload of that size still fits the file.
    pub(crate) fn has_room(&self, payload_bytes: usize) -> bool {
        let total = (HEADER_BYTES + payload_bytes).next_multiple_of(SECTOR_BYTES) as u64;
        self.offset + total <= self.file_bytes
    }

    /// Goes on in the other file.
    pub(crate) fn rotate(&mut self) {
        self.number += 1;
        self.batch = 0;
        self.offset = 0;
    }

    /// Makes a batch durable.
    pub(crate) async fn append(&mut self, payload: Bytes) -> Result<(), DiskError> {
        assert!(self.has_room(payload.len()), "the caller rotates first");
        let batch = encode(self.number, self.batch, &payload);
        let length = batch.len() as u64;
        let file = &self.files[(self.number % 2) as usize];
        file.write_and_sync(self.offset, vec![batch]).await?;
        self.offset += length;
        self.batch += 1;
        Ok(())
    }

    /// What both files hold from number `first` on, in order; older ones are covered by index regions.
    pub(crate) async fn read(env: &Env, file_bytes: u64, first: u64) -> Result<Vec<Found>, JournalDamage> {
        let mut found = Vec::new();
        for slot in 0..2 {
            let file = env
                .disk()
                .open(&layout::journal_path(slot), OpenMode::Read)
                .await?;
            let length = usize::try_from(file_bytes).unwrap_or(usize::MAX);
            let bytes = file.read_at(0, length).await?;
            if let Some(file) = read_file(slot, first, &bytes)? {
                found.push(file);
            }
        }
        found.sort_by_key(|file| file.number);
        Ok(found)
    }
}

pub(super) fn encode(number: u64, batch: u32, payload: &[u8]) -> Bytes {
    let length = (HEADER_BYTES + payload.len()).next_multiple_of(SECTOR_BYTES);
    let mut bytes = Writer::with_capacity(length);
    bytes.raw(&MAGIC);
    bytes.u32(u32::try_from(payload.len()).expect("a batch fits its file"));
    bytes.u64(number);
    bytes.u32(batch);
    bytes.u32(checksum(bytes.as_slice(), payload));
    bytes.raw(payload);
    bytes.zeros_to(length);
    bytes.finish().into()
}

fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(header), payload)
}

/// Number, batch and payload of the batch at the beginning of `bytes`.
pub(super) fn decode(bytes: &[u8]) -> Option<(u64, u32, &[u8])> {
    let mut fields = fields(bytes);
    if fields.array().ok()? != MAGIC {
        return None;
    }
    let length = fields.u32().ok()? as usize;
    let (number, batch) = (fields.u64().ok()?, fields.u32().ok()?);
    let covered = &bytes[..fields.offset()];
    let expected = fields.u32().ok()?;
    let payload = fields.take(length).ok()?;
    (checksum(covered, payload) == expected).then_some((number, batch, payload))
}

fn read_file(slot: u64, first: u64, bytes: &[u8]) -> Result<Option<Found>, JournalDamage> {
    // The newest number anywhere in the file is the file's: older content may stand behind.
    let mut number = None;
    let mut end_of_newest = 0;
    for at in (0..bytes.len()).step_by(SECTOR_BYTES) {
        if let Some((found, _, payload)) = decode(&bytes[at..])
            && found % 2 == slot
            && found >= first
            && number.is_none_or(|number| found >= number)
        {
            number = Some(found);
            end_of_newest = at + (HEADER_BYTES + payload.len()).next_multiple_of(SECTOR_BYTES);
        }
    }
    let Some(number) = number else {
        return Ok(None);
    };
    let mut records = Vec::new();
    let mut at = 0;
    let mut next = 0;
    while let Some((found, batch, payload)) = bytes.get(at..).and_then(decode)
        && (found, batch) == (number, next)
    {
        at += (HEADER_BYTES + payload.len()).next_multiple_of(SECTOR_BYTES);
        next += 1;
        let mut fields = fields(payload);
        while fields.remaining() > 0 {
            let record = Record::decode(&mut fields).map_err(|_| {
                JournalDamage::Newer(format!("a record in batch {batch} of journal file {number}"))
            })?;
            records.push(record);
        }
    }
    if at < end_of_newest {
        return Err(JournalDamage::Rotten(format!(
            "batch {next} of journal file {number} is damaged, with whole ones behind it"
        )));
    }
    Ok(Some(Found { number, records }))
}

//! A batch: records of one source in a row, as they travel and as the receiver keeps them.
//!
//! ```text
//! batch   = magic "FUSG" | version u8 = 1 | flags u8 = 0
//!         | source text | incarnation u64 | first_sequence u64 | count u32
//!         | tenants n, text × n | resources n, text × n            (each once, in the order of first use)
//!         | record × count
//!         | crc32c of all before u32
//! record  = tenant n | resource n | meter n | quantity n | from ±n | duration n
//! text    = length u8 | bytes                  n = LEB128                  ±n = zigzag difference to the record before
//! ```
//!
//! Sequence numbers follow from `first_sequence`; names are written once; times as differences. A record of an ordinary
//! stream takes about 12 bytes, so [`BATCH_MAX_RECORDS`] take about 50 KiB. Equal batches have equal bytes.

use crate::{
    Incarnation, Meter, Observation, ResourceName, SourceId, TenantName, UsageRecord,
    codec::{Malformed, Reader, Usage, Writer},
};
use std::collections::BTreeMap;

/// Records in a batch at most: enough that the receiver's one transaction a batch, some milliseconds, is spread over
/// thousands of records; few enough that a batch lost on the way is cheap to send again.
pub const BATCH_MAX_RECORDS: usize = 4096;
/// Bytes of a batch at most. With the receiver's own fields it still fits one item of the table (400 KiB).
pub const BATCH_MAX_BYTES: usize = 256 << 10;

const MAGIC: &[u8; 4] = b"FUSG";
pub(crate) const VERSION: u8 = 1;
/// Bytes of the smallest record: six numbers.
const RECORD_MIN_BYTES: usize = 6;
/// Bytes of the largest record with names of its own: bounds what one more record can add.
const RECORD_MAX_BYTES: usize =
    2 + 2 + 3 + 10 + 10 + 5 + 1 + TenantName::MAX_BYTES + 1 + ResourceName::MAX_BYTES;
/// Everything but records and names.
const FRAME_MAX_BYTES: usize = 4 + 2 + 1 + SourceId::MAX_BYTES + 8 + 8 + 4 + 2 + 2 + 4;

/// Why bytes or records are no batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The checksum does not match: damaged on the way; send it again.
    #[error("a usage batch was damaged on the way: its checksum does not match")]
    Checksum,
    /// Another format, or a version this build does not read.
    #[error("not a usage batch this build can read (format version {version:?}, this build reads {VERSION})")]
    Version {
        /// The version, if it is a batch at all.
        version: Option<u8>,
    },
    /// Not as the format says.
    #[error("a usage batch is malformed: {what} at byte {offset}")]
    Malformed {
        /// What.
        what: &'static str,
        /// Where.
        offset: usize,
    },
    /// Too many records or bytes, none at all, or sequence numbers beyond what 64 bits hold.
    #[error("a usage batch breaks a limit: {0}")]
    Limit(&'static str),
}

impl From<Malformed> for BatchError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed {
            what: malformed.what,
            offset: malformed.offset,
        }
    }
}

/// Records of one source and incarnation with consecutive sequence numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageBatch {
    source: SourceId,
    incarnation: Incarnation,
    first_sequence: u64,
    observations: Vec<Observation>,
}

impl UsageBatch {
    /// A batch of these observations, the first of which has number `first_sequence` (from 1).
    ///
    /// # Errors
    /// [`BatchError::Limit`] if there are none or too many, or the numbers do not fit; [`BatchError::Malformed`] if an
    /// observation is impossible.
    pub fn new(
        source: SourceId,
        incarnation: Incarnation,
        first_sequence: u64,
        observations: Vec<Observation>,
    ) -> Result<Self, BatchError> {
        if observations.is_empty() || observations.len() > BATCH_MAX_RECORDS {
            return Err(BatchError::Limit("1 to 4096 records"));
        }
        if first_sequence == 0 || first_sequence.checked_add(observations.len() as u64).is_none() {
            return Err(BatchError::Limit("sequence numbers from 1 to 2^64 - 2"));
        }
        if observations
            .iter()
            .any(|observation| observation.check().is_err())
        {
            return Err(BatchError::Limit("observed intervals end before the year 10000"));
        }
        Ok(Self {
            source,
            incarnation,
            first_sequence,
            observations,
        })
    }

    /// Who observed.
    pub fn source(&self) -> &SourceId {
        &self.source
    }

    /// In which life of its spool.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The first record's number.
    pub fn first_sequence(&self) -> u64 {
        self.first_sequence
    }

    /// The number after the last record's.
    pub fn next_sequence(&self) -> u64 {
        self.first_sequence + self.observations.len() as u64
    }

    /// What was observed, in order.
    pub fn observations(&self) -> &[Observation] {
        &self.observations
    }

    /// The records one by one.
    pub fn records(&self) -> impl Iterator<Item = UsageRecord> {
        (self.first_sequence..)
            .zip(&self.observations)
            .map(|(sequence, observation)| UsageRecord {
                source: self.source.clone(),
                incarnation: self.incarnation,
                sequence,
                observation: observation.clone(),
            })
    }

    /// The records with numbers from `first` to before `next`, which must lie in it.
    ///
    /// # Panics
    /// If they do not, or there are none.
    #[must_use]
    pub fn part(&self, first: u64, next: u64) -> Self {
        assert!(
            self.first_sequence <= first && first < next && next <= self.next_sequence(),
            "a part lies in its batch"
        );
        let start = (first - self.first_sequence) as usize;
        let end = (next - self.first_sequence) as usize;
        Self {
            source: self.source.clone(),
            incarnation: self.incarnation,
            first_sequence: first,
            observations: self.observations[start..end].to_vec(),
        }
    }

    /// How many of `observations`, from the first, surely fit a batch; at least one of any.
    pub fn fitting(observations: &[Observation]) -> usize {
        let mut bytes = FRAME_MAX_BYTES;
        let mut named = (
            std::collections::BTreeSet::new(),
            std::collections::BTreeSet::new(),
        );
        for (count, observation) in observations.iter().enumerate().take(BATCH_MAX_RECORDS) {
            let mut more = RECORD_MAX_BYTES - TenantName::MAX_BYTES - ResourceName::MAX_BYTES;
            if named.0.insert(&observation.tenant) {
                more += observation.tenant.as_str().len();
            }
            if named.1.insert(&observation.resource) {
                more += observation.resource.as_str().len();
            }
            if bytes + more > BATCH_MAX_BYTES {
                return count;
            }
            bytes += more;
        }
        observations.len().min(BATCH_MAX_RECORDS)
    }

    /// Its bytes.
    ///
    /// # Errors
    /// [`BatchError::Limit`] if they are more than [`BATCH_MAX_BYTES`]: cut it by [`fitting`](Self::fitting) first.
    pub fn encode(&self) -> Result<Vec<u8>, BatchError> {
        let mut tenants = Names::default();
        let mut resources = Names::default();
        let mut records = Writer::default();
        let mut before_ms = 0_i64;
        for observation in &self.observations {
            records.number(tenants.place(observation.tenant.as_str()));
            records.number(resources.place(observation.resource.as_str()));
            records.number(u64::from(observation.meter.0));
            records.number(observation.quantity);
            // Times were checked: they fit 48 bits.
            let from_ms = observation.from_ms as i64;
            records.difference(from_ms - before_ms);
            before_ms = from_ms;
            records.number(u64::from(observation.duration_ms));
        }
        let mut writer = Writer::default();
        writer.raw(MAGIC);
        writer.u8(VERSION);
        writer.u8(0);
        writer.text(self.source.as_str());
        writer.u64(self.incarnation.0);
        writer.u64(self.first_sequence);
        writer.u32(self.observations.len() as u32);
        tenants.write(&mut writer);
        resources.write(&mut writer);
        writer.raw(records.as_slice());
        writer.u32(crc32c::crc32c(writer.as_slice()));
        if writer.as_slice().len() > BATCH_MAX_BYTES {
            return Err(BatchError::Limit("256 KiB"));
        }
        Ok(writer.finish())
    }

    /// Reads a batch.
    ///
    /// # Errors
    /// [`BatchError`] saying what is wrong; nothing is taken from a batch that is not whole.
    pub fn decode(bytes: &[u8]) -> Result<Self, BatchError> {
        if bytes.len() > BATCH_MAX_BYTES {
            return Err(BatchError::Limit("256 KiB"));
        }
        match bytes {
            [b'F', b'U', b'S', b'G', VERSION, ..] => {}
            [b'F', b'U', b'S', b'G', version, ..] => {
                return Err(BatchError::Version {
                    version: Some(*version),
                });
            }
            _ => return Err(BatchError::Version { version: None }),
        }
        let Some((body, checksum)) = bytes.split_last_chunk::<4>() else {
            return Err(BatchError::Checksum);
        };
        if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
            return Err(BatchError::Checksum);
        }
        let mut reader = Reader::new(Usage, body);
        reader.take(5)?;
        if reader.u8()? != 0 {
            return Err(reader.malformed("a flag of a later version").into());
        }
        let source = SourceId::new(reader.text()?).map_err(|_| reader.malformed("a name of no source"))?;
        let incarnation = Incarnation(reader.u64()?);
        let first_sequence = reader.u64()?;
        let count = reader.u32()? as usize;
        if count > reader.remaining() / RECORD_MIN_BYTES {
            return Err(reader.malformed("more records than bytes").into());
        }
        let tenants = read_names(&mut reader, TenantName::new)?;
        let resources = read_names(&mut reader, ResourceName::new)?;
        let mut seen = (0, 0);
        let mut before_ms = 0_i64;
        let mut observations = Vec::with_capacity(count.min(BATCH_MAX_RECORDS));
        for _ in 0..count {
            let tenant = pick(&mut reader, &tenants, &mut seen.0)?;
            let resource = pick(&mut reader, &resources, &mut seen.1)?;
            let meter =
                u16::try_from(reader.number()?).map_err(|_| reader.malformed("a meter beyond 16 bits"))?;
            let quantity = reader.number()?;
            let from_ms = before_ms
                .checked_add(reader.difference()?)
                .filter(|from_ms| *from_ms >= 0)
                .ok_or_else(|| reader.malformed("a time before 1970"))?;
            before_ms = from_ms;
            let duration_ms =
                u32::try_from(reader.number()?).map_err(|_| reader.malformed("a duration beyond 32 bits"))?;
            observations.push(Observation {
                tenant,
                resource,
                meter: Meter(meter),
                quantity,
                from_ms: from_ms as u64,
                duration_ms,
            });
        }
        if seen != (tenants.len(), resources.len()) {
            return Err(reader.malformed("a name that no record uses").into());
        }
        reader.finish()?;
        Self::new(source, incarnation, first_sequence, observations)
    }
}

/// Names in the order of first use.
#[derive(Default)]
struct Names<'a> {
    places: BTreeMap<&'a str, u64>,
    order: Vec<&'a str>,
}

impl<'a> Names<'a> {
    fn place(&mut self, name: &'a str) -> u64 {
        *self.places.entry(name).or_insert_with(|| {
            self.order.push(name);
            self.order.len() as u64 - 1
        })
    }

    fn write(&self, writer: &mut Writer) {
        writer.number(self.order.len() as u64);
        for name in &self.order {
            writer.text(name);
        }
    }
}

fn read_names<T: Ord + Clone, E>(
    reader: &mut Reader<'_>,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, Malformed> {
    let count = reader.number()?;
    // Each takes two bytes at least.
    if count > (reader.remaining() / 2) as u64 {
        return Err(reader.malformed("more names than bytes"));
    }
    let mut names = Vec::with_capacity(count as usize);
    let mut distinct = std::collections::BTreeSet::new();
    for _ in 0..count {
        let name = parse(reader.text()?).map_err(|_| reader.malformed("a text that is no name"))?;
        if !distinct.insert(name.clone()) {
            return Err(reader.malformed("a name written twice"));
        }
        names.push(name);
    }
    Ok(names)
}

/// The name a record points to; `seen` counts those used so far, since they stand in the order of first use.
fn pick<T: Clone>(reader: &mut Reader<'_>, names: &[T], seen: &mut usize) -> Result<T, Malformed> {
    let place = reader.number()?;
    let name = usize::try_from(place)
        .ok()
        .filter(|place| *place <= *seen)
        .and_then(|place| names.get(place))
        .ok_or_else(|| reader.malformed("a name out of order"))?;
    if place == *seen as u64 {
        *seen += 1;
    }
    Ok(name.clone())
}

//! Rounds of retirement, for manifests: what each retirement took from the log, and what it added to it.
//!
//! ```text
//! sort "round/<n>"   what the retirement that made the round n retired and wrote
//! ```
//!
//! A volume's manifest says which segments must exist, and only a retirement lets one go. A retirement is one transaction, and this item is a
//! part of it: so the table says in one order what left the log. A checkpoint names the newest round that its manifest took in
//! (`ManifestPart::newest_round`); what must exist is what the manifest says, less what later rounds retired, and what they wrote.
//!
//! A round is forgotten once every head has taken it in. Cleaners write rounds where a volume has a manifest or has no root yet; in families
//! without one nothing is written, as before there were manifests.

use crate::{
    Anchor, AnchorCall, AnchorError, MAX_LISTED, StoredTuple, TupleError, TupleVersion, anchor::decode,
    layout,
};
use bytes::Bytes;
use firn_format::{ListedSegment, SegmentId};

pub(crate) const ROUND_PREFIX: &str = "round/";
pub(crate) const LAYOUT_VERSION: u8 = 1;
const KIND: u8 = b'N';

/// Segments of each kind in one round. A retirement has 48 of the one, and a batch of the cleaner fills some tens of the other.
pub const MAX_ROUND_SEGMENTS: usize = 1024;

/// What one retirement changed of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetirementRound {
    /// By the cleaner's wall clock, milliseconds since 1970.
    pub retired_at_ms: i64,
    /// What need not exist any more.
    pub retired: Vec<SegmentId>,
    /// What must exist from now on: where the cleaner put what it moved.
    pub written: Vec<ListedSegment>,
}

impl RetirementRound {
    /// Encodes.
    ///
    /// # Panics
    /// If there are more than [`MAX_ROUND_SEGMENTS`] of a kind.
    pub fn to_bytes(&self) -> Bytes {
        assert!(
            self.retired.len().max(self.written.len()) <= MAX_ROUND_SEGMENTS,
            "the cleaner's batches are bounded"
        );
        let mut writer = layout::Writer::default();
        writer.u8(LAYOUT_VERSION);
        writer.u8(KIND);
        writer.u8(0);
        writer.i64(self.retired_at_ms);
        writer.u16(self.retired.len() as u16);
        for segment in &self.retired {
            layout::write_segment(&mut writer, *segment);
        }
        writer.u16(self.written.len() as u16);
        for listed in &self.written {
            writer.raw(&listed.to_bytes());
        }
        writer.finish().into()
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one round of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TupleError> {
        let mut reader = layout::open(bytes, LAYOUT_VERSION, KIND)?;
        let flags = reader.u8()?;
        if flags != 0 {
            return Err(TupleError::UnknownFlags { found: flags });
        }
        let retired_at_ms = reader.i64()?;
        let (mut retired, mut written) = (Vec::new(), Vec::new());
        for _ in 0..count(&mut reader)? {
            retired.push(layout::read_segment(&mut reader)?);
        }
        for _ in 0..count(&mut reader)? {
            let bytes: [u8; 92] = reader.array()?;
            match ListedSegment::from_bytes(&bytes) {
                Ok(listed) => written.push(listed),
                Err(_) => return Err(reader.malformed("no entry of a manifest")),
            }
        }
        reader.finish()?;
        Ok(Self {
            retired_at_ms,
            retired,
            written,
        })
    }
}

fn count(reader: &mut layout::Reader<'_>) -> Result<usize, TupleError> {
    match usize::from(reader.u16()?) {
        count if count <= MAX_ROUND_SEGMENTS => Ok(count),
        _ => Err(reader.malformed("a round of too many segments")),
    }
}

/// A round as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRound {
    /// Its number.
    pub number: u64,
    /// What it says.
    pub round: RetirementRound,
    /// The item as it was read.
    pub version: TupleVersion,
}

impl Anchor {
    /// At most `limit` rounds after the round `after`, in order.
    ///
    /// # Errors
    /// [`AnchorError::Damaged`], or what the table says.
    pub async fn list_rounds(&self, after: u64, limit: usize) -> Result<Vec<StoredRound>, AnchorError> {
        let mut found: Vec<StoredRound> = Vec::new();
        let mut last = after;
        while found.len() < limit {
            let wanted = u16::try_from(limit - found.len())
                .unwrap_or(MAX_LISTED)
                .min(MAX_LISTED);
            let call = AnchorCall::ListRounds {
                after: last,
                limit: wanted,
            };
            let (tuples, more) = self.list(call, ROUND_PREFIX, Some(round_sort(last))).await?;
            for StoredTuple {
                name,
                version,
                content,
            } in tuples
            {
                last = number_of(&name)?;
                found.push(StoredRound {
                    number: last,
                    round: decode(&name, RetirementRound::from_bytes(&content))?,
                    version,
                });
            }
            if !more {
                break;
            }
        }
        Ok(found)
    }

    /// Forgets a round that every head has taken in. One that is not there is fine.
    ///
    /// # Errors
    /// What the table says. It may then have happened.
    pub async fn forget_round(&self, round: &StoredRound) -> Result<(), AnchorError> {
        let call = AnchorCall::ForgetRound {
            round: round.number,
            seen: round.version,
        };
        // Nobody changes such an item: if it is another one, another cleaner has forgotten it.
        self.change(call).await?.ok();
        Ok(())
    }
}

pub(crate) fn round_sort(number: u64) -> String {
    format!("{ROUND_PREFIX}{number:016x}")
}

fn number_of(sort: &str) -> Result<u64, AnchorError> {
    let digits = &sort[ROUND_PREFIX.len()..];
    match u64::from_str_radix(digits, 16) {
        Ok(number) if round_sort(number) == sort => Ok(number),
        Ok(_) | Err(_) => Err(AnchorError::Damaged {
            what: sort.to_owned(),
            why: TupleError::Malformed {
                what: "a sort key that names no round",
                offset: ROUND_PREFIX.len(),
            },
        }),
    }
}

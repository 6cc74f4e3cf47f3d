//! The cleaners' account of a family: what they sent to the bucket and what they found in it, for the bill.
//!
//! ```text
//! sort "cleaner-account"   layout | kind 'A' | flags (1 a sweep is under way) | requests u64 | stored byte-milliseconds u128
//!                          | listed bytes u64 | listed at i64 | swept bytes u64 | swept until (16) | change id [16]
//! ```
//!
//! The account lies beside the roots and not on the cleaner's disk: functions have none, and hosts that clean one family have to agree
//! on which interval was counted. Every note is a conditional write with a mark, so it counts once, whoever notes what beside it and
//! however often it is sent. What a cleaner did and died before noting is counted never: in the customer's favour.
//!
//! **Stored bytes** are those of the last whole listing, from then on until the next one: bytes × milliseconds are added up without
//! rounding. A listing that takes several runs is put together from parts, each of which begins where the one before ended; a part that
//! does not (another cleaner went on meanwhile) is passed over. Before the first listing nothing is known to be stored.
//!
//! **Clocks** are the cleaners'. An interval is never negative and never more than [`LISTING_GAP_MAX`], so a clock that jumps costs a
//! customer three days of storage at most; one that was ahead by more than that is taken back.

use crate::{
    Anchor, AnchorCall, AnchorError, TupleError, TupleVersion, Unfit,
    anchor::decode,
    layout::{self, Writer},
    retry, text,
};
use bytes::Bytes;
use firn_format::{SegmentId, WriterId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub(crate) const LAYOUT_VERSION: u8 = 1;
const ACCOUNT_KIND: u8 = b'A';
const SWEEPING: u8 = 1;
pub(crate) const ACCOUNT: &str = "cleaner-account";

/// Between two listings no more is counted: hosts list every hour or every day, and a long weekend may lie between.
pub const LISTING_GAP_MAX: Duration = Duration::from_secs(72 * 3600);
/// More than any run can send.
const NOTED_REQUESTS_MAX: u64 = 1 << 40;
/// An exbibyte: more than any bucket holds.
const LISTED_BYTES_MAX: u64 = 1 << 60;
const MS_PER_HOUR: u128 = 3_600_000;

/// What cleaners noted of a family, added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleaningAccount {
    /// Requests to the bucket.
    pub requests: u64,
    /// Bytes found in the bucket × milliseconds that they were taken to be there.
    pub stored_byte_ms: u128,
    /// Bytes of the last whole listing.
    pub listed_bytes: u64,
    /// When that ended, by the clock of who listed, milliseconds since 1970; 0 before the first.
    pub listed_at_ms: i64,
    /// How far a listing under way came, and the bytes up to there.
    pub swept: Option<(SegmentId, u64)>,
    /// Random, drawn for this state: recognised after a lost reply.
    pub change_id: [u8; 16],
}

/// What a cleaner notes of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CleaningNote {
    /// Requests that it sent to the bucket and has not noted before.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub requests: u64,
    /// What it found there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listing: Option<Listing>,
    /// By its wall clock, milliseconds since 1970.
    pub noted_at_ms: i64,
}

/// A listing of the log, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Listing {
    /// The segment after which it begins; absent: at the log's beginning.
    #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub after: Option<SegmentId>,
    /// The last segment that it shows; absent: it came to the log's end.
    #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub until: Option<SegmentId>,
    /// Bytes of what it shows.
    #[serde(with = "text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub bytes: u64,
}

impl CleaningAccount {
    /// Byte-hours so far, whole ones: what is over is in the next.
    pub fn stored_byte_hours(&self) -> u64 {
        u64::try_from(self.stored_byte_ms / MS_PER_HOUR).unwrap_or(u64::MAX)
    }

    /// The account with a note.
    ///
    /// # Errors
    /// [`Unfit`] if no cleaner would note that.
    pub fn with(&self, note: &CleaningNote, change_id: [u8; 16]) -> Result<Self, Unfit> {
        if note.requests > NOTED_REQUESTS_MAX {
            return Err(Unfit("no run sends so many requests"));
        }
        if note.noted_at_ms <= 0 {
            return Err(Unfit("a note is made after 1970"));
        }
        let mut account = Self {
            requests: self.requests.saturating_add(note.requests),
            change_id,
            ..self.clone()
        };
        let Some(listing) = note.listing else {
            return Ok(account);
        };
        if listing.bytes > LISTED_BYTES_MAX {
            return Err(Unfit("no bucket holds so many bytes"));
        }
        let before = match (listing.after, self.swept) {
            (None, _) => 0,
            (Some(after), Some((until, bytes))) if after == until => bytes,
            // Of a sweep with which another went on.
            (Some(_), _) => return Ok(account),
        };
        let bytes = before.saturating_add(listing.bytes);
        account.swept = listing.until.map(|until| (until, bytes));
        if account.swept.is_none() {
            account.end_listing(bytes, note.noted_at_ms);
        }
        Ok(account)
    }

    fn end_listing(&mut self, bytes: u64, now_ms: i64) {
        let gap_max = i64::try_from(LISTING_GAP_MAX.as_millis()).unwrap_or(i64::MAX);
        let was_ahead = self.listed_at_ms.saturating_sub(now_ms) > gap_max;
        let gap_ms = match self.listed_at_ms {
            0 => 0,
            then => now_ms.saturating_sub(then).clamp(0, gap_max),
        };
        let byte_ms = u128::from(self.listed_bytes) * u128::from(gap_ms.unsigned_abs());
        self.stored_byte_ms = self.stored_byte_ms.saturating_add(byte_ms);
        self.listed_bytes = bytes;
        self.listed_at_ms = if was_ahead {
            now_ms
        } else {
            self.listed_at_ms.max(now_ms)
        };
    }

    /// Encodes.
    pub fn to_bytes(&self) -> Bytes {
        let (until, swept_bytes) = self.swept.unwrap_or((
            SegmentId {
                writer: WriterId(0),
                sequence: 0,
            },
            0,
        ));
        let mut writer = Writer::default();
        writer.u8(LAYOUT_VERSION);
        writer.u8(ACCOUNT_KIND);
        writer.u8(if self.swept.is_some() { SWEEPING } else { 0 });
        writer.u64(self.requests);
        writer.u64((self.stored_byte_ms >> 64) as u64);
        writer.u64(self.stored_byte_ms as u64);
        writer.u64(self.listed_bytes);
        writer.i64(self.listed_at_ms);
        writer.u64(swept_bytes);
        writer.u64(until.writer.0);
        writer.u64(until.sequence);
        writer.raw(&self.change_id);
        writer.finish().into()
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one account of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TupleError> {
        let mut reader = layout::open(bytes, LAYOUT_VERSION, ACCOUNT_KIND)?;
        let flags = reader.u8()?;
        if flags & !SWEEPING != 0 {
            return Err(TupleError::UnknownFlags { found: flags });
        }
        let requests = reader.u64()?;
        let stored_byte_ms = u128::from(reader.u64()?) << 64 | u128::from(reader.u64()?);
        let (listed_bytes, listed_at_ms) = (reader.u64()?, reader.i64()?);
        let swept_bytes = reader.u64()?;
        let until = SegmentId {
            writer: WriterId(reader.u64()?),
            sequence: reader.u64()?,
        };
        let nothing = (swept_bytes, until.writer.0, until.sequence) == (0, 0, 0);
        let swept = match flags & SWEEPING {
            0 if nothing => None,
            0 => return Err(reader.malformed("a sweep that is not under way")),
            _ => Some((until, swept_bytes)),
        };
        let change_id = reader.array()?;
        reader.finish()?;
        Ok(Self {
            requests,
            stored_byte_ms,
            listed_bytes,
            listed_at_ms,
            swept,
            change_id,
        })
    }
}

impl Anchor {
    /// The account as it is now; an empty one, with no version, before the first note.
    ///
    /// # Errors
    /// [`AnchorError::Damaged`], or what the table says.
    pub async fn cleaning_account(&self) -> Result<(CleaningAccount, Option<TupleVersion>), AnchorError> {
        match self.tuple(AnchorCall::CleaningAccount {}, ACCOUNT).await? {
            None => Ok((CleaningAccount::default(), None)),
            Some((content, version)) => Ok((
                decode(ACCOUNT, CleaningAccount::from_bytes(&content))?,
                Some(version),
            )),
        }
    }

    /// Adds a note to the account, once.
    ///
    /// # Errors
    /// [`AnchorError::Contended`], [`AnchorError::Damaged`], or what the table says. After an error that is in doubt it may have been
    /// noted: noting it again could count twice.
    pub async fn note_cleaning(&self, note: CleaningNote) -> Result<(), AnchorError> {
        let change_id = self.env.random_bytes();
        // What was sent and is in doubt is sent again as it was, so that it cannot count twice.
        let (mut in_doubt, mut last) = (None, None);
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            let call = match in_doubt.clone() {
                Some(call) if !firn_env::planted!("anchor.notes_counted_twice") => call,
                Some(_) | None => match self.cleaning_account().await {
                    Ok((_, seen)) => AnchorCall::NoteCleaning {
                        seen,
                        note: note.clone(),
                        change_id,
                    },
                    Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                        last = Some(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            match self.change(call.clone()).await {
                Ok(Ok(_)) => return Ok(()),
                // Others have noted since. Whether ours came before them nobody can tell: it is not sent again.
                Ok(Err(_)) if in_doubt.is_some() => return Ok(()),
                Ok(Err(_)) => last = None,
                Err(error) if error.is_in_doubt() => {
                    last = Some(error);
                    in_doubt = Some(call);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(ACCOUNT, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;
    const BEGAN_MS: i64 = 1_800_000_000_000;

    fn segment(sequence: u64) -> SegmentId {
        SegmentId {
            writer: WriterId(7),
            sequence,
        }
    }

    fn listed(after: Option<u64>, until: Option<u64>, bytes: u64, at_ms: i64) -> CleaningNote {
        CleaningNote {
            requests: 3,
            listing: Some(Listing {
                after: after.map(segment),
                until: until.map(segment),
                bytes,
            }),
            noted_at_ms: BEGAN_MS + at_ms,
        }
    }

    fn noted(notes: &[CleaningNote]) -> CleaningAccount {
        notes.iter().fold(CleaningAccount::default(), |account, note| {
            account.with(note, [1; 16]).expect("a note")
        })
    }

    #[test]
    fn bytes_are_stored_from_the_listing_that_shows_them_to_the_next() {
        let account = noted(&[
            listed(None, None, 1000, 0),
            listed(None, None, 4000, HOUR_MS),
            listed(None, None, 0, HOUR_MS * 3 / 2),
            listed(None, None, 9, 2 * HOUR_MS),
        ]);
        assert_eq!(account.stored_byte_hours(), 1000 + 2000);
        assert_eq!((account.requests, account.listed_bytes), (12, 9));
        // Thirds of a byte-hour are not lost between notes.
        let thirds: Vec<_> = (0..4)
            .map(|third| listed(None, None, 1, third * HOUR_MS / 3))
            .collect();
        assert_eq!(noted(&thirds[..3]).stored_byte_hours(), 0);
        assert_eq!(noted(&thirds).stored_byte_hours(), 1);
    }

    #[test]
    fn a_listing_in_parts_counts_when_it_is_whole_and_a_foreign_part_never() {
        let parts = [
            listed(None, Some(5), 100, 0),
            listed(Some(5), Some(9), 20, 1),
            listed(Some(5), Some(9), 20, 2),
            listed(Some(9), None, 3, 3),
        ];
        assert_eq!(noted(&parts[..2]).swept, Some((segment(9), 120)));
        let account = noted(&parts);
        assert_eq!((account.listed_bytes, account.swept), (123, None));
        assert_eq!(account.listed_at_ms, BEGAN_MS + 3);
        // One that begins anew forgets what another left.
        let account = noted(&[parts[0].clone(), listed(None, None, 50, 4)]);
        assert_eq!((account.listed_bytes, account.swept), (50, None));
        // Its part comes too late.
        assert_eq!(
            account
                .with(&parts[1], [2; 16])
                .map(|account| account.listed_bytes),
            Ok(50)
        );
    }

    #[test]
    fn a_clock_that_jumps_counts_nothing_twice_and_no_more_than_three_days() {
        let gap_ms = i64::try_from(LISTING_GAP_MAX.as_millis()).expect("three days");
        let at = |hours: i64| listed(None, None, 1, hours * HOUR_MS);
        assert_eq!(noted(&[at(2), at(1), at(2), at(3)]).stored_byte_hours(), 1);
        assert_eq!(noted(&[at(0), at(100_000)]).stored_byte_hours(), 72);
        // Taken back when the clock is right again; what it was ahead by is not counted once more.
        let account = noted(&[at(0), at(100_000), at(1), at(2)]);
        assert_eq!(account.stored_byte_hours(), 73);
        assert_eq!(account.listed_at_ms, BEGAN_MS + 2 * HOUR_MS);
        assert_eq!(gap_ms, 72 * HOUR_MS);
    }

    #[test]
    fn what_no_cleaner_notes_is_refused() {
        let account = CleaningAccount::default();
        let note = listed(None, None, 1, 0);
        for wrong in [
            CleaningNote {
                requests: u64::MAX,
                ..note.clone()
            },
            CleaningNote {
                noted_at_ms: -1,
                ..note.clone()
            },
            listed(None, None, u64::MAX, 0),
        ] {
            assert!(account.with(&wrong, [1; 16]).is_err(), "{wrong:?}");
        }
    }
}

//! The hold: what is retired stays in the first store until whoever keeps the family's parity groups released it.
//!
//! ```text
//! sort "hold"        one small tuple while copies of group members may be missing from the second store; each pass over the groups changes it
//! sort "cleaner"     flag 1 (held): each retirement from now on is held
//! sort "doomed/…"    flag 2 (held): must not be deleted yet
//! ```
//!
//! | state | event | next |
//! |---|---|---|
//! | none | begin: with the round that was seen, which gets its flag | in force, copies go |
//! | in force, copies go | a pass that drops, or one that restores | the same, or copies come back; the pass counts by one |
//! | in force | a release, by the pass that is the last | what it names is doomed like any other, its grace begins |
//! | in force, copies come back | end: with the round that was seen, which loses its flag | none |
//!
//! **Nobody lists members.** All that is retired under a hold is held, and released by a pass over the groups that saw it retired before it saw the
//! groups, and in none of them: so a table has one tuple for the hold, however large the volume, and one write for each segment that is retired.
//! A pass that was followed by another can neither release nor end: both are on the version of the hold that it left. It asks for that version
//! before it deletes a copy, too.
//!
//! **A cleaner that does not know it** reads a flag that it does not know, in the round before it retires anything, and in the list of what is doomed
//! before it deletes anything of it: it stops there, and has changed nothing.

use crate::{
    Anchor, AnchorCall, AnchorError, DoomedSegment, SeenSegment, TupleError, TupleVersion, anchor::decode,
    layout, retry,
};
use bytes::Bytes;
use firn_table::MAX_TRANSACTION_OPERATIONS;
use serde::{Deserialize, Serialize};

pub(crate) const HOLD: &str = "hold";
pub(crate) const LAYOUT_VERSION: u8 = 1;
const KIND: u8 = b'K';
const DROPS: u8 = 1;

/// Segments released in one transaction, beside the check of the hold.
pub const MAX_RELEASED: usize = MAX_TRANSACTION_OPERATIONS - 1;

/// The hold of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Counts the passes over the groups.
    pub pass: u64,
    /// Whether copies go; otherwise those that went come back.
    pub drops: bool,
    /// Since when it is in force, by the wall clock of who began it; milliseconds since 1970.
    pub since_ms: i64,
    /// Random, drawn for this state: recognised after a lost reply.
    pub change_id: [u8; 16],
}

/// A change of the hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum HoldChange {
    /// Comes into force.
    Begin,
    /// The next pass, which may drop copies.
    Drop,
    /// The next pass, after which copies come back.
    Restore,
    /// Is over.
    End,
}

impl Hold {
    /// Encodes.
    pub fn to_bytes(&self) -> Bytes {
        let mut writer = layout::Writer::default();
        writer.u8(LAYOUT_VERSION);
        writer.u8(KIND);
        writer.u8(if self.drops { DROPS } else { 0 });
        writer.u64(self.pass);
        writer.i64(self.since_ms);
        writer.raw(&self.change_id);
        writer.finish().into()
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one hold of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TupleError> {
        let mut reader = layout::open(bytes, LAYOUT_VERSION, KIND)?;
        let flags = reader.u8()?;
        if flags & !DROPS != 0 {
            return Err(TupleError::UnknownFlags { found: flags });
        }
        let hold = Self {
            drops: flags & DROPS != 0,
            pass: reader.u64()?,
            since_ms: reader.i64()?,
            change_id: reader.array()?,
        };
        reader.finish()?;
        Ok(hold)
    }
}

impl Anchor {
    /// The hold as it is now; `None` if none is in force.
    ///
    /// # Errors
    /// [`AnchorError::Damaged`], or what the table says.
    pub async fn hold(&self) -> Result<Option<(Hold, TupleVersion)>, AnchorError> {
        match self.tuple(AnchorCall::Hold {}, HOLD).await? {
            None => Ok(None),
            Some((content, version)) => Ok(Some((decode(HOLD, Hold::from_bytes(&content))?, version))),
        }
    }

    /// Changes the hold that was seen at a version, with the round as it was seen where the change needs it: begin and end. Gives the version of the
    /// hold after it; `None`: somebody else was first, or it is over.
    ///
    /// # Errors
    /// What the table says. It may then have happened.
    pub async fn change_hold(
        &self,
        seen: Option<TupleVersion>,
        round: Option<TupleVersion>,
        change: HoldChange,
    ) -> Result<Option<TupleVersion>, AnchorError> {
        let call = AnchorCall::ChangeHold {
            seen,
            round,
            change,
            changed_at_ms: self.env.wall().as_millis(),
            change_id: self.env.random_bytes(),
        };
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            match self.change(call.clone()).await {
                Ok(Ok(version)) => return Ok(version),
                Ok(Err(_)) => return Ok(None),
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(HOLD, last))
    }

    /// Releases held segments, at most [`MAX_RELEASED`], all or nothing, if the hold is as it was left at `hold`; `false` if not, or if one of them
    /// is another by now.
    ///
    /// # Errors
    /// What the table says. It may then have happened.
    pub async fn release_doomed(
        &self,
        hold: TupleVersion,
        doomed: &[DoomedSegment],
    ) -> Result<bool, AnchorError> {
        if doomed.is_empty() {
            return Ok(true);
        }
        let segments = doomed.iter().map(|doomed| SeenSegment {
            segment: doomed.segment,
            seen: doomed.version,
        });
        let call = AnchorCall::ReleaseDoomed {
            hold,
            segments: segments.collect(),
            released_at_ms: self.env.wall().as_millis(),
        };
        Ok(self.change(call).await?.is_ok())
    }
}

//! Proposals: what the cleaner offers the owner of a volume.
//!
//! A cleaner that moved objects rewrites the nodes above them, up to the checkpoint: the same uids, other locations. It
//! offers where that relocated checkpoint lies; whoever commits the volume next may take the locations over and says so in
//! its checkpoint (`cleaner_sequence`). There is one proposal a volume, counted; it is replaced only
//!
//! - by one that includes it (the same base, still not merged), or after it was merged: `chained_from` stays; or
//! - because it cannot be merged any more and is given up: then `chained_from` is the number of the new one.
//!
//! So a checkpoint whose `cleaner_sequence` is n has taken over everything that the proposals `chained_from ..= n` moved.
//! Nothing waits for that: forwarding records lead from every old place to the new one, whether it is merged or not.

use crate::{
    Anchor, AnchorCall, AnchorError, TupleError, TupleVersion,
    anchor::decode,
    layout::{self, Writer},
    retry,
};
use bytes::Bytes;
use firn_format::{Location, SegmentId, Uid, Version, VolumeId, WriterId};

pub(crate) const PROPOSAL_PREFIX: &str = "proposal/";
/// Version 2 added what the moves changed of the live bytes of segments.
pub(crate) const LAYOUT_VERSION: u8 = 2;
pub(crate) const OLDEST_VERSION: u8 = 1;
const PROPOSAL_KIND: u8 = b'P';

const RETIRED: u8 = 1;

/// Segments of which a proposal tells. A batch of the cleaner touches about a hundred; more than this are left out, the least
/// changed first, and cost the cleaner a look each. 25 KiB in the table.
pub const MAX_PROPOSAL_USAGE: usize = 1024;

/// What a proposal tells of a segment. A hint: nobody can check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageChange {
    /// The segment.
    pub segment: SegmentId,
    /// By how many bytes the base's trees lead to it more, or less, once they have the new places.
    pub bytes: i64,
    /// Whether it is retired together with this proposal or one that this one includes.
    pub is_retired: bool,
}

/// A relocated head, for a named base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Counts the proposals of a volume, from 1.
    pub sequence: u64,
    /// The first proposal since one was given up; whoever merges this one has taken over all from there on.
    pub chained_from: u64,
    /// The version of the checkpoint that was relocated.
    pub base_version: Version,
    /// The checkpoint that was relocated; the proposed object has the same uid.
    pub base_uid: Uid,
    /// Where the relocated checkpoint lies.
    pub location: Location,
    /// The cleaner's incarnation that wrote it.
    pub mover: WriterId,
    /// By the cleaner's wall clock, milliseconds since 1970.
    pub proposed_at_ms: i64,
    /// Random, drawn for this proposal: recognised after a lost reply.
    pub change_id: [u8; 16],
    /// By segment, for the usage map; at most [`MAX_PROPOSAL_USAGE`].
    pub usage: Vec<UsageChange>,
}

impl Proposal {
    /// Encodes.
    pub fn to_bytes(&self) -> Bytes {
        let mut writer = Writer::default();
        writer.u8(LAYOUT_VERSION);
        writer.u8(PROPOSAL_KIND);
        writer.u8(0);
        writer.u64(self.sequence);
        writer.u64(self.chained_from);
        writer.u64(self.base_version.0);
        writer.raw(&self.base_uid.0);
        layout::write_location(&mut writer, &self.location);
        writer.u64(self.mover.0);
        writer.i64(self.proposed_at_ms);
        writer.raw(&self.change_id);
        let count = self.usage.len().min(MAX_PROPOSAL_USAGE);
        writer.u16(count as u16);
        for change in &self.usage[..count] {
            layout::write_segment(&mut writer, change.segment);
            writer.i64(change.bytes);
            writer.u8(if change.is_retired { RETIRED } else { 0 });
        }
        writer.finish().into()
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one proposal of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TupleError> {
        let (mut reader, layout) =
            layout::open_versions(bytes, OLDEST_VERSION, LAYOUT_VERSION, PROPOSAL_KIND)?;
        let flags = reader.u8()?;
        if flags != 0 {
            return Err(TupleError::UnknownFlags { found: flags });
        }
        let sequence = reader.u64()?;
        let chained_from = reader.u64()?;
        if sequence == 0 || chained_from == 0 || chained_from > sequence {
            return Err(reader.malformed("a proposal that begins after itself"));
        }
        let mut proposal = Self {
            sequence,
            chained_from,
            base_version: Version(reader.u64()?),
            base_uid: Uid(reader.array()?),
            location: layout::read_location(&mut reader)?,
            mover: WriterId(reader.u64()?),
            proposed_at_ms: reader.i64()?,
            change_id: reader.array()?,
            usage: Vec::new(),
        };
        if layout >= 2 {
            let count = usize::from(reader.u16()?);
            if count > MAX_PROPOSAL_USAGE {
                return Err(reader.malformed("a proposal that tells of too many segments"));
            }
            for _ in 0..count {
                let segment = layout::read_segment(&mut reader)?;
                let bytes = reader.i64()?;
                let flags = reader.u8()?;
                if flags & !RETIRED != 0 {
                    return Err(TupleError::UnknownFlags { found: flags });
                }
                proposal.usage.push(UsageChange {
                    segment,
                    bytes,
                    is_retired: flags == RETIRED,
                });
            }
        }
        reader.finish()?;
        Ok(proposal)
    }
}

/// A proposal could not be made: another one is there. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overtaken {
    /// The number of the proposal that is there; 0 if there is none.
    pub sequence: u64,
}

impl Anchor {
    /// The proposal for a volume, merged or not. One read.
    ///
    /// # Errors
    /// [`AnchorError::Damaged`], or what the table says.
    pub async fn proposal(&self, volume: VolumeId) -> Result<Option<(Proposal, TupleVersion)>, AnchorError> {
        let sort = proposal_sort(volume);
        match self.tuple(AnchorCall::Proposal { volume }, &sort).await? {
            None => Ok(None),
            Some((content, version)) => Ok(Some((decode(&sort, Proposal::from_bytes(&content))?, version))),
        }
    }

    /// Replaces the proposal numbered one below this one (none, for the first). A cleaner proposes together with what it
    /// retires ([`Anchor::retire`](crate::Anchor::retire)); this is for whoever has nothing to retire.
    ///
    /// `Ok(Err(_))`: another proposal is there.
    ///
    /// # Errors
    /// [`AnchorError::Damaged`], [`AnchorError::Contended`], or what the table says; then it may have been made: call again.
    pub async fn propose(
        &self,
        volume: VolumeId,
        proposal: &Proposal,
    ) -> Result<Result<(), Overtaken>, AnchorError> {
        let sort = proposal_sort(volume);
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            let found = match self.proposal(volume).await {
                Ok(found) => found,
                Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (sequence, seen) = match found {
                Some((found, _)) if found.change_id == proposal.change_id => return Ok(Ok(())),
                Some((found, version)) => (found.sequence, Some(version)),
                None => (0, None),
            };
            if sequence.checked_add(1) != Some(proposal.sequence) {
                return Ok(Err(Overtaken { sequence }));
            }
            let call = AnchorCall::Propose {
                volume,
                seen,
                proposal: proposal.clone(),
            };
            match self.change(call).await {
                Ok(Ok(_)) => return Ok(Ok(())),
                Ok(Err(_)) => last = None,
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(&sort, last))
    }
}

pub(crate) fn proposal_sort(volume: VolumeId) -> String {
    format!("{PROPOSAL_PREFIX}{}", volume.hex())
}

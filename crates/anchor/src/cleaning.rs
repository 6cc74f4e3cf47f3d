//! Retirement records of cleaners: the segments that are retired, in one order for all cleaners (transactions on a round).
//!
//! ```text
//! sort "cleaner"                       the round: one small tuple; every retirement changes it
//! sort "cleaner-cursor/<what>"         where a sweep goes on, over the log or over what is retired; a hint
//! sort "retired/<writer>/<sequence>"   a segment whose objects were moved; stays as long as its forwarding record
//! sort "doomed/<writer>/<sequence>"    the same while it is not deleted yet; when it was first found so
//! sort "round/<n>"                     what the retirement of round n changed of the log (`rounds.rs`)
//! sort "hold"                          in force: what is retired waits until it is released (`hold.rs`)
//! ```
//!
//! **One order.** A retirement is one transaction: the round goes on by one, the mover is checked not to be ended, the
//! segments enter `retired/` and `doomed/`, the proposals replace those they were built on. It is conditional on the round
//! that the cleaner saw before it looked where objects lie. So retirements of all cleaners, however many run and however
//! long one was stalled, stand in one order, and each was decided with all earlier ones in view. A record leads only to
//! segments that were not retired at its place in this order; hence records form no circle, and following them ends at an
//! object that is there.
//!
//! Nothing else needs to be exclusive. Copies and forwarding records have names that only their mover writes; what a
//! cleaner leaves that never came to its retirement is garbage of an ended writer.

use crate::{
    Anchor, AnchorCall, AnchorError, MAX_LISTED, Proposal, RetireProposal, RetireSegment, RetirementRound,
    SeenSegment, StoredTuple, TupleError, TupleVersion,
    anchor::decode,
    layout::{self, Reader, Writer},
    retry,
};
use bytes::Bytes;
use firn_format::{ListedSegment, SegmentId, Version, VolumeId, WriterId};
use firn_table::MAX_TRANSACTION_OPERATIONS;
use serde::{Deserialize, Serialize};

pub(crate) const LAYOUT_VERSION: u8 = 1;
const ROUND_KIND: u8 = b'C';
const CURSOR_KIND: u8 = b'U';
const RETIRED_KIND: u8 = b'R';
const DOOMED_KIND: u8 = b'D';

pub(crate) const ROUND: &str = "cleaner";
pub(crate) const CURSOR_PREFIX: &str = "cleaner-cursor/";
pub(crate) const RETIRED_PREFIX: &str = "retired/";
pub(crate) const DOOMED_PREFIX: &str = "doomed/";

const FOR_EVER: u8 = 1;
const SOMEWHERE: u8 = 1;
const SEEN: u8 = 1;
const HELD: u8 = 2;
const ROUND_HELD: u8 = 1;

/// Branches that one retired segment keeps account of; in a family with more, its forwarding record is kept for ever.
pub const MAX_COVERS: usize = 64;

/// What a sweep goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Sweep {
    /// The segments in the log, for victims.
    Log,
    /// The retired segments, for forwarding records that nothing needs any more.
    Retired,
}

impl Sweep {
    pub(crate) fn sort(self) -> String {
        let what = match self {
            Self::Log => "log",
            Self::Retired => "retired",
        };
        format!("{CURSOR_PREFIX}{what}")
    }
}

/// The state that every retirement changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanerRound {
    /// Counts the retirements of the family.
    pub round: u64,
    /// Random, drawn for this state: recognised after a lost reply.
    pub change_id: [u8; 16],
    /// Whether a hold is in force: what is retired waits until it is released.
    pub is_held: bool,
}

/// Which proposal led a branch's head away from a retired segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cover {
    /// The branch.
    pub volume: VolumeId,
    /// The proposal; 0 if the head did not lead to the segment.
    pub proposal: u64,
    /// The head's version at the retirement, if no pointer of it was seen to lead to the segment.
    pub clean_from: Option<Version>,
}

/// A segment whose needed objects lie elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetiredSegment {
    /// Which cleaner's forwarding record tells where they lie.
    pub mover: WriterId,
    /// By the mover's wall clock, milliseconds since 1970.
    pub retired_at_ms: i64,
    /// Bytes of the segment.
    pub segment_bytes: u64,
    /// Entries of the forwarding record.
    pub moved_objects: u32,
    /// Whether some branch has no cover.
    pub keep_for_ever: bool,
    /// What was known of each branch at the retirement. Nothing rests on it: no record is removed by now (decision 0032).
    pub covers: Vec<Cover>,
}

/// A retired segment that is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoomedSegment {
    /// The segment.
    pub segment: SegmentId,
    /// When a cleaner first found it retired, by that cleaner's wall clock; milliseconds since 1970. From then on its grace
    /// is counted: the time that a mover writes into a retirement may be hours old when the retirement happens.
    pub seen_at_ms: Option<i64>,
    /// Held, and since when: it must not be deleted before it is released, and its grace counts from then. Milliseconds since 1970 by the
    /// clock of who retired it.
    pub held_since_ms: Option<i64>,
    /// The item as it was read.
    pub version: TupleVersion,
}

/// Everything a retirement changes.
#[derive(Clone, Debug)]
pub struct Retirement {
    /// The round the cleaner saw before it looked at anything else.
    pub seen: (CleanerRound, Option<TupleVersion>),
    /// The cleaner's incarnation, and its registration as it was when it began.
    pub mover: (WriterId, TupleVersion),
    /// What is retired.
    pub segments: Vec<(SegmentId, RetiredSegment)>,
    /// What is proposed, and the version of each proposal that it replaces.
    pub proposals: Vec<(VolumeId, Proposal, Option<TupleVersion>)>,
    /// Where the segments went, for manifests; `None` where no volume has one.
    pub written: Option<Vec<ListedSegment>>,
}

/// What came of a retirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetirementOutcome {
    /// It happened.
    Done,
    /// Another cleaner was first, this one was ended, or a proposal was replaced. Nothing was changed; look again.
    Overtaken,
}

/// How many segments one retirement can hold beside this many proposals and what manifests are told of it.
pub const fn retirement_segments(proposals: usize) -> usize {
    (MAX_TRANSACTION_OPERATIONS - 3).saturating_sub(proposals) / 2
}

impl CleanerRound {
    /// Encodes.
    pub fn to_bytes(&self) -> Bytes {
        let mut writer = begin(ROUND_KIND, if self.is_held { ROUND_HELD } else { 0 });
        writer.u64(self.round);
        writer.raw(&self.change_id);
        writer.finish().into()
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one round of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TupleError> {
        let (mut reader, flags) = open(bytes, ROUND_KIND, ROUND_HELD)?;
        let round = Self {
            round: reader.u64()?,
            change_id: reader.array()?,
            is_held: flags & ROUND_HELD != 0,
        };
        reader.finish()?;
        Ok(round)
    }
}

impl RetiredSegment {
    /// Encodes.
    ///
    /// # Panics
    /// If there are more than [`MAX_COVERS`] covers.
    pub fn to_bytes(&self) -> Bytes {
        assert!(self.covers.len() <= MAX_COVERS, "kept for ever instead");
        let mut writer = begin(RETIRED_KIND, if self.keep_for_ever { FOR_EVER } else { 0 });
        writer.u64(self.mover.0);
        writer.i64(self.retired_at_ms);
        writer.u64(self.segment_bytes);
        writer.u32(self.moved_objects);
        writer.u16(self.covers.len() as u16);
        for cover in &self.covers {
            writer.raw(&cover.volume.0);
            writer.u64(cover.proposal);
            writer.u8(u8::from(cover.clean_from.is_some()));
            writer.u64(cover.clean_from.unwrap_or_default().0);
        }
        writer.finish().into()
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one retired segment of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TupleError> {
        let (mut reader, flags) = open(bytes, RETIRED_KIND, FOR_EVER)?;
        let mover = WriterId(reader.u64()?);
        let retired_at_ms = reader.i64()?;
        let segment_bytes = reader.u64()?;
        let moved_objects = reader.u32()?;
        let count = usize::from(reader.u16()?);
        if count > MAX_COVERS {
            return Err(reader.malformed("too many covers"));
        }
        let mut covers = Vec::with_capacity(count);
        for _ in 0..count {
            let volume = VolumeId(reader.array()?);
            let proposal = reader.u64()?;
            let known = reader.u8()?;
            let version = Version(reader.u64()?);
            let clean_from = match (known, version.0) {
                (0, 0) => None,
                (1, _) => Some(version),
                _ => return Err(reader.malformed("a cover that is neither known nor unknown")),
            };
            covers.push(Cover {
                volume,
                proposal,
                clean_from,
            });
        }
        reader.finish()?;
        Ok(Self {
            mover,
            retired_at_ms,
            segment_bytes,
            moved_objects,
            keep_for_ever: flags & FOR_EVER != 0,
            covers,
        })
    }
}

impl Anchor {
    /// The round as it is now; the default one, with no version, before the first retirement.
    ///
    /// # Errors
    /// [`AnchorError::Damaged`], or what the table says.
    pub async fn cleaner_round(&self) -> Result<(CleanerRound, Option<TupleVersion>), AnchorError> {
        match self.tuple(AnchorCall::CleanerRound {}, ROUND).await? {
            None => Ok((CleanerRound::default(), None)),
            Some((content, version)) => {
                Ok((decode(ROUND, CleanerRound::from_bytes(&content))?, Some(version)))
            }
        }
    }

    /// Retires segments and makes proposals, all or nothing.
    ///
    /// # Errors
    /// What the table says, or [`AnchorError::Damaged`]. After a transient error it may have happened or may still happen;
    /// whether it did shows in the round, which then is not the one that was seen.
    ///
    /// # Panics
    /// If there is more to retire than [`retirement_segments`] allows.
    pub async fn retire(&self, retirement: Retirement) -> Result<RetirementOutcome, AnchorError> {
        let Retirement {
            seen: (_, seen),
            mover: (mover, mover_seen),
            segments,
            proposals,
            written,
        } = retirement;
        assert!(
            segments.len() <= retirement_segments(proposals.len()),
            "the cleaner's batches are bounded"
        );
        let round = written.map(|written| RetirementRound {
            retired_at_ms: self.env.wall().as_millis(),
            retired: segments.iter().map(|(segment, _)| *segment).collect(),
            written,
        });
        let segments = segments
            .into_iter()
            .map(|(segment, retired)| RetireSegment { segment, retired });
        let proposals = proposals
            .into_iter()
            .map(|(volume, proposal, seen)| RetireProposal {
                volume,
                seen,
                proposal,
            });
        let call = AnchorCall::Retire {
            seen,
            mover,
            mover_seen,
            segments: segments.collect(),
            proposals: proposals.collect(),
            round,
            change_id: self.env.random_bytes(),
        };
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            match self.change(call.clone()).await {
                Ok(Ok(_)) => return Ok(RetirementOutcome::Done),
                Ok(Err(_)) => return Ok(RetirementOutcome::Overtaken),
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(ROUND, last))
    }

    /// What is known of a segment's retirement; `None` if it was not retired, or nothing leads to it any more.
    ///
    /// # Errors
    /// [`AnchorError::Damaged`], or what the table says.
    pub async fn retired(
        &self,
        segment: SegmentId,
    ) -> Result<Option<(RetiredSegment, TupleVersion)>, AnchorError> {
        let sort = segment_sort(RETIRED_PREFIX, segment);
        match self.tuple(AnchorCall::Retired { segment }, &sort).await? {
            None => Ok(None),
            Some((content, version)) => Ok(Some((
                decode(&sort, RetiredSegment::from_bytes(&content))?,
                version,
            ))),
        }
    }

    /// At most `limit` retired segments after `after`, in order.
    ///
    /// # Errors
    /// [`AnchorError::Damaged`], or what the table says.
    pub async fn list_retired(
        &self,
        after: Option<SegmentId>,
        limit: usize,
    ) -> Result<Vec<(SegmentId, RetiredSegment, TupleVersion)>, AnchorError> {
        let mut found = Vec::new();
        let call = |after, limit| AnchorCall::ListRetired { after, limit };
        for StoredTuple {
            name,
            version,
            content,
        } in self.segments_under(RETIRED_PREFIX, call, after, limit).await?
        {
            let retired = decode(&name, RetiredSegment::from_bytes(&content))?;
            found.push((segment_of(&name, RETIRED_PREFIX)?, retired, version));
        }
        Ok(found)
    }

    /// At most `limit` retired segments that are still there, after `after`, in order.
    ///
    /// # Errors
    /// [`AnchorError::Damaged`], or what the table says.
    pub async fn list_doomed(
        &self,
        after: Option<SegmentId>,
        limit: usize,
    ) -> Result<Vec<DoomedSegment>, AnchorError> {
        let mut found = Vec::new();
        let call = |after, limit| AnchorCall::ListDoomed { after, limit };
        for StoredTuple {
            name,
            version,
            content,
        } in self.segments_under(DOOMED_PREFIX, call, after, limit).await?
        {
            let segment = segment_of(&name, DOOMED_PREFIX)?;
            found.push(decode(&name, read_doomed(segment, version, &content))?);
        }
        Ok(found)
    }

    /// Notes that these segments, at most [`MAX_TRANSACTION_OPERATIONS`], were found retired now. All or nothing; `false` if
    /// another cleaner was first with one of them.
    ///
    /// # Errors
    /// What the table says. It may then have happened.
    pub async fn see_doomed(&self, doomed: &[DoomedSegment]) -> Result<bool, AnchorError> {
        if doomed.is_empty() {
            return Ok(true);
        }
        let segments = doomed.iter().map(|doomed| SeenSegment {
            segment: doomed.segment,
            seen: doomed.version,
        });
        let call = AnchorCall::SeeDoomed {
            segments: segments.collect(),
            seen_at_ms: self.env.wall().as_millis(),
        };
        Ok(self.change(call).await?.is_ok())
    }

    /// Says that a doomed segment was deleted. One that is not there is fine.
    ///
    /// # Errors
    /// What the table says.
    pub async fn forget_doomed(&self, segment: SegmentId) -> Result<(), AnchorError> {
        let sort = segment_sort(DOOMED_PREFIX, segment);
        let Some((_, seen)) = self.tuple(AnchorCall::Doomed { segment }, &sort).await? else {
            return Ok(());
        };
        let segment = SeenSegment { segment, seen };
        // Nobody changes such a tuple; if it is another one, another cleaner has deleted it.
        self.change(AnchorCall::ForgetDoomed { segment }).await?.ok();
        Ok(())
    }

    /// Replaces what is known of a retired segment (`None`: forgets it, since nothing leads to it any more), unless it was
    /// changed meanwhile: then `false`.
    ///
    /// # Errors
    /// What the table says. The change may then have happened.
    pub async fn change_retired(
        &self,
        segment: SegmentId,
        seen: TupleVersion,
        changed: Option<&RetiredSegment>,
    ) -> Result<bool, AnchorError> {
        let call = AnchorCall::ChangeRetired {
            segment: SeenSegment { segment, seen },
            retired: changed.cloned(),
        };
        Ok(self.change(call).await?.is_ok())
    }

    /// The last segment that a sweep looked at; `None` at its beginning.
    ///
    /// # Errors
    /// [`AnchorError::Damaged`], or what the table says.
    pub async fn cleaner_cursor(&self, sweep: Sweep) -> Result<Option<SegmentId>, AnchorError> {
        let sort = sweep.sort();
        let Some((content, _)) = self.tuple(AnchorCall::CleanerCursor { sweep }, &sort).await? else {
            return Ok(None);
        };
        let read = |bytes: &[u8]| {
            let (mut reader, flags) = open(bytes, CURSOR_KIND, SOMEWHERE)?;
            let segment = layout::read_segment(&mut reader)?;
            reader.finish()?;
            Ok((flags & SOMEWHERE != 0).then_some(segment))
        };
        decode(&sort, read(&content))
    }

    /// Remembers where a sweep goes on. A hint: of two cleaners that set it at one time, either wins.
    ///
    /// # Errors
    /// What the table says.
    pub async fn set_cleaner_cursor(
        &self,
        sweep: Sweep,
        after: Option<SegmentId>,
    ) -> Result<(), AnchorError> {
        let found = self
            .tuple(AnchorCall::CleanerCursor { sweep }, &sweep.sort())
            .await?;
        let call = AnchorCall::SetCleanerCursor {
            sweep,
            seen: found.map(|(_, version)| version),
            after,
        };
        self.change(call).await?.ok();
        Ok(())
    }

    async fn segments_under(
        &self,
        prefix: &str,
        call: impl Fn(Option<SegmentId>, u16) -> AnchorCall,
        mut after: Option<SegmentId>,
        limit: usize,
    ) -> Result<Vec<StoredTuple>, AnchorError> {
        let mut found: Vec<StoredTuple> = Vec::new();
        // Each list begins after the last one's end, so this ends with the family.
        while found.len() < limit {
            let wanted = u16::try_from(limit - found.len())
                .unwrap_or(MAX_LISTED)
                .min(MAX_LISTED);
            let name = after.map(|segment| segment_sort(prefix, segment));
            let (tuples, more) = self.list(call(after, wanted), prefix, name).await?;
            found.extend(tuples);
            match found.last() {
                Some(last) if more => after = Some(segment_of(&last.name, prefix)?),
                Some(_) | None => break,
            }
        }
        Ok(found)
    }
}

pub(crate) fn cursor_bytes(after: Option<SegmentId>) -> Bytes {
    let mut writer = begin(CURSOR_KIND, if after.is_some() { SOMEWHERE } else { 0 });
    writer.u64(after.map_or(0, |segment| segment.writer.0));
    writer.u64(after.map_or(0, |segment| segment.sequence));
    writer.finish().into()
}

pub(crate) fn read_doomed(
    segment: SegmentId,
    version: TupleVersion,
    bytes: &[u8],
) -> Result<DoomedSegment, TupleError> {
    let (mut reader, flags) = open(bytes, DOOMED_KIND, SEEN | HELD)?;
    let at_ms = reader.i64()?;
    if flags == SEEN | HELD {
        return Err(reader.malformed("a held segment whose grace has begun"));
    }
    reader.finish()?;
    Ok(DoomedSegment {
        segment,
        seen_at_ms: (flags == SEEN).then_some(at_ms),
        held_since_ms: (flags == HELD).then_some(at_ms),
        version,
    })
}

pub(crate) fn held_bytes(since_ms: i64) -> Bytes {
    let mut doomed = begin(DOOMED_KIND, HELD);
    doomed.i64(since_ms);
    doomed.finish().into()
}

pub(crate) fn doomed_bytes(seen_at_ms: Option<i64>) -> Bytes {
    let mut doomed = begin(DOOMED_KIND, if seen_at_ms.is_some() { SEEN } else { 0 });
    doomed.i64(seen_at_ms.unwrap_or(0));
    doomed.finish().into()
}

fn begin(kind: u8, flags: u8) -> Writer {
    let mut writer = Writer::default();
    writer.u8(LAYOUT_VERSION);
    writer.u8(kind);
    writer.u8(flags);
    writer
}

fn open(bytes: &[u8], kind: u8, known_flags: u8) -> Result<(Reader<'_>, u8), TupleError> {
    let mut reader = layout::open(bytes, LAYOUT_VERSION, kind)?;
    let flags = reader.u8()?;
    if flags & !known_flags != 0 {
        return Err(TupleError::UnknownFlags { found: flags });
    }
    Ok((reader, flags))
}

pub(crate) fn segment_sort(prefix: &str, segment: SegmentId) -> String {
    format!("{prefix}{:016x}/{:016x}", segment.writer.0, segment.sequence)
}

fn segment_of(sort: &str, prefix: &str) -> Result<SegmentId, AnchorError> {
    // The spelling is that of a segment's key, which knows how to read itself.
    let key = format!("{}/log/{}", "0".repeat(32), &sort[prefix.len()..]);
    match SegmentId::parse_key(&key) {
        Some((_, segment)) => Ok(segment),
        None => Err(AnchorError::Damaged {
            what: sort.to_owned(),
            why: TupleError::Malformed {
                what: "a sort key that names no segment",
                offset: prefix.len(),
            },
        }),
    }
}

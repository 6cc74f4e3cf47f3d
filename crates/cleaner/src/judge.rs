//! Liveness of a segment's objects: which are needed, and by what pointer.
//!
//! An object is live iff a candidate root has its uid at its place. Where the root's pointer says that it lies does not
//! matter for that; it tells what to do:
//!
//! ```text
//! the pointer, settled, leads here           move the object
//! the pointer, settled, leads to a copy      lead on to the copy, once it was seen to be there and right
//! no root has it                             nothing: it is garbage
//! ```
//!
//! (*Settled*: followed through all retirements.) Copies come from cleaners that moved the same object, and from nodes that
//! were rewritten with new locations. Moving is always right, leading on is only cheaper.

use crate::{
    CleanError, Damage,
    branches::Branch,
    limits::Limits,
    lookup::lookup,
    objects::Objects,
    tenure::{WriterState, WriterStates},
    victims::Candidate,
};
use firn_format::{FOOTER_BYTES, Location, MAX_SEGMENT_BYTES, Pointer, SegmentIndexEntry, decode_footer};
use firn_store::{ObjectKey, Store, StoreError};

/// Bytes of a segment's end that are read first: footer and an index of 960 objects, so that one request is enough for
/// most.
const TAIL_BYTES: u64 = 64 << 10;

/// What becomes of an object when its segment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// No root needs it.
    Dead,
    /// It is copied.
    Move,
    /// A copy is there.
    LeadOn(Location),
}

/// A segment that was looked at.
pub(crate) struct Judged {
    pub candidate: Candidate,
    pub objects: Vec<(SegmentIndexEntry, Fate)>,
}

impl Judged {
    /// Whether any root needs anything of it.
    pub fn is_needed(&self) -> bool {
        self.objects.iter().any(|(_, fate)| *fate != Fate::Dead)
    }

    /// Bytes that have to be moved.
    pub fn moved_bytes(&self) -> u64 {
        let moved = self.objects.iter().filter(|(_, fate)| *fate == Fate::Move);
        moved.map(|(entry, _)| u64::from(entry.length)).sum()
    }

    /// What the retirement would bring, once the objects it moves are written elsewhere.
    pub fn free_bytes(&self) -> u64 {
        self.candidate.size_bytes.saturating_sub(self.moved_bytes())
    }

    pub fn is_worth_moving(&self, limits: &Limits, now_ms: i64) -> bool {
        let Candidate {
            size_bytes,
            modified_ms,
            ..
        } = self.candidate;
        limits.is_worth_moving(self.free_bytes(), size_bytes, now_ms - modified_ms)
    }
}

/// What came of looking at a segment.
pub(crate) enum Verdict {
    Judged(Judged),
    /// Its writer may be about to commit it.
    NotYet(WriterState),
    /// It is no segment that can be read: left alone and reported.
    Unreadable(String),
    /// What decides about it is damaged: left alone and reported.
    Undecidable(Damage),
    /// It is gone.
    Gone,
}

/// Looks what of a segment the roots need.
pub(crate) async fn judge(
    objects: &mut Objects,
    limits: &Limits,
    branches: &[Branch],
    writer_states: &mut WriterStates,
    candidate: Candidate,
) -> Result<Verdict, CleanError> {
    let segment = candidate.segment;
    let mut writer_state = writer_states
        .of(objects, limits, branches, segment.writer)
        .await?;
    if firn_env::planted!("cleaner.orphans_by_age")
        && objects.env.wall().as_millis() - candidate.modified_ms > 60_000
    {
        writer_state = WriterState::Over;
    }
    if !writer_state.allows(segment.sequence, None) {
        return Ok(Verdict::NotYet(writer_state));
    }
    let entries = match read_index(objects, &candidate).await? {
        Ok(entries) => entries,
        Err(Some(detail)) => return Ok(Verdict::Unreadable(detail)),
        Err(None) => return Ok(Verdict::Gone),
    };
    let youngest = entries.iter().map(|entry| entry.birth).max();
    if !writer_state.allows(segment.sequence, youngest) {
        return Ok(Verdict::NotYet(writer_state));
    }
    let mut judged = Judged {
        candidate,
        objects: Vec::with_capacity(entries.len()),
    };
    for entry in entries {
        match fate(objects, branches, &entry, entry.location(segment)).await {
            Ok(fate) => judged.objects.push((entry, fate)),
            Err(CleanError::Damaged(damage)) => return Ok(Verdict::Undecidable(damage)),
            Err(error) => return Err(error),
        }
    }
    if firn_env::planted!("cleaner.forget_one_object")
        && let Some((_, fate)) = judged
            .objects
            .iter_mut()
            .rev()
            .find(|(_, fate)| *fate == Fate::Move)
    {
        *fate = Fate::Dead;
    }
    Ok(Verdict::Judged(judged))
}

/// The index of a segment, from wherever it can be had. `Err(None)`: the segment is gone.
async fn read_index(
    objects: &Objects,
    candidate: &Candidate,
) -> Result<Result<Vec<SegmentIndexEntry>, Option<String>>, CleanError> {
    let mut worst = None;
    for store in objects.sources(candidate.segment) {
        match read_index_from(objects, &*store, candidate).await? {
            Ok(entries) => return Ok(Ok(entries)),
            Err(detail) => worst = worst.or(detail),
        }
    }
    Ok(Err(worst))
}

async fn read_index_from(
    objects: &Objects,
    store: &dyn Store,
    candidate: &Candidate,
) -> Result<Result<Vec<SegmentIndexEntry>, Option<String>>, CleanError> {
    let key = ObjectKey::new(&candidate.segment.key(&objects.anchor.family()));
    let size = candidate.size_bytes;
    if size > MAX_SEGMENT_BYTES as u64 {
        return Ok(Err(Some(format!("{size} bytes are more than a segment has"))));
    }
    let read = async |offset: u64, length: u64| match store.get_range(&key, offset, length).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(CleanError::from(error)),
    };
    let start = size.saturating_sub(TAIL_BYTES);
    let Some(tail) = read(start, size - start).await? else {
        return Ok(Err(None));
    };
    let footer = match decode_footer(&tail[tail.len().saturating_sub(FOOTER_BYTES)..]) {
        Ok(footer) => footer,
        Err(error) => return Ok(Err(Some(error.to_string()))),
    };
    if footer.id != candidate.segment
        || footer.family != objects.anchor.family()
        || footer.segment_bytes() as u64 != size
    {
        return Ok(Err(Some("its footer is that of another segment".into())));
    }
    let index_start = u64::from(footer.index_offset);
    let index = if index_start >= start {
        let skip = (index_start - start) as usize;
        tail.slice(skip..skip + footer.index_bytes())
    } else {
        match read(index_start, footer.index_bytes() as u64).await? {
            Some(index) => index,
            None => return Ok(Err(None)),
        }
    };
    Ok(footer
        .decode_index(&index)
        .map_err(|error| Some(error.to_string())))
}

async fn fate(
    objects: &mut Objects,
    branches: &[Branch],
    entry: &SegmentIndexEntry,
    here: Location,
) -> Result<Fate, CleanError> {
    let Some(pointer) = find(objects, branches, entry).await? else {
        return Ok(Fate::Dead);
    };
    if pointer.location == here {
        return Ok(Fate::Move);
    }
    let Some(settled) = objects.settle(&pointer.location).await? else {
        return Ok(Fate::Move);
    };
    if settled == here || settled.segment == here.segment || settled.length != here.length {
        return Ok(Fate::Move);
    }
    let copy = Pointer {
        uid: entry.uid,
        location: settled,
    };
    Ok(match objects.read_at(&copy, entry.place).await? {
        Ok(_) => Fate::LeadOn(settled),
        Err(_) => Fate::Move,
    })
}

/// The pointer of the first candidate root that has the object at its place.
async fn find(
    objects: &mut Objects,
    branches: &[Branch],
    entry: &SegmentIndexEntry,
) -> Result<Option<Pointer>, CleanError> {
    for branch in branches {
        if entry.place.inode == firn_format::CHECKPOINTS {
            for trees in branch.checkpoints() {
                if let Some(found) = lookup(objects, trees, entry.place).await?
                    && found.pointer.uid == entry.uid
                {
                    return Ok(Some(found.pointer));
                }
            }
            continue;
        }
        for trees in branch.candidates(entry.birth) {
            if let Some(found) = lookup(objects, trees, entry.place).await?
                && found.pointer.uid == entry.uid
            {
                return Ok(Some(found.pointer));
            }
        }
    }
    Ok(None)
}

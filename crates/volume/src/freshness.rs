//! Rollback detection: whether the root in the table is the newest that the bucket knows of.
//!
//! Whoever holds a root can verify everything below it, but a table that was put back shows an old root, which verifies as well.
//! The evidence of newer ones lies in the bucket, written anyway: the [ownership statements](crate::ownership_statement), and the
//! checkpoints in the segments of the newest owner's writer, sealed under the family's key. Each names the root before it, so a
//! checkpoint proves that its predecessor was committed.
//!
//! ```text
//! newest statement s (epoch, grant, writer w, base b, signer)      the table shows                         verdict
//!                                                                  an epoch below s's, or its epoch
//!                                                                  under another grant                     rolled back
//!                                                                  b as the root                           go on below
//!                                                                  a root of s's epoch, signed by s        go on below
//!                                                                  a root of s's epoch, not signed by s    not committed by s
//!                                                                  a root of a later epoch                 not announced
//!                                                                  any other root                          rolled back
//! newest checkpoint c in the segments of w behind the root         none                                    newest
//!                                                                  c follows another root                  rolled back
//!                                                                  c follows the root in the table         in doubt
//! ```
//!
//! **In doubt** is the one case that the bucket cannot tell: an edge that dies between the upload and the commit leaves the same
//! objects as a table that was rolled back by exactly that commit. The edge whose checkpoint it is knows: its journal has all that
//! it holds, so it starts. Everybody else is told, and an administrator decides ([`crate::Volume::accept_rollback`]).
//!
//! **A volume that its members write** (leases by inode) has no owner and no statements: nothing of this is looked at, and only who has seen more
//! notices a table that was put back.
//!
//! Costs at a start, of a volume whose table is right: a LIST and a GET for the statement, a LIST of the log behind the root, a LIST
//! of forwarding records behind it, and the PUT of the statement. A crash in the middle of a checkpoint adds one ranged GET for
//! each segment of it.

mod stale_table;

use crate::{
    config::VolumeConfig,
    error::VolumeError,
    load::read_checkpoint,
    local::LocalState,
    objects::{Objects, ReadError},
    ownership_statement::{MAX_STATEMENT_BYTES, NoStatement, OwnershipStatement, unavailable},
    parts::Parts,
};
use bytes::Bytes;
use firn_anchor::{Root, VolumeTuple};
use firn_format::{
    Checkpoint, FOOTER_BYTES, ForwardingRecord, Kind, MAX_FORWARDING_BYTES, Pointer, SegmentId,
    SegmentIndexEntry, Version, WriterId, checkpoint_place, decode_footer,
};
use firn_store::{ObjectInfo, ObjectKey, StoreError};
use std::time::Duration;

pub use stale_table::{Contradiction, RootSight, StaleTable};

/// Objects among the statements that are none and are passed over, as among key rings; more keep the volume from being served.
const JUNK_MAX: usize = 64;
/// Segments behind the root whose index is read: as many as a recovery reads (16 GiB of 4 MiB).
const SEGMENTS_MAX: usize = 4096;
/// Pages of segments behind the root: 16 million segments.
const PAGES_MAX: usize = 16_384;
/// Of a segment's end: the footer, and the index of 128 blocks of 32 KiB with room to spare.
const TAIL_BYTES: u64 = 16 << 10;
/// How often a table that changes while it is looked at is looked at again.
const LOOKS_MAX: usize = 16;
/// How long what may be late is waited for: the commit of an owner that has just uploaded, and a statement that a store does not list
/// yet, as some do for seconds.
const LATE_WAIT: Duration = Duration::from_secs(2);
const LATE_WAITS: usize = 3;

/// What the bucket knows of a volume's owners.
#[derive(Clone, Debug)]
pub(crate) struct Statements {
    pub newest: OwnershipStatement,
    /// Whether another was given the same epoch: of two incarnations of one table, one was rolled back.
    pub is_forked: bool,
}

/// Loads the volume's tuple and holds it against the bucket.
///
/// # Errors
/// [`VolumeError::StaleTable`]; otherwise if store or table do not answer.
pub(crate) async fn check(
    parts: &Parts,
    config: &VolumeConfig,
    local: Option<&LocalState>,
) -> Result<VolumeTuple, VolumeError> {
    let (mut tuple, _) = parts.anchor.load(parts.volume).await?;
    let mut waits = 0;
    for _ in 0..LOOKS_MAX {
        let Some(stale) = find(parts, config, &tuple, local).await? else {
            return Ok(tuple);
        };
        // An owner may be at work: what was seen in the bucket is compared with a table that was read before.
        let (now, _) = parts.anchor.load(parts.volume).await?;
        let is_owned = now.owner.is_some();
        if now == tuple {
            let may_pass = stale.is_in_doubt() && is_owned || stale.is_not_announced();
            if !may_pass || waits == LATE_WAITS {
                return Err(Box::new(stale).into());
            }
            waits += 1;
            parts.env.sleep(LATE_WAIT).await;
            (tuple, _) = parts.anchor.load(parts.volume).await?;
        } else {
            tuple = now;
        }
    }
    Err(firn_anchor::AnchorError::Contended {
        what: format!("volume {}", parts.volume),
        attempts: LOOKS_MAX as u32,
    }
    .into())
}

/// What a doubt is taken for that the bucket alone cannot resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// An administrator has to say.
    Refuse,
    /// The table is right: an owner died in a commit. For who follows, or takes over from an owner that was seen to be gone. Were it a table
    /// that was put back by that one commit, whoever has seen more still notices.
    TrustTable,
}

/// [`check`], with what a doubt is taken for.
pub(crate) async fn check_with(
    parts: &Parts,
    config: &VolumeConfig,
    local: Option<&LocalState>,
    doubt: Doubt,
) -> Result<VolumeTuple, VolumeError> {
    match check(parts, config, local).await {
        Err(VolumeError::StaleTable(stale)) if stale.is_in_doubt() && doubt == Doubt::TrustTable => {
            Ok(parts.anchor.load(parts.volume).await?.0)
        }
        checked => checked,
    }
}

/// What in the bucket contradicts the tuple, if anything does.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn find(
    parts: &Parts,
    config: &VolumeConfig,
    tuple: &VolumeTuple,
    local: Option<&LocalState>,
) -> Result<Option<StaleTable>, VolumeError> {
    // Nobody owns it, so nobody states an ownership: who has seen a newer root notices an older one by that alone.
    if tuple.by_inode {
        return Ok(None);
    }
    let stale = |contradiction| {
        Ok(Some(StaleTable {
            volume: parts.volume,
            table: tuple.root.as_ref().map(sight),
            contradiction,
        }))
    };
    let statements = match newest_statements(parts).await? {
        Ok(Some(statements)) => statements,
        // Nobody who signs has owned it yet.
        Ok(None) => return Ok(None),
        Err(object) => return stale(Contradiction::Hidden { object }),
    };
    if let Some(contradiction) = against_statement(parts, tuple, &statements) {
        if let (Contradiction::NotAnnounced { .. }, Some(root)) = (&contradiction, &tuple.root) {
            // An edge whose key ring is too old opens neither the statement nor the root: that is what it is told.
            let objects = parts.objects(config).await?.uncached();
            let pointer = Pointer {
                uid: root.uid,
                location: root.location,
            };
            let read = read_checkpoint(&objects, parts.family(), root.version, pointer).await;
            if let Err(error @ VolumeError::KeyNotAtHand { .. }) = read {
                return Err(error);
            }
        }
        return stale(contradiction);
    }
    let newest = statements.newest;
    if newest.writer == WriterId(0) {
        return Ok(None);
    }
    let after = tuple
        .root
        .as_ref()
        .filter(|root| root.location.segment.writer == newest.writer);
    let after = after.map(|root| root.location.segment.sequence);
    if let Some(segment) = cleaned_behind(parts, newest.writer, after).await? {
        return stale(Contradiction::LaterCleaning(segment));
    }
    let listed = segments_behind(parts, newest.writer, after).await?;
    let Some((checkpoint, found, sequence)) =
        newest_checkpoint(parts, config, &newest, tuple.root.as_ref(), &listed).await?
    else {
        return Ok(None);
    };
    let follows = match &tuple.root {
        Some(root) => checkpoint.previous == Some(root.uid),
        // The first of a branch: making the volume was not ended, and is begun again.
        None if checkpoint.previous.is_none() || checkpoint.fork.is_some() => return Ok(None),
        None => false,
    };
    if !follows {
        return stale(Contradiction::LaterCheckpoint(found));
    }
    let first = after.map_or(0, |after| after + 1);
    let is_whole = listed
        .iter()
        .map(|segment| segment.sequence)
        .take_while(|listed| *listed <= sequence)
        .eq(first..=sequence);
    if !is_whole || is_own(local, &newest, tuple) {
        return Ok(None);
    }
    stale(Contradiction::InDoubt(found))
}

fn sight(root: &Root) -> RootSight {
    RootSight {
        version: root.version,
        epoch: root.epoch,
        uid: root.uid,
        committed_at_ms: root.committed_at_ms,
    }
}

/// The journal of this machine begins no later than at the root in the table and has all that the checkpoint in doubt holds: it is
/// trimmed only once a commit is remembered.
fn is_own(local: Option<&LocalState>, newest: &OwnershipStatement, tuple: &VolumeTuple) -> bool {
    let Some(local) = local else { return false };
    let remembered = local.seen.as_ref().and_then(|seen| seen.root());
    local.owner == newest.owner.id
        && local.writer == Some(newest.writer)
        && local.tenure == Some(tuple.tenure)
        && remembered.map(|root| root.version) <= tuple.root.as_ref().map(|root| root.version)
}

fn against_statement(parts: &Parts, tuple: &VolumeTuple, statements: &Statements) -> Option<Contradiction> {
    let newest = &statements.newest;
    let owner = newest.owner.name.clone();
    let base = newest.base.map(|base| base.version);
    let is_other_grant =
        newest.epoch == tuple.epoch && newest.grant != tuple.grant && newest.writer != WriterId(0);
    if newest.epoch > tuple.epoch || is_other_grant || statements.is_forked {
        return Some(Contradiction::LaterOwnership {
            table_epoch: tuple.epoch,
            epoch: newest.epoch,
            owner,
            made_at_ms: newest.made_at_ms,
            base,
        });
    }
    let Some(root) = &tuple.root else {
        return base.map(|base| Contradiction::OtherRoot {
            owner,
            base: Some(base),
        });
    };
    let is_base = newest
        .base
        .is_some_and(|base| (base.version, base.uid) == (root.version, root.uid));
    if is_base {
        return None;
    }
    if root.epoch > newest.epoch {
        return Some(Contradiction::NotAnnounced { newest: newest.epoch });
    }
    if root.epoch < newest.epoch {
        return Some(Contradiction::OtherRoot { owner, base });
    }
    let message = root.signed_message(&parts.family(), &parts.volume, &newest.grant);
    let is_signed = root
        .signature
        .is_some_and(|signature| newest.signer.verifies(&message, &signature));
    (!is_signed).then_some(Contradiction::NotSigned { owner })
}

/// The newest ownership statement of the volume. The inner error names an object that hides it.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn newest_statements(
    parts: &Parts,
) -> Result<Result<Option<Statements>, String>, VolumeError> {
    let prefix = OwnershipStatement::prefix(&parts.family(), &parts.volume);
    let page = parts
        .store
        .list(&prefix, None)
        .await
        .map_err(|error| unavailable(&error))?;
    let mut found: Option<Statements> = None;
    let mut junk = 0;
    for object in &page.objects {
        if let Some(found) = &mut found {
            // The next in order is older, unless one epoch was given twice.
            if OwnershipStatement::epoch_of(&object.key) != Some(found.newest.epoch) {
                break;
            }
            found.is_forked |= matches!(read_statement(parts, object).await?, Read::Statement(_));
            break;
        }
        match read_statement(parts, object).await? {
            Read::Statement(newest) => {
                found = Some(Statements {
                    newest: *newest,
                    is_forked: false,
                });
            }
            // All of them are, at the first start after the keys of all earlier ones were dropped.
            Read::KeyDropped => {}
            Read::Junk => junk += 1,
        }
        if junk > JUNK_MAX {
            return Ok(Err(object.key.to_string()));
        }
    }
    Ok(Ok(found))
}

/// An object among the statements.
enum Read {
    Statement(Box<OwnershipStatement>),
    KeyDropped,
    Junk,
}

async fn read_statement(parts: &Parts, object: &ObjectInfo) -> Result<Read, VolumeError> {
    if object.size_bytes > MAX_STATEMENT_BYTES {
        return Ok(Read::Junk);
    }
    let bytes = match parts.store.get(&object.key).await {
        Ok(bytes) => bytes,
        Err(StoreError::NotFound { .. }) => return Ok(Read::Junk),
        Err(error) => return Err(unavailable(&error)),
    };
    match OwnershipStatement::open(&bytes, &parts.keys) {
        Ok(statement) if statement.volume == parts.volume && statement.key(&parts.family()) == object.key => {
            Ok(Read::Statement(Box::new(statement)))
        }
        Ok(_) => Ok(Read::Junk),
        Err(NoStatement::KeyDropped(_)) => Ok(Read::KeyDropped),
        Err(error) => {
            tracing::warn!(key = %object.key, %error, "passed over");
            Ok(Read::Junk)
        }
    }
}

/// A segment that lies behind the root.
struct Behind {
    sequence: u64,
    bytes: u64,
}

/// The segments of a writer behind a sequence, in order.
async fn segments_behind(
    parts: &Parts,
    writer: WriterId,
    after: Option<u64>,
) -> Result<Vec<Behind>, VolumeError> {
    let key = |sequence| SegmentId { writer, sequence }.key(&parts.family());
    let whole = key(0);
    let prefix = whole.rsplit_once('/').map_or("", |(writer, _)| writer).to_owned() + "/";
    let mut from = after.map(|after| ObjectKey::new(&key(after)));
    let mut behind = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = parts
            .store
            .list(&prefix, from.as_ref())
            .await
            .map_err(|error| unavailable(&error))?;
        for object in &page.objects {
            if let Some((_, id)) = SegmentId::parse_key(object.key.as_str()) {
                behind.push(Behind {
                    sequence: id.sequence,
                    bytes: object.size_bytes,
                });
            }
        }
        from = page.objects.last().map(|object| object.key.clone());
        if !page.more || from.is_none() {
            break;
        }
    }
    Ok(behind)
}

/// A segment behind a sequence out of which a cleaner moved something: cleaners judge an owner's segments up to its head only.
async fn cleaned_behind(
    parts: &Parts,
    writer: WriterId,
    after: Option<u64>,
) -> Result<Option<SegmentId>, VolumeError> {
    let family = parts.family();
    let prefix = format!("{family}/forward/{:016x}/", writer.0);
    // `0` comes after `/`: behind all records of that segment.
    let from = after.map(|after| ObjectKey::new(&format!("{prefix}{after:016x}0")));
    let page = parts
        .store
        .list(&prefix, from.as_ref())
        .await
        .map_err(|error| unavailable(&error))?;
    for object in page.objects.iter().take(JUNK_MAX) {
        let Some((_, segment, _)) = ForwardingRecord::parse_key(object.key.as_str()) else {
            continue;
        };
        if object.size_bytes > MAX_FORWARDING_BYTES as u64 {
            continue;
        }
        let bytes = match parts.store.get(&object.key).await {
            Ok(bytes) => bytes,
            Err(StoreError::NotFound { .. }) => continue,
            Err(error) => return Err(unavailable(&error)),
        };
        let moved = ForwardingRecord::decode(&bytes).is_ok_and(|record| {
            record.old == segment && record.family == family && !record.entries.is_empty()
        });
        if moved {
            return Ok(Some(segment));
        }
    }
    Ok(None)
}

/// The newest checkpoint of an ownership behind the root in the table, and the sequence of its segment.
async fn newest_checkpoint(
    parts: &Parts,
    config: &VolumeConfig,
    owner: &OwnershipStatement,
    root: Option<&Root>,
    behind: &[Behind],
) -> Result<Option<(Checkpoint, RootSight, u64)>, VolumeError> {
    let mut opened: Option<Objects> = None;
    for segment in behind.iter().rev().take(SEGMENTS_MAX) {
        let id = SegmentId {
            writer: owner.writer,
            sequence: segment.sequence,
        };
        for entry in checkpoints_in(parts, id, segment.bytes).await?.into_iter().rev() {
            let objects = match &opened {
                Some(objects) => objects.clone(),
                None => opened.insert(parts.objects(config).await?.uncached()).clone(),
            };
            let pointer = Pointer {
                uid: entry.uid,
                location: entry.location(id),
            };
            let place = checkpoint_place(Version(entry.place.index));
            let object = match objects.probe_object(&pointer, place).await {
                Ok(object) => object,
                Err(error @ ReadError::Unavailable { .. }) => return Err(error.into()),
                // Damaged, not of the family, or under a key that its ring no longer has: no evidence of anything.
                Err(
                    ReadError::Corrupt { .. } | ReadError::Missing { .. } | ReadError::KeyNotAtHand { .. },
                ) => continue,
            };
            let checkpoint =
                Checkpoint::from_plain_and_children(&object.header.plain, &object.header.children);
            let Ok(checkpoint) = checkpoint else { continue };
            let is_theirs = checkpoint.volume == parts.volume
                && checkpoint.epoch == owner.epoch
                && checkpoint.writer == owner.writer
                && root.is_none_or(|root| root.version < checkpoint.version);
            if is_theirs {
                let found = RootSight {
                    version: checkpoint.version,
                    epoch: checkpoint.epoch,
                    uid: pointer.uid,
                    committed_at_ms: checkpoint.committed_at_ms,
                };
                return Ok(Some((checkpoint, found, segment.sequence)));
            }
        }
    }
    Ok(None)
}

/// The checkpoints that a segment's index names, oldest first; what is half written or foreign has none. Mostly one ranged GET.
async fn checkpoints_in(
    parts: &Parts,
    id: SegmentId,
    bytes: u64,
) -> Result<Vec<SegmentIndexEntry>, VolumeError> {
    let key = ObjectKey::new(&id.key(&parts.family()));
    let tail = async |length: u64| -> Result<Option<Bytes>, VolumeError> {
        match parts.store.get_range(&key, bytes - length, length).await {
            Ok(tail) if tail.len() as u64 == length => Ok(Some(tail)),
            Ok(_) | Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(unavailable(&error)),
        }
    };
    let footer_bytes = FOOTER_BYTES as u64;
    if bytes < footer_bytes {
        return Ok(Vec::new());
    }
    let Some(mut end) = tail(bytes.min(TAIL_BYTES)).await? else {
        return Ok(Vec::new());
    };
    let Ok(footer) = decode_footer(&end[end.len() - FOOTER_BYTES..]) else {
        return Ok(Vec::new());
    };
    let needed = (footer.index_bytes() + FOOTER_BYTES) as u64;
    if footer.id != id || footer.family != parts.family() || needed > bytes {
        return Ok(Vec::new());
    }
    if needed > end.len() as u64 {
        match tail(needed).await? {
            Some(longer) => end = longer,
            None => return Ok(Vec::new()),
        }
    }
    let from = end.len() - FOOTER_BYTES - footer.index_bytes();
    let index = footer.decode_index(&end[from..end.len() - FOOTER_BYTES]);
    let mut entries = index.unwrap_or_default();
    entries.retain(|entry| entry.kind == Kind::Checkpoint);
    Ok(entries)
}

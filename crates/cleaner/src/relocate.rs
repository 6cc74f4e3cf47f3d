//! Moving: live objects and the nodes above them into the cleaner's own log.
//!
//! ```text
//! 1  read what is to be moved, compare each object with its hash
//! 2  walk from each head that may be proposed to the moved places, and note the nodes on the way
//! 3  write everything bottom-up, each object once: file data in the order of (inode, index), then nodes by level, then
//!    inodes, then the maps, then checkpoints; children that were written before get their new places
//! ```
//!
//! Written in that order, a file that was scattered lies together again. No uid changes, since none covers a location. A
//! node is never written with a pointer into a segment that is retired, as far as records tell: each child's place is
//! settled first. What cannot be read whole and right is reported with its inode, and its segment stays.

use crate::{
    CleanError, Damage,
    branches::Branch,
    judge::{Fate, Judged},
    lookup::lookup_exact,
    objects::Objects,
    own_log::OwnLog,
};
use bytes::Bytes;
use firn_anchor::{MAX_PROPOSAL_USAGE, UsageChange};
use firn_format::{
    EncodedObject, INODE_MAP, Kind, Location, ORPHAN_MAP, Place, SegmentId, SegmentIndexEntry, Uid,
    UsageLeaf, decode_object, relocate_children,
};
use firn_store::{ObjectKey, Store, StoreError};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Dead bytes between two live objects that are read with them rather than asked for apart: a request costs as much time as
/// some hundred KiB within a region.
const GAP_BYTES: u32 = 128 << 10;

/// How a batch turned out.
pub(crate) struct Relocated {
    /// Where everything written lies, and where copies that are led on to lie.
    pub places: BTreeMap<Uid, Location>,
    /// Heads of which something was rewritten, with the place of the relocated checkpoint: ordinal of the branch.
    pub heads: BTreeMap<usize, Location>,
    /// For each victim, the branches (ordinals) whose heads led to it.
    pub led: BTreeMap<SegmentId, BTreeSet<usize>>,
    /// For each victim, the branches whose heads led to it before a proposal that is not merged yet led away.
    pub led_before: BTreeMap<SegmentId, BTreeSet<usize>>,
    /// What of the head of a branch (ordinal) lies elsewhere now: where its pointers led.
    pub replaced: BTreeMap<usize, BTreeMap<Uid, (Place, Location)>>,
    /// What was found damaged; the victims it lies in were left out.
    pub damaged: Vec<Damage>,
    /// Bytes of file data and of nodes, inodes and checkpoints written.
    pub data_bytes: u64,
    pub node_bytes: u64,
}

/// Writes what of `victims` is live, and the heads above it for the branches in `proposable`. Victims that turn out
/// damaged are taken out.
pub(crate) async fn relocate(
    objects: &mut Objects,
    log: &mut OwnLog,
    branches: &[Branch],
    proposable: &BTreeSet<usize>,
    victims: &mut Vec<Judged>,
) -> Result<Relocated, CleanError> {
    let mut relocated = Relocated {
        places: BTreeMap::new(),
        heads: BTreeMap::new(),
        led: BTreeMap::new(),
        led_before: BTreeMap::new(),
        replaced: BTreeMap::new(),
        damaged: Vec::new(),
        data_bytes: 0,
        node_bytes: 0,
    };
    let mut written: BTreeMap<Uid, EncodedObject> = BTreeMap::new();
    let mut sound = Vec::with_capacity(victims.len());
    for victim in victims.drain(..) {
        match read_moved(objects, &victim).await? {
            Ok(moved) => {
                written.extend(moved.into_iter().map(|object| (object.uid, object)));
                sound.push(victim);
            }
            Err(damage) => relocated.damaged.push(damage),
        }
    }
    *victims = sound;
    for victim in &*victims {
        for (entry, fate) in &victim.objects {
            if let Fate::LeadOn(copy) = fate
                && !written.contains_key(&entry.uid)
            {
                relocated.places.insert(entry.uid, *copy);
            }
        }
    }
    let (mut changed_heads, mut undecidable) = (BTreeSet::new(), BTreeSet::new());
    for (ordinal, branch) in branches.iter().enumerate() {
        let Some(head) = &branch.head else { continue };
        for victim in &*victims {
            for (entry, fate) in &victim.objects {
                if *fate == Fate::Dead {
                    continue;
                }
                let found = match lookup_exact(objects, &head.trees, entry.place).await {
                    Ok(Some(found)) => found,
                    Ok(None) => continue,
                    Err(CleanError::Damaged(damage)) => {
                        relocated.damaged.push(damage);
                        undecidable.insert(victim.candidate.segment);
                        break;
                    }
                    Err(error) => return Err(error),
                };
                let stays = relocated.places.get(&entry.uid) == Some(&found.pointer.location)
                    && !written.contains_key(&entry.uid);
                if found.pointer.uid != entry.uid {
                    continue;
                }
                let segment = victim.candidate.segment;
                if stays {
                    // The head was read through the proposal, if there is one for it. What was committed may lead here.
                    if branch.unmerged().is_some() {
                        relocated.led_before.entry(segment).or_default().insert(ordinal);
                    }
                    continue;
                }
                relocated.led.entry(segment).or_default().insert(ordinal);
                if !proposable.contains(&ordinal) {
                    continue;
                }
                changed_heads.insert(ordinal);
                let replaced = relocated.replaced.entry(ordinal).or_default();
                replaced.insert(entry.uid, (entry.place, found.pointer.location));
                for (location, node) in &found.path {
                    // The head's own copy counts: another may know older places of its children.
                    written.insert(node.uid(), (**node).clone().into_encoded());
                    replaced.insert(node.uid(), (node.header.place, *location));
                }
                written.insert(head.object.uid(), (*head.object).clone().into_encoded());
            }
        }
    }
    victims.retain(|victim| !undecidable.contains(&victim.candidate.segment));
    write_all(objects, log, written, &mut relocated).await?;
    for ordinal in changed_heads {
        let head = branches[ordinal].head.as_ref().expect("only heads change");
        let uid = head.object.uid();
        let location = relocated.places.get(&uid).expect("it was just written");
        relocated.heads.insert(ordinal, *location);
    }
    Ok(relocated)
}

impl Relocated {
    /// By how many bytes the head of a branch leads to each segment more, or less, once it has the new places; the most changed
    /// first, as many as a proposal tells of. `before` is what an unmerged proposal for the same base has told already.
    pub fn usage(
        &self,
        ordinal: usize,
        retired: &BTreeSet<SegmentId>,
        before: &[UsageChange],
    ) -> Vec<UsageChange> {
        let mut changes: BTreeMap<SegmentId, UsageChange> =
            before.iter().map(|change| (change.segment, *change)).collect();
        let mut change = |segment: SegmentId, bytes: i64| {
            let change = changes.entry(segment).or_insert(UsageChange {
                segment,
                bytes: 0,
                is_retired: false,
            });
            change.bytes = change.bytes.saturating_add(bytes);
            change.is_retired |= retired.contains(&segment);
        };
        for (uid, (place, old)) in self.replaced.get(&ordinal).into_iter().flatten() {
            if let Some(new) = self.places.get(uid)
                && UsageLeaf::counts(*place)
            {
                change(old.segment, -i64::from(old.length));
                change(new.segment, i64::from(new.length));
            }
        }
        let mut changes: Vec<UsageChange> =
            changes.into_values().filter(|change| change.bytes != 0).collect();
        if changes.len() > MAX_PROPOSAL_USAGE {
            changes.sort_unstable_by_key(|change| std::cmp::Reverse(change.bytes.unsigned_abs()));
            changes.truncate(MAX_PROPOSAL_USAGE);
        }
        changes.sort_unstable_by_key(|change| change.segment);
        changes
    }
}

async fn write_all(
    objects: &mut Objects,
    log: &mut OwnLog,
    written: BTreeMap<Uid, EncodedObject>,
    relocated: &mut Relocated,
) -> Result<(), CleanError> {
    let mut ordered: Vec<EncodedObject> = written.into_values().collect();
    ordered.sort_by_key(|object| height(object.header.kind, object.header.place));
    for object in ordered {
        let object = with_settled_children(objects, object, &relocated.places).await?;
        if object.header.kind == Kind::Block {
            relocated.data_bytes += object.bytes.len() as u64;
        } else {
            relocated.node_bytes += object.bytes.len() as u64;
        }
        let location = log.push(&object).await?;
        relocated.places.insert(object.uid, location);
    }
    log.finish().await
}

async fn with_settled_children(
    objects: &mut Objects,
    object: EncodedObject,
    places: &BTreeMap<Uid, Location>,
) -> Result<EncodedObject, CleanError> {
    if object.header.children.is_empty() {
        return Ok(object);
    }
    let mut settled = BTreeMap::new();
    for child in &object.header.children {
        let pointer = child.pointer;
        let place = match places.get(&pointer.uid) {
            Some(place) => *place,
            None => objects
                .settle(&pointer.location)
                .await?
                .unwrap_or(pointer.location),
        };
        settled.insert(child.slot, place);
    }
    Ok(relocate_children(&object, |child| settled[&child.slot]))
}

/// Children before parents, a file's data together.
fn height(kind: Kind, place: Place) -> (u8, u8, u64, u64) {
    let class = match (kind, place.inode) {
        (Kind::Checkpoint, _) => 3,
        (Kind::Inode, _) => 1,
        (Kind::Node, INODE_MAP | ORPHAN_MAP) => 2,
        (Kind::Node | Kind::Block, _) => 0,
    };
    (class, place.level, place.inode, place.index)
}

/// The objects of a victim that are to be moved, verified.
async fn read_moved(
    objects: &Objects,
    victim: &Judged,
) -> Result<Result<Vec<EncodedObject>, Damage>, CleanError> {
    let segment = victim.candidate.segment;
    let key = ObjectKey::new(&segment.key(&objects.anchor.family()));
    let moved: Vec<&SegmentIndexEntry> = victim
        .objects
        .iter()
        .filter(|(_, fate)| *fate == Fate::Move)
        .map(|(entry, _)| entry)
        .collect();
    let sources = objects.sources(segment);
    let mut found = Vec::with_capacity(moved.len());
    for run in runs(&moved) {
        if sources.len() > 1 {
            // A repair: each object from whichever store has it right.
            for entry in run {
                match read_somewhere(&sources, &key, entry).await? {
                    Ok(object) => found.push(object),
                    Err(detail) => return Ok(Err(Damage::new(entry.place, entry.uid, detail))),
                }
            }
            continue;
        }
        let start = run[0].offset;
        let end = run.last().map_or(start, |last| last.offset + last.length);
        let read = objects
            .store
            .get_range(&key, u64::from(start), u64::from(end - start))
            .await;
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(StoreError::NotFound { .. }) => {
                let damage = Damage::new(run[0].place, run[0].uid, format!("{key} is gone"));
                return Ok(Err(damage));
            }
            Err(error) => return Err(error.into()),
        };
        for entry in run {
            let from = (entry.offset - start) as usize;
            let Some(object) = bytes.get(from..from + entry.length as usize) else {
                return Ok(Err(Damage::new(
                    entry.place,
                    entry.uid,
                    format!("{key} is cut short"),
                )));
            };
            // A copy, so that the dead bytes around it are let go of.
            match verified(Bytes::copy_from_slice(object), entry) {
                Ok(object) => found.push(object),
                Err(detail) => return Ok(Err(Damage::new(entry.place, entry.uid, detail))),
            }
        }
    }
    Ok(Ok(found))
}

async fn read_somewhere(
    sources: &[Arc<dyn Store>],
    key: &ObjectKey,
    entry: &SegmentIndexEntry,
) -> Result<Result<EncodedObject, String>, CleanError> {
    let mut detail = format!("{key} is in neither store");
    for store in sources {
        let read = store
            .get_range(key, u64::from(entry.offset), u64::from(entry.length))
            .await;
        match read {
            Ok(bytes) => match verified(bytes, entry) {
                Ok(object) => return Ok(Ok(object)),
                Err(other) => detail = other,
            },
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Err(detail))
}

fn verified(bytes: Bytes, entry: &SegmentIndexEntry) -> Result<EncodedObject, String> {
    let fetched = decode_object(bytes.clone()).map_err(|error| error.to_string())?;
    if firn_env::planted!("cleaner.skip_verification") {
        return Ok(EncodedObject {
            uid: entry.uid,
            header: fetched.unverified_header().clone(),
            bytes,
        });
    }
    let verified = fetched
        .verify(&entry.uid, Some(entry.place))
        .map_err(|error| error.to_string())?;
    Ok(verified.into_encoded())
}

/// Neighbours that are read with one request.
fn runs<'a>(moved: &'a [&'a SegmentIndexEntry]) -> impl Iterator<Item = &'a [&'a SegmentIndexEntry]> {
    moved.chunk_by(|left, right| right.offset - (left.offset + left.length) <= GAP_BYTES)
}

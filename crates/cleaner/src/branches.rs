//! Root set of the garbage collection: the heads of a family's volumes, their snapshots, and roots retained at takeovers.
//!
//! The list of branches is read until a pass finds no branch with a root that the pass before did not have; each branch
//! counts as it was when it was first seen. So a clone that is missing from the list was committed after its origin was
//! read, and since a clone's origin is pinned until then (decision 0031), all it refers to was needed by the origin too.
//!
//! By I4 an object's life in a branch is one interval of versions. So it is needed iff the head has it or the oldest
//! retained root not older than its birth has it; for what a clone inherited, whose births count another branch's versions,
//! the oldest retained root at all. Roots retained at takeovers are roots like snapshots. That makes three lookups at most,
//! however many snapshots there are.
//!
//! **Members before heads.** Of a volume that is shared by inode the records of all members are read, and the head after that: what a record
//! says to be committed is in that head, or in an older one. A head that was read first could miss what a writer committed before its end.

use crate::{CleanError, objects::Objects};
use firn_anchor::{Anchor, MemberNumber, MemberRecord, Proposal, TupleVersion, VolumeEntry, VolumeTuple};
use firn_env::Env;
use firn_format::{
    Checkpoint, Pointer, TreeRoot, VerifiedObject, Version, VolumeId, WriterId, checkpoint_place,
};
use firn_store::Store;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Passes over the list of volumes at most: each but the last found a new branch.
const MAX_PASSES: usize = 64;

/// The trees that one root retains.
#[derive(Clone, Debug)]
pub(crate) struct Trees {
    pub version: Version,
    /// The checkpoint itself, if the root retains it.
    pub checkpoint: Option<Pointer>,
    pub inode_map: Option<TreeRoot>,
    pub orphans: Option<TreeRoot>,
    pub usage: Option<TreeRoot>,
    pub manifest: Option<TreeRoot>,
}

/// The head of a branch.
pub(crate) struct Head {
    pub trees: Trees,
    pub object: Arc<VerifiedObject>,
    pub checkpoint: Checkpoint,
}

/// One volume.
pub(crate) struct Branch {
    pub volume: VolumeId,
    pub tuple: VolumeTuple,
    pub head: Option<Head>,
    /// What is retained beside the head, the oldest first.
    pub retained: Vec<Trees>,
    pub proposal: Option<(Proposal, TupleVersion)>,
    /// Of a volume that is shared by inode: its members, as they were before `tuple` was read.
    pub members: Members,
}

/// Members of a volume, and whether they may commit.
pub(crate) type Members = BTreeMap<MemberNumber, MemberRecord>;

impl Branch {
    /// The roots that must be asked whether they have an object born at `birth`.
    pub fn candidates(&self, birth: Version) -> Vec<&Trees> {
        let mut found: Vec<&Trees> = self.head.iter().map(|head| &head.trees).collect();
        if firn_env::planted!("cleaner.ignore_snapshots") {
            found.extend(self.retained.iter().filter(|trees| trees.checkpoint.is_some()));
            return found;
        }
        let own = self.retained.iter().find(|trees| trees.version >= birth);
        found.extend(own);
        let is_clone = self
            .head
            .as_ref()
            .is_some_and(|head| head.checkpoint.fork.is_some());
        if is_clone
            && let Some(oldest) = self.retained.first()
            && own.is_none_or(|own| own.version != oldest.version)
        {
            found.push(oldest);
        }
        found
    }

    /// The retained root whose checkpoint stands at this version, if one does.
    pub fn checkpoints(&self) -> impl Iterator<Item = &Trees> {
        let head = self.head.iter().map(|head| &head.trees);
        head.chain(&self.retained)
            .filter(|trees| trees.checkpoint.is_some())
    }

    /// Whether a proposal is there that the volume may still merge.
    pub fn unmerged(&self) -> Option<&Proposal> {
        let merged = self
            .head
            .as_ref()
            .map_or(0, |head| head.checkpoint.cleaner_sequence);
        self.proposal
            .as_ref()
            .map(|(proposal, _)| proposal)
            .filter(|proposal| proposal.sequence > merged)
    }

    /// The cleaner's incarnation whose copies only a proposal leads to.
    pub fn proposed_by(&self) -> Option<WriterId> {
        self.unmerged().map(|proposal| proposal.mover)
    }
}

/// Whether retirements are to leave their rounds: a volume has a manifest, or may have one with its first root.
pub(crate) fn tell_manifests(branches: &[Branch]) -> bool {
    if firn_env::planted!("cleaner.retire_untold") {
        return false;
    }
    branches.iter().any(|branch| match &branch.head {
        Some(head) => head.checkpoint.manifest.is_some(),
        None => true,
    })
}

/// The newest round that every manifest has taken in; `None` where no volume has a manifest.
pub(crate) fn taken_in(branches: &[Branch]) -> Option<u64> {
    let manifests = branches
        .iter()
        .filter_map(|branch| branch.head.as_ref()?.checkpoint.manifest.as_ref());
    manifests.map(|manifest| manifest.newest_round).min()
}

/// All volumes of the family that have a root, and those that have none yet.
pub(crate) async fn load(objects: &mut Objects) -> Result<Vec<Branch>, CleanError> {
    let (entries, mut members) = stable_list(objects).await?;
    let mut branches = Vec::with_capacity(entries.len());
    for entry in entries {
        let members = members.remove(&entry.volume).unwrap_or_default();
        branches.push(load_branch(objects, entry, members).await?);
        if firn_env::planted!("cleaner.ignore_clones") {
            break;
        }
    }
    Ok(branches)
}

async fn stable_list(
    objects: &Objects,
) -> Result<(Vec<VolumeEntry>, BTreeMap<VolumeId, Members>), CleanError> {
    let mut known: BTreeMap<VolumeId, VolumeTuple> = BTreeMap::new();
    let mut members: BTreeMap<VolumeId, Members> = BTreeMap::new();
    // Volumes whose members were read after their tuple was.
    let mut read_too_early: BTreeSet<VolumeId> = BTreeSet::new();
    for _ in 0..MAX_PASSES {
        let mut grew = false;
        for entry in objects.anchor.volumes().await? {
            let had_root = known.get(&entry.volume).is_some_and(|tuple| tuple.root.is_some());
            let is_first =
                read_too_early.remove(&entry.volume) && !firn_env::planted!("cleaner.heads_before_members");
            if !had_root || is_first {
                grew |= entry.tuple.root.is_some();
                if entry.tuple.by_inode && !members.contains_key(&entry.volume) {
                    read_too_early.insert(entry.volume);
                }
                known.insert(entry.volume, entry.tuple);
            }
        }
        if !grew {
            break;
        }
        for volume in &read_too_early {
            objects.env.fault_point("cleaner.before_members").await;
            let listed = objects.anchor.members(*volume).await?;
            let records = listed.into_iter().map(|entry| (entry.member, entry.tuple.record));
            members.insert(*volume, records.collect());
        }
    }
    // What was not read once more says nothing of its members' writers.
    members.retain(|volume, _| !read_too_early.contains(volume));
    let listed = known.into_iter();
    let listed = listed.map(|(volume, tuple)| VolumeEntry { volume, tuple });
    Ok((listed.collect(), members))
}

async fn load_branch(
    objects: &mut Objects,
    entry: VolumeEntry,
    members: Members,
) -> Result<Branch, CleanError> {
    let VolumeEntry { volume, tuple } = entry;
    let proposal = objects.anchor.proposal(volume).await?;
    let mut head = None;
    let mut retained = Vec::new();
    if let Some(root) = &tuple.root {
        let committed = Pointer {
            uid: root.uid,
            location: root.location,
        };
        // What was proposed for this very root is the same root with better locations; if it can be read.
        let proposed = proposal
            .as_ref()
            .filter(|(proposal, _)| proposal.base_uid == root.uid)
            .map(|(proposal, _)| Pointer {
                location: proposal.location,
                ..committed
            });
        let place = checkpoint_place(root.version);
        let pointer = match proposed {
            Some(proposed) if objects.read_at(&proposed, place).await?.is_ok() => proposed,
            Some(_) | None => committed,
        };
        let (object, checkpoint) = checkpoint(objects, pointer, root.version).await?;
        let trees = Trees {
            version: root.version,
            checkpoint: Some(pointer),
            inode_map: checkpoint.inode_map,
            orphans: checkpoint.orphans,
            usage: checkpoint.usage,
            manifest: checkpoint.manifest.as_ref().and_then(|manifest| manifest.root),
        };
        retained.extend(checkpoint.snapshots.iter().map(|snapshot| Trees {
            version: snapshot.version,
            checkpoint: None,
            inode_map: Some(snapshot.inode_map),
            orphans: snapshot.orphans,
            usage: None,
            manifest: None,
        }));
        head = Some(Head {
            trees,
            object,
            checkpoint,
        });
    }
    if !firn_env::planted!("cleaner.ignore_retained_roots") {
        for kept in &tuple.retained {
            let pointer = Pointer {
                uid: kept.root.uid,
                location: kept.root.location,
            };
            let (_, checkpoint) = checkpoint(objects, pointer, kept.root.version).await?;
            retained.push(Trees {
                version: kept.root.version,
                checkpoint: Some(pointer),
                inode_map: checkpoint.inode_map,
                orphans: checkpoint.orphans,
                // Only a head's are of use, and snapshots between would not have them.
                usage: None,
                manifest: None,
            });
        }
    }
    retained.sort_by_key(|trees| trees.version);
    Ok(Branch {
        volume,
        tuple,
        head,
        retained,
        proposal,
        members,
    })
}

/// Whether a committed root of the anchor's volumes is in this log; without one there is nothing to clean, and nothing that shows that
/// roots and log belong together. For hosts whose roots are found by another name than the family's. Changes nothing.
///
/// # Errors
/// [`CleanError::Damaged`] if there is a root and the log does not have it.
pub async fn has_head(env: &Env, store: Arc<dyn Store>, anchor: &Anchor) -> Result<bool, CleanError> {
    let objects = &mut Objects::new(env, store, anchor, 0);
    for entry in objects.anchor.volumes().await? {
        if let Some(root) = &entry.tuple.root {
            let pointer = Pointer {
                uid: root.uid,
                location: root.location,
            };
            checkpoint(objects, pointer, root.version).await?;
            return Ok(true);
        }
    }
    Ok(false)
}

async fn checkpoint(
    objects: &mut Objects,
    pointer: Pointer,
    version: Version,
) -> Result<(Arc<VerifiedObject>, Checkpoint), CleanError> {
    let place = checkpoint_place(version);
    let object = objects.get_exact(&pointer, place).await?;
    let checkpoint =
        Checkpoint::from_verified(&object).map_err(|error| CleanError::format(place, pointer.uid, &error))?;
    Ok((object, checkpoint))
}

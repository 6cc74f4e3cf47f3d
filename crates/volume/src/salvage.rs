//! Takeover, and what becomes of the fenced edge's journal.
//!
//! A takeover raises the epoch in the root and retains the old owner's last root. When the old owner comes back it finds
//! itself fenced, serves nothing, and replays its journal not on the volume but on the retained root, as a **salvage clone**:
//! a new volume of the same family that has every write it ever acknowledged (I8). Nothing is dropped, nothing is merged
//! behind anybody's back.

use crate::{
    branch::{NewBranch, commit_branch, first_version, pack_dirty},
    checkpoint::{Packer, unlisted_up_to},
    config::VolumeConfig,
    error::VolumeError,
    extents::WriteBuffer,
    freshness::{self, Doubt},
    journal::{Journal, Replay, Sequence},
    kept_checkpoint,
    load::{LoadedRoot, load_root, read_checkpoint},
    local::{LocalState, journal_directory},
    manifest::Manifest,
    objects::{Objects, ReadError},
    ownership_statement::StatementKind,
    parts::Parts,
    record::{Operation, Record},
    replay::{RecoveryReport, load_for_replay},
    rollback,
    touched::Touched,
    volume::Volume,
};
use firn_anchor::{AnchorError, OwnerId, Root, VolumeTuple, WriterTenure};
use firn_env::{Disk, DiskError};
use firn_format::{ForkPoint, OwnershipEpoch, Pointer, Version, VolumeId};

/// Records held in memory before they are packed.
const PACK_BYTES: u64 = 32 << 20;

/// What a takeover did.
#[derive(Clone, Debug)]
pub struct TakeoverReport {
    /// Who had the volume.
    pub previous_owner: Option<String>,
    /// When it last committed: what it acknowledged after that is in its journal only.
    pub last_committed_ms: Option<i64>,
    /// The new epoch.
    pub epoch: OwnershipEpoch,
    /// Segments of the last owner's latest run that the store has not though it acknowledged them: their keys.
    pub missing_segments: Vec<String>,
}

/// What a salvage made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SalvageReport {
    /// The clone.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// What was replayed into it.
    pub recovery: RecoveryReport,
    /// Paths of what was replayed, in order, as the clone has them; a thousand at most.
    pub paths: Vec<String>,
    /// Files beyond those.
    pub paths_more: u64,
}

/// What becomes of the root that the table retains for a salvage, once that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterSalvage {
    /// It stays, until somebody forgets it.
    Retain,
    /// It is forgotten: takeovers are nothing unusual in a shared volume, and the table retains a few dozen at most.
    Forget,
}

impl Volume {
    /// Takes the volume away from its owner, whoever that is, without serving it yet: the next [`Volume::open`] on this state
    /// directory does. What the last owner called level 2 is looked for first.
    ///
    /// # Errors
    /// If the anchor refuses, or the newest checkpoint cannot be read: the old owner may still have what is missing, so nothing is
    /// taken from it then.
    pub async fn takeover(parts: &Parts, config: &VolumeConfig) -> Result<TakeoverReport, VolumeError> {
        Self::take_over(parts, config, None).await
    }

    /// The same of the ownership with this grant and no other, whose owner was seen to be gone.
    ///
    /// # Errors
    /// As [`Volume::takeover`], and if the volume was given to anybody since.
    pub(crate) async fn takeover_from(
        parts: &Parts,
        config: &VolumeConfig,
        gone: [u8; 16],
    ) -> Result<TakeoverReport, VolumeError> {
        Self::take_over(parts, config, Some(gone)).await
    }

    async fn take_over(
        parts: &Parts,
        config: &VolumeConfig,
        gone: Option<[u8; 16]>,
    ) -> Result<TakeoverReport, VolumeError> {
        let local = LocalState::load(&parts.env).await?;
        let checked = match firn_env::planted!("volume.trust_the_table") {
            true => parts.anchor.load(parts.volume).await?.0,
            false => {
                let doubt = match gone {
                    Some(_) => Doubt::TrustTable,
                    None => Doubt::Refuse,
                };
                freshness::check_with(parts, config, Some(&local), doubt).await?
            }
        };
        let missing = match &checked.root {
            Some(root) => look_at_level_two(parts, config, root).await?,
            None => Vec::new(),
        };
        let (anchor, name) = (&parts.anchor, &config.owner_name);
        let taken = match gone {
            Some(grant) => {
                anchor
                    .takeover_from(parts.volume, local.owner, name, grant)
                    .await?
            }
            None => anchor.takeover(parts.volume, local.owner, name).await?,
        };
        parts.env.fault_point("takeover.after_anchor").await;
        let tuple = taken.ownership.tuple();
        if tuple.root != checked.root {
            // The owner was alive and committed meanwhile. What it uploaded since and can no longer commit is no rollback.
            match freshness::find(parts, config, tuple, None).await? {
                Some(stale) if !stale.is_in_doubt() => return Err(Box::new(stale).into()),
                Some(_) | None => {}
            }
        }
        // What the fenced owner uploaded behind this root was never committed: whoever opens the volume next is told so.
        rollback::announce(parts, &taken.ownership, StatementKind::TakenOver, Version(0)).await?;
        Ok(TakeoverReport {
            previous_owner: taken.previous_owner.as_ref().map(|owner| owner.name.clone()),
            last_committed_ms: taken.last_committed_ms,
            epoch: taken.ownership.epoch(),
            missing_segments: missing,
        })
    }

    /// Replays the journal of an ended tenure into a clone and then removes it. `None` if there is nothing to salvage.
    /// Can be stopped and run again at any point.
    ///
    /// # Errors
    /// If the journal, the retained root or the anchor cannot be read or written; the journal is then still there.
    pub async fn salvage(parts: &Parts, config: &VolumeConfig) -> Result<Option<SalvageReport>, VolumeError> {
        let objects = parts.objects(config).await?;
        Self::salvage_with(parts, config, &objects, AfterSalvage::Retain).await
    }

    /// The same with objects that are open already.
    pub(crate) async fn salvage_with(
        parts: &Parts,
        config: &VolumeConfig,
        objects: &Objects,
        after: AfterSalvage,
    ) -> Result<Option<SalvageReport>, VolumeError> {
        let mut local = LocalState::load(&parts.env).await?;
        let Some(tenure) = local.tenure else {
            return Ok(None);
        };
        let (tuple, _) = parts.anchor.load(parts.volume).await?;
        if tuple.tenure == tenure && tuple.owner.as_ref().is_some_and(|owner| owner.id == local.owner) {
            return Ok(None); // Not fenced: the journal belongs to the head and is replayed there.
        }
        kept_checkpoint::forget(&**parts.env.disk()).await?;
        let mut report = None;
        if let Some(root) =
            base_root(&tuple, tenure).filter(|_| !firn_env::planted!("volume.drop_fenced_journal"))
        {
            report = salvage_onto(parts, (config, objects), &local, tenure, &root).await?;
        }
        // Before the tenure is forgotten here: nobody else knows that this root is not needed any more.
        if let Some(retained) = tuple
            .retained_for(tenure)
            .filter(|_| after == AfterSalvage::Forget)
        {
            let fenced = retained.fenced_epoch;
            parts.anchor.forget_retained(parts.volume, fenced).await?;
        }
        parts.env.fault_point("salvage.before_remove").await;
        local.tenure = None;
        local.save(&**parts.env.disk()).await?;
        remove_journal(&**parts.env.disk(), tenure).await?;
        Ok(report)
    }
}

/// Reads the newest checkpoint from the store, and lists the segments of the run that wrote it: the keys of those that are not
/// there, nor were retired by a cleaner. One LIST for a thousand segments.
async fn look_at_level_two(
    parts: &Parts,
    config: &VolumeConfig,
    root: &Root,
) -> Result<Vec<String>, VolumeError> {
    let objects = parts.objects(config).await?.uncached();
    let pointer = Pointer {
        uid: root.uid,
        location: root.location,
    };
    read_checkpoint(&objects, parts.family(), root.version, pointer).await?;
    let missing = unlisted_up_to(
        &*parts.store,
        &parts.anchor,
        parts.family(),
        root.location.segment,
    )
    .await;
    missing.map_err(|error| {
        VolumeError::Read(ReadError::Unavailable {
            segment: root.location.segment,
            detail: error.to_string(),
        })
    })
}

/// The root on which the journal of `tenure` continues: the one retained when the tenure was ended by a takeover.
fn base_root(tuple: &VolumeTuple, tenure: OwnershipEpoch) -> Option<Root> {
    tuple.retained_for(tenure).map(|retained| retained.root.clone())
}

async fn salvage_onto(
    parts: &Parts,
    with: (&VolumeConfig, &Objects),
    local: &LocalState,
    tenure: OwnershipEpoch,
    root: &Root,
) -> Result<Option<SalvageReport>, VolumeError> {
    let loaded = load_root(with.1, (parts.family(), parts.volume), root).await?;
    let Some(replay) = read_journal(parts, tenure, loaded.payload.covered).await? else {
        return Ok(None);
    };
    let clone = salvage_volume(parts.volume, local.owner, tenure);
    let salvaging = Salvaging {
        root,
        clone,
        name: format!("salvage-{}-{}", tenure.0, &clone.hex().to_string()[..8]),
        owner: local.owner,
    };
    salvaging.run(parts, with, loaded, replay, |_| Left::Here).await
}

/// What the clone has of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// It is in the clone only, and its paths are reported.
    Here,
    /// It is in the clone since others stand on it, and goes on elsewhere.
    Also,
    /// It is not in the clone.
    Out,
}

/// A journal that is replayed into a clone.
pub(crate) struct Salvaging<'a> {
    /// The root that it continues.
    pub root: &'a Root,
    /// The clone: the same for the same journal, so that a salvage that was interrupted finds what it began.
    pub clone: VolumeId,
    /// Its name.
    pub name: String,
    /// Who makes it.
    pub owner: OwnerId,
}

impl Salvaging<'_> {
    /// Replays the records onto `loaded`, which is the root, and commits it as the clone, unless that was done before. `None`: there is no record. At most
    /// [`PACK_BYTES`] of records are held in memory.
    pub(crate) async fn run(
        self,
        parts: &Parts,
        (config, objects): (&VolumeConfig, &Objects),
        mut loaded: LoadedRoot,
        mut replay: Replay,
        mut left: impl FnMut(&Operation) -> Left,
    ) -> Result<Option<SalvageReport>, VolumeError> {
        let Self {
            root,
            clone: volume,
            name,
            owner,
        } = self;
        let clone = Parts {
            volume,
            ..parts.clone()
        };
        let block_bytes = loaded.payload.block_bytes;
        let birth = first_version(root.version);
        let mut packer: Option<Packer> = None;
        let mut recovery = RecoveryReport {
            version: root.version.0,
            ..RecoveryReport::default()
        };
        let mut pending_bytes = 0;
        let mut touched = Touched::default();
        while let Some(found) = replay.next().await? {
            let payload_bytes = found.payload.len();
            let (record, data) = Record::decode(found.payload)?;
            match left(&record.operation) {
                Left::Here => touched.note(&record.operation),
                Left::Also => {}
                Left::Out => continue,
            }
            let buffer = matches!(record.operation, Operation::Write { .. })
                .then(|| WriteBuffer::new(data.clone(), payload_bytes - data.len(), found.record.clone()));
            while let Err(missing) = loaded.state.apply(found.sequence, &record, buffer.as_ref()) {
                load_for_replay(&mut loaded.state, objects, missing).await?;
            }
            recovery.records += 1;
            recovery.data_bytes += data.len() as u64;
            pending_bytes += payload_bytes as u64;
            if pending_bytes >= PACK_BYTES {
                pending_bytes = 0;
                let packer = open_packer(&mut packer, &clone, config, objects, birth).await?;
                pack_dirty(
                    packer,
                    None,
                    &mut loaded.state,
                    &mut loaded.orphan_pointers,
                    block_bytes,
                )
                .await?;
            }
        }
        recovery.torn_tail = replay.torn_tail();
        if recovery.records == 0 {
            return Ok(None);
        }
        let (paths, paths_more) = touched.paths(&mut loaded.state, objects).await;
        is_retained(parts, root).await?;
        parts.env.fault_point("salvage.before_create").await;
        match parts.anchor.create_volume(volume, &name).await {
            Ok(()) | Err(AnchorError::VolumeExists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if parts.anchor.load(volume).await?.0.root.is_none() {
            let ownership = clone.anchor.acquire(volume, owner, &config.owner_name).await?;
            open_packer(&mut packer, &clone, config, objects, birth).await?;
            let packer = packer.expect("just opened");
            let branch = NewBranch {
                version: first_version(root.version),
                previous: Some(root.uid),
                fork: Some(ForkPoint {
                    volume: parts.volume,
                    version: root.version,
                    uid: root.uid,
                }),
                block_bytes,
                manifest: Manifest::default(),
            };
            let (state, orphans) = (&mut loaded.state, loaded.orphan_pointers);
            commit_branch(&clone, ownership, packer, state, orphans, branch).await?;
        }
        Ok(Some(SalvageReport {
            volume,
            name,
            recovery,
            paths,
            paths_more,
        }))
    }
}

async fn open_packer<'a>(
    packer: &'a mut Option<Packer>,
    clone: &Parts,
    config: &VolumeConfig,
    objects: &Objects,
    birth: Version,
) -> Result<&'a mut Packer, VolumeError> {
    if packer.is_none() {
        let tenure = WriterTenure::FirstRoot { volume: clone.volume };
        let writer = clone.anchor.next_writer_for(tenure).await?;
        *packer = Some(Packer::new(clone.packer(config, objects, writer), birth));
    }
    Ok(packer.as_mut().expect("just opened"))
}

/// A clone of a root that is retained no more would refer to what cleaners have deleted, or will.
async fn is_retained(parts: &Parts, root: &Root) -> Result<(), VolumeError> {
    let (tuple, _) = parts.anchor.load(parts.volume).await?;
    let mut retained = tuple.retained.iter();
    match retained.any(|retained| retained.root.uid == root.uid)
        || firn_env::planted!("volume.salvages_onto_what_is_gone")
    {
        true => Ok(()),
        false => Err(VolumeError::RetainedNoMore),
    }
}

/// The clone's id follows from what it salvages, so that a salvage that was interrupted finds what it began.
fn salvage_volume(volume: VolumeId, owner: OwnerId, tenure: OwnershipEpoch) -> VolumeId {
    let mut hasher = blake3::Hasher::new_derive_key("firn salvage clone volume id v1");
    hasher
        .update(&volume.0)
        .update(&owner.0)
        .update(&tenure.0.to_le_bytes());
    VolumeId(
        hasher.finalize().as_bytes()[..16]
            .try_into()
            .expect("a hash has 32 bytes"),
    )
}

/// The records of a tenure's journal that `covered` does not cover; `None`: it never had a journal.
async fn read_journal(
    parts: &Parts,
    tenure: OwnershipEpoch,
    covered: Sequence,
) -> Result<Option<Replay>, VolumeError> {
    let directory = journal_directory(tenure);
    match parts.env.disk().list(&directory).await {
        Ok(_) => {}
        // It died between the tenure and the first file of its journal: nothing was acknowledged.
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let replay = Journal::read_only(&parts.env, &parts.keys, parts.volume, &directory, covered);
    Ok(Some(replay.await?))
}

/// Whether the journal of `tenure` has records that the root it continues has not.
pub(crate) async fn has_journal(
    parts: &Parts,
    config: &VolumeConfig,
    tenure: OwnershipEpoch,
) -> Result<bool, VolumeError> {
    let (tuple, _) = parts.anchor.load(parts.volume).await?;
    let Some(root) = base_root(&tuple, tenure) else {
        return Ok(false);
    };
    let objects = parts.objects(config).await?;
    let loaded = load_root(&objects, (parts.family(), parts.volume), &root).await?;
    match read_journal(parts, tenure, loaded.payload.covered).await? {
        Some(mut replay) => Ok(replay.next().await?.is_some()),
        None => Ok(false),
    }
}

/// Removes the journal files of a tenure.
pub(crate) async fn remove_journal(disk: &dyn Disk, tenure: OwnershipEpoch) -> Result<(), DiskError> {
    let directory = journal_directory(tenure);
    let names = match disk.list(&directory).await {
        Ok(names) => names,
        Err(DiskError::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    for name in names {
        disk.remove(&format!("{directory}/{name}")).await?;
    }
    disk.sync_directory(&directory).await
}

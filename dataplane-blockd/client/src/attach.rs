//! Attaching a disk: raise the fence in the table, fence the nodes, recover, run.
//!
//! ```text
//! table: fence f, attached ──▶ nodes: fence f ──▶ dirty-region log or log ──▶ copies made equal ──▶ a VirtualDisk
//!        ▲                            │ a node cannot be reached for too long
//!        └──── given back, unclean ◀──┘ and tried again under fence f + 1
//! ```
//!
//! An attempt that failed is never repeated under its own fence: what it sealed under that fence may be on some nodes, and a
//! nonce must not seal two contents.

use crate::{
    access::Access,
    layout::{Layout, LayoutError},
    replicas::{Attachment, ClusterReplicas, ReplicaOptions},
    settings::{DiskSettings, Mode, SettingsError, Shape, key_check},
};
use firn_blockd_disk::journal::{Journal, JournalError, JournalOptions, Journaled};
use firn_blockd_disk::{
    AttachError, DiskEngine, FlushPolicy, GrowError, Incarnation, LogConfig, Regions, ReplicaError,
    StripedConfig, VirtualDisk, WritePolicy, log, striped,
};
use firn_blockd_nbd::DeviceError;
use firn_blockd_placement::{DiskRecord, DiskTable, PlacementError};
use firn_blockd_protocol::{DiskId, Fence, Replication};
use firn_env::{Backoff, Env, Retry};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;
use tracing::{info, warn};
use zeroize::Zeroizing;

/// Between two attempts to attach.
const BACKOFF: Backoff = Backoff::constant(Duration::from_millis(500));
/// Entries of a log between two checkpoints, at least: below that a small log would do little else.
const CHECKPOINT_ENTRIES_MIN: u64 = 1024;

/// How a disk is to be attached.
#[derive(Clone)]
pub struct Attachable {
    /// Which.
    pub disk: DiskId,
    /// Its key.
    pub key: Zeroizing<[u8; 32]>,
    /// The mode; nothing: the disk's own.
    pub mode: Option<Mode>,
    /// When flushes are answered.
    pub flush: FlushPolicy,
    /// Bytes answered and not durable before writers are held back.
    pub dirty_bytes_max: u64,
    /// How finely the disk remembers where replicas may differ.
    pub regions: Regions,
    /// Take it from whoever has it.
    pub force: bool,
    /// This is the restore of that snapshot: into a disk that waits for it, which others are refused until it is done, or into one
    /// that nobody ever attached, which waits for it from then on.
    pub restoring: Option<String>,
    /// For people: which machine and process.
    pub holder: String,
    /// How many attempts.
    pub attempts: u32,
    /// How its replicas are used.
    pub replicas: ReplicaOptions,
    /// Where changes are kept while nodes are away; nothing: nowhere.
    pub journal: Option<JournalOptions>,
}

impl Attachable {
    /// With what is right for most.
    pub fn new(disk: DiskId, key: [u8; 32], holder: &str) -> Self {
        Self {
            disk,
            key: Zeroizing::new(key),
            mode: None,
            flush: FlushPolicy::Durable,
            dirty_bytes_max: 64 << 20,
            regions: Regions::default(),
            force: false,
            restoring: None,
            holder: holder.to_owned(),
            attempts: 5,
            replicas: ReplicaOptions::default(),
            journal: None,
        }
    }
}

/// Why a disk was not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachFailed {
    /// The table, or somebody else has it.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// The disk is not one for this client.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The disk has a layout that cannot be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The wrong key: nothing was read or written.
    #[error("this is not the disk's key; nothing was read or written")]
    WrongKey,
    /// A restore has not come to its end.
    #[error("snapshot {snapshot} was not written to this disk to its end; restore it again")]
    Unfinished {
        /// The snapshot.
        snapshot: String,
    },
    /// A restore into a disk that holds something.
    #[error("the disk was used before; a snapshot is restored into a new one")]
    NotNew,
    /// A mode of the other shape.
    #[error("mode {mode} does not fit this disk; it was created for {own}")]
    WrongMode {
        /// What was asked.
        mode: Mode,
        /// What it was created for.
        own: Mode,
    },
    /// Every answer of this mode waits for nodes anyway.
    #[error("mode write-through answers only what is durable: a journal has nothing to keep")]
    NothingToJournal,
    /// The journal on this machine.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What the journal of the attach before has cannot be compared with the disk; it stays.
    #[error("the local journal cannot be gone on with: {0}")]
    Resume(DeviceError),
    /// Nodes.
    #[error("the disk could not be recovered: {0}")]
    Recovery(#[from] AttachError),
    /// The table says another size than the log, and the log did not grow.
    #[error(transparent)]
    Grow(#[from] GrowError),
}

/// What the newest look at the table said that whoever serves the disk has to act upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Somebody wants the disk given back.
    pub asked_to_end: bool,
    /// The disk's record: it may have been made larger.
    pub record: DiskRecord,
    /// The hard cap of the tenant's budget is reached: new writes are to be refused.
    pub capped: bool,
}

/// A disk at work.
pub struct AttachedDisk {
    /// For its users: the disk with its journal, if it has one.
    pub device: Journaled,
    /// The disk itself.
    pub disk: VirtualDisk,
    /// Where the journal of an earlier attach was put that lost the disk to another.
    pub salvaged: Option<String>,
    /// Its replicas, for figures.
    pub replicas: Arc<ClusterReplicas>,
    /// The attach.
    pub fence: Fence,
    /// The mode.
    pub mode: Mode,
    /// Regions in which replicas were made equal.
    pub reconciled_regions: u64,
    pub(crate) env: Env,
    pub(crate) table: Arc<dyn DiskTable>,
    pub(crate) record: DiskRecord,
    pub(crate) news: watch::Sender<News>,
    settings: DiskSettings,
}

/// Attaches a disk. Returns when all that was promised before is on all replicas.
///
/// # Errors
/// [`AttachFailed`]; the attach was given back, unless the table could not be reached.
pub async fn attach(
    env: &Env,
    table: &(impl DiskTable + Clone),
    access: &Access,
    wanted: Attachable,
) -> Result<AttachedDisk, AttachFailed> {
    let table: Arc<dyn DiskTable> = Arc::new(table.clone());
    let record = table.disk(wanted.disk).await?;
    let settings = DiskSettings::parse(&record.settings)?;
    let mode = wanted.mode.unwrap_or(settings.mode);
    if !settings.shape.allows(mode) {
        return Err(AttachFailed::WrongMode {
            mode,
            own: settings.mode,
        });
    }
    if settings
        .key_check
        .as_ref()
        .is_some_and(|check| *check != key_check(&wanted.key))
    {
        return Err(AttachFailed::WrongKey);
    }
    if mode == Mode::WriteThrough && wanted.journal.is_some() {
        return Err(AttachFailed::NothingToJournal);
    }
    check_restoring(&settings, &wanted)?;
    // Whoever has a disk that waits for this restore began it, and is gone.
    let mut force = wanted.force || (wanted.restoring.is_some() && settings.restoring == wanted.restoring);
    let mut attempts = Retry::new(BACKOFF, wanted.attempts).begin(env);
    loop {
        let attachment = table.attach_disk(wanted.disk, &wanted.holder, force).await?;
        // From the second attempt on only an attach that we gave back is taken.
        force = false;
        let fence = attachment.fence;
        let recovered = begin(env, &table, access, &wanted, attachment.disk, mode).await;
        let error = match recovered {
            Ok(attached) => {
                attached.news.send_modify(|news| news.capped = attachment.capped);
                info!(
                    disk = %wanted.disk, fence = fence.0, %mode, clean = attachment.clean,
                    reconciled_regions = attached.reconciled_regions, "disk attached"
                );
                return Ok(attached);
            }
            Err(error) => error,
        };
        if let Err(error) = table.detach_disk(wanted.disk, fence, false).await {
            warn!(%error, "the attach cannot be given back: attach with force next time");
        }
        let again = matches!(
            &error,
            AttachFailed::Recovery(AttachError::Replica(ReplicaError::Unreachable { .. }))
        );
        if !again {
            return Err(error);
        }
        warn!(%error, attempt = attempts.failures() + 1, "the attach did not come through");
        attempts.again(error).await?;
    }
}

/// That a disk which waits for a restore gets that one, and no other disk gets any.
fn check_restoring(settings: &DiskSettings, wanted: &Attachable) -> Result<(), AttachFailed> {
    match (&settings.restoring, &wanted.restoring) {
        (Some(snapshot), wanted) if wanted.as_ref() != Some(snapshot) => Err(AttachFailed::Unfinished {
            snapshot: snapshot.clone(),
        }),
        (None, Some(_)) if settings.key_check.is_some() => Err(AttachFailed::NotNew),
        (Some(_), _) | (None, _) => Ok(()),
    }
}

/// Of a disk that was created without its key this attach decides which that is; then it recovers the disk.
async fn begin(
    env: &Env,
    table: &Arc<dyn DiskTable>,
    access: &Access,
    wanted: &Attachable,
    record: DiskRecord,
    mode: Mode,
) -> Result<AttachedDisk, AttachFailed> {
    // As it stands under this fence: another attach may have decided since the disk was looked at.
    let settings = DiskSettings::parse(&record.settings)?;
    check_restoring(&settings, wanted)?;
    let own = key_check(&wanted.key);
    let (record, settings) = match &settings.key_check {
        Some(check) if *check == own => (record, settings),
        Some(_) => return Err(AttachFailed::WrongKey),
        None => {
            // One change: a restore that ends here goes on later, and nobody takes its disk for an empty one.
            let settings = settings
                .with_key_check(own)
                .with_restoring(wanted.restoring.clone());
            let text = settings.to_text();
            let record = table.change_settings(record.disk, record.fence(), &text).await?;
            (record, settings)
        }
    };
    recover(env, table, access, wanted, record, &settings, mode).await
}

async fn recover(
    env: &Env,
    table: &Arc<dyn DiskTable>,
    access: &Access,
    wanted: &Attachable,
    record: DiskRecord,
    settings: &DiskSettings,
    mode: Mode,
) -> Result<AttachedDisk, AttachFailed> {
    // Before anything is read: from here on this attach is the one that the journal's last one was followed by.
    let journal = match &wanted.journal {
        Some(options) => {
            let (disk, fence) = (record.disk.0, record.fence.into());
            Some(Journal::claim(options.clone(), disk, &wanted.key, fence).await?)
        }
        None => None,
    };
    let salvaged = journal.as_ref().and_then(|journal| journal.salvaged.clone());
    let attachment = Attachment {
        tenant: record.tenant,
        disk: record.disk,
        fence: record.fence(),
        replication: record.replication()?,
        tracts: record.tracts,
    };
    let layout = Layout::new(settings.shape)?;
    let options = wanted.replicas.clone();
    let replicas = ClusterReplicas::new(
        env,
        table,
        access.clone(),
        attachment,
        layout,
        *wanted.key,
        options,
    )
    .await?;
    let replicas = Arc::new(replicas);
    let incarnation = Incarnation::new(record.fence, u32::from_le_bytes(env.random_bytes()));
    let blocks = record.size_bytes / u64::from(settings.shape.block_bytes());
    let (flush, dirty_bytes_max) = (wanted.flush, wanted.dirty_bytes_max);
    let (engine, reconciled_regions): (Box<dyn DiskEngine>, u64) = match settings.shape {
        Shape::InPlace { .. } => {
            let config = StripedConfig {
                blocks,
                write: match mode {
                    Mode::WriteThrough => WritePolicy::Durable,
                    Mode::WriteBack | Mode::FlushEpoch | Mode::Log => WritePolicy::Memory,
                },
                flush,
                dirty_bytes_max,
                regions: wanted.regions,
            };
            let attached = striped::attach(&*replicas, incarnation, config).await?;
            let reconciled = attached.reconciled_regions;
            (Box::new(attached.engine), reconciled)
        }
        Shape::Log { physical_blocks, .. } => {
            let config = LogConfig {
                flush,
                dirty_bytes_max,
                checkpoint_entries: (physical_blocks / 16).max(CHECKPOINT_ENTRIES_MIN),
            };
            let recovered = log::recover(&*replicas, incarnation, config).await;
            let engine = match recovered {
                Err(AttachError::NoCheckpoint) if is_blank(&replicas).await? => {
                    let tract_blocks = layout.blocks_in_tract();
                    log::format(&*replicas, incarnation, blocks, physical_blocks, tract_blocks).await?;
                    log::recover(&*replicas, incarnation, config).await?
                }
                other => other?,
            };
            (Box::new(engine), 0)
        }
    };
    let disk = VirtualDisk::new(
        env.clone(),
        replicas.clone(),
        engine,
        settings.shape.block_bytes(),
    );
    let device = Journaled::new(env, disk.clone(), flush, journal)
        .await
        .map_err(AttachFailed::Resume)?;
    let news = News {
        asked_to_end: false,
        record: record.clone(),
        capped: false,
    };
    let attached = AttachedDisk {
        device,
        disk,
        salvaged,
        replicas,
        fence: record.fence(),
        mode,
        reconciled_regions,
        env: env.clone(),
        table: table.clone(),
        record,
        news: watch::Sender::new(news),
        settings: settings.clone(),
    };
    // A log learns of a growth that its last attach did not live to make durable.
    attached.grow_to(&attached.record).await?;
    Ok(attached)
}

/// Whether nothing was ever written to a log: then there is nothing that formatting it could lose.
async fn is_blank(replicas: &ClusterReplicas) -> Result<bool, AttachFailed> {
    replicas
        .is_blank()
        .await
        .map_err(|error| AttachFailed::Recovery(error.into()))
}

impl AttachedDisk {
    /// The disk as the table has it.
    pub fn record(&self) -> &DiskRecord {
        &self.record
    }

    /// Its client's settings.
    pub fn settings(&self) -> &DiskSettings {
        &self.settings
    }

    /// Makes the disk larger, for its users too when this returns.
    ///
    /// # Errors
    /// [`AttachFailed`]. If the table already has the new size, the next attach brings it.
    pub async fn grow(&mut self, size_bytes: u64) -> Result<(), AttachFailed> {
        let tracts = tracts_for(&self.settings, size_bytes)?;
        self.record = self
            .table
            .grow_disk(self.record.disk, size_bytes, Some(tracts))
            .await?;
        self.grow_to(&self.record).await
    }

    /// Takes up that the disk was made larger in the table, by whom else; says whether it was. For its users it is larger when this
    /// returns.
    ///
    /// # Errors
    /// [`AttachFailed`]; it may be tried again, and the next attach brings it.
    pub async fn take_up(&mut self, record: &DiskRecord) -> Result<bool, AttachFailed> {
        if record.size_bytes <= self.record.size_bytes {
            return Ok(false);
        }
        self.grow_to(record).await?;
        self.record = record.clone();
        Ok(true)
    }

    async fn grow_to(&self, record: &DiskRecord) -> Result<(), AttachFailed> {
        self.replicas.set_tracts(record.tracts);
        let blocks = record.size_bytes / u64::from(self.settings.shape.block_bytes());
        let physical = Shape::physical_for(blocks);
        match self.disk.grow(blocks, physical).await {
            Ok(()) | Err(GrowError::NotLarger { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// A restore has come to its end, and what it wrote is durable: from now on the disk is like any other.
    ///
    /// # Errors
    /// If the disk was taken over, or the table cannot be reached.
    pub async fn finish_restore(&mut self) -> Result<(), PlacementError> {
        let settings = self.settings.clone().with_restoring(None);
        self.record = self
            .table
            .change_settings(self.record.disk, self.fence, &settings.to_text())
            .await?;
        self.settings = settings;
        Ok(())
    }
}

/// Tracts that a disk of this size needs.
///
/// # Errors
/// If it is larger than a disk can be.
pub fn tracts_for(settings: &DiskSettings, size_bytes: u64) -> Result<u32, AttachFailed> {
    let blocks = size_bytes.div_ceil(settings.shape.block_bytes().into());
    let stored = match settings.shape {
        Shape::InPlace { .. } => blocks,
        Shape::Log { physical_blocks, .. } => Shape::physical_for(blocks).max(physical_blocks),
    };
    let tracts = Layout::new(settings.shape)?.tracts(stored);
    u32::try_from(tracts).map_err(|_| {
        SettingsError::Impossible(format!("{size_bytes} bytes are more than a disk can have")).into()
    })
}

/// The copies of a disk, from a number a person gave.
///
/// # Errors
/// If it is not 1 to 3.
pub fn replication(copies: u8) -> Result<Replication, SettingsError> {
    Replication::new(copies)
        .ok_or_else(|| SettingsError::Impossible(format!("a disk has 1 to 3 copies, not {copies}")))
}

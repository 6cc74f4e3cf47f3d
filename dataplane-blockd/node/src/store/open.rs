//! Formatting a store, and recovering one.
//!
//! ```text
//! state file → index regions (newest whole copy of each) → journal files from the first needed on → slots taken
//!            → everything synced → a checkpoint → a new journal file
//! ```
//!
//! Recovery ends with a checkpoint, so that the store never goes on in a file that it found, and so that what a process left
//! in the kernel's memory when it was killed is durable before anybody is told of it.

use super::{
    OpenError, Shared, Store, StoreCounts, StoreOptions,
    checkpoint::{self, Contents},
    commit,
    fields::Unfit,
    index,
    journal::{Journal, JournalDamage},
    layout::{self, Frame, Geometry},
    room::Room,
    state::State,
};
use bytes::Bytes;
use firn_blockd_protocol::NodeId;
use firn_env::{DiskError, DiskFile, Env, OpenMode, Watched};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};
use tokio::sync::Notify;

impl Store {
    /// Makes an empty store in the environment's directory, with all its room reserved, and returns the identity that it
    /// drew. The superblock comes last: before it there is no store.
    ///
    /// # Errors
    /// [`OpenError`]; an unfinished attempt is taken up by the next.
    pub async fn format(env: &Env, geometry: Geometry) -> Result<NodeId, OpenError> {
        let node = NodeId(env.random_bytes());
        Self::format_as(env, geometry, node).await?;
        Ok(node)
    }

    /// The same with an identity that somebody else drew, such as the control plane that invited this node.
    ///
    /// # Errors
    /// As [`Store::format`].
    pub async fn format_as(env: &Env, geometry: Geometry, node: NodeId) -> Result<(), OpenError> {
        if !geometry.is_sound() {
            return Err(OpenError::Geometry);
        }
        let disk = env.disk();
        match read_superblock(env).await {
            Err(OpenError::Empty) => {}
            Ok((node, _)) => return Err(OpenError::Exists(node)),
            // Whatever it is, it is somebody's: a newer build's, or a damaged one that others may still be repaired from.
            Err(error) => return Err(error),
        }
        for directory in ["data", "index", "journal"] {
            disk.create_directory(directory).await?;
        }
        for group in 0..geometry.groups {
            reserve(env, &layout::data_path(group), geometry.data_file_bytes()).await?;
            let index_bytes = u64::from(geometry.home_frames) * 2 * layout::REGION_STRIDE;
            reserve(env, &layout::index_path(group), index_bytes).await?;
        }
        for slot in 0..2 {
            reserve(env, &layout::journal_path(slot), geometry.journal_bytes).await?;
        }
        for directory in ["data", "index", "journal"] {
            disk.sync_directory(directory).await?;
        }
        Contents {
            first_needed: 1,
            disks: Default::default(),
            region_versions: vec![0; (geometry.groups * geometry.home_frames) as usize],
        }
        .write(env)
        .await?;
        match disk.remove("superblock.new").await {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let file = disk.open("superblock.new", OpenMode::CreateNew).await?;
        let bytes = Bytes::from(layout::encode_superblock(node, &geometry));
        file.write_and_sync(0, vec![bytes]).await?;
        disk.rename("superblock.new", layout::SUPERBLOCK).await?;
        disk.sync_directory("").await.map_err(OpenError::from)
    }

    /// Opens the store in the environment's directory and recovers what a crash left.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was changed.
    pub async fn open(env: &Env, options: StoreOptions) -> Result<Self, OpenError> {
        let lock = env.disk().lock("lock").await?;
        let (node, geometry) = read_superblock(env).await?;
        let mut data = Vec::new();
        let mut index = Vec::new();
        for group in 0..geometry.groups {
            data.push(
                env.disk()
                    .open(&layout::data_path(group), OpenMode::ReadWrite)
                    .await?,
            );
            index.push(
                env.disk()
                    .open(&layout::index_path(group), OpenMode::ReadWrite)
                    .await?,
            );
        }
        let damaged = |what, reason: String| OpenError::Damaged { what, reason };
        let contents = Contents::read(env)
            .await?
            .map_err(|unfit| unusable("the state file", unfit))?;
        let mut state = State::empty(geometry);
        if contents.region_versions.len() != state.region_versions.len() {
            return Err(damaged("the state file", "it is of another store".into()));
        }
        state.disks = contents.disks;
        read_regions(&mut state, &geometry, &contents.region_versions, &index).await?;
        let found = Journal::read(env, geometry.journal_bytes, contents.first_needed)
            .await
            .map_err(|damage| match damage {
                JournalDamage::Disk(error) => OpenError::Disk(error),
                JournalDamage::Rotten(reason) => damaged("the journal", reason),
                JournalDamage::Newer(what) => OpenError::Newer {
                    what,
                    found: "a kind of record that is new".into(),
                },
            })?;
        let mut newest = contents.first_needed;
        for (expected, file) in (contents.first_needed..).zip(&found) {
            if file.number != expected {
                return Err(damaged("the journal", format!("file {expected} is missing")));
            }
            newest = file.number;
            for record in &file.records {
                state.apply(record, true);
            }
        }
        if !state.take_slots() {
            return Err(damaged("the index", "two blocks lie in one slot".into()));
        }
        let frames: BTreeSet<Frame> = std::mem::take(&mut state.dirty_frames);
        let shared = Arc::new(Shared {
            env: env.clone(),
            node,
            geometry,
            options,
            state: Mutex::new(state),
            data,
            index,
            short_of_slots: (0..geometry.groups).map(|_| Default::default()).collect(),
            wanted: Notify::new(),
            durable: Watched::new(0),
            counts: StoreCounts::default(),
            room: Room::new(),
        });
        for file in &shared.data {
            file.sync_data().await?;
        }
        for slot in 0..2 {
            let file = env
                .disk()
                .open(&layout::journal_path(slot), OpenMode::ReadWrite)
                .await?;
            file.sync_data().await?;
        }
        env.fault_point("open.before_checkpoint").await;
        checkpoint::run(shared.clone(), frames, newest + 1).await;
        let journal = Journal::begin(env, geometry.journal_bytes, newest + 1).await?;
        let committer = Arc::new_cyclic(|committer: &std::sync::Weak<super::Committer>| {
            let (weak_shared, committer) = (Arc::downgrade(&shared), committer.clone());
            let store = move || {
                Some(Store {
                    shared: weak_shared.upgrade()?,
                    _committer: committer.upgrade()?,
                })
            };
            super::Committer {
                task: env.spawn_essential("blockd committer", commit::run(shared.clone(), journal, store)),
                _lock: lock,
            }
        });
        Ok(Self {
            shared,
            _committer: committer,
        })
    }
}

async fn reserve(env: &Env, path: &str, bytes: u64) -> Result<(), DiskError> {
    let file = match env.disk().open(path, OpenMode::CreateNew).await {
        Err(DiskError::AlreadyExists { .. }) => env.disk().open(path, OpenMode::ReadWrite).await?,
        opened => opened?,
    };
    file.allocate(bytes).await?;
    file.sync_data().await
}

async fn read_superblock(env: &Env) -> Result<(NodeId, Geometry), OpenError> {
    let file = match env.disk().open(layout::SUPERBLOCK, OpenMode::Read).await {
        Err(DiskError::NotFound { .. }) => return Err(OpenError::Empty),
        opened => opened?,
    };
    let bytes = file.read_at(0, 4096).await?;
    layout::decode_superblock(&bytes).map_err(|unfit| unusable("the superblock", unfit))
}

fn unusable(what: &'static str, unfit: Unfit) -> OpenError {
    match unfit {
        Unfit::Damaged(reason) => OpenError::Damaged {
            what,
            reason: reason.into(),
        },
        Unfit::Newer { found } => OpenError::Newer {
            what: what.into(),
            found: format!("layout {found}"),
        },
    }
}

async fn read_regions(
    state: &mut State,
    geometry: &Geometry,
    versions: &[u64],
    files: &[Arc<dyn DiskFile>],
) -> Result<(), OpenError> {
    let stride = usize::try_from(layout::REGION_STRIDE).expect("a small constant");
    let frames = geometry.groups * geometry.home_frames;
    for frame in (0..frames).map(Frame) {
        let file = &files[geometry.group_of(frame) as usize];
        let mut newest: Option<index::Region> = None;
        for copy in 0..2 {
            let bytes = file.read_at(index::offset(geometry, frame, copy), stride).await?;
            if let Some(layout) = index::newer_layout(&bytes) {
                return Err(OpenError::Newer {
                    what: format!("the index of frame {}", frame.0),
                    found: format!("layout {layout}"),
                });
            }
            if let Some(region) = index::decode(frame, &bytes)
                && newest
                    .as_ref()
                    .is_none_or(|newest| newest.version < region.version)
            {
                newest = Some(region);
            }
        }
        let expected = versions[frame.0 as usize];
        let found = newest.as_ref().map_or(0, |region| region.version);
        if found < expected {
            return Err(OpenError::Damaged {
                what: "the index",
                reason: format!("frame {} has version {found}, {expected} was written", frame.0),
            });
        }
        state.region_versions[frame.0 as usize] = found;
        if let Some((place, entries)) = newest.and_then(|region| region.used) {
            state.adopt(frame, place, entries);
        }
    }
    Ok(())
}

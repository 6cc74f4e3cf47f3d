//! Checkpoints: what the full journal file said is written into index regions, so that the file can be used again.
//!
//! ```text
//! state file = magic "FIRNBLKS" | layout version u16 | first journal file needed u64
//!            | disks u32 | (disk [16] | fence u32 | 12 zeroes, where the version before kept what was settled)*
//!            | frames u32 | (region version u64)* | crc32c u32
//! ```
//!
//! The state file is written last, under another name, and renamed over the old one: until then the old one and the journal
//! say the same.

use super::{
    Shared,
    fields::{Unfit, checked},
    index,
    layout::{Frame, LAYOUT_VERSION},
    state::DiskFacts,
};
use bytes::Bytes;
use firn_blockd_protocol::{DiskId, Fence, TractId};
use firn_codec::Writer;
use firn_env::{DiskError, Env, OpenMode};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

const MAGIC: [u8; 8] = *b"FIRNBLKS";
const STATE: &str = "state";
/// After each fence; whatever stands there is not looked at.
const RESERVED_BYTES: usize = 12;
const STATE_NEW: &str = "state.new";

/// Writes the regions of `frames` and then the state file that says which journal file comes next. Where the file system is full it
/// waits for room, each write by itself: a region's second copy must not be written before the first is durable.
///
/// # Panics
/// If the disk fails.
pub(super) async fn run(shared: Arc<Shared>, frames: BTreeSet<Frame>, first_needed: u64) {
    let geometry = shared.geometry;
    shared.env.fault_point("checkpoint.before_regions").await;
    let mut groups = BTreeSet::new();
    let holders: BTreeMap<Frame, TractId> = {
        let state = shared.state();
        let held = state
            .tracts
            .iter()
            .filter(|(_, tract)| frames.contains(&tract.frame));
        held.map(|(id, tract)| (tract.frame, *id)).collect()
    };
    for frame in frames {
        let (region, offset) = {
            let mut state = shared.state();
            let version = state.region_versions[frame.0 as usize] + 1;
            state.region_versions[frame.0 as usize] = version;
            // Durable entries only. A tract that got the frame since then is in the journal from its first record on.
            let used = holders
                .get(&frame)
                .and_then(|id| state.tracts.get(id))
                .filter(|tract| tract.frame == frame)
                .map(|tract| (tract.place, &tract.entries));
            (
                index::encode(frame, version, used),
                index::offset(&geometry, frame, version),
            )
        };
        let group = geometry.group_of(frame);
        let mut step = shared.step("writing the index");
        while let Err(error) = shared.index[group as usize]
            .write_at(offset, vec![region.clone()])
            .await
        {
            step.failed(error).await;
        }
        groups.insert(group);
    }
    shared.env.fault_point("checkpoint.before_region_sync").await;
    for group in groups {
        if let Err(error) = shared.index[group as usize].sync_data().await {
            panic!("the index cannot be synced: {error}; what the disk has is not known any more");
        }
    }
    shared.env.fault_point("checkpoint.before_state").await;
    let contents = {
        let state = shared.state();
        Contents {
            first_needed,
            disks: state.disks.clone(),
            region_versions: state.region_versions.clone(),
        }
    };
    let mut step = shared.step("writing the state file");
    while let Err(error) = contents.write(&shared.env).await {
        step.failed(error).await;
    }
    drop(step);
    shared.env.fault_point("checkpoint.after_state").await;
}

/// What the state file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) first_needed: u64,
    pub(super) disks: BTreeMap<DiskId, DiskFacts>,
    pub(super) region_versions: Vec<u64>,
}

impl Contents {
    pub(super) async fn write(&self, env: &Env) -> Result<(), DiskError> {
        let disk = env.disk();
        match disk.remove(STATE_NEW).await {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let file = disk.open(STATE_NEW, OpenMode::CreateNew).await?;
        file.write_and_sync(0, vec![self.encode()]).await?;
        disk.rename(STATE_NEW, STATE).await?;
        // Nobody knows what a second try would say of.
        disk.sync_directory("").await.map_err(DiskError::into_io)
    }

    /// The state file; why, if it cannot be used.
    pub(super) async fn read(env: &Env) -> Result<Result<Self, Unfit>, DiskError> {
        let file = env.disk().open(STATE, OpenMode::Read).await?;
        let length = file.length().await?;
        let bytes = file
            .read_at(0, usize::try_from(length).unwrap_or(usize::MAX))
            .await?;
        Ok(Self::decode(&bytes))
    }

    pub(super) fn encode(&self) -> Bytes {
        let mut fields = Writer::default();
        fields.raw(&MAGIC);
        fields.u16(LAYOUT_VERSION);
        fields.u64(self.first_needed);
        fields.u32(u32::try_from(self.disks.len()).expect("a node has fewer tracts"));
        for (disk, facts) in &self.disks {
            fields.raw(&disk.0);
            fields.u32(facts.fence.0);
            fields.raw(&[0; RESERVED_BYTES]);
        }
        fields.u32(u32::try_from(self.region_versions.len()).expect("a node has fewer frames"));
        for version in &self.region_versions {
            fields.u64(*version);
        }
        fields.u32(crc32c::crc32c(fields.as_slice()));
        fields.finish().into()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Unfit> {
        let mut fields = checked(bytes, MAGIC, "it is not a node's")?;
        let first_needed = fields.u64()?;
        let count = fields.u32()?;
        let mut disks = BTreeMap::new();
        for _ in 0..count {
            let disk = DiskId(fields.array()?);
            let fence = Fence(fields.u32()?);
            fields.skip(RESERVED_BYTES)?;
            disks.insert(disk, DiskFacts { fence });
        }
        let count = fields.u32()? as usize;
        if fields.remaining() != count * 8 {
            return Err(Unfit::Damaged("its length is wrong"));
        }
        let region_versions = (0..count).map(|_| fields.u64()).collect::<Result<_, _>>()?;
        Ok(Self {
            first_needed,
            disks,
            region_versions,
        })
    }
}

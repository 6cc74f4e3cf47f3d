//! Two stores with segments in them, and the mirror of the one in the other as it ships, in virtual time, with every request counted.

use crate::{asked::Asked, world::FAMILY};
use anyhow::{Context, Result};
use async_trait::async_trait;
use bytes::Bytes;
use firn_anchor::Anchor;
use firn_env::{
    Env,
    sim::{Limits, Simulation},
};
use firn_format::{
    Codec, Features, KeyEpoch, Kind, ObjectHeader, Place, SealHeader, SegmentBuilder, SegmentId, Version,
    WriterId, encode_object,
};
use firn_mirror::{Copies, Grouping, LocalCopies, Mirror, MirrorOptions, NoLocalCopies, Parity};
use firn_store::{MemoryStore, Meter, Metered, ObjectKey, PutMode, Store};
use firn_table::{MemoryTable, Metered as MeteredTable, TablePrices};
use std::{sync::Arc, time::Duration};

/// How old a segment is when it is cold, by default.
pub const COLD: Duration = Duration::from_secs(30 * 86_400);
/// An object of a segment.
const OBJECT_BYTES: usize = 32 << 10;

const LIMITS: Limits = Limits {
    steps: 2_000_000_000,
    time: Duration::from_secs(10_000 * 86_400),
};

/// Both stores.
pub struct Stores {
    /// The clock.
    pub env: Env,
    /// The first.
    pub first: Arc<dyn Store>,
    /// The second.
    pub second: Arc<dyn Store>,
    /// The mirror, with parity groups if they are wanted.
    pub mirror: Mirror,
    meters: [Meter; 2],
    table: Arc<MeteredTable>,
}

/// Runs something in a simulation of its own. `copies`: whether there are parity groups, and what becomes of their members' copies.
///
/// # Errors
/// What it ends with, and the simulation's.
pub fn simulate<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
    copies: Option<Copies>,
    scenario: impl FnOnce(Stores) -> F + Send + 'static,
) -> Result<T> {
    let simulation = Simulation::with_limits(6, LIMITS);
    let env = simulation.env();
    let work = async move {
        let stores = Stores::new(&env, copies).await?;
        scenario(stores).await
    };
    simulation.run(work).context("the simulation")?
}

impl Stores {
    async fn new(env: &Env, copies: Option<Copies>) -> Result<Self> {
        let metered = || Metered::new(Arc::new(MemoryStore::new(env)));
        let (first, second) = (metered(), metered());
        let meters = [first.meter(), second.meter()];
        let (first, second): (Arc<dyn Store>, Arc<dyn Store>) = (Arc::new(first), Arc::new(second));
        let table = MemoryTable::new().connect(env);
        let table = Arc::new(MeteredTable::new(table, TablePrices::DYNAMODB_ON_DEMAND));
        let anchor = Anchor::new(table.clone(), env.clone(), FAMILY);
        anchor.create_family().await?;
        let options = MirrorOptions {
            keep_deleted: COLD,
            compare_every: Duration::from_secs(86_400),
        };
        let stores = (first.clone(), second.clone());
        let mut mirror = Mirror::new(env, stores.clone(), anchor, Arc::default(), options);
        if let Some(copies) = copies {
            let parity = Parity::new(env, stores, FAMILY);
            let grouping = Grouping {
                after: COLD,
                copies: Some(copies),
            };
            mirror = mirror.with_parity(parity, Some(grouping));
        }
        Ok(Self {
            env: env.clone(),
            first,
            second,
            mirror,
            meters,
            table,
        })
    }

    /// What was asked so far.
    pub fn asked(&self) -> Asked {
        Asked {
            first: self.meters[0].usage(),
            second: self.meters[1].usage(),
            table: self.table.usage(),
        }
    }

    /// Puts a segment of about so many bytes into the first store.
    ///
    /// # Errors
    /// The store's.
    pub async fn put(&self, sequence: u64, bytes: u64) -> Result<()> {
        self.first
            .put(&name(sequence), segment(sequence, bytes), PutMode::Create)
            .await?;
        Ok(())
    }

    /// What both stores differ in is copied.
    ///
    /// # Errors
    /// The mirror's.
    pub async fn compare(&self) -> Result<()> {
        self.mirror.compare(&NoLocalCopies).await?;
        Ok(())
    }
}

/// An edge that has on its disk whatever it put.
pub struct OnDisk {
    /// Bytes of each segment.
    pub bytes: u64,
}

#[async_trait]
impl LocalCopies for OnDisk {
    async fn segment(&self, id: SegmentId, _: u64) -> Option<Bytes> {
        Some(segment(id.sequence, self.bytes).concat().into())
    }
}

/// The name of a segment.
pub fn name(sequence: u64) -> ObjectKey {
    ObjectKey::new(&id(sequence).key(&FAMILY))
}

fn id(sequence: u64) -> SegmentId {
    SegmentId {
        writer: WriterId(1),
        sequence,
    }
}

/// A segment that is closed once it has so many bytes, as the engine closes them: a full one is a little longer.
fn segment(sequence: u64, bytes: u64) -> Vec<Bytes> {
    let header = |index| ObjectHeader {
        kind: Kind::Block,
        features: Features::NONE,
        place: Place {
            inode: 9,
            level: 0,
            index,
        },
        birth: Version(1),
        seal: SealHeader {
            key_epoch: KeyEpoch(1),
            salt: [1; 32],
            slot: 0,
            codec: Codec::Raw,
            opened_bytes: 0,
        },
        plain: Bytes::new(),
        children: Vec::new(),
    };
    let mut builder = SegmentBuilder::new(FAMILY, id(sequence));
    let object = vec![sequence as u8; OBJECT_BYTES.min(bytes as usize)];
    let mut index = 0;
    while (builder.bytes_used() as u64) < bytes {
        builder.push(&encode_object(header(index), &object));
        index += 1;
    }
    builder.finish()
}

//! Parts of a volume from outside this crate, and what is made of them for each start.

use crate::{
    checkpoint::{PackerContext, UploadProgress},
    config::VolumeConfig,
    error::VolumeError,
    manifest::FinishedSegments,
    objects::{Objects, ObjectsConfig},
};
use firn_anchor::Anchor;
use firn_env::Env;
use firn_format::{FamilyId, VolumeId, WriterId};
use firn_seal::Keys;
use firn_store::Store;
use std::sync::{Arc, atomic::AtomicU64};

/// What a volume is made of, outside this crate.
#[derive(Clone)]
pub struct Parts {
    /// Clock, randomness, tasks, and the state directory as disk.
    pub env: Env,
    /// The bucket.
    pub store: Arc<dyn Store>,
    /// Its mirror, which answers for what the bucket has lost.
    pub second: Option<Arc<dyn Store>>,
    /// The anchor of the family.
    pub anchor: Anchor,
    /// The opened key ring.
    pub keys: Keys,
    /// Which volume of the family.
    pub volume: VolumeId,
}

impl Parts {
    pub(crate) fn family(&self) -> FamilyId {
        self.anchor.family()
    }

    pub(crate) async fn objects(&self, config: &VolumeConfig) -> Result<Objects, VolumeError> {
        self.objects_of(config, false).await
    }

    /// The same for a volume that is served while the cloud is away.
    pub(crate) async fn detached_objects(&self, config: &VolumeConfig) -> Result<Objects, VolumeError> {
        self.objects_of(config, true).await
    }

    async fn objects_of(&self, config: &VolumeConfig, absent_is_away: bool) -> Result<Objects, VolumeError> {
        let objects = ObjectsConfig {
            absent_is_away,
            memory_cache_bytes: config.memory_cache_bytes,
            disk_cache_bytes: config.disk_cache_bytes,
            // The file that the journal makes next, and the one after it.
            disk_headroom_bytes: 2 * config.journal_file_bytes,
            fetch: config.fetch,
            prices: config.fetch_prices,
            second: self.second.clone(),
        };
        let (env, store) = (&self.env, self.store.clone());
        Ok(Objects::open(env, store, self.family(), self.keys.clone(), "cache", objects).await?)
    }

    pub(crate) fn packer(&self, config: &VolumeConfig, objects: &Objects, writer: WriterId) -> PackerContext {
        PackerContext {
            env: self.env.clone(),
            store: self.store.clone(),
            anchor: self.anchor.clone(),
            objects: objects.clone(),
            keys: self.keys.clone(),
            family: self.family(),
            writer,
            next_segment: Arc::new(AtomicU64::new(0)),
            segment_bytes: config.segment_bytes,
            uploads_max: config.uploads_max,
            compression: config.compression,
            compressibility: Arc::default(),
            progress: Arc::new(UploadProgress::default()),
            finished: FinishedSegments::default(),
        }
    }
}

/// The number by which protocols know a volume: stable, and different for different volumes.
pub fn file_system_id(volume: VolumeId) -> u64 {
    u64::from_le_bytes(volume.0[..8].try_into().expect("sixteen bytes"))
}

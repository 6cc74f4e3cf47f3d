//! A volume in this process, on the real environment or in simulated time, with every request counted.

use anyhow::{Context, Result};
use firn_anchor::Anchor;
use firn_env::Env;
use firn_format::{FamilyId, KeyEpoch, VolumeId};
use firn_seal::{EpochKey, Keys};
use firn_store::{Meter, Store, Usage};
use firn_table::{MemoryTable, Metered as MeteredTable, TablePrices, TableUsage};
use firn_vfs::{Caller, Credentials};
use firn_volume::{FormatOptions, Parts, Volume, VolumeConfig};
use std::{collections::BTreeMap, sync::Arc};

const FAMILY: FamilyId = FamilyId([1; 16]);
const VOLUME: VolumeId = VolumeId([2; 16]);

/// What outlives a volume's process: bucket and table.
#[derive(Clone)]
pub struct World {
    store: Arc<dyn Store>,
    meter: Meter,
    table: Arc<MeteredTable>,
    config: VolumeConfig,
}

/// What was asked of bucket and table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    pub store: Usage,
    pub table: TableUsage,
}

impl World {
    /// `store` is what the volume is given; `meter` counts below it.
    pub fn new(env: &Env, store: Arc<dyn Store>, meter: Meter, config: VolumeConfig) -> Self {
        let table = MemoryTable::new().connect(env);
        Self {
            store,
            meter,
            table: Arc::new(MeteredTable::new(table, TablePrices::DYNAMODB_ON_DEMAND)),
            config,
        }
    }

    pub fn asked(&self) -> Asked {
        Asked {
            store: self.meter.usage(),
            table: self.table.usage(),
        }
    }

    fn parts(&self, env: &Env) -> Parts {
        let keys = BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([3; 32]))]);
        Parts {
            env: env.clone(),
            store: self.store.clone(),
            second: None,
            anchor: Anchor::new(self.table.clone(), env.clone(), FAMILY),
            keys: Keys::new(FAMILY, keys),
            volume: VOLUME,
        }
    }

    pub async fn format(&self, env: &Env) -> Result<()> {
        let parts = self.parts(env);
        parts.anchor.create_family().await.context("a new family")?;
        Volume::format(&parts, "bounds", FormatOptions::default(), &self.config)
            .await
            .context("formatting")
    }

    pub async fn open(&self, env: &Env) -> Result<Volume> {
        let opened = Volume::open(self.parts(env), self.config.clone()).await;
        Ok(opened.context("opening the volume")?.0)
    }
}

/// The superuser.
pub fn root() -> Caller {
    Caller::new(Credentials::root())
}

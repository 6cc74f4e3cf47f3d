//! From the configuration to what a volume is made of.

use crate::{
    cloud_session::{CredentialsFrom, ServiceSessions},
    config::Config,
    failure::Failure,
    identity::Identity,
    roots::{RootsAt, ServiceRoots},
};
use firn_anchor::Anchor;
use firn_env::Env;
use firn_format::{FamilyId, VolumeId};
use firn_seal::Keys;
#[cfg(feature = "testing")]
use firn_store::Store;
use firn_store::{Stack, StackConfig};
use firn_store_cloud::Credentials;
use firn_table::{Metered, RemoteTable, Table, TablePrices};
use firn_volume::Parts;
use std::{path::Path, sync::Arc};

/// Store and table, with their meters.
pub struct Outside {
    pub(crate) env: Env,
    pub(crate) stack: Stack,
    pub(crate) table: Arc<Metered>,
}

impl Outside {
    /// Opens both. The state directory is made if it is not there.
    pub(crate) async fn open(config: &Config, fault: Option<&Path>) -> Result<Self, Failure> {
        let env = environment(&config.volume.state_directory)?;
        let (table, prices): (Arc<dyn Table>, _) = match &config.volume.table {
            RootsAt::Service => (
                Arc::new(RemoteTable::new(ServiceRoots::open(config)?)),
                TablePrices::FREE,
            ),
            RootsAt::Table(url) => firn_table_dynamodb::open(&env, url).await.map_err(Failure::new)?,
        };
        Self::assemble(env, config, fault, table, prices).await
    }

    /// Opens the store, over a table that is open already: the one that the configuration names, which others in this process
    /// use too and which lets one process in at a time.
    ///
    /// # Errors
    /// [`Failure`] if the state directory cannot be made or the store cannot be opened.
    pub async fn over(config: &Config, table: Arc<dyn Table>) -> Result<Self, Failure> {
        let env = environment(&config.volume.state_directory)?;
        Self::assemble(env, config, None, table, TablePrices::FREE).await
    }

    async fn assemble(
        env: Env,
        config: &Config,
        fault: Option<&Path>,
        table: Arc<dyn Table>,
        prices: TablePrices,
    ) -> Result<Self, Failure> {
        let credentials = match config.volume.credentials {
            CredentialsFrom::Environment => Credentials::Environment,
            CredentialsFrom::Service => Credentials::Sessions(Arc::new(ServiceSessions::open(&env, config)?)),
        };
        let backend = firn_store_cloud::open(&env, &config.volume.store, &credentials)
            .await
            .map_err(Failure::usage)?;
        #[cfg(feature = "testing")]
        let backend = match fault {
            Some(fault) => faulty(&env, backend, fault)?,
            None => backend,
        };
        #[cfg(not(feature = "testing"))]
        assert!(fault.is_none(), "only a build for tests injects faults");
        let upload = config.limits.upload_limit.clone();
        let stack = StackConfig {
            upload,
            ..StackConfig::default()
        };
        let stack = Stack::new(&env, backend, stack);
        Ok(Self {
            env,
            stack,
            table: Arc::new(Metered::new(table, prices)),
        })
    }

    pub(crate) fn anchor(&self, family: FamilyId) -> Anchor {
        Anchor::new(self.table.clone(), self.env.clone(), family)
    }

    pub(crate) fn parts(&self, family: FamilyId, volume: VolumeId, keys: Keys) -> Parts {
        Parts {
            env: self.env.clone(),
            store: self.stack.store.clone(),
            anchor: self.anchor(family),
            keys,
            volume,
        }
    }

    /// The parts of this edge's volume.
    pub(crate) async fn own_parts(&self, identity: &Identity) -> Result<Parts, Failure> {
        let keys = identity.open_keys(&*self.stack.store).await?;
        Ok(self.parts(identity.family, identity.volume, keys))
    }
}

fn environment(directory: &Path) -> Result<Env, Failure> {
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::new(format!("cannot make {}: {error}", directory.display())))?;
    firn_env::real(directory).map_err(Failure::new)
}

/// The store with the faults that the file describes.
#[cfg(feature = "testing")]
fn faulty(env: &Env, backend: Arc<dyn Store>, path: &Path) -> Result<Arc<dyn Store>, Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::usage(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let faults = toml::from_str(&text).map_err(|error| wrong(&error))?;
    let faulty = firn_store::Faulty::new(env, backend, faults).map_err(|error| wrong(&error))?;
    Ok(Arc::new(faulty))
}

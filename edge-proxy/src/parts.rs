//! From the configuration to what a volume is made of.

use crate::{
    anchor::{AnchorAt, Draws, Roots},
    cloud_session::{CredentialsFrom, ServiceSessions},
    config::{Config, SecondSection},
    failure::Failure,
    identity::Identity,
    later::{LaterStore, LaterTable},
    outage::DEADLINE,
    rings::KeyRings,
    second::SecondStore,
};
use firn_anchor::Anchor;
use firn_env::Env;
use firn_format::{FamilyId, VolumeId};
use firn_mirror::Noting;
use firn_seal::Keys;
use firn_store::{Metered, RequestBudget, RetryPolicy, Retrying, Stack, Store, StoreUrl, UploadLimit};
use firn_store_cloud::{Credentials, OpenError};
use firn_table::{Table, TableError, TablePrices, TableUrl};
use firn_volume::{NotDetachable, Parts, Volume, VolumeError};
use futures::FutureExt;
use std::{collections::BTreeMap, path::Path, sync::Arc};
use tokio::sync::Mutex;

/// What the volumes of one process share of the world outside: the office's line, and tables in a file, which lets a process open it
/// once. Cheap to clone.
#[derive(Clone)]
pub struct Common {
    upload_limit: Arc<UploadLimit>,
    /// What work in the background may ask of all stores.
    requests: Arc<RequestBudget>,
    tables: Arc<Mutex<BTreeMap<String, OpenedTable>>>,
}

type OpenedTable = (Arc<dyn Table>, TablePrices);

impl Common {
    /// Nothing is opened yet.
    pub(crate) fn new(env: &Env, config: &Config) -> Self {
        Self {
            upload_limit: Arc::new(UploadLimit::new(env, config.limits.upload_limit.clone())),
            requests: RequestBudget::new(env, config.limits.background.clone()),
            tables: Arc::default(),
        }
    }

    /// The table at `url`, by whichever volume opened it first.
    async fn table(&self, env: &Env, url: &TableUrl, if_away: IfAway) -> Result<OpenedTable, Failure> {
        let mut tables = self.tables.lock().await;
        let name = url.to_string();
        if let Some(opened) = tables.get(&name) {
            return Ok(opened.clone());
        }
        let opened = open_table(env, url, if_away).await?;
        tables.insert(name, opened.clone());
        Ok(opened)
    }
}

/// Store and table, with their meters. Cheap to clone.
#[derive(Clone)]
pub struct Outside {
    pub(crate) env: Env,
    pub(crate) stack: Arc<Stack>,
    /// The store for work in the background, which stands back behind clients and uploads.
    pub(crate) background: Arc<dyn Store>,
    pub(crate) requests: Arc<RequestBudget>,
    /// The mirror's store, if one is configured.
    pub(crate) second: Option<Arc<SecondStore>>,
    pub(crate) roots: Roots,
}

impl Outside {
    /// Opens both. The state directory is made if it is not there.
    pub(crate) async fn open(config: &Config) -> Result<Self, Failure> {
        let common = Common::new(&environment(&config.volume.state_directory)?, config);
        Self::open_with(config, &common, None, IfAway::Fail).await
    }

    /// The same for an edge that serves: if it can do so without the cloud, what is away is opened when it is back. `fault` names a
    /// file of faults of the store, for tests.
    ///
    /// # Errors
    /// [`Failure`] if the state directory, the certificate towards a service, the table or the store is not what it should be.
    pub async fn for_serving(config: &Config, fault: Option<&Path>) -> Result<Self, Failure> {
        let common = Common::new(&environment(&config.volume.state_directory)?, config);
        Self::for_serving_beside(config, &common, fault).await
    }

    /// The same beside other volumes of this process.
    pub(crate) async fn for_serving_beside(
        config: &Config,
        common: &Common,
        fault: Option<&Path>,
    ) -> Result<Self, Failure> {
        let env = environment(&config.volume.state_directory)?;
        match Volume::check_detachable(&env).await {
            Ok(()) => Self::open_with(config, common, fault, IfAway::Later).await,
            Err(VolumeError::NotDetachable(NotDetachable::NotOwned)) => {
                Self::open_with(config, common, fault, IfAway::Fail).await
            }
            // It served here before: why it cannot now is news.
            Err(why) => {
                let opened = Self::open_with(config, common, fault, IfAway::Fail).await;
                opened.map_err(|error| error.because(why))
            }
        }
    }

    async fn open_with(
        config: &Config,
        common: &Common,
        fault: Option<&Path>,
        if_away: IfAway,
    ) -> Result<Self, Failure> {
        let env = environment(&config.volume.state_directory)?;
        let roots = match &config.volume.anchor {
            AnchorAt::Service => Roots::of_joined(config)?,
            AnchorAt::Url(url) => Roots::at(config, url)?,
            AnchorAt::Table(url) => {
                let (table, prices) = common.table(&env, url, if_away).await?;
                Roots::over(table, prices)
            }
        };
        let backend = open_store(
            &env,
            &config.volume.store,
            credentials(&env, config, roots.draws())?,
            if_away,
        )
        .await?;
        #[cfg(feature = "testing")]
        let backend = match fault {
            Some(fault) => faulty(&env, backend, fault)?,
            None => backend,
        };
        #[cfg(not(feature = "testing"))]
        assert!(fault.is_none(), "only a build for tests injects faults");
        let mut stack = stack(&env, backend, common);
        let mut background: Arc<dyn Store> = Arc::new(stack.retrying.background());
        let second = match &config.second {
            Some(section) => Some(open_second(&env, section, common).await?),
            None => None,
        };
        if let Some(second) = &second {
            stack.store = Arc::new(Noting::new(&env, stack.store, second.queue.clone()));
            background = Arc::new(Noting::new(&env, background, second.queue.clone()));
        }
        Ok(Self {
            env,
            stack: Arc::new(stack),
            background,
            requests: common.requests.clone(),
            second: second.map(Arc::new),
            roots,
        })
    }

    pub(crate) fn anchor(&self, family: FamilyId) -> Anchor {
        self.roots.anchor(&self.env, family)
    }

    pub(crate) fn parts(&self, family: FamilyId, volume: VolumeId, keys: Keys) -> Parts {
        Parts {
            env: self.env.clone(),
            store: self.stack.store.clone(),
            second: self.second.as_ref().map(|second| {
                let first = self.stack.store.clone();
                second.parity(&self.env, first, family).reader()
            }),
            anchor: self.anchor(family),
            keys,
            volume,
        }
    }

    /// The parts of this edge's volume, with the keys of the newest ring, which may be followed while they are used.
    pub(crate) async fn own_parts(
        &self,
        config: &Config,
        identity: Identity,
    ) -> Result<(Parts, KeyRings), Failure> {
        let (family, volume) = (identity.family, identity.volume);
        let (rings, keys) = KeyRings::open(config, self, identity).await?;
        Ok((self.parts(family, volume, keys), rings))
    }
}

/// The second store; nothing waits for it, not even a start: one that is away is opened when it is back.
async fn open_second(env: &Env, section: &SecondSection, common: &Common) -> Result<SecondStore, Failure> {
    let backend = open_store(env, &section.store, Credentials::Environment, IfAway::Later).await?;
    let stack = stack(env, backend, common);
    Ok(SecondStore {
        section: section.clone(),
        background: Arc::new(stack.retrying.background()),
        stack,
        queue: Arc::default(),
        parity: std::sync::Mutex::default(),
    })
}

/// Who this edge is to its store.
fn credentials(env: &Env, config: &Config, draws: Draws) -> Result<Credentials, Failure> {
    Ok(match config.volume.credentials {
        CredentialsFrom::Environment => Credentials::Environment,
        CredentialsFrom::Service => {
            Credentials::Sessions(Arc::new(ServiceSessions::open(env, config, draws)?))
        }
    })
}

/// The store of a volume as it is, without retries and meters.
pub(crate) async fn bare_store(env: &Env, config: &Config) -> Result<Arc<dyn Store>, Failure> {
    open_store(
        env,
        &config.volume.store,
        credentials(env, config, Draws::default())?,
        IfAway::Fail,
    )
    .await
}

/// [`Stack::new`] with an upload limit and a request budget that others have too.
fn stack(env: &Env, backend: Arc<dyn Store>, common: &Common) -> Stack {
    let metered = Metered::new(backend);
    let meter = metered.meter();
    let once: Arc<dyn Store> = Arc::new(metered);
    let retrying = Retrying::new(env, once.clone(), RetryPolicy::default())
        .with_upload_limit(common.upload_limit.clone())
        .with_budget(common.requests.clone());
    let retrying = Arc::new(retrying);
    Stack {
        store: retrying.clone(),
        once,
        meter,
        retrying,
    }
}

/// What becomes of an opening that finds the cloud away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IfAway {
    /// It fails.
    Fail,
    /// The first request that finds it there opens it.
    Later,
}

async fn open_store(
    env: &Env,
    url: &StoreUrl,
    credentials: Credentials,
    if_away: IfAway,
) -> Result<Arc<dyn Store>, Failure> {
    match firn_store_cloud::open(env, url, &credentials).await {
        Ok(store) => Ok(store),
        // The only store that is looked at when it is opened.
        Err(error @ OpenError::Directory { .. }) if if_away == IfAway::Later => {
            tracing::warn!(%error, "the store is away");
            let (env, url) = (env.clone(), url.clone());
            Ok(Arc::new(LaterStore::new(Box::new(move || {
                let (env, url, credentials) = (env.clone(), url.clone(), credentials.clone());
                async move {
                    let opened = firn_store_cloud::open(&env, &url, &credentials).await;
                    opened.map_err(|error| error.to_string())
                }
                .boxed()
            }))))
        }
        Err(error) => Err(Failure::usage(error)),
    }
}

async fn open_table(
    env: &Env,
    url: &TableUrl,
    if_away: IfAway,
) -> Result<(Arc<dyn Table>, TablePrices), Failure> {
    if if_away == IfAway::Fail {
        return firn_table_cloud::open(env, url).await.map_err(Failure::new);
    }
    let why = match env.timeout(DEADLINE, open_existing(env, url)).await {
        Ok(Ok(table)) => return Ok(table),
        Ok(Err(TableError::Unavailable(why))) => why,
        Ok(Err(error)) => return Err(Failure::new(error)),
        Err(elapsed) => elapsed.to_string(),
    };
    tracing::warn!(why, "the table is away");
    let prices = firn_table_cloud::prices(url);
    let (env, url) = (env.clone(), url.clone());
    let later = LaterTable::new(Box::new(move || {
        let (env, url) = (env.clone(), url.clone());
        async move {
            let (table, _) = open_existing(&env, &url).await?;
            Ok(table)
        }
        .boxed()
    }));
    Ok((Arc::new(later), prices))
}

/// Opens a table that was there before: one in a file is not made anew, for its disk may only be away.
async fn open_existing(env: &Env, url: &TableUrl) -> Result<(Arc<dyn Table>, TablePrices), TableError> {
    if let TableUrl::Redb { path } = url
        && !std::fs::metadata(path).is_ok_and(|found| found.is_file())
    {
        let path = path.display();
        return Err(TableError::Unavailable(format!(
            "{path} is not there; is its disk mounted?"
        )));
    }
    firn_table_cloud::open(env, url).await
}

pub(crate) fn environment(directory: &Path) -> Result<Env, Failure> {
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

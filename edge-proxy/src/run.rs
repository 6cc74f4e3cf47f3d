//! `firn-edge run`: from the first request to SIGTERM.

use crate::{
    admin::{self, DrainRequest},
    bounds,
    certificate::keep_renewed,
    cleaner::InsideCleaner,
    config::Config,
    failure::Failure,
    identity::Identity,
    joined::is_joined,
    metrics,
    parts::Outside,
    snapshot::{Fixed, Observed, OwnerPart},
};
use firn_env::{Task, println};
use firn_nfs::{
    ClientRule, Export, Exports, HandleKey, NfsService, PortMapping, ServiceConfig, nlm::LockService,
    nsm::MonitorConfig,
};
use firn_vfs::{LockLimits, LockTable, Vfs};
use firn_volume::{ServingState, SnapshotAccess, Volume, VolumeError};
use futures::FutureExt;
use std::{path::Path, pin::pin, sync::Arc, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

/// How long the end waits for a client to take the news of it.
const LAST_WORD: Duration = Duration::from_secs(2);

/// `firn-edge run`: serves the volume until a signal, or until it cannot any longer.
pub async fn run(config: &Config, fault: Option<&Path>) -> Result<(), Failure> {
    start_log(config)?;
    bounds::raise_descriptors(config.nfs.connections);
    Identity::load(&config.volume.state_directory)?;
    let outside = Outside::open(config, fault).await?;
    let ready = |address: &str| {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        println!("serving on {address}");
    };
    serve_until(config, &outside, signalled()?, ready).await
}

/// Serves the volume of the state directory until `told` completes, an administrator drains it, or it cannot any longer.
///
/// `ready` is called once, with the address, when clients can mount.
///
/// # Errors
/// [`Failure`], among them that another edge took the volume over. What was acknowledged is then in the journal or in a salvage
/// clone.
pub async fn serve_until(
    config: &Config,
    outside: &Outside,
    told: impl Future<Output = ()> + Send,
    ready: impl FnOnce(&str),
) -> Result<(), Failure> {
    let identity = Identity::load(&config.volume.state_directory)?;
    let _lock = outside.env.disk().lock("lock").await.map_err(|error| {
        Failure::new(format!(
            "another firn-edge uses this state directory ({error}); nothing was changed"
        ))
    })?;
    let (volume_id, handle_key) = (identity.volume, HandleKey::new(&identity.handle_key));
    let (parts, rings) = outside.own_parts(config, identity).await?;
    let volume = match Volume::open(parts.clone(), config.volume_config()?).await {
        Ok((volume, recovery)) => {
            tracing::info!(?recovery, "volume open");
            volume
        }
        Err(VolumeError::SalvageFirst { tenure }) => {
            let salvaged = Volume::salvage(&parts, &config.volume_config()?).await?;
            let detail = salvaged.map_or_else(
                || "its journal had nothing that the volume has not".to_owned(),
                |clone| {
                    format!(
                        "its {} acknowledged changes are in the clone {}",
                        clone.recovery.records, clone.name
                    )
                },
            );
            return Err(Failure::fenced(format!(
                "another edge took the volume over (this one had it since epoch {tenure}); {detail}. This edge serves nothing"
            )));
        }
        Err(error) => return Err(error.into()),
    };
    // Asked once: an idle edge asks the table nothing, and a takeover fences this one.
    let (tuple, _) = parts.anchor.load(volume_id).await?;
    let fixed = Fixed {
        volume_name: tuple.name,
        volume_id: volume_id.hex().to_string(),
        keys: parts.keys.clone(),
        owner: OwnerPart {
            name: tuple.owner.map(|owner| owner.name).unwrap_or_default(),
            epoch: tuple.epoch.0,
        },
        store_url: config.volume.store.to_string(),
        table_url: config.volume.table.to_string(),
        book: config.price_book()?,
    };
    let _keeper = config
        .retention()
        .map_err(Failure::usage)?
        .map(|policy| volume.keep_snapshots(policy));
    let _renewal = is_joined(config).then(|| {
        let renewal = keep_renewed(config.clone(), outside.env.clone());
        Background(outside.env.spawn("renew certificate", renewal))
    });
    let following = rings.follow(outside.env.clone(), volume.clone(), parts.keys.clone());
    let _following = Background(outside.env.spawn("follow key rings", following));
    let cleaner = Arc::new(InsideCleaner::new(
        outside,
        parts.anchor.clone(),
        &config.cleaner,
        fixed.book.clone(),
    ));
    let _cleaning = Background(
        outside
            .env
            .spawn("clean", cleaner.clone().keep_clean(volume.clone())),
    );
    let service = serve(config, outside, handle_key, &volume).await?;
    let address = service.0.address().to_owned();
    let observed = Arc::new(Observed::new(
        outside,
        &volume,
        config.volume_config()?,
        fixed,
        cleaner,
        service,
    ));
    let (drains, mut drain_requests) = mpsc::channel(1);
    let admin = admin::serve(&config.volume.state_directory, observed.clone(), drains)?;
    let _metrics = match &config.metrics.listen {
        Some(address) => Some(metrics::serve(address, observed.clone()).await?),
        None => None,
    };
    watchdog(&observed);
    ready(&address);
    let end = until_stopped(&volume, told, &mut drain_requests).await;
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    if let Some((service, _locks)) = observed.take_service() {
        service.shutdown().await;
    }
    match end {
        End::Signal => {
            volume.stop().await?;
            tracing::info!("stopped; everything acknowledged is in the journal (level 1)");
            Ok(())
        }
        End::Drain(request) => {
            let drained = volume.drain().await.map_err(Failure::from);
            let outcome = drained.as_ref().copied().map_err(ToString::to_string);
            let _ = request.outcome.send(outcome);
            let _ = outside.env.timeout(LAST_WORD, request.told).await;
            tracing::info!("drained; everything is in the cloud (level 2)");
            drained
        }
        End::Volume(ServingState::Fenced) => {
            admin.abort();
            drop((observed, volume));
            let salvaged = Volume::salvage(&parts, &config.volume_config()?).await?;
            Err(Failure::fenced(match salvaged {
                Some(clone) => format!(
                    "another edge took the volume over; what this one acknowledged and had not committed is in the clone {}",
                    clone.name
                ),
                None => "another edge took the volume over; nothing of this one was uncommitted".into(),
            }))
        }
        End::Volume(other) => Err(Failure::stopped(format!(
            "the volume stopped: {other:?}. Everything acknowledged is in the journal; start again to recover"
        ))),
    }
}

/// Work beside serving, for as long as the volume is served.
struct Background(Task<()>);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why serving ends.
enum End {
    Signal,
    Drain(DrainRequest),
    Volume(ServingState),
}

/// Completes at SIGTERM or an interrupt.
fn signalled() -> Result<impl Future<Output = ()> + Send, Failure> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::new)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::new)?;
    Ok(async move {
        futures::future::select(pin!(terminate.recv()), pin!(interrupt.recv())).await;
    })
}

async fn until_stopped(
    volume: &Volume,
    told: impl Future<Output = ()> + Send,
    drains: &mut mpsc::Receiver<DrainRequest>,
) -> End {
    let ended = pin!(volume.ended().map(End::Volume));
    let told = pin!(told.map(|()| End::Signal));
    let drain = pin!(async {
        match drains.recv().await {
            Some(request) => End::Drain(request),
            None => std::future::pending().await,
        }
    });
    let told = futures::future::select(told, drain).map(|told| told.factor_first().0);
    futures::future::select(ended, told).await.factor_first().0
}

/// Tells systemd, if it asked to be told, that the engine still answers: a lock that is never released ends in a restart.
fn watchdog(observed: &Arc<Observed>) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    let (env, observed) = (observed.env.clone(), observed.clone());
    env.clone().spawn("watchdog", async move {
        loop {
            observed.snapshot();
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            env.sleep(limit / 3).await;
        }
    });
}

async fn serve(
    config: &Config,
    outside: &Outside,
    handle_key: HandleKey,
    volume: &Volume,
) -> Result<(NfsService, LockService), Failure> {
    let vfs: Arc<dyn Vfs> = Arc::new(SnapshotAccess::new(volume, config.snapshots.visible));
    let mut exports = Vec::new();
    for section in &config.exports {
        let rule = |network, read_only| ClientRule {
            network,
            read_only,
            squash: section.squash.into(),
            anonymous_uid: section.anonymous_uid,
            anonymous_gid: section.anonymous_gid,
            require_privileged_port: section.require_privileged_port,
        };
        let writers = section.clients.iter().map(|network| rule(*network, false));
        let readers = section
            .read_only_clients
            .iter()
            .map(|network| rule(*network, true));
        let rules = writers.chain(readers).collect();
        let mut export = Export::new(&section.path, vfs.clone(), rules).map_err(Failure::usage)?;
        if let Some(connections) = section.connections_per_client {
            export = export.with_connections_per_client(connections);
        }
        exports.push(export);
    }
    let exports = Arc::new(Exports::new(handle_key, exports).map_err(Failure::usage)?);
    let monitor = MonitorConfig {
        grace: config.grace(),
        ..MonitorConfig::default()
    };
    let locks = LockService::start(
        &outside.env,
        exports.clone(),
        LockTable::new(LockLimits::default()),
        monitor,
    )
    .await
    .map_err(Failure::new)?;
    let nfs = &config.nfs;
    let service = ServiceConfig {
        address: format!("{}:{}", nfs.listen, nfs.nfs_port),
        mount_address: nfs.mount_port.map(|port| format!("{}:{port}", nfs.listen)),
        port_mapping: if nfs.portmap {
            PortMapping::Auto(format!("{}:111", nfs.listen))
        } else {
            PortMapping::None
        },
        limits: bounds::limits(nfs),
        ..ServiceConfig::default()
    };
    let service = NfsService::start(&outside.env, service, exports, locks.programs())
        .await
        .map_err(Failure::new)?;
    locks.announce();
    Ok((service, locks))
}

fn start_log(config: &Config) -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .or_else(|_| tracing_subscriber::EnvFilter::try_new(&config.log.level))
        .map_err(|error| Failure::usage(format!("log.level: {error}")))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(firn_env::terminal::log_has_colours());
    if config.log.json {
        builder.json().init()
    } else {
        builder.init()
    }
    Ok(())
}

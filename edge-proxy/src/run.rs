//! `firn-edge run`: from the first request to SIGTERM.

use crate::{
    admin::{self, DrainRequest},
    bounds,
    certificate::keep_renewed,
    cleaner::InsideCleaner,
    config::Config,
    detached::Detached,
    failure::Failure,
    identity::Identity,
    joined::is_joined,
    metrics,
    opened::{self, Mode, Opened},
    parts::Outside,
    reporting::Reporting,
    serve::Service,
    snapshot::{Fixed, Observed},
    usage::EdgeMeter,
};
use firn_env::{Env, Task, println};
use firn_nfs::HandleKey;
use firn_volume::{KeptPolicy, ServingState, Volume};
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
    let outside = Outside::for_serving(config, fault).await?;
    let ready = |address: &str| {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        println!("serving on {address}");
    };
    serve_until(config, &outside, signalled()?, ready).await
}

/// Serves the volume of the state directory until `told` completes, an administrator drains it, or it cannot any longer. While the
/// cloud is away it is served without, and opened anew when that is back.
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
    let handle_key = HandleKey::new(&identity.handle_key);
    let mut told = pin!(told);
    let mut ready = Some(ready);
    loop {
        // systemd counts from the first time it was told that clients are served.
        let opening = ready.is_none().then(|| watchdog_while_opening(&outside.env));
        let opened = opened::open(config, outside).await?;
        drop(opening);
        let now_ready = |address: &str| {
            if let Some(ready) = ready.take() {
                ready(address);
            }
        };
        if serve_opened(
            config,
            outside,
            opened,
            handle_key.clone(),
            told.as_mut(),
            now_ready,
        )
        .await?
        {
            return Ok(());
        }
        tracing::warn!("store and table answer again: the volume is opened anew");
    }
}

/// Serves an opened volume until it ends: `true` for good, `false` to be opened anew.
async fn serve_opened(
    config: &Config,
    outside: &Outside,
    opened: Opened,
    handle_key: HandleKey,
    told: impl Future<Output = ()> + Send,
    ready: impl FnOnce(&str),
) -> Result<bool, Failure> {
    let Opened { parts, volume, .. } = opened;
    let mut beside = Vec::new();
    let is_owned = matches!(opened.mode, Mode::Owned(_));
    if is_joined(config) {
        let renewal = keep_renewed(config.clone(), outside.env.clone());
        beside.push(Background(outside.env.spawn("renew certificate", renewal)));
    }
    let policy = KeptPolicy::default();
    policy.set(config.retention().map_err(Failure::usage)?);
    // From here on the volume obeys what the service said last: before there is a client.
    let reporting = reporting(config, &outside.env, &volume, &policy);
    let _keeper = is_owned.then(|| volume.keep_snapshots(&policy));
    let book = config.price_book()?;
    let cleaner = Arc::new(InsideCleaner::new(
        outside,
        parts.anchor.clone(),
        &config.cleaner,
        book.clone(),
    ));
    let detached = match opened.mode {
        Mode::Owned(rings) => {
            let following = rings.follow(outside.env.clone(), volume.clone(), parts.keys.clone());
            beside.push(Background(outside.env.spawn("follow key rings", following)));
            let cleaning = cleaner.clone().keep_clean(volume.clone());
            beside.push(Background(outside.env.spawn("clean", cleaning)));
            None
        }
        Mode::Detached(detached) => Some(detached),
    };
    let service = Service::start(config, outside, handle_key, &volume).await?;
    let address = service.address().to_owned();
    let fixed = Fixed {
        volume_name: opened.volume_name,
        volume_id: parts.volume.hex().to_string(),
        family: parts.keys.family().to_string(),
        keys: parts.keys.clone(),
        owner: opened.owner,
        reporting: reporting.clone(),
        store_url: config.volume.store.to_string(),
        table_url: config.volume.anchor.to_string(),
        book,
    };
    let observed = Arc::new(Observed::new(
        outside,
        &volume,
        config.volume_config()?,
        fixed,
        cleaner,
        (service, detached.clone()),
    ));
    let (drains, mut drain_requests) = mpsc::channel(1);
    let admin = admin::serve(&config.volume.state_directory, observed.clone(), drains)?;
    let metrics = match &config.metrics.listen {
        Some(address) => Some(metrics::serve(address, observed.clone()).await?),
        None => None,
    };
    beside.extend(watchdog(&observed).map(Background));
    let mut meter = None;
    if let Some(reporting) = reporting {
        reporting.observe(&observed);
        meter = edge_meter(config, &observed, &reporting).await;
        let reports = reporting.keep(meter.clone(), observed.clone());
        beside.push(Background(outside.env.spawn("report", reports)));
    }
    ready(&address);
    let at = (config, outside);
    let end = until_stopped(at, &volume, told, &mut drain_requests, detached.as_deref()).await;
    let is_back = matches!(end, End::Back);
    if !is_back {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    }
    if let Some(meter) = &meter {
        meter.record(&observed).await;
    }
    if let Some(service) = observed.take_service() {
        service.end().await;
    }
    match end {
        End::Signal | End::Back => {
            volume.stop().await?;
            if is_back {
                admin.abort();
                // Its port is wanted again.
                if let Some(metrics) = metrics {
                    metrics.abort();
                    let _ = metrics.await;
                }
                return Ok(false);
            }
            tracing::info!("stopped; everything acknowledged is in the journal (level 1)");
            Ok(true)
        }
        End::Drain(request) => {
            let drained = volume.drain().await.map_err(Failure::from);
            if let Some(meter) = &meter {
                meter.record(&observed).await;
            }
            let outcome = drained.as_ref().copied().map_err(ToString::to_string);
            let _ = request.outcome.send(outcome);
            let _ = outside.env.timeout(LAST_WORD, request.told).await;
            tracing::info!("drained; everything is in the cloud (level 2)");
            drained.map(|()| true)
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

/// What reports to the service, if there is one. That nothing is reported keeps nobody from serving.
fn reporting(config: &Config, env: &Env, volume: &Volume, policy: &KeptPolicy) -> Option<Arc<Reporting>> {
    if !is_joined(config) {
        return None;
    }
    match Reporting::start(config, env, volume, policy) {
        Ok(reporting) => Some(reporting),
        Err(failure) => {
            tracing::warn!(%failure, "this edge reports nothing, and learns neither caps nor snapshot policies");
            None
        }
    }
}

/// What counts for the report.
async fn edge_meter(
    config: &Config,
    observed: &Observed,
    reporting: &Arc<Reporting>,
) -> Option<Arc<EdgeMeter>> {
    match EdgeMeter::start(config, observed, reporting).await {
        Ok(meter) => Some(Arc::new(meter)),
        Err(failure) => {
            tracing::warn!(%failure, "what this edge counts is not reported");
            None
        }
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
    /// The cloud is back.
    Back,
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
    (config, outside): (&Config, &Outside),
    volume: &Volume,
    told: impl Future<Output = ()> + Send,
    drains: &mut mpsc::Receiver<DrainRequest>,
    detached: Option<&Detached>,
) -> End {
    let back = pin!(async {
        match detached {
            Some(detached) => detached.until_back(outside, config).await,
            None => std::future::pending().await,
        }
        End::Back
    });
    let ended = pin!(volume.ended().map(End::Volume));
    let told = pin!(told.map(|()| End::Signal));
    let drain = pin!(async {
        match drains.recv().await {
            Some(request) => End::Drain(request),
            None => std::future::pending().await,
        }
    });
    let told = futures::future::select(told, drain).map(|told| told.factor_first().0);
    let ended = futures::future::select(ended, back).map(|ended| ended.factor_first().0);
    futures::future::select(ended, told).await.factor_first().0
}

/// Tells systemd, if it asked to be told, that the engine still answers: a lock that is never released ends in a restart.
fn watchdog(observed: &Arc<Observed>) -> Option<Task<()>> {
    let limit = sd_notify::watchdog_enabled()?;
    let (env, observed) = (observed.env.clone(), observed.clone());
    Some(env.clone().spawn("watchdog", async move {
        loop {
            observed.snapshot();
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            env.sleep(limit / 3).await;
        }
    }))
}

/// The same while the volume is opened anew, which takes as long as the cloud takes.
fn watchdog_while_opening(env: &Env) -> Option<Background> {
    let limit = sd_notify::watchdog_enabled()?;
    let env = env.clone();
    Some(Background(env.clone().spawn("watchdog", async move {
        loop {
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            env.sleep(limit / 3).await;
        }
    })))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever runs an edge beside other parts spawns it as a task.
    #[test]
    fn an_edge_may_be_a_task_of_a_process_that_does_more() {
        fn sent<T: Send>(_: impl FnOnce(&'static Config, &'static Outside) -> T) {}
        sent(|config, outside| serve_until(config, outside, async {}, |_: &str| {}));
    }
}

//! `firn-edge run`: from the first request to SIGTERM.
//!
//! ```text
//! volumes: opened side by side ([`crate::life`])  ──each tried once, or the first open for 20 s──▶  NFS, admin socket, metrics
//! SIGTERM ──▶ NFS answers what was asked, volumes stop             no volume left ──▶ the same, and the first failure is the process's
//! ```

use crate::{
    access_log, admin, bounds,
    config::{Config, EdgeConfig},
    failure::Failure,
    formats,
    identity::Identity,
    life::{Life, News, lock_of},
    metrics,
    nfs::NfsServer,
    parts::{Common, Outside, environment},
    readable,
    volumes::Volumes,
};
use firn_env::{Env, Task, println};
use firn_telemetry::Traces;
use std::{path::Path, pin::pin, sync::Arc, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
};

/// How long clients of an open volume wait for the others. Later ones come all the same; but who held locks in them and was told of the
/// start reclaims them in vain until they are there.
const OTHERS_WITHIN: Duration = Duration::from_secs(20);

/// As long as it takes.
const LONG: Duration = Duration::from_secs(1 << 30);

/// `firn-edge run`: serves the volumes until a signal, or until none can be served any longer.
pub async fn run(edge: &EdgeConfig, fault: Option<&Path>) -> Result<(), Failure> {
    let ready = |address: &str| {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        println!("serving on {address}");
    };
    run_until(edge, fault, signalled()?, ready).await
}

/// The same until `told` completes; `ready` is called once, with where it serves.
pub async fn run_until(
    edge: &EdgeConfig,
    fault: Option<&Path>,
    told: impl Future<Output = ()> + Send,
    ready: impl FnOnce(&str),
) -> Result<(), Failure> {
    let traces = start_log(edge.common())?;
    bounds::raise_descriptors(edge.common().nfs.connections);
    if let [only] = &edge.volumes[..] {
        readable::volume(&only.volume.state_directory)?;
        Identity::load(&only.volume.state_directory)?;
    }
    let served = serve_edge(edge, None, fault, told, ready).await;
    if let Some(traces) = traces {
        traces.end();
    }
    served
}

/// Serves the one volume of `config` until `told` completes, an administrator drains it, or it cannot any longer. While the cloud is
/// away it is served without, and opened anew when that is back.
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
    let edge = EdgeConfig::of_one(config);
    serve_edge(&edge, Some(outside), None, told, ready).await
}

/// Serves all volumes of `edge`; `outside` is what the only one is made of, if it was opened before.
async fn serve_edge(
    edge: &EdgeConfig,
    outside: Option<&Outside>,
    fault: Option<&Path>,
    told: impl Future<Output = ()> + Send,
    ready: impl FnOnce(&str),
) -> Result<(), Failure> {
    let env = environment(edge.directory())?;
    let _lock = lock_of(&env).await?;
    readable::edge(edge.directory())?;
    if let [only] = &edge.volumes[..] {
        readable::volume(&only.volume.state_directory)?;
    }
    formats::start(edge.directory())?;
    let access_log = access_log::start(&env, edge)?;
    let nfs = Arc::new(NfsServer::prepare(&env, edge, access_log.as_ref()).await?);
    let volumes = Arc::new(Volumes::new(&env, edge, nfs, access_log.clone()));
    let common = Common::new(&env, edge.common());
    let (stop, stopping) = watch::channel(false);
    let count = edge.volumes.len();
    // Each tells of its first attempt and of its end; whatever else it says is not waited for.
    let (news, mut told_of) = mpsc::channel(count * 2);
    let mut lives = Lives::new(count);
    for (at, config) in edge.volumes.iter().enumerate() {
        let life = Life {
            config: config.clone(),
            common: common.clone(),
            volumes: volumes.clone(),
            at,
            outside: outside.cloned(),
            fault: fault.map(Path::to_owned),
            has_others: count > 1,
            stopping: stopping.clone(),
            attempt: Some(news.clone()),
            end: news.clone(),
            service: None,
        };
        // One that panics leaves the process looking alive without its volume.
        lives.tasks.push(env.spawn_essential("volume", life.live()));
    }
    drop(news);
    let mut told = pin!(told);
    let started = lives.until_attempted(&env, &mut told_of).await;
    let served = match started {
        true => {
            serve_attempted(
                edge,
                &env,
                &volumes,
                &mut lives,
                &mut told_of,
                told.as_mut(),
                ready,
            )
            .await
        }
        false => Ok(()),
    };
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    if lives.left > 0 {
        // What is told of an end that was asked for is what fails from here on.
        lives.failure = None;
    }
    volumes.nfs.shutdown().await;
    let _ = stop.send(true);
    lives.until_ended(&mut told_of).await;
    if let Some(access_log) = access_log {
        access_log.end().await;
    }
    served?;
    match lives.failure {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// Serves clients until `told` completes or no volume is left.
async fn serve_attempted(
    edge: &EdgeConfig,
    env: &Env,
    volumes: &Arc<Volumes>,
    lives: &mut Lives,
    told_of: &mut mpsc::Receiver<News>,
    told: impl Future<Output = ()> + Send,
    ready: impl FnOnce(&str),
) -> Result<(), Failure> {
    let is_exported = edge.volumes.iter().any(|config| !config.exports.is_empty());
    let address = match is_exported {
        true => volumes.nfs.start(env, edge).await?,
        false => mounted_on(edge),
    };
    let mut beside = vec![Background(admin::serve(edge.directory(), volumes.clone())?)];
    if let Some(address) = &edge.common().metrics.listen {
        beside.push(Background(metrics::serve(address, volumes.clone()).await?));
    }
    beside.extend(watchdog(env, volumes).map(Background));
    ready(&address);
    let ended = pin!(lives.until_ended(told_of));
    futures::future::select(ended, pin!(told)).await;
    Ok(())
}

/// The directories of an edge that exports nothing.
fn mounted_on(edge: &EdgeConfig) -> String {
    let mounts = edge.volumes.iter().flat_map(|config| &config.mounts);
    let paths: Vec<String> = mounts.map(|mount| mount.path.display().to_string()).collect();
    paths.join(", ")
}

/// The volumes of this process as their news tell of them.
struct Lives {
    tasks: Vec<Task<()>>,
    waited_for: usize,
    left: usize,
    /// The first of a volume that ended by itself.
    failure: Option<Failure>,
}

impl Lives {
    fn new(count: usize) -> Self {
        Self {
            tasks: Vec::new(),
            waited_for: count,
            left: count,
            failure: None,
        }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Attempted => self.waited_for = self.waited_for.saturating_sub(1),
            News::Ended(ended) => {
                self.left = self.left.saturating_sub(1);
                if let Err(failure) = ended {
                    self.failure.get_or_insert(failure);
                }
            }
        }
    }

    /// Waits until each volume was tried, and for those that take long only so long after the first. Whether one is left.
    async fn until_attempted(&mut self, env: &Env, news: &mut mpsc::Receiver<News>) -> bool {
        let mut first = None;
        while self.left > 0 && self.waited_for > 0 {
            let within = match first {
                None => LONG,
                Some(first) => OTHERS_WITHIN.saturating_sub(env.now().since(first)),
            };
            match env.timeout(within, news.recv()).await {
                Ok(Some(news)) => self.take(news),
                Ok(None) | Err(_) => break,
            }
            first.get_or_insert(env.now());
        }
        self.left > 0
    }

    /// Waits until none is left.
    async fn until_ended(&mut self, news: &mut mpsc::Receiver<News>) {
        while self.left > 0 {
            match news.recv().await {
                Some(news) => self.take(news),
                None => break,
            }
        }
    }
}

/// Work beside serving, for as long as clients are served.
struct Background(Task<()>);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Tells systemd, if it asked to be told, that the engines still answer: a lock that is never released ends in a restart.
fn watchdog(env: &Env, volumes: &Arc<Volumes>) -> Option<Task<()>> {
    let limit = sd_notify::watchdog_enabled()?;
    let (env, volumes) = (env.clone(), volumes.clone());
    Some(env.clone().spawn("watchdog", async move {
        loop {
            volumes.shown();
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            env.sleep(limit / 3).await;
        }
    }))
}

/// Completes at SIGTERM or an interrupt.
fn signalled() -> Result<impl Future<Output = ()> + Send, Failure> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::new)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::new)?;
    Ok(async move {
        futures::future::select(pin!(terminate.recv()), pin!(interrupt.recv())).await;
    })
}

fn start_log(config: &Config) -> Result<Option<Traces>, Failure> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .or_else(|_| tracing_subscriber::EnvFilter::try_new(&config.log.level))
        .map_err(|error| Failure::usage(format!("log.level: {error}")))?;
    let traces = match &config.traces.endpoint {
        None => None,
        Some(endpoint) => {
            let (name, version) = ("firn-edge", env!("CARGO_PKG_VERSION"));
            let started = Traces::start(name, version, endpoint, config.traces.sample_percent);
            Some(started.map_err(|error| Failure::usage(format!("[traces]: {error}")))?)
        }
    };
    let colours = firn_env::terminal::log_has_colours();
    firn_telemetry::start_log(filter, config.log.json, colours, traces.as_ref());
    Ok(traces)
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

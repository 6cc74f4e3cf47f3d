//! The supervisor of smbd: starts it, asks whether it answers, starts it anew when it does not, with backoff.
//!
//! | state | event | next |
//! |---|---|---|
//! | down | the pause is over; something is missing, or the port is taken | down, the pause doubled up to a minute |
//! | down | the pause is over, and all is there | starting |
//! | starting | smbd answers | serving |
//! | starting | it ends, or does not answer within half a minute | down |
//! | serving | it ends | down |
//! | serving | it does not answer three times in a row | killed, down |
//! | any | the edge ends, or opens the volume anew | ended |
//!
//! Nothing here keeps other protocols from being served: whatever is wrong is a state with a reason.

use super::{
    connections,
    domain::{self, DomainPart},
    paths::Paths,
    probe,
    process::{self, Running},
    samba_config,
    section::{SmbSection, missing},
    tools,
    users::{self, Table},
};
use crate::{
    config::Config,
    port_holders::{self, Transport},
    snapshot::LocalMountPart,
};
use firn_env::{Backoff, Env, Monotonic, Task};
use firn_fuse::{Mount, MountOptions, MountRecorder, OnFailedSync};
use firn_session::{Changes, LockProtocol, LockTable, Origin};
use firn_vfs::Vfs;
use futures::future::{Either, select};
use serde::{Deserialize, Serialize};
use std::{
    net::TcpListener,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::watch;

/// Between two starts: a mistake that stays costs a start a minute.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// After so long of serving the pauses begin anew.
const SOUND_AFTER: Duration = Duration::from_secs(300);
/// How long a start may take, on a slow machine.
const START_WITHIN: Duration = Duration::from_secs(30);
/// Between two questions to an smbd that starts.
const START_ASK_EVERY: Duration = Duration::from_millis(200);
/// Between two questions to one that serves; each makes a process.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// How long an answer may take: a machine under load is not a reason to cut clients off.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Questions in a row without an answer.
const UNANSWERED_MAX: u32 = 3;
/// How long the end of an edge waits for all of this.
const END_WITHIN: Duration = Duration::from_secs(60);

/// What `status` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmbPart {
    /// `starting`, `serving`, `down` or `ended`.
    pub state: String,
    /// Why it is down, or what does not work while it serves.
    pub reason: Option<String>,
    pub address: String,
    pub shares: Vec<String>,
    /// Users of the table.
    pub users: u64,
    pub connections: u64,
    /// The process that stands for all of smbd's, while there is one.
    pub process: Option<u32>,
    /// How often smbd ended by itself or was ended because it did not answer.
    pub failures: u64,
    pub encryption_required: bool,
    pub exclusive: bool,
    /// The domain, if the configuration has one.
    #[serde(default)]
    pub domain: Option<DomainPart>,
    /// Samba lacks the module that asks the mount for names in another case.
    #[serde(default)]
    pub lists_directories: bool,
    /// The private mount, once there is one.
    pub mount: Option<LocalMountPart>,
}

impl SmbPart {
    pub fn is_serving(&self) -> bool {
        self.state == "serving"
    }
}

/// The volume as the private mount needs it.
pub struct Volume {
    pub vfs: Arc<dyn Vfs>,
    pub locks: LockTable,
    pub changes: Changes,
    pub origin: Origin,
    /// Where what clients do is recorded.
    pub access_log: Option<MountRecorder>,
}

/// SMB, from the start of serving to its end.
pub struct SmbService {
    env: Env,
    shared: Arc<Shared>,
    ending: watch::Sender<bool>,
    task: Task<()>,
}

struct Shared {
    port: u16,
    part: Mutex<SmbPart>,
    mount: Mutex<Option<Mount>>,
}

impl Shared {
    fn part(&self) -> MutexGuard<'_, SmbPart> {
        self.part.lock().expect("no panic under this lock")
    }

    fn mount(&self) -> MutexGuard<'_, Option<Mount>> {
        self.mount.lock().expect("no panic under this lock")
    }

    fn set(&self, state: &str, reason: Option<String>) {
        let mut part = self.part();
        state.clone_into(&mut part.state);
        part.reason = reason;
    }

    fn down(&self, reason: String) {
        let mut part = self.part();
        let is_news = part.reason.as_ref() != Some(&reason);
        "down".clone_into(&mut part.state);
        part.process = None;
        part.reason = Some(reason.clone());
        drop(part);
        if is_news {
            tracing::error!(reason, "SMB is not served; everything else is");
        }
    }
}

impl SmbService {
    /// Begins to serve SMB. What is in the way is shown by [`Self::part`].
    pub fn start(env: &Env, config: &Config, smb: &SmbSection, volume: Volume) -> Self {
        let part = SmbPart {
            state: "starting".into(),
            address: std::net::SocketAddr::new(smb.listen, smb.port).to_string(),
            shares: samba_config::shared(config)
                .map(|(_, share)| share.share.clone())
                .collect(),
            encryption_required: smb.encryption == super::section::Encryption::Required,
            exclusive: smb.exclusive,
            domain: smb.domain.as_ref().map(|domain| DomainPart {
                name: domain.name.clone(),
                state: "starting".into(),
                ..DomainPart::default()
            }),
            lists_directories: !samba_config::asks_for_names(smb),
            ..SmbPart::default()
        };
        let shared = Arc::new(Shared {
            port: smb.port,
            part: Mutex::new(part),
            mount: Mutex::new(None),
        });
        let (ending, ended) = watch::channel(false);
        let supervisor = Supervisor {
            env: env.clone(),
            config: config.clone(),
            smb: smb.clone(),
            paths: Paths::new(&config.volume.state_directory),
            volume,
            shared: shared.clone(),
            ending: ended,
        };
        Self {
            env: env.clone(),
            shared,
            ending,
            task: env.spawn("smb", supervisor.supervise()),
        }
    }

    /// This moment.
    pub fn part(&self) -> SmbPart {
        let mount = self.shared.mount().as_ref().map(crate::serve::mount_part);
        let part = self.shared.part().clone();
        let connections = if part.is_serving() {
            connections::count(self.shared.port)
        } else {
            0
        };
        SmbPart {
            connections,
            mount,
            ..part
        }
    }

    /// Ends smbd, then the mount under it.
    pub async fn end(self) {
        let _ = self.ending.send(true);
        if self.env.timeout(END_WITHIN, self.task).await.is_err() {
            tracing::warn!("smbd does not end; the next start ends it");
        }
    }
}

struct Supervisor {
    env: Env,
    config: Config,
    smb: SmbSection,
    paths: Paths,
    volume: Volume,
    shared: Arc<Shared>,
    ending: watch::Receiver<bool>,
}

/// The edge ends.
struct Ending;

impl Supervisor {
    async fn supervise(self) {
        let mut failures = 0;
        loop {
            let began = self.env.now();
            match self.attempt().await {
                Ok(reason) => self.shared.down(reason),
                Err(Ending) => break,
            }
            failures = if self.lasted(began) { 1 } else { failures + 1 };
            if self
                .unless_ending(BACKOFF.wait(&self.env, failures))
                .await
                .is_err()
            {
                break;
            }
        }
        let mount = self.shared.mount().take();
        if let Some(mount) = mount {
            mount.unmount().await;
        }
        self.shared.set("ended", None);
    }

    fn lasted(&self, began: Monotonic) -> bool {
        self.env.now().since(began) >= SOUND_AFTER
    }

    async fn unless_ending<T>(&self, work: impl Future<Output = T>) -> Result<T, Ending> {
        let mut ending = self.ending.clone();
        let ended = pin!(ending.wait_for(|ending| *ending));
        match select(pin!(work), ended).await {
            Either::Left((value, _)) => Ok(value),
            // Also if whoever would say so is gone.
            Either::Right(_) => Err(Ending),
        }
    }

    /// One start of smbd, to its end and why it came.
    async fn attempt(&self) -> Result<String, Ending> {
        let reason = match self.unless_ending(self.prepare()).await? {
            Ok(degraded) => degraded,
            Err(reason) => return Ok(reason),
        };
        let mut running = match process::start(&self.smb, &self.paths).await {
            Ok(running) => running,
            Err(error) => {
                return Ok(format!(
                    "smbd cannot be started: {error} (setpriv and unshare of util-linux are needed)"
                ));
            }
        };
        self.shared.set("starting", None);
        self.shared.part().process = Some(running.id());
        let watched = self.unless_ending(self.watch(&mut running, reason)).await;
        match watched {
            Ok(Watched::Ended(why)) => {
                self.shared.part().failures += 1;
                Ok(why)
            }
            Ok(Watched::Silent(why)) => {
                self.shared.part().failures += 1;
                if !running.kill(&self.env).await {
                    tracing::warn!("an smbd that does not answer cannot be killed yet");
                }
                Ok(why)
            }
            Err(Ending) => {
                if !running.stop(&self.env).await {
                    tracing::warn!("smbd does not end before its mount does");
                }
                Err(Ending)
            }
        }
    }

    /// All that smbd needs. What is said does not keep it from serving.
    ///
    /// # Errors
    /// What does.
    async fn prepare(&self) -> Result<Option<String>, String> {
        if let Some(why) = super::section::unserved(&self.config).or_else(|| missing(&self.smb.program)) {
            return Err(why);
        }
        if !process::end_stale(&self.env, &self.paths).await {
            return Err(
                "an smbd that an earlier edge left does not end; it is ended with the machine".into(),
            );
        }
        let disk =
            |error: std::io::Error| format!("cannot write {}: {error}", self.paths.directory.display());
        self.paths.make().map_err(disk)?;
        self.mount().await?;
        self.paths.empty_run().map_err(disk)?;
        let table = Table::load(&self.paths).map_err(|error| error.to_string())?;
        write_files(&self.config, &self.smb, &self.paths, &table).map_err(disk)?;
        let degraded = self.check_passwords(&table).await?;
        self.check_joined().await?;
        self.shared.part().users = table.users.len() as u64;
        self.check_port().await?;
        Ok(degraded)
    }

    /// Whether smbd can have its port: it would not say so well.
    async fn check_port(&self) -> Result<(), String> {
        let (listen, port) = (self.smb.listen, self.smb.port);
        let Err(error) = TcpListener::bind((listen, port)) else {
            return Ok(());
        };
        if error.kind() != std::io::ErrorKind::AddrInUse {
            return Err(format!("cannot listen on port {port} of {listen}: {error}"));
        }
        let holders = self
            .env
            .compute(move || port_holders::holders(port, Transport::Tcp))
            .await;
        let who = match &holders[..] {
            [] => "which only root may see".into(),
            some => port_holders::listed(some),
        };
        let stop = match holders.iter().any(|holder| holder.name == "smbd") {
            true => "the distribution's own most likely: systemctl disable --now smbd nmbd",
            false => "stop it",
        };
        Err(format!(
            "port {port} is taken by another process, {who}: {stop}, or set another smb.port; SMB is served once the port is free"
        ))
    }

    /// Whether this machine has its account of the domain.
    async fn check_joined(&self) -> Result<(), String> {
        let Some(domain) = &self.smb.domain else {
            return Ok(());
        };
        if domain::is_joined(&self.env, &self.paths).await {
            return Ok(());
        }
        Err(format!(
            "this edge has no account in the domain {name}: firn-edge smb join {name}",
            name = domain.name
        ))
    }

    /// What the domain's state is while smbd runs; never completes.
    async fn watch_domain(&self, process: u32) {
        if let Some(domain) = &self.smb.domain {
            let set = |change: &dyn Fn(&mut DomainPart)| {
                if let Some(part) = &mut self.shared.part().domain {
                    change(part);
                }
            };
            domain::watch(&self.env, &self.paths, domain, process, set).await;
        }
        std::future::pending().await
    }

    async fn mount(&self) -> Result<(), String> {
        let lost = self
            .shared
            .mount()
            .as_ref()
            .is_some_and(|mount| !mount.status().is_mounted);
        if lost {
            let mount = self.shared.mount().take();
            if let Some(mount) = mount {
                mount.unmount().await;
            }
        }
        if self.shared.mount().is_some() {
            return Ok(());
        }
        let options = MountOptions {
            path: self.paths.mount(),
            source: format!("firn:{}", self.config.volume.name),
            read_only: self.config.volume.follow.is_some(),
            allow_other: true,
            protocol: LockProtocol::Smb,
            case_index: true,
            access_log: self.volume.access_log.clone(),
            durability: self.config.smb_durability(),
            cached_for: self.config.volume.cached_for(),
            on_failed_sync: Some(OnFailedSync(Arc::new(process::end_connection))),
        };
        let Volume {
            vfs,
            locks,
            changes,
            origin,
            ..
        } = &self.volume;
        let started = Mount::start(&self.env, options, vfs.clone(), locks.clone(), changes, *origin).await;
        let mount = started.map_err(|error| format!("the private mount that smbd works on: {error}"))?;
        *self.shared.mount() = Some(mount);
        Ok(())
    }

    /// Whether Samba's passwords can be read, and everybody of the table has one.
    async fn check_passwords(&self, table: &Table) -> Result<Option<String>, String> {
        if table.users.is_empty() && self.smb.domain.is_some() {
            return Ok(None);
        }
        if table.users.is_empty() {
            return Ok(Some(
                "nobody can log in: add a user with firn-edge smb user add".into(),
            ));
        }
        let path = self.paths.passdb();
        let named = tools::names(&self.env, &self.paths).await.map_err(|error| {
            format!(
                "Samba's table of passwords {} is damaged ({error}): move it away and set the passwords anew, with firn-edge smb user passwd",
                path.display()
            )
        })?;
        let without: Vec<&str> = table
            .users
            .iter()
            .map(|user| user.name.as_str())
            .filter(|name| !named.iter().any(|known| known == name))
            .collect();
        if without.is_empty() {
            return Ok(None);
        }
        let few: Vec<&str> = without.iter().take(8).copied().collect();
        Ok(Some(format!(
            "{} of {} users have no password in {} and cannot log in ({}): set it with firn-edge smb user passwd",
            without.len(),
            table.users.len(),
            path.display(),
            few.join(", ")
        )))
    }

    /// Until smbd ends, or does not answer any more.
    async fn watch(&self, running: &mut Running, degraded: Option<String>) -> Watched {
        let began = self.env.now();
        let address = probe::own_address(self.smb.listen);
        let asked = async {
            let mut unanswered = 0;
            let mut serves = false;
            loop {
                let answer = self
                    .env
                    .timeout(ANSWER_WITHIN, probe::ask(&self.env, address, self.smb.port))
                    .await;
                let why = match answer {
                    Ok(Ok(())) => None,
                    // It answers by closing: a question is one connection more than it takes.
                    Ok(Err(_)) if serves && self.is_full() => {
                        self.shared.part().reason = Some(format!(
                            "all {} connections are in use, others are refused: raise smb.connections",
                            self.smb.connections
                        ));
                        self.env.sleep(ASK_EVERY).await;
                        continue;
                    }
                    Ok(Err(error)) => Some(error.to_string()),
                    Err(_) => Some(format!("no answer within {} s", ANSWER_WITHIN.as_secs())),
                };
                match (why, serves) {
                    (None, false) => {
                        serves = true;
                        self.shared.set("serving", degraded.clone());
                        if let Some(reason) = &degraded {
                            tracing::warn!(reason, "SMB is served, and something is wrong");
                        }
                        tracing::info!(port = self.smb.port, "SMB is served");
                    }
                    (None, true) => {
                        unanswered = 0;
                        self.shared.part().reason.clone_from(&degraded);
                    }
                    (Some(why), false) if self.env.now().since(began) >= START_WITHIN => {
                        return format!("smbd was started and does not answer: {why}");
                    }
                    (Some(_), false) => {}
                    (Some(why), true) => {
                        unanswered += 1;
                        tracing::warn!(why, unanswered, "smbd does not answer");
                        if unanswered >= UNANSWERED_MAX {
                            return format!("smbd did not answer {unanswered} times ({why}), and was ended");
                        }
                    }
                }
                self.env
                    .sleep(if serves { ASK_EVERY } else { START_ASK_EVERY })
                    .await;
            }
        };
        let process = running.id();
        let asked = async {
            match select(pin!(asked), pin!(self.watch_domain(process))).await {
                Either::Left((why, _)) => why,
                Either::Right(((), _)) => unreachable!("it never completes"),
            }
        };
        match select(pin!(running.ended()), pin!(asked)).await {
            Either::Left((Ok(status), _)) => {
                Watched::Ended(format!("smbd ended: {status}{}", self.last_words()))
            }
            Either::Left((Err(error), _)) => Watched::Ended(format!("smbd ended: {error}")),
            Either::Right((why, _)) => Watched::Silent(why),
        }
    }

    /// Whether as many clients are connected as may be.
    fn is_full(&self) -> bool {
        connections::count(self.smb.port) >= u64::from(self.smb.connections)
    }

    /// What smbd, or what starts it, said before it had a log.
    fn last_words(&self) -> String {
        let said = std::fs::read_to_string(self.paths.start_log()).unwrap_or_default();
        match said.lines().rev().find(|line| !line.trim().is_empty()) {
            Some(line) => format!(" ({}); more in {}", line.trim(), self.paths.log().display()),
            None => format!("; more in {}", self.paths.log().display()),
        }
    }
}

/// What became of a running smbd.
enum Watched {
    Ended(String),
    Silent(String),
}

/// Whom the C library asks for names, in smbd's own table of mounts, with a domain.
const NAME_SERVICE: &str = "passwd: files winbind\ngroup: files winbind\nhosts: files dns\n";

/// Writes what smbd and Samba's tools read: configuration and accounts.
pub fn write_files(config: &Config, smb: &SmbSection, paths: &Paths, table: &Table) -> std::io::Result<()> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let machine = samba_config::netbios_name(host.trim());
    users::replace(
        &paths.configuration(),
        samba_config::text(config, smb, paths, &machine).as_bytes(),
    )?;
    match &smb.domain {
        Some(_) => users::replace_for_all(&paths.name_service(), NAME_SERVICE.as_bytes())?,
        None => match std::fs::remove_file(paths.name_service()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        },
    }
    users::write_accounts(paths, &samba_config::accounts(config, table))
}

//! Machines that are processes of this machine: for laptops, for tests, and for a single large machine with many disks.
//!
//! ```text
//! <directory>/<node>/user-data   the script, readable by its owner only
//! <directory>/<node>/lock        locked for as long as the process lives: it inherits the lock as its standard input
//! <directory>/<node>/process     its process id, which it writes itself before it begins
//! <directory>/<node>/log         what it says
//! ```
//!
//! A process has nothing of the service's environment, in which its credentials are. What nodes need there (credentials of their
//! cluster's table, a level of logging) is given to the service with `FIRN_NODE_ENV_` before its name, and to nodes without.
//!
//! A process id may be another process's one day, but only once the lock is free. And as the lock is taken before the process is
//! made, a service that dies in between leaves no process that the next one does not find.

use super::{Machine, NodePlan, NodeProvisioner, ProvisionError};
use async_trait::async_trait;
use firn_env::Env;
use firn_identity::{NodeId, TenantId};
use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, kill_process},
};
use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io,
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    os::unix::{fs::OpenOptionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

/// A node that is told to end makes its journal durable; after this it is killed, which it survives as well.
const END_TIMEOUT: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(50);

/// See the module.
pub struct Processes {
    env: Env,
    directory: PathBuf,
    program: PathBuf,
    /// Who looks whether a lock is free holds it for that moment; nobody of this service is to take that for a process.
    exclusive: Mutex<()>,
}

fn unavailable(path: &Path) -> impl Fn(io::Error) -> ProvisionError + '_ {
    move |error| ProvisionError::Unavailable(format!("{}: {error}", path.display()))
}

/// What stands before the names of variables that are for nodes.
const NODE_ENVIRONMENT: &str = "FIRN_NODE_ENV_";

/// The environment of a node: where programs are, and what was meant for it.
fn node_environment() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter_map(|(name, value)| {
        if name == "PATH" {
            return Some((name, value));
        }
        let meant = name.to_str()?.strip_prefix(NODE_ENVIRONMENT)?;
        Some((meant.into(), value))
    })
}

/// Writes its own process id, then becomes the script.
const BEGIN: &str =
    r#"echo $$ > "$1/process.new" && mv "$1/process.new" "$1/process" && exec /bin/sh "$1/user-data""#;

impl Processes {
    /// Runs `program` (a `firn-blockd`) for each node, below `directory`.
    pub fn new(env: &Env, directory: &Path, program: &Path) -> Self {
        Self {
            env: env.clone(),
            directory: directory.to_owned(),
            program: program.to_owned(),
            exclusive: Mutex::new(()),
        }
    }

    fn exclusive(&self) -> MutexGuard<'_, ()> {
        self.exclusive.lock().expect("no panic under this lock")
    }

    fn place(&self, node: NodeId) -> PathBuf {
        self.directory.join(node.to_string())
    }

    /// The lock of a node's process: taken now, or `None` because it runs.
    fn lock(&self, node: NodeId) -> io::Result<Option<File>> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .read(true)
            .open(self.place(node).join("lock"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The process of a node that runs; `None` if it does not.
    fn running(&self, node: NodeId) -> Result<Option<Pid>, ProvisionError> {
        let place = self.place(node);
        let _guard = self.exclusive();
        match self.lock(node) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unavailable(&place)(error)),
            Ok(Some(_)) => return Ok(None),
            Ok(None) => {}
        }
        let text = fs::read_to_string(place.join("process")).map_err(unavailable(&place))?;
        let pid = text.trim().parse().ok().and_then(Pid::from_raw);
        let wrong = || ProvisionError::Unavailable(format!("{}: no process id", place.display()));
        pid.map(Some).ok_or_else(wrong)
    }

    fn start(&self, plan: &NodePlan) -> Result<(), ProvisionError> {
        let place = self.place(plan.node);
        let failed = unavailable(&place);
        let _guard = self.exclusive();
        fs::create_dir_all(&place).map_err(&failed)?;
        let Some(lock) = self.lock(plan.node).map_err(&failed)? else {
            return Ok(());
        };
        match fs::remove_file(place.join("process")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
        let file = |name: &str| {
            let mut options = OpenOptions::new();
            options.create(true).truncate(true).write(true).mode(0o600);
            options.open(place.join(name))
        };
        file("user-data")
            .and_then(|mut out| out.write_all(plan.user_data.as_bytes()))
            .map_err(&failed)?;
        let log = file("log").map_err(&failed)?;
        let again = log.try_clone().map_err(&failed)?;
        let address = free_address().map_err(&failed)?;
        let child = Command::new("/bin/sh")
            .args(["-c", BEGIN, "firn-node"])
            .arg(&place)
            .env_clear()
            .envs(node_environment())
            .env("FIRN_NODE_DIRECTORY", place.join("node"))
            .env("FIRN_NODE_LISTEN", address.to_string())
            .env("FIRN_NODE_ADVERTISE", address.to_string())
            .env("FIRN_BLOCKD", &self.program)
            .stdin(Stdio::from(lock))
            .stdout(log)
            .stderr(again)
            // It outlives the service, as a machine would: a signal to the service's group is not for it.
            .process_group(0)
            .spawn()
            .map_err(&failed)?;
        self.reap(child);
        Ok(())
    }

    /// Takes note of its end, so that nothing of it is left while the service lives.
    fn reap(&self, mut child: std::process::Child) {
        let env = self.env.clone();
        drop(self.env.spawn("reap", async move {
            while matches!(child.try_wait(), Ok(None)) {
                env.sleep(Duration::from_millis(200)).await;
            }
        }));
    }
}

/// An address that is free now, and nobody else's until the node takes it, as far as one can know.
fn free_address() -> io::Result<SocketAddr> {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

#[async_trait]
impl NodeProvisioner for Processes {
    async fn launch(&self, plan: &NodePlan) -> Result<Machine, ProvisionError> {
        self.start(plan)?;
        Ok(Machine {
            node: plan.node,
            name: self.place(plan.node).display().to_string(),
        })
    }

    async fn machines(&self, _tenant: TenantId) -> Result<Vec<Machine>, ProvisionError> {
        let failed = unavailable(&self.directory);
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(&failed)?,
        };
        let mut machines = Vec::new();
        let _guard = self.exclusive();
        for entry in entries {
            let name = entry.map_err(&failed)?.file_name();
            let Some(node) = name.to_str().and_then(|name| name.parse::<NodeId>().ok()) else {
                continue;
            };
            if self.lock(node).map_err(&failed)?.is_none() {
                machines.push(Machine {
                    node,
                    name: self.place(node).display().to_string(),
                });
            }
        }
        Ok(machines)
    }

    async fn terminate(&self, _tenant: TenantId, node: NodeId) -> Result<(), ProvisionError> {
        let (mut waited, mut told) = (Duration::ZERO, None);
        while let Some(pid) = self.running(node)? {
            let signal = if waited < END_TIMEOUT {
                Signal::TERM
            } else {
                Signal::KILL
            };
            if told != Some(signal) {
                // One that ended meanwhile gives its lock back, which the next look sees.
                let _ = kill_process(pid, signal);
                told = Some(signal);
            }
            if waited > 2 * END_TIMEOUT {
                return Err(ProvisionError::Unavailable(format!(
                    "process {pid:?} does not end"
                )));
            }
            self.env.sleep(LOOK).await;
            waited += LOOK;
        }
        // With the machine its disk is gone.
        match fs::remove_dir_all(self.place(node)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(unavailable(&self.place(node))(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

//! Lock manager and status monitor as one service, in the order a restart needs.

use super::{LockManager, NlmProgram, grant::Grants};
use crate::{
    exports::Exports,
    nsm::{Monitor, MonitorConfig, MonitorStatus, NsmProgram},
    rpc::Program,
};
use firn_env::{DiskError, Env};
use firn_session::{BrokenLock, ByteRange, LockClient, LockCounts, LockOwner, LockTable};
use firn_vfs::FileHandle;
use std::sync::Arc;

/// What the status page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LockServiceStatus {
    /// Of the lock table, all protocols together.
    pub locks: LockCounts,
    /// Of the clients of NLM.
    pub clients: MonitorStatus,
}

/// NLM and NSM over one lock table.
///
/// 1. [`start`](Self::start) reads who held locks and opens the grace period;
/// 2. the [`programs`](Self::programs) are served, and known to the port mapper;
/// 3. [`announce`](Self::announce) tells the clients, who come at once to reclaim.
pub struct LockService {
    monitor: Arc<Monitor>,
    table: LockTable,
    manager: Arc<LockManager>,
    programs: Vec<Arc<dyn Program>>,
}

impl LockService {
    /// Prepares the service for the files of `exports`; nothing is sent yet.
    ///
    /// # Errors
    /// If the disk fails.
    pub async fn start(
        env: &Env,
        exports: Arc<Exports>,
        table: LockTable,
        config: MonitorConfig,
    ) -> Result<Self, DiskError> {
        let monitor = Monitor::start(env, table.clone(), config).await?;
        let manager = Arc::new(LockManager {
            env: env.clone(),
            exports: exports.clone(),
            table: table.clone(),
            monitor: monitor.clone(),
            grants: Grants::default(),
        });
        let programs: Vec<Arc<dyn Program>> = vec![
            Arc::new(NlmProgram::new(manager.clone())),
            Arc::new(NsmProgram::new(monitor.clone(), exports)),
        ];
        Ok(Self {
            monitor,
            table,
            manager,
            programs,
        })
    }

    /// What to serve, by stream and by datagram.
    pub fn programs(&self) -> Vec<Arc<dyn Program>> {
        self.programs.clone()
    }

    /// Tells clients that held locks that we are back, and begins to count the grace period.
    pub fn announce(&self) {
        self.monitor.announce();
    }

    /// The status monitor.
    pub fn monitor(&self) -> &Arc<Monitor> {
        &self.monitor
    }

    /// Takes away what `client`, of whatever protocol, holds in a file, and serves those who wait for it. Gives the owners, who are
    /// not told: nothing in NLM would say it.
    pub fn break_locks(&self, file: FileHandle, client: &LockClient) -> Vec<LockOwner> {
        let owners = self.table.break_locks(file, client);
        for owner in &owners {
            // Of a lock whose grant is still on its way, the client would believe that it holds it.
            let grants = &self.manager.grants;
            grants.settle(&self.table, file, owner, ByteRange::ALL);
        }
        owners
    }

    /// Tells the clients of NLM whose locks another office broke.
    pub async fn tell_broken(&self, broken: &[BrokenLock]) {
        for BrokenLock { file, owner } in broken {
            let grants = &self.manager.grants;
            grants.settle(&self.table, *file, owner, ByteRange::ALL);
        }
        let clients = broken.iter().map(|lock| lock.owner.client.clone()).collect();
        if let Err(error) = self.monitor.locks_broken(&clients).await {
            tracing::warn!(%error, "clients could not be told that their locks were broken");
        }
    }

    /// Counts.
    pub fn status(&self) -> LockServiceStatus {
        LockServiceStatus {
            locks: self.table.counts(),
            clients: self.monitor.status(),
        }
    }
}

//! The NFS server of this edge: one, over all exports of all volumes, with one lock table.
//!
//! It is there for as long as the process is. Volumes come and go under it ([`crate::volumes`]): while one is away its exports are answered
//! "try again later", so that a volume that is opened anew, or has failed, costs the clients of the others no connection and no lock.
//!
//! The lock table's keys are a volume's number and a file's, so volumes do not meet in it, and what clients may hold is bounded once.

use crate::{
    access_log, bounds,
    config::{Config, EdgeConfig, ExportSection},
    failure::Failure,
    junctions,
    snapshot::{LocksPart, MountPart, NfsPart, OperationPart, TurnedPart, add_buckets},
};
use firn_access_log::AccessLog;
use firn_env::Env;
use firn_nfs::{
    ClientRule, Export, Exports, HandleKey, NfsService, PortMapping, ServiceConfig, nlm::LockService,
    nsm::MonitorConfig,
};
use firn_session::{BrokenLock, LockClient, LockLimits, LockOwner, LockTable};
use firn_vfs::FileHandle;
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

/// Mounts listed one by one.
const MOUNTS_MAX: usize = 256;

/// See the module.
pub struct NfsServer {
    exports: Arc<Exports>,
    table: LockTable,
    /// Kept: with it ends the watch on clients that hold locks.
    locks: LockService,
    service: Mutex<Option<NfsService>>,
}

impl NfsServer {
    /// Prepares to serve: all exports are away, and who held locks before the start has to reclaim them. `env` has the edge's own
    /// directory, whose lock the caller holds.
    ///
    /// # Errors
    /// [`Failure`] if the disk fails.
    pub async fn prepare(
        env: &Env,
        edge: &EdgeConfig,
        access_log: Option<&AccessLog>,
    ) -> Result<Self, Failure> {
        // Each volume has the key of its own handles.
        let key = HandleKey::new(&env.random_bytes());
        let exports = Exports::new(key, exports(edge, access_log)?).map_err(Failure::usage)?;
        let exports = Arc::new(junctions::add(exports, edge).map_err(Failure::usage)?);
        let monitor = MonitorConfig {
            grace: edge.common().grace(),
            ..MonitorConfig::default()
        };
        let table = LockTable::new(LockLimits::default());
        let locks = LockService::start(env, exports.clone(), table.clone(), monitor)
            .await
            .map_err(Failure::new)?;
        Ok(Self {
            exports,
            table,
            locks,
            service: Mutex::default(),
        })
    }

    /// Serves from now on; gives the address.
    ///
    /// # Errors
    /// [`Failure`] if a port cannot be had.
    pub async fn start(&self, env: &Env, edge: &EdgeConfig) -> Result<String, Failure> {
        let nfs = &edge.common().nfs;
        let service = ServiceConfig {
            address: format!("{}:{}", nfs.listen, nfs.nfs_port),
            mount_address: nfs.mount_port.map(|port| format!("{}:{port}", nfs.listen)),
            port_mapping: if nfs.portmap {
                PortMapping::Auto(format!("{}:111", nfs.listen))
            } else {
                PortMapping::None
            },
            limits: bounds::limits(nfs),
            slow_call: Some(edge.common().log.slow_call.0).filter(|limit| !limit.is_zero()),
            ..ServiceConfig::default()
        };
        let service = NfsService::start(env, service, self.exports.clone(), self.locks.programs())
            .await
            .map_err(Failure::new)?;
        // What was published since the service looked.
        for export in self.exports.iter() {
            if let Some(vfs) = export.vfs() {
                service.recover(&*vfs);
            }
        }
        let address = service.address().to_owned();
        *self.service() = Some(service);
        self.locks.announce();
        Ok(address)
    }

    fn service(&self) -> MutexGuard<'_, Option<NfsService>> {
        self.service.lock().expect("no panic under this lock")
    }

    /// Asks the service something; none if it does not serve.
    pub fn ask<T>(&self, question: impl FnOnce(&NfsService) -> T) -> Option<T> {
        self.service().as_ref().map(question)
    }

    /// Its part of a snapshot, with the mounts of what is under `exports`, or all; empty if it does not serve.
    pub fn part(&self, exports: Option<&[String]>) -> NfsPart {
        let counts = self.table.counts();
        NfsPart {
            locks: LocksPart {
                held: counts.locks as u64,
                waiting: counts.waiters as u64,
                clients: counts.clients as u64,
                in_grace: self.table.in_grace(),
            },
            junctions: junctions::parts(self, exports),
            ..self.ask(|service| part(service, exports)).unwrap_or_default()
        }
    }

    /// All exports, as they are served.
    pub fn exports(&self) -> &Exports {
        &self.exports
    }

    /// The locks of all protocols.
    pub fn table(&self) -> LockTable {
        self.table.clone()
    }

    /// Takes away what a client holds in a file; gives its owners, who are not told.
    pub fn break_locks(&self, file: FileHandle, client: &LockClient) -> Vec<LockOwner> {
        self.locks.break_locks(file, client)
    }

    /// Tells the clients whose locks another office broke, where their protocol has words for it.
    pub async fn tell_broken(&self, broken: &[BrokenLock]) {
        self.locks.tell_broken(broken).await;
    }

    /// Calls about files of the exports with these paths, or of all, since the process began.
    pub fn calls(&self, exports: Option<&[String]>) -> u64 {
        let is_asked = |export: &&Arc<Export>| {
            let same = |path: &String| Export::checked_path(path) == Ok(export.path());
            exports.is_none_or(|exports| exports.iter().any(same))
        };
        self.exports
            .iter()
            .filter(is_asked)
            .map(|export| export.calls())
            .sum()
    }

    /// The exports of these sections.
    pub fn exports_of(&self, sections: &[ExportSection]) -> Vec<Arc<Export>> {
        let is_asked = |export: &&Arc<Export>| {
            let same = |section: &ExportSection| Export::checked_path(&section.path) == Ok(export.path());
            sections.iter().any(same)
        };
        self.exports.iter().filter(is_asked).cloned().collect()
    }

    /// Takes no more calls, and answers those under way.
    pub async fn shutdown(&self) {
        let service = self.service().take();
        if let Some(service) = service {
            service.shutdown().await;
        }
    }
}

/// The exports of all volumes, away.
///
/// # Errors
/// [`Failure`] if one cannot be.
pub fn exports(edge: &EdgeConfig, access_log: Option<&AccessLog>) -> Result<Vec<Export>, Failure> {
    let sections = edge
        .volumes
        .iter()
        .flat_map(|config| config.exports.iter().map(move |section| (section, config)));
    sections
        .map(|(section, config)| export(section, config, access_log))
        .collect()
}

/// The export of a section; everybody only reads what another edge owns.
fn export(
    section: &ExportSection,
    config: &Config,
    access_log: Option<&AccessLog>,
) -> Result<Export, Failure> {
    let is_followed = config.volume.follow.is_some();
    let rule = |network, read_only| ClientRule {
        network,
        read_only: read_only || is_followed,
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
    let mut export = Export::away(&section.path, writers.chain(readers).collect()).map_err(Failure::usage)?;
    let path = export.path().to_owned();
    if let Some(recorder) = access_log::recorder(access_log, config, section.access_log, Some(&path)) {
        export = export.with_access_log(recorder);
    }
    export = export.with_durability(config.durability(section.durability));
    Ok(match section.connections_per_client {
        Some(connections) => export.with_connections_per_client(connections),
        None => export,
    })
}

/// The server of all volumes, with the mounts of what is under `exports`.
fn part(service: &NfsService, exports: Option<&[String]>) -> NfsPart {
    let is_of = |path: &str, export: &String| Path::new(path).starts_with(export);
    let mounts = service
        .mounted()
        .into_iter()
        .filter(|(_, path)| exports.is_none_or(|exports| exports.iter().any(|export| is_of(path, export))))
        .take(MOUNTS_MAX)
        .map(|(client, path)| MountPart {
            client: client.to_string(),
            path,
        })
        .collect();
    // A program served by stream and by datagram is counted twice over; people see one.
    let mut operations: BTreeMap<(&str, &str), OperationPart> = BTreeMap::new();
    for counted in service
        .statistics()
        .into_iter()
        .filter(|counted| counted.calls > 0)
    {
        let operation = operations
            .entry((counted.program, counted.procedure))
            .or_default();
        operation.program = counted.program.into();
        operation.procedure = counted.procedure.into();
        operation.calls += counted.calls;
        operation.failed += counted.failed;
        operation.refused += counted.refused;
        operation.received_bytes += counted.received_bytes;
        operation.sent_bytes += counted.sent_bytes;
        operation.latency_sum_us += counted.latency_sum_us;
        add_buckets(&mut operation.latency, &counted.latency);
    }
    let turned = service.turned();
    NfsPart {
        address: service.address().to_owned(),
        connections: service.connections() as u64,
        turned: TurnedPart {
            strangers: turned.strangers,
            full: turned.full,
            failed: turned.failed,
            slow: turned.slow,
        },
        slow_calls: service.slow_calls(),
        locks: LocksPart::default(),
        junctions: Vec::new(),
        mounts,
        operations: operations.into_values().collect(),
    }
}

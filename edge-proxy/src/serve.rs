//! Servers of an opened volume: NFS to clients, mounts to processes of this machine, one lock table for both.

use crate::{
    bounds,
    config::{Config, MountSection},
    failure::Failure,
    parts::Outside,
    smb::{self, SmbPart, SmbService},
    snapshot::LocalMountPart,
};
use firn_fuse::{Mount, MountError, MountOptions};
use firn_nfs::{
    ClientRule, Export, Exports, HandleKey, NfsService, PortMapping, ServiceConfig, nlm::LockService,
    nsm::MonitorConfig,
};
use firn_session::{AnnouncingVfs, Changes, LockLimits, LockTable, Origin};
use firn_vfs::Vfs;
use firn_volume::Volume;
use std::sync::Arc;

/// Everything by which the volume is served.
pub struct Service {
    pub nfs: NfsService,
    /// Kept: with it ends the watch on clients that hold locks.
    _locks: LockService,
    mounts: Vec<Mount>,
    smb: Option<SmbService>,
    changes: Changes,
}

impl Service {
    /// Serves NFS, then mounts.
    ///
    /// # Errors
    /// [`Failure`]; nothing is served or mounted then.
    pub async fn start(
        config: &Config,
        outside: &Outside,
        handle_key: HandleKey,
        volume: &Volume,
    ) -> Result<Self, Failure> {
        let vfs: Arc<dyn Vfs> = Arc::new(if config.snapshots.visible {
            volume.listing_snapshots()
        } else {
            volume.clone()
        });
        let table = LockTable::new(LockLimits::default());
        let changes = Changes::new(&outside.env);
        // Without a mount nobody caches, and nobody need be told.
        let exported = if config.mounts.is_empty() && config.smb.is_none() {
            vfs.clone()
        } else {
            Arc::new(AnnouncingVfs::new(vfs.clone(), changes.clone(), Origin::NFS))
        };
        let (nfs, locks) = serve_nfs(config, outside, handle_key, exported, table.clone()).await?;
        let mut service = Self {
            nfs,
            _locks: locks,
            mounts: Vec::new(),
            smb: None,
            changes: changes.clone(),
        };
        for (number, section) in (1..).zip(&config.mounts) {
            let options = options(config, section);
            let (vfs, table) = (vfs.clone(), table.clone());
            match Mount::start(&outside.env, options, vfs, table, &changes, Origin(number)).await {
                Ok(mount) => service.mounts.push(mount),
                Err(error) => {
                    service.end().await;
                    return Err(refused(error));
                }
            }
        }
        service.smb = config.smb.as_ref().map(|section| {
            let origin = Origin(
                u32::try_from(config.mounts.len())
                    .unwrap_or(u32::MAX)
                    .saturating_add(1),
            );
            let volume = smb::Volume {
                // Previous versions are asked for by their times.
                vfs: Arc::new(volume.naming_snapshots_by_time()),
                locks: table,
                changes,
                origin,
            };
            SmbService::start(&outside.env, config, section, volume)
        });
        Ok(service)
    }

    /// Where NFS is served.
    pub fn address(&self) -> &str {
        self.nfs.address()
    }

    /// The mounts, for the status page.
    pub fn mounts(&self) -> Vec<LocalMountPart> {
        self.mounts.iter().map(mount_part).collect()
    }

    /// SMB, for the status page; `None` if the configuration has none.
    pub fn smb(&self) -> Option<SmbPart> {
        self.smb.as_ref().map(SmbService::part)
    }

    /// Who caches what of the volume.
    pub fn changes(&self) -> Changes {
        self.changes.clone()
    }

    /// Unmounts, and answers what clients have asked.
    pub async fn end(self) {
        if let Some(smb) = self.smb {
            smb.end().await;
        }
        for mount in self.mounts {
            mount.unmount().await;
        }
        self.nfs.shutdown().await;
    }
}

fn options(config: &Config, section: &MountSection) -> MountOptions {
    MountOptions {
        path: section.path.clone(),
        source: format!("firn:{}", config.volume.name),
        read_only: section.read_only,
        allow_other: section.allow_other,
    }
}

fn refused(error: MountError) -> Failure {
    let message = format!("[[mount]]: {error}");
    match error {
        // What only an administrator can change.
        MountError::NoDevice(_)
        | MountError::NotPermitted { .. }
        | MountError::NoDirectory { .. }
        | MountError::Kernel(_) => Failure::usage(message),
        MountError::InUse { .. } | MountError::Failed { .. } => Failure::new(message),
    }
}

pub(crate) fn mount_part(mount: &Mount) -> LocalMountPart {
    let status = mount.status();
    LocalMountPart {
        path: status.path.display().to_string(),
        read_only: status.read_only,
        is_mounted: status.is_mounted,
        open_files: status.opens.opens as u64,
        known_files: status.nodes as u64,
        requests: status.requests,
        invalidations: status.invalidations.delivered,
        rescans: status.invalidations.rescans,
        is_stalled: status.invalidations.stalled,
    }
}

async fn serve_nfs(
    config: &Config,
    outside: &Outside,
    handle_key: HandleKey,
    vfs: Arc<dyn Vfs>,
    table: LockTable,
) -> Result<(NfsService, LockService), Failure> {
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
    let locks = LockService::start(&outside.env, exports.clone(), table, monitor)
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
        slow_call: Some(config.log.slow_call.0).filter(|limit| !limit.is_zero()),
        ..ServiceConfig::default()
    };
    let service = NfsService::start(&outside.env, service, exports, locks.programs())
        .await
        .map_err(Failure::new)?;
    locks.announce();
    Ok((service, locks))
}

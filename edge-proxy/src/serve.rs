//! Servers of an opened volume beside NFS: mounts to processes of this machine, SMB; one lock table for all.

use crate::{
    access_log::{self, AccessLogPart, SmbPeers},
    config::{Config, MountSection},
    failure::Failure,
    parts::Outside,
    smb::{self, SmbPart, SmbService},
    snapshot::{CaseIndexPart, LocalMountPart, TrafficPart},
};
use firn_access_log::{AccessLog, Resolving};
use firn_env::Env;
use firn_fuse::{Mount, MountError, MountOptions, MountRecorder};
use firn_session::{AnnouncingVfs, Changes, LockProtocol, LockTable, Origin};
use firn_vfs::{Vfs, VfsLayer};
use firn_volume::{FollowerVfs, Volume};
use std::sync::Arc;

/// Everything by which the volume is served, but NFS.
pub struct Service {
    mounts: Vec<Mount>,
    smb: Option<SmbService>,
    changes: Changes,
    access_log: Option<AccessLog>,
    _resolving: Option<Resolving>,
}

impl Service {
    /// Mounts, and serves SMB. Gives the volume as NFS shall have it, of which there is no other copy.
    ///
    /// # Errors
    /// [`Failure`]; nothing is mounted then.
    pub async fn start(
        config: &Config,
        outside: &Outside,
        (table, access_log): (LockTable, Option<&AccessLog>),
        volume: &Volume,
    ) -> Result<(Self, Arc<dyn Vfs>), Failure> {
        let shown = match config.snapshots.visible {
            true => volume.listing_snapshots(),
            false => volume.clone(),
        };
        let vfs: Arc<dyn Vfs> = match volume.is_follower() {
            true => Arc::new(FollowerVfs::new(shown)),
            false => Arc::new(shown),
        };
        let changes = Changes::new(&outside.env);
        // Without a mount nobody caches, and nobody need be told.
        let exported: Arc<dyn Vfs> = if config.mounts.is_empty() && config.smb.is_none() {
            Arc::new(ExportedVolume(vfs.clone()))
        } else {
            Arc::new(AnnouncingVfs::new(vfs.clone(), changes.clone(), Origin::NFS))
        };
        let mut service = Self {
            mounts: Vec::new(),
            smb: None,
            changes: changes.clone(),
            access_log: access_log.cloned(),
            _resolving: access_log::resolve(access_log, config, volume),
        };
        for (number, section) in (1..).zip(&config.mounts) {
            let options = mount_options(config, section, access_log);
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
                access_log: smb_recorder(&outside.env, access_log, config),
            };
            SmbService::start(&outside.env, config, section, volume)
        });
        Ok((service, exported))
    }

    /// The mounts, for the status page.
    pub fn mounts(&self) -> Vec<LocalMountPart> {
        self.mounts.iter().map(mount_part).collect()
    }

    /// SMB, for the status page; `None` if the configuration has none.
    pub fn smb(&self) -> Option<SmbPart> {
        self.smb.as_ref().map(SmbService::part)
    }

    /// The access log of the edge, for the status page; `None` if nothing is logged.
    pub fn access_log(&self) -> Option<AccessLogPart> {
        self.access_log.as_ref().map(AccessLogPart::new)
    }

    /// Who caches what of the volume.
    pub fn changes(&self) -> Changes {
        self.changes.clone()
    }

    /// Ends SMB, unmounts, and writes what the access log has of the volume.
    pub async fn end(self) {
        if let Some(smb) = self.smb {
            smb.end().await;
        }
        for mount in self.mounts {
            mount.unmount().await;
        }
        if let Some(access_log) = self.access_log {
            access_log.flush().await;
        }
    }
}

/// The volume itself, in an `Arc` of its own: the exports' copies of it are the calls under way.
struct ExportedVolume(Arc<dyn Vfs>);

impl VfsLayer for ExportedVolume {
    fn below(&self) -> &dyn Vfs {
        &*self.0
    }
}

pub(crate) fn mount_options(
    config: &Config,
    section: &MountSection,
    access_log: Option<&AccessLog>,
) -> MountOptions {
    let path = section.path.display().to_string();
    let recorder = access_log::recorder(access_log, config, section.access_log, Some(&path));
    MountOptions {
        path: section.path.clone(),
        source: format!("firn:{}", config.volume.name),
        read_only: section.read_only,
        allow_other: section.allow_other,
        protocol: LockProtocol::Local,
        case_index: false,
        access_log: recorder.map(|recorder| MountRecorder {
            recorder,
            address_of: None,
        }),
        durability: config.durability(section.durability),
        on_failed_sync: None,
    }
}

fn smb_recorder(env: &Env, access_log: Option<&AccessLog>, config: &Config) -> Option<MountRecorder> {
    let recorder = access_log::smb_recorder(access_log, config)?;
    let peers = SmbPeers::new(env, config.smb.as_ref()?.port);
    Some(MountRecorder {
        recorder,
        address_of: Some(Arc::new(move |process| peers.address_of(process))),
    })
}

pub(crate) fn refused(error: MountError) -> Failure {
    let message = format!("[[mount]]: {error}");
    match error {
        // What only an administrator can change.
        MountError::NoDevice(_)
        | MountError::NotPermitted { .. }
        | MountError::NoHelper { .. }
        | MountError::Refused { .. }
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
        traffic: TrafficPart {
            operations: status.traffic.answered,
            failed: status.traffic.failed,
            received_bytes: status.traffic.received_bytes,
            sent_bytes: status.traffic.sent_bytes,
            latency_sum_us: status.traffic.latency_sum_us,
            latency: status.traffic.latency.to_vec(),
        },
        listings: status.listings,
        case_index: status.case_index.map(|index| CaseIndexPart {
            questions: index.questions,
            listings: index.listings,
            directories: index.directories,
            bytes: index.bytes,
        }),
        invalidations: status.invalidations.delivered,
        rescans: status.invalidations.rescans,
        is_stalled: status.invalidations.stalled,
    }
}

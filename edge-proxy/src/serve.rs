//! Servers of an opened volume beside NFS: mounts to processes of this machine, SMB; one lock table for all.

use crate::{
    access_log::{self, AccessLogPart, SmbPeers},
    config::{Config, MountSection},
    failure::Failure,
    life::Background,
    parts::Outside,
    smb::{self, SmbPart, SmbService},
    snapshot::{CaseIndexPart, LocalMountPart, TrafficPart},
};
use firn_access_log::AccessLog;
use firn_env::Env;
use firn_fuse::{Mount, MountError, MountOptions, MountRecorder};
use firn_session::{AnnouncingVfs, Changes, LockProtocol, LockTable, Origin};
use firn_vfs::{FileHandle, Vfs, VfsLayer};
use firn_volume::{ByInodeVfs, ChangedElsewhere, Elsewhere, FollowerVfs, Member, Volume};
use std::{sync::Arc, time::Duration};

/// Everything by which the volume is served, but NFS.
pub struct Service {
    mounts: Vec<Mount>,
    smb: Option<SmbService>,
    changes: Changes,
    access_log: Option<AccessLog>,
    /// Tells those who cache what other edges changed.
    _telling: Option<Background>,
}

/// What is served: it is this edge's or is followed, or changes its term under the service.
pub enum Served<'a> {
    Volume(&'a Volume),
    Member(&'a Member),
    /// Written beside other edges; reads are as fresh as this says.
    ByInode(&'a Volume, Duration),
}

impl Served<'_> {
    /// As mounts see it; `by_time`: with its snapshots under their times.
    fn for_mounts(&self, config: &Config, by_time: bool) -> Arc<dyn Vfs> {
        match self {
            Self::Member(member) if by_time => Arc::new(member.vfs().for_mounts().naming_snapshots_by_time()),
            Self::Member(member) => Arc::new(member.vfs().for_mounts()),
            Self::ByInode(volume, freshness) => Arc::new(ByInodeVfs::new((*volume).clone(), *freshness)),
            Self::Volume(volume) => {
                let shown = match (by_time, config.snapshots.visible) {
                    (true, _) => volume.naming_snapshots_by_time(),
                    (false, true) => volume.listing_snapshots(),
                    (false, false) => (*volume).clone(),
                };
                match volume.is_follower() {
                    true => Arc::new(FollowerVfs::new(shown)),
                    false => Arc::new(shown),
                }
            }
        }
    }

    /// As NFS sees it, whose clients wait by themselves.
    fn for_nfs(&self, config: &Config) -> Arc<dyn Vfs> {
        match self {
            Self::Member(member) => Arc::new(member.vfs()),
            Self::Volume(_) | Self::ByInode(..) => self.for_mounts(config, false),
        }
    }

    fn elsewhere(&self) -> Option<Elsewhere> {
        match self {
            Self::Volume(volume) | Self::ByInode(volume, _) => volume.elsewhere(),
            Self::Member(member) => Some(member.elsewhere()),
        }
    }
}

impl Service {
    /// Mounts, and serves SMB.
    ///
    /// # Errors
    /// [`Failure`]; nothing is mounted then.
    pub async fn start(
        config: &Config,
        outside: &Outside,
        (table, access_log): (LockTable, Option<&AccessLog>),
        served: &Served<'_>,
    ) -> Result<Self, Failure> {
        let vfs = served.for_mounts(config, false);
        let changes = Changes::new(&outside.env);
        let elsewhere = served.elsewhere().filter(|_| caches(config));
        let telling = elsewhere.map(|elsewhere| {
            elsewhere.listen();
            let telling = tell(elsewhere, changes.clone(), vfs.root());
            Background::new(outside.env.spawn("tell changes", telling))
        });
        let mut service = Self {
            mounts: Vec::new(),
            smb: None,
            changes: changes.clone(),
            access_log: access_log.cloned(),
            _telling: telling,
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
                vfs: served.for_mounts(config, true),
                locks: table,
                changes,
                origin,
                access_log: smb_recorder(&outside.env, access_log, config),
            };
            SmbService::start(&outside.env, config, section, volume)
        });
        Ok(service)
    }

    /// The volume as NFS shall have it, of which there is no other copy.
    pub fn exported(&self, config: &Config, served: &Served<'_>) -> Arc<dyn Vfs> {
        let vfs = served.for_nfs(config);
        match caches(config) {
            true => Arc::new(AnnouncingVfs::new(vfs, self.changes.clone(), Origin::NFS)),
            false => Arc::new(ExportedVolume(vfs)),
        }
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

/// Without a mount nobody caches, and nobody need be told.
fn caches(config: &Config) -> bool {
    !config.mounts.is_empty() || config.smb.is_some()
}

/// Has those who cache drop what other edges changed.
async fn tell(elsewhere: Elsewhere, changes: Changes, root: FileHandle) {
    loop {
        match elsewhere.next().await {
            ChangedElsewhere::Files(inodes) => {
                let files = inodes.into_iter().map(|inode| FileHandle { inode, ..root });
                changes.announce_elsewhere(files).await;
            }
            ChangedElsewhere::Anything => changes.announce_unknown().await,
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
        read_only: section.read_only || config.volume.follow.is_some(),
        allow_other: section.allow_other,
        protocol: LockProtocol::Local,
        case_index: false,
        access_log: recorder.map(|recorder| MountRecorder {
            recorder,
            address_of: None,
        }),
        durability: config.durability(section.durability),
        cached_for: config.volume.cached_for(),
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

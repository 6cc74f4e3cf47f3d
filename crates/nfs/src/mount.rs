//! MOUNT version 3 (RFC 1813 appendix I): from a path to the first file handle.
//!
//! A client mounts an export or a directory in it: the longest exported path that leads to the asked one is found, and
//! what is behind it is looked up in the volume, name by name, without following symbolic links (their targets are names
//! of the client's machine, not of ours), and through junctions into other exports, as far as their rules admit the client. What it gets is an ordinary handle; the list of who mounted what is for people
//! to read (`showmount`), nothing depends on it, and it does not outlive the server.

use crate::{
    exports::{Export, Exports, PATH_MAX_BYTES, who},
    handle::WireHandle,
    rpc::{Credential, Peer, Program, Refusal, Reply, Request},
    xdr::{Array, Decode, Encode, Encoder, Opaque, xdr_enum, xdr_struct},
};
use async_trait::async_trait;
use firn_env::{Backoff, Env, Retry};
use firn_vfs::{Caller, Credentials, FileHandle, FileKind, Name, VfsError};
use std::{
    collections::BTreeSet,
    net::IpAddr,
    ops::RangeInclusive,
    sync::{Arc, Mutex},
    time::Duration,
};
use tracing::{info, warn};

/// The MOUNT program number.
pub const PROGRAM: u32 = 100_005;
/// The only version that gives handles for NFS version 3.
pub const VERSION: u32 = 3;
/// Remembered mounts. The oldest names (in order of address) are not dropped: further mounts are just not listed.
const LISTED_MAX: usize = 4096;
/// RFC 1813 gives MOUNT no way to say "later", so it waits itself, as long as a mount command waits for its reply.
const RETRY: Retry = Retry::new(Backoff::constant(Duration::from_millis(500)), 20);
const AUTH_SYS: u32 = 1;

type Path = Opaque<PATH_MAX_BYTES>;

xdr_enum! {
    /// Why a mount was refused (mountstat3).
    pub enum MountStatus {
        /// It was not.
        Ok = 0,
        /// Only root may.
        NotPermitted = 1,
        /// No such export or directory.
        NoEntry = 2,
        /// Input or output failed.
        Io = 5,
        /// The client may not.
        AccessDenied = 13,
        /// Not a directory.
        NotDirectory = 20,
        /// Not a path.
        Invalid = 22,
        /// A name in the path is too long.
        NameTooLong = 63,
        /// Not supported.
        NotSupported = 10_004,
        /// The server failed.
        ServerFault = 10_006,
    }
}

xdr_struct! {
    /// A successful mount.
    pub struct Mounted {
        /// The directory's handle.
        pub handle: WireHandle,
        /// Credential flavours accepted.
        pub flavours: Array<u32, 16>,
    }

    /// A mount somebody made.
    pub struct MountEntry {
        /// The client's address.
        pub client: Opaque<255>,
        /// What it mounted.
        pub path: Path,
    }

    /// An export as clients see it.
    pub struct ExportEntry {
        /// Its path.
        pub path: Path,
        /// The networks it is served to.
        pub groups: Vec<Opaque<255>>,
    }
}

/// The MOUNT program.
pub struct MountProgram {
    env: Env,
    exports: Arc<Exports>,
    mounted: Mutex<BTreeSet<(IpAddr, String)>>,
}

impl MountProgram {
    /// Gives out handles of `exports`.
    pub fn new(env: &Env, exports: Arc<Exports>) -> Self {
        Self {
            env: env.clone(),
            exports,
            mounted: Mutex::default(),
        }
    }

    /// Who mounted what, as far as it is known.
    pub fn mounted(&self) -> Vec<(IpAddr, String)> {
        let mounted = self.mounted.lock().expect("no panic under this lock");
        mounted.iter().cloned().collect()
    }

    async fn mount(
        &self,
        peer: &Peer,
        credential: &Credential,
        path: &Path,
    ) -> Result<WireHandle, MountStatus> {
        let path = std::str::from_utf8(&path.0).map_err(|_| MountStatus::NoEntry)?;
        let (export, rest) = self.exports.find(path).ok_or(MountStatus::NoEntry)?;
        if export.rule_for(peer).is_none() {
            warn!(client = %peer.address, port = peer.port, export = export.path(), "mount refused by the export's rules");
            record(peer, credential, export, path, Some("EACCES"));
            return Err(MountStatus::AccessDenied);
        }
        let may_be_later = |error: &VfsError| matches!(error, VfsError::TryAgain { .. });
        let walked = self
            .env
            .retry(&RETRY, may_be_later, |_| self.walk(peer, export, rest))
            .await;
        let refused = walked.as_ref().err().map(|error| match status_of(error) {
            MountStatus::NoEntry => "ENOENT",
            MountStatus::NotDirectory => "ENOTDIR",
            MountStatus::AccessDenied => "EACCES",
            _ => "EIO",
        });
        record(peer, credential, export, path, refused);
        self.finish(peer, path, walked)
    }

    fn finish(
        &self,
        peer: &Peer,
        path: &str,
        walked: Result<WireHandle, VfsError>,
    ) -> Result<WireHandle, MountStatus> {
        let directory = walked.map_err(|error| {
            warn!(client = %peer.address, path, %error, "mount failed");
            status_of(&error)
        })?;
        info!(client = %peer.address, path, "mounted");
        let mut mounted = self.mounted.lock().expect("no panic under this lock");
        if mounted.len() < LISTED_MAX {
            mounted.insert((peer.address, path.to_owned()));
        }
        Ok(directory)
    }

    /// The directory `rest` below the export's root, through the junctions on the way.
    async fn walk(&self, peer: &Peer, export: &Arc<Export>, rest: &str) -> Result<WireHandle, VfsError> {
        let parts: Vec<_> = rest.split('/').filter(|part| !part.is_empty()).collect();
        let (mut export, mut parts) = (export, &parts[..]);
        // Exports and their junctions are trees, so this ends.
        while let Some((junction, names)) = self.exports.junction_on(export, parts).await? {
            let (before, behind) = parts.split_at(names);
            walk_in(export, before).await?;
            (export, parts) = (junction.target(), behind);
            if export.rule_for(peer).is_none() {
                return Err(VfsError::AccessDenied);
            }
        }
        Ok(self.exports.sign(export, walk_in(export, parts).await?))
    }

    fn list_exports(&self) -> Vec<ExportEntry> {
        let entry = |export: &Arc<Export>| ExportEntry {
            path: export.path().into(),
            groups: export
                .rules()
                .iter()
                .map(|rule| (&*rule.network.to_string()).into())
                .collect(),
        };
        self.exports.iter().map(entry).collect()
    }

    fn list_mounts(&self) -> Vec<MountEntry> {
        let entry = |(client, path): (IpAddr, String)| MountEntry {
            client: (&*client.to_string()).into(),
            path: (&*path).into(),
        };
        self.mounted().into_iter().map(entry).collect()
    }
}

/// The directory at `parts` in an export. Looked up as root: that the client may use the export is decided,
/// and it cannot pass a directory it may not enter by other handles than those it mounts.
async fn walk_in(export: &Export, parts: &[&str]) -> Result<FileHandle, VfsError> {
    let vfs = export.vfs().ok_or(VfsError::TryAgain {
        reason: "the export's volume is away",
    })?;
    let caller = Caller::new(Credentials::root());
    let mut directory = vfs.root();
    let mut kind = vfs.attributes(directory).await?.kind;
    for part in parts {
        // `.` and `..` have no place in a mount path; `Name` refuses them.
        let name = Name::new(part.as_bytes().to_vec()).map_err(|error| match error {
            VfsError::Exists => VfsError::NotFound,
            other => other,
        })?;
        let (found, attributes) = vfs.lookup(&caller, directory, &name).await?;
        (directory, kind) = (found, attributes.kind);
    }
    if kind == FileKind::Directory {
        Ok(directory)
    } else {
        Err(VfsError::NotDirectory)
    }
}

/// Notes a mount, or its refusal, in the access log.
fn record(peer: &Peer, credential: &Credential, export: &Export, path: &str, refused: Option<&'static str>) {
    if let Some(recorder) = export.recorder() {
        recorder.mounted(who(peer, credential, None), path, refused);
    }
}

fn status_of(error: &VfsError) -> MountStatus {
    match error {
        VfsError::NotFound | VfsError::Stale => MountStatus::NoEntry,
        VfsError::NotPermitted => MountStatus::NotPermitted,
        VfsError::AccessDenied => MountStatus::AccessDenied,
        VfsError::NotDirectory => MountStatus::NotDirectory,
        VfsError::NameTooLong => MountStatus::NameTooLong,
        VfsError::InvalidArgument => MountStatus::Invalid,
        VfsError::NotSupported => MountStatus::NotSupported,
        VfsError::Corrupt { .. } | VfsError::Io(_) => MountStatus::Io,
        VfsError::TryAgain { .. }
        | VfsError::Fenced
        | VfsError::NotInCloud
        | VfsError::Unanswered
        | VfsError::Exists
        | VfsError::CrossDevice
        | VfsError::IsDirectory
        | VfsError::FileTooLarge
        | VfsError::NoSpace
        | VfsError::QuotaExceeded
        | VfsError::ReadOnly
        | VfsError::TooManyLinks
        | VfsError::NotEmpty
        | VfsError::NotSynchronised
        | VfsError::BadCookie
        | VfsError::NoAttribute
        | VfsError::TooLarge => MountStatus::ServerFault,
    }
}

#[async_trait]
impl Program for MountProgram {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn name(&self) -> &'static str {
        "mount"
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn procedure_name(&self, _version: u32, procedure: u32) -> Option<&'static str> {
        const NAMES: [&str; 6] = ["NULL", "MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT"];
        NAMES.get(procedure as usize).copied()
    }

    async fn call(&self, mut request: Request) -> Result<Reply, Refusal> {
        let peer = request.peer;
        match request.procedure {
            0 => Ok(Reply::success(&())),
            1 => {
                let path = Path::decode(&mut request.arguments)?;
                match self.mount(&peer, &request.credential, &path).await {
                    Ok(handle) => {
                        let mut body = Encoder::new();
                        MountStatus::Ok.encode(&mut body);
                        let flavours = Array(vec![AUTH_SYS]);
                        Mounted { handle, flavours }.encode(&mut body);
                        Ok(Reply { body, failed: false })
                    }
                    Err(status) => Ok(Reply::failure(&status)),
                }
            }
            2 => Ok(Reply::success(&self.list_mounts())),
            3 => {
                let path = Path::decode(&mut request.arguments)?;
                if let Ok(path) = std::str::from_utf8(&path.0) {
                    let mut mounted = self.mounted.lock().expect("no panic under this lock");
                    mounted.remove(&(peer.address, path.to_owned()));
                }
                Ok(Reply::success(&()))
            }
            4 => {
                let mut mounted = self.mounted.lock().expect("no panic under this lock");
                mounted.retain(|(client, _)| *client != peer.address);
                Ok(Reply::success(&()))
            }
            5 => Ok(Reply::success(&self.list_exports())),
            _ => Err(Refusal::ProcedureUnavailable),
        }
    }
}

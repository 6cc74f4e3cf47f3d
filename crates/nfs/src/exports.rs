//! Exports: paths, client rules, and the way from a handle in a call to a file and a user.
//!
//! An export is a path name for a volume, and rules for client networks. Of the rules that contain a client's address the
//! narrowest counts, whatever their order. [`Exports::admit`] is the one door: every protocol that takes a file handle
//! (NFS, NLM) passes it with each call, so that neither a forged handle, nor one carried to a client outside the export's
//! networks, nor an unsquashed root gets any further.
//!
//! A server may have exports of several volumes, which come and go while it runs:
//!
//! ```text
//! away ──serve──▶ served ──withdraw──▶ away          away: every call of it is answered "try again later"
//! ```
//!
//! Each volume signs its own handles, so that they hold wherever it is served, beside whichever others. At a [`Junction`] one export is shown
//! in another.

mod junction;
mod rule;

pub use junction::{JUNCTIONS_MAX, Junction, JunctionError, JunctionState, Place};
pub use rule::{Admission, ClientRule, NOBODY, Squash};

use crate::{
    handle::{ExportId, HandleKey, SignedHandle, WireHandle},
    rpc::{AuthStatus, Credential, Peer, Refusal},
};
use firn_access_log::{Protocol, RecordedVfs, Recorder, Who};
use firn_vfs::{Credentials, Durability, FileHandle, Name, Vfs, VfsError};
use junction::Junctions;
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// RFC 1813 §5.1.4 (MNTPATHLEN).
pub const PATH_MAX_BYTES: usize = 1024;
/// A volume served under a path.
pub struct Export {
    id: ExportId,
    path: String,
    volume: RwLock<ExportedVolume>,
    calls: AtomicU64,
    rules: Vec<ClientRule>,
    connections_per_client: Option<usize>,
    recorder: Option<Recorder>,
    durability: Durability,
}

/// What is behind an export now.
#[derive(Default)]
struct ExportedVolume {
    /// None while it is away.
    vfs: Option<Arc<dyn Vfs>>,
    /// What its handles are signed with, if not with the server's key; it outlives an absence.
    key: Option<HandleKey>,
}

/// An export that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The path is not what clients can mount.
    #[error(
        "export path `{0}` must be absolute, without `.`, `..` or empty parts, and at most {PATH_MAX_BYTES} bytes"
    )]
    Path(String),
    /// Two exports under one path.
    #[error("`{0}` is exported twice")]
    Twice(String),
    /// No client could use it.
    #[error("`{0}` is exported to no network; name at least one (`*` for everyone)")]
    NoClients(String),
}

impl Export {
    /// Serves `vfs` under `path` to the networks of `rules`.
    ///
    /// # Errors
    /// If the path cannot be mounted, or no rule is given.
    pub fn new(path: &str, vfs: Arc<dyn Vfs>, rules: Vec<ClientRule>) -> Result<Self, ExportError> {
        let export = Self::away(path, rules)?;
        export.write(|volume| volume.vfs = Some(vfs));
        Ok(export)
    }

    /// An export whose volume is yet to come ([`Self::serve`]).
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn away(path: &str, mut rules: Vec<ClientRule>) -> Result<Self, ExportError> {
        let path = Self::checked_path(path)?;
        if rules.is_empty() {
            return Err(ExportError::NoClients(path.to_owned()));
        }
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.network.specificity()));
        let hash = blake3::hash(path.as_bytes());
        Ok(Self {
            id: ExportId(u64::from_be_bytes(std::array::from_fn(|byte| {
                hash.as_bytes()[byte]
            }))),
            path: path.to_owned(),
            volume: RwLock::default(),
            calls: AtomicU64::new(0),
            rules,
            connections_per_client: None,
            recorder: None,
            durability: Durability::Journal,
        })
    }

    /// Lets each address that the rules admit have `connections` at once: more for one that stands for many clients.
    #[must_use]
    pub fn with_connections_per_client(mut self, connections: usize) -> Self {
        self.connections_per_client = Some(connections);
        self
    }

    /// Records what clients do in the access log.
    #[must_use]
    pub fn with_access_log(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Where what clients do is recorded.
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Answers what is stable in NFS (changes of metadata, COMMIT, stable writes) at this level.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How durable what is stable is when it is answered.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Whether any rule is about `address`, from whatever port.
    pub fn admits(&self, address: IpAddr) -> bool {
        self.rules.iter().any(|rule| rule.network.contains(address))
    }

    /// The path as clients mount it: without a slash at the end (unless it is `/`).
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn checked_path(path: &str) -> Result<&str, ExportError> {
        let path = match path.strip_suffix('/') {
            Some(shorter) if !shorter.is_empty() && !shorter.ends_with('/') => shorter,
            _ => path,
        };
        let parts_are_names =
            |path: &str| path == "/" || path[1..].split('/').all(|part| !matches!(part, "" | "." | ".."));
        if !path.starts_with('/') || path.len() > PATH_MAX_BYTES || !parts_are_names(path) {
            return Err(ExportError::Path(path.to_owned()));
        }
        Ok(path)
    }

    /// The path, without a slash at the end (unless it is `/`).
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The number handles carry: a hash of the path, so that it outlives a change of order in the configuration.
    pub fn id(&self) -> ExportId {
        self.id
    }

    fn read(&self) -> RwLockReadGuard<'_, ExportedVolume> {
        // Nothing that may panic is done under this lock.
        self.volume.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, change: impl FnOnce(&mut ExportedVolume)) {
        change(&mut self.volume.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// The volume; none while it is away.
    pub fn vfs(&self) -> Option<Arc<dyn Vfs>> {
        self.read().vfs.clone()
    }

    /// Serves `vfs` from now on, with handles signed by the volume's own `key`.
    pub fn serve(&self, vfs: Arc<dyn Vfs>, key: HandleKey) {
        self.write(|volume| {
            *volume = ExportedVolume {
                vfs: Some(vfs),
                key: Some(key),
            };
        });
    }

    /// Answers "try again later" from now on. Calls under way hold what [`Self::vfs`] gave.
    pub fn withdraw(&self) {
        self.write(|volume| volume.vfs = None);
    }

    /// Calls of NFS about its files while it was served, whatever was answered; they only rise.
    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// The rules, narrowest network first.
    pub fn rules(&self) -> &[ClientRule] {
        &self.rules
    }

    /// What the rules say to a client.
    pub fn admission(&self, peer: &Peer) -> Admission<'_> {
        let mut rules = self.rules.iter();
        match rules.find(|rule| rule.network.contains(peer.address)) {
            None => Admission::NoRule,
            Some(rule) if rule.require_privileged_port && !peer.has_privileged_port() => {
                Admission::UnprivilegedPort(rule)
            }
            Some(rule) => Admission::Admitted(rule),
        }
    }

    /// The rule for a client; `None` if it may not use the export at all.
    pub fn rule_for(&self, peer: &Peer) -> Option<&ClientRule> {
        match self.admission(peer) {
            Admission::Admitted(rule) => Some(rule),
            Admission::UnprivilegedPort(_) | Admission::NoRule => None,
        }
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Export")
            .field("path", &self.path)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

/// A handle that leads nowhere for this caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// Not one of ours, or damaged.
    #[error("the file handle was not made by this server")]
    Forged,
    /// Ours, for an export that is no longer served.
    #[error("the file handle's export is gone")]
    ExportGone,
    /// The caller's address (or port) is not one the export is served to.
    #[error("the client may not use this export")]
    ClientDenied,
    /// The export's volume is not served now, and will be.
    #[error("the export's volume is away")]
    Away,
}

/// A file of an export, and the caller as the export's rules see it.
#[derive(Clone)]
pub struct Admitted {
    /// The export.
    pub export: Arc<Export>,
    /// Its volume.
    vfs: AdmittedVfs,
    /// The file.
    pub file: FileHandle,
    /// On whose behalf the call is made, squashed.
    pub credentials: Credentials,
    /// Whether changes must be refused.
    pub read_only: bool,
}

/// The volume as it is, or as what is recorded of this client.
#[derive(Clone)]
enum AdmittedVfs {
    Plain(Arc<dyn Vfs>),
    Recorded(Arc<RecordedVfs>),
}

impl Admitted {
    /// The volume the file is in.
    pub fn vfs(&self) -> &dyn Vfs {
        match &self.vfs {
            AdmittedVfs::Plain(vfs) => &**vfs,
            AdmittedVfs::Recorded(vfs) => &**vfs,
        }
    }

    /// Notes that a change of the file was refused since the export is read-only for the client.
    pub(crate) fn refused_as_read_only(&self) {
        if let AdmittedVfs::Recorded(vfs) = &self.vfs {
            vfs.refused_as_read_only(self.file);
        }
    }
}

/// A client as the access log names it.
pub(crate) fn who(peer: &Peer, credential: &Credential, effective: Option<&Credentials>) -> Who {
    Who {
        protocol: Protocol::Nfs,
        address: Some(peer.address),
        uid: match credential {
            Credential::Sys(sys) => Some(sys.uid),
            Credential::None => None,
        },
        effective_uid: effective.map(|credentials| credentials.uid),
    }
}

/// All exports of a server, and the key of their handles.
#[derive(Debug)]
pub struct Exports {
    key: HandleKey,
    by_id: BTreeMap<ExportId, Arc<Export>>,
    junctions: Junctions,
}

impl Exports {
    /// Serves `exports` with handles signed by `key`.
    ///
    /// # Errors
    /// If two have the same path.
    pub fn new(key: HandleKey, exports: impl IntoIterator<Item = Export>) -> Result<Self, ExportError> {
        let mut by_id = BTreeMap::new();
        for export in exports {
            if let Some(other) = by_id.insert(export.id, Arc::new(export)) {
                return Err(ExportError::Twice(other.path.clone()));
            }
        }
        Ok(Self {
            key,
            by_id,
            junctions: Junctions::default(),
        })
    }

    /// Shows the export with the path `target` at `place` in that with the path `export`.
    ///
    /// # Errors
    /// If that cannot be; see [`JunctionError`].
    pub fn with_junction(mut self, export: &str, place: &str, target: &str) -> Result<Self, JunctionError> {
        let named = |path: &str| {
            let same = |export: &&Arc<Export>| Export::checked_path(path) == Ok(export.path());
            let found = self.iter().find(same).cloned();
            found.ok_or_else(|| JunctionError::NoExport(path.to_owned()))
        };
        let (export, target) = (named(export)?, named(target)?);
        self.junctions.add(export, Place::parse(place)?, target)?;
        Ok(self)
    }

    /// All junctions, as they were added.
    pub fn junctions(&self) -> &[Junction] {
        self.junctions.all()
    }

    /// The junction at which an export is shown.
    pub fn junction_above(&self, target: &Export) -> Option<&Junction> {
        self.junctions.above(target.id())
    }

    /// The junctions in a directory: that with this name, or all.
    pub(crate) async fn junctions_in(
        &self,
        export: &Export,
        directory: FileHandle,
        name: Option<&[u8]>,
    ) -> Result<Vec<(&Name, &Junction)>, VfsError> {
        self.junctions.in_directory(export, directory, name).await
    }

    /// The junction that a name is the place of, or leads to.
    pub(crate) async fn junction_behind(
        &self,
        export: &Export,
        directory: FileHandle,
        name: &Name,
    ) -> Result<Option<&Junction>, VfsError> {
        self.junctions.on_the_way(export, directory, name).await
    }

    /// The junction that a path of names in an export goes through, if it is shown, and how many of the names lead to it.
    ///
    /// # Errors
    /// What keeps it from being known.
    pub async fn junction_on(
        &self,
        export: &Export,
        path: &[&str],
    ) -> Result<Option<(&Junction, usize)>, VfsError> {
        self.junctions.through(export, path).await
    }

    /// The exports, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.by_id.values()
    }

    /// Whether any export is served to `address`. To all others the server is as if it were not there.
    pub fn admit_address(&self, address: IpAddr) -> bool {
        self.iter().any(|export| export.admits(address))
    }

    /// Whether `peer` may speak for a whole client machine: an export is served to it, and only root of the machine can have
    /// that port.
    ///
    /// # Errors
    /// How it is to be refused, otherwise.
    pub(crate) fn admit_machine(&self, peer: &Peer) -> Result<(), Refusal> {
        if self.admit_address(peer.address) && peer.has_privileged_port() {
            Ok(())
        } else {
            Err(Refusal::Authentication(AuthStatus::TooWeak))
        }
    }

    /// Connections that `address` may have: the most that an export it may use allows, `default` where one says nothing; `None`
    /// if it may use none.
    pub fn connections_for(&self, address: IpAddr, default: usize) -> Option<usize> {
        self.iter()
            .filter(|export| export.admits(address))
            .map(|export| export.connections_per_client.unwrap_or(default))
            .max()
    }

    /// The export with the longest path that is `path` or a parent of it, and the rest of `path`.
    pub fn find<'a>(&self, path: &'a str) -> Option<(&Arc<Export>, &'a str)> {
        let below = |export: &str| match export {
            "/" => path.strip_prefix('/'),
            export => path
                .strip_prefix(export)
                .filter(|rest| rest.is_empty() || rest.starts_with('/')),
        };
        self.iter()
            .filter_map(|export| Some((export, below(&export.path)?)))
            .max_by_key(|(export, _)| export.path.len())
    }

    /// The handle under which a client may name `file` of `export`.
    pub fn sign(&self, export: &Export, file: FileHandle) -> WireHandle {
        let volume = export.read();
        volume.key.as_ref().unwrap_or(&self.key).sign(SignedHandle {
            export: export.id,
            file,
        })
    }

    /// What a handle names, for a line of the log.
    pub fn subject(&self, handle: &[u8]) -> Option<String> {
        let claimed = self.by_id.get(&HandleKey::claimed_export(handle)?);
        let (path, signed) = match claimed {
            Some(export) => {
                let volume = export.read();
                let key = volume.key.as_ref().unwrap_or(&self.key);
                (export.path(), key.open(handle)?)
            }
            None => ("no longer exported", self.open_by_any(handle)?),
        };
        Some(format!("export {path}, inode {}", signed.file.inode))
    }

    /// Counts a call about what a handle claims to name.
    pub(crate) fn count(&self, handle: &[u8]) {
        let claimed = HandleKey::claimed_export(handle).and_then(|id| self.by_id.get(&id));
        if let Some(export) = claimed.filter(|export| export.read().vfs.is_some()) {
            export.calls.fetch_add(1, Relaxed);
        }
    }

    /// The file a handle names, if `peer` may use its export.
    ///
    /// # Errors
    /// If the handle is not authentic, or not for this client.
    pub fn admit(
        &self,
        handle: &[u8],
        peer: &Peer,
        credential: &Credential,
    ) -> Result<Admitted, HandleError> {
        let claimed = HandleKey::claimed_export(handle).and_then(|id| self.by_id.get(&id));
        let Some(export) = claimed else {
            return Err(self.of_no_export(handle));
        };
        let volume = export.read();
        let key = match &volume.key {
            Some(key) => key,
            // Its volume's key is not known yet, so nothing can be said about the handle.
            None if volume.vfs.is_none() => return Err(HandleError::Away),
            None => &self.key,
        };
        let SignedHandle { file, .. } = key.open(handle).ok_or(HandleError::Forged)?;
        let Some(rule) = export.rule_for(peer) else {
            if let Some(recorder) = &export.recorder {
                recorder.turned_away(who(peer, credential, None));
            }
            return Err(HandleError::ClientDenied);
        };
        let vfs = volume.vfs.clone().ok_or(HandleError::Away)?;
        let credentials = rule.credentials(credential);
        let vfs = match &export.recorder {
            None => AdmittedVfs::Plain(vfs),
            Some(recorder) => {
                let who = who(peer, credential, Some(&credentials));
                AdmittedVfs::Recorded(Arc::new(recorder.view(vfs, who)))
            }
        };
        Ok(Admitted {
            export: export.clone(),
            vfs,
            file,
            credentials,
            read_only: rule.read_only,
        })
    }

    /// What a handle says that any of our keys signed.
    fn open_by_any(&self, handle: &[u8]) -> Option<SignedHandle> {
        let by_volumes = |export: &Arc<Export>| export.read().key.as_ref().and_then(|key| key.open(handle));
        self.key.open(handle).or_else(|| self.iter().find_map(by_volumes))
    }

    /// What a handle is that names no export: ours of an earlier configuration, if one of our keys signed it.
    fn of_no_export(&self, handle: &[u8]) -> HandleError {
        if self.open_by_any(handle).is_some() {
            HandleError::ExportGone
        } else {
            HandleError::Forged
        }
    }
}

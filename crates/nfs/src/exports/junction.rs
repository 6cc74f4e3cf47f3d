//! Junctions: directories of an export at which other exports are shown, so that clients see one tree of several volumes.
//!
//! ```text
//! /files     ┌ plans
//!            └ projects ──junction──▶ /projects ┌ alpha      LOOKUP of `projects` gives the root of /projects, `..` of that root
//!                                               └ beta       leads back; a handle tells which export it is of, as ever
//! ```
//!
//! A junction is a path and not a file: it is where its path leads at the time. It shows the other export while there is a directory, whose
//! content it hides, and nothing otherwise. Each export is shown at one place at most, so the place above its root is one, and exports with
//! their junctions are trees. What a client may do behind a junction is said by the rules of the export that is shown there.

use super::{Export, ExportId};
use firn_vfs::{Caller, Credentials, FileHandle, FileKind, Name, VfsError};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

/// Junctions of a server. Each costs a walk to its directory whenever one is listed that might have it.
pub const JUNCTIONS_MAX: usize = 64;
/// Names in the path of one.
pub const PLACE_NAMES_MAX: usize = 16;
/// Where a volume shows its snapshots.
const SNAPSHOTS: &str = ".snapshots";

/// A junction that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JunctionError {
    /// Its path leads to no directory below the root of an export.
    #[error(
        "junction path `{0}` must be absolute from the root of the export, without `.`, `..`, `.snapshots`, empty parts or a slash at its end, and have 1 to {PLACE_NAMES_MAX} names"
    )]
    Place(String),
    /// One side of it is not exported.
    #[error("a junction names the export `{0}`, and there is none")]
    NoExport(String),
    /// Two of one export, of which one would hide the other.
    #[error("the junctions `{0}` and `{1}` of one export are the same or lie one below the other")]
    Nested(String, String),
    /// The root of an export would have two directories above it.
    #[error("`{0}` is shown at two places; an export is shown at one (a volume may have several exports)")]
    TwoPlaces(String),
    /// Exports that are shown in each other.
    #[error("`{0}` would be shown below itself")]
    Loop(String),
    /// Too many.
    #[error("{0} junctions, and {JUNCTIONS_MAX} are possible")]
    TooMany(usize),
}

/// The path of a junction, from the root of the export that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(Vec<Name>);

impl Place {
    /// From the text of the configuration, such as `/projects`.
    ///
    /// # Errors
    /// [`JunctionError::Place`].
    pub fn parse(text: &str) -> Result<Self, JunctionError> {
        let wrong = || JunctionError::Place(text.to_owned());
        let parts: Vec<_> = text.strip_prefix('/').ok_or_else(wrong)?.split('/').collect();
        if parts.len() > PLACE_NAMES_MAX || parts.contains(&SNAPSHOTS) {
            return Err(wrong());
        }
        let names = parts.into_iter().map(|part| Name::new(part.as_bytes().to_vec()));
        names.collect::<Result<_, _>>().map(Self).map_err(|_| wrong())
    }

    /// A path in an export as clients see it.
    pub fn below(export: &str, path: &str) -> String {
        format!("{}{path}", export.trim_end_matches('/'))
    }

    /// The directory that it is in, and its name there.
    fn split(&self) -> (&[Name], &Name) {
        let (name, parents) = self.0.split_last().expect("a place has at least one name");
        (parents, name)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = self.0.iter();
        names.try_for_each(|name| write!(out, "/{}", String::from_utf8_lossy(name.as_bytes())))
    }
}

/// How a junction stood when it was last looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum JunctionState {
    /// Nobody looked yet: the export that it is in was not served.
    Unknown,
    /// It shows the other export.
    Shown,
    /// There is no directory at its path, so it shows nothing.
    NoDirectory,
}

/// See the module.
#[derive(Debug)]
pub struct Junction {
    export: Arc<Export>,
    place: Place,
    target: Arc<Export>,
    state: AtomicU8,
}

impl Junction {
    /// The export that it is in.
    pub fn export(&self) -> &Arc<Export> {
        &self.export
    }

    /// Where in that.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The export that is shown there.
    pub fn target(&self) -> &Arc<Export> {
        &self.target
    }

    /// How it stood when it was last looked at.
    pub fn state(&self) -> JunctionState {
        match self.state.load(Relaxed) {
            state if state == JunctionState::Shown as u8 => JunctionState::Shown,
            state if state == JunctionState::NoDirectory as u8 => JunctionState::NoDirectory,
            _ => JunctionState::Unknown,
        }
    }

    /// Looks whether it has a directory.
    ///
    /// # Errors
    /// What keeps it from being known.
    pub async fn look(&self) -> Result<JunctionState, VfsError> {
        let state = match walk(&self.export, &self.place.0).await? {
            Some(_) => JunctionState::Shown,
            None => JunctionState::NoDirectory,
        };
        self.state.store(state as u8, Relaxed);
        Ok(state)
    }

    /// The directory that it is in; none if there is none.
    pub(crate) async fn parent(&self) -> Result<Option<FileHandle>, VfsError> {
        walk(&self.export, self.place.split().0).await
    }
}

/// The directory at `names` of an export, looked up as root: that the client may come there is decided by its own calls.
async fn walk(export: &Export, names: &[Name]) -> Result<Option<FileHandle>, VfsError> {
    let vfs = export.vfs().ok_or(VfsError::TryAgain {
        reason: "the export's volume is away",
    })?;
    let caller = Caller::new(Credentials::root());
    let mut directory = vfs.root();
    for name in names {
        match vfs.lookup(&caller, directory, name).await {
            Ok((found, attributes)) if attributes.kind == FileKind::Directory => directory = found,
            Ok(_) | Err(VfsError::NotFound | VfsError::NotDirectory | VfsError::Stale) => return Ok(None),
            // Not "there is none": what the junction hides must not be seen because of a fault.
            Err(error) => return Err(error),
        }
    }
    Ok(Some(directory))
}

/// The junctions of a server.
#[derive(Debug, Default)]
pub(super) struct Junctions {
    all: Vec<Junction>,
    by_export: BTreeMap<ExportId, Vec<usize>>,
    by_target: BTreeMap<ExportId, usize>,
}

impl Junctions {
    /// Adds one.
    pub(super) fn add(
        &mut self,
        export: Arc<Export>,
        place: Place,
        target: Arc<Export>,
    ) -> Result<(), JunctionError> {
        if self.all.len() == JUNCTIONS_MAX {
            return Err(JunctionError::TooMany(self.all.len() + 1));
        }
        let overlap = |one: &Place, two: &Place| one.0.starts_with(&two.0) || two.0.starts_with(&one.0);
        let other = self.of(export.id()).find(|other| overlap(&other.place, &place));
        if let Some(other) = other {
            return Err(JunctionError::Nested(other.place.to_string(), place.to_string()));
        }
        if self.by_target.contains_key(&target.id()) {
            return Err(JunctionError::TwoPlaces(target.path().to_owned()));
        }
        let mut above = Some(export.id());
        while let Some(id) = above {
            if id == target.id() {
                return Err(JunctionError::Loop(target.path().to_owned()));
            }
            above = self.above(id).map(|junction| junction.export.id());
        }
        let at = self.all.len();
        self.by_export.entry(export.id()).or_default().push(at);
        self.by_target.insert(target.id(), at);
        self.all.push(Junction {
            export,
            place,
            target,
            state: AtomicU8::new(JunctionState::Unknown as u8),
        });
        Ok(())
    }

    pub(super) fn all(&self) -> &[Junction] {
        &self.all
    }

    /// Those in an export.
    fn of(&self, export: ExportId) -> impl Iterator<Item = &Junction> {
        let numbers = self.by_export.get(&export);
        numbers.into_iter().flatten().map(|at| &self.all[*at])
    }

    /// The one at which an export is shown.
    pub(super) fn above(&self, target: ExportId) -> Option<&Junction> {
        self.by_target.get(&target).map(|at| &self.all[*at])
    }

    /// Those in `directory` with the name, or all.
    pub(super) async fn in_directory(
        &self,
        export: &Export,
        directory: FileHandle,
        name: Option<&[u8]>,
    ) -> Result<Vec<(&Name, &Junction)>, VfsError> {
        let mut found = Vec::new();
        // Most lie side by side, so a directory is looked for once.
        let mut last: Option<(&[Name], bool)> = None;
        for junction in self.of(export.id()) {
            let (parents, own) = junction.place.split();
            if name.is_some_and(|name| name != own.as_bytes()) {
                continue;
            }
            let is_here = match last {
                Some((known, is_here)) if known == parents => is_here,
                _ => walk(export, parents).await? == Some(directory),
            };
            last = Some((parents, is_here));
            if is_here {
                found.push((own, junction));
            }
        }
        Ok(found)
    }

    /// The one that the name in `directory` is the place of, or leads to.
    pub(super) async fn on_the_way(
        &self,
        export: &Export,
        directory: FileHandle,
        name: &Name,
    ) -> Result<Option<&Junction>, VfsError> {
        for junction in self.of(export.id()) {
            let names = &junction.place.0;
            for at in (0..names.len()).filter(|at| names[*at] == *name) {
                if walk(export, &names[..at]).await? == Some(directory) {
                    return Ok(Some(junction));
                }
            }
        }
        Ok(None)
    }

    /// The one that a path of names in an export goes through, with how many names lead to it; if it is shown.
    pub(super) async fn through(
        &self,
        export: &Export,
        path: &[&str],
    ) -> Result<Option<(&Junction, usize)>, VfsError> {
        for junction in self.of(export.id()) {
            let names = &junction.place.0;
            let is_prefix = names.len() <= path.len()
                && names
                    .iter()
                    .zip(path)
                    .all(|(name, part)| name.as_bytes() == part.as_bytes());
            if is_prefix && junction.look().await? == JunctionState::Shown {
                return Ok(Some((junction, names.len())));
            }
        }
        Ok(None)
    }
}

//! Junctions in NFS: LOOKUP and READDIRPLUS give the root of the export that is shown at a place instead of the directory there.
//!
//! Its attributes come with the number of its own file system, by which a client notices that it crosses into another one: Linux mounts it
//! beside the first, with a device number of its own. READDIR goes on to show the number of the hidden directory, as RFC 1813 lets servers do
//! at mount points.
//!
//! The place itself, and the directories that lead to it, are neither removed nor renamed through the export: NFS3ERR_ACCES, which is what
//! Linux's server says there too, for want of a status for "busy". Not NFS3ERR_XDEV: `mv` would then copy the other volume, and delete it.

use super::{Call, NfsProgram, Status, Target};
use crate::{exports::Export, handle::WireHandle};
use firn_vfs::{Attributes, Caller, Credentials, FileKind, Name, VfsError};
use std::collections::BTreeMap;
use tracing::info;

/// A directory of another export, as the client gets it.
pub(super) type Across = (WireHandle, Attributes);

impl NfsProgram {
    /// The directory of another export to which `name` leads in a directory, if there is a junction; `found` is what is there in the volume.
    pub(super) async fn across(
        &self,
        call: &Call,
        directory: &Target,
        name: &[u8],
        found: &Attributes,
    ) -> Result<Option<Across>, Status> {
        if found.kind != FileKind::Directory || name == b"." {
            return Ok(None);
        }
        if name == b".." {
            return self.above(call, directory).await;
        }
        let (export, file) = (&directory.admitted.export, directory.admitted.file);
        match self.exports.junctions_in(export, file, Some(name)).await?.first() {
            Some((_, junction)) => self.root_of(call, junction.target()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Where `..` leads from the root of an export that is shown in another one, if the client may use that.
    async fn above(&self, call: &Call, directory: &Target) -> Result<Option<Across>, Status> {
        let export = &directory.admitted.export;
        let Some(junction) = self.exports.junction_above(export) else {
            return Ok(None);
        };
        let is_root = directory.admitted.file == directory.vfs().root();
        if !is_root || junction.export().rule_for(&call.peer).is_none() {
            return Ok(None);
        }
        match junction.parent().await? {
            Some(parent) => {
                let handle = self.exports.sign(junction.export(), parent);
                self.entered(call, handle).await.map(Some)
            }
            None => Ok(None),
        }
    }

    async fn root_of(&self, call: &Call, export: &Export) -> Result<Across, Status> {
        let root = export.vfs().ok_or(Status::Jukebox)?.root();
        self.entered(call, self.exports.sign(export, root)).await
    }

    /// A directory of another export, if its rules admit the client.
    async fn entered(&self, call: &Call, handle: WireHandle) -> Result<Across, Status> {
        let target = self.target(call, &handle)?;
        let attributes = target.vfs().attributes(target.admitted.file).await?;
        Ok((handle, attributes))
    }

    /// The junctions in a directory by their names, with what is shown there; nothing of what the client may not use or cannot have now, which LOOKUP
    /// tells it if it asks.
    pub(super) async fn places(
        &self,
        call: &Call,
        directory: &Target,
    ) -> Result<BTreeMap<Vec<u8>, Option<Across>>, Status> {
        let (export, file) = (&directory.admitted.export, directory.admitted.file);
        let mut places = BTreeMap::new();
        for (name, junction) in self.exports.junctions_in(export, file, None).await? {
            let shown = match junction.target().rule_for(&call.peer) {
                Some(_) => self.root_of(call, junction.target()).await.ok(),
                None => None,
            };
            places.insert(name.as_bytes().to_vec(), shown);
        }
        Ok(places)
    }

    /// Whether there is a junction at a name, so that what was just made there is not what the client will see.
    pub(super) async fn is_place(&self, directory: &Target, name: &[u8]) -> bool {
        let (export, file) = (&directory.admitted.export, directory.admitted.file);
        let found = self.exports.junctions_in(export, file, Some(name)).await;
        found.is_ok_and(|found| !found.is_empty())
    }

    /// Refuses to take away what a junction stands on.
    ///
    /// # Errors
    /// [`Status::AccessDenied`] if the name is the place of one, or leads to it.
    pub(super) async fn keeps(&self, call: &Call, directory: &Target, name: &Name) -> Result<(), Status> {
        let (export, file) = (&directory.admitted.export, directory.admitted.file);
        let Some(junction) = self.exports.junction_behind(export, file, name).await? else {
            return Ok(());
        };
        info!(
            client = %call.peer.address,
            export = export.path(),
            junction = %junction.place(),
            "refused to remove or rename a directory that a junction of the export needs"
        );
        Err(Status::AccessDenied)
    }

    /// The same for both names of a rename. What is no directory may go away, and come: it makes no junction.
    pub(super) async fn keeps_both(
        &self,
        call: &Call,
        (from, from_name): (&Target, &Name),
        (to, to_name): (&Target, &Name),
    ) -> Result<(), Status> {
        let export = &from.admitted.export;
        if self
            .exports
            .junctions()
            .iter()
            .all(|junction| junction.export().id() != export.id())
        {
            return Ok(());
        }
        let root = Caller::new(Credentials::root());
        match from.vfs().lookup(&root, from.admitted.file, from_name).await {
            Ok((_, attributes)) if attributes.kind == FileKind::Directory => {
                self.keeps(call, from, from_name).await?;
                self.keeps(call, to, to_name).await
            }
            // The volume says what is wrong.
            Ok(_) | Err(VfsError::NotFound | VfsError::NotDirectory | VfsError::Stale) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

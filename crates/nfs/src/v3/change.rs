//! Procedures that change names and attributes: SETATTR, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.

use super::{
    Call, NfsProgram, Status, Target, name, refused,
    types::{
        CreateCall, CreateHow, Device, Entry, Failed, LinkCall, LinkResult, Made, MakeDirectoryCall,
        MakeNodeCall, NewAttributes, NewNode, RenameCall, RenameDirectories, SetAttributesCall, SymlinkCall,
        WccData, WireName,
    },
};
use firn_vfs::{CreateMode, Created, FileKind, SetAttributes, Timestamp, VfsError};

type OrUnchanged<S> = Result<S, Failed<WccData>>;

impl NfsProgram {
    pub(super) async fn set_attributes(&self, call: &Call, asked: SetAttributesCall) -> OrUnchanged<WccData> {
        let target = self.target(call, &asked.file).map_err(refused)?;
        let changed = async {
            target.writable()?;
            let guard = asked.guard.map(Timestamp::try_from).transpose()?;
            let change = asked.attributes.try_into()?;
            target
                .vfs()
                .set_attributes(&target.caller, target.admitted.file, change, guard)
                .await
        };
        match changed.await {
            Ok(changed) => Ok((&changed).into()),
            Err(error) => Err(target.unchanged(error).await),
        }
    }

    pub(super) async fn create(&self, call: &Call, asked: CreateCall) -> OrUnchanged<Made> {
        let directory = self.target(call, &asked.at.directory).map_err(refused)?;
        let created = async {
            let name = creatable(&directory, asked.at.name)?;
            let mode = match asked.how {
                CreateHow::Unchecked(attributes) => CreateMode::Unchecked(attributes.try_into()?),
                CreateHow::Guarded(attributes) => CreateMode::Guarded(attributes.try_into()?),
                CreateHow::Exclusive(verifier) => CreateMode::Exclusive(verifier),
            };
            Ok(directory
                .vfs()
                .create(&directory.caller, directory.admitted.file, &name, mode)
                .await?)
        };
        let created = created.await;
        self.made(&directory, created).await
    }

    pub(super) async fn make_directory(&self, call: &Call, asked: MakeDirectoryCall) -> OrUnchanged<Made> {
        let directory = self.target(call, &asked.at.directory).map_err(refused)?;
        let wanted = asked.at.name.0.clone();
        let created = async {
            let name = creatable(&directory, asked.at.name)?;
            let attributes = asked.attributes.try_into()?;
            let vfs = directory.vfs();
            Ok(vfs
                .make_directory(&directory.caller, directory.admitted.file, &name, attributes)
                .await?)
        };
        let created = created.await;
        let made = self.made(&directory, created).await?;
        Ok(self.behind_junction(&directory, &wanted, made).await)
    }

    /// The reply about a directory that was made where a junction is: without it, so that the client looks the name up.
    pub(super) async fn behind_junction(&self, directory: &Target, name: &[u8], made: Made) -> Made {
        match self.is_place(directory, name).await {
            false => made,
            true => Made {
                file: None,
                attributes: None,
                ..made
            },
        }
    }

    pub(super) async fn make_symlink(&self, call: &Call, asked: SymlinkCall) -> OrUnchanged<Made> {
        let directory = self.target(call, &asked.at.directory).map_err(refused)?;
        let created = async {
            let name = creatable(&directory, asked.at.name)?;
            let attributes = asked.attributes.try_into()?;
            let (vfs, caller) = (directory.vfs(), &directory.caller);
            Ok(vfs
                .make_symlink(caller, directory.admitted.file, &name, asked.target.0, attributes)
                .await?)
        };
        let created = created.await;
        self.made(&directory, created).await
    }

    pub(super) async fn make_node(&self, call: &Call, asked: MakeNodeCall) -> OrUnchanged<Made> {
        let directory = self.target(call, &asked.at.directory).map_err(refused)?;
        let created = async {
            let name = creatable(&directory, asked.at.name)?;
            let (kind, attributes) = node(asked.node)?;
            let (vfs, caller) = (directory.vfs(), &directory.caller);
            Ok(vfs
                .make_node(caller, directory.admitted.file, &name, kind, attributes)
                .await?)
        };
        let created = created.await;
        self.made(&directory, created).await
    }

    async fn made(&self, directory: &Target, created: Result<Created, Status>) -> OrUnchanged<Made> {
        match created {
            Ok(created) => Ok(Made {
                file: Some(self.exports.sign(&directory.admitted.export, created.handle)),
                attributes: Some((&created.attributes).into()),
                directory: (&created.directory).into(),
            }),
            Err(status) => Err(directory.unchanged(status).await),
        }
    }

    pub(super) async fn remove(&self, call: &Call, at: Entry) -> OrUnchanged<WccData> {
        let directory = self.target(call, &at.directory).map_err(refused)?;
        let removed = async {
            directory.writable()?;
            // Of the statuses REMOVE may give (RFC 1813 §3.3.12) this is the one that fits.
            let name = name(at.name, Status::AccessDenied)?;
            Ok::<_, Status>(
                directory
                    .vfs()
                    .remove(&directory.caller, directory.admitted.file, &name)
                    .await?,
            )
        };
        match removed.await {
            Ok(removed) => Ok((&removed.directory).into()),
            Err(status) => Err(directory.unchanged(status).await),
        }
    }

    pub(super) async fn remove_directory(&self, call: &Call, at: Entry) -> OrUnchanged<WccData> {
        let directory = self.target(call, &at.directory).map_err(refused)?;
        let removed = async {
            directory.writable()?;
            // RFC 1813 §3.3.13.
            let dots = if &at.name.0[..] == b"." {
                Status::Invalid
            } else {
                Status::Exists
            };
            let name = name(at.name, dots)?;
            self.keeps(call, &directory, &name).await?;
            Ok::<_, Status>(
                directory
                    .vfs()
                    .remove_directory(&directory.caller, directory.admitted.file, &name)
                    .await?,
            )
        };
        match removed.await {
            Ok(removed) => Ok((&removed.directory).into()),
            Err(status) => Err(directory.unchanged(status).await),
        }
    }

    pub(super) async fn rename(
        &self,
        call: &Call,
        asked: RenameCall,
    ) -> Result<RenameDirectories, Failed<RenameDirectories>> {
        let from = self.target(call, &asked.from.directory).map_err(refused)?;
        let to = self.target(call, &asked.to.directory).map_err(refused)?;
        let renamed = async {
            from.writable()?;
            to.writable()?;
            if !from.same_export(&to) {
                return Err(Status::CrossDevice);
            }
            // RFC 1813 §3.3.14.
            let from_name = name(asked.from.name, Status::Invalid)?;
            let to_name = name(asked.to.name, Status::Invalid)?;
            self.keeps_both(call, (&from, &from_name), (&to, &to_name))
                .await?;
            let (from_file, to_file) = (from.admitted.file, to.admitted.file);
            Ok(from
                .vfs()
                .rename(&from.caller, from_file, &from_name, to_file, &to_name)
                .await?)
        };
        match renamed.await {
            Ok(renamed) => Ok(RenameDirectories {
                from: (&renamed.from).into(),
                to: (&renamed.to).into(),
            }),
            Err(status) => Err(Failed {
                status,
                body: RenameDirectories {
                    from: WccData::unchanged(from.attributes().await.as_ref()),
                    to: WccData::unchanged(to.attributes().await.as_ref()),
                },
            }),
        }
    }

    pub(super) async fn link(&self, call: &Call, asked: LinkCall) -> Result<LinkResult, Failed<LinkResult>> {
        let file = self.target(call, &asked.file).map_err(refused)?;
        let directory = self.target(call, &asked.at.directory).map_err(refused)?;
        let linked = async {
            if !file.same_export(&directory) {
                return Err(Status::CrossDevice);
            }
            let name = creatable(&directory, asked.at.name)?;
            let (file, at) = (file.admitted.file, directory.admitted.file);
            Ok(directory.vfs().link(&directory.caller, file, at, &name).await?)
        };
        match linked.await {
            Ok((attributes, changed)) => Ok(LinkResult {
                attributes: Some((&attributes).into()),
                directory: (&changed).into(),
            }),
            Err(status) => Err(Failed {
                status,
                body: LinkResult {
                    attributes: file.wire_attributes().await,
                    directory: WccData::unchanged(directory.attributes().await.as_ref()),
                },
            }),
        }
    }
}

/// The name of a file to be made in a directory that may be changed.
fn creatable(directory: &Target, wire: WireName) -> Result<firn_vfs::Name, Status> {
    directory.writable()?;
    name(wire, Status::Exists)
}

fn node(node: NewNode) -> Result<(FileKind, SetAttributes), Status> {
    let with = |kind: FileKind, attributes: NewAttributes| -> Result<_, VfsError> {
        Ok((kind, attributes.try_into()?))
    };
    Ok(match node {
        NewNode::CharacterDevice(attributes, Device { major, minor }) => {
            with(FileKind::CharacterDevice { major, minor }, attributes)?
        }
        NewNode::BlockDevice(attributes, Device { major, minor }) => {
            with(FileKind::BlockDevice { major, minor }, attributes)?
        }
        NewNode::Socket(attributes) => with(FileKind::Socket, attributes)?,
        NewNode::Fifo(attributes) => with(FileKind::Fifo, attributes)?,
        NewNode::Other(_) => return Err(Status::BadType),
    })
}

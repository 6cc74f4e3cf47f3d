//! File system operations as values: they can be made on an engine and on the model, and printed.

use crate::outcome::{Outcome, Reply};
use bytes::Bytes;
use firn_vfs::{
    AccessMask, Acl, Caller, CreateMode, FileHandle, FileKind, Name, SetAttributes, Stability, Timestamp,
    Vfs, VfsError, XattrMode,
};

/// Entries asked for at once when a directory is listed: small, so that changes fall between two pages.
const SCAN_PAGE: u32 = 17;

/// One call of a client. Handles are those of the system it is made on.
#[derive(Clone, Debug)]
#[allow(
    missing_docs,
    reason = "the fields are the arguments of the Vfs call of the same name"
)]
pub enum Operation {
    Create {
        directory: FileHandle,
        name: Name,
        mode: CreateMode,
    },
    MakeDirectory {
        directory: FileHandle,
        name: Name,
        attributes: SetAttributes,
    },
    MakeSymlink {
        directory: FileHandle,
        name: Name,
        target: Bytes,
        attributes: SetAttributes,
    },
    MakeNode {
        directory: FileHandle,
        name: Name,
        kind: FileKind,
        attributes: SetAttributes,
    },
    Link {
        file: FileHandle,
        directory: FileHandle,
        name: Name,
    },
    Remove {
        directory: FileHandle,
        name: Name,
    },
    RemoveDirectory {
        directory: FileHandle,
        name: Name,
    },
    Rename {
        from: FileHandle,
        from_name: Name,
        to: FileHandle,
        to_name: Name,
    },
    Write {
        file: FileHandle,
        offset: u64,
        data: Data,
        stability: Stability,
    },
    Commit {
        file: FileHandle,
    },
    SetAttributes {
        file: FileHandle,
        change: SetAttributes,
        guard: Option<Timestamp>,
    },
    SetXattr {
        file: FileHandle,
        name: Bytes,
        value: Bytes,
        mode: XattrMode,
    },
    RemoveXattr {
        file: FileHandle,
        name: Bytes,
    },
    SetAcl {
        file: FileHandle,
        access: Option<Acl>,
        default: Option<Acl>,
    },
    Retain {
        file: FileHandle,
    },
    Release {
        file: FileHandle,
    },
    Attributes {
        file: FileHandle,
    },
    Lookup {
        directory: FileHandle,
        name: Name,
    },
    Parent {
        directory: FileHandle,
    },
    Access {
        file: FileHandle,
    },
    ReadLink {
        file: FileHandle,
    },
    Read {
        file: FileHandle,
        offset: u64,
        length_bytes: u32,
    },
    List {
        directory: FileHandle,
    },
    Xattrs {
        file: FileHandle,
    },
    GetAcl {
        file: FileHandle,
    },
}

/// The bytes of a write; prints as what they are made from.
#[derive(Clone, PartialEq, Eq)]
pub struct Data(pub Bytes);

impl std::fmt::Debug for Data {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} bytes from {:?}", self.0.len(), self.0.first())
    }
}

impl Operation {
    /// Whether it can change nothing, whatever it answers. (`Commit` changes what survives, but not what is seen.)
    pub fn is_query(&self) -> bool {
        matches!(
            self,
            Self::Attributes { .. }
                | Self::Lookup { .. }
                | Self::Parent { .. }
                | Self::Access { .. }
                | Self::ReadLink { .. }
                | Self::Read { .. }
                | Self::List { .. }
                | Self::Xattrs { .. }
                | Self::GetAcl { .. }
        )
    }

    /// The same call with other handles; the first that has no counterpart is the error.
    ///
    /// # Errors
    /// The handle `map` does not know.
    pub fn map_handles(&self, map: impl Fn(FileHandle) -> Option<FileHandle>) -> Result<Self, FileHandle> {
        let mut mapped = self.clone();
        for handle in mapped.handles_mut() {
            *handle = map(*handle).ok_or(*handle)?;
        }
        Ok(mapped)
    }

    fn handles_mut(&mut self) -> Vec<&mut FileHandle> {
        match self {
            Self::Create { directory, .. }
            | Self::MakeDirectory { directory, .. }
            | Self::MakeSymlink { directory, .. }
            | Self::MakeNode { directory, .. }
            | Self::Remove { directory, .. }
            | Self::RemoveDirectory { directory, .. }
            | Self::Lookup { directory, .. }
            | Self::Parent { directory }
            | Self::List { directory } => vec![directory],
            Self::Link { file, directory, .. } => vec![file, directory],
            Self::Rename { from, to, .. } => vec![from, to],
            Self::Write { file, .. }
            | Self::Commit { file }
            | Self::SetAttributes { file, .. }
            | Self::SetXattr { file, .. }
            | Self::RemoveXattr { file, .. }
            | Self::SetAcl { file, .. }
            | Self::Retain { file }
            | Self::Release { file }
            | Self::Attributes { file }
            | Self::Access { file }
            | Self::ReadLink { file }
            | Self::Read { file, .. }
            | Self::Xattrs { file }
            | Self::GetAcl { file } => vec![file],
        }
    }

    /// Makes the call.
    pub async fn make(&self, vfs: &dyn Vfs, caller: &Caller) -> Outcome {
        match self {
            Self::Create {
                directory,
                name,
                mode,
            } => {
                let created = vfs.create(caller, *directory, name, mode.clone()).await?;
                Ok(Reply::created(created))
            }
            Self::MakeDirectory {
                directory,
                name,
                attributes,
            } => {
                let attributes = attributes.clone();
                let created = vfs.make_directory(caller, *directory, name, attributes).await?;
                Ok(Reply::created(created))
            }
            Self::MakeSymlink {
                directory,
                name,
                target,
                attributes,
            } => {
                let attributes = attributes.clone();
                let created = vfs
                    .make_symlink(caller, *directory, name, target.clone(), attributes)
                    .await?;
                Ok(Reply::created(created))
            }
            Self::MakeNode {
                directory,
                name,
                kind,
                attributes,
            } => {
                let attributes = attributes.clone();
                let created = vfs.make_node(caller, *directory, name, *kind, attributes).await?;
                Ok(Reply::created(created))
            }
            Self::Link {
                file,
                directory,
                name,
            } => {
                let (file, directory) = vfs.link(caller, *file, *directory, name).await?;
                Ok(Reply::default().attributes(file).changed(directory))
            }
            Self::Remove { directory, name } => {
                let removed = vfs.remove(caller, *directory, name).await?;
                Ok(Reply::default().changed(removed.directory))
            }
            Self::RemoveDirectory { directory, name } => {
                let removed = vfs.remove_directory(caller, *directory, name).await?;
                Ok(Reply::default().changed(removed.directory))
            }
            Self::Rename {
                from,
                from_name,
                to,
                to_name,
            } => {
                let renamed = vfs.rename(caller, *from, from_name, *to, to_name).await?;
                Ok(Reply::default().changed(renamed.from).changed(renamed.to))
            }
            Self::Write {
                file,
                offset,
                data,
                stability,
            } => {
                // In two parts, as a network server would hand them on.
                let (head, tail) = (data.0.slice(..data.0.len() / 3), data.0.slice(data.0.len() / 3..));
                let reply = vfs
                    .write(caller, *file, *offset, vec![head, tail], *stability)
                    .await?;
                Ok(Reply::default().stable(reply.stability).changed(reply.file))
            }
            Self::Commit { file } => {
                let file = vfs.commit(caller, *file).await?;
                Ok(Reply::default().attributes(file.after))
            }
            Self::SetAttributes { file, change, guard } => {
                let changed = vfs.set_attributes(caller, *file, change.clone(), *guard).await?;
                Ok(Reply::default().changed(changed))
            }
            Self::SetXattr {
                file,
                name,
                value,
                mode,
            } => {
                let changed = vfs.set_xattr(caller, *file, name, value.clone(), *mode).await?;
                Ok(Reply::default().changed(changed))
            }
            Self::RemoveXattr { file, name } => {
                let changed = vfs.remove_xattr(caller, *file, name).await?;
                Ok(Reply::default().changed(changed))
            }
            Self::SetAcl {
                file,
                access,
                default,
            } => {
                let (access, default) = (access.clone(), default.clone());
                let changed = vfs.set_acl(caller, *file, access, default).await?;
                Ok(Reply::default().changed(changed))
            }
            Self::Retain { file } => vfs.retain(*file).await.map(|()| Reply::default()),
            Self::Release { file } => vfs.release(*file).await.map(|()| Reply::default()),
            _ => self.ask(vfs, caller).await,
        }
    }

    /// The queries among the calls.
    async fn ask(&self, vfs: &dyn Vfs, caller: &Caller) -> Outcome {
        match self {
            Self::Attributes { file } => Ok(Reply::default().attributes(vfs.attributes(*file).await?)),
            Self::Lookup { directory, name } => {
                let (handle, attributes) = vfs.lookup(caller, *directory, name).await?;
                Ok(Reply::default().handle(handle).attributes(attributes))
            }
            Self::Parent { directory } => {
                let (handle, attributes) = vfs.parent(caller, *directory).await?;
                Ok(Reply::default().handle(handle).attributes(attributes))
            }
            Self::Access { file } => {
                let all = AccessMask {
                    read: true,
                    lookup: true,
                    modify: true,
                    extend: true,
                    delete: true,
                    execute: true,
                };
                let (granted, attributes) = vfs.check_access(caller, *file, all).await?;
                Ok(Reply::default()
                    .text(format!("{granted:?}"))
                    .attributes(attributes))
            }
            Self::ReadLink { file } => {
                let (target, attributes) = vfs.read_link(caller, *file).await?;
                Ok(Reply::default().bytes(target).attributes(attributes))
            }
            Self::Read {
                file,
                offset,
                length_bytes,
            } => {
                let reply = vfs.read(caller, *file, *offset, *length_bytes).await?;
                let end = format!("end {}", reply.end_of_file);
                let data = Bytes::from(reply.data.concat());
                Ok(Reply::default()
                    .bytes(data)
                    .text(end)
                    .attributes(reply.attributes))
            }
            Self::List { directory } => list(vfs, caller, *directory).await,
            Self::Xattrs { file } => {
                let names = vfs.list_xattrs(caller, *file).await?;
                Ok(Reply::default().bytes(Bytes::from(names.join(&b'\n'))))
            }
            Self::GetAcl { file } => {
                let acls = vfs.get_acl(caller, *file).await?;
                Ok(Reply::default().text(format!("{acls:?}")))
            }
            change => unreachable!("{change:?} is no query"),
        }
    }
}

/// All entries of a directory, page by page.
async fn list(vfs: &dyn Vfs, caller: &Caller, directory: FileHandle) -> Outcome {
    let mut entries = Vec::new();
    let mut cookie = 0;
    loop {
        let page = vfs
            .read_directory(caller, directory, cookie, SCAN_PAGE, true)
            .await?;
        for entry in page.entries {
            if entry.cookie <= cookie {
                return Err(VfsError::Io(format!("cookie {} after {cookie}", entry.cookie)));
            }
            cookie = entry.cookie;
            if !matches!(&entry.name[..], b"." | b"..") {
                entries.push((entry.name, entry.handle));
            }
        }
        if page.end {
            return Ok(Reply::default().entries(entries));
        }
    }
}

//! Names: looking up, creating, removing, renaming.

use super::{Operations, Outcome, data::access_of, name, superuser};
use crate::{
    abi,
    case_index::{ASKED_BYTES_MAX, Answer},
    errno::Failure,
    interrupted::Interrupted,
    reply::{self, Reply},
    request::Header,
    staging,
};
use bytes::{Bytes, BytesMut};
use firn_vfs::{
    Attributes, Caller, CreateMode, Created, Durability, FileHandle, FileKind, Name, SetAttributes, VfsError,
};
use futures::future::{Either, select};
use rustix::io::Errno;
use std::{path::Path, pin::pin, sync::atomic::Ordering, time::Duration};

/// Between attempts to open what was just created.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(200);

const SET_GID: u32 = 0o2000;
const PERMISSIONS: u32 = 0o7777;

impl Operations {
    pub(super) async fn lookup(&self, header: &Header, bytes: &Bytes) -> Outcome {
        let directory = self.handle(header.node)?;
        if self.is_entrance(header, bytes) {
            let attributes = self.vfs.attributes(directory).await?;
            let node = self.nodes.enter_root();
            return Ok(Reply::Structure(reply::unnamed_entry(
                node,
                &attributes,
                self.view,
            )));
        }
        match self.vfs.lookup(&superuser(), directory, &name(bytes)?).await {
            Ok((file, attributes)) => Ok(self.entry(file, &attributes)),
            Err(VfsError::NotFound) => self.missing(header, directory, bytes),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether this process looks for the root by another number.
    fn is_entrance(&self, header: &Header, name: &[u8]) -> bool {
        self.entering.load(Ordering::Acquire)
            && header.node == abi::ROOT_NODE
            && name == staging::ENTRANCE.as_bytes()
            && Path::new(&format!("/proc/self/task/{}", header.pid)).exists()
    }

    /// The kernel may remember for a moment that a name does not exist: whoever makes a file asks for it several times before. Not in
    /// snapshots and their directory, whose entries nobody announces, nor where the index has to hear of each question.
    fn missing(&self, header: &Header, directory: FileHandle, bytes: &Bytes) -> Outcome {
        if let Some(index) = self.case_index()
            && bytes.len() > ASKED_BYTES_MAX
        {
            index.missed_long(header.pid, header.node);
            return Err(Errno::NOENT.into());
        }
        if directory.file_system != self.view.live_file_system {
            return Err(Errno::NOENT.into());
        }
        Ok(Reply::Structure(reply::no_entry(self.view)))
    }

    /// How a name that was not found by its exact bytes is written, as smbd's module wants it: with a zero behind it.
    pub(super) async fn written_name(&self, directory: FileHandle, asked: &[u8], size: u32) -> Outcome {
        let Some(index) = self.case_index() else {
            return Err(Errno::NODATA.into());
        };
        let asked = Name::new(Bytes::copy_from_slice(asked))?;
        match index.find(&*self.vfs, directory, &asked).await? {
            Answer::Is(found) => Self::value([found.as_bytes(), b"\0"].concat().into(), size),
            Answer::None => Err(Errno::NOENT.into()),
            Answer::Unknown => Err(Errno::OPNOTSUPP.into()),
        }
    }

    /// Owner, group and mode of a new file in `directory`, as the kernel would set them: a set-gid directory hands its group
    /// down, and where a default ACL is inherited it stands in for the umask.
    async fn new_file(
        &self,
        header: &Header,
        directory: FileHandle,
        (mode, umask): (u32, u32),
    ) -> Result<SetAttributes, VfsError> {
        let parent = self.vfs.attributes(directory).await?;
        let (_, default_acl) = self.vfs.get_acl(&superuser(), directory).await?;
        let umask = if default_acl.entries.is_empty() { umask } else { 0 };
        Ok(SetAttributes {
            mode: Some(mode & PERMISSIONS & !umask),
            uid: Some(header.uid),
            gid: Some(if parent.mode & SET_GID == 0 {
                header.gid
            } else {
                parent.gid
            }),
            ..SetAttributes::default()
        })
    }

    fn created(&self, created: &Created) -> Outcome {
        Ok(self.entry(created.handle, &created.attributes))
    }

    pub(super) async fn symlink(&self, header: &Header, bytes: &Bytes, target: Bytes) -> Outcome {
        let directory = self.handle(header.node)?;
        let attributes = self.new_file(header, directory, (0o777, 0)).await?;
        let target = Bytes::copy_from_slice(&target);
        let name = name(bytes)?;
        let made = self
            .vfs
            .make_symlink(&superuser(), directory, &name, target, attributes)
            .await?;
        self.created(&made)
    }

    pub(super) async fn read_link(&self, node: u64) -> Outcome {
        let (target, _) = self.vfs.read_link(&superuser(), self.handle(node)?).await?;
        Ok(Reply::Data(vec![target]))
    }

    pub(super) async fn make_node(
        &self,
        header: &Header,
        bytes: &Bytes,
        modes: (u32, u32),
        device: u32,
    ) -> Outcome {
        let directory = self.handle(header.node)?;
        let name = name(bytes)?;
        let attributes = self.new_file(header, directory, modes).await?;
        let (major, minor) = reply::device_numbers(device);
        let kind = match modes.0 & abi::mode::KIND {
            0 | abi::mode::REGULAR => {
                let mode = CreateMode::Guarded(attributes);
                let file = self.vfs.create(&superuser(), directory, &name, mode).await?;
                return self.created(&file);
            }
            abi::mode::FIFO => FileKind::Fifo,
            abi::mode::SOCKET => FileKind::Socket,
            abi::mode::CHARACTER => FileKind::CharacterDevice { major, minor },
            abi::mode::BLOCK => FileKind::BlockDevice { major, minor },
            _ => return Err(Errno::INVAL.into()),
        };
        let node = self
            .vfs
            .make_node(&superuser(), directory, &name, kind, attributes)
            .await?;
        self.created(&node)
    }

    pub(super) async fn make_directory(&self, header: &Header, bytes: &Bytes, modes: (u32, u32)) -> Outcome {
        let directory = self.handle(header.node)?;
        let attributes = self.new_file(header, directory, modes).await?;
        let name = name(bytes)?;
        let made = self
            .vfs
            .make_directory(&superuser(), directory, &name, attributes)
            .await?;
        self.created(&made)
    }

    /// Creates a file and opens it. If it exists by now, the kernel is told to look again and to open it, so that it checks who may.
    pub(super) async fn create(
        &self,
        header: &Header,
        bytes: &Bytes,
        modes: (u32, u32),
        flags: u32,
        interrupted: &Interrupted,
    ) -> Outcome {
        let directory = self.handle(header.node)?;
        let attributes = self.new_file(header, directory, modes).await?;
        let mode = CreateMode::Guarded(attributes);
        let caller = Caller {
            // What is opened for writing is stable once it is closed.
            durability: match access_of(flags).write {
                true => Durability::Memory,
                false => Durability::Journal,
            },
            ..superuser()
        };
        let verifier = self.vfs.write_verifier();
        let created = match self.vfs.create(&caller, directory, &name(bytes)?, mode).await {
            Err(VfsError::Exists) if flags & abi::open::EXCLUSIVE == 0 => return Err(Errno::STALE.into()),
            created => created?,
        };
        let (opened, open_flags) = loop {
            match self.open_file(created.handle, flags, None).await {
                Err(Failure::TryAgain) => {
                    let pause = pin!(self.env.sleep(TRY_AGAIN_AFTER));
                    if let Either::Right(_) = select(pause, pin!(interrupted.wait())).await {
                        return Err(Errno::INTR.into());
                    }
                }
                opened => break opened?,
            }
        };
        self.written.wrote(created.handle, verifier);
        if access_of(flags).write && !self.written.changed(created.handle) {
            self.vfs.settle(&superuser()).await?;
        }
        let node = self.nodes.look_up(created.handle);
        self.nodes.pages_are_of(node, created.attributes.change);
        let mut body = BytesMut::with_capacity(144);
        reply::put_entry(&mut body, node, &created.attributes, self.view);
        reply::put_opened(&mut body, opened.0, open_flags);
        Ok(Reply::Structure(body.freeze()))
    }

    pub(super) async fn remove(&self, directory: u64, bytes: &Bytes) -> Outcome {
        let directory = self.handle(directory)?;
        self.vfs.remove(&superuser(), directory, &name(bytes)?).await?;
        Ok(Reply::Empty)
    }

    pub(super) async fn remove_directory(&self, directory: u64, bytes: &Bytes) -> Outcome {
        let directory = self.handle(directory)?;
        let name = name(bytes)?;
        let removed = self.known_directory(directory, &name).await;
        self.vfs.remove_directory(&superuser(), directory, &name).await?;
        if let Some((handle, attributes)) = removed {
            self.nodes.remove_directory(handle, attributes);
        }
        Ok(Reply::Empty)
    }

    /// The directory of that name, if there is one and the kernel knows it.
    async fn known_directory(&self, directory: FileHandle, name: &Name) -> Option<(FileHandle, Attributes)> {
        let (handle, attributes) = self.vfs.lookup(&superuser(), directory, name).await.ok()?;
        let is_known = attributes.kind == FileKind::Directory && self.nodes.number(handle).is_some();
        is_known.then_some((handle, attributes))
    }

    pub(super) async fn rename(&self, from: (u64, &Bytes), to: (u64, &Bytes), flags: u32) -> Outcome {
        if flags != 0 {
            // Exchange and the like are not operations of the file system; tools that ask for NOREPLACE do without.
            return Err(Errno::INVAL.into());
        }
        let (from_directory, to_directory) = (self.handle(from.0)?, self.handle(to.0)?);
        let (from_name, to_name) = (name(from.1)?, name(to.1)?);
        let target = self.known_directory(to_directory, &to_name).await;
        self.vfs
            .rename(&superuser(), from_directory, &from_name, to_directory, &to_name)
            .await?;
        // Counts only once the directory itself is gone.
        if let Some((handle, attributes)) = target {
            self.nodes.remove_directory(handle, attributes);
        }
        Ok(Reply::Empty)
    }

    pub(super) async fn link(&self, old: u64, directory: u64, bytes: &Bytes) -> Outcome {
        let (file, directory) = (self.handle(old)?, self.handle(directory)?);
        let (attributes, _) = self
            .vfs
            .link(&superuser(), file, directory, &name(bytes)?)
            .await?;
        Ok(self.entry(file, &attributes))
    }
}

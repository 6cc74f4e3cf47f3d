//! Content: opening, reading, writing, closing.
//!
//! Writes are level 0 until fsync, which makes them level 1, as for NFS; those of files opened with O_SYNC or O_DSYNC are level 1
//! when they return. On a mount whose durability is the cloud both are level 2, and so is a file that was open for writing when its close
//! returns. What else was changed of a file that is open for writing, its making included, is level 1 when a close returns (decision 0118).

use super::{Operations, Outcome, superuser};
use crate::{
    abi::{self, open},
    errno::Failure,
    reply::{self, Reply},
};
use bytes::Bytes;
use firn_session::{ByteRange, OpenAccess, OpenId};
use firn_vfs::{AT_END, Durability, FileHandle, Stability};
use rustix::{fs::OFlags, io::Errno};

impl Operations {
    pub(super) async fn open(&self, node: u64, flags: u32) -> Outcome {
        let file = self.handle(node)?;
        let (id, open_flags) = self.open_file(file, flags, Some(node)).await?;
        if let Some(recorded) = &self.recorded {
            let access = access_of(flags);
            recorded.opened(file, access.read, access.write);
        }
        Ok(Reply::Structure(reply::opened(id.0, open_flags)))
    }

    /// Opens; `node`: the kernel may have pages of it.
    pub(super) async fn open_file(
        &self,
        file: FileHandle,
        flags: u32,
        node: Option<u64>,
    ) -> Result<(OpenId, u32), Failure> {
        let access = access_of(flags);
        let id = self.files.open(&self.client, file, access, None).await?;
        if access.write {
            self.written.opened(file);
        }
        let mut open_flags = abi::OPEN_PARALLEL_DIRECT_WRITES;
        if let Some(node) = node {
            // Retained, so that it cannot be gone; if it cannot be asked now, its pages are read anew.
            let attributes = self.vfs.attributes(file).await;
            if attributes.is_ok_and(|attributes| self.nodes.pages_are_of(node, attributes.change)) {
                open_flags |= abi::OPEN_KEEP_CACHE;
            }
        }
        Ok((id, open_flags))
    }

    /// All that was asked for up to the end of the file: the kernel takes less for the end.
    pub(super) async fn read(&self, node: u64, offset: u64, size: u32) -> Outcome {
        let file = self.handle(node)?;
        let mut parts: Vec<Bytes> = Vec::new();
        let mut done = 0_u32;
        while done < size {
            let at = offset.checked_add(done.into()).ok_or(Errno::INVAL)?;
            let read = self.vfs.read(&superuser(), file, at, size - done).await?;
            let length: usize = read.data.iter().map(Bytes::len).sum();
            done += u32::try_from(length).map_err(|_| Errno::IO)?;
            parts.extend(read.data);
            if read.end_of_file || length == 0 {
                break;
            }
        }
        Ok(Reply::Data(parts))
    }

    /// What `appends` goes behind the end that the file has in that instant, wherever the kernel believes it: it knows the length by its last look, and
    /// another protocol, or another office while this one waited for the volume, may have changed it since. What the kernel then has in its cache at the wrong place it drops before the next read, which finds
    /// another length and another time of modification than it knows.
    pub(super) async fn write(
        &self,
        node: u64,
        offset: u64,
        flags: u32,
        appends: bool,
        data: Bytes,
    ) -> Outcome {
        let file = self.handle(node)?;
        let stability = match flags & open::SYNC {
            open::SYNC => Stability::FileSync,
            open::DATA_SYNC => Stability::DataSync,
            _ => Stability::Unstable,
        };
        let length = u32::try_from(data.len()).map_err(|_| Errno::INVAL)?;
        let largest = self.vfs.limits().maximum_io_bytes.max(1) as usize;
        // As NFS clients are told it: of the time before.
        let verifier = self.vfs.write_verifier();
        let mut rest = data;
        let mut at = offset;
        // Once, on every file system that takes as much as the kernel sends; repeating a part writes the same bytes.
        while !rest.is_empty() {
            let part = rest.split_to(rest.len().min(largest));
            let part_bytes = part.len() as u64;
            let written = self
                .vfs
                .write(
                    &self.syncing(),
                    file,
                    if appends { AT_END } else { at },
                    vec![part],
                    stability,
                )
                .await?;
            let end_before = written.file.before.as_ref().map(|before| before.size_bytes);
            if !appends || end_before == Some(at) {
                self.nodes.changed_here(node, &written.file);
            }
            at = at.checked_add(part_bytes).ok_or(Errno::FBIG)?;
        }
        if stability == Stability::Unstable {
            self.written.wrote(file, verifier);
        }
        Ok(Reply::Structure(reply::length(length)))
    }

    pub(super) async fn commit(&self, node: u64) -> Outcome {
        let file = self.handle(node)?;
        let unsettled = self.written.take_unsettled(file);
        if let Err(error) = self.vfs.commit(&self.syncing(), file).await {
            // For the next who asks.
            let _ = unsettled && self.written.changed(file);
            return Err(error.into());
        }
        self.check_not_lost(file)?;
        self.written.synced(file);
        Ok(Reply::Empty)
    }

    /// Fails, once, if what was written of the file and not synced may have been put aside.
    fn check_not_lost(&self, file: FileHandle) -> Result<(), Failure> {
        if !self.written.take_lost(file, self.vfs.write_verifier()) {
            return Ok(());
        }
        tracing::warn!(
            inode = file.inode,
            "what was written to a file and not synced is not in the volume: another office took it over; it may be in the salvage clone"
        );
        Err(Errno::IO.into())
    }

    /// Waits until what was changed of the file at level 0, its making included, is at level 1.
    async fn settle_file(&self, file: FileHandle) -> Result<(), Failure> {
        if !self.written.take_unsettled(file) {
            return Ok(());
        }
        self.vfs.settle(&superuser()).await.map_err(|error| {
            let _ = self.written.changed(file);
            error.into()
        })
    }

    /// Names are stable (level 1) when the call that changed them returned, but those of new files that are still open for writing.
    pub(super) async fn settle(&self) -> Outcome {
        self.vfs.settle(&self.syncing()).await?;
        Ok(Reply::Empty)
    }

    /// One descriptor is closed: by POSIX all locks of its process on the file end, once what was written is as durable as a close makes it.
    pub(super) async fn flush(&self, node: u64, handle: u64, lock_owner: u64) -> Outcome {
        let file = self.handle(node)?;
        let is_written = || {
            let open = self.files.get(OpenId(handle));
            open.is_some_and(|open| open.access.write)
        };
        let flushed = match self.durability == Durability::Cloud && is_written() {
            true => self.commit(node).await,
            false => match self.settle_file(file).await {
                Ok(()) => self.check_not_lost(file).map(|()| Reply::Empty),
                Err(failure) => Err(failure),
            },
        };
        if !matches!(flushed, Err(Failure::TryAgain)) {
            self.locks
                .unlock(file, &self.lock_owner(lock_owner), ByteRange::ALL);
            self.locking_opens.ended(file, lock_owner);
        }
        flushed
    }

    /// The last descriptor of an open is closed.
    pub(super) async fn release(&self, node: u64, handle: u64, flags: u32, lock_owner: u64) -> Outcome {
        if flags & abi::RELEASE_FLOCK_UNLOCK != 0
            && let Some(file) = self.nodes.handle(node)
        {
            self.locks
                .unlock(file, &self.lock_owner(lock_owner), ByteRange::ALL);
        }
        let open = self.files.get(OpenId(handle));
        if let Some(open) = &open {
            for owner in self.locking_opens.closed(open.file, handle) {
                self.locks
                    .unlock(open.file, &self.lock_owner(owner), ByteRange::ALL);
            }
        }
        self.files.close(OpenId(handle)).await?;
        if let Some(open) = open.filter(|open| open.access.write)
            && self.written.closed(open.file)
        {
            // Changed since it was flushed, by another than whoever closed it.
            self.vfs.settle(&superuser()).await?;
        }
        Ok(Reply::Empty)
    }
}

/// Whether what is written by a descriptor with these flags goes to the end. Not with O_DIRECT: parts of one call come in any order then.
pub(super) fn appends(flags: u32) -> bool {
    let flags = OFlags::from_bits_retain(flags);
    flags.contains(OFlags::APPEND) && !flags.contains(OFlags::DIRECT)
}

/// What a file is opened for.
pub(super) fn access_of(flags: u32) -> OpenAccess {
    let mode = flags & open::ACCESS_MODE;
    OpenAccess {
        read: mode != open::WRITE_ONLY,
        write: matches!(mode, open::WRITE_ONLY | open::READ_WRITE),
    }
}

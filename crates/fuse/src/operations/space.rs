//! Space of a file: where its holes are, holes and zeros to be made, copies that stay within the volume (decision 0188).
//!
//! A hole is made by writing zeros where there is data: the next checkpoint drops blocks of zeros. Nothing is reserved: `fallocate` without
//! PUNCH_HOLE and ZERO_RANGE is not supported, and the C library does without.

use super::{Operations, Outcome, superuser};
use crate::{
    abi::{allocate, whence},
    errno::Failure,
    interrupted::Interrupted,
    reply::{self, Reply},
};
use bytes::Bytes;
use firn_vfs::{FileHandle, SeekTo, SetAttributes, Stability, VfsError};
use rustix::io::Errno;

/// Copied for one request: the kernel asks for the rest, and its process can be interrupted in between.
const COPY_BYTES_MAX: u64 = 16 << 20;
/// Copied or zeroed at once.
const PART_BYTES: u64 = 1 << 20;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Operations {
    pub(super) async fn seek(&self, node: u64, offset: u64, from: u32) -> Outcome {
        let to = match from {
            whence::DATA => SeekTo::Data,
            whence::HOLE => SeekTo::Hole,
            _ => return Err(Errno::INVAL.into()),
        };
        let found = self
            .vfs
            .seek(&superuser(), self.handle(node)?, offset, to)
            .await?;
        let at = found.ok_or(Failure::Error(Errno::NXIO))?;
        Ok(Reply::Structure(reply::offset(at)))
    }

    /// Makes zeros of a range, up to the end of the file or beyond.
    pub(super) async fn allocate(
        &self,
        node: u64,
        (offset, length): (u64, u64),
        mode: u32,
        interrupted: &Interrupted,
    ) -> Outcome {
        const PUNCH: u32 = allocate::PUNCH_HOLE | allocate::KEEP_SIZE;
        const ZERO: u32 = allocate::ZERO_RANGE | allocate::KEEP_SIZE;
        let keeps_size = match mode {
            PUNCH | ZERO => true,
            allocate::ZERO_RANGE => false,
            // No space is set aside in a log, and none promised that is not.
            _ => return Err(Errno::OPNOTSUPP.into()),
        };
        let file = self.handle(node)?;
        let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
        if end > self.vfs.limits().file_bytes {
            return Err(Errno::FBIG.into());
        }
        self.claim(file).await?;
        let size = self.vfs.attributes(file).await?.size_bytes;
        self.zero(node, file, (offset, end.min(size)), interrupted)
            .await?;
        if !keeps_size && end > size {
            let change = SetAttributes {
                size_bytes: Some(end),
                ..SetAttributes::default()
            };
            let changed = self.vfs.set_attributes(&superuser(), file, change, None).await?;
            self.nodes.changed_here(node, &changed);
        }
        Ok(Reply::Empty)
    }

    /// Where offices write by turns: waits for the volume before what is there is looked at, so that it is not an older state that is changed.
    async fn claim(&self, file: FileHandle) -> Result<(), Failure> {
        let nothing = Vec::new();
        self.vfs
            .write(&superuser(), file, 0, nothing, Stability::Unstable)
            .await?;
        Ok(())
    }

    /// Writes zeros where there is data. Carried out again after an interruption it goes on.
    async fn zero(
        &self,
        node: u64,
        file: FileHandle,
        (start, end): (u64, u64),
        interrupted: &Interrupted,
    ) -> Result<(), Failure> {
        let mut at = start;
        while at < end {
            let found = self.vfs.seek(&superuser(), file, at, SeekTo::Data).await?;
            let Some(data) = found.filter(|data| *data < end) else {
                return Ok(());
            };
            let hole = self.vfs.seek(&superuser(), file, data, SeekTo::Hole).await?;
            let hole = hole.unwrap_or(end).min(end);
            at = data;
            while at < hole {
                if interrupted.is_signalled() {
                    return Err(Errno::INTR.into());
                }
                let length = (hole - at).min(self.part_bytes());
                let verifier = self.vfs.write_verifier();
                let written = self
                    .vfs
                    .write(&superuser(), file, at, zeros(length), Stability::Unstable)
                    .await?;
                self.nodes.changed_here(node, &written.file);
                self.written.wrote(file, verifier);
                at += length;
            }
        }
        Ok(())
    }

    fn part_bytes(&self) -> u64 {
        PART_BYTES.min(u64::from(self.vfs.limits().maximum_io_bytes.max(1)))
    }

    /// Copies from one file to another, or within one, as much as is there, or as is right for one request.
    pub(super) async fn copy_range(
        &self,
        (from_node, offset): (u64, u64),
        (to_node, to_offset): (u64, u64),
        length: u64,
        flags: u64,
        interrupted: &Interrupted,
    ) -> Outcome {
        if flags != 0 {
            return Err(Errno::INVAL.into());
        }
        let (from, to) = (self.handle(from_node)?, self.handle(to_node)?);
        let length = length.min(COPY_BYTES_MAX);
        let mut done = 0;
        while done < length {
            if interrupted.is_signalled() && done > 0 {
                break;
            }
            let part = (length - done).min(self.part_bytes());
            match self
                .copy_part((from, offset + done), (to_node, to, to_offset + done), part)
                .await
            {
                Ok(0) => break,
                Ok(copied) => done += copied,
                // What was copied is told first; the next request meets the error.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        let done = u32::try_from(done).expect("below the most for one request");
        Ok(Reply::Structure(reply::length(done)))
    }

    async fn copy_part(
        &self,
        (from, offset): (FileHandle, u64),
        (to_node, to, to_offset): (u64, FileHandle, u64),
        length: u64,
    ) -> Result<u64, VfsError> {
        let asked = u32::try_from(length).expect("no more than a part");
        let read = self.vfs.read(&superuser(), from, offset, asked).await?;
        let copied: usize = read.data.iter().map(Bytes::len).sum();
        if copied == 0 {
            return Ok(0);
        }
        let verifier = self.vfs.write_verifier();
        let written = self
            .vfs
            .write(&superuser(), to, to_offset, read.data, Stability::Unstable)
            .await?;
        self.nodes.changed_here(to_node, &written.file);
        self.written.wrote(to, verifier);
        Ok(copied as u64)
    }
}

/// Zeros that take no memory of their own.
fn zeros(length: u64) -> Vec<Bytes> {
    let mut left = length as usize;
    let mut parts = Vec::new();
    while left > 0 {
        let some = left.min(ZEROS.len());
        parts.push(Bytes::from_static(&ZEROS[..some]));
        left -= some;
    }
    parts
}

//! Direct writes (`O_DIRECT`): bytes that go to the device past the page cache.
//!
//! Writing through the page cache copies into pages that are made for it, which the kernel then writes and drops: for what nobody
//! reads here that is most of the cost of writing, and it takes the memory of what somebody does read. A direct write wants
//! buffer, offset and length aligned to the device's blocks; so the bytes are copied, into a few buffers that are used again, and
//! the end of a file that fills no block goes the usual way. So does everything where the file system knows no direct writes.

use super::write_parts;
use bytes::Bytes;
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{Errno, pwrite},
};
use std::{
    fs::File,
    io,
    sync::{Mutex, PoisonError},
};

/// What offsets, lengths and buffers are a multiple of: the largest block of any device in use.
const ALIGNMENT: usize = 4096;

/// Copied and written at a time: large enough for any device, small enough to keep.
const BUFFER_BYTES: usize = 1 << 20;

/// Less than this is written the usual way: it costs little, and a trip to the device more.
const LEAST_BYTES: usize = 64 << 10;

/// Buffers kept, as many as the uploads that an edge makes at a time.
const BUFFERS_KEPT: usize = 4;

static BUFFERS: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());

/// Aligned memory.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn take() -> Self {
        let kept = BUFFERS.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| {
            let bytes = vec![0; BUFFER_BYTES + ALIGNMENT];
            let start = bytes.as_ptr().align_offset(ALIGNMENT);
            Self { bytes, start }
        })
    }

    fn give_back(self) {
        let mut kept = BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < BUFFERS_KEPT {
            kept.push(self);
        }
    }

    fn aligned(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + BUFFER_BYTES]
    }
}

/// Writes parts one after the other at `offset` of a file that nobody else writes.
pub(super) fn write(file: &File, offset: u64, parts: &[Bytes]) -> io::Result<()> {
    let bytes: usize = parts.iter().map(Bytes::len).sum();
    let usual = fcntl_getfl(file)?;
    if bytes < LEAST_BYTES
        || !offset.is_multiple_of(ALIGNMENT as u64)
        || fcntl_setfl(file, usual | OFlags::DIRECT).is_err()
    {
        return write_parts(file, offset, parts);
    }
    let mut buffer = Buffer::take();
    let written = write_blocks(file, offset, parts, buffer.aligned());
    buffer.give_back();
    fcntl_setfl(file, usual)?;
    let mut rest = match written {
        Ok(rest) => rest,
        // The file system takes the flag and not the write, or wants larger blocks.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return write_parts(file, offset, parts),
        Err(error) => return Err(error.into()),
    };
    rest.retain(|part| !part.is_empty());
    let left: usize = rest.iter().map(Bytes::len).sum();
    write_parts(file, offset + (bytes - left) as u64, &rest)
}

/// Writes all whole blocks, and gives back what is left.
fn write_blocks(
    file: &File,
    mut offset: u64,
    parts: &[Bytes],
    buffer: &mut [u8],
) -> Result<Vec<Bytes>, Errno> {
    let mut rest = parts.to_vec();
    loop {
        let filled = copy(&rest, buffer);
        let blocks = filled - filled % ALIGNMENT;
        if blocks == 0 {
            return Ok(rest);
        }
        let written = loop {
            match pwrite(file, &buffer[..blocks], offset) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        advance(&mut rest, written);
        offset += written as u64;
        // A disk that is nearly full, or a signal: the usual way says what it is.
        if written < blocks {
            return Ok(rest);
        }
    }
}

/// Copies as much of the parts as fits, and says how much that is.
fn copy(parts: &[Bytes], buffer: &mut [u8]) -> usize {
    let mut filled = 0;
    for part in parts {
        let taken = part.len().min(buffer.len() - filled);
        buffer[filled..filled + taken].copy_from_slice(&part[..taken]);
        filled += taken;
        if filled == buffer.len() {
            break;
        }
    }
    filled
}

/// Drops the first `bytes` bytes.
fn advance(parts: &mut Vec<Bytes>, mut bytes: usize) {
    let whole = parts
        .iter()
        .take_while(|part| match bytes.checked_sub(part.len()) {
            Some(left) => {
                bytes = left;
                true
            }
            None => false,
        })
        .count();
    parts.drain(..whole);
    if bytes > 0 {
        let _ = parts[0].split_to(bytes);
    }
}

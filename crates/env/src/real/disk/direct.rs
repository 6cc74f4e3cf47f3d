//! Direct writes (`O_DIRECT`): bytes that go to the device past the page cache.
//!
//! Writing through the page cache copies into pages that are made for it, which the kernel then writes and drops: for what nobody
//! reads here that is most of the cost of writing, and it takes the memory of what somebody does read. A direct write wants
//! buffer, offset and length aligned to the device's blocks:
//!
//! ```text
//! file     ──┬────────┬────────┬────────┬──      blocks of 4 KiB
//!          ▒▒▒▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒▒       ▒ through the page cache, ▓ direct
//! ```
//!
//! Where memory and file are aligned alike, the bytes go from where they are; else they are copied into a few buffers that are used
//! again. Everything goes the usual way below 64 KiB, and where the file system knows no direct writes.

use super::write_parts;
use bytes::Bytes;
use rustix::{
    fs::OFlags,
    io::{Errno, pwrite},
};
use std::{
    fs::{File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    sync::{Mutex, OnceLock, PoisonError},
};

/// What offsets, lengths and buffers are a multiple of: the largest block of any device in use.
const ALIGNMENT: usize = 4096;

/// Copied and written at a time: large enough for any device, small enough to keep.
const BUFFER_BYTES: usize = 1 << 20;

/// Less than this is written the usual way: it costs little, and a trip to the device more.
pub(super) const LEAST_BYTES: usize = 64 << 10;

/// Buffers kept, as many as the uploads that an edge makes at a time.
const BUFFERS_KEPT: usize = 4;

static BUFFERS: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());

/// A file opened once more for direct writes, when the first is made: the flag belongs to the opening, and others write through
/// the page cache meanwhile.
#[derive(Default)]
pub(super) struct Direct(OnceLock<Option<File>>);

impl Direct {
    /// `None` if the file system, or this machine, does not give it.
    fn of(&self, file: &File) -> Option<&File> {
        let open = || {
            let flags = OFlags::DIRECT.bits() as i32;
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            OpenOptions::new().write(true).custom_flags(flags).open(path).ok()
        };
        self.0.get_or_init(open).as_ref()
    }
}

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

/// Writes parts one after the other at `offset`. Others may write elsewhere in the file meanwhile.
pub(super) fn write(file: &File, direct: &Direct, offset: u64, parts: &[Bytes]) -> io::Result<()> {
    let bytes: usize = parts.iter().map(Bytes::len).sum();
    let direct = if bytes < LEAST_BYTES {
        None
    } else {
        direct.of(file)
    };
    let Some(direct) = direct else {
        return write_parts(file, offset, parts);
    };
    let mut rest: Vec<Bytes> = parts.iter().filter(|part| !part.is_empty()).cloned().collect();
    let before = (offset.next_multiple_of(ALIGNMENT as u64) - offset) as usize;
    write_parts(file, offset, &take(&mut rest, before))?;
    let mut at = offset + before as u64;
    match write_blocks(direct, &mut at, &mut rest) {
        Ok(()) => {}
        // The file system takes the flag and not the write, or wants larger blocks.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    write_parts(file, at, &rest)
}

/// Writes whole blocks at the aligned offset `at`, and takes them off `rest`; all of them, unless the device takes only a part of a
/// write.
fn write_blocks(direct: &File, at: &mut u64, rest: &mut Vec<Bytes>) -> Result<(), Errno> {
    let mut buffer = None;
    let done = loop {
        let Some(first) = rest.first() else { break Ok(()) };
        let is_aligned = first.as_ptr().align_offset(ALIGNMENT) == 0;
        let (written, blocks) = if is_aligned && first.len() >= ALIGNMENT {
            let blocks = first.len() - first.len() % ALIGNMENT;
            (write_once(direct, &first[..blocks], *at), blocks)
        } else {
            let buffer = buffer.get_or_insert_with(Buffer::take).aligned();
            let filled = copy(rest, buffer);
            let blocks = filled - filled % ALIGNMENT;
            if blocks == 0 {
                break Ok(());
            }
            (write_once(direct, &buffer[..blocks], *at), blocks)
        };
        match written {
            Ok(written) => {
                take(rest, written);
                *at += written as u64;
                // A disk that is nearly full, or a signal: the usual way says what it is.
                if written < blocks {
                    break Ok(());
                }
            }
            Err(error) => break Err(error),
        }
    };
    if let Some(buffer) = buffer {
        buffer.give_back();
    }
    done
}

fn write_once(direct: &File, blocks: &[u8], at: u64) -> Result<usize, Errno> {
    loop {
        match pwrite(direct, blocks, at) {
            Err(Errno::INTR) => {}
            other => return other,
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

/// Takes the first `bytes` bytes off `parts`.
fn take(parts: &mut Vec<Bytes>, mut bytes: usize) -> Vec<Bytes> {
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
    let mut taken: Vec<Bytes> = parts.drain(..whole).collect();
    if bytes > 0
        && let Some(first) = parts.first_mut()
    {
        taken.push(first.split_to(bytes));
    }
    taken
}

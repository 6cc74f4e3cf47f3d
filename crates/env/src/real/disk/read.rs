//! Reads of a file: from the page cache in place if it holds all that is asked for, else by a call that may wait.

use bytes::Bytes;
use rustix::{
    buffer::spare_capacity,
    io::{Errno, ReadWriteFlags, pread, preadv2},
};
use std::{
    fs::File,
    io::{self, IoSliceMut},
};

/// What is copied from the page cache in place at most, some 100 µs: what a client reads with one call of a mebibyte, which is a block
/// more where it begins within one, and what sealing adds to each. A trip to another thread and back costs about as much.
pub(super) const IN_PLACE_BYTES: usize = (1 << 20) + (128 << 10);

/// What the kernel takes in one call (UIO_MAXIOV).
const PARTS_A_CALL: usize = 1024;

/// What the page cache has of what is asked for.
pub(super) enum Cached {
    Whole(Vec<Bytes>),
    /// Not all, or more than is copied in place.
    No,
    /// The file system does not say.
    Unknown,
}

/// Reads adjacent parts in place, if the page cache holds all of them.
pub(super) fn cached(file: &File, offset: u64, lengths: &[usize]) -> Cached {
    let length: usize = lengths.iter().sum();
    if length == 0 || length > IN_PLACE_BYTES || lengths.len() > PARTS_A_CALL {
        return Cached::No;
    }
    let mut buffers = buffers(lengths);
    let mut slices: Vec<IoSliceMut<'_>> = buffers.iter_mut().map(|part| IoSliceMut::new(part)).collect();
    match preadv2(file, &mut slices, offset, ReadWriteFlags::NOWAIT) {
        Ok(read) if read == length => Cached::Whole(buffers.into_iter().map(Bytes::from).collect()),
        Err(Errno::OPNOTSUPP) => Cached::Unknown,
        // Less than all may be the end of the file or the end of what is cached: the long way finds out.
        Ok(_) | Err(_) => Cached::No,
    }
}

fn buffers(lengths: &[usize]) -> Vec<Vec<u8>> {
    lengths.iter().map(|length| vec![0; *length]).collect()
}

/// Reads what is asked for; less at the end of the file.
pub(super) fn whole(file: &File, offset: u64, length: usize) -> io::Result<Bytes> {
    let length = available(file, offset, length)?;
    let mut buffer = Vec::with_capacity(length);
    // Into memory that is not written before.
    while buffer.len() < length {
        let at = offset + buffer.len() as u64;
        match pread(file, spare_capacity(&mut buffer), at) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // An allocator may have given more than was asked for.
    buffer.truncate(length);
    Ok(Bytes::from(buffer))
}

/// Reads adjacent parts; the last ones are shorter or empty at the end of the file.
pub(super) fn parts(file: &File, mut offset: u64, lengths: &[usize]) -> io::Result<Vec<Bytes>> {
    let mut left = available(file, offset, lengths.iter().sum())?;
    let mut parts = Vec::with_capacity(lengths.len());
    for some in lengths.chunks(PARTS_A_CALL) {
        let lengths: Vec<usize> = some
            .iter()
            .map(|length| {
                let length = left.min(*length);
                left -= length;
                length
            })
            .collect();
        let mut buffers = buffers(&lengths);
        let mut slices: Vec<IoSliceMut<'_>> = buffers.iter_mut().map(|part| IoSliceMut::new(part)).collect();
        let mut rest = &mut slices[..];
        let mut filled = 0;
        IoSliceMut::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match preadv2(file, rest, offset, ReadWriteFlags::empty()) {
                // The file was made shorter meanwhile.
                Ok(0) => break,
                Ok(read) => {
                    offset += read as u64;
                    filled += read;
                    IoSliceMut::advance_slices(&mut rest, read);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for mut buffer in buffers {
            let length = buffer.len().min(filled);
            filled -= length;
            buffer.truncate(length);
            parts.push(Bytes::from(buffer));
        }
    }
    Ok(parts)
}

/// How much of `length` bytes the file has at `offset`: nothing is allocated for what is not there.
fn available(file: &File, offset: u64, length: usize) -> io::Result<usize> {
    let behind = file.metadata()?.len().saturating_sub(offset);
    Ok(length.min(usize::try_from(behind).unwrap_or(usize::MAX)))
}

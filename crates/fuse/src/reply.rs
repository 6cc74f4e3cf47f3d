//! Replies to the kernel, encoded.
//!
//! ```text
//! reply = length u32 | error i32 | unique u64 | body
//! ```

use crate::abi::{self, OUT_HEADER_BYTES};
use bytes::{BufMut, Bytes, BytesMut};
use firn_vfs::{Attributes, FileKind, FileSystemStatus, Timestamp};
use std::time::Duration;

/// For how long the kernel may believe names and attributes of a volume that only this edge changes. What other clients change is taken out at
/// once, so this bounds only what nobody announces: restores by an administrator, and names after the queue of changes was full.
pub(crate) const CACHED_FOR: Duration = Duration::from_secs(5);

/// For how long it may believe that a name does not exist. What other clients make is announced too; short, since a file that does not appear
/// is more trouble than one that has not gone yet.
const MISSING_FOR: Duration = Duration::from_secs(1);

/// What stat shows as the unit of I/O; tools copy in such pieces.
const BLOCK_BYTES: u32 = 4096;

/// How files are shown to the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// Of the root: files of any other belong to snapshots.
    pub live_file_system: u64,
    /// For how long names and attributes may be believed, [`CACHED_FOR`] at most.
    pub cached_for: Duration,
}

impl View {
    pub(crate) fn new(live_file_system: u64, cached_for: Option<Duration>) -> Self {
        Self {
            live_file_system,
            cached_for: cached_for.map_or(CACHED_FOR, |cached_for| cached_for.min(CACHED_FOR)),
        }
    }
}

/// The body of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// None is due.
    Nothing,
    /// Done.
    Empty,
    /// One structure.
    Structure(Bytes),
    /// Data, in order.
    Data(Vec<Bytes>),
}

/// The header of a reply with a body of `body_bytes`; `error` is 0 or an error number.
pub(crate) fn header(unique: u64, error: i32, body_bytes: usize) -> [u8; OUT_HEADER_BYTES] {
    let mut header = [0; OUT_HEADER_BYTES];
    let length = u32::try_from(OUT_HEADER_BYTES + body_bytes).expect("replies are bounded by their requests");
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4..8].copy_from_slice(&(-error).to_le_bytes());
    header[8..].copy_from_slice(&unique.to_le_bytes());
    header
}

/// The number that stat shows. A snapshot has its files under the numbers they have in the volume, and all of a mount is one
/// device to the kernel: without this tools would take a file and its snapshot for two names of one file.
pub(crate) fn inode_number(attributes: &Attributes, live_file_system: u64) -> u64 {
    if attributes.file_system == live_file_system {
        return attributes.inode;
    }
    // Odd multiplier (from the golden ratio): one to one within a snapshot. The top bit keeps clear of the volume's numbers.
    let mixed = (attributes.inode ^ attributes.file_system).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed | 1 << 63
}

fn seconds(time: Timestamp) -> u64 {
    // The kernel reads it back as signed.
    time.seconds as u64
}

pub(crate) fn kind_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => abi::mode::REGULAR,
        FileKind::Directory => abi::mode::DIRECTORY,
        FileKind::Symlink => abi::mode::LINK,
        FileKind::BlockDevice { .. } => abi::mode::BLOCK,
        FileKind::CharacterDevice { .. } => abi::mode::CHARACTER,
        FileKind::Fifo => abi::mode::FIFO,
        FileKind::Socket => abi::mode::SOCKET,
    }
}

/// A device number as the kernel writes it into 32 bits.
fn device(kind: FileKind) -> u32 {
    match kind {
        FileKind::BlockDevice { major, minor } | FileKind::CharacterDevice { major, minor } => {
            minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12
        }
        FileKind::Regular | FileKind::Directory | FileKind::Symlink | FileKind::Fifo | FileKind::Socket => 0,
    }
}

/// The reverse: major and minor.
pub(crate) fn device_numbers(device: u32) -> (u32, u32) {
    (
        (device & 0x000f_ff00) >> 8,
        device & 0xff | (device >> 12) & 0x000f_ff00,
    )
}

fn put_attributes(bytes: &mut BytesMut, attributes: &Attributes, view: View) {
    bytes.put_u64_le(inode_number(attributes, view.live_file_system));
    bytes.put_u64_le(attributes.size_bytes);
    bytes.put_u64_le(attributes.used_bytes.div_ceil(512));
    let times = [attributes.accessed, attributes.modified, attributes.changed];
    for time in times {
        bytes.put_u64_le(seconds(time));
    }
    for time in times {
        bytes.put_u32_le(time.nanoseconds);
    }
    bytes.put_u32_le(kind_bits(attributes.kind) | attributes.mode);
    bytes.put_u32_le(attributes.links);
    bytes.put_u32_le(attributes.uid);
    bytes.put_u32_le(attributes.gid);
    bytes.put_u32_le(device(attributes.kind));
    bytes.put_u32_le(BLOCK_BYTES);
    bytes.put_u32_le(0);
}

/// A node and what it is; 128 bytes.
pub(crate) fn put_entry(bytes: &mut BytesMut, node: u64, attributes: &Attributes, view: View) {
    bytes.put_u64_le(node);
    bytes.put_u64_le(0);
    bytes.put_u64_le(view.cached_for.as_secs());
    bytes.put_u64_le(view.cached_for.as_secs());
    bytes.put_u32_le(view.cached_for.subsec_nanos());
    bytes.put_u32_le(view.cached_for.subsec_nanos());
    put_attributes(bytes, attributes, view);
}

/// A node and what it is, both for as long as the view says.
pub(crate) fn entry(node: u64, attributes: &Attributes, view: View) -> Bytes {
    let mut bytes = BytesMut::with_capacity(128);
    put_entry(&mut bytes, node, attributes, view);
    bytes.freeze()
}

/// The same for a name that the kernel is to ask for each time.
pub(crate) fn unnamed_entry(node: u64, attributes: &Attributes, view: View) -> Bytes {
    let mut bytes = BytesMut::with_capacity(128);
    put_entry(&mut bytes, node, attributes, view);
    bytes[16..24].fill(0);
    bytes[32..36].fill(0);
    bytes.freeze()
}

/// There is none of that name: the node 0, for [`MISSING_FOR`] at most.
pub(crate) fn no_entry(view: View) -> Bytes {
    let mut bytes = BytesMut::zeroed(128);
    let missing_for = MISSING_FOR.min(view.cached_for);
    bytes[16..24].copy_from_slice(&missing_for.as_secs().to_le_bytes());
    bytes[32..36].copy_from_slice(&missing_for.subsec_nanos().to_le_bytes());
    bytes.freeze()
}

pub(crate) fn attributes(attributes: &Attributes, view: View) -> Bytes {
    let mut bytes = BytesMut::with_capacity(104);
    bytes.put_u64_le(view.cached_for.as_secs());
    bytes.put_u32_le(view.cached_for.subsec_nanos());
    bytes.put_u32_le(0);
    put_attributes(&mut bytes, attributes, view);
    bytes.freeze()
}

pub(crate) fn put_opened(bytes: &mut BytesMut, handle: u64, flags: u32) {
    bytes.put_u64_le(handle);
    bytes.put_u32_le(flags);
    bytes.put_u32_le(0);
}

pub(crate) fn opened(handle: u64, flags: u32) -> Bytes {
    let mut bytes = BytesMut::with_capacity(16);
    put_opened(&mut bytes, handle, flags);
    bytes.freeze()
}

/// A number with four bytes behind it that mean nothing: what was written, or how long a value is.
pub(crate) fn length(length: u32) -> Bytes {
    let mut bytes = BytesMut::with_capacity(8);
    bytes.put_u32_le(length);
    bytes.put_u32_le(0);
    bytes.freeze()
}

/// A place in a file.
pub(crate) fn offset(offset: u64) -> Bytes {
    Bytes::copy_from_slice(&offset.to_le_bytes())
}

pub(crate) fn status(status: &FileSystemStatus) -> Bytes {
    let unit = u64::from(BLOCK_BYTES);
    let mut bytes = BytesMut::with_capacity(80);
    bytes.put_u64_le(status.total_bytes / unit);
    bytes.put_u64_le(status.free_bytes / unit);
    bytes.put_u64_le(status.free_bytes / unit);
    bytes.put_u64_le(status.total_files);
    bytes.put_u64_le(status.free_files);
    bytes.put_u32_le(BLOCK_BYTES);
    bytes.put_u32_le(255);
    bytes.put_u32_le(BLOCK_BYTES);
    bytes.put_bytes(0, 28);
    bytes.freeze()
}

pub(crate) fn lock(start: u64, end: u64, kind: u32) -> Bytes {
    let mut bytes = BytesMut::with_capacity(24);
    bytes.put_u64_le(start);
    bytes.put_u64_le(end);
    bytes.put_u32_le(kind);
    // The process may be on another machine; 0 says that it has no number here.
    bytes.put_u32_le(0);
    bytes.freeze()
}

/// Of `FUSE_INIT`.
pub(crate) fn init(minor: u32, max_readahead: u32, flags: u64, max_write: u32, in_background: u16) -> Bytes {
    let mut bytes = BytesMut::with_capacity(64);
    bytes.put_u32_le(abi::MAJOR);
    bytes.put_u32_le(minor);
    bytes.put_u32_le(max_readahead);
    bytes.put_u32_le(flags as u32);
    bytes.put_u16_le(in_background);
    bytes.put_u16_le(in_background / 4 * 3);
    bytes.put_u32_le(max_write);
    // Times are exact to the nanosecond.
    bytes.put_u32_le(1);
    bytes.put_u16_le(u16::try_from(max_write / 4096).unwrap_or(u16::MAX));
    bytes.put_u16_le(0);
    bytes.put_u32_le((flags >> 32) as u32);
    bytes.put_bytes(0, 28);
    bytes.freeze()
}

/// Entries of a directory, as many as fit.
pub(crate) struct Listing {
    bytes: BytesMut,
    limit: usize,
}

impl Listing {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            bytes: BytesMut::with_capacity(limit.min(64 << 10)),
            limit,
        }
    }

    /// Whether an entry of that name still fits.
    pub(crate) fn fits(&self, name: &[u8], plus: bool) -> bool {
        let head = if plus { 128 } else { 0 };
        self.bytes.len() + head + (24 + name.len()).next_multiple_of(8) <= self.limit
    }

    /// Adds an entry that fits. `plus`: its node (0: not looked up) and attributes.
    pub(crate) fn add(
        &mut self,
        name: &[u8],
        cookie: u64,
        (inode, kind): (u64, u32),
        plus: Option<(u64, Option<&Attributes>, View)>,
    ) {
        match plus {
            Some((node, Some(attributes), view)) if node != 0 => {
                put_entry(&mut self.bytes, node, attributes, view)
            }
            Some(_) => self.bytes.put_bytes(0, 128),
            None => {}
        }
        self.bytes.put_u64_le(inode);
        self.bytes.put_u64_le(cookie);
        self.bytes.put_u32_le(name.len() as u32);
        self.bytes.put_u32_le(kind >> 12);
        self.bytes.put_slice(name);
        let padded = self.bytes.len().next_multiple_of(8);
        self.bytes.put_bytes(0, padded - self.bytes.len());
    }

    pub(crate) fn finish(self) -> Bytes {
        self.bytes.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernels() {
        let attributes = Attributes {
            inode: 5,
            kind: FileKind::Regular,
            mode: 0o644,
            links: 1,
            uid: 1,
            gid: 2,
            size_bytes: 3,
            used_bytes: 4,
            accessed: Timestamp::default(),
            modified: Timestamp::default(),
            changed: Timestamp::default(),
            born: Timestamp::default(),
            change: 0,
            file_system: 1,
        };
        let view = View::new(1, None);
        assert_eq!(entry(1, &attributes, view).len(), 128);
        assert_eq!(no_entry(view).len(), 128);
        assert_eq!(super::attributes(&attributes, view).len(), 104);
        assert_eq!(opened(1, 0).len(), 16);
        assert_eq!(lock(0, 1, 2).len(), 24);
        assert_eq!(init(36, 0, 0, 1 << 20, 8).len(), 64);
        let free = FileSystemStatus {
            total_bytes: 1,
            free_bytes: 1,
            total_files: 1,
            free_files: 1,
        };
        assert_eq!(status(&free).len(), 80);
    }

    #[test]
    fn what_changes_elsewhere_is_believed_no_longer_than_a_mount_was_told() {
        let times = |cached_for| {
            let view = View::new(1, cached_for);
            let missing = no_entry(view);
            let word = |at: usize| u64::from_le_bytes(missing[at..at + 8].try_into().expect("eight"));
            (view.cached_for, word(16), word(32))
        };
        assert_eq!(times(None), (CACHED_FOR, 1, 0));
        let half = Duration::from_millis(500);
        assert_eq!(times(Some(half)), (half, 0, 500_000_000));
        assert_eq!(times(Some(Duration::ZERO)), (Duration::ZERO, 0, 0));
        assert_eq!(times(Some(Duration::from_secs(60))), (CACHED_FOR, 1, 0));
    }

    #[test]
    fn device_numbers_survive_the_kernels_encoding() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (4095, 1 << 19), (259, 70_000)] {
            assert_eq!(
                device_numbers(device(FileKind::BlockDevice { major, minor })),
                (major, minor)
            );
        }
    }

    #[test]
    fn a_listing_never_grows_beyond_its_limit() {
        let mut listing = Listing::new(1000);
        let name = [b'n'; 37];
        let mut entries = 0;
        while listing.fits(&name, false) {
            listing.add(&name, 3, (1, abi::mode::REGULAR), None);
            entries += 1;
        }
        assert_eq!(entries, 1000 / 64);
        assert!(listing.finish().len() <= 1000);
    }
}

//! The seam between protocol and storage.

use async_trait::async_trait;
use bytes::Bytes;

/// Sizes that a device asks its users to keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the whole device. It may grow while it is in use, never shrink.
    pub size_bytes: u64,
    /// Offsets and lengths are multiples of this power of two, at most 64 KiB.
    pub block_bytes: u32,
    /// What is fast: a power of two, at least 512 and at least `block_bytes`.
    pub preferred_bytes: u32,
    /// Longest read or write, at least `preferred_bytes`.
    pub payload_bytes_max: u32,
}

/// What an answer to a write promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Visible to every reader; durable once a later flush is answered.
    Acknowledged,
    /// Durable when answered (FUA).
    Durable,
}

/// A part of what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// These bytes.
    Data(Bytes),
    /// So many zeroes, which need not travel.
    Zeroes(u64),
}

impl Piece {
    /// How much it covers.
    pub fn length_bytes(&self) -> u64 {
        match self {
            Self::Data(data) => data.len() as u64,
            Self::Zeroes(length) => *length,
        }
    }
}

/// A stretch of the device that is all of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Never zero.
    pub length_bytes: u64,
    /// No storage is held for it.
    pub hole: bool,
    /// It reads as zeroes.
    pub zero: bool,
}

/// Why a device did not do what it was asked. Nothing is said about the range of a failed write: it may be old, new or mixed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Storage failed or is out of reach.
    #[error("{0}")]
    Io(String),
    /// There is no room for the write; what was written before is safe.
    #[error("no room for this write: {0}")]
    NoSpace(String),
    /// The device cannot be written.
    #[error("the device is read-only")]
    ReadOnly,
    /// Another client has taken the disk over: nothing more can be written or read through this one.
    #[error("the disk was attached elsewhere; detach here")]
    Fenced,
    /// The device is being closed.
    #[error("the device is being closed")]
    Closing,
}

/// What one request to zero may cover and still be taken as a whole: 1 GiB, the widest segment of a virtual disk. A longer one is
/// taken part by part, so that a request for a terabyte needs no more memory than one for a gibibyte.
pub const ZEROES_AT_ONCE_BYTES: u64 = 1 << 30;

/// A disk: bytes in blocks, read and written at any place.
///
/// All calls may run at once, and complete in any order. A caller that needs order waits for the first answer before it
/// makes the second call. Dropping a call's future leaves a write done, not done or partly done.
///
/// The caller has checked that a range lies within the size and on block boundaries, and is not empty.
#[async_trait]
pub trait BlockDevice: Send + Sync + 'static {
    /// Sizes at this moment.
    fn geometry(&self) -> Geometry;

    /// Whether writes are refused.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Whether what one connection has flushed is durable for all, so that clients may use several. True for whatever has
    /// one cache or none.
    fn is_shared_safely(&self) -> bool {
        true
    }

    /// Reads `length` bytes; the pieces cover them exactly, in order.
    async fn read(&self, offset: u64, length: u32) -> Result<Vec<Piece>, DeviceError>;

    /// Writes `data`.
    async fn write(&self, offset: u64, data: Bytes, durability: Durability) -> Result<(), DeviceError>;

    /// Makes every write answered before this call durable.
    async fn flush(&self) -> Result<(), DeviceError>;

    /// Says that a range is no longer needed. What it reads as afterwards is up to the device.
    async fn trim(&self, offset: u64, length: u64, durability: Durability) -> Result<(), DeviceError> {
        self.write_zeroes(offset, length, true, durability).await
    }

    /// Makes a range read as zeroes; unless `allow_hole`, later writes to it cannot run out of space.
    ///
    /// What does not cross a multiple of [`ZEROES_AT_ONCE_BYTES`] takes its place among other requests as a whole, and, where
    /// a device orders requests, when the future is polled first.
    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        allow_hole: bool,
        durability: Durability,
    ) -> Result<(), DeviceError>;

    /// Whether [`BlockDevice::write_zeroes`] is faster than sending the zeroes.
    fn zeroes_fast(&self, allow_hole: bool) -> bool {
        let _ = allow_hole;
        false
    }

    /// A hint that a range will be read soon.
    async fn cache(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        let _ = (offset, length);
        Ok(())
    }

    /// Describes a range from its start on: at least one extent, at most `extents_max`, together not longer than `length`.
    async fn extents(
        &self,
        offset: u64,
        length: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        let _ = (offset, extents_max);
        Ok(vec![Extent {
            length_bytes: length,
            hole: false,
            zero: false,
        }])
    }
}

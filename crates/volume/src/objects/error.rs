//! Errors of reading an object, by what its reader should do.

use firn_env::DiskError;
use firn_format::{KeyEpoch, Location, Place, SegmentId};

/// A read failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// The store cannot be reached or refuses for now. The data is there; the reader should come again.
    #[error("segment {segment} cannot be fetched for now: {detail}")]
    Unavailable {
        /// What was to be fetched.
        segment: SegmentId,
        /// The store's words.
        detail: String,
    },
    /// It is sealed under a key that is not at hand: this edge's key ring is older than the object, or one from which the key was
    /// dropped. Nothing is wrong with the data; a newer ring may come.
    #[error(
        "the object at {place} is sealed under the key of epoch {epoch}, which is not at hand (the newest is {newest})"
    )]
    KeyNotAtHand {
        /// The object that was wanted.
        place: Place,
        /// Its epoch.
        epoch: KeyEpoch,
        /// The newest epoch whose key is at hand.
        newest: KeyEpoch,
    },
    /// The store gave bytes that are not the object, also when asked a second time for exactly these.
    #[error("the object at {place} is damaged (read from {} at {}+{}): {detail}", location.segment, location.offset, location.length)]
    Corrupt {
        /// Which object: its place names the file it belongs to.
        place: Place,
        /// Where it was read.
        location: Location,
        /// What is wrong with the bytes.
        detail: String,
    },
    /// The segment does not exist, nor did it appear while it was waited for.
    #[error("segment {segment}, which holds the object at {place}, does not exist in the store")]
    Missing {
        /// The segment.
        segment: SegmentId,
        /// The object that was wanted.
        place: Place,
    },
}

/// The object cache could not be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ObjectsError {
    /// The cache directory cannot be made or listed.
    #[error("object cache: {0}")]
    Disk(#[from] DiskError),
}

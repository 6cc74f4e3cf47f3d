//! Errors of sealing and opening.

use firn_format::{Codec, KeyEpoch, Place};

/// Sealing or opening failed. Nothing was written, and nothing that was not authentic is handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The object was not sealed with the family's key, or was altered since.
    #[error("object at {place} does not open: it was altered, or sealed with another family's key")]
    ObjectNotAuthentic {
        /// Where the object stands.
        place: Place,
    },

    /// The object opens but does not decompress to what its header says: a writer's mistake.
    #[error("object at {place} opens but does not decompress to {opened_bytes} bytes")]
    DoesNotDecompress {
        /// Where the object stands.
        place: Place,
        /// What its header says.
        opened_bytes: u32,
    },

    /// The object is compressed in a way this build cannot undo.
    #[error("object at {place} is compressed with {codec:?}: use a build of firn that reads it")]
    UnsupportedCodec {
        /// Where the object stands.
        place: Place,
        /// How it is compressed.
        codec: Codec,
    },

    /// The record was not sealed with this file's key, or was altered since.
    #[error("record {slot} does not open: it was altered, or belongs to another file")]
    RecordNotAuthentic {
        /// The record's slot.
        slot: u32,
    },

    /// The key is not among those at hand.
    #[error("no key for epoch {epoch} (the newest at hand is {newest}): fetch the current key ring")]
    UnknownKeyEpoch {
        /// The epoch wanted.
        epoch: KeyEpoch,
        /// The newest epoch whose key is at hand.
        newest: KeyEpoch,
    },

    /// The slot was not reserved, or something was sealed in it before: sealing again would use a nonce twice.
    #[error("slot {slot} was spent or never reserved; nothing was sealed")]
    SlotSpent {
        /// The slot.
        slot: u32,
    },

    /// More than an object or record may hold.
    #[error("payload of {found_bytes} bytes exceeds the limit of {limit_bytes}")]
    PayloadTooLarge {
        /// The payload's size.
        found_bytes: usize,
        /// The most allowed.
        limit_bytes: usize,
    },
}

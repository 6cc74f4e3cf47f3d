//! Refusals (error replies) of a node. Unless a refusal says otherwise, nothing was changed.

use crate::{
    Fence, Row,
    cursor::{DecodeError, Decoder, Encoder},
    limits::MAX_TEXT_BYTES,
};
use bytes::Bytes;

/// The code of a refusal, as it stands in a reply's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "each is told in Refusal")]
pub enum RefusalCode {
    Malformed = 1,
    UnknownOperation = 2,
    Version = 3,
    NotAuthenticated = 4,
    CapabilityInvalid = 5,
    CapabilityExpired = 6,
    NotPermitted = 7,
    UnknownDisk = 8,
    OutOfRange = 9,
    WrongRow = 10,
    NotFenced = 11,
    Fenced = 12,
    Joining = 13,
    Full = 14,
    Damaged = 15,
    DataChecksum = 16,
    Busy = 17,
    NotServing = 18,
    Disk = 19,
    WrongNode = 20,
    Superseded = 21,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request's bytes are no request. The connection goes on.
    #[error("the request cannot be read: {0}")]
    Malformed(String),
    /// An operation this node does not know.
    #[error("operation {0} is unknown to this node")]
    UnknownOperation(u8),
    /// No version in common.
    #[error("the node speaks protocol versions {lowest} to {highest}")]
    Version {
        /// Lowest version of the node.
        lowest: u8,
        /// Highest version of the node.
        highest: u8,
    },
    /// No capability for this disk was presented on this connection.
    #[error("no capability for this was presented on this connection")]
    NotAuthenticated,
    /// The capability is not one this cluster gave out.
    #[error("the capability is not valid: {0}")]
    CapabilityInvalid(String),
    /// The capability was good once. Get a new one and present it; nothing needs to be reconnected.
    #[error("the capability has expired")]
    CapabilityExpired,
    /// The capability does not allow this.
    #[error("the capability does not allow this: {0}")]
    NotPermitted(String),
    /// No such disk, or it was deleted.
    #[error("no such disk")]
    UnknownDisk,
    /// The tract lies beyond the disk's end.
    #[error("the disk has {tracts} tracts")]
    OutOfRange {
        /// How many the disk has.
        tracts: u32,
    },
    /// The row version is not the newest this node knows, or the node is not in the row. Send the request again to the
    /// replicas of `newest`, with the same generation.
    #[error("the row is at version {}", newest.version.0)]
    WrongRow {
        /// The row as it is now.
        newest: Row,
    },
    /// The node was told no fence for this disk yet (it joined after the attach): send it `set fence` first.
    #[error("no fence is set for this disk here")]
    NotFenced,
    /// A later attach has taken over. This client can do nothing more with the disk.
    #[error("fenced: attach {} has the disk", current.0)]
    Fenced {
        /// The attach that has it.
        current: Fence,
    },
    /// The replica is still copying: read from an active one.
    #[error("this replica is still copying and serves no reads")]
    Joining,
    /// The node's disk has no room for another tract.
    #[error("the node is full")]
    Full,
    /// A block on the node's disk does not match its checksum: read it from another replica. The node repairs itself.
    #[error("block {block} of the tract is damaged on this replica")]
    Damaged {
        /// The first such block of the range.
        block: u16,
    },
    /// The data that arrived does not match the checksums that came with it: send it again.
    #[error("block {block} was damaged on its way")]
    DataChecksum {
        /// The first such block of the range.
        block: u16,
    },
    /// Too much is waiting: send it again, later.
    #[error("the node has too much to do")]
    Busy,
    /// The node cannot say that it still belongs to the cluster (its registration lapsed, or it is stopping). It serves
    /// again by itself, or the row changes.
    #[error("the node does not serve now: {0}")]
    NotServing(String),
    /// The node's disk or the Table failed. A write may or may not have happened.
    #[error("the node failed: {0}")]
    Disk(String),
    /// Another node listens here than the one that was asked for.
    #[error("another node listens here")]
    WrongNode,
    /// A copy was asked for a tract whose replica joined anew meanwhile.
    #[error("the replica was replaced meanwhile")]
    Superseded,
}

impl Refusal {
    /// Its code.
    pub fn code(&self) -> RefusalCode {
        match self {
            Self::Malformed(_) => RefusalCode::Malformed,
            Self::UnknownOperation(_) => RefusalCode::UnknownOperation,
            Self::Version { .. } => RefusalCode::Version,
            Self::NotAuthenticated => RefusalCode::NotAuthenticated,
            Self::CapabilityInvalid(_) => RefusalCode::CapabilityInvalid,
            Self::CapabilityExpired => RefusalCode::CapabilityExpired,
            Self::NotPermitted(_) => RefusalCode::NotPermitted,
            Self::UnknownDisk => RefusalCode::UnknownDisk,
            Self::OutOfRange { .. } => RefusalCode::OutOfRange,
            Self::WrongRow { .. } => RefusalCode::WrongRow,
            Self::NotFenced => RefusalCode::NotFenced,
            Self::Fenced { .. } => RefusalCode::Fenced,
            Self::Joining => RefusalCode::Joining,
            Self::Full => RefusalCode::Full,
            Self::Damaged { .. } => RefusalCode::Damaged,
            Self::DataChecksum { .. } => RefusalCode::DataChecksum,
            Self::Busy => RefusalCode::Busy,
            Self::NotServing(_) => RefusalCode::NotServing,
            Self::Disk(_) => RefusalCode::Disk,
            Self::WrongNode => RefusalCode::WrongNode,
            Self::Superseded => RefusalCode::Superseded,
        }
    }

    /// Whether the same request may succeed later without anybody doing anything.
    pub fn is_transient(&self) -> bool {
        matches!(
            self.code(),
            RefusalCode::Busy | RefusalCode::NotServing | RefusalCode::Disk | RefusalCode::DataChecksum
        )
    }

    pub(crate) fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::Malformed(text)
            | Self::CapabilityInvalid(text)
            | Self::NotPermitted(text)
            | Self::NotServing(text)
            | Self::Disk(text) => encoder.text(text, MAX_TEXT_BYTES),
            Self::UnknownOperation(code) => encoder.u8(*code),
            Self::Version { lowest, highest } => {
                encoder.u8(*lowest);
                encoder.u8(*highest);
            }
            Self::OutOfRange { tracts } => encoder.u32(*tracts),
            Self::WrongRow { newest } => newest.encode(encoder),
            Self::Fenced { current } => encoder.u32(current.0),
            Self::Damaged { block } | Self::DataChecksum { block } => encoder.u16(*block),
            Self::NotAuthenticated
            | Self::CapabilityExpired
            | Self::UnknownDisk
            | Self::NotFenced
            | Self::Joining
            | Self::Full
            | Self::Busy
            | Self::WrongNode
            | Self::Superseded => {}
        }
    }

    pub(crate) fn decode(code: u8, body: Bytes) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let mut text = || decoder.text("reason", MAX_TEXT_BYTES);
        let refusal = match code {
            1 => Self::Malformed(text()?),
            2 => Self::UnknownOperation(decoder.u8()?),
            3 => Self::Version {
                lowest: decoder.u8()?,
                highest: decoder.u8()?,
            },
            4 => Self::NotAuthenticated,
            5 => Self::CapabilityInvalid(text()?),
            6 => Self::CapabilityExpired,
            7 => Self::NotPermitted(text()?),
            8 => Self::UnknownDisk,
            9 => Self::OutOfRange {
                tracts: decoder.u32()?,
            },
            10 => Self::WrongRow {
                newest: Row::decode(&mut decoder)?,
            },
            11 => Self::NotFenced,
            12 => Self::Fenced {
                current: Fence(decoder.u32()?),
            },
            13 => Self::Joining,
            14 => Self::Full,
            15 => Self::Damaged {
                block: decoder.u16()?,
            },
            16 => Self::DataChecksum {
                block: decoder.u16()?,
            },
            17 => Self::Busy,
            18 => Self::NotServing(text()?),
            19 => Self::Disk(text()?),
            20 => Self::WrongNode,
            21 => Self::Superseded,
            value => {
                return Err(DecodeError::Invalid {
                    field: "status",
                    value: value.into(),
                });
            }
        };
        decoder.end()?;
        Ok(refusal)
    }
}

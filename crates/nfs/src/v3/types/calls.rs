//! Arguments.

use super::{Device, FileType, NewAttributes, Payload, Time, Verifier, WIRE_TARGET_MAX_BYTES, WireName};
use crate::{
    handle::WireHandle,
    xdr::{Decode, Decoder, Encode, Encoder, Opaque, XdrError, xdr_enum, xdr_struct},
};

xdr_enum! {
    /// How durable written data is to be, or is (stable_how).
    pub enum StableHow {
        /// Level 0 until COMMIT.
        Unstable = 0,
        /// Level 1 for the data.
        DataSync = 1,
        /// Level 1 for data and attributes.
        FileSync = 2,
    }
}

xdr_struct! {
    /// A name in a directory (diropargs3).
    pub struct Entry {
        /// The directory.
        pub directory: WireHandle,
        /// The name.
        pub name: WireName,
    }

    /// SETATTR.
    pub struct SetAttributesCall {
        /// The file.
        pub file: WireHandle,
        /// What to set.
        pub attributes: NewAttributes,
        /// The change time the file must have.
        pub guard: Option<Time>,
    }

    /// ACCESS.
    pub struct AccessCall {
        /// The file.
        pub file: WireHandle,
        /// See the `ACCESS_` constants.
        pub mask: u32,
    }

    /// READ.
    pub struct ReadCall {
        /// The file.
        pub file: WireHandle,
        /// Where to begin.
        pub offset: u64,
        /// How much.
        pub count: u32,
    }

    /// WRITE.
    pub struct WriteCall {
        /// The file.
        pub file: WireHandle,
        /// Where to begin.
        pub offset: u64,
        /// The length of `data`.
        pub count: u32,
        /// How durable.
        pub stable: StableHow,
        /// What to write.
        pub data: Payload,
    }

    /// CREATE.
    pub struct CreateCall {
        /// Where.
        pub at: Entry,
        /// How.
        pub how: CreateHow,
    }

    /// MKDIR.
    pub struct MakeDirectoryCall {
        /// Where.
        pub at: Entry,
        /// Its first attributes.
        pub attributes: NewAttributes,
    }

    /// SYMLINK.
    pub struct SymlinkCall {
        /// Where.
        pub at: Entry,
        /// Its first attributes.
        pub attributes: NewAttributes,
        /// What it points to.
        pub target: Opaque<WIRE_TARGET_MAX_BYTES>,
    }

    /// MKNOD.
    pub struct MakeNodeCall {
        /// Where.
        pub at: Entry,
        /// What.
        pub node: NewNode,
    }

    /// RENAME.
    pub struct RenameCall {
        /// The name now.
        pub from: Entry,
        /// The name afterwards.
        pub to: Entry,
    }

    /// LINK.
    pub struct LinkCall {
        /// The file.
        pub file: WireHandle,
        /// Its further name.
        pub at: Entry,
    }

    /// READDIR.
    pub struct ReadDirectoryCall {
        /// The directory.
        pub directory: WireHandle,
        /// Zero, or that of the last entry received.
        pub cookie: u64,
        /// Zero, or as received with the cookie.
        pub verifier: Verifier,
        /// The most bytes of results.
        pub count: u32,
    }

    /// READDIRPLUS.
    pub struct ReadDirectoryPlusCall {
        /// The directory.
        pub directory: WireHandle,
        /// Zero, or that of the last entry received.
        pub cookie: u64,
        /// Zero, or as received with the cookie.
        pub verifier: Verifier,
        /// The most bytes of names, numbers and cookies.
        pub directory_count: u32,
        /// The most bytes of results.
        pub maximum_count: u32,
    }

    /// COMMIT.
    pub struct CommitCall {
        /// The file.
        pub file: WireHandle,
        /// Where the range begins.
        pub offset: u64,
        /// Its length; zero: to the end.
        pub count: u32,
    }
}

/// ACCESS: read data or list.
pub const ACCESS_READ: u32 = 0x01;
/// ACCESS: look a name up.
pub const ACCESS_LOOKUP: u32 = 0x02;
/// ACCESS: change content.
pub const ACCESS_MODIFY: u32 = 0x04;
/// ACCESS: append, or add entries.
pub const ACCESS_EXTEND: u32 = 0x08;
/// ACCESS: remove entries.
pub const ACCESS_DELETE: u32 = 0x10;
/// ACCESS: execute.
pub const ACCESS_EXECUTE: u32 = 0x20;

/// How CREATE treats an existing name (createhow3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// It is opened.
    Unchecked(NewAttributes),
    /// It is an error.
    Guarded(NewAttributes),
    /// It is an error unless made with the same verifier.
    Exclusive(Verifier),
}

impl Encode for CreateHow {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Self::Unchecked(attributes) => {
                out.u32(0);
                attributes.encode(out);
            }
            Self::Guarded(attributes) => {
                out.u32(1);
                attributes.encode(out);
            }
            Self::Exclusive(verifier) => {
                out.u32(2);
                verifier.encode(out);
            }
        }
    }
}

impl Decode for CreateHow {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        match input.u32()? {
            0 => Ok(Self::Unchecked(NewAttributes::decode(input)?)),
            1 => Ok(Self::Guarded(NewAttributes::decode(input)?)),
            2 => Ok(Self::Exclusive(input.fixed()?)),
            value => Err(XdrError::UnknownValue { value }),
        }
    }
}

/// What MKNOD makes (mknoddata3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewNode {
    /// A character device.
    CharacterDevice(NewAttributes, Device),
    /// A block device.
    BlockDevice(NewAttributes, Device),
    /// A socket.
    Socket(NewAttributes),
    /// A named pipe.
    Fifo(NewAttributes),
    /// Something MKNOD does not make; the answer is `BadType`.
    Other(FileType),
}

impl Encode for NewNode {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Self::CharacterDevice(attributes, device) => {
                FileType::CharacterDevice.encode(out);
                attributes.encode(out);
                device.encode(out);
            }
            Self::BlockDevice(attributes, device) => {
                FileType::BlockDevice.encode(out);
                attributes.encode(out);
                device.encode(out);
            }
            Self::Socket(attributes) => {
                FileType::Socket.encode(out);
                attributes.encode(out);
            }
            Self::Fifo(attributes) => {
                FileType::Fifo.encode(out);
                attributes.encode(out);
            }
            Self::Other(kind) => kind.encode(out),
        }
    }
}

impl Decode for NewNode {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        let kind = FileType::decode(input)?;
        let mut attributes = || NewAttributes::decode(input);
        match kind {
            FileType::CharacterDevice => Ok(Self::CharacterDevice(attributes()?, Device::decode(input)?)),
            FileType::BlockDevice => Ok(Self::BlockDevice(attributes()?, Device::decode(input)?)),
            FileType::Socket => Ok(Self::Socket(attributes()?)),
            FileType::Fifo => Ok(Self::Fifo(attributes()?)),
            FileType::Regular | FileType::Directory | FileType::Symlink => Ok(Self::Other(kind)),
        }
    }
}

//! Attributes of files, as they are and as they are to be.

use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError, xdr_enum, xdr_struct};

xdr_enum! {
    /// What a file is (ftype3).
    pub enum FileType {
        /// Regular file.
        Regular = 1,
        /// Directory.
        Directory = 2,
        /// Block device.
        BlockDevice = 3,
        /// Character device.
        CharacterDevice = 4,
        /// Symbolic link.
        Symlink = 5,
        /// Socket.
        Socket = 6,
        /// Named pipe.
        Fifo = 7,
    }
}

xdr_struct! {
    /// A time (nfstime3).
    #[derive(Copy, PartialOrd, Ord)]
    pub struct Time {
        /// Seconds since 1970.
        pub seconds: u32,
        /// Nanoseconds.
        pub nanoseconds: u32,
    }

    /// A device number (specdata3).
    #[derive(Copy)]
    pub struct Device {
        /// Major.
        pub major: u32,
        /// Minor.
        pub minor: u32,
    }

    /// Attributes (fattr3).
    pub struct FileAttributes {
        /// What the file is.
        pub kind: FileType,
        /// Permission bits.
        pub mode: u32,
        /// Hard links.
        pub links: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Length.
        pub size_bytes: u64,
        /// Space taken.
        pub used_bytes: u64,
        /// Of a device node.
        pub device: Device,
        /// The file system.
        pub file_system: u64,
        /// The inode.
        pub inode: u64,
        /// Last read.
        pub accessed: Time,
        /// Last change of content.
        pub modified: Time,
        /// Last change of content or attributes.
        pub changed: Time,
    }

    /// What a client compares to see whether only it changed a file (wcc_attr).
    #[derive(Copy)]
    pub struct WccAttributes {
        /// Length.
        pub size_bytes: u64,
        /// Last change of content.
        pub modified: Time,
        /// Last change of content or attributes.
        pub changed: Time,
    }

    /// Attributes around an operation (wcc_data).
    #[derive(Default)]
    pub struct WccData {
        /// At the instant before it.
        pub before: Option<WccAttributes>,
        /// At the instant after it.
        pub after: Option<FileAttributes>,
    }

    /// Attributes to set (sattr3).
    #[derive(Default)]
    pub struct NewAttributes {
        /// Permission bits.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Length.
        pub size_bytes: Option<u64>,
        /// Last read.
        pub accessed: NewTime,
        /// Last change of content.
        pub modified: NewTime,
    }
}

/// A time to set (set_atime, set_mtime).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NewTime {
    /// None.
    #[default]
    Keep,
    /// The server's clock.
    ServerTime,
    /// The client's value.
    ClientTime(Time),
}

impl Encode for NewTime {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Self::Keep => out.u32(0),
            Self::ServerTime => out.u32(1),
            Self::ClientTime(time) => {
                out.u32(2);
                time.encode(out);
            }
        }
    }
}

impl Decode for NewTime {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        match input.u32()? {
            0 => Ok(Self::Keep),
            1 => Ok(Self::ServerTime),
            2 => Ok(Self::ClientTime(Time::decode(input)?)),
            value => Err(XdrError::UnknownValue { value }),
        }
    }
}

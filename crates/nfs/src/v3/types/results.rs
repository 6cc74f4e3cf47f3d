//! Results.

use super::{FileAttributes, Payload, StableHow, Time, Verifier, WIRE_TARGET_MAX_BYTES, WccData, WireName};
use crate::{
    handle::WireHandle,
    v3::status::Status,
    xdr::{Decode, Decoder, Encode, Encoder, Opaque, XdrError, xdr_struct},
};

xdr_struct! {
    /// LOOKUP's results.
    pub struct Found {
        /// The file.
        pub file: WireHandle,
        /// Its attributes.
        pub attributes: Option<FileAttributes>,
        /// The directory's.
        pub directory: Option<FileAttributes>,
    }

    /// ACCESS's results.
    pub struct AccessGranted {
        /// The file's.
        pub attributes: Option<FileAttributes>,
        /// Of what was asked, what is granted.
        pub mask: u32,
    }

    /// READLINK's results.
    pub struct LinkTarget {
        /// The link's.
        pub attributes: Option<FileAttributes>,
        /// What it points to.
        pub target: Opaque<WIRE_TARGET_MAX_BYTES>,
    }

    /// READ's results.
    pub struct ReadData {
        /// The file's.
        pub attributes: Option<FileAttributes>,
        /// The length of `data`.
        pub count: u32,
        /// Whether the file ends with it.
        pub end_of_file: bool,
        /// What was read.
        pub data: Payload,
    }

    /// WRITE's results.
    pub struct Written {
        /// The file around the write.
        pub file: WccData,
        /// How much was written.
        pub count: u32,
        /// How durable it is.
        pub committed: StableHow,
        /// See [`Verifier`].
        pub verifier: Verifier,
    }

    /// The results of CREATE, MKDIR, SYMLINK and MKNOD.
    pub struct Made {
        /// The new file.
        pub file: Option<WireHandle>,
        /// Its attributes.
        pub attributes: Option<FileAttributes>,
        /// The directory around the change.
        pub directory: WccData,
    }

    /// RENAME's results, of success and failure.
    #[derive(Default)]
    pub struct RenameDirectories {
        /// The source directory.
        pub from: WccData,
        /// The target directory.
        pub to: WccData,
    }

    /// LINK's results, of success and failure.
    #[derive(Default)]
    pub struct LinkResult {
        /// The file's.
        pub attributes: Option<FileAttributes>,
        /// The directory.
        pub directory: WccData,
    }

    /// An entry of READDIR.
    pub struct DirectoryEntry {
        /// The file's number.
        pub inode: u64,
        /// Its name.
        pub name: WireName,
        /// Where to go on behind it.
        pub cookie: u64,
    }

    /// An entry of READDIRPLUS.
    pub struct DirectoryEntryPlus {
        /// The file's number.
        pub inode: u64,
        /// Its name.
        pub name: WireName,
        /// Where to go on behind it.
        pub cookie: u64,
        /// Its attributes.
        pub attributes: Option<FileAttributes>,
        /// Its handle.
        pub handle: Option<WireHandle>,
    }

    /// READDIR's results.
    pub struct DirectoryList {
        /// The directory's.
        pub attributes: Option<FileAttributes>,
        /// To be sent with the cookies.
        pub verifier: Verifier,
        /// In order.
        pub entries: Vec<DirectoryEntry>,
        /// Whether the directory ends with them.
        pub end: bool,
    }

    /// READDIRPLUS's results.
    pub struct DirectoryListPlus {
        /// The directory's.
        pub attributes: Option<FileAttributes>,
        /// To be sent with the cookies.
        pub verifier: Verifier,
        /// In order.
        pub entries: Vec<DirectoryEntryPlus>,
        /// Whether the directory ends with them.
        pub end: bool,
    }

    /// FSSTAT's results.
    pub struct FileSystemStatus {
        /// The root's.
        pub attributes: Option<FileAttributes>,
        /// Size.
        pub total_bytes: u64,
        /// Unused.
        pub free_bytes: u64,
        /// Unused and to be had by this caller.
        pub available_bytes: u64,
        /// Inodes.
        pub total_files: u64,
        /// Unused.
        pub free_files: u64,
        /// Unused and to be had by this caller.
        pub available_files: u64,
        /// How long these numbers are not expected to change: zero, they may at any time.
        pub invariant_seconds: u32,
    }

    /// FSINFO's results.
    pub struct FileSystemInformation {
        /// The root's.
        pub attributes: Option<FileAttributes>,
        /// Largest READ.
        pub read_maximum: u32,
        /// Best READ.
        pub read_preferred: u32,
        /// Best multiple for READ.
        pub read_multiple: u32,
        /// Largest WRITE.
        pub write_maximum: u32,
        /// Best WRITE.
        pub write_preferred: u32,
        /// Best multiple for WRITE.
        pub write_multiple: u32,
        /// Best READDIR.
        pub directory_preferred: u32,
        /// Largest file.
        pub file_maximum_bytes: u64,
        /// Resolution of times.
        pub time_resolution: Time,
        /// See the `PROPERTY_` constants.
        pub properties: u32,
    }

    /// PATHCONF's results.
    pub struct PathConfiguration {
        /// The file's.
        pub attributes: Option<FileAttributes>,
        /// Most hard links.
        pub links_maximum: u32,
        /// Longest name.
        pub name_maximum: u32,
        /// Longer names are errors, not cut off.
        pub no_truncation: bool,
        /// Only root may give files away.
        pub chown_restricted: bool,
        /// Names differ by case.
        pub case_insensitive: bool,
        /// Names keep their case.
        pub case_preserving: bool,
    }

    /// COMMIT's results.
    pub struct Committed {
        /// The file.
        pub file: WccData,
        /// See [`Verifier`].
        pub verifier: Verifier,
    }
}

/// FSINFO: hard links exist.
pub const PROPERTY_LINKS: u32 = 0x01;
/// FSINFO: symbolic links exist.
pub const PROPERTY_SYMLINKS: u32 = 0x02;
/// FSINFO: PATHCONF is the same for all files.
pub const PROPERTY_HOMOGENEOUS: u32 = 0x08;
/// FSINFO: times can be set to any value.
pub const PROPERTY_CAN_SET_TIME: u32 = 0x10;

/// An error status and what the procedure gives with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed<F> {
    /// Why; never `Ok`.
    pub status: Status,
    /// Attributes, as far as they could be had.
    pub body: F,
}

impl<S: Encode, F: Encode> Encode for Result<S, Failed<F>> {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Ok(success) => {
                Status::Ok.encode(out);
                success.encode(out);
            }
            Err(failed) => {
                failed.status.encode(out);
                failed.body.encode(out);
            }
        }
    }
}

impl<S: Decode, F: Decode> Decode for Result<S, Failed<F>> {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        match Status::decode(input)? {
            Status::Ok => Ok(Ok(S::decode(input)?)),
            status => Ok(Err(Failed {
                status,
                body: F::decode(input)?,
            })),
        }
    }
}

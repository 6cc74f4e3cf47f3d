//! Between the file system's attributes and those on the wire.

use super::types::{
    ACCESS_DELETE, ACCESS_EXECUTE, ACCESS_EXTEND, ACCESS_LOOKUP, ACCESS_MODIFY, ACCESS_READ, Device,
    FileAttributes, FileType, NewAttributes, NewTime, StableHow, Time, WccAttributes, WccData,
};
use firn_vfs::{
    AccessMask, Attributes, ChangedAttributes, FileKind, SetAttributes, SetTime, Stability, Timestamp,
    VfsError,
};

const NANOSECONDS: u32 = 1_000_000_000;

impl From<Timestamp> for Time {
    /// The wire has 32 unsigned bits: years 1970 to 2106. What is outside becomes the nearest end, not a wrong year.
    fn from(time: Timestamp) -> Self {
        match u32::try_from(time.seconds) {
            Ok(seconds) => Self {
                seconds,
                nanoseconds: time.nanoseconds,
            },
            Err(_) if time.seconds < 0 => Self {
                seconds: 0,
                nanoseconds: 0,
            },
            Err(_) => Self {
                seconds: u32::MAX,
                nanoseconds: NANOSECONDS - 1,
            },
        }
    }
}

impl TryFrom<Time> for Timestamp {
    type Error = VfsError;

    fn try_from(time: Time) -> Result<Self, VfsError> {
        if time.nanoseconds >= NANOSECONDS {
            return Err(VfsError::InvalidArgument);
        }
        Ok(Self {
            seconds: time.seconds.into(),
            nanoseconds: time.nanoseconds,
        })
    }
}

impl From<&Attributes> for FileAttributes {
    fn from(attributes: &Attributes) -> Self {
        let mut device = Device { major: 0, minor: 0 };
        let kind = match attributes.kind {
            FileKind::Regular => FileType::Regular,
            FileKind::Directory => FileType::Directory,
            FileKind::Symlink => FileType::Symlink,
            FileKind::BlockDevice { major, minor } => {
                device = Device { major, minor };
                FileType::BlockDevice
            }
            FileKind::CharacterDevice { major, minor } => {
                device = Device { major, minor };
                FileType::CharacterDevice
            }
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
        };
        Self {
            kind,
            mode: attributes.mode,
            links: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            size_bytes: attributes.size_bytes,
            used_bytes: attributes.used_bytes,
            device,
            file_system: attributes.file_system,
            inode: attributes.inode,
            accessed: attributes.accessed.into(),
            modified: attributes.modified.into(),
            changed: attributes.changed.into(),
        }
    }
}

impl From<&Attributes> for WccAttributes {
    fn from(attributes: &Attributes) -> Self {
        Self {
            size_bytes: attributes.size_bytes,
            modified: attributes.modified.into(),
            changed: attributes.changed.into(),
        }
    }
}

impl From<&ChangedAttributes> for WccData {
    fn from(changed: &ChangedAttributes) -> Self {
        Self {
            before: changed.before.as_ref().map(Into::into),
            after: Some((&changed.after).into()),
        }
    }
}

impl WccData {
    /// Of an operation that changed nothing: what is there now was there before.
    pub(super) fn unchanged(attributes: Option<&Attributes>) -> Self {
        Self {
            before: attributes.map(Into::into),
            after: attributes.map(Into::into),
        }
    }

    /// Of a change that lies in the past.
    pub(super) fn afterwards(attributes: Option<&Attributes>) -> Self {
        Self {
            before: None,
            after: attributes.map(Into::into),
        }
    }
}

impl TryFrom<NewTime> for SetTime {
    type Error = VfsError;

    fn try_from(time: NewTime) -> Result<Self, VfsError> {
        Ok(match time {
            NewTime::Keep => Self::Keep,
            NewTime::ServerTime => Self::Now,
            NewTime::ClientTime(time) => Self::To(time.try_into()?),
        })
    }
}

impl TryFrom<NewAttributes> for SetAttributes {
    type Error = VfsError;

    fn try_from(new: NewAttributes) -> Result<Self, VfsError> {
        Ok(Self {
            // Clients send the file type along in the higher bits.
            mode: new.mode.map(|mode| mode & 0o7777),
            uid: new.uid,
            gid: new.gid,
            size_bytes: new.size_bytes,
            accessed: new.accessed.try_into()?,
            modified: new.modified.try_into()?,
        })
    }
}

impl From<StableHow> for Stability {
    fn from(how: StableHow) -> Self {
        match how {
            StableHow::Unstable => Self::Unstable,
            StableHow::DataSync => Self::DataSync,
            StableHow::FileSync => Self::FileSync,
        }
    }
}

impl From<Stability> for StableHow {
    fn from(stability: Stability) -> Self {
        match stability {
            Stability::Unstable => Self::Unstable,
            Stability::DataSync => Self::DataSync,
            Stability::FileSync => Self::FileSync,
        }
    }
}

/// The permissions a wire mask asks about; unknown bits ask about nothing.
pub(super) fn access_mask(mask: u32) -> AccessMask {
    AccessMask {
        read: mask & ACCESS_READ != 0,
        lookup: mask & ACCESS_LOOKUP != 0,
        modify: mask & ACCESS_MODIFY != 0,
        extend: mask & ACCESS_EXTEND != 0,
        delete: mask & ACCESS_DELETE != 0,
        execute: mask & ACCESS_EXECUTE != 0,
    }
}

/// The wire mask of granted permissions.
pub(super) fn wire_mask(granted: AccessMask) -> u32 {
    let bit = |granted: bool, bit: u32| if granted { bit } else { 0 };
    bit(granted.read, ACCESS_READ)
        | bit(granted.lookup, ACCESS_LOOKUP)
        | bit(granted.modify, ACCESS_MODIFY)
        | bit(granted.extend, ACCESS_EXTEND)
        | bit(granted.delete, ACCESS_DELETE)
        | bit(granted.execute, ACCESS_EXECUTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_the_wire_become_its_nearest_end() {
        let wire = |seconds| {
            Time::from(Timestamp {
                seconds,
                nanoseconds: 5,
            })
        };
        assert_eq!(
            wire(-1),
            Time {
                seconds: 0,
                nanoseconds: 0
            }
        );
        assert_eq!(
            wire(7),
            Time {
                seconds: 7,
                nanoseconds: 5
            }
        );
        assert_eq!(wire(i64::from(u32::MAX) + 1).seconds, u32::MAX);
    }

    #[test]
    fn a_time_with_a_second_of_nanoseconds_is_invalid() {
        let time = Time {
            seconds: 0,
            nanoseconds: NANOSECONDS,
        };
        assert_eq!(Timestamp::try_from(time), Err(VfsError::InvalidArgument));
    }

    #[test]
    fn access_masks_convert_both_ways() {
        for mask in 0..0x40 {
            assert_eq!(wire_mask(access_mask(mask)), mask);
        }
        assert_eq!(wire_mask(access_mask(u32::MAX)), 0x3f);
    }
}

//! POSIX access control lists as the kernel carries them in extended attributes.
//!
//! ```text
//! list  = version u32 (2) | entry*
//! entry = tag u16 | permissions u16 | id u32
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use firn_vfs::{Acl, AclEntry, AclTag};
use rustix::io::Errno;

/// The list that decides access.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The list that entries of a directory inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const NOBODY: u32 = u32::MAX;

const USER_OBJECT: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJECT: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

pub(crate) fn encode(acl: &Acl) -> Bytes {
    let mut bytes = BytesMut::with_capacity(4 + 8 * acl.entries.len());
    bytes.put_u32_le(VERSION);
    for entry in &acl.entries {
        let (tag, id) = match entry.tag {
            AclTag::UserObject => (USER_OBJECT, NOBODY),
            AclTag::User(uid) => (USER, uid),
            AclTag::GroupObject => (GROUP_OBJECT, NOBODY),
            AclTag::Group(gid) => (GROUP, gid),
            AclTag::Mask => (MASK, NOBODY),
            AclTag::Other => (OTHER, NOBODY),
        };
        bytes.put_u16_le(tag);
        bytes.put_u16_le(entry.permissions.into());
        bytes.put_u32_le(id);
    }
    bytes.freeze()
}

pub(crate) fn decode(value: &[u8]) -> Result<Acl, Errno> {
    let (version, entries) = value.split_first_chunk::<4>().ok_or(Errno::INVAL)?;
    let (entries, rest) = entries.as_chunks::<8>();
    if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
        return Err(Errno::INVAL);
    }
    let entry = |bytes: &[u8; 8]| {
        let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let tag = match u16::from_le_bytes([bytes[0], bytes[1]]) {
            USER_OBJECT => AclTag::UserObject,
            USER => AclTag::User(id),
            GROUP_OBJECT => AclTag::GroupObject,
            GROUP => AclTag::Group(id),
            MASK => AclTag::Mask,
            OTHER => AclTag::Other,
            _ => return Err(Errno::INVAL),
        };
        let permissions = u16::from_le_bytes([bytes[2], bytes[3]]);
        let permissions = u8::try_from(permissions).map_err(|_| Errno::INVAL)?;
        Ok(AclEntry { tag, permissions })
    };
    let mut entries = entries.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    entries.sort_unstable();
    Ok(Acl { entries })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_survives_both_ways_and_nonsense_is_refused() {
        let tags = [
            AclTag::UserObject,
            AclTag::User(7),
            AclTag::GroupObject,
            AclTag::Group(9),
            AclTag::Mask,
            AclTag::Other,
        ];
        let entries = tags.map(|tag| AclEntry { tag, permissions: 5 }).to_vec();
        let acl = Acl { entries };
        assert_eq!(decode(&encode(&acl)), Ok(acl));
        for wrong in [
            &b""[..],
            b"\x01\0\0\0",
            b"\x02\0\0\0x",
            b"\x02\0\0\0\x03\0\x07\0\0\0\0\0",
        ] {
            assert_eq!(decode(wrong), Err(Errno::INVAL));
        }
    }
}

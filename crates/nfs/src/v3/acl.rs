//! The NFSACL side protocol, version 3: POSIX ACLs for NFSv3 clients (`getfacl` and `setfacl`).
//!
//! NFSv3 has no ACLs. Solaris put them into a program of its own on the port of NFS, with the same handles and statuses; Linux and Solaris
//! clients ask for it at each mount and do without where it is missing. There is no RFC; the structures are those that Linux's client and
//! server exchange. Only reading and setting are served: where ACLs decide is the file system.
//!
//! What the wire adds, for the sake of Solaris, and what is taken away again here: a file without an ACL shows the one that its mode means; a list of the three
//! entries that every list has comes with a mask, which says what the group's entry says; each entry of a default ACL has a bit set in its tag.
//!
//! SETACL executed twice does what it did once, so retransmissions are not remembered; as for a SETATTR without a guard, one that comes
//! after another client's change undoes it.

use super::{
    Call, NfsProgram, refused, reply,
    types::{
        ACL_ACCESS, ACL_ACCESS_COUNT, ACL_DEFAULT, ACL_DEFAULT_COUNT, AclResult, Failed, FileAttributes,
        GetAclCall, SetAclCall, WireAcl, WireAclEntry,
    },
};
use crate::{
    handle::WireHandle,
    rpc::{Program, Refusal, Reply, Request},
    xdr::{Array, Decode, Decoder},
};
use async_trait::async_trait;
use firn_vfs::{Acl, AclEntry, AclTag, Attributes, VfsError, rules::ACL_ENTRIES_MAX};
use std::{ops::RangeInclusive, sync::Arc};

/// The NFSACL program number.
pub const PROGRAM: u32 = 100_227;
/// The version that goes with NFS version 3.
pub const VERSION: u32 = 3;

const NAMES: [&str; 3] = ["NULL", "GETACL", "SETACL"];

const USER_OBJECT: u32 = 0x01;
const USER: u32 = 0x02;
const GROUP_OBJECT: u32 = 0x04;
const GROUP: u32 = 0x08;
const MASK: u32 = 0x10;
const OTHER: u32 = 0x20;
/// Set in the tags of a default ACL.
const IN_DEFAULT: u32 = 0x1000;

/// Two full lists.
const REPLY_BYTES: usize = 1024 + 2 * ACL_ENTRIES_MAX * 12;

type OrAttributes<S> = Result<S, Failed<Option<FileAttributes>>>;

/// The NFSACL program beside NFS: the same exports, handles and rules.
pub struct AclProgram {
    nfs: Arc<NfsProgram>,
}

impl AclProgram {
    /// Serves the ACLs of what `nfs` serves.
    pub fn new(nfs: Arc<NfsProgram>) -> Self {
        Self { nfs }
    }

    async fn get(&self, call: &Call, asked: GetAclCall) -> OrAttributes<AclResult> {
        let target = self.nfs.target(call, &asked.file).map_err(refused)?;
        let read = async {
            check_mask(
                asked.mask,
                ACL_ACCESS | ACL_ACCESS_COUNT | ACL_DEFAULT | ACL_DEFAULT_COUNT,
            )?;
            let attributes = target.vfs().attributes(target.admitted.file).await?;
            let (access, default) = target.vfs().get_acl(&target.caller, target.admitted.file).await?;
            Ok::<_, VfsError>((attributes, access, default))
        };
        let (attributes, access, default) = match read.await {
            Ok(read) => read,
            Err(error) => return Err(target.refused(error).await),
        };
        let wire = |acl: &Acl, entries, count, in_tag| match asked.mask & (entries | count) {
            0 => WireAcl::default(),
            wanted => to_wire(acl, &attributes, wanted & entries != 0, in_tag),
        };
        Ok(AclResult {
            attributes: Some((&attributes).into()),
            mask: asked.mask,
            access: wire(&or_of_mode(access, &attributes), ACL_ACCESS, ACL_ACCESS_COUNT, 0),
            default: wire(&default, ACL_DEFAULT, ACL_DEFAULT_COUNT, IN_DEFAULT),
        })
    }

    async fn set(&self, call: &Call, asked: SetAclCall) -> OrAttributes<Option<FileAttributes>> {
        let target = self.nfs.target(call, &asked.file).map_err(refused)?;
        let set = async {
            target.writable()?;
            check_mask(asked.mask, ACL_ACCESS | ACL_DEFAULT)?;
            let given = |wire: WireAcl, bit| match asked.mask & bit {
                0 => Ok(None),
                _ => from_wire(wire).map(Some),
            };
            let access = given(asked.access, ACL_ACCESS)?;
            let default = given(asked.default, ACL_DEFAULT)?;
            let (caller, file) = (&target.caller, target.admitted.file);
            target.vfs().set_acl(caller, file, access, default).await
        };
        match set.await {
            Ok(changed) => Ok(Some((&changed.after).into())),
            Err(error) => Err(target.refused(error).await),
        }
    }
}

fn check_mask(mask: u32, known: u32) -> Result<(), VfsError> {
    match mask & !known {
        0 => Ok(()),
        _ => Err(VfsError::InvalidArgument),
    }
}

/// The list itself, or the one that the mode means.
fn or_of_mode(acl: Acl, attributes: &Attributes) -> Acl {
    if !acl.entries.is_empty() {
        return acl;
    }
    let entry = |tag, shift: u32| AclEntry {
        tag,
        permissions: (attributes.mode >> shift & 7) as u8,
    };
    let entries = vec![
        entry(AclTag::UserObject, 6),
        entry(AclTag::GroupObject, 3),
        entry(AclTag::Other, 0),
    ];
    Acl { entries }
}

/// A mask in a list without one, which grants what the group's entry grants: Solaris wants four entries.
fn mask_of_three(acl: &Acl) -> Option<AclEntry> {
    if acl.entries.len() != 3 {
        return None;
    }
    let group = acl
        .entries
        .iter()
        .find(|entry| entry.tag == AclTag::GroupObject)?;
    Some(AclEntry {
        tag: AclTag::Mask,
        ..*group
    })
}

fn to_wire(acl: &Acl, attributes: &Attributes, with_entries: bool, in_tag: u32) -> WireAcl {
    let mut entries = acl.entries.clone();
    entries.extend(mask_of_three(acl));
    entries.sort_unstable();
    let wire = |entry: &AclEntry| {
        let (tag, id) = match entry.tag {
            AclTag::UserObject => (USER_OBJECT, attributes.uid),
            AclTag::User(uid) => (USER, uid),
            AclTag::GroupObject => (GROUP_OBJECT, attributes.gid),
            AclTag::Group(gid) => (GROUP, gid),
            AclTag::Mask => (MASK, 0),
            AclTag::Other => (OTHER, 0),
        };
        WireAclEntry {
            tag: tag | in_tag,
            id,
            permissions: entry.permissions.into(),
        }
    };
    assert!(
        entries.len() <= ACL_ENTRIES_MAX,
        "the volume holds no longer list"
    );
    let count = entries.len() as u32;
    let sent = if with_entries { &entries[..] } else { &[] };
    WireAcl {
        count,
        entries: Array(sent.iter().map(wire).collect()),
    }
}

fn from_wire(wire: WireAcl) -> Result<Acl, VfsError> {
    if wire.count as usize != wire.entries.0.len() {
        return Err(VfsError::InvalidArgument);
    }
    let entry = |wire: &WireAclEntry| {
        let tag = match wire.tag & !IN_DEFAULT {
            USER_OBJECT => AclTag::UserObject,
            USER => AclTag::User(wire.id),
            GROUP_OBJECT => AclTag::GroupObject,
            GROUP => AclTag::Group(wire.id),
            MASK => AclTag::Mask,
            OTHER => AclTag::Other,
            _ => return Err(VfsError::InvalidArgument),
        };
        let permissions = match tag {
            // Solaris sets more bits in a mask than there are.
            AclTag::Mask => (wire.permissions & 7) as u8,
            _ => match u8::try_from(wire.permissions) {
                Ok(permissions @ 0..=7) => permissions,
                _ => return Err(VfsError::InvalidArgument),
            },
        };
        Ok(AclEntry { tag, permissions })
    };
    let mut entries = wire.entries.0.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    entries.sort_unstable();
    let without_mask: Vec<AclEntry> = entries
        .iter()
        .filter(|entry| entry.tag != AclTag::Mask)
        .copied()
        .collect();
    // The mask that was added on the way out, or by the client.
    let is_added = |mask: AclEntry| entries.len() == 4 && entries.contains(&mask);
    let bare = Acl {
        entries: without_mask,
    };
    match mask_of_three(&bare) {
        Some(mask) if is_added(mask) => Ok(bare),
        _ => Ok(Acl { entries }),
    }
}

#[async_trait]
impl Program for AclProgram {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn name(&self) -> &'static str {
        "nfsacl"
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn procedure_name(&self, _version: u32, procedure: u32) -> Option<&'static str> {
        NAMES.get(procedure as usize).copied()
    }

    fn reply_bytes(&self, _request: &Request) -> usize {
        REPLY_BYTES
    }

    fn subject(&self, procedure: u32, mut arguments: Decoder) -> Option<String> {
        if !matches!(procedure, 1 | 2) {
            return None;
        }
        self.nfs
            .exports
            .subject(&WireHandle::decode(&mut arguments).ok()?.0)
    }

    async fn call(&self, mut request: Request) -> Result<Reply, Refusal> {
        if matches!(request.procedure, 1 | 2)
            && let Ok(handle) = WireHandle::decode(&mut request.arguments.clone())
        {
            self.nfs.exports.count(&handle.0);
        }
        let call = Call {
            peer: request.peer,
            request: None,
            credential: request.credential,
        };
        let input = &mut request.arguments;
        match request.procedure {
            0 => Ok(Reply::success(&())),
            1 => Ok(reply(self.get(&call, Decode::decode(input)?).await)),
            2 => Ok(reply(self.set(&call, Decode::decode(input)?).await)),
            _ => Err(Refusal::ProcedureUnavailable),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(AclTag, u8)]) -> Acl {
        let entry = |&(tag, permissions)| AclEntry { tag, permissions };
        Acl {
            entries: entries.iter().map(entry).collect(),
        }
    }

    fn wire(entries: &[(u32, u32, u32)]) -> WireAcl {
        let entry = |&(tag, id, permissions)| WireAclEntry { tag, id, permissions };
        WireAcl {
            count: entries.len() as u32,
            entries: Array(entries.iter().map(entry).collect()),
        }
    }

    #[test]
    fn an_unordered_list_is_put_in_order_and_a_mask_that_adds_nothing_is_taken_away() {
        let three = [
            (AclTag::UserObject, 6),
            (AclTag::GroupObject, 4),
            (AclTag::Other, 0),
        ];
        let sent = wire(&[
            (OTHER, 0, 0),
            (MASK, 0, 0o774),
            (GROUP_OBJECT, 9, 4),
            (USER_OBJECT, 8, 6),
        ]);
        assert_eq!(from_wire(sent), Ok(acl(&three)));
        let narrower = wire(&[
            (OTHER, 0, 0),
            (MASK, 0, 1),
            (GROUP_OBJECT, 9, 4),
            (USER_OBJECT, 8, 6),
        ]);
        let kept = from_wire(narrower).unwrap();
        assert!(kept.entries.contains(&AclEntry {
            tag: AclTag::Mask,
            permissions: 1
        }));
    }

    #[test]
    fn nonsense_is_refused() {
        let few = WireAcl {
            count: 2,
            ..wire(&[(OTHER, 0, 0)])
        };
        for nonsense in [
            few,
            wire(&[(3, 0, 0)]),
            wire(&[(OTHER, 0, 8)]),
            wire(&[(USER, 1, u32::MAX)]),
        ] {
            assert_eq!(
                from_wire(nonsense.clone()),
                Err(VfsError::InvalidArgument),
                "{nonsense:?}"
            );
        }
    }
}

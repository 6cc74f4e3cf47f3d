//! Extended attributes, and access control lists, which the kernel carries as such.

use super::{Operations, Outcome, superuser};
use crate::{
    abi, acl,
    case_index::QUESTION,
    errno::Failure,
    reply::{self, Reply},
    request::Header,
};
use bytes::{BufMut, Bytes, BytesMut};
use firn_vfs::{Acl, Caller, Credentials, FileHandle, VfsError, XattrMode};
use rustix::io::Errno;

const CREATE: u32 = 1;
const REPLACE: u32 = 2;

impl Operations {
    /// The value, or with size 0 its length.
    pub(super) fn value(value: Bytes, size: u32) -> Outcome {
        let length = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
        match size {
            0 => Ok(Reply::Structure(reply::length(length))),
            room if room < length => Err(Errno::RANGE.into()),
            _ => Ok(Reply::Data(vec![value])),
        }
    }

    pub(super) async fn get_xattr(&self, node: u64, name: &Bytes, size: u32) -> Outcome {
        let file = self.handle(node)?;
        if let Some(asked) = name.strip_prefix(QUESTION)
            && self.case_index().is_some()
        {
            return self.written_name(file, asked, size).await;
        }
        if &name[..] != acl::ACCESS && &name[..] != acl::DEFAULT {
            return Self::value(self.vfs.get_xattr(&superuser(), file, name).await?, size);
        }
        let (access, default) = self.vfs.get_acl(&superuser(), file).await?;
        let list = if &name[..] == acl::ACCESS { access } else { default };
        if list.entries.is_empty() {
            return Err(Errno::NODATA.into());
        }
        Self::value(acl::encode(&list), size)
    }

    pub(super) async fn list_xattrs(&self, header: &Header, size: u32) -> Outcome {
        let file = self.handle(header.node)?;
        // As the process itself: what only root may know of is not listed for others.
        let caller = Caller::new(Credentials {
            uid: header.uid,
            gid: header.gid,
            groups: Vec::new(),
        });
        let mut list = BytesMut::new();
        for name in self.vfs.list_xattrs(&caller, file).await? {
            list.put_slice(&name);
            list.put_u8(0);
        }
        let (access, default) = self.vfs.get_acl(&superuser(), file).await?;
        for (name, acl) in [(acl::ACCESS, access), (acl::DEFAULT, default)] {
            if !acl.entries.is_empty() {
                list.put_slice(name);
                list.put_u8(0);
            }
        }
        Self::value(list.freeze(), size)
    }

    pub(super) async fn set_xattr(
        &self,
        node: u64,
        name: &Bytes,
        value: Bytes,
        flags: u32,
        extra: u32,
    ) -> Outcome {
        let file = self.handle(node)?;
        let caller = match &name[..] {
            acl::ACCESS => self.acl_caller(file, extra).await?,
            _ => superuser(),
        };
        let changed = self
            .changing(file, caller, async |caller| match &name[..] {
                acl::ACCESS => {
                    let access = Some(acl::decode(&value)?);
                    Ok(self.vfs.set_acl(&caller, file, access, None).await?)
                }
                acl::DEFAULT => {
                    let default = Some(acl::decode(&value)?);
                    Ok(self.vfs.set_acl(&caller, file, None, default).await?)
                }
                _ => {
                    let mode = match flags {
                        CREATE => XattrMode::Create,
                        REPLACE => XattrMode::Replace,
                        _ => XattrMode::Either,
                    };
                    let value = Bytes::copy_from_slice(&value);
                    let set = self.vfs.set_xattr(&caller, file, name, value, mode).await;
                    set.map_err(|error| match error {
                        VfsError::TooLarge => Failure::Error(Errno::TOOBIG),
                        error => error.into(),
                    })
                }
            })
            .await?;
        self.nodes.changed_here(node, &changed);
        Ok(Reply::Empty)
    }

    /// As whom an access ACL is set. Who is not in the file's group loses set-gid by it; the file's owner without any group stands in
    /// for them, so that both happen at one instant.
    async fn acl_caller(&self, file: FileHandle, extra: u32) -> Result<Caller, Failure> {
        if extra & abi::SETXATTR_ACL_KILL_SGID == 0 {
            return Ok(superuser());
        }
        let attributes = self.vfs.attributes(file).await?;
        Ok(Caller::new(Credentials {
            uid: attributes.uid,
            gid: !attributes.gid,
            groups: Vec::new(),
        }))
    }

    pub(super) async fn remove_xattr(&self, node: u64, name: &Bytes) -> Outcome {
        let file = self.handle(node)?;
        let changed = self
            .changing(file, superuser(), async |caller| {
                let none = Some(Acl::default());
                Ok(match &name[..] {
                    acl::ACCESS => self.vfs.set_acl(&caller, file, none, None).await?,
                    acl::DEFAULT => self.vfs.set_acl(&caller, file, None, none).await?,
                    _ => self.vfs.remove_xattr(&caller, file, name).await?,
                })
            })
            .await?;
        self.nodes.changed_here(node, &changed);
        Ok(Reply::Empty)
    }
}

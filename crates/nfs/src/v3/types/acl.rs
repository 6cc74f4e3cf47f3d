//! Arguments and results of the NFSACL side protocol, in wire order.
//!
//! ```text
//! list  = count u32 | length u32 | entry*       (length is 0 where only the count was asked for)
//! entry = tag u32 | id u32 | permissions u32    (tag | 0x1000 in a default ACL)
//! ```

use super::FileAttributes;
use crate::{
    handle::WireHandle,
    xdr::{Array, xdr_struct},
};
use firn_vfs::rules::ACL_ENTRIES_MAX;

/// The access ACL is asked for, or set.
pub const ACL_ACCESS: u32 = 1;
/// The number of its entries is asked for.
pub const ACL_ACCESS_COUNT: u32 = 2;
/// The default ACL is asked for, or set.
pub const ACL_DEFAULT: u32 = 4;
/// The number of its entries is asked for.
pub const ACL_DEFAULT_COUNT: u32 = 8;

xdr_struct! {
    /// One line of an ACL (aclent).
    #[derive(Copy, Default)]
    pub struct WireAclEntry {
        /// Whom it is about, as a bit.
        pub tag: u32,
        /// The user or group, if the tag names one.
        pub id: u32,
        /// Read 4, write 2, execute 1.
        pub permissions: u32,
    }

    /// An ACL.
    #[derive(Default)]
    pub struct WireAcl {
        /// How many entries it has.
        pub count: u32,
        /// Its entries, or none where only their number was asked for.
        pub entries: Array<WireAclEntry, ACL_ENTRIES_MAX>,
    }

    /// GETACL's arguments.
    pub struct GetAclCall {
        /// The file.
        pub file: WireHandle,
        /// What is asked for ([`ACL_ACCESS`] and its kin).
        pub mask: u32,
    }

    /// GETACL's results.
    pub struct AclResult {
        /// The file's.
        pub attributes: Option<FileAttributes>,
        /// What was asked for.
        pub mask: u32,
        /// The access ACL.
        pub access: WireAcl,
        /// The default ACL.
        pub default: WireAcl,
    }

    /// SETACL's arguments.
    pub struct SetAclCall {
        /// The file.
        pub file: WireHandle,
        /// Which of the two are set ([`ACL_ACCESS`], [`ACL_DEFAULT`]).
        pub mask: u32,
        /// The access ACL; without entries there is none afterwards.
        pub access: WireAcl,
        /// The default ACL; the same.
        pub default: WireAcl,
    }
}

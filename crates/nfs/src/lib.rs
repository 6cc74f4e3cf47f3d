//! Firn's NFSv3 service: ONC RPC, portmap, MOUNT, NFSv3, its ACLs (NFSACL) and its locks (NLM and NSM) over the [`firn_vfs::Vfs`] trait.
//!
//! Written for Firn because no existing crate keeps NFS's promises (COMMIT, stable writes, exact READDIR, a duplicate
//! request cache). The modules stack: [`xdr`] is bytes, [`rpc`] is calls over connections, everything else is a
//! [`rpc::Program`].

#[cfg(feature = "testing")]
pub mod client;
mod duplicates;
mod exports;
#[cfg(feature = "testing")]
mod fuzz;
mod handle;
pub mod mount;
mod network;
pub mod nlm;
pub mod nsm;
pub mod portmap;
mod remote;
pub mod rpc;
mod service;
pub mod v3;
pub mod xdr;

pub use exports::{
    Admission, Admitted, ClientRule, Export, ExportError, Exports, HandleError, JUNCTIONS_MAX, Junction,
    JunctionError, JunctionState, NOBODY, PATH_MAX_BYTES, Place, Squash,
};
#[cfg(feature = "testing")]
pub use fuzz::fuzz_rpc_message;
pub use handle::{ExportId, HandleKey, SignedHandle, WireHandle};
pub use network::{ClientNetwork, NetworkSyntax};
pub use service::{NfsService, PortMapping, ServiceConfig, ServiceError};

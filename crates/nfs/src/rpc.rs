//! ONC RPC version 2 (RFC 5531): calls, replies, credentials, record marking; a server and a small client.
//!
//! A [`Program`] is what a protocol implements: a number, versions, and one method that turns a [`Request`] into a
//! [`Reply`] or a [`Refusal`]. The server knows programs only through it, so NFS, MOUNT, portmap, NLM and NSM share one
//! listener, one set of limits and one place where malformed input ends.

#[allow(dead_code)] // the dispatcher that writes replies follows
mod message;
mod program;

pub use message::{AuthStatus, AuthSys, CallHeader, Credential, HeaderError};
pub use program::{Peer, Program, Refusal, Reply, Request, Transport};

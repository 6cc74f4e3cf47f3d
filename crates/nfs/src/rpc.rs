//! ONC RPC version 2 (RFC 5531): calls, replies, credentials, record marking; a server and a small client.
//!
//! A [`Program`] is what a protocol implements: a number, versions, and one method that turns a [`Request`] into a
//! [`Reply`] or a [`Refusal`]. The server knows programs only through it, so NFS, MOUNT, portmap, NLM and NSM share one
//! listener, one set of limits and one place where malformed input ends.

mod activity;
mod budget;
mod client;
mod connection;
mod datagram;
mod dispatch;
mod message;
mod program;
mod record;
mod server;
mod slow_calls;
mod statistics;

pub use client::{CallError, CallRefused, Client, Target, call_datagram};
pub use dispatch::Programs;
pub use message::{AuthStatus, AuthSys, CallHeader, Credential, GROUPS_MAX, HeaderError};
pub use program::{Peer, Program, Refusal, Reply, Request, Transport};
pub use record::{Assembler, RecordError, Step};
pub use server::{PeerRules, Server, ServerLimits, Turned};
pub use slow_calls::SlowCalls;
pub use statistics::{LATENCY_BUCKETS, ProcedureStatistics};

//! Wire protocol between disk clients and disk nodes.
//!
//! A virtual disk is cut into **tracts** of 8 MiB; a tract lies on the nodes of one **row** of the tract locator table; a
//! row has a version that changes with its nodes. Every change of a 4 KiB block carries a **generation** (fence, sequence),
//! and the highest generation wins, on every replica, whatever the order of arrival. A client speaks for a disk with the
//! **fence** of its attach; a node serves a disk only to the newest fence it was told.
//!
//! - [`ids`](DiskId): the nouns. Everything else in `dataplane-blockd` speaks in them.
//! - [`Row`]: a row of the table, as nodes and clients see it.
//! - [`Request`], [`Reply`], [`Refusal`]: the messages.
//! - [`Frame`]: their bytes: 32 bytes of header, a body of fields, and block data. Decoding never panics and never
//!   allocates more than the bounds in [`limits`].
//! - [`Connection`] and [`serve`]: the two ends, pipelined, with bounded bytes in flight, over any stream of `firn-env`.
//! - [`Budget`]: what all connections of a node share, so that nobody gets more of it by having more of them.
//! - [`Transport`]: what they speak over, mutual TLS with names.
//!
//! The specification of every byte is in `docs/blockd.md`, with golden vectors in `tests/golden.rs`.

mod blocks;
mod checksum;
mod client;
mod cursor;
mod frame;
mod ids;
pub mod limits;
mod memory;
mod message;
mod refusal;
mod reply;
mod request;
mod row;
mod server;
mod transport;
mod wire;

pub use blocks::{BlockState, BlockVersion, VersionedBlocks, WriteBlocks};
pub use checksum::block_checksum;
pub use client::{CallError, Connection, ConnectionOptions};
pub use cursor::DecodeError;
pub use frame::{Frame, FrameHeader, FrameKind, Operation, PREVIOUS_VERSION, PROTOCOL_VERSION};
pub use ids::{
    BLOCK_BYTES, BlockRange, DiskId, Fence, Generation, NodeId, Replication, RowIndex, RowVersion,
    TRACT_BLOCKS, TRACT_BYTES, TenantId, TractId,
};
pub use memory::{Account, Budget, Charge};
pub use message::{decode_reply, decode_request, encode_refusal, encode_reply, encode_request};
pub use refusal::{Refusal, RefusalCode};
pub use reply::{HelloReply, Reply};
pub use request::{Request, RowAt};
pub use row::{Replica, ReplicaState, Row};
pub use server::{ServerLimits, ServerUsage, Service, Session, serve};
pub use transport::{Owner, Peer, Transport};

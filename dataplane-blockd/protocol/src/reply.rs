//! What a node answers when it does as asked.

use crate::{
    Generation, NodeId, Operation, RowVersion, TRACT_BLOCKS, TractId,
    blocks::{self, ReadBlocks, VersionedBlocks},
    cursor::{DecodeError, Decoder, Encoder},
    limits::{MAX_LIST, MAX_MARKS},
};
use bytes::Bytes;

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloReply {
    /// The version to speak from now on.
    pub version: u8,
    /// Who answers. A client that expected another node hangs up.
    pub node: NodeId,
    /// Drawn at each start of the node. Writes that were acknowledged but not durable are gone when it changes: a flush
    /// speaks only for the writes that the same incarnation acknowledged, the others must be sent again.
    pub incarnation: u64,
    /// Requests the client may have in flight on this connection.
    pub requests_in_flight: u32,
    /// Bytes the client may have in flight, by [`Request::in_flight_bytes`](crate::Request::in_flight_bytes).
    pub bytes_in_flight: u32,
}

/// How a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NodeStatus {
    /// Tracts it has room for.
    pub capacity_tracts: u64,
    /// Tracts it holds.
    pub used_tracts: u64,
    /// It is being emptied.
    pub draining: bool,
    /// Its registration is fresh: it serves.
    pub serving: bool,
    /// Damaged blocks found and not yet repaired.
    pub damaged_blocks: u64,
}

/// A tract on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TractStatus {
    /// Which.
    pub tract: TractId,
    /// The version of its row with which this node joined it.
    pub since: RowVersion,
    /// Blocks with content.
    pub written_blocks: u16,
    /// The highest generation of any of its blocks.
    pub newest: Generation,
}

/// The marked blocks of one tract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TractMark {
    /// The tract's index in the disk.
    pub index: u32,
    /// One for each block of the tract.
    pub blocks: Vec<bool>,
}

/// A page of marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The node was told that everything up to here is settled.
    pub settled: Generation,
    /// Tracts with blocks above it, in order.
    pub tracts: Vec<TractMark>,
    /// Ask for tracts behind this one; nothing: these were the last.
    pub next: Option<u32>,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To `hello`.
    Hello(HelloReply),
    /// To `authenticate`.
    Authenticated {
        /// When the capability ends, in milliseconds since 1970.
        expires_unix_ms: i64,
    },
    /// To `read`.
    Read(ReadBlocks),
    /// To `write`.
    Written,
    /// To `trim`.
    Trimmed,
    /// To `flush`.
    Flushed,
    /// To `stat`.
    Stat {
        /// The node.
        node: NodeStatus,
        /// The tract asked for, if the node holds it.
        tract: Option<TractStatus>,
    },
    /// To `fetch`.
    Fetched(VersionedBlocks),
    /// To `set fence`: durable.
    FenceSet,
    /// To `list`.
    List {
        /// In order.
        tracts: Vec<TractStatus>,
        /// There are more behind the last one.
        more: bool,
    },
    /// To `marks`.
    Marks(Marks),
}

impl Reply {
    /// Which operation it answers.
    pub fn operation(&self) -> Operation {
        match self {
            Self::Hello(_) => Operation::Hello,
            Self::Authenticated { .. } => Operation::Authenticate,
            Self::Read(_) => Operation::Read,
            Self::Written => Operation::Write,
            Self::Trimmed => Operation::Trim,
            Self::Flushed => Operation::Flush,
            Self::Stat { .. } => Operation::Stat,
            Self::Fetched(_) => Operation::Fetch,
            Self::FenceSet => Operation::SetFence,
            Self::List { .. } => Operation::List,
            Self::Marks(_) => Operation::Marks,
        }
    }

    pub(crate) fn encode(&self, encoder: &mut Encoder) -> Bytes {
        match self {
            Self::Hello(hello) => {
                encoder.u8(hello.version);
                encoder.node(hello.node);
                encoder.u64(hello.incarnation);
                encoder.u32(hello.requests_in_flight);
                encoder.u32(hello.bytes_in_flight);
            }
            Self::Authenticated { expires_unix_ms } => encoder.i64(*expires_unix_ms),
            Self::Read(read) => {
                read.encode(encoder);
                return read.data.clone();
            }
            Self::Fetched(fetched) => {
                fetched.encode(encoder);
                return fetched.data.clone();
            }
            Self::Written | Self::Trimmed | Self::Flushed | Self::FenceSet => {}
            Self::Stat { node, tract } => {
                encoder.u64(node.capacity_tracts);
                encoder.u64(node.used_tracts);
                encoder.flag(node.draining);
                encoder.flag(node.serving);
                encoder.u64(node.damaged_blocks);
                encoder.optional(*tract, encode_tract);
            }
            Self::List { tracts, more } => {
                encoder.count(tracts.len(), MAX_LIST);
                for tract in tracts {
                    encode_tract(encoder, *tract);
                }
                encoder.flag(*more);
            }
            Self::Marks(marks) => {
                encoder.generation(marks.settled);
                encoder.count(marks.tracts.len(), MAX_MARKS);
                for mark in &marks.tracts {
                    assert_eq!(
                        mark.blocks.len(),
                        usize::from(TRACT_BLOCKS),
                        "a mark is of a tract"
                    );
                    encoder.u32(mark.index);
                    blocks::encode_presence(encoder, mark.blocks.iter().copied());
                }
                encoder.optional(marks.next, Encoder::u32);
            }
        }
        Bytes::new()
    }

    pub(crate) fn decode(operation: Operation, body: Bytes, data: Bytes) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let carries_data = matches!(operation, Operation::Read | Operation::Fetch);
        if !carries_data && !data.is_empty() {
            return Err(DecodeError::Trailing { bytes: data.len() });
        }
        let reply = match operation {
            Operation::Hello => Self::Hello(HelloReply {
                version: decoder.u8("version")?,
                node: decoder.node()?,
                incarnation: decoder.u64("incarnation")?,
                requests_in_flight: decoder.u32("requests in flight")?,
                bytes_in_flight: decoder.u32("bytes in flight")?,
            }),
            Operation::Authenticate => Self::Authenticated {
                expires_unix_ms: decoder.i64("expiry")?,
            },
            Operation::Read => Self::Read(ReadBlocks::decode(&mut decoder, data)?),
            Operation::Fetch => Self::Fetched(VersionedBlocks::decode(&mut decoder, data)?),
            Operation::Write => Self::Written,
            Operation::Trim => Self::Trimmed,
            Operation::Flush => Self::Flushed,
            Operation::SetFence => Self::FenceSet,
            Operation::Stat => Self::Stat {
                node: NodeStatus {
                    capacity_tracts: decoder.u64("capacity")?,
                    used_tracts: decoder.u64("used")?,
                    draining: decoder.flag("draining")?,
                    serving: decoder.flag("serving")?,
                    damaged_blocks: decoder.u64("damaged")?,
                },
                tract: decoder.optional("tract", decode_tract)?,
            },
            Operation::List => {
                let count = decoder.count("tracts", MAX_LIST)?;
                Self::List {
                    tracts: (0..count)
                        .map(|_| decode_tract(&mut decoder))
                        .collect::<Result<_, _>>()?,
                    more: decoder.flag("more")?,
                }
            }
            Operation::Marks => {
                let settled = decoder.generation()?;
                let count = decoder.count("tracts", MAX_MARKS)?;
                Self::Marks(Marks {
                    settled,
                    tracts: (0..count)
                        .map(|_| {
                            Ok(TractMark {
                                index: decoder.u32("tract")?,
                                blocks: blocks::decode_presence(&mut decoder, TRACT_BLOCKS.into())?,
                            })
                        })
                        .collect::<Result<_, _>>()?,
                    next: decoder.optional("next", |decoder| decoder.u32("tract"))?,
                })
            }
        };
        decoder.end()?;
        Ok(reply)
    }
}

fn encode_tract(encoder: &mut Encoder, tract: TractStatus) {
    encoder.tract(tract.tract);
    encoder.u64(tract.since.0);
    encoder.u16(tract.written_blocks);
    encoder.generation(tract.newest);
}

fn decode_tract(decoder: &mut Decoder) -> Result<TractStatus, DecodeError> {
    Ok(TractStatus {
        tract: decoder.tract()?,
        since: RowVersion(decoder.u64("since")?),
        written_blocks: decoder.u16("written blocks")?,
        newest: decoder.generation()?,
    })
}

//! Replies of a node that does as asked.

use crate::{
    Generation, NodeId, Operation, PREVIOUS_VERSION, TractId,
    blocks::VersionedBlocks,
    cursor::{DecodeError, Decoder, Encoder},
    limits::MAX_LIST,
};
use bytes::Bytes;

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloReply {
    /// The version to speak from now on.
    pub version: u8,
    /// Who answers. A client that expected another node hangs up.
    pub node: NodeId,
    /// Drawn at each start of the node, for logs: it tells a restart from a lost connection.
    pub incarnation: u64,
    /// Requests the client may have in flight on this connection.
    pub requests_in_flight: u32,
    /// Bytes the client may have in flight, by [`Request::in_flight_bytes`](crate::Request::in_flight_bytes).
    pub bytes_in_flight: u32,
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
    /// To `write`: durable.
    Written,
    /// To `trim`: durable.
    Trimmed,
    /// To `fetch`.
    Fetched(VersionedBlocks),
    /// To `set fence`: durable.
    FenceSet,
    /// To `list`.
    List {
        /// In order.
        tracts: Vec<TractId>,
        /// There are more behind the last one.
        more: bool,
    },
}

impl Reply {
    /// Which operation it answers.
    pub fn operation(&self) -> Operation {
        match self {
            Self::Hello(_) => Operation::Hello,
            Self::Authenticated { .. } => Operation::Authenticate,
            Self::Written => Operation::Write,
            Self::Trimmed => Operation::Trim,
            Self::Fetched(_) => Operation::Fetch,
            Self::FenceSet => Operation::SetFence,
            Self::List { .. } => Operation::List,
        }
    }

    pub(crate) fn encode(&self, version: u8, encoder: &mut Encoder) -> Bytes {
        match self {
            Self::Hello(hello) => {
                encoder.u8(hello.version);
                encoder.node(hello.node);
                encoder.u64(hello.incarnation);
                encoder.u32(hello.requests_in_flight);
                encoder.u32(hello.bytes_in_flight);
            }
            Self::Authenticated { expires_unix_ms } => encoder.i64(*expires_unix_ms),
            Self::Fetched(fetched) => {
                fetched.encode(encoder);
                return fetched.data.clone();
            }
            Self::Written | Self::Trimmed | Self::FenceSet => {}
            Self::List { tracts, more } => {
                encoder.count(tracts.len(), MAX_LIST);
                for tract in tracts {
                    encode_tract(version, encoder, *tract);
                }
                encoder.flag(*more);
            }
        }
        Bytes::new()
    }

    pub(crate) fn decode(
        version: u8,
        operation: Operation,
        body: Bytes,
        data: Bytes,
    ) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let carries_data = operation == Operation::Fetch;
        if !carries_data && !data.is_empty() {
            return Err(DecodeError::Trailing { bytes: data.len() });
        }
        let reply = match operation {
            Operation::Hello => Self::Hello(HelloReply {
                version: decoder.u8()?,
                node: decoder.node()?,
                incarnation: decoder.u64()?,
                requests_in_flight: decoder.u32()?,
                bytes_in_flight: decoder.u32()?,
            }),
            Operation::Authenticate => Self::Authenticated {
                expires_unix_ms: decoder.i64()?,
            },
            Operation::Fetch => Self::Fetched(VersionedBlocks::decode(&mut decoder, data)?),
            Operation::Write => Self::Written,
            Operation::Trim => Self::Trimmed,
            Operation::SetFence => Self::FenceSet,
            Operation::List => {
                let count = decoder.count("tracts", MAX_LIST)?;
                Self::List {
                    tracts: (0..count)
                        .map(|_| decode_tract(version, &mut decoder))
                        .collect::<Result<_, _>>()?,
                    more: decoder.flag("more")?,
                }
            }
        };
        decoder.end()?;
        Ok(reply)
    }
}

fn encode_tract(version: u8, encoder: &mut Encoder, tract: TractId) {
    encoder.tract(tract);
    if version == PREVIOUS_VERSION {
        // Since when it is there, how much of it is written, and its newest generation, which nobody looked at.
        encoder.u64(0);
        encoder.u16(0);
        encoder.generation(Generation::ZERO);
    }
}

fn decode_tract(version: u8, decoder: &mut Decoder) -> Result<TractId, DecodeError> {
    let tract = decoder.tract()?;
    if version == PREVIOUS_VERSION {
        decoder.u64()?;
        decoder.u16()?;
        decoder.generation()?;
    }
    Ok(tract)
}

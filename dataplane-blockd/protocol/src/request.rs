//! What a client asks a node.

use crate::{
    BlockRange, DiskId, Fence, Generation, Operation, Replication, RowIndex, RowVersion, TractId,
    blocks::{self, WriteBlocks},
    cursor::{DecodeError, Decoder, Encoder},
    limits::{MAX_CAPABILITY_BYTES, MAX_LIST, MAX_MARKS, MAX_TEXT_BYTES, MESSAGE_OVERHEAD_BYTES},
};
use bytes::Bytes;

/// A row at one version, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowAt {
    /// Which table.
    pub replication: Replication,
    /// Its place in the table.
    pub index: RowIndex,
    /// The version.
    pub version: RowVersion,
}

/// A request. Each may be sent again after its reply was lost: a write or trim of a generation the node already has changes
/// nothing and is acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// First on every connection.
    Hello {
        /// Lowest version the client speaks.
        lowest: u8,
        /// Highest version the client speaks.
        highest: u8,
        /// The program and its version, for logs.
        program: String,
    },
    /// Presents a capability; one connection may hold several, one for each disk.
    Authenticate {
        /// Its bytes, opaque to the protocol.
        capability: Bytes,
    },
    /// Reads blocks.
    Read {
        /// From which tract.
        tract: TractId,
        /// The version of the tract's row the client knows.
        row: RowVersion,
        /// The client's attach.
        fence: Fence,
        /// At most [`MAX_REQUEST_BLOCKS`](crate::limits::MAX_REQUEST_BLOCKS).
        range: BlockRange,
    },
    /// Writes blocks. From the moment a node has one that its other replicas may not have, it counts as *marked*
    /// ([`Request::Marks`]) until the client says that it is settled.
    Write {
        /// To which tract.
        tract: TractId,
        /// The version of the tract's row the client knows.
        row: RowVersion,
        /// The attach, and the order of the write among the disk's writes.
        generation: Generation,
        /// Every write up to this generation is durable on all its replicas.
        settled: Generation,
        /// Acknowledge only when it is durable.
        durable: bool,
        /// Where.
        range: BlockRange,
        /// What.
        blocks: WriteBlocks,
    },
    /// Makes blocks read as zeros, against everything of a lower generation.
    Trim {
        /// Of which tract.
        tract: TractId,
        /// The version of the tract's row the client knows.
        row: RowVersion,
        /// As for a write.
        generation: Generation,
        /// As for a write.
        settled: Generation,
        /// As for a write.
        durable: bool,
        /// Where; up to the whole tract.
        range: BlockRange,
    },
    /// Makes every write and trim of the disk durable that this node had acknowledged when the request arrived.
    Flush {
        /// Which disk.
        disk: DiskId,
        /// The client's attach.
        fence: Fence,
        /// As for a write.
        settled: Generation,
    },
    /// How the node does, and what it holds of a tract.
    Stat {
        /// This tract too.
        tract: Option<TractId>,
    },
    /// Reads blocks with their generations: to copy them to a joining replica (from a node, with a node's capability) or
    /// to compare replicas after an unclean end (from the disk's client).
    Fetch {
        /// From which tract.
        tract: TractId,
        /// The version of the tract's row the asker knows. The node makes sure that it knows it too before it answers, so
        /// that no write under an earlier version comes after.
        row: RowVersion,
        /// The client's attach; zero from a node.
        fence: Fence,
        /// At most [`MAX_REQUEST_BLOCKS`](crate::limits::MAX_REQUEST_BLOCKS).
        range: BlockRange,
    },
    /// From now on, also after a crash, the node serves the disk to this attach only. Lower than what it has is refused.
    SetFence {
        /// Which disk.
        disk: DiskId,
        /// The attach.
        fence: Fence,
    },
    /// The tracts the node holds, in order.
    List {
        /// Of this disk only; all disks only with a node's capability.
        disk: Option<DiskId>,
        /// Of this row only, of which the node first makes sure that it knows this version and that nothing under an
        /// earlier one is still under way; only with a node's capability.
        row: Option<RowAt>,
        /// Behind this one.
        after: Option<TractId>,
        /// At most so many, up to [`MAX_LIST`].
        limit: u16,
    },
    /// The blocks of a disk that the node holds above what was settled: replicas may disagree on them.
    Marks {
        /// Which disk.
        disk: DiskId,
        /// The client's attach.
        fence: Fence,
        /// In tracts behind this one.
        after: Option<u32>,
        /// At most so many tracts, up to [`MAX_MARKS`].
        limit: u16,
    },
}

impl Request {
    /// Which operation it is.
    pub fn operation(&self) -> Operation {
        match self {
            Self::Hello { .. } => Operation::Hello,
            Self::Authenticate { .. } => Operation::Authenticate,
            Self::Read { .. } => Operation::Read,
            Self::Write { .. } => Operation::Write,
            Self::Trim { .. } => Operation::Trim,
            Self::Flush { .. } => Operation::Flush,
            Self::Stat { .. } => Operation::Stat,
            Self::Fetch { .. } => Operation::Fetch,
            Self::SetFence { .. } => Operation::SetFence,
            Self::List { .. } => Operation::List,
            Self::Marks { .. } => Operation::Marks,
        }
    }

    /// The disk it is about, if it is about one.
    pub fn disk(&self) -> Option<DiskId> {
        match self {
            Self::Read { tract, .. }
            | Self::Write { tract, .. }
            | Self::Trim { tract, .. }
            | Self::Fetch { tract, .. } => Some(tract.disk),
            Self::Flush { disk, .. } | Self::SetFence { disk, .. } | Self::Marks { disk, .. } => Some(*disk),
            Self::List { disk, .. } => *disk,
            Self::Stat { tract } => tract.map(|tract| tract.disk),
            Self::Hello { .. } | Self::Authenticate { .. } => None,
        }
    }

    /// What it counts against the bytes in flight: its own data or that of its reply, whichever there is.
    pub fn in_flight_bytes(&self) -> usize {
        MESSAGE_OVERHEAD_BYTES
            + match self {
                Self::Read { range, .. } | Self::Fetch { range, .. } => range.bytes(),
                Self::Write { blocks, .. } => blocks.data.len(),
                Self::Hello { .. }
                | Self::Authenticate { .. }
                | Self::Trim { .. }
                | Self::Flush { .. }
                | Self::Stat { .. }
                | Self::SetFence { .. }
                | Self::List { .. }
                | Self::Marks { .. } => 0,
            }
    }

    pub(crate) fn encode(&self, encoder: &mut Encoder) -> Bytes {
        match self {
            Self::Hello {
                lowest,
                highest,
                program,
            } => {
                encoder.u8(*lowest);
                encoder.u8(*highest);
                encoder.text(program, MAX_TEXT_BYTES);
            }
            Self::Authenticate { capability } => encoder.blob(capability, MAX_CAPABILITY_BYTES),
            Self::Read {
                tract,
                row,
                fence,
                range,
            }
            | Self::Fetch {
                tract,
                row,
                fence,
                range,
            } => {
                encoder.tract(*tract);
                encoder.u64(row.0);
                encoder.u32(fence.0);
                encoder.range(*range);
            }
            Self::Write {
                tract,
                row,
                generation,
                settled,
                durable,
                range,
                blocks,
            } => {
                encode_change(encoder, (*tract, *row, *generation, *settled, *durable, *range));
                blocks::encode_write(blocks, encoder);
                return blocks.data.clone();
            }
            Self::Trim {
                tract,
                row,
                generation,
                settled,
                durable,
                range,
            } => encode_change(encoder, (*tract, *row, *generation, *settled, *durable, *range)),
            Self::Flush { disk, fence, settled } => {
                encoder.disk(*disk);
                encoder.u32(fence.0);
                encoder.generation(*settled);
            }
            Self::Stat { tract } => encoder.optional(*tract, Encoder::tract),
            Self::SetFence { disk, fence } => {
                encoder.disk(*disk);
                encoder.u32(fence.0);
            }
            Self::List {
                disk,
                row,
                after,
                limit,
            } => {
                encoder.optional(*disk, Encoder::disk);
                encoder.optional(*row, |encoder, row| {
                    encoder.u8(u8::try_from(row.replication.copies()).expect("at most three"));
                    encoder.u32(row.index.0);
                    encoder.u64(row.version.0);
                });
                encoder.optional(*after, Encoder::tract);
                encoder.u16(*limit);
            }
            Self::Marks {
                disk,
                fence,
                after,
                limit,
            } => {
                encoder.disk(*disk);
                encoder.u32(fence.0);
                encoder.optional(*after, Encoder::u32);
                encoder.u16(*limit);
            }
        }
        Bytes::new()
    }

    pub(crate) fn decode(operation: Operation, body: Bytes, data: Bytes) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let carries_data = operation == Operation::Write;
        if !carries_data && !data.is_empty() {
            return Err(DecodeError::Trailing { bytes: data.len() });
        }
        let request = match operation {
            Operation::Hello => Self::Hello {
                lowest: decoder.u8("lowest version")?,
                highest: decoder.u8("highest version")?,
                program: decoder.text("program", MAX_TEXT_BYTES)?,
            },
            Operation::Authenticate => Self::Authenticate {
                capability: decoder.blob("capability", MAX_CAPABILITY_BYTES)?,
            },
            Operation::Read | Operation::Fetch => {
                let tract = decoder.tract()?;
                let row = RowVersion(decoder.u64("row version")?);
                let fence = Fence(decoder.u32("fence")?);
                let range = blocks::request_range(&mut decoder)?;
                if operation == Operation::Read {
                    Self::Read {
                        tract,
                        row,
                        fence,
                        range,
                    }
                } else {
                    Self::Fetch {
                        tract,
                        row,
                        fence,
                        range,
                    }
                }
            }
            Operation::Write => {
                let (tract, row, generation, settled, durable, range) = decode_change(&mut decoder)?;
                Self::Write {
                    tract,
                    row,
                    generation,
                    settled,
                    durable,
                    range,
                    blocks: blocks::decode_write(&mut decoder, range, data)?,
                }
            }
            Operation::Trim => {
                let (tract, row, generation, settled, durable, range) = decode_change(&mut decoder)?;
                Self::Trim {
                    tract,
                    row,
                    generation,
                    settled,
                    durable,
                    range,
                }
            }
            Operation::Flush => Self::Flush {
                disk: decoder.disk()?,
                fence: Fence(decoder.u32("fence")?),
                settled: decoder.generation()?,
            },
            Operation::Stat => Self::Stat {
                tract: decoder.optional("tract", Decoder::tract)?,
            },
            Operation::SetFence => Self::SetFence {
                disk: decoder.disk()?,
                fence: Fence(decoder.u32("fence")?),
            },
            Operation::List => Self::List {
                disk: decoder.optional("disk", Decoder::disk)?,
                row: decoder.optional("row", |decoder| {
                    Ok(RowAt {
                        replication: decoder.replication()?,
                        index: RowIndex(decoder.u32("row")?),
                        version: RowVersion(decoder.u64("row version")?),
                    })
                })?,
                after: decoder.optional("after", Decoder::tract)?,
                limit: decode_limit(&mut decoder, MAX_LIST)?,
            },
            Operation::Marks => Self::Marks {
                disk: decoder.disk()?,
                fence: Fence(decoder.u32("fence")?),
                after: decoder.optional("after", |decoder| decoder.u32("tract"))?,
                limit: decode_limit(&mut decoder, MAX_MARKS)?,
            },
        };
        decoder.end()?;
        Ok(request)
    }
}

fn decode_limit(decoder: &mut Decoder, most: usize) -> Result<u16, DecodeError> {
    let limit = decoder.u16("limit")?;
    if limit == 0 || usize::from(limit) > most {
        return Err(DecodeError::Invalid {
            field: "limit",
            value: limit.into(),
        });
    }
    Ok(limit)
}

type Change = (TractId, RowVersion, Generation, Generation, bool, BlockRange);

fn encode_change(encoder: &mut Encoder, (tract, row, generation, settled, durable, range): Change) {
    encoder.tract(tract);
    encoder.u64(row.0);
    encoder.generation(generation);
    encoder.generation(settled);
    encoder.flag(durable);
    encoder.range(range);
}

fn decode_change(decoder: &mut Decoder) -> Result<Change, DecodeError> {
    Ok((
        decoder.tract()?,
        RowVersion(decoder.u64("row version")?),
        decoder.generation()?,
        decoder.generation()?,
        decoder.flag("durable")?,
        decoder.range()?,
    ))
}

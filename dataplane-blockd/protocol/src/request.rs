//! Requests of a client to a node.

use crate::{
    BlockRange, DiskId, Fence, Generation, Operation, PREVIOUS_VERSION, Replication, RowIndex, RowVersion,
    TractId,
    blocks::{self, WriteBlocks},
    cursor::{DecodeError, Decoder, Encoder},
    limits::{LISTED_TRACT_BYTES, MAX_CAPABILITY_BYTES, MAX_LIST, MAX_TEXT_BYTES, MESSAGE_OVERHEAD_BYTES},
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
    /// Writes blocks; acknowledged once they are durable.
    Write {
        /// To which tract.
        tract: TractId,
        /// The version of the tract's row the client knows.
        row: RowVersion,
        /// The attach, and the order of the write among the disk's writes.
        generation: Generation,
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
        /// Where; up to the whole tract.
        range: BlockRange,
    },
    /// Reads blocks with their generations: to copy them to a joining replica or to repair one (from a node that is in the
    /// tract's row), to read, and to compare replicas after an unclean end (from the disk's client).
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
    /// The tracts the node holds, in order: of a disk, for its client, or of a row, for a node that is in it.
    List {
        /// Of this disk. Exactly one of disk and row is named.
        disk: Option<DiskId>,
        /// Of this row, of which the node first makes sure that it knows this version and that nothing under an earlier one
        /// is still under way.
        row: Option<RowAt>,
        /// Behind this one.
        after: Option<TractId>,
        /// At most so many, up to [`MAX_LIST`].
        limit: u16,
    },
}

impl Request {
    /// Which operation it is.
    pub fn operation(&self) -> Operation {
        match self {
            Self::Hello { .. } => Operation::Hello,
            Self::Authenticate { .. } => Operation::Authenticate,
            Self::Write { .. } => Operation::Write,
            Self::Trim { .. } => Operation::Trim,
            Self::Fetch { .. } => Operation::Fetch,
            Self::SetFence { .. } => Operation::SetFence,
            Self::List { .. } => Operation::List,
        }
    }

    /// What it counts against the bytes in flight: its own data or that of its reply, whichever there is.
    pub fn in_flight_bytes(&self) -> usize {
        MESSAGE_OVERHEAD_BYTES
            + match self {
                Self::Fetch { range, .. } => range.bytes(),
                Self::Write { blocks, .. } => blocks.data.len(),
                Self::List { limit, .. } => usize::from(*limit) * LISTED_TRACT_BYTES,
                Self::Hello { .. }
                | Self::Authenticate { .. }
                | Self::Trim { .. }
                | Self::SetFence { .. } => 0,
            }
    }

    pub(crate) fn encode(&self, version: u8, encoder: &mut Encoder) -> Bytes {
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
            Self::Fetch {
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
                range,
                blocks,
            } => {
                encode_change(version, encoder, (*tract, *row, *generation, *range));
                blocks::encode_write(blocks, encoder);
                return blocks.data.clone();
            }
            Self::Trim {
                tract,
                row,
                generation,
                range,
            } => encode_change(version, encoder, (*tract, *row, *generation, *range)),
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
        let carries_data = operation == Operation::Write;
        if !carries_data && !data.is_empty() {
            return Err(DecodeError::Trailing { bytes: data.len() });
        }
        let request = match operation {
            Operation::Hello => Self::Hello {
                lowest: decoder.u8()?,
                highest: decoder.u8()?,
                program: decoder.text("program", MAX_TEXT_BYTES)?,
            },
            Operation::Authenticate => Self::Authenticate {
                capability: decoder.blob("capability", MAX_CAPABILITY_BYTES)?,
            },
            Operation::Fetch => Self::Fetch {
                tract: decoder.tract()?,
                row: RowVersion(decoder.u64()?),
                fence: Fence(decoder.u32()?),
                range: blocks::request_range(&mut decoder)?,
            },
            Operation::Write => {
                let (tract, row, generation, range) = decode_change(version, &mut decoder)?;
                Self::Write {
                    tract,
                    row,
                    generation,
                    range,
                    blocks: blocks::decode_write(&mut decoder, range, data)?,
                }
            }
            Operation::Trim => {
                let (tract, row, generation, range) = decode_change(version, &mut decoder)?;
                Self::Trim {
                    tract,
                    row,
                    generation,
                    range,
                }
            }
            Operation::SetFence => Self::SetFence {
                disk: decoder.disk()?,
                fence: Fence(decoder.u32()?),
            },
            Operation::List => Self::List {
                disk: decoder.optional("disk", Decoder::disk)?,
                row: decoder.optional("row", |decoder| {
                    Ok(RowAt {
                        replication: decoder.replication()?,
                        index: RowIndex(decoder.u32()?),
                        version: RowVersion(decoder.u64()?),
                    })
                })?,
                after: decoder.optional("after", Decoder::tract)?,
                limit: decode_limit(&mut decoder, MAX_LIST)?,
            },
        };
        decoder.end()?;
        if let Self::List { disk, row, .. } = &request
            && disk.is_some() == row.is_some()
        {
            return Err(DecodeError::Invalid {
                field: "what is listed",
                value: u64::from(disk.is_some()) + u64::from(row.is_some()),
            });
        }
        Ok(request)
    }
}

fn decode_limit(decoder: &mut Decoder, most: usize) -> Result<u16, DecodeError> {
    let limit = decoder.u16()?;
    if limit == 0 || usize::from(limit) > most {
        return Err(DecodeError::Invalid {
            field: "limit",
            value: limit.into(),
        });
    }
    Ok(limit)
}

type Change = (TractId, RowVersion, Generation, BlockRange);

fn encode_change(version: u8, encoder: &mut Encoder, (tract, row, generation, range): Change) {
    encoder.tract(tract);
    encoder.u64(row.0);
    encoder.generation(generation);
    if version == PREVIOUS_VERSION {
        // What was settled, which was never said, and that it is to be durable, which it always was.
        encoder.generation(Generation::ZERO);
        encoder.flag(true);
    }
    encoder.range(range);
}

fn decode_change(version: u8, decoder: &mut Decoder) -> Result<Change, DecodeError> {
    let (tract, row) = (decoder.tract()?, RowVersion(decoder.u64()?));
    let generation = decoder.generation()?;
    if version == PREVIOUS_VERSION {
        // Whoever did not ask for it loses nothing by a durable write.
        decoder.generation()?;
        decoder.flag("durable")?;
    }
    Ok((tract, row, generation, decoder.range()?))
}

//! The sealed part of a checkpoint: what only the volume's own engine needs to go on from it.

use crate::{
    codec::{DecodeError, Decoder, Encoder},
    inode::{decode_time, encode_time},
    journal::Sequence,
    record::{decode_request, encode_request},
    state::VolumeCounters,
};
use bytes::Bytes;
use firn_vfs::{CompletedRequest, FileHandle, Timestamp};

const VERSION: u8 = 1;

/// What the engine restarts from, besides the trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPayload {
    pub counters: VolumeCounters,
    /// The volume's block size; fixed when it is formatted.
    pub block_bytes: u32,
    /// The last journal record that this checkpoint contains.
    pub covered: Sequence,
    /// Requests answered lately, with when.
    pub completed: Vec<(Timestamp, CompletedRequest)>,
}

impl CheckpointPayload {
    pub fn encode(&self) -> Bytes {
        let mut out = Encoder::new(VERSION);
        let counters = &self.counters;
        out.u64(counters.next_inode)
            .u64(counters.files)
            .u64(counters.used_bytes)
            .raw(&counters.directory_key);
        out.u32(self.block_bytes)
            .u64(self.covered.0)
            .u32(self.completed.len() as u32);
        for (time, completed) in &self.completed {
            encode_time(&mut out, *time);
            encode_request(&mut out, completed.request);
            out.option(completed.created, |out, handle| {
                out.u64(handle.file_system).u64(handle.inode);
            });
        }
        out.finish()
    }

    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut input = Decoder::new(payload, VERSION, "checkpoint payload")?;
        let counters = VolumeCounters {
            next_inode: input.u64()?,
            files: input.u64()?,
            used_bytes: input.u64()?,
            directory_key: input.array()?,
        };
        let block_bytes = input.u32()?;
        if !block_bytes.is_power_of_two() || !(4096..=1 << 20).contains(&block_bytes) {
            return Err(input.error());
        }
        let covered = Sequence(input.u64()?);
        let count = input.count(29)?;
        let mut completed = Vec::with_capacity(count);
        for _ in 0..count {
            let time = decode_time(&mut input)?;
            let request = decode_request(&mut input)?;
            let created = input.option(|input| {
                Ok(FileHandle {
                    file_system: input.u64()?,
                    inode: input.u64()?,
                })
            })?;
            completed.push((time, CompletedRequest { request, created }));
        }
        input.finish()?;
        Ok(Self {
            counters,
            block_bytes,
            covered,
            completed,
        })
    }
}

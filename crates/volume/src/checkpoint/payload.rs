//! The sealed part of a checkpoint: what only the volume's own engine needs to go on from it.

use super::MemberSection;
use crate::{
    codec::{DecodeError, Decoder, Encoder},
    inode::{decode_time, encode_time},
    journal::Sequence,
    record::{decode_request, encode_request},
    rekey::RekeyState,
    state::VolumeCounters,
};
use bytes::Bytes;
use firn_format::{Uid, Version};
use firn_vfs::{CompletedRequest, FileHandle, Timestamp};

/// Version 3 added the rekey; version 2 the snapshots' names and the history.
pub(crate) const VERSION: u8 = 3;
/// With the sections of members: of a volume that is shared by inode, and of no other.
const BY_INODE_VERSION: u8 = 4;
pub(crate) const OLDEST_VERSION: u8 = 1;

/// Commits remembered, so that a proposal of the cleaner can be told to be of this branch. At the busiest cadence (5 s) that
/// is five minutes, several times what a run of the cleaner takes; each costs a checkpoint 40 bytes.
pub const HISTORY_MAX: usize = 64;

/// What only the engine knows of a snapshot; the rest stands in the plain section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedSnapshot {
    pub id: u64,
    pub name: Bytes,
    pub files: u64,
    pub used_bytes: u64,
}

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
    /// In the order of the plain section.
    pub snapshots: Vec<SealedSnapshot>,
    /// The commits before this one, oldest first.
    pub history: Vec<(Version, Uid)>,
    /// Where rekeying stands.
    pub rekey: RekeyState,
    /// What each member restarts from, in ascending order of their numbers; empty unless the volume is shared by inode.
    pub members: Vec<MemberSection>,
}

impl CheckpointPayload {
    pub fn encode(&self) -> Bytes {
        let mut out = Encoder::new(match self.members.is_empty() {
            true => VERSION,
            false => BY_INODE_VERSION,
        });
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
        out.u32(self.snapshots.len() as u32);
        for snapshot in &self.snapshots {
            out.u64(snapshot.id)
                .bytes(&snapshot.name)
                .u64(snapshot.files)
                .u64(snapshot.used_bytes);
        }
        out.u32(self.history.len() as u32);
        for (version, uid) in &self.history {
            out.u64(version.0).raw(&uid.0);
        }
        self.rekey.encode(&mut out);
        if !self.members.is_empty() {
            MemberSection::encode_all(&self.members, &mut out);
        }
        out.finish()
    }

    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let (mut input, version) =
            Decoder::versions(&payload, OLDEST_VERSION, BY_INODE_VERSION, "checkpoint payload")?;
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
        let completed = decode_completed(&mut input)?;
        let (mut snapshots, mut history) = (Vec::new(), Vec::new());
        if version >= 2 {
            let count = input.count(28)?;
            snapshots.reserve_exact(count);
            for _ in 0..count {
                snapshots.push(SealedSnapshot {
                    id: input.u64()?,
                    // Copied, so that a name does not keep the whole payload alive.
                    name: Bytes::copy_from_slice(&input.bytes()?),
                    files: input.u64()?,
                    used_bytes: input.u64()?,
                });
            }
            let count = input.count(40)?;
            history.reserve_exact(count);
            for _ in 0..count {
                history.push((Version(input.u64()?), Uid(input.array()?)));
            }
        }
        let rekey = if version >= 3 {
            RekeyState::decode(&mut input)?
        } else {
            RekeyState::default()
        };
        let members = match version >= BY_INODE_VERSION {
            true => MemberSection::decode_all(&mut input)?,
            false => Vec::new(),
        };
        input.finish()?;
        Ok(Self {
            counters,
            block_bytes,
            covered,
            completed,
            snapshots,
            history,
            rekey,
            members,
        })
    }
}

pub(super) fn encode_completed(out: &mut Encoder, completed: &[(Timestamp, CompletedRequest)]) {
    out.u32(completed.len() as u32);
    for (time, completed) in completed {
        encode_time(out, *time);
        encode_request(out, completed.request);
        out.option(completed.created, |out, handle| {
            out.u64(handle.file_system).u64(handle.inode);
        });
    }
}

pub(super) fn decode_completed(
    input: &mut Decoder<'_>,
) -> Result<Vec<(Timestamp, CompletedRequest)>, DecodeError> {
    let count = input.count(29)?;
    let mut completed = Vec::with_capacity(count);
    for _ in 0..count {
        let time = decode_time(input)?;
        let request = decode_request(input)?;
        let created = input.option(|input| {
            Ok(FileHandle {
                file_system: input.u64()?,
                inode: input.u64()?,
            })
        })?;
        completed.push((time, CompletedRequest { request, created }));
    }
    Ok(completed)
}

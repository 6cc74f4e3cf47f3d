//! Opening (decryption and authentication) of what replicas returned.

use crate::{
    chunks::{self, Found},
    replicas::ClusterReplicas,
};
use bytes::Bytes;
use firn_blockd_disk::{Copy, Incarnation, ReplicaError, Replicas, Sealed, Unit, Version};
use firn_blockd_protocol::{BlockState, BlockVersion, VersionedBlocks};

impl ClusterReplicas {
    /// A block in place as a replica returned it.
    pub(crate) fn open_block(&self, unit: Unit, found: &VersionedBlocks) -> Copy {
        match found.contents().next() {
            Some((_, version, data)) => self.open_content(unit, version, data),
            None => Copy::Damaged,
        }
    }

    pub(crate) fn open_content(&self, unit: Unit, version: BlockVersion, data: Option<Bytes>) -> Copy {
        let kept = Version {
            incarnation: Incarnation(version.generation.fence.0.into()),
            sequence: version.generation.sequence,
        };
        let sealed = match (version.state, data) {
            (BlockState::Absent, _) => return Copy::Empty,
            (BlockState::Trimmed, _) => Sealed::Tombstone,
            (BlockState::Written(_), Some(data)) => Sealed::Bytes(data),
            (BlockState::Written(_), None) => return Copy::Damaged,
        };
        match self.sealer.open(unit, kept, &sealed) {
            Ok(stored) => Copy::Holds(stored),
            Err(_) => Copy::Damaged,
        }
    }

    /// What stands in some chunks, framed.
    fn open_framed(&self, unit: Unit, length: usize, chunks: &[Found]) -> Copy {
        let opened = chunks::framed_bytes(length, chunks).and_then(|bytes| {
            self.sealer
                .open(unit, Version::default(), &Sealed::Bytes(bytes))
                .ok()
        });
        opened.map_or(Copy::Damaged, Copy::Holds)
    }

    /// The rest of a unit whose first chunk one replica has returned; the others come from the replicas that `copy` counts.
    pub(crate) async fn open_rest(
        &self,
        unit: Unit,
        copy: usize,
        first: Found,
    ) -> Result<Copy, ReplicaError> {
        if first.untouched {
            return Ok(Copy::Empty);
        }
        let Some(length) = chunks::framed_length(&first) else {
            return Ok(Copy::Damaged);
        };
        let mut all = vec![first];
        let mut part = 1;
        while all.iter().map(|found| found.blocks.len()).sum::<usize>() * firn_blockd_protocol::BLOCK_BYTES
            < crate::layout::LENGTH_BYTES + length
        {
            // A length that is nonsense ends with the disk's last tract.
            let chunk = match self.layout.chunk(unit, part) {
                Ok(chunk) if chunk.tract < self.tracts() => chunk,
                Ok(_) | Err(_) => return Ok(Copy::Damaged),
            };
            let mut whole = None;
            for next in 0..self.copies() {
                whole = self.fetch_from(copy + next, chunk).await?;
                if whole.is_some() {
                    break;
                }
            }
            let Some(found) = whole else {
                return Ok(Copy::Damaged);
            };
            all.push(Found::new(&found));
            part += 1;
        }
        Ok(self.open_framed(unit, length, &all))
    }
}

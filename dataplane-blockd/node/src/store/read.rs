//! Reading blocks, verified.
//!
//! A read looks the slots up, reads them without any lock, and verifies what it got. A slot may have been used anew
//! meanwhile, when the block was overwritten and committed; the checksum covers the block's place, so that shows, and the
//! read looks again. If the entry is still the same, the block is damaged.

use super::{Store, StoreError, entry::Entry, index::TractPlace};
use bytes::{Bytes, BytesMut};
use firn_blockd_protocol::{BLOCK_BYTES, BlockRange, BlockVersion, block_checksum};
use std::sync::atomic::Ordering::Relaxed;

/// Looks before a block that changes under every one of them is called damaged.
const ATTEMPTS: usize = 16;

/// What stands in a range of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Of each block.
    pub versions: Vec<BlockVersion>,
    /// The written blocks one behind the other.
    pub data: Bytes,
}

impl Store {
    /// Reads blocks of a tract; all absent if the node does not hold it from this membership in its row.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Disk`].
    pub async fn read(&self, place: TractPlace, range: BlockRange) -> Result<Found, StoreError> {
        let tract = place.tract;
        self.shared
            .counts
            .read_blocks
            .fetch_add(range.count() as u64, Relaxed);
        let mut before: Option<(u16, Entry)> = None;
        for _ in 0..ATTEMPTS {
            let (group, entries) = {
                let state = self.shared.state();
                match state.tracts.get(&tract) {
                    Some(held) if held.place.since == place.since => (
                        state.geometry.group_of(held.frame),
                        range.blocks().map(|block| held.latest(block)).collect::<Vec<_>>(),
                    ),
                    Some(_) | None => (0, vec![Entry::ABSENT; range.count()]),
                }
            };
            let data = self.read_slots(group, &entries).await?;
            let mut blocks = data.chunks_exact(BLOCK_BYTES);
            let wrong = range
                .blocks()
                .zip(&entries)
                .filter(|(_, entry)| entry.slot().is_some())
                .find(|(block, entry)| {
                    blocks
                        .next()
                        .is_none_or(|data| block_checksum(tract, *block, data) != entry.checksum)
                });
            let Some((block, entry)) = wrong else {
                return Ok(Found {
                    versions: entries.iter().map(Entry::version).collect(),
                    data,
                });
            };
            if firn_env::planted!("store.damage_passes") {
                return Ok(Found {
                    versions: entries.iter().map(Entry::version).collect(),
                    data,
                });
            }
            if before == Some((block, *entry)) {
                self.shared.state().damaged.insert((tract, block));
                return Err(StoreError::Damaged { tract, block });
            }
            before = Some((block, *entry));
            self.shared.counts.reread.fetch_add(1, Relaxed);
        }
        let block = before.map_or(range.first(), |(block, _)| block);
        Err(StoreError::Damaged { tract, block })
    }

    /// The content of the written blocks, neighbouring slots in one read; short where the file ends.
    async fn read_slots(&self, group: u32, entries: &[Entry]) -> Result<Bytes, StoreError> {
        let mut runs: Vec<(u32, usize)> = Vec::new();
        for slot in entries.iter().filter_map(Entry::slot) {
            match runs.last_mut() {
                Some((first, count)) if *first as usize + *count == slot as usize => *count += 1,
                Some(_) | None => runs.push((slot, 1)),
            }
        }
        let file = &self.shared.data[group as usize];
        let mut whole = BytesMut::new();
        let only = runs.len() == 1;
        for (slot, count) in runs {
            let length = count * BLOCK_BYTES;
            let bytes = file.read_at(u64::from(slot) * BLOCK_BYTES as u64, length).await?;
            if only {
                return Ok(bytes);
            }
            whole.extend_from_slice(&bytes);
            whole.resize(whole.len() + length - bytes.len(), 0);
        }
        Ok(whole.freeze())
    }
}

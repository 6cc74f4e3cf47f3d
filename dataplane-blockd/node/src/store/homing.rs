//! Homing: blocks that lie in scratch slots move to their homes when scratch runs short.
//!
//! A block whose newest version is durable in a scratch slot has a free home, so scratch can always be emptied. It is done
//! after commits, a few hundred blocks at a time, once less than a quarter of a group's scratch is free; a moved block
//! keeps its generation, and loses against any write that comes meanwhile.

use super::{Content, Put, Store, entry::Entry, index::TractPlace, state::Accept};
use firn_blockd_protocol::BlockRange;
use std::sync::atomic::Ordering::Relaxed;

/// Blocks moved after one commit: 1 MiB, a few milliseconds.
const MOVED_AT_ONCE: usize = 256;

/// Moves blocks home where scratch runs short.
pub(super) async fn relieve(store: &Store) {
    for (place, block, entry) in candidates(store) {
        let Some(range) = BlockRange::new(block, 1) else {
            continue;
        };
        // What is damaged or was overwritten meanwhile stays where it is.
        let Ok(found) = store.read(place, range).await else {
            continue;
        };
        if found.versions != [entry.version()] {
            continue;
        }
        let put = Put {
            block,
            generation: entry.generation,
            content: Content::Data {
                data: found.data,
                checksum: entry.checksum,
            },
        };
        store.shared.env.fault_point("homing.before_move").await;
        let moved = store.put_home(place, put, entry).await;
        store
            .shared
            .counts
            .homed_blocks
            .fetch_add(u64::from(moved), Relaxed);
    }
}

fn candidates(store: &Store) -> Vec<(TractPlace, u16, Entry)> {
    let state = store.shared.state();
    let geometry = state.geometry;
    let short: Vec<u32> = (0..)
        .zip(&state.groups)
        .filter(|(_, group)| group.scratch_free < geometry.scratch_slots() / 4)
        .map(|(number, _)| number)
        .collect();
    if short.is_empty() {
        return Vec::new();
    }
    state
        .tracts
        .values()
        .filter(|tract| short.contains(&geometry.group_of(tract.frame)))
        .flat_map(|tract| {
            tract
                .entries
                .iter()
                .filter(|(block, entry)| {
                    entry
                        .slot()
                        .is_some_and(|slot| slot >= geometry.first_scratch_slot())
                        && !tract.active.contains_key(block)
                        && !tract.committing.contains_key(block)
                })
                .map(|(block, entry)| (tract.place, block, entry))
        })
        .take(MOVED_AT_ONCE)
        .collect()
}

impl Store {
    /// Whether the block was moved. The committer calls this, so it never waits for a commit.
    async fn put_home(&self, place: TractPlace, put: Put, expected: Entry) -> bool {
        let shared = &self.shared;
        let gate = shared
            .state()
            .tracts
            .get(&place.tract)
            .map(|tract| tract.gate.clone());
        // Somebody waits for a commit while it empties the tract: leave it alone.
        let Some(Ok(_gate)) = gate.map(|gate| gate.try_read_owned()) else {
            return false;
        };
        let (slot, group) = {
            let mut state = shared.state();
            let Some(tract) = state.tracts.get(&place.tract) else {
                return false;
            };
            let (frame, current) = (tract.frame, tract.latest(put.block));
            if current != expected || tract.place != place {
                return false;
            }
            let Some(slot) = state.allocate_slot(place.tract, put.block) else {
                return false;
            };
            if slot >= state.geometry.first_scratch_slot() {
                state.free_slot(place.tract, put.block, slot);
                return false;
            }
            (slot, state.geometry.group_of(frame))
        };
        let Content::Data { data, checksum } = put.content else {
            return false;
        };
        let written = shared.data[group as usize]
            .write_at(u64::from(slot) * 4096, vec![data])
            .await;
        let mut state = shared.state();
        if written.is_err() {
            state.free_slot(place.tract, put.block, slot);
            return false;
        }
        let entry = Entry {
            generation: put.generation,
            checksum,
            place: super::entry::Place::Slot(slot),
        };
        state.insert(place.tract, put.block, entry, Accept::Instead(expected))
    }
}

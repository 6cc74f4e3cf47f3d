//! Defragmentation: blocks that lie out of order move to their home slots while the disk is idle.
//!
//! A tract whose blocks lie in order is read at one go. What is overwritten goes to scratch, or to the home of a block that is
//! elsewhere when scratch is used up; nobody has to wait for that to be undone ([`slots`](super::slots)). So it is done while
//! nobody writes, a few hundred blocks at a time, once less than a quarter of a group's scratch is free; a moved block keeps its
//! generation, and loses against any write that comes meanwhile.

use super::{Content, Put, Store, entry::Entry, index::TractPlace, state::Accept};
use firn_blockd_protocol::BlockRange;
use std::sync::atomic::Ordering::Relaxed;

/// Blocks moved in one idle moment: 1 MiB, a few milliseconds.
const MOVED_AT_ONCE: usize = 256;

/// Moves blocks home where scratch is short.
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
        store.shared.env.fault_point("defragmentation.before_move").await;
        let moved = store.put_home(place, put, entry).await;
        store
            .shared
            .counts
            .defragmented_blocks
            .fetch_add(u64::from(moved), Relaxed);
    }
}

fn candidates(store: &Store) -> Vec<(TractPlace, u16, Entry)> {
    let state = store.shared.state();
    let geometry = state.geometry;
    let mut candidates = Vec::new();
    for tract in state.tracts.values() {
        let slots = &state.slots[geometry.group_of(tract.frame) as usize];
        if !slots.is_scratch_short() {
            continue;
        }
        let movable = tract.entries.iter().filter(|(block, entry)| {
            let home = geometry.home_slot(tract.frame, *block);
            entry.slot().is_some_and(|slot| slot != home)
                && slots.is_free(home)
                && !tract.active.contains_key(block)
                && !tract.committing.contains_key(block)
        });
        candidates.extend(movable.map(|(block, entry)| (tract.place, block, entry)));
        if candidates.len() >= MOVED_AT_ONCE {
            break;
        }
    }
    candidates.truncate(MOVED_AT_ONCE);
    candidates
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
            let home = state.home(place.tract, put.block);
            if !state.slots_of(place.tract).take(home) {
                return false;
            }
            (home, state.geometry.group_of(frame))
        };
        let Content::Data { data, checksum } = put.content else {
            return false;
        };
        let written = shared.data[group as usize]
            .write_at(u64::from(slot) * 4096, vec![data])
            .await;
        let mut state = shared.state();
        if written.is_err() {
            state.slots_of(place.tract).give_back(slot);
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

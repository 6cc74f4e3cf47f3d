//! Putting content into the store.

use super::{
    Store, StoreError,
    entry::{Entry, Place},
    index::TractPlace,
    state::{Accept, State},
};
use bytes::Bytes;
use firn_blockd_protocol::{BLOCK_BYTES, Generation, TractId};
use futures::future::{Either, select};
use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

/// How long a put waits for free slots. Commits free them, and whoever waits is the next to get some, so a disk that takes
/// longer is failing, or far too slow for what is asked of it.
const SLOT_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks, when what takes the slots is not yet in a batch.
const SLOT_PAUSE: Duration = Duration::from_millis(1);

/// New content of one block.
#[derive(Clone, Debug)]
pub struct Put {
    /// Which block.
    pub block: u16,
    /// Highest wins.
    pub generation: Generation,
    /// What stands there.
    pub content: Content,
}

/// What a block becomes.
#[derive(Clone, Debug)]
pub enum Content {
    /// A tombstone: reads as zeros.
    Trim,
    /// 4096 bytes and their checksum, which the caller has verified.
    Data {
        /// The bytes.
        data: Bytes,
        /// Their checksum.
        checksum: u32,
    },
}

impl Store {
    /// Shows new content of a tract's blocks, each if its generation is higher than what stands there, and returns the batch
    /// with which it becomes durable. The blocks are in ascending order.
    ///
    /// # Errors
    /// [`StoreError`]; nothing was changed.
    pub async fn put(&self, place: TractPlace, puts: &[Put]) -> Result<u64, StoreError> {
        let accept = if firn_env::planted!("store.last_arrival_wins") {
            Accept::Always
        } else {
            Accept::Newer
        };
        self.put_accepting(place, puts, accept).await
    }

    /// Writes a block's own content again after it was found damaged; `false` if something else stands there by now.
    ///
    /// # Errors
    /// [`StoreError`]; nothing was changed.
    pub async fn repair(&self, place: TractPlace, put: Put) -> Result<bool, StoreError> {
        let Content::Data { checksum, .. } = &put.content else {
            return Ok(false);
        };
        let current = {
            let state = self.shared.state();
            match state.tracts.get(&place.tract) {
                Some(tract) => tract.latest(put.block),
                None => return Ok(false),
            }
        };
        if current.generation != put.generation || current.checksum != *checksum {
            return Ok(false);
        }
        let batch = self
            .put_accepting(place, std::slice::from_ref(&put), Accept::Instead(current))
            .await?;
        self.durable(batch).await;
        Ok(true)
    }

    /// The gate of a tract, held shared; the tract gets a frame if it has none.
    async fn enter(&self, place: TractPlace) -> Result<OwnedRwLockReadGuard<()>, StoreError> {
        loop {
            let gate: Arc<RwLock<()>> = {
                let mut state = self.shared.state();
                if !state.tracts.contains_key(&place.tract) && !state.allocate_tract(place) {
                    return Err(StoreError::Full);
                }
                state.tracts[&place.tract].gate.clone()
            };
            let guard = gate.clone().read_owned().await;
            let state = self.shared.state();
            match state.tracts.get(&place.tract) {
                Some(tract) if !Arc::ptr_eq(&tract.gate, &gate) => {}
                Some(tract) if tract.place.since != place.since => {
                    return Err(StoreError::OtherMembership { tract: place.tract });
                }
                Some(_) => return Ok(guard),
                // Released while we waited: it gets a new frame.
                None => {}
            }
        }
    }

    pub(super) async fn put_accepting(
        &self,
        place: TractPlace,
        puts: &[Put],
        accept: Accept,
    ) -> Result<u64, StoreError> {
        let shared = &self.shared;
        let tract = place.tract;
        if shared.room.is_read_only() {
            return Err(StoreError::ReadOnly);
        }
        shared.counts.written_blocks.fetch_add(puts.len() as u64, Relaxed);
        let _gate = self.enter(place).await?;
        let entries = self.take_slots(tract, puts, accept).await?;
        shared.env.fault_point("store.before_data").await;
        self.write_slots(tract, puts, &entries).await?;
        shared.env.fault_point("store.after_data").await;
        let (batch, crowded, eager) = {
            let mut state = shared.state();
            for (put, entry) in puts.iter().zip(&entries) {
                if let Some(entry) = entry {
                    state.insert(tract, put.block, *entry, accept);
                }
            }
            let crowded = state.active_blocks >= shared.options.pending_blocks;
            (
                state.batch,
                crowded,
                state.active_blocks >= shared.options.commit_blocks,
            )
        };
        if crowded {
            // Whoever waits here has a permit for the disk, which those who read need. A store that is read-only takes no more.
            let (durable, full) = (pin!(self.durable(batch)), pin!(shared.room.read_only()));
            select(durable, full).await;
        } else if eager {
            shared.wanted.notify_one();
        }
        Ok(batch)
    }

    /// Entries for the blocks whose content will be newest, with slots for their data.
    async fn take_slots(
        &self,
        tract: TractId,
        puts: &[Put],
        accept: Accept,
    ) -> Result<Vec<Option<Entry>>, StoreError> {
        let group = {
            let state = self.shared.state();
            state.geometry.group_of(state.tracts[&tract].frame)
        };
        let _permit = self.shared.short_of_slots[group as usize].lock().await;
        let began = self.shared.env.now();
        loop {
            let batch = {
                let mut state = self.shared.state();
                if let Some(entries) = state.place(tract, puts, accept) {
                    return Ok(entries);
                }
                state.batch
            };
            if self.shared.env.now().since(began) >= SLOT_TIMEOUT {
                return Err(StoreError::Busy);
            }
            self.shared.env.fault_point("store.no_slot").await;
            let (durable, full) = (pin!(self.durable(batch)), pin!(self.shared.room.read_only()));
            if let Either::Right(_) = select(durable, full).await {
                return Err(StoreError::ReadOnly);
            }
            self.shared.env.sleep(SLOT_PAUSE).await;
        }
    }

    /// Writes the data, neighbouring slots in one write.
    async fn write_slots(
        &self,
        tract: TractId,
        puts: &[Put],
        entries: &[Option<Entry>],
    ) -> Result<(), StoreError> {
        let group = {
            let state = self.shared.state();
            state.geometry.group_of(state.tracts[&tract].frame)
        };
        let file = &self.shared.data[group as usize];
        let mut runs: Vec<(u32, Vec<Bytes>)> = Vec::new();
        for (put, entry) in puts.iter().zip(entries) {
            let (Some(slot), Content::Data { data, .. }) =
                (entry.and_then(|entry| entry.slot()), &put.content)
            else {
                continue;
            };
            match runs.last_mut() {
                Some((first, parts)) if *first as usize + parts.len() == slot as usize => {
                    parts.push(data.clone())
                }
                Some(_) | None => runs.push((slot, vec![data.clone()])),
            }
        }
        for (slot, parts) in runs {
            let written = file.write_at(u64::from(slot) * BLOCK_BYTES as u64, parts).await;
            self.shared.room.note_put(&written);
            if let Err(error) = written {
                // The files are preallocated: a write that fails says that the disk is failing, or that its file system copies on
                // write and is full.
                let mut state = self.shared.state();
                for entry in entries.iter().flatten() {
                    if let Some(slot) = entry.slot() {
                        state.slots_of(tract).give_back(slot);
                    }
                }
                return Err(error.into());
            }
        }
        Ok(())
    }
}

impl State {
    /// An entry for each block whose content will be newest; nothing, and no slot taken, if the slots are too few.
    fn place(&mut self, tract: TractId, puts: &[Put], accept: Accept) -> Option<Vec<Option<Entry>>> {
        let held = &self.tracts[&tract];
        let welcome: Vec<bool> = puts
            .iter()
            .map(|put| accept != Accept::Newer || put.generation > held.latest(put.block).generation)
            .collect();
        let chosen = puts.iter().zip(&welcome).filter(|(_, welcome)| **welcome);
        let needed = chosen
            .filter(|(put, _)| matches!(put.content, Content::Data { .. }))
            .count();
        if (self.slots_of(tract).free() as usize) < needed {
            return None;
        }
        let mut entry = |put: &Put| {
            let (place, checksum) = match &put.content {
                Content::Trim => (Place::Trimmed, 0),
                Content::Data { checksum, .. } => {
                    let home = self.home(tract, put.block);
                    let slot = self.slots_of(tract).allocate(home);
                    (Place::Slot(slot.expect("they were counted")), *checksum)
                }
            };
            Entry {
                generation: put.generation,
                checksum,
                place,
            }
        };
        let placed = puts.iter().zip(welcome);
        Some(placed.map(|(put, welcome)| welcome.then(|| entry(put))).collect())
    }
}

//! The memory cache: opened objects, the least recently used dropped first (LRU).
//!
//! Blocks and everything else (nodes, inodes, checkpoints) stand in two queues: a scan of one large file must not push out
//! the trees by which all files are found. Others give way only while they take more than half of the memory.
//!
//! An object with children is one copy of several that the cleaner may have made, all with one uid: they differ in where their
//! children are said to be. So it is found only by a pointer to the very place it was read from.

use super::object::Object;
use firn_format::{Kind, Location, Pointer, Uid};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// What an entry costs beside its bytes: the header, the maps.
const ENTRY_BYTES: u64 = 384;
/// In memory, one child pointer.
const CHILD_BYTES: u64 = size_of::<firn_format::Child>() as u64;

struct Entry {
    object: Arc<Object>,
    location: Location,
    used_at: u64,
}

/// One of the two queues.
#[derive(Default)]
struct Queue {
    /// By time of last use. (Point lookups only in the map, so its order does not matter.)
    order: BTreeMap<u64, Uid>,
    bytes: u64,
}

/// The memory cache.
pub(super) struct MemoryCache {
    entries: HashMap<Uid, Entry>,
    blocks: Queue,
    others: Queue,
    uses: u64,
    capacity_bytes: u64,
}

fn cost(object: &Object) -> u64 {
    ENTRY_BYTES
        + object.payload.len() as u64
        + object.header.plain.len() as u64
        + object.header.children.len() as u64 * CHILD_BYTES
}

impl MemoryCache {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self {
            entries: HashMap::new(),
            blocks: Queue::default(),
            others: Queue::default(),
            uses: 0,
            capacity_bytes,
        }
    }

    fn queue(&mut self, kind: Kind) -> &mut Queue {
        match kind {
            Kind::Block => &mut self.blocks,
            Kind::Node | Kind::Inode | Kind::Checkpoint => &mut self.others,
        }
    }

    pub(super) fn get(&mut self, pointer: &Pointer) -> Option<Arc<Object>> {
        self.uses += 1;
        let now = self.uses;
        let uid = &pointer.uid;
        let entry = self.entries.get_mut(uid)?;
        if !entry.object.header.children.is_empty() && entry.location != pointer.location {
            return None;
        }
        let before = std::mem::replace(&mut entry.used_at, now);
        let object = entry.object.clone();
        let queue = self.queue(object.header.kind);
        queue.order.remove(&before);
        queue.order.insert(now, *uid);
        Some(object)
    }

    /// Whichever copy of the object there is.
    pub(super) fn get_copy(&self, uid: &Uid) -> Option<Arc<Object>> {
        self.entries.get(uid).map(|entry| entry.object.clone())
    }

    pub(super) fn insert(&mut self, pointer: &Pointer, object: Arc<Object>) {
        let (uid, location) = (pointer.uid, pointer.location);
        let bytes = cost(&object);
        if bytes > self.capacity_bytes {
            return;
        }
        self.remove(&uid);
        self.uses += 1;
        let used_at = self.uses;
        let queue = self.queue(object.header.kind);
        queue.order.insert(used_at, uid);
        queue.bytes += bytes;
        self.entries.insert(
            uid,
            Entry {
                object,
                location,
                used_at,
            },
        );
        while self.bytes() > self.capacity_bytes {
            let spare_others = self.others.bytes <= self.capacity_bytes / 2 || self.others.order.is_empty();
            let victims = if spare_others && !self.blocks.order.is_empty() {
                &self.blocks
            } else {
                &self.others
            };
            let Some(victim) = victims.order.first_key_value().map(|(_, uid)| *uid) else {
                break;
            };
            self.remove(&victim);
        }
    }

    fn remove(&mut self, uid: &Uid) {
        if let Some(entry) = self.entries.remove(uid) {
            let bytes = cost(&entry.object);
            let queue = self.queue(entry.object.header.kind);
            queue.order.remove(&entry.used_at);
            queue.bytes -= bytes;
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.capacity_bytes);
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    pub(super) fn bytes(&self) -> u64 {
        self.blocks.bytes + self.others.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

//! Packs objects into segments as an engine does, with random bytes where ciphertext would be.

use super::world::{Dice, FAMILY};
use bytes::Bytes;
use firn_format::{
    Child, Codec, EncodedObject, Features, KeyEpoch, Kind, ObjectHeader, Place, Pointer, SealHeader,
    SegmentBuilder, SegmentId, Version, WriterId, encode_object,
};
use firn_store::{MemoryStore, ObjectKey, PutMode, Store};
use std::{collections::BTreeMap, sync::Arc};

pub struct Packer {
    dice: Arc<Dice>,
    pub writer: WriterId,
    pub next_sequence: u64,
    segment_bytes: usize,
    open: Option<SegmentBuilder>,
    /// Finished and not put yet.
    pub full: Vec<(ObjectKey, Vec<Bytes>)>,
    /// All nodes, inodes and checkpoints ever packed or read: the engine's memory.
    pub nodes: BTreeMap<firn_format::Uid, EncodedObject>,
}

impl Packer {
    pub fn new(dice: &Arc<Dice>, writer: WriterId, segment_bytes: usize) -> Self {
        Self {
            dice: dice.clone(),
            writer,
            next_sequence: 0,
            segment_bytes,
            open: None,
            full: Vec::new(),
            nodes: BTreeMap::new(),
        }
    }

    pub fn pack(
        &mut self,
        kind: Kind,
        place: Place,
        birth: Version,
        plain: Bytes,
        children: Vec<Child>,
        payload_bytes: usize,
    ) -> Pointer {
        let mut payload = vec![0; payload_bytes];
        firn_env::Random::fill(&*self.dice, &mut payload);
        let mut salt = [0; 32];
        firn_env::Random::fill(&*self.dice, &mut salt);
        let header = ObjectHeader {
            kind,
            features: Features::NONE,
            place,
            birth,
            seal: SealHeader {
                key_epoch: KeyEpoch(1),
                salt,
                slot: 0,
                codec: Codec::Raw,
                opened_bytes: 0,
            },
            plain,
            children,
        };
        self.push(encode_object(header, &payload))
    }

    /// Packs an object that exists already: the same uid at another place.
    pub fn push(&mut self, object: EncodedObject) -> Pointer {
        if self
            .open
            .as_ref()
            .is_some_and(|open| open.bytes_used() + object.bytes.len() > self.segment_bytes)
        {
            self.close();
        }
        let (writer, next) = (self.writer, &mut self.next_sequence);
        let open = self.open.get_or_insert_with(|| {
            let id = SegmentId {
                writer,
                sequence: *next,
            };
            *next += 1;
            SegmentBuilder::new(FAMILY, id)
        });
        let location = open.push(&object);
        let uid = object.uid;
        if object.header.kind != Kind::Block {
            self.nodes.insert(uid, object);
        }
        Pointer { uid, location }
    }

    pub fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let key = ObjectKey::new(&open.id().key(&FAMILY));
            self.full.push((key, open.finish()));
        }
    }

    /// Puts what is finished; answers the names.
    pub async fn upload(&mut self, store: &MemoryStore) -> Vec<ObjectKey> {
        self.close();
        let mut keys = Vec::new();
        for (key, parts) in self.full.drain(..) {
            store.put(&key, parts, PutMode::Create).await.unwrap();
            keys.push(key);
        }
        keys
    }
}

//! A family with two stores and a mirror, in virtual time.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod held;

use bytes::Bytes;
use firn_anchor::{Anchor, RetiredSegment, Retirement, RetirementOutcome, WriterTenure};
use firn_env::{Env, sim::Simulation};
use firn_format::{
    Codec, FamilyId, Features, ForwardingEntry, ForwardingRecord, KeyEpoch, Kind, Location, ObjectHeader,
    Place, SealHeader, SegmentBuilder, SegmentId, Version, WriterId, encode_object,
};
use firn_mirror::{Comparison, Grouping, Mirror, MirrorOptions, NoLocalCopies, Noting, Parity, Queue};
use firn_store::{MemoryStore, ObjectKey, PutMode, Store};
use firn_table::MemoryTable;
use std::{future::Future, sync::Arc, time::Duration};

pub const FAMILY: FamilyId = FamilyId([0xfa; 16]);
pub const HOUR: Duration = Duration::from_secs(3600);
/// How long the second store keeps what was deleted from the first.
pub const KEEP: Duration = Duration::from_secs(48 * 3600);

pub struct World {
    pub env: Env,
    pub first: Arc<MemoryStore>,
    pub second: Arc<MemoryStore>,
    pub anchor: Anchor,
    /// The first store as who writes has it.
    pub noting: Noting,
    pub mirror: Mirror,
}

impl World {
    pub async fn new(env: &Env) -> Self {
        Self::with(env, |second| second).await
    }

    pub async fn with(env: &Env, layer: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>) -> Self {
        Self::of((env, env), layer).await
    }

    /// A mirror on one machine, whose stores have the clock of another.
    pub async fn of(
        (env, of_stores): (&Env, &Env),
        layer: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>,
    ) -> Self {
        let (first, second) = (
            Arc::new(MemoryStore::new(of_stores)),
            Arc::new(MemoryStore::new(of_stores)),
        );
        let anchor = Anchor::new(MemoryTable::new().connect(env), env.clone(), FAMILY);
        anchor.create_family().await.unwrap();
        let queue: Arc<Queue> = Arc::default();
        let options = MirrorOptions {
            keep_deleted: KEEP,
            compare_every: HOUR,
        };
        let stores = (first.clone() as Arc<dyn Store>, layer(second.clone()));
        Self {
            noting: Noting::new(env, first.clone(), queue.clone()),
            mirror: Mirror::new(env, stores, anchor.clone(), queue, options),
            env: env.clone(),
            first,
            second,
            anchor,
        }
    }

    pub async fn put(&self, sequence: u64) -> ObjectKey {
        let key = name(sequence);
        self.noting
            .put(&key, segment(FAMILY, sequence), PutMode::Create)
            .await
            .unwrap();
        key
    }

    /// Puts a segment with an object of so many bytes.
    pub async fn put_of(&self, sequence: u64, bytes: usize) {
        let segment = segment_of(FAMILY, sequence, bytes);
        let key = name(sequence);
        let put = self.noting.put(&key, segment, PutMode::Create);
        put.await.unwrap();
    }

    /// The same with parity groups of what is older than `after`.
    pub fn grouped(self, after: Duration, layer: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>) -> Self {
        let grouping = Grouping { after, copies: None };
        self.kept(grouping, layer)
    }

    /// The same with parity groups as they are wanted, kept by a process that knows nothing yet.
    pub fn kept(mut self, grouping: Grouping, layer: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>) -> Self {
        let stores = (self.first.clone() as Arc<dyn Store>, layer(self.second.clone()));
        let options = MirrorOptions {
            keep_deleted: KEEP,
            compare_every: HOUR,
        };
        let parity = Parity::new(&self.env, stores.clone(), FAMILY);
        let mirror = Mirror::new(&self.env, stores, self.anchor.clone(), Arc::default(), options);
        self.mirror = mirror.with_parity(parity, Some(grouping));
        self
    }

    /// The same for another machine that knows nothing yet.
    pub fn another(&self) -> Self {
        let options = MirrorOptions {
            keep_deleted: KEEP,
            compare_every: HOUR,
        };
        let queue: Arc<Queue> = Arc::default();
        let stores = (
            self.first.clone() as Arc<dyn Store>,
            self.second.clone() as Arc<dyn Store>,
        );
        Self {
            env: self.env.clone(),
            first: self.first.clone(),
            second: self.second.clone(),
            anchor: self.anchor.clone(),
            noting: Noting::new(&self.env, self.first.clone(), queue.clone()),
            mirror: Mirror::new(&self.env, stores, self.anchor.clone(), queue, options),
        }
    }

    pub async fn compare(&self) -> Comparison {
        self.mirror.compare(&NoLocalCopies).await.unwrap()
    }

    pub async fn has(&self, key: &ObjectKey) -> bool {
        self.second.head(key).await.is_ok()
    }

    /// Retires a segment as a cleaner does, with a record if something was moved out of it.
    pub async fn retire(&self, sequence: u64, moved: bool) -> WriterId {
        let seen = self.anchor.cleaner_round().await.unwrap();
        let mover = self.anchor.next_writer_for(WriterTenure::Cleaner).await.unwrap();
        let (_, registered) = self.anchor.writer(mover).await.unwrap().unwrap();
        let retired_at_ms = self.env.wall().as_millis();
        if moved {
            let record = ForwardingRecord {
                family: FAMILY,
                old: id(sequence),
                mover,
                retired_at_ms,
                entries: vec![ForwardingEntry {
                    offset: 64,
                    new: Location {
                        segment: SegmentId {
                            writer: mover,
                            sequence: 0,
                        },
                        offset: 64,
                        length: 100,
                    },
                }],
            };
            let key = ObjectKey::new(&ForwardingRecord::key(&FAMILY, record.old, mover));
            self.noting
                .put(&key, vec![record.encode()], PutMode::Create)
                .await
                .unwrap();
        }
        let retired = RetiredSegment {
            mover,
            retired_at_ms,
            segment_bytes: 1000,
            moved_objects: u32::from(moved),
            keep_for_ever: true,
            covers: Vec::new(),
        };
        let retirement = Retirement {
            seen,
            mover: (mover, registered),
            segments: vec![(id(sequence), retired)],
            proposals: Vec::new(),
            written: None,
        };
        let outcome = self.anchor.retire(retirement).await.unwrap();
        assert_eq!(outcome, RetirementOutcome::Done);
        mover
    }
}

pub fn id(sequence: u64) -> SegmentId {
    SegmentId {
        writer: WriterId(1),
        sequence,
    }
}

pub fn name(sequence: u64) -> ObjectKey {
    ObjectKey::new(&id(sequence).key(&FAMILY))
}

/// A segment with one object.
pub fn segment(family: FamilyId, sequence: u64) -> Vec<Bytes> {
    segment_of(family, sequence, 300)
}

/// A segment with one object of so many bytes.
pub fn segment_of(family: FamilyId, sequence: u64, bytes: usize) -> Vec<Bytes> {
    let header = ObjectHeader {
        kind: Kind::Block,
        features: Features::NONE,
        place: Place {
            inode: 9,
            level: 0,
            index: sequence,
        },
        birth: Version(1),
        seal: SealHeader {
            key_epoch: KeyEpoch(1),
            salt: [1; 32],
            slot: 0,
            codec: Codec::Raw,
            opened_bytes: 0,
        },
        plain: Bytes::new(),
        children: Vec::new(),
    };
    let mut builder = SegmentBuilder::new(family, id(sequence));
    builder.push(&encode_object(header, &vec![sequence as u8; bytes]));
    builder.finish()
}

pub fn simulate<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    scenario: impl FnOnce(Env) -> F,
) -> T {
    let simulation = Simulation::new(3);
    let env = simulation.env();
    simulation.run(scenario(env)).expect("it ends")
}

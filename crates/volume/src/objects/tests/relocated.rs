//! Relocated objects that are cached from before: not fetched again, and verified as ever.

use super::{Bench, FAMILY, content, key, keys, place, segment_id};
use crate::objects::{FetchPolicy, Objects, ObjectsConfig, Relocation};
use bytes::Bytes;
use firn_format::{
    Child, ForwardingEntry, ForwardingRecord, Kind, Location, Place, Pointer, SegmentBuilder, SegmentId,
    Version, WriterId, decode_object, relocate_children,
};
use firn_seal::{Compression, ObjectSealer};
use firn_store::{ObjectKey, PutMode, Store};
use std::collections::BTreeSet;

const MOVER: WriterId = WriterId(9);
const BLOCK_BYTES: usize = 30_000;
const NODE: Place = Place {
    inode: 20,
    level: 1,
    index: 0,
};

/// Four blocks in a segment, the node above them in another, and copies of all in a third, with records of where they went.
struct Moved {
    bench: Bench,
    node: Pointer,
    new_node: Pointer,
    new_blocks: Vec<Pointer>,
    records: Vec<ForwardingRecord>,
}

/// What follows is of the node's segment.
const NODE_SEGMENT: u64 = 7;

async fn moved() -> Moved {
    let bench = Bench::new(1, &[BLOCK_BYTES; 4]).await;
    let children: Vec<Child> = (0..)
        .zip(&bench.pointers)
        .map(|(slot, pointer)| Child {
            slot,
            pointer: *pointer,
        })
        .collect();
    let id = segment_id(NODE_SEGMENT);
    let sealer = ObjectSealer::new(&keys(), [7; 32], &id);
    let encoded = sealer
        .seal(
            sealer.reserve_slot(),
            Kind::Node,
            NODE,
            Version(1),
            Bytes::new(),
            children,
            &[],
            Compression::Lz4,
        )
        .expect("sealed");
    let mut builder = SegmentBuilder::new(FAMILY, id);
    let node = Pointer {
        location: builder.push(&encoded),
        uid: encoded.uid,
    };
    put(&bench, &key(NODE_SEGMENT), builder.finish()).await;

    let mut cleaner = SegmentBuilder::new(
        FAMILY,
        SegmentId {
            writer: MOVER,
            sequence: 0,
        },
    );
    let mut new_blocks: Vec<Pointer> = Vec::new();
    for pointer in &bench.pointers {
        let location = copy(&bench, &mut cleaner, pointer, &[]).await;
        new_blocks.push(Pointer { location, ..*pointer });
    }
    let location = copy(&bench, &mut cleaner, &node, &new_blocks).await;
    let new_node = Pointer { location, ..node };
    let parts = cleaner.finish();
    let mover = SegmentId {
        writer: MOVER,
        sequence: 0,
    };
    put(&bench, &ObjectKey::new(&mover.key(&FAMILY)), parts).await;
    let record = |old: SegmentId, moves: Vec<(Location, Location)>| ForwardingRecord {
        family: FAMILY,
        old,
        mover: MOVER,
        retired_at_ms: 0,
        entries: moves
            .into_iter()
            .map(|(old, new)| ForwardingEntry {
                offset: old.offset,
                new,
            })
            .collect(),
    };
    let of_blocks = bench.pointers.iter().zip(&new_blocks);
    let records = vec![
        record(
            segment_id(0),
            of_blocks.map(|(old, new)| (old.location, new.location)).collect(),
        ),
        record(id, vec![(node.location, new_node.location)]),
    ];
    for record in &records {
        let key = ForwardingRecord::key(&FAMILY, record.old, MOVER);
        put(&bench, &ObjectKey::new(&key), vec![record.encode()]).await;
    }
    Moved {
        bench,
        node,
        new_node,
        new_blocks,
        records,
    }
}

async fn put(bench: &Bench, key: &ObjectKey, parts: Vec<Bytes>) {
    bench
        .lying
        .put(key, parts, PutMode::Create)
        .await
        .expect("stored");
}

/// As a cleaner copies: the same object, its children at `children`.
async fn copy(bench: &Bench, to: &mut SegmentBuilder, pointer: &Pointer, children: &[Pointer]) -> Location {
    let at = pointer.location;
    let segment = ObjectKey::new(&at.segment.key(&FAMILY));
    let (offset, length) = (u64::from(at.offset), u64::from(at.length));
    let bytes = bench.lying.get_range(&segment, offset, length).await;
    let object = decode_object(bytes.expect("it is there"))
        .expect("an object")
        .verify(&pointer.uid, None)
        .expect("the right one")
        .into_encoded();
    to.push(&relocate_children(&object, |child| {
        children[usize::from(child.slot)].location
    }))
}

impl Moved {
    /// Everything was read before it was moved; of memory there is so much.
    async fn warm(&self, memory_cache_bytes: u64) -> Objects {
        let config = ObjectsConfig {
            memory_cache_bytes,
            fetch: FetchPolicy::Exact,
            ..ObjectsConfig::default()
        };
        let objects = self.bench.objects_with(config).await;
        objects.get(&self.node, NODE).await.expect("readable");
        for index in 0..4 {
            self.bench.read(&objects, index).await.expect("readable");
        }
        self.bench.settle(&objects).await;
        objects.drop_windows();
        objects
    }

    fn relocation(&self, records: Vec<ForwardingRecord>) -> Relocation {
        Relocation {
            mover: MOVER,
            retired: BTreeSet::from([segment_id(0), segment_id(NODE_SEGMENT)]),
            records,
        }
    }

    async fn read_all(&self, objects: &Objects) {
        let node = objects.get(&self.new_node, NODE).await.expect("readable");
        let leads_to: Vec<Pointer> = node.header.children.iter().map(|child| child.pointer).collect();
        assert_eq!(leads_to, self.new_blocks, "the cleaner's places");
        for (index, pointer) in (0..).zip(&leads_to) {
            let block = objects.get(pointer, place(index)).await.expect("readable");
            assert_eq!(block.payload, content(index, BLOCK_BYTES));
        }
    }
}

#[tokio::test]
async fn what_is_cached_from_before_it_was_moved_is_not_fetched_again() {
    for memory_cache_bytes in [0, 1 << 20] {
        let moved = moved().await;
        let objects = moved.warm(memory_cache_bytes).await;
        objects.note_relocation(moved.relocation(moved.records.clone()));
        let gets = moved.bench.gets();
        moved.read_all(&objects).await;
        assert_eq!(moved.bench.gets(), gets, "{memory_cache_bytes}");
        assert!(objects.statistics().relocated_hits > 0);
    }
}

#[tokio::test]
async fn a_record_that_the_merge_did_not_need_is_fetched_in_place_of_the_node() {
    let moved = moved().await;
    let objects = moved.warm(1 << 20).await;
    objects.note_relocation(moved.relocation(Vec::new()));
    let before = moved.bench.usage();
    moved.read_all(&objects).await;
    let used = moved.bench.usage().since(&before);
    assert_eq!((used.gets, used.ranged_gets), (1, 0));
}

#[tokio::test]
async fn what_was_not_had_before_is_fetched_from_where_it_is() {
    let moved = moved().await;
    let objects = moved.bench.objects(FetchPolicy::Exact).await;
    objects.note_relocation(moved.relocation(moved.records.clone()));
    moved.read_all(&objects).await;
    assert_eq!(objects.statistics().relocated_hits, 0);
    assert_eq!(moved.bench.usage().ranged_gets, 5);
}

#[tokio::test]
async fn a_record_that_names_the_wrong_block_gets_nothing_wrong_served() {
    let moved = moved().await;
    let objects = moved.warm(0).await;
    let mut records = moved.records.clone();
    let wrong = records[0].entries[1].new;
    records[0].entries[1].new = records[0].entries[2].new;
    records[0].entries[2].new = wrong;
    objects.note_relocation(moved.relocation(records));
    for (index, pointer) in (0..).zip(&moved.new_blocks) {
        let block = objects.get(pointer, place(index)).await.expect("readable");
        assert_eq!(block.payload, content(index, BLOCK_BYTES));
    }
    assert_eq!(
        objects.statistics().relocated_hits,
        2,
        "the other two were fetched"
    );
}

#[tokio::test]
async fn a_record_that_leads_in_circles_is_not_followed_for_ever() {
    let moved = moved().await;
    let objects = moved.warm(1 << 20).await;
    let mut records = moved.records.clone();
    let old = moved.bench.pointers[0].location;
    records[0].entries[0].new = old;
    objects.note_relocation(moved.relocation(records));
    moved.read_all(&objects).await;
}

//! The usage map against a count of everything that the head's trees lead to, by a reader without keys; and what it is worth to
//! the cleaner.

use crate::{
    files::{create, look, name, write},
    world::{World, config, root},
};
use firn_cleaner::{Cleaner, Limits, Report};
use firn_env::sim::{Seeded, Simulation};
use firn_format::{
    Checkpoint, INODE_MAP, ORPHAN_MAP, Place, Pointer, SegmentId, TreeRoot, USAGE_MAP, UsageLeaf,
    VerifiedObject, WriterId, checkpoint_place, decode_object,
};
use firn_store::{ObjectKey, Store};
use firn_vfs::{FileHandle, SetAttributes, Vfs};
use firn_volume::{Parts, Volume};
use futures::{FutureExt, future::BoxFuture};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Live bytes of each segment.
pub type Live = BTreeMap<SegmentId, u64>;

/// What a volume's head says of its segments, and what a walk of its trees finds.
#[derive(Debug, Default)]
pub struct Counted {
    pub told: Live,
    pub found: Live,
}

impl Counted {
    /// Walks the committed head.
    pub async fn of(parts: &Parts) -> Self {
        let (tuple, _) = parts.anchor.load(parts.volume).await.expect("loaded");
        let root = tuple.root.expect("a root");
        let mut walk = Walk {
            store: parts.store.clone(),
            parts: parts.clone(),
            counted: Self::default(),
        };
        let pointer = Pointer {
            uid: root.uid,
            location: root.location,
        };
        let head = walk.read(pointer, checkpoint_place(root.version)).await;
        let head = Checkpoint::from_verified(&head).expect("a checkpoint");
        for (inode, tree) in [
            (INODE_MAP, head.inode_map),
            (ORPHAN_MAP, head.orphans),
            (USAGE_MAP, head.usage),
        ] {
            if let Some(tree) = tree {
                walk.tree(inode, tree).await;
            }
        }
        walk.counted
    }

    /// By how many bytes the map says too much and too little.
    pub fn errors(&self) -> (u64, u64) {
        let (mut above, mut below) = (0, 0);
        for segment in self
            .told
            .keys()
            .chain(self.found.keys().filter(|one| !self.told.contains_key(one)))
        {
            let told = self.told.get(segment).copied().unwrap_or(0);
            let found = self.found.get(segment).copied().unwrap_or(0);
            above += told.saturating_sub(found);
            below += found.saturating_sub(told);
        }
        (above, below)
    }
}

struct Walk {
    store: Arc<dyn Store>,
    parts: Parts,
    counted: Counted,
}

impl Walk {
    async fn read(&self, pointer: Pointer, place: Place) -> VerifiedObject {
        let mut location = pointer.location;
        for _ in 0..8 {
            let key = ObjectKey::new(&location.segment.key(&self.parts.anchor.family()));
            let (offset, length) = (u64::from(location.offset), u64::from(location.length));
            if let Ok(bytes) = self.store.get_range(&key, offset, length).await {
                let fetched = decode_object(bytes).expect("an object");
                return fetched.verify(&pointer.uid, Some(place)).expect("the right one");
            }
            location = forwarded(&self.parts, location.segment, location.offset).await;
        }
        panic!("{pointer:?} is nowhere");
    }

    fn tree(&mut self, inode: u64, root: TreeRoot) -> BoxFuture<'_, ()> {
        let place = Place {
            inode,
            level: root.level,
            index: 0,
        };
        self.at(place, root.pointer)
    }

    fn at(&mut self, place: Place, pointer: Pointer) -> BoxFuture<'_, ()> {
        async move {
            if UsageLeaf::counts(place) {
                let bytes = u64::from(pointer.location.length);
                *self.counted.found.entry(pointer.location.segment).or_default() += bytes;
            }
            let is_block = place.level == 0 && place.inode >= 16;
            if is_block {
                return;
            }
            let object = self.read(pointer, place).await;
            if place.level == 0 && place.inode == USAGE_MAP {
                let leaf = UsageLeaf::from_verified(&object).expect("a leaf");
                for (slot, live) in leaf.live_bytes.iter().enumerate().filter(|(_, live)| **live > 0) {
                    let segment = SegmentId {
                        writer: WriterId(place.index >> 25),
                        sequence: (place.index & ((1 << 25) - 1)) << 7 | slot as u64,
                    };
                    self.counted.told.insert(segment, u64::from(*live));
                }
            } else if place.level == 0 {
                if let Some(map) = object.header.children.first() {
                    let level = object.header.plain[0];
                    let pointer = map.pointer;
                    self.tree(place.index, TreeRoot { pointer, level }).await;
                }
            } else {
                for child in &object.header.children {
                    let below = Place {
                        inode: place.inode,
                        level: place.level - 1,
                        index: place.index << 7 | u64::from(child.slot),
                    };
                    self.at(below, child.pointer).await;
                }
            }
        }
        .boxed()
    }
}

async fn forwarded(parts: &Parts, segment: SegmentId, offset: u32) -> firn_format::Location {
    let family = parts.anchor.family();
    let prefix = format!(
        "{family}/forward/{:016x}/{:016x}/",
        segment.writer.0, segment.sequence
    );
    let page = parts.store.list(&prefix, None).await.expect("listed");
    for found in page.objects {
        let bytes = parts.store.get(&found.key).await.expect("a record");
        let record = firn_format::ForwardingRecord::decode(&bytes).expect("a record");
        if let Some(entry) = record.entries.iter().find(|entry| entry.offset == offset) {
            return entry.new;
        }
    }
    panic!("no record leads on from {segment}, {offset}");
}

/// Commits until the nodes of dropped maps are read, and returns the errors of the map then.
pub async fn settled(parts: &Parts, volume: &Volume) -> (u64, u64) {
    let mut errors = (0, 0);
    for round in 0..20 {
        let name = name(&format!("settle{round}"));
        // It may be there: a history may settle more than once.
        let made = volume
            .make_directory(&root(), volume.root(), &name, SetAttributes::default())
            .await;
        if made.is_ok() {
            volume
                .remove_directory(&root(), volume.root(), &name)
                .await
                .expect("removed");
        }
        volume.sync().await.expect("a healthy store takes it");
        errors = Counted::of(parts).await.errors();
        if errors == (0, 0) {
            break;
        }
    }
    errors
}

async fn overwrite(volume: &Volume, file: FileHandle, offset: u64, bytes: usize, seed: u64) {
    let mut data = vec![0; bytes];
    Seeded::new(seed, 3).fill(&mut data);
    write(volume, file, offset, data).await;
}

const FILE_BYTES: u64 = 8 << 20;
const WRITE_BYTES: usize = 64 << 10;

/// A file of 8 MiB of which 2 MiB were overwritten at random, and another that nobody touched; committed.
async fn scattered(volume: &Volume) {
    for name in ["cold", "hot"] {
        let handle = create(volume, volume.root(), name).await;
        for at in 0..FILE_BYTES / (1 << 20) {
            overwrite(volume, handle, at << 20, 1 << 20, at).await;
        }
        volume.sync().await.expect("synced");
    }
    let mut random = Seeded::new(7, 7);
    let hot = look(volume, &["hot"]).await.expect("it is there");
    for round in 0..32 {
        // The beginning of the file, so that its segments have much garbage and those of its end none.
        let offset = random.below((2 << 20) / WRITE_BYTES as u64) * WRITE_BYTES as u64;
        overwrite(volume, hot, offset, WRITE_BYTES, round).await;
    }
    volume.sync().await.expect("synced");
}

fn limits() -> Limits {
    Limits {
        grace: Duration::from_secs(1),
        segment_bytes: 256 << 10,
        audited_segments: 0,
        ..Limits::default()
    }
}

fn cleaned(with: Limits) -> Report {
    let simulation = Simulation::new(3);
    let world = World::new(&simulation);
    let (opening, parts) = (world.format_and_open(), world.own_parts());
    simulation
        .run(async move {
            let volume = opening.await;
            scattered(&volume).await;
            let mut cleaner = Cleaner::new(&parts.env, parts.store.clone(), &parts.anchor, with);
            cleaner.run().await.expect("a run")
        })
        .expect("the run ends")
}

#[test]
fn with_the_map_the_cleaner_reads_what_has_garbage_and_nothing_else() {
    let told = cleaned(limits());
    // Who looks at every segment whatever the map says has no use for it.
    let blind = cleaned(Limits {
        audited_segments: usize::MAX,
        ..limits()
    });
    println!(
        "with the map: {} of {} segments looked at, {} objects, {} requests; without: {}, {}, {}",
        told.judged_segments,
        told.listed_segments,
        told.judged_objects,
        told.usage.requests(),
        blind.judged_segments,
        blind.judged_objects,
        blind.usage.requests()
    );
    assert_eq!(
        (told.retired_segments, told.retired_bytes),
        (blind.retired_segments, blind.retired_bytes),
        "both find the same garbage"
    );
    assert!(told.retired_segments > 3);
    assert_eq!(
        told.judged_segments, told.retired_segments,
        "nothing was looked at in vain"
    );
    assert!(blind.judged_segments > 3 * told.judged_segments);
    assert!(blind.usage.requests() > told.usage.requests() + told.listed_segments / 2);
}

#[test]
fn figures_stay_right_while_the_cleaner_moves_what_they_count() {
    let simulation = Simulation::new(4);
    let mut world = World::new(&simulation);
    let (opening, parts) = (world.format_and_open(), world.own_parts());
    let moved_bytes = simulation
        .run(async move {
            let volume = opening.await;
            scattered(&volume).await;
            assert_eq!(settled(&parts, &volume).await, (0, 0), "before anything is moved");
            let mut cleaner = Cleaner::new(&parts.env, parts.store.clone(), &parts.anchor, limits());
            let mut moved_bytes = 0;
            for round in 0..6 {
                let report = cleaner.run().await.expect("a run");
                moved_bytes += report.moved_data_bytes;
                parts.env.sleep(Duration::from_secs(61)).await;
                let hot = look(&volume, &["hot"]).await.expect("it is there");
                for at in 0..8 {
                    let offset = (round * 8 + at) * 3 * WRITE_BYTES as u64;
                    overwrite(&volume, hot, offset % (FILE_BYTES - (1 << 20)), WRITE_BYTES, at).await;
                }
                volume.sync().await.expect("synced");
            }
            assert!(
                volume.status().merging.merged > 2,
                "{:?}",
                volume.status().merging
            );
            volume.stop().await.expect("stopped");
            moved_bytes
        })
        .expect("the run ends");
    let (parts, volume) = (world.own_parts(), world.power_cut(&simulation));
    let (above, below) = simulation
        .run(async move { settled(&parts, &volume).await })
        .expect("the run ends");
    println!("{moved_bytes} bytes moved; the map says {above} too many and {below} too few");
    // A node that both sides rewrote is taken off twice. Nothing hides.
    assert!(above == 0 && below < moved_bytes / 50, "{above}, {below}");
}

#[test]
fn a_removed_file_is_taken_off_its_segments_although_nobody_reads_its_map() {
    let simulation = Simulation::new(5);
    let world = World::new(&simulation);
    let (opening, parts) = (world.format_and_open(), world.own_parts());
    simulation
        .run(async move {
            let volume = opening.await;
            let handle = create(&volume, volume.root(), "large").await;
            for at in 0..FILE_BYTES / (1 << 20) {
                overwrite(&volume, handle, at << 20, 1 << 20, at).await;
            }
            volume.sync().await.expect("synced");
            volume.drop_caches().await;
            volume
                .remove(&root(), volume.root(), &name("large"))
                .await
                .expect("removed");
            assert_eq!(settled(&parts, &volume).await, (0, 0));
            let counted = Counted::of(&parts).await;
            let live: u64 = counted.told.values().sum();
            assert!(live < 20_000, "{live} bytes are left of an empty volume");
        })
        .expect("the run ends");
    assert!(config().segment_bytes < 1 << 20, "the file lay in many segments");
}

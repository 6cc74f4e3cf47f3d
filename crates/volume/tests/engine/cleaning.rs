//! Living with a cleaner: following what it moved, taking it over, and believing nothing that it says.
//!
//! The cleaner here moves everything that any root needs into one new segment and deletes the rest: the hardest case for the
//! engine, and the shortest to write. It holds no keys.

use crate::world::{World, root};
use bytes::Bytes;
use firn_anchor::{Anchor, Proposal, Root, WriterTenure};
use firn_env::{mutants::planting, sim::Simulation};
use firn_format::{
    FamilyId, ForwardingEntry, ForwardingRecord, Kind, Location, Pointer, SegmentBuilder, SegmentId,
    decode_object, relocate_children,
};
use firn_store::{ObjectKey, PutMode, Store};
use firn_vfs::{Compare, CreateMode, MemoryVfs, Name, SetAttributes, Stability, Vfs, compare_trees};
use firn_volume::{Parts, Volume};
use futures::{FutureExt, future::BoxFuture};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// What the cleaner does beside its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mischief {
    None,
    /// Proposes a copy of another branch's head.
    WrongBase,
    /// Proposes a copy in which some files, that nobody changed since, lead to where their content is not.
    WrongPlaces,
    /// Leaves records, by a newer mover, that lead to another object of the same length.
    ForgedRecords,
}

struct Cleaner {
    store: Arc<dyn Store>,
    anchor: Anchor,
    family: FamilyId,
    builder: SegmentBuilder,
    moved: BTreeMap<Location, Location>,
    mischief: Mischief,
}

fn key(family: &FamilyId, segment: SegmentId) -> ObjectKey {
    ObjectKey::new(&segment.key(family))
}

impl Cleaner {
    async fn new(parts: &Parts, mischief: Mischief) -> Self {
        let family = parts.anchor.family();
        let writer = parts
            .anchor
            .next_writer_for(WriterTenure::Cleaner)
            .await
            .expect("a writer");
        Self {
            store: parts.store.clone(),
            anchor: parts.anchor.clone(),
            family,
            builder: SegmentBuilder::new(family, SegmentId { writer, sequence: 0 }),
            moved: BTreeMap::new(),
            mischief,
        }
    }

    /// Copies an object and all below it; children first.
    fn copy(&mut self, pointer: Pointer) -> BoxFuture<'_, Location> {
        async move {
            let at = pointer.location;
            if let Some(moved) = self.moved.get(&at) {
                return *moved;
            }
            let (from, length) = (u64::from(at.offset), u64::from(at.length));
            let bytes = self
                .store
                .get_range(&key(&self.family, at.segment), from, length)
                .await;
            let fetched = decode_object(bytes.expect("it is there")).expect("an object");
            let object = fetched
                .verify(&pointer.uid, None)
                .expect("the right one")
                .into_encoded();
            let mut places = BTreeMap::new();
            for child in object.header.children.clone() {
                places.insert(child.slot, self.copy(child.pointer).await);
            }
            let number = object.header.place.index & 0xffff_ffff;
            let misleads = self.mischief == Mischief::WrongPlaces
                && object.header.kind == Kind::Inode
                && (20..100).contains(&number);
            let moved = relocate_children(&object, |child| {
                let at = places[&child.slot];
                let offset = at.offset + u32::from(misleads);
                Location { offset, ..at }
            });
            let location = self.builder.push(&moved);
            self.moved.insert(at, location);
            location
        }
        .boxed()
    }

    /// Moves everything, leaves records and a proposal; returns the segments that nobody needs any more.
    async fn clean(mut self, parts: &Parts, root: &Root) -> Vec<SegmentId> {
        let (version, mischief) = (root.version, self.mischief);
        let root = Pointer {
            uid: root.uid,
            location: root.location,
        };
        let location = self.copy(root).await;
        let id = self.builder.id();
        let parts_of_segment = self.builder.finish();
        self.store
            .put(&key(&self.family, id), parts_of_segment, PutMode::Create)
            .await
            .expect("stored");
        let mut by_segment: BTreeMap<SegmentId, Vec<ForwardingEntry>> = BTreeMap::new();
        for (old, new) in &self.moved {
            by_segment.entry(old.segment).or_default().push(ForwardingEntry {
                offset: old.offset,
                new: *new,
            });
        }
        for (old, entries) in &by_segment {
            let record = ForwardingRecord {
                family: self.family,
                old: *old,
                mover: id.writer,
                retired_at_ms: 0,
                entries: entries.clone(),
            };
            leave(&*self.store, &record).await;
            if mischief == Mischief::ForgedRecords {
                let mut forged = record.clone();
                forged.mover.0 += 1000;
                // Objects of one length change places.
                let mut places: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
                for (at, entry) in forged.entries.iter().enumerate() {
                    places.entry(entry.new.length).or_default().push(at);
                }
                for alike in places.values() {
                    let turned: Vec<Location> = alike.iter().map(|at| record.entries[*at].new).collect();
                    for (index, at) in alike.iter().enumerate() {
                        forged.entries[*at].new = turned[(index + 1) % turned.len()];
                    }
                }
                leave(&*self.store, &forged).await;
            }
        }
        let proposal = Proposal {
            sequence: 1,
            chained_from: 1,
            base_version: version,
            base_uid: root.uid,
            location,
            mover: id.writer,
            proposed_at_ms: 0,
            change_id: [1; 16],
            usage: Vec::new(),
        };
        let proposed = self
            .anchor
            .propose(parts.volume, &proposal)
            .await
            .expect("the table answers");
        proposed.expect("the first proposal");
        let needed: BTreeSet<SegmentId> = [id].into();
        by_segment
            .into_keys()
            .filter(|segment| !needed.contains(segment))
            .collect()
    }
}

async fn leave(store: &dyn Store, record: &ForwardingRecord) {
    let key = ObjectKey::new(&ForwardingRecord::key(&record.family, record.old, record.mover));
    store
        .put(&key, vec![record.encode()], PutMode::Create)
        .await
        .expect("stored");
}

async fn write(vfs: &dyn Vfs, file: &str, offset: u64, data: Vec<u8>) {
    let name = Name::new(file.as_bytes().to_vec()).expect("a name");
    let mode = CreateMode::Unchecked(SetAttributes::default());
    let made = vfs
        .create(&root(), vfs.root(), &name, mode)
        .await
        .expect("it is created");
    vfs.write(
        &root(),
        made.handle,
        offset,
        vec![Bytes::from(data)],
        Stability::FileSync,
    )
    .await
    .expect("it is written");
}

async fn remove(vfs: &dyn Vfs, file: &str) {
    let name = Name::new(file.as_bytes().to_vec()).expect("a name");
    vfs.remove(&root(), vfs.root(), &name)
        .await
        .expect("it is removed");
}

async fn must_equal(model: &MemoryVfs, found: &dyn Vfs, when: &str) -> Result<(), String> {
    let compare = Compare {
        times: false,
        ..Compare::default()
    };
    let differences = compare_trees(model, found, &compare).await;
    if differences.is_empty() {
        return Ok(());
    }
    Err(format!("{when}: {differences:?}"))
}

/// A volume with a snapshot and changes since, cleaned while it goes on; what is wrong in the end, if anything.
async fn history(
    volume: Volume,
    model: Arc<MemoryVfs>,
    parts: Parts,
    mischief: Mischief,
) -> Result<(), String> {
    let env = parts.env.clone();
    let sides: [&dyn Vfs; 2] = [&volume, &*model];
    for side in sides {
        for number in 0..150_u64 {
            // Files of one length, so that a forged record finds an object that looks right.
            write(
                side,
                &format!("file{number}"),
                0,
                number.to_le_bytes().repeat(300),
            )
            .await;
        }
        write(side, "large", 0, vec![5; 900_000]).await;
    }
    volume.snapshot_create("s", 0).await.expect("a snapshot");
    let at_snapshot = model.fork();
    for side in sides {
        for number in (0..150_u64).step_by(7) {
            write(side, &format!("file{number}"), 100, vec![1; 2000]).await;
        }
    }
    volume.sync().await.expect("synced");
    let branch = match mischief {
        Mischief::WrongBase => volume.clone_head("other").await.expect("cloned").volume,
        _ => parts.volume,
    };
    let (tuple, _) = parts.anchor.load(branch).await.expect("loaded");
    let cleaner = Cleaner::new(&parts, mischief).await;
    let (store, family) = (cleaner.store.clone(), cleaner.family);
    let retired = cleaner.clean(&parts, &tuple.root.expect("a root")).await;
    // A volume that commits often does not ask for proposals each time.
    env.sleep(Duration::from_secs(60)).await;
    // What the cleaner moved has gone on meanwhile.
    for side in sides {
        write(side, "large", 400_000, vec![6; 70_000]).await;
        write(side, "file3", 0, vec![9; 10]).await;
        remove(side, "file4").await;
        write(side, "new", 0, vec![2; 5000]).await;
    }
    if mischief != Mischief::WrongPlaces && mischief != Mischief::WrongBase {
        for segment in &retired {
            store.delete(&key(&family, *segment)).await.expect("deleted");
        }
        volume.drop_caches().await;
        must_equal(&model, &volume, "with the old segments gone").await?;
        let snapshot = volume.rooted_in_snapshot(b"s").expect("there");
        must_equal(
            &at_snapshot,
            &snapshot,
            "the snapshot, with the old segments gone",
        )
        .await?;
    }
    volume.sync().await.expect("synced");
    let status = volume.status().merging;
    let refuses = matches!(mischief, Mischief::WrongBase | Mischief::WrongPlaces);
    if refuses != status.refused.is_some() {
        return Err(format!("{mischief:?}: {status:?}"));
    }
    if refuses == (status.merged > 0) {
        return Err(format!("{mischief:?} was merged: {status:?}"));
    }
    for side in sides {
        write(side, "last", 0, vec![3; 3000]).await;
        write(side, "large", 10, vec![4; 10]).await;
    }
    volume.sync().await.expect("synced");
    if !refuses {
        // Nothing that the volume wrote since leads to an old place.
        forget_records(&*store, &family).await;
    }
    volume.drop_caches().await;
    must_equal(&model, &volume, "after the merge").await?;
    let snapshot = volume.rooted_in_snapshot(b"s").expect("there");
    must_equal(&at_snapshot, &snapshot, "the snapshot after the merge").await?;
    let report = volume.verify(&|_| {}).await.map_err(|error| error.to_string())?;
    if !report.is_whole() {
        return Err(format!("{:?}", report.damages));
    }
    Ok(())
}

async fn forget_records(store: &dyn Store, family: &FamilyId) {
    let prefix = format!("{family}/forward/");
    loop {
        let page = store.list(&prefix, None).await.expect("listed");
        for record in &page.objects {
            store.delete(&record.key).await.expect("deleted");
        }
        if !page.more {
            return;
        }
    }
}

fn run(mischief: Mischief) -> Result<(), String> {
    let simulation = Simulation::new(7);
    let world = World::new(&simulation);
    let (opening, model, parts) = (world.format_and_open(), world.model(), world.own_parts());
    simulation
        .run(async move { history(opening.await, model, parts, mischief).await })
        .unwrap_or_else(|error| Err(error.to_string()))
}

#[test]
fn everything_is_read_and_taken_over_after_the_cleaner_moved_it() {
    assert_eq!(run(Mischief::None), Ok(()));
}

#[test]
fn a_proposal_for_a_base_that_is_none_is_refused_and_reported() {
    assert_eq!(run(Mischief::WrongBase), Ok(()));
}

#[test]
fn a_proposal_whose_places_lead_nowhere_is_refused_before_the_commit() {
    assert_eq!(run(Mischief::WrongPlaces), Ok(()));
}

#[test]
fn forged_records_are_seen_through_and_nothing_wrong_is_served() {
    assert_eq!(run(Mischief::ForgedRecords), Ok(()));
}

#[test]
fn each_planted_bug_is_noticed() {
    for (planted, mischief) in [
        // A proposal of the cleaner is merged whatever its base.
        ("volume.merge_any_base", Mischief::WrongBase),
        // Where the cleaner's object has another uid, it is taken all the same.
        ("volume.merge_different_uids", Mischief::None),
        // Adopted places are not looked at before the commit.
        ("volume.merge_unverified", Mischief::WrongPlaces),
        // What a forwarding record leads to is used without comparing its hash.
        ("volume.forward_unverified", Mischief::ForgedRecords),
    ] {
        let found = planting(Some(planted), || run(mischief));
        println!("{planted}: {found:?}");
        assert!(found.is_err(), "{planted} was not noticed");
    }
}

#[test]
fn a_start_finds_its_root_and_everything_below_it_although_all_of_it_was_moved() {
    let simulation = Simulation::new(8);
    let mut world = World::new(&simulation);
    let (opening, model, parts) = (world.format_and_open(), world.model(), world.own_parts());
    let expected = model.clone();
    simulation
        .run(async move {
            let volume = opening.await;
            for side in [&volume as &dyn Vfs, &*expected] {
                write(side, "file", 0, vec![5; 200_000]).await;
            }
            volume.drain().await.expect("drained");
            let (tuple, _) = parts.anchor.load(parts.volume).await.expect("loaded");
            let cleaner = Cleaner::new(&parts, Mischief::None).await;
            let (store, family) = (cleaner.store.clone(), cleaner.family);
            for segment in cleaner.clean(&parts, &tuple.root.expect("a root")).await {
                store.delete(&key(&family, segment)).await.expect("deleted");
            }
        })
        .expect("the run ends");
    world.lose_disk();
    let volume = world.power_cut(&simulation);
    simulation
        .run(async move {
            assert_eq!(must_equal(&model, &volume, "after the start").await, Ok(()));
            assert!(volume.status().objects.forwarded > 0);
            write(&volume, "more", 0, vec![1; 10]).await;
            volume.sync().await.expect("synced");
            assert_eq!(volume.status().merging.merged, 1);
        })
        .expect("the run ends");
}

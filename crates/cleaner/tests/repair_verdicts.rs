//! Verdicts of a repair that an administrator acts on: what is beyond repair, what nobody needs, and that nothing waits for what never comes.

mod family;

use family::{Edge, Reader, World, check_root, run};
use firn_cleaner::{Cleaner, Limits, Repair, Report, clean_once};
use firn_env::mutants::planting;
use firn_format::{Pointer, SegmentId, VolumeId};
use firn_store::{ObjectKey, PutMode, Store};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

const SEGMENT_BYTES: usize = 16 << 10;
const GRACE: Duration = Duration::from_secs(3600);
const FILE: u64 = 16;

/// A volume, its store and the copy of it.
struct Office {
    world: World,
    edge: Edge,
}

impl Office {
    /// With a file of some segments.
    fn new() -> Self {
        let world = World::new(7);
        let edge = Edge::create(&world, VolumeId([1; 16]), 1, SEGMENT_BYTES);
        let mut office = Self { world, edge };
        office.write(FILE, 0..64);
        office.commit(false);
        office
    }

    fn write(&mut self, inode: u64, blocks: impl Iterator<Item = u64>) {
        for index in blocks {
            self.edge.write(inode, index, 1000);
        }
    }

    fn commit(&mut self, merges: bool) {
        let prepared = self.edge.prepare(&self.world, merges, None, None);
        self.edge.commit(prepared);
        self.world.clock.advance(Duration::from_secs(30));
    }

    fn segments(&self) -> BTreeSet<SegmentId> {
        let contents = self.world.store.contents();
        let keys = contents.keys().map(ObjectKey::as_str);
        keys.filter_map(|key| Some(SegmentId::parse_key(key)?.1))
            .collect()
    }

    fn mirror(&self) {
        for (key, bytes) in self.world.store.contents() {
            let _ = run(self.world.second.put(&key, vec![bytes], PutMode::Create));
        }
    }

    fn limits() -> Limits {
        Limits {
            segment_bytes: SEGMENT_BYTES,
            grace: GRACE,
            ..Limits::default()
        }
    }

    fn clean(&self) -> Report {
        let store: Arc<dyn Store> = self.world.gate();
        run(clean_once(
            &self.world.env,
            store,
            &self.world.anchor(),
            &Self::limits(),
        ))
        .unwrap()
    }

    fn repair(&self, lost: impl IntoIterator<Item = SegmentId>) -> Repair {
        let (store, second): (Arc<dyn Store>, Arc<dyn Store>) =
            (self.world.gate(), self.world.second.clone());
        let mut cleaner = Cleaner::new(&self.world.env, store, &self.world.anchor(), Self::limits());
        let lost = lost.into_iter().collect();
        run(cleaner.repair(Some(second), &lost, false)).unwrap()
    }

    fn key(segment: SegmentId) -> ObjectKey {
        ObjectKey::new(&segment.key(&family::world::FAMILY))
    }

    fn lose(&self, segment: SegmentId) {
        run(self.world.store.delete(&Self::key(segment))).unwrap();
    }

    fn lose_copy(&self, segment: SegmentId) {
        run(self.world.second.delete(&Self::key(segment))).unwrap();
    }

    fn is_retired(&self, segment: SegmentId) -> bool {
        run(self.world.anchor().retired(segment)).unwrap().is_some()
    }

    /// The segments of the file's blocks as the head's pointers, followed through records, lead to them.
    fn segments_of_blocks(&self) -> BTreeSet<SegmentId> {
        let mut reader = Reader::new(&self.world.store);
        let shown = reader.show(self.edge.trees.inode_map, None);
        shown.expect("everything is there");
        reader.found_at.iter().map(|at| at.segment).collect()
    }

    /// That of the head's checkpoint.
    fn newest(&self) -> SegmentId {
        let (tuple, _) = run(self.edge.anchor.load(self.edge.volume)).unwrap();
        tuple.root.expect("a root").location.segment
    }

    /// The head shows what was committed, from the first store alone.
    fn is_whole(&self) {
        let (tuple, _) = run(self.edge.anchor.load(self.edge.volume)).unwrap();
        let root = tuple.root.expect("a root");
        let pointer = Pointer {
            uid: root.uid,
            location: root.location,
        };
        let mut reader = Reader::new(&self.world.store);
        check_root(&mut reader, &pointer, root.version, true, &self.edge.shown).unwrap();
    }
}

/// A segment whose damage somebody met, and that a cleaner has since found unneeded, deleted and forgotten.
fn forgotten() -> (Office, SegmentId) {
    let mut office = Office::new();
    let before = office.segments();
    office.write(FILE, 0..64);
    office.commit(false);
    office.commit(false);
    for _ in 0..4 {
        office.clean();
        office.world.clock.advance(GRACE);
    }
    let left = office.segments();
    let gone = before.iter().find(|segment| !left.contains(segment));
    let gone = *gone.expect("all of the first version is garbage");
    assert!(
        !office.is_retired(gone),
        "a retirement that moved nothing is forgotten"
    );
    (office, gone)
}

#[test]
fn what_a_cleaner_deleted_and_forgot_is_unneeded_and_not_beyond_repair() {
    let (office, gone) = forgotten();
    let done = office.repair([gone]);
    assert_eq!(done.beyond, [], "a false alarm");
    assert_eq!(done.unneeded, BTreeSet::from([gone]));
    office.is_whole();
}

#[test]
fn without_a_look_at_the_roots_it_would_be_a_false_alarm() {
    let (office, gone) = forgotten();
    let done = planting(Some("cleaner.repair_without_a_walk"), || office.repair([gone]));
    assert_eq!(done.beyond.len(), 1, "{done:?}");
}

#[test]
fn what_neither_store_has_and_a_root_needs_is_beyond_repair_also_behind_a_record() {
    let mut office = Office::new();
    office.write(FILE, (0..64).filter(|index| index % 4 > 0));
    office.commit(false);
    let report = office.clean();
    assert!(report.moved_objects > 0, "{report:?}");
    // The next head knows the old places: only records lead on from there.
    office.write(FILE + 1, 0..1);
    office.commit(false);
    let needed = office.segments_of_blocks().into_iter();
    let needed: Vec<SegmentId> = needed
        .filter(|segment| !office.is_retired(*segment) && *segment != office.newest())
        .collect();
    assert!(!needed.is_empty());
    for segment in needed {
        let kept = office.world.store.contents()[&Office::key(segment)].clone();
        office.lose(segment);
        let done = office.repair([segment]);
        let named: Vec<SegmentId> = done.beyond.iter().map(|beyond| beyond.segment).collect();
        assert_eq!(named, [segment], "{done:?}");
        run(office
            .world
            .store
            .put(&Office::key(segment), vec![kept], PutMode::Create))
        .unwrap();
    }
    office.is_whole();
}

#[test]
fn nothing_is_called_unneeded_while_a_part_of_the_trees_cannot_be_read() {
    let (mut office, gone) = forgotten();
    // The newest commit has paths of its own; what it shares with the one before hangs on the older nodes.
    office.write(FILE + 1, 0..1);
    office.commit(false);
    let needed = office.segments_of_blocks().into_iter();
    let older = needed.rev().find(|segment| *segment != office.newest());
    let older = older.expect("the file's inode lies there");
    office.lose(older);
    let done = office.repair([gone, older]);
    let named: BTreeSet<SegmentId> = done.beyond.iter().map(|beyond| beyond.segment).collect();
    assert_eq!(named, BTreeSet::from([gone, older]), "{done:?}");
    assert!(done.unneeded.is_empty(), "{done:?}");
}

/// An idle volume asks for no proposals: whoever waits for the merge of one waits for ever.
#[test]
fn the_copies_of_a_proposal_that_nobody_merges_are_repaired_as_well() {
    let mut office = Office::new();
    office.write(FILE, (0..64).filter(|index| index % 4 > 0));
    office.commit(false);
    let before = office.segments();
    office.clean();
    let proposal = run(office.world.anchor().proposal(office.edge.volume)).unwrap();
    let (proposal, _) = proposal.expect("the head was relocated");
    office.mirror();
    let copies: Vec<SegmentId> = office.segments().difference(&before).copied().collect();
    assert!(
        copies.iter().all(|copy| copy.writer == proposal.mover),
        "{copies:?}"
    );
    assert!(!copies.is_empty());
    // Of the same base, and of one that the volume has left behind.
    for commits in [0, 1] {
        for _ in 0..commits {
            office.write(FILE, 3..4);
            office.commit(false);
            office.mirror();
        }
        let proposal = run(office.world.anchor().proposal(office.edge.volume)).unwrap();
        let mover = proposal.expect("one").0.mover;
        let lost: Vec<SegmentId> = office
            .segments()
            .into_iter()
            .filter(|segment| segment.writer == mover && !office.is_retired(*segment))
            .collect();
        assert!(!lost.is_empty(), "{commits} commits");
        for segment in &lost {
            office.lose(*segment);
        }
        let done = office.repair(lost.iter().copied());
        assert!(
            done.waiting.is_empty() && done.beyond.is_empty(),
            "{commits} commits: {done:?}"
        );
        for segment in &lost {
            office.lose_copy(*segment);
        }
        office.is_whole();
    }
    // What is merged afterwards leads to what there is.
    office.commit(true);
    office.commit(true);
    office.is_whole();
}

//! Unplanned input of a cleaner: each is left alone or reported, and never makes it delete what is needed.

mod family;

use bytes::Bytes;
use family::{Edge, Reader, World, check_root, run};
use firn_anchor::WriterTenure;
use firn_cleaner::{CleanError, Limits, Plan, Report, clean_once, plan};
use firn_env::mutants::planting;
use firn_format::{Pointer, SegmentId, VolumeId, WriterId};
use firn_store::{ObjectKey, PutMode, Store};
use std::time::Duration;

const SEGMENT_BYTES: usize = 8 << 10;

struct Office {
    world: World,
    edge: Edge,
}

/// A volume most of which was overwritten.
fn office() -> Office {
    office_in(World::new(11))
}

fn office_in(world: World) -> Office {
    let mut edge = Edge::create(&world, VolumeId([1; 16]), 1, SEGMENT_BYTES);
    for _ in 0..4 {
        (0..40).for_each(|index| edge.write(16, index, 700));
        let prepared = edge.prepare(&world, false, None, None);
        edge.commit(prepared);
    }
    Office { world, edge }
}

impl Office {
    fn clean(&self, deny_deletes: bool) -> Report {
        let gate = self.world.gate();
        gate.set_deny_deletes(deny_deletes);
        let (env, anchor) = (&self.world.env, self.world.anchor());
        run(clean_once(env, gate, &anchor, &Limits::default())).unwrap()
    }

    fn plan(&self) -> Result<Plan, CleanError> {
        let (env, anchor) = (&self.world.env, self.world.anchor());
        run(plan(env, self.world.gate(), &anchor, &Limits::default()))
    }

    fn put(&self, segment: SegmentId, bytes: &[u8]) -> ObjectKey {
        let key = ObjectKey::new(&segment.key(&family::world::FAMILY));
        let parts = vec![Bytes::copy_from_slice(bytes)];
        run(self.world.store.put(&key, parts, PutMode::Create)).unwrap();
        key
    }

    fn is_there(&self, key: &ObjectKey) -> bool {
        self.world.store.contents().contains_key(key)
    }

    fn check(&self) {
        let root = self.edge.ownership.root().unwrap();
        let pointer = Pointer {
            uid: root.uid,
            location: root.location,
        };
        let mut reader = Reader::new(&self.world.store);
        check_root(&mut reader, &pointer, root.version, true, &self.edge.shown).unwrap();
    }
}

fn segment(writer: WriterId, sequence: u64) -> SegmentId {
    SegmentId { writer, sequence }
}

#[test]
fn a_bucket_without_permission_to_delete_holds_segments_until_it_is_given() {
    let office = office();
    assert!(office.clean(true).retired_segments > 10);
    office.world.clock.advance(Duration::from_secs(7200));
    let held = office.clean(true);
    assert_eq!(held.deleted_segments, 0);
    assert!(held.held.count > 10, "{held:?}");
    assert!(held.held.first[0].contains("held until 2031"), "{held:?}");
    let freed = office.clean(false);
    assert!(freed.deleted_segments > 10 && freed.held.count == 0, "{freed:?}");
    office.check();
}

#[test]
fn a_bucket_that_keeps_versions_gives_space_back_all_the_same() {
    let mut world = World::new(11);
    world.keep_versions();
    let office = office_in(world);
    let before = office.world.store.stored_bytes();
    assert!(office.clean(false).retired_segments > 10);
    office.world.clock.advance(Duration::from_secs(7200));
    let held = office.clean(true);
    assert!(held.deleted_segments == 0 && held.held.count > 10, "{held:?}");
    let freed = office.clean(false);
    assert!(freed.deleted_segments > 10 && freed.held.count == 0, "{freed:?}");
    let after = office.world.store.stored_bytes();
    assert!(after < before / 2, "{after} bytes of {before} are kept");
    office.check();
}

#[test]
fn nothing_is_deleted_before_its_grace_and_a_clock_that_goes_back_only_delays() {
    let office = office();
    let retired = office.clean(false).retired_segments;
    let again = office.clean(false);
    assert_eq!((again.deleted_segments, again.waiting_segments), (0, retired));
    office.world.clock.advance(Duration::from_secs(3599));
    assert_eq!(office.clean(false).deleted_segments, 0);
    office.world.clock.advance(Duration::from_secs(2));
    assert_eq!(office.clean(false).deleted_segments, retired);
    office.check();
}

#[test]
fn foreign_and_half_written_objects_in_the_log_are_reported_and_left_alone() {
    let office = office();
    let over = run(office.world.anchor().next_writer_for(WriterTenure::Cleaner)).unwrap();
    run(office.world.anchor().end_writer(over)).unwrap();
    let half = office.put(segment(over, 0), &[0x46; 5000]);
    let undrawn = office.put(segment(WriterId(1 << 40), 0), b"whose is this?");
    let stranger = ObjectKey::new(&format!("{}/log/readme.txt", family::world::FAMILY));
    let parts = vec![Bytes::from_static(b"notes")];
    run(office.world.store.put(&stranger, parts, PutMode::Create)).unwrap();
    for _ in 0..3 {
        let report = office.clean(false);
        assert_eq!(report.foreign.count, 2, "{report:?}");
        assert_eq!(report.unclaimed.count, 1, "{report:?}");
        office.world.clock.advance(Duration::from_secs(7200));
    }
    assert!([half, undrawn, stranger].iter().all(|key| office.is_there(key)));
    office.check();
}

#[test]
fn a_writer_that_did_not_say_what_it_is_for_is_never_judged() {
    let mut office = office();
    let unknown = run(office.world.anchor().next_writer()).unwrap();
    // A whole segment, of objects that no root has.
    let mut other = Edge::create(&office.world, VolumeId([3; 16]), 2, SEGMENT_BYTES);
    other.packer.writer = unknown;
    other.write(16, 0, 500);
    let abandoned = other.prepare(&office.world, false, None, None);
    office.world.clock.advance(Duration::from_secs(1 << 30));
    for _ in 0..3 {
        let report = office.clean(false);
        assert!(report.unclaimed.count > 0, "{report:?}");
        office.world.clock.advance(Duration::from_secs(7200));
    }
    assert!(abandoned.keys.iter().all(|key| office.is_there(key)));
    office.edge.write(16, 1, 100);
    office.check();
}

#[test]
fn a_segment_that_a_head_needs_and_the_bucket_lost_is_reported_and_no_other() {
    let office = office();
    assert_eq!(office.plan().unwrap().missing.count, 0);
    let mut named = 0;
    for (key, bytes) in office.world.store.contents() {
        run(office.world.store.delete(&key)).unwrap();
        // Without the head nothing is known; that is an error of its own.
        if let Ok(plan) = office.plan()
            && plan.missing.count > 0
        {
            let (_, segment) = SegmentId::parse_key(key.as_str()).unwrap();
            assert_eq!(plan.missing.count, 1, "{plan:?}");
            assert!(plan.missing.first[0].contains(&segment.to_string()), "{plan:?}");
            named += 1;
        }
        run(office.world.store.put(&key, vec![bytes], PutMode::Create)).unwrap();
    }
    assert!(named > 3, "{named} named");
    let report = office.clean(false);
    assert_eq!(
        (report.missing.count, report.not_looked_for),
        (0, 0),
        "{report:?}"
    );
}

#[test]
fn what_a_cleaner_retired_and_deleted_is_not_missing_though_the_head_still_counts_it() {
    let mut office = office();
    // Half of what was written last is overwritten: what is moved is still counted where it was.
    (0..40)
        .step_by(2)
        .for_each(|index| office.edge.write(16, index, 700));
    let prepared = office.edge.prepare(&office.world, false, None, None);
    office.edge.commit(prepared);
    assert!(office.clean(false).moved_objects > 10);
    for _ in 0..2 {
        office.world.clock.advance(Duration::from_secs(7200));
        office.clean(false);
    }
    // Nobody merged: the committed head leads to what is gone.
    assert_eq!(office.plan().unwrap().missing.count, 0);
    let blind = planting(Some("cleaner.retired_is_missing"), || office.plan().unwrap());
    assert!(blind.missing.count > 0, "{blind:?}");
}

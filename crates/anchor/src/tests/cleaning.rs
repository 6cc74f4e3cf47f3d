//! Writers' tenures, proposals and retirements, step by step.

use super::support::{Dice, run, world};
use crate::{
    Anchor, AnchorError, AnchorRole, CleanerRound, DoomedSegment, HoldChange, Overtaken, OwnerId, Proposal,
    RetiredSegment, Retirement, RetirementOutcome, Sweep, TupleVersion, WriterTenure, retirement_segments,
};
use firn_format::{
    FamilyId, ListedSegment, Location, ManifestEntry, OwnershipEpoch, SegmentId, Uid, Version, VolumeId,
    WriterId,
};
use firn_table::{Fault, MemoryTable, MemoryTableClient, TableError};
use std::sync::Arc;

const VOLUME: VolumeId = VolumeId([7; 16]);

struct Family {
    client: Arc<MemoryTableClient>,
    anchor: Anchor,
}

fn family() -> Family {
    let env = world(Dice::new(3));
    let client = MemoryTable::new().connect(&env);
    let anchor = Anchor::new(client.clone(), env, FamilyId([1; 16]));
    run(anchor.create_family()).unwrap();
    Family { client, anchor }
}

fn segment(sequence: u64) -> SegmentId {
    SegmentId {
        writer: WriterId(1),
        sequence,
    }
}

fn proposal(sequence: u64, change: u8) -> Proposal {
    Proposal {
        sequence,
        chained_from: sequence,
        base_version: Version(1),
        base_uid: Uid([1; 32]),
        location: Location::UNKNOWN,
        mover: WriterId(1),
        proposed_at_ms: 0,
        change_id: [change; 16],
        usage: Vec::new(),
    }
}

fn retired(mover: WriterId) -> RetiredSegment {
    RetiredSegment {
        mover,
        retired_at_ms: 17,
        segment_bytes: 4 << 20,
        moved_objects: 1,
        keep_for_ever: false,
        covers: Vec::new(),
    }
}

impl Family {
    fn cleaner(&self) -> (WriterId, TupleVersion) {
        let writer = run(self.anchor.next_writer_for(WriterTenure::Cleaner)).unwrap();
        let (_, version) = run(self.anchor.writer(writer)).unwrap().unwrap();
        (writer, version)
    }

    fn round(&self) -> (CleanerRound, Option<TupleVersion>) {
        run(self.anchor.cleaner_round()).unwrap()
    }

    fn retirement(&self, mover: (WriterId, TupleVersion), sequences: &[u64]) -> Retirement {
        Retirement {
            seen: self.round(),
            mover,
            segments: sequences
                .iter()
                .map(|sequence| (segment(*sequence), retired(mover.0)))
                .collect(),
            proposals: Vec::new(),
            written: None,
        }
    }
}

#[test]
fn a_writer_is_registered_with_its_number_and_can_be_ended_once_and_again() {
    let family = family();
    let tenure = WriterTenure::Owner {
        volume: VOLUME,
        epoch: OwnershipEpoch(3),
    };
    let writer = run(family.anchor.next_writer_for(tenure)).unwrap();
    let (registered, _) = run(family.anchor.writer(writer)).unwrap().unwrap();
    assert_eq!((registered.tenure, registered.ended), (tenure, false));
    assert_eq!(run(family.anchor.undrawn_writer()).unwrap(), writer.next());
    assert_eq!(run(family.anchor.writer(writer.next())).unwrap(), None);

    let nameless = run(family.anchor.next_writer()).unwrap();
    let (registered, _) = run(family.anchor.writer(nameless)).unwrap().unwrap();
    assert_eq!(registered.tenure, WriterTenure::Unknown);

    family.client.script([Fault::None, Fault::LoseReply]);
    run(family.anchor.end_writer(writer)).unwrap();
    assert!(run(family.anchor.writer(writer)).unwrap().unwrap().0.ended);
    run(family.anchor.end_writer(writer)).unwrap();
    run(family.anchor.end_writer(WriterId(99))).unwrap();
    assert_eq!(
        run(family.anchor.writer(WriterId(99))).unwrap(),
        None,
        "ending makes no item"
    );
}

#[test]
fn proposals_count_by_one_and_a_lost_reply_is_recognised() {
    let family = family();
    let propose = |proposal: &Proposal| run(family.anchor.propose(VOLUME, proposal)).unwrap();
    assert_eq!(run(family.anchor.proposal(VOLUME)).unwrap(), None);
    assert_eq!(propose(&proposal(2, 1)), Err(Overtaken { sequence: 0 }));
    family.client.script([Fault::None, Fault::LoseReply]);
    assert_eq!(propose(&proposal(1, 1)), Ok(()));
    assert_eq!(propose(&proposal(1, 2)), Err(Overtaken { sequence: 1 }));
    assert_eq!(propose(&proposal(2, 3)), Ok(()));
    assert_eq!(propose(&proposal(2, 4)), Err(Overtaken { sequence: 2 }));
    let (found, _) = run(family.anchor.proposal(VOLUME)).unwrap().unwrap();
    assert_eq!(found, proposal(2, 3));
}

#[test]
fn of_two_retirements_that_saw_one_round_one_happens_and_the_other_changes_nothing() {
    let family = family();
    let (alice, bob) = (family.cleaner(), family.cleaner());
    let mut first = family.retirement(alice, &[1, 2]);
    let second = family.retirement(bob, &[2, 3]);
    first.proposals = vec![(VOLUME, proposal(1, 9), None)];
    family.client.script([Fault::LoseReply]);
    assert_eq!(
        run(family.anchor.retire(first)).unwrap(),
        RetirementOutcome::Done,
        "the reply was lost and is read back"
    );
    assert_eq!(
        run(family.anchor.retire(second)).unwrap(),
        RetirementOutcome::Overtaken
    );
    assert_eq!(family.round().0.round, 1);
    let found = run(family.anchor.retired(segment(2))).unwrap().unwrap().0;
    assert_eq!(found, retired(alice.0));
    assert_eq!(run(family.anchor.retired(segment(3))).unwrap(), None);
    assert_eq!(
        run(family.anchor.proposal(VOLUME)).unwrap().unwrap().0,
        proposal(1, 9)
    );
    let doomed = run(family.anchor.list_doomed(None, 10)).unwrap();
    let segments: Vec<_> = doomed.iter().map(|doomed| doomed.segment).collect();
    assert_eq!(segments, [segment(1), segment(2)]);
    assert_eq!(doomed[0].seen_at_ms, None);
    assert!(run(family.anchor.see_doomed(&doomed)).unwrap());
    assert!(
        !run(family.anchor.see_doomed(&doomed[..1])).unwrap(),
        "once is enough"
    );
    let doomed = run(family.anchor.list_doomed(None, 10)).unwrap();
    assert!(doomed.iter().all(|doomed| doomed.seen_at_ms.is_some()));

    let third = family.retirement(bob, &[3]);
    assert_eq!(
        run(family.anchor.retire(third)).unwrap(),
        RetirementOutcome::Done,
        "what is decided anew may happen"
    );
}

#[test]
fn an_ended_cleaner_retires_nothing_and_a_segment_is_retired_once() {
    let family = family();
    let (alice, bob) = (family.cleaner(), family.cleaner());
    let stalled = family.retirement(alice, &[1]);
    run(family.anchor.end_writer(alice.0)).unwrap();
    assert_eq!(
        run(family.anchor.retire(stalled)).unwrap(),
        RetirementOutcome::Overtaken
    );
    assert_eq!(
        run(family.anchor.retire(family.retirement(bob, &[1]))).unwrap(),
        RetirementOutcome::Done
    );
    assert_eq!(
        run(family.anchor.retire(family.retirement(bob, &[1]))).unwrap(),
        RetirementOutcome::Overtaken
    );
    let mut late = family.retirement(bob, &[2]);
    late.proposals = vec![(VOLUME, proposal(1, 1), None)];
    assert_eq!(
        run(family.anchor.propose(VOLUME, &proposal(1, 2))).unwrap(),
        Ok(())
    );
    assert_eq!(
        run(family.anchor.retire(late)).unwrap(),
        RetirementOutcome::Overtaken,
        "built on a proposal that was replaced"
    );
}

#[test]
fn retired_segments_are_listed_changed_and_forgotten() {
    let family = family();
    let mover = family.cleaner();
    let most: Vec<u64> = (0..retirement_segments(1) as u64).collect();
    let mut full = family.retirement(mover, &most);
    full.proposals = vec![(VOLUME, proposal(1, 1), None)];
    assert_eq!(
        run(family.anchor.retire(full)).unwrap(),
        RetirementOutcome::Done,
        "as much as is allowed fits into a transaction"
    );
    let listed = run(family.anchor.list_retired(Some(segment(3)), 2)).unwrap();
    let segments: Vec<_> = listed.iter().map(|(segment, ..)| *segment).collect();
    assert_eq!(segments, [segment(4), segment(5)]);

    let (_, found, version) = &listed[0];
    let changed = RetiredSegment {
        keep_for_ever: true,
        ..found.clone()
    };
    assert!(run(family.anchor.change_retired(segment(4), *version, Some(&changed))).unwrap());
    assert!(!run(family.anchor.change_retired(segment(4), *version, None)).unwrap());
    let (found, version) = run(family.anchor.retired(segment(4))).unwrap().unwrap();
    assert_eq!(found, changed);
    assert!(run(family.anchor.change_retired(segment(4), version, None)).unwrap());
    assert_eq!(run(family.anchor.retired(segment(4))).unwrap(), None);

    run(family.anchor.forget_doomed(segment(0))).unwrap();
    run(family.anchor.forget_doomed(segment(0))).unwrap();
    let doomed = run(family.anchor.list_doomed(None, 1)).unwrap();
    assert_eq!(doomed[0].segment, segment(1));
}

#[test]
fn the_cursor_is_kept_and_begins_at_the_beginning() {
    let family = family();
    let cursor = || run(family.anchor.cleaner_cursor(Sweep::Log)).unwrap();
    assert_eq!(cursor(), None);
    run(family.anchor.set_cleaner_cursor(Sweep::Log, Some(segment(9)))).unwrap();
    assert_eq!(cursor(), Some(segment(9)));
    assert_eq!(run(family.anchor.cleaner_cursor(Sweep::Retired)).unwrap(), None);
    run(family.anchor.set_cleaner_cursor(Sweep::Log, None)).unwrap();
    assert_eq!(cursor(), None);
}

#[test]
fn within_a_services_table_a_cleaner_does_its_work_and_touches_neither_roots_nor_other_partitions() {
    const KEPT: &str = "anchor/ten/vol";
    let env = world(Dice::new(4));
    let client = MemoryTable::new().connect(&env);
    let id = FamilyId([1; 16]);
    let edge = Anchor::within(client.clone(), env.clone(), id, KEPT, AnchorRole::Edge);
    run(edge.create_family()).unwrap();
    run(edge.create_volume(VOLUME, "main")).unwrap();
    let cleaners = Anchor::within(client.clone(), env.clone(), id, KEPT, AnchorRole::Cleaner);
    let family = Family {
        client,
        anchor: cleaners.clone(),
    };
    let mover = family.cleaner();
    let mut retirement = family.retirement(mover, &[1, 2]);
    retirement.proposals = vec![(VOLUME, proposal(1, 1), None)];
    assert_eq!(run(cleaners.retire(retirement)).unwrap(), RetirementOutcome::Done);
    run(cleaners.set_cleaner_cursor(Sweep::Log, Some(segment(9)))).unwrap();
    run(cleaners.forget_doomed(segment(1))).unwrap();
    run(cleaners.end_writer(mover.0)).unwrap();
    assert!(run(edge.proposal(VOLUME)).unwrap().is_some(), "the edge finds it");

    let refused = |error: AnchorError| matches!(error, AnchorError::Table(TableError::Refused(_)));
    let owner = OwnerId([2; 16]);
    assert!(refused(
        run(cleaners.acquire(VOLUME, owner, "cleaner")).unwrap_err()
    ));
    assert!(refused(
        run(cleaners.takeover(VOLUME, owner, "cleaner"))
            .map(drop)
            .unwrap_err()
    ));
    assert!(refused(
        run(cleaners.create_volume(VolumeId([8; 16]), "other")).unwrap_err()
    ));
    let (tuple, _) = run(edge.load(VOLUME)).unwrap();
    assert_eq!((tuple.owner, tuple.epoch), (None, OwnershipEpoch(0)));

    // What is said to be another family's is looked for in the same partition and nowhere else.
    let neighbour = Anchor::within(
        family.client.clone(),
        env,
        FamilyId([2; 16]),
        "anchor/ten/other",
        AnchorRole::Cleaner,
    );
    assert!(matches!(
        run(neighbour.undrawn_writer()).unwrap_err(),
        AnchorError::NoSuchFamily { .. }
    ));
}

#[test]
fn a_retirement_leaves_its_round_if_it_is_told_what_was_written_and_none_otherwise() {
    let family = family();
    let mover = family.cleaner();
    let listed = |sequence| ListedSegment {
        segment: segment(sequence),
        entry: ManifestEntry::unread(Version(0)),
    };
    let with = |written, sequences: &[u64]| Retirement {
        written,
        ..family.retirement(mover, sequences)
    };
    let retire = |retirement| run(family.anchor.retire(retirement)).unwrap();
    assert_eq!(retire(with(None, &[1])), RetirementOutcome::Done);
    let stalled = with(Some(vec![listed(90)]), &[2]);
    assert_eq!(
        retire(with(Some(vec![listed(100), listed(101)]), &[3, 4])),
        RetirementOutcome::Done
    );
    assert_eq!(retire(stalled), RetirementOutcome::Overtaken);
    assert_eq!(retire(with(Some(Vec::new()), &[5])), RetirementOutcome::Done);

    let rounds = |after, limit| run(family.anchor.list_rounds(after, limit)).unwrap();
    let all = rounds(0, 10);
    let told: Vec<_> = all
        .iter()
        .map(|stored| {
            (
                stored.number,
                stored.round.retired.clone(),
                stored.round.written.clone(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (2, vec![segment(3), segment(4)], vec![listed(100), listed(101)]),
            (3, vec![segment(5)], Vec::new()),
        ],
        "that of the one that was overtaken is not there, nor one of who told nothing"
    );
    assert_eq!(rounds(2, 10), all[1..]);
    assert_eq!(rounds(0, 1), all[..1]);
    run(family.anchor.forget_round(&all[0])).unwrap();
    run(family.anchor.forget_round(&all[0])).unwrap();
    assert_eq!(rounds(0, 10), all[1..]);
}

#[test]
fn the_largest_retirement_fits_into_one_transaction_with_its_round() {
    let family = family();
    let mover = family.cleaner();
    let sequences: Vec<u64> = (0..retirement_segments(0) as u64).collect();
    let largest = Retirement {
        written: Some(Vec::new()),
        ..family.retirement(mover, &sequences)
    };
    assert_eq!(
        run(family.anchor.retire(largest)).unwrap(),
        RetirementOutcome::Done
    );
    assert_eq!(
        run(family.anchor.list_rounds(0, 9)).unwrap()[0]
            .round
            .retired
            .len(),
        sequences.len()
    );
}

#[test]
fn what_is_retired_under_a_hold_waits_for_its_release_by_the_last_pass() {
    let family = family();
    let mover = family.cleaner();
    let anchor = &family.anchor;
    let retire = |sequences: &[u64]| run(anchor.retire(family.retirement(mover, sequences))).unwrap();
    assert_eq!(retire(&[1]), RetirementOutcome::Done);
    let stalled = family.retirement(mover, &[2]);
    let round = family.round();
    let change = |seen, round, change| run(anchor.change_hold(seen, round, change));
    assert!(change(None, round.1, HoldChange::Drop).is_err(), "there is none");
    family.client.script([Fault::LoseReply]);
    let first = change(None, round.1, HoldChange::Begin)
        .unwrap()
        .expect("it begins");
    let (hold, version) = run(anchor.hold()).unwrap().unwrap();
    assert_eq!((hold.pass, hold.drops, version), (1, true, first));
    assert_eq!((family.round().0.round, family.round().0.is_held), (1, true));
    assert_eq!(
        run(anchor.retire(stalled)).unwrap(),
        RetirementOutcome::Overtaken,
        "who saw the round before it would leave nothing held"
    );
    assert_eq!(retire(&[2, 3]), RetirementOutcome::Done);
    assert!(family.round().0.is_held, "the next is held, too");
    let doomed = || run(anchor.list_doomed(None, 10)).unwrap();
    let held: Vec<_> = doomed().iter().map(|doomed| doomed.held_since_ms).collect();
    assert_eq!(held, [None, Some(17), Some(17)]);

    let second = change(Some(first), None, HoldChange::Drop)
        .unwrap()
        .expect("it counts");
    assert_eq!(change(Some(first), None, HoldChange::Drop).unwrap(), None);
    let release = |hold, which: &[DoomedSegment]| run(anchor.release_doomed(hold, which)).unwrap();
    assert!(
        !release(first, &doomed()[1..2]),
        "by a pass that another followed"
    );
    assert!(release(second, &doomed()[1..2]));
    assert!(doomed()[1].seen_at_ms.is_some(), "its grace has begun");
    assert_eq!(doomed()[2].held_since_ms, Some(17));
    assert!(
        change(Some(second), family.round().1, HoldChange::End).is_err(),
        "copies go"
    );
    let third = change(Some(second), None, HoldChange::Restore)
        .unwrap()
        .expect("it counts");
    let before = family.round();
    assert_eq!(retire(&[4]), RetirementOutcome::Done);
    assert_eq!(
        change(Some(third), before.1, HoldChange::End).unwrap(),
        None,
        "something was retired since"
    );
    change(Some(third), family.round().1, HoldChange::End)
        .unwrap()
        .expect("it ends");
    assert_eq!(run(anchor.hold()).unwrap(), None);
    assert!(!family.round().0.is_held);
    assert_eq!(retire(&[5]), RetirementOutcome::Done);
    assert_eq!(doomed()[4].held_since_ms, None);
}

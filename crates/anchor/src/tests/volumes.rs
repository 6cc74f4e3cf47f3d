//! Families, volumes, ownership and commits, step by step.

use super::support::{Dice, run, world};
use crate::{Anchor, AnchorError, MAX_RETAINED_ROOTS, OwnerId, Ownership, RememberedRoot, Root};
use firn_format::{FamilyId, Location, OwnershipEpoch, SegmentId, Uid, Version, VolumeId, WriterId};
use firn_table::{Fault, MemoryTable, MemoryTableClient, Table, TableError};
use std::sync::Arc;

pub(super) const VOLUME: VolumeId = VolumeId([7; 16]);
pub(super) const ALICE: OwnerId = OwnerId([0xa; 16]);
const BOB: OwnerId = OwnerId([0xb; 16]);

pub(super) struct Office {
    table: MemoryTable,
    pub(super) client: Arc<MemoryTableClient>,
    anchor: Anchor,
}

/// A family with one volume.
pub(super) fn office() -> Office {
    let env = world(Dice::new(1));
    let table = MemoryTable::new();
    let client = table.connect(&env);
    let anchor = Anchor::new(client.clone() as Arc<dyn Table>, env, FamilyId([1; 16]));
    run(anchor.create_family()).unwrap();
    run(anchor.create_volume(VOLUME, "projects")).unwrap();
    Office {
        table,
        client,
        anchor,
    }
}

pub(super) fn root(ownership: &Ownership, version: u64) -> Root {
    ownership.next_root(
        Uid([version as u8; 32]),
        Location {
            segment: SegmentId {
                writer: WriterId(1),
                sequence: version,
            },
            offset: 0,
            length: 100,
        },
        Version(version),
        [version as u8 ^ ownership.epoch().0 as u8; 16],
        1_800_000_000_000,
    )
}

impl Office {
    fn acquire(&self, owner: OwnerId) -> Result<Ownership, AnchorError> {
        run(self
            .anchor
            .acquire(VOLUME, owner, if owner == ALICE { "alice" } else { "bob" }))
    }

    fn commit(&self, ownership: &mut Ownership, version: u64) -> Result<(), AnchorError> {
        let root = root(ownership, version);
        run(self.anchor.commit(ownership, root))
    }

    pub(super) fn current_version(&self) -> Option<Version> {
        run(self.anchor.load(VOLUME))
            .unwrap()
            .0
            .root
            .map(|root| root.version)
    }
}

#[test]
fn a_family_and_a_volume_are_created_once_and_a_name_belongs_to_one_volume() {
    let office = office();
    assert!(matches!(
        run(office.anchor.create_family()),
        Err(AnchorError::FamilyExists { .. })
    ));
    let again = run(office.anchor.create_volume(VOLUME, "other"));
    assert!(
        matches!(again, Err(AnchorError::VolumeExists { .. })),
        "{again:?}"
    );
    let same_name = run(office.anchor.create_volume(VolumeId([8; 16]), "projects"));
    assert!(
        matches!(same_name, Err(AnchorError::NameTaken { .. })),
        "{same_name:?}"
    );
    run(office.anchor.create_volume(VolumeId([8; 16]), "archive")).unwrap();
    let listed: Vec<_> = run(office.anchor.volumes())
        .unwrap()
        .into_iter()
        .map(|entry| (entry.volume, entry.tuple.name))
        .collect();
    assert_eq!(
        listed,
        [(VOLUME, "projects".into()), (VolumeId([8; 16]), "archive".into())]
    );
    assert_eq!(
        run(office.anchor.volume_named("archive")).unwrap(),
        Some(VolumeId([8; 16]))
    );
    assert_eq!(run(office.anchor.volume_named("nothing")).unwrap(), None);
}

#[test]
fn a_creation_whose_reply_was_lost_is_recognised_as_our_own() {
    let office = office();
    let anchor = Anchor::new(office.client.clone(), world(Dice::new(2)), FamilyId([2; 16]));
    office.client.script([Fault::LoseReply]);
    run(anchor.create_family()).unwrap();
    office.client.script([Fault::None, Fault::LoseReply]);
    run(anchor.create_volume(VOLUME, "projects")).unwrap();
}

#[test]
fn a_volume_needs_a_family_and_a_printable_name() {
    let office = office();
    let stranger = Anchor::new(office.client.clone(), world(Dice::new(2)), FamilyId([2; 16]));
    assert!(matches!(
        run(stranger.create_volume(VOLUME, "projects")),
        Err(AnchorError::NoSuchFamily { .. })
    ));
    assert!(matches!(
        run(stranger.next_writer()),
        Err(AnchorError::NoSuchFamily { .. })
    ));
    assert!(matches!(
        run(stranger.acquire(VOLUME, ALICE, "alice")),
        Err(AnchorError::NoSuchVolume { .. })
    ));
    let long = "x".repeat(256);
    for name in ["", "two\nlines", "a/b", &long] {
        assert!(matches!(
            run(office.anchor.create_volume(VolumeId([8; 16]), name)),
            Err(AnchorError::Name(_))
        ));
    }
}

#[test]
fn a_writer_incarnation_is_never_given_twice_not_even_after_a_lost_reply_or_below_a_floor() {
    let office = office();
    assert_eq!(run(office.anchor.next_writer()).unwrap(), WriterId(1));
    office.client.script([Fault::None, Fault::LoseReply]);
    assert_eq!(
        run(office.anchor.next_writer()).unwrap(),
        WriterId(3),
        "2 was given, its reply lost"
    );
    assert_eq!(
        run(office.anchor.next_writer_above(WriterId(10))).unwrap(),
        WriterId(11)
    );
    assert_eq!(
        run(office.anchor.next_writer_above(WriterId(5))).unwrap(),
        WriterId(12)
    );
    assert!(matches!(
        run(office.anchor.next_writer_above(WriterId(u64::MAX))),
        Err(AnchorError::Damaged { .. })
    ));
}

#[test]
fn ownership_is_refused_while_another_has_it_and_says_who_and_since_when() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    office.commit(&mut alice, 1).unwrap();
    let refused = office.acquire(BOB).unwrap_err();
    let AnchorError::OwnedByOther {
        owner,
        last_committed_ms,
        ..
    } = &refused
    else {
        panic!("{refused}")
    };
    assert_eq!(
        (owner.name.as_str(), *last_committed_ms),
        ("alice", Some(1_800_000_000_000))
    );
    let words = refused.to_string();
    assert!(
        words.contains("alice") && words.contains("2027-01-15T08:00:00Z"),
        "{words}"
    );
}

#[test]
fn every_start_of_an_owner_fences_its_earlier_incarnation_within_one_tenure() {
    let office = office();
    let mut before = office.acquire(ALICE).unwrap();
    office.commit(&mut before, 1).unwrap();
    let mut after = office.acquire(ALICE).unwrap();
    assert!(after.epoch() > before.epoch());
    assert_eq!(after.tenure(), before.tenure());
    let zombie = office.commit(&mut before, 2);
    assert!(matches!(zombie, Err(AnchorError::Fenced(_))), "{zombie:?}");
    office.commit(&mut after, 2).unwrap();
}

#[test]
fn a_takeover_fences_the_owner_and_retains_the_root_its_journal_continues() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    office.commit(&mut alice, 1).unwrap();
    let alices_root = alice.root().unwrap().clone();

    let taken = run(office.anchor.takeover(VOLUME, BOB, "bob")).unwrap();
    assert_eq!(taken.previous_owner.unwrap().name, "alice");
    assert_eq!(taken.last_committed_ms, Some(1_800_000_000_000));
    let retained = taken.retained.unwrap();
    assert_eq!(
        (&retained.root, retained.fenced_epoch),
        (&alices_root, alice.epoch())
    );
    let mut bob = taken.ownership;
    office.commit(&mut bob, 2).unwrap();

    let fenced = office.commit(&mut alice, 2).unwrap_err();
    assert!(matches!(fenced, AnchorError::Fenced(_)), "{fenced}");
    assert!(fenced.to_string().contains("bob holds it"), "{fenced}");
    assert!(matches!(
        run(office.anchor.check(&alice)),
        Err(AnchorError::Fenced(_))
    ));
    run(office.anchor.check(&bob)).unwrap();

    let kept = bob.tuple().retained_for(alice.tenure()).unwrap();
    assert_eq!(kept.root, alices_root);
    run(office.anchor.forget_retained(VOLUME, alice.epoch())).unwrap();
    assert!(run(office.anchor.load(VOLUME)).unwrap().0.retained.is_empty());
    office
        .commit(&mut bob, 3)
        .expect("a change beside the root does not disturb the owner");
}

#[test]
fn after_a_takeover_the_first_owner_begins_a_new_tenure() {
    let office = office();
    let alice = office.acquire(ALICE).unwrap();
    let mut bob = run(office.anchor.takeover(VOLUME, BOB, "bob")).unwrap().ownership;
    run(office.anchor.drain(&mut bob)).unwrap();
    let back = office.acquire(ALICE).unwrap();
    assert_ne!(
        back.tenure(),
        alice.tenure(),
        "its old journal must not be replayed into the volume"
    );
}

#[test]
fn taking_over_the_own_volume_is_a_restart_and_retains_nothing() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    office.commit(&mut alice, 1).unwrap();
    let again = run(office.anchor.takeover(VOLUME, ALICE, "alice")).unwrap();
    assert_eq!(again.retained, None);
    assert_eq!(again.ownership.tenure(), alice.tenure());
    assert!(again.ownership.tuple().retained.is_empty());
    assert!(matches!(
        office.commit(&mut alice, 2),
        Err(AnchorError::Fenced(_))
    ));
}

#[test]
fn after_its_own_drain_an_owner_continues_its_tenure() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    run(office.anchor.drain(&mut alice)).unwrap();
    assert_eq!(office.acquire(ALICE).unwrap().tenure(), alice.tenure());
}

#[test]
fn a_drained_volume_goes_to_whoever_comes_next_and_its_last_owner_commits_no_more() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    office.commit(&mut alice, 1).unwrap();
    run(office.anchor.drain(&mut alice)).unwrap();
    let (tuple, _) = run(office.anchor.load(VOLUME)).unwrap();
    assert!(tuple.drained && tuple.owner.is_none());
    assert!(matches!(
        office.commit(&mut alice, 2),
        Err(AnchorError::Fenced(_))
    ));
    let mut bob = office.acquire(BOB).unwrap();
    assert!(!bob.tuple().drained && bob.tuple().retained.is_empty());
    office.commit(&mut bob, 2).unwrap();
    assert!(matches!(
        run(office.anchor.drain(&mut alice)),
        Err(AnchorError::Fenced(_))
    ));
    assert_eq!(
        run(office.anchor.load(VOLUME)).unwrap().0.owner.unwrap().name,
        "bob"
    );
}

#[test]
fn a_drain_whose_reply_was_lost_is_done() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    office.client.script([Fault::None, Fault::LoseReply]);
    run(office.anchor.drain(&mut alice)).unwrap();
    office.acquire(BOB).unwrap();
}

#[test]
fn a_commit_whose_reply_was_lost_is_read_back_and_is_a_success() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    office.client.script([Fault::LoseReply]);
    office.commit(&mut alice, 1).unwrap();
    assert_eq!(office.current_version(), Some(Version(1)));
    office.commit(&mut alice, 2).unwrap();
}

#[test]
fn a_commit_that_landed_just_before_a_takeover_is_a_success_and_the_next_one_is_fenced() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    let other = office.table.connect(&world(Dice::new(3)));
    office
        .client
        .script([Fault::LoseReply].into_iter().chain([Fault::Throttle; 40]));
    let unresolved = office.commit(&mut alice, 1).unwrap_err();
    assert!(unresolved.is_transient(), "{unresolved}");
    assert_eq!(alice.unresolved().map(|root| root.version), Some(Version(1)));

    let elsewhere = Anchor::new(other, world(Dice::new(3)), FamilyId([1; 16]));
    let mut bob = run(elsewhere.takeover(VOLUME, BOB, "bob")).unwrap().ownership;
    let next = root(&bob, 2);
    run(elsewhere.commit(&mut bob, next)).unwrap();

    office.client.set_outage(false);
    let again = alice.unresolved().unwrap().clone();
    let resolved = (0..10)
        .map(|_| run(office.anchor.commit(&mut alice, again.clone())))
        .find(|result| !matches!(result, Err(error) if error.is_transient()));
    assert!(matches!(resolved, Some(Ok(()))), "{resolved:?}");
    assert!(matches!(
        office.commit(&mut alice, 3),
        Err(AnchorError::Fenced(_))
    ));
}

#[test]
fn while_a_commit_is_in_doubt_no_other_root_is_taken() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    office.client.set_outage(true);
    assert!(office.commit(&mut alice, 1).unwrap_err().is_transient());
    let other = office.commit(&mut alice, 2);
    assert!(matches!(other, Err(AnchorError::Unresolved { .. })), "{other:?}");
    let drain = run(office.anchor.drain(&mut alice));
    assert!(matches!(drain, Err(AnchorError::Unresolved { .. })), "{drain:?}");
    office.client.set_outage(false);
    office.commit(&mut alice, 1).unwrap();
    office.commit(&mut alice, 2).unwrap();
}

#[test]
fn a_commit_still_on_its_way_when_the_volume_is_taken_over_never_lands() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    office.client.script(
        [Fault::Late { requests: 1000 }]
            .into_iter()
            .chain([Fault::Throttle; 40]),
    );
    assert!(office.commit(&mut alice, 9).is_err());
    let env = world(Dice::new(3));
    let elsewhere = Anchor::new(office.table.connect(&env), env, FamilyId([1; 16]));
    let mut bob = run(elsewhere.takeover(VOLUME, BOB, "bob")).unwrap().ownership;
    let next = root(&bob, 1);
    run(elsewhere.commit(&mut bob, next)).unwrap();
    office.table.settle();
    assert_eq!(
        run(elsewhere.load(VOLUME)).unwrap().0.root.unwrap().version,
        Version(1)
    );
}

#[test]
fn a_root_that_does_not_come_next_is_refused_before_anything_is_sent() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    office.commit(&mut alice, 5).unwrap();
    let before = office.table.counts();
    for version in [4, 5] {
        let mut unfit = root(&alice, version);
        unfit.commit_id = [0xee; 16];
        let refused = run(office.anchor.commit(&mut alice, unfit));
        assert!(
            matches!(refused, Err(AnchorError::UnfitRoot { .. })),
            "{refused:?}"
        );
    }
    let mut foreign = root(&alice, 6);
    foreign.epoch = OwnershipEpoch(99);
    assert!(matches!(
        run(office.anchor.commit(&mut alice, foreign)),
        Err(AnchorError::UnfitRoot { .. })
    ));
    assert_eq!(office.table.counts(), before);
    office
        .commit(&mut alice, 5)
        .expect("the same root once more is a success");
}

#[test]
fn a_commit_costs_one_request_and_an_idle_owner_none() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    let before = office.table.counts();
    office.commit(&mut alice, 1).unwrap();
    let after = office.table.counts();
    assert_eq!(
        (after.transactions - before.transactions, after.gets - before.gets),
        (1, 0)
    );
    assert_eq!(after.queries, before.queries);
}

#[test]
fn ownership_does_not_expire_however_long_the_owner_is_silent() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    run(office
        .anchor
        .env
        .sleep(std::time::Duration::from_secs(10 * 365 * 86_400)));
    assert!(matches!(
        office.acquire(BOB),
        Err(AnchorError::OwnedByOther { .. })
    ));
    office.commit(&mut alice, 1).unwrap();
}

#[test]
fn takeovers_that_nobody_salvages_are_bounded_and_nothing_is_dropped() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    office.commit(&mut alice, 1).unwrap();
    for number in 0..MAX_RETAINED_ROOTS {
        let (owner, name) = if number % 2 == 0 {
            (BOB, "bob")
        } else {
            (ALICE, "alice")
        };
        run(office.anchor.takeover(VOLUME, owner, name)).unwrap();
    }
    let refused = run(office.anchor.takeover(VOLUME, BOB, "bob"));
    assert!(
        matches!(refused, Err(AnchorError::TooManyRetained { .. })),
        "{refused:?}"
    );
    let (tuple, _) = run(office.anchor.load(VOLUME)).unwrap();
    assert_eq!(tuple.retained.len(), MAX_RETAINED_ROOTS);
    assert_eq!(tuple.retained[0].fenced_epoch, alice.epoch());
    run(office.anchor.forget_retained(VOLUME, alice.epoch())).unwrap();
    run(office.anchor.takeover(VOLUME, BOB, "bob")).unwrap();
}

#[test]
fn a_table_rolled_back_under_a_running_owner_is_noticed_at_its_next_commit() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    office.commit(&mut alice, 1).unwrap();
    let backup = office.table.image();
    office.commit(&mut alice, 2).unwrap();
    office.table.restore(&backup);
    let diverged = office.commit(&mut alice, 3);
    assert!(
        matches!(diverged, Err(AnchorError::Diverged { .. })),
        "{diverged:?}"
    );
}

#[test]
fn two_owners_that_reach_one_epoch_on_a_restored_table_do_not_share_it() {
    let office = office();
    let backup = office.table.image();
    let mut alice = office.acquire(ALICE).unwrap();
    office.table.restore(&backup);
    let bob = office.acquire(BOB).unwrap();
    assert_eq!(alice.epoch(), bob.epoch());
    assert!(matches!(
        office.commit(&mut alice, 1),
        Err(AnchorError::Fenced(_))
    ));
}

#[test]
fn a_remembered_root_shows_a_rolled_back_or_forked_table_and_goes_on_only_when_told() {
    let office = office();
    let mut alice = office.acquire(ALICE).unwrap();
    office.commit(&mut alice, 1).unwrap();
    let backup = office.table.image();
    let mut remembered = RememberedRoot::new(VOLUME, alice.tuple());
    assert_eq!(
        remembered.observe(alice.tuple()),
        Ok(false),
        "nothing new, nothing to store"
    );
    office.commit(&mut alice, 2).unwrap();
    assert_eq!(remembered.observe(alice.tuple()), Ok(true));
    assert_eq!(
        RememberedRoot::from_bytes(&remembered.to_bytes()),
        Ok(remembered.clone())
    );

    office.table.restore(&backup);
    let (older, _) = run(office.anchor.load(VOLUME)).unwrap();
    let rolled_back = remembered.observe(&older).unwrap_err();
    let words = rolled_back.to_string();
    assert!(
        words.contains("version 1") && words.contains("version 2") && words.contains("recover"),
        "{words}"
    );
    assert!(
        remembered.observe(&older).is_err(),
        "looking again does not accept it"
    );

    let mut again = office.acquire(ALICE).unwrap();
    let mut forked = root(&again, 2);
    forked.uid = Uid([0xff; 32]);
    run(office.anchor.commit(&mut again, forked)).unwrap();
    let same_version = remembered.observe(again.tuple()).unwrap_err();
    assert_eq!(
        same_version.found.unwrap().version,
        same_version.seen.unwrap().version
    );
}

#[test]
fn a_remembered_epoch_or_root_that_went_back_or_vanished_is_a_rollback() {
    let office = office();
    let (never_owned, _) = run(office.anchor.load(VOLUME)).unwrap();
    let mut alice = office.acquire(ALICE).unwrap();
    let owned = alice.tuple().clone();
    let mut remembered = RememberedRoot::new(VOLUME, &owned);
    assert!(remembered.clone().observe(&never_owned).is_err(), "a lower epoch");
    office.commit(&mut alice, 1).unwrap();
    remembered.observe(alice.tuple()).unwrap();
    assert!(remembered.clone().observe(&owned).is_err(), "no root any more");
    let mut newer = alice.tuple().clone();
    let root = newer.root.as_mut().unwrap();
    root.version = Version(2);
    root.epoch = OwnershipEpoch(0);
    assert!(
        remembered.observe(&newer).is_err(),
        "committed under an epoch that was over"
    );
}

#[test]
fn an_unreadable_tuple_is_reported_with_its_name_and_an_unreachable_table_as_transient() {
    let office = office();
    let sort = format!("volume/{}", VOLUME.hex());
    let key = firn_table::ItemKey::new(format!("family/{}", office.anchor.family()), &*sort);
    let item = run(office.client.get(&key)).unwrap().unwrap();
    let garbage = firn_table::Write::Put {
        key,
        value: vec![9, 9, 9].into(),
        condition: firn_table::Condition::Version(item.version),
    };
    run(office.client.transact(vec![garbage])).unwrap();
    let damaged = office.acquire(ALICE).unwrap_err();
    assert!(damaged.to_string().contains(&sort), "{damaged}");
    office.client.set_outage(true);
    let unreachable = run(office.anchor.next_writer()).unwrap_err();
    assert!(
        matches!(unreachable, AnchorError::Table(TableError::Unavailable(_))),
        "{unreachable}"
    );
}

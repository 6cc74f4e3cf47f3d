//! Leases of ranges held against a list of who holds each number, and the rules of members' records.

use super::support::Dice;
use crate::{
    ARENA_BITS, Arena, ArenaChange, LEVEL_MAX, LeaseRange, MAX_LEASE_QUEUE, MAX_LEASES, Mail, MemberChange,
    MemberCommit, MemberNumber, MemberRecord, MemberTuple, MemberWriter, OwnerId, PrincipalId, SHAPE_LEASE,
};
use firn_format::{Version, WriterId};

/// Numbers on both sides of every boundary that matters.
const NUMBERS: [u64; 9] = [0, 1, 127, 128, 255, 16_383, 16_384, 16_511, (1 << ARENA_BITS) - 1];
const HOME: u64 = 3 << 32;

fn member(number: u32) -> MemberNumber {
    MemberNumber(number)
}

fn range(inode: u64, level: u8) -> LeaseRange {
    LeaseRange::around(inode, level).expect("a level that there is")
}

fn single(inode: u64) -> LeaseRange {
    range(inode, 0)
}

fn holders(arena: &Arena, base: u64) -> Vec<Option<MemberNumber>> {
    let numbers = NUMBERS.iter().map(|number| single(base + number));
    numbers
        .map(|range| arena.holder(range).expect("one number"))
        .collect()
}

fn present() -> MemberRecord {
    MemberRecord {
        incarnation: Some(WriterId(7)),
        ..MemberRecord::default()
    }
}

#[test]
fn ranges_are_aligned_and_cover_what_they_say() {
    assert_eq!(range(HOME + 300, 1).first(), 256);
    assert_eq!(range(HOME + 300, 1).numbers(), 128);
    assert_eq!(range(HOME + 300, LEVEL_MAX).numbers(), 1 << ARENA_BITS);
    assert!(range(HOME + 300, 1).covers(single(HOME + 383)));
    assert!(!range(HOME + 300, 1).covers(single(HOME + 384)));
    assert!(!single(HOME).covers(range(HOME, 1)));
    assert_eq!(LeaseRange::around(HOME, LEVEL_MAX + 1), None);
}

#[test]
fn what_has_no_entry_is_homes_and_below_the_first_home_nobodys() {
    assert_eq!(Arena::around(HOME + 5).home(), Some(member(3)));
    assert_eq!(
        Arena::around(HOME + (1 << ARENA_BITS)).number(),
        Arena::around(HOME).number() + 1
    );
    let reserved = Arena::around(SHAPE_LEASE);
    assert_eq!(reserved.home(), None);
    let taken = reserved.changed(ArenaChange::Take, single(SHAPE_LEASE), member(1));
    let given = taken
        .unwrap()
        .changed(ArenaChange::Give, single(SHAPE_LEASE), member(1));
    assert_eq!(given.unwrap(), reserved, "nobody's again, without a trace");
}

/// Whatever was accepted, of each number the holder is who the change says, and of all others nothing changed.
#[test]
fn changes_of_ranges_change_these_numbers_and_no_others() {
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..400 {
        let dice = Dice::new(seed);
        let base = if seed % 2 == 0 { HOME } else { 0 };
        let mut arena = Arena::around(base);
        for _ in 0..60 {
            let inode = base + NUMBERS[dice.roll(NUMBERS.len() as u64) as usize];
            let range = range(inode, dice.roll(u64::from(LEVEL_MAX) + 1) as u8);
            let (who, other) = (member(1 + dice.roll(4) as u32), member(1 + dice.roll(4) as u32));
            let before = holders(&arena, base);
            let first_waiting = arena.queue(range).first().copied();
            let away = MemberRecord {
                is_away: true,
                ..present()
            };
            let (changed, expected) = match dice.roll(8) {
                0 => (arena.changed(ArenaChange::Take, range, who), Some(Some(who))),
                1 | 2 => (arena.changed(ArenaChange::Want, range, who), None),
                3 => (arena.changed(ArenaChange::Withdraw, range, who), None),
                4 => {
                    let given = arena.changed(ArenaChange::Give, range, who);
                    (given, Some(first_waiting.or(arena.home())))
                }
                5 => {
                    let taken = arena.taken_from_absent(range, who, (other, &away));
                    (taken, Some(Some(who)))
                }
                6 => (arena.taken_from_nobody(range, who), Some(Some(who))),
                _ => {
                    let broken = arena.broken(range, who, (other, &present()));
                    (broken.map(|(arena, _)| arena), Some(Some(who)))
                }
            };
            let Ok(changed) = changed else {
                refused += 1;
                continue;
            };
            accepted += 1;
            for (place, number) in NUMBERS.iter().enumerate() {
                let after = holders(&changed, base)[place];
                let in_range = range.covers(single(base + number));
                let expected = expected.filter(|_| in_range).unwrap_or(before[place]);
                assert_eq!(after, expected, "seed {seed}: {range:?} of {arena:?}");
            }
            for lease in changed.leases() {
                let of_range = changed.leases().iter().filter(|other| other.range == lease.range);
                assert_eq!(of_range.count(), 1, "seed {seed}: {changed:?}");
                let is_own = lease.holder.is_some_and(|holder| lease.queue.contains(&holder));
                assert!(
                    !is_own,
                    "seed {seed}: a holder waits for what it has: {changed:?}"
                );
            }
            assert!(changed.leases().is_sorted_by_key(|lease| lease.range));
            arena = changed;
        }
    }
    assert!(
        accepted > 5_000 && refused > 5_000,
        "{accepted} accepted, {refused} refused"
    );
}

#[test]
fn nobody_takes_what_another_holds_even_a_part_of_it() {
    let arena = Arena::around(HOME);
    let wide = range(HOME + 5, 1);
    assert!(
        arena
            .changed(ArenaChange::Take, single(HOME + 5), member(1))
            .is_err()
    );
    let wanted = arena
        .changed(ArenaChange::Want, single(HOME + 5), member(1))
        .unwrap();
    let given = wanted
        .changed(ArenaChange::Give, single(HOME + 5), member(3))
        .unwrap();
    assert!(given.holder(wide).is_err(), "two hold parts");
    assert!(given.changed(ArenaChange::Want, wide, member(2)).is_err());
    assert!(given.changed(ArenaChange::Give, wide, member(3)).is_err());
    let away = MemberRecord {
        is_away: true,
        ..present()
    };
    assert!(
        given
            .taken_from_absent(wide, member(2), (member(3), &away))
            .is_err()
    );
    let all = given
        .taken_from_absent(wide, member(1), (member(3), &away))
        .unwrap();
    assert_eq!(all.leases().len(), 1, "one lease instead of many");
}

#[test]
fn of_a_home_without_a_member_all_is_taken_that_no_member_holds() {
    let arena = Arena::around(HOME);
    let wide = range(HOME + 5, 1);
    let one = arena.taken_from_nobody(single(HOME + 5), member(1)).unwrap();
    assert_eq!(one.holder(single(HOME + 5)), Ok(Some(member(1))));
    assert!(one.taken_from_nobody(single(HOME + 5), member(2)).is_err());
    assert!(
        one.taken_from_nobody(wide, member(2)).is_err(),
        "a part is another's"
    );
    let all = one.taken_from_nobody(wide, member(1)).unwrap();
    assert_eq!(all.leases().len(), 1, "one lease instead of many");
    let given = all.changed(ArenaChange::Give, wide, member(1)).unwrap();
    assert_eq!(given, arena, "nobody's again, without a trace");
}

#[test]
fn a_part_that_others_wait_for_is_given_before_the_whole() {
    let waited = Arena::around(HOME)
        .changed(ArenaChange::Want, single(HOME + 5), member(1))
        .and_then(|arena| arena.changed(ArenaChange::Want, range(HOME, 1), member(2)))
        .unwrap();
    assert!(
        waited
            .changed(ArenaChange::Give, range(HOME, 1), member(3))
            .is_err()
    );
    let given = waited
        .changed(ArenaChange::Give, single(HOME + 5), member(3))
        .unwrap();
    assert_eq!(given.holder(single(HOME + 5)), Ok(Some(member(1))));
}

#[test]
fn queues_and_arenas_are_bounded() {
    let mut arena = Arena::around(HOME);
    for waiting in 0..MAX_LEASE_QUEUE as u32 {
        arena = arena
            .changed(ArenaChange::Want, single(HOME), member(10 + waiting))
            .unwrap();
    }
    assert!(arena.changed(ArenaChange::Want, single(HOME), member(9)).is_err());
    assert_eq!(
        arena
            .changed(ArenaChange::Want, single(HOME), member(10))
            .unwrap(),
        arena,
        "who waits keeps its place"
    );
    let mut full = Arena::around(HOME);
    for number in 0..MAX_LEASES as u64 {
        full = full
            .changed(ArenaChange::Want, single(HOME + number), member(1))
            .unwrap();
    }
    assert!(
        full.changed(ArenaChange::Want, single(HOME + 4096), member(1))
            .is_err()
    );
    let given = full
        .changed(ArenaChange::Withdraw, single(HOME), member(1))
        .unwrap();
    assert!(
        given
            .changed(ArenaChange::Want, single(HOME + 4096), member(1))
            .is_ok()
    );
}

#[test]
fn only_a_member_that_is_there_is_broken_and_only_one_that_is_not_is_taken_from() {
    let arena = Arena::around(HOME);
    let (lease, holder) = (single(HOME), member(3));
    assert!(
        arena
            .taken_from_absent(lease, member(1), (holder, &present()))
            .is_err()
    );
    let (taken, record) = arena.broken(lease, member(1), (holder, &present())).unwrap();
    assert_eq!(taken.holder(lease), Ok(Some(member(1))));
    assert_eq!(record.incarnation, None);
    assert!(arena.broken(lease, member(1), (holder, &record)).is_err(), "once");
    assert!(
        arena
            .taken_from_absent(lease, member(2), (holder, &record))
            .is_ok()
    );
    assert!(
        arena.broken(lease, member(1), (member(2), &present())).is_err(),
        "not by breaking somebody else"
    );
}

#[test]
fn a_record_changes_for_the_incarnation_that_runs_and_no_other() {
    let commit = MemberCommit {
        commit_id: [1; 16],
        version: Version(5),
        sequence: 6,
    };
    let (old, new) = (WriterId(7), WriterId(8));
    let record = present();
    assert!(MemberChange::Start { incarnation: old }.apply(&record).is_err());
    let started = MemberChange::Start { incarnation: new }.apply(&record).unwrap();
    for change in [
        MemberChange::Beat { incarnation: old },
        MemberChange::Commit {
            incarnation: old,
            commit,
        },
        MemberChange::Leave { incarnation: old },
    ] {
        assert!(change.apply(&started).is_err(), "{change:?}");
    }
    let committed = MemberChange::Commit {
        incarnation: new,
        commit,
    }
    .apply(&started)
    .unwrap();
    assert!(committed.records_commit(&[1; 16]) && !committed.records_commit(&[2; 16]));
    assert!(committed.beats > started.beats, "a commit is a sign of life");
    let away = MemberChange::Leave { incarnation: new }
        .apply(&committed)
        .unwrap();
    assert!(away.is_absent());
    assert!(
        MemberChange::Commit {
            incarnation: new,
            commit
        }
        .apply(&away)
        .is_err()
    );
    let back = MemberChange::Return { incarnation: new }.apply(&away).unwrap();
    assert!(!back.is_absent() && back.records_commit(&[1; 16]));
    assert!(MemberChange::Return { incarnation: new }.apply(&back).is_err());
    let (_, broken) = Arena::around(HOME)
        .broken(single(HOME), member(1), (member(3), &back))
        .unwrap();
    assert!(MemberChange::Beat { incarnation: new }.apply(&broken).is_err());
    assert!(started.given_up(7).is_err(), "it is there");
    let given_up = broken.given_up(7).unwrap();
    let incarnation = WriterId(9);
    let started = MemberChange::Start { incarnation }.apply(&given_up).unwrap();
    assert_eq!(started.given_up_at_ms, Some(7), "a start alone does not end it");
    let change = MemberChange::Commit { incarnation, commit };
    assert_eq!(change.apply(&started).unwrap().given_up_at_ms, None);
}

fn crowded() -> Arena {
    Arena::around(HOME)
        .changed(ArenaChange::Want, single(HOME + 1), member(1))
        .and_then(|arena| arena.changed(ArenaChange::Give, single(HOME + 1), member(3)))
        .and_then(|arena| arena.changed(ArenaChange::Want, single(HOME + 1), member(2)))
        .and_then(|arena| arena.changed(ArenaChange::Want, range(HOME + 16_384, 2), member(0x0102_0304)))
        .expect("each fits")
}

#[test]
fn an_arena_is_these_bytes_and_nothing_else_is_read_as_one() {
    let arena = crowded();
    let bytes = arena.to_bytes(&[0x77; 16]);
    let expected = concat!(
        "014c00",
        "77777777777777777777777777777777",
        "0018000000000000",
        "0200",
        "01000000",
        "00",
        "01000000",
        "01",
        "02000000",
        "00400000",
        "02",
        "03000000",
        "01",
        "04030201",
    );
    assert_eq!(data_encoding::HEXLOWER.encode(&bytes), expected);
    assert_eq!(Arena::from_bytes(&bytes), Ok((arena, [0x77; 16])));
    for length in 0..bytes.len() {
        assert!(Arena::from_bytes(&bytes[..length]).is_err(), "cut at {length}");
    }
    assert!(Arena::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    let first = 3 + 16 + 8 + 2;
    for (place, value) in [
        (0, 2),          // another layout
        (1, b'H'),       // another kind
        (2, 1),          // a flag
        (26, 0x80),      // an arena beyond all numbers
        (28, 3),         // more leases than may be
        (first + 4, 4),  // a level that there is not
        (first + 4, 1),  // a range that is not aligned
        (first + 3, 1),  // a range beyond the arena
        (first + 9, 17), // too many wait
        (first + 10, 0), // nobody waits
        (first + 10, 1), // the holder waits
    ] {
        let mut changed = bytes.clone();
        changed[place] = value;
        assert!(Arena::from_bytes(&changed).is_err(), "{value} at {place}");
    }
    let mut crowd = bytes[..first + 14].to_vec();
    (crowd[27], crowd[first + 9]) = (1, MAX_LEASE_QUEUE as u8);
    crowd.extend((1..MAX_LEASE_QUEUE as u32).flat_map(|waiting| (100 + waiting).to_le_bytes()));
    assert!(Arena::from_bytes(&crowd).is_ok(), "sixteen wait");
    crowd[first + 9] += 1;
    crowd.extend(99_u32.to_le_bytes());
    assert!(Arena::from_bytes(&crowd).is_err(), "one too many waits");
    let mut swapped = bytes[..first].to_vec();
    swapped.extend_from_slice(&bytes[first + 14..]);
    swapped.extend_from_slice(&bytes[first..first + 14]);
    assert!(Arena::from_bytes(&swapped).is_err(), "leases out of order");
}

#[test]
fn a_members_record_is_these_bytes_and_nothing_else_is_read_as_one() {
    let record = MemberRecord {
        incarnation: Some(WriterId(7)),
        is_away: true,
        beats: 8,
        last_commit: Some(MemberCommit {
            commit_id: [0x11; 16],
            version: Version(9),
            sequence: 10,
        }),
        broken: None,
        given_up_at_ms: None,
    };
    let tuple = MemberTuple {
        edge: OwnerId([0x22; 16]),
        name: "büro".into(),
        principal: Some(PrincipalId([0x33; 16])),
        record,
        change_id: [0x77; 16],
    };
    let bytes = tuple.to_bytes();
    let expected = concat!(
        "014d0f",
        "77777777777777777777777777777777",
        "22222222222222222222222222222222",
        "0562c3bc726f",
        "33333333333333333333333333333333",
        "0800000000000000",
        "0700000000000000",
        "11111111111111111111111111111111",
        "0900000000000000",
        "0a00000000000000",
    );
    assert_eq!(data_encoding::HEXLOWER.encode(&bytes), expected);
    assert_eq!(MemberTuple::from_bytes(&bytes), Ok(tuple.clone()));
    for length in 0..bytes.len() {
        assert!(
            MemberTuple::from_bytes(&bytes[..length]).is_err(),
            "cut at {length}"
        );
    }
    assert!(MemberTuple::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    for (place, value) in [(0, 2), (1, b'L'), (2, 0x1f), (2, 0x2f), (2, 0x4f)] {
        let mut changed = bytes.to_vec();
        changed[place] = value;
        assert!(MemberTuple::from_bytes(&changed).is_err(), "{value} at {place}");
    }
    let broken = MemberTuple {
        record: MemberRecord {
            incarnation: None,
            is_away: false,
            broken: Some(WriterId(7)),
            ..tuple.record.clone()
        },
        ..tuple.clone()
    };
    let mut changed = bytes.to_vec();
    changed[2] = 0x1c;
    assert_eq!(
        data_encoding::HEXLOWER.encode(&broken.to_bytes()),
        data_encoding::HEXLOWER.encode(&changed)
    );
    assert_eq!(MemberTuple::from_bytes(&changed), Ok(broken.clone()));
    let given_up = MemberTuple {
        record: MemberRecord {
            given_up_at_ms: Some(11),
            ..tuple.record.clone()
        },
        ..tuple.clone()
    };
    let with_time = given_up.to_bytes();
    assert_eq!(with_time[..2], bytes[..2]);
    assert_eq!(with_time[2], 0x2f);
    assert_eq!(with_time[3..bytes.len()], bytes[3..]);
    assert_eq!(with_time[bytes.len()..], [11, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(MemberTuple::from_bytes(&with_time), Ok(given_up));
    let both = MemberTuple {
        record: MemberRecord {
            given_up_at_ms: Some(11),
            ..broken.record.clone()
        },
        ..tuple.clone()
    };
    let mut with_time = with_time.to_vec();
    with_time[2] = 0x3c;
    assert_eq!(both.to_bytes()[..], with_time[..]);
    assert_eq!(MemberTuple::from_bytes(&with_time), Ok(both));
    let none = MemberTuple {
        principal: None,
        record: MemberRecord::default(),
        ..tuple
    };
    assert_eq!(MemberTuple::from_bytes(&none.to_bytes()), Ok(none));
}

#[test]
fn mail_is_these_bytes_and_nothing_else_is_read_as_it() {
    let mail = Mail {
        bumps: 0x0102,
        change_id: [0x77; 16],
    };
    let bytes = mail.to_bytes();
    let expected = concat!("014200", "77777777777777777777777777777777", "0201000000000000");
    assert_eq!(data_encoding::HEXLOWER.encode(&bytes), expected);
    assert_eq!(Mail::from_bytes(&bytes), Ok(mail));
    for length in 0..bytes.len() {
        assert!(Mail::from_bytes(&bytes[..length]).is_err(), "cut at {length}");
    }
    for place in 0..3 {
        let mut changed = bytes.to_vec();
        changed[place] ^= 0x40;
        assert!(Mail::from_bytes(&changed).is_err(), "at {place}");
    }
}

#[test]
fn a_writer_that_is_over_stays_over_whatever_becomes_of_its_member() {
    let (first, second, third) = (WriterId(7), WriterId(9), WriterId(11));
    let start = |incarnation| MemberChange::Start { incarnation };
    let commit = MemberCommit {
        commit_id: [1; 16],
        version: Version(3),
        sequence: 4,
    };
    let drawn = MemberRecord::default();
    assert_eq!(drawn.writer(first), MemberWriter::NotStarted);
    let record = start(second).apply(&drawn).expect("its first start");
    assert_eq!(record.writer(first), MemberWriter::Over, "it comes too late");
    assert_eq!(record.writer(second), MemberWriter::Commits { up_to: None });
    let incarnation = second;
    let record = MemberChange::Commit { incarnation, commit }
        .apply(&record)
        .expect("it is present");
    assert_eq!(record.writer(second), MemberWriter::Commits { up_to: Some(4) });
    let broken = record.broken().expect("it is present");
    assert_eq!(broken.writer(second), MemberWriter::Over);
    for late in [first, second] {
        assert!(
            start(late).apply(&broken).is_err(),
            "a start that comes after the break"
        );
    }
    let again = start(third).apply(&broken).expect("a new one");
    assert_eq!(again.writer(second), MemberWriter::Over);
    let none = MemberWriter::Commits { up_to: None };
    assert_eq!(
        again.writer(third),
        none,
        "what the one before committed lay in another log"
    );
}

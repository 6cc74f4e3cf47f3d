//! A file system that several offices lock by turns.

use super::*;

const THERE: [u8; 16] = [7; 16];

fn office(locks: &[(u64, (u64, u64), bool, bool)]) -> Office {
    let lock = |(inode, (first, last), exclusive, waits): &(u64, (u64, u64), bool, bool)| OfficeLock {
        inode: *inode,
        range: ByteRange {
            first: *first,
            last: *last,
        },
        exclusive: *exclusive,
        waits: *waits,
    };
    Office {
        id: THERE,
        name: "there".into(),
        locks: locks.iter().map(lock).collect(),
    }
}

fn held_there(first: u64, last: u64) -> Office {
    office(&[(1, (first, last), true, false)])
}

fn shared() -> (LockTable, OfficeLocks) {
    let table = table();
    let offices = table.between_offices(1);
    (table, offices)
}

fn opened() -> (LockTable, OfficeLocks) {
    let (table, offices) = shared();
    offices.open(Arc::new(|| true));
    (table, offices)
}

#[test]
fn a_closed_table_grants_nothing_and_says_that_the_volume_is_wanted() {
    let (table, offices) = opened();
    table.lock(&write("a", 0, 9)).expect("free");
    let reads = LockRequest {
        file: file(2),
        ..read("b", 0, 9)
    };
    table.lock(&reads).expect("free");
    offices.close();
    assert_eq!(table.lock(&write("b", 20, 29)), Err(LockError::Away));
    assert!(offices.is_wanted());
    assert_eq!(table.test(&write("b", 20, 29)), Err(LockError::Away));
    assert!(
        offices.is_wanted() && !offices.is_wanted(),
        "once for each request"
    );
    // What a client here has is known for certain.
    assert!(matches!(
        table.lock(&write("b", 5, 5)),
        Err(LockError::Conflict(_))
    ));
    assert!(!offices.is_wanted());
    let mut waiter = wait(&table, &write("b", 5, 5));
    assert!(!offices.is_wanted(), "a client here is in its way");
    table.unlock(file(1), &owner("a"), ByteRange::ALL);
    assert!((&mut waiter).now_or_never().is_none(), "nobody grants");
    assert!(offices.is_wanted());
    // Other file systems are not concerned.
    let elsewhere = LockRequest {
        file: FileHandle {
            file_system: 2,
            inode: 1,
        },
        ..write("a", 0, 9)
    };
    table.lock(&elsewhere).expect("free");
    offices.open(Arc::new(|| true));
    assert!(matches!((&mut waiter).now_or_never(), Some(Ok(()))));
    let own: Vec<_> = offices
        .own()
        .iter()
        .map(|lock| (lock.inode, lock.range.first, lock.exclusive, lock.waits))
        .collect();
    assert_eq!(own, [(1, 5, true, false), (2, 0, false, false)]);
}

#[test]
fn what_other_offices_hold_is_in_the_way_until_they_have_unlocked_it() {
    let (table, offices) = shared();
    offices.set_others(vec![held_there(0, 9)]);
    offices.open(Arc::new(|| true));
    let refused = table.lock(&write("a", 5, 14));
    let Err(LockError::Conflict(holder)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(holder.owner.client.as_office(), Some((THERE, "there".to_owned())));
    assert_eq!(offices.take_in_the_way(), BTreeSet::from([THERE]));
    assert_eq!(offices.take_in_the_way(), BTreeSet::new());
    let mut waiter = wait(&table, &write("a", 5, 14));
    assert_eq!(offices.take_in_the_way(), BTreeSet::from([THERE]));
    offices.set_others(vec![held_there(0, 4)]);
    assert!(matches!((&mut waiter).now_or_never(), Some(Ok(()))));
    assert!(table.lock(&write("b", 0, 0)).is_err());
    offices.set_others(Vec::new());
    table.lock(&write("b", 0, 0)).expect("free");
    assert_eq!(table.counts().locks, 2);
}

#[test]
fn another_offices_wait_stands_in_the_queue_and_is_reserved_at_its_turn() {
    let (table, offices) = opened();
    table.lock(&write("a", 0, 9)).expect("free");
    let waits = office(&[(1, (0, 9), true, true)]);
    offices.set_others(vec![waits.clone()]);
    let mut behind = wait(&table, &write("b", 0, 9));
    table.unlock(file(1), &owner("a"), ByteRange::ALL);
    // Neither who came later, nor who comes without waiting, gets in between.
    assert!((&mut behind).now_or_never().is_none());
    assert!(table.lock(&write("a", 0, 9)).is_err());
    offices.set_others(vec![
        waits,
        Office {
            id: [8; 16],
            ..office(&[(2, (0, 0), true, true)])
        },
    ]);
    assert!((&mut behind).now_or_never().is_none(), "kept over looks");
    // It does not wait any more.
    offices.set_others(Vec::new());
    assert!(matches!((&mut behind).now_or_never(), Some(Ok(()))));
    // A part of what one waits for is one's own: an office gives way as others do.
    offices.set_others(vec![office(&[(1, (0, 19), true, true)])]);
    table.lock(&write("b", 10, 19)).expect("a non-blocking request");
    assert!(matches!(table.lock_or_wait(&write("b", 20, 29)), Ok(Locked::Now)));
}

#[test]
fn what_one_client_of_an_office_waits_for_takes_nothing_from_what_another_one_has() {
    let (table, offices) = opened();
    offices.set_others(vec![office(&[
        (1, (0, 9), true, false),
        (1, (0, 9), false, true),
    ])]);
    assert!(table.lock(&read("a", 5, 5)).is_err(), "held for writing there");
    offices.set_others(vec![office(&[(1, (0, 9), true, true), (1, (0, 9), false, true)])]);
    assert!(
        table.lock(&read("a", 5, 5)).is_err(),
        "reserved for writing there"
    );
}

#[test]
fn nothing_is_granted_by_a_lease_that_has_lapsed() {
    let (table, offices) = shared();
    let holds = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let lease = holds.clone();
    offices.open(Arc::new(move || lease.load(std::sync::atomic::Ordering::SeqCst)));
    table.lock(&write("a", 0, 9)).expect("free");
    holds.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(table.lock(&write("a", 20, 29)), Err(LockError::Away));
    let mut waiter = wait(&table, &write("b", 0, 9));
    table.unlock(file(1), &owner("a"), ByteRange::ALL);
    assert!((&mut waiter).now_or_never().is_none());
    holds.store(true, std::sync::atomic::Ordering::SeqCst);
    offices.serve();
    assert!(matches!((&mut waiter).now_or_never(), Some(Ok(()))));
}

#[test]
fn what_is_not_kept_is_broken_and_its_owner_is_named() {
    let (table, offices) = opened();
    table.lock(&write("a", 0, 9)).expect("free");
    table.lock(&write("b", 20, 29)).expect("free");
    offices.close();
    let broken = offices.keep_only(|lock| lock.range.first == 20);
    assert_eq!(
        broken,
        [BrokenLock {
            file: file(1),
            owner: owner("a")
        }]
    );
    assert_eq!(held(&table, 1), [("b".to_owned(), 20, 29, true)]);
}

#[test]
fn reclaims_are_admitted_as_far_as_others_respect_them() {
    let (table, offices) = shared();
    table.start_grace();
    assert_eq!(table.reclaim(&write("a", 0, 9)), Err(LockError::Away));
    let respected = office(&[(1, (0, 9), true, false), (1, (10, 19), false, false)]).locks;
    offices.set_reclaims(Reclaims::Covered(respected));
    table.reclaim(&write("a", 2, 3)).expect("covered");
    table.reclaim(&read("b", 5, 15)).expect("covered, for reading");
    for request in [write("c", 9, 10), read("c", 15, 20)] {
        assert_eq!(table.reclaim(&request), Err(LockError::GraceOver), "{request:?}");
    }
    offices.set_reclaims(Reclaims::All);
    table
        .reclaim(&write("c", 100, 200))
        .expect("nobody else had the volume");
    table.end_grace();
    // Who was told that locks were broken asks again for all.
    table.reclaim(&write("c", 100, 200)).expect("it has it");
    assert_eq!(table.reclaim(&write("c", 100, 201)), Err(LockError::GraceOver));
}

#[test]
fn what_other_offices_wait_for_is_served_once_clients_here_have_taken_theirs_again() {
    let reclaimed = || {
        let (table, offices) = shared();
        table.start_grace();
        offices.set_reclaims(Reclaims::All);
        let waits = office(&[(1, (0, 9), true, true), (2, (0, 9), true, true)]);
        offices.set_others(vec![waits]);
        offices.open(Arc::new(|| true));
        let reclaimed = table.reclaim(&write("a", 0, 9)).is_ok();
        table.end_grace();
        (table, reclaimed)
    };
    let (table, is_reclaimed) = reclaimed();
    assert!(is_reclaimed, "it only waits there");
    let free = LockRequest {
        file: file(2),
        ..write("a", 0, 9)
    };
    assert!(
        table.lock(&free).is_err(),
        "reserved from the end of the grace period on"
    );
    let bug = Some("session.grace_serves_other_offices");
    assert!(!firn_env::mutants::planting(bug, reclaimed).1);
}

#[test]
fn what_travels_is_bounded_and_an_unlock_is_never_refused() {
    let (table, offices) = opened();
    let mut granted = 0;
    while table.lock(&write("a", granted * 10, granted * 10 + 2)).is_ok() {
        granted += 1;
    }
    assert_eq!((granted, offices.own().len()), (255, 255));
    assert_eq!(table.lock(&write("b", 1 << 40, 1 << 40)), Err(LockError::TooMany));
    assert!(matches!(
        table.lock_or_wait(&write("b", 0, 0)),
        Err(LockError::TooMany)
    ));
    for number in 0..granted {
        let middle = number * 10 + 1;
        table.unlock(
            file(1),
            &owner("a"),
            ByteRange {
                first: middle,
                last: middle,
            },
        );
    }
    let own = offices.own();
    let whole = ByteRange {
        first: 0,
        last: (granted - 1) * 10 + 2,
    };
    assert_eq!(own.iter().map(|lock| lock.range).collect::<Vec<_>>(), [whole]);
    let many = |number| Office {
        id: [number; 16],
        ..held_there(5000, 5001)
    };
    table.unlock(file(1), &owner("a"), ByteRange::ALL);
    offices.set_others((0..16).map(many).collect());
    assert_eq!(table.lock(&write("a", 0, 0)), Err(LockError::TooMany));
}

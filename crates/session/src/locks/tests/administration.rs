//! Administration of the lock table: what is seen of it, and taken away.

use super::*;

#[test]
fn an_administrator_sees_what_is_held_and_takes_away_what_one_client_holds() {
    let table = table();
    table.lock(&write("a", 0, 9)).unwrap();
    table.lock(&read("b", 20, u64::MAX)).unwrap();
    let elsewhere = LockRequest {
        file: file(2),
        ..read("a", 0, 0)
    };
    table.lock(&elsewhere).unwrap();
    let deny = ShareMode {
        read: true,
        deny_write: true,
        ..ShareMode::default()
    };
    table.share(file(1), &owner("a"), deny).unwrap();
    let mut waiter = wait(&table, &write("c", 5, 30));

    let (held, all) = table.held_in(1, 10);
    assert_eq!((held.len(), all), (4, 4));
    assert_eq!(table.held_in(1, 2).0, held[..2]);
    assert_eq!(table.held_in(1, 2).1, 4);
    assert_eq!(table.held_in(2, 10), (vec![], 0));
    let of_a = |lock: &&HeldLock| lock.file == file(1) && lock.holder.owner == owner("a");
    let of_a: Vec<_> = held.iter().filter(of_a).collect();
    assert_eq!(
        (of_a[0].holder.range, of_a[0].share),
        (ByteRange { first: 0, last: 9 }, None)
    );
    assert_eq!(
        (of_a[1].holder.range, of_a[1].share),
        (ByteRange::ALL, Some(deny))
    );
    assert!(
        held.iter()
            .all(|lock| lock.waiting == usize::from(lock.file == file(1)))
    );

    assert_eq!(table.break_locks(file(1), &client("z")), vec![]);
    assert_eq!(table.break_locks(file(1), &client("a")), vec![owner("a")]);
    assert!(
        (&mut waiter).now_or_never().is_none(),
        "the other client is in the way still"
    );
    assert_eq!(table.break_locks(file(1), &client("b")), vec![owner("b")]);
    assert_eq!((&mut waiter).now_or_never(), Some(Ok(())));
    assert_eq!(table.holders(file(2)).len(), 1, "other files are as they were");
    assert_eq!(table.counts().locks, 2);
}

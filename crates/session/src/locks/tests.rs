//! The lock table against a model that keeps every byte by itself, and what humans must understand as examples.

mod administration;
mod offices;

use super::*;
use futures::FutureExt;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn file(inode: u64) -> FileHandle {
    FileHandle {
        file_system: 1,
        inode,
    }
}

fn client(name: &str) -> LockClient {
    LockClient {
        protocol: LockProtocol::Nlm,
        name: Bytes::copy_from_slice(name.as_bytes()),
    }
}

fn owner(name: &str) -> LockOwner {
    LockOwner {
        client: client(&name[..1]),
        owner: Bytes::copy_from_slice(name.as_bytes()),
    }
}

fn request(who: &str, first: u64, last: u64, exclusive: bool) -> LockRequest {
    LockRequest {
        file: file(1),
        owner: owner(who),
        range: ByteRange { first, last },
        exclusive,
    }
}

fn read(who: &str, first: u64, last: u64) -> LockRequest {
    request(who, first, last, false)
}

fn write(who: &str, first: u64, last: u64) -> LockRequest {
    request(who, first, last, true)
}

fn table() -> LockTable {
    LockTable::new(LockLimits::default())
}

fn wait(table: &LockTable, request: &LockRequest) -> LockWaiter {
    match table.lock_or_wait(request) {
        Ok(Locked::Later(waiter)) => waiter,
        other => panic!("expected to wait, got {other:?}"),
    }
}

fn held(table: &LockTable, inode: u64) -> Vec<(String, u64, u64, bool)> {
    table
        .holders(file(inode))
        .into_iter()
        .map(|holder| {
            let name = String::from_utf8_lossy(&holder.owner.owner).into_owned();
            (name, holder.range.first, holder.range.last, holder.exclusive)
        })
        .collect()
}

#[test]
fn a_new_lock_replaces_splits_and_merges_what_its_owner_holds() {
    let table = table();
    table.lock(&write("a", 0, 99)).expect("free");
    table.lock(&read("a", 40, 59)).expect("its own");
    let a = || "a".to_owned();
    assert_eq!(
        held(&table, 1),
        [(a(), 0, 39, true), (a(), 40, 59, false), (a(), 60, 99, true)]
    );
    table.unlock(file(1), &owner("a"), ByteRange { first: 45, last: 49 });
    assert_eq!(table.counts().locks, 4);
    table.lock(&write("a", 40, 59)).expect("its own");
    assert_eq!(held(&table, 1), [(a(), 0, 99, true)]);
    table.lock(&write("a", 100, u64::MAX)).expect("free");
    assert_eq!(held(&table, 1), [(a(), 0, u64::MAX, true)]);
    table.unlock(file(1), &owner("a"), ByteRange::ALL);
    assert_eq!(table.counts(), LockCounts::default());
}

#[test]
fn a_conflict_names_the_first_lock_in_the_way() {
    let table = table();
    table.lock(&read("a", 10, 19)).expect("free");
    table.lock(&write("b", 20, 29)).expect("free");
    assert_eq!(table.test(&read("c", 0, 19)), Ok(()));
    let Err(LockError::Conflict(holder)) = table.lock(&read("c", 0, 99)) else {
        panic!("the writer is in the way");
    };
    assert_eq!((holder.owner, holder.exclusive), (owner("b"), true));
    let Err(LockError::Conflict(holder)) = table.test(&write("c", 0, 99)) else {
        panic!("the reader is in the way");
    };
    assert_eq!(holder.range, ByteRange { first: 10, last: 19 });
    assert_eq!(table.test(&write("a", 0, 19)), Ok(()), "its own lock is not");
}

#[test]
fn waiters_are_served_in_order_and_a_later_reader_does_not_pass_a_waiting_writer() {
    let table = table();
    table.lock(&read("a", 0, 9)).expect("free");
    let mut writer = wait(&table, &write("b", 0, 9));
    let mut reader = wait(&table, &read("c", 0, 9));
    assert_eq!(
        table.lock(&read("d", 0, 9)),
        Ok(()),
        "a request that does not wait is judged by what is held"
    );
    table.unlock(file(1), &owner("d"), ByteRange::ALL);
    table.unlock(file(1), &owner("a"), ByteRange::ALL);
    assert_eq!((&mut writer).now_or_never(), Some(Ok(())));
    assert_eq!((&mut reader).now_or_never(), None);
    table.unlock(file(1), &owner("b"), ByteRange::ALL);
    assert_eq!(reader.now_or_never(), Some(Ok(())));
}

#[test]
fn fairness_gives_way_where_it_would_make_owners_wait_in_a_circle() {
    let table = table();
    table.lock(&read("a", 0, 9)).expect("free");
    let writer = wait(&table, &write("b", 0, 9));
    assert!(
        matches!(table.lock_or_wait(&read("a", 5, 15)), Ok(Locked::Now)),
        "the writer waits for this very owner"
    );
    drop(writer);

    // The circle closes later: c queues behind the writer b, and then a, for whom b waits, waits for c.
    let writer = wait(&table, &write("b", 0, 9));
    let elsewhere = LockRequest {
        file: file(2),
        ..write("c", 0, 0)
    };
    table.lock(&elsewhere).expect("free");
    let mut reader = wait(&table, &read("c", 0, 3));
    let second = LockRequest {
        file: file(2),
        ..write("a", 0, 0)
    };
    let _blocked = wait(&table, &second);
    assert_eq!((&mut reader).now_or_never(), Some(Ok(())));
    drop(writer);
}

#[test]
fn fairness_gives_way_also_when_a_lock_taken_elsewhere_closes_the_circle() {
    let table = table();
    let on_second = |request: LockRequest| LockRequest {
        file: file(2),
        ..request
    };
    table.lock(&read("a", 0, 9)).expect("free");
    let _writer = wait(&table, &write("b", 0, 9));
    let mut reader = wait(&table, &read("c", 0, 9));
    table.lock(&on_second(read("d", 0, 0))).expect("free");
    let _blocked = wait(&table, &on_second(write("a", 0, 0)));
    assert_eq!((&mut reader).now_or_never(), None, "it queues behind the writer");
    // c, for whom a now waits, waits only for its place behind b, who waits for a.
    table.lock(&on_second(read("c", 0, 0))).expect("shared");
    assert_eq!(reader.now_or_never(), Some(Ok(())));
}

#[test]
fn the_request_that_would_close_a_deadlock_is_refused_and_told_the_circle() {
    let table = table();
    table.lock(&write("a", 0, 0)).expect("free");
    table.lock(&write("b", 1, 1)).expect("free");
    table.lock(&write("c", 2, 2)).expect("free");
    let _a = wait(&table, &write("a", 1, 1));
    let _b = wait(&table, &write("b", 2, 2));
    let refused = table.lock_or_wait(&write("c", 0, 0)).expect_err("a deadlock");
    let circle = vec![owner("c"), owner("a"), owner("b")];
    assert_eq!(refused, LockError::Deadlock { circle });
    assert_eq!(table.counts().waiters, 2);
}

#[test]
fn a_cancelled_waiter_is_told_and_lets_those_behind_it_pass() {
    let table = table();
    table.lock(&read("a", 0, 9)).expect("free");
    let writer = wait(&table, &write("b", 0, 9));
    let reader = wait(&table, &read("c", 0, 9));
    assert!(!table.cancel(&write("b", 0, 8)), "another request");
    assert!(table.cancel(&write("b", 0, 9)));
    assert!(!table.cancel(&write("b", 0, 9)), "no longer waiting");
    assert_eq!(writer.now_or_never(), Some(Err(LockError::Cancelled)));
    assert_eq!(reader.now_or_never(), Some(Ok(())));
}

#[test]
fn a_dropped_waiter_leaves_the_queue_or_gives_the_lock_back() {
    let table = table();
    table.lock(&write("a", 0, 9)).expect("free");
    drop(wait(&table, &write("b", 0, 9)));
    assert_eq!(table.counts().waiters, 0);
    let granted_but_not_taken = wait(&table, &write("b", 0, 9));
    table.unlock(file(1), &owner("a"), ByteRange::ALL);
    assert_eq!(held(&table, 1).len(), 1);
    drop(granted_but_not_taken);
    assert_eq!(table.counts(), LockCounts::default());
}

#[test]
fn a_retransmitted_request_waits_once() {
    let table = table();
    table.lock(&write("a", 0, 9)).expect("free");
    let waiter = wait(&table, &write("b", 0, 9));
    assert!(matches!(
        table.lock_or_wait(&write("b", 0, 9)),
        Ok(Locked::AlreadyWaiting)
    ));
    assert_eq!(table.counts().waiters, 1);
    table.unlock(file(1), &owner("a"), ByteRange::ALL);
    assert_eq!(waiter.now_or_never(), Some(Ok(())));
}

#[test]
fn releasing_a_client_frees_all_it_held_and_ends_all_its_waiting() {
    let table = table();
    table.lock(&write("a1", 0, 9)).expect("free");
    let other_file = LockRequest {
        file: file(2),
        ..write("a2", 0, 9)
    };
    table.lock(&other_file).expect("free");
    let mode = ShareMode {
        read: true,
        ..ShareMode::default()
    };
    table.share(file(3), &owner("a1"), mode).expect("free");
    table.lock(&write("b", 20, 29)).expect("free");
    let of_a = wait(&table, &write("a1", 20, 29));
    let of_b = wait(&table, &write("b2", 0, 9));
    table.release_client(&client("a"));
    assert_eq!(of_a.now_or_never(), Some(Err(LockError::Cancelled)));
    assert_eq!(of_b.now_or_never(), Some(Ok(())));
    assert!(!table.is_used_by(&client("a")));
    assert_eq!(table.counts().clients, 1);
}

#[test]
fn in_the_grace_period_only_reclaims_are_served_and_after_it_none() {
    let table = table();
    table.start_grace();
    assert_eq!(table.lock(&write("b", 0, 9)), Err(LockError::Grace));
    assert_eq!(table.test(&write("b", 0, 9)), Err(LockError::Grace));
    assert!(matches!(
        table.lock_or_wait(&write("b", 0, 9)),
        Err(LockError::Grace)
    ));
    assert_eq!(table.reclaim(&write("a", 0, 9)), Ok(()));
    assert!(matches!(
        table.reclaim(&write("b", 0, 9)),
        Err(LockError::Conflict(_))
    ));
    table.end_grace();
    assert_eq!(table.reclaim(&write("a", 20, 29)), Err(LockError::GraceOver));
    assert!(matches!(
        table.lock(&write("b", 0, 9)),
        Err(LockError::Conflict(_))
    ));
}

#[test]
fn limits_refuse_new_locks_and_waiters_but_never_an_unlock() {
    let table = LockTable::new(LockLimits {
        locks: 100,
        locks_per_client: 10,
        waiters: 100,
        waiters_per_client: 2,
        waiters_per_file: 3,
    });
    let lock = |who: &str, at: u64| table.lock(&write(who, at * 10, at * 10 + 4));
    let taken = (0..20).take_while(|at| lock("a", *at).is_ok()).count();
    assert_eq!(taken, 9, "an operation may add two");
    assert_eq!(lock("a", 50), Err(LockError::TooMany));
    assert_eq!(lock("b", 50), Ok(()));
    for at in 0..taken as u64 {
        let range = ByteRange {
            first: at * 10 + 1,
            last: at * 10 + 2,
        };
        table.unlock(file(1), &owner("a"), range);
    }
    assert_eq!(table.counts().locks, 19);
    table.unlock(file(1), &owner("a"), ByteRange::ALL);
    let _waiters = [
        wait(&table, &write("c1", 500, 500)),
        wait(&table, &write("c2", 501, 501)),
    ];
    assert!(matches!(
        table.lock_or_wait(&write("c3", 502, 502)),
        Err(LockError::TooMany)
    ));
    let _last = wait(&table, &write("d", 503, 503));
    assert!(matches!(
        table.lock_or_wait(&write("e", 504, 504)),
        Err(LockError::TooMany)
    ));
}

#[test]
fn shares_deny_what_they_say_and_a_repeated_share_changes_its_mode() {
    let table = table();
    let mode = |read, write, deny_read, deny_write| ShareMode {
        read,
        write,
        deny_read,
        deny_write,
    };
    let share = |who: &str, mode| table.share(file(1), &owner(who), mode).is_ok();
    assert!(share("a", mode(true, false, false, true)));
    assert!(share("b", mode(true, false, false, false)));
    assert!(!share("b", mode(true, true, false, false)));
    assert!(!share("c", mode(true, false, true, false)));
    assert!(share("a", mode(true, false, false, false)));
    assert!(share("b", mode(true, true, false, false)));
    assert!(table.unshare(file(1), &owner("a")));
    assert!(!table.unshare(file(1), &owner("a")));
    assert!(table.unshare(file(1), &owner("b")));
    assert_eq!(table.counts(), LockCounts::default());
}

/// Bytes per file and files in the model's world.
const BYTES: u64 = 12;
const FILES: u64 = 2;
const OWNERS: [&str; 5] = ["a1", "a2", "b1", "c1", "d1"];

/// Every byte by itself: who holds it, and how.
#[derive(Default)]
struct Model {
    bytes: BTreeMap<(u64, u64, LockOwner), bool>,
    /// In the order of arrival.
    waiting: Vec<(LockRequest, LockWaiter)>,
}

impl Model {
    fn set(&mut self, request: &LockRequest, exclusive: Option<bool>) {
        for byte in request.range.first..=request.range.last {
            let key = (request.file.inode, byte, request.owner.clone());
            match exclusive {
                Some(exclusive) => self.bytes.insert(key, exclusive),
                None => self.bytes.remove(&key),
            };
        }
    }

    fn holders_in_the_way(&self, request: &LockRequest) -> Vec<LockOwner> {
        self.bytes
            .iter()
            .filter(|((inode, byte, owner), exclusive)| {
                *inode == request.file.inode
                    && (request.range.first..=request.range.last).contains(byte)
                    && *owner != request.owner
                    && (**exclusive || request.exclusive)
            })
            .map(|((_, _, owner), _)| owner.clone())
            .collect()
    }

    /// Owners whom waiting request `index` waits for, through held locks or through its place in the queue.
    fn waits_for(&self, index: usize) -> (Vec<LockOwner>, Vec<LockOwner>) {
        let request = &self.waiting[index].0;
        let ahead = self.waiting[..index]
            .iter()
            .map(|(earlier, _)| earlier)
            .filter(|earlier| {
                earlier.file == request.file
                    && earlier.owner != request.owner
                    && (earlier.exclusive || request.exclusive)
                    && earlier.range.overlaps(request.range)
            })
            .map(|earlier| earlier.owner.clone())
            .collect();
        (self.holders_in_the_way(request), ahead)
    }

    /// Everybody `from` waits for, directly or not.
    fn reaches(&self, from: &LockOwner, with_queue: bool) -> Vec<LockOwner> {
        let mut reached: Vec<LockOwner> = Vec::new();
        let mut grew = true;
        while grew {
            grew = false;
            for (index, (request, _)) in self.waiting.iter().enumerate() {
                if request.owner != *from && !reached.contains(&request.owner) {
                    continue;
                }
                let (held, ahead) = self.waits_for(index);
                let next = held.into_iter().chain(ahead.into_iter().filter(|_| with_queue));
                for owner in next {
                    if !reached.contains(&owner) {
                        reached.push(owner);
                        grew = true;
                    }
                }
            }
        }
        reached
    }

    /// Takes note of what the table granted or cancelled, checking each grant against what is held.
    fn collect(&mut self, by_request: Option<&LockOwner>) {
        let mut granted = Vec::new();
        let mut index = 0;
        while index < self.waiting.len() {
            let news = (&mut self.waiting[index].1).now_or_never();
            match news {
                None => index += 1,
                Some(Ok(())) => granted.push(self.waiting.remove(index).0),
                Some(Err(error)) => {
                    let (request, _) = self.waiting.remove(index);
                    assert_eq!(error, LockError::Cancelled);
                    assert_eq!(Some(&request.owner), by_request, "nobody asked to end it");
                }
            }
        }
        // A grant that is a downgrade can be the reason of another; so the order in which they were made is looked for.
        while !granted.is_empty() {
            let next = granted
                .iter()
                .position(|request| self.holders_in_the_way(request).is_empty());
            let request = granted.remove(next.expect("granted over a lock"));
            self.set(&request, Some(request.exclusive));
        }
    }

    /// Whoever still waits has a reason: a held lock, or an earlier request whose owner does not wait for it.
    fn check_progress(&self) {
        for (index, (request, _)) in self.waiting.iter().enumerate() {
            let (held, ahead) = self.waits_for(index);
            let fair = ahead
                .iter()
                .any(|owner| !self.reaches(owner, true).contains(&request.owner));
            assert!(!held.is_empty() || fair, "{request:?} waits for nothing");
        }
    }

    fn check_same(&self, table: &LockTable) {
        for inode in 1..=FILES {
            let mut bytes = BTreeMap::new();
            for holder in table.holders(file(inode)) {
                for byte in holder.range.first..=holder.range.last {
                    let key = (inode, byte, holder.owner.clone());
                    assert_eq!(bytes.insert(key, holder.exclusive), None, "overlapping segments");
                }
            }
            let of_file = self.bytes.iter().filter(|((in_file, _, _), _)| *in_file == inode);
            let expected: BTreeMap<_, _> = of_file.map(|(key, value)| (key.clone(), *value)).collect();
            assert_eq!(bytes, expected);
        }
        assert_eq!(table.counts().waiters, self.waiting.len());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Lock(LockRequest),
    Wait(LockRequest),
    Unlock(LockRequest),
    Cancel(prop::sample::Index),
    Drop(prop::sample::Index),
    ReleaseClient(&'static str),
}

fn any_request() -> impl Strategy<Value = LockRequest> {
    (
        1..=FILES,
        prop::sample::select(&OWNERS[..]),
        0..BYTES,
        0..BYTES,
        any::<bool>(),
    )
        .prop_map(|(inode, who, a, b, exclusive)| LockRequest {
            file: file(inode),
            ..request(who, a.min(b), a.max(b), exclusive)
        })
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any_request().prop_map(Step::Lock),
        6 => any_request().prop_map(Step::Wait),
        4 => any_request().prop_map(Step::Unlock),
        1 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        1 => any::<prop::sample::Index>().prop_map(Step::Drop),
        1 => prop::sample::select(&["a", "b", "c", "d"][..]).prop_map(Step::ReleaseClient),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn random_histories_agree_with_a_model_that_keeps_every_byte_by_itself(
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let table = table();
        let mut model = Model::default();
        for step in steps {
            let mut by_request = None;
            match step {
                Step::Lock(request) => {
                    let free = model.holders_in_the_way(&request).is_empty();
                    prop_assert_eq!(table.test(&request).is_ok(), free);
                    prop_assert_eq!(table.lock(&request).is_ok(), free);
                    if free {
                        model.set(&request, Some(request.exclusive));
                    }
                }
                Step::Wait(request) => {
                    let same = model.waiting.iter().any(|(waiting, _)| *waiting == request);
                    let in_the_way = model.holders_in_the_way(&request);
                    let deadlock = in_the_way
                        .iter()
                        .any(|owner| model.reaches(owner, false).contains(&request.owner));
                    match table.lock_or_wait(&request) {
                        Ok(Locked::AlreadyWaiting) => prop_assert!(same),
                        Ok(Locked::Now) => {
                            prop_assert!(!same && in_the_way.is_empty());
                            let passed: Vec<_> = model.waiting.iter().map(|(earlier, _)| earlier).filter(|earlier| {
                                earlier.file == request.file
                                    && earlier.owner != request.owner
                                    && (earlier.exclusive || request.exclusive)
                                    && earlier.range.overlaps(request.range)
                            }).collect();
                            for earlier in passed {
                                prop_assert!(model.reaches(&earlier.owner, true).contains(&request.owner));
                            }
                            model.set(&request, Some(request.exclusive));
                        }
                        Ok(Locked::Later(waiter)) => {
                            prop_assert!(!same && !deadlock);
                            model.waiting.push((request, waiter));
                        }
                        Err(error) => {
                            prop_assert!(!same && deadlock, "{:?}", error);
                            let is_deadlock = matches!(error, LockError::Deadlock { .. });
                            prop_assert!(is_deadlock);
                        }
                    }
                }
                Step::Unlock(request) => {
                    table.unlock(request.file, &request.owner, request.range);
                    model.set(&request, None);
                }
                Step::Cancel(index) => {
                    if !model.waiting.is_empty() {
                        let request = index.get(&model.waiting).0.clone();
                        prop_assert!(table.cancel(&request));
                        by_request = Some(request.owner);
                    }
                }
                Step::Drop(index) => {
                    if !model.waiting.is_empty() {
                        let index = index.index(model.waiting.len());
                        drop(model.waiting.remove(index));
                    }
                }
                Step::ReleaseClient(name) => {
                    // Their ends would be told like a cancellation; here they just leave.
                    let of_client = |request: &LockRequest| request.owner.client == client(name);
                    table.release_client(&client(name));
                    model.waiting.retain(|(request, _)| !of_client(request));
                    model.bytes.retain(|(_, _, owner), _| owner.client != client(name));
                    prop_assert!(!table.is_used_by(&client(name)));
                }
            }
            model.collect(by_request.as_ref());
            model.check_same(&table);
            model.check_progress();
        }
        for name in ["a", "b", "c", "d"] {
            table.release_client(&client(name));
        }
        prop_assert_eq!(table.counts(), LockCounts::default());
    }
}

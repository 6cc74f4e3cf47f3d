//! NLM over simulated connections, with clients that have lock managers of their own.

mod offices;

use super::{
    world::{OnGranted, TestClient, World, cookie, simulate},
    *,
};
use crate::{
    rpc::{CallError, CallRefused},
    xdr::{Decode, Encode, Encoder, Opaque},
};
use proptest::prelude::*;
use std::time::Duration;

/// A server with one file, and two clients.
async fn site(world: &World) -> (super::world::Running, NetObject, TestClient, TestClient) {
    let running = world.start().await;
    let handle = world.handle(world.file("f", 0o644).await);
    (
        running,
        handle,
        world.client("one").await,
        world.client("two").await,
    )
}

#[test]
fn a_lock_keeps_others_out_until_it_is_unlocked_and_a_test_names_its_holder() {
    simulate(1, async |world| {
        let (_running, handle, one, two) = site(&world).await;
        let lock = one.wire_lock(&handle, 11, 0, 10);
        let other = two.wire_lock(&handle, 22, 5, 0);
        assert_eq!(one.lock(&lock).await, LockStatus::Granted);
        assert_eq!(two.lock(&other).await, LockStatus::Denied);
        let holder = WireHolder {
            exclusive: true,
            process: 11,
            owner: lock.owner.clone(),
            offset: 0,
            length_bytes: 10,
        };
        let cookie = cookie();
        let result = Err((LockStatus::Denied, Some(holder)));
        assert_eq!(two.test(&other).await, TestReply { cookie, result });
        assert_eq!(one.unlock(&lock).await, LockStatus::Granted);
        assert_eq!(two.test(&other).await.result, Ok(()));
        assert_eq!(two.lock(&other).await, LockStatus::Granted);
    });
}

#[test]
fn processes_of_one_client_lock_against_each_other() {
    simulate(1, async |world| {
        let (_running, handle, one, _two) = site(&world).await;
        let of = |process| one.wire_lock(&handle, process, 0, 10);
        assert_eq!(one.lock(&of(1)).await, LockStatus::Granted);
        assert_eq!(one.lock(&of(1)).await, LockStatus::Granted, "its own");
        assert_eq!(one.lock(&of(2)).await, LockStatus::Denied);
    });
}

#[test]
fn a_client_that_waited_is_called_when_the_lock_is_its_own() {
    simulate(2, async |world| {
        let (running, handle, one, mut two) = site(&world).await;
        let lock = one.wire_lock(&handle, 1, 0, 10);
        let other = two.wire_lock(&handle, 2, 0, 10);
        assert_eq!(one.lock(&lock).await, LockStatus::Granted);
        assert_eq!(two.lock_waiting(&other).await, LockStatus::Blocked);
        assert_eq!(
            two.lock_waiting(&other).await,
            LockStatus::Blocked,
            "a retransmission"
        );
        assert_eq!(running.table.counts().waiters, 1);
        world.sleep(5).await;
        assert!(two.granted.is_empty());
        one.unlock(&lock).await;
        let call = two.granted.recv().await.expect("told");
        assert_eq!((call.exclusive, call.lock), (true, other.clone()));
        assert_eq!(one.lock(&lock).await, LockStatus::Denied);
        world.sleep(120).await;
        assert!(two.granted.is_empty(), "told once");
        assert_eq!(one.lock(&lock).await, LockStatus::Denied);
    });
}

#[test]
fn a_granted_lock_that_is_no_longer_wanted_goes_to_the_next() {
    simulate(3, async |world| {
        let (_running, handle, one, mut two) = site(&world).await;
        let mut three = world.client("three").await;
        let lock = one.wire_lock(&handle, 1, 0, 10);
        one.lock(&lock).await;
        two.on_granted(OnGranted::Reply(LockStatus::Denied));
        two.lock_waiting(&two.wire_lock(&handle, 2, 0, 10)).await;
        three.lock_waiting(&three.wire_lock(&handle, 3, 0, 10)).await;
        one.unlock(&lock).await;
        two.granted.recv().await.expect("told first");
        three.granted.recv().await.expect("told next");
    });
}

#[test]
fn a_lock_that_a_client_asks_for_again_while_it_is_told_stays_its_own() {
    simulate(4, async |world| {
        let (_running, handle, one, mut two) = site(&world).await;
        let lock = one.wire_lock(&handle, 1, 0, 10);
        let other = two.wire_lock(&handle, 2, 0, 10);
        one.lock(&lock).await;
        // As Linux does: it asks again after a while, is granted that, and then knows of no waiting request.
        let late_denial = OnGranted::ReplyAfter(Duration::from_secs(3), LockStatus::Denied);
        two.on_granted(late_denial);
        two.lock_waiting(&other).await;
        one.unlock(&lock).await;
        two.granted.recv().await.expect("told");
        assert_eq!(two.lock_waiting(&other).await, LockStatus::Granted);
        world.sleep(10).await;
        assert_eq!(one.lock(&lock).await, LockStatus::Denied);
    });
}

#[test]
fn a_lock_unlocked_and_taken_anew_while_it_is_told_is_not_taken_away_by_the_late_denial() {
    simulate(4, async |world| {
        let (_running, handle, one, mut two) = site(&world).await;
        let lock = one.wire_lock(&handle, 1, 0, 10);
        let other = two.wire_lock(&handle, 2, 0, 10);
        one.lock(&lock).await;
        let late_denial = OnGranted::ReplyAfter(Duration::from_secs(3), LockStatus::Denied);
        two.on_granted(late_denial);
        two.lock_waiting(&other).await;
        one.unlock(&lock).await;
        two.granted.recv().await.expect("told");
        assert_eq!(two.unlock(&other).await, LockStatus::Granted);
        assert_eq!(two.lock(&other).await, LockStatus::Granted);
        world.sleep(10).await;
        assert_eq!(one.lock(&lock).await, LockStatus::Denied);
    });
}

#[test]
fn the_end_of_one_telling_does_not_disturb_the_next_of_the_same_lock() {
    simulate(4, async |world| {
        let (_running, handle, one, mut two) = site(&world).await;
        let lock = one.wire_lock(&handle, 1, 0, 10);
        let other = two.wire_lock(&handle, 2, 0, 10);
        let late = |status| OnGranted::ReplyAfter(Duration::from_secs(3), status);
        one.lock(&lock).await;
        two.on_granted(late(LockStatus::Granted));
        two.lock_waiting(&other).await;
        one.unlock(&lock).await;
        two.granted.recv().await.expect("told");
        // Before it has replied, it has used the lock and waits for it again.
        two.unlock(&other).await;
        one.lock(&lock).await;
        assert_eq!(two.lock_waiting(&other).await, LockStatus::Blocked);
        world.sleep(10).await;
        two.on_granted(late(LockStatus::Denied));
        one.unlock(&lock).await;
        two.granted.recv().await.expect("told again");
        assert_eq!(two.lock_waiting(&other).await, LockStatus::Granted);
        world.sleep(10).await;
        assert_eq!(one.lock(&lock).await, LockStatus::Denied);
    });
}

#[test]
fn a_lock_that_its_client_may_know_of_is_kept_and_one_it_cannot_know_of_is_passed_on() {
    for (knows, expected) in [(true, LockStatus::Denied), (false, LockStatus::Granted)] {
        simulate(5, async move |world| {
            let (_running, handle, one, two) = site(&world).await;
            let lock = one.wire_lock(&handle, 1, 0, 10);
            one.lock(&lock).await;
            two.lock_waiting(&two.wire_lock(&handle, 2, 0, 10)).await;
            if knows {
                two.on_granted(OnGranted::Silence);
            } else {
                two.machine.crash();
            }
            one.unlock(&lock).await;
            assert_eq!(one.lock(&lock).await, LockStatus::Denied, "while it is tried");
            world.sleep(600).await;
            assert_eq!(one.lock(&lock).await, expected);
        });
    }
}

#[test]
fn a_cancelled_request_is_never_granted() {
    simulate(6, async |world| {
        let (running, handle, one, two) = site(&world).await;
        let lock = one.wire_lock(&handle, 1, 0, 10);
        let other = two.wire_lock(&handle, 2, 0, 10);
        one.lock(&lock).await;
        assert_eq!(two.cancel(&other).await, LockStatus::Denied, "nothing to cancel");
        two.lock_waiting(&other).await;
        assert_eq!(two.cancel(&other).await, LockStatus::Granted);
        one.unlock(&lock).await;
        world.sleep(60).await;
        assert!(two.granted.is_empty());
        assert_eq!(running.table.counts().locks, 0);

        // Granted before the client was told: the cancellation gives it back.
        one.lock(&lock).await;
        let late_denial = OnGranted::ReplyAfter(Duration::from_secs(3), LockStatus::Denied);
        two.on_granted(late_denial);
        two.lock_waiting(&other).await;
        one.unlock(&lock).await;
        world.sleep(1).await;
        assert_eq!(two.cancel(&other).await, LockStatus::Granted);
        assert_eq!(one.lock(&lock).await, LockStatus::Granted);
        world.sleep(60).await;
        assert_eq!(
            running.table.counts().locks,
            1,
            "the late denial takes nothing from the next holder"
        );
    });
}

#[test]
fn a_deadlock_over_two_clients_is_refused() {
    simulate(7, async |world| {
        let (_running, handle, one, two) = site(&world).await;
        assert_eq!(
            one.lock(&one.wire_lock(&handle, 1, 0, 1)).await,
            LockStatus::Granted
        );
        assert_eq!(
            two.lock(&two.wire_lock(&handle, 2, 1, 1)).await,
            LockStatus::Granted
        );
        assert_eq!(
            one.lock_waiting(&one.wire_lock(&handle, 1, 1, 1)).await,
            LockStatus::Blocked
        );
        assert_eq!(
            two.lock_waiting(&two.wire_lock(&handle, 2, 0, 1)).await,
            LockStatus::Deadlock
        );
    });
}

#[test]
fn the_forms_answered_by_a_call_do_the_same() {
    simulate(8, async |world| {
        let (_running, handle, one, mut two) = site(&world).await;
        let lock = two.wire_lock(&handle, 2, 0, 10);
        let send = async |two: &TestClient, procedure, call: &LockCall| {
            two.call(PROGRAM, procedure, call).await.expect("acknowledged");
        };
        send(&two, 7, &TestClient::lock_call(lock.clone())).await;
        let (procedure, mut results) = two.results.recv().await.expect("called");
        let reply = StatusReply::decode(&mut results).expect("a status");
        assert_eq!(
            (procedure, reply.status, reply.cookie),
            (12, LockStatus::Granted, cookie())
        );
        assert_eq!(
            one.lock(&one.wire_lock(&handle, 1, 0, 10)).await,
            LockStatus::Denied
        );
        let test = TestCall {
            cookie: cookie(),
            exclusive: true,
            lock: two.wire_lock(&handle, 3, 0, 10),
        };
        two.call(PROGRAM, 6, &test).await.expect("acknowledged");
        let (procedure, mut results) = two.results.recv().await.expect("called");
        let reply = TestReply::decode(&mut results).expect("a reply to TEST");
        assert_eq!(procedure, 11);
        assert!(matches!(reply.result, Err((LockStatus::Denied, Some(_)))));
        let unlock = UnlockCall {
            cookie: cookie(),
            lock: lock.clone(),
        };
        two.call(PROGRAM, 9, &unlock).await.expect("acknowledged");
        let (procedure, _) = two.results.recv().await.expect("called");
        assert_eq!(procedure, 14);
        assert_eq!(
            one.lock(&one.wire_lock(&handle, 1, 0, 10)).await,
            LockStatus::Granted
        );
    });
}

#[test]
fn only_regular_files_that_are_there_and_may_be_read_can_be_locked() {
    simulate(9, async |world| {
        let (_running, handle, mut one, two) = site(&world).await;
        let status =
            async |one: &TestClient, handle: &NetObject| one.lock(&one.wire_lock(handle, 1, 0, 1)).await;
        let mut forged = handle.0.to_vec();
        forged[20] ^= 1;
        let forged = NetObject::from(Bytes::from(forged));
        assert_eq!(status(&one, &forged).await, LockStatus::StaleHandle);
        let root = world.handle(world.root());
        assert_eq!(status(&one, &root).await, LockStatus::Failed);

        let secret = world.handle(world.file("secret", 0o600).await);
        one.credential = crate::rpc::Credential::sys("one", 2000, 2000, vec![]);
        assert_eq!(status(&one, &secret).await, LockStatus::Failed);
        assert_eq!(status(&two, &secret).await, LockStatus::Granted, "the owner");

        let doomed = world.handle(world.file("doomed", 0o644).await);
        let lock = two.wire_lock(&doomed, 2, 0, 1);
        assert_eq!(two.lock(&lock).await, LockStatus::Granted);
        world.remove("doomed").await;
        assert_eq!(two.lock(&lock).await, LockStatus::StaleHandle);
        assert_eq!(two.unlock(&lock).await, LockStatus::Granted);
    });
}

#[test]
fn a_range_must_end_where_a_file_can() {
    simulate(10, async |world| {
        let (_running, handle, one, _two) = site(&world).await;
        let lock = async |first, length| one.lock(&one.wire_lock(&handle, 1, first, length)).await;
        let end = i64::MAX as u64;
        assert_eq!(lock(end, 1).await, LockStatus::Granted);
        assert_eq!(lock(0, 0).await, LockStatus::Granted);
        assert_eq!(lock(end, 2).await, LockStatus::TooBig);
        assert_eq!(lock(end + 1, 0).await, LockStatus::TooBig);
        assert_eq!(lock(u64::MAX, u64::MAX).await, LockStatus::TooBig);
    });
}

#[test]
fn a_client_that_may_only_read_gets_shared_locks_only() {
    simulate(11, async |mut world| {
        let two = world.client("two").await;
        world.read_only_for(two.address());
        let _running = world.start().await;
        let handle = world.handle(world.file("f", 0o644).await);
        let lock = two.wire_lock(&handle, 1, 0, 1);
        assert_eq!(two.lock(&lock).await, LockStatus::ReadOnly);
        let shared = LockCall {
            exclusive: false,
            ..TestClient::lock_call(lock)
        };
        assert_eq!(two.status(2, &shared).await, LockStatus::Granted);
    });
}

#[test]
fn shares_deny_others_and_end_with_their_owner() {
    simulate(12, async |world| {
        let (running, handle, one, two) = site(&world).await;
        let share = async |client: &TestClient, procedure, owner: &str, access, deny| {
            let call = ShareCall {
                cookie: cookie(),
                caller: "one".into(),
                handle: handle.clone(),
                owner: owner.into(),
                deny,
                access,
                reclaim: false,
            };
            let results = client.call(PROGRAM, procedure, &call).await;
            results.map(|mut results| ShareReply::decode(&mut results).expect("a reply").status)
        };
        let done = |result: Result<LockStatus, CallError>| result.expect("answered");
        assert_eq!(done(share(&one, 20, "a", 1, 2).await), LockStatus::Granted);
        assert_eq!(done(share(&two, 20, "b", 2, 0).await), LockStatus::Denied);
        assert_eq!(done(share(&two, 20, "b", 1, 0).await), LockStatus::Granted);
        assert!(share(&two, 20, "b", 4, 0).await.is_err(), "no such access");
        assert_eq!(done(share(&one, 21, "a", 0, 0).await), LockStatus::Granted);
        assert_eq!(done(share(&two, 20, "b", 3, 3).await), LockStatus::Granted);
        assert_eq!(done(share(&two, 21, "b", 0, 0).await), LockStatus::Granted);
        assert_eq!(running.table.counts().locks, 0);
    });
}

#[test]
fn an_unmonitored_client_is_not_listed_and_frees_all_it_holds_itself() {
    simulate(13, async |world| {
        let (running, handle, one, two) = site(&world).await;
        let lock = one.wire_lock(&handle, 1, 0, 10);
        let status = one.status(22, &TestClient::lock_call(lock.clone())).await;
        assert_eq!(status, LockStatus::Granted);
        assert_eq!(running.locks.monitor().clients(), []);
        let free = FreeAllCall {
            caller: "one".into(),
            state: 5,
        };
        two.call(PROGRAM, 23, &free).await.expect("answered");
        assert_eq!(
            running.table.counts().locks,
            1,
            "nobody frees another client's locks"
        );
        one.call(PROGRAM, 23, &free).await.expect("answered");
        assert_eq!(running.table.counts().locks, 0);
    });
}

#[test]
fn malformed_arguments_are_refused_and_change_nothing() {
    simulate(14, async |world| {
        let (running, handle, one, _two) = site(&world).await;
        let mut whole = Encoder::new();
        TestClient::lock_call(one.wire_lock(&handle, 1, 0, 10)).encode(&mut whole);
        let whole = whole.into_bytes();
        for length in (0..whole.len()).step_by(4) {
            let cut = Raw(whole.slice(..length));
            for procedure in [1, 2, 3, 4, 6, 7, 8, 9, 20, 21, 22] {
                let called = one.call(PROGRAM, procedure, &cut).await;
                if let Err(error) = called {
                    assert!(
                        matches!(error, CallError::Refused(CallRefused::GarbageArguments)),
                        "{procedure}: {error}"
                    );
                }
            }
        }
        for procedure in [16, 17, 19, 24, u32::MAX] {
            let refused = one.call(PROGRAM, procedure, &Raw(whole.clone())).await;
            assert!(matches!(
                refused,
                Err(CallError::Refused(CallRefused::ProcedureUnavailable))
            ));
        }
        assert_eq!(running.table.counts().waiters, 0);
        let long = WireLock {
            owner: Opaque(Bytes::from(vec![b'x'; 1024])),
            ..one.wire_lock(&handle, 1, 0, 10)
        };
        assert_eq!(one.lock(&long).await, LockStatus::Failed);
    });
}

struct Raw(Bytes);

impl Encode for Raw {
    fn encode(&self, out: &mut Encoder) {
        out.raw(self.0.clone());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_bytes_as_arguments_are_answered(
        calls in prop::collection::vec((0_u32..25, prop::collection::vec(any::<u8>(), 0..300)), 1..20),
    ) {
        simulate(15, async move |world| {
            let (_running, handle, one, _two) = site(&world).await;
            for (procedure, bytes) in calls {
                let padded = bytes.len() & !3;
                let _ = one.call(PROGRAM, procedure, &Raw(Bytes::from(bytes).slice(..padded))).await;
            }
            let lock = one.wire_lock(&handle, 1, 0, 10);
            assert_eq!(one.lock(&lock).await, LockStatus::Granted);
        });
    }
}

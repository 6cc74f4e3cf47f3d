//! Restarts: of the server, of clients, and of the machine under the list.

use super::*;
use crate::nlm::{
    LockStatus, NetObject,
    world::{OnGranted, Running, TestClient, World, simulate},
};
use crate::rpc::Peer;

async fn file(world: &World) -> NetObject {
    world.handle(world.file("f", 0o644).await)
}

/// A server, the handle of a file, and a client that may lock it.
async fn site(world: &World) -> (Running, NetObject, TestClient) {
    (world.start().await, file(world).await, world.client("one").await)
}

/// One in which the client holds the lock of the first ten bytes.
async fn locked(world: &World) -> (Running, NetObject, TestClient) {
    let (running, handle, one) = site(world).await;
    let lock = one.wire_lock(&handle, 1, 0, 10);
    assert_eq!(one.lock(&lock).await, LockStatus::Granted);
    (running, handle, one)
}

#[test]
fn after_a_kill_clients_are_told_reclaim_and_nobody_else_gets_their_locks() {
    simulate(1, async |world| {
        let (running, handle, mut one) = site(&world).await;
        let mut two = world.client("two").await;
        let lock = one.wire_lock(&handle, 1, 0, 10);
        let other = two.wire_lock(&handle, 2, 0, 10);
        assert_eq!(
            one.reclaim(&lock).await,
            LockStatus::Denied,
            "there was no restart"
        );
        assert_eq!(one.lock(&lock).await, LockStatus::Granted);
        let state = running.locks.monitor().state();

        let running = world.restart().await;
        assert!(running.locks.status().clients.in_grace);
        assert_eq!(two.lock(&other).await, LockStatus::GracePeriod);
        assert_eq!(two.lock_waiting(&other).await, LockStatus::GracePeriod);
        let told = one.notices.recv().await.expect("told");
        assert_eq!(told.state, state + 2);
        assert_eq!(told.state % 2, 1, "odd: up");
        assert_eq!(one.reclaim(&lock).await, LockStatus::Granted);
        world.sleep(5).await;
        assert_eq!(
            two.lock(&other).await,
            LockStatus::GracePeriod,
            "there may be more to reclaim"
        );
        world.sleep(7).await;
        assert!(
            !running.locks.status().clients.in_grace,
            "all have reclaimed: it ends early"
        );
        assert_eq!(two.lock(&other).await, LockStatus::Denied);
        assert_eq!(one.unlock(&lock).await, LockStatus::Granted);
        assert_eq!(two.lock(&other).await, LockStatus::Granted);
        assert!(two.notices.try_recv().is_err(), "it held nothing");
        assert_eq!(running.locks.status().clients.notified, 1);
        assert_eq!(running.locks.status().clients.unanswered, 0);
    });
}

#[test]
fn a_client_that_waited_over_a_restart_waits_again_and_is_granted() {
    simulate(2, async |world| {
        let (_running, handle, mut one) = site(&world).await;
        let mut two = world.client("two").await;
        let lock = one.wire_lock(&handle, 1, 0, 10);
        let other = two.wire_lock(&handle, 2, 0, 10);
        one.lock(&lock).await;
        assert_eq!(two.lock_waiting(&other).await, LockStatus::Blocked);
        let _running = world.restart().await;
        one.notices.recv().await.expect("told");
        two.notices.recv().await.expect("told: it was to get a lock");
        assert_eq!(one.reclaim(&lock).await, LockStatus::Granted);
        while two.lock_waiting(&other).await == LockStatus::GracePeriod {
            world.sleep(5).await;
        }
        one.unlock(&lock).await;
        let granted = two.granted.recv().await.expect("granted");
        assert_eq!(granted.lock, other);
    });
}

#[test]
fn the_grace_period_lasts_its_whole_time_for_a_client_that_does_not_come_back() {
    simulate(3, async |world| {
        let (_running, handle, one) = site(&world).await;
        let two = world.client("two").await;
        one.lock(&one.wire_lock(&handle, 1, 0, 10)).await;
        one.machine.crash();
        let running = world.restart().await;
        let other = two.wire_lock(&handle, 2, 0, 10);
        world.sleep(43).await;
        assert_eq!(two.lock(&other).await, LockStatus::GracePeriod);
        world.sleep(4).await;
        assert_eq!(two.lock(&other).await, LockStatus::Granted);
        assert_eq!(running.locks.status().clients.unanswered, 1);
        world.sleep(200).await;
        let listed = running.locks.monitor().clients();
        assert_eq!(listed.len(), 1, "only who holds something: {listed:?}");
    });
}

#[test]
fn a_server_whose_clients_held_nothing_has_no_grace_period() {
    simulate(4, async |world| {
        let (running, handle, one) = site(&world).await;
        let lock = one.wire_lock(&handle, 1, 0, 10);
        one.lock(&lock).await;
        one.unlock(&lock).await;
        assert_eq!(running.locks.monitor().clients().len(), 1);
        world.sleep(30).await;
        one.lock(&lock).await;
        world.sleep(40).await;
        one.unlock(&lock).await;
        world.sleep(50).await;
        assert_eq!(running.locks.monitor().clients().len(), 1, "not idle long enough");
        world.sleep(200).await;
        assert_eq!(running.locks.monitor().clients(), []);
        let running = world.restart().await;
        assert!(!running.locks.status().clients.in_grace);
        assert_eq!(one.lock(&lock).await, LockStatus::Granted);
    });
}

#[test]
fn a_client_that_restarts_loses_its_locks_once_and_only_by_its_own_word() {
    simulate(5, async |world| {
        let (_running, handle, one) = site(&world).await;
        let two = world.client("two").await;
        let lock = one.wire_lock(&handle, 1, 0, 10);
        let other = two.wire_lock(&handle, 2, 0, 10);
        one.lock(&lock).await;
        two.notify("one", 5).await;
        assert_eq!(
            two.lock(&other).await,
            LockStatus::Denied,
            "said from another machine"
        );
        one.notify("one.example.org", 5).await;
        assert_eq!(two.lock(&other).await, LockStatus::Granted);
        two.unlock(&other).await;
        one.lock(&lock).await;
        one.notify("one", 5).await;
        assert_eq!(
            two.lock(&other).await,
            LockStatus::Denied,
            "a notice that came twice"
        );
        let _running = world.restart().await;
        one.reclaim(&lock).await;
        one.notify("one", 5).await;
        world.sleep(50).await;
        assert_eq!(
            two.lock(&other).await,
            LockStatus::Denied,
            "also after our restart"
        );
        one.notify("one", 7).await;
        assert_eq!(two.lock(&other).await, LockStatus::Granted);
    });
}

#[test]
fn of_several_clients_behind_one_address_only_the_named_one_is_released() {
    simulate(6, async |world| {
        let running = world.start().await;
        let handle = file(&world).await;
        let gateway = world.client("gateway").await;
        let named = |name: &str, first| crate::nlm::WireLock {
            caller: name.into(),
            ..gateway.wire_lock(&handle, 1, first, 1)
        };
        assert_eq!(gateway.lock(&named("a", 0)).await, LockStatus::Granted);
        assert_eq!(gateway.lock(&named("b", 1)).await, LockStatus::Granted);
        gateway.notify("c", 5).await;
        assert_eq!(running.table.counts().locks, 2);
        gateway.notify("b", 5).await;
        assert_eq!(running.table.counts().locks, 1);
        gateway.notify("elsewhere", 7).await;
        assert_eq!(running.table.counts().locks, 1);
    });
}

#[test]
fn a_client_whose_lock_was_granted_is_told_wherever_the_machine_stopped() {
    let mut stopped = 0;
    for point in [
        "nsm.before_write",
        "nsm.before_sync",
        "nsm.before_rename",
        "nsm.before_sync_directory",
        "nsm.after_write",
        "nlm.before_lock",
    ] {
        for seed in 0..20 {
            stopped += simulate(seed, async move |world| {
                let _running = world.start().await;
                let handle = file(&world).await;
                let mut zero = world.client("zero").await;
                let mut one = world.client("one").await;
                let held = zero.wire_lock(&handle, 1, 100, 1);
                assert_eq!(zero.lock(&held).await, LockStatus::Granted);
                world.server.crash_at(point, 1);
                let lock = TestClient::lock_call(one.wire_lock(&handle, 1, 0, 10));
                let granted = one.call(crate::nlm::PROGRAM, 2, &lock).await.is_ok();
                let crashed = !world.server.is_running();
                if !crashed {
                    world.server.crash();
                }
                world.server.faults().disarm();
                world.server.restart();
                let running = world.start().await;
                world.sleep(30).await;
                let told = one.notices.try_recv().is_ok();
                assert!(told || !granted, "{point}: granted, and not told");
                assert!(zero.notices.try_recv().is_ok(), "{point}: an earlier client lost");
                assert!(running.locks.monitor().state() % 2 == 1);
                usize::from(crashed)
            });
        }
    }
    assert_eq!(stopped, 6 * 20, "each point is reached");
}

#[test]
fn a_client_that_comes_while_it_is_taken_off_the_list_is_on_it_when_its_lock_is_granted() {
    let mut removed = 0;
    for seed in 0..150 {
        removed += simulate(seed, async move |mut world| {
            // Looks come as fast as the disk writes, so that they meet requests at every point.
            world.config.idle_pass = Duration::from_millis(2);
            let (running, handle, mut one) = site(&world).await;
            let lock = one.wire_lock(&handle, 1, 0, 10);
            let mut removed = 0;
            for _ in 0..4 {
                assert_eq!(one.lock(&lock).await, LockStatus::Granted);
                assert_eq!(
                    running.locks.monitor().clients().len(),
                    1,
                    "listed while it holds"
                );
                assert_eq!(one.unlock(&lock).await, LockStatus::Granted);
                let pause = Duration::from_micros(world.simulation().env().random_below(12_000));
                world.simulation().env().sleep(pause).await;
                removed += usize::from(running.locks.monitor().clients().is_empty());
            }
            assert_eq!(one.lock(&lock).await, LockStatus::Granted);
            world.server.crash();
            world.server.restart();
            let _running = world.start().await;
            world.sleep(30).await;
            assert!(
                one.notices.try_recv().is_ok(),
                "seed {seed}: granted, and not told"
            );
            removed
        });
    }
    assert!(removed > 20, "it was taken off {removed} times");
}

#[test]
fn a_client_with_a_request_under_way_stays_on_the_list() {
    simulate(13, async |world| {
        let running = world.start().await;
        let host = Host {
            address: "10.0.0.9".parse().expect("an address"),
            name: Bytes::from_static(b"client"),
        };
        let monitor = running.locks.monitor();
        let presence = monitor.enter(&host).await.expect("the disk is healthy");
        world.sleep(300).await;
        assert_eq!(monitor.clients(), std::slice::from_ref(&host));
        drop(presence);
        world.sleep(300).await;
        assert_eq!(monitor.clients(), []);
    });
}

#[test]
fn a_full_disk_refuses_locks_to_new_clients_and_serves_those_listed() {
    simulate(7, async |world| {
        let (_running, handle, one) = site(&world).await;
        let two = world.client("two").await;
        assert_eq!(
            one.lock(&one.wire_lock(&handle, 1, 0, 1)).await,
            LockStatus::Granted
        );
        world
            .server
            .disk()
            .configure(|options| options.capacity_bytes = 0);
        assert_eq!(
            two.lock(&two.wire_lock(&handle, 2, 5, 1)).await,
            LockStatus::NoLocks
        );
        assert_eq!(
            one.lock(&one.wire_lock(&handle, 1, 3, 1)).await,
            LockStatus::Granted
        );
        world
            .server
            .disk()
            .configure(|options| options.capacity_bytes = 1 << 30);
        assert_eq!(
            two.lock(&two.wire_lock(&handle, 2, 5, 1)).await,
            LockStatus::Granted
        );
    });
}

#[test]
fn a_failed_sync_gives_no_lock_and_the_next_attempt_starts_anew() {
    simulate(8, async |world| {
        let (_running, handle, mut one) = site(&world).await;
        let lock = one.wire_lock(&handle, 1, 0, 1);
        world
            .server
            .disk()
            .configure(|options| options.sync_failures = 1_000_000);
        assert_eq!(one.lock(&lock).await, LockStatus::NoLocks);
        world.server.disk().configure(|options| options.sync_failures = 0);
        assert_eq!(one.lock(&lock).await, LockStatus::Granted);
        world.server.crash();
        world.server.restart();
        let _running = world.start().await;
        one.notices.recv().await.expect("told");
    });
}

#[test]
fn a_damaged_list_is_put_aside_and_the_server_starts() {
    simulate(9, async |world| {
        let running = world.start().await;
        let state = running.locks.monitor().state();
        let handle = file(&world).await;
        let one = world.client("one").await;
        one.lock(&one.wire_lock(&handle, 1, 0, 1)).await;
        world.server.kill();
        world.server.restart();
        assert_eq!(world.server.disk().rot("nsm/clients", 1).len(), 1);
        world.sleep(10).await;
        let running = world.start().await;
        assert_eq!(running.locks.monitor().clients(), []);
        assert_ne!(running.locks.monitor().state(), state);
        let files = world.server.env().disk().list("nsm").await.expect("a directory");
        assert_eq!(files, ["clients", "clients.damaged"]);
    });
}

#[test]
fn a_client_that_cannot_be_reached_at_first_is_told_later() {
    simulate(10, async |world| {
        let (_running, handle, mut one) = site(&world).await;
        one.lock(&one.wire_lock(&handle, 1, 0, 1)).await;
        world.simulation().partition(&world.server, &one.machine, true);
        let _running = world.restart().await;
        world.sleep(20).await;
        assert!(one.notices.try_recv().is_err());
        world.simulation().partition(&world.server, &one.machine, false);
        one.notices.recv().await.expect("told");
        assert_eq!(
            one.reclaim(&one.wire_lock(&handle, 1, 0, 1)).await,
            LockStatus::Granted
        );
    });
}

#[test]
fn only_a_notice_is_taken_from_other_machines() {
    simulate(11, async |world| {
        let running = world.start().await;
        let one = world.client("one").await;
        let host = crate::xdr::Opaque::<1024>::from("one");
        let mut reply = one.call(PROGRAM, 1, &host).await.expect("answered");
        assert_eq!(reply.u32(), Ok(1), "not monitored");
        assert_eq!(
            reply.u32().map(u32::cast_signed),
            Ok(running.locks.monitor().state())
        );
        assert!(one.call(PROGRAM, 2, &host).await.is_err(), "arguments cut off");
        assert!(one.call(PROGRAM, 5, &()).await.is_ok());
        assert!(one.call(PROGRAM, 7, &()).await.is_err());
    });
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = || {
        simulate(12, async |world| {
            let (_running, handle, one) = site(&world).await;
            let two = world.client("two").await;
            two.on_granted(OnGranted::Silence);
            let lock = one.wire_lock(&handle, 1, 0, 10);
            one.lock(&lock).await;
            two.lock_waiting(&two.wire_lock(&handle, 2, 0, 10)).await;
            one.unlock(&lock).await;
            world.sleep(3).await;
            let _running = world.restart().await;
            world.sleep(100).await;
            world.simulation().trace_hash()
        })
    };
    assert_eq!(run(), run());
}

fn change(name: &str, state: i32) -> StatusChange {
    StatusChange {
        name: name.into(),
        state,
    }
}

#[test]
fn a_notice_of_somebody_who_is_not_root_of_an_admitted_machine_is_refused() {
    simulate(14, async |world| {
        let (running, _, one) = locked(&world).await;
        one.machine.use_privileged_ports(false);
        let said = one.call(PROGRAM, NOTIFY, &change("one", 5)).await;
        assert!(said.is_err(), "any user of the machine can say this");
        let all = crate::nlm::FreeAllCall {
            caller: "one".into(),
            state: 5,
        };
        assert!(one.call(crate::nlm::PROGRAM, 23, &all).await.is_err());
        assert_eq!(running.table.counts().locks, 1);
        let stranger = Peer {
            address: "192.0.2.1".parse().expect("an address"),
            port: 700,
            transport: crate::rpc::Transport::Tcp,
        };
        assert!(world.exports().admit_machine(&stranger).is_err());
    });
}

#[test]
fn a_notice_that_anybody_can_forge_releases_nothing() {
    simulate(15, async |world| {
        let (running, handle, one) = site(&world).await;
        let lock = one.wire_lock(&handle, 1, 0, 10);
        one.lock(&lock).await;
        let present = TestClient::lock_call(lock.clone()).state;
        // It vouches for its number, does not vouch for any, and does not answer.
        for says in [Some(present), None, Some(0)] {
            *one.state.lock().expect("no panic under this lock") = says;
            world
                .simulation()
                .partition(&world.server, &one.machine, says == Some(0));
            for state in [present, present + 2, 0, -1] {
                let forged = change("one", state);
                let sent = world.datagram_of(&one, &running, PROGRAM, NOTIFY, &forged).await;
                assert!(sent.is_ok());
                let all = crate::nlm::FreeAllCall {
                    caller: "one".into(),
                    state,
                };
                let sent = world
                    .datagram_of(&one, &running, crate::nlm::PROGRAM, 23, &all)
                    .await;
                assert!(sent.is_ok());
                world.sleep(60).await;
                assert_eq!(running.table.counts().locks, 1, "{says:?}, {state}");
            }
        }
        world.simulation().partition(&world.server, &one.machine, false);
        one.lock(&lock).await;
        assert_eq!(running.table.counts().locks, 1, "the client goes on as it was");
    });
}

#[test]
fn a_notice_by_datagram_is_believed_when_the_clients_monitor_confirms_it() {
    simulate(16, async |world| {
        let (running, _, one) = locked(&world).await;
        *one.state.lock().expect("no panic under this lock") = Some(5);
        let claim = change("one", 5);
        let said = world.datagram_of(&one, &running, PROGRAM, NOTIFY, &claim).await;
        assert!(said.is_ok());
        world.sleep(30).await;
        assert_eq!(running.table.counts().locks, 0);
    });
}

#[test]
fn a_notice_that_nobody_confirms_is_believed_when_the_client_locks_with_the_new_number() {
    simulate(17, async |world| {
        let (running, handle, one) = locked(&world).await;
        let claim = change("one", 5);
        let said = world.datagram_of(&one, &running, PROGRAM, NOTIFY, &claim).await;
        assert!(said.is_ok());
        world.sleep(60).await;
        assert_eq!(running.table.counts().locks, 1, "not yet");
        let after = crate::nlm::LockCall {
            state: 5,
            ..TestClient::lock_call(one.wire_lock(&handle, 2, 50, 10))
        };
        assert_eq!(one.status(2, &after).await, LockStatus::Granted);
        assert_eq!(running.table.counts().locks, 1, "only the new one");
    });
}

#[test]
fn a_client_cannot_fill_the_list_with_names() {
    simulate(18, async |world| {
        let running = world.start().await;
        let monitor = running.locks.monitor();
        let host = |address: [u8; 4], number: u32| Host {
            address: address.into(),
            name: format!("name-{number}").into(),
        };
        let mut refused = 0;
        for number in 0..300 {
            refused += u32::from(monitor.enter(&host([10, 0, 0, 9], number)).await.is_err());
        }
        assert_eq!(refused, 300 - 256);
        assert!(monitor.enter(&host([10, 0, 0, 8], 0)).await.is_ok(), "others can");
    });
}

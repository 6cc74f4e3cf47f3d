//! NLM of a volume that several offices change by turns.

use super::*;
use std::sync::Arc;

#[test]
fn a_call_waits_for_the_volume_and_its_client_is_told_to_ask_again_in_the_end() {
    simulate(61, async |world| {
        let (running, handle, one, mut two) = site(&world).await;
        let offices = running.table.between_offices(world.root().file_system);
        let lock = one.wire_lock(&handle, 1, 0, 10);
        assert_eq!(one.lock(&lock).await, LockStatus::GracePeriod);
        assert_eq!(one.test(&lock).await.result, Err((LockStatus::GracePeriod, None)));
        assert!(offices.is_wanted());
        let (env, opening) = (world.simulation().env(), offices.clone());
        let clock = env.clone();
        let opened = env.spawn("handover", async move {
            clock.sleep(Duration::from_secs(2)).await;
            opening.open(Arc::new(|| true));
        });
        assert_eq!(one.lock(&lock).await, LockStatus::Granted);
        opened.await.expect("it was opened");
        // Who may wait is called when it is its own, whoever has the volume until then.
        offices.close();
        let other = two.wire_lock(&handle, 2, 0, 10);
        assert_eq!(two.lock_waiting(&other).await, LockStatus::Blocked);
        one.unlock(&lock).await;
        world.sleep(30).await;
        assert!(two.granted.is_empty() && offices.is_wanted());
        offices.open(Arc::new(|| true));
        let call = two.granted.recv().await.expect("told");
        assert_eq!(call.lock, other);
    });
}

#[test]
fn a_client_whose_lock_another_office_broke_hears_it_and_keeps_the_others() {
    simulate(62, async |world| {
        let (running, first, mut one, mut two) = site(&world).await;
        let second = world.handle(world.file("g", 0o644).await);
        let offices = running.table.between_offices(world.root().file_system);
        offices.open(Arc::new(|| true));
        let lost = one.wire_lock(&first, 1, 0, 10);
        let kept = one.wire_lock(&second, 1, 0, 10);
        let of_two = two.wire_lock(&second, 2, 50, 10);
        for (client, lock) in [(&one, &lost), (&one, &kept), (&two, &of_two)] {
            assert_eq!(client.lock(lock).await, LockStatus::Granted);
        }
        let before = running.locks.monitor().state();
        let inode = world.file("f", 0o644).await.inode;
        let broken = offices.keep_only(|lock| lock.inode != inode);
        assert_eq!(broken.len(), 1);
        running.locks.tell_broken(&broken).await;
        let notice = one.notices.recv().await.expect("told");
        assert_eq!(notice.state, running.locks.monitor().state());
        assert!(notice.state > before, "a state that it has not heard yet");
        assert_eq!(one.reclaim(&kept).await, LockStatus::Granted);
        assert_eq!(one.reclaim(&lost).await, LockStatus::Denied);
        world.sleep(60).await;
        assert!(two.notices.is_empty(), "it lost nothing");
        // Of the next start all hear, with a state above.
        let running = world.restart().await;
        assert!(running.locks.monitor().state() > notice.state);
        assert!(two.notices.recv().await.is_some());
    });
}

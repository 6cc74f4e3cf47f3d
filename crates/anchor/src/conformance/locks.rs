//! Locks in the handover record: grown by the owner alone, kept by their member, broken by the owner at the count it saw.

use super::{
    ALICE, BOB, OTHER, Subject,
    members::{Members, SHARED},
};
use crate::{
    AnchorAnswer, AnchorCall, AnchorError, ArenaChange, Beating, HandoverChange, HandoverRecord, LOCK_LEASE,
    MAX_LOCKING, MAX_LOCKS, MemberCall, MemberLocksChange, Membership, Obstacle, OwnerId, RecordedLock,
};

fn lock(inode: u64, (first, last): (u64, u64), exclusive: bool) -> RecordedLock {
    RecordedLock {
        inode,
        first,
        last,
        exclusive,
        waits: false,
    }
}

fn waiting(lock: RecordedLock) -> RecordedLock {
    RecordedLock { waits: true, ..lock }
}

fn locks_of(record: &HandoverRecord, member: OwnerId) -> Option<Vec<RecordedLock>> {
    record.locks_of(member).map(|entry| entry.locks.clone())
}

impl Subject {
    pub(super) async fn locks_lie_in_the_handover_record(&self) {
        let anchor = &self.anchor;
        let mut alices = self.acquired(OTHER, ALICE).await;
        let hers = Beating::from(&alices);
        let (writes, reads) = (lock(7, (0, 99), true), lock(8, (0, u64::MAX), false));
        let granted = [writes, reads, waiting(lock(9, (5, 5), true))];
        let recorded = anchor.record_locks(OTHER, &hers, "alice", &granted).await;
        let recorded = recorded.expect("she owns it");
        assert_eq!(locks_of(&recorded, ALICE).as_deref(), Some(&granted[..]));
        let (found, _) = anchor.handover(OTHER).await.expect("an answer");
        assert_eq!(found, recorded);
        let first_count = found.locks_of(ALICE).expect("an entry").beats;

        // Bob has the volume, and she keeps what is left.
        anchor.drain(&mut alices).await.expect("a drain");
        let mut bobs = self.acquired(OTHER, BOB).await;
        let his = Beating::from(&bobs);
        let late = anchor.record_locks(OTHER, &hers, "alice", &granted).await;
        assert!(matches!(late, Err(AnchorError::Fenced(_))), "{late:?}");
        for (more, what) in [
            (lock(7, (0, 100), true), "a byte more"),
            (lock(8, (0, 0), true), "for writing what was for reading"),
            (lock(9, (5, 5), true), "what it waited for"),
        ] {
            let kept = anchor.keep_locks(OTHER, ALICE, "alice", &[more]).await;
            assert!(
                matches!(kept, Err(AnchorError::Contended { .. })),
                "{what}: {kept:?}"
            );
        }
        let left = [
            lock(7, (0, 9), true),
            lock(7, (20, 99), false),
            waiting(lock(1, (0, 0), false)),
        ];
        let kept = anchor.keep_locks(OTHER, ALICE, "alice", &left).await;
        let kept = kept.expect("less than she had");
        assert_eq!(locks_of(&kept, ALICE).as_deref(), Some(&left[..]));
        let count = kept.locks_of(ALICE).expect("an entry").beats;
        assert_eq!(count, first_count.wrapping_add(1));

        // Only he may break them, and not once she has given a sign of life.
        let (_, seen) = anchor.handover(OTHER).await.expect("an answer");
        let by_alice = HandoverChange::BreakLocks {
            owner: ALICE,
            epoch: hers.epoch,
            grant: hers.grant,
            member: ALICE,
            beats: count,
            inode: None,
        };
        let call = |change| AnchorCall::ChangeHandover {
            volume: OTHER,
            seen,
            change,
            change_id: [8; 16],
        };
        self.assert_limit(call(by_alice), "a break without the volume")
            .await;
        let early = anchor.break_locks(OTHER, &his, (ALICE, first_count), None).await;
        assert!(matches!(early, Err(AnchorError::Contended { .. })), "{early:?}");
        let broken = anchor.break_locks(OTHER, &his, (ALICE, count), Some(7)).await;
        let broken = broken.expect("his to break");
        assert_eq!(locks_of(&broken, ALICE).as_deref(), Some(&left[2..]));
        let broken = anchor.break_locks(OTHER, &his, (ALICE, count), None).await;
        assert_eq!(broken.expect("his to break").locks, []);
        let kept = anchor.keep_locks(OTHER, ALICE, "alice", &left).await;
        assert!(matches!(kept, Err(AnchorError::Contended { .. })), "{kept:?}");

        // Bounds: who waits leaves a place to who has the volume.
        let crowd: Vec<_> = (0..=MAX_LOCKS as u64)
            .map(|inode| lock(inode, (0, 0), true))
            .collect();
        let refused = anchor.record_locks(OTHER, &his, "bob", &crowd).await;
        assert!(
            matches!(refused, Err(AnchorError::Contended { .. })),
            "{refused:?}"
        );
        let waits = [waiting(reads)];
        for number in 1..MAX_LOCKING as u8 {
            let member = OwnerId([0x60 + number; 16]);
            let kept = anchor.keep_locks(OTHER, member, "one of many", &waits).await;
            kept.expect("a place");
        }
        let late = anchor.keep_locks(OTHER, ALICE, "alice", &waits).await;
        assert!(matches!(late, Err(AnchorError::Contended { .. })), "{late:?}");
        let recorded = anchor.record_locks(OTHER, &his, "bob", &crowd[..MAX_LOCKS]).await;
        assert_eq!(recorded.expect("the last place").locks.len(), MAX_LOCKING);
        let emptied = anchor.record_locks(OTHER, &his, "bob", &[]).await;
        assert_eq!(locks_of(&emptied.expect("none left"), BOB), None);
        anchor.drain(&mut bobs).await.expect("a drain");
    }
}

impl Subject {
    /// The same in a volume that members write at the same moment.
    pub(super) async fn locks_are_recorded_by_who_holds_their_lease(&self, members: &mut Members) {
        let (anchor, Members { alice, bob }) = (&self.anchor, members);
        let (hers, his) = (alice.tuple().edge, bob.tuple().edge);
        let keep = |locks: &[RecordedLock]| MemberLocksChange::Keep {
            locks: locks.to_vec(),
        };
        let record = |locks: &[RecordedLock]| MemberLocksChange::Record {
            locks: locks.to_vec(),
        };
        let (_, seen) = anchor.handover(SHARED).await.expect("an answer");
        assert_eq!(seen, None, "no turns, no record");
        let granted = [lock(7, (0, 99), true), lock(8, (0, u64::MAX), false)];
        let waits = [waiting(granted[0])];
        // Whoever is there waits, and nobody records what was not granted under the lease.
        let kept = anchor.change_member_locks(bob, &keep(&waits)).await;
        assert_eq!(locks_of(&kept.expect("a wait"), his).as_deref(), Some(&waits[..]));
        let more = anchor.change_member_locks(bob, &keep(&granted)).await;
        assert!(matches!(more, Err(AnchorError::Contended { .. })), "{more:?}");
        let call = |of: &Membership, by, seen, change| {
            Self::call(MemberCall::Locks {
                by: Self::by(of, by),
                seen,
                change,
                change_id: [0x41; 16],
            })
        };
        let (_, seen) = anchor.handover(SHARED).await.expect("an answer");
        let early = call(alice, self.version_of(alice), seen, record(&granted));
        self.assert_limit(early, "a record without the lease").await;
        let take = |change| ((LOCK_LEASE, 0), change);
        let (at, change) = take(ArenaChange::Take);
        anchor
            .change_lease(alice, at, change)
            .await
            .expect("it is nobody's");
        let recorded = anchor.change_member_locks(alice, &record(&granted)).await;
        let recorded = recorded.expect("she decides");
        assert_eq!(locks_of(&recorded, hers).as_deref(), Some(&granted[..]));
        assert_eq!(locks_of(&recorded, his).as_deref(), Some(&waits[..]));
        assert_eq!(anchor.handover(SHARED).await.expect("an answer").0, recorded);

        // What she gave up does not happen once she has given a sign of life.
        let (_, seen) = anchor.handover(SHARED).await.expect("an answer");
        let late = call(alice, self.version_of(alice), seen, record(&[]));
        anchor.beat_member(alice).await.expect("she is there");
        let conflict = AnchorAnswer::Conflict {
            with: Obstacle::Member,
        };
        assert_eq!(self.answer(&late).await, conflict);

        // The lease goes over: now he decides, and breaks hers on the count that he saw.
        let (at, change) = take(ArenaChange::Want);
        anchor.change_lease(bob, at, change).await.expect("he waits");
        let (at, change) = take(ArenaChange::Give);
        anchor.change_lease(alice, at, change).await.expect("she gives");
        let (record_of, seen) = anchor.handover(SHARED).await.expect("an answer");
        let count = record_of.locks_of(hers).expect("an entry").beats;
        let broken = |beats, inode| MemberLocksChange::Break {
            edge: hers,
            beats,
            inode,
        };
        let not_hers = call(alice, self.version_of(alice), seen, broken(count, None));
        self.assert_limit(not_hers, "a break without the lease").await;
        let kept = anchor.change_member_locks(alice, &keep(&granted[..1])).await;
        let kept = kept.expect("less than she had");
        assert_eq!(locks_of(&kept, hers).as_deref(), Some(&granted[..1]));
        let early = anchor.change_member_locks(bob, &broken(count, None)).await;
        assert!(matches!(early, Err(AnchorError::Contended { .. })), "{early:?}");
        let count = kept.locks_of(hers).expect("an entry").beats;
        let fallen = anchor.change_member_locks(bob, &broken(count, Some(7))).await;
        assert_eq!(locks_of(&fallen.expect("his to break"), hers), None);
        let by_turns = AnchorCall::ChangeHandover {
            volume: SHARED,
            seen: anchor.handover(SHARED).await.expect("an answer").1,
            change: HandoverChange::KeepLocks {
                member: hers,
                name: "alice".into(),
                locks: waits.to_vec(),
            },
            change_id: [0x42; 16],
        };
        self.assert_limit(by_turns, "what offices by turns say").await;

        // Who is away says nothing.
        anchor.leave(alice).await.expect("she leaves");
        let (_, seen) = anchor.handover(SHARED).await.expect("an answer");
        let away = call(alice, self.version_of(alice), seen, keep(&waits));
        self.assert_limit(away, "locks of who is away").await;
        anchor.come_back(alice).await.expect("she is back");
        let emptied = anchor.change_member_locks(bob, &record(&[])).await;
        assert_eq!(emptied.expect("none left").locks, []);
        let (at, change) = take(ArenaChange::Give);
        anchor.change_lease(bob, at, change).await.expect("nobody waits");
    }
}

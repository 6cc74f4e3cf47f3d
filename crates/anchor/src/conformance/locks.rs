//! Locks in the handover record: grown by the owner alone, kept by their member, broken by the owner at the count it saw.

use super::{ALICE, BOB, OTHER, Subject};
use crate::{
    AnchorCall, AnchorError, Beating, HandoverChange, HandoverRecord, MAX_LOCKING, MAX_LOCKS, OwnerId,
    RecordedLock,
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

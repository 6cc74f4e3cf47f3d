//! Leases: who takes, waits, gives, takes from the absent, breaks the silent; and that a change which its member gave up does not happen later.

use super::{
    Subject,
    members::{Members, SHARED},
};
use crate::{
    AnchorAnswer, AnchorError, ArenaChange, LeaseRange, LeaseRefusal, MAX_LEASES, MemberCall,
    MemberCommitEnd, MemberNumber, Membership, Obstacle, SHAPE_LEASE, SeenRange,
};

fn refusal<T: std::fmt::Debug>(result: Result<T, AnchorError>) -> LeaseRefusal {
    match result {
        Err(AnchorError::Lease { why, .. }) => why,
        other => panic!("no refusal of a lease: {other:?}"),
    }
}

fn inode_of(of: &Membership, offset: u64) -> u64 {
    (u64::from(of.member().0) << 32) + offset
}

impl Subject {
    async fn holder(&self, inode: u64) -> Option<MemberNumber> {
        let seen = self.anchor.arena(SHARED, inode).await.expect("an answer");
        let range = LeaseRange::around(inode, 0).expect("a level");
        seen.arena.holder(range).expect("one inode")
    }

    async fn lease(&self, of: &mut Membership, inode: u64, change: ArenaChange) {
        let changed = self.anchor.change_lease(of, (inode, 0), change).await;
        changed.unwrap_or_else(|error| panic!("{change:?} of {inode}: {error}"));
    }

    pub(super) async fn leases_go_from_member_to_member(&self, members: &mut Members) {
        let (anchor, Members { alice, bob }) = (&self.anchor, members);
        assert_eq!(anchor.arenas(SHARED).await.expect("a list"), []);
        // What is nobody's is taken; what is a member's home is that member's without any record.
        self.lease(alice, SHAPE_LEASE, ArenaChange::Take).await;
        assert_eq!(self.holder(SHAPE_LEASE).await, Some(alice.member()));
        let (hers, wide) = (inode_of(alice, 300), inode_of(alice, 1 << 21));
        assert_eq!(self.holder(hers).await, Some(alice.member()));
        let taken = anchor
            .change_lease(bob, (SHAPE_LEASE, 0), ArenaChange::Take)
            .await;
        assert_eq!(refusal(taken), LeaseRefusal::HeldByOther);

        // Bob waits, Alice is woken and gives, and nothing is left behind once it is home again.
        self.lease(bob, hers, ArenaChange::Want).await;
        self.lease(bob, hers, ArenaChange::Want).await;
        for bumps in 1..=2 {
            anchor.bump_mail(bob, alice.member()).await.expect("a bump");
            assert_eq!(anchor.mail(SHARED, alice.member()).await.expect("mail"), bumps);
        }
        let seen = anchor.arena(SHARED, hers).await.expect("an answer");
        let range = LeaseRange::around(hers, 0).expect("a level");
        assert_eq!(seen.arena.queue(range), [bob.member()]);
        self.lease(alice, hers, ArenaChange::Give).await;
        assert_eq!(self.holder(hers).await, Some(bob.member()));
        let not_hers = anchor.change_lease(alice, (hers, 0), ArenaChange::Give).await;
        assert_eq!(refusal(not_hers), LeaseRefusal::NotHeld);
        self.lease(bob, hers, ArenaChange::Give).await;
        assert_eq!(self.holder(hers).await, Some(alice.member()));
        self.lease(bob, wide, ArenaChange::Want).await;
        self.lease(bob, wide, ArenaChange::Withdraw).await;
        let arenas = anchor.arenas(SHARED).await.expect("a list");
        let held: Vec<_> = arenas.iter().map(|seen| seen.arena.leases().len()).collect();
        assert_eq!(
            held,
            [1, 0, 0],
            "the shape lease alone; records that are empty stay"
        );

        // A gift that Alice gave up, and a sign of life: what she holds is not given away later.
        self.lease(bob, hers, ArenaChange::Want).await;
        let seen = anchor.arena(SHARED, hers).await.expect("an answer").version;
        let gift = Self::call(MemberCall::Lease {
            by: Self::by(alice, self.version_of(alice)),
            range: SeenRange {
                inode: hers,
                level: 0,
                seen,
            },
            change: ArenaChange::Give,
            change_id: [0x31; 16],
        });
        anchor.beat_member(alice).await.expect("she is there");
        let conflict = AnchorAnswer::Conflict {
            with: Obstacle::Member,
        };
        assert_eq!(self.answer(&gift).await, conflict);
        assert_eq!(self.holder(hers).await, Some(alice.member()));
        self.lease(bob, hers, ArenaChange::Withdraw).await;

        // Bounds: an arena is full, levels end, mail goes to members.
        for number in 0..MAX_LEASES as u64 {
            self.lease(bob, wide + 4096 + number, ArenaChange::Want).await;
        }
        let one_more = anchor.change_lease(bob, (wide, 0), ArenaChange::Want).await;
        assert_eq!(refusal(one_more), LeaseRefusal::ArenaFull);
        self.lease(bob, wide + 4096, ArenaChange::Withdraw).await;
        self.lease(bob, wide, ArenaChange::Want).await;
        let no_level = Self::call(MemberCall::Lease {
            by: Self::by(alice, self.version_of(alice)),
            range: SeenRange {
                inode: hers,
                level: 4,
                seen: None,
            },
            change: ArenaChange::Take,
            change_id: [0x32; 16],
        });
        self.assert_limit(no_level, "a level that there is not").await;
        let nobody = Self::call(MemberCall::BumpMail {
            by: Self::by(alice, self.version_of(alice)),
            to: MemberNumber(bob.member().0 + 100),
            seen: None,
            change_id: [0x33; 16],
        });
        self.assert_limit(nobody, "mail of nobody").await;
    }

    pub(super) async fn what_is_retained_for_a_broken_member_is_given_up(&self, members: &mut Members) {
        let (anchor, Members { alice, bob }) = (&self.anchor, members);
        let watched = self.entry(alice).await;
        assert!(
            !anchor.give_up(bob, &watched).await.expect("an answer"),
            "she is there"
        );
        let at = (inode_of(alice, 950), 0);
        anchor
            .break_member(bob, at, &watched)
            .await
            .expect("she was silent");
        let broken = self.entry(alice).await;
        let late = Self::call(MemberCall::GiveUp {
            by: Self::by(bob, self.version_of(bob)),
            broken: Self::by(alice, broken.version),
            seen: anchor.load(SHARED).await.expect("it is there").1,
            given_up_at_ms: 5,
            change_id: [0x38; 16],
        });
        let mut again = anchor
            .start_member(SHARED, alice.member())
            .await
            .expect("a start");
        let conflict = AnchorAnswer::Conflict {
            with: Obstacle::Holder,
        };
        assert_eq!(
            self.answer(&late).await,
            conflict,
            "she is back, and judges her journal"
        );
        assert!(!anchor.give_up(bob, &broken).await.expect("an answer"));
        let watched = self.entry(&again).await;
        let at = (inode_of(alice, 951), 0);
        anchor
            .break_member(bob, at, &watched)
            .await
            .expect("she was silent");
        let broken = self.entry(&again).await;
        assert!(anchor.give_up(bob, &broken).await.expect("an answer"));
        let (tuple, _) = anchor.load(SHARED).await.expect("it is there");
        assert_eq!(tuple.retained_for_member(alice.member()), None);
        assert!(self.entry(&again).await.tuple.record.given_up_at_ms.is_some());
        assert!(!anchor.give_up(bob, &broken).await.expect("an answer"), "once");
        again = anchor
            .start_member(SHARED, alice.member())
            .await
            .expect("a start");
        assert!(again.tuple().record.given_up_at_ms.is_some(), "her start is told");
        *alice = again;
        self.members_commit(alice).await;
        assert_eq!(self.entry(alice).await.tuple.record.given_up_at_ms, None);
    }

    pub(super) async fn a_home_without_a_member_is_nobodys(&self, members: &mut Members) {
        let (anchor, Members { alice, bob }) = (&self.anchor, members);
        // Numbers of a writer that is no member, as an owner's are.
        let inode = (alice.incarnation().0 << 32) + 7;
        let taken = anchor.take_from_nobody(alice, (inode, 0)).await;
        taken.expect("nobody is there");
        assert_eq!(self.holder(inode).await, Some(alice.member()));
        let others = anchor.take_from_nobody(bob, (inode, 0)).await;
        assert_eq!(refusal(others), LeaseRefusal::HeldByOther);
        // It goes from member to member as any other, and home to nobody.
        self.lease(bob, inode, ArenaChange::Want).await;
        self.lease(alice, inode, ArenaChange::Give).await;
        assert_eq!(self.holder(inode).await, Some(bob.member()));
        self.lease(bob, inode, ArenaChange::Give).await;
        let wide = anchor
            .take_from_nobody(bob, (inode, 1))
            .await
            .expect("all is free");
        assert_eq!(wide.leases().len(), 1);
        let given = anchor.change_lease(bob, (inode, 1), ArenaChange::Give).await;
        assert_eq!(given.expect("it is his").leases(), []);

        // A member's home is that member's, whether it is there or not.
        let hers = inode_of(alice, 900);
        let taken = anchor.take_from_nobody(bob, (hers, 0)).await;
        assert_eq!(refusal(taken), LeaseRefusal::HolderPresent);
        assert_eq!(self.holder(hers).await, Some(alice.member()));
        let reserved = Self::call(MemberCall::TakeFromNobody {
            by: Self::by(bob, self.version_of(bob)),
            range: SeenRange {
                inode: 5,
                level: 0,
                seen: anchor.arena(SHARED, 5).await.expect("an answer").version,
            },
            change_id: [0x37; 16],
        });
        self.assert_limit(reserved, "what is in nobody's home").await;
    }

    pub(super) async fn the_absent_are_taken_from_and_the_silent_broken(&self, members: &mut Members) {
        let (anchor, Members { alice, bob }) = (&self.anchor, members);
        let (hers, other) = (inode_of(alice, 300), inode_of(alice, 301));
        let present = anchor.take_from_absent(bob, (hers, 0), alice.member()).await;
        assert_eq!(refusal(present), LeaseRefusal::HolderPresent);
        anchor.leave(alice).await.expect("she leaves");
        let absent_at = self.entry(alice).await.version;
        let away = anchor
            .change_lease(alice, (SHAPE_LEASE, 0), ArenaChange::Give)
            .await;
        assert!(matches!(away, Err(AnchorError::MemberAway { .. })), "{away:?}");
        let by_call = Self::call(MemberCall::Lease {
            by: Self::by(alice, self.version_of(alice)),
            range: SeenRange {
                inode: hers,
                level: 0,
                seen: anchor.arena(SHARED, hers).await.expect("an answer").version,
            },
            change: ArenaChange::Take,
            change_id: [0x34; 16],
        });
        self.assert_limit(by_call, "a lease of who is away").await;
        let taken = anchor.take_from_absent(bob, (hers, 0), alice.member()).await;
        taken.expect("she is away");
        assert_eq!(self.holder(hers).await, Some(bob.member()));

        // She comes back in the instant between Bob's look and his taking.
        anchor.come_back(alice).await.expect("she comes back");
        let late = Self::call(MemberCall::TakeFromAbsent {
            by: Self::by(bob, self.version_of(bob)),
            range: SeenRange {
                inode: other,
                level: 0,
                seen: anchor.arena(SHARED, other).await.expect("an answer").version,
            },
            absent: Self::by(alice, absent_at),
            change_id: [0x35; 16],
        });
        let conflict = AnchorAnswer::Conflict {
            with: Obstacle::Holder,
        };
        assert_eq!(self.answer(&late).await, conflict);
        assert_eq!(self.holder(other).await, Some(alice.member()));

        // A sign of life keeps her; without one she is broken, and the head is kept for her once.
        let watched = self.entry(alice).await;
        anchor.beat_member(alice).await.expect("she is there");
        let alive = anchor.break_member(bob, (other, 0), &watched).await;
        assert_eq!(refusal(alive), LeaseRefusal::HolderPresent);
        let (root, seen) = self.members_root(alice).await;
        let last_commit = Self::call(MemberCall::Commit {
            by: Self::by(alice, self.version_of(alice)),
            incarnation: alice.incarnation(),
            seen,
            root: root.clone(),
            sequence: 9,
        });
        let head = anchor.load(SHARED).await.expect("it is there").0.root;
        let watched = self.entry(alice).await;
        let broken = anchor.break_member(bob, (other, 0), &watched).await;
        broken.expect("she was silent");
        assert_eq!(self.holder(other).await, Some(bob.member()));
        let (tuple, _) = anchor.load(SHARED).await.expect("it is there");
        let retained = tuple
            .retained_for_member(alice.member())
            .expect("for her journal");
        assert_eq!(Some(&retained.root), head.as_ref());
        // What she had under way does not happen, neither on the root that she saw nor on the newest one.
        assert!(matches!(
            self.answer(&last_commit).await,
            AnchorAnswer::Conflict { .. }
        ));
        let MemberCall::Commit { by, incarnation, .. } = Self::commit_of(&last_commit) else {
            panic!("it is one")
        };
        let (_, seen) = anchor.load(SHARED).await.expect("it is there");
        let again = Self::call(MemberCall::Commit {
            by,
            incarnation,
            seen,
            root: root.clone(),
            sequence: 9,
        });
        assert!(matches!(self.answer(&again).await, AnchorAnswer::Conflict { .. }));
        let (root, seen) = self.members_root(alice).await;
        let fenced = anchor.commit_member(alice, seen, &root, 10).await;
        assert!(
            matches!(fenced, Err(AnchorError::MemberBroken { .. })),
            "{fenced:?}"
        );
        let beaten = anchor.beat_member(alice).await;
        assert!(
            matches!(beaten, Err(AnchorError::MemberBroken { .. })),
            "{beaten:?}"
        );
        let taken = anchor.take_from_absent(bob, (hers + 5, 0), alice.member()).await;
        taken.expect("all that she held is void");

        // She starts anew and is broken again before she has judged her journal: what was kept first stays.
        self.members_commit(bob).await;
        let mut again = anchor
            .start_member(SHARED, alice.member())
            .await
            .expect("a start");
        assert!(again.incarnation() > alice.incarnation());
        let watched = self.entry(&again).await;
        let broken = anchor.break_member(bob, (hers + 6, 0), &watched).await;
        broken.expect("she was silent");
        let (tuple, _) = anchor.load(SHARED).await.expect("it is there");
        assert_eq!(tuple.retained.len(), 1);
        assert_eq!(Some(&tuple.retained[0].root), head.as_ref());
        let fenced = anchor.beat_member(&mut again).await;
        assert!(
            matches!(fenced, Err(AnchorError::MemberBroken { .. })),
            "{fenced:?}"
        );
        *alice = anchor
            .start_member(SHARED, alice.member())
            .await
            .expect("a start");
        anchor
            .forget_retained_for(alice)
            .await
            .expect("her journal is judged");
        anchor
            .forget_retained_for(alice)
            .await
            .expect("it is gone already");
        assert_eq!(anchor.load(SHARED).await.expect("it is there").0.retained, []);
        let (root, seen) = self.members_root(alice).await;
        let end = anchor.commit_member(alice, seen, &root, 1).await;
        assert_eq!(end.expect("a commit"), MemberCommitEnd::Committed);
        let seen = self.entry(bob).await;
        let itself = Self::call(MemberCall::Break {
            by: Self::by(bob, seen.version),
            range: SeenRange {
                inode: hers,
                level: 0,
                seen: anchor.arena(SHARED, hers).await.expect("an answer").version,
            },
            silent: Self::by(bob, seen.version),
            volume_seen: anchor.load(SHARED).await.expect("it is there").1,
            broken_at_ms: 0,
            change_id: [0x36; 16],
        });
        self.assert_limit(itself, "a member that breaks itself").await;
    }

    fn commit_of(call: &crate::AnchorCall) -> MemberCall {
        match call {
            crate::AnchorCall::Members { call, .. } => call.clone(),
            other => panic!("no call of a member: {other:?}"),
        }
    }
}

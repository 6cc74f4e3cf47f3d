//! Members of a volume that is shared by inode: who may join, start and commit, and what a call that comes late or twice does.

use super::{ALICE, BOB, Subject};
use crate::{
    AnchorAnswer, AnchorCall, AnchorError, MemberCall, MemberCommitEnd, MemberEntry, Membership, Obstacle,
    Presence, Root, SeenMember, WriterTenure,
};
use firn_format::{Location, OwnershipEpoch, SegmentId, Uid, Version, VolumeId};
use firn_table::ItemVersion;

pub(super) const SHARED: VolumeId = VolumeId([6; 16]);

/// Two members that are present.
pub(super) struct Members {
    pub alice: Membership,
    pub bob: Membership,
}

impl Subject {
    pub(super) async fn members_root(&self, of: &Membership) -> (Root, ItemVersion) {
        let (tuple, seen) = self.anchor.load(SHARED).await.expect("it is there");
        let version = Version(tuple.root.as_ref().map_or(0, |root| root.version.0) + 1);
        let location = Location {
            segment: SegmentId {
                writer: of.incarnation(),
                sequence: version.0,
            },
            offset: 0,
            length: 100,
        };
        let at = (Uid(self.env.random_bytes()), location);
        let now_ms = self.env.wall().as_millis();
        (
            of.next_root(&tuple, at, version, self.env.random_bytes(), now_ms),
            seen,
        )
    }

    pub(super) async fn members_commit(&self, of: &mut Membership) {
        let (root, seen) = self.members_root(of).await;
        let end = self.anchor.commit_member(of, seen, &root, root.version.0).await;
        assert_eq!(end.expect("a commit"), MemberCommitEnd::Committed);
    }

    pub(super) fn by(of: &Membership, seen: ItemVersion) -> SeenMember {
        SeenMember {
            member: of.member(),
            seen,
        }
    }

    pub(super) async fn entry(&self, of: &Membership) -> MemberEntry {
        let member = of.member();
        let (tuple, version) = self.anchor.member(SHARED, member).await.expect("it joined");
        MemberEntry {
            member,
            tuple,
            version,
        }
    }

    pub(super) fn call(call: MemberCall) -> AnchorCall {
        let volume = SHARED;
        AnchorCall::Members { volume, call }
    }

    /// Whoever may change the volume could otherwise take it from its offices' edges for ever, on any evening on which they have drained it.
    async fn what_an_owner_wrote_is_shared_by_nobody(&self) {
        let (anchor, volume) = (&self.anchor, VolumeId([0x5c; 16]));
        anchor
            .create_volume(volume, "written before")
            .await
            .expect("it is new");
        let mut owned = self.acquired(volume, ALICE).await;
        for _ in 0..2 {
            self.commit(&mut owned).await;
        }
        anchor.drain(&mut owned).await.expect("a drain");
        assert!(anchor.share_by_inode(volume).await.is_err());
        assert!(!anchor.load(volume).await.expect("it is there").0.by_inode);
    }

    pub(super) async fn a_volume_gets_members_and_is_owned_by_nobody(&self) -> Members {
        let anchor = &self.anchor;
        anchor.create_volume(SHARED, "shared").await.expect("it is new");
        let early = anchor.join_volume(SHARED, ALICE, "alice").await;
        assert!(
            matches!(early, Err(AnchorError::NotSharedByInode { .. })),
            "{early:?}"
        );
        assert!(anchor.share_by_inode(SHARED).await.is_err(), "it has no root");
        let mut owned = self.acquired(SHARED, ALICE).await;
        self.commit(&mut owned).await;
        let early = anchor.share_by_inode(SHARED).await;
        assert!(
            matches!(early, Err(AnchorError::OwnedByOther { .. })),
            "{early:?}"
        );
        anchor.drain(&mut owned).await.expect("a drain");
        let shared = anchor.share_by_inode(SHARED).await.expect("nobody owns it");
        assert_eq!((shared.by_inode, shared.epoch), (true, OwnershipEpoch(2)));
        assert_eq!(anchor.share_by_inode(SHARED).await.expect("it is"), shared);
        self.what_an_owner_wrote_is_shared_by_nobody().await;
        let refused = anchor.acquire(SHARED, ALICE, "alice").await;
        assert!(
            matches!(refused, Err(AnchorError::SharedByInode { .. })),
            "{refused:?}"
        );
        let (_, seen) = anchor.load(SHARED).await.expect("it is there");
        let take = crate::VolumeChange::Take {
            owner: ALICE,
            owner_name: "alice".into(),
            force: true,
            grant: [7; 16],
            taken_at_ms: 0,
        };
        let call = AnchorCall::ChangeVolume {
            volume: SHARED,
            seen,
            change: take,
        };
        self.assert_limit(call, "an owner of a volume that is shared by inode")
            .await;

        let (first, second) = (
            anchor
                .join_volume(SHARED, ALICE, "alice")
                .await
                .expect("a number"),
            anchor.join_volume(SHARED, BOB, "bob").await.expect("a number"),
        );
        assert!(first.0 > 0 && second > first);
        let (record, seen) = anchor.member(SHARED, first).await.expect("it joined");
        assert!(record.record.is_absent(), "before its first start");
        assert_eq!((record.edge, &*record.name), (ALICE, "alice"));
        // Of another member, of an owner, and of nobody.
        let wrong = [
            anchor
                .next_writer_for(WriterTenure::Member {
                    volume: SHARED,
                    member: second,
                })
                .await
                .expect("a writer"),
            anchor.next_writer().await.expect("a writer"),
            firn_format::WriterId(u64::MAX - 7),
        ];
        for incarnation in wrong {
            let call = Self::call(MemberCall::Presence {
                by: SeenMember { member: first, seen },
                change: Presence::Start,
                incarnation,
                change_id: [9; 16],
            });
            self.assert_limit(call, "another's writer").await;
        }
        let alice = anchor.start_member(SHARED, first).await.expect("a start");
        let bob = anchor.start_member(SHARED, second).await.expect("a start");
        let nobody = crate::MemberNumber(second.0 + 100);
        let unknown = anchor.start_member(SHARED, nobody).await;
        assert!(
            matches!(unknown, Err(AnchorError::NoSuchMember { .. })),
            "{unknown:?}"
        );
        let listed = anchor.members(SHARED).await.expect("a list");
        assert_eq!(listed, [self.entry(&alice).await, self.entry(&bob).await]);
        assert!(listed.iter().all(|entry| !entry.tuple.record.is_absent()));
        Members { alice, bob }
    }

    pub(super) async fn members_commit_on_the_root_that_they_saw(&self, members: &mut Members) {
        let (anchor, Members { alice, bob }) = (&self.anchor, members);
        let before = anchor.load(SHARED).await.expect("it is there").0;
        self.members_commit(alice).await;
        self.members_commit(bob).await;
        let (after, _) = anchor.load(SHARED).await.expect("it is there");
        assert_eq!(after.commits, before.commits + 2, "each commit is counted");
        assert_eq!(after.root.as_ref().map(|root| root.owner), Some(BOB));

        // Alice's was put on a root that Bob's took the place of.
        let (late, seen) = self.members_root(alice).await;
        self.members_commit(bob).await;
        let lost = anchor.commit_member(alice, seen, &late, 3).await;
        assert_eq!(lost.expect("an answer"), MemberCommitEnd::RootMoved);
        let happened = anchor.settle_member_commit(alice, late.commit_id).await;
        assert!(!happened.expect("an answer"), "and never will");

        // What comes twice is done once and answered alike; also after a sign of life, by the id in the own record.
        let (root, seen) = self.members_root(alice).await;
        let call = |root: &Root| {
            Self::call(MemberCall::Commit {
                by: Self::by(alice, self.version_of(alice)),
                incarnation: alice.incarnation(),
                seen,
                root: root.clone(),
                sequence: 4,
            })
        };
        let sent = call(&root);
        let first = self.answer(&sent).await;
        assert_eq!(self.answer(&sent).await, first);
        self.members_commit(bob).await;
        let happened = anchor.settle_member_commit(alice, root.commit_id).await;
        assert!(happened.expect("an answer"), "though the head is Bob's");
        assert!(matches!(self.answer(&sent).await, AnchorAnswer::Changed { .. }));

        // A commit that was given up, and a beat: it does not happen any more.
        let (root, seen) = self.members_root(alice).await;
        let given_up = Self::call(MemberCall::Commit {
            by: Self::by(alice, self.version_of(alice)),
            incarnation: alice.incarnation(),
            seen,
            root: root.clone(),
            sequence: 5,
        });
        let happened = anchor.settle_member_commit(alice, root.commit_id).await;
        assert!(!happened.expect("an answer"));
        let conflict = AnchorAnswer::Conflict {
            with: Obstacle::Member,
        };
        assert_eq!(self.answer(&given_up).await, conflict);

        let (root, seen) = self.members_root(alice).await;
        let by = Self::by(alice, self.version_of(alice));
        let skipped = Version(root.version.0 - 1);
        for (root, what) in [
            (
                Root {
                    owner: BOB,
                    ..root.clone()
                },
                "another member's root",
            ),
            (
                Root {
                    epoch: OwnershipEpoch(1),
                    ..root.clone()
                },
                "another epoch",
            ),
            (
                Root {
                    version: skipped,
                    ..root.clone()
                },
                "a version that does not rise",
            ),
        ] {
            let call = Self::call(MemberCall::Commit {
                by,
                incarnation: alice.incarnation(),
                seen,
                root,
                sequence: 5,
            });
            self.assert_limit(call, what).await;
        }
        let call = Self::call(MemberCall::Commit {
            by,
            incarnation: bob.incarnation(),
            seen,
            root,
            sequence: 5,
        });
        self.assert_limit(call, "another incarnation").await;
    }

    pub(super) fn version_of(&self, of: &Membership) -> ItemVersion {
        of.version()
    }
}

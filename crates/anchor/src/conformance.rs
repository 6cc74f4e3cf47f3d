//! One suite for whoever answers the anchor's calls: what [`AnchorBackend`] promises to an edge, checked through the trait alone.
//!
//! Each check is a sentence. The suite makes a family, so it wants a place that has none yet; it must be without faults.

use crate::{
    Anchor, AnchorAnswer, AnchorBackend, AnchorCall, AnchorError, Beating, HandoverChange, HandoverRecord,
    MAX_LISTED, MAX_WANTS, Obstacle, OwnerId, Ownership, Proposal, Root, TupleVersion, VolumeChange,
    WriterTenure,
};
use firn_env::Env;
use firn_format::{FamilyId, Location, OwnershipEpoch, SegmentId, Uid, Version, VolumeId, WriterId};
use firn_table::{ItemVersion, TableError};
use std::sync::Arc;

mod leases;
mod locks;
mod members;

const FAMILY: FamilyId = FamilyId([5; 16]);
const MAIN: VolumeId = VolumeId([1; 16]);
const OTHER: VolumeId = VolumeId([2; 16]);
const ALICE: OwnerId = OwnerId([0xa; 16]);
const BOB: OwnerId = OwnerId([0xb; 16]);

struct Subject {
    backend: Arc<dyn AnchorBackend>,
    anchor: Anchor,
    env: Env,
}

/// Runs all checks.
///
/// # Panics
/// If a promise is broken.
pub async fn run(backend: Arc<dyn AnchorBackend>, env: &Env) {
    let subject = Subject {
        anchor: Anchor::over(backend.clone(), env.clone(), FAMILY),
        backend,
        env: env.clone(),
    };
    subject
        .a_family_and_its_volumes_are_created_once_and_listed()
        .await;
    subject
        .ownership_rises_by_one_and_commits_follow_each_other()
        .await;
    subject
        .a_change_that_comes_again_is_done_once_and_answered_alike()
        .await;
    subject.a_change_on_what_stands_no_more_changes_nothing().await;
    subject
        .a_root_that_does_not_come_next_or_is_anothers_is_refused()
        .await;
    subject.a_takeover_fences_and_retains_and_a_drain_ends().await;
    subject
        .who_waits_stands_in_a_queue_and_only_the_owners_heart_beats()
        .await;
    subject.locks_lie_in_the_handover_record().await;
    let mut members = subject.a_volume_gets_members_and_is_owned_by_nobody().await;
    subject
        .members_commit_on_the_root_that_they_saw(&mut members)
        .await;
    subject.leases_go_from_member_to_member(&mut members).await;
    subject
        .the_absent_are_taken_from_and_the_silent_broken(&mut members)
        .await;
    subject
        .what_is_retained_for_a_broken_member_is_given_up(&mut members)
        .await;
    subject.a_home_without_a_member_is_nobodys(&mut members).await;
    subject
        .locks_are_recorded_by_who_holds_their_lease(&mut members)
        .await;
    subject.a_writer_is_drawn_once().await;
    subject.lists_are_bounded_and_names_are_names().await;
    subject.what_cleaners_leave_can_be_read().await;
}

impl Subject {
    fn root(&self, ownership: &Ownership, version: u64) -> Root {
        let location = Location {
            segment: SegmentId {
                writer: WriterId(1),
                sequence: version,
            },
            offset: 0,
            length: 100,
        };
        let (uid, id) = (Uid(self.env.random_bytes()), self.env.random_bytes());
        ownership.next_root(uid, location, Version(version), id, self.env.wall().as_millis())
    }

    async fn commit(&self, ownership: &mut Ownership) {
        let version = ownership.root().map_or(0, |root| root.version.0) + 1;
        let root = self.root(ownership, version);
        self.anchor.commit(ownership, root).await.expect("a commit");
    }

    async fn acquired(&self, volume: VolumeId, owner: OwnerId) -> Ownership {
        let acquired = self.anchor.acquire(volume, owner, "an edge").await;
        acquired.expect("nobody else owns it")
    }

    async fn version(&self, volume: VolumeId) -> TupleVersion {
        self.anchor.load(volume).await.expect("it is there").1
    }

    async fn answer(&self, call: &AnchorCall) -> AnchorAnswer {
        self.backend.call(call.clone()).await.expect("an answer")
    }

    async fn assert_limit(&self, call: AnchorCall, what: &str) {
        let answer = self.backend.call(call).await;
        assert!(matches!(answer, Err(TableError::Limit(_))), "{what}: {answer:?}");
    }

    async fn a_family_and_its_volumes_are_created_once_and_listed(&self) {
        assert!(matches!(
            self.anchor.create_volume(MAIN, "main").await,
            Err(AnchorError::NoSuchFamily { .. })
        ));
        self.anchor.create_family().await.expect("there is none");
        let again = self.anchor.create_family().await;
        assert!(
            matches!(again, Err(AnchorError::FamilyExists { .. })),
            "{again:?}"
        );
        self.anchor.create_volume(MAIN, "main").await.expect("it is new");
        self.anchor
            .create_volume(OTHER, "other")
            .await
            .expect("it is new");
        let again = self.anchor.create_volume(MAIN, "third").await;
        assert!(
            matches!(again, Err(AnchorError::VolumeExists { .. })),
            "{again:?}"
        );
        let taken = self.anchor.create_volume(VolumeId([3; 16]), "main").await;
        assert!(matches!(taken, Err(AnchorError::NameTaken { .. })), "{taken:?}");
        let listed = self.anchor.volumes().await.expect("a list");
        assert_eq!(
            listed.iter().map(|entry| entry.volume).collect::<Vec<_>>(),
            [MAIN, OTHER]
        );
        assert_eq!(
            self.anchor.volume_named("other").await.expect("an answer"),
            Some(OTHER)
        );
        assert_eq!(self.anchor.volume_named("third").await.expect("an answer"), None);
        let call = AnchorCall::Volumes {
            after: None,
            limit: 1,
        };
        let AnchorAnswer::Tuples { tuples, more } = self.answer(&call).await else {
            panic!("a list was asked for")
        };
        assert!(
            tuples.len() == 1 && more,
            "a list of one says that there are others"
        );
    }

    async fn ownership_rises_by_one_and_commits_follow_each_other(&self) {
        let mut held = self.acquired(MAIN, ALICE).await;
        assert_eq!(held.epoch(), OwnershipEpoch(1));
        for version in 1..=3 {
            self.commit(&mut held).await;
            let (tuple, _) = self.anchor.load(MAIN).await.expect("it is there");
            assert_eq!(tuple.root.as_ref(), held.root());
            assert_eq!(tuple.root.map(|root| root.version), Some(Version(version)));
            assert_eq!(tuple.commits, version, "each commit is counted");
        }
        let mut again = self.acquired(MAIN, ALICE).await;
        assert_eq!(
            (again.epoch(), again.tenure()),
            (OwnershipEpoch(2), held.tenure())
        );
        let root = self.root(&held, 4);
        let fenced = self.anchor.commit(&mut held, root).await;
        assert!(matches!(fenced, Err(AnchorError::Fenced(_))), "{fenced:?}");
        self.commit(&mut again).await;
        let refused = self.anchor.acquire(MAIN, BOB, "bob").await;
        assert!(
            matches!(refused, Err(AnchorError::OwnedByOther { .. })),
            "{refused:?}"
        );
    }

    async fn a_change_that_comes_again_is_done_once_and_answered_alike(&self) {
        let held = self.acquired(MAIN, ALICE).await;
        let seen = self.version(MAIN).await;
        let call = AnchorCall::ChangeVolume {
            volume: MAIN,
            seen,
            change: VolumeChange::Commit {
                grant: held.tuple().grant,
                root: self.root(&held, 5),
            },
        };
        let first = self.answer(&call).await;
        assert_eq!(first, self.answer(&call).await, "the same answer");
        assert_eq!(
            first,
            AnchorAnswer::Changed {
                version: Some(self.version(MAIN).await)
            }
        );
        let (_, seen) = self.anchor.load_family().await.expect("it is there");
        let draw = AnchorCall::DrawWriter {
            seen,
            writer: WriterId(1),
            tenure: WriterTenure::Unknown,
            drawn_at_ms: 0,
            change_id: self.env.random_bytes(),
        };
        assert_eq!(self.answer(&draw).await, self.answer(&draw).await);
        assert_eq!(
            self.anchor.undrawn_writer().await.expect("an answer"),
            WriterId(2)
        );
    }

    async fn a_change_on_what_stands_no_more_changes_nothing(&self) {
        let old = self.version(MAIN).await;
        let mut held = self.acquired(MAIN, ALICE).await;
        self.commit(&mut held).await;
        let now = self.version(MAIN).await;
        for seen in [old, ItemVersion(0), ItemVersion(u64::MAX)] {
            let call = AnchorCall::ChangeVolume {
                volume: MAIN,
                seen,
                change: VolumeChange::Commit {
                    grant: held.tuple().grant,
                    root: self.root(&held, 7),
                },
            };
            let conflict = AnchorAnswer::Conflict {
                with: Obstacle::Tuple,
            };
            assert_eq!(self.answer(&call).await, conflict);
        }
        assert_eq!(self.version(MAIN).await, now);
        let nowhere = AnchorCall::ChangeVolume {
            volume: VolumeId([9; 16]),
            seen: now,
            change: VolumeChange::ForgetRetained {
                fenced: OwnershipEpoch(1),
                change_id: [1; 16],
            },
        };
        let conflict = AnchorAnswer::Conflict {
            with: Obstacle::Tuple,
        };
        assert_eq!(self.answer(&nowhere).await, conflict);
    }

    async fn a_root_that_does_not_come_next_or_is_anothers_is_refused(&self) {
        let held = self.acquired(MAIN, ALICE).await;
        let (tuple, seen) = self.anchor.load(MAIN).await.expect("it is there");
        let next = held.root().map_or(0, |root| root.version.0) + 1;
        let right = self.root(&held, next);
        let wrong = |change: &dyn Fn(&mut Root)| {
            let mut root = right.clone();
            change(&mut root);
            root
        };
        let roots = [
            ("a version twice", wrong(&|root| root.version = Version(next - 1))),
            (
                "a version far away",
                wrong(&|root| root.version = Version(next + 65_536)),
            ),
            (
                "the last version",
                wrong(&|root| root.version = Version(u64::MAX)),
            ),
            ("another's root", wrong(&|root| root.owner = BOB)),
            ("an older epoch", wrong(&|root| root.epoch = OwnershipEpoch(1))),
            (
                "an epoch to come",
                wrong(&|root| root.epoch = OwnershipEpoch(u64::MAX)),
            ),
            ("a nameless owner", wrong(&|root| root.owner_name.clear())),
        ];
        let grants = [("another grant", right.clone(), [7; 16])];
        let roots = roots.map(|(what, root)| (what, root, tuple.grant));
        for (what, root, grant) in roots.into_iter().chain(grants) {
            let change = VolumeChange::Commit { grant, root };
            let call = AnchorCall::ChangeVolume {
                volume: MAIN,
                seen,
                change,
            };
            self.assert_limit(call, what).await;
        }
        let take = |owner, force, name: &str, grant| AnchorCall::ChangeVolume {
            volume: MAIN,
            seen,
            change: VolumeChange::Take {
                owner,
                owner_name: name.to_owned(),
                force,
                grant,
                taken_at_ms: 0,
            },
        };
        self.assert_limit(take(BOB, false, "bob", [1; 16]), "taken from its owner")
            .await;
        self.assert_limit(take(ALICE, false, "", [1; 16]), "taken without a name")
            .await;
        self.assert_limit(take(ALICE, false, "a", tuple.grant), "taken under the old grant")
            .await;
        let drain = VolumeChange::Drain {
            epoch: OwnershipEpoch(1),
            grant: tuple.grant,
            drained_at_ms: 0,
            change_id: [1; 16],
        };
        let call = AnchorCall::ChangeVolume {
            volume: MAIN,
            seen,
            change: drain,
        };
        self.assert_limit(call, "drained under an older epoch").await;
        assert_eq!(self.version(MAIN).await, seen, "nothing was changed");
    }

    async fn a_takeover_fences_and_retains_and_a_drain_ends(&self) {
        let mut alices = self.acquired(MAIN, ALICE).await;
        let before = alices.root().cloned();
        let taken = self.anchor.takeover(MAIN, BOB, "bob").await.expect("by force");
        let retained = taken.retained.expect("a root was there");
        assert_eq!(Some(retained.root), before);
        let mut bobs = taken.ownership;
        assert_eq!(bobs.epoch().0, alices.epoch().0 + 1);
        let root = self.root(&alices, 100);
        let next = Root {
            version: Version(alices.root().map_or(0, |root| root.version.0) + 1),
            ..root
        };
        let fenced = self.anchor.commit(&mut alices, next).await;
        assert!(matches!(fenced, Err(AnchorError::Fenced(_))), "{fenced:?}");
        self.commit(&mut bobs).await;
        self.anchor.drain(&mut bobs).await.expect("a drain");
        self.anchor
            .forget_retained(MAIN, retained.fenced_epoch)
            .await
            .expect("forgotten");
        let (tuple, _) = self.anchor.load(MAIN).await.expect("it is there");
        assert!(tuple.owner.is_none() && tuple.drained && tuple.retained.is_empty());
    }

    async fn who_waits_stands_in_a_queue_and_only_the_owners_heart_beats(&self) {
        let (carol, dave) = (OwnerId([0xc; 16]), OwnerId([0xd; 16]));
        let (record, seen) = self.anchor.handover(MAIN).await.expect("an answer");
        assert_eq!((record, seen), (HandoverRecord::default(), None));
        let mut alices = self.acquired(MAIN, ALICE).await;
        let hers = Beating::from(&alices);
        let members =
            |record: &HandoverRecord| record.wants.iter().map(|want| want.member).collect::<Vec<_>>();
        let beats =
            |record: &HandoverRecord| record.heartbeat.map(|beat| (beat.owner, beat.epoch, beat.beats));
        let beaten = self.anchor.beat(MAIN, &hers).await.expect("she owns it");
        assert_eq!(beats(&beaten), Some((ALICE, hers.epoch, 1)));
        for member in [BOB, carol, BOB, dave] {
            self.anchor
                .want(MAIN, member, "who waits")
                .await
                .expect("a place");
        }
        self.anchor.withdraw_want(MAIN, dave).await.expect("gone");
        self.anchor.withdraw_want(MAIN, dave).await.expect("gone before");
        self.anchor.want(MAIN, dave, "dave").await.expect("a place");
        let beaten = self.anchor.beat(MAIN, &hers).await.expect("she owns it");
        assert_eq!(beats(&beaten), Some((ALICE, hers.epoch, 2)));
        assert_eq!(members(&beaten), [BOB, carol, dave]);

        // The second takes it when it is given: who stood before it has lost its place.
        self.anchor.drain(&mut alices).await.expect("a drain");
        let carols = self.acquired(MAIN, carol).await;
        let fenced = self.anchor.beat(MAIN, &hers).await;
        assert!(matches!(fenced, Err(AnchorError::Fenced(_))), "{fenced:?}");
        let owned = self
            .anchor
            .beat(MAIN, &Beating::from(&carols))
            .await
            .expect("hers");
        assert_eq!(beats(&owned), Some((carol, carols.epoch(), 1)));
        assert_eq!(members(&owned), [dave]);
        let (_, seen) = self.anchor.handover(MAIN).await.expect("an answer");
        let forged = HandoverChange::Beat {
            owner: carol,
            epoch: carols.epoch(),
            grant: hers.grant,
        };
        let call = |change| AnchorCall::ChangeHandover {
            volume: MAIN,
            seen,
            change,
            change_id: [9; 16],
        };
        self.assert_limit(call(forged), "a beat under another's grant")
            .await;
        let nameless = HandoverChange::Want {
            member: BOB,
            name: String::new(),
            wanted_at_ms: 0,
        };
        self.assert_limit(call(nameless), "a want without a name").await;
        let crowd = 1..MAX_WANTS as u8;
        for number in crowd {
            let member = OwnerId([0x40 + number; 16]);
            self.anchor
                .want(MAIN, member, "one of many")
                .await
                .expect("a place");
        }
        let late = self.anchor.want(MAIN, BOB, "bob").await;
        assert!(matches!(late, Err(AnchorError::Contended { .. })), "{late:?}");

        // It is taken from an owner that was seen to be gone, and from no other.
        let (tuple, _) = self.anchor.load(MAIN).await.expect("it is there");
        let other = self.anchor.takeover_from(MAIN, BOB, "bob", hers.grant).await;
        assert!(matches!(other, Err(AnchorError::Contended { .. })), "{other:?}");
        let taken = self.anchor.takeover_from(MAIN, BOB, "bob", tuple.grant).await;
        let mut bobs = taken.expect("it is the one that was seen").ownership;
        self.anchor.drain(&mut bobs).await.expect("a drain");
        for retained in self.anchor.load(MAIN).await.expect("it is there").0.retained {
            let forgotten = self.anchor.forget_retained(MAIN, retained.fenced_epoch).await;
            forgotten.expect("forgotten");
        }
    }

    async fn a_writer_is_drawn_once(&self) {
        let tenure = WriterTenure::FirstRoot { volume: OTHER };
        let drawn = self.anchor.next_writer_for(tenure).await.expect("a writer");
        let (tuple, _) = self
            .anchor
            .writer(drawn)
            .await
            .expect("an answer")
            .expect("registered");
        assert_eq!((tuple.tenure, tuple.ended), (tenure, false));
        let (_, seen) = self.anchor.load_family().await.expect("it is there");
        for writer in [WriterId(0), drawn, WriterId(u64::MAX)] {
            let call = AnchorCall::DrawWriter {
                seen,
                writer,
                tenure,
                drawn_at_ms: 0,
                change_id: [1; 16],
            };
            self.assert_limit(call, "a writer drawn twice, or past the end")
                .await;
        }
    }

    async fn lists_are_bounded_and_names_are_names(&self) {
        for limit in [0, MAX_LISTED + 1, u16::MAX] {
            for call in [
                AnchorCall::Volumes { after: None, limit },
                AnchorCall::ListRetired { after: None, limit },
                AnchorCall::ListDoomed { after: None, limit },
            ] {
                self.assert_limit(call, "a list of nothing, or of too much").await;
            }
        }
        for name in ["", "a/b", "a\u{7}", &"x".repeat(256)] {
            let call = AnchorCall::VolumeNamed {
                name: name.to_owned(),
            };
            self.assert_limit(call, "a name that is none").await;
            let call = AnchorCall::CreateVolume {
                volume: VolumeId([4; 16]),
                name: name.to_owned(),
                root: None,
                grant: [0; 16],
                created_at_ms: 0,
                change_id: [1; 16],
            };
            self.assert_limit(call, "a volume without a name").await;
        }
    }

    async fn what_cleaners_leave_can_be_read(&self) {
        let proposal: Option<(Proposal, _)> = self.anchor.proposal(MAIN).await.expect("an answer");
        assert!(proposal.is_none());
        assert_eq!(self.anchor.cleaner_round().await.expect("an answer").1, None);
        assert!(
            self.anchor
                .list_retired(None, 10)
                .await
                .expect("an answer")
                .is_empty()
        );
        assert!(
            self.anchor
                .list_doomed(None, 10)
                .await
                .expect("an answer")
                .is_empty()
        );
    }
}

//! Members on a table: conditions that hold what an instance remembers against what others wrote, lost answers, what cannot be read, and costs.

use super::support::{Dice, run, world};
use crate::{
    Anchor, AnchorAnswer, AnchorBackend, AnchorCall, AnchorError, ArenaChange, LeaseRange, MemberCall,
    MemberCommitEnd, MemberLocksChange, MemberNumber, Membership, Obstacle, OwnerId, RecordedLock,
    RetainedRoot, Root, SeenMember, SeenRange, TableBackend, TupleError, VolumeTuple, membership,
};
use firn_env::{Env, mutants::planting};
use firn_format::{FamilyId, Location, OwnershipEpoch, SegmentId, Uid, Version, VolumeId, WriterId};
use firn_table::{
    Condition, Fault, ItemKey, ItemVersion, MemoryTable, MemoryTableClient, Table, TableError, Write,
};
use std::sync::Arc;

const VOLUME: VolumeId = VolumeId([7; 16]);
const FAMILY: FamilyId = FamilyId([1; 16]);

fn partition() -> String {
    format!("family/{FAMILY}")
}

/// A volume with two members that are present.
struct Office {
    env: Env,
    table: MemoryTable,
    client: Arc<MemoryTableClient>,
    anchor: Anchor,
    alice: Membership,
    bob: Membership,
}

fn office() -> Office {
    let env = world(Dice::new(1));
    let table = MemoryTable::new();
    let client = table.connect(&env);
    let anchor = Anchor::new(client.clone(), env.clone(), FAMILY);
    let members = run(async {
        anchor.create_family().await?;
        anchor.create_volume(VOLUME, "shared").await?;
        let mut owned = anchor.acquire(VOLUME, OwnerId([1; 16]), "first").await?;
        let first = owned.next_root(Uid([1; 32]), place(1), Version(1), [1; 16], 0);
        anchor.commit(&mut owned, first).await?;
        anchor.drain(&mut owned).await?;
        anchor.share_by_inode(VOLUME).await?;
        let mut started = Vec::new();
        for (id, name) in [(1, "alice"), (2, "bob")] {
            let member = anchor.join_volume(VOLUME, OwnerId([id; 16]), name).await?;
            started.push(anchor.start_member(VOLUME, member).await?);
        }
        Ok::<_, AnchorError>(started)
    });
    let [alice, bob] = <[Membership; 2]>::try_from(members.unwrap()).unwrap();
    Office {
        env,
        table,
        client,
        anchor,
        alice,
        bob,
    }
}

fn place(version: u64) -> Location {
    let segment = SegmentId {
        writer: WriterId(1),
        sequence: version,
    };
    Location {
        segment,
        offset: 0,
        length: 1,
    }
}

fn by(of: &Membership) -> SeenMember {
    SeenMember {
        member: of.member(),
        seen: of.version(),
    }
}

fn home_of(of: &Membership) -> u64 {
    u64::from(of.member().0) << 32
}

impl Office {
    async fn root(&self, of: &Membership) -> (Root, ItemVersion) {
        let (tuple, seen) = self.anchor.load(VOLUME).await.unwrap();
        let version = Version(tuple.root.as_ref().unwrap().version.0 + 1);
        let at = (Uid([2; 32]), place(version.0));
        let root = of.next_root(&tuple, at, version, self.env.random_bytes(), 0);
        (root, seen)
    }

    /// What this instance remembers is as old as its last look.
    fn instance(&self) -> TableBackend {
        TableBackend::new(self.client.clone(), partition())
    }

    async fn holder(&self, inode: u64) -> Option<MemberNumber> {
        let range = LeaseRange::around(inode, 0).unwrap();
        let seen = self.anchor.arena(VOLUME, inode).await.unwrap();
        seen.arena.holder(range).unwrap()
    }

    fn requests(&self) -> u64 {
        self.table.counts().requests()
    }
}

async fn call(instance: &TableBackend, call: MemberCall) -> AnchorAnswer {
    let volume = VOLUME;
    let answered = instance.call(AnchorCall::Members { volume, call }).await;
    answered.unwrap()
}

/// An instance has looked at all that a change is decided on; then others change one of it through another instance, and the change arrives.
fn what_arrives_late_does_nothing() -> bool {
    let mut office = office();
    run(async {
        let mut holds = true;
        let stale = office.instance();
        let (hers, seen) = (home_of(&office.alice), None);
        let wanted = office
            .anchor
            .change_lease(&mut office.bob, (hers, 0), ArenaChange::Want)
            .await;
        wanted.unwrap();
        let look = async |member| {
            call(&stale, MemberCall::Member { member }).await;
            call(&stale, MemberCall::Arena { arena: hers >> 21 }).await;
            stale.call(AnchorCall::Volume { volume: VOLUME }).await.unwrap();
        };

        // A gift that was given up, and a beat behind it.
        look(office.alice.member()).await;
        let seen = office.anchor.arena(VOLUME, hers).await.unwrap().version.or(seen);
        let range = SeenRange {
            inode: hers,
            level: 0,
            seen,
        };
        let gift = MemberCall::Lease {
            by: by(&office.alice),
            range,
            change: ArenaChange::Give,
            change_id: [1; 16],
        };
        office.anchor.beat_member(&mut office.alice).await.unwrap();
        let conflict = |with| AnchorAnswer::Conflict { with };
        holds &= call(&stale, gift).await == conflict(Obstacle::Member);

        // A commit that was given up, and a beat behind it.
        look(office.alice.member()).await;
        let (root, seen) = office.root(&office.alice).await;
        let commit = MemberCall::Commit {
            by: by(&office.alice),
            incarnation: office.alice.incarnation(),
            seen,
            root,
            sequence: 1,
        };
        office.anchor.beat_member(&mut office.alice).await.unwrap();
        holds &= call(&stale, commit).await == conflict(Obstacle::Member);

        // What it said of locks, and a beat behind it.
        look(office.alice.member()).await;
        let waits = RecordedLock {
            inode: hers,
            first: 0,
            last: 0,
            exclusive: true,
            waits: true,
        };
        let locks = MemberCall::Locks {
            by: by(&office.alice),
            seen: None,
            change: MemberLocksChange::Keep { locks: vec![waits] },
            change_id: [7; 16],
        };
        office.anchor.beat_member(&mut office.alice).await.unwrap();
        holds &= call(&stale, locks).await == conflict(Obstacle::Member);

        // A lease that is taken from who was away, and is back.
        office.anchor.leave(&mut office.alice).await.unwrap();
        look(office.alice.member()).await;
        look(office.bob.member()).await;
        let taking = MemberCall::TakeFromAbsent {
            by: by(&office.bob),
            range: SeenRange {
                seen: office.anchor.arena(VOLUME, hers).await.unwrap().version,
                ..range
            },
            absent: by(&office.alice),
            change_id: [2; 16],
        };
        office.anchor.come_back(&mut office.alice).await.unwrap();
        holds &= call(&stale, taking).await == conflict(Obstacle::Holder);
        holds &= office.holder(hers).await == Some(office.alice.member());

        // What was nobody's when it was looked at, and is the home of a member that has joined since.
        look(office.bob.member()).await;
        let joined = office.anchor.join_volume(VOLUME, OwnerId([3; 16]), "carol").await;
        let inode = u64::from(joined.unwrap().0) << 32;
        let taking = MemberCall::TakeFromNobody {
            by: by(&office.bob),
            range: SeenRange {
                inode,
                level: 0,
                seen: None,
            },
            change_id: [3; 16],
        };
        holds && call(&stale, taking).await == conflict(Obstacle::Holder)
    })
}

#[test]
fn what_a_member_gave_up_does_not_happen_after_its_next_beat() {
    assert!(what_arrives_late_does_nothing());
    for bug in [
        // A commit is conditional on the volume's tuple alone.
        "anchor.commit_without_own_record",
        // A change of a lease is conditional on the arena alone.
        "anchor.lease_without_own_record",
        // What a member says of locks is conditional on the handover record alone.
        "anchor.locks_without_own_record",
        // The lease of a member that was absent once is taken, although it is back.
        "anchor.take_on_any_version",
        // A home is taken that was nobody's, although its member has joined since.
        "anchor.take_whether_or_not_a_member",
    ] {
        assert!(!planting(Some(bug), what_arrives_late_does_nothing), "{bug}");
    }
}

/// A commit is sent, its answer lost; it is settled, and then whatever is still under way arrives.
fn settled_is_settled(fault: Fault) -> bool {
    let mut office = office();
    run(async {
        let (root, seen) = office.root(&office.alice).await;
        office.client.script([fault]);
        let sent = office
            .anchor
            .commit_member(&mut office.alice, seen, &root, 1)
            .await;
        assert!(sent.is_err_and(|error| error.is_transient()));
        let happened = office
            .anchor
            .settle_member_commit(&mut office.alice, root.commit_id)
            .await
            .unwrap();
        office.table.settle();
        let (tuple, _) = office.anchor.load(VOLUME).await.unwrap();
        happened
            == tuple
                .root
                .is_some_and(|newest| newest.commit_id == root.commit_id)
    })
}

#[test]
fn a_commit_whose_answer_is_lost_is_settled_by_a_beat_and_a_look() {
    assert!(settled_is_settled(Fault::LoseReply));
    assert!(settled_is_settled(Fault::Late { requests: 40 }));
    let late = || settled_is_settled(Fault::Late { requests: 40 });
    assert!(!planting(Some("anchor.doubt_without_beat"), late));
}

#[test]
fn a_lease_whose_answer_was_lost_is_found_by_its_mark() {
    let mut office = office();
    run(async {
        let hers = home_of(&office.alice);
        office.client.script([Fault::None, Fault::LoseReply]);
        let wanted = office
            .anchor
            .change_lease(&mut office.bob, (hers, 0), ArenaChange::Want)
            .await;
        assert_eq!(wanted.unwrap().leases().len(), 1);
        office.client.script([Fault::None, Fault::LoseReply]);
        let given = office
            .anchor
            .change_lease(&mut office.alice, (hers, 0), ArenaChange::Give)
            .await;
        given.expect("it is hers no more since it was given, and that is what was asked");
        assert_eq!(office.holder(hers).await, Some(office.bob.member()));
        office.client.script([Fault::LoseReply]);
        let before = office.alice.tuple().record.beats;
        office.anchor.beat_member(&mut office.alice).await.unwrap();
        assert_eq!(office.alice.tuple().record.beats, before + 1);
        office.client.script([Fault::None, Fault::None, Fault::LoseReply]);
        office
            .anchor
            .bump_mail(&mut office.alice, office.bob.member())
            .await
            .unwrap();
        assert_eq!(office.anchor.mail(VOLUME, office.bob.member()).await.unwrap(), 1);
    });
}

#[test]
fn what_a_newer_build_wrote_and_what_cannot_be_read_is_told_by_name_and_left_alone() {
    let mut office = office();
    run(async {
        let hers = home_of(&office.alice);
        office
            .anchor
            .change_lease(&mut office.bob, (hers, 0), ArenaChange::Want)
            .await
            .unwrap();
        let sort = membership::arena_sort(VOLUME, hers >> 21);
        let key = ItemKey::new(partition(), &*sort);
        let stored = office.client.get(&key).await.unwrap().unwrap();
        let mut version = stored.version;
        for (place, value, expected) in [
            (0, 9, TupleError::UnknownVersion { found: 9 }),
            (2, 0x40, TupleError::UnknownFlags { found: 0x40 }),
            (
                19,
                1,
                TupleError::Malformed {
                    what: "the record of another arena",
                    offset: 19,
                },
            ),
        ] {
            let mut bytes = stored.value.to_vec();
            bytes[place] = value;
            let put = Write::Put {
                key: key.clone(),
                value: bytes.into(),
                condition: Condition::Version(version),
            };
            version = office.client.transact(vec![put]).await.unwrap()[0].unwrap();
            let told = |error: AnchorError| match error {
                AnchorError::Damaged { what, why } => (what, why),
                other => panic!("{other:?}"),
            };
            let damaged = (sort.clone(), expected);
            assert_eq!(
                told(office.anchor.arena(VOLUME, hers).await.unwrap_err()),
                damaged
            );
            assert_eq!(told(office.anchor.arenas(VOLUME).await.unwrap_err()), damaged);
            let changed = office
                .anchor
                .change_lease(&mut office.alice, (hers, 0), ArenaChange::Give)
                .await;
            assert_eq!(told(changed.unwrap_err()), damaged);
            // Nor does who answers for others write over it.
            let give = MemberCall::Lease {
                by: by(&office.alice),
                range: SeenRange {
                    inode: hers,
                    level: 0,
                    seen: Some(version),
                },
                change: ArenaChange::Give,
                change_id: [1; 16],
            };
            let volume = VOLUME;
            let answer = office
                .instance()
                .call(AnchorCall::Members { volume, call: give })
                .await;
            assert!(matches!(answer, Err(TableError::Limit(_))), "{answer:?}");
        }
    });
}

#[test]
fn a_volume_that_is_shared_by_inode_is_of_version_four_and_retains_for_members() {
    let office = office();
    let (mut tuple, _) = run(office.anchor.load(VOLUME)).unwrap();
    let root = tuple.root.clone().unwrap();
    let plain = VolumeTuple {
        by_inode: false,
        ..tuple.clone()
    };
    let (of_members, of_owner) = (tuple.to_bytes(), plain.to_bytes());
    assert_eq!((of_members[0], of_owner[0]), (4, 2));
    // A mark behind its root says that it is not signed; nothing else is different.
    assert_eq!(of_members.len(), of_owner.len() + 1);
    for member in [None, Some(MemberNumber(0x0102_0304))] {
        tuple.retained.push(RetainedRoot {
            fenced_epoch: OwnershipEpoch(2),
            tenure: OwnershipEpoch(2),
            retained_at_ms: 3,
            root: root.clone(),
            member,
        });
    }
    let bytes = tuple.to_bytes();
    assert_eq!(VolumeTuple::from_bytes(&bytes), Ok(tuple.clone()));
    let behind_root = bytes.len() - 8 - 4;
    assert_eq!(&bytes[behind_root..behind_root + 4], [4, 3, 2, 1]);
    for length in 0..bytes.len() {
        assert!(
            VolumeTuple::from_bytes(&bytes[..length]).is_err(),
            "cut at {length}"
        );
    }
    let mut owned = tuple;
    owned.owner = Some(crate::Owner {
        id: OwnerId([1; 16]),
        name: "e".into(),
    });
    assert!(
        VolumeTuple::from_bytes(&owned.to_bytes()).is_err(),
        "nobody owns it"
    );
}

#[test]
fn an_idle_member_asks_nothing_and_each_call_costs_these_requests() {
    let mut office = office();
    run(async {
        let hers = home_of(&office.alice);
        let mut before = office.requests();
        let mut costs = Vec::new();
        let mut cost = |what: &'static str, now: u64| {
            costs.push((what, now - before));
            before = now;
        };
        office.anchor.beat_member(&mut office.alice).await.unwrap();
        cost("beat", office.requests());
        let (root, seen) = office.root(&office.alice).await;
        cost("root read", office.requests());
        let end = office
            .anchor
            .commit_member(&mut office.alice, seen, &root, 1)
            .await;
        assert_eq!(end.unwrap(), MemberCommitEnd::Committed);
        cost("commit", office.requests());
        office
            .anchor
            .change_lease(&mut office.bob, (hers, 0), ArenaChange::Want)
            .await
            .unwrap();
        cost("want", office.requests());
        office
            .anchor
            .bump_mail(&mut office.bob, office.alice.member())
            .await
            .unwrap();
        cost("bump, of a member that has no mail", office.requests());
        office.anchor.mail(VOLUME, office.alice.member()).await.unwrap();
        cost("look at the mail", office.requests());
        office
            .anchor
            .change_lease(&mut office.alice, (hers, 0), ArenaChange::Give)
            .await
            .unwrap();
        cost("give", office.requests());
        office.anchor.arenas(VOLUME).await.unwrap();
        cost("arenas", office.requests());
        office.anchor.leave(&mut office.alice).await.unwrap();
        cost("leave", office.requests());
        let taken = office
            .anchor
            .take_from_absent(&mut office.bob, (hers + 1, 0), office.alice.member())
            .await;
        taken.unwrap();
        cost("take from an absent member", office.requests());
        println!("{costs:?}");
        let expected = [1, 1, 1, 2, 3, 1, 2, 1, 1, 3];
        let counted: Vec<_> = costs.iter().map(|(_, requests)| *requests).collect();
        assert_eq!(counted, expected, "{costs:?}");
    });
}

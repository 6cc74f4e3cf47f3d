//! A grant to write, in the hands of a program that lies: what the anchor service refuses it, and what it does not see.

use crate::granting::{Scene, Side};
use crate::harness::Call;
use async_trait::async_trait;
use axum::http::Method;
use firn_anchor::{
    Anchor, AnchorAnswer, AnchorBackend, AnchorCall, AnchorError, MemberCall, MemberNumber, OwnerId,
    Ownership, Root, VolumeChange, WriterTenure,
};
use firn_format::{FamilyId, Location, OwnershipEpoch, SegmentId, Uid, Version, VolumeId, WriterId};
use firn_identity::PeerIdentity;
use firn_table::TableError;
use serde_json::json;
use std::sync::Arc;

const FAMILY: FamilyId = FamilyId([5; 16]);
const CLONE: VolumeId = VolumeId([9; 16]);

/// What an edge does with what the service answers.
struct Door {
    router: axum::Router,
    path: String,
    peer: PeerIdentity,
}

#[async_trait]
impl AnchorBackend for Door {
    async fn call(&self, call: AnchorCall) -> Result<AnchorAnswer, TableError> {
        let asked = Call::new(Method::POST, &self.path).json(serde_json::to_value(&call).unwrap());
        let answer = asked.peer(&self.peer).send(&self.router).await;
        match answer.code() {
            "" => Ok(serde_json::from_value(answer.body).unwrap()),
            "invalid_field" => Err(TableError::Limit(answer.text("detail"))),
            code => Err(TableError::Refused(format!("{code}: {}", answer.text("detail")))),
        }
    }
}

fn door(scene: &Scene, side: &Side) -> Door {
    Door {
        router: scene.service.router.clone(),
        path: side.at(&format!("edges/{}/volumes/{}/anchor", side.edge, scene.volume)),
        peer: side.peer.clone(),
    }
}

/// The volume's roots as one side's edge reaches them.
fn roots(scene: &Scene, side: &Side) -> Anchor {
    Anchor::over(Arc::new(door(scene, side)), scene.service.env.clone(), FAMILY)
}

/// A writer drawn for an ownership.
async fn writer(anchor: &Anchor, volume: VolumeId, epoch: OwnershipEpoch) -> Result<WriterId, AnchorError> {
    anchor
        .next_writer_for(WriterTenure::Owner { volume, epoch })
        .await
}

/// Commits a checkpoint that lies in the log of `writer`, as the version after the newest.
async fn commit(
    scene: &Scene,
    anchor: &Anchor,
    ownership: &mut Ownership,
    writer: WriterId,
) -> Result<(), AnchorError> {
    let version = Version(ownership.root().map_or(0, |root| root.version.0) + 1);
    let place = Location {
        segment: SegmentId {
            writer,
            sequence: version.0,
        },
        offset: 0,
        length: 100,
    };
    let env = &scene.service.env;
    let now_ms = env.wall().as_millis();
    let root = ownership.next_root(Uid([7; 32]), place, version, env.random_bytes(), now_ms);
    anchor.commit(ownership, root).await
}

fn said<T: std::fmt::Debug>(result: Result<T, AnchorError>) -> String {
    format!("{:?}", result.expect_err("refused"))
}

#[tokio::test]
async fn a_grantee_that_lies_to_the_anchor_is_refused_where_the_anchor_can_see_it() {
    let scene = Scene::to("write").await;
    let volume: VolumeId = scene.volume.parse().unwrap();
    let (owner, other) = (OwnerId([6; 16]), OwnerId([8; 16]));
    let theirs = roots(&scene, &scene.owner);
    theirs.create_family().await.unwrap();
    theirs.create_volume(volume, "files").await.unwrap();
    theirs.create_volume(CLONE, "monday").await.unwrap();
    let mut owned = theirs.acquire(volume, owner, "head").await.unwrap();
    let first = writer(&theirs, volume, owned.epoch()).await.unwrap();
    for _ in 0..3 {
        commit(&scene, &theirs, &mut owned, first).await.unwrap();
    }
    theirs.drain(&mut owned).await.unwrap();
    scene.offer().await;
    scene.accept().await;
    assert_eq!(scene.approve().await.text("state"), "active");
    // Its sessions of the store add nothing before it has a log, and then to its own only.
    let session = scene.other.asks(&scene.service, &scene.volume, "session").await;
    assert!(
        !session.text("session_token").contains("s3:PutObject"),
        "{session:?}"
    );
    assert_eq!(session.body["is_held_to_its_logs"], true);

    // An honest edge takes the volume, draws a writer, commits.
    let roots = roots(&scene, &scene.other);
    let mut taken = roots.acquire(volume, other, "office").await.unwrap();
    let own = writer(&roots, volume, taken.epoch()).await.unwrap();
    commit(&scene, &roots, &mut taken, own).await.unwrap();
    let session = scene.other.asks(&scene.service, &scene.volume, "session").await;
    let policy: serde_json::Value = serde_json::from_str(&session.text("session_token")).unwrap();
    let adds = policy["Statement"].as_array().unwrap().iter();
    let mut adds =
        adds.filter(|statement| statement["Effect"] == "Allow" && statement["Action"] == "s3:PutObject");
    let resource = adds.next().unwrap()["Resource"][0].as_str().unwrap().to_owned();
    assert!(resource.ends_with(&format!("/log/{:016x}/*", own.0)), "{policy}");
    assert!(adds.next().is_none() && !policy.to_string().contains(&format!("/log/{:016x}/", first.0)));
    let whole = scene.owner.asks(&scene.service, &scene.volume, "session").await;
    assert_eq!(whole.body["is_held_to_its_logs"], serde_json::Value::Null);

    // Lies are told without the library, which looks at what it sends.
    let (tuple, seen) = roots.load(volume).await.unwrap();
    let newest = tuple.root.unwrap();
    let lies = async |grant: [u8; 16], version: Version, writer: WriterId| {
        let mut root = Root {
            version,
            commit_id: scene.service.env.random_bytes(),
            ..newest.clone()
        };
        root.location.segment.writer = writer;
        let change = VolumeChange::Commit { grant, root };
        let asked = AnchorCall::ChangeVolume { volume, seen, change };
        door(&scene, &scene.other).call(asked).await.expect_err("refused")
    };
    let next = Version(newest.version.0 + 1);
    // An older checkpoint, of before, as the newest; a writer that nobody drew: another's log.
    for foreign in [first, WriterId(77)] {
        let refused = format!("{:?}", lies(taken.grant(), next, foreign).await);
        assert!(
            refused.contains("not_allowed") && refused.contains("log of a writer"),
            "{refused}"
        );
    }
    // Versions that do not rise, or rise to their end; an ownership that is another's.
    for (version, grant) in [
        (newest.version, taken.grant()),
        (Version(1), taken.grant()),
        (Version(u64::MAX), taken.grant()),
        (next, [3; 16]),
    ] {
        let refused = lies(grant, version, own).await;
        assert!(
            matches!(refused, TableError::Limit(_)),
            "{version:?}: {refused:?}"
        );
    }
    // Writers whose segments nobody would ever judge.
    let tenures = [
        WriterTenure::Unknown,
        WriterTenure::Owner {
            volume,
            epoch: OwnershipEpoch(taken.epoch().0 + 5),
        },
        WriterTenure::Owner {
            volume: CLONE,
            epoch: OwnershipEpoch(1),
        },
        WriterTenure::FirstRoot { volume },
        WriterTenure::Cleaner,
    ];
    for tenure in tenures {
        let refused = said(roots.next_writer_for(tenure).await);
        assert!(refused.contains("not_allowed"), "{tenure:?}: {refused}");
    }
    // What is not the volume: a clone of the owner's, a new one, a family.
    for refused in [
        said(roots.acquire(CLONE, other, "office").await),
        said(roots.create_volume(VolumeId([3; 16]), "mine").await),
        said(roots.create_family().await),
    ] {
        assert!(refused.contains("not_allowed"), "{refused}");
    }
    // A clone of what it could not commit, it makes.
    let salvage = VolumeId([4; 16]);
    roots.create_volume(salvage, "salvage-3-0404").await.unwrap();
    let mut aside = roots.acquire(salvage, other, "office").await.unwrap();
    let branch = roots
        .next_writer_for(WriterTenure::FirstRoot { volume: salvage })
        .await
        .unwrap();
    commit(&scene, &roots, &mut aside, branch).await.unwrap();
    // Who else writes the volume, and how, its owner's edges say.
    let backend = door(&scene, &scene.other);
    let (tuple, seen) = (AnchorCall::Volume { volume }, AnchorCall::Family {});
    let version = async |asked| match backend.call(asked).await.unwrap() {
        AnchorAnswer::Tuple { tuple } => tuple.unwrap().version,
        other => panic!("{other:?}"),
    };
    let by_inode = AnchorCall::ChangeVolume {
        volume,
        seen: version(tuple).await,
        change: VolumeChange::ShareByInode {
            grant: [1; 16],
            shared_at_ms: 1,
        },
    };
    let join = AnchorCall::Members {
        volume,
        call: MemberCall::Join {
            seen: version(seen).await,
            member: MemberNumber(u32::try_from(own.0 + 1).unwrap()),
            edge: other,
            name: "office".into(),
            drawn_at_ms: 1,
            change_id: [1; 16],
        },
    };
    for asked in [by_inode, join] {
        let refused = backend.call(asked).await.expect_err("refused").to_string();
        assert!(refused.contains("not_allowed"), "{refused}");
    }
    // What cleaners do.
    let body = json!({ "set_cleaner_cursor": { "sweep": "log" } });
    let path = scene.other.at(&format!(
        "edges/{}/volumes/{}/anchor",
        scene.other.edge, scene.volume
    ));
    let call = Call::new(Method::POST, &path).json(body).peer(&scene.other.peer);
    assert_eq!(scene.service.send(call).await.code(), "not_allowed");

    // None of it changed a thing: the honest one goes on, until the grant ends under its hands.
    let newest = theirs.load(volume).await.unwrap().0.root.unwrap();
    assert_eq!(
        (newest.version, newest.location.segment.writer),
        (Version(4), own)
    );
    commit(&scene, &roots, &mut taken, own).await.unwrap();
    scene.revoke().await;
    let refused = said(commit(&scene, &roots, &mut taken, own).await);
    assert!(refused.contains("grant_revoked"), "{refused}");
    let newest = theirs.load(volume).await.unwrap().0.root.unwrap();
    assert_eq!(newest.version, Version(5));
    // The owner's edge has it back.
    let mut owned = theirs.takeover(volume, owner, "head").await.unwrap().ownership;
    let again = writer(&theirs, volume, owned.epoch()).await.unwrap();
    commit(&scene, &theirs, &mut owned, again).await.unwrap();
}

//! The anchor as a process of its own: certificates, grants, restarts, and a real edge whose anchor is killed under it.
#![allow(
    clippy::disallowed_methods,
    reason = "it starts real programs, and waits for them in real time"
)]

mod azure_table;
mod by_inode;
mod following;
mod handover;
mod locking;
mod mounted;
mod newer_data;
mod offices;
mod place;
mod shares;

use firn_anchor::{AnchorAnswer, AnchorBackend as _, AnchorCall, VolumeTuple, conformance};
use firn_anchor_service::{HttpsAnchor, PemClients};
use firn_identity::{EdgeId, PeerIdentity, PeerKind, TenantId, TenantVolume, VolumeId};
use firn_rig::{Client, EXPORT, Edge};
use firn_table::TableError;
use place::Place;
use std::{fs, path::Path, process::Stdio, time::Duration};

const DOMAIN: &str = "firn.test";
const REFUSED: &str = "firn_anchor_calls_total{outcome=\"refused\"}";
const TENANT: TenantId = TenantId([1; 16]);

fn volume(number: u8) -> TenantVolume {
    TenantVolume {
        tenant: TENANT,
        volume: VolumeId([number; 16]),
    }
}

fn edge(number: u8) -> PeerIdentity {
    PeerIdentity {
        trust_domain: DOMAIN.into(),
        kind: PeerKind::Edge {
            tenant: TENANT,
            edge: EdgeId([number; 16]),
        },
    }
}

fn service(name: &str) -> PeerIdentity {
    PeerIdentity {
        trust_domain: DOMAIN.into(),
        kind: PeerKind::Service(name.into()),
    }
}

async fn family(anchor: &HttpsAnchor<PemClients>) -> Result<AnchorAnswer, TableError> {
    anchor.call(AnchorCall::Family {}).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_conforms_and_lets_nobody_in_but_whom_the_grants_name() {
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut place = Place::new(here.path(), 1);
    let cleaner = service("cleaner");
    place.grant(&[(&edge(1), volume(1), "edge"), (&cleaner, volume(1), "cleaner")]);
    let edges = place.issue(&edge(1), "edge.pem");
    place.start();
    let anchor = place.reached(&edges, volume(1));
    conformance::run(std::sync::Arc::new(place.reached(&edges, volume(1))), &place.env).await;

    let refused_before = place.figure(REFUSED);
    let refused = |answer: Result<AnchorAnswer, TableError>| matches!(answer, Err(TableError::Refused(_)));
    // Another volume; another edge; a service that is none of its cleaners; an edge of the name under another authority.
    assert!(refused(family(&place.reached(&edges, volume(2))).await));
    let others = place.issue(&edge(2), "other.pem");
    assert!(refused(family(&place.reached(&others, volume(1))).await));
    let stranger = place.issue(&service("other"), "stranger.pem");
    assert!(refused(family(&place.reached(&stranger, volume(1))).await));
    let forged = Place::new(elsewhere.path(), 2).issue(&edge(1), "edge.pem");
    let answer = family(&place.reached(&forged, volume(1))).await;
    assert!(
        matches!(answer, Err(TableError::Unavailable(_))),
        "no handshake: {answer:?}"
    );
    // Each role its own calls.
    let cleaners = place.reached(&place.issue(&cleaner, "cleaner.pem"), volume(1));
    let cursor = AnchorCall::SetCleanerCursor {
        sweep: firn_anchor::Sweep::Log,
        seen: None,
        after: None,
    };
    assert!(refused(anchor.call(cursor.clone()).await));
    let set = cleaners.call(cursor).await;
    assert!(matches!(set, Ok(AnchorAnswer::Changed { .. })), "{set:?}");
    let create = AnchorCall::CreateFamily {
        created_at_ms: 0,
        change_id: [0; 16],
    };
    assert!(refused(cleaners.call(create).await));
    let long = AnchorCall::VolumeNamed {
        name: "x".repeat(firn_anchor::EDGE_CALL_BYTES_MAX),
    };
    assert!(matches!(anchor.call(long).await, Err(TableError::Limit(_))));
    // As Prometheus sees it: each refusal above, and what the conformance asked.
    assert_eq!(place.figure(REFUSED), refused_before + 6);
    assert!(place.figure("firn_anchor_calls_total{outcome=\"answered\"}") > 20);
    assert!(place.figure("firn_anchor_calls_total{outcome=\"conflict\"}") > 0);
    assert_eq!(place.figure("firn_anchor_calls_total{outcome=\"failed\"}"), 0);
    assert!(place.figure("firn_anchor_connections") > 0);

    // A restart keeps what was committed; who is taken out of the grants is out, and nobody is in on grants that cannot be read.
    let before = family(&anchor).await.unwrap();
    place.kill();
    assert!(matches!(family(&anchor).await, Err(TableError::Unavailable(_))));
    place.start();
    assert_eq!(family(&anchor).await.unwrap(), before);
    place.grant(&[(&cleaner, volume(1), "cleaner")]);
    assert!(refused(family(&anchor).await));
    fs::write(place.root.join("grants.toml"), "[[grant]]\nname = 7").unwrap();
    assert!(refused(family(&cleaners).await));
}

/// Whoever reaches the port can connect and say nothing. That must not keep edges from committing.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_of_strangers_keep_nobody_from_being_answered() {
    let here = tempfile::tempdir().unwrap();
    let mut place = Place::new(here.path(), 1);
    place.options.extend(["--connections".into(), "8".into()]);
    place.grant(&[(&edge(1), volume(1), "edge")]);
    let edges = place.issue(&edge(1), "edge.pem");
    place.start();
    let anchor = place.reached(&edges, volume(1));
    family(&anchor).await.expect("it answers");
    let mut silent = Vec::new();
    for round in 0..5 {
        for _ in 0..20 {
            silent.push(
                tokio::net::TcpStream::connect(place.address.unwrap())
                    .await
                    .unwrap(),
            );
        }
        // A client that connects anew, and one that has been answered before.
        let newcomer = place.reached(&edges, volume(1));
        let answer = family(&newcomer).await;
        assert!(answer.is_ok(), "round {round}: {answer:?}");
        let answer = family(&anchor).await;
        assert!(answer.is_ok(), "round {round}: {answer:?}");
    }
}

/// Whoever started it may read one line and go, or none.
#[tokio::test(flavor = "multi_thread")]
async fn it_serves_though_nobody_reads_what_it_prints() {
    let here = tempfile::tempdir().unwrap();
    let mut place = Place::new(here.path(), 1);
    place.grant(&[(&edge(1), volume(1), "edge")]);
    let edges = place.issue(&edge(1), "edge.pem");
    place.start();
    place.kill();
    // Now at a known address, into a pipe whose other end is closed.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    place.spawn(Stdio::from(writer));
    let began = std::time::Instant::now();
    while let Err(error) = family(&place.reached(&edges, volume(1))).await {
        let ended = place.child.as_mut().unwrap().try_wait().unwrap();
        assert!(ended.is_none(), "it has ended: {ended:?}");
        assert!(began.elapsed() < Duration::from_secs(60), "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// How many roots were committed to the one volume.
async fn commits(place: &Place, identity: &Path) -> u64 {
    let anchor = place.reached(identity, volume(1));
    let listed = anchor
        .call(AnchorCall::Volumes {
            after: None,
            limit: 10,
        })
        .await;
    let Ok(AnchorAnswer::Tuples { tuples, .. }) = listed else {
        panic!("a list was asked for, not {listed:?}")
    };
    VolumeTuple::from_bytes(&tuples[0].content).unwrap().commits
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_go_on_while_the_anchor_is_killed_and_the_edge_catches_up_by_itself() {
    let here = tempfile::tempdir().unwrap();
    let mut place = Place::new(here.path(), 1);
    place.grant(&[(&edge(1), volume(1), "edge")]);
    let identity = place.issue(&edge(1), "edge.pem");
    place.start();
    let url = format!(
        "https://localhost:{}/{}",
        place.address.unwrap().port(),
        volume(1)
    );
    let office = here.path().join("office");
    fs::create_dir_all(office.join("state")).unwrap();
    let binary = Edge::binary().expect("the edge's program");
    let mut settings = firn_rig::Settings::local(&office);
    settings.table = url;
    settings.limits = "checkpoint_busy = \"1 s\"\ncheckpoint_trickle = \"1 s\"".into();
    fs::create_dir_all(office.join("store")).unwrap();
    let mut edge = Edge::configure(binary, &office, settings).unwrap();
    fs::create_dir_all(&edge.state).unwrap();
    fs::copy(&identity, edge.state.join("anchor.pem")).unwrap();
    fs::copy(
        place.root.join("authority.pem"),
        edge.state.join("anchor-authority.pem"),
    )
    .unwrap();
    edge.format().await.unwrap();
    edge.start().await.unwrap();
    let mut client = Client::mount(edge.address, EXPORT).await.unwrap();
    let root = client.root.clone();
    client
        .write_file(&root, b"before", 0o644, b"in the cloud")
        .await
        .unwrap();
    edge.sync().await.unwrap();
    let before = commits(&place, &identity).await;
    assert!(before > 0);

    place.kill();
    for number in 0..20 {
        let name = format!("meanwhile-{number}");
        client
            .write_file(&root, name.as_bytes(), 0o644, name.as_bytes())
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    place.start();
    edge.sync().await.unwrap();
    assert!(commits(&place, &identity).await > before);
    // What was written meanwhile is in the volume, also for a life that knows of it by root and bucket alone.
    edge.kill().await.unwrap();
    edge.wipe_cache().unwrap();
    edge.start().await.unwrap();
    let mut client = Client::mount(edge.address, EXPORT).await.unwrap();
    let root = client.root.clone();
    for number in 0..20 {
        let name = format!("meanwhile-{number}");
        let file = client.lookup(&root, name.as_bytes()).await.unwrap();
        let (found, bytes) = client.checksum(&file).await.unwrap();
        assert_eq!((found, bytes), (blake3::hash(name.as_bytes()), name.len() as u64));
    }
    edge.stop().await.unwrap();
}

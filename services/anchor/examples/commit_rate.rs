//! Root commits per second and how long one takes, directly on a table and through a `firn-anchor` on loopback before it; the table is the
//! embedded one and, below `tests/lab/cloud/with dynamodb`, DynamoDB Local:
//! `tests/lab/cloud/with dynamodb -- cargo run --release -p firn-anchor-service --example commit_rate`
//!
//! Each writer has a volume of its own and commits one root after the other; a commit is durable when it is acknowledged.
#![allow(clippy::disallowed_methods, reason = "measures real time")]

use firn_anchor::{Anchor, AnchorBackend, OwnerId, TableBackend};
use firn_anchor_service::{
    HttpsAnchor, PemClients,
    host::{HostFigures, HostOptions, serve},
};
use firn_env::Env;
use firn_format::{FamilyId, Location, SegmentId, Uid, Version, VolumeId, WriterId};
use firn_identity::{
    CertificateAuthority, EdgeId, PeerIdentity, PeerKind, SigningKey, TenantId, TenantVolume, UnixTime,
    certificate_request, pem,
};
use firn_table::{RedbTable, Table, TableUrl};
use firn_table_dynamodb::{AwsCredentials, DynamoDbTable};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

const DOMAIN: &str = "firn.bench";
const TENANT: TenantId = TenantId([1; 16]);
const OWNER: OwnerId = OwnerId([2; 16]);
const COMMITS: usize = 1000;
/// Where `tests/lab/cloud/with dynamodb` says that DynamoDB Local is.
const DYNAMODB: &str = "FIRN_TEST_DYNAMODB";

#[derive(Clone, Copy)]
enum Kind {
    Embedded,
    DynamoDbLocal,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Embedded => "the embedded table",
            Self::DynamoDbLocal => "DynamoDB Local",
        }
    }
}

fn volume(writer: u8) -> TenantVolume {
    TenantVolume {
        tenant: TENANT,
        volume: VolumeId([writer; 16]),
    }
}

/// Commits one root after the other; how long each took.
async fn writer(env: Env, backend: Arc<dyn AnchorBackend>, commits: usize) -> Vec<Duration> {
    let anchor = Anchor::over(backend, env.clone(), FamilyId([3; 16]));
    let volume = VolumeId([4; 16]);
    anchor.create_family().await.expect("a family");
    anchor.create_volume(volume, "main").await.expect("a volume");
    let mut held = anchor.acquire(volume, OWNER, "edge").await.expect("an owner");
    let mut took = Vec::with_capacity(commits);
    for version in 1..=commits as u64 {
        let place = Location {
            segment: SegmentId {
                writer: WriterId(1),
                sequence: version,
            },
            offset: 0,
            length: 100,
        };
        let root = held.next_root(Uid([5; 32]), place, Version(version), env.random_bytes(), 0);
        let began = Instant::now();
        anchor.commit(&mut held, root).await.expect("a commit");
        took.push(began.elapsed());
    }
    took
}

async fn measure(env: &Env, what: &str, writers: u8, backend: impl Fn(u8) -> Arc<dyn AnchorBackend>) {
    let each = COMMITS.div_ceil(usize::from(writers));
    let began = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|number| tokio::spawn(writer(env.clone(), backend(number), each)))
        .collect();
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.expect("a writer"));
    }
    let rate = took.len() as f64 / began.elapsed().as_secs_f64();
    took.sort();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_secs_f64() * 1000.0;
    println!(
        "| {what} | {writers} | {rate:.0} | {:.2} ms | {:.2} ms |",
        at(0.5),
        at(0.99)
    );
}

/// A table of its own for each measurement.
async fn table(env: &Env, kind: Kind, directory: &Path, name: &str) -> Arc<dyn Table> {
    match kind {
        Kind::Embedded => {
            let path = directory.join(format!("{name}.redb"));
            Arc::new(RedbTable::open(env, &path).await.expect("a table"))
        }
        Kind::DynamoDbLocal => {
            let endpoint = std::env::var(DYNAMODB).expect("it was there");
            let url = format!("dynamodb://{name}?region=us-east-1&endpoint={endpoint}&create=true");
            let Ok(TableUrl::DynamoDb(url)) = url.parse() else {
                panic!("{url} is no table");
            };
            // It takes any.
            let credentials = AwsCredentials {
                access_key_id: "firntest".into(),
                secret_access_key: "firntest".into(),
                session_token: None,
            };
            let table = DynamoDbTable::open_as(env, &url, Some(credentials)).await;
            Arc::new(table.expect("a table"))
        }
    }
}

fn issue(env: &Env, authority: &CertificateAuthority, name: &PeerIdentity, path: &Path) {
    let key = SigningKey::from_seed(env.random_bytes());
    let random = env.clone();
    let mut entropy =
        move |bytes: &mut [u8]| bytes.copy_from_slice(&random.random_bytes::<16>()[..bytes.len()]);
    let (request, now) = (certificate_request(&key, name), UnixTime::from_wall(env.wall()));
    let issued = authority
        .issue(&request, name, &["localhost".to_owned()], now, &mut entropy)
        .expect("a certificate");
    let text = [
        pem("PRIVATE KEY", &key.to_pkcs8()).as_str(),
        pem("CERTIFICATE", &issued.certificate).as_str(),
    ]
    .concat();
    std::fs::write(path, text).expect("a file");
}

#[tokio::main]
async fn main() {
    let directory = std::env::temp_dir().join(format!("firn-commit-rate-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let env = firn_env::real(&directory).expect("an environment");
    let now = UnixTime::from_wall(env.wall());
    let authority = CertificateAuthority::from_seed([7; 32], DOMAIN, now.minus(3600)).expect("an authority");
    let own = |kind| PeerIdentity {
        trust_domain: DOMAIN.into(),
        kind,
    };
    let edge = own(PeerKind::Edge {
        tenant: TENANT,
        edge: EdgeId([6; 16]),
    });
    let options = HostOptions {
        identity: directory.join("anchor.pem"),
        authority: directory.join("authority.pem"),
        grants: directory.join("grants.toml"),
    };
    issue(
        &env,
        &authority,
        &own(PeerKind::Service("anchor".into())),
        &options.identity,
    );
    issue(&env, &authority, &edge, &directory.join("edge.pem"));
    std::fs::write(&options.authority, &*pem("CERTIFICATE", authority.certificate())).expect("a file");
    let grants: String = (0..16)
        .map(|number| {
            format!(
                "[[grant]]\nname = \"{edge}\"\nvolume = \"{}\"\nrole = \"edge\"\n",
                volume(number)
            )
        })
        .collect();
    std::fs::write(&options.grants, grants).expect("a file");
    println!("| anchor | writers | commits/s | median | p99 |\n|---|---|---|---|---|");
    let mut kinds = vec![Kind::Embedded];
    if std::env::var_os(DYNAMODB).is_some() {
        kinds.push(Kind::DynamoDbLocal);
    }
    for (kind, writers) in kinds.into_iter().flat_map(|kind| [(kind, 1), (kind, 16)]) {
        let direct = table(&env, kind, &directory, &format!("direct-{writers}")).await;
        measure(&env, kind.name(), writers, |number| {
            Arc::new(TableBackend::new(
                direct.clone(),
                volume(number).roots_partition(),
            ))
        })
        .await;
        let served = table(&env, kind, &directory, &format!("served-{writers}")).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (inside, with) = (env.clone(), options.clone());
        let serving =
            tokio::spawn(async move { serve(&inside, &with, HostFigures::new(64), served, listener).await });
        let what = format!("firn-anchor before {}", kind.name());
        measure(&env, &what, writers, |number| {
            let clients = PemClients::new(directory.join("edge.pem"), &options.authority);
            let url = format!("https://localhost:{port}/v1/anchor/{}", volume(number));
            Arc::new(HttpsAnchor::new(url, clients))
        })
        .await;
        serving.abort();
    }
    std::fs::remove_dir_all(&directory).expect("what was made goes");
}

//! A service that lies to an edge about keys. It has the service's own secret, so its name and its certificate are right: an active
//! operator. The edge starts on none of its lies, says why, and the bucket is as it was.

use crate::machine::{Machine, program, wait_for};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_api::MasterSecret;
use firn_format::VolumeId;
use firn_identity::{
    ClientCertificates, PeerIdentity, PeerKind, SigningKey, TlsIdentity, UnixTime, certificate_request,
    server_config,
};
use firn_seal::{KeyRing, Recipient, RecipientKind, RecipientSecret, RecoveryPhrase};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// What the liar answers to every request: a status and a body.
type Lie = Arc<Mutex<(u16, String)>>;

/// Stands where the service stood.
async fn liar(machine: &Machine) -> Lie {
    let env = firn_env::real(&machine.root).unwrap();
    let secret = fs::read(machine.path("master.key")).unwrap();
    let master = MasterSecret::new(secret.as_slice().try_into().unwrap());
    let authority = master.authority("dev.firn").unwrap();
    let name = PeerIdentity {
        trust_domain: "dev.firn".into(),
        kind: PeerKind::Service("api".into()),
    };
    let key = SigningKey::from_seed(env.random_bytes());
    let mut entropy = |bytes: &mut [u8]| {
        for chunk in bytes.chunks_mut(32) {
            chunk.copy_from_slice(&env.random_bytes::<32>()[..chunk.len()]);
        }
    };
    let now = UnixTime::from_wall(env.wall());
    let issued = authority
        .issue(
            &certificate_request(&key, &name),
            &name,
            &["localhost".into()],
            now,
            &mut entropy,
        )
        .unwrap();
    let identity = TlsIdentity::new(&key, &issued).unwrap();
    let authorities = [authority.certificate().clone()];
    let config = server_config(&env, &identity, &authorities, ClientCertificates::Optional).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind(machine.api).await.unwrap();
    let lie: Lie = Arc::new(Mutex::new((404, "{}".into())));
    let told = lie.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(_) => break,
                }
            }
            let (status, body) = told.lock().unwrap().clone();
            let reply = format!(
                "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            // A client that went away has its answer.
            let _ = stream.write_all(reply.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    lie
}

fn rings(machine: &Machine) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = crate::story::family_directory(machine).join("keyring");
    let mut rings: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    rings.sort();
    rings
}

fn as_reply(ring: &[u8]) -> String {
    format!("{{\"key_ring\":\"{}\"}}", STANDARD_NO_PAD.encode(ring))
}

/// A ring of the same family with the same recipients and one of the liar's own, signed by the liar.
fn forged(ring: &[u8], edge: &Path) -> Vec<u8> {
    let ring = KeyRing::decode(ring.to_vec().into()).unwrap();
    // Where the volume's id stands in a ring.
    let volume = VolumeId(ring.encode()[76..92].try_into().unwrap());
    let family = ring.object_key().split('/').next().unwrap().parse().unwrap();
    let mine = RecoveryPhrase::from_entropy([7; 32]);
    let bytes = fs::read(edge.join("recipient")).unwrap();
    let edge = RecipientSecret::from_bytes(bytes.as_slice().try_into().unwrap()).unwrap();
    let recipient = |name: &str, kind, public| Recipient {
        name: name.into(),
        kind,
        public,
    };
    let recipients = vec![
        recipient(
            "recovery",
            RecipientKind::Recovery,
            mine.recovery_secret().public(),
        ),
        recipient("edge", RecipientKind::Edge, edge.public()),
    ];
    let mut entropy = |bytes: &mut [u8]| bytes.fill(9);
    let (forged, _) = KeyRing::create(family, volume, recipients, &mine.signing_key(), &mut entropy).unwrap();
    forged.encode().to_vec()
}

async fn run(machine: &Machine) -> Output {
    let config = machine.path("firn-edge.toml");
    let started = tokio::task::spawn_blocking(move || {
        Command::new(program("firn-edge"))
            .args(["--config", &config, "run"])
            .output()
            .unwrap()
    });
    tokio::time::timeout(crate::machine::TIMEOUT, started)
        .await
        .expect("it does not serve on a lie")
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_starts_on_no_lie_about_keys() {
    let place = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(&place.path().join("firn"));
    machine.start();
    crate::story::from_nothing_to_a_share(&machine);
    drop(machine.mount().await);
    machine.stop();
    let first = rings(&machine);
    assert_eq!(first.len(), 1, "the ring that the edge took up");

    // Another edge is let in: a newer ring, which the first takes up at its next start.
    machine.start();
    let (secret, state) = (machine.path("customer/join-2"), machine.path("customer/edge-2"));
    machine.tell(
        &[
            "edge",
            "create",
            "depot",
            "--volume",
            "files",
            "--secret-file",
            &secret,
        ],
        "",
    );
    let tenant = machine.tell(&["whoami"], "")["tenant"]
        .as_str()
        .unwrap()
        .to_owned();
    let server = machine.server();
    let mut join = vec![
        "edge",
        "join",
        "--tenant",
        &tenant,
        "--state",
        &state,
        "--secret-file",
        &secret,
    ];
    join.extend(server.iter().map(String::as_str));
    machine.tell(&join, "");
    let phrase = machine.path("customer/phrase");
    machine.tell(&["edge", "approve", "depot", "--phrase-file", &phrase], "");
    machine.stop();
    // Half of the certificate's week is over: it is renewed, with another key, and the first one is of no use any more.
    let certificate = fs::File::options()
        .write(true)
        .open(machine.path("edge/certificate.der"))
        .unwrap();
    let days_ago = SystemTime::now() - Duration::from_secs(4 * 24 * 3600);
    certificate.set_modified(days_ago).unwrap();
    machine.start();
    let renewed = machine.root.join("edge/peer.pem");
    wait_for("a new certificate", || renewed.exists().then_some(()));
    machine.stop();
    fs::remove_file(machine.path("edge/key.der")).unwrap();
    machine.start();
    drop(machine.mount().await);
    machine.stop();
    let known = rings(&machine);
    assert_eq!(known.len(), 2, "the newer ring is in the bucket");

    let lie = liar(&machine).await;
    let old = as_reply(&first[0].1);
    let other = as_reply(&forged(&known[1].1, &machine.root.join("edge")));
    for (what, status, body, why) in [
        ("an old ring", 200, old.as_str(), "stale"),
        ("a ring of its own", 200, &other, "not signed by tenant"),
        ("no ring any more", 404, "{}", "one was seen before"),
        ("nonsense", 200, "{\"key_ring\":\"AAAA\"}", "not to be trusted"),
        (
            "a refusal",
            403,
            "{\"detail\":\"its holder was removed\"}",
            "its holder was removed",
        ),
    ] {
        *lie.lock().unwrap() = (status, body.to_owned());
        let ended = run(&machine).await;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && said.contains(why), "{what}: {said}");
        assert!(rings(&machine) == known, "{what}: the bucket is as it was");
    }
}

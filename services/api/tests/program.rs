//! The real program over real TLS: killed, started again, backed up, restored.

use axum::http::StatusCode;
use firn_api::MasterSecret;
use firn_identity::{
    CertificateDer, EdgeId, Expected, IssuedCertificate, JoinSecret, PeerIdentity, PeerKind, SigningKey,
    TlsIdentity, UnixTime, certificate_request, client_config,
};
use firn_seal::{RecipientSecret, RecoveryPhrase};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs, version::TLS13},
};

const DOMAIN: &str = "firn.test";

struct Program {
    process: Child,
    address: SocketAddr,
}

fn firn_api(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn-api"));
    command.args(arguments);
    command
}

impl Program {
    fn start(directory: &Path, table: &str) -> Self {
        let path = |name: &str| directory.join(name).to_str().unwrap().to_owned();
        let mut process = firn_api(&["serve", "--listen", "127.0.0.1:0", "--trust-domain", DOMAIN])
            .args([
                "--table",
                table,
                "--state",
                &path("state"),
                "--secret",
                &path("secret"),
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .expect("it says where")
            .parse()
            .unwrap();
        Self { process, address }
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    async fn ask(
        &self,
        client: &ClientConfig,
        method: &str,
        path: &str,
        token: &str,
        body: Value,
    ) -> (StatusCode, Value) {
        #[allow(clippy::disallowed_methods, reason = "a client outside the service")]
        let stream = tokio::net::TcpStream::connect(self.address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(client.clone()));
        let mut stream = connector
            .connect("localhost".try_into().unwrap(), stream)
            .await
            .unwrap();
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let kind = if body.is_empty() {
            ""
        } else {
            "Content-Type: application/json\r\n"
        };
        let authorization = if token.is_empty() {
            String::new()
        } else {
            format!("Authorization: Bearer {token}\r\n")
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{kind}{authorization}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // The end of the connection without a farewell is an error to TLS; the length of the body tells that all is here.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a whole head");
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_str(body).unwrap()
        };
        (StatusCode::from_u16(status).unwrap(), body)
    }
}

/// Trusts the authority and shows no certificate, as a person's client does.
fn anonymous(authority: &CertificateDer<'static>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

fn letter(directory: &Path, label: &str) -> String {
    let mut letters: Vec<PathBuf> = fs::read_dir(directory.join("state/mail"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    letters.sort();
    let text = fs::read_to_string(letters.last().expect("a letter")).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{label}: ")));
    line.expect("the letter says so").to_owned()
}

fn base64(bytes: &[u8]) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
    STANDARD_NO_PAD.encode(bytes)
}

fn unbase64(value: &Value) -> Vec<u8> {
    use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
    STANDARD_NO_PAD.decode(value.as_str().unwrap()).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn what_it_confirmed_survives_a_kill_a_backup_and_a_restore() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let path = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let table = format!("redb:{}", path("api.redb"));
    assert!(
        firn_api(&["new-secret", &path("secret")])
            .status()
            .unwrap()
            .success()
    );
    assert!(
        !firn_api(&["new-secret", &path("secret")])
            .status()
            .unwrap()
            .success(),
        "a secret is never overwritten"
    );
    let master = MasterSecret::new(fs::read(path("secret")).unwrap().as_slice().try_into().unwrap());
    let authority = master.authority(DOMAIN).unwrap().certificate().clone();
    let person = anonymous(&authority);

    let program = Program::start(directory, &table);
    let phrase = RecoveryPhrase::from_entropy([1; 32]);
    let sign_up = json!({ "email": "ada@one.example", "tenant_name": "Nord" });
    let (status, _) = program.ask(&person, "POST", "/v1/signups", "", sign_up).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let confirm = json!({
        "code": letter(directory, "Code"),
        "tenant_key": phrase.signing_key().public().to_string(),
        "recovery_key": phrase.recovery_secret().public().to_string(),
    });
    let confirm_path = format!("/v1/signups/{}/confirm", letter(directory, "Sign-up"));
    let (status, welcome) = program.ask(&person, "POST", &confirm_path, "", confirm).await;
    assert_eq!(status, StatusCode::CREATED, "{welcome}");
    let base = format!("/v1/tenants/{}", welcome["tenant"]["id"].as_str().unwrap());
    let log_in = json!({ "api_key": welcome["api_key"] });
    let (_, issued) = program
        .ask(&person, "POST", &format!("{base}/tokens"), "", log_in.clone())
        .await;
    let token = issued["token"].as_str().unwrap().to_owned();
    program.kill();

    // Tokens and certificates of before the kill are good after it: all keys derive from the master secret.
    let program = Program::start(directory, &table);
    let env = firn_env::real(directory).unwrap();
    let secret =
        JoinSecret::generate(&mut |bytes| bytes.copy_from_slice(&env.random_bytes::<32>()[..bytes.len()]));
    let invitation = json!({
        "name": "edge",
        "lookup": secret.lookup_id().to_text(),
        "authenticator_hash": hex(&secret.authenticator().hash().0),
        "sealed": base64(&secret.seal(b"x", &mut |bytes| bytes.fill(1)).unwrap()),
    });
    let (status, edge) = program
        .ask(&person, "POST", &format!("{base}/edges"), &token, invitation)
        .await;
    assert_eq!(status, StatusCode::CREATED, "{edge}");
    let edge: EdgeId = edge["id"].as_str().unwrap().parse().unwrap();
    let name = PeerIdentity {
        trust_domain: DOMAIN.into(),
        kind: PeerKind::Edge {
            tenant: welcome["tenant"]["id"].as_str().unwrap().parse().unwrap(),
            edge,
        },
    };
    let key = SigningKey::from_seed([7; 32]);
    let request = certificate_request(&key, &name);
    let recipient = RecipientSecret::derive(&[2; 32]).public();
    let join = json!({
        "authenticator": &*secret.authenticator().expose(),
        "recipient_key": recipient.to_string(),
        "certificate_request": base64(&request),
        "binding": hex(&secret.bind(&[recipient.to_bytes().as_slice(), &request].concat())),
    });
    let join_path = format!("{base}/joins/{}", secret.lookup_id().to_text());
    let (status, joined) = program.ask(&person, "POST", &join_path, "", join).await;
    assert_eq!(status, StatusCode::OK, "{joined}");
    let issued = IssuedCertificate {
        certificate: unbase64(&joined["certificate"]["certificate"]).into(),
        expires: UnixTime(joined["certificate"]["expires"].as_u64().unwrap()),
        renew_after: UnixTime(joined["certificate"]["renew_after"].as_u64().unwrap()),
    };
    let service = PeerIdentity {
        trust_domain: DOMAIN.into(),
        kind: PeerKind::Service("api".into()),
    };
    let identity = TlsIdentity::new(&key, &issued).unwrap();
    let machine = client_config(
        &env,
        &identity,
        std::slice::from_ref(&authority),
        Expected::Peer(service),
    )
    .unwrap();
    let edge_path = format!("{base}/edges/{edge}");
    let (status, shown) = program.ask(&machine, "GET", &edge_path, "", Value::Null).await;
    assert_eq!(
        (status, shown["state"].as_str()),
        (StatusCode::OK, Some("active")),
        "by its certificate alone"
    );
    let (status, _) = program
        .ask(&machine, "GET", &format!("{base}/members"), "", Value::Null)
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let (status, _) = program.ask(&person, "GET", &edge_path, "", Value::Null).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);

    assert!(
        !firn_api(&["backup", "--table", &table, &path("early")])
            .status()
            .unwrap()
            .success(),
        "not while it runs"
    );
    let (_, log) = program
        .ask(&person, "GET", &format!("{base}/audit"), &token, Value::Null)
        .await;
    let (_, head) = program
        .ask(&person, "GET", &format!("{base}/audit/head"), &token, Value::Null)
        .await;
    program.kill();

    let lines: Vec<String> = log["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(Value::to_string)
        .collect();
    fs::write(path("audit"), lines.join("\n")).unwrap();
    let verify = |head: &str| {
        firn_api(&["audit", "verify", &path("audit"), "--head", head])
            .status()
            .unwrap()
            .success()
    };
    assert!(verify(head["hash"].as_str().unwrap()));
    assert!(!verify(&"0".repeat(64)));

    let restored = format!("redb:{}", path("restored.redb"));
    assert!(
        firn_api(&["backup", "--table", &table, &path("backup")])
            .status()
            .unwrap()
            .success()
    );
    assert!(
        firn_api(&["restore", "--table", &restored, &path("backup")])
            .status()
            .unwrap()
            .success()
    );
    let program = Program::start(directory, &restored);
    let (status, _) = program
        .ask(&person, "POST", &format!("{base}/tokens"), "", log_in)
        .await;
    assert_eq!(status, StatusCode::CREATED);
    let (status, shown) = program.ask(&machine, "GET", &edge_path, "", Value::Null).await;
    assert_eq!(
        (status, shown["id"].as_str()),
        (StatusCode::OK, Some(edge.to_string().as_str()))
    );
    program.kill();
}

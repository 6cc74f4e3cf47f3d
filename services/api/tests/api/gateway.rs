//! The isolation matrix once more, from outside: through the committed Envoy configuration and Open Policy Agent with the
//! committed policies, over TLS, to a `firn-api` that listens.

use crate::harness::{self, DOMAIN, ISSUER, Service};
use crate::world::{World, is_tenants};
use axum::http::Method;
use firn_api::{AUDIENCE, Bound, Listening, POLICY, RegoPolicy, endpoints, serve};
use firn_identity::{CertificateDer, PeerIdentity, PeerKind, Role, SigningKey, certificate_request, pem};
use serde_json::Value;
use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs, version::TLS13},
};

/// Ends what it started.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Gateway {
    https: SocketAddr,
    /// The service itself, behind it.
    api: SocketAddr,
    client: ClientConfig,
    log: PathBuf,
    _envoy: Running,
    opa: Running,
    _directory: tempfile::TempDir,
}

fn free_ports<const N: usize>() -> [u16; N] {
    #[allow(clippy::disallowed_methods, reason = "a test of real servers")]
    let sockets: Vec<_> = (0..N)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    std::array::from_fn(|index| sockets[index].local_addr().unwrap().port())
}

fn program(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("make test names the program in {variable}"))
}

#[allow(clippy::disallowed_methods, reason = "a test of real servers")]
async fn wait_until_it_listens(port: u16, what: &str) {
    let began = Instant::now();
    while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{what} does not listen"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Gateway {
    /// Starts API, OPA and Envoy; `limits` are requests a second and at once, by address and by tenant.
    async fn start(service: &Service, limits: [&str; 4]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let authority: CertificateDer<'static> = service.app.authority().certificate().clone();
        let name = PeerIdentity {
            trust_domain: DOMAIN.into(),
            kind: PeerKind::Service("gateway".into()),
        };
        let key = SigningKey::from_seed([8; 32]);
        let request = certificate_request(&key, &name);
        let env = service.env.clone();
        let issued = service
            .app
            .authority()
            .issue(
                &request,
                &name,
                &["localhost".into()],
                service.now(),
                &mut |bytes| {
                    bytes.copy_from_slice(&env.random_bytes::<32>()[..bytes.len()]);
                },
            )
            .unwrap();
        fs::write(path("key.pem"), pem("PRIVATE KEY", &key.to_pkcs8())).unwrap();
        fs::write(path("certificate.pem"), pem("CERTIFICATE", &issued.certificate)).unwrap();
        fs::write(path("authority.pem"), pem("CERTIFICATE", &authority)).unwrap();

        let (told, address) = tokio::sync::oneshot::channel();
        let app = service.app.clone();
        service.env.spawn("api", async move {
            let listening = Listening {
                gateways: vec![[127, 0, 0, 1].into()],
                ..Listening::new(
                    "127.0.0.1:0".parse().unwrap(),
                    Some(vec!["localhost".into()]),
                    "1",
                )
            };
            let ready = |bound: Bound| told.send(bound.tenants).unwrap();
            serve(&app, &listening, ready, std::future::pending())
                .await
                .unwrap();
        });
        let api = address.await.unwrap();

        let [https, machines, admin, opa_port, opa_http] = free_ports();
        let mut render = Command::new(project("gateway/render"));
        render.arg(directory.path());
        for (name, value) in [
            ("LISTEN", "127.0.0.1".to_owned()),
            ("HTTPS_PORT", https.to_string()),
            ("MACHINE_PORT", machines.to_string()),
            ("ADMIN_PORT", admin.to_string()),
            ("OPA_PORT", opa_port.to_string()),
            ("CERTIFICATE", path("certificate.pem").display().to_string()),
            ("KEY", path("key.pem").display().to_string()),
            ("AUTHORITY", path("authority.pem").display().to_string()),
            ("API_ADDRESS", "127.0.0.1".to_owned()),
            ("API_PORT", api.port().to_string()),
            ("API_NAME", "localhost".to_owned()),
            ("ISSUER", ISSUER.to_owned()),
            ("ADDRESS_RATE", limits[0].to_owned()),
            ("ADDRESS_BURST", limits[1].to_owned()),
            ("TENANT_RATE", limits[2].to_owned()),
            ("TENANT_BURST", limits[3].to_owned()),
        ] {
            render.arg(format!("{name}={value}"));
        }
        assert!(render.status().unwrap().success());
        let opa = Command::new(program("FIRN_TEST_OPA"))
            .args([
                "run",
                "--server",
                "--disable-telemetry",
                "--log-level",
                "error",
                "--addr",
            ])
            .arg(format!("127.0.0.1:{opa_http}"))
            .arg("--config-file")
            .arg(path("opa.yaml"))
            .args([project("policy/authz.rego"), project("policy/gateway.rego")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(Running)
            .unwrap();
        wait_until_it_listens(opa_port, "OPA").await;
        let log = path("access.log");
        let envoy = Command::new(program("FIRN_TEST_ENVOY"))
            .arg("-c")
            .arg(path("envoy.yaml"))
            .args([
                "--concurrency",
                "1",
                "--use-dynamic-base-id",
                "--file-flush-interval-msec",
                "100",
                "--log-level",
                "error",
            ])
            .stdout(fs::File::create(&log).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .map(Running)
            .unwrap();
        wait_until_it_listens(https, "Envoy").await;

        let mut roots = RootCertStore::empty();
        roots.add(authority).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            https: ([127, 0, 0, 1], https).into(),
            api,
            client,
            log,
            _envoy: envoy,
            opa,
            _directory: directory,
        }
    }

    async fn connect(&self) -> Connection {
        self.connect_to(self.https).await
    }

    async fn connect_to(&self, address: SocketAddr) -> Connection {
        #[allow(clippy::disallowed_methods, reason = "a client outside")]
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(self.client.clone()));
        let stream = connector
            .connect("localhost".try_into().unwrap(), stream)
            .await
            .unwrap();
        Connection(stream)
    }
}

fn project(path: &str) -> PathBuf {
    PathBuf::from(path)
}

/// HTTP/1.1, one request after the other.
struct Connection(TlsStream<tokio::net::TcpStream>);

struct Answer {
    status: u16,
    head: String,
    body: Value,
}

impl Answer {
    fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    fn let_through(&self) -> bool {
        assert!(self.status < 500, "{} {:?}", self.status, self.body);
        !matches!(
            self.code(),
            "not_authenticated" | "token_refused" | "certificate_refused" | "not_allowed"
        )
    }
}

impl Connection {
    async fn ask(&mut self, method: &Method, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n",
            body.len()
        );
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        request.push_str(body);
        self.0.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        let end = loop {
            let mut buffer = [0; 8192];
            let count = self.0.read(&mut buffer).await.unwrap();
            assert!(
                count > 0,
                "the connection ended: {}",
                String::from_utf8_lossy(&bytes)
            );
            bytes.extend_from_slice(&buffer[..count]);
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let mut body = bytes.split_off(end);
        let head = String::from_utf8(bytes).unwrap();
        let length: usize = head
            .lines()
            .find_map(|line| {
                line.to_ascii_lowercase()
                    .strip_prefix("content-length:")?
                    .trim()
                    .parse()
                    .ok()
            })
            .unwrap_or(0);
        while body.len() < length {
            let mut buffer = [0; 8192];
            let count = self.0.read(&mut buffer).await.unwrap();
            assert!(count > 0, "the body is cut short");
            body.extend_from_slice(&buffer[..count]);
        }
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            head,
        }
    }

    /// A request that changes nothing when it is let through.
    async fn harmless(&mut self, method: &Method, path: &str, token: Option<&str>) -> Answer {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let mut headers = Vec::new();
        if let Some(bearer) = &bearer {
            headers.push(("Authorization", bearer.as_str()));
        }
        match *method {
            Method::GET => self.ask(method, path, &headers, "").await,
            Method::DELETE => {
                headers.push(("If-Match", "\"never\""));
                self.ask(method, path, &headers, "").await
            }
            _ if path.ends_with("/tokens/revoke") => self.ask(method, path, &headers, "").await,
            _ => {
                headers.push(("Content-Type", "application/json"));
                self.ask(method, path, &headers, "{}").await
            }
        }
    }
}

const NO_LIMIT: [&str; 4] = ["5000", "20000", "5000", "20000"];

async fn world() -> (World, tempfile::TempDir) {
    let disk = tempfile::tempdir().unwrap();
    let env = firn_env::real(disk.path()).unwrap();
    (World::over(Service::on(env, harness::rego())).await, disk)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Envoy and Open Policy Agent: make test"]
async fn real_the_matrix_holds_through_envoy_and_opa() {
    let (world, _disk) = world().await;
    let gateway = Gateway::start(&world.service, NO_LIMIT).await;
    let mut connection = gateway.connect().await;
    let policy = RegoPolicy::compile(POLICY).unwrap();
    let mut checked = 0;
    for endpoint in endpoints() {
        let (operation, method) = (endpoint.operation(), endpoint.method());
        let public = harness::is_public(&policy, &operation);
        let path = world.ours.path(&endpoint);
        let nobody = connection.harmless(method, &path, None).await;
        assert_eq!(
            nobody.let_through(),
            public,
            "{operation} without a token: {:?}",
            nobody.body
        );
        checked += 1;
        for role in Role::ALL {
            let expected = public || harness::decision(&policy, &operation, endpoint.path(), role, true);
            let own = world.token(&world.ours, role);
            let answer = connection.harmless(method, &path, Some(&own)).await;
            // What renews a certificate, and what charges for a node's work, wants the certificate itself, which does not pass this port.
            let by_certificate = ["/certificate", "/token", "/nodes/{node}/usage"];
            let wants_certificate = answer.code() == "certificate_refused"
                && by_certificate.iter().any(|end| operation.ends_with(end));
            assert_eq!(
                answer.let_through() || wants_certificate,
                expected,
                "{operation} as {role}: {:?}",
                answer.body
            );
            let now = world.service.now();
            let principal = world.ours.principal(role);
            let ours = world.ours.id();
            let expired = world
                .service
                .token(ours, principal, role, AUDIENCE, now.minus(1000));
            let foreign = world.service.token(ours, principal, role, "firn-node", now);
            for (what, token) in [
                ("expired", expired.as_str()),
                ("wrong audience", &foreign),
                ("garbage", "x.y.z"),
            ] {
                let answer = connection.harmless(method, &path, Some(token)).await;
                assert_eq!(
                    (answer.status, answer.code()),
                    (401, "token_refused"),
                    "{operation} as {role}, {what}: {:?}",
                    answer.body
                );
            }
            checked += 4;
            if is_tenants(&endpoint) && !public {
                let theirs = connection
                    .harmless(method, &path, Some(&world.token(&world.theirs, role)))
                    .await;
                assert!(
                    !theirs.let_through(),
                    "{operation} as {role} of another tenant: {:?}",
                    theirs.body
                );
                checked += 1;
            }
        }
    }
    // Taken back at the service; the gateway does not know, and the service refuses what the gateway lets through.
    let revoked = world.token(&world.ours, Role::Owner);
    let base = &world.ours.customer.base;
    let path = format!("{base}/tokens/revoke");
    let taken = connection.harmless(&Method::POST, &path, Some(&revoked)).await;
    assert_eq!(taken.status, 204, "{:?}", taken.body);
    let answer = connection
        .harmless(&Method::GET, &format!("{base}/volumes"), Some(&revoked))
        .await;
    assert_eq!(answer.code(), "token_refused");
    println!("{checked} cells checked through Envoy and OPA");
    assert!(
        checked > 1800,
        "only {checked} cells: the list of operations shrank"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Envoy and Open Policy Agent: make test"]
async fn real_the_gateway_bounds_cleans_and_closes() {
    let (world, _disk) = world().await;
    let mut gateway = Gateway::start(&world.service, ["5", "60", "5", "20"]).await;
    let base = world.ours.customer.base.clone();
    let volumes = format!("{base}/volumes");
    let token = world.token(&world.ours, Role::Reader);
    let bearer = format!("Bearer {token}");
    let mut connection = gateway.connect().await;

    // A certificate in a header stands for nobody, whatever it says.
    let forged = format!(
        "URI=spiffe://{DOMAIN}/tenant/{}/edge/{}",
        world.ours.id(),
        world.ours.edge.0
    );
    let edge = format!("{base}/edges/{}", world.ours.edge.0);
    let answer = connection
        .ask(
            &Method::GET,
            &edge,
            &[
                ("X-Forwarded-Client-Cert", &forged),
                ("X-Forwarded-For", "10.0.0.1"),
            ],
            "",
        )
        .await;
    assert_eq!(answer.code(), "not_authenticated", "{:?}", answer.body);
    // Other spellings of a path are the same path, or none; never another row's.
    for (path, status) in [
        (format!("/v1/../healthz{volumes}"), 404),
        (format!("{base}//volumes"), 401),
        ("/v1/%2e%2e/nothing".to_owned(), 404),
        (format!("{base}%2fvolumes"), 400),
        ("/healthz/..".to_owned(), 404),
    ] {
        // Its own connection: what cannot be parsed ends it.
        let answer = gateway.connect().await.ask(&Method::GET, &path, &[], "").await;
        assert_eq!(answer.status, status, "{path}: {:?} {}", answer.body, answer.head);
    }
    // The identifier of a request is the gateway's own, the one in its log, and not one that the caller made up.
    let headers = [("Authorization", bearer.as_str()), ("X-Request-Id", "made-up")];
    let answer = gateway
        .connect()
        .await
        .ask(&Method::GET, &volumes, &headers, "")
        .await;
    let mut lines = answer.head.lines();
    let id = lines.find_map(|line| line.strip_prefix("x-request-id: "));
    let is_uuid = id.is_some_and(|id| id.len() == 36 && id.matches('-').count() == 4);
    assert!(is_uuid, "{}", answer.head);
    let large = "x".repeat(600_000);
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Content-Type", "application/json"),
    ];
    let answer = gateway
        .connect()
        .await
        .ask(&Method::POST, &volumes, &headers, &large)
        .await;
    assert_eq!(
        (answer.status, answer.code()),
        (413, "body_too_large"),
        "{:?}",
        answer.body
    );
    let wide = "x".repeat(20_000);
    let answer = gateway
        .connect()
        .await
        .ask(&Method::GET, "/healthz", &[("X-Wide", &wide)], "")
        .await;
    assert_eq!(answer.status, 431);

    // A tenant's storm is that tenant's: another one, from the same address, is still served.
    let mut refused = 0;
    for _ in 0..30 {
        let answer = connection
            .ask(&Method::GET, &volumes, &[("Authorization", &bearer)], "")
            .await;
        if answer.status == 429 {
            assert_eq!(answer.code(), "rate_limited", "{:?}", answer.body);
            assert!(answer.head.to_ascii_lowercase().contains("retry-after"));
            refused += 1;
        } else {
            assert_eq!(answer.status, 200, "{:?}", answer.body);
        }
    }
    assert!(refused > 0, "twenty at once, five a second");
    let other = world.token(&world.theirs, Role::Reader);
    let path = format!("{}/volumes", world.theirs.customer.base);
    let answer = connection
        .ask(
            &Method::GET,
            &path,
            &[("Authorization", &format!("Bearer {other}"))],
            "",
        )
        .await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    // An address's storm, without any token.
    let mut limited = false;
    for _ in 0..80 {
        limited |= connection.ask(&Method::GET, "/healthz", &[], "").await.status == 429;
    }
    assert!(limited);

    // Without a policy nobody goes through: the gateway fails closed.
    gateway.opa.0.kill().unwrap();
    gateway.opa.0.wait().unwrap();
    #[allow(clippy::disallowed_methods, reason = "the limits by address fill up again")]
    tokio::time::sleep(Duration::from_secs(3)).await;
    let answer = connection
        .ask(
            &Method::GET,
            &path,
            &[("Authorization", &format!("Bearer {other}"))],
            "",
        )
        .await;
    assert_eq!(
        (answer.status, answer.code()),
        (503, "storage_unavailable"),
        "{:?}",
        answer.body
    );

    // The access log is JSON, tells tenant and outcome, and holds no token.
    let log = fs::read_to_string(&gateway.log).unwrap();
    let entry = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("each line is JSON"))
        .find(|entry| entry["tenant"] == world.ours.id().to_string().as_str());
    assert!(entry.is_some_and(|entry| entry["method"] == "GET"), "{log}");
    assert!(!log.contains(&token));
}

/// Figures for docs/benchmarks-control-plane.md, by one client that waits for each reply: requests go by turns to the service and
/// through the gateway, so that both meet the same machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures; see docs/benchmarks-control-plane.md for the command"]
#[allow(clippy::disallowed_methods, reason = "it measures real time")]
async fn latency_with_and_without_the_gateway() {
    // Fewer, on a machine that others use, still tell the median.
    let requests = std::env::var("FIRN_REQUESTS").map_or(2000, |count| count.parse().unwrap());
    let (world, _disk) = world().await;
    let gateway = Gateway::start(&world.service, NO_LIMIT).await;
    let bearer = format!("Bearer {}", world.token(&world.ours, Role::Owner));
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Content-Type", "application/json"),
    ];
    let base = &world.ours.customer.base;
    let mut ways = [gateway.connect_to(gateway.api).await, gateway.connect().await];
    println!("| request | way | p50 ms | p99 ms |\n|---|---|---|---|");
    for (what, method, path, body) in [
        ("health", Method::GET, "/healthz".to_owned(), ""),
        ("read: list volumes", Method::GET, format!("{base}/volumes"), ""),
        (
            "write: set budget (one fsync)",
            Method::PUT,
            format!("{base}/budget"),
            "{\"alert_nano_dollars\":5}",
        ),
    ] {
        let mut took = [Vec::new(), Vec::new()];
        for request in 0..requests * 2 {
            let began = Instant::now();
            let answer = ways[request % 2].ask(&method, &path, &headers, body).await;
            took[request % 2].push(began.elapsed());
            assert_eq!(answer.status, 200, "{what}: {:?}", answer.body);
        }
        for (way, took) in ["direct", "Envoy and OPA"].iter().zip(&mut took) {
            took.sort();
            let percentile = |percent: usize| took[took.len() * percent / 100].as_secs_f64() * 1000.0;
            println!(
                "| {what} | {way} | {:.2} | {:.2} |",
                percentile(50),
                percentile(99)
            );
        }
    }
}

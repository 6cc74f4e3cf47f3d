//! The control plane's pool with real machines, as far as a process is one: a disk does not fit, a node is launched, runs its user data,
//! joins, registers in the cluster, and the disk is placed on it.
//!
//! ```text
//! tests/lab/cloud/with dynamodb -- cargo test -p firn-blockd --test pool -- --ignored real_
//! ```
#![allow(
    clippy::disallowed_methods,
    reason = "it starts real programs, and waits for them in real time"
)]

use async_trait::async_trait;
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Method, Request, StatusCode},
};
use firn_api::{
    App, Boot, Fleet, Limits, Listening, Mail, MailError, Mailer, MasterSecret, NoCloud,
    NodeProvisioner as _, POLICY, Parts, Pool, PoolSettings, Processes, RegoPolicy, router, serve,
};
use firn_blockd_placement::Placement;
use firn_env::Env;
use firn_identity::{NodeId, TenantId, pem};
use firn_table::{Table, TableUrl};
use firn_table_dynamodb::{AwsCredentials, DynamoDbTable};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tower::ServiceExt as _;

const MIB: u64 = 1 << 20;
/// The least that a node takes.
const NODE_BYTES: u64 = 256 * MIB;
/// Far longer than anything takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Keeps the newest letter.
#[derive(Clone, Default)]
struct Letters(Arc<Mutex<String>>);

#[async_trait]
impl Mailer for Letters {
    async fn send(&self, mail: &Mail) -> Result<(), MailError> {
        *self.0.lock().unwrap() = mail.body.clone();
        Ok(())
    }
}

async fn ask(
    router: &Router,
    method: Method,
    path: &str,
    token: Option<&str>,
    body: Value,
) -> (StatusCode, Value) {
    let mut request = Request::builder().method(method.clone()).uri(path);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let body = if body.is_null() {
        Body::empty()
    } else {
        request = request.header("content-type", "application/json");
        Body::from(body.to_string())
    };
    let response = router.clone().oneshot(request.body(body).unwrap()).await.unwrap();
    let status = response.status();
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// Signs up; gives the tenant and a token of its owner.
async fn customer(router: &Router, letters: &Letters) -> (TenantId, String) {
    let body = json!({ "email": "ada@one.example", "tenant_name": "One" });
    let (_, noted) = ask(router, Method::POST, "/v1/signups", None, body).await;
    let letter = letters.0.lock().unwrap().clone();
    let code = letter
        .lines()
        .find_map(|line| line.strip_prefix("Code: "))
        .unwrap();
    let body = json!({ "code": code, "tenant_key": "01".repeat(32), "recovery_key": "09".repeat(32) });
    let path = format!("/v1/signups/{}/confirm", noted["signup"].as_str().unwrap());
    let (status, welcome) = ask(router, Method::POST, &path, None, body).await;
    assert_eq!(status, StatusCode::CREATED, "{welcome}");
    let tenant: TenantId = welcome["tenant"]["id"].as_str().unwrap().parse().unwrap();
    let body = json!({ "api_key": welcome["api_key"] });
    let path = format!("/v1/tenants/{tenant}/tokens");
    let (_, issued) = ask(router, Method::POST, &path, None, body).await;
    (tenant, issued["token"].as_str().unwrap().to_owned())
}

async fn dynamodb(env: &Env, url: &str) -> Arc<dyn Table> {
    let TableUrl::DynamoDb(url) = url.parse().unwrap() else {
        panic!("{url} is no table in DynamoDB");
    };
    let credentials = AwsCredentials {
        access_key_id: "firntest".into(),
        secret_access_key: "firntest".into(),
        session_token: None,
    };
    Arc::new(
        DynamoDbTable::open_as(env, &url, Some(credentials))
            .await
            .unwrap(),
    )
}

/// A machine's role opens the table; a process has the environment.
fn program(directory: &Path) -> PathBuf {
    let path = directory.join("firn-blockd");
    let text = format!(
        "#!/bin/sh\nexport AWS_ACCESS_KEY_ID=firntest AWS_SECRET_ACCESS_KEY=firntest\nexec {} \"$@\"\n",
        env!("CARGO_BIN_EXE_firn-blockd")
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server: make test"]
async fn real_a_disk_that_does_not_fit_brings_a_node_that_joins_by_its_user_data() {
    let server = std::env::var("FIRN_TEST_DYNAMODB").expect("make test starts DynamoDB Local and names it");
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let name = format!("pool-{:016x}", env.random_u64());
    let table = dynamodb(
        &env,
        &format!("dynamodb://{name}?region=us-east-1&endpoint={server}&create=true"),
    )
    .await;
    // Nodes open it, so it is the cluster's alone.
    let url = format!("dynamodb://{name}-disks?region=us-east-1&endpoint={server}");
    let own_table = dynamodb(&env, &format!("{url}&create=true")).await;
    let cluster = Placement::new(env.clone(), own_table, "main").unwrap();
    cluster.initialise([8; 3]).await.unwrap();

    // Machines must know where the service will be before there is one, so its tenant comes from an earlier life of it.
    let address = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let letters = Letters::default();
    let master = || MasterSecret::new(&[42; 32]);
    let app = |pool: Option<Pool>| {
        App::new(Parts {
            env: env.clone(),
            table: table.clone(),
            master: master(),
            policy: Arc::new(RegoPolicy::compile(POLICY).unwrap()),
            mailer: Arc::new(letters.clone()),
            placement: Arc::new(Fleet::new(cluster.clone())),
            pool,
            fleet_tenant: None,
            cloud: Arc::new(NoCloud),
            issuer: "https://firn.test".into(),
            machine_server: None,
            trust_domain: "firn.test".into(),
            token_generation: 0,
            disk_capability_seconds: firn_api::DISK_CAPABILITY_SECONDS,
            spread_ledger: false,
            limits: Limits::default(),
        })
        .unwrap()
    };
    let (tenant, token) = customer(&router(&app(None)), &letters).await;
    let authority = master().authority("firn.test").unwrap();
    let boot = Boot {
        server: format!("https://localhost:{}", address.port()),
        authority: Some(pem("CERTIFICATE", authority.certificate()).to_string()),
        cluster: "main".into(),
        table: url.clone(),
        node_bytes: NODE_BYTES,
    };
    let machines = directory.path().join("machines");
    let processes = Arc::new(Processes::new(&env, &machines, &program(directory.path())));
    let settings = PoolSettings {
        tenant,
        min_nodes: 0,
        max_nodes: 2,
        failure_domains: vec!["rack-1".into()],
        idle_seconds: 3600,
        boot,
    };
    let app = app(Some(Pool {
        settings,
        provisioner: processes.clone(),
    }));
    let served = app.clone();
    let api = env.spawn("api", async move {
        let listening = Listening::new(address, Some(vec!["localhost".into()]), "1");
        serve(&served, &listening, |_| {}, std::future::pending())
            .await
            .unwrap();
    });

    let router = router(&app);
    let see = async |path: &str| {
        let path = format!("/v1/tenants/{tenant}/{path}");
        ask(&router, Method::GET, &path, Some(&token), Value::Null)
            .await
            .1
    };
    let body = json!({ "name": "d", "size_bytes": 64 * MIB, "replicas": 1 });
    let path = format!("/v1/tenants/{tenant}/disks");
    let (status, started) = ask(&router, Method::POST, &path, Some(&token), body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{started}");
    let operation = format!("operations/{}", started["operation"]["id"].as_str().unwrap());
    let began = Instant::now();
    let log = || -> String {
        let logs = fs::read_dir(&machines).into_iter().flatten().flatten();
        logs.filter_map(|entry| fs::read_to_string(entry.path().join("log")).ok())
            .collect()
    };
    loop {
        let state = see(&operation).await;
        match state["state"].as_str() {
            Some("done") => break,
            Some("running") => {}
            other => panic!("{other:?}: {state}\n{}", log()),
        }
        assert!(began.elapsed() < TIMEOUT, "{state}\n{}", log());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let nodes = see("nodes").await;
    let node: NodeId = nodes["items"][0]["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(nodes["items"].as_array().unwrap().len(), 1, "{nodes}");
    let in_cluster = cluster.nodes().await.unwrap();
    assert_eq!(in_cluster.len(), 1);
    assert_eq!(in_cluster[0].node.0, node.0, "one identity for both");
    assert_eq!(in_cluster[0].domain, "rack-1");
    assert!(
        !machines
            .join(node.to_string())
            .join("node/identity/join-secret")
            .exists()
    );

    // With all that the node was given, its user data and its credentials, nothing of the control plane is reached.
    let place = machines.join(node.to_string());
    let given = fs::read_to_string(place.join("node/firn-blockd.toml")).unwrap();
    let opens = given
        .lines()
        .find_map(|line| line.strip_prefix("table = "))
        .unwrap();
    assert_eq!(opens.trim_matches('"'), url);
    for file in ["user-data", "node/firn-blockd.toml"] {
        let text = fs::read_to_string(place.join(file)).unwrap();
        assert!(
            !text.replace(&format!("{name}-disks"), "").contains(&name),
            "{file}: {text}"
        );
    }
    let nodes_table = dynamodb(&env, opens.trim_matches('"')).await;
    for partition in [
        "service".to_owned(),
        "tenants".to_owned(),
        "open-sagas".to_owned(),
        "signup".to_owned(),
        format!("tenant/{tenant}"),
    ] {
        let services = table.query(&partition, "", None, 10).await.unwrap();
        let nodes = nodes_table.query(&partition, "", None, 10).await.unwrap();
        assert_eq!(nodes.items, [], "{partition}");
        if partition.starts_with("tenant") {
            assert!(!services.items.is_empty(), "{partition} is the control plane's");
        }
    }
    let rows = table.query("blockd/main/nodes", "", None, 10).await.unwrap();
    assert_eq!(rows.items, [], "and the cluster is not in the service's table");

    // It goes on saying that it lives.
    let first = see(&format!("nodes/{node}")).await["last_seen"].as_u64().unwrap();
    while see(&format!("nodes/{node}")).await["last_seen"].as_u64().unwrap() == first {
        assert!(began.elapsed() < TIMEOUT, "no heartbeat\n{}", log());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }

    // A service that is started anew finds the machine, and ends it once.
    let later = Processes::new(&env, &machines, &program(directory.path()));
    let running = later.machines(tenant).await.unwrap();
    assert_eq!(
        running.iter().map(|machine| machine.node).collect::<Vec<_>>(),
        [node]
    );
    for _ in 0..2 {
        later.terminate(tenant, node).await.unwrap();
    }
    assert_eq!(processes.machines(tenant).await.unwrap(), []);
    api.abort();
}

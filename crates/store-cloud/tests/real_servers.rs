//! The suite of rules and the provider's own refusals, on real servers.
//!
//! These tests need servers, so plain `cargo test` leaves them out; `make test` starts them and runs these too:
//!
//! ```text
//! tests/lab/cloud/with localstack versitygw azurite -- cargo test -p firn-store-cloud -- --ignored real_
//! ```

use firn_env::Env;
use firn_rig::buckets::{self, AZURITE_ACCOUNT, AZURITE_KEY};
use firn_store::{
    ObjectKey, ProbeError, ProviderPrices, PutMode, RetryPolicy, Route, Stack, StackConfig, Store,
    StoreError, StoreUrl, conformance, erase, probe,
};
use firn_store_cloud::{Credentials, open};
use futures::StreamExt;
use std::sync::Arc;
use tokio::io::AsyncReadExt;

const NEEDS_SERVERS: &str = "is not set: run `make test`, or this test below tests/lab/cloud/with";

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} {NEEDS_SERVERS}"))
}

/// A server, how to reach it, and a bucket of the test's own in it.
struct Server {
    _directory: tempfile::TempDir,
    env: Env,
    url: String,
    credentials: Credentials,
}

impl Server {
    async fn versitygw() -> Self {
        let (key, secret) = (
            variable("FIRN_TEST_VERSITYGW_KEY"),
            variable("FIRN_TEST_VERSITYGW_SECRET"),
        );
        Self::s3("FIRN_TEST_VERSITYGW", &key, &secret).await
    }

    async fn localstack() -> Self {
        Self::s3("FIRN_TEST_LOCALSTACK", "test", "test").await
    }

    async fn s3(endpoint_variable: &str, key: &str, secret: &str) -> Self {
        let endpoint = variable(endpoint_variable);
        let (directory, env) = environment();
        let bucket = bucket_name(&env);
        buckets::create_s3(&endpoint, &bucket, key, secret)
            .await
            .expect("a bucket");
        Self {
            _directory: directory,
            env,
            url: format!("s3://{bucket}/some/prefix?region=us-east-1&endpoint={endpoint}"),
            credentials: Credentials::S3 {
                access_key_id: key.into(),
                secret_access_key: secret.into(),
                session_token: None,
            },
        }
    }

    async fn azurite() -> Self {
        let endpoint = variable("FIRN_TEST_AZURITE");
        let (directory, env) = environment();
        let container = bucket_name(&env);
        buckets::create_azure(&endpoint, &container)
            .await
            .expect("a container");
        Self {
            _directory: directory,
            env,
            url: format!("azure://{container}/some/prefix?account={AZURITE_ACCOUNT}&endpoint={endpoint}"),
            credentials: Credentials::AzureKey(AZURITE_KEY.into()),
        }
    }

    async fn open_as(&self, url: &str, credentials: &Credentials) -> Arc<dyn Store> {
        let url: StoreUrl = url.parse().expect("a valid URL");
        open(&self.env, &url, credentials)
            .await
            .expect("a right configuration")
    }

    async fn open(&self) -> Arc<dyn Store> {
        self.open_as(&self.url, &self.credentials).await
    }
}

fn environment() -> (tempfile::TempDir, Env) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let env = firn_env::real(directory.path()).expect("the directory is there");
    (directory, env)
}

fn bucket_name(env: &Env) -> String {
    format!("firn-{:016x}", env.random_u64())
}

/// The whole suite, bare and below all layers, and the probe.
async fn conforms(server: &Server) {
    let store = server.open().await;
    probe(&server.env, &*store).await.expect("it is fit for use");
    conformance::check(&server.env, store.clone()).await;

    // A server may close idle connections just when they are used again, which is a failure of nobody's. What we misread fails each time.
    let mut unexplained = Vec::new();
    for _ in 0..3 {
        let stack = Stack::new(&server.env, store.clone(), StackConfig::default());
        conformance::check(&server.env, stack.store).await;
        let usage = stack.meter.usage();
        let book = ProviderPrices::named("s3-us-east-1").expect("embedded");
        println!(
            "{usage:?} would cost {}",
            book.cost(&usage, Route::Internet).total()
        );
        let statistics = stack.retrying.statistics();
        assert_eq!(
            (statistics.gave_up, statistics.timeouts),
            (0, 0),
            "{statistics:?}"
        );
        if usage.failures == 0 {
            return;
        }
        unexplained.push(statistics);
    }
    panic!("requests failed in each of three rounds: {unexplained:?}");
}

async fn a_prefix_hides_what_lies_beside_it(server: &Server) {
    let key = ObjectKey::new("object");
    let inner = server.open().await;
    inner
        .put(&key, vec!["inner".into()], PutMode::Create)
        .await
        .expect("created");
    let beside = server.url.replace("some/prefix", "some/prefix2");
    let beside = server.open_as(&beside, &server.credentials).await;
    assert!(beside.list("", None).await.expect("listed").objects.is_empty());
    let outer = server.url.replace("/some/prefix", "");
    let outer = server.open_as(&outer, &server.credentials).await;
    let listed = outer.list("some/prefix/", None).await.expect("listed");
    assert_eq!(listed.objects.len(), 1);
    assert_eq!(listed.objects[0].key.as_str(), "some/prefix/object");
    inner.delete(&key).await.expect("deleted");
    assert!(outer.list("", None).await.expect("listed").objects.is_empty());
}

async fn a_missing_bucket_is_told_apart_from_a_missing_object(server: &Server) {
    let missing = server.url.replacen("firn-", "firn-missing-", 1);
    let store = server.open_as(&missing, &server.credentials).await;
    let key = ObjectKey::new("object");
    let put = store.put(&key, vec!["x".into()], PutMode::Create).await;
    for (operation, error) in [
        ("put", put.expect_err("no bucket")),
        ("get", store.get(&key).await.expect_err("no bucket")),
        ("list", store.list("", None).await.expect_err("no bucket")),
    ] {
        assert!(
            matches!(&error, StoreError::Invalid { detail, .. } if detail.contains("create the bucket")),
            "{operation}: {error}"
        );
    }
    let error = probe(&server.env, &*store).await.expect_err("no bucket");
    assert!(
        matches!(
            error,
            ProbeError::Failed {
                step: "creating an object",
                ..
            }
        ),
        "{error}"
    );
}

async fn a_wrong_key_is_denied(server: &Server, wrong: Credentials) {
    let store = server.open_as(&server.url, &wrong).await;
    let key = ObjectKey::new("object");
    let put = store.put(&key, vec!["x".into()], PutMode::Create).await;
    for error in [
        put.expect_err("a wrong key"),
        store.get(&key).await.expect_err("a wrong key"),
        store.head(&key).await.expect_err("a wrong key"),
        store.delete(&key).await.expect_err("a wrong key"),
        store.list("", None).await.expect_err("a wrong key"),
    ] {
        assert!(
            matches!(&error, StoreError::Denied { detail, .. } if detail.contains("check the")),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs a server: make test"]
async fn real_versitygw_conforms() {
    let server = Server::versitygw().await;
    conforms(&server).await;
    a_prefix_hides_what_lies_beside_it(&server).await;
    a_missing_bucket_is_told_apart_from_a_missing_object(&server).await;
    let wrong = Credentials::S3 {
        access_key_id: variable("FIRN_TEST_VERSITYGW_KEY"),
        secret_access_key: "wrong".into(),
        session_token: None,
    };
    a_wrong_key_is_denied(&server, wrong).await;
    a_line_that_breaks_at_any_byte_loses_nothing(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs a server: make test"]
async fn real_localstack_s3_conforms() {
    let server = Server::localstack().await;
    conforms(&server).await;
    a_prefix_hides_what_lies_beside_it(&server).await;
    // LocalStack checks no secrets, so there is no wrong key to be denied.
    a_missing_bucket_is_told_apart_from_a_missing_object(&server).await;
}

/// A bucket whose objects are held for a day, which makes it a versioned one.
async fn held_bucket() -> Server {
    let mut server = Server::localstack().await;
    let endpoint = variable("FIRN_TEST_LOCALSTACK");
    let bucket = bucket_name(&server.env);
    buckets::create_locked_s3(&endpoint, &bucket, "test", "test")
        .await
        .expect("a bucket with object lock");
    server.url = format!("s3://{bucket}/some/prefix?region=us-east-1&endpoint={endpoint}");
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs a server: make test"]
async fn real_localstack_s3_with_versions_leaves_none_behind() {
    let server = Server::localstack().await;
    let store = server.open().await;
    let early = ObjectKey::new("early");
    store
        .put(&early, vec!["x".into()], PutMode::Create)
        .await
        .expect("created");
    assert!(!store.keeps_versions().await.expect("told"));
    let (_, bucket) = server.url.split_once("://").expect("a URL");
    let bucket = bucket.split('/').next().expect("a bucket");
    buckets::keep_versions(&variable("FIRN_TEST_LOCALSTACK"), bucket, "test", "test")
        .await
        .expect("versioning is switched on");
    // Not the whole suite: with versions, LocalStack lets two creators of one name win.
    conformance::check_versions(&server.env, store.clone()).await;
    erase(&*store, &early).await.expect("erased");
    let left = store.versions(&early).await.expect("listed");
    assert!(left.versions.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs a server: make test"]
async fn real_localstack_s3_holds_what_is_locked() {
    let server = held_bucket().await;
    let store = server.open().await;
    let key = ObjectKey::new("held");
    store
        .put(&key, vec!["x".into()], PutMode::Create)
        .await
        .expect("created");
    let refused = erase(&*store, &key).await.expect_err("held for a day");
    assert!(matches!(refused, StoreError::Denied { .. }), "{refused}");
    assert_eq!(store.get(&key).await.expect("it is still there"), "x");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs a server: make test"]
async fn real_azurite_conforms() {
    let server = Server::azurite().await;
    conforms(&server).await;
    a_prefix_hides_what_lies_beside_it(&server).await;
    a_missing_bucket_is_told_apart_from_a_missing_object(&server).await;
    a_wrong_key_is_denied(&server, Credentials::AzureKey("d3Jvbmc=".into())).await;
    a_line_that_breaks_at_any_byte_loses_nothing(&server).await;
}

/// A way to `upstream` on which every connection breaks after some random number of bytes in either direction.
async fn breaking_line(env: &Env, upstream: &str) -> String {
    let listener = env.network().listen("127.0.0.1:0").await.expect("a free port");
    let address = listener.address();
    let (env, upstream) = (env.clone(), upstream.to_owned());
    env.clone().spawn("line", async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = env.network().connect(&upstream).await else {
                continue;
            };
            let (mut from_client, mut to_client) = tokio::io::split(client);
            let (mut from_server, mut to_server) = tokio::io::split(server);
            // A quarter breaks within the head of a first reply: the request is done, and its sender does not know.
            let down_most = if env.random_below(4) == 0 { 200 } else { 400_000 };
            let (up, down) = (env.random_below(400_000), env.random_below(down_most));
            env.spawn("connection", async move {
                let up =
                    async move { tokio::io::copy(&mut (&mut from_client).take(up), &mut to_server).await };
                let down =
                    async move { tokio::io::copy(&mut (&mut from_server).take(down), &mut to_client).await };
                futures::pin_mut!(up, down);
                // The first direction that ends takes the other with it.
                let _ = futures::future::select(up, down).await;
            });
        }
    });
    address
}

async fn a_line_that_breaks_at_any_byte_loses_nothing(server: &Server) {
    let (_, endpoint) = server
        .url
        .split_once("http://")
        .expect("an endpoint of this machine");
    let host = endpoint.split('/').next().expect("a host");
    let line = breaking_line(&server.env, host).await;
    let store = server
        .open_as(&server.url.replace(host, &line), &server.credentials)
        .await;
    let config = StackConfig {
        retry: RetryPolicy {
            tries_max: 500,
            pause_ms: 1,
            pause_max_ms: 5,
            ..RetryPolicy::default()
        },
        ..StackConfig::default()
    };
    let stack = Stack::new(&server.env, store, config);
    let content = |number: usize| bytes::Bytes::from(vec![number as u8; number * 2500]);
    let name = |number: usize| ObjectKey::new(&format!("line/{number:03}"));
    let work = (0..60).map(|number| {
        let (store, name, whole) = (&stack.store, name(number), content(number));
        async move {
            let parts = vec![whole.slice(..whole.len() / 2), whole.slice(whole.len() / 2..)];
            store
                .put(&name, parts, PutMode::Create)
                .await
                .expect("in the end");
            assert!(store.get(&name).await.expect("in the end") == whole);
            let range = store.get_range(&name, 1000, 50_000).await.expect("in the end");
            assert!(range == whole[whole.len().min(1000)..whole.len().min(51_000)]);
        }
    });
    futures::stream::iter(work)
        .for_each_concurrent(8, |work| work)
        .await;
    let direct = server
        .open()
        .await
        .list("line/", None)
        .await
        .expect("the server itself is well")
        .objects;
    assert_eq!(direct.len(), 60);
    assert!(
        direct
            .iter()
            .enumerate()
            .all(|(number, object)| object.size_bytes == number as u64 * 2500)
    );
    let (usage, retries) = (stack.meter.usage(), stack.retrying.statistics());
    println!("{usage:?} {retries:?}");
    assert!(usage.failures > 20, "the line hardly broke: {usage:?}");
    assert!(retries.read_back > 0, "no reply of a put was lost: {retries:?}");
}

/// Where the test below starts itself again with other variables, since a process must not change its own.
#[tokio::test]
#[ignore = "started by another test"]
async fn child_that_takes_credentials_from_the_environment() {
    let Ok(url) = std::env::var("FIRN_TEST_CHILD_URL") else {
        return;
    };
    let (_directory, env) = environment();
    let url = url.parse().expect("a valid URL");
    let store = open(&env, &url, &Credentials::Environment)
        .await
        .expect("a right configuration");
    match probe(&env, &*store).await {
        Ok(_) => println!("the store is fit"),
        Err(error) => println!("{error}"),
    }
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_versitygw_takes_credentials_from_the_environment() {
    let server = Server::versitygw().await;
    let child = |secret: String| {
        let child = std::process::Command::new(std::env::current_exe().expect("this test's own path"))
            .args([
                "--ignored",
                "--exact",
                "--nocapture",
                "child_that_takes_credentials_from_the_environment",
            ])
            .env("FIRN_TEST_CHILD_URL", &server.url)
            .env("AWS_ACCESS_KEY_ID", variable("FIRN_TEST_VERSITYGW_KEY"))
            .env("AWS_SECRET_ACCESS_KEY", secret)
            .output()
            .expect("it starts");
        String::from_utf8_lossy(&child.stdout).into_owned()
    };
    let right = child(variable("FIRN_TEST_VERSITYGW_SECRET"));
    assert!(right.contains("the store is fit"), "{right}");
    let wrong = child("wrong".into());
    assert!(
        wrong.contains("SignatureDoesNotMatch") && wrong.contains("check the secret key"),
        "{wrong}"
    );
}

/// No server needed: nobody listens.
#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let (_directory, env) = environment();
    let address = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port");
    let url = format!("s3://bucket?region=us-east-1&endpoint=http://{address}")
        .parse()
        .expect("a valid URL");
    let credentials = Credentials::S3 {
        access_key_id: "key".into(),
        secret_access_key: "secret".into(),
        session_token: None,
    };
    let store = open(&env, &url, &credentials)
        .await
        .expect("a right configuration");
    let error = store
        .get(&ObjectKey::new("object"))
        .await
        .expect_err("nobody listens");
    assert!(
        matches!(&error, StoreError::Unavailable { detail, .. } if detail.contains("refused")),
        "{error}"
    );
    let config = StackConfig {
        retry: RetryPolicy {
            tries_max: 3,
            pause_ms: 1,
            ..RetryPolicy::default()
        },
        ..StackConfig::default()
    };
    let stack = Stack::new(&env, store, config);
    assert!(stack.store.head(&ObjectKey::new("object")).await.is_err());
    assert_eq!((stack.meter.usage().heads, stack.meter.usage().failures), (3, 3));
}

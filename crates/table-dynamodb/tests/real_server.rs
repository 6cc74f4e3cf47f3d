//! The DynamoDB engine against Amazon's own DynamoDB Local, which `make test` starts:
//!
//! ```text
//! tests/lab/cloud/with dynamodb -- cargo test -p firn-table-dynamodb -- --ignored real_
//! ```

mod support;

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use firn_anchor::{Anchor, AnchorError, OwnerId, TableBackend};
use firn_format::{FamilyId, Location, SegmentId, Uid, Version, VolumeId, WriterId};
use firn_table::{
    Condition, ItemKey, ItemVersion, Metered, Table, TableError, TablePrices, Write, conformance,
};
use std::{collections::BTreeSet, process::Command, sync::Arc, time::Duration};
use support::{Proxy, Trouble, address, eager_environment, environment, fresh, open, server};

fn put(key: &ItemKey, value: &[u8], condition: Condition) -> Write {
    Write::Put {
        key: key.clone(),
        value: value.to_vec().into(),
        condition,
    }
}

fn delete(key: &ItemKey, version: ItemVersion) -> Write {
    Write::Delete {
        key: key.clone(),
        version,
    }
}

fn check(key: &ItemKey, condition: Condition) -> Write {
    Write::Check {
        key: key.clone(),
        condition,
    }
}

fn key(sort: &str) -> ItemKey {
    ItemKey::new("p", sort)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server: make test"]
async fn real_dynamodb_conforms() {
    let server = server();
    let env = environment();
    let table = fresh(&env, &server).await;
    conformance::run(Arc::new(table), &env, "suite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server: make test"]
async fn real_dynamodb_answers_the_anchors_calls() {
    let server = server();
    let env = environment();
    let table = fresh(&env, &server).await;
    let backend = TableBackend::new(Arc::new(table), "family/suite");
    firn_anchor::conformance::run(Arc::new(backend), &env).await;
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_a_table_is_created_only_on_request_and_found_again() {
    let server = server();
    let env = environment();
    let name = format!("firn-test-{:016x}", env.random_u64());
    let refused = open(&env, &address(&server, &name, false)).await.err().unwrap();
    let words = refused.to_string();
    assert!(
        matches!(refused, TableError::Refused(_)) && words.contains(&name) && words.contains("create=true"),
        "{words}"
    );
    let first = open(&env, &address(&server, &name, true)).await.unwrap();
    first
        .transact(vec![put(&key("s"), b"x", Condition::Absent)])
        .await
        .unwrap();
    for create in [false, true] {
        let again = open(&env, &address(&server, &name, create)).await.unwrap();
        assert!(again.get(&key("s")).await.unwrap().is_some());
    }
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_many_that_create_a_table_at_once_all_find_it() {
    let server = server();
    let env = environment();
    let name = format!("firn-test-{:016x}", env.random_u64());
    let url = address(&server, &name, true);
    let opened = futures::future::join_all((0..4).map(|_| open(&env, &url))).await;
    for table in opened {
        assert!(table.unwrap().get(&key("s")).await.unwrap().is_none());
    }
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_a_table_with_another_schema_is_refused() {
    let server = server();
    let env = environment();
    let name = format!("firn-test-{:016x}", env.random_u64());
    let given = support::credentials();
    let config = aws_config::defaults(aws_config::BehaviorVersion::v2026_01_12())
        .region(aws_config::Region::from_static("us-east-1"))
        .endpoint_url(&server)
        .credentials_provider(aws_sdk_dynamodb::config::Credentials::new(
            given.access_key_id,
            given.secret_access_key,
            None,
            None,
            "test",
        ))
        .load()
        .await;
    aws_sdk_dynamodb::Client::new(&config)
        .create_table()
        .table_name(&name)
        .attribute_definitions(
            AttributeDefinition::builder()
                .attribute_name("id")
                .attribute_type(ScalarAttributeType::N)
                .build()
                .unwrap(),
        )
        .key_schema(
            KeySchemaElement::builder()
                .attribute_name("id")
                .key_type(KeyType::Hash)
                .build()
                .unwrap(),
        )
        .billing_mode(BillingMode::PayPerRequest)
        .send()
        .await
        .unwrap();
    let refused = open(&env, &address(&server, &name, true))
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        refused.contains(&name) && refused.contains("\"id\"") && refused.contains("something else"),
        "{refused}"
    );
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_one_write_is_a_conditional_put_and_only_several_are_a_transaction() {
    let server = server();
    let env = environment();
    let proxy = Proxy::start(&server).await;
    let table = fresh(&env, &proxy.endpoint).await;
    proxy.clear();
    let version = table
        .transact(vec![put(&key("a"), b"x", Condition::Absent)])
        .await
        .unwrap()[0]
        .unwrap();
    table
        .transact(vec![check(&key("a"), Condition::Version(version))])
        .await
        .unwrap();
    table
        .transact(vec![
            put(&key("b"), b"x", Condition::Absent),
            check(&key("a"), Condition::Version(version)),
        ])
        .await
        .unwrap();
    table.transact(vec![delete(&key("a"), version)]).await.unwrap();
    assert_eq!(
        proxy.operations(),
        ["PutItem", "GetItem", "TransactWriteItems", "DeleteItem"]
    );
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_what_metering_computes_is_what_dynamodb_reports() {
    let server = server();
    let env = environment();
    let table = fresh(&env, &server).await;
    let metered = Metered::new(Arc::new(table.clone()), TablePrices::DYNAMODB_ON_DEMAND);
    for (number, bytes) in [0, 500, 960, 1024, 5000, 100_000].into_iter().enumerate() {
        let keys = ["one", "two", "three"].map(|name| key(&format!("{name}{number}")));
        let [one, two, three] = &keys;
        let value = vec![7; bytes];
        let before = (metered.usage(), table.consumed());
        let version = metered
            .transact(vec![put(one, &value, Condition::Absent)])
            .await
            .unwrap()[0]
            .unwrap();
        // Not a large put together with a check: there DynamoDB Local reports twice what the service charges.
        metered
            .transact(vec![
                put(two, &value, Condition::Absent),
                put(three, &value, Condition::Absent),
            ])
            .await
            .unwrap();
        metered
            .transact(vec![
                check(&key("nothing"), Condition::Absent),
                check(&key("absent"), Condition::Absent),
            ])
            .await
            .unwrap();
        metered.get(one).await.unwrap();
        metered.get(&key("absent")).await.unwrap();
        metered.query("p", "", None, 1000).await.unwrap();
        metered
            .transact(vec![check(&key("absent"), Condition::Absent)])
            .await
            .unwrap();
        if bytes < 900 {
            metered.transact(vec![delete(one, version)]).await.unwrap();
        }
        let (usage, consumed) = (metered.usage(), table.consumed());
        let written = consumed.write - before.1.write;
        let read = consumed.read - before.1.read;
        assert_eq!(
            (usage.write_units - before.0.write_units) as f64,
            written,
            "writes of {bytes} bytes"
        );
        assert_eq!(
            (usage.read_units - before.0.read_units) as f64,
            read,
            "reads of {bytes} bytes"
        );
    }
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_a_write_whose_reply_was_lost_is_recognised_as_done() {
    let server = server();
    let (env, _) = eager_environment();
    let proxy = Proxy::start(&server).await;
    let table = fresh(&env, &proxy.endpoint).await;
    for trouble in [Trouble::LoseReply, Trouble::InternalErrorAfterwards] {
        let sort = format!("{trouble:?}");
        proxy.clear();
        proxy.script([trouble]);
        let created = table
            .transact(vec![put(&key(&sort), b"1", Condition::Absent)])
            .await
            .unwrap()[0]
            .unwrap();
        assert_eq!(proxy.operations(), ["PutItem", "PutItem"]);
        assert_eq!(table.get(&key(&sort)).await.unwrap().unwrap().version, created);

        proxy.clear();
        proxy.script([trouble, trouble]);
        let (a, b) = (key(&format!("{sort} a")), key(&format!("{sort} b")));
        let writes = vec![
            put(&a, b"1", Condition::Absent),
            put(&b, b"1", Condition::Absent),
            check(&key(&sort), Condition::Version(created)),
        ];
        let applied = table.transact(writes).await.unwrap();
        assert_eq!(proxy.operations(), ["TransactWriteItems"; 3]);
        assert_eq!(table.get(&a).await.unwrap().map(|item| item.version), applied[0]);
        assert_eq!(table.get(&b).await.unwrap().map(|item| item.version), applied[1]);
    }
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_a_request_that_never_arrived_is_sent_again() {
    let server = server();
    let (env, _) = eager_environment();
    let proxy = Proxy::start(&server).await;
    let table = fresh(&env, &proxy.endpoint).await;
    proxy.script([Trouble::LoseRequest, Trouble::InternalError]);
    let version = table
        .transact(vec![put(&key("s"), b"1", Condition::Absent)])
        .await
        .unwrap()[0]
        .unwrap();
    proxy.script([Trouble::LoseRequest, Trouble::InternalError]);
    assert_eq!(table.get(&key("s")).await.unwrap().unwrap().version, version);
    proxy.script([Trouble::LoseRequest, Trouble::InternalError]);
    assert_eq!(table.query("p", "", None, 10).await.unwrap().items.len(), 1);
    proxy.script([Trouble::LoseRequest, Trouble::InternalError]);
    table.transact(vec![delete(&key("s"), version)]).await.unwrap();
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_what_stays_in_doubt_is_unavailable_and_never_a_failed_condition() {
    let server = server();
    let (env, _) = eager_environment();
    let proxy = Proxy::start(&server).await;
    let table = fresh(&env, &proxy.endpoint).await;
    let version = table
        .transact(vec![put(&key("s"), b"1", Condition::Absent)])
        .await
        .unwrap()[0]
        .unwrap();

    proxy.script([Trouble::LoseReply]);
    let deleted = table.transact(vec![delete(&key("s"), version)]).await;
    assert!(
        matches!(deleted, Err(TableError::Unavailable(_))),
        "it was us, but nothing shows it: {deleted:?}"
    );
    assert_eq!(table.get(&key("s")).await.unwrap(), None);

    let taken = table
        .transact(vec![put(&key("s"), b"theirs", Condition::Absent)])
        .await
        .unwrap()[0];
    proxy.script([Trouble::LoseRequest]);
    let put_again = table
        .transact(vec![put(&key("s"), b"ours", Condition::Absent)])
        .await;
    assert!(
        matches!(put_again, Err(TableError::Unavailable(_))),
        "the lost one may still come: {put_again:?}"
    );
    assert_eq!(
        table.get(&key("s")).await.unwrap().map(|item| item.version),
        taken
    );

    let without_doubt = table
        .transact(vec![put(&key("s"), b"ours", Condition::Absent)])
        .await;
    assert!(
        matches!(without_doubt, Err(TableError::ConditionFailed { index: 0 })),
        "{without_doubt:?}"
    );
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_throttling_is_waited_out_with_growing_jittered_pauses_within_a_bound() {
    let server = server();
    let (env, sleeps) = eager_environment();
    let proxy = Proxy::start(&server).await;
    let table = fresh(&env, &proxy.endpoint).await;
    proxy.script([Trouble::Throttle; 5]);
    let version = table
        .transact(vec![put(&key("s"), b"1", Condition::Absent)])
        .await
        .unwrap()[0]
        .unwrap();
    proxy.script([Trouble::Throttle; 5]);
    let condition = Condition::Version(ItemVersion(version.0 ^ 1));
    let failed = table.transact(vec![put(&key("s"), b"2", condition)]).await;
    assert!(
        matches!(failed, Err(TableError::ConditionFailed { .. })),
        "throttling is no doubt: {failed:?}"
    );

    sleeps.lock().unwrap().clear();
    proxy.script([Trouble::Throttle; 100]);
    let throttled = table.get(&key("s")).await.unwrap_err();
    assert!(
        matches!(&throttled, TableError::Unavailable(why) if why.contains("ThrottlingException")),
        "{throttled}"
    );
    proxy.clear();
    let pauses = std::mem::take(&mut *sleeps.lock().unwrap());
    assert!((5..12).contains(&pauses.len()), "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= Duration::from_secs(2)));
    assert!(pauses.iter().sum::<Duration>() <= Duration::from_secs(20));
    assert!(pauses.windows(2).any(|two| two[0] != two[1]));
}

#[tokio::test]
async fn an_unreachable_endpoint_is_unavailable_within_a_bound() {
    let (env, sleeps) = eager_environment();
    // Bound and dropped: nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let url = address(
        &format!("http://127.0.0.1:{port}"),
        "firn-test-unreachable",
        false,
    );
    let error = open(&env, &url).await.err().unwrap();
    assert!(
        matches!(&error, TableError::Unavailable(why) if why.contains("tries")),
        "{error}"
    );
    assert!(sleeps.lock().unwrap().len() < 12);
}

/// Run by the next test in a process of its own, without any credentials.
#[tokio::test]
async fn child_process_that_has_no_credentials() {
    let Ok(region) = std::env::var("FIRN_TEST_NO_CREDENTIALS") else {
        return;
    };
    let (env, _) = eager_environment();
    let mut url = address("http://127.0.0.1:1", "firn-test-anonymous", false);
    if region.is_empty() {
        url.endpoint = None;
    }
    let error = firn_table_dynamodb::DynamoDbTable::open(&env, &url)
        .await
        .err()
        .unwrap();
    println!("{error}");
}

#[test]
fn missing_credentials_and_a_missing_region_are_named() {
    let told = |region: &str| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_process_that_has_no_credentials", "--nocapture"])
            .env_clear()
            .env("FIRN_TEST_NO_CREDENTIALS", region)
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("HOME", "/nonexistent")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let words = told("any");
    assert!(
        words.contains("no AWS credentials were found") && words.contains("firn-test-anonymous"),
        "{words}"
    );
    let words = told("");
    assert!(
        words.contains("no AWS region is known") && words.contains("?region="),
        "{words}"
    );
}

/// Several edges over connections that lose requests and replies at random: whatever each was told must be true.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server: make test"]
async fn real_edges_that_fight_over_lossy_connections_share_no_writer_and_lose_no_commit() {
    const EDGES: u8 = 4;
    const COMMITS: u64 = 12;
    let (env, _) = eager_environment();
    let proxy = Arc::new(Proxy::start(&server()).await);
    let table = fresh(&env, &proxy.endpoint).await;
    let (family, volume) = (FamilyId([1; 16]), VolumeId([2; 16]));
    let anchor = Anchor::new(Arc::new(table), env.clone(), family);
    anchor.create_family().await.unwrap();
    anchor.create_volume(volume, "contended").await.unwrap();
    proxy.lose_at_random(6);

    let edges = (0..EDGES).map(|number| {
        let (anchor, env) = (anchor.clone(), env.clone());
        async move {
            let name = format!("edge {number}");
            let (mut writers, mut committed, mut epochs) = (Vec::new(), Vec::new(), Vec::new());
            while committed.len() < COMMITS as usize {
                if let Ok(writer) = anchor.next_writer().await {
                    writers.push(writer);
                }
                let Ok(taken) = anchor.takeover(volume, OwnerId([number; 16]), &name).await else {
                    continue;
                };
                let mut ownership = taken.ownership;
                epochs.push(ownership.epoch());
                for _ in 0..3 {
                    let version = Version(ownership.root().map_or(1, |root| root.version.0 + 1));
                    let location = Location {
                        segment: SegmentId {
                            writer: WriterId(1),
                            sequence: version.0,
                        },
                        offset: 0,
                        length: 1,
                    };
                    let root =
                        ownership.next_root(Uid([number; 32]), location, version, env.random_bytes(), 0);
                    let mut result = anchor.commit(&mut ownership, root.clone()).await;
                    for _ in 0..20 {
                        if !matches!(&result, Err(error) if error.is_transient()) {
                            break;
                        }
                        result = anchor.commit(&mut ownership, root.clone()).await;
                    }
                    match result {
                        Ok(()) => committed.push((version, root.commit_id)),
                        Err(AnchorError::Fenced(_)) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                let retained: Vec<_> = ownership
                    .tuple()
                    .retained
                    .iter()
                    .map(|one| one.fenced_epoch)
                    .collect();
                for fenced in retained {
                    // Room for further takeovers; one that fails is done by another edge.
                    let _ = anchor.forget_retained(volume, fenced).await;
                }
            }
            (writers, committed, epochs)
        }
    });
    let tasks: Vec<_> = edges.map(|edge| env.spawn("edge", edge)).collect();
    let (mut writers, mut committed, mut epochs) = (Vec::new(), Vec::new(), Vec::new());
    for told in futures::future::join_all(tasks).await {
        let (some_writers, some_committed, some_epochs) = told.expect("an edge ends");
        writers.extend(some_writers);
        committed.extend(some_committed);
        epochs.extend(some_epochs);
    }
    proxy.lose_at_random(0);
    fn all_differ<T: Ord>(values: &[T]) -> bool {
        values.iter().collect::<BTreeSet<_>>().len() == values.len()
    }
    assert!(all_differ(&writers), "a writer was given twice: {writers:?}");
    assert!(all_differ(&epochs), "an epoch was given twice: {epochs:?}");
    let versions: Vec<_> = committed.iter().map(|(version, _)| *version).collect();
    assert!(
        all_differ(&versions),
        "two commits of one version were reported: {committed:?}"
    );
    let newest = anchor.load(volume).await.unwrap().0.root.unwrap();
    assert!(versions.iter().all(|version| *version <= newest.version));
    assert!(proxy.lost() > 20, "only {} messages were lost", proxy.lost());
    println!(
        "{} commits, {} takeovers, {} messages lost",
        committed.len(),
        epochs.len(),
        proxy.lost()
    );
}

//! The engine of Azure Table Storage against Azurite, which `make test` starts:
//!
//! ```text
//! tests/lab/cloud/with azurite -- cargo test -p firn-table-azure -- --ignored real_
//! ```

mod support;

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use firn_rig::buckets::{AZURITE_ACCOUNT, AZURITE_KEY};
use firn_store_cloud::Credentials;
use firn_table::{
    Condition, ItemKey, ItemVersion, Table, TableError, Write,
    conformance::{self, EngineLimits},
};
use firn_table_azure::{AzureTable, MAX_KEY_BYTES, MAX_TRANSACTION_BYTES};
use std::{sync::Arc, time::Duration};
use support::{Proxy, Trouble, address, eager_environment, environment, fresh, name, open, server};

const LIMITS: EngineLimits = EngineLimits {
    key_bytes: MAX_KEY_BYTES,
    transaction_bytes: MAX_TRANSACTION_BYTES,
    spans_partitions: false,
};

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

async fn created(table: &dyn Table, sort: &str) -> ItemVersion {
    let applied = table
        .transact(vec![put(&key(sort), b"1", Condition::Absent)])
        .await;
    applied.unwrap()[0].unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server: make test"]
async fn real_azure_tables_conform() {
    let env = environment();
    let table = Arc::new(fresh(&env, &server()).await);
    conformance::run_within(table, &env, "suite", LIMITS).await;
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_a_table_is_created_only_on_request_and_found_again() {
    let (env, server) = (environment(), server());
    let name = name(&env);
    let refused = open(&env, &address(&server, &name, false)).await.err().unwrap();
    let words = refused.to_string();
    assert!(
        matches!(refused, TableError::Refused(_)) && words.contains(&name) && words.contains("create=true"),
        "{words}"
    );
    let opened = futures::future::join_all((0..4).map(|_| {
        let (env, url) = (env.clone(), address(&server, &name, true));
        async move { open(&env, &url).await }
    }))
    .await;
    let first = opened.into_iter().next().unwrap().unwrap();
    created(&first, "s").await;
    for create in [false, true] {
        let again = open(&env, &address(&server, &name, create)).await.unwrap();
        assert!(again.get(&key("s")).await.unwrap().is_some());
    }
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_a_wrong_key_is_refused_with_what_to_do() {
    let env = environment();
    let key = Credentials::AzureKey("AAAA".into());
    let url = address(&server(), &name(&env), true);
    let refused = AzureTable::open_as(&env, &url, &key).await.err().unwrap();
    assert!(
        matches!(&refused, TableError::Refused(why) if why.contains("check the")),
        "{refused}"
    );
}

/// A shared access signature of the account for entities of tables, with these permissions (Microsoft's "Create an account SAS").
fn signature(permissions: &str) -> String {
    let expiry = "2099-01-01T00:00:00Z";
    let (service, kinds, protocol, version) = ("t", "co", "https,http", "2020-12-06");
    let (start, address, scope) = ("", "", "");
    let lines = [
        AZURITE_ACCOUNT,
        permissions,
        service,
        kinds,
        start,
        expiry,
        address,
        protocol,
        version,
        scope,
        "",
    ];
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(AZURITE_KEY).unwrap());
    let signed = STANDARD.encode(hmac::sign(&key, lines.join("\n").as_bytes()));
    let escaped = signed.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    format!("sv={version}&ss={service}&srt={kinds}&sp={permissions}&se={expiry}&spr={protocol}&sig={escaped}")
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_a_signature_opens_the_table_for_what_it_allows() {
    let (env, server) = (environment(), server());
    let url = address(&server, &name(&env), true);
    let owner = open(&env, &url).await.unwrap();
    let version = created(&owner, "s").await;
    let by_signature = |permissions: &str| {
        let given = Credentials::AzureSas(signature(permissions));
        let (env, url) = (env.clone(), url.clone());
        async move { AzureTable::open_as(&env, &url, &given).await }
    };
    let edge = by_signature("rau").await.unwrap();
    let changed = vec![
        put(&key("s"), b"2", Condition::Version(version)),
        put(&key("t"), b"1", Condition::Absent),
    ];
    let version = edge.transact(changed).await.unwrap()[0].unwrap();
    assert_eq!(edge.query("p", "", None, 10).await.unwrap().items.len(), 2);
    let deleted = edge.transact(vec![delete(&key("s"), version)]).await;
    assert!(matches!(deleted, Err(TableError::Refused(_))), "{deleted:?}");
    let reader = by_signature("r").await.unwrap();
    let put_by_reader = reader
        .transact(vec![put(&key("u"), b"1", Condition::Absent)])
        .await;
    assert!(
        matches!(put_by_reader, Err(TableError::Refused(_))),
        "{put_by_reader:?}"
    );
    assert_eq!(owner.query("p", "", None, 10).await.unwrap().items.len(), 2);
}

/// One request where a version's tag is at hand, and a read before where it is not.
#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_a_commit_after_a_read_is_one_request_and_only_several_are_a_group() {
    let env = environment();
    let proxy = Proxy::start(&server()).await;
    let table = fresh(&env, &proxy.endpoint).await;
    let version = created(&table, "a").await;
    proxy.clear();
    let committed = table
        .transact(vec![put(&key("a"), b"2", Condition::Version(version))])
        .await
        .unwrap()[0]
        .unwrap();
    assert_eq!(proxy.operations(), ["PUT"]);
    let stranger = open(&env, &address(&proxy.endpoint, &proxy.table(), false))
        .await
        .unwrap();
    proxy.clear();
    stranger
        .transact(vec![
            put(&key("a"), b"3", Condition::Version(committed)),
            put(&key("b"), b"1", Condition::Absent),
        ])
        .await
        .unwrap();
    assert_eq!(proxy.operations(), ["GET", "BATCH"]);
    // What was remembered is over; the condition is judged by what is there.
    let stale = table
        .transact(vec![put(&key("a"), b"4", Condition::Version(committed))])
        .await;
    assert!(
        matches!(stale, Err(TableError::ConditionFailed { index: 0 })),
        "{stale:?}"
    );
    assert_eq!(proxy.operations(), ["PUT", "GET"]);
}

/// A check in a group rewrites the item's tag, and never its version: who holds the version goes on.
#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_checks_leave_nothing_behind_and_disturb_nobodys_version() {
    let env = environment();
    let proxy = Proxy::start(&server()).await;
    let table = fresh(&env, &proxy.endpoint).await;
    let version = created(&table, "a").await;
    let other = open(&env, &address(&proxy.endpoint, &proxy.table(), false))
        .await
        .unwrap();
    for round in 0..3 {
        other
            .transact(vec![
                check(&key("a"), Condition::Version(version)),
                check(&key("absent"), Condition::Absent),
                put(&key(&format!("b{round}")), b"1", Condition::Absent),
            ])
            .await
            .unwrap();
    }
    assert_eq!(other.get(&key("absent")).await.unwrap(), None);
    assert_eq!(other.query("p", "", None, 10).await.unwrap().items.len(), 4);
    proxy.clear();
    let version = table
        .transact(vec![put(&key("a"), b"2", Condition::Version(version))])
        .await
        .unwrap()[0]
        .unwrap();
    assert_eq!(proxy.operations(), ["PUT", "GET", "PUT"], "the tag was another's");

    // A placeholder that stays, since its removal is lost for good, counts as absent and goes with the next put.
    proxy.script([Trouble::None, Trouble::LoseRequest]);
    table
        .transact(vec![
            check(&key("absent"), Condition::Absent),
            put(&key("a"), b"3", Condition::Version(version)),
        ])
        .await
        .unwrap();
    assert_eq!(table.get(&key("absent")).await.unwrap(), None);
    assert_eq!(table.query("p", "", None, 10).await.unwrap().items.len(), 4);
    assert_eq!(table.query("p", "absent", None, 10).await.unwrap().items.len(), 0);
    let refused = table.transact(vec![delete(&key("absent"), ItemVersion(7))]).await;
    assert!(
        matches!(refused, Err(TableError::ConditionFailed { .. })),
        "{refused:?}"
    );
    created(&table, "absent").await;
    assert_eq!(table.query("p", "", None, 10).await.unwrap().items.len(), 5);
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_a_write_whose_reply_was_lost_is_recognised_as_done() {
    let (env, _) = eager_environment();
    let proxy = Proxy::start(&server()).await;
    let table = fresh(&env, &proxy.endpoint).await;
    for trouble in [Trouble::LoseReply, Trouble::InternalErrorAfterwards] {
        let sort = format!("{trouble:?}");
        proxy.clear();
        proxy.script([trouble]);
        let version = created(&table, &sort).await;
        assert_eq!(proxy.operations(), ["POST", "GET"]);
        assert_eq!(table.get(&key(&sort)).await.unwrap().unwrap().version, version);

        proxy.clear();
        proxy.script([trouble]);
        let (a, b) = (key(&format!("{sort} a")), key(&format!("{sort} b")));
        let writes = vec![
            put(&a, b"1", Condition::Absent),
            put(&b, b"1", Condition::Absent),
            check(&key(&sort), Condition::Version(version)),
        ];
        let applied = table.transact(writes).await.unwrap();
        assert_eq!(proxy.operations(), ["BATCH", "GET", "GET", "GET"]);
        assert_eq!(table.get(&a).await.unwrap().map(|item| item.version), applied[0]);
        assert_eq!(table.get(&b).await.unwrap().map(|item| item.version), applied[1]);
    }
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_a_request_that_never_arrived_is_sent_again() {
    let (env, _) = eager_environment();
    let proxy = Proxy::start(&server()).await;
    let table = fresh(&env, &proxy.endpoint).await;
    proxy.script([Trouble::LoseRequest, Trouble::InternalError]);
    let version = created(&table, "s").await;
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
    let (env, _) = eager_environment();
    let proxy = Proxy::start(&server()).await;
    let table = fresh(&env, &proxy.endpoint).await;
    let version = created(&table, "s").await;
    proxy.script([Trouble::LoseReply]);
    let deleted = table.transact(vec![delete(&key("s"), version)]).await;
    assert!(
        matches!(deleted, Err(TableError::Unavailable(_))),
        "it was us, but nothing shows it: {deleted:?}"
    );
    assert_eq!(table.get(&key("s")).await.unwrap(), None);

    let taken = created(&table, "s").await;
    proxy.script([Trouble::LoseRequest]);
    let put_again = table
        .transact(vec![put(&key("s"), b"ours", Condition::Absent)])
        .await;
    assert!(
        matches!(put_again, Err(TableError::Unavailable(_))),
        "the lost one may still come: {put_again:?}"
    );
    let without_doubt = table
        .transact(vec![put(&key("s"), b"ours", Condition::Absent)])
        .await;
    assert!(
        matches!(without_doubt, Err(TableError::ConditionFailed { index: 0 })),
        "{without_doubt:?}"
    );
    assert_eq!(table.get(&key("s")).await.unwrap().unwrap().version, taken);
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_throttling_is_waited_out_with_growing_jittered_pauses_within_a_bound() {
    let (env, sleeps) = eager_environment();
    let proxy = Proxy::start(&server()).await;
    let table = fresh(&env, &proxy.endpoint).await;
    proxy.script([Trouble::Throttle; 5]);
    let version = created(&table, "s").await;
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
        matches!(&throttled, TableError::Unavailable(why) if why.contains("ServerBusy")),
        "{throttled}"
    );
    proxy.clear();
    let pauses = std::mem::take(&mut *sleeps.lock().unwrap());
    assert!((5..12).contains(&pauses.len()), "{pauses:?}");
    assert!(pauses.iter().sum::<Duration>() <= Duration::from_secs(20));
    assert!(pauses.windows(2).any(|two| two[0] != two[1]));
}

/// Items of which a page's worth is longer than an answer may be are asked for in smaller parts, and none is lost.
#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_a_query_of_large_items_is_read_in_bounded_parts() {
    let env = environment();
    let proxy = Proxy::start(&server()).await;
    let table = fresh(&env, &proxy.endpoint).await;
    let value = vec![7; 390 << 10];
    for number in 0..20 {
        let write = put(&key(&format!("{number:02}")), &value, Condition::Absent);
        table.transact(vec![write]).await.unwrap();
    }
    proxy.clear();
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = table.query("p", "", after.as_deref(), 1000).await.unwrap();
        assert!(
            page.items.len() <= 3,
            "a page of {} large items",
            page.items.len()
        );
        if seen.is_empty() {
            // The first answer was too long, and was not read to its end.
            assert!(proxy.operations().len() > 1);
        }
        seen.extend(page.items.into_iter().map(|item| item.key.sort));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let expected: Vec<_> = (0..20).map(|number| format!("{number:02}")).collect();
    assert_eq!(seen, expected);
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
    let url = address(&format!("http://127.0.0.1:{port}/acme"), "unreachable", false);
    let error = open(&env, &url).await.err().unwrap();
    assert!(
        matches!(&error, TableError::Unavailable(why) if why.contains("tries")),
        "{error}"
    );
    assert!(sleeps.lock().unwrap().len() < 12);

    // A signature is part of the address that is asked, and no error shows it.
    let given = Credentials::AzureSas("sv=2020-12-06&sp=r&sig=c2VjcmV0&se=2099-01-01".into());
    let error = AzureTable::open_as(&env, &url, &given).await.err().unwrap();
    let said = format!("{error} {error:?}");
    assert!(said.contains("tries") && !said.contains("c2VjcmV0"), "{said}");
}

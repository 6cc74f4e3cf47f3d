//! A table behind a service: what it promises survives the way there and back, guards hold, and no answer is believed blindly.

use async_trait::async_trait;
use firn_env::Env;
use firn_table::{
    Condition, ItemKey, MemoryTable, RemoteTable, Table, TableAnswer, TableCall, TableError, TableService,
    Within, Write, conformance,
};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

const KEPT: &str = "kept";

fn environment() -> (tempfile::TempDir, Env) {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    (directory, env)
}

fn put(key: &ItemKey, value: &'static [u8], condition: Condition) -> Write {
    Write::Put {
        key: key.clone(),
        value: value.into(),
        condition,
    }
}

/// A service that reads and writes texts, as one at the end of a wire does.
struct Door {
    table: Arc<dyn Table>,
    guards: Vec<Write>,
}

#[async_trait]
impl TableService for Door {
    async fn call(&self, call: &TableCall) -> Result<TableAnswer, TableError> {
        let text = serde_json::to_string(call).unwrap();
        let call: TableCall = serde_json::from_str(&text).unwrap();
        let answer = call.perform(&*self.table, KEPT, self.guards.clone()).await?;
        let text = serde_json::to_string(&answer).unwrap();
        Ok(serde_json::from_str(&text).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_behind_a_service_conforms() {
    let (_directory, env) = environment();
    let service = Door {
        table: MemoryTable::new().connect(&env),
        guards: Vec::new(),
    };
    let remote = Arc::new(RemoteTable::new(service));
    let folded = Arc::new(conformance::Folded::new(remote, "the one partition"));
    conformance::run_below_limits(folded, &env, "remote").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_under_another_name_conforms() {
    let (_directory, env) = environment();
    let table = Arc::new(Within::new(MemoryTable::new().connect(&env), "known", KEPT));
    let folded = Arc::new(conformance::Folded::new(table.clone(), "known"));
    conformance::run_below_limits(folded, &env, "within").await;
    for other in [KEPT, "knows", ""] {
        assert!(matches!(
            table.get(&ItemKey::new(other, "s")).await,
            Err(TableError::Limit(_))
        ));
        assert!(matches!(
            table.query(other, "", None, 1).await,
            Err(TableError::Limit(_))
        ));
        let write = put(&ItemKey::new(other, "s"), b"x", Condition::Absent);
        assert!(matches!(
            table.transact(vec![write]).await,
            Err(TableError::Limit(_))
        ));
    }
}

#[tokio::test]
async fn a_transaction_whose_guard_does_not_hold_does_not_happen_and_is_not_the_callers_fault() {
    let (_directory, env) = environment();
    let table = MemoryTable::new().connect(&env);
    let guarded = ItemKey::new("elsewhere", "the caller");
    let [Some(version)] = table
        .transact(vec![put(&guarded, b"let in", Condition::Absent)])
        .await
        .unwrap()[..]
    else {
        panic!("a put has a version")
    };
    let remote = RemoteTable::new(Door {
        table: table.clone(),
        guards: vec![Write::Check {
            key: guarded.clone(),
            condition: Condition::Version(version),
        }],
    });
    let key = ItemKey::new("p", "s");
    let applied = remote
        .transact(vec![put(&key, b"one", Condition::Absent)])
        .await
        .unwrap();
    assert_eq!(applied.len(), 1, "of the guards nothing is told");
    assert!(matches!(
        remote.transact(vec![put(&key, b"two", Condition::Absent)]).await,
        Err(TableError::ConditionFailed { index: 0 })
    ));
    table
        .transact(vec![Write::Delete {
            key: guarded,
            version,
        }])
        .await
        .unwrap();
    let call = TableCall::Transact {
        writes: serde_json::from_value(
            json!([{ "delete": { "sort": "s", "version": applied[0].unwrap().0.to_string() } }]),
        )
        .unwrap(),
    };
    let guard = Write::Check {
        key: ItemKey::new("elsewhere", "the caller"),
        condition: Condition::Version(version),
    };
    assert!(matches!(
        call.perform(&*table, KEPT, vec![guard]).await,
        Err(TableError::ConditionFailed { index: 1 })
    ));
    assert!(remote.get(&key).await.unwrap().is_some(), "nothing happened");
}

#[tokio::test]
async fn malformed_calls_are_refused_and_nothing_happens() {
    let (_directory, env) = environment();
    let table = MemoryTable::new();
    let connected = table.connect(&env);
    for text in [
        json!({ "transact": { "writes": [] } }),
        json!({ "transact": { "writes": [{ "put": { "sort": "s", "value": "=" } }] } }),
        json!({ "transact": { "writes": [{ "put": { "sort": "", "value": "AA" } }] } }),
        json!({ "transact": { "writes": [{ "put": { "sort": "s", "value": "AA", "version": "-1" } }] } }),
        json!({ "transact": { "writes": [{ "delete": { "sort": "s", "version": "+1" } }] } }),
        json!({ "transact": { "writes": [{ "check": { "sort": "s", "version": "99999999999999999999" } }] } }),
        json!({ "query": { "prefix": "", "limit": 0 } }),
        json!({ "get": { "sort": "x".repeat(1025) } }),
    ] {
        let call: TableCall = serde_json::from_value(text.clone()).unwrap();
        let outcome = call.perform(&*connected, KEPT, Vec::new()).await;
        assert!(
            matches!(outcome, Err(TableError::Limit(_))),
            "{text}: {outcome:?}"
        );
    }
    for text in [
        json!({}),
        json!({ "get": {} }),
        json!({ "get": { "sort": "s", "partition": "another's" } }),
        json!({ "transact": { "writes": [{ "put": { "sort": "s", "value": "AA", "versoin": "1" } }] } }),
        json!({ "get": { "sort": "s" }, "query": { "prefix": "", "limit": 1 } }),
    ] {
        assert!(
            serde_json::from_value::<TableCall>(text.clone()).is_err(),
            "{text}"
        );
    }
    assert!(connected.query(KEPT, "", None, 1).await.unwrap().items.is_empty());
}

/// Says what it was told to say.
#[derive(Clone)]
struct Liar(Arc<Mutex<Value>>);

#[async_trait]
impl TableService for Liar {
    async fn call(&self, _call: &TableCall) -> Result<TableAnswer, TableError> {
        let said = self.0.lock().unwrap().clone();
        Ok(serde_json::from_value(said).unwrap())
    }
}

#[tokio::test]
async fn an_answer_to_another_question_leaves_open_what_happened() {
    let liar = Liar(Arc::new(Mutex::new(Value::Null)));
    let remote = RemoteTable::new(liar.clone());
    let key = ItemKey::new("p", "s");
    let item = |sort: &str, version: &str| json!({ "sort": sort, "version": version, "value": "AA" });
    let is_open = |what: &Value, open: bool| assert!(open, "{what}");
    for said in [
        json!({ "item": { "item": item("t", "1") } }),
        json!({ "item": { "item": item("s", "one") } }),
        json!({ "page": { "items": [] } }),
        json!({ "condition_failed": { "index": 0 } }),
    ] {
        *liar.0.lock().unwrap() = said.clone();
        is_open(
            &said,
            matches!(remote.get(&key).await, Err(TableError::Unavailable(_))),
        );
    }
    for said in [
        json!({ "item": {} }),
        json!({ "page": { "items": [item("a", "1")] } }),
        json!({ "page": { "items": [item("s2", "1"), item("s1", "1")] } }),
        json!({ "page": { "items": [item("s0", "1")] } }),
        json!({ "page": { "items": [item("s1", "1"), item("s2", "1"), item("s3", "1")] } }),
        json!({ "page": { "items": [], "next": "s0" } }),
    ] {
        *liar.0.lock().unwrap() = said.clone();
        let page = remote.query("p", "s", Some("s0"), 2).await;
        is_open(&said, matches!(page, Err(TableError::Unavailable(_))));
    }
    for said in [
        json!({ "applied": { "versions": [] } }),
        json!({ "applied": { "versions": [null] } }),
        json!({ "applied": { "versions": ["1", "2"] } }),
        json!({ "condition_failed": { "index": 1 } }),
        json!({ "item": {} }),
    ] {
        *liar.0.lock().unwrap() = said.clone();
        let outcome = remote.transact(vec![put(&key, b"x", Condition::Absent)]).await;
        is_open(&said, matches!(outcome, Err(TableError::Unavailable(_))));
    }
    *liar.0.lock().unwrap() =
        json!({ "item": { "item": item("s", "18446744073709551615"), "more": "than this build knows" } });
    assert_eq!(remote.get(&key).await.unwrap().unwrap().version.0, u64::MAX);
    assert!(
        matches!(
            remote.get(&ItemKey::new("q", "s")).await,
            Err(TableError::Limit(_))
        ),
        "a second partition would be the same one"
    );
}

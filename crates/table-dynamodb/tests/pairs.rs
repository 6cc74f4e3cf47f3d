//! Two tables as one, against Amazon's own DynamoDB Local, which `make test` starts: partitions that are kept apart, and transactions over both.
//!
//! ```text
//! tests/lab/cloud/with dynamodb -- cargo test -p firn-table-dynamodb --test pairs -- --ignored real_
//! ```
#![allow(dead_code, reason = "of the support each test file uses a part")]

mod support;

use firn_table::{Condition, ItemKey, ItemVersion, Table, TableError, TableUrl, Write, conformance};
use firn_table_dynamodb::DynamoDbTable;
use std::sync::Arc;
use support::{environment, fresh, server};

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

/// Opens a pair: the partitions `anchor/…` in the second table.
async fn pair(server: &str) -> (Arc<dyn Table>, DynamoDbTable, DynamoDbTable) {
    let env = environment();
    let (control, anchor) = (fresh(&env, server).await, fresh(&env, server).await);
    let both = control.clone().with_partitions_in("anchor/", &anchor);
    (Arc::new(both), control, anchor)
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_partitions_that_are_apart_lie_in_the_other_table_and_a_transaction_spans_both() {
    let (both, control, anchor) = pair(&server()).await;
    let (edge, root) = (
        ItemKey::new("tenant/t", "edge/e"),
        ItemKey::new("anchor/t/v", "volume"),
    );
    let applied = both
        .transact(vec![
            put(&edge, b"active", Condition::Absent),
            put(&root, b"root 1", Condition::Absent),
        ])
        .await
        .unwrap();
    let (edge_version, root_version) = (applied[0].unwrap(), applied[1].unwrap());
    // Each item is in its table, and in no other.
    assert!(control.get(&edge).await.unwrap().is_some() && anchor.get(&edge).await.unwrap().is_none());
    assert!(anchor.get(&root).await.unwrap().is_some() && control.get(&root).await.unwrap().is_none());
    // A commit names the edge's version: as long as the edge is what it was, the root rises.
    let commit = |value: &'static [u8], root_version, edge_version| {
        vec![
            put(&root, value, Condition::Version(root_version)),
            check(&edge, Condition::Version(edge_version)),
        ]
    };
    let applied = both
        .transact(commit(b"root 2", root_version, edge_version))
        .await
        .unwrap();
    let root_version = applied[0].unwrap();
    // From the transaction on that removes the edge none does, though the two are in different tables.
    control.transact(vec![delete(&edge, edge_version)]).await.unwrap();
    let refused = both
        .transact(commit(b"root 3", root_version, edge_version))
        .await
        .unwrap_err();
    assert!(
        matches!(refused, TableError::ConditionFailed { index: 1 }),
        "{refused}"
    );
    assert_eq!(&*anchor.get(&root).await.unwrap().unwrap().value, b"root 2");

    // Single calls go where transactions go.
    let second = ItemKey::new("anchor/t/v", "volume/2");
    let applied = both
        .transact(vec![put(&second, b"x", Condition::Absent)])
        .await
        .unwrap();
    assert!(anchor.get(&second).await.unwrap().is_some());
    let page = both.query("anchor/t/v", "", None, 10).await.unwrap();
    assert_eq!(page.items.len(), 2);
    assert!(
        control
            .query("anchor/t/v", "", None, 10)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    both.transact(vec![delete(&second, applied[0].unwrap())])
        .await
        .unwrap();
    assert!(anchor.get(&second).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server: make test"]
async fn real_a_pair_of_tables_conforms_with_all_partitions_in_either() {
    let env = environment();
    let server = server();
    for prefix in ["", "anchor/"] {
        let other = fresh(&env, &server).await;
        let both = fresh(&env, &server).await.with_partitions_in(prefix, &other);
        conformance::run(Arc::new(both), &env, "suite").await;
    }
}

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_two_tables_that_no_transaction_spans_are_refused() {
    let (env, server) = (environment(), server());
    let dynamodb = |table: &str, region: &str| -> TableUrl {
        format!("dynamodb://{table}?region={region}&endpoint={server}&create=true")
            .parse()
            .unwrap()
    };
    let one = dynamodb("firn-pair", "eu-central-1");
    let file: TableUrl = "redb:/nonexistent/table.redb".parse().unwrap();
    for (control, anchor, why) in [
        (&one, &one, "are one table"),
        (
            &one,
            &dynamodb("firn-pair-anchor", "us-east-1"),
            "one region only",
        ),
        (&one, &file, "only tables of DynamoDB"),
        (&file, &one, "only tables of DynamoDB"),
    ] {
        let refused = firn_table_dynamodb::open_with_partitions_apart(&env, control, "anchor/", anchor).await;
        let words = refused.err().expect("refused").to_string();
        assert!(words.contains(why), "{words}");
    }
}

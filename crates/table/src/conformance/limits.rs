//! Exactly the limit is allowed, one more is not, on every engine alike.

use super::{Subject, check, delete, put};
use crate::{
    Condition, ITEM_OVERHEAD_BYTES, ItemKey, ItemVersion, MAX_ITEM_BYTES, MAX_TRANSACTION_OPERATIONS,
    TableError, Write,
};

/// The value that fills an item with this key to the given size.
fn filling(key: &ItemKey, item_bytes: usize) -> Vec<u8> {
    vec![0xa5; item_bytes - key.partition.len() - key.sort.len() - ITEM_OVERHEAD_BYTES]
}

pub(super) async fn an_item_of_exactly_the_limit_is_stored_and_one_byte_more_is_refused(subject: &Subject) {
    let key = subject.key("item size", "item");
    let mut value = filling(&key, MAX_ITEM_BYTES);
    subject.create(&key, &value).await;
    assert_eq!(subject.get(&key).await.expect("it was put").value, value);
    value.push(0);
    let larger = subject.key("item size", "mete");
    subject
        .assert_refused(vec![put(&larger, &value, Condition::Absent)], "an item too large")
        .await;
    assert_eq!(subject.get(&larger).await, None);
}

pub(super) async fn a_transaction_of_exactly_the_limit_is_done_and_one_byte_more_is_refused(
    subject: &Subject,
) {
    let writes = |check: &str, total_bytes: usize| -> Vec<Write> {
        let mut left = total_bytes;
        let mut writes = Vec::new();
        while left > 0 {
            let key = subject.key(check, &format!("{:02}", writes.len()));
            // Leave enough for the last one to be an item at all.
            let bytes = if left > MAX_ITEM_BYTES + 1024 {
                MAX_ITEM_BYTES
            } else {
                left.min(MAX_ITEM_BYTES)
            };
            let bytes = if left > bytes && left - bytes < 1024 {
                left - 1024
            } else {
                bytes
            };
            writes.push(put(&key, &filling(&key, bytes), Condition::Absent));
            left -= bytes;
        }
        writes
    };
    let exactly = writes("transaction size", subject.limits.transaction_bytes);
    let last = exactly.last().expect("there are some").key().clone();
    subject.transact(exactly).await.expect("exactly the limit");
    assert!(subject.get(&last).await.is_some());
    subject
        .assert_refused(
            writes("transaction oversize", subject.limits.transaction_bytes + 1),
            "a transaction too large",
        )
        .await;
}

pub(super) async fn a_hundred_operations_are_one_transaction_and_one_more_is_refused(subject: &Subject) {
    let writes = |check: &str, operations: usize| -> Vec<Write> {
        (0..operations)
            .map(|number| {
                put(
                    &subject.key(check, &format!("{number:03}")),
                    b"x",
                    Condition::Absent,
                )
            })
            .collect()
    };
    let applied = subject
        .transact(writes("operations", MAX_TRANSACTION_OPERATIONS))
        .await
        .expect("exactly the limit");
    assert!(applied.iter().all(Option::is_some));
    subject
        .assert_refused(
            writes("operations over", MAX_TRANSACTION_OPERATIONS + 1),
            "one operation too many",
        )
        .await;
    assert_eq!(subject.get(&subject.key("operations over", "000")).await, None);
    let there = subject.key("operations last", "there");
    subject.create(&there, b"x").await;
    let mut one_fails = writes("operations last", MAX_TRANSACTION_OPERATIONS - 1);
    one_fails.push(check(&there, Condition::Absent));
    subject
        .assert_fails(one_fails, MAX_TRANSACTION_OPERATIONS - 1, "the last of a hundred")
        .await;
}

pub(super) async fn a_transaction_spans_partitions_or_is_refused_whole(subject: &Subject) {
    let keys = ["one partition", "another"].map(|check| subject.key(check, "item"));
    let writes: Vec<_> = keys.iter().map(|key| put(key, b"x", Condition::Absent)).collect();
    if subject.limits.spans_partitions {
        subject
            .transact(writes)
            .await
            .expect("a transaction of two partitions");
    } else {
        subject.assert_refused(writes, "two partitions").await;
    }
    for key in &keys {
        assert_eq!(
            subject.get(key).await.is_some(),
            subject.limits.spans_partitions,
            "{key:?}"
        );
    }
}

pub(super) async fn keys_of_exactly_the_limit_are_fine_and_longer_or_empty_ones_are_refused(
    subject: &Subject,
) {
    let unique = format!("{}/long/", subject.namespace);
    let longest = unique.clone() + &"p".repeat(subject.limits.key_bytes - unique.len());
    let key = ItemKey::new(longest.clone(), "s".repeat(subject.limits.key_bytes));
    subject.create(&key, b"value").await;
    assert_eq!(subject.get(&key).await.expect("it was put").key, key);
    for key in [
        ItemKey::new(longest.clone() + "p", "s"),
        ItemKey::new("p", "s".repeat(subject.limits.key_bytes + 1)),
        ItemKey::new("p", ""),
        ItemKey::new("", "s"),
    ] {
        subject
            .assert_refused(vec![put(&key, b"x", Condition::Absent)], "a put of a bad key")
            .await;
        subject
            .assert_refused(vec![delete(&key, ItemVersion(1))], "a delete of a bad key")
            .await;
        let read = subject.table.get(&key).await;
        assert!(
            matches!(read, Err(TableError::Limit(_))),
            "a read of a bad key: {read:?}"
        );
    }
}

pub(super) async fn nonsense_is_refused_before_anything_happens(subject: &Subject) {
    subject.assert_refused(Vec::new(), "no operation").await;
    let key = subject.key("nonsense", "twice");
    subject
        .assert_refused(
            vec![
                put(&key, b"one", Condition::Absent),
                check(&key, Condition::Absent),
            ],
            "an item named twice",
        )
        .await;
    assert_eq!(subject.get(&key).await, None);
    let partition = &key.partition;
    for query in [
        subject.table.query("", "", None, 1).await,
        subject.table.query(partition, "", None, 0).await,
        subject
            .table
            .query(partition, &"x".repeat(subject.limits.key_bytes + 1), None, 1)
            .await,
        subject
            .table
            .query(partition, "", Some(&"x".repeat(subject.limits.key_bytes + 1)), 1)
            .await,
    ] {
        assert!(matches!(query, Err(TableError::Limit(_))), "{query:?}");
    }
}

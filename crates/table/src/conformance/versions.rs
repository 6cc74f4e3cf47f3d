//! Item versions: each put draws one, and a condition on it holds for that item only.

use super::{Subject, check, delete, put};
use crate::Condition;
use std::collections::HashSet;

pub(super) async fn every_put_draws_a_version_and_reports_it(subject: &Subject) {
    let key = subject.key("draw", "item");
    let mut version = subject.create(&key, b"same").await;
    let mut seen = HashSet::from([version]);
    for _ in 0..50 {
        let applied = subject
            .transact(vec![put(&key, b"same", Condition::Version(version))])
            .await
            .expect("we hold the newest version");
        subject
            .assert_fails(
                vec![put(&key, b"same", Condition::Version(version))],
                0,
                "that version is over",
            )
            .await;
        version = applied[0].expect("a put reports its version");
        assert_eq!(subject.get(&key).await.expect("it was put").version, version);
        assert!(seen.insert(version), "a version came twice");
    }
}

pub(super) async fn a_deleted_and_created_item_is_another_one_to_whoever_holds_the_old_version(
    subject: &Subject,
) {
    let key = subject.key("reborn", "item");
    let mut held = Vec::new();
    for _ in 0..20 {
        let version = subject.create(&key, b"the same value").await;
        assert!(!held.contains(&version), "a version came back with its item");
        held.push(version);
        subject
            .transact(vec![delete(&key, version)])
            .await
            .expect("it has this version");
    }
    let current = subject.create(&key, b"the same value").await;
    for old in held {
        let condition = Condition::Version(old);
        subject
            .assert_fails(vec![put(&key, b"stale", condition)], 0, "a stale put")
            .await;
        subject
            .assert_fails(vec![delete(&key, old)], 0, "a stale delete")
            .await;
        subject
            .assert_fails(vec![check(&key, condition)], 0, "a stale check")
            .await;
    }
    assert_eq!(subject.get(&key).await.expect("untouched").version, current);
}

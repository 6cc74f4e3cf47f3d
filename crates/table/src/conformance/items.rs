//! Single items and whole transactions.

use super::{Subject, check, delete, put};
use crate::{Condition, ItemVersion};

pub(super) async fn an_item_is_absent_until_it_is_put_and_again_once_it_is_deleted(subject: &Subject) {
    let key = subject.key("life", "item");
    assert_eq!(subject.get(&key).await, None);
    subject
        .assert_fails(vec![delete(&key, ItemVersion(1))], 0, "nothing to delete")
        .await;
    let version = subject.create(&key, b"here").await;
    let item = subject.get(&key).await.expect("it was put");
    assert_eq!(
        (item.key.clone(), item.version, &item.value[..]),
        (key.clone(), version, &b"here"[..])
    );
    subject
        .assert_fails(
            vec![put(&key, b"again", Condition::Absent)],
            0,
            "it is there already",
        )
        .await;
    subject
        .transact(vec![delete(&key, version)])
        .await
        .expect("it has this version");
    assert_eq!(subject.get(&key).await, None);
    subject
        .assert_fails(vec![delete(&key, version)], 0, "it is deleted already")
        .await;
}

pub(super) async fn values_of_any_bytes_and_of_none_come_back_as_they_were(subject: &Subject) {
    let all_bytes: Vec<u8> = (0..=255).collect();
    for (sort, value) in [
        ("all", &all_bytes[..]),
        ("none", &[]),
        ("zero", &[0]),
        ("not text", &[0xff, 0xfe, 0x80]),
    ] {
        let key = subject.key("values", sort);
        subject.create(&key, value).await;
        assert_eq!(
            subject.get(&key).await.expect("it was put").value,
            value,
            "{sort}"
        );
    }
}

pub(super) async fn keys_of_any_characters_are_told_apart(subject: &Subject) {
    let sorts = [
        " ", "  ", "/", "a", "A", "a/b", "a\u{0}", "a\n", "é", "e\u{301}", "'\"\\;--", ":v", "#p", "𐀀",
    ];
    for (number, sort) in sorts.iter().enumerate() {
        subject
            .create(&subject.key("characters", sort), &[number as u8])
            .await;
    }
    for (number, sort) in sorts.iter().enumerate() {
        let item = subject
            .get(&subject.key("characters", sort))
            .await
            .expect("it was put");
        assert_eq!(item.value[..], [number as u8], "{sort:?}");
        assert_eq!(item.key.sort, *sort);
    }
}

pub(super) async fn a_transaction_happens_whole_or_not_at_all_and_names_the_first_condition_that_failed(
    subject: &Subject,
) {
    let key = |sort| subject.key("whole", sort);
    let version = subject.create(&key("a"), b"old").await;
    let doomed = subject.create(&key("b"), b"old").await;
    let unknown = Condition::Version(ItemVersion(version.0 ^ 1));
    subject
        .assert_fails(
            vec![
                put(&key("a"), b"new", Condition::Version(version)),
                delete(&key("b"), doomed),
                check(&key("c"), unknown),
                put(&key("d"), b"new", unknown),
            ],
            2,
            "c and d do not hold, c comes first",
        )
        .await;
    assert_eq!(subject.get(&key("a")).await.expect("unchanged").version, version);
    assert!(subject.get(&key("b")).await.is_some(), "nothing was deleted");
    assert_eq!(subject.get(&key("d")).await, None);

    let applied = subject
        .transact(vec![
            put(&key("a"), b"new", Condition::Version(version)),
            delete(&key("b"), doomed),
            check(&key("c"), Condition::Absent),
            put(&key("d"), b"new", Condition::Absent),
        ])
        .await
        .expect("all hold");
    let shape: Vec<_> = applied.iter().map(Option::is_some).collect();
    assert_eq!(
        shape,
        [true, false, false, true],
        "puts report versions, others do not"
    );
    let a = subject.get(&key("a")).await.expect("it was put");
    assert_eq!((Some(a.version), &a.value[..]), (applied[0], &b"new"[..]));
    assert_eq!(subject.get(&key("b")).await, None);
    assert_eq!(subject.get(&key("d")).await.map(|item| item.version), applied[3]);
}

pub(super) async fn a_check_changes_nothing_and_must_hold(subject: &Subject) {
    let (there, absent) = (subject.key("check", "there"), subject.key("check", "absent"));
    let version = subject.create(&there, b"value").await;
    let holds = Condition::Version(version);
    for writes in [
        vec![check(&there, holds)],
        vec![check(&absent, Condition::Absent)],
        vec![check(&there, holds), check(&absent, Condition::Absent)],
    ] {
        let nothing = vec![None; writes.len()];
        assert_eq!(subject.transact(writes).await.expect("it holds"), nothing);
    }
    let other = Condition::Version(ItemVersion(version.0 ^ 1));
    subject
        .assert_fails(vec![check(&there, Condition::Absent)], 0, "it is there")
        .await;
    subject
        .assert_fails(vec![check(&there, other)], 0, "it has another version")
        .await;
    subject
        .assert_fails(vec![check(&absent, other)], 0, "there is none")
        .await;
    subject
        .assert_fails(
            vec![check(&there, holds), check(&absent, other)],
            1,
            "only the second fails",
        )
        .await;
    assert_eq!(subject.get(&there).await.expect("unchanged").version, version);
    assert_eq!(subject.get(&absent).await, None);
}

//! Queries and their pages.

use super::{Subject, put};
use crate::{Condition, Item, MAX_ITEM_BYTES, MAX_PAGE_BYTES, limits::item_bytes};

impl Subject {
    async fn fill(&self, check: &str, sorts: &[&str]) {
        for sort in sorts {
            self.create(&self.key(check, sort), sort.as_bytes()).await;
        }
    }

    /// All items of a query, page by page, and the number of pages.
    async fn all(&self, check: &str, prefix: &str, after: Option<&str>, limit: usize) -> (Vec<Item>, usize) {
        let partition = self.key(check, "-").partition;
        let mut items: Vec<Item> = Vec::new();
        let mut after = after.map(str::to_owned);
        for pages in 1..=10_000 {
            let page = self
                .table
                .query(&partition, prefix, after.as_deref(), limit)
                .await
                .expect("a query succeeds");
            assert!(
                page.items.len() <= limit,
                "a page holds at most what was asked for"
            );
            items.extend(page.items);
            match page.next {
                None => return (items, pages),
                Some(next) => {
                    assert!(Some(&next) > after.as_ref(), "a query makes progress");
                    after = Some(next);
                }
            }
        }
        panic!("a query does not end");
    }

    async fn sorts(&self, check: &str, prefix: &str, after: Option<&str>) -> Vec<String> {
        let (items, _) = self.all(check, prefix, after, 1000).await;
        items.into_iter().map(|item| item.key.sort).collect()
    }
}

pub(super) async fn a_query_sees_its_partition_alone_in_byte_order(subject: &Subject) {
    // U+FFFF sorts before U+10000 by bytes (as by code point), but after it in UTF-16.
    let ordered = [
        "A",
        "B",
        "a",
        "a ",
        "a/",
        "a0",
        "aa",
        "b",
        "é",
        "\u{ffff}",
        "\u{10000}",
    ];
    let mut shuffled = ordered;
    shuffled.reverse();
    shuffled.swap(1, 7);
    subject.fill("order", &shuffled).await;
    subject.fill("order2", &["a1", "z"]).await;
    subject.fill("orde", &["a2", "z"]).await;
    assert_eq!(subject.sorts("order", "", None).await, ordered);
    let (items, _) = subject.all("order", "", None, 1000).await;
    for item in items {
        assert_eq!(item.value, item.key.sort.as_bytes());
        assert_eq!(
            subject.get(&item.key).await,
            Some(item.clone()),
            "a query and a read agree"
        );
    }
    assert!(subject.sorts("never filled", "", None).await.is_empty());
}

pub(super) async fn a_prefix_and_a_start_narrow_a_query(subject: &Subject) {
    subject
        .fill(
            "prefix",
            &[
                "inode/1", "inode/10", "inode/2", "inodes", "lock/1", "volume", "é/1", "é/2",
            ],
        )
        .await;
    for (prefix, after, expected) in [
        ("inode/", None, &["inode/1", "inode/10", "inode/2"][..]),
        ("inode", None, &["inode/1", "inode/10", "inode/2", "inodes"]),
        ("inode/1", None, &["inode/1", "inode/10"]),
        ("inode/", Some("inode/1"), &["inode/10", "inode/2"]),
        ("inode/", Some("inode/15"), &["inode/2"]),
        ("inode/", Some("inode/2"), &[]),
        ("inode/", Some("a"), &["inode/1", "inode/10", "inode/2"]),
        ("inode/", Some("inode"), &["inode/1", "inode/10", "inode/2"]),
        ("inode/", Some("inode/"), &["inode/1", "inode/10", "inode/2"]),
        ("inode/", Some("z"), &[]),
        ("", Some("lock/1"), &["volume", "é/1", "é/2"]),
        ("", Some("é/2"), &[]),
        ("é/", None, &["é/1", "é/2"]),
        ("volume", None, &["volume"]),
        ("volumes", None, &[]),
        ("x", None, &[]),
    ] {
        assert_eq!(
            subject.sorts("prefix", prefix, after).await,
            expected,
            "{prefix:?} after {after:?}"
        );
    }
}

pub(super) async fn pages_of_any_size_join_to_the_whole(subject: &Subject) {
    let sorts: Vec<String> = (0..23).map(|number| format!("k{number:02}")).collect();
    let sorts: Vec<&str> = sorts.iter().map(String::as_str).collect();
    subject.fill("pages", &sorts).await;
    subject.fill("pages", &["j", "l"]).await;
    for limit in [1, 2, 7, 22, 23, 24, 1000, usize::MAX] {
        let (items, _) = subject.all("pages", "k", None, limit).await;
        let found: Vec<_> = items.iter().map(|item| item.key.sort.as_str()).collect();
        assert_eq!(found, sorts, "pages of {limit}");
    }
}

pub(super) async fn a_page_ends_at_its_byte_limit(subject: &Subject) {
    let value = vec![1; 300 << 10];
    let mut expected = Vec::new();
    for number in 0..8 {
        let key = subject.key("bytes", &number.to_string());
        subject
            .transact(vec![put(&key, &value, Condition::Absent)])
            .await
            .expect("it is absent");
        expected.push(key);
    }
    let partition = &expected[0].partition;
    let page = subject
        .table
        .query(partition, "", None, 1000)
        .await
        .expect("a query succeeds");
    let bytes: usize = page
        .items
        .iter()
        .map(|item| item_bytes(&item.key, item.value.len()))
        .sum();
    assert!(
        !page.items.is_empty() && bytes <= MAX_PAGE_BYTES + MAX_ITEM_BYTES,
        "a page of {bytes} bytes"
    );
    assert!(page.next.is_some(), "there is more");
    let (items, pages) = subject.all("bytes", "", None, 1000).await;
    assert!(items.iter().map(|item| &item.key).eq(&expected));
    assert!(pages >= 2);
}

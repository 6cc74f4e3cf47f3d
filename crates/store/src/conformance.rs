//! Conformance suite: what every store must do, as assertions that the tests of each backend run.
//!
//! [`check`] works under a prefix of its own, in any store, and removes what it made. It panics with the broken rule, so
//! it belongs into tests only; it is public because backends live in other crates.

use crate::{
    LIST_PAGE_OBJECTS, ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError, VersionPage, erase,
};
use bytes::Bytes;
use firn_env::Env;
use futures::{StreamExt, stream};
use std::sync::Arc;

/// Creators that race for one name; so many edges may believe to be the one.
const RACERS: u64 = 16;

/// Names raced for: one lucky order proves little.
const RACES: u64 = 8;

/// Requests under way where the suite needs many objects.
const AT_ONCE: usize = 16;

/// Checks every rule on `store`.
///
/// # Panics
/// If a rule is broken, naming it.
pub async fn check(env: &Env, store: Arc<dyn Store>) {
    let suite = Suite {
        prefix: format!("conformance-{:016x}", env.random_u64()),
        env: env.clone(),
        store,
    };
    suite.what_is_put_is_got_back().await;
    suite.a_range_ends_where_the_object_ends().await;
    suite.an_absent_object_is_not_found_and_may_be_deleted().await;
    if suite.store.keeps_versions().await.expect("it is told") {
        suite.what_is_erased_leaves_no_version().await;
    }
    suite.create_never_replaces_and_overwrite_does().await;
    suite.of_concurrent_creators_exactly_one_wins().await;
    suite
        .a_reader_sees_one_whole_version_while_writers_overwrite()
        .await;
    suite.names_of_any_shape_are_told_apart().await;
    suite.a_listing_is_sorted_and_follows_prefix_and_start().await;
    suite.a_long_listing_comes_in_pages_without_gap_or_double().await;
    suite.remove_everything().await;
}

/// Checks of a store that keeps versions only that they can be seen and removed: for servers that otherwise bend the rules when
/// they keep versions.
///
/// # Panics
/// If a rule is broken, naming it.
pub async fn check_versions(env: &Env, store: Arc<dyn Store>) {
    let suite = Suite {
        prefix: format!("conformance-{:016x}", env.random_u64()),
        env: env.clone(),
        store,
    };
    assert!(suite.store.keeps_versions().await.expect("it is told"));
    suite.what_is_erased_leaves_no_version().await;
}

struct Suite {
    env: Env,
    store: Arc<dyn Store>,
    prefix: String,
}

impl Suite {
    fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(&format!("{}/{name}", self.prefix))
    }

    async fn put(&self, key: &ObjectKey, content: impl Into<Bytes>) {
        self.store
            .put(key, vec![content.into()], PutMode::Create)
            .await
            .unwrap_or_else(|error| panic!("{key} can be created: {error}"));
    }

    async fn list_all(&self, prefix: &str, after: Option<&ObjectKey>) -> Vec<ObjectInfo> {
        let mut objects: Vec<ObjectInfo> = Vec::new();
        loop {
            let last = objects.last().map(|object| object.key.clone());
            let page = self
                .store
                .list(prefix, last.as_ref().or(after))
                .await
                .expect("a listing succeeds");
            assert!(
                page.objects.len() <= LIST_PAGE_OBJECTS,
                "a page has {} objects, more than {LIST_PAGE_OBJECTS}",
                page.objects.len()
            );
            let more = page.more;
            assert!(
                !more || !page.objects.is_empty(),
                "an empty page must be the last"
            );
            objects.extend(page.objects);
            if !more {
                return objects;
            }
        }
    }

    async fn names(&self, prefix: &str, after: Option<&str>) -> Vec<String> {
        let after = after.map(|name| self.key(name));
        let cut = self.prefix.len() + 1;
        self.list_all(&format!("{}/{prefix}", self.prefix), after.as_ref())
            .await
            .into_iter()
            .map(|object| object.key.as_str()[cut..].to_owned())
            .collect()
    }

    async fn what_is_put_is_got_back(&self) {
        for (name, sizes) in [
            ("back/empty", vec![]),
            ("back/zero", vec![0]),
            ("back/one", vec![1]),
            ("back/parts", vec![1000, 0, 1, 70_000]),
            ("back/segment", vec![4 << 20, 12_345]),
        ] {
            let key = self.key(name);
            let parts: Vec<Bytes> = sizes.iter().map(|size| pattern(*size, *size as u64)).collect();
            let whole = parts.concat();
            self.store
                .put(&key, parts, PutMode::Create)
                .await
                .unwrap_or_else(|error| panic!("{name} can be put: {error}"));
            let got = self.store.get(&key).await.expect("what was put is there");
            assert!(got == whole, "{name}: content differs ({} bytes)", got.len());
            let info = self.store.head(&key).await.expect("what was put has a size");
            assert_eq!((info.key, info.size_bytes), (key, whole.len() as u64));
        }
    }

    async fn a_range_ends_where_the_object_ends(&self) {
        let key = self.key("range/object");
        let content = pattern(100_000, 1);
        self.put(&key, content.clone()).await;
        for (offset, length) in [
            (0, 1),
            (0, 100_000),
            (99_999, 1),
            (12_345, 50_000),
            (99_000, 2000),
            (0, u64::MAX),
            (50_000, u64::MAX),
            (100_000, 1),
            (200_000, 10),
            (u64::MAX, u64::MAX),
            (500, 0),
        ] {
            let got = self
                .store
                .get_range(&key, offset, length)
                .await
                .unwrap_or_else(|error| panic!("range {offset}+{length}: {error}"));
            let start = offset.min(100_000) as usize;
            let end = offset.saturating_add(length).min(100_000) as usize;
            assert!(
                got == content[start..end],
                "range {offset}+{length} gives {} bytes",
                got.len()
            );
        }
        let empty = self.key("range/empty");
        self.put(&empty, Bytes::new()).await;
        let got = self.store.get_range(&empty, 0, 10).await;
        assert_eq!(got.expect("an empty object has an empty range"), Bytes::new());
    }

    async fn an_absent_object_is_not_found_and_may_be_deleted(&self) {
        let key = self.key("absent/object");
        let is_not_found =
            |error: StoreError| matches!(error, StoreError::NotFound { key: named } if named == key);
        assert!(is_not_found(self.store.get(&key).await.expect_err("absent")));
        assert!(is_not_found(self.store.head(&key).await.expect_err("absent")));
        for (offset, length) in [(0, 10), (7, 0)] {
            let error = self
                .store
                .get_range(&key, offset, length)
                .await
                .expect_err("absent");
            assert!(is_not_found(error), "range {offset}+{length}");
        }
        self.store.delete(&key).await.expect("nothing to delete is fine");

        self.put(&key, "here").await;
        self.store.delete(&key).await.expect("an object can be deleted");
        assert!(is_not_found(self.store.get(&key).await.expect_err("deleted")));
        assert_eq!(
            self.names("absent/", None).await,
            [""; 0],
            "a deleted object is not listed"
        );
        self.store.delete(&key).await.expect("twice is fine");
        self.put(&key, "again").await;
    }

    async fn what_is_erased_leaves_no_version(&self) {
        let key = self.key("erased/object");
        for content in ["1", "2", "3", "4"] {
            let put = self.store.put(&key, vec![content.into()], PutMode::Overwrite);
            put.await.expect("overwrite replaces");
        }
        let beside = self.key("erased/object.beside");
        self.put(&beside, "stays").await;
        self.store.delete(&key).await.expect("it is hidden");
        let kept = self.store.versions(&key).await.expect("listed");
        assert!(kept.versions.len() == 5 || kept.more, "{kept:?}");
        erase(&*self.store, &key).await.expect("erased");
        let kept = self.store.versions(&key).await.expect("listed");
        assert_eq!(kept, VersionPage::default());
        assert_eq!(self.names("erased/", None).await, ["erased/object.beside"]);
        erase(&*self.store, &key).await.expect("twice is fine");

        // Not hidden before: nothing older comes up in its place.
        self.put(&key, "once").await;
        erase(&*self.store, &key).await.expect("erased");
        let gone = self.store.get(&key).await;
        assert!(matches!(gone, Err(StoreError::NotFound { .. })), "{gone:?}");
        self.put(&key, "again").await;
    }

    async fn create_never_replaces_and_overwrite_does(&self) {
        let key = self.key("mode/object");
        self.put(&key, "first").await;
        let second = self.store.put(&key, vec!["second".into()], PutMode::Create).await;
        assert!(
            matches!(&second, Err(StoreError::AlreadyExists { key: named }) if *named == key),
            "{second:?}"
        );
        assert_eq!(self.store.get(&key).await.expect("there"), "first");
        for content in ["a longer third", "4th"] {
            self.store
                .put(&key, vec![content.into()], PutMode::Overwrite)
                .await
                .expect("overwrite replaces");
            assert_eq!(self.store.get(&key).await.expect("there"), content);
            let size = self.store.head(&key).await.expect("there").size_bytes;
            assert_eq!(size, content.len() as u64);
        }
        let fresh = self.key("mode/fresh");
        self.store
            .put(&fresh, vec!["new".into()], PutMode::Overwrite)
            .await
            .expect("overwrite creates too");
        assert_eq!(self.store.get(&fresh).await.expect("there"), "new");
    }

    async fn of_concurrent_creators_exactly_one_wins(&self) {
        for race in 0..RACES {
            let key = self.key(&format!("race/{race}"));
            let racers: Vec<_> = (0..RACERS)
                .map(|racer| {
                    let (store, key) = (self.store.clone(), key.clone());
                    // Sizes differ, so that a mixture of two would show.
                    let content = pattern(10_000 + racer as usize, racer);
                    self.env.spawn("conformance.racer", async move {
                        store.put(&key, vec![content], PutMode::Create).await
                    })
                })
                .collect();
            let mut winners = Vec::new();
            for (racer, task) in racers.into_iter().enumerate() {
                match task.await.expect("a racer returns") {
                    Ok(()) => winners.push(racer),
                    Err(StoreError::AlreadyExists { .. }) => {}
                    Err(error) => panic!("racer {racer} gets {error}"),
                }
            }
            assert_eq!(winners.len(), 1, "winners of race {race}: {winners:?}");
            let content = self.store.get(&key).await.expect("the winner's object is there");
            assert!(
                content == pattern(10_000 + winners[0], winners[0] as u64),
                "race {race} shows another content than the winner's"
            );
        }
    }

    async fn a_reader_sees_one_whole_version_while_writers_overwrite(&self) {
        let key = self.key("versions/object");
        let version = |number: u8| Bytes::from(vec![number; 100_000 + usize::from(number)]);
        self.put(&key, version(0)).await;
        let writers: Vec<_> = (1..=4_u8)
            .map(|number| {
                let (store, key) = (self.store.clone(), key.clone());
                self.env.spawn("conformance.writer", async move {
                    for _ in 0..10 {
                        store.put(&key, vec![version(number)], PutMode::Overwrite).await?;
                    }
                    Ok::<_, StoreError>(())
                })
            })
            .collect();
        for _ in 0..20 {
            let seen = self.store.get(&key).await.expect("always there");
            let number = *seen.first().expect("never empty");
            assert!(seen == version(number), "a mixture of versions");
        }
        for writer in writers {
            writer
                .await
                .expect("a writer returns")
                .expect("overwrite succeeds");
        }
    }

    async fn names_of_any_shape_are_told_apart(&self) {
        let long = format!("{}/{}", "x".repeat(200), "y".repeat(200));
        let names = [
            "shape/AZaz09._-",
            "shape/azaz09._-",
            "shape/a.b/c_d/e-f/.g",
            "shape/0",
            "shape/00",
            &long,
        ];
        for name in names {
            self.put(&self.key(name), name.to_owned()).await;
        }
        for name in names {
            let content = self.store.get(&self.key(name)).await.expect("every name is kept");
            assert_eq!(content, name);
        }
    }

    async fn a_listing_is_sorted_and_follows_prefix_and_start(&self) {
        // '-' and '.' sort before '/', '0' after it: an order by components would differ from the order of keys.
        let mut names =
            ["a-b", "a.b", "a/1", "a/2/x", "a/2-", "a0", "ab/c", "b"].map(|name| format!("list/{name}"));
        for name in &names {
            self.put(&self.key(name), "123").await;
        }
        names.sort();
        let expect = |prefix: &str, after: Option<&str>| -> Vec<String> {
            let matching = names.iter().filter(|name| name.starts_with(prefix));
            matching
                .filter(|name| after.is_none_or(|after| name.as_str() > after))
                .cloned()
                .collect()
        };
        for prefix in [
            "list/",
            "list/a",
            "list/a/",
            "list/a/2",
            "list/ab",
            "list/b",
            "list/a0",
            "list/none",
            "lis",
        ] {
            assert_eq!(
                self.names(prefix, None).await,
                expect(prefix, None),
                "prefix {prefix:?}"
            );
            for after in [
                "a",
                "list/a-b",
                "list/a/1",
                "list/a/2",
                "list/a/2/x",
                "list/ab",
                "list/b",
                "z",
            ] {
                assert_eq!(
                    self.names(prefix, Some(after)).await,
                    expect(prefix, Some(after)),
                    "prefix {prefix:?} after {after:?}"
                );
            }
        }
        for never in ["..", "/", "list//", "list/../list/"] {
            let page = self.store.list(never, None).await;
            assert_eq!(
                page.expect("no key starts so"),
                ListPage::default(),
                "prefix {never:?}"
            );
        }
        let listed = self.list_all(&format!("{}/list/", self.prefix), None).await;
        for object in listed {
            let head = self
                .store
                .head(&object.key)
                .await
                .expect("what is listed is there");
            assert_eq!(object.size_bytes, 3);
            assert_eq!(head.size_bytes, 3);
            // A listing may tell the time more exactly than a head does (whole seconds in an HTTP header).
            assert!(
                object.modified_ms.abs_diff(head.modified_ms) < 1000,
                "{object:?} {head:?}"
            );
        }
    }

    async fn a_long_listing_comes_in_pages_without_gap_or_double(&self) {
        let count = LIST_PAGE_OBJECTS + 10;
        let names: Vec<String> = (0..count)
            .map(|number| format!("pages/{:02}/{number:05}", number % 7))
            .collect();
        stream::iter(&names)
            .for_each_concurrent(
                AT_ONCE,
                |name| async move { self.put(&self.key(name), "x").await },
            )
            .await;
        let mut expected = names.clone();
        expected.sort();
        assert!(self.names("pages/", None).await == expected, "pages do not join");
        let page = self
            .store
            .list(&format!("{}/pages/", self.prefix), None)
            .await
            .expect("a page");
        assert!(page.more, "{} of {count} objects are not all", page.objects.len());
    }

    async fn remove_everything(&self) {
        let objects = self.list_all(&self.prefix, None).await;
        assert!(
            objects.len() > LIST_PAGE_OBJECTS,
            "the suite's own objects are listed"
        );
        stream::iter(objects)
            .for_each_concurrent(AT_ONCE, |object| async move {
                self.store
                    .delete(&object.key)
                    .await
                    .expect("an object can be deleted");
            })
            .await;
        assert_eq!(self.list_all(&self.prefix, None).await, []);
    }
}

/// Bytes that differ from one another, from place to place and by `salt`.
fn pattern(length: usize, salt: u64) -> Bytes {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}

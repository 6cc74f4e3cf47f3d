//! The conformance suite on tables with one flaw each: a suite that passes them proves nothing.

use async_trait::async_trait;
use firn_env::Env;
use firn_table::{
    Applied, Condition, Item, ItemKey, ItemVersion, MemoryTable, MemoryTableClient, Page, Table, TableError,
    Write, conformance,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// None: the wrapper itself must pass.
    None,
    /// Checks always hold.
    ChecksIgnored,
    /// A transaction is a row of single writes.
    Torn,
    /// The first operation is blamed for every failure.
    WrongIndex,
    /// A query ends after its first page.
    SecondPageLost,
    /// A query starts at `after` instead of behind it.
    StartIncluded,
    /// Versions count from 1 for each life of an item.
    VersionsStartOver,
    /// Reads show what was there one read ago.
    StaleReads,
}

struct Broken {
    flaw: Flaw,
    inner: Arc<MemoryTableClient>,
    /// For [`Flaw::VersionsStartOver`]: the real version and the one that is shown.
    shown: Mutex<BTreeMap<ItemKey, (ItemVersion, u64)>>,
    seen: Mutex<BTreeMap<ItemKey, Option<Item>>>,
}

impl Broken {
    fn real(&self, key: &ItemKey, condition: Condition) -> Condition {
        match (self.flaw, condition) {
            (Flaw::VersionsStartOver, Condition::Version(version)) => {
                match self.shown.lock().unwrap().get(key) {
                    Some((real, shown)) if *shown == version.0 => Condition::Version(*real),
                    _ => Condition::Version(ItemVersion(0)),
                }
            }
            (_, condition) => condition,
        }
    }

    fn show(&self, item: Item) -> Item {
        match (self.flaw, self.shown.lock().unwrap().get(&item.key)) {
            (Flaw::VersionsStartOver, Some((_, shown))) => Item {
                version: ItemVersion(*shown),
                ..item
            },
            _ => item,
        }
    }
}

#[async_trait]
impl Table for Broken {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        let item = self.inner.get(key).await?.map(|item| self.show(item));
        if self.flaw == Flaw::StaleReads {
            let before = self.seen.lock().unwrap().insert(key.clone(), item.clone());
            return Ok(before.unwrap_or(item));
        }
        Ok(item)
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        let mut page = self.inner.query(partition, prefix, after, limit).await?;
        if self.flaw == Flaw::SecondPageLost {
            page.next = None;
        }
        if let (Flaw::StartIncluded, Some(after)) = (self.flaw, after)
            && after.starts_with(prefix)
            && !after.is_empty()
            && let Some(item) = self.inner.get(&ItemKey::new(partition, after)).await?
        {
            page.items.insert(0, item);
        }
        page.items = page.items.into_iter().map(|item| self.show(item)).collect();
        Ok(page)
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        if self.flaw == Flaw::Torn && writes.len() <= 50 {
            let mut applied = Applied::new();
            for (index, write) in writes.into_iter().enumerate() {
                match self.inner.transact(vec![write]).await {
                    Ok(one) => applied.extend(one),
                    Err(TableError::ConditionFailed { .. }) => {
                        return Err(TableError::ConditionFailed { index });
                    }
                    Err(error) => return Err(error),
                }
            }
            return Ok(applied);
        }
        if self.flaw == Flaw::ChecksIgnored && writes.iter().all(|write| matches!(write, Write::Check { .. }))
        {
            return Ok(vec![None; writes.len()]);
        }
        let mut kept = Vec::new();
        for write in writes.clone() {
            let condition = self.real(write.key(), write.condition());
            kept.push(match (write, condition) {
                (Write::Check { .. }, _) if self.flaw == Flaw::ChecksIgnored => continue,
                (Write::Put { key, value, .. }, condition) => Write::Put {
                    key,
                    value,
                    condition,
                },
                (Write::Delete { key, .. }, Condition::Version(version)) => Write::Delete { key, version },
                (other, _) => other,
            });
        }
        let result = self.inner.transact(kept).await;
        if let (Flaw::VersionsStartOver, Ok(applied)) = (self.flaw, &result) {
            let mut shown = self.shown.lock().unwrap();
            let mut reported = Applied::new();
            for (write, version) in writes.iter().zip(applied) {
                match version {
                    Some(real) => {
                        let entry = shown.entry(write.key().clone()).or_insert((*real, 0));
                        *entry = (*real, entry.1 + 1);
                        reported.push(Some(ItemVersion(entry.1)));
                    }
                    None => {
                        if matches!(write, Write::Delete { .. }) {
                            shown.remove(write.key());
                        }
                        reported.push(None);
                    }
                }
            }
            return Ok(reported);
        }
        match result {
            Err(TableError::ConditionFailed { .. }) if self.flaw == Flaw::WrongIndex => {
                Err(TableError::ConditionFailed { index: 0 })
            }
            result => result,
        }
    }
}

async fn passes(flaw: Flaw) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let env: Env = firn_env::real(directory.path()).unwrap();
    let broken = Broken {
        flaw,
        inner: MemoryTable::new().connect(&env),
        shown: Mutex::default(),
        seen: Mutex::default(),
    };
    let inside = env.clone();
    // A task that panics ends without a result.
    env.spawn("suite", async move {
        conformance::run(Arc::new(broken), &inside, "broken").await
    })
    .await
    .is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_a_sound_table_and_none_with_a_flaw() {
    assert!(passes(Flaw::None).await, "the wrapper without a flaw is sound");
    for flaw in [
        Flaw::ChecksIgnored,
        Flaw::Torn,
        Flaw::WrongIndex,
        Flaw::SecondPageLost,
        Flaw::StartIncluded,
        Flaw::VersionsStartOver,
        Flaw::StaleReads,
    ] {
        assert!(!passes(flaw).await, "{flaw:?} was not noticed");
    }
}

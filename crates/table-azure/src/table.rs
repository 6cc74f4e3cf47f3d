//! [`AzureTable`].
//!
//! ```text
//! condition            what is known of the item            what is sent
//! version is v         the tag of v                         PUT, DELETE or PATCH, If-Match: tag
//!                      nothing                              the item is read first
//! absent               nothing                              POST, which inserts
//!                      a placeholder with its tag           PUT or PATCH, If-Match: tag
//! ```
//!
//! If Azure finds an item otherwise, all of the transaction's are read: a condition does not hold, or they do with other tags and it is
//! sent again.

use crate::{
    batch::Operation,
    entity::{self, Found},
    etags::EntityTags,
    failure::SERVICE,
    keys, open,
    service::{Part, Service, Written},
};
use async_trait::async_trait;
use firn_env::Env;
use firn_store_cloud::Credentials;
use firn_table::{
    Applied, AzureTableUrl, Condition, Item, ItemKey, ItemVersion, MAX_PAGE_BYTES, Page,
    RequestFailure as Failure, Table, TableError, Write, limits, persist,
};
use futures::future::try_join_all;
use http::Method;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Azure's limit of a page.
const PAGE_ITEMS: usize = 1000;
/// Reads of a transaction's items under way at once.
const READS: usize = 16;

/// A table of a storage account; cheap to clone.
#[derive(Clone)]
pub struct AzureTable {
    env: Env,
    service: Service,
    tags: Arc<EntityTags>,
}

/// What an item of a transaction is like before it.
enum Ground {
    /// Supposed to be absent; nobody looked.
    Absent,
    /// With this tag, and this version unless it is a placeholder.
    There(Option<ItemVersion>, String),
}

/// What is known of all of them.
enum Grounds {
    Hold(Vec<Ground>),
    Fails(usize),
    /// A put of this transaction is there: an earlier try has happened.
    Happened,
}

impl AzureTable {
    /// Reaches the table, with the credentials that the machine has, and creates it if the address says so.
    ///
    /// # Errors
    /// [`TableError::Refused`] with what to do about it, or [`TableError::Unavailable`] if Azure does not answer.
    pub async fn open(env: &Env, url: &AzureTableUrl) -> Result<Self, TableError> {
        Self::open_as(env, url, &Credentials::Environment).await
    }

    /// As [`AzureTable::open`], with these credentials.
    ///
    /// # Errors
    /// As [`AzureTable::open`].
    pub async fn open_as(
        env: &Env,
        url: &AzureTableUrl,
        credentials: &Credentials,
    ) -> Result<Self, TableError> {
        Ok(Self {
            env: env.clone(),
            service: open::open(env, url, credentials).await?,
            tags: Arc::default(),
        })
    }

    async fn look(&self, key: &ItemKey) -> Result<Option<(Found, String)>, Failure> {
        let found = self.service.read(key).await?;
        match &found {
            Some((Found::Item(item), tag)) => self.tags.learn(key, item.version, tag),
            Some((Found::Placeholder, _)) | None => self.tags.forget(key),
        }
        Ok(found)
    }

    /// What one item is like, and whether its condition holds; reads it if `look` or if it has to.
    async fn ground(
        &self,
        write: &Write,
        look: bool,
    ) -> Result<(Option<Ground>, Option<ItemVersion>), Failure> {
        let (key, condition) = (write.key(), write.condition());
        if !look {
            match condition {
                Condition::Absent => return Ok((Some(Ground::Absent), None)),
                Condition::Version(version) => {
                    if let Some(tag) = self.tags.of(key, version) {
                        return Ok((Some(Ground::There(Some(version), tag)), Some(version)));
                    }
                }
            }
        }
        let (ground, version) = match self.look(key).await? {
            None => (Ground::Absent, None),
            Some((Found::Placeholder, tag)) => (Ground::There(None, tag), None),
            Some((Found::Item(item), tag)) => (Ground::There(Some(item.version), tag), Some(item.version)),
        };
        let holds = condition.holds(version);
        Ok((holds.then_some(ground), version))
    }

    async fn grounds(&self, writes: &[Write], versions: &Applied, look: bool) -> Result<Grounds, Failure> {
        let mut found = Vec::with_capacity(writes.len());
        for some in writes.chunks(READS) {
            let reads = some.iter().map(|write| self.ground(write, look));
            found.extend(try_join_all(reads).await?);
        }
        let is_ours = |(own, (_, version)): (&Option<ItemVersion>, &(_, Option<ItemVersion>))| {
            own.is_some() && own == version
        };
        if versions.iter().zip(&found).any(is_ours) {
            return Ok(Grounds::Happened);
        }
        if let Some(index) = found.iter().position(|(ground, _)| ground.is_none()) {
            return Ok(Grounds::Fails(index));
        }
        Ok(Grounds::Hold(
            found.into_iter().filter_map(|(ground, _)| ground).collect(),
        ))
    }

    fn operation(&self, write: &Write, version: Option<ItemVersion>, ground: Ground) -> Operation {
        let key = write.key();
        let insert = |body| Operation {
            method: Method::POST,
            path: self.service.path(),
            if_match: None,
            body: Some(body),
        };
        let change = |method, tag, body| Operation {
            method,
            path: self.service.path_of(key),
            if_match: Some(tag),
            body,
        };
        match (write, version, ground) {
            (Write::Put { value, .. }, Some(version), Ground::Absent) => {
                insert(entity::item(key, version, value))
            }
            (Write::Put { value, .. }, Some(version), Ground::There(_, tag)) => {
                change(Method::PUT, tag, Some(entity::item(key, version, value)))
            }
            (Write::Delete { .. }, _, Ground::There(_, tag)) => change(Method::DELETE, tag, None),
            (_, _, Ground::There(version, tag)) => {
                change(Method::PATCH, tag, Some(entity::unchanged(version)))
            }
            (_, _, Ground::Absent) => insert(entity::placeholder(key)),
        }
    }

    /// One try. `must_look`: what was known of the items has proved wrong.
    async fn attempt(
        &self,
        writes: &[Write],
        versions: &Applied,
        in_doubt: bool,
        must_look: &AtomicBool,
    ) -> Result<(), Failure> {
        let mut look = in_doubt || must_look.load(Ordering::Relaxed);
        loop {
            let grounds = match self.grounds(writes, versions, look).await? {
                Grounds::Hold(grounds) => grounds,
                Grounds::Happened => return Ok(()),
                Grounds::Fails(index) => return Err(Failure::condition_failed(SERVICE, in_doubt, index)),
            };
            let operations: Vec<_> = writes
                .iter()
                .zip(versions)
                .zip(grounds)
                .map(|((write, version), ground)| self.operation(write, *version, ground))
                .collect();
            let written = self.service.write(&operations).await;
            if !matches!(written, Ok(Written::Done(_))) {
                must_look.store(true, Ordering::Relaxed);
            }
            match written? {
                Written::Done(tags) => {
                    self.learn(writes, versions, tags).await;
                    return Ok(());
                }
                // What was remembered is over: they are read without a pause.
                Written::Conflict(_) if !look => look = true,
                Written::Conflict(why) => return Err(Failure::Busy(why)),
            }
        }
    }

    /// Remembers the tags of what was written, and removes placeholders: without them nothing would tell that an item was absent.
    async fn learn(&self, writes: &[Write], versions: &Applied, tags: Vec<Option<String>>) {
        for ((write, version), tag) in writes.iter().zip(versions).zip(tags) {
            let key = write.key();
            match (write, version, tag) {
                (Write::Put { .. }, Some(version), Some(tag)) => self.tags.learn(key, *version, &tag),
                (
                    Write::Check {
                        condition: Condition::Version(version),
                        ..
                    },
                    _,
                    Some(tag),
                ) => self.tags.learn(key, *version, &tag),
                (
                    Write::Check {
                        condition: Condition::Absent,
                        ..
                    },
                    _,
                    Some(tag),
                ) => {
                    let remove = Operation {
                        method: Method::DELETE,
                        path: self.service.path_of(key),
                        if_match: Some(tag),
                        body: None,
                    };
                    // One that stays counts as absent, and goes with the next put.
                    if let Err(why) = self.service.write(&[remove]).await {
                        tracing::debug!(?why, "a placeholder stays");
                    }
                }
                (_, _, _) => self.tags.forget(key),
            }
        }
    }

    /// The page's items, and whether there is more.
    async fn page(
        &self,
        partition: &str,
        filter: &str,
        limit: usize,
    ) -> Result<(Vec<Item>, bool), TableError> {
        let mut top = limit.min(PAGE_ITEMS);
        let mut from = None;
        loop {
            let part = persist(&self.env, SERVICE, |_| {
                self.service.query(filter, top, from.as_ref())
            })
            .await?;
            let (entities, next) = match part {
                Part::Items { entities, next } => (entities, next),
                Part::TooLong => {
                    top = (top / 8).max(1);
                    continue;
                }
            };
            let mut items = Vec::new();
            let mut bytes = 0;
            let mut is_cut = false;
            for mut entity in entities {
                if bytes >= MAX_PAGE_BYTES || items.len() == limit {
                    is_cut = true;
                    break;
                }
                let tag = entity.tag.take();
                let (key, found) = entity.decode(partition)?;
                if let Found::Item(item) = found {
                    bytes += limits::item_bytes(&key, item.value.len());
                    if let Some(tag) = tag {
                        self.tags.learn(&key, item.version, &tag);
                    }
                    items.push(item);
                }
            }
            // A part may be empty and yet not the last, where servers hand over or only placeholders are.
            if items.is_empty() && next.is_some() {
                from = next;
                continue;
            }
            return Ok((items, is_cut || next.is_some()));
        }
    }
}

#[async_trait]
impl Table for AzureTable {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        keys::check_key(key)?;
        let found = persist(&self.env, SERVICE, |_| self.look(key)).await?;
        Ok(match found {
            Some((Found::Item(item), _)) => Some(item),
            Some((Found::Placeholder, _)) | None => None,
        })
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        limits::check_query(partition, prefix, after, limit)?;
        keys::check_half("partition", partition)?;
        keys::check_half("prefix of a sort", prefix)?;
        keys::check_half("start of a sort", after.unwrap_or_default())?;
        let mut filter = format!("PartitionKey eq '{}'", keys::encode(partition));
        if let Some(after) = after.filter(|after| *after >= prefix && !after.is_empty()) {
            filter.push_str(&format!(" and RowKey gt '{}'", keys::encode(after)));
        } else if !prefix.is_empty() {
            filter.push_str(&format!(" and RowKey ge '{}'", keys::encode(prefix)));
        }
        if let Some(behind) = keys::behind(prefix) {
            filter.push_str(&format!(" and RowKey lt '{behind}'"));
        }
        let (items, more) = self.page(partition, &filter, limit).await?;
        let next = items.last().filter(|_| more).map(|last| last.key.sort.clone());
        Ok(Page { items, next })
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        keys::check_transaction(&writes)?;
        let versions: Applied = writes
            .iter()
            .map(|write| matches!(write, Write::Put { .. }).then(|| ItemVersion(self.env.random_u64())))
            .collect();
        if let [Write::Check { key, condition }] = &writes[..] {
            let found = self.get(key).await?;
            return match condition.holds(found.map(|item| item.version)) {
                true => Ok(versions),
                false => Err(TableError::ConditionFailed { index: 0 }),
            };
        }
        let must_look = AtomicBool::new(false);
        persist(&self.env, SERVICE, |in_doubt| {
            self.attempt(&writes, &versions, in_doubt, &must_look)
        })
        .await?;
        Ok(versions)
    }
}

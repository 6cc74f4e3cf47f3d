//! The index of groups: which there are, and which segments they hold, from a listing of their names and the heads of their objects.
//!
//! A listing costs a LIST for a thousand objects, and a group's head is read once for each generation. Of a group the newest generation with a group
//! object counts; what lies beside it is left over. Memory: some 100 bytes a member, 26 MB for 1 TiB in segments of 4 MiB.

use super::{Known, Parity};
use crate::listing::Listing;
use firn_format::FormatError;
use firn_parity::{GroupHead, GroupName, HEAD_USUAL_BYTES, PARITIES, Part, ROW_BYTES, groups_prefix};
use firn_store::{ObjectKey, StoreError};
use futures::stream::{self, StreamExt};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Heads read at a time.
const SIDE_BY_SIDE: usize = 8;

/// A generation without a group object is left over if nothing of it was put for so long.
const UNFINISHED_MS: i64 = 24 * 3_600_000;

/// One generation as it was listed.
#[derive(Default)]
struct Listed {
    has_group: bool,
    parities: u32,
    parity_bytes: BTreeSet<u64>,
    bytes: u64,
    keys: Vec<ObjectKey>,
    modified_ms: i64,
}

impl Listed {
    fn is_whole(&self, head: &GroupHead) -> bool {
        let expected = (head.rows() * ROW_BYTES) as u64;
        self.parities == (1 << PARITIES) - 1 && self.parity_bytes.iter().all(|bytes| *bytes == expected)
    }
}

impl Parity {
    /// Lists the groups, and reads the heads of those that are new. Cancel-safe: what was read is kept.
    ///
    /// # Errors
    /// The second store's.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        let _one = self.inner.known.refreshing.lock().await;
        let mut listed: BTreeMap<u64, BTreeMap<u64, Listed>> = BTreeMap::new();
        let mut listing = Listing::new(&self.inner.second, groups_prefix(&self.family()));
        while listing.peek().await?.is_some() {
            let Some(object) = listing.take() else { break };
            let Some(name) = GroupName::parse(object.key.as_str()) else {
                continue;
            };
            let generations = listed.entry(name.group).or_default();
            let generation = generations.entry(name.generation).or_default();
            match name.part {
                Part::Group => generation.has_group = true,
                Part::Parity(parity) => {
                    generation.parities |= 1 << parity;
                    generation.parity_bytes.insert(object.size_bytes);
                }
            }
            generation.bytes += object.size_bytes;
            generation.modified_ms = generation.modified_ms.max(object.modified_ms);
            generation.keys.push(object.key);
        }
        let newest: Vec<(u64, u64)> = listed
            .iter()
            .filter_map(|(group, generations)| {
                let mut committed = generations.iter().rev().filter(|(_, listed)| listed.has_group);
                committed.next().map(|(generation, _)| (*group, *generation))
            })
            .collect();
        let heads: Vec<_> = stream::iter(newest)
            .map(|(group, generation)| async move { (group, self.head(group, generation).await) })
            .buffer_unordered(SIDE_BY_SIDE)
            .collect()
            .await;
        let mut readable = BTreeMap::new();
        let mut unreadable = 0;
        for (group, head) in heads {
            match head? {
                Some(head) => drop(readable.insert(group, head)),
                None => unreadable += 1,
            }
        }
        self.learn(&listed, readable, unreadable);
        Ok(())
    }

    /// If nobody asked for long.
    pub(super) async fn refresh_if_old(&self) -> Result<(), StoreError> {
        let now = self.env().now();
        let at = self.lock().index.refreshed_at;
        match at.is_some_and(|at| now.since(at) < super::KNOWN_FOR) {
            true => Ok(()),
            false => self.refresh().await,
        }
    }

    fn learn(
        &self,
        listed: &BTreeMap<u64, BTreeMap<u64, Listed>>,
        readable: BTreeMap<u64, Arc<GroupHead>>,
        unreadable: u64,
    ) {
        let now_ms = self.env().wall().as_millis();
        let mut state = self.lock();
        let index = &mut state.index;
        index.unreadable = unreadable;
        index.refreshed_at = Some(self.env().now());
        index.groups.clear();
        index.members.clear();
        index.stale.clear();
        index.generations.clear();
        for (group, generations) in listed {
            let newest = generations.keys().next_back().copied().unwrap_or(0);
            index.generations.insert(*group, newest);
            let current = readable.get(group);
            for (generation, listed) in generations {
                let is_left_over = match current {
                    Some(head) if *generation == head.generation => false,
                    Some(head) if *generation < head.generation => true,
                    // Somebody may be about to end it.
                    Some(_) | None => {
                        !listed.has_group && now_ms.saturating_sub(listed.modified_ms) > UNFINISHED_MS
                    }
                };
                if is_left_over {
                    index.stale.extend(listed.keys.iter().cloned());
                }
            }
            if let Some(head) = current {
                let of_head = &generations[&head.generation];
                let known = Known {
                    head: head.clone(),
                    is_whole: of_head.is_whole(head),
                    bytes: of_head.bytes,
                };
                index.insert(known);
            }
        }
    }

    /// The head of a generation, `None` if it is damaged or of a newer version.
    async fn head(&self, group: u64, generation: u64) -> Result<Option<Arc<GroupHead>>, StoreError> {
        let known = self.lock().index.groups.get(&group).cloned();
        if let Some(known) = known.filter(|known| known.head.generation == generation) {
            return Ok(Some(known.head));
        }
        let key = self.group_key(group, generation, Part::Group);
        let mut bytes = self.second().get_range(&key, 0, HEAD_USUAL_BYTES as u64).await?;
        let decoded = match GroupHead::bytes_needed(&bytes) {
            Ok(needed) if needed > bytes.len() => {
                bytes = self.second().get_range(&key, 0, needed as u64).await?;
                GroupHead::decode(&bytes)
            }
            Ok(_) => GroupHead::decode(&bytes),
            Err(error) => Err(error),
        };
        let is_right = |head: &GroupHead| {
            (head.family, head.group, head.generation) == (self.family(), group, generation)
        };
        let unreadable = |error: Option<FormatError>| {
            tracing::error!(%key, ?error, "this parity group cannot be read; its members are protected by copies only");
        };
        match decoded {
            Ok(head) if is_right(&head) => Ok(Some(Arc::new(head))),
            Ok(_) => {
                unreadable(None);
                Ok(None)
            }
            Err(error) => {
                unreadable(Some(error));
                Ok(None)
            }
        }
    }

    pub(super) fn group_key(&self, group: u64, generation: u64, part: Part) -> ObjectKey {
        let name = GroupName {
            family: self.family(),
            group,
            generation,
            part,
        };
        ObjectKey::new(&name.to_string())
    }
}

impl super::Index {
    /// A group's newest generation; members of the one before are forgotten.
    pub(super) fn insert(&mut self, known: Known) {
        let group = known.head.group;
        self.remove(group);
        self.members
            .extend(known.head.members.iter().map(|member| (member.segment, group)));
        self.groups.insert(group, known);
    }

    /// It is no more.
    pub(super) fn remove(&mut self, group: u64) {
        if let Some(old) = self.groups.remove(&group) {
            for member in &old.head.members {
                if self.members.get(&member.segment) == Some(&group) {
                    self.members.remove(&member.segment);
                }
            }
        }
    }
}

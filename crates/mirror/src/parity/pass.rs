//! A pass over the second store: which cold segments join a group, which members leave theirs, and what is lost in both stores.
//!
//! | a segment | |
//! |---|---|
//! | older than `after`, in no group, not retired | joins, with others: 64 MiB of them, or what waited for `after` once more |
//! | a member, its deletion due | leaves, with others: a sixteenth of its group, or what waited for `after` |
//! | a member, in neither store, retired or unneeded | leaves |
//! | a member, in neither store, and nobody retired it | lost in both: a suspect, for a repair to judge |
//!
//! A change of a group costs its three parities read and written, hence the batches. A generation is put whole before the one before is deleted;
//! where these credentials may not delete, a group is not changed a second time, so that what is left over has a bound.

use super::{
    Ages, Grouping, Parity,
    look::{Candidate, Seen},
    rewrite::{Change, Rewritten},
    rows::RowError,
};
use crate::{MirrorError, comparison::Suspects, expiry};
use firn_anchor::Anchor;
use firn_format::SegmentId;
use firn_parity::{COLUMNS, GroupHead, GroupName, MEMBERS_MAX, Part, ROW_BYTES, ROWS_MAX};
use firn_store::{ObjectKey, StoreError};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Bytes of a group's columns.
const GROUP_BYTES: u64 = (COLUMNS * ROWS_MAX * ROW_BYTES) as u64;

/// A group with less than this takes in more.
const OPEN_BYTES: u64 = GROUP_BYTES / 4 * 3;

/// As much joins at once: an eighth of a group, for two thirds of it read and written of parities.
const BATCH_BYTES: u64 = GROUP_BYTES / 8;

/// What part of a group's bytes leaves at once.
const LEAVE_PART: u64 = 16;

impl Parity {
    /// Groups what is cold, and ungroups what is to be deleted. Gives the members that neither store has and nobody retired.
    ///
    /// # Errors
    /// [`MirrorError`]; what was put before is there, and the next pass goes on.
    pub(crate) async fn pass(
        &self,
        anchor: &Anchor,
        grouping: Grouping,
        ages: Ages,
    ) -> Result<Suspects, MirrorError> {
        let passed = self.pass_once(anchor, grouping, ages).await;
        let mut state = self.lock();
        let status = &mut state.status;
        status.last_error = passed.as_ref().err().map(ToString::to_string);
        if let Ok(suspects) = &passed {
            status.absent = suspects.len() as u64;
            status.passed_at_ms = Some(self.env().wall().as_millis());
        }
        passed
    }

    async fn pass_once(
        &self,
        anchor: &Anchor,
        Grouping { after, copies }: Grouping,
        ages: Ages,
    ) -> Result<Suspects, MirrorError> {
        // What is doomed before the groups: see `hold`.
        let held = self.enter_pass(anchor, copies).await?;
        self.refresh().await.map_err(MirrorError::Second)?;
        let undeletable = self.delete_left_over().await?;
        let mut seen = self.look(held.as_ref(), after, ages).await?;
        let mut suspects = self.judge_absent(anchor, &mut seen).await?;
        if firn_env::planted!("mirror.dropped_before_the_generation")
            && let Some(held) = &held
        {
            self.drop_planted(held, &seen).await?;
        }
        let mut changes = self.leaving(&seen, after, ages);
        let joined = self.joining(&seen, (after, ages), &undeletable, &mut changes);
        let mut broken = self.lock().index.unreadable;
        for change in changes.into_values() {
            if change.old.is_some() && undeletable.contains(&change.group) {
                continue;
            }
            match self.change(change).await {
                Ok(()) => {}
                Err(error @ (RowError::Lost { .. } | RowError::Group { .. })) => {
                    broken += 1;
                    tracing::error!(%error, "a parity group cannot be changed; it stays as it is");
                }
                Err(RowError::Store(error)) => return Err(MirrorError::Second(error)),
            }
        }
        {
            let mut state = self.lock();
            let left = seen.candidates.iter().filter(|candidate| {
                joined.contains(&candidate.segment) && state.index.members.contains_key(&candidate.segment)
            });
            let (count, bytes) = left.fold((0, 0), |(count, bytes), joined| {
                (count + 1, bytes + u64::from(joined.bytes))
            });
            state.status.waiting = seen.waiting - count;
            state.status.waiting_bytes = seen.waiting_bytes - bytes;
            state.status.broken = broken;
        }
        if let Some(held) = &held {
            suspects.extend(self.hold_after(anchor, held, &seen).await?);
        }
        Ok(suspects)
    }

    /// Groups that enough is to leave, or of which a parity is lost.
    fn leaving(&self, seen: &Seen, after: Duration, ages: Ages) -> BTreeMap<u64, Change> {
        let now_ms = i128::from(ages.now_ms);
        let longest_ms = (ages.keep_deleted + after).as_millis() as i128;
        let state = self.lock();
        let mut changes = BTreeMap::new();
        for (group, known) in &state.index.groups {
            let none = BTreeMap::new();
            let due = seen.due.get(group).unwrap_or(&none);
            let bytes = |member: &&firn_parity::Member| due.contains_key(&member.segment);
            let due_bytes: u64 = known
                .head
                .members
                .iter()
                .filter(bytes)
                .map(|member| u64::from(member.bytes))
                .sum();
            let is_old = due
                .values()
                .any(|since| now_ms - i128::from(*since) >= longest_ms);
            let is_enough = due_bytes * LEAVE_PART >= known.head.member_bytes() || is_old;
            if !known.is_whole || (!due.is_empty() && is_enough) {
                changes.insert(
                    *group,
                    Change {
                        group: *group,
                        old: Some(known.head.clone()),
                        generation: state.index.next_generation(*group),
                        leaving: due.keys().copied().collect(),
                        joining: Vec::new(),
                    },
                );
            }
        }
        changes
    }

    /// Gives candidates to groups that have room, then to new ones; which they are.
    fn joining(
        &self,
        seen: &Seen,
        (after, ages): (Duration, Ages),
        undeletable: &BTreeSet<u64>,
        changes: &mut BTreeMap<u64, Change>,
    ) -> BTreeSet<SegmentId> {
        let now_ms = i128::from(ages.now_ms);
        let has_waited = |candidate: &Candidate| {
            now_ms - i128::from(candidate.modified_ms) >= 2 * after.as_millis() as i128
        };
        if seen.waiting_bytes < BATCH_BYTES && !seen.candidates.iter().any(has_waited) {
            return BTreeSet::new();
        }
        let state = self.lock();
        let is_open = |head: &Arc<GroupHead>| {
            head.member_bytes() < OPEN_BYTES
                && head.members.len() < MEMBERS_MAX
                && !undeletable.contains(&head.group)
        };
        let open: Vec<Arc<GroupHead>> = state
            .index
            .groups
            .values()
            .map(|known| known.head.clone())
            .collect();
        let mut open = open.into_iter().filter(is_open);
        let mut candidates = seen.candidates.iter().copied().peekable();
        let mut joined = BTreeSet::new();
        while candidates.peek().is_some() {
            let head = open.next();
            let group = head
                .as_ref()
                .map_or_else(|| self.env().random_u64(), |head| head.group);
            let change = changes.entry(group).or_insert_with(|| Change {
                group,
                generation: state.index.next_generation(group),
                leaving: BTreeSet::new(),
                joining: Vec::new(),
                old: head.clone(),
            });
            let (mut bytes, mut count) =
                head.map_or((0, 0), |head| (head.member_bytes(), head.members.len()));
            while let Some(next) =
                candidates.next_if(|next| bytes + u64::from(next.bytes) <= GROUP_BYTES && count < MEMBERS_MAX)
            {
                bytes += u64::from(next.bytes);
                count += 1;
                change.joining.push((next.segment, next.bytes));
                joined.insert(next.segment);
            }
        }
        joined
    }

    async fn change(&self, change: Change) -> Result<(), RowError> {
        let (group, old) = (change.group, change.old.clone());
        let generation = change.generation;
        match self.rewrite(change).await? {
            Rewritten::Written(known) => {
                tracing::info!(
                    group = format!("{group:016x}"),
                    generation,
                    members = known.head.members.len(),
                    "a parity group was written"
                );
            }
            Rewritten::Empty => self.lock().index.remove(group),
            Rewritten::Overtaken => {
                tracing::info!(
                    group = format!("{group:016x}"),
                    "somebody else writes this parity group"
                );
                return Ok(());
            }
        }
        let Some(old) = old else { return Ok(()) };
        // The group object first: without it the rest is left over, and nobody reads a group by half.
        for part in [Part::Group, Part::Parity(0), Part::Parity(1), Part::Parity(2)] {
            let key = self.group_key(group, old.generation, part);
            if !self.delete(&key).await? {
                self.lock().status.undeleted += 1;
            }
        }
        Ok(())
    }

    /// Deletes what older generations left; the groups of which something stays.
    pub(crate) async fn delete_left_over(&self) -> Result<BTreeSet<u64>, MirrorError> {
        let stale = self.lock().index.stale.clone();
        let mut undeletable = BTreeSet::new();
        let mut undeleted = 0;
        for key in stale {
            if self.delete(&key).await.map_err(MirrorError::Second)? {
                continue;
            }
            undeleted += 1;
            undeletable.extend(GroupName::parse(key.as_str()).map(|name| name.group));
        }
        self.lock().status.undeleted = undeleted;
        Ok(undeletable)
    }

    pub(super) async fn delete(&self, key: &ObjectKey) -> Result<bool, StoreError> {
        let second = self.second();
        let keeps_versions = match second.keeps_versions().await {
            Ok(keeps) => keeps,
            Err(StoreError::Denied { .. } | StoreError::Invalid { .. }) => false,
            Err(error) => return Err(error),
        };
        expiry::remove(second, keeps_versions, key).await
    }
}

impl super::Index {
    fn next_generation(&self, group: u64) -> u64 {
        self.generations.get(&group).map_or(1, |newest| newest + 1)
    }
}

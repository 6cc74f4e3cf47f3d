//! The end of retired segments: deletion after a grace time, and what becomes of their forwarding records.
//!
//! **A segment** goes once its grace is over. Nothing is decided anew: what its retirement said stays true, since by I4 an
//! object that no root needed is needed by no later one. A store that refuses (an object lock, a missing permission) is
//! reported, and asked again in the next run. While a hold is in force (`firn_anchor::Hold`: a second store has parities in
//! place of copies), what is retired waits for its release first; its grace counts from then.
//!
//! **A forwarding record** stays: what was thought to show that nothing leads there any more does not (decision 0032). Chains of
//! records are shortened. Only a retirement that moved nothing is forgotten, once its segment is gone: no root needed any
//! object of it, so none ever will.

use crate::{
    CleanError,
    branches::{self, Branch},
    limits::Limits,
    objects::Objects,
    own_log::OwnLog,
    report::Report,
};
use firn_anchor::{DoomedSegment, RetiredSegment, Sweep, TupleVersion};
use firn_env::Monotonic;
use firn_format::{ForwardingEntry, ForwardingRecord, SegmentId};
use firn_store::{ObjectKey, StoreError};
use std::collections::BTreeSet;

/// Doomed segments listed with one query.
const PAGE: usize = 500;
/// Doomed segments whose grace is started in one transaction: what a transaction holds.
const SEEN_TOGETHER: usize = 100;
/// Doomed segments remembered so that they are not chosen again; beyond, each costs a read of the table.
const REMEMBERED: usize = 65_536;

/// Rounds forgotten by one run: more than it makes.
const ROUNDS_FORGOTTEN: usize = 100;
/// How long a first root may take: a week. It is made with a handful of requests.
const TO_COME_MS: i64 = 7 * 24 * 3600 * 1000;

/// Starts the grace of what this run has retired.
pub(crate) async fn start_grace(objects: &Objects) -> Result<(), CleanError> {
    let mut after = None;
    loop {
        let page = objects.anchor.list_doomed(after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.segment);
        see(objects, &page).await?;
    }
}

/// Deletes what has waited long enough; answers what still waits.
pub(crate) async fn delete_doomed(
    objects: &Objects,
    limits: &Limits,
    deadline: Monotonic,
    report: &mut Report,
) -> Result<BTreeSet<SegmentId>, CleanError> {
    let (env, anchor) = (&objects.env, &objects.anchor);
    let grace_ms = limits.grace.as_millis();
    let mut waiting = BTreeSet::new();
    let mut after = None;
    loop {
        let page = anchor.list_doomed(after, PAGE).await?;
        let Some(last) = page.last() else {
            return Ok(waiting);
        };
        after = Some(last.segment);
        see(objects, &page).await?;
        for doomed in page {
            let now_ms = i128::from(env.wall().as_millis());
            if let Some(since_ms) = doomed.held_since_ms
                && !firn_env::planted!("cleaner.hold_ignored")
            {
                report.hold_segments += 1;
                let oldest = report.hold_since_ms.get_or_insert(since_ms);
                *oldest = since_ms.min(*oldest);
                if waiting.len() < REMEMBERED {
                    waiting.insert(doomed.segment);
                }
                continue;
            }
            let waited_ms = doomed.seen_at_ms.map(|seen| now_ms - i128::from(seen));
            let ripe = waited_ms.is_some_and(|waited| waited >= grace_ms as i128)
                || firn_env::planted!("cleaner.delete_without_grace")
                || doomed.held_since_ms.is_some();
            let allowed =
                (report.deleted_segments as usize) < limits.deletes && env.now().since(deadline).is_zero();
            if !ripe {
                report.waiting_segments += 1;
            }
            let gone = ripe && allowed && delete(objects, doomed.segment, report).await?;
            if !gone {
                if waiting.len() < REMEMBERED {
                    waiting.insert(doomed.segment);
                }
                continue;
            }
            env.fault_point("cleaner.after_delete").await;
            anchor.forget_doomed(doomed.segment).await?;
        }
    }
}

/// Starts the grace of what nobody has seen yet.
async fn see(objects: &Objects, page: &[DoomedSegment]) -> Result<(), CleanError> {
    let unseen: Vec<DoomedSegment> = page
        .iter()
        .filter(|doomed| doomed.seen_at_ms.is_none() && doomed.held_since_ms.is_none())
        .copied()
        .collect();
    for some in unseen.chunks(SEEN_TOGETHER) {
        // If another cleaner sees one of them at this moment, the others are seen in the next run.
        objects.anchor.see_doomed(some).await?;
    }
    Ok(())
}

/// Whether the segment is gone.
async fn delete(objects: &Objects, segment: SegmentId, report: &mut Report) -> Result<bool, CleanError> {
    let key = ObjectKey::new(&segment.key(&objects.anchor.family()));
    match objects.remove(&key).await {
        Ok(()) | Err(StoreError::NotFound { .. }) => {
            report.deleted_segments += 1;
            if let Some((retired, _)) = objects.anchor.retired(segment).await? {
                report.deleted_bytes += retired.segment_bytes;
            }
            Ok(true)
        }
        Err(error @ (StoreError::Denied { .. } | StoreError::Invalid { .. })) => {
            report.held.add(error);
            Ok(false)
        }
        Err(error @ (StoreError::Unavailable { .. } | StoreError::AlreadyExists { .. })) => Err(error.into()),
    }
}

/// Looks at some retired segments: forgets those that nothing was moved out of, and shortens chains.
pub(crate) async fn tidy(
    objects: &mut Objects,
    log: &mut OwnLog,
    limits: &Limits,
    report: &mut Report,
) -> Result<(), CleanError> {
    let anchor = objects.anchor.clone();
    let after = anchor.cleaner_cursor(Sweep::Retired).await?;
    let listed = anchor.list_retired(after, limits.tidied_records).await?;
    let next = match listed.last() {
        Some((last, ..)) if listed.len() == limits.tidied_records => Some(*last),
        Some(_) | None => None,
    };
    // Read after the list: what of it is not doomed has been deleted. A segment that this run or another cleaner has retired
    // meanwhile is on the list as well; forgotten now, it would be judged and retired a second time.
    let doomed = match listed.last() {
        Some((last, ..)) => doomed_between(objects, after, *last).await?,
        None => BTreeSet::new(),
    };
    for (segment, retired, version) in listed {
        if doomed.contains(&segment) {
            continue;
        }
        if retired.moved_objects == 0 || firn_env::planted!("cleaner.prune_at_once") {
            forget(objects, segment, version, report).await?;
        } else {
            collapse(objects, log, segment, &retired, version, report).await?;
        }
    }
    if next != after {
        anchor.set_cleaner_cursor(Sweep::Retired, next).await?;
    }
    Ok(())
}

/// Forgets rounds that every manifest has taken in.
pub(crate) async fn forget_rounds(objects: &Objects, branches: &[Branch]) -> Result<(), CleanError> {
    let Some(taken_in) = branches::taken_in(branches) else {
        return Ok(());
    };
    let taken_in = match firn_env::planted!("cleaner.forget_rounds_at_once") {
        true => u64::MAX,
        false => taken_in,
    };
    // A volume without a root yet has seen some round, and may commit any time.
    let is_one_to_come = branches.iter().any(|branch| branch.head.is_none());
    let now_ms = objects.env.wall().as_millis();
    for stored in objects.anchor.list_rounds(0, ROUNDS_FORGOTTEN).await? {
        let age_ms = now_ms.saturating_sub(stored.round.retired_at_ms);
        if stored.number > taken_in || (is_one_to_come && age_ms < TO_COME_MS) {
            break;
        }
        objects.anchor.forget_round(&stored).await?;
    }
    Ok(())
}

/// What waits for its deletion behind `after`, up to `last`.
async fn doomed_between(
    objects: &Objects,
    mut after: Option<SegmentId>,
    last: SegmentId,
) -> Result<BTreeSet<SegmentId>, CleanError> {
    let mut found = BTreeSet::new();
    while after.is_none_or(|after| after < last) {
        let page = objects.anchor.list_doomed(after, PAGE).await?;
        let Some(end) = page.last() else { break };
        after = Some(end.segment);
        let segments = page.iter().map(|doomed| doomed.segment);
        found.extend(segments.filter(|segment| *segment <= last));
    }
    Ok(found)
}

async fn forget(
    objects: &Objects,
    segment: SegmentId,
    version: TupleVersion,
    report: &mut Report,
) -> Result<(), CleanError> {
    // Cleaners that were overtaken may have left records. They go first: forgotten by the table, they would lie there for ever.
    let prefix = ForwardingRecord::prefix(&objects.anchor.family(), segment);
    let listed = objects.store.list(&prefix, None).await?;
    for object in &listed.objects {
        match objects.remove(&object.key).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => {}
            Err(error @ (StoreError::Denied { .. } | StoreError::Invalid { .. })) => {
                report.held.add(error);
                return Ok(());
            }
            Err(error @ (StoreError::Unavailable { .. } | StoreError::AlreadyExists { .. })) => {
                return Err(error.into());
            }
        }
    }
    objects.env.fault_point("cleaner.after_prune").await;
    if objects.anchor.change_retired(segment, version, None).await? {
        report.forgotten_retirements += 1;
    }
    Ok(())
}

/// Rewrites a record that leads to retired segments so that it leads to where the objects are now.
async fn collapse(
    objects: &mut Objects,
    log: &mut OwnLog,
    segment: SegmentId,
    retired: &RetiredSegment,
    version: TupleVersion,
    report: &mut Report,
) -> Result<(), CleanError> {
    let family = objects.anchor.family();
    let old_key = ObjectKey::new(&ForwardingRecord::key(&family, segment, retired.mover));
    let Some(record) = objects.record(&old_key, segment).await? else {
        return Ok(());
    };
    let mut chained = false;
    let mut entries = Vec::with_capacity(record.entries.len());
    for entry in &record.entries {
        match objects.settle(&entry.new).await? {
            Some(new) if new.segment == segment => return Ok(()), // Only a forged record does that.
            Some(new) => {
                chained |= new != entry.new;
                entries.push(ForwardingEntry { new, ..*entry });
            }
            // Dead when its next place was retired, or the record there cannot be read at this moment: who can tell? It is
            // kept as it is, since an entry that leads nowhere costs some bytes and a lost one costs a file.
            None => entries.push(*entry),
        }
    }
    if !chained {
        return Ok(());
    }
    let (mover, _) = log.writer().await?;
    if mover == retired.mover {
        return Ok(());
    }
    let shorter = ForwardingRecord {
        mover,
        entries,
        ..record
    };
    let key = ObjectKey::new(&ForwardingRecord::key(&family, segment, mover));
    log.put_once(&key, vec![shorter.encode()]).await?;
    let changed = RetiredSegment {
        mover,
        moved_objects: shorter.entries.len() as u32,
        ..retired.clone()
    };
    objects.env.fault_point("cleaner.after_collapse").await;
    if objects
        .anchor
        .change_retired(segment, version, Some(&changed))
        .await?
    {
        report.collapsed_records += 1;
        match objects.remove(&old_key).await {
            Ok(()) | Err(StoreError::NotFound { .. } | StoreError::Denied { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

//! Background tasks of a journaled disk: watching nodes, writing the journal, destaging it to the disk.

use super::{
    entry::Entry,
    journaled::{Inner, Phase, State, cost_bytes},
};
use crate::types::Change;
use firn_blockd_nbd::{BlockDevice, DeviceError, Durability};
use firn_env::{Backoff, DiskError, Monotonic, Retry};
use futures::{FutureExt, future::BoxFuture};
use std::{ops::Range, sync::Arc, time::Duration};

/// Between two looks at how long nodes take.
const WATCH: Duration = Duration::from_millis(100);
/// How long writers are held up at most so that the journal can be left; and how long after that they are left alone.
const LEAVING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// Before the local disk is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two lines of the log about a journal that cannot be written.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Entries of one write to the journal: with their data at most a gibibyte, and far less in practice.
const BATCH_MAX: usize = 1024;
/// How often a journal that is not needed any more is tried to be deleted before the disk fails.
const EMPTYING: Retry = Retry::new(Backoff::constant(PAUSE), 60);
/// Syncs of the disk that are under way at once.
const SYNCS_MAX: usize = 32;

impl Inner {
    /// Looks how long nodes take, and begins the journal when they take too long.
    pub(super) async fn watch(&self) {
        let after = self.options().after;
        loop {
            self.env.sleep(WATCH).await;
            if self.gave_up().is_some() {
                // Those who wait at the bound are told.
                self.changed.notify_waiters();
            }
            if self.disk.waiting().is_none_or(|waiting| waiting < after) {
                continue;
            }
            let (first, entries) = {
                let mut state = self.state();
                if state.phase != Phase::Direct || state.failed.is_some() {
                    continue;
                }
                let pending = self.disk.pending().into_iter();
                let mut entries: Vec<Entry> = pending
                    .flat_map(|change| self.cut(change))
                    .map(Entry::Change)
                    .collect();
                entries.push(Entry::Ready);
                if firn_env::planted!("journal.forgets_what_waits") {
                    entries.drain(..entries.len() - 1);
                }
                // What comes meanwhile is behind them. The disk has them already.
                let first = state.next;
                state.next += entries.len() as u64;
                state.destaged = state.next;
                let last = state.next - 1;
                state.wanted.insert(last);
                state.phase = Phase::Entering;
                (first, entries)
            };
            tracing::warn!(
                entries = entries.len(),
                "nodes are away: changes go to the local journal"
            );
            let outcome = self.begin(first, &entries).await;
            let emptied = match &outcome {
                Ok(()) => Ok(()),
                Err(_) => self.empty_files().await,
            };
            let mut state = self.state();
            state.phase = Phase::Journaling;
            if let Err(error) = emptied {
                state.failed.get_or_insert(error);
            }
            match outcome {
                Ok(()) => {
                    state.session += 1;
                    state.synced = first + entries.len() as u64;
                    // What is held back was written before: it is in the journal.
                    self.disk.answer_deferred();
                }
                Err(error) => {
                    tracing::error!(%error, "the local journal cannot be written; writers wait for nodes");
                    state.broken = true;
                }
            }
            drop(state);
            self.changed.notify_waiters();
        }
    }

    async fn begin(&self, mut first: u64, entries: &[Entry]) -> Result<(), DiskError> {
        let files = self.files();
        files.begin_at(first);
        for batch in entries.chunks(BATCH_MAX) {
            files.append(first, batch).await?;
            first += batch.len() as u64;
        }
        Ok(())
    }

    /// Deletes what the journal holds: nobody needs it any more. It must not be there when a later attach looks, since the disk
    /// goes on without it; so writers wait until it is gone.
    async fn empty_files(&self) -> Result<(), DeviceError> {
        let mut attempts = EMPTYING.begin(&self.env);
        loop {
            let error = match self.files().clear().await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            tracing::error!(%error, "the local journal cannot be emptied; writers wait");
            if let Err(error) = attempts.again(error).await {
                return Err(DeviceError::Io(format!(
                    "the local journal cannot be emptied: {error}"
                )));
            }
        }
    }

    /// Writes what is queued to the journal, as far as its bound allows. A local disk that takes nothing is tried again until it does.
    pub(super) async fn write_entries(&self) {
        let mut warned: Option<Monotonic> = None;
        loop {
            let changed = self.changed.notified();
            let (first, batch, newly_blocked) = {
                let mut state = self.state();
                if state.failed.is_some() {
                    return;
                }
                let writes = matches!(state.phase, Phase::Journaling | Phase::Leaving) && !state.broken;
                let batch = if writes { self.fitting(&state) } else { Vec::new() };
                let blocked = writes && batch.is_empty() && !state.queue.is_empty();
                let newly_blocked = blocked && !state.blocked;
                state.blocked = blocked;
                (state.synced, batch, newly_blocked)
            };
            if batch.is_empty() {
                if newly_blocked {
                    self.changed.notify_waiters();
                }
                changed.await;
                continue;
            }
            match self.files().append(first, &batch).await {
                Ok(()) => {
                    let mut state = self.state();
                    state.queue.drain(..batch.len());
                    state.synced += batch.len() as u64;
                    if warned.take().is_some() {
                        tracing::info!("the local journal can be written again");
                    }
                }
                Err(error) => {
                    let now = self.env.now();
                    if warned.is_none_or(|warned| now.since(warned) >= WARN_EVERY) {
                        warned = Some(now);
                        tracing::error!(%error, "the local journal cannot be written; writers wait until it can, or nodes are back");
                    }
                    self.state().blocked = true;
                    self.changed.notify_waiters();
                    self.env.sleep(PAUSE).await;
                    self.do_without().await;
                }
            }
            self.changed.notify_waiters();
        }
    }

    /// The journal cannot be written. If nodes have all that it holds, changes go to them from the queue.
    async fn do_without(&self) {
        {
            let state = self.state();
            // While something is queued and not journaled, the journal is not left.
            let needed = state.durable < state.synced || state.phase != Phase::Journaling;
            if needed || state.queue.is_empty() {
                return;
            }
        }
        match self.files().clear().await {
            Ok(()) => {
                tracing::warn!("the local journal is given up; writers wait for nodes");
                self.state().broken = true;
            }
            Err(error) => tracing::error!(%error, "the local journal cannot be emptied; writers wait"),
        }
    }

    /// What of the queue has room in the journal.
    fn fitting(&self, state: &State) -> Vec<Entry> {
        let mut room = self.options().bytes_max.saturating_sub(self.files().used_bytes());
        let mut batch = Vec::new();
        for entry in state.queue.iter().take(BATCH_MAX) {
            let Entry::Change(change) = entry else { break };
            let cost = cost_bytes(change);
            // Where nothing can be given back, room for one is made: else what is larger than the journal would wait for ever.
            if cost > room && !(batch.is_empty() && state.durable >= state.synced) {
                break;
            }
            room = room.saturating_sub(cost);
            batch.push(entry.clone());
        }
        batch
    }

    /// Gives the journal's changes to the disk, in their order, and leaves the journal when that is done.
    pub(super) async fn destage(self: &Arc<Self>) {
        let mut unsynced_bytes = 0;
        loop {
            let wake = |state: &State| {
                state.phase == Phase::Journaling
                    && state.syncs < SYNCS_MAX
                    && (state.destaged < state.destageable()
                        || state.destaged == state.next
                        || state.owes_sync())
            };
            if self.until(wake).await.is_err() {
                return;
            }
            let (destaged, destageable, next) = {
                let state = self.state();
                (state.destaged, state.destageable(), state.next)
            };
            let done = if destaged < destageable {
                self.destage_one(destaged, &mut unsynced_bytes).await
            } else if destaged == next {
                self.leave(&mut unsynced_bytes).await
            } else {
                self.start_sync(destaged);
                Ok(())
            };
            if let Err(error) = done {
                tracing::error!(%error, "the disk is over; the journal is kept");
                self.state().failed = Some(error);
                self.changed.notify_waiters();
                return;
            }
        }
    }

    /// Gives the disk an entry, and tells it to make it durable if that is due. Whoever calls has seen to it that one more sync
    /// may be under way. May be given up while it waits: then the disk has the entry, or has not and it is destaged again.
    async fn destage_one(self: &Arc<Self>, number: u64, unsynced_bytes: &mut u64) -> Result<(), DeviceError> {
        let queued = self.state().queued(number);
        let entry = match queued {
            Some(entry) => Some(entry),
            None => self
                .files()
                .read(number)
                .await
                .map_err(|error| DeviceError::Io(error.to_string()))?,
        };
        let change = match entry {
            Some(Entry::Change(change)) => change,
            Some(Entry::Ready) | None => {
                self.state().destaged = number + 1;
                return Ok(());
            }
        };
        *unsynced_bytes += cost_bytes(&change);
        let blocks = self.blocks_of(&change);
        let skip = self.state().skip.remove(&number).unwrap_or_default();
        let mut requests: Vec<_> = without(blocks.clone(), &skip)
            .into_iter()
            .map(|part| self.request(&change, part))
            .collect();
        let ends_epoch = change == Change::Flush && !firn_env::planted!("journal.forgets_flushes");
        {
            // All of them take their places here, and what is due to be durable as well.
            let mut state = self.state();
            let mut waiting = Vec::new();
            for mut request in requests {
                match (&mut request).now_or_never() {
                    Some(answer) => answer?,
                    None => waiting.push(request),
                }
            }
            requests = waiting;
            state.destaged = number + 1;
            state.spans.remove(&blocks, number);
            if state.broken {
                // Nobody else takes it out of the queue.
                state.queue.pop_front();
            }
            let wanted = state.wanted.range(state.syncing..=number).next().is_some();
            let many = *unsynced_bytes >= self.options().file_bytes / 2;
            drop(state);
            if ends_epoch || wanted || many {
                *unsynced_bytes = 0;
                self.start_sync(number + 1);
            }
        }
        for request in requests {
            request.await?;
        }
        Ok(())
    }

    /// A change of some of its blocks, for the disk.
    fn request(&self, change: &Change, blocks: Range<u64>) -> BoxFuture<'static, Result<(), DeviceError>> {
        let (disk, change, block_bytes) = (self.disk.clone(), change.clone(), self.block_bytes);
        let (offset, length) = (
            blocks.start * block_bytes,
            (blocks.end - blocks.start) * block_bytes,
        );
        Box::pin(async move {
            match change {
                Change::Data { first, data } => {
                    let from = ((blocks.start - first) * block_bytes) as usize;
                    let data = data.slice(from..from + length as usize);
                    disk.write(offset, data, Durability::Acknowledged).await
                }
                Change::Zero { .. } => {
                    disk.write_zeroes(offset, length, true, Durability::Acknowledged)
                        .await
                }
                Change::Flush => Ok(()),
            }
        })
    }

    /// Makes all that was destaged so far durable, behind the back of what is destaged next. Its place is taken when this returns.
    fn start_sync(self: &Arc<Self>, upto: u64) {
        let inner = self.clone();
        let mut sync: BoxFuture<'static, Result<(), DeviceError>> = {
            let disk = self.disk.clone();
            Box::pin(async move { disk.sync().await })
        };
        let answer = (&mut sync).now_or_never();
        {
            let mut state = self.state();
            state.syncs += 1;
            state.syncing = upto;
        }
        drop(self.env.spawn_essential("journal sync", async move {
            let answer = match answer {
                Some(answer) => answer,
                None => sync.await,
            };
            inner.synced(upto, answer).await;
        }));
    }

    async fn synced(&self, upto: u64, answer: Result<(), DeviceError>) {
        let durable = {
            let mut state = self.state();
            state.syncs -= 1;
            match answer {
                Ok(()) => {
                    state.durable = state.durable.max(upto);
                    state.wanted = state.wanted.split_off(&upto);
                }
                Err(error) => state.failed = Some(error),
            }
            state.durable
        };
        self.changed.notify_waiters();
        if let Err(error) = self.files().retire(durable).await {
            tracing::warn!(%error, "files of the journal are left");
        }
        self.changed.notify_waiters();
    }

    /// Gives what came in before nobody could add to it any more, and waits until all is durable: from then on nothing is
    /// written to the journal.
    async fn drain(self: &Arc<Self>, unsynced_bytes: &mut u64) -> Result<(), DeviceError> {
        loop {
            self.until(|state| {
                state.syncs < SYNCS_MAX
                    && (state.destaged < state.destageable() || state.destaged == state.next)
            })
            .await?;
            let (destaged, destageable, syncing) = {
                let mut state = self.state();
                if state.destaged == state.next && state.durable == state.next {
                    state.phase = Phase::Emptying;
                    return Ok(());
                }
                (state.destaged, state.destageable(), state.syncing)
            };
            if destaged < destageable {
                self.destage_one(destaged, unsynced_bytes).await?;
                continue;
            }
            if syncing < destaged {
                self.start_sync(destaged);
            }
            self.until(|state| state.destaged < state.destageable() || state.durable >= destaged)
                .await?;
        }
    }

    /// Everything was destaged: makes it durable, and leaves the journal if nodes answer and nothing comes in between.
    async fn leave(self: &Arc<Self>, unsynced_bytes: &mut u64) -> Result<(), DeviceError> {
        let (end, syncing) = {
            let state = self.state();
            (state.destaged, state.syncing)
        };
        if syncing < end {
            self.start_sync(end);
        }
        let late = |inner: &Self| {
            inner
                .disk
                .waiting()
                .is_some_and(|waiting| waiting > inner.options().after / 2)
        };
        let stay = self
            .state()
            .stay_until
            .is_some_and(|until| self.env.now() < until);
        if late(self) || stay {
            let more = self.until(|state| state.destaged < state.destageable());
            return self.env.timeout(WATCH, more).await.unwrap_or(Ok(()));
        }
        self.state().phase = Phase::Leaving;
        match self.env.timeout(LEAVING.0, self.drain(unsynced_bytes)).await {
            Ok(outcome) => outcome?,
            Err(_) => {
                {
                    let mut state = self.state();
                    state.phase = Phase::Journaling;
                    state.stay_until = Some(Monotonic(self.env.now().0 + LEAVING.1.as_nanos() as u64));
                }
                self.changed.notify_waiters();
                return Ok(());
            }
        }
        self.empty_files().await?;
        {
            let mut state = self.state();
            assert_eq!(
                state.queue.len() as u64,
                state.next - state.destaged,
                "what was destaged has left the queue"
            );
            state.synced = state.destaged;
            state.broken = false;
            if state.queue.is_empty() {
                tracing::info!("nodes have all that was written; changes go to them directly");
                state.phase = Phase::Direct;
            } else {
                // Something came while the files were deleted.
                state.phase = Phase::Journaling;
            }
        }
        self.changed.notify_waiters();
        Ok(())
    }
}

/// A range without some ranges within it, which are in order.
pub(super) fn without(blocks: Range<u64>, skip: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut at = blocks.start;
    for skipped in skip {
        if at < skipped.start {
            left.push(at..skipped.start);
        }
        at = at.max(skipped.end);
    }
    if at < blocks.end {
        left.push(at..blocks.end);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{iter::once, slice::from_ref};

    #[test]
    fn what_is_skipped_is_cut_out() {
        assert_eq!(without(3..9, &[]), Vec::from_iter(once(3..9)));
        assert_eq!(without(3..9, &[3..4, 5..6, 6..7]), [4..5, 7..9]);
        assert_eq!(without(3..9, from_ref(&(3..9))), [0_u64..0; 0]);
        assert_eq!(without(0..0, &[]), [0_u64..0; 0]);
    }
}

//! What works behind a journaled disk: watching nodes, writing the journal, giving it to the disk.

use super::{
    entry::Entry,
    journaled::{Inner, Phase, State, cost_bytes},
};
use crate::types::Change;
use firn_blockd_nbd::{BlockDevice, DeviceError, Durability};
use firn_env::{DiskError, Monotonic};
use futures::{FutureExt, future::BoxFuture};
use std::{sync::Arc, time::Duration};

/// Between two looks at how long nodes take.
const WATCH: Duration = Duration::from_millis(100);
/// How long writers are held up at most so that the journal can be left; and how long after that they are left alone.
const LEAVING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// Before the local disk is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// Entries of one write to the journal: with their data at most a gibibyte, and far less in practice.
const BATCH_MAX: usize = 1024;
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
                if self.env.is_planted("journal.forgets_what_waits") {
                    entries.drain(..entries.len() - 1);
                }
                // What comes meanwhile is behind them. The disk has them already.
                let first = state.next;
                state.next += entries.len() as u64;
                state.given = state.next;
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
            let mut state = self.state();
            state.phase = Phase::Journaling;
            match outcome {
                Ok(()) => {
                    state.session += 1;
                    state.synced = first + entries.len() as u64;
                    // What is held back was written before: it is in the journal.
                    self.disk.answer_held();
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
            if let Err(error) = files.append(first, batch).await {
                files.clear().await?;
                return Err(error);
            }
            first += batch.len() as u64;
        }
        Ok(())
    }

    /// Writes what is queued to the journal, as far as its bound allows.
    pub(super) async fn write_entries(&self) {
        loop {
            let mut batch = Vec::new();
            let mut first = 0;
            let ready = self.until(|state| {
                if matches!(state.phase, Phase::Journaling | Phase::Leaving) && !state.broken {
                    (first, batch) = (state.synced, self.fitting(state));
                }
                !batch.is_empty()
            });
            if ready.await.is_err() {
                return;
            }
            if let Err(error) = self.files().append(first, &batch).await {
                tracing::error!(%error, "the local journal cannot be written; writers wait");
                self.env.sleep(PAUSE).await;
                continue;
            }
            {
                let mut state = self.state();
                state.queue.drain(..batch.len());
                state.synced += batch.len() as u64;
            }
            self.changed.notify_waiters();
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
    pub(super) async fn give(self: &Arc<Self>) {
        let mut unsynced_bytes = 0;
        loop {
            let wake = |state: &State| {
                state.phase == Phase::Journaling
                    && (state.given < state.givable() || state.given == state.next)
            };
            if self.until(wake).await.is_err() {
                return;
            }
            let (number, givable) = {
                let state = self.state();
                (state.given, state.givable())
            };
            let done = if number < givable {
                self.give_one(number, &mut unsynced_bytes).await
            } else {
                self.leave().await
            };
            if let Err(error) = done {
                tracing::error!(%error, "the disk is over; the journal is kept");
                self.state().failed = Some(error);
                self.changed.notify_waiters();
                return;
            }
        }
    }

    async fn give_one(self: &Arc<Self>, number: u64, unsynced_bytes: &mut u64) -> Result<(), DeviceError> {
        let queued = self.state().queued(number);
        let entry = match queued {
            Some(entry) => Some(entry),
            None => self
                .files()
                .read(number)
                .await
                .map_err(|error| DeviceError::Io(error.to_string()))?,
        };
        let Some(Entry::Change(change)) = entry else {
            self.state().given = number + 1;
            return Ok(());
        };
        *unsynced_bytes += cost_bytes(&change);
        let blocks = self.blocks_of(&change);
        let skip_blocks = std::mem::take(&mut self.state().skip_blocks);
        let request = match change {
            Change::Data { first, data } => {
                let skipped = skip_blocks * self.block_bytes;
                let offset = first * self.block_bytes + skipped;
                Some(
                    self.disk
                        .write(offset, data.slice(skipped as usize..), Durability::Acknowledged),
                )
            }
            Change::Zero { blocks } => {
                let (offset, length) = (blocks.start * self.block_bytes, blocks.end - blocks.start);
                let length = length * self.block_bytes;
                Some(
                    self.disk
                        .write_zeroes(offset, length, true, Durability::Acknowledged),
                )
            }
            Change::Flush => None,
        };
        let mut ends_epoch = request.is_none();
        if let Some(mut request) = request {
            let answer = {
                let mut state = self.state();
                let answer = (&mut request).now_or_never();
                state.given = number + 1;
                state.spans.remove(&blocks, number);
                answer
            };
            match answer {
                Some(answer) => answer?,
                None => request.await?,
            }
        } else {
            self.state().given = number + 1;
        }
        let wanted = self.state().wanted.range(..=number).next().is_some();
        ends_epoch &= !self.env.is_planted("journal.forgets_flushes") || wanted;
        if ends_epoch || wanted || *unsynced_bytes >= self.options().file_bytes / 2 {
            *unsynced_bytes = 0;
            self.start_sync(number + 1).await?;
        }
        Ok(())
    }

    /// Makes all that was given so far durable, behind the back of what is given next.
    async fn start_sync(self: &Arc<Self>, upto: u64) -> Result<(), DeviceError> {
        self.until(|state| state.syncs < SYNCS_MAX).await?;
        let inner = self.clone();
        let mut sync: BoxFuture<'static, Result<(), DeviceError>> = {
            let disk = self.disk.clone();
            Box::pin(async move { disk.sync().await })
        };
        // Its place is here.
        let answer = (&mut sync).now_or_never();
        self.state().syncs += 1;
        drop(self.env.spawn("journal sync", async move {
            let answer = match answer {
                Some(answer) => answer,
                None => sync.await,
            };
            inner.synced(upto, answer).await;
        }));
        Ok(())
    }

    async fn synced(&self, upto: u64, answer: Result<(), DeviceError>) {
        {
            let mut state = self.state();
            state.syncs -= 1;
            match answer {
                Ok(()) => {
                    state.durable = state.durable.max(upto);
                    state.wanted = state.wanted.split_off(&upto);
                }
                Err(error) => state.failed = Some(error),
            }
        }
        let durable = self.state().durable;
        if let Err(error) = self.files().retire(durable).await {
            tracing::warn!(%error, "files of the journal are left");
        }
        self.changed.notify_waiters();
    }

    /// Gives what came in before nobody could add to it any more, and waits until all is durable.
    async fn drain(self: &Arc<Self>) -> Result<(), DeviceError> {
        loop {
            self.until(|state| state.given < state.givable() || state.given == state.next)
                .await?;
            let (given, next) = {
                let state = self.state();
                (state.given, state.next)
            };
            if given == next {
                self.start_sync(next).await?;
                return self.until(|state| state.durable == state.next).await;
            }
            self.give_one(given, &mut 0).await?;
        }
    }

    /// Everything was given: makes it durable, and leaves the journal if nodes answer and nothing comes in between.
    async fn leave(self: &Arc<Self>) -> Result<(), DeviceError> {
        let end = self.state().given;
        if self.state().durable < end && self.state().syncs == 0 {
            self.start_sync(end).await?;
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
            let more = self.until(|state| state.given < state.givable());
            return self.env.timeout(WATCH, more).await.unwrap_or(Ok(()));
        }
        self.state().phase = Phase::Leaving;
        let settled = self.env.timeout(LEAVING.0, self.drain()).await;
        let left = match settled {
            Ok(outcome) => {
                outcome?;
                self.files().clear().await
            }
            Err(_) => {
                let mut state = self.state();
                state.phase = Phase::Journaling;
                state.stay_until = Some(Monotonic(self.env.now().0 + LEAVING.1.as_nanos() as u64));
                drop(state);
                self.changed.notify_waiters();
                return Ok(());
            }
        };
        let mut state = self.state();
        match left {
            Ok(()) if state.given == state.next => {
                tracing::info!("nodes have all that was written; changes go to them directly");
                state.phase = Phase::Direct;
                (state.synced, state.durable) = (state.next, state.next);
                state.queue.clear();
                state.broken = false;
            }
            // Something came while the files were deleted.
            Ok(()) => {
                let left = usize::try_from(state.next - state.given).unwrap_or(usize::MAX);
                let given = state.queue.len().saturating_sub(left);
                state.queue.drain(..given);
                state.synced = state.given;
                state.broken = false;
                state.phase = Phase::Journaling;
            }
            Err(error) => {
                // It is not known what is left of it: only a new attach can tell.
                state.failed = Some(DeviceError::Io(format!(
                    "the local journal cannot be emptied: {error}"
                )));
            }
        }
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }
}

//! The gate: a device before a disk that quiesces it in an instant, for a snapshot.
//!
//! ```text
//! write to a tract that …            not frozen        frozen, to be copied            frozen, copied or not to be
//! goes to the disk                   at once           when the tract was read         at once
//! ```
//!
//! A request is given to the disk under the gate's lock: the disk takes it when its future is polled first, which is
//! computation only. So each request is wholly before the freeze or wholly after it, and whoever saw one answered before
//! sees it in the snapshot. A long range that is zeroed goes in parts,
//! each a request of its own: as long as the disk takes as a whole, and tract by tract where tracts are still to be read.
//!
//! The gate also remembers which tracts were written since the last snapshot that was completed through it: the others need
//! not even be read for the next. A new gate knows nothing, so the first snapshot of an attach reads all; what a crash took
//! away is noticed that way.

use crate::{error::SnapshotError, tracts::TractSet};
use async_trait::async_trait;
use bytes::Bytes;
use firn_blockd_nbd::{BlockDevice, DeviceError, Durability, Extent, Geometry, Piece, ZEROES_AT_ONCE_BYTES};
use futures::{FutureExt, future::BoxFuture};
use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::Notify;

#[derive(Default)]
struct State {
    /// Written since the snapshot `base`.
    changed: TractSet,
    /// The newest snapshot completed through this gate, and the disk's size then.
    base: Option<(String, u64)>,
    freeze: Option<Freeze>,
}

struct Freeze {
    /// Not read yet.
    left: TractSet,
    /// Of them, being read.
    reading: TractSet,
    /// Of them, those that somebody waits for.
    urgent: BTreeSet<u64>,
    /// Where to look for the next that nobody waits for.
    cursor: u64,
}

struct Inner<D> {
    device: D,
    tract_bytes: u64,
    state: Mutex<State>,
    read: Notify,
}

/// See the module. Cheap to clone; clones are one gate.
pub struct SnapshotGate<D> {
    inner: Arc<Inner<D>>,
}

impl<D> Clone for SnapshotGate<D> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<D: BlockDevice> SnapshotGate<D> {
    /// Before a disk that nothing else writes to. `tract_bytes` is a multiple of the disk's block.
    pub fn new(device: D, tract_bytes: u32) -> Self {
        assert!(tract_bytes > 0 && tract_bytes.is_multiple_of(device.geometry().block_bytes));
        Self {
            inner: Arc::new(Inner {
                device,
                tract_bytes: tract_bytes.into(),
                state: Mutex::default(),
                read: Notify::new(),
            }),
        }
    }

    /// The disk itself.
    pub fn inner(&self) -> &D {
        &self.inner.device
    }

    /// Bytes that stand in one object.
    pub fn tract_bytes(&self) -> u32 {
        u32::try_from(self.inner.tract_bytes).expect("it was made from one")
    }

    /// The newest snapshot completed through this gate.
    pub fn base(&self) -> Option<String> {
        self.state().base.as_ref().map(|(name, _)| name.clone())
    }

    /// Freezes the disk as it is in this instant. `base`: a snapshot whose tracts need not be read where this gate knows that
    /// they did not change since.
    ///
    /// # Errors
    /// [`SnapshotError::Busy`].
    pub fn freeze(&self, base: Option<&str>) -> Result<Frozen<D>, SnapshotError> {
        let size_bytes = self.inner.device.geometry().size_bytes;
        let count = size_bytes.div_ceil(self.inner.tract_bytes);
        let mut state = self.state();
        if state.freeze.is_some() {
            return Err(SnapshotError::Busy);
        }
        let mut since_base = std::mem::take(&mut state.changed);
        let mut left = match &state.base {
            Some((name, base_bytes)) if base == Some(name) => {
                if *base_bytes < size_bytes {
                    // Its last tract is longer now.
                    let last = base_bytes / self.inner.tract_bytes;
                    since_base.insert(last..last + 1);
                }
                since_base.clone()
            }
            _ if base.is_some() && firn_env::planted!("snapshot.trusts_an_earlier_attach") => {
                since_base.clone()
            }
            _ => TractSet::all(count),
        };
        left.truncate(count);
        state.freeze = Some(Freeze {
            left,
            reading: TractSet::default(),
            urgent: BTreeSet::new(),
            cursor: 0,
        });
        Ok(Frozen {
            gate: self.clone(),
            size_bytes,
            since_base,
            completed: None,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().expect("no panic under this lock")
    }

    fn tracts(&self, offset: u64, length: u64) -> Range<u64> {
        offset / self.inner.tract_bytes..(offset + length).div_ceil(self.inner.tract_bytes)
    }

    /// Gives a request to the disk as soon as none of its tracts is to be copied any more.
    async fn pass(
        &self,
        tracts: Range<u64>,
        mut request: BoxFuture<'_, Result<(), DeviceError>>,
    ) -> Result<(), DeviceError> {
        loop {
            // Before the look: what is read in between wakes it.
            let read = self.inner.read.notified();
            let given = {
                let mut state = self.state();
                let held = state.freeze.as_mut().is_some_and(|freeze| freeze.hold(&tracts))
                    && !firn_env::planted!("snapshot.writers_pass");
                (!held).then(|| {
                    state.changed.insert(tracts.clone());
                    (&mut request).now_or_never()
                })
            };
            match given {
                Some(Some(answer)) => return answer,
                Some(None) => return request.await,
                None => read.await,
            }
        }
    }

    /// How much of a range to be zeroed from `at` on is one request: as much as the device takes as a whole, but no tract that is
    /// to be read together with one that is not, nor two of those.
    fn part(&self, at: u64, end: u64) -> u64 {
        let tract_bytes = self.inner.tract_bytes;
        let whole = (end - at).min(ZEROES_AT_ONCE_BYTES - at % ZEROES_AT_ONCE_BYTES);
        let tract = at / tract_bytes;
        let state = self.state();
        let held = state
            .freeze
            .as_ref()
            .and_then(|freeze| freeze.left.first_from(tract));
        match held {
            None => whole,
            Some(held) if held == tract => whole.min(tract_bytes - at % tract_bytes),
            Some(held) => whole.min(held * tract_bytes - at),
        }
    }
}

impl Freeze {
    /// Whether any of the tracts is still to be read; these are read first.
    fn hold(&mut self, tracts: &Range<u64>) -> bool {
        let waited: Vec<u64> = tracts
            .clone()
            .filter(|tract| self.left.contains(*tract))
            .collect();
        self.urgent.extend(&waited);
        !waited.is_empty()
    }

    /// The next tract to read.
    fn next(&mut self) -> Option<u64> {
        let urgent = self
            .urgent
            .iter()
            .copied()
            .find(|tract| !self.reading.contains(*tract));
        let tract = match urgent {
            Some(tract) => tract,
            None => {
                let mut at = self.cursor;
                loop {
                    let tract = self.left.first_from(at)?;
                    at = tract + 1;
                    if !self.reading.contains(tract) {
                        self.cursor = at;
                        break tract;
                    }
                }
            }
        };
        self.reading.insert(tract..tract + 1);
        Some(tract)
    }
}

/// A disk at an instant, as long as this lives. Dropping it lets all writes pass.
pub struct Frozen<D: BlockDevice> {
    gate: SnapshotGate<D>,
    size_bytes: u64,
    /// What was written between the base and the freeze: still so if this snapshot fails.
    since_base: TractSet,
    completed: Option<String>,
}

impl<D: BlockDevice> Frozen<D> {
    /// The disk's size at the instant.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Tracts that are still to be read.
    pub fn left(&self) -> u64 {
        let state = self.gate.state();
        state.freeze.as_ref().map_or(0, |freeze| freeze.left.count())
    }

    pub(crate) fn tract_bytes(&self) -> u64 {
        self.gate.inner.tract_bytes
    }

    /// The next tract to read, those first for which a writer waits; each is given out once.
    pub(crate) fn next(&self) -> Option<u64> {
        self.gate.state().freeze.as_mut()?.next()
    }

    /// Reads a tract as it was at the instant; writers may change it afterwards.
    pub(crate) async fn read(&self, tract: u64) -> Result<Vec<Piece>, DeviceError> {
        let device = &self.gate.inner.device;
        let mut at = tract * self.tract_bytes();
        let end = (at + self.tract_bytes()).min(self.size_bytes);
        let block_bytes = device.geometry().block_bytes;
        let once = device.geometry().payload_bytes_max / block_bytes * block_bytes;
        let mut pieces = Vec::new();
        while at < end {
            let length = u32::try_from(end - at).unwrap_or(u32::MAX).min(once);
            pieces.extend(device.read(at, length).await?);
            at += u64::from(length);
        }
        if let Some(freeze) = self.gate.state().freeze.as_mut() {
            freeze.left.remove(tract);
            freeze.urgent.remove(&tract);
        }
        self.gate.inner.read.notify_waiters();
        Ok(pieces)
    }

    /// The snapshot exists: from now on the gate remembers what changes since.
    pub(crate) fn complete(mut self, name: &str) {
        self.completed = Some(name.to_owned());
    }
}

impl<D: BlockDevice> Drop for Frozen<D> {
    fn drop(&mut self) {
        {
            let mut state = self.gate.state();
            state.freeze = None;
            match self.completed.take() {
                Some(name) => state.base = Some((name, self.size_bytes)),
                None if firn_env::planted!("snapshot.forgets_what_failed") => {}
                None => state.changed.add_all(&self.since_base),
            }
        }
        self.gate.inner.read.notify_waiters();
    }
}

#[async_trait]
impl<D: BlockDevice> BlockDevice for SnapshotGate<D> {
    fn geometry(&self) -> Geometry {
        self.inner.device.geometry()
    }

    fn is_read_only(&self) -> bool {
        self.inner.device.is_read_only()
    }

    fn is_shared_safely(&self) -> bool {
        self.inner.device.is_shared_safely()
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Vec<Piece>, DeviceError> {
        self.inner.device.read(offset, length).await
    }

    async fn write(&self, offset: u64, data: Bytes, durability: Durability) -> Result<(), DeviceError> {
        let tracts = self.tracts(offset, data.len() as u64);
        self.pass(tracts, self.inner.device.write(offset, data, durability))
            .await
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        self.inner.device.flush().await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        allow_hole: bool,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        let (mut at, end) = (offset, offset + length);
        while at < end {
            let part = self.part(at, end);
            let request = self.inner.device.write_zeroes(at, part, allow_hole, durability);
            self.pass(self.tracts(at, part), request).await?;
            at += part;
        }
        Ok(())
    }

    fn zeroes_fast(&self, allow_hole: bool) -> bool {
        self.inner.device.zeroes_fast(allow_hole)
    }

    async fn cache(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.inner.device.cache(offset, length).await
    }

    async fn extents(
        &self,
        offset: u64,
        length: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        self.inner.device.extents(offset, length, extents_max).await
    }
}

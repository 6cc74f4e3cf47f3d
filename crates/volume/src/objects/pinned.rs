//! Pinned segments: what was uploaded, whole and synced on the local disk, until the store was read back and has it.
//!
//! ```text
//! unconfirmed/<writer, 16 hex>-<sequence, 16 hex>          the segment, byte for byte
//! unconfirmed/<writer, 16 hex>-<sequence, 16 hex>.new      being written; removed by the next start
//! ```
//!
//! The disk cache may drop or lose what it has at any time; a pin stays, over restarts and power cuts, so that a segment that the
//! store acknowledged and dropped can be put again under its name, and is read from here meanwhile: by the disk cache, as if it were
//! its own (`disk/pins.rs`), which also keeps the file when it is pinned no more. Where the cache cannot, readers come here last
//! before the store.
//!
//! **Bound.** Pins take at most half of the disk cache's capacity, whose other half then holds the rest; the packer waits beyond, which is a wait of a minute. What
//! another office waits for may take the other half too ([`PinShare`]). The journal goes first: on a full disk the cache is evicted, and if that is not enough,
//! nothing is pinned.

use super::{
    Objects,
    disk::{name_of, segment_of},
};
use bytes::Bytes;
use firn_env::{DiskError, Env, OpenMode};
use firn_format::{Location, SegmentId};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

const DIRECTORY: &str = "unconfirmed";
const NEW: &str = ".new";

/// Pinned even if the cache is smaller: sixteen segments, a few seconds of uploads.
const LEAST_BYTES: u64 = 64 << 20;

/// Each takes some 150 bytes of memory while it waits.
const SEGMENTS_MAX: usize = 20_000;

/// How much of the disk cache an upload may find pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinShare {
    /// Of most uploads.
    Half,
    /// Of one behind which another office waits for a lease.
    Whole,
}

/// See the module.
pub(super) struct Pinned {
    env: Env,
    /// The disk cache's capacity.
    cache_bytes: u64,
    /// [`PinShare::Half`] of it.
    half_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// With the length.
    segments: BTreeMap<SegmentId, u64>,
    bytes: u64,
}

pub(super) fn path(segment: SegmentId) -> String {
    format!("{DIRECTORY}/{}", name_of(segment))
}

impl Pinned {
    /// Takes over what an earlier process left. A file with its final name is whole.
    pub(super) async fn open(env: &Env, cache_bytes: u64) -> Result<Self, DiskError> {
        let pinned = Self {
            env: env.clone(),
            cache_bytes,
            half_bytes: (cache_bytes / 2).max(LEAST_BYTES),
            state: Mutex::default(),
        };
        let disk = env.disk();
        disk.create_directory(DIRECTORY).await?;
        for name in disk.list(DIRECTORY).await? {
            let found = format!("{DIRECTORY}/{name}");
            match segment_of(&name) {
                Some(segment) => {
                    let status = disk.status(&found).await?;
                    pinned.lock().insert(segment, status.length_bytes);
                }
                None if name.strip_suffix(NEW).and_then(segment_of).is_some() => disk.remove(&found).await?,
                None => tracing::warn!(name, "not a pinned segment; left alone"),
            }
        }
        Ok(pinned)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the pins' lock")
    }

    /// Keeps a whole segment; its bytes are durable (level 1) when it returns, its name after [`Pinned::sync`].
    async fn keep(&self, segment: SegmentId, parts: Vec<Bytes>) -> Result<(), DiskError> {
        let length: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let disk = self.env.disk();
        let (path, new) = (path(segment), format!("{}{NEW}", path(segment)));
        match disk.remove(&new).await {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let written = async {
            let file = disk.open(&new, OpenMode::CreateNew).await?;
            file.write_at(0, parts).await?;
            if !firn_env::planted!("volume.pin_not_synced") {
                file.sync_data().await?;
            }
            disk.rename(&new, &path).await
        };
        if let Err(error) = written.await {
            // What it took is wanted by others; the next start removes it otherwise.
            let _ = disk.remove(&new).await;
            return Err(error);
        }
        self.lock().insert(segment, length);
        Ok(())
    }

    async fn sync(&self) -> Result<(), DiskError> {
        self.env.disk().sync_directory(DIRECTORY).await
    }

    /// Whether it is pinned.
    pub(super) fn holds(&self, segment: SegmentId) -> bool {
        self.lock().segments.contains_key(&segment)
    }

    async fn remove_file(&self, segment: SegmentId) {
        if let Err(error) = self.env.disk().remove(&path(segment)).await {
            tracing::debug!(%error, %segment, "a pin cannot be removed; the next start finds it again");
        }
    }

    async fn read(&self, segment: SegmentId, offset: u64, length: usize) -> Option<Bytes> {
        if !self.lock().segments.contains_key(&segment) {
            return None;
        }
        let file = self.env.disk().open(&path(segment), OpenMode::Read).await.ok()?;
        let bytes = file.read_at(offset, length).await.ok()?;
        (bytes.len() == length).then_some(bytes)
    }

    /// Bytes that may be the object, to be verified.
    pub(super) async fn read_object(&self, location: &Location) -> Option<Bytes> {
        self.read(
            location.segment,
            u64::from(location.offset),
            location.length as usize,
        )
        .await
    }

    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// What the disk cache has less room for: of a small one, half of which is less than may be pinned, half.
    pub(super) fn taken_bytes(&self) -> u64 {
        let bytes = self.bytes();
        bytes.min(self.cache_bytes / 2) + bytes.saturating_sub(self.half_bytes)
    }

    fn share_bytes(&self, share: PinShare) -> u64 {
        match share {
            PinShare::Half => self.half_bytes,
            PinShare::Whole => 2 * self.half_bytes,
        }
    }
}

impl State {
    fn insert(&mut self, segment: SegmentId, length: u64) {
        let before = self.segments.insert(segment, length).unwrap_or(0);
        self.bytes = self.bytes + length - before;
    }

    fn remove(&mut self, segment: SegmentId) -> bool {
        let length = self.segments.remove(&segment);
        self.bytes -= length.unwrap_or(0);
        length.is_some()
    }
}

impl Objects {
    /// Keeps a segment that is being uploaded until [`Objects::unpin`]; `false` if the disk refuses.
    pub(crate) async fn pin(&self, segment: SegmentId, parts: &[Bytes]) -> bool {
        let length: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if !self.inner.disk.keep_headroom(length).await {
            tracing::warn!(%segment, "the disk is full; this segment is not kept until the store was seen to have it");
            return false;
        }
        match self.inner.pinned.keep(segment, parts.to_vec()).await {
            Ok(()) => {
                self.inner.disk.set_pinned_bytes(self.inner.pinned.taken_bytes());
                true
            }
            Err(error) => {
                tracing::warn!(%error, %segment, "cannot keep this segment until the store was seen to have it");
                false
            }
        }
    }

    /// Makes the names of all pins durable.
    pub(crate) async fn sync_pins(&self) {
        if let Err(error) = self.inner.pinned.sync().await {
            tracing::warn!(%error, "pinned segments may not survive a loss of power");
        }
    }

    /// The store was seen to have it, or it is not needed any more.
    pub(crate) async fn unpin(&self, segment: SegmentId) {
        if !self.inner.pinned.lock().remove(segment) {
            return;
        }
        self.inner.disk.set_pinned_bytes(self.inner.pinned.taken_bytes());
        if !self.inner.disk.take_over(segment).await {
            self.inner.pinned.remove_file(segment).await;
        }
    }

    /// A pinned segment as it was uploaded; not verified.
    pub(crate) async fn pinned_segment(&self, segment: SegmentId) -> Option<Bytes> {
        let length = *self.inner.pinned.lock().segments.get(&segment)?;
        self.inner
            .pinned
            .read(segment, 0, usize::try_from(length).ok()?)
            .await
    }

    /// Its last bytes, at most so many.
    pub(crate) async fn pinned_tail(&self, segment: SegmentId, most: u64) -> Option<Bytes> {
        let length = *self.inner.pinned.lock().segments.get(&segment)?;
        let tail = length.min(most);
        self.inner
            .pinned
            .read(segment, length - tail, usize::try_from(tail).ok()?)
            .await
    }

    /// All pinned segments, with their lengths.
    pub(crate) fn pinned_segments(&self) -> Vec<(SegmentId, u64)> {
        let state = self.inner.pinned.lock();
        state
            .segments
            .iter()
            .map(|(segment, bytes)| (*segment, *bytes))
            .collect()
    }

    /// Whether so many bytes more may be pinned; what is larger than all that may be pinned may be so alone.
    pub(crate) fn may_pin(&self, more_bytes: u64, share: PinShare) -> bool {
        let pinned = &self.inner.pinned;
        let state = pinned.lock();
        state.segments.is_empty()
            || (state.bytes.saturating_add(more_bytes) <= pinned.share_bytes(share)
                && state.segments.len() < SEGMENTS_MAX)
    }

    /// What pins may take for an upload of this share.
    pub(crate) fn pins_max_bytes(&self, share: PinShare) -> u64 {
        self.inner.pinned.share_bytes(share)
    }

    /// Bytes on the disk that are pinned.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.inner.pinned.bytes()
    }

    /// Drops all pins, for tests: as after the time in which the store is read back.
    pub(super) async fn drop_pins(&self) {
        for (segment, _) in self.pinned_segments() {
            self.inner.disk.detach(segment);
            self.unpin(segment).await;
        }
    }
}

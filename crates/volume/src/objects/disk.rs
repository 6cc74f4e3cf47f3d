//! The disk cache (LRU by segments): one sparse file per segment, holding whichever of its ranges were fetched or uploaded.
//!
//! ```text
//! <directory>/<writer, 16 hex>-<sequence, 16 hex>      bytes stand at the offset they have in the segment
//! ```
//!
//! Nothing in it is trusted or durable: every object read from it is verified, by its uid or by the tag that it is known by, so bit rot, a torn
//! write or a file somebody else put there is a miss; no write is ever synced; and whatever the disk refuses (it is full, it fails) only means
//! that something is not cached. Which ranges are present is known for what this process wrote. Files found at the start are
//! probed: the object is read, and if it verifies it was there.
//!
//! Whole segments are evicted, the least recently used first. A found file counts with its length, which for a sparse file is
//! more than it takes: the cache may be smaller than allowed, never larger.
//!
//! The journal lies on the same disk and goes first. Whatever its capacity, the cache leaves `headroom_bytes` of the disk free
//! ([`DiskCache::keep_headroom`]), and a journal that finds the disk full all the same evicts from it ([`Reclaim`]). Evicting
//! also closes the file: one that somebody else unlinked takes its space as long as it is open.

mod pins;
mod table;

use crate::journal::Reclaim;
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{DiskError, DiskFile, Env, LogLimiter, OpenMode};
use firn_format::{Location, SegmentId, WriterId};
use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
use table::Table;

/// The headroom is looked after each time this part of it was written.
const LOOK_PART: u64 = 8;

/// The disk cache of one volume.
pub(super) struct DiskCache {
    env: Env,
    directory: String,
    capacity_bytes: u64,
    /// Taken of the capacity by segments that wait for being read back ([`super::pinned`]).
    pinned_bytes: AtomicU64,
    /// Left free on the disk, for the journal.
    headroom_bytes: u64,
    complaints: LogLimiter,
    state: Mutex<Table>,
}

pub(super) fn name_of(segment: SegmentId) -> String {
    format!("{:016x}-{:016x}", segment.writer.0, segment.sequence)
}

pub(super) fn segment_of(name: &str) -> Option<SegmentId> {
    let (writer, sequence) = name.split_once('-')?;
    let number = |digits: &str| {
        let plain = digits.len() == 16
            && digits
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
    };
    Some(SegmentId {
        writer: WriterId(number(writer)?),
        sequence: number(sequence)?,
    })
}

fn range_of(location: &Location) -> Option<std::ops::Range<u32>> {
    Some(location.offset..location.offset.checked_add(location.length)?)
}

fn lie_side_by_side(left: &Location, right: &Location) -> bool {
    left.segment == right.segment && left.offset.checked_add(left.length) == Some(right.offset)
}

impl DiskCache {
    /// Takes over what an earlier process left in the directory.
    pub(super) async fn open(
        env: &Env,
        directory: &str,
        capacity_bytes: u64,
        headroom_bytes: u64,
    ) -> Result<Self, DiskError> {
        env.disk().create_directory(directory).await?;
        let cache = Self {
            env: env.clone(),
            directory: directory.to_owned(),
            capacity_bytes,
            pinned_bytes: AtomicU64::new(0),
            headroom_bytes,
            complaints: LogLimiter::default(),
            state: Mutex::default(),
        };
        for name in env.disk().list(directory).await? {
            let Some(segment) = segment_of(&name) else {
                tracing::warn!(directory, name, "not a cached segment; left alone");
                continue;
            };
            let path = format!("{directory}/{name}");
            // One that cannot be looked at is not used.
            let Ok(status) = env.disk().status(&path).await else {
                continue;
            };
            let mut state = cache.lock();
            let found = state.entry(segment);
            found.probe = true;
            found.bytes = status.length_bytes;
            state.bytes += status.length_bytes;
        }
        cache.evict(None).await;
        cache.keep_headroom(u64::MAX).await;
        Ok(cache)
    }

    /// A cache that holds nothing.
    pub(super) fn none(env: &Env) -> Self {
        Self {
            env: env.clone(),
            directory: String::new(),
            capacity_bytes: 0,
            pinned_bytes: AtomicU64::new(0),
            headroom_bytes: 0,
            complaints: LogLimiter::default(),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.state.lock().expect("no panic under the cache's lock")
    }

    fn path(&self, segment: SegmentId) -> String {
        format!("{}/{}", self.directory, name_of(segment))
    }

    /// So much of the capacity is taken by pinned segments from the next write on.
    pub(super) fn set_pinned_bytes(&self, bytes: u64) {
        self.pinned_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Whether what is written is kept, as far as the configuration goes.
    pub(super) fn can_hold_anything(&self) -> bool {
        self.capacity_bytes > 0
    }

    /// Whether the object may be here: of a file that an earlier process left, only reading it tells.
    pub(super) fn may_hold(&self, location: &Location) -> bool {
        !self.here(std::slice::from_ref(location)).is_empty()
    }

    /// Bytes that may be the object, to be verified.
    pub(super) async fn read(&self, location: &Location) -> Option<Bytes> {
        self.read_all(&[*location]).await.pop().flatten()
    }

    /// The same for several objects. Those that lie side by side, as a file's blocks mostly do, are read by one call, each
    /// into a buffer of its own.
    pub(super) async fn read_all(&self, locations: &[Location]) -> Vec<Option<Bytes>> {
        let mut found = Vec::with_capacity(locations.len());
        for run in locations.chunk_by(lie_side_by_side) {
            // What is not here splits a run.
            let mut rest = run;
            while !rest.is_empty() {
                let here = self.here(rest);
                match here.len() {
                    0 => found.push(None),
                    _ => found.extend(self.read_run(here).await),
                }
                rest = &rest[here.len().max(1)..];
            }
        }
        found
    }

    /// The first of these objects of one segment that may be here.
    fn here<'a>(&self, run: &'a [Location]) -> &'a [Location] {
        let state = self.lock();
        let cached = run
            .first()
            .and_then(|location| state.segments.get(&location.segment));
        let is_here = |location: &&Location| {
            cached.is_some_and(|cached| {
                cached.probe || range_of(location).is_some_and(|range| cached.ranges.contains(&range))
            })
        };
        &run[..run.iter().take_while(is_here).count()]
    }

    async fn read_run(&self, run: &[Location]) -> Vec<Option<Bytes>> {
        let nothing = vec![None; run.len()];
        let Some(first) = run.first() else { return nothing };
        let Some(file) = self.file_of(first.segment).await else {
            return nothing;
        };
        let lengths: Vec<usize> = run.iter().map(|location| location.length as usize).collect();
        match file.read_parts_at(u64::from(first.offset), &lengths).await {
            Ok(parts) => {
                let whole = |(part, length): (Bytes, &usize)| (part.len() == *length).then_some(part);
                parts.into_iter().zip(&lengths).map(whole).collect()
            }
            Err(_) => nothing,
        }
    }

    /// The open file of a segment that is here.
    async fn file_of(&self, segment: SegmentId) -> Option<Arc<dyn DiskFile>> {
        let (open, is_pinned) = {
            let mut state = self.lock();
            let cached = state.segments.get(&segment)?;
            let found = (cached.file.clone(), cached.is_pinned);
            state.touch(segment);
            found
        };
        if open.is_some() {
            return open;
        }
        let opened = match is_pinned {
            false => {
                let path = self.path(segment);
                self.env.disk().open(&path, OpenMode::ReadWrite).await
            }
            true => self.open_pinned(segment).await,
        };
        let mut state = self.lock();
        match opened {
            Ok(file) => {
                // What was opened as a pin is no file to write into.
                if state.is_pinned(segment) == is_pinned {
                    state.hold_open(segment, file.clone());
                }
                Some(file)
            }
            Err(_) => {
                state.forget(segment);
                None
            }
        }
    }

    /// The object read there was the right one.
    pub(super) fn confirm(&self, location: &Location) {
        if let Some(range) = range_of(location)
            && let Some(cached) = self.lock().segments.get_mut(&location.segment)
            && cached.probe
        {
            cached.ranges.insert(range);
        }
    }

    /// The object read there was not the right one. Returns whether it should have been.
    pub(super) fn reject(&self, location: &Location) -> bool {
        let mut state = self.lock();
        let Some(range) = range_of(location) else {
            return false;
        };
        let Some(cached) = state.segments.get_mut(&location.segment) else {
            return false;
        };
        let claimed = cached.ranges.contains(&range);
        let removed = cached.ranges.remove(range);
        if !cached.probe {
            cached.bytes -= removed;
            if !cached.is_pinned {
                state.bytes -= removed;
            }
        }
        claimed
    }

    /// The ranges known to be present in `within`.
    pub(super) fn present(
        &self,
        segment: SegmentId,
        within: &std::ops::Range<u32>,
    ) -> Vec<std::ops::Range<u32>> {
        self.lock()
            .segments
            .get(&segment)
            .map(|cached| cached.ranges.overlaps(within))
            .unwrap_or_default()
    }

    /// Keeps bytes of a segment. What the disk refuses is not cached.
    pub(super) async fn write(&self, segment: SegmentId, offset: u32, parts: Vec<Bytes>) {
        let length: usize = parts.iter().map(Bytes::len).sum();
        let Some(end) = u32::try_from(length)
            .ok()
            .and_then(|length| offset.checked_add(length))
        else {
            return;
        };
        if length == 0 || length as u64 > self.capacity_bytes {
            return;
        }
        self.env.fault_point("objects.before_cache_write").await;
        if !self.keep_headroom(length as u64).await {
            return;
        }
        match self.try_write(segment, offset, parts).await {
            Ok(false) => {}
            Ok(true) => {
                let mut state = self.lock();
                let cached = state.entry(segment);
                if !cached.is_pinned {
                    let new_bytes = cached.ranges.insert(offset..end);
                    // A found file's length may count these bytes already; better too much than too little.
                    cached.bytes += new_bytes;
                    state.bytes += new_bytes;
                }
                state.touch(segment);
            }
            Err(error) => {
                self.lock().write_failures += 1;
                if self.complaints.count(self.env.now()).is_some() {
                    tracing::warn!(%error, "the disk cache cannot take more; reads go to the store");
                }
            }
        }
        self.evict(Some(segment)).await;
    }

    /// `false` if the segment is pinned: all of it is there, and nothing else may get in.
    async fn try_write(&self, segment: SegmentId, offset: u32, parts: Vec<Bytes>) -> Result<bool, DiskError> {
        let open = match self.lock().segments.get(&segment) {
            Some(cached) if cached.is_pinned => return Ok(false),
            Some(cached) => cached.file.clone(),
            None => None,
        };
        let file = match open {
            Some(file) => file,
            None => {
                let path = self.path(segment);
                let disk = self.env.disk();
                let file = match disk.open(&path, OpenMode::ReadWrite).await {
                    Err(DiskError::NotFound { .. }) => match disk.open(&path, OpenMode::CreateNew).await {
                        // Somebody made it between the two.
                        Err(DiskError::AlreadyExists { .. }) => disk.open(&path, OpenMode::ReadWrite).await?,
                        other => other?,
                    },
                    other => other?,
                };
                let mut state = self.lock();
                if state.entry(segment).is_pinned {
                    return Ok(false);
                }
                state.hold_open(segment, file.clone());
                file
            }
        };
        file.write_at(u64::from(offset), parts).await?;
        Ok(true)
    }

    /// What pins take of the capacity.
    fn pinned_share(&self) -> u64 {
        let pinned = self.pinned_bytes.load(Ordering::Relaxed);
        pinned.min(self.capacity_bytes)
    }

    /// Drops segments until the rest fits, but not `spare`.
    async fn evict(&self, spare: Option<SegmentId>) {
        self.shrink(self.capacity_bytes - self.pinned_share(), spare)
            .await;
    }

    async fn shrink(&self, target_bytes: u64, spare: Option<SegmentId>) {
        while self.lock().bytes > target_bytes {
            if self.evict_oldest(spare).await.is_none() {
                return;
            }
        }
    }

    /// Evicts the longest unused segment but `spare`, and says how many bytes it counted; `None` if there is none.
    async fn evict_oldest(&self, spare: Option<SegmentId>) -> Option<u64> {
        let (victim, bytes) = {
            let mut state = self.lock();
            let oldest = state
                .order
                .values()
                .find(|segment| Some(**segment) != spare)
                .copied()?;
            let before = state.bytes;
            // Closes its file as well.
            state.forget(oldest);
            (oldest, before - state.bytes)
        };
        // A file that cannot be removed takes its space, and is found again by the next start.
        let _ = self.env.disk().remove(&self.path(victim)).await;
        Some(bytes)
    }

    /// Before `more_bytes` are written: evicts until the disk has the headroom free. `false` if it has not even so.
    pub(super) async fn keep_headroom(&self, more_bytes: u64) -> bool {
        if self.headroom_bytes == 0 {
            return true;
        }
        {
            let mut state = self.lock();
            state.unlooked_bytes = state.unlooked_bytes.saturating_add(more_bytes);
            if state.unlooked_bytes < self.headroom_bytes / LOOK_PART {
                return true;
            }
            state.unlooked_bytes = 0;
        }
        let is_free = self.free_up(self.headroom_bytes).await;
        if !is_free {
            // Looked at again before the next write.
            self.lock().unlooked_bytes = self.headroom_bytes;
        }
        is_free
    }

    /// Evicts until the disk has so much free; `false` if nothing is left to evict. A disk that cannot say counts as free.
    async fn free_up(&self, free_bytes: u64) -> bool {
        loop {
            match self.env.disk().free_bytes().await {
                Ok(free) if free < free_bytes => {}
                Ok(_) | Err(_) => return true,
            }
            let Some(bytes) = self.evict_oldest(None).await else {
                return false;
            };
            self.lock().given_up_bytes += bytes;
        }
    }

    /// Forgets and removes everything.
    pub(super) async fn clear(&self) {
        while self.evict_oldest(None).await.is_some() {}
    }

    /// Bytes of the capacity that are taken, by pins as well.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes + self.pinned_share()
    }

    pub(super) fn segments(&self) -> u64 {
        self.lock().segments.len() as u64
    }

    pub(super) fn write_failures(&self) -> u64 {
        self.lock().write_failures
    }

    /// Evicted so far because the disk was full.
    pub(super) fn given_up_bytes(&self) -> u64 {
        self.lock().given_up_bytes
    }
}

#[async_trait]
impl Reclaim for DiskCache {
    async fn reclaim(&self, free_bytes: u64) {
        self.free_up(free_bytes).await;
    }
}

#[cfg(test)]
mod tests {
    use super::{name_of, segment_of};
    use firn_format::{SegmentId, WriterId};

    #[test]
    fn a_file_name_gives_back_its_segment_and_foreign_names_give_none() {
        let segment = SegmentId {
            writer: WriterId(0xfedc),
            sequence: 77,
        };
        assert_eq!(segment_of(&name_of(segment)), Some(segment));
        for name in [
            "",
            "-",
            "lock",
            "000000000000fedc-4d",
            "000000000000FEDC-000000000000004d",
        ] {
            assert_eq!(segment_of(name), None, "{name}");
        }
    }
}

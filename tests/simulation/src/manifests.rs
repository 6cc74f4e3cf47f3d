//! Manifests held against the bucket: what must exist is there with the right bytes, what leaves was retired, and what is in no manifest is needed by
//! nobody.

use firn_anchor::Anchor;
use firn_cleaner::{MustExist, must_exist};
use firn_env::Env;
use firn_format::{FamilyId, ManifestEntry, SegmentId, VolumeId, WriterId};
use firn_store::{ObjectKey, Store, StoreError};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

/// See the module. Its own line to bucket and table has no weather.
pub(crate) struct Manifests {
    pub env: Env,
    pub bucket: Arc<dyn Store>,
    pub anchor: Anchor,
    pub family: FamilyId,
    /// What each manifest said when it was looked at last.
    pub seen: Mutex<BTreeMap<VolumeId, Seen>>,
}

/// What a manifest said, and when.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    at_ms: i64,
    segments: BTreeSet<SegmentId>,
}

/// All manifests of the family at one moment.
struct Moment {
    by_volume: BTreeMap<VolumeId, MustExist>,
    /// Volumes with a root and without a manifest.
    without: Vec<(VolumeId, String)>,
}

impl Manifests {
    pub fn new(env: &Env, bucket: &Arc<dyn Store>, anchor: Anchor, family: FamilyId) -> Self {
        Self {
            env: env.clone(),
            bucket: bucket.clone(),
            anchor,
            family,
            seen: Mutex::default(),
        }
    }

    async fn now(&self) -> Result<Moment, String> {
        let volumes = self.anchor.volumes().await.map_err(said)?;
        let mut moment = Moment {
            by_volume: BTreeMap::new(),
            without: Vec::new(),
        };
        for volume in volumes.iter().filter(|volume| volume.tuple.root.is_some()) {
            let read = must_exist(&self.env, self.bucket.clone(), &self.anchor, volume.volume).await;
            match read.map_err(|error| format!("the manifest of {}: {error}", volume.tuple.name))? {
                Some(found) => drop(moment.by_volume.insert(volume.volume, found)),
                None => moment.without.push((volume.volume, volume.tuple.name.clone())),
            }
        }
        Ok(moment)
    }

    /// What is wrong with the manifests now. No edge serves, and cleaners are paused; what a stalled one retires meanwhile makes this look again.
    pub async fn check(&self) -> Vec<String> {
        for _ in 0..8 {
            let Ok((before, _)) = self.anchor.cleaner_round().await else {
                continue;
            };
            let found = self.look().await;
            match self.anchor.cleaner_round().await {
                Ok((after, _)) if after == before => return found,
                Ok(_) | Err(_) => {}
            }
        }
        Vec::new()
    }

    async fn look(&self) -> Vec<String> {
        let moment = match self.now().await {
            Ok(moment) => moment,
            Err(error) => return vec![error],
        };
        let had_one = |volume: &VolumeId| {
            let seen = self.seen.lock().expect("no panic under this lock");
            seen.contains_key(volume)
        };
        // Salvage clones have none, nor have clones of them.
        let mut wrong: Vec<String> = moment
            .without
            .iter()
            .filter(|(volume, _)| had_one(volume))
            .map(|(_, name)| format!("volume {name} has no manifest any more"))
            .collect();
        for (volume, found) in &moment.by_volume {
            if !found.is_whole {
                // A retirement that nobody told of may have it begun anew; it is judged once it is whole.
                self.seen.lock().expect("no panic under this lock").remove(volume);
                continue;
            }
            for (segment, entry) in &found.segments {
                if let Some(why) = self.compare(*segment, entry).await {
                    wrong.push(format!("segment {segment} of a manifest: {why}"));
                }
            }
            let before = {
                let mut seen = self.seen.lock().expect("no panic under this lock");
                let seen = seen.entry(*volume).or_default();
                let now = Seen {
                    at_ms: self.env.wall().as_millis(),
                    // That of the checkpoint is entered with the next one.
                    segments: found.segments.keys().copied().chain([found.tail]).collect(),
                };
                std::mem::replace(seen, now)
            };
            for segment in before.segments {
                let is_there = found.segments.contains_key(&segment) || segment == found.tail;
                if !is_there && !self.was_retired(segment, before.at_ms).await {
                    wrong.push(format!("segment {segment} left a manifest and was not retired"));
                }
            }
        }
        wrong
    }

    async fn compare(&self, segment: SegmentId, entry: &ManifestEntry) -> Option<String> {
        match self.bucket.get(&self.key(segment)).await {
            Ok(bytes) if is_entry_of(&bytes, entry) => None,
            Ok(bytes) => Some(format!("{} bytes there are not those of {entry:?}", bytes.len())),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Gone, or waiting for its deletion, or gone since then and put again by an edge that took it for lost.
    async fn was_retired(&self, segment: SegmentId, since_ms: i64) -> bool {
        match self.bucket.head(&self.key(segment)).await {
            Err(StoreError::NotFound { .. }) => return true,
            Ok(found) if found.modified_ms > since_ms => return true,
            Ok(_) | Err(_) => {}
        }
        matches!(self.anchor.retired(segment).await, Ok(Some(_)))
    }

    fn key(&self, segment: SegmentId) -> ObjectKey {
        ObjectKey::new(&segment.key(&self.family))
    }

    /// Deletes every segment that no manifest has: whoever reads cold then finds out whether one was needed. Not if a volume has none.
    pub async fn delete_others(&self) -> Result<u64, String> {
        let moment = self.now().await?;
        let are_whole = moment.by_volume.values().all(|found| found.is_whole);
        if !moment.without.is_empty() || !are_whole {
            return Ok(0);
        }
        let mut kept: BTreeSet<SegmentId> = BTreeSet::new();
        for found in moment.by_volume.values() {
            kept.extend(found.segments.keys());
            kept.insert(found.tail);
        }
        let any = SegmentId {
            writer: WriterId(0),
            sequence: 0,
        };
        let key = any.key(&self.family);
        let (family, _) = key
            .split_once("/log/")
            .expect("a segment lies in its family's log");
        let prefix = format!("{family}/log/");
        let (mut after, mut deleted) = (None, 0);
        loop {
            let page = self.bucket.list(&prefix, after.as_ref()).await.map_err(said)?;
            for listed in &page.objects {
                let Some((_, segment)) = SegmentId::parse_key(listed.key.as_str()) else {
                    continue;
                };
                // Its deletion is the cleaner's, which would miss it.
                let is_doomed = self.anchor.retired(segment).await.map_err(said)?.is_some();
                if !kept.contains(&segment) && !is_doomed {
                    self.bucket.delete(&listed.key).await.map_err(said)?;
                    deleted += 1;
                }
            }
            after = page.objects.last().map(|listed| listed.key.clone());
            if !page.more || after.is_none() {
                return Ok(deleted);
            }
        }
    }
}

/// Whether it says what is in these bytes: of a long segment that was gathered, the index.
fn is_entry_of(bytes: &bytes::Bytes, entry: &ManifestEntry) -> bool {
    ManifestEntry::of_bytes(bytes, entry.birth).is_some_and(|found| match entry.has_segment_hash() {
        true => found == *entry,
        false => (found.length, found.index_hash) == (entry.length, entry.index_hash),
    })
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

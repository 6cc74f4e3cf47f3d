//! Failures of an audit, looked up once more in the newest roots.
//!
//! A volume goes on while it is audited, and so do its cleaners. What could not be read counts only if a root that is retained now
//! still has it at its place: what was released meanwhile may be gone, and what was moved meanwhile is read where it is now. Since they
//! go on during that look, too, it is taken again until nothing was committed or retired in between.

use super::{census::Failure, report::VolumeAudit};
use crate::{
    CleanError, Damage,
    branches::{self, Branch, Trees},
    lookup::lookup,
    objects::Objects,
};
use firn_anchor::CleanerRound;
use firn_format::{Pointer, SegmentId, Version, VolumeId};
use firn_store::{ObjectKey, StoreError};
use std::collections::BTreeSet;

/// Failures that are looked up; where there are more, some of them are enough to know.
const KEPT: usize = 4096;
/// Times that failures are looked up while the volume goes on meanwhile.
const LOOKED: usize = 8;
/// Times that roots are read until damage in them is believed.
const LOADED: usize = 8;
/// Segments that are asked for by name, to say which are lost.
const SEGMENTS: usize = 32;

/// See the module.
#[derive(Default)]
pub(super) struct Failures {
    kept: Vec<Failure>,
    /// Beyond them, of draws and of others.
    more_drawn: u64,
    more: u64,
}

impl Failures {
    pub fn add(&mut self, failure: Failure) {
        if self.kept.len() < KEPT {
            self.kept.push(failure);
        } else if failure.is_drawn {
            self.more_drawn += 1;
        } else {
            self.more += 1;
        }
    }

    /// Judges what failed and writes it into the report.
    pub async fn settle(
        self,
        objects: &mut Objects,
        audited: &Branch,
        report: &mut VolumeAudit,
    ) -> Result<(), CleanError> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let audited_version = audited
            .head
            .as_ref()
            .map_or(Version(0), |head| head.trees.version);
        let mut open = self.kept;
        let mut seen = Moment::see(objects, audited.volume).await?;
        for _ in 0..LOOKED {
            if open.is_empty() {
                break;
            }
            let roots = seen.roots();
            let mut failed = Vec::new();
            for failure in open {
                let version = failure.sample.version;
                let roots = roots
                    .iter()
                    .copied()
                    .filter(|trees| trees.version == version || trees.version > audited_version);
                match look(objects, roots, &failure).await? {
                    Seen::NotNeeded => report.count_released(failure.is_drawn),
                    Seen::Right if failure.is_drawn => report.intact += 1,
                    // What hangs on it was not counted.
                    Seen::Right => report.count_moved(),
                    Seen::Damaged(damage, segment) => failed.push((failure, damage, segment)),
                }
            }
            // What was true when the look began and when it ended was true all the time.
            let now = Moment::see(objects, audited.volume).await?;
            if now.stamp == seen.stamp {
                return report_damages(objects, failed, (self.more_drawn, self.more), report).await;
            }
            open = failed.into_iter().map(|(failure, ..)| failure).collect();
            seen = now;
        }
        // A volume that goes on so fast is not judged.
        for _ in open {
            report.count_moved();
        }
        if self.more_drawn + self.more > 0 {
            report.count_moved();
        }
        Ok(())
    }
}

/// A volume and the retirements of its family at one moment.
struct Moment {
    branch: Option<Branch>,
    stamp: Stamp,
}

/// What differs if anything was committed, proposed or retired meanwhile.
type Stamp = (Option<Pointer>, Option<Pointer>, Vec<Version>, CleanerRound);

impl Moment {
    async fn see(objects: &mut Objects, volume: VolumeId) -> Result<Self, CleanError> {
        let (round, _) = objects.anchor.cleaner_round().await?;
        let branches = branches_now(objects).await?;
        let branch = branches.into_iter().find(|branch| branch.volume == volume);
        let root = branch.as_ref().and_then(|branch| branch.tuple.root.as_ref());
        let committed = root.map(|root| Pointer {
            uid: root.uid,
            location: root.location,
        });
        let head = branch.as_ref().and_then(|branch| branch.head.as_ref());
        let read = head.and_then(|head| head.trees.checkpoint);
        let retained = branch.iter().flat_map(|branch| &branch.retained);
        let retained = retained.map(|trees| trees.version).collect();
        Ok(Self {
            stamp: (committed, read, retained, round),
            branch,
        })
    }

    fn roots(&self) -> Vec<&Trees> {
        let head = self.branch.iter().filter_map(|branch| branch.head.as_ref());
        let retained = self.branch.iter().flat_map(|branch| &branch.retained);
        head.map(|head| &head.trees).chain(retained).collect()
    }
}

/// What the newest roots say of an object that could not be read.
enum Seen {
    NotNeeded,
    Right,
    Damaged(Damage, SegmentId),
}

async fn look<'a>(
    objects: &mut Objects,
    roots: impl Iterator<Item = &'a Trees>,
    failure: &Failure,
) -> Result<Seen, CleanError> {
    if firn_env::planted!("cleaner.audit_takes_lost_for_released") {
        return Ok(Seen::NotNeeded);
    }
    let sample = failure.sample;
    let (mut needed, mut way_is_damaged) = (None, false);
    for trees in roots {
        match lookup(objects, trees, sample.place).await {
            Ok(Some(found)) if found.pointer.uid == sample.pointer.uid => {
                needed = Some(found.pointer);
                break;
            }
            Ok(_) => {}
            Err(CleanError::Damaged(_)) => way_is_damaged = true,
            Err(error) => return Err(error),
        }
    }
    if needed.is_none() && !way_is_damaged {
        return Ok(Seen::NotNeeded);
    }
    let pointer = needed.unwrap_or(sample.pointer);
    match objects.get_anew(&pointer, sample.place).await {
        Ok(_) => Ok(Seen::Right),
        Err(CleanError::Damaged(damage)) => {
            let settled = objects.settle(&pointer.location).await?;
            let segment = settled.unwrap_or(pointer.location).segment;
            Ok(Seen::Damaged(damage, segment))
        }
        Err(error) => Err(error),
    }
}

async fn report_damages(
    objects: &mut Objects,
    failed: Vec<(Failure, Damage, SegmentId)>,
    (more_drawn, more): (u64, u64),
    report: &mut VolumeAudit,
) -> Result<(), CleanError> {
    let mut segments = BTreeSet::new();
    for (failure, damage, segment) in failed {
        report.add_damage(&damage, segment, failure.is_drawn);
        if segments.len() < SEGMENTS {
            segments.insert(segment);
        }
    }
    report.add_more(more_drawn, more);
    report.damaged_segments.extend(&segments);
    for segment in segments {
        if is_lost(objects, segment).await? {
            let name = segment.to_string();
            if !report.lost_segments.contains(&name) {
                report.lost_segments.push(name);
            }
        }
    }
    Ok(())
}

/// All volumes as they are now. What a root that was replaced meanwhile needed may be gone, so damage counts only if it stays.
pub(super) async fn branches_now(objects: &mut Objects) -> Result<Vec<Branch>, CleanError> {
    for _ in 1..LOADED {
        objects.learn_retirements().await?;
        match branches::load(objects).await {
            Err(CleanError::Damaged(_)) => {}
            loaded => return loaded,
        }
    }
    objects.learn_retirements().await?;
    branches::load(objects).await
}

/// Whether a segment is neither in the bucket nor retired.
async fn is_lost(objects: &mut Objects, segment: SegmentId) -> Result<bool, CleanError> {
    let key = ObjectKey::new(&segment.key(&objects.anchor.family()));
    match objects.store.head(&key).await {
        Ok(_) => Ok(false),
        Err(StoreError::NotFound { .. }) => Ok(!objects.is_retired(segment).await?),
        Err(error) => Err(error.into()),
    }
}

//! Report of an audit: what was read, what was drawn, what was found, and what would have been.

use super::place::AuditPlace;
use crate::{Damage, DamagedFile};
use firn_format::SegmentId;
use firn_quantity::Money;
use firn_store::Usage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Damages named in a report at most; beyond, only their number grows.
const NAMED: usize = 32;

/// The shares of damaged bytes for which a report tells how likely they would have been found.
pub const SHARES: [f64; 4] = [0.0001, 0.001, 0.01, 0.05];

/// What an audit found, volume by volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditReport {
    /// Those that were audited. Empty: none of those that were asked for was ever committed.
    pub volumes: Vec<VolumeAudit>,
    /// The book of prices.
    pub prices: String,
    /// What the store charges for the audit, by it.
    pub cost: Money,
    /// Its requests by class, and their bytes.
    pub usage: Usage,
}

/// How likely so much damage would have been found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detection {
    /// Share of the data's bytes that is lost or altered.
    pub share: f64,
    /// The probability that one challenge at least would have met it.
    pub probability: f64,
}

/// What an audit found in one volume: its head, its snapshots, and roots retained at takeovers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeAudit {
    /// Its id.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// The version of its head that was audited.
    pub version: u64,
    /// The hash of that root.
    pub root: String,
    /// When it was committed, milliseconds since 1970.
    pub committed_at_ms: i64,
    /// Snapshots and other roots that are retained.
    pub retained_roots: u64,
    /// Those of them that were gone through.
    pub walked_roots: u64,
    /// Nodes, inodes and leaves of the usage map that were read, and are right.
    pub read_objects: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Blocks of files and pages of directories that the trees lead to.
    pub data_objects: u64,
    /// Their bytes, sealed: those of which the draws are.
    pub data_bytes: u64,
    /// Bytes that were to be drawn.
    pub asked: u64,
    /// What the draws follow from, 64 hex digits: whoever has it draws the same of the same roots. Empty in reports of old builds.
    #[serde(default)]
    pub seed: String,
    /// A hash of what was drawn, slot by slot: the same if it was drawn anew.
    #[serde(default)]
    pub drawn: String,
    /// Draws whose object was there and right.
    pub intact: u64,
    /// Draws whose object was not.
    pub damaged_draws: u64,
    /// Draws whose object no root needed any more when it was found to be gone; they count as none.
    pub released: u64,
    /// Nodes and inodes that are lost or damaged: found for certain, since all are read.
    pub damaged_nodes: u64,
    /// Nodes and inodes that were moved while they were read, so that what hangs on them was not counted.
    pub moved: u64,
    /// What is lost or damaged, the first few.
    pub damaged: Vec<DamagedFile>,
    /// Segments that are needed, and neither in the bucket nor retired; the first few.
    pub lost_segments: Vec<String>,
    /// Segments in which what is lost or damaged should lie, the first few, for whoever repairs.
    #[serde(skip)]
    pub damaged_segments: BTreeSet<SegmentId>,
    /// Whether everything was gone through and each draw was answered.
    pub is_complete: bool,
    /// Where it began, if it went on with an audit that was cut off; that is no complete one, though it may end a round.
    #[serde(default)]
    pub began_at: Option<AuditPlace>,
    /// Where the money ended, so that the next one can go on there; `None`: all from where it began to the end was gone through.
    #[serde(default)]
    pub goes_on_at: Option<AuditPlace>,
    /// How likely damage of some extents would have been found, by the draws that were answered.
    pub detections: Vec<Detection>,
    /// What the manifest of segments says and the bucket has; `None` of a volume without one, and in reports of old builds.
    #[serde(default)]
    pub manifest: Option<ManifestAudit>,
    /// What the second store has; `None` if there is none or it was not to be audited, and in reports of old builds.
    #[serde(default)]
    pub second: Option<SecondAudit>,
}

/// What a second store should have, held against what it has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SecondAudit {
    /// Whether the draws are of all segments that the manifest says, and of the parities. Otherwise they are those of the trees' data.
    pub has_manifest: bool,
    /// Segments that the manifest says.
    pub segments: u64,
    /// Those of them of which there is a copy.
    pub copies: u64,
    /// Those without a copy that are members of a parity group.
    pub in_groups: u64,
    /// Those that the mirror has not copied yet.
    pub waiting: u64,
    /// Parity groups of the family.
    pub groups: u64,
    /// Bytes of which the draws are: copies, members without copies, parities.
    pub bytes: u64,
    /// Bytes that were to be drawn.
    pub asked: u64,
    /// Draws that were right.
    pub intact: u64,
    /// Draws that were not.
    pub damaged: u64,
    /// Draws of what was retired, copied or written anew meanwhile.
    pub released: u64,
    /// Segments of which there is neither a copy nor a group, and that are old enough to be there.
    pub missing: u64,
    /// Objects that are not as they were put.
    pub altered: u64,
    /// Groups whose object cannot be read.
    pub unreadable_groups: u64,
    /// What is missing or altered, the first few.
    pub named: Vec<SecondDamage>,
    /// Whether everything was gone through and each draw was answered.
    pub is_complete: bool,
    /// Why it could not be.
    pub error: Option<String>,
    /// How likely damage of some extents would have been found, by the draws that were answered.
    pub detections: Vec<Detection>,
}

/// Something in a second store that is missing or altered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecondDamage {
    /// The object's name in the store.
    pub key: String,
    /// What is wrong with it.
    pub detail: String,
}

impl SecondAudit {
    /// Whether nothing that was found is wrong.
    pub fn is_intact(&self) -> bool {
        self.missing == 0 && self.altered == 0 && self.unreadable_groups == 0
    }

    /// Draws that were answered.
    pub fn answered(&self) -> u64 {
        self.intact + self.damaged
    }

    /// With which probability this audit finds a share of the bytes damaged, whichever these are.
    pub fn probability(&self, share: f64) -> f64 {
        found_by(self.answered(), share)
    }

    pub(super) fn estimate(&mut self) {
        self.detections = detections(self.answered());
    }

    pub(super) fn add(&mut self, damage: SecondDamage) {
        if self.named.len() < NAMED {
            self.named.push(damage);
        }
    }
}

fn found_by(answered: u64, share: f64) -> f64 {
    1.0 - (1.0 - share.clamp(0.0, 1.0)).powf(answered as f64)
}

fn detections(answered: u64) -> Vec<Detection> {
    let told = SHARES.iter().map(|share| Detection {
        share: *share,
        probability: found_by(answered, *share),
    });
    told.collect()
}

/// A manifest held against the bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ManifestAudit {
    /// Segments that must exist.
    pub segments: u64,
    /// Their bytes, live or not: those of which the draws are.
    pub bytes: u64,
    /// Those that a listing shows, with their length.
    pub shown: u64,
    /// Bytes that were to be drawn.
    pub asked: u64,
    /// Draws whose segment was there and right, as far as it was read.
    pub intact: u64,
    /// Segments that are not there.
    pub lost: u64,
    /// Segments that are there and not as they were put.
    pub altered: u64,
    /// Segments that were found wrong and are not looked at one by one, since there are so many.
    pub more: u64,
    /// Segments that were found missing, and had been retired meanwhile.
    pub released: u64,
    /// Those that are not as they were put, the first few; the lost ones are among the volume's lost segments.
    pub altered_segments: Vec<String>,
    /// Whether all of it was read and each draw was answered.
    pub is_complete: bool,
    /// Draws of the trees' data whose segment was looked for in the manifest; 0 in reports of old builds.
    #[serde(default)]
    pub looked_for: u64,
    /// Those of them that the manifest has.
    #[serde(default)]
    pub covered: u64,
    /// Of a manifest that does not have all yet.
    #[serde(default)]
    pub gathering: Option<GatheringAudit>,
}

/// How far a manifest is gathered from the trees, as its root says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GatheringAudit {
    /// Segments entered from the trees.
    pub segments: u64,
    /// Those of them that were lost or altered when they were met.
    pub lost: u64,
    /// Nodes and inodes that could not be read, so that what only they lead to is not entered.
    pub unreadable: u64,
    /// Nothing is gathered any more, since there are such.
    pub has_gaps: bool,
}

impl ManifestAudit {
    /// Which share of the trees' data the manifest has the segments of, by the draws; `None`: nothing was looked for.
    pub fn coverage(&self) -> Option<f64> {
        (self.looked_for > 0).then(|| self.covered as f64 / self.looked_for as f64)
    }

    /// How much of what must exist it says, for people.
    pub fn coverage_text(&self) -> String {
        let measured = match self.coverage() {
            None => "nobody knows how much".to_owned(),
            Some(share) => format!(
                "{:.2} % of the data, by {} of {} draws",
                share * 100.0,
                self.covered,
                self.looked_for
            ),
        };
        match &self.gathering {
            None => format!("is whole: it has the segments of {measured}"),
            Some(gathering) => {
                let state = match gathering.has_gaps {
                    true => format!("ended with {} gaps", gathering.unreadable),
                    false => "being gathered".to_owned(),
                };
                format!(
                    "is not whole, {state}: it has the segments of {measured}; {} were entered from the trees, {} of them lost or altered",
                    gathering.segments, gathering.lost
                )
            }
        }
    }

    /// Whether nothing that was found is wrong.
    pub fn is_intact(&self) -> bool {
        self.lost == 0 && self.altered == 0
    }

    pub(super) fn add(&mut self, segment: SegmentId, is_lost: bool, report: &mut VolumeAudit) {
        let (count, named) = match is_lost {
            true => (&mut self.lost, &mut report.lost_segments),
            false => (&mut self.altered, &mut self.altered_segments),
        };
        *count += 1;
        let name = segment.to_string();
        if named.len() < NAMED && !named.contains(&name) {
            named.push(name);
        }
        if report.damaged_segments.len() < NAMED {
            report.damaged_segments.insert(segment);
        }
    }
}

impl AuditReport {
    /// Whether nothing that was found is wrong.
    pub fn is_intact(&self) -> bool {
        self.is_first_intact() && self.volumes.iter().all(VolumeAudit::is_second_intact)
    }

    /// Whether nothing that was found is wrong in the first store, by which readers are served.
    pub fn is_first_intact(&self) -> bool {
        self.volumes.iter().all(VolumeAudit::is_intact)
    }

    /// Whether all was gone through, of each volume by this audit or by those that it went on with.
    pub fn has_come_to_the_end(&self) -> bool {
        let has = |volume: &VolumeAudit| volume.is_complete || volume.ends_a_round();
        !self.volumes.is_empty() && self.volumes.iter().all(has)
    }

    /// Whether all was gone through that was to be.
    pub fn is_complete(&self) -> bool {
        !self.volumes.is_empty() && self.volumes.iter().all(|volume| volume.is_complete)
    }
}

impl VolumeAudit {
    /// Whether nothing that was found is wrong in the first store.
    pub fn is_intact(&self) -> bool {
        let manifest = self.manifest.as_ref().is_none_or(ManifestAudit::is_intact);
        self.damaged_draws == 0 && self.damaged_nodes == 0 && manifest
    }

    /// Whether nothing that was found wrong is in the second store.
    pub fn is_second_intact(&self) -> bool {
        self.second.as_ref().is_none_or(SecondAudit::is_intact)
    }

    /// Whether it went on with audits that were cut off, and came to the end: with them, everything was gone through.
    pub fn ends_a_round(&self) -> bool {
        let manifest = self.manifest.as_ref().is_none_or(|manifest| manifest.is_complete);
        let second = self.second.as_ref().is_none_or(|second| second.is_complete);
        self.began_at.is_some() && self.goes_on_at.is_none() && self.moved == 0 && manifest && second
    }

    /// Draws that were answered.
    pub fn answered(&self) -> u64 {
        self.intact + self.damaged_draws
    }

    /// With which probability this audit finds a share of the data's bytes damaged, whichever these are.
    pub fn probability(&self, share: f64) -> f64 {
        found_by(self.answered(), share)
    }

    pub(super) fn estimate(&mut self) {
        self.detections = detections(self.answered());
    }

    pub(super) fn count_released(&mut self, is_drawn: bool) {
        self.released += u64::from(is_drawn);
    }

    pub(super) fn count_moved(&mut self) {
        self.moved += 1;
        self.is_complete = false;
    }

    pub(super) fn add_damage(&mut self, damage: &Damage, segment: SegmentId, is_drawn: bool) {
        self.add_more(u64::from(is_drawn), u64::from(!is_drawn));
        let file = DamagedFile {
            inode: damage.inode(),
            detail: format!("{damage}; it should lie in segment {segment}"),
        };
        if self.damaged.len() < NAMED && !self.damaged.contains(&file) {
            self.damaged.push(file);
        }
    }

    pub(super) fn add_more(&mut self, drawn: u64, nodes: u64) {
        self.damaged_draws += drawn;
        self.damaged_nodes += nodes;
    }
}

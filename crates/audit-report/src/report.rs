//! Fields of a report, in the order in which they are written.
//!
//! No names of people's: a copy lies unsealed in the bucket, whose readers know ids and inode numbers already (docs/formats.md), and no more
//! than these. The ownership statement, which is sealed, has the owner's name.
//!
//! Probabilities are integers, in millionths and rounded down: no two programs print a fraction alike, and a report must not promise more
//! than is true. Texts are cut to [`TEXT_BYTES_MAX`] and lists to [`NAMED_MAX`], so that a report has a bound.

use crate::{VERSION, VERSION_OF_ONE_STORE, hex};
use firn_format::VolumeId;
use serde::{Deserialize, Serialize};

/// A sentence or two; what a store answers in an error can be a page.
const TEXT_BYTES_MAX: usize = 500;
/// Damages and segments that are named; beyond, the counts tell.
const NAMED_MAX: usize = 32;
/// Objects of a second store that are named.
const SECOND_NAMED_MAX: usize = 8;

/// Who wanted an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskedBy {
    /// The edge's configuration.
    Calendar,
    /// Somebody who typed it.
    Administrator,
}

impl AskedBy {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Calendar => "calendar",
            Self::Administrator => "administrator",
        }
    }
}

/// How an audit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All was asked, all was there and right.
    Intact,
    /// Something is lost or altered.
    Damaged,
    /// The budget ended before everything was asked; what was asked was right.
    Incomplete,
    /// The store or the table could not be asked.
    Failed,
    /// Nothing was committed yet.
    Empty,
}

impl Outcome {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Intact => "intact",
            Self::Damaged => "damaged",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
            Self::Empty => "empty",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    #[serde(rename = "firn audit report")]
    AuditReport,
}

/// One audit of one volume. All fields are in what is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    kind: Kind,
    version: u32,
    /// Which report of the volume's it is, from 1.
    pub sequence: u64,
    /// The hash of the report before it; `None` of the first, or if none before it could be read.
    #[serde(with = "hex::optional")]
    pub previous: Option<[u8; 32]>,
    /// Of which volume.
    pub volume: AuditedVolume,
    /// Who signed.
    pub signer: Signer,
    /// Who wanted it.
    pub asked_by: AskedBy,
    /// Milliseconds since 1970, by the signer's clock.
    pub began_at_ms: i64,
    /// The same.
    pub ended_at_ms: i64,
    /// How it ended.
    pub outcome: Outcome,
    /// What is wrong; nothing if all is well.
    pub detail: Option<String>,
    /// `None`: the root itself is lost or damaged.
    pub audited: Option<Audited>,
    /// What it cost.
    pub cost: Cost,
}

/// Which volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditedVolume {
    /// The family's id.
    #[serde(with = "hex")]
    pub family: [u8; 16],
    /// The volume's.
    pub id: VolumeId,
}

/// Who signed: an owner of the volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signer {
    /// The owner's id.
    #[serde(with = "hex")]
    pub owner: [u8; 16],
    /// Which giving of ownership: its statement in the bucket names the key.
    pub epoch: u64,
    /// What was drawn for it.
    #[serde(with = "hex")]
    pub grant: [u8; 16],
    /// Ed25519.
    #[serde(with = "hex")]
    pub key: [u8; 32],
    /// The program and its version.
    pub program: String,
}

/// What was looked at, what was drawn and what was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Audited {
    /// The head.
    pub root: AuditedRoot,
    /// Snapshots and other roots that are retained.
    pub retained_roots: u64,
    /// Those of them that were gone through.
    pub walked_roots: u64,
    /// Nodes and inodes that were read, and are right.
    pub read_objects: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Objects of data below them.
    pub data_objects: u64,
    /// Their bytes: what the draws are of.
    pub data_bytes: u64,
    /// What the draws follow from.
    #[serde(with = "hex")]
    pub seed: [u8; 32],
    /// A hash of what was drawn.
    #[serde(with = "hex")]
    pub drawn: [u8; 32],
    /// Draws that were to be made.
    pub asked: u64,
    /// Draws whose object was right.
    pub intact: u64,
    /// Draws whose object was lost or altered.
    pub damaged: u64,
    /// Draws of what the volume gave up meanwhile.
    pub released: u64,
    /// Nodes and inodes that are lost or damaged.
    pub damaged_nodes: u64,
    /// Nodes and inodes that were moved while they were read.
    pub moved: u64,
    /// Whether everything was gone through and each draw was answered.
    pub is_complete: bool,
    /// Segments that are needed and not there, the first few.
    pub lost_segments: Vec<String>,
    /// What is lost or altered, the first few.
    pub damages: Vec<DamageNamed>,
    /// How likely damage of some extents would have been found.
    pub detections: Vec<DetectionTold>,
    /// The second store, if one was audited as well; from version 2 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<AuditedSecond>,
}

/// What was looked at, drawn and found in a second store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditedSecond {
    /// Whether the draws are of what the manifest says; otherwise they are those of the trees' data.
    pub has_manifest: bool,
    /// Segments that the manifest says.
    pub segments: u64,
    /// Those of them of which there is a copy.
    pub copies: u64,
    /// Those without a copy that are members of a parity group.
    pub in_groups: u64,
    /// Those that were not copied yet.
    pub waiting: u64,
    /// Parity groups.
    pub groups: u64,
    /// Bytes of which the draws are.
    pub bytes: u64,
    /// Draws that were to be made.
    pub asked: u64,
    /// Draws that were right.
    pub intact: u64,
    /// Draws that were not.
    pub damaged: u64,
    /// Draws of what was given up or written anew meanwhile.
    pub released: u64,
    /// Segments that are not there.
    pub missing: u64,
    /// Objects that are not as they were put.
    pub altered: u64,
    /// Groups whose object cannot be read.
    pub unreadable_groups: u64,
    /// Whether everything was gone through and each draw was answered.
    pub is_complete: bool,
    /// Why the store could not be asked.
    pub error: Option<String>,
    /// What is missing or altered, the first few.
    pub named: Vec<SecondDamageNamed>,
    /// How likely damage of some extents would have been found.
    pub detections: Vec<DetectionTold>,
}

/// An object of a second store that is missing or altered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecondDamageNamed {
    /// Its name there.
    pub key: String,
    /// What is wrong with it.
    pub detail: String,
}

impl AuditedSecond {
    /// Draws that were answered.
    pub fn answered(&self) -> u64 {
        self.intact.saturating_add(self.damaged)
    }

    /// Whether something is missing or altered.
    pub fn is_damaged(&self) -> bool {
        self.missing > 0 || self.altered > 0 || self.unreadable_groups > 0
    }

    /// With which probability so many millionths of damage would have been found; 0 if it does not say.
    pub fn found(&self, damaged_ppm: u32) -> f64 {
        found(&self.detections, damaged_ppm)
    }

    fn cut(&mut self) {
        self.named.truncate(SECOND_NAMED_MAX);
        self.detections.truncate(NAMED_MAX);
        self.error.iter_mut().for_each(cut);
        for named in &mut self.named {
            cut(&mut named.key);
            cut(&mut named.detail);
        }
    }
}

fn found(told: &[DetectionTold], damaged_ppm: u32) -> f64 {
    let found = told.iter().find(|told| told.damaged_ppm == damaged_ppm);
    found.map_or(0.0, |told| f64::from(told.found_ppm) / 1e6)
}

/// The head that was audited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditedRoot {
    /// Its version.
    pub version: u64,
    /// Its hash.
    #[serde(with = "hex")]
    pub hash: [u8; 32],
    /// Milliseconds since 1970.
    pub committed_at_ms: i64,
}

/// Something that is lost or altered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DamageNamed {
    /// Whose it is; 0 to 3: the volume's own maps.
    pub inode: u64,
    /// The whole story.
    pub detail: String,
}

/// If so many millionths of the data's bytes were damaged, it would have been found with so many millionths of probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetectionTold {
    /// Of the bytes of data.
    pub damaged_ppm: u32,
    /// The probability.
    pub found_ppm: u32,
}

/// What the store was asked, and charges for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// The book of prices.
    pub prices: String,
    /// By it.
    pub nanodollars: u64,
    /// To the store.
    pub requests: u64,
    /// From it.
    pub bytes_down: u64,
}

/// What a report says, before it has a place in its chain.
#[derive(Clone, Debug)]
pub struct NewReport {
    /// Of which volume.
    pub volume: AuditedVolume,
    /// Who is going to sign.
    pub signer: Signer,
    /// Who wanted it.
    pub asked_by: AskedBy,
    /// Milliseconds since 1970.
    pub began_at_ms: i64,
    /// The same.
    pub ended_at_ms: i64,
    /// How it ended.
    pub outcome: Outcome,
    /// What is wrong.
    pub detail: Option<String>,
    /// What was looked at.
    pub audited: Option<Audited>,
    /// What it cost.
    pub cost: Cost,
}

impl NewReport {
    /// The report that follows number `last`, of which `previous` is the hash; the first follows number 0. Cut to what a report may have.
    pub fn following(self, (last, previous): (u64, Option<[u8; 32]>)) -> Report {
        let Self {
            volume,
            mut signer,
            asked_by,
            began_at_ms,
            ended_at_ms,
            outcome,
            detail,
            audited,
            mut cost,
        } = self;
        for text in [&mut signer.program, &mut cost.prices] {
            cut(text);
        }
        Report {
            kind: Kind::AuditReport,
            version: form(audited.as_ref()),
            sequence: last.saturating_add(1),
            previous,
            volume,
            signer,
            asked_by,
            began_at_ms,
            ended_at_ms,
            outcome,
            detail: detail.map(|mut detail| {
                cut(&mut detail);
                detail
            }),
            audited: audited.map(|mut audited| {
                audited.lost_segments.truncate(NAMED_MAX);
                audited.damages.truncate(NAMED_MAX);
                audited.detections.truncate(NAMED_MAX);
                audited.lost_segments.iter_mut().for_each(cut);
                audited
                    .damages
                    .iter_mut()
                    .for_each(|damage| cut(&mut damage.detail));
                audited.second.iter_mut().for_each(AuditedSecond::cut);
                audited
            }),
            cost,
        }
    }
}

impl Report {
    /// Whether it names the version in which it must be written.
    pub(crate) fn has_its_version(&self) -> bool {
        self.version == form(self.audited.as_ref())
    }

    /// Draws that were answered.
    pub fn answered(&self) -> u64 {
        let audited = self.audited.as_ref();
        audited.map_or(0, |audited| audited.intact.saturating_add(audited.damaged))
    }

    /// With which probability so many millionths of damage would have been found; 0 if the report does not say.
    pub fn found(&self, damaged_ppm: u32) -> f64 {
        let audited = self.audited.as_ref();
        audited.map_or(0.0, |audited| found(&audited.detections, damaged_ppm))
    }

    /// Whether what is wrong is in the first store, by which readers are served.
    pub fn is_first_damaged(&self) -> bool {
        self.audited.as_ref().is_none_or(|audited| {
            audited.damaged > 0
                || audited.damaged_nodes > 0
                || !audited.lost_segments.is_empty()
                || !audited.damages.is_empty()
        })
    }

    /// What it says of a second store.
    pub fn second(&self) -> Option<&AuditedSecond> {
        self.audited.as_ref()?.second.as_ref()
    }
}

/// The oldest version that can say it.
fn form(audited: Option<&Audited>) -> u32 {
    match audited.is_some_and(|audited| audited.second.is_some()) {
        true => VERSION,
        false => VERSION_OF_ONE_STORE,
    }
}

/// Ends what is too long in an ellipsis.
fn cut(text: &mut String) {
    const ELLIPSIS: &str = "…";
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX - ELLIPSIS.len()));
        text.push_str(ELLIPSIS);
    }
}

//! Fields of a report, in the order in which they are written.
//!
//! No names of people's: a copy lies unsealed in the bucket, whose readers know ids and inode numbers already (docs/formats.md), and no more
//! than these. The ownership statement, which is sealed, has the owner's name.
//!
//! Probabilities are integers, in millionths and rounded down: no two programs print a fraction alike, and a report must not promise more
//! than is true. Texts are cut to [`TEXT_BYTES_MAX`] and lists to [`NAMED_MAX`], so that a report has a bound.

use crate::{VERSION, hex};
use firn_format::VolumeId;
use serde::{Deserialize, Serialize};

/// A sentence or two; what a store answers in an error can be a page.
const TEXT_BYTES_MAX: usize = 500;
/// Damages and segments that are named; beyond, the counts tell.
const NAMED_MAX: usize = 32;

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
            version: VERSION,
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
                audited
            }),
            cost,
        }
    }
}

impl Report {
    /// The version of its form.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Draws that were answered.
    pub fn answered(&self) -> u64 {
        let audited = self.audited.as_ref();
        audited.map_or(0, |audited| audited.intact.saturating_add(audited.damaged))
    }

    /// With which probability so many millionths of damage would have been found; 0 if the report does not say.
    pub fn found(&self, damaged_ppm: u32) -> f64 {
        let told = self.audited.iter().flat_map(|audited| &audited.detections);
        let found = told.clone().find(|told| told.damaged_ppm == damaged_ppm);
        found.map_or(0.0, |told| f64::from(told.found_ppm) / 1e6)
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

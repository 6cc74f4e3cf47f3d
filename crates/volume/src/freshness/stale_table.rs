//! A table that does not show the newest root: what in the bucket speaks against it, and the words for it.

use super::JUNK_MAX;
use firn_format::{OwnershipEpoch, SegmentId, Uid, Version, VolumeId};
use jiff::Timestamp;
use std::fmt;

/// A root of a volume: which, and when it was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootSight {
    /// Its version.
    pub version: Version,
    /// The ownership it was committed under.
    pub epoch: OwnershipEpoch,
    /// Its checkpoint.
    pub uid: Uid,
    /// By its committer's clock, milliseconds since 1970.
    pub committed_at_ms: i64,
}

impl fmt::Display for RootSight {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "version {} of {} (epoch {})",
            self.version,
            Utc(self.committed_at_ms),
            self.epoch
        )
    }
}

struct Utc(i64);

impl fmt::Display for Utc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Timestamp::from_millisecond(self.0) {
            Ok(at) => write!(formatter, "{}", at.strftime("%Y-%m-%d %H:%M:%S UTC")),
            Err(_) => write!(formatter, "{} ms since 1970", self.0),
        }
    }
}

/// What in the bucket contradicts the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contradiction {
    /// The volume was given to an owner of whom the table knows nothing.
    LaterOwnership {
        /// The epoch in the table.
        table_epoch: OwnershipEpoch,
        /// The epoch that was given.
        epoch: OwnershipEpoch,
        /// What people call the owner.
        owner: String,
        /// When, by the owner's clock, milliseconds since 1970.
        made_at_ms: i64,
        /// The root that it went out from.
        base: Option<Version>,
    },
    /// The root is none that the newest owner went out from or committed.
    OtherRoot {
        /// What people call the owner.
        owner: String,
        /// What it went out from.
        base: Option<Version>,
    },
    /// The root says that it is of the newest ownership, and is not signed with its key.
    NotSigned {
        /// What people call the owner.
        owner: String,
    },
    /// The root is of an ownership of which the bucket knows nothing, though it knows earlier ones.
    NotAnnounced {
        /// The newest epoch that the bucket knows.
        newest: OwnershipEpoch,
    },
    /// A checkpoint was made on a root that the table does not have.
    LaterCheckpoint(RootSight),
    /// A cleaner moved data that only a later root needed.
    LaterCleaning(SegmentId),
    /// A whole checkpoint follows the root in the table; whether it was committed the bucket does not tell.
    InDoubt(RootSight),
    /// Objects in the place of ownership statements hide the newest.
    Hidden {
        /// One of them.
        object: String,
    },
}

/// The table does not show the newest root of a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct StaleTable {
    /// The volume.
    pub volume: VolumeId,
    /// The root in the table.
    pub table: Option<RootSight>,
    /// What speaks against it.
    pub contradiction: Contradiction,
}

impl StaleTable {
    /// Whether it may also be what an edge left that died between upload and commit.
    pub fn is_in_doubt(&self) -> bool {
        matches!(self.contradiction, Contradiction::InDoubt(_))
    }

    /// Whether the table shows an owner that the bucket does not list: a rolled-back bucket, or a store that lists late.
    pub fn is_not_announced(&self) -> bool {
        matches!(self.contradiction, Contradiction::NotAnnounced { .. })
    }

    /// The newest version that would be given up by going on from the table, as far as the bucket tells.
    pub fn newest_version(&self) -> Option<Version> {
        match &self.contradiction {
            Contradiction::LaterOwnership { base, .. } | Contradiction::OtherRoot { base, .. } => *base,
            Contradiction::LaterCheckpoint(found) | Contradiction::InDoubt(found) => Some(found.version),
            Contradiction::NotSigned { .. }
            | Contradiction::NotAnnounced { .. }
            | Contradiction::LaterCleaning(_)
            | Contradiction::Hidden { .. } => None,
        }
    }
}

impl fmt::Display for StaleTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = match &self.table {
            Some(root) => root.to_string(),
            None => "no root".to_owned(),
        };
        let volume = self.volume;
        match &self.contradiction {
            Contradiction::LaterOwnership {
                table_epoch,
                epoch,
                owner,
                made_at_ms,
                base,
            } => write!(
                formatter,
                "the table was rolled back: it shows volume {volume} at {table} under ownership {table_epoch}, but the bucket has the \
                 statement of {owner} of {}, which was given ownership {epoch} and went out from {}",
                Utc(*made_at_ms),
                Based(*base)
            ),
            Contradiction::OtherRoot { owner, base } => write!(
                formatter,
                "the table was rolled back or changed: it shows volume {volume} at {table}, but its newest owner {owner} went out from {}",
                Based(*base)
            ),
            Contradiction::NotSigned { owner } => write!(
                formatter,
                "the table was changed by somebody who should not: it shows volume {volume} at {table}, which its newest owner {owner} \
                 did not sign"
            ),
            Contradiction::NotAnnounced { newest } => write!(
                formatter,
                "the table was changed by somebody who should not: it shows volume {volume} at {table}, of an owner of whom the bucket \
                 knows nothing; the newest that it knows has ownership {newest}"
            ),
            Contradiction::LaterCheckpoint(found) => write!(
                formatter,
                "the table was rolled back: it shows volume {volume} at {table}, but the bucket has {found}"
            ),
            Contradiction::LaterCleaning(segment) => write!(
                formatter,
                "the table was rolled back: it shows volume {volume} at {table}, but a cleaner has moved what later versions hold in \
                 segment {segment}"
            ),
            Contradiction::InDoubt(found) => write!(
                formatter,
                "the table shows volume {volume} at {table}, and the bucket has {found}, made on it. Either its edge died or was cut off \
                 while it committed that, or the table was rolled back by this one commit"
            ),
            Contradiction::Hidden { object } => write!(
                formatter,
                "whether the table shows the newest state of volume {volume} cannot be told: {object} and more than {JUNK_MAX} other \
                 objects stand where edges say what they own, and are nothing of theirs. Remove them"
            ),
        }?;
        formatter.write_str(
            ". Nothing is served, nothing was changed, and all that was committed is in the bucket. To keep the newer state: bring the \
             newest table back, or recover the volume into a new table (`firn-edge recover`); if the edge that wrote it is still there, start \
             that one. To give up what the table does not have, for instance after a restore from a backup: `firn-edge accept-rollback`",
        )
    }
}

struct Based(Option<Version>);

impl fmt::Display for Based {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(version) => write!(formatter, "version {version}"),
            None => formatter.write_str("no root"),
        }
    }
}

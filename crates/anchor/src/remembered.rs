//! The newest root an edge ever saw, kept on its own disk: what makes a rolled-back table show.
//!
//! The table is trusted to be consistent, but a table can be restored from a backup, by mistake or by somebody who wants an
//! old state served as the current one. An edge cannot see that in the table; it sees it in its own memory:
//!
//! ```text
//! seen: epoch e, root (version v, uid u, root epoch r)          the table now shows        verdict
//!                                                               an epoch below e           rolled back
//!                                                               no root, or one below v    rolled back
//!                                                               v, but not u               forked
//!                                                               above v, committed below r forked
//!                                                               anything else              fine, and remembered
//!
//! bytes = version u8 (1) | flags u8 (1 has a root) | volume [16] | epoch u64
//!       | root? = version u64 | epoch u64 | uid [32] | committed_at_ms i64
//! ```
//!
//! The caller stores the bytes whenever [`RememberedRoot::observe`] says so, and calls it with every tuple it loads or
//! commits. Going on from an older root is possible, but only by an administrator's word, which makes the machine forget what it saw.

use crate::{
    TupleError, VolumeTuple,
    error::Utc,
    layout::{Reader, Tuple, Writer},
};
use bytes::Bytes;
use firn_format::{OwnershipEpoch, Uid, Version, VolumeId};
use std::fmt;

pub(crate) const LAYOUT_VERSION: u8 = 1;
const HAS_ROOT: u8 = 1;

/// What identifies a root to somebody who saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenRoot {
    /// Its version.
    pub version: Version,
    /// The epoch it was committed under.
    pub epoch: OwnershipEpoch,
    /// Its checkpoint.
    pub uid: Uid,
    /// By its committer's clock, milliseconds since 1970.
    pub committed_at_ms: i64,
}

/// The newest state of a volume that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RememberedRoot {
    volume: VolumeId,
    epoch: OwnershipEpoch,
    root: Option<SeenRoot>,
}

/// The table shows less than was seen before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct RolledBack {
    /// The volume.
    pub volume: VolumeId,
    /// The newest epoch that was seen.
    pub seen_epoch: OwnershipEpoch,
    /// The newest root that was seen.
    pub seen: Option<SeenRoot>,
    /// The epoch in the table.
    pub found_epoch: OwnershipEpoch,
    /// The root in the table.
    pub found: Option<SeenRoot>,
}

impl fmt::Display for RolledBack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "the table was rolled back or forked: volume {} stands at {} (epoch {}), but this edge has seen {} (epoch {}); \
             nothing is served and nothing was changed. Restore the newer table; if there is none, recover the volume into a \
             new table from the bucket, which still has the newer state. To give that up: `firn-edge accept-rollback`",
            self.volume,
            Words(self.found.as_ref()),
            self.found_epoch,
            Words(self.seen.as_ref()),
            self.seen_epoch,
        )
    }
}

impl RememberedRoot {
    /// Remembers the first sight of a volume.
    pub fn new(volume: VolumeId, tuple: &VolumeTuple) -> Self {
        Self {
            volume,
            epoch: tuple.epoch,
            root: seen(tuple),
        }
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// The newest epoch seen.
    pub fn epoch(&self) -> OwnershipEpoch {
        self.epoch
    }

    /// The newest root seen.
    pub fn root(&self) -> Option<&SeenRoot> {
        self.root.as_ref()
    }

    /// Compares with what the table shows and remembers it; `true` if the bytes changed and must be stored.
    ///
    /// # Errors
    /// [`RolledBack`]; what is remembered stays as it was.
    pub fn observe(&mut self, tuple: &VolumeTuple) -> Result<bool, Box<RolledBack>> {
        let found = seen(tuple);
        let rolled_back = tuple.epoch < self.epoch
            || match (&self.root, &found) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(seen), Some(found)) if found.version == seen.version => found.uid != seen.uid,
                (Some(seen), Some(found)) => found.version < seen.version || found.epoch < seen.epoch,
            };
        if rolled_back {
            return Err(Box::new(RolledBack {
                volume: self.volume,
                seen_epoch: self.epoch,
                seen: self.root,
                found_epoch: tuple.epoch,
                found,
            }));
        }
        let newest = Self::new(self.volume, tuple);
        let changed = newest != *self;
        *self = newest;
        Ok(changed)
    }

    /// Encodes.
    pub fn to_bytes(&self) -> Bytes {
        let mut writer = Writer::default();
        writer.u8(LAYOUT_VERSION);
        writer.u8(if self.root.is_some() { HAS_ROOT } else { 0 });
        writer.raw(&self.volume.0);
        writer.u64(self.epoch.0);
        if let Some(root) = &self.root {
            writer.u64(root.version.0);
            writer.u64(root.epoch.0);
            writer.raw(&root.uid.0);
            writer.i64(root.committed_at_ms);
        }
        writer.finish().into()
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one remembered root of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TupleError> {
        let mut reader = Reader::new(Tuple, bytes);
        match reader.u8()? {
            LAYOUT_VERSION => {}
            found => return Err(TupleError::UnknownVersion { found }),
        }
        let flags = reader.u8()?;
        if flags & !HAS_ROOT != 0 {
            return Err(TupleError::UnknownFlags { found: flags });
        }
        let volume = VolumeId(reader.array()?);
        let epoch = OwnershipEpoch(reader.u64()?);
        let root = if flags & HAS_ROOT == 0 {
            None
        } else {
            Some(SeenRoot {
                version: Version(reader.u64()?),
                epoch: OwnershipEpoch(reader.u64()?),
                uid: Uid(reader.array()?),
                committed_at_ms: reader.i64()?,
            })
        };
        reader.finish()?;
        Ok(Self { volume, epoch, root })
    }
}

fn seen(tuple: &VolumeTuple) -> Option<SeenRoot> {
    tuple.root.as_ref().map(|root| SeenRoot {
        version: root.version,
        epoch: root.epoch,
        uid: root.uid,
        committed_at_ms: root.committed_at_ms,
    })
}

struct Words<'a>(Option<&'a SeenRoot>);

impl fmt::Display for Words<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => formatter.write_str("no root"),
            Some(root) => write!(
                formatter,
                "version {} (uid {}, committed {})",
                root.version,
                root.uid,
                Utc(root.committed_at_ms)
            ),
        }
    }
}

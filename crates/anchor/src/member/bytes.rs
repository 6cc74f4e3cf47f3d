//! Bytes of a member's record.
//!
//! ```text
//! member = version u8 (1) | kind u8 ('M') | flags u8 (1: an incarnation, 2: away, 4: a commit) | change id [16] | beats u64
//!          | incarnation u64? | (commit id [16] | version u64 | sequence u64)?
//! ```

use super::{MemberCommit, MemberRecord};
use crate::{
    TupleError,
    layout::{self, Writer},
};
use firn_format::{Version, WriterId};

const LAYOUT_VERSION: u8 = 1;
const MEMBER_KIND: u8 = b'M';
const HAS_INCARNATION: u8 = 1;
const IS_AWAY: u8 = 2;
const HAS_COMMIT: u8 = 4;

impl MemberRecord {
    /// Encodes, with the mark by which the change is recognised whose answer was lost.
    pub fn to_bytes(&self, change_id: &[u8; 16]) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u8(LAYOUT_VERSION);
        writer.u8(MEMBER_KIND);
        let mut flags = 0;
        if self.incarnation.is_some() {
            flags |= HAS_INCARNATION;
        }
        if self.is_away {
            flags |= IS_AWAY;
        }
        if self.last_commit.is_some() {
            flags |= HAS_COMMIT;
        }
        writer.u8(flags);
        writer.raw(change_id);
        writer.u64(self.beats);
        if let Some(incarnation) = self.incarnation {
            writer.u64(incarnation.0);
        }
        if let Some(commit) = &self.last_commit {
            writer.raw(&commit.commit_id);
            writer.u64(commit.version.0);
            writer.u64(commit.sequence);
        }
        writer.finish()
    }

    /// Decodes; with the last change's mark.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one record of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<(Self, [u8; 16]), TupleError> {
        let mut reader = layout::open(bytes, LAYOUT_VERSION, MEMBER_KIND)?;
        let flags = reader.u8()?;
        if flags & !(HAS_INCARNATION | IS_AWAY | HAS_COMMIT) != 0 {
            return Err(TupleError::UnknownFlags { found: flags });
        }
        let change_id = reader.array()?;
        let beats = reader.u64()?;
        let incarnation = match flags & HAS_INCARNATION {
            0 => None,
            _ => Some(WriterId(reader.u64()?)),
        };
        let last_commit = match flags & HAS_COMMIT {
            0 => None,
            _ => Some(MemberCommit {
                commit_id: reader.array()?,
                version: Version(reader.u64()?),
                sequence: reader.u64()?,
            }),
        };
        reader.finish()?;
        let record = Self {
            incarnation,
            is_away: flags & IS_AWAY != 0,
            beats,
            last_commit,
        };
        Ok((record, change_id))
    }
}

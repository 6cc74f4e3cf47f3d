//! Bytes of a member's tuple.
//!
//! ```text
//! member = version u8 (1) | kind u8 ('M') | flags u8 (1: an incarnation, 2: away, 4: a commit, 8: a principal, 16: it was broken, 32: given up) | change id [16]
//!          | edge [16] | name text | principal [16]? | beats u64
//!          | incarnation u64? | (commit id [16] | version u64 | sequence u64)? | given up at i64?
//! ```

use super::{MemberCommit, MemberRecord, MemberTuple, PrincipalId};
use crate::{
    OwnerId, TupleError,
    layout::{self, Writer},
};
use bytes::Bytes;
use firn_format::{Version, WriterId};

const LAYOUT_VERSION: u8 = 1;
const MEMBER_KIND: u8 = b'M';
const HAS_INCARNATION: u8 = 1;
const IS_AWAY: u8 = 2;
const HAS_COMMIT: u8 = 4;
const HAS_PRINCIPAL: u8 = 8;
/// The number is that of an incarnation that was broken.
const IS_BROKEN: u8 = 16;
/// The time at the end is there.
const IS_GIVEN_UP: u8 = 32;

impl MemberTuple {
    /// Encodes.
    ///
    /// # Panics
    /// If the name is over its bound, which the anchor checks before it builds a tuple.
    pub fn to_bytes(&self) -> Bytes {
        let record = &self.record;
        let flag = |flag: u8, is_set: bool| if is_set { flag } else { 0 };
        let mut writer = Writer::default();
        writer.u8(LAYOUT_VERSION);
        writer.u8(MEMBER_KIND);
        writer.u8(flag(HAS_INCARNATION, record.incarnation.is_some())
            | flag(IS_AWAY, record.is_away)
            | flag(HAS_COMMIT, record.last_commit.is_some())
            | flag(HAS_PRINCIPAL, self.principal.is_some())
            | flag(IS_BROKEN, record.incarnation.is_none() && record.broken.is_some())
            | flag(IS_GIVEN_UP, record.given_up_at_ms.is_some()));
        writer.raw(&self.change_id);
        writer.raw(&self.edge.0);
        writer.text(&self.name);
        if let Some(principal) = &self.principal {
            writer.raw(&principal.0);
        }
        writer.u64(record.beats);
        if let Some(incarnation) = record.incarnation.or(record.broken) {
            writer.u64(incarnation.0);
        }
        if let Some(commit) = &record.last_commit {
            writer.raw(&commit.commit_id);
            writer.u64(commit.version.0);
            writer.u64(commit.sequence);
        }
        if let Some(at_ms) = record.given_up_at_ms {
            writer.i64(at_ms);
        }
        writer.finish().into()
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one tuple of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TupleError> {
        let mut reader = layout::open(bytes, LAYOUT_VERSION, MEMBER_KIND)?;
        let flags = reader.u8()?;
        if flags & !(HAS_INCARNATION | IS_AWAY | HAS_COMMIT | HAS_PRINCIPAL | IS_BROKEN | IS_GIVEN_UP) != 0 {
            return Err(TupleError::UnknownFlags { found: flags });
        }
        let change_id = reader.array()?;
        let edge = OwnerId(reader.array()?);
        let name = reader.text()?.to_owned();
        let principal = match flags & HAS_PRINCIPAL {
            0 => None,
            _ => Some(PrincipalId(reader.array()?)),
        };
        let beats = reader.u64()?;
        let number = match flags & (HAS_INCARNATION | IS_BROKEN) {
            0 => None,
            HAS_INCARNATION | IS_BROKEN => Some(WriterId(reader.u64()?)),
            _ => return Err(reader.malformed("an incarnation that is there and broken")),
        };
        let is_broken = flags & IS_BROKEN != 0;
        let last_commit = match flags & HAS_COMMIT {
            0 => None,
            _ => Some(MemberCommit {
                commit_id: reader.array()?,
                version: Version(reader.u64()?),
                sequence: reader.u64()?,
            }),
        };
        let given_up_at_ms = match flags & IS_GIVEN_UP {
            0 => None,
            _ => Some(reader.i64()?),
        };
        reader.finish()?;
        let record = MemberRecord {
            incarnation: number.filter(|_| !is_broken),
            is_away: flags & IS_AWAY != 0,
            beats,
            last_commit,
            broken: number.filter(|_| is_broken),
            given_up_at_ms,
        };
        Ok(Self {
            edge,
            name,
            principal,
            record,
            change_id,
        })
    }
}

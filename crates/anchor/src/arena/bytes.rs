//! Bytes of an arena's record, and their bounds.
//!
//! ```text
//! arena = version u8 (1) | kind u8 ('L') | flags u8 (0) | change id [16] | number u64 | count u16 | lease × count (512 at most, ascending)
//! lease = first u32 | level u8 | holder u32 (0: nobody) | waiting u8 | member u32 × waiting (16 at most, each once, not the holder)
//! ```

use super::{ARENA_BITS, Arena, LEVEL_MAX, Lease, LeaseRange, MAX_LEASE_QUEUE, MAX_LEASES};
use crate::{
    MemberNumber, TupleError,
    layout::{self, Reader, Writer},
};

const LAYOUT_VERSION: u8 = 1;
const ARENA_KIND: u8 = b'L';
/// Where the number stands: behind version, kind, flags and mark.
const NUMBER_AT: usize = 19;

impl Arena {
    /// Encodes, with the mark by which the change is recognised whose answer was lost.
    ///
    /// # Panics
    /// If there are more leases than may be, which is checked before a record is built.
    pub fn to_bytes(&self, change_id: &[u8; 16]) -> Vec<u8> {
        assert!(self.leases.len() <= MAX_LEASES, "leases are refused before");
        let mut writer = Writer::default();
        writer.u8(LAYOUT_VERSION);
        writer.u8(ARENA_KIND);
        writer.u8(0);
        writer.raw(change_id);
        writer.u64(self.number);
        writer.u16(u16::try_from(self.leases.len()).expect("checked above"));
        for lease in &self.leases {
            writer.u32(lease.range.first);
            writer.u8(lease.range.level);
            writer.u32(lease.holder.map_or(0, |holder| holder.0));
            writer.u8(u8::try_from(lease.queue.len()).expect("wants are refused before"));
            for waiting in &lease.queue {
                writer.u32(waiting.0);
            }
        }
        writer.finish()
    }

    /// Decodes the record in the place of an arena.
    pub(crate) fn of_number(number: u64, bytes: &[u8]) -> Result<Self, TupleError> {
        let (arena, _) = Self::from_bytes(bytes)?;
        match arena.number == number {
            true => Ok(arena),
            false => Err(TupleError::Malformed {
                what: "the record of another arena",
                offset: NUMBER_AT,
            }),
        }
    }

    /// Decodes; with the last change's mark.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one record of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<(Self, [u8; 16]), TupleError> {
        let mut reader = layout::open(bytes, LAYOUT_VERSION, ARENA_KIND)?;
        let flags = reader.u8()?;
        if flags != 0 {
            return Err(TupleError::UnknownFlags { found: flags });
        }
        let change_id = reader.array()?;
        let number = reader.u64()?;
        if number >> (64 - ARENA_BITS) != 0 {
            return Err(reader.malformed("an arena beyond all inode numbers"));
        }
        let count = usize::from(reader.u16()?);
        if count > MAX_LEASES {
            return Err(reader.malformed("too many leases"));
        }
        let mut leases: Vec<Lease> = Vec::with_capacity(count);
        for _ in 0..count {
            let lease = read_lease(&mut reader)?;
            if leases.last().is_some_and(|before| before.range >= lease.range) {
                return Err(reader.malformed("leases out of order"));
            }
            leases.push(lease);
        }
        reader.finish()?;
        Ok((Self { number, leases }, change_id))
    }
}

fn read_lease(reader: &mut Reader<'_>) -> Result<Lease, TupleError> {
    let range = LeaseRange {
        first: reader.u32()?,
        level: reader.u8()?,
    };
    if range.level > LEVEL_MAX || LeaseRange::around(u64::from(range.first), range.level) != Some(range) {
        return Err(reader.malformed("a range that is none"));
    }
    let holder = match reader.u32()? {
        0 => None,
        holder => Some(MemberNumber(holder)),
    };
    let count = usize::from(reader.u8()?);
    if count > MAX_LEASE_QUEUE {
        return Err(reader.malformed("too many wait"));
    }
    let mut queue = Vec::with_capacity(count);
    for _ in 0..count {
        let waiting = MemberNumber(reader.u32()?);
        if waiting.0 == 0 || Some(waiting) == holder || queue.contains(&waiting) {
            return Err(reader.malformed("a member that cannot wait"));
        }
        queue.push(waiting);
    }
    Ok(Lease { range, holder, queue })
}

//! Locks in the handover record: what members of a shared volume hold and wait for, for whoever has the volume next.
//!
//! ```text
//!  change \ by    the owner, under its epoch and grant         any member                          the record afterwards
//!  record         whatever it has granted                      refused                             its entry anew, count + 1
//!  keep           (records)                                    what its entry covers, and waits    its entry anew, count + 1
//!  break          of another whose count is the one it saw     refused                             without the entry, or its locks of a file
//! ```
//!
//! In a volume that many write at the same moment the owner is whoever holds the lease of locks ([`LOCK_LEASE`](crate::LOCK_LEASE)), and the changes are members' ([`MemberLocksChange`](crate::MemberLocksChange)).
//!
//! **Only who has the volume grants**, so an entry grows by its owner's hand alone; all others can but unlock, whatever they say. **The count
//! is a heart**: one that stands still for long is a member that is gone. A count begins at a random number with each entry, so that an
//! entry made anew is never taken for the one before.

use crate::{
    Anchor, AnchorError, Beating, HandoverChange, HandoverRecord, OwnerId, TupleError, Unfit,
    layout::{Reader, Writer},
    tuple::check_name,
};
use firn_format::VolumeId;

/// Locks and waits of one member: 6.9 KiB, which whoever waits for one reads twice a second.
pub const MAX_LOCKS: usize = 256;
/// Members with locks or waits. Who does not have the volume leaves the last place to who has it, which must be able to give it.
pub const MAX_LOCKING: usize = 16;

const EXCLUSIVE: u8 = 1;
const WAITS: u8 = 2;
const RESERVED: [u8; 2] = [0; 2];
/// As bytes.
pub(crate) const LOCK_BYTES: usize = 27;

/// A lock of a member's clients, or what they wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordedLock {
    /// Of which file.
    pub inode: u64,
    /// The first byte.
    pub first: u64,
    /// The last byte; `u64::MAX`: to the end, however far the file grows.
    pub last: u64,
    /// For writing.
    pub exclusive: bool,
    /// It is not held but waited for.
    pub waits: bool,
}

/// What a member has of locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberLocks {
    /// Which member.
    pub member: OwnerId,
    /// What people call it.
    pub name: String,
    /// Rises with each of its changes.
    pub beats: u64,
    /// One at least.
    pub locks: Vec<RecordedLock>,
}

impl RecordedLock {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.u64(self.inode);
        writer.u64(self.first);
        writer.u64(self.last);
        writer.u8(if self.exclusive { EXCLUSIVE } else { 0 } | if self.waits { WAITS } else { 0 });
        writer.raw(&RESERVED);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, TupleError> {
        let (inode, first, last) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let flags = reader.u8()?;
        if flags & !(EXCLUSIVE | WAITS) != 0 {
            return Err(TupleError::UnknownFlags { found: flags });
        }
        if reader.array()? != RESERVED {
            return Err(reader.malformed("a lock with something reserved"));
        }
        if first > last {
            return Err(reader.malformed("a lock that ends before it begins"));
        }
        Ok(Self {
            inode,
            first,
            last,
            exclusive: flags & EXCLUSIVE != 0,
            waits: flags & WAITS != 0,
        })
    }

    /// Whether what `held` says is held covers this: each byte, and for writing if this is for writing.
    pub fn is_covered_by(&self, held: &[Self]) -> bool {
        let mut covering: Vec<_> = held
            .iter()
            .filter(|lock| !lock.waits && lock.inode == self.inode && (lock.exclusive || !self.exclusive))
            .map(|lock| (lock.first, lock.last))
            .collect();
        covering.sort_unstable();
        let mut next = self.first;
        for (first, last) in covering {
            if first > next {
                return false;
            }
            if last >= self.last {
                return true;
            }
            next = next.max(last + 1);
        }
        false
    }
}

pub(super) fn write(entries: &[MemberLocks], writer: &mut Writer) {
    assert!(entries.len() <= MAX_LOCKING, "more are refused before");
    writer.u8(entries.len() as u8);
    for entry in entries {
        assert!(entry.locks.len() <= MAX_LOCKS, "more are refused before");
        writer.raw(&entry.member.0);
        writer.text(&entry.name);
        writer.u64(entry.beats);
        writer.u16(entry.locks.len() as u16);
        entry.locks.iter().for_each(|lock| lock.write(writer));
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<Vec<MemberLocks>, TupleError> {
    let count = usize::from(reader.u8()?);
    if count == 0 || count > MAX_LOCKING {
        return Err(reader.malformed("no members with locks, or too many"));
    }
    let mut entries: Vec<MemberLocks> = Vec::with_capacity(count);
    for _ in 0..count {
        let member = OwnerId(reader.array()?);
        if entries.iter().any(|entry| entry.member == member) {
            return Err(reader.malformed("a member that has locks twice"));
        }
        let (name, beats) = (reader.text()?.to_owned(), reader.u64()?);
        let count = usize::from(reader.u16()?);
        if count == 0 || count > MAX_LOCKS {
            return Err(reader.malformed("no locks, or too many"));
        }
        let mut locks = Vec::with_capacity(count);
        for _ in 0..count {
            locks.push(RecordedLock::read(reader)?);
        }
        entries.push(MemberLocks {
            member,
            name,
            beats,
            locks,
        });
    }
    Ok(entries)
}

impl HandoverRecord {
    /// What a member has, if it has any.
    pub fn locks_of(&self, member: OwnerId) -> Option<&MemberLocks> {
        self.locks.iter().find(|entry| entry.member == member)
    }

    /// Sets a member's entry; `grants`: it has the volume.
    pub(crate) fn set_locks(
        &mut self,
        member: OwnerId,
        name: &str,
        locks: &[RecordedLock],
        grants: bool,
    ) -> Result<(), Unfit> {
        check_name(name).map_err(|_| Unfit("the member's name is no name"))?;
        if locks.len() > MAX_LOCKS {
            return Err(Unfit("more locks than a member of a shared volume may have"));
        }
        if locks.iter().any(|lock| lock.first > lock.last) {
            return Err(Unfit("a lock that ends before it begins"));
        }
        let place = self.locks.iter().position(|entry| entry.member == member);
        let held = place.map_or(&[][..], |place| &self.locks[place].locks);
        let mut taken = locks.iter().filter(|lock| !lock.waits);
        if !grants && !taken.all(|lock| lock.is_covered_by(held)) {
            return Err(Unfit(
                "a lock that this office was not granted, or that was broken",
            ));
        }
        match place {
            Some(place) if locks.is_empty() => drop(self.locks.remove(place)),
            Some(place) => {
                let entry = &mut self.locks[place];
                entry.beats = entry.beats.wrapping_add(1);
                entry.name = name.to_owned();
                entry.locks = locks.to_vec();
            }
            None if locks.is_empty() => {}
            None => {
                let places = if grants { MAX_LOCKING } else { MAX_LOCKING - 1 };
                if self.locks.len() >= places {
                    return Err(Unfit("sixteen members have locks already"));
                }
                let random = self.change_id.first_chunk().expect("it has sixteen");
                self.locks.push(MemberLocks {
                    member,
                    name: name.to_owned(),
                    beats: u64::from_le_bytes(*random),
                    locks: locks.to_vec(),
                });
            }
        }
        Ok(())
    }

    /// Takes a member's locks away, of one file or all, whose count is this.
    pub(crate) fn break_locks(
        &mut self,
        member: OwnerId,
        beats: u64,
        inode: Option<u64>,
    ) -> Result<(), Unfit> {
        let place = self.locks.iter().position(|entry| entry.member == member);
        let Some(place) = place else {
            return Ok(());
        };
        let entry = &mut self.locks[place];
        if entry.beats != beats && !firn_env::planted!("anchor.break_of_any_count") {
            return Err(Unfit("the member has given a sign of life"));
        }
        match inode {
            Some(inode) => entry.locks.retain(|lock| lock.waits || lock.inode != inode),
            None => entry.locks.clear(),
        }
        if entry.locks.is_empty() {
            self.locks.remove(place);
        }
        Ok(())
    }
}

impl Anchor {
    /// Records what the clients of the owner have, so that the volume can be given.
    ///
    /// # Errors
    /// [`AnchorError::Fenced`] if the ownership is over; [`AnchorError::Contended`] also if that is more than the record takes; otherwise as
    /// [`Anchor::handover`]. After a transient error it may be recorded.
    pub async fn record_locks(
        &self,
        volume: VolumeId,
        beating: &Beating,
        name: &str,
        locks: &[RecordedLock],
    ) -> Result<HandoverRecord, AnchorError> {
        let change = HandoverChange::RecordLocks {
            owner: beating.owner,
            epoch: beating.epoch,
            grant: beating.grant,
            name: name.to_owned(),
            locks: locks.to_vec(),
        };
        let recorded = self.change_handover(volume, change, |_| false).await;
        self.of_owner(volume, beating, recorded).await
    }

    /// Says what is left of a member's locks, and what it waits for: a sign of life of them.
    ///
    /// # Errors
    /// [`AnchorError::Contended`] also if the record does not cover them: they were broken. Otherwise as [`Anchor::handover`].
    pub async fn keep_locks(
        &self,
        volume: VolumeId,
        member: OwnerId,
        name: &str,
        locks: &[RecordedLock],
    ) -> Result<HandoverRecord, AnchorError> {
        let change = HandoverChange::KeepLocks {
            member,
            name: name.to_owned(),
            locks: locks.to_vec(),
        };
        self.change_handover(volume, change, |_| false).await
    }

    /// Takes away what another member has, of one file or all, if its count is still `beats`.
    ///
    /// # Errors
    /// [`AnchorError::Fenced`] if the ownership is over; [`AnchorError::Contended`] also if it has given a sign of life since; otherwise as
    /// [`Anchor::handover`].
    pub async fn break_locks(
        &self,
        volume: VolumeId,
        beating: &Beating,
        (member, beats): (OwnerId, u64),
        inode: Option<u64>,
    ) -> Result<HandoverRecord, AnchorError> {
        let change = HandoverChange::BreakLocks {
            owner: beating.owner,
            epoch: beating.epoch,
            grant: beating.grant,
            member,
            beats,
            inode,
        };
        let is_needless = |record: &HandoverRecord| record.locks_of(member).is_none();
        let broken = self.change_handover(volume, change, is_needless).await;
        self.of_owner(volume, beating, broken).await
    }
}

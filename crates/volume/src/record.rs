//! Journal records: one for each change of the volume.
//!
//! A record holds the *outcome* of a request (the inode number given, the times, the mode after clearing set-uid), never
//! the request: replaying it makes the same change whoever asked and whatever the clock says now. The same
//! [`State::apply`](crate::state::State::apply) runs when a request is served and when its record is replayed.

use crate::{
    codec::{DecodeError, Decoder, Encoder},
    inode::{Inode, decode_acl, decode_time, encode_acl, encode_time},
};
use bytes::Bytes;
use firn_vfs::{Acl, RequestId, Timestamp};

pub(crate) const VERSION: u8 = 1;

/// Of a record that advances change attributes: only in volumes that are shared by inode.
const VERSION_AFTER_BREAK: u8 = 2;

/// Inodes of one record whose change attributes are advanced, at most: no operation changes more.
const AFTER_BREAK_MAX: usize = 4;

/// One change of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new inode under a new name.
    Create {
        directory: u64,
        name: Bytes,
        inode: Box<Inode>,
    },
    /// A new name for an existing inode.
    Link { inode: u64, directory: u64, name: Bytes },
    /// A name removed; the inode goes with its last name, unless it is retained as an orphan.
    Unlink {
        directory: u64,
        name: Bytes,
        inode: u64,
        orphan: bool,
    },
    /// A name moved; what stood at the target goes as by `Unlink`.
    Rename {
        from_directory: u64,
        from_name: Bytes,
        to_directory: u64,
        to_name: Bytes,
        inode: u64,
        replaced: Option<u64>,
        orphan: bool,
    },
    /// Attributes after a change.
    SetAttributes {
        inode: u64,
        mode: u32,
        uid: u32,
        gid: u32,
        size_bytes: Option<u64>,
        accessed: Option<Timestamp>,
        modified: Option<Timestamp>,
        access_acl: Option<Acl>,
    },
    /// Data written at an offset; the data is the rest of the record.
    Write { inode: u64, offset: u64, mode: u32 },
    /// An extended attribute set, or removed.
    SetXattr {
        inode: u64,
        name: Bytes,
        value: Option<Bytes>,
    },
    /// Access control lists after a change.
    SetAcl {
        inode: u64,
        mode: u32,
        access: Option<Acl>,
        default: Option<Acl>,
    },
    /// The last user of an unlinked inode is gone.
    FreeOrphan { inode: u64 },
    /// A snapshot of everything before this record.
    CreateSnapshot {
        id: u64,
        name: Bytes,
        created_ms: i64,
        protected_until_ms: i64,
    },
    /// A snapshot is no longer kept.
    DeleteSnapshot { id: u64 },
    /// A snapshot may not be deleted before a time.
    ProtectSnapshot { id: u64, until_ms: i64 },
}

/// A change, when it was made, and for which request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub request: Option<RequestId>,
    pub now: Timestamp,
    pub operation: Operation,
    /// Of the inodes that it changes, those whose change attribute is advanced before, since they were taken from an office that was broken: its clients
    /// may have seen numbers of changes that are in no root.
    pub after_break: Vec<u64>,
}

impl Record {
    /// A change after no break.
    pub fn new(request: Option<RequestId>, now: Timestamp, operation: Operation) -> Self {
        Self {
            request,
            now,
            operation,
            after_break: Vec::new(),
        }
    }

    /// The record without the data of a write, which follows it in the journal.
    pub fn encode(&self) -> Bytes {
        let mut out = match self.after_break.len() {
            0 => Encoder::new(VERSION),
            count => {
                assert!(count <= AFTER_BREAK_MAX, "no operation changes more inodes");
                let mut out = Encoder::new(VERSION_AFTER_BREAK);
                out.u8(count as u8);
                for inode in &self.after_break {
                    out.u64(*inode);
                }
                out
            }
        };
        out.option(self.request, encode_request);
        encode_time(&mut out, self.now);
        match &self.operation {
            Operation::Create {
                directory,
                name,
                inode,
            } => {
                out.u8(1).u64(*directory).bytes(name).bytes(&inode.encode(None));
            }
            Operation::Link {
                inode,
                directory,
                name,
            } => {
                out.u8(2).u64(*inode).u64(*directory).bytes(name);
            }
            Operation::Unlink {
                directory,
                name,
                inode,
                orphan,
            } => {
                out.u8(3)
                    .u64(*directory)
                    .bytes(name)
                    .u64(*inode)
                    .u8(u8::from(*orphan));
            }
            Operation::Rename {
                from_directory,
                from_name,
                to_directory,
                to_name,
                inode,
                replaced,
                orphan,
            } => {
                out.u8(4)
                    .u64(*from_directory)
                    .bytes(from_name)
                    .u64(*to_directory)
                    .bytes(to_name)
                    .u64(*inode);
                out.option(*replaced, |out, replaced| {
                    out.u64(replaced);
                });
                out.u8(u8::from(*orphan));
            }
            Operation::SetAttributes {
                inode,
                mode,
                uid,
                gid,
                size_bytes,
                accessed,
                modified,
                access_acl,
            } => {
                out.u8(5).u64(*inode).u32(*mode).u32(*uid).u32(*gid);
                out.option(*size_bytes, |out, size| {
                    out.u64(size);
                });
                out.option(*accessed, encode_time);
                out.option(*modified, encode_time);
                out.option(access_acl.as_ref(), encode_acl);
            }
            Operation::Write { inode, offset, mode } => {
                out.u8(6).u64(*inode).u64(*offset).u32(*mode);
            }
            Operation::SetXattr { inode, name, value } => {
                out.u8(7).u64(*inode).bytes(name);
                out.option(value.as_ref(), |out, value| {
                    out.bytes(value);
                });
            }
            Operation::SetAcl {
                inode,
                mode,
                access,
                default,
            } => {
                out.u8(8).u64(*inode).u32(*mode);
                out.option(access.as_ref(), encode_acl);
                out.option(default.as_ref(), encode_acl);
            }
            Operation::FreeOrphan { inode } => {
                out.u8(9).u64(*inode);
            }
            Operation::CreateSnapshot {
                id,
                name,
                created_ms,
                protected_until_ms,
            } => {
                out.u8(10)
                    .u64(*id)
                    .bytes(name)
                    .i64(*created_ms)
                    .i64(*protected_until_ms);
            }
            Operation::DeleteSnapshot { id } => {
                out.u8(11).u64(*id);
            }
            Operation::ProtectSnapshot { id, until_ms } => {
                out.u8(12).u64(*id).i64(*until_ms);
            }
        }
        out.finish()
    }

    /// The record and the data behind it (empty but for `Write`).
    pub fn decode(payload: Bytes) -> Result<(Self, Bytes), DecodeError> {
        let (mut input, version) =
            Decoder::versions(&payload, VERSION, VERSION_AFTER_BREAK, "journal record")?;
        let mut after_break = Vec::new();
        if version == VERSION_AFTER_BREAK {
            let count = usize::from(input.u8()?);
            if !(1..=AFTER_BREAK_MAX).contains(&count) {
                return Err(input.error());
            }
            for _ in 0..count {
                after_break.push(input.u64()?);
            }
        }
        let request = input.option(decode_request)?;
        let now = decode_time(&mut input)?;
        let operation = match input.u8()? {
            1 => {
                let (directory, name) = (input.u64()?, input.bytes()?);
                let (inode, _) = Inode::decode(input.bytes()?)?;
                Operation::Create {
                    directory,
                    name,
                    inode: Box::new(inode),
                }
            }
            2 => Operation::Link {
                inode: input.u64()?,
                directory: input.u64()?,
                name: input.bytes()?,
            },
            3 => Operation::Unlink {
                directory: input.u64()?,
                name: input.bytes()?,
                inode: input.u64()?,
                orphan: input.u8()? != 0,
            },
            4 => Operation::Rename {
                from_directory: input.u64()?,
                from_name: input.bytes()?,
                to_directory: input.u64()?,
                to_name: input.bytes()?,
                inode: input.u64()?,
                replaced: input.option(|input| input.u64())?,
                orphan: input.u8()? != 0,
            },
            5 => Operation::SetAttributes {
                inode: input.u64()?,
                mode: input.u32()?,
                uid: input.u32()?,
                gid: input.u32()?,
                size_bytes: input.option(|input| input.u64())?,
                accessed: input.option(decode_time)?,
                modified: input.option(decode_time)?,
                access_acl: input.option(decode_acl)?,
            },
            6 => Operation::Write {
                inode: input.u64()?,
                offset: input.u64()?,
                mode: input.u32()?,
            },
            7 => Operation::SetXattr {
                inode: input.u64()?,
                name: input.bytes()?,
                value: input.option(Decoder::bytes)?,
            },
            8 => Operation::SetAcl {
                inode: input.u64()?,
                mode: input.u32()?,
                access: input.option(decode_acl)?,
                default: input.option(decode_acl)?,
            },
            9 => Operation::FreeOrphan { inode: input.u64()? },
            10 => Operation::CreateSnapshot {
                id: input.u64()?,
                name: input.bytes()?,
                created_ms: input.i64()?,
                protected_until_ms: input.i64()?,
            },
            11 => Operation::DeleteSnapshot { id: input.u64()? },
            12 => Operation::ProtectSnapshot {
                id: input.u64()?,
                until_ms: input.i64()?,
            },
            _ => return Err(input.error()),
        };
        let record = Self {
            request,
            now,
            operation,
            after_break,
        };
        if matches!(record.operation, Operation::Write { .. }) {
            return Ok((record, input.rest()));
        }
        input.finish()?;
        Ok((record, Bytes::new()))
    }
}

pub(crate) fn encode_request(out: &mut Encoder, request: RequestId) {
    out.u64(request.client)
        .u32(request.transaction)
        .u32(request.checksum);
}

pub(crate) fn decode_request(input: &mut Decoder<'_>) -> Result<RequestId, DecodeError> {
    Ok(RequestId {
        client: input.u64()?,
        transaction: input.u32()?,
        checksum: input.u32()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(after_break: Vec<u64>) -> Record {
        let operation = Operation::Write {
            inode: 0x0102,
            offset: 3,
            mode: 0o644,
        };
        Record {
            after_break,
            ..Record::new(None, Timestamp::from_nanos(5), operation)
        }
    }

    #[test]
    fn a_record_says_what_it_advances_and_one_that_advances_nothing_is_as_ever() {
        let plain = record(Vec::new()).encode();
        let advancing = record(vec![0x0102, 7]);
        let bytes = advancing.encode();
        assert_eq!(plain[0], VERSION);
        assert_eq!(
            bytes[..18],
            [2, 2, 2, 1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(bytes[18..], plain[1..], "then the same");
        assert_eq!(
            Record::decode(bytes.clone()).expect("a record"),
            (advancing, Bytes::new())
        );
        assert_eq!(Record::decode(plain).expect("a record").0, record(Vec::new()));
        for length in 0..bytes.len() {
            assert!(Record::decode(bytes.slice(..length)).is_err(), "cut at {length}");
        }
        for (place, value) in [(0, 3), (1, 0), (1, AFTER_BREAK_MAX as u8 + 1)] {
            let mut changed = bytes.to_vec();
            changed[place] = value;
            assert!(Record::decode(changed.into()).is_err(), "{value} at {place}");
        }
    }
}

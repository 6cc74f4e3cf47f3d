//! Requests of the kernel, decoded.
//!
//! ```text
//! request = length u32 | opcode u32 | unique u64 | node u64 | uid u32 | gid u32 | pid u32 | extensions u16 | 0 u16 | body
//! ```
//!
//! Integers are in the machine's order (little-endian on all that Firn is built for). The kernel is trusted more than a
//! network is, but not to be without faults: what does not decode is refused, and data of a write is not copied.

use crate::abi::{self, opcode};
use bytes::Bytes;
use firn_codec::{Codec, Reader};

/// Why a request cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request of the kernel ends too soon")]
pub(crate) struct Malformed;

#[derive(Clone, Copy, Debug)]
struct Wire;

impl Codec for Wire {
    type Error = Malformed;

    fn truncated(&self, _offset: usize, _needed: usize, _found: usize) -> Malformed {
        Malformed
    }
}

type Body = Reader<Bytes, Wire>;

/// The beginning of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) opcode: u32,
    /// Names the request in its reply and in an INTERRUPT.
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The process, or thread; 0 for the kernel itself.
    pub(crate) pid: u32,
}

/// A SETATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetAttr {
    pub(crate) valid: u32,
    pub(crate) size: u64,
    pub(crate) atime: u64,
    pub(crate) mtime: u64,
    pub(crate) atime_nanos: u32,
    pub(crate) mtime_nanos: u32,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A byte-range lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    pub(crate) handle: u64,
    pub(crate) owner: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) kind: u32,
    pub(crate) flags: u32,
}

/// What the kernel wants; names are those of its opcodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Init {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u64,
    },
    Lookup {
        name: Bytes,
    },
    Forget {
        nodes: Vec<(u64, u64)>,
    },
    GetAttr,
    SetAttr(SetAttr),
    ReadLink,
    Symlink {
        name: Bytes,
        target: Bytes,
    },
    MkNod {
        mode: u32,
        device: u32,
        umask: u32,
        name: Bytes,
    },
    MkDir {
        mode: u32,
        umask: u32,
        name: Bytes,
    },
    Unlink {
        name: Bytes,
    },
    RmDir {
        name: Bytes,
    },
    Rename {
        to: u64,
        flags: u32,
        from_name: Bytes,
        to_name: Bytes,
    },
    Link {
        old: u64,
        name: Bytes,
    },
    Open {
        flags: u32,
    },
    Create {
        flags: u32,
        mode: u32,
        umask: u32,
        name: Bytes,
    },
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        handle: u64,
        offset: u64,
        /// Of the descriptor (`open`).
        flags: u32,
        /// The kernel writes mapped pages back, by whatever descriptor it finds.
        is_from_cache: bool,
        /// Set-uid and set-gid bits go with it.
        kills_set_id: bool,
        data: Bytes,
    },
    StatFs,
    Release {
        handle: u64,
        flags: u32,
        lock_owner: u64,
    },
    FSync,
    Flush {
        handle: u64,
        lock_owner: u64,
    },
    SetXattr {
        name: Bytes,
        value: Bytes,
        flags: u32,
        extra: u32,
    },
    GetXattr {
        name: Bytes,
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: Bytes,
    },
    OpenDir {
        flags: u32,
    },
    ReadDir {
        offset: u64,
        size: u32,
        plus: bool,
    },
    ReleaseDir,
    FSyncDir,
    GetLock(Lock),
    SetLock {
        lock: Lock,
        waits: bool,
    },
    Interrupt {
        unique: u64,
    },
    Destroy,
    Allocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    Seek {
        offset: u64,
        whence: u32,
    },
    CopyRange {
        offset: u64,
        to: u64,
        to_offset: u64,
        length: u64,
        flags: u64,
    },
    /// Anything else; the kernel does without once it was told so.
    Unknown,
}

impl Operation {
    /// Data that it carries, or asks for.
    pub(crate) fn data_bytes(&self) -> usize {
        match self {
            Self::Write { data, .. } => data.len(),
            Self::Read { size, .. } | Self::ReadDir { size, .. } => *size as usize,
            _ => 0,
        }
    }
}

/// Reads a whole request.
pub(crate) fn decode(bytes: Bytes) -> Result<(Header, Operation), Malformed> {
    let length = bytes.len();
    let mut body = Reader::new(Wire, bytes);
    if body.u32()? as usize != length {
        return Err(Malformed);
    }
    let header = Header {
        opcode: body.u32()?,
        unique: body.u64()?,
        node: body.u64()?,
        uid: body.u32()?,
        gid: body.u32()?,
        pid: body.u32()?,
    };
    // Length of extensions, of which none was asked for.
    body.skip(4)?;
    let operation = operation(&header, &mut body)?;
    Ok((header, operation))
}

/// A text that ends with a zero.
fn text(body: &mut Body) -> Result<Bytes, Malformed> {
    let rest = body.rest();
    let length = rest.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
    body.skip(length + 1)?;
    Ok(rest.slice(..length))
}

fn lock(body: &mut Body) -> Result<Lock, Malformed> {
    let handle = body.u64()?;
    let (owner, start, end, kind) = (body.u64()?, body.u64()?, body.u64()?, body.u32()?);
    body.skip(4)?;
    Ok(Lock {
        handle,
        owner,
        start,
        end,
        kind,
        flags: body.u32()?,
    })
}

fn copy_range(body: &mut Body) -> Result<Operation, Malformed> {
    body.skip(8)?;
    let (offset, to) = (body.u64()?, body.u64()?);
    body.skip(8)?;
    Ok(Operation::CopyRange {
        offset,
        to,
        to_offset: body.u64()?,
        length: body.u64()?,
        flags: body.u64()?,
    })
}

fn set_attr(body: &mut Body) -> Result<SetAttr, Malformed> {
    let valid = body.u32()?;
    body.skip(12)?;
    let size = body.u64()?;
    body.skip(8)?;
    let (atime, mtime) = (body.u64()?, body.u64()?);
    body.skip(8)?;
    let (atime_nanos, mtime_nanos) = (body.u32()?, body.u32()?);
    body.skip(4)?;
    let mode = body.u32()?;
    body.skip(4)?;
    Ok(SetAttr {
        valid,
        size,
        atime,
        mtime,
        atime_nanos,
        mtime_nanos,
        mode,
        uid: body.u32()?,
        gid: body.u32()?,
    })
}

fn operation(header: &Header, body: &mut Body) -> Result<Operation, Malformed> {
    Ok(match header.opcode {
        opcode::INIT => init(body)?,
        opcode::LOOKUP => Operation::Lookup { name: text(body)? },
        opcode::FORGET => Operation::Forget {
            nodes: vec![(header.node, body.u64()?)],
        },
        opcode::BATCH_FORGET => {
            let count = body.u32()? as usize;
            body.skip(4)?;
            body.require(count.saturating_mul(16))?;
            let nodes = (0..count).map(|_| Ok((body.u64()?, body.u64()?)));
            Operation::Forget {
                nodes: nodes.collect::<Result<_, _>>()?,
            }
        }
        opcode::GETATTR => Operation::GetAttr,
        opcode::SETATTR => Operation::SetAttr(set_attr(body)?),
        opcode::READLINK => Operation::ReadLink,
        opcode::SYMLINK => Operation::Symlink {
            name: text(body)?,
            target: text(body)?,
        },
        opcode::MKNOD => {
            let (mode, device, umask) = (body.u32()?, body.u32()?, body.u32()?);
            body.skip(4)?;
            let name = text(body)?;
            Operation::MkNod {
                mode,
                device,
                umask,
                name,
            }
        }
        opcode::MKDIR => Operation::MkDir {
            mode: body.u32()?,
            umask: body.u32()?,
            name: text(body)?,
        },
        opcode::UNLINK => Operation::Unlink { name: text(body)? },
        opcode::RMDIR => Operation::RmDir { name: text(body)? },
        opcode::RENAME => rename(body, false)?,
        opcode::RENAME2 => rename(body, true)?,
        opcode::LINK => Operation::Link {
            old: body.u64()?,
            name: text(body)?,
        },
        opcode::OPEN => Operation::Open { flags: body.u32()? },
        opcode::CREATE => {
            let (flags, mode, umask) = (body.u32()?, body.u32()?, body.u32()?);
            body.skip(4)?;
            let name = text(body)?;
            Operation::Create {
                flags,
                mode,
                umask,
                name,
            }
        }
        opcode::READ => {
            body.skip(8)?;
            Operation::Read {
                offset: body.u64()?,
                size: body.u32()?,
            }
        }
        opcode::WRITE => write(body)?,
        opcode::STATFS => Operation::StatFs,
        opcode::RELEASE => {
            let (handle, _flags) = (body.u64()?, body.u32()?);
            Operation::Release {
                handle,
                flags: body.u32()?,
                lock_owner: body.u64()?,
            }
        }
        opcode::FALLOCATE => {
            body.skip(8)?;
            Operation::Allocate {
                offset: body.u64()?,
                length: body.u64()?,
                mode: body.u32()?,
            }
        }
        opcode::LSEEK => {
            body.skip(8)?;
            Operation::Seek {
                offset: body.u64()?,
                whence: body.u32()?,
            }
        }
        opcode::COPY_FILE_RANGE => copy_range(body)?,
        opcode::FSYNC => Operation::FSync,
        opcode::FLUSH => {
            let handle = body.u64()?;
            body.skip(8)?;
            Operation::Flush {
                handle,
                lock_owner: body.u64()?,
            }
        }
        opcode::SETXATTR => {
            let (size, flags, extra) = (body.u32()? as usize, body.u32()?, body.u32()?);
            body.skip(4)?;
            let name = text(body)?;
            let value = body.take(size)?;
            Operation::SetXattr {
                name,
                value,
                flags,
                extra,
            }
        }
        opcode::GETXATTR => {
            let size = body.u32()?;
            body.skip(4)?;
            Operation::GetXattr {
                name: text(body)?,
                size,
            }
        }
        opcode::LISTXATTR => Operation::ListXattr { size: body.u32()? },
        opcode::REMOVEXATTR => Operation::RemoveXattr { name: text(body)? },
        opcode::OPENDIR => Operation::OpenDir { flags: body.u32()? },
        opcode::READDIR | opcode::READDIRPLUS => {
            body.skip(8)?;
            Operation::ReadDir {
                offset: body.u64()?,
                size: body.u32()?,
                plus: header.opcode == opcode::READDIRPLUS,
            }
        }
        opcode::RELEASEDIR => Operation::ReleaseDir,
        opcode::FSYNCDIR => Operation::FSyncDir,
        opcode::GETLK => Operation::GetLock(lock(body)?),
        opcode::SETLK | opcode::SETLKW => Operation::SetLock {
            lock: lock(body)?,
            waits: header.opcode == opcode::SETLKW,
        },
        opcode::INTERRUPT => Operation::Interrupt { unique: body.u64()? },
        opcode::DESTROY => Operation::Destroy,
        _ => Operation::Unknown,
    })
}

fn init(body: &mut Body) -> Result<Operation, Malformed> {
    let (major, minor, max_readahead) = (body.u32()?, body.u32()?, body.u32()?);
    let low = u64::from(body.u32()?);
    let high = if low & abi::init::INIT_EXT == 0 {
        0
    } else {
        u64::from(body.u32()?)
    };
    Ok(Operation::Init {
        major,
        minor,
        max_readahead,
        flags: low | high << 32,
    })
}

fn rename(body: &mut Body, has_flags: bool) -> Result<Operation, Malformed> {
    let to = body.u64()?;
    let flags = if has_flags { body.u32()? } else { 0 };
    if has_flags {
        body.skip(4)?;
    }
    let (from_name, to_name) = (text(body)?, text(body)?);
    Ok(Operation::Rename {
        to,
        flags,
        from_name,
        to_name,
    })
}

fn write(body: &mut Body) -> Result<Operation, Malformed> {
    let (handle, offset, size) = (body.u64()?, body.u64()?, body.u32()? as usize);
    let write_flags = body.u32()?;
    // The owner of locks.
    body.skip(8)?;
    let flags = body.u32()?;
    body.skip(4)?;
    let data = body.take(size)?;
    Ok(Operation::Write {
        handle,
        offset,
        flags,
        is_from_cache: write_flags & abi::WRITE_CACHE != 0,
        kills_set_id: write_flags & abi::WRITE_KILL_SET_ID != 0,
        data,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{BufMut, BytesMut};

    fn request(opcode: u32, body: &[u8]) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_u32_le((abi::IN_HEADER_BYTES + body.len()) as u32);
        bytes.put_u32_le(opcode);
        bytes.put_u64_le(7);
        bytes.put_u64_le(9);
        bytes.put_u32_le(1000);
        bytes.put_u32_le(100);
        bytes.put_slice(&[0; 8]);
        bytes.put_slice(body);
        bytes.freeze()
    }

    #[test]
    fn a_request_is_read_as_the_kernel_wrote_it() {
        let (header, operation) = decode(request(opcode::LOOKUP, b"name\0")).expect("whole");
        assert_eq!(
            (header.unique, header.node, header.uid, header.gid),
            (7, 9, 1000, 100)
        );
        let name = Bytes::from_static(b"name");
        assert_eq!(operation, Operation::Lookup { name });
    }

    #[test]
    fn whatever_is_cut_off_or_wrong_is_refused_and_nothing_is_believed() {
        for opcode in 0..60 {
            let body: Vec<u8> = (0..120).map(|byte| byte as u8 | 0x80).collect();
            for length in 0..body.len() {
                // Every outcome is fine but a panic or an allocation by what the bytes say.
                let _ = decode(request(opcode, &body[..length]));
            }
        }
        assert_eq!(decode(request(opcode::LOOKUP, b"no end")), Err(Malformed));
        let mut long = BytesMut::from(&request(opcode::GETATTR, b"")[..]);
        long.put_u8(0);
        assert_eq!(
            decode(long.freeze()),
            Err(Malformed),
            "another length than it says"
        );
    }
}

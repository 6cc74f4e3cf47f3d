//! The protocol's numbers, named as in its specification so that both can be searched for one name.

/// First word of a server.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of a newstyle server, and first word of each option.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// First word of a reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of a compact request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of an extended request.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// First word of a chunk of an extended reply.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// The longest string the protocol allows.
pub const STRING_BYTES_MAX: usize = 4096;
/// The payload that no client may be refused for as an attack.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Handshake flags of the server.
pub mod handshake {
    /// Options other than `EXPORT_NAME` are understood.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The zeroes after the reply to `EXPORT_NAME` can be left out.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Flags with which a client answers the handshake.
pub mod client {
    /// See [`handshake::FIXED_NEWSTYLE`](super::handshake::FIXED_NEWSTYLE).
    pub const FIXED_NEWSTYLE: u32 = 1 << 0;
    /// See [`handshake::NO_ZEROES`](super::handshake::NO_ZEROES).
    pub const NO_ZEROES: u32 = 1 << 1;
}

/// Flags of an export.
pub mod transmission {
    #![allow(missing_docs, reason = "the specification's own names")]
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Options.
pub mod opt {
    #![allow(missing_docs, reason = "the specification's own names")]
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Replies to options.
pub mod rep {
    #![allow(missing_docs, reason = "the specification's own names")]
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    pub const ERR_BLOCK_SIZE_REQD: u32 = (1 << 31) + 8;
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
    pub const ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;
}

/// Items of information about an export.
pub mod info {
    #![allow(missing_docs, reason = "the specification's own names")]
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Commands.
pub mod cmd {
    #![allow(missing_docs, reason = "the specification's own names")]
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod cmd_flag {
    #![allow(missing_docs, reason = "the specification's own names")]
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Kinds of reply chunks, and the flag of the last one.
pub mod chunk {
    #![allow(missing_docs, reason = "the specification's own names")]
    pub const FLAG_DONE: u16 = 1 << 0;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const BLOCK_STATUS_EXT: u16 = 6;
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// Bits of a `base:allocation` status.
pub mod state {
    #![allow(missing_docs, reason = "the specification's own names")]
    pub const HOLE: u32 = 1 << 0;
    pub const ZERO: u32 = 1 << 1;
}

/// The one metadata context on offer, and its number.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Any number would do; one that is neither 0 nor 1 shows clients that confuse it with an index.
pub const BASE_ALLOCATION_ID: u32 = 0x6669;

/// Errors of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// Not allowed on this export.
    NotPermitted = 1,
    /// Storage failed.
    Io = 5,
    /// The request makes no sense.
    Invalid = 22,
    /// Beyond the end, or no room.
    NoSpace = 28,
    /// Too large to answer in one.
    Overflow = 75,
    /// Not faster than writing.
    Unsupported = 95,
    /// The server is going away.
    ShuttingDown = 108,
}

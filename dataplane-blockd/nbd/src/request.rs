//! Requests of the transmission phase.

use crate::wire::{EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC, cmd, cmd_flag};

/// Bytes of a compact request without its payload.
pub const COMPACT_BYTES: usize = 28;
/// Bytes of an extended one.
pub const EXTENDED_BYTES: usize = 32;

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bits of [`cmd_flag`].
    pub flags: u16,
    /// One of [`cmd`], or anything else.
    pub command: u16,
    /// The client's mark, sent back with the reply.
    pub cookie: u64,
    /// Where.
    pub offset: u64,
    /// How much of the export, or, in an extended request with a payload, of payload.
    pub length: u64,
    /// Bytes that follow the header.
    pub payload_bytes: u64,
}

/// The bytes are not a request: the stream is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request does not begin with the protocol's magic number")]
pub struct WrongMagic;

impl Request {
    /// Decodes a compact header.
    ///
    /// # Errors
    /// [`WrongMagic`].
    pub fn decode_compact(bytes: &[u8; COMPACT_BYTES]) -> Result<Self, WrongMagic> {
        if be32(bytes, 0) != REQUEST_MAGIC {
            return Err(WrongMagic);
        }
        let (command, length) = (be16(bytes, 6), u64::from(be32(bytes, 24)));
        Ok(Self {
            flags: be16(bytes, 4),
            command,
            cookie: be64(bytes, 8),
            offset: be64(bytes, 16),
            length,
            payload_bytes: if command == cmd::WRITE { length } else { 0 },
        })
    }

    /// Decodes an extended header.
    ///
    /// # Errors
    /// [`WrongMagic`].
    pub fn decode_extended(bytes: &[u8; EXTENDED_BYTES]) -> Result<Self, WrongMagic> {
        if be32(bytes, 0) != EXTENDED_REQUEST_MAGIC {
            return Err(WrongMagic);
        }
        let (flags, length) = (be16(bytes, 4), be64(bytes, 24));
        let has_payload = flags & cmd_flag::PAYLOAD_LEN != 0;
        Ok(Self {
            flags,
            command: be16(bytes, 6),
            cookie: be64(bytes, 8),
            offset: be64(bytes, 16),
            length,
            payload_bytes: if has_payload { length } else { 0 },
        })
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_compact_request_is_read_back(
            flags: u16, command: u16, cookie: u64, offset: u64, length: u32, noise in any::<[u8; COMPACT_BYTES]>(),
        ) {
            let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
            bytes.extend(flags.to_be_bytes());
            bytes.extend(command.to_be_bytes());
            bytes.extend(cookie.to_be_bytes());
            bytes.extend(offset.to_be_bytes());
            bytes.extend(length.to_be_bytes());
            let request = Request::decode_compact(bytes.as_slice().try_into().unwrap()).unwrap();
            let payload_bytes = if command == cmd::WRITE { u64::from(length) } else { 0 };
            prop_assert_eq!(request, Request { flags, command, cookie, offset, length: length.into(), payload_bytes });
            prop_assert_eq!(Request::decode_compact(&noise).is_ok(), noise.starts_with(&REQUEST_MAGIC.to_be_bytes()));
        }

        #[test]
        fn an_extended_request_is_read_back(flags: u16, command: u16, cookie: u64, offset: u64, length: u64) {
            let mut bytes = EXTENDED_REQUEST_MAGIC.to_be_bytes().to_vec();
            bytes.extend(flags.to_be_bytes());
            bytes.extend(command.to_be_bytes());
            bytes.extend(cookie.to_be_bytes());
            bytes.extend(offset.to_be_bytes());
            bytes.extend(length.to_be_bytes());
            let request = Request::decode_extended(bytes.as_slice().try_into().unwrap()).unwrap();
            let payload_bytes = if flags & cmd_flag::PAYLOAD_LEN != 0 { length } else { 0 };
            prop_assert_eq!(request, Request { flags, command, cookie, offset, length, payload_bytes });
        }
    }
}

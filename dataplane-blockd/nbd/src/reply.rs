//! Replies: to options, and to requests in each of the three styles.
//!
//! A reply to a request is a list of buffers that are written one after the other, so that data read from a device travels
//! to the socket without a copy.

use crate::{
    device::{Extent, Piece},
    wire::{
        BASE_ALLOCATION_ID, EXTENDED_REPLY_MAGIC, ErrorCode, OPTION_REPLY_MAGIC, SIMPLE_REPLY_MAGIC,
        STRUCTURED_REPLY_MAGIC, chunk, state,
    },
};
use bytes::Bytes;
use firn_codec::Writer;

/// Chunks of one read; a reply in more pieces is sent as one chunk of data, since each chunk costs the client a step.
const CHUNKS_MAX: usize = 64;
/// Zeroes are sent from here.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
/// Longest message to a human in an error; the protocol would allow 4096.
const MESSAGE_BYTES_MAX: usize = 512;

/// How replies look, by what was negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A header of 16 bytes; read data behind it.
    Simple,
    /// Chunks with a header of 20 bytes.
    Structured,
    /// Chunks with a header of 32 bytes; lengths of 64 bits.
    Extended,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; nothing more to say.
    Done,
    /// What was read; `whole` if it must not be split into chunks.
    Data {
        /// In order.
        pieces: Vec<Piece>,
        /// One chunk only.
        whole: bool,
    },
    /// Block status.
    Status(Vec<Extent>),
    /// Refused or failed.
    Failed {
        /// For the program.
        code: ErrorCode,
        /// For the human.
        message: String,
    },
}

impl Outcome {
    /// A failure.
    pub fn failed(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::Failed {
            code,
            message: message.into(),
        }
    }
}

/// Encodes a reply to the request with this cookie and offset.
pub fn encode(style: Style, cookie: u64, offset: u64, outcome: Outcome) -> Vec<Bytes> {
    let mut encoder = Encoder {
        style,
        cookie,
        request_offset: offset,
        buffers: Vec::with_capacity(2),
    };
    match style {
        Style::Simple => encoder.simple(outcome),
        Style::Structured | Style::Extended => encoder.chunks(outcome),
    }
    encoder.buffers
}

struct Encoder {
    style: Style,
    cookie: u64,
    request_offset: u64,
    buffers: Vec<Bytes>,
}

impl Encoder {
    fn simple(&mut self, outcome: Outcome) {
        let code = match &outcome {
            Outcome::Failed { code, .. } => *code as u32,
            Outcome::Done | Outcome::Data { .. } => 0,
            // Without structured replies there is no block status; the request was refused before it ran.
            Outcome::Status(_) => ErrorCode::Invalid as u32,
        };
        let mut head = Writer::big_endian(16);
        head.u32(SIMPLE_REPLY_MAGIC);
        head.u32(code);
        head.u64(self.cookie);
        self.buffers.push(head.finish().into());
        if let Outcome::Data { pieces, .. } = outcome {
            pieces.into_iter().for_each(|piece| self.piece(piece));
        }
    }

    fn chunks(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Done => self.chunk(chunk::NONE, true, &[], 0),
            Outcome::Failed { code, message } => {
                let message = shorten(&message);
                let mut payload = Writer::big_endian(6 + message.len());
                payload.u32(code as u32);
                payload.u16(message.len() as u16);
                payload.raw(message.as_bytes());
                self.chunk(chunk::ERROR, true, payload.as_slice(), 0);
            }
            Outcome::Status(extents) => self.status(&extents),
            Outcome::Data { pieces, whole } => self.data(pieces, whole),
        }
    }

    fn data(&mut self, pieces: Vec<Piece>, whole: bool) {
        let total: u64 = pieces.iter().map(Piece::length_bytes).sum();
        if total == 0 {
            return self.chunk(chunk::NONE, true, &[], 0);
        }
        if whole || pieces.len() > CHUNKS_MAX {
            self.chunk(
                chunk::OFFSET_DATA,
                true,
                &self.request_offset.to_be_bytes(),
                total,
            );
            return pieces.into_iter().for_each(|piece| self.piece(piece));
        }
        let mut offset = self.request_offset;
        let count = pieces.len();
        for (index, piece) in pieces.into_iter().enumerate() {
            let (length, last) = (piece.length_bytes(), index + 1 == count);
            match piece {
                Piece::Zeroes(length) => {
                    let mut payload = Writer::big_endian(12);
                    payload.u64(offset);
                    payload.u32(length as u32);
                    self.chunk(chunk::OFFSET_HOLE, last, payload.as_slice(), 0);
                }
                Piece::Data(data) => {
                    self.chunk(chunk::OFFSET_DATA, last, &offset.to_be_bytes(), length);
                    self.buffers.push(data);
                }
            }
            offset += length;
        }
    }

    fn status(&mut self, extents: &[Extent]) {
        let extended = self.style == Style::Extended;
        let mut payload = Writer::big_endian(8 + extents.len() * 16);
        payload.u32(BASE_ALLOCATION_ID);
        if extended {
            payload.u32(extents.len() as u32);
        }
        for extent in extents {
            let flags = if extent.hole { state::HOLE } else { 0 } | if extent.zero { state::ZERO } else { 0 };
            if extended {
                payload.u64(extent.length_bytes);
                payload.u64(flags.into());
            } else {
                // A compact request asks for less than 4 GiB, and extents end where the request ends.
                payload.u32(u32::try_from(extent.length_bytes).unwrap_or(u32::MAX));
                payload.u32(flags);
            }
        }
        let kind = if extended {
            chunk::BLOCK_STATUS_EXT
        } else {
            chunk::BLOCK_STATUS
        };
        self.chunk(kind, true, payload.as_slice(), 0);
    }

    /// A chunk's header and the start of its payload; `more` bytes follow in buffers of their own.
    fn chunk(&mut self, kind: u16, last: bool, payload: &[u8], more: u64) {
        let mut head = Writer::big_endian(32 + payload.len());
        let length = payload.len() as u64 + more;
        let flags = if last { chunk::FLAG_DONE } else { 0 };
        if self.style == Style::Extended {
            head.u32(EXTENDED_REPLY_MAGIC);
            head.u16(flags);
            head.u16(kind);
            head.u64(self.cookie);
            head.u64(self.request_offset);
            head.u64(length);
        } else {
            head.u32(STRUCTURED_REPLY_MAGIC);
            head.u16(flags);
            head.u16(kind);
            head.u64(self.cookie);
            head.u32(u32::try_from(length).expect("reads and extents are bounded far below 4 GiB"));
        }
        head.raw(payload);
        self.buffers.push(head.finish().into());
    }

    fn piece(&mut self, piece: Piece) {
        match piece {
            Piece::Data(data) => self.buffers.push(data),
            Piece::Zeroes(mut left) => {
                while left > 0 {
                    let now = left.min(ZEROES.len() as u64);
                    self.buffers.push(Bytes::from_static(&ZEROES[..now as usize]));
                    left -= now;
                }
            }
        }
    }
}

fn shorten(message: &str) -> &str {
    let mut end = message.len().min(MESSAGE_BYTES_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

/// Encodes a reply to an option.
pub fn encode_option(option: u32, kind: u32, data: &[u8]) -> Bytes {
    let mut reply = Writer::big_endian(20 + data.len());
    reply.u64(OPTION_REPLY_MAGIC);
    reply.u32(option);
    reply.u32(kind);
    reply.u32(u32::try_from(data.len()).expect("replies to options are short"));
    reply.raw(data);
    reply.finish().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(style: Style, outcome: Outcome) -> Vec<u8> {
        encode(style, 7, 4096, outcome).concat()
    }

    #[test]
    fn a_simple_reply_is_sixteen_bytes_and_the_data() {
        let pieces = vec![Piece::Data(Bytes::from_static(b"ab")), Piece::Zeroes(3)];
        let bytes = flat(Style::Simple, Outcome::Data { pieces, whole: false });
        assert_eq!(bytes.len(), 16 + 5);
        assert_eq!(&bytes[16..], b"ab\0\0\0");
        assert_eq!(
            flat(Style::Simple, Outcome::failed(ErrorCode::NoSpace, "x"))[4..8],
            [0, 0, 0, 28]
        );
    }

    #[test]
    fn the_last_chunk_alone_is_marked_done() {
        let pieces = vec![Piece::Zeroes(4096), Piece::Data(Bytes::from_static(b"abcd"))];
        let buffers = encode(Style::Structured, 7, 4096, Outcome::Data { pieces, whole: false });
        assert_eq!(buffers[0][4..8], [0, 0, 0, 2]);
        assert_eq!(buffers[1][4..8], [0, 1, 0, 1]);
        assert_eq!(buffers[1][20..28], 8192_u64.to_be_bytes());
    }

    #[test]
    fn an_unfragmented_read_has_its_zeroes_spelt_out() {
        let pieces = vec![Piece::Zeroes(100_000), Piece::Data(Bytes::from_static(b"abcd"))];
        let bytes = flat(Style::Extended, Outcome::Data { pieces, whole: true });
        assert_eq!(bytes.len(), 32 + 8 + 100_004);
        assert_eq!(bytes[24..32], 100_012_u64.to_be_bytes());
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let bytes = flat(
            Style::Structured,
            Outcome::failed(ErrorCode::Io, "é".repeat(1000)),
        );
        let length = usize::from(u16::from_be_bytes([bytes[24], bytes[25]]));
        assert!(length <= MESSAGE_BYTES_MAX && std::str::from_utf8(&bytes[26..26 + length]).is_ok());
        assert_eq!(bytes.len(), 26 + length);
    }
}

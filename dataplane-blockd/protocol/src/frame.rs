//! Frames: how a message lies in the stream.
//!
//! ```text
//! frame  = header | body | data
//! header = magic "FBD1" | version u8 | kind u8 | operation u8 | status u8 | request u64 | body bytes u32 | data bytes u32
//!        | crc32c of the body u32 | crc32c of the header before it u32                                      (32 bytes)
//! body   = the message's fields
//! data   = whole blocks of 4096 bytes; each has its own checksum in the body
//! ```
//!
//! The request's number, chosen by the client, comes back in its reply, so replies may arrive in any order. A header or body
//! that does not match its checksum ends the connection: its lengths cannot be believed, so nothing behind it can be found.
//! Damaged data ends only its request. Lengths are checked against [`limits`](crate::limits) before anything is allocated.

use crate::{
    BLOCK_BYTES,
    cursor::{DecodeError, Message},
    limits::{HEADER_BYTES, MAX_BODY_BYTES, MAX_DATA_BYTES},
};
use bytes::{Bytes, BytesMut};
use firn_codec::{Reader, Writer};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The version this build prefers. A change of meaning raises it; `hello` agrees on one both ends speak.
pub const PROTOCOL_VERSION: u8 = 2;
/// The version before, which is still spoken, so that nodes and clients need not be replaced all at once (invariant I2).
pub const PREVIOUS_VERSION: u8 = 1;

const MAGIC: [u8; 4] = *b"FBD1";
/// Read from the stream at once while it has that much, so that small requests that arrive together cost one system call.
const READ_BYTES: usize = 64 << 10;
/// What a connection may hold of a frame that is not whole without asking anybody: three requests of 4 KiB. A node with a
/// thousand silent connections keeps 16 MiB for them. A larger frame gets room for all of it once so much of it is there.
pub(crate) const FIRST_BYTES: usize = 16 << 10;

macro_rules! operations {
    ($($(#[$meta:meta])* $name:ident = $code:literal,)+) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Operation {
            $($(#[$meta])* $name = $code,)+
        }

        impl Operation {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The operation of that code.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)+
                    _ => None,
                }
            }
        }
    };
}

// The codes 3, 6, 7 and 11 were read, flush, stat and dirty regions, which no client ever sent; they are not given again.
operations! {
    /// Agree on a version and on bounds; first on every connection.
    Hello = 1,
    /// Present a capability.
    Authenticate = 2,
    /// Write blocks.
    Write = 4,
    /// Make blocks read as zeros.
    Trim = 5,
    /// Read blocks with their generations, to copy or compare them.
    Fetch = 8,
    /// Shut out every earlier attach of a disk.
    SetFence = 9,
    /// The tracts a node holds.
    List = 10,
}

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// From client to node.
    Request,
    /// From node to client.
    Reply,
}

/// A frame's header, without what is derived from the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The version it is written in.
    pub version: u8,
    /// Which way it goes.
    pub kind: FrameKind,
    /// The operation's code; one that is unknown here is refused, not fatal.
    pub operation: u8,
    /// Zero for requests and good replies; otherwise the code of a refusal.
    pub status: u8,
    /// Chosen by the client, repeated in the reply.
    pub request: u64,
}

/// A whole frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its header.
    pub header: FrameHeader,
    /// The message's fields.
    pub body: Bytes,
    /// Whole blocks.
    pub data: Bytes,
}

impl Frame {
    /// The bytes before the data: header and body in one piece.
    pub fn head(&self) -> Bytes {
        let mut head = Writer::with_capacity(HEADER_BYTES + self.body.len());
        head.raw(&MAGIC);
        head.u8(self.header.version);
        head.u8(match self.header.kind {
            FrameKind::Request => 1,
            FrameKind::Reply => 2,
        });
        head.u8(self.header.operation);
        head.u8(self.header.status);
        head.u64(self.header.request);
        head.u32(u32::try_from(self.body.len()).expect("bodies are bounded"));
        head.u32(u32::try_from(self.data.len()).expect("data is bounded"));
        head.u32(crc32c::crc32c(&self.body));
        head.u32(crc32c::crc32c(head.as_slice()));
        head.raw(&self.body);
        head.finish().into()
    }

    /// All its bytes in one piece.
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = BytesMut::from(&self.head()[..]);
        bytes.extend_from_slice(&self.data);
        bytes.freeze()
    }

    /// Reads a frame from the beginning of `bytes`; `None` if it is not all there.
    ///
    /// # Errors
    /// If these bytes are no frame.
    pub fn from_bytes(bytes: &mut BytesMut) -> Result<Option<Self>, DecodeError> {
        match Lengths::peek(bytes)? {
            Some(lengths) if bytes.len() >= lengths.total() => lengths.split(bytes).map(Some),
            _ => Ok(None),
        }
    }
}

/// A header that was checked, and what follows it.
struct Lengths {
    header: FrameHeader,
    body: usize,
    data: usize,
    body_checksum: u32,
}

impl Lengths {
    fn total(&self) -> usize {
        HEADER_BYTES + self.body + self.data
    }

    fn peek(bytes: &[u8]) -> Result<Option<Self>, DecodeError> {
        // A stream of something else is told apart at its first bytes, before it is waited for.
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(DecodeError::Magic);
        }
        if bytes.len() < HEADER_BYTES {
            return Ok(None);
        }
        let mut decoder = Reader::new(Message, &bytes[MAGIC.len()..HEADER_BYTES]);
        let version = decoder.u8()?;
        let kind = decoder.u8()?;
        let operation = decoder.u8()?;
        let status = decoder.u8()?;
        let request = decoder.u64()?;
        let body = decoder.u32()? as usize;
        let data = decoder.u32()? as usize;
        let body_checksum = decoder.u32()?;
        if crc32c::crc32c(&bytes[..HEADER_BYTES - 4]) != decoder.u32()? {
            return Err(DecodeError::Checksum { part: "header" });
        }
        let kind = match kind {
            1 => FrameKind::Request,
            2 => FrameKind::Reply,
            value => {
                return Err(DecodeError::Invalid {
                    field: "kind",
                    value: value.into(),
                });
            }
        };
        if body > MAX_BODY_BYTES {
            return Err(DecodeError::Invalid {
                field: "body length",
                value: body as u64,
            });
        }
        if data > MAX_DATA_BYTES || !data.is_multiple_of(BLOCK_BYTES) {
            return Err(DecodeError::Invalid {
                field: "data length",
                value: data as u64,
            });
        }
        Ok(Some(Self {
            header: FrameHeader {
                version,
                kind,
                operation,
                status,
                request,
            },
            body,
            data,
            body_checksum,
        }))
    }

    fn split(self, bytes: &mut BytesMut) -> Result<Frame, DecodeError> {
        let mut frame = bytes.split_to(self.total()).freeze();
        let data = frame.split_off(HEADER_BYTES + self.body);
        let body = frame.split_off(HEADER_BYTES);
        if crc32c::crc32c(&body) != self.body_checksum {
            return Err(DecodeError::Checksum { part: "body" });
        }
        Ok(Frame {
            header: self.header,
            body,
            data,
        })
    }
}

/// Why no more frames come.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads frames from a stream.
pub(crate) struct FrameReader<R> {
    stream: R,
    bytes: BytesMut,
    /// How much is read at once: more than [`FIRST_BYTES`] only after a read that filled them.
    ahead: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(stream: R) -> Self {
        Self {
            stream,
            bytes: BytesMut::new(),
            ahead: FIRST_BYTES,
        }
    }

    /// Waits until a frame is whole, or as much of a large one is there as a connection may hold; gives the length of that
    /// frame, for which the caller then finds room before it asks for the [next](Self::next). `None` if the stream ended
    /// between two. Cancel-safe.
    pub(crate) async fn begin(
        &mut self,
        mut before_read: impl FnMut(bool),
    ) -> Result<Option<usize>, FrameError> {
        loop {
            if let Some(lengths) = Lengths::peek(&self.bytes)?
                && self.bytes.len() >= lengths.total().min(FIRST_BYTES)
            {
                return Ok(Some(lengths.total()));
            }
            before_read(!self.bytes.is_empty());
            if !self.read(self.ahead).await? {
                return Ok(None);
            }
        }
    }

    /// Reads something; false if the stream ended between two frames.
    async fn read(&mut self, room: usize) -> Result<bool, FrameError> {
        self.bytes.reserve(room);
        let most = self.bytes.capacity() - self.bytes.len();
        let read = self.stream.read_buf(&mut self.bytes).await?;
        self.ahead = if read < most { FIRST_BYTES } else { READ_BYTES };
        match read {
            0 if self.bytes.is_empty() => Ok(false),
            0 => Err(FrameError::Io(io::ErrorKind::UnexpectedEof.into())),
            _ => Ok(true),
        }
    }

    /// The next frame; `None` if the stream ended between two. `before_read` is told, before each wait for the stream,
    /// whether a part of the frame is there already. Cancel-safe: bytes read stay in the reader.
    pub(crate) async fn next(
        &mut self,
        mut before_read: impl FnMut(bool),
    ) -> Result<Option<Frame>, FrameError> {
        loop {
            let missing = match Lengths::peek(&self.bytes)? {
                Some(lengths) if self.bytes.len() >= lengths.total() => {
                    return Ok(Some(lengths.split(&mut self.bytes)?));
                }
                Some(lengths) => lengths.total() - self.bytes.len(),
                None => HEADER_BYTES - self.bytes.len(),
            };
            before_read(!self.bytes.is_empty());
            if !self.read(missing.max(self.ahead)).await? {
                return Ok(None);
            }
        }
    }
}

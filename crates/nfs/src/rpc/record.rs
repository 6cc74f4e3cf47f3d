//! Record marking (RFC 5531 §11): messages on a byte stream.
//!
//! ```text
//! record   = fragment* last fragment
//! fragment = word (top bit: last, 31 bits: length) | that many bytes
//! ```
//!
//! The [`Assembler`] is a state machine without I/O. Bytes are read into one staging buffer that a connection keeps for
//! ever; each record is assembled in an allocation of exactly its size, so a record that the engine holds on to (the data
//! of a write) pins nothing else. Of a large record only what came along with earlier ones is copied from the staging
//! buffer; the rest is received straight into its place ([`Assembler::direct`]).

use bytes::{BufMut, Bytes, BytesMut};
use std::io::{self, IoSlice};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const LAST_FRAGMENT: u32 = 1 << 31;
/// Real clients send one or a few; without a bound, empty fragments would keep a record open for ever.
const FRAGMENTS_MAX: u32 = 1024;
/// One read of many small calls, or the head of a large one.
const STAGING_BYTES: usize = 64 << 10;
/// Below this the rest of a record is cheaper to fetch together with what follows it than by a read of its own.
const DIRECT_FROM_BYTES: usize = 16 << 10;

/// The stream is not a sequence of acceptable records; the connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// More bytes than any call of these programs has.
    #[error("a record of more than {limit_bytes} bytes")]
    TooLarge {
        /// The largest accepted.
        limit_bytes: usize,
    },
    /// A record in more fragments than any client makes.
    #[error("a record of more than {FRAGMENTS_MAX} fragments")]
    TooManyFragments,
    /// The stream ended inside a record.
    #[error("the connection ended inside a record")]
    Torn,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// What the assembler came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// All input is consumed; more is needed.
    NeedInput,
    /// A fragment of this many bytes begins; memory for it is taken at the next step.
    Fragment {
        /// Its length.
        bytes: usize,
    },
    /// A whole record.
    Record(Bytes),
}

/// Puts records together from fragments.
#[derive(Debug)]
pub struct Assembler {
    limit_bytes: usize,
    marker: [u8; 4],
    marker_bytes: usize,
    /// Bytes of the current fragment still to come; meaningful once its marker is complete.
    fragment_left: usize,
    in_fragment: bool,
    last: bool,
    fragments: u32,
    record: BytesMut,
}

impl Assembler {
    /// Accepts records of up to `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            marker: [0; 4],
            marker_bytes: 0,
            fragment_left: 0,
            in_fragment: false,
            last: false,
            fragments: 0,
            record: BytesMut::new(),
        }
    }

    /// Whether a record has begun and is not complete.
    pub fn is_inside_record(&self) -> bool {
        self.in_fragment || self.marker_bytes > 0 || self.fragments > 0
    }

    /// Consumes from the front of `input` up to the next event.
    ///
    /// # Errors
    /// If the record exceeds the limits. The assembler must not be used further.
    pub fn step(&mut self, input: &mut &[u8]) -> Result<Step, RecordError> {
        if !self.in_fragment {
            let take = input.len().min(4 - self.marker_bytes);
            let (head, rest) = input.split_at(take);
            self.marker[self.marker_bytes..][..take].copy_from_slice(head);
            self.marker_bytes += take;
            *input = rest;
            if self.marker_bytes < 4 {
                return Ok(Step::NeedInput);
            }
            return self.begin_fragment();
        }
        if self.fragment_left > 0 {
            let take = input.len().min(self.fragment_left);
            let (head, rest) = input.split_at(take);
            // The length of a single-fragment record is known, so this allocates once.
            self.record.reserve(self.fragment_left);
            self.record.put_slice(head);
            self.fragment_left -= take;
            *input = rest;
        }
        if self.fragment_left > 0 {
            return Ok(Step::NeedInput);
        }
        self.in_fragment = false;
        self.marker_bytes = 0;
        if self.last {
            self.fragments = 0;
            return Ok(Step::Record(std::mem::take(&mut self.record).freeze()));
        }
        self.step(input)
    }

    fn begin_fragment(&mut self) -> Result<Step, RecordError> {
        let word = u32::from_be_bytes(self.marker);
        let length = (word & !LAST_FRAGMENT) as usize;
        self.fragments += 1;
        if self.fragments > FRAGMENTS_MAX {
            return Err(RecordError::TooManyFragments);
        }
        if length > self.limit_bytes - self.record.len() {
            return Err(RecordError::TooLarge {
                limit_bytes: self.limit_bytes,
            });
        }
        self.last = word & LAST_FRAGMENT != 0;
        self.fragment_left = length;
        self.in_fragment = true;
        Ok(Step::Fragment { bytes: length })
    }

    /// Where the rest of a large fragment may be received directly; report what was put there to
    /// [`Assembler::received`]. `None` if staging is the better way.
    pub fn direct(&mut self) -> Option<bytes::buf::Limit<&mut BytesMut>> {
        if !self.in_fragment || self.fragment_left < DIRECT_FROM_BYTES {
            return None;
        }
        self.record.reserve(self.fragment_left);
        Some((&mut self.record).limit(self.fragment_left))
    }

    /// Counts bytes that [`Assembler::direct`] received.
    ///
    /// # Panics
    /// If they are more than the fragment has left.
    pub fn received(&mut self, bytes: usize) {
        assert!(
            bytes <= self.fragment_left,
            "the limit of `direct` is the fragment's end"
        );
        self.fragment_left -= bytes;
    }
}

/// Reads records from a stream.
pub(crate) struct RecordReader<S> {
    stream: S,
    assembler: Assembler,
    staging: Box<[u8]>,
    start: usize,
    end: usize,
}

impl<S: AsyncRead + Unpin> RecordReader<S> {
    pub(crate) fn new(stream: S, limit_bytes: usize) -> Self {
        Self {
            stream,
            assembler: Assembler::new(limit_bytes),
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    /// The next event: a fragment that begins, or a whole record. `None` at the orderly end of the stream.
    ///
    /// Before each wait for input, `waits` is told whether it is in the middle of a record.
    pub(crate) async fn next(&mut self, mut waits: impl FnMut(bool)) -> Result<Option<Step>, RecordError> {
        loop {
            let mut input = &self.staging[self.start..self.end];
            let step = self.assembler.step(&mut input)?;
            self.start = self.end - input.len();
            if step != Step::NeedInput {
                return Ok(Some(step));
            }
            waits(self.assembler.is_inside_record());
            let received = if let Some(mut rest) = self.assembler.direct() {
                let received = self.stream.read_buf(&mut rest).await?;
                self.assembler.received(received);
                received
            } else {
                (self.start, self.end) = (0, 0);
                self.end = self.stream.read(&mut self.staging).await?;
                self.end
            };
            if received == 0 {
                if self.assembler.is_inside_record() {
                    return Err(RecordError::Torn);
                }
                return Ok(None);
            }
        }
    }
}

/// The marker of a record sent in one fragment.
///
/// # Panics
/// If the record is 2 GiB or longer; callers bound replies far below.
pub(crate) fn marker(bytes: usize) -> [u8; 4] {
    assert!(
        bytes < LAST_FRAGMENT as usize,
        "replies are bounded far below 2 GiB"
    );
    (bytes as u32 | LAST_FRAGMENT).to_be_bytes()
}

/// Writes all of `slices` with as few system calls as the stream allows.
pub(crate) async fn write_all_vectored(
    stream: &mut (impl AsyncWrite + Unpin),
    mut slices: &mut [IoSlice<'_>],
) -> io::Result<()> {
    // Empty slices at the front would look like a stream that takes nothing.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let written = stream.write_vectored(slices).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut slices, written);
    }
    Ok(())
}

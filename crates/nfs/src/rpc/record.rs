//! Record marking (RFC 5531 §11): messages on a byte stream.
//!
//! ```text
//! record   = fragment* last fragment
//! fragment = word (top bit: last, 31 bits: length) | that many bytes
//! ```
//!
//! The [`Assembler`] is a state machine without I/O. What a stranger announces costs nothing: a record has memory for
//! [`SMALL_BYTES`], and for more only as it comes in, each time up to four times as much, after whoever counts memory has
//! granted it ([`Step::Full`]). So what a record holds is at most four times what was received of it. Each step copies what is
//! there into fresh memory; who has sent a whole record of some size is therefore granted the next one of up to that size in a
//! single step, once more than [`SMALL_BYTES`] of it have come. The last allocation has exactly the record's size, so that one that
//! the engine holds on to (the data of a write) pins nothing else.
//!
//! Bytes are read into one staging buffer, which is small until a read fills it. Of a large record only what came along with
//! earlier ones is copied from there; the rest is received straight into its place ([`Assembler::direct`]).

use bytes::{BufMut, Bytes, BytesMut};
use std::io::{self, IoSlice};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const LAST_FRAGMENT: u32 = 1 << 31;
/// Real clients send one or a few; without a bound, empty fragments would keep a record open for ever.
const FRAGMENTS_MAX: u32 = 1024;
/// What a record may have without being granted it: every call but a WRITE fits, and the fragments of a few of them.
pub(crate) const SMALL_BYTES: usize = 16 << 10;
/// How much more is granted each time: every step copies what is there, so few are better; large ones trust the sender.
const GROWTH: usize = 4;
/// One read of many small calls, or the head of a large one.
const STAGING_BYTES: usize = 64 << 10;
/// The staging buffer of a connection that never said anything: most calls fit. One that a read filled grows.
const STAGING_FIRST_BYTES: usize = 256;
/// The first allocation of a record that comes in pieces.
const ALLOCATION_MIN_BYTES: usize = 512;
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
    /// The record's memory is used up; with [`Assembler::grant`] it may grow to so many bytes in all.
    Full {
        /// Its next size.
        wanted_bytes: usize,
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
    /// How much of the record may be in memory.
    granted_bytes: usize,
    /// The largest record that was received whole.
    proven_bytes: usize,
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
            granted_bytes: SMALL_BYTES,
            proven_bytes: 0,
        }
    }

    /// How many bytes of a record were received that is not complete; `None` between records.
    pub fn inside_record(&self) -> Option<usize> {
        let inside = self.in_fragment || self.marker_bytes > 0 || self.fragments > 0;
        inside.then_some(self.record.len())
    }

    /// Lets the present record grow to `bytes`.
    pub fn grant(&mut self, bytes: usize) {
        self.granted_bytes = self.granted_bytes.max(bytes);
    }

    /// Bytes that the present fragment may still put into the record.
    fn room_bytes(&self) -> usize {
        self.fragment_left
            .min(self.granted_bytes.saturating_sub(self.record.len()))
    }

    /// Of `room` bytes, those there is memory for after `come` have come: no more than some times what was received, unless that
    /// much was granted at once.
    fn sized_room(&self, room: usize, come: usize) -> usize {
        let earned = match self.granted_bytes > SMALL_BYTES {
            true => (self.record.len().max(come) * GROWTH).max(self.proven_bytes),
            false => self.record.len().max(come) * GROWTH,
        };
        room.min(earned.max(come).max(ALLOCATION_MIN_BYTES))
    }

    /// Allocates for exactly `room` more bytes.
    fn reserve_exactly(&mut self, room: usize) {
        if self.record.capacity() - self.record.len() < room {
            let mut larger = BytesMut::with_capacity(self.record.len() + room);
            larger.extend_from_slice(&self.record);
            self.record = larger;
        }
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
            self.begin_fragment()?;
        }
        if self.fragment_left > 0 {
            let room = self.room_bytes();
            if room == 0 {
                let whole = self.record.len() + self.fragment_left;
                return Ok(Step::Full {
                    wanted_bytes: (self.granted_bytes * GROWTH).max(self.proven_bytes).min(whole),
                });
            }
            let take = input.len().min(room);
            if take == 0 {
                return Ok(Step::NeedInput);
            }
            let (head, rest) = input.split_at(take);
            if self.record.capacity() - self.record.len() < take {
                self.reserve_exactly(self.sized_room(room, take));
            }
            self.record.put_slice(head);
            self.fragment_left -= take;
            *input = rest;
            return self.step(input);
        }
        self.in_fragment = false;
        self.marker_bytes = 0;
        if self.last {
            self.fragments = 0;
            self.granted_bytes = SMALL_BYTES;
            self.proven_bytes = self.proven_bytes.max(self.record.len());
            return Ok(Step::Record(std::mem::take(&mut self.record).freeze()));
        }
        self.step(input)
    }

    fn begin_fragment(&mut self) -> Result<(), RecordError> {
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
        Ok(())
    }

    /// Where the rest of a large fragment may be received directly; report what was put there to
    /// [`Assembler::received`]. `None` if staging is the better way.
    pub fn direct(&mut self) -> Option<bytes::buf::Limit<&mut BytesMut>> {
        let room = self.sized_room(self.room_bytes(), 0);
        if !self.in_fragment || room < DIRECT_FROM_BYTES {
            return None;
        }
        self.reserve_exactly(room);
        Some((&mut self.record).limit(room))
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
            staging: vec![0; STAGING_FIRST_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    /// Lets the present record grow, after [`Step::Full`].
    pub(crate) fn grant(&mut self, bytes: usize) {
        self.assembler.grant(bytes);
    }

    /// Whether more was received than the records that were given out.
    pub(crate) fn has_more(&self) -> bool {
        self.start < self.end
    }

    /// The next event: a record whose memory is used up, or a whole one. `None` at the orderly end of the stream.
    ///
    /// Before each wait for input, `waits` is given the bytes that were received of an incomplete record.
    pub(crate) async fn next(
        &mut self,
        mut waits: impl FnMut(Option<usize>),
    ) -> Result<Option<Step>, RecordError> {
        loop {
            let mut input = &self.staging[self.start..self.end];
            let step = self.assembler.step(&mut input)?;
            self.start = self.end - input.len();
            if step != Step::NeedInput {
                return Ok(Some(step));
            }
            waits(self.assembler.inside_record());
            let received = if let Some(mut rest) = self.assembler.direct() {
                let received = self.stream.read_buf(&mut rest).await?;
                self.assembler.received(received);
                received
            } else {
                if self.end == self.staging.len() && self.end < STAGING_BYTES {
                    let larger = (self.end * GROWTH).min(STAGING_BYTES);
                    self.staging = vec![0; larger].into_boxed_slice();
                }
                (self.start, self.end) = (0, 0);
                self.end = self.stream.read(&mut self.staging).await?;
                self.end
            };
            if received == 0 {
                if self.assembler.inside_record().is_some() {
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

/// Writes all of `slices` with as few system calls as the stream allows; `wrote` is given the bytes each of them took.
pub(crate) async fn write_all_vectored(
    stream: &mut (impl AsyncWrite + Unpin),
    mut slices: &mut [IoSlice<'_>],
    mut wrote: impl FnMut(usize),
) -> io::Result<()> {
    // Empty slices at the front would look like a stream that takes nothing.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let written = stream.write_vectored(slices).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        wrote(written);
        IoSlice::advance_slices(&mut slices, written);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Assembler, GROWTH, RecordReader, SMALL_BYTES, Step, marker};

    /// Sends a record in reads of 16 KiB and grants what it asks for; the grants.
    fn grants(assembler: &mut Assembler, bytes: usize) -> Vec<usize> {
        let stream = [&marker(bytes)[..], &vec![7; bytes]].concat();
        let mut grants = Vec::new();
        for mut input in stream.chunks(16 << 10) {
            loop {
                match assembler.step(&mut input).unwrap() {
                    Step::NeedInput => break,
                    Step::Full { wanted_bytes } => {
                        assert!(assembler.inside_record().unwrap() >= SMALL_BYTES);
                        grants.push(wanted_bytes);
                        assembler.grant(wanted_bytes);
                    }
                    Step::Record(record) => {
                        assert_eq!(record, vec![7; bytes]);
                        return grants;
                    }
                }
            }
        }
        panic!("the whole record was sent");
    }

    #[test]
    fn a_stranger_earns_memory_step_by_step_and_who_has_sent_as_much_gets_it_at_once() {
        let mut assembler = Assembler::new(4 << 20);
        let large = 1 << 20;
        let earned = [SMALL_BYTES * GROWTH, SMALL_BYTES * GROWTH * GROWTH, large];
        assert_eq!(grants(&mut assembler, large), earned);
        assert!(grants(&mut assembler, 100).is_empty());
        assert_eq!(grants(&mut assembler, large), [large]);
        assert_eq!(
            grants(&mut assembler, large / 2),
            [large / 2],
            "no more than it has"
        );
        assert_eq!(grants(&mut assembler, 2 * large), [large, 2 * large]);
    }

    #[test]
    fn memory_granted_at_once_is_allocated_once() {
        let mut assembler = Assembler::new(4 << 20);
        grants(&mut assembler, 1 << 20);
        let stream = [&marker(1 << 20)[..], &[7; 64 << 10]].concat();
        let mut input = &stream[..];
        assert_eq!(
            assembler.step(&mut input).unwrap(),
            Step::Full {
                wanted_bytes: 1 << 20
            }
        );
        assembler.grant(1 << 20);
        assert_eq!(assembler.step(&mut input).unwrap(), Step::NeedInput);
        let place = assembler.record.as_ptr();
        assert!(
            assembler.direct().is_some(),
            "the rest is received where it belongs"
        );
        assert_eq!(assembler.record.as_ptr(), place);
        assert_eq!(
            assembler.record.capacity(),
            1 << 20,
            "and nothing beside it is pinned"
        );
    }

    #[tokio::test]
    async fn a_reader_knows_whether_another_record_has_begun_to_come() {
        let record = |bytes: usize| [&marker(bytes)[..], &vec![7; bytes]].concat();
        let stream = [record(100), record(50)].concat();
        let mut reader = RecordReader::new(&stream[..], 1 << 20);
        for (bytes, more) in [(100, true), (50, false)] {
            let step = reader.next(drop).await.unwrap();
            assert_eq!(step, Some(Step::Record(vec![7; bytes].into())));
            assert_eq!(reader.has_more(), more, "behind {bytes} bytes");
        }
    }
}

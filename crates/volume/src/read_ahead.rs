//! Reading ahead of sequential readers: what they will ask for next is on its way before they do.
//!
//! ```text
//! a read of a file ─ continues a stream? ─ no ─→ a new stream, nothing more
//!                            └ yes, and most of what it passed was read
//!                                  → leaves of the block map up to `reached` + window → what of them is nowhere near
//!                                  → whole runs of segments, one GET each, shared with whoever reads them (objects/ahead.rs)
//! ```
//!
//! A *stream* is a reader somewhere in a file; several clients that read one file at different places are several streams.
//! Calls of a client overtake each other, so a stream takes what begins a little before or behind where it is. Its *window* is
//! what it has read so far, up to [`WINDOW_BYTES_MAX`]: it doubles as the reader goes on, whoever stops has caused at most as
//! many bytes again as it read, and a seek begins with nothing. Random reads leave gaps: a stream of which less than half was
//! read causes nothing.
//!
//! A stream that has read more than half of what the memory cache holds is a *scan*: it would push everything out of that cache
//! and find nothing there itself. Blocks that a scan has passed are not kept in memory, only in the disk cache
//! ([`ReadAhead::note`]); what it read before stays, and is found by who reads the file again.
//!
//! Nothing here can make a read wrong. Leaves are looked up in the committed tree that a read just used; what they name is
//! fetched as sealed bytes of segments, which never change, and is verified by the pointer that a later read follows, whatever
//! was written or committed meanwhile.
//!
//! Memory: [`STREAMS_MAX`] streams of some 100 bytes; the bytes under way are bounded by the fetcher.

use crate::{objects::Objects, tree};
use firn_env::Env;
use firn_format::TreeRoot;
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
};

/// Streams remembered, the longest unused forgotten first.
const STREAMS_MAX: usize = 512;
/// Streams of one file.
const STREAMS_OF_A_FILE: usize = 16;
/// How far ahead of a reader its blocks are fetched: at 500 MB/s and 12 ms, more than twice what is on the line at a time.
const WINDOW_BYTES_MAX: u64 = 16 << 20;
/// How far a call may be ahead of those before it, or behind those that overtook it: a client has some mebibytes in flight.
const DISORDER_BYTES: u64 = 8 << 20;
/// Looked up beyond the window, so that a run that begins in it is fetched to its end: segments are 4 MiB, of more than that of
/// files if they were compressed.
const BEYOND_BYTES: u64 = 8 << 20;
/// Nodes of the block map are loaded so many windows ahead: a look ahead should not have to wait for them, and they are a five
/// hundredth of what they lead to.
const NODES_WINDOWS: u64 = 4;
/// Blocks that were read before anything is read ahead.
const BLOCKS_MIN: u64 = 4;

/// A file, by its file system (the live tree's or a snapshot's) and inode.
pub(crate) type FileKey = (u64, u64);

/// One sequential reader, in bytes of the file.
#[derive(Clone, Debug)]
struct Stream {
    /// Tells it from those before it.
    number: u64,
    began: u64,
    /// The end of the furthest read.
    reached: u64,
    /// How much of `began..reached` was read.
    read_bytes: u64,
    /// Up to here everything was fetched, or found to be near.
    ahead_to: u64,
    /// Up to here the nodes of the block map were asked for.
    nodes_to: u64,
    /// A task is looking ahead for it.
    is_looking: bool,
    used_at: u64,
}

impl Stream {
    /// How far a read is from where the stream is; `None` if it does not belong to it.
    fn distance(&self, read: &Range<u64>) -> Option<u64> {
        let is_near = read.start <= self.reached.saturating_add(DISORDER_BYTES)
            && read.start >= self.reached.saturating_sub(DISORDER_BYTES);
        is_near.then(|| read.start.abs_diff(self.reached))
    }

    /// Takes a read; returns whether it was further on than those before.
    fn take(&mut self, read: &Range<u64>) -> bool {
        let goes_on = read.end > self.reached;
        let new_bytes = read.end - read.start.max(if goes_on { self.reached } else { 0 });
        self.reached = self.reached.max(read.end);
        self.began = self.began.min(read.start);
        // What is read a second time is not more.
        self.read_bytes = (self.read_bytes + new_bytes).min(self.reached - self.began);
        goes_on
    }

    /// What is to be looked up and fetched now.
    fn next(&mut self, block_bytes: u64) -> Option<Ahead> {
        let is_sequential =
            self.read_bytes * 2 >= self.reached - self.began && self.read_bytes >= BLOCKS_MIN * block_bytes;
        if !is_sequential || self.is_looking {
            return None;
        }
        let window = self.read_bytes.min(WINDOW_BYTES_MAX);
        let from = self.ahead_to.max(self.reached);
        let to = self.reached.saturating_add(window);
        // Half a window at a time: fewer, longer runs.
        if to < from.saturating_add((window / 2).max(block_bytes)) {
            return None;
        }
        self.is_looking = true;
        let nodes_to = to.saturating_add(window * NODES_WINDOWS);
        let is_due = nodes_to >= self.nodes_to.saturating_add(window * NODES_WINDOWS / 2);
        let nodes = is_due.then(|| {
            let before = std::mem::replace(&mut self.nodes_to, nodes_to);
            before.max(from)..nodes_to
        });
        Some(Ahead {
            blocks: from..to,
            nodes,
        })
    }
}

/// What to fetch ahead of a stream, in bytes of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ahead {
    blocks: Range<u64>,
    /// Where the nodes of the block map are to be loaded as well.
    nodes: Option<Range<u64>>,
}

#[derive(Default)]
struct Streams {
    by_file: BTreeMap<FileKey, Vec<Stream>>,
    /// By time of last use.
    order: BTreeMap<u64, FileKey>,
    uses: u64,
}

impl Streams {
    /// Notes a read; returns how much the stream that it belongs to has read by now (0 if all of this was read before), and what to
    /// fetch ahead of it, with its number.
    fn note(&mut self, file: FileKey, read: &Range<u64>, block_bytes: u64) -> (u64, Option<(u64, Ahead)>) {
        self.uses += 1;
        let now = self.uses;
        let streams = self.by_file.entry(file).or_default();
        let near = streams
            .iter_mut()
            .filter_map(|stream| Some((stream.distance(read)?, stream)))
            .min_by_key(|(distance, _)| *distance);
        if let Some((_, stream)) = near {
            self.order.remove(&stream.used_at);
            self.order.insert(now, file);
            stream.used_at = now;
            let before = stream.read_bytes;
            let goes_on = stream.take(read);
            let ahead = goes_on.then(|| stream.next(block_bytes)).flatten();
            let read_bytes = if stream.read_bytes > before {
                stream.read_bytes
            } else {
                0
            };
            return (read_bytes, ahead.map(|ahead| (stream.number, ahead)));
        }
        if streams.len() >= STREAMS_OF_A_FILE
            && let Some(oldest) = streams.iter().map(|stream| stream.used_at).min()
        {
            streams.retain(|stream| stream.used_at != oldest);
            self.order.remove(&oldest);
        }
        streams.push(Stream {
            number: now,
            began: read.start,
            reached: read.end,
            read_bytes: read.end - read.start,
            ahead_to: 0,
            nodes_to: 0,
            is_looking: false,
            used_at: now,
        });
        self.order.insert(now, file);
        while self.order.len() > STREAMS_MAX
            && let Some((oldest, file)) = self.order.pop_first()
            && let Some(streams) = self.by_file.get_mut(&file)
        {
            streams.retain(|stream| stream.used_at != oldest);
            if streams.is_empty() {
                self.by_file.remove(&file);
            }
        }
        (read.end - read.start, None)
    }

    /// A look ahead has come so far; returns what to fetch next.
    fn looked(&mut self, file: FileKey, number: u64, ahead_to: u64, block_bytes: u64) -> Option<Ahead> {
        let stream = self
            .by_file
            .get_mut(&file)?
            .iter_mut()
            .find(|stream| stream.number == number)?;
        let is_stuck = ahead_to <= stream.ahead_to.max(stream.reached);
        stream.ahead_to = stream.ahead_to.max(ahead_to);
        stream.is_looking = false;
        // Where it got nowhere, the next read tries again.
        if is_stuck { None } else { stream.next(block_bytes) }
    }
}

/// Reads ahead; see the module.
pub(crate) struct ReadAhead {
    env: Env,
    block_bytes: u64,
    /// A stream that has read more is a scan.
    scan_bytes: u64,
    streams: Arc<Mutex<Streams>>,
}

impl ReadAhead {
    /// For a volume of blocks of `block_bytes` with a memory cache of `memory_cache_bytes`.
    pub fn new(env: &Env, block_bytes: u64, memory_cache_bytes: u64) -> Self {
        Self {
            env: env.clone(),
            block_bytes,
            scan_bytes: memory_cache_bytes / 2,
            streams: Arc::default(),
        }
    }

    /// These bytes of a file are being read, by the block map below `root`: what is likely to follow is fetched. Never waits.
    ///
    /// Returns up to which block those are that nobody is likely to ask for again soon: of a scan, the blocks whose end the read has
    /// reached; of any other reader, none.
    pub fn note(&self, objects: &Objects, file: FileKey, root: &TreeRoot, read: Range<u64>) -> u64 {
        let (read_bytes, next) = lock(&self.streams).note(file, &read, self.block_bytes);
        let passed = match read_bytes > self.scan_bytes {
            true => read.end / self.block_bytes,
            false => 0,
        };
        let Some((number, ahead)) = next else {
            return passed;
        };
        self.look_ahead(objects, file, root, number, ahead);
        passed
    }

    fn look_ahead(&self, objects: &Objects, file: FileKey, root: &TreeRoot, number: u64, mut ahead: Ahead) {
        let (objects, root, streams) = (objects.clone(), *root, self.streams.clone());
        let (env, block_bytes) = (self.env.clone(), self.block_bytes);
        drop(self.env.spawn("read ahead", async move {
            loop {
                if let Some(nodes) = ahead.nodes.take() {
                    let (objects, inode) = (objects.clone(), file.1);
                    drop(env.spawn("nodes ahead", async move {
                        let (from, to) = (nodes.start / block_bytes, nodes.end.div_ceil(block_bytes));
                        // What cannot be read is the reader's to report.
                        let _ = tree::load_nodes(&objects, inode, &root, from, to).await;
                    }));
                }
                env.fault_point("read_ahead.before_look").await;
                let ahead_to = look(&objects, file.1, &root, &ahead.blocks, block_bytes).await;
                let next = lock(&streams).looked(file, number, ahead_to, block_bytes);
                match next {
                    Some(next) => ahead = next,
                    None => return,
                }
            }
        }));
    }
}

fn lock(streams: &Mutex<Streams>) -> MutexGuard<'_, Streams> {
    streams.lock().expect("no panic under the lock of the streams")
}

/// Fetches what is ahead; returns how far.
async fn look(objects: &Objects, inode: u64, root: &TreeRoot, ahead: &Range<u64>, block_bytes: u64) -> u64 {
    let first = ahead.start.div_ceil(block_bytes);
    let until = ahead.end.div_ceil(block_bytes);
    let beyond = until.saturating_add(BEYOND_BYTES / block_bytes);
    // A map that cannot be read is the reader's to report.
    let Ok(leaves) = tree::range(objects, inode, root, first, beyond, usize::MAX).await else {
        return ahead.end;
    };
    match objects.fetch_ahead(&leaves, until) {
        Some(index) => index.saturating_mul(block_bytes).min(ahead.end),
        None => ahead.end,
    }
}

#[cfg(test)]
mod tests {
    use super::{DISORDER_BYTES, STREAMS_MAX, STREAMS_OF_A_FILE, Streams, WINDOW_BYTES_MAX};

    const BLOCK: u64 = 32 << 10;
    const MIB: u64 = 1 << 20;
    const FILE: (u64, u64) = (1, 2);

    /// Reads a mebibyte at each of these offsets; returns what is read ahead of each, looks ahead being done at once.
    fn read(streams: &mut Streams, offsets: impl IntoIterator<Item = u64>) -> Vec<Option<(u64, u64)>> {
        let one = |offset| {
            let (number, ahead) = streams.note(FILE, &(offset..offset + MIB), BLOCK).1?;
            let range = ahead.blocks;
            assert_eq!(streams.looked(FILE, number, range.end, BLOCK), None);
            Some((range.start, range.end))
        };
        offsets.into_iter().map(one).collect()
    }

    #[test]
    fn a_reader_is_read_ahead_of_as_far_as_it_has_come_up_to_the_window() {
        let mut streams = Streams::default();
        let ahead = read(&mut streams, (0..64).map(|number| number * MIB));
        let mut covered = 0;
        for (number, range) in (0..).zip(ahead) {
            let Some((start, end)) = range else { continue };
            let reached = (number + 1) * MIB;
            assert!(start >= covered && start >= reached, "{start} twice");
            assert!(
                end <= reached + reached.min(WINDOW_BYTES_MAX),
                "{end} at {reached}"
            );
            covered = end;
        }
        assert!(covered >= 64 * MIB + WINDOW_BYTES_MAX / 2, "{covered}");
    }

    #[test]
    fn calls_that_overtake_each_other_are_one_stream() {
        let mut streams = Streams::default();
        let order = (0..64_u64).map(|number| (number ^ 3) * MIB);
        let ahead = read(&mut streams, order);
        assert_eq!(streams.by_file[&FILE].len(), 1);
        let covered = ahead.into_iter().flatten().map(|(_, end)| end).max();
        assert!(covered >= Some(64 * MIB + WINDOW_BYTES_MAX / 2), "{covered:?}");
    }

    #[test]
    fn readers_at_several_places_of_a_file_are_several_streams() {
        let mut streams = Streams::default();
        let far = 1 << 30;
        let offsets = (0..32).flat_map(|number| [number * MIB, far + number * MIB, 2 * far + number * MIB]);
        let ahead = read(&mut streams, offsets);
        assert_eq!(streams.by_file[&FILE].len(), 3);
        for place in 0..3 {
            let ends = ahead.iter().flatten().map(|(_, end)| *end);
            let covered = ends.filter(|end| end / far == place).max();
            assert!(covered >= Some(place * far + 40 * MIB), "{covered:?}");
        }
    }

    #[test]
    fn random_reads_and_a_seek_cause_nothing() {
        let mut streams = Streams::default();
        // Each some 5 MiB on from the last, near enough to belong to it.
        let jumps = (0..64).map(|number| number * 5 * MIB);
        assert!(read(&mut streams, jumps).iter().all(Option::is_none));
        let mut streams = Streams::default();
        read(&mut streams, (0..16).map(|number| number * MIB));
        let seek = read(&mut streams, [1 << 30]);
        assert_eq!(seek, [None]);
        // The same over again is not further.
        let again = read(&mut streams, (0..64).map(|_| (1 << 30) + MIB / 2));
        let bytes: u64 = again.iter().flatten().map(|(start, end)| end - start).sum();
        assert!(bytes <= 2 * MIB, "{again:?}");
    }

    #[test]
    fn what_was_read_before_is_no_progress_and_what_was_overtaken_is() {
        let mut streams = Streams::default();
        let read = |streams: &mut Streams, number: u64| {
            streams.note(FILE, &(number * MIB..(number + 1) * MIB), BLOCK).0
        };
        let order = [0, 2, 1, 3, 3, 0, 2];
        let progress = order.map(|number| read(&mut streams, number) / MIB);
        assert_eq!(progress, [1, 2, 3, 4, 0, 0, 0]);
    }

    #[test]
    fn where_a_look_ahead_got_nowhere_the_next_read_tries_again() {
        let mut streams = Streams::default();
        assert_eq!(streams.note(FILE, &(0..MIB), BLOCK), (MIB, None));
        let (number, ahead) = streams.note(FILE, &(MIB..2 * MIB), BLOCK).1.expect("two reads");
        assert_eq!(
            streams.note(FILE, &(2 * MIB..3 * MIB), BLOCK).1,
            None,
            "one at a time"
        );
        assert_eq!(streams.looked(FILE, number, ahead.blocks.start, BLOCK), None);
        let (_, again) = streams
            .note(FILE, &(3 * MIB..4 * MIB), BLOCK)
            .1
            .expect("once more");
        assert_eq!(again.blocks.start, 4 * MIB);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut streams = Streams::default();
        for number in 0..3 * STREAMS_OF_A_FILE as u64 {
            streams.note(
                FILE,
                &(number * 4 * DISORDER_BYTES..number * 4 * DISORDER_BYTES + 1),
                BLOCK,
            );
        }
        assert_eq!(streams.by_file[&FILE].len(), STREAMS_OF_A_FILE);
        for inode in 0..3 * STREAMS_MAX as u64 {
            streams.note((1, 100 + inode), &(0..MIB), BLOCK);
        }
        let all: usize = streams.by_file.values().map(Vec::len).sum();
        assert_eq!((all, streams.order.len()), (STREAMS_MAX, STREAMS_MAX));
    }
}

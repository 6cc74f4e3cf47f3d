//! Sealed units as blocks of tracts, and back.

use crate::layout::{Chunk, LENGTH_BYTES, Layout, LayoutError};
use bytes::{BufMut, Bytes, BytesMut};
use firn_blockd_disk::{Sealed, Unit};
use firn_blockd_protocol::{
    BLOCK_BYTES, BlockRange, BlockState, VersionedBlocks, limits::MAX_REQUEST_BLOCKS,
};

/// What is to be stored in one chunk; nothing: it is trimmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) chunk: Chunk,
    pub(crate) data: Option<Bytes>,
}

/// Cuts a sealed unit into what its chunks hold. The last chunk is as short as what it holds.
pub(crate) fn cut(layout: &Layout, unit: Unit, sealed: &Sealed) -> Result<Vec<Piece>, LayoutError> {
    let bytes = match (unit, sealed) {
        (_, Sealed::Tombstone) => {
            let chunk = layout.chunk(unit, 0)?;
            return Ok(vec![Piece { chunk, data: None }]);
        }
        (Unit::Block(_), Sealed::Bytes(bytes)) => bytes.clone(),
        (Unit::Intent(_) | Unit::Log(_) | Unit::Checkpoint(_), Sealed::Bytes(bytes)) => {
            let length = LENGTH_BYTES + bytes.len();
            let mut framed = BytesMut::with_capacity(length.next_multiple_of(BLOCK_BYTES));
            framed.put_u32_le(u32::try_from(bytes.len()).expect("units are below 4 GiB"));
            framed.put_slice(bytes);
            framed.resize(length.next_multiple_of(BLOCK_BYTES), 0);
            framed.freeze()
        }
    };
    let mut pieces = Vec::new();
    let (mut at, mut part) = (0, 0);
    while at < bytes.len() {
        let mut chunk = layout.chunk(unit, part)?;
        let length = chunk.range.bytes().min(bytes.len() - at);
        let blocks = u16::try_from(length / BLOCK_BYTES).expect("a chunk is within a tract");
        if let Some(range) = BlockRange::new(chunk.range.first(), blocks) {
            chunk.range = range;
        }
        pieces.push(Piece {
            chunk,
            data: Some(bytes.slice(at..at + length)),
        });
        at += length;
        part += 1;
    }
    Ok(pieces)
}

/// The range of a run that goes on with a chunk, if the chunk follows it on its tract and one request can carry both.
fn extended(run: Chunk, chunk: Chunk) -> Option<BlockRange> {
    let follows = run.tract == chunk.tract
        && run.range.end() == chunk.range.first()
        && run.range.count() + chunk.range.count() <= MAX_REQUEST_BLOCKS;
    let count = chunk.range.end().checked_sub(run.range.first())?;
    BlockRange::new(run.range.first(), count).filter(|_| follows)
}

/// Joins chunks, in order of their places, into runs that one request each can carry; with each run its members, in order.
pub(crate) fn runs(places: &[(Chunk, usize)]) -> Vec<(Chunk, Vec<usize>)> {
    let mut runs: Vec<(Chunk, Vec<usize>)> = Vec::new();
    for (chunk, member) in places {
        if let Some((run, members)) = runs.last_mut()
            && let Some(longer) = extended(*run, *chunk)
        {
            run.range = longer;
            members.push(*member);
            continue;
        }
        runs.push((*chunk, vec![*member]));
    }
    runs
}

/// Pieces that follow each other on a tract, joined into pieces that one request each carries. They come in the order of their
/// places.
pub(crate) struct Joined {
    pieces: Vec<(Chunk, Option<BytesMut>)>,
    /// Room made at once for the data of a piece.
    room_bytes: usize,
}

impl Joined {
    /// Of pieces with so many bytes in all.
    pub(crate) fn with_room(room_bytes: usize) -> Self {
        Self {
            pieces: Vec::new(),
            room_bytes: room_bytes.min(MAX_REQUEST_BLOCKS * BLOCK_BYTES),
        }
    }

    /// Adds a chunk whose data `write` appends.
    pub(crate) fn put(&mut self, chunk: Chunk, write: impl FnOnce(&mut BytesMut)) {
        let room_bytes = self.room_bytes;
        let data = self.place(chunk, true);
        write(data.get_or_insert_with(|| BytesMut::with_capacity(room_bytes)));
    }

    /// Adds a piece.
    pub(crate) fn push(&mut self, piece: Piece) {
        match piece.data {
            Some(data) => self.put(piece.chunk, |joined| joined.put_slice(&data)),
            None => {
                self.place(piece.chunk, false);
            }
        }
    }

    /// Where the data of a chunk go.
    fn place(&mut self, chunk: Chunk, has_data: bool) -> &mut Option<BytesMut> {
        let alike = self.pieces.last().filter(|(_, data)| data.is_some() == has_data);
        let longer = alike.and_then(|(run, _)| extended(*run, chunk));
        match (longer, self.pieces.last_mut()) {
            (Some(longer), Some((run, _))) => run.range = longer,
            _ => self.pieces.push((chunk, None)),
        }
        &mut self.pieces.last_mut().expect("one is there now").1
    }

    /// All of them.
    pub(crate) fn into_pieces(self) -> Vec<Piece> {
        let whole = |(chunk, data): (Chunk, Option<BytesMut>)| Piece {
            chunk,
            data: data.map(BytesMut::freeze),
        };
        self.pieces.into_iter().map(whole).collect()
    }
}

/// What a chunk was found to hold: its blocks in order, nothing where there is no content. Fails if the node says what it
/// has no right to.
pub(crate) struct Found {
    pub(crate) blocks: Vec<Option<Bytes>>,
    /// All blocks were never written.
    pub(crate) untouched: bool,
}

impl Found {
    pub(crate) fn new(found: &VersionedBlocks) -> Self {
        Self {
            blocks: found.contents().map(|(_, _, data)| data).collect(),
            untouched: found
                .versions
                .iter()
                .all(|version| version.state == BlockState::Absent),
        }
    }
}

/// What the first chunk of a framed unit says: how many bytes are sealed.
pub(crate) fn framed_length(first: &Found) -> Option<usize> {
    let head = first.blocks.first()?.as_ref()?.first_chunk::<LENGTH_BYTES>()?;
    usize::try_from(u32::from_le_bytes(*head)).ok()
}

/// The sealed bytes of a framed unit; nothing if blocks are missing.
pub(crate) fn framed_bytes(length: usize, chunks: &[Found]) -> Option<Bytes> {
    let mut bytes = BytesMut::new();
    for block in chunks.iter().flat_map(|chunk| &chunk.blocks) {
        if bytes.len() >= LENGTH_BYTES + length {
            break;
        }
        bytes.put_slice(block.as_ref()?);
    }
    (bytes.len() >= LENGTH_BYTES + length).then(|| bytes.freeze().slice(LENGTH_BYTES..LENGTH_BYTES + length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Shape;
    use proptest::prelude::*;

    fn layout() -> Layout {
        Layout::new(Shape::Log {
            block_bytes: 4096,
            physical_blocks: 0,
        })
        .expect("it can be")
    }

    fn join(pieces: Vec<Piece>) -> Vec<Piece> {
        let mut joined = Joined::with_room(0);
        pieces.into_iter().for_each(|piece| joined.push(piece));
        joined.into_pieces()
    }

    fn found(pieces: &[Piece]) -> Vec<Found> {
        pieces
            .iter()
            .map(|piece| {
                let data = piece.data.as_ref().expect("no tombstone");
                Found {
                    blocks: (0..data.len())
                        .step_by(BLOCK_BYTES)
                        .map(|at| Some(data.slice(at..at + BLOCK_BYTES)))
                        .collect(),
                    untouched: false,
                }
            })
            .collect()
    }

    proptest! {
        #[test]
        fn what_is_cut_is_put_together_again(length in 0..3_000_000_usize) {
            let sealed: Bytes = (0..length).map(|at| at as u8).collect::<Vec<_>>().into();
            let pieces = cut(&layout(), Unit::Checkpoint(1), &Sealed::Bytes(sealed.clone())).expect("it fits");
            let found = found(&pieces);
            prop_assert_eq!(framed_length(&found[0]), Some(length));
            prop_assert_eq!(framed_bytes(length, &found), Some(sealed));
            prop_assert!(framed_bytes(length + BLOCK_BYTES, &found).is_none());
        }
    }

    #[test]
    fn neighbouring_blocks_are_loaded_together_and_no_more_than_a_request_carries() {
        let place = |tract, block| Chunk {
            tract,
            range: BlockRange::new(block, 1).expect("within the tract"),
        };
        let mut places: Vec<(Chunk, usize)> = (0..300).map(|at| (place(1, at as u16), at)).collect();
        places.push((place(1, 400), 300));
        places.push((place(2, 401), 301));
        let runs = runs(&places);
        let lengths: Vec<usize> = runs.iter().map(|(chunk, _)| chunk.range.count()).collect();
        assert_eq!(lengths, [256, 44, 1, 1]);
        let members: Vec<usize> = runs.into_iter().flat_map(|(_, members)| members).collect();
        assert_eq!(members, (0..302).collect::<Vec<_>>());
    }

    #[test]
    fn neighbouring_entries_of_a_log_are_stored_together() {
        // Two blocks each, in turn on two tracts, from their beginnings.
        let layout = layout();
        let in_tract = layout.blocks_in_tract();
        let units: Vec<Unit> = (0..300).map(|at| Unit::Log(at % 2 * in_tract + at / 2)).collect();
        let mut places: Vec<(Chunk, usize)> = (0..)
            .zip(&units)
            .map(|(at, unit)| (layout.chunk(*unit, 0).expect("it has a place"), at))
            .collect();
        places.sort_by_key(|(chunk, _)| (chunk.tract, chunk.range.first()));
        let runs = runs(&places);
        let lengths: Vec<usize> = runs.iter().map(|(_, members)| members.len()).collect();
        assert_eq!(lengths, [128, 22, 128, 22]);
        let sealed = Sealed::Bytes(vec![7; 4200].into());
        for (run, members) in runs {
            let pieces = members
                .iter()
                .flat_map(|at| cut(&layout, units[*at], &sealed).expect("it fits"));
            let joined = join(pieces.collect());
            let chunks: Vec<Chunk> = joined.iter().map(|piece| piece.chunk).collect();
            assert_eq!(chunks, [run]);
        }
    }

    #[test]
    fn neighbouring_pieces_become_one_and_keep_their_bytes() {
        let piece = |tract, block: u16, data: Option<u8>| Piece {
            chunk: Chunk {
                tract,
                range: BlockRange::new(block, 1).expect("within the tract"),
            },
            data: data.map(|byte| vec![byte; BLOCK_BYTES].into()),
        };
        let mut pieces: Vec<Piece> = (0..300).map(|at| piece(1, at, Some(at as u8))).collect();
        pieces.extend([
            piece(1, 300, None),
            piece(1, 301, None),
            piece(1, 400, None),
            piece(2, 401, Some(7)),
        ]);
        let joined = join(pieces);
        let lengths: Vec<usize> = joined.iter().map(|piece| piece.chunk.range.count()).collect();
        assert_eq!(lengths, [256, 44, 2, 1, 1]);
        let bytes: Vec<u8> = joined
            .iter()
            .flat_map(|piece| piece.data.iter().flatten().copied().step_by(BLOCK_BYTES))
            .collect();
        let expected: Vec<u8> = (0..300).map(|at| at as u8).chain([7]).collect();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_missing_block_is_noticed() {
        let sealed = Sealed::Bytes(vec![7; 5000].into());
        let mut found = found(&cut(&layout(), Unit::Log(3), &sealed).expect("it fits"));
        found[0].blocks[1] = None;
        assert_eq!(framed_bytes(5000, &found), None);
    }
}

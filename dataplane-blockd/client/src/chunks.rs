//! Sealed units as blocks of tracts, and back.

use crate::layout::{Chunk, LENGTH_BYTES, Layout, LayoutError};
use bytes::{BufMut, Bytes, BytesMut};
use firn_blockd_disk::{Sealed, Sealer, Unit};
use firn_blockd_protocol::{
    BLOCK_BYTES, BlockRange, BlockState, TractId, VersionedBlocks, WriteBlocks, block_checksum,
    limits::MAX_REQUEST_BLOCKS,
};

/// What one request makes of a chunk; nothing: it is trimmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) chunk: Chunk,
    pub(crate) blocks: Option<WriteBlocks>,
}

/// What a part of a request is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Trimmed,
    /// As a node gets it.
    Sealed(Bytes),
    /// Blocks of the disk from `first` on, which are sealed where they are sent from.
    Blocks {
        first: u64,
        data: Bytes,
    },
}

/// A part of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) chunk: Chunk,
    pub(crate) content: Content,
}

/// Cuts a sealed unit into what its chunks hold. The last chunk is as short as what it holds.
pub(crate) fn cut(layout: &Layout, unit: Unit, sealed: &Sealed) -> Result<Vec<Part>, LayoutError> {
    let bytes = match (unit, sealed) {
        (_, Sealed::Tombstone) => {
            let (chunk, content) = (layout.chunk(unit, 0)?, Content::Trimmed);
            return Ok(vec![Part { chunk, content }]);
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
    let mut parts = Vec::new();
    let (mut at, mut part) = (0, 0);
    while at < bytes.len() {
        let mut chunk = layout.chunk(unit, part)?;
        let length = chunk.range.bytes().min(bytes.len() - at);
        let blocks = u16::try_from(length / BLOCK_BYTES).expect("a chunk is within a tract");
        if let Some(range) = BlockRange::new(chunk.range.first(), blocks) {
            chunk.range = range;
        }
        parts.push(Part {
            chunk,
            content: Content::Sealed(bytes.slice(at..at + length)),
        });
        at += length;
        part += 1;
    }
    Ok(parts)
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

/// Joins parts into requests: with each chunk its parts, in order of their places.
pub(crate) fn join(mut parts: Vec<Part>) -> Vec<(Chunk, Vec<Part>)> {
    parts.sort_by_key(|part| (part.chunk.tract, part.chunk.range.first()));
    let is_trimmed = |part: &Part| part.content == Content::Trimmed;
    let mut joined: Vec<(Chunk, Vec<Part>)> = Vec::new();
    for part in parts {
        if let Some((chunk, before)) = joined.last_mut()
            && before
                .first()
                .is_some_and(|first| is_trimmed(first) == is_trimmed(&part))
            && let Some(longer) = extended(*chunk, part.chunk)
        {
            chunk.range = longer;
            before.push(part);
            continue;
        }
        joined.push((part.chunk, vec![part]));
    }
    joined
}

/// What a request carries: each block is sealed, and its checksum computed, while it is at hand.
pub(crate) fn sealed(sealer: &Sealer, tract: TractId, chunk: Chunk, parts: Vec<Part>) -> Piece {
    let none = Piece { chunk, blocks: None };
    let (mut data, mut checksums) = match &parts[..] {
        [] => return none,
        // It goes as it is.
        [part] if let Content::Sealed(bytes) = &part.content => {
            let blocks = WriteBlocks::new(tract, chunk.range, bytes.clone());
            assert!(blocks.is_some(), "a part is as long as its chunk");
            return Piece { chunk, blocks };
        }
        [first, ..] if first.content == Content::Trimmed => return none,
        _ => (
            BytesMut::with_capacity(chunk.range.bytes()),
            Vec::with_capacity(chunk.range.count()),
        ),
    };
    for part in parts {
        let places = part.chunk.range.blocks();
        match part.content {
            Content::Blocks { first, data: content } => {
                for ((place, number), content) in places.zip(first..).zip(content.chunks_exact(BLOCK_BYTES)) {
                    let start = data.len();
                    sealer.seal_block(number, content, &mut data);
                    checksums.push(block_checksum(tract, place, &data[start..]));
                }
            }
            Content::Sealed(content) => {
                for (place, content) in places.zip(content.chunks_exact(BLOCK_BYTES)) {
                    data.put_slice(content);
                    checksums.push(block_checksum(tract, place, content));
                }
            }
            Content::Trimmed => {}
        }
    }
    assert_eq!(
        data.len(),
        chunk.range.bytes(),
        "parts are as long as their chunks"
    );
    let data = data.freeze();
    let blocks = Some(WriteBlocks { checksums, data });
    Piece { chunk, blocks }
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
    use firn_blockd_protocol::DiskId;
    use proptest::prelude::*;

    fn layout() -> Layout {
        Layout::new(Shape::Log {
            block_bytes: 4096,
            physical_blocks: 0,
        })
        .expect("it can be")
    }

    const TRACT: TractId = TractId {
        disk: DiskId([3; 16]),
        index: 1,
    };

    fn requests(parts: Vec<Part>) -> Vec<Piece> {
        let sealer = Sealer::new([7; 32]);
        let whole = |(chunk, parts)| sealed(&sealer, TRACT, chunk, parts);
        join(parts).into_iter().map(whole).collect()
    }

    fn found(parts: &[Part]) -> Vec<Found> {
        parts
            .iter()
            .map(|part| {
                let Content::Sealed(data) = &part.content else {
                    panic!("no tombstone");
                };
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
            let joined = requests(pieces.collect());
            let chunks: Vec<Chunk> = joined.iter().map(|piece| piece.chunk).collect();
            assert_eq!(chunks, [run]);
        }
    }

    #[test]
    fn neighbouring_parts_become_one_request_and_keep_their_bytes() {
        let part = |tract, block: u16, byte: Option<u8>| Part {
            chunk: Chunk {
                tract,
                range: BlockRange::new(block, 1).expect("within the tract"),
            },
            content: byte.map_or(Content::Trimmed, |byte| {
                Content::Sealed(vec![byte; BLOCK_BYTES].into())
            }),
        };
        let mut parts: Vec<Part> = (0..300).map(|at| part(1, at, Some(at as u8))).collect();
        parts.extend([
            part(1, 300, None),
            part(1, 301, None),
            part(1, 400, None),
            part(2, 401, Some(7)),
        ]);
        // They may come in any order.
        parts.reverse();
        let joined = requests(parts);
        let lengths: Vec<usize> = joined.iter().map(|piece| piece.chunk.range.count()).collect();
        assert_eq!(lengths, [256, 44, 2, 1, 1]);
        let whole = |piece: &Piece| {
            let blocks = piece.blocks.clone()?;
            assert_eq!(blocks.first_damaged(TRACT, piece.chunk.range), None);
            Some(blocks.data)
        };
        let bytes: Vec<u8> = joined
            .iter()
            .filter_map(whole)
            .flat_map(|data| data.iter().copied().step_by(BLOCK_BYTES).collect::<Vec<_>>())
            .collect();
        let expected: Vec<u8> = (0..300).map(|at| at as u8).chain([7]).collect();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_run_is_sealed_as_its_blocks_are_one_by_one() {
        let (sealer, first, count) = (Sealer::new([7; 32]), 1000_u64, 40_usize);
        let data: Bytes = (0..count * BLOCK_BYTES)
            .map(|at| (at / 9) as u8)
            .collect::<Vec<_>>()
            .into();
        let chunk = Chunk {
            tract: 1,
            range: BlockRange::new(30, count as u16).expect("within the tract"),
        };
        let content = Content::Blocks {
            first,
            data: data.clone(),
        };
        let piece = sealed(&sealer, TRACT, chunk, vec![Part { chunk, content }]);
        let mut alone = BytesMut::new();
        for (number, content) in (first..).zip(data.chunks_exact(BLOCK_BYTES)) {
            sealer.seal_block(number, content, &mut alone);
        }
        assert_eq!(piece.blocks, WriteBlocks::new(TRACT, chunk.range, alone.freeze()));
    }

    #[test]
    fn a_missing_block_is_noticed() {
        let sealed = Sealed::Bytes(vec![7; 5000].into());
        let mut found = found(&cut(&layout(), Unit::Log(3), &sealed).expect("it fits"));
        found[0].blocks[1] = None;
        assert_eq!(framed_bytes(5000, &found), None);
    }
}

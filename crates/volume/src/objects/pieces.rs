//! Windows in pieces: cutting them, finding the pieces that bring an object, putting the object together.

use super::windows::slice_of;
use bytes::{Bytes, BytesMut};
use firn_format::{Location, MAX_OBJECT_BYTES};
use std::ops::Range;

/// Whether `outer` holds all of `inner`.
pub(super) fn covers(outer: &Range<u32>, inner: &Range<u32>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Those of `gets` that together cover `need`, in order; none if there is a gap.
pub(super) fn cover<'f, T: Clone + 'f>(
    gets: impl Iterator<Item = (&'f Range<u32>, &'f T)>,
    need: &Range<u32>,
) -> Vec<T> {
    let mut gets: Vec<(&Range<u32>, &T)> = gets
        .filter(|(range, _)| range.start < need.end && need.start < range.end)
        .collect();
    if let Some((_, whole)) = gets.iter().find(|(range, _)| covers(range, need)) {
        return vec![(*whole).clone()];
    }
    gets.sort_by_key(|(range, _)| range.start);
    let mut reached = need.start;
    for (range, _) in &gets {
        if range.start > reached {
            return Vec::new();
        }
        reached = reached.max(range.end);
    }
    if reached < need.end {
        return Vec::new();
    }
    gets.into_iter().map(|(_, waiting)| waiting.clone()).collect()
}

/// Puts the object at `location` together from parts read at these offsets.
pub(super) fn assemble(parts: &mut [(u32, Bytes)], location: &Location) -> Option<Bytes> {
    if let Some(bytes) = parts
        .iter()
        .find_map(|(offset, bytes)| slice_of(*offset, bytes, location))
    {
        return Some(bytes);
    }
    parts.sort_by_key(|(offset, _)| *offset);
    let (start, end) = (u64::from(location.offset), location.end());
    let mut reached = start;
    let mut object = BytesMut::with_capacity(location.length.min(MAX_OBJECT_BYTES as u32) as usize);
    for (offset, bytes) in parts.iter() {
        let offset = u64::from(*offset);
        let until = (offset + bytes.len() as u64).min(end);
        if offset <= reached && reached < until {
            object.extend_from_slice(&bytes[(reached - offset) as usize..(until - offset) as usize]);
            reached = until;
        }
    }
    (reached == end).then(|| object.freeze())
}

/// Cuts a window into pieces of about `piece_bytes`, the one with `need` first, then those behind, then those before it.
pub(super) fn cut(window: &Range<u32>, need: &Range<u32>, piece_bytes: u32) -> Vec<Range<u32>> {
    if window.end - window.start <= piece_bytes.saturating_add(piece_bytes / 2) {
        return vec![window.clone()];
    }
    let start = need.start.saturating_sub(piece_bytes / 8).max(window.start);
    let end = start.saturating_add(piece_bytes).max(need.end).min(window.end);
    let mut pieces = Vec::new();
    pieces.push(start..end);
    let mut at = end;
    while at < window.end {
        let next = at.saturating_add(piece_bytes).min(window.end);
        pieces.push(at..next);
        at = next;
    }
    let mut at = start;
    while at > window.start {
        let next = at.saturating_sub(piece_bytes).max(window.start);
        pieces.push(next..at);
        at = next;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::{assemble, cover, cut};
    use bytes::Bytes;
    use firn_format::{Location, SegmentId, WriterId};

    #[test]
    fn what_covers_a_need_together_is_found_and_a_gap_is_not_covered() {
        let gets = [0..10, 20..30, 8..22, 40..50];
        let names = ['a', 'c', 'b', 'd'];
        let found = |need| cover(gets.iter().zip(&names), &need);
        assert_eq!(found(21..29), ['c']);
        assert_eq!(found(5..25), ['a', 'b', 'c']);
        assert_eq!(found(25..45), []);
        assert_eq!(found(45..55), []);
        assert_eq!(found(60..61), []);
    }

    #[test]
    fn the_piece_with_the_needed_object_comes_first_and_the_pieces_cover_the_window() {
        for (window, need) in [
            (0..4_000_000, 1_000_000..1_030_000),
            (500..900_000, 500..600),
            (0..10, 3..4),
        ] {
            let pieces = cut(&window, &need, 300_000);
            assert!(pieces[0].start <= need.start && need.end <= pieces[0].end);
            let mut sorted = pieces.clone();
            sorted.sort_by_key(|piece| piece.start);
            assert_eq!(
                (sorted[0].start, sorted[sorted.len() - 1].end),
                (window.start, window.end)
            );
            assert!(sorted.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }

    #[test]
    fn an_object_across_pieces_is_put_together_and_one_with_a_gap_is_not() {
        let segment = SegmentId {
            writer: WriterId(1),
            sequence: 1,
        };
        let location = Location {
            segment,
            offset: 100,
            length: 50,
        };
        let all = Bytes::from((0..200).collect::<Vec<u8>>());
        let part = |from: usize, to: usize| (from as u32, all.slice(from..to));
        let object = Some(all.slice(100..150));
        assert_eq!(assemble(&mut [part(0, 200)], &location), object);
        assert_eq!(assemble(&mut [part(120, 180), part(90, 120)], &location), object);
        assert_eq!(
            assemble(&mut [part(120, 130), part(130, 200), part(50, 125)], &location),
            object
        );
        assert_eq!(assemble(&mut [part(121, 180), part(90, 120)], &location), None);
        assert_eq!(assemble(&mut [part(90, 149)], &location), None);
        assert_eq!(assemble(&mut [], &location), None);
    }
}

//! The group object: what this build writes, byte for byte, and what it refuses.
//!
//! After a deliberate change of the format (a new version, hence a new folder) write its vector anew with
//! `cargo test -p firn-parity --test group -- --ignored`; those of earlier versions stay as they are.

#[path = "../../format/tests/hexfile/mod.rs"]
mod hexfile;

use firn_format::{FamilyId, SegmentId, WriterId};
use firn_parity::{
    COLUMNS, Coder, Group, GroupHead, Layout, MAX_GROUP_BYTES, MEMBERS_MAX, Member, PARITIES, Piece,
    ROW_BYTES, ROWS_MAX, row_hash,
};
use std::path::Path;

const VECTOR: &str = "tests/vectors/v1/group.hex";
const PARITY_VECTOR: &str = "tests/vectors/v1/parities.hex";

fn id(sequence: u64) -> SegmentId {
    SegmentId {
        writer: WriterId(0x0102_0304_0506_0708),
        sequence,
    }
}

fn member(sequence: u64, column: u8, offset: u32, bytes: u32) -> Member {
    Member {
        segment: id(sequence),
        column,
        offset,
        bytes,
        hash: [sequence as u8; 32],
    }
}

fn with(members: Vec<Member>) -> Group {
    let head = GroupHead {
        family: FamilyId([0xf0; 16]),
        group: 0x2122_2324_2526_2728,
        generation: 3,
        members,
    };
    let rows = |at: usize| {
        if at < COLUMNS {
            head.column_rows(at)
        } else {
            head.rows()
        }
    };
    let hashes = (0..COLUMNS + PARITIES)
        .map(|at| (0..rows(at)).map(|row| [(at + row) as u8; 32]).collect())
        .collect();
    Group { head, hashes }
}

/// Two members in a column, the second over the end of a row; a gap; a column that is empty.
fn example() -> Group {
    with(vec![
        member(5, 0, 0, 60_000),
        member(9, 0, 60_000, 10_000),
        member(7, 2, 1000, 65_536),
    ])
}

fn edited(edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = example().encode().to_vec();
    edit(&mut bytes);
    let head_end = 56 + 3 * 60;
    let (head, all) = (crc32c::crc32c(&bytes[..head_end]), bytes.len() - 4);
    bytes[head_end..head_end + 4].copy_from_slice(&head.to_le_bytes());
    let whole = crc32c::crc32c(&bytes[..all]);
    bytes[all..].copy_from_slice(&whole.to_le_bytes());
    bytes
}

/// The parities of a row whose columns are their numbers, repeated.
fn parities() -> Vec<u8> {
    let columns: Vec<_> = (0..COLUMNS).map(|column| vec![column as u8 + 1; 64]).collect();
    let given: Vec<_> = columns.iter().map(Vec::as_slice).enumerate().collect();
    let mut parities = [(); PARITIES].map(|()| vec![0; 64]);
    Coder::new(64).add(&given, parities.each_mut().map(Vec::as_mut_slice));
    parities.concat()
}

#[test]
fn it_is_written_as_it_always_was() {
    let vector = hexfile::read(Path::new(VECTOR));
    assert_eq!(example().encode(), vector);
    assert_eq!(Group::decode(&vector).unwrap(), example());
    assert_eq!(
        parities(),
        hexfile::read(Path::new(PARITY_VECTOR)),
        "the code itself"
    );
}

#[test]
#[ignore = "writes the vectors anew"]
fn write_vectors() {
    hexfile::write(
        Path::new(VECTOR),
        "a parity group of three segments",
        &example().encode(),
    );
    hexfile::write(
        Path::new(PARITY_VECTOR),
        "parities 0, 1 and 2 of a row of 64 bytes whose column k is bytes of k + 1",
        &parities(),
    );
}

#[test]
fn a_head_is_read_alone() {
    let group = example();
    let bytes = group.encode();
    let needed = GroupHead::bytes_needed(&bytes[..56]).unwrap();
    assert_eq!(needed, 56 + 3 * 60 + 4);
    assert_eq!(GroupHead::decode(&bytes[..needed]).unwrap(), group.head);
    GroupHead::decode(&bytes[..needed - 1]).unwrap_err();
}

#[test]
fn what_is_not_one_whole_group_is_refused() {
    let bytes = example().encode().to_vec();
    for cut in 0..bytes.len() {
        Group::decode(&bytes[..cut]).unwrap_err();
    }
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        Group::decode(&flipped).expect_err("a checksum over every byte");
    }
    Group::decode(&[bytes.clone(), vec![0]].concat()).unwrap_err();
    // With right checksums too.
    assert_eq!(edited(|_| {}), bytes);
    for (offset, what, edit) in [
        (8, "a newer version", vec![2]),
        (10, "a required feature", vec![1]),
        (44, "columns", vec![16]),
        (45, "parities", vec![4]),
        (48, "rows", vec![0, 0, 2, 0]),
        (56 + 60 + 8, "a segment twice", vec![5]),
        (56 + 16, "a column out of order", vec![1]),
        (56 + 120 + 16, "no column", vec![32]),
        (56 + 60 + 20, "overlap", vec![0]),
        (56 + 24, "overlap by length", vec![0x61, 0xea]),
        (56 + 24, "no length", vec![0, 0, 0, 0]),
        (56 + 120 + 24, "longer than a column", vec![0, 0, 0, 1]),
    ] {
        let changed = edited(|bytes| bytes[offset..offset + edit.len()].copy_from_slice(&edit));
        Group::decode(&changed).expect_err(what);
    }
    let many = edited(|bytes| bytes[52..56].copy_from_slice(&u32::MAX.to_le_bytes()));
    Group::decode(&many).expect_err("more members than a group has");
    GroupHead::bytes_needed(&many).unwrap_err();
}

#[test]
fn the_largest_fits_its_limit() {
    let members = (0..MEMBERS_MAX).map(|at| {
        let of_column = MEMBERS_MAX / COLUMNS;
        let bytes = (ROWS_MAX * ROW_BYTES / of_column) as u32;
        let (column, place) = (at / of_column, at % of_column);
        member(at as u64, column as u8, place as u32 * bytes, bytes)
    });
    let group = with(members.collect());
    let bytes = group.encode();
    assert_eq!(bytes.len(), MAX_GROUP_BYTES);
    assert_eq!(Group::decode(&bytes).unwrap(), group);
}

#[test]
fn rows_are_made_of_pieces_of_segments() {
    let head = example().head;
    let rows = |column| head.column_rows(column);
    assert_eq!((rows(0), rows(1), rows(2), head.rows()), (2, 0, 2, 2));
    let piece = |sequence, segment_offset, range_offset, bytes| Piece {
        segment: id(sequence),
        segment_offset,
        range_offset,
        bytes,
    };
    let first = [piece(5, 0, 0, 60_000), piece(9, 0, 60_000, 5536)];
    assert_eq!(head.pieces(0, &(0..1)), first);
    assert_eq!(head.pieces(0, &(1..2)), [piece(9, 5536, 0, 4464)]);
    assert_eq!(head.pieces(1, &(0..2)), []);
    assert_eq!(head.pieces(2, &(0..2)), [piece(7, 0, 1000, 65_536)]);
    assert_eq!(head.members[2].rows(), 0..2);
    assert_ne!(row_hash(&[0]), row_hash(&[1]));
}

/// Segments of an office's life: most full, some of quiet nights. The promise: three parities of 32, and at most one per cent more.
#[test]
fn full_groups_cost_three_parts_in_thirty_two_and_at_most_one_per_cent() {
    let mut state = 7_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u32
    };
    let same = |_: u32| 4_u32 << 20;
    let mixed = |random: u32| match random % 3 {
        0 => 4_194_304 - random % 90_000,
        1 => 4_000_000 + random % 200_000,
        _ => 100_000 + random % 3_000_000,
    };
    for (what, size) in [
        ("of one size", &same as &dyn Fn(u32) -> u32),
        ("of all sizes", &mixed),
    ] {
        let mut sizes: Vec<u32> = (0..200).map(|_| size(random())).collect();
        sizes.sort_unstable_by(|one, other| other.cmp(one));
        let mut layout = Layout::of(&[]);
        let mut members = Vec::new();
        for (at, bytes) in sizes.into_iter().enumerate() {
            if let Some((column, offset)) = layout.place(bytes) {
                members.push(member(at as u64, column, offset, bytes));
            }
        }
        members.sort_unstable_by_key(|member| (member.column, member.offset));
        let group = with(members);
        let added = group.head.rows() * ROW_BYTES * PARITIES + group.encode().len();
        let overhead = added as f64 / group.head.member_bytes() as f64;
        assert!(overhead <= 3.0 / 32.0 + 0.01, "{what}: {overhead}");
    }
}

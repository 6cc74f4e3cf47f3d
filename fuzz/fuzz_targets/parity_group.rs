//! Any bytes are one parity group or none; what is accepted is spelled so and not otherwise, and its rows lie within its columns.
#![no_main]

use firn_parity::{COLUMNS, Group, GroupHead, ROW_BYTES, ROWS_MAX};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let head = GroupHead::decode(data);
    // Checksums keep a fuzzer out: it is given bytes that have right ones.
    let mut data = data.to_vec();
    // Optional features are ignored, and written by nobody.
    if let Some(optional) = data.get_mut(11) {
        *optional = 0;
    }
    if let Ok(needed) = GroupHead::bytes_needed(&data)
        && needed <= data.len()
    {
        let checksum = crc32c::crc32c(&data[..needed - 4]);
        data[needed - 4..needed].copy_from_slice(&checksum.to_le_bytes());
        let end = data.len() - 4;
        if end >= needed {
            let checksum = crc32c::crc32c(&data[..end]);
            data[end..].copy_from_slice(&checksum.to_le_bytes());
        }
    }
    if let Ok(group) = Group::decode(&data) {
        assert_eq!(group.encode(), data);
        if let Ok(head) = head {
            assert_eq!(head, group.head);
        }
        for column in 0..COLUMNS {
            let rows = group.head.column_rows(column);
            assert!(rows <= ROWS_MAX);
            for piece in group.head.pieces(column, &(0..rows)) {
                assert!(piece.range_offset + piece.bytes as usize <= rows * ROW_BYTES);
                assert!(group.head.find(piece.segment).is_some());
            }
        }
    }
});

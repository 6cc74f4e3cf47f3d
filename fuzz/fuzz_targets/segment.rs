//! Any bytes are one segment or none; the objects of what is accepted lie where its index says.
//!
//! The checksums are made right first, or the fuzzer would seldom get past them.
#![no_main]

use bytes::Bytes;
use firn_format::{FOOTER_BYTES, SEGMENT_HEADER_BYTES, decode_footer, decode_object, decode_segment};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check(Bytes::copy_from_slice(data));
    check(with_checksums(data).into());
});

fn check(bytes: Bytes) {
    let whole = decode_segment(bytes.clone());
    let tail = bytes.len().saturating_sub(FOOTER_BYTES);
    if let Ok(footer) = decode_footer(&bytes[tail..]) {
        let _ = footer.decode_index(&bytes);
        let index_offset = footer.index_offset as usize;
        let index = bytes.get(index_offset..index_offset + footer.index_bytes());
        let index = index.map(|index| footer.decode_index(index));
        if let Ok(segment) = &whole {
            let index = index.expect("a whole segment has its index");
            assert_eq!(index.as_ref(), Ok(&segment.entries));
        }
    }
    let Ok(segment) = whole else { return };
    for entry in &segment.entries {
        let object = segment.object(entry);
        assert_eq!(object.len(), entry.length as usize);
        let _ = decode_object(object).map(|fetched| fetched.verify(&entry.uid, Some(entry.place)));
    }
}

fn with_checksums(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    if bytes.len() < SEGMENT_HEADER_BYTES + FOOTER_BYTES {
        return bytes;
    }
    put_checksum(&mut bytes, 0, SEGMENT_HEADER_BYTES - 4, SEGMENT_HEADER_BYTES - 4);
    let footer = bytes.len() - FOOTER_BYTES;
    let index_offset = u32::from_le_bytes(bytes[footer + 4..footer + 8].try_into().expect("four bytes"));
    let index_offset = (index_offset as usize).min(footer);
    put_checksum(&mut bytes, 0, index_offset, footer + 12);
    put_checksum(&mut bytes, index_offset, footer, footer + 16);
    put_checksum(&mut bytes, footer, footer + 52, footer + 52);
    bytes
}

fn put_checksum(bytes: &mut [u8], start: usize, end: usize, at: usize) {
    let checksum = crc32c::crc32c(&bytes[start..end]);
    bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
}

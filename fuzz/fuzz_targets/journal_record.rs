//! A journal file of any bytes ends somewhere, and every record found lies within it and was framed with its slot.
//!
//! The first byte says how many records get a right checksum first, or the fuzzer would seldom get past one.
#![no_main]

use firn_format::{
    Framing, JOURNAL_HEADER_BYTES, JournalFileHeader, JournalUse, MAX_RECORD_BYTES, RECORD_HEAD_BYTES, RecordScan,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&repaired, file)) = data.split_first() else {
        return;
    };
    if let Ok(header) = JournalFileHeader::decode(file) {
        assert_eq!(
            header.encode()[..JOURNAL_HEADER_BYTES - 4],
            without_optional_features(file)
        );
    }

    let usage = match repaired % 3 {
        0 => JournalUse::Unseeded,
        1 => JournalUse::First,
        _ => JournalUse::Recycled,
    };
    let framing = Framing::new(usage, &[repaired; 32]);
    let mut records = file.to_vec();
    repair(&framing, &mut records, usize::from(repaired));
    let mut rest = &records[..];
    let mut slot = 0;
    while let RecordScan::Record { payload, total_bytes } = framing.next(rest, slot) {
        let frame = framing.frame(slot, &rest[payload.clone()]);
        assert_eq!(frame.head, rest[..payload.start]);
        assert_eq!(frame.tail, rest[payload.end..total_bytes]);
        rest = &rest[total_bytes..];
        slot += 1;
    }
});

fn without_optional_features(file: &[u8]) -> Vec<u8> {
    let mut header = file[..JOURNAL_HEADER_BYTES - 4].to_vec();
    header[11] = 0;
    header
}

/// Gives the first `count` records their slots and checksums.
fn repair(framing: &Framing, records: &mut [u8], count: usize) {
    let mut start = 0;
    for slot in 0..count {
        let Some(length) = records.get(start..start + 4) else {
            return;
        };
        let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
        let end = start + RECORD_HEAD_BYTES + length.min(MAX_RECORD_BYTES);
        if length == 0 || end + 4 > records.len() {
            return;
        }
        let frame = framing.frame(slot as u32, &records[start + RECORD_HEAD_BYTES..end]);
        records[start..start + RECORD_HEAD_BYTES].copy_from_slice(&frame.head);
        records[end..end + 4].copy_from_slice(&frame.tail);
        start = end + 4;
    }
}

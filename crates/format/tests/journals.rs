//! Journal framing: whole records are found, and nothing else is taken for one.

mod strategies;

use firn_format::*;
use proptest::prelude::*;
use strategies::*;

/// Of a file made for its first use.
fn framing() -> Framing {
    Framing::new(JournalUse::First, &[0x5a; 32])
}

fn framed(slot: u32, sealed: &[u8]) -> Vec<u8> {
    framed_by(&framing(), slot, sealed)
}

fn framed_by(framing: &Framing, slot: u32, sealed: &[u8]) -> Vec<u8> {
    let frame = framing.frame(slot, sealed);
    [&frame.head[..], sealed, &frame.tail].concat()
}

/// What recovery keeps of a file: the payloads of the records before the first that is not the next one.
fn recovered(bytes: &[u8]) -> (Vec<Vec<u8>>, RecordScan) {
    recovered_by(&framing(), bytes)
}

fn recovered_by(framing: &Framing, mut bytes: &[u8]) -> (Vec<Vec<u8>>, RecordScan) {
    let mut payloads = Vec::new();
    loop {
        match framing.next(bytes, payloads.len() as u32) {
            RecordScan::Record { payload, total_bytes } => {
                payloads.push(bytes[payload].to_vec());
                bytes = &bytes[total_bytes..];
            }
            end @ (RecordScan::Torn | RecordScan::End) => return (payloads, end),
        }
    }
}

fn payloads() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 1..60), 0..6)
}

fn file(payloads: &[Vec<u8>]) -> Vec<u8> {
    let records = payloads.iter().zip(0..);
    records
        .flat_map(|(payload, slot)| framed(slot, payload))
        .collect()
}

fn usages() -> impl Strategy<Value = JournalUse> {
    prop::sample::select(vec![
        JournalUse::Unseeded,
        JournalUse::First,
        JournalUse::Recycled,
    ])
}

proptest! {
    /// Whatever the lengths are, and wherever the new records end among the old ones.
    #[test]
    fn nothing_of_an_earlier_use_is_taken_for_a_record(old in payloads(), new in payloads(), salts: [[u8; 32]; 2]) {
        prop_assume!(salts[0] != salts[1]);
        let of = |usage, salt, payloads: &[Vec<u8>]| -> Vec<u8> {
            let framing = Framing::new(usage, salt);
            payloads.iter().zip(0..).flat_map(|(payload, slot)| framed_by(&framing, slot, payload)).collect()
        };
        for earlier in [JournalUse::Unseeded, JournalUse::First, JournalUse::Recycled] {
            let mut bytes = of(earlier, &salts[0], &old);
            let written = of(JournalUse::Recycled, &salts[1], &new);
            let length = bytes.len().max(written.len());
            bytes.resize(length, 0);
            bytes[..written.len()].copy_from_slice(&written);
            let framing = Framing::new(JournalUse::Recycled, &salts[1]);
            prop_assert_eq!(recovered_by(&framing, &bytes), (new.clone(), RecordScan::End));
        }
    }

    #[test]
    fn all_records_are_found_and_zeros_end_them(payloads in payloads(), zeros in 0..100usize) {
        let mut bytes = file(&payloads);
        bytes.resize(bytes.len() + zeros, 0);
        prop_assert_eq!(recovered(&bytes), (payloads, RecordScan::End));
    }

    #[test]
    fn a_torn_tail_is_dropped_and_nothing_before_it(payloads in payloads(), cut: prop::sample::Index, zeros in 0..100usize) {
        let bytes = file(&payloads);
        let kept = cut.index(bytes.len() + 1);
        let mut torn = bytes[..kept].to_vec();
        torn.resize(kept + zeros, 0);
        let mut end = 0;
        let whole = payloads
            .iter()
            .take_while(|payload| { end += payload.len() + RECORD_OVERHEAD_BYTES; end <= kept })
            .count();
        // A cut may fall into zeros that belong to the record and be made good by the zeros after it.
        let found = recovered(&torn).0;
        prop_assert!(found.len() >= whole);
        prop_assert_eq!(&found[..], &payloads[..found.len()]);
    }

    #[test]
    fn every_flipped_bit_ends_the_journal_before_its_record(payloads in payloads(), bit: prop::sample::Index) {
        let bytes = file(&payloads);
        prop_assume!(!bytes.is_empty());
        let bit = bit.index(bytes.len() * 8);
        let mut end = 0;
        let before = payloads
            .iter()
            .take_while(|payload| { end += payload.len() + RECORD_OVERHEAD_BYTES; end <= bit / 8 })
            .count();
        prop_assert_eq!(recovered(&flipped(&bytes, bit)).0, &payloads[..before]);
    }

    #[test]
    fn any_bytes_at_all_end_somewhere(bytes in payloads().prop_flat_map(|payloads| damaged([file(&payloads), vec![0; 9]].concat().into()))) {
        recovered(&bytes);
        let _ = JournalFileHeader::decode(&bytes);
    }

    #[test]
    fn a_record_of_another_slot_is_not_the_next_one(slot: u32, expected: u32, payload in prop::collection::vec(any::<u8>(), 1..60)) {
        let bytes = framed(slot, &payload);
        let is_next = matches!(framing().next(&bytes, expected), RecordScan::Record { .. });
        prop_assert_eq!(is_next, slot == expected);
    }

    #[test]
    fn a_file_header_is_read_as_it_was_written(volume: [u8; 16], writer: u64, number: u64, key_epoch: u32, salt: [u8; 32], usage in usages(), bit in 0..JOURNAL_HEADER_BYTES * 8) {
        let header = JournalFileHeader {
            volume: VolumeId(volume),
            writer: WriterId(writer),
            number,
            key_epoch: KeyEpoch(key_epoch),
            salt,
            usage,
        };
        let bytes = header.encode();
        prop_assert_eq!(JournalFileHeader::decode(&bytes), Ok(header));
        prop_assert!(JournalFileHeader::decode(&flipped(&bytes, bit)).is_err());
        for length in 0..bytes.len() {
            prop_assert!(JournalFileHeader::decode(&bytes[..length]).is_err());
        }
    }
}

#[test]
fn a_length_that_is_none_is_torn_not_believed() {
    // With the right checksum, as only a faulty writer would.
    let seed = crc32c::crc32c(&[0x5a; 32]);
    let framed = |length: usize| {
        let head = [(length as u32).to_le_bytes(), (5 ^ seed).to_le_bytes()].concat();
        let record = [head, vec![7; length]].concat();
        let checksum = crc32c::crc32c_append(seed, &record);
        [&record[..], &checksum.to_le_bytes()].concat()
    };
    for (length, is_one) in [
        (0, false),
        (1, true),
        (MAX_RECORD_BYTES, true),
        (MAX_RECORD_BYTES + 1, false),
    ] {
        let scan = framing().next(&framed(length), 5);
        assert_eq!(
            matches!(scan, RecordScan::Record { .. }),
            is_one,
            "{length}: {scan:?}"
        );
    }
    let mut endless = framed(3);
    endless[..4].fill(0xff);
    assert_eq!(framing().next(&endless, 5), RecordScan::Torn);
    assert_eq!(framing().next(&[], 0), RecordScan::End);
    assert_eq!(framing().next(&[0; 7], 0), RecordScan::End);
    assert_eq!(framing().next(&[1; 7], 0), RecordScan::Torn);
}

#[test]
#[should_panic(expected = "record of 0 bytes")]
fn an_empty_record_cannot_be_written() {
    framing().frame(0, &[]);
}

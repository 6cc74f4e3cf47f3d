//! No decoder allocates more than a small multiple of what it was given, whatever the bytes claim.

mod counting;
mod strategies;

use bytes::Bytes;
use counting::allocated_by;
use firn_format::*;
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use strategies::*;

/// Twice the input (a decoded child is larger than an encoded one), and something for the handles.
fn allowed(input_bytes: usize) -> usize {
    2 * input_bytes + 512
}

fn check(bytes: &Bytes) {
    let limit = allowed(bytes.len());
    let fetched = || decode_object(bytes.clone());
    assert!(allocated_by(fetched) <= limit, "object of {} bytes", bytes.len());
    let segment = || decode_segment(bytes.clone());
    assert!(allocated_by(segment) <= limit, "segment of {} bytes", bytes.len());
    let footer = || decode_footer(bytes).map(|footer| footer.decode_index(bytes));
    assert!(allocated_by(footer) <= limit, "footer of {} bytes", bytes.len());
    let plain = || Checkpoint::from_plain_and_children(bytes, &[]);
    assert!(
        allocated_by(plain) <= limit,
        "checkpoint of {} bytes",
        bytes.len()
    );
    let forwarding = || (ForwardingRecord::decode(bytes), UsageLeaf::from_plain(bytes));
    // A decoded leaf is an array, whatever it was read from.
    assert!(
        allocated_by(forwarding) <= limit,
        "forwarding record of {} bytes",
        bytes.len()
    );
    let manifest = || (ManifestLeaf::from_plain(bytes), ListedSegment::from_bytes(bytes));
    assert!(
        allocated_by(manifest) <= limit,
        "manifest leaf of {} bytes",
        bytes.len()
    );
    let record = || (JournalFileHeader::decode(bytes), framing().next(bytes, 0));
    assert!(allocated_by(record) <= limit, "record of {} bytes", bytes.len());
}

fn framing() -> Framing {
    Framing::new(JournalUse::Unseeded, &[0; 32])
}

/// The bytes with every 16- and 32-bit field claiming as much as it can.
fn boasts(bytes: &[u8]) -> Vec<Bytes> {
    let mut claims = Vec::new();
    for offset in 0..bytes.len().min(256) {
        for claim in [
            &[0xff; 4][..],
            &[0xff; 2],
            &[0x00, 0x20],
            &[0, 0, 0x10, 0],
            &[0xfe, 0x0f, 0, 0],
        ] {
            let mut bytes = bytes.to_vec();
            let end = bytes.len().min(offset + claim.len());
            bytes[offset..end].copy_from_slice(&claim[..end - offset]);
            claims.push(bytes.into());
        }
    }
    claims
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocated_by(|| vec![0u8; 1000]), 1000);
}

#[test]
fn claims_are_not_believed() {
    let mut runner = TestRunner::deterministic();
    for _ in 0..10 {
        let object = object().new_tree(&mut runner).unwrap().current();
        let checkpoint = checkpoint().new_tree(&mut runner).unwrap().current();
        let mut builder = SegmentBuilder::new(
            FamilyId([1; 16]),
            SegmentId {
                writer: WriterId(1),
                sequence: 1,
            },
        );
        builder.push(&object);
        let segment: Bytes = builder.finish().concat().into();
        let footer = segment.slice(segment.len() - FOOTER_BYTES..);
        let record = framing().frame(0, &object.bytes);
        let record: Bytes = [&record.head[..], &object.bytes, &record.tail].concat().into();
        let plain = checkpoint.to_plain_and_children().0;
        let forwarding = ForwardingRecord {
            family: FamilyId([1; 16]),
            old: SegmentId {
                writer: WriterId(1),
                sequence: 1,
            },
            mover: WriterId(2),
            retired_at_ms: 0,
            entries: vec![ForwardingEntry {
                offset: 52,
                new: Location {
                    segment: SegmentId {
                        writer: WriterId(2),
                        sequence: 0,
                    },
                    offset: 52,
                    length: 100,
                },
            }],
        }
        .encode();
        for bytes in [object.bytes.clone(), plain, segment, footer, record, forwarding] {
            check(&bytes);
            boasts(&bytes).iter().for_each(check);
        }
    }
}

/// A footer whose checksum is right, of a segment with `entry_count` objects.
fn footer_claiming(entry_count: u32) -> Vec<u8> {
    let id = SegmentId {
        writer: WriterId(1),
        sequence: 1,
    };
    let mut bytes = SegmentBuilder::new(FamilyId([1; 16]), id).finish().concat();
    let mut footer = bytes.split_off(SEGMENT_HEADER_BYTES);
    footer[8..12].copy_from_slice(&entry_count.to_le_bytes());
    let checksum = crc32c::crc32c(&footer[..52]);
    footer[52..56].copy_from_slice(&checksum.to_le_bytes());
    footer
}

#[test]
fn a_footer_with_a_right_checksum_is_not_believed_either() {
    for entry_count in [1, 1000, 200_000, 240_000] {
        let footer = decode_footer(&footer_claiming(entry_count)).unwrap();
        assert_eq!(footer.entry_count, entry_count);
        let index = [0; 2 * INDEX_ENTRY_BYTES];
        assert!(allocated_by(|| footer.decode_index(&index)) <= allowed(index.len()));
    }
}

proptest! {
    #[test]
    fn damage_does_not_make_it_allocate(bytes in object().prop_flat_map(|object| damaged(object.bytes))) {
        check(&bytes);
    }
}

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
    let record = || (JournalFileHeader::decode(bytes), next_record(bytes, 0));
    assert!(allocated_by(record) <= limit, "record of {} bytes", bytes.len());
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
        let record = frame_record(0, &object.bytes);
        let record: Bytes = [&record.head[..], &object.bytes, &record.tail].concat().into();
        let plain = checkpoint.to_plain_and_children().0;
        for bytes in [object.bytes.clone(), plain, segment, footer, record] {
            check(&bytes);
            boasts(&bytes).iter().for_each(check);
        }
    }
}

proptest! {
    #[test]
    fn damage_does_not_make_it_allocate(bytes in object().prop_flat_map(|object| damaged(object.bytes))) {
        check(&bytes);
    }
}

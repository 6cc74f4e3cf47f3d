//! Forwarding records and usage leaves: what cleaner and engine tell each other.

mod strategies;

use firn_format::*;
use proptest::{collection::vec, prelude::*};
use strategies::*;

fn record() -> impl Strategy<Value = ForwardingRecord> {
    let entry = (0u32..1000, 1u32..100_000, any::<(u64, u64, u32)>());
    (any::<([u8; 16], u64, i64)>(), segment_id(), vec(entry, 0..20)).prop_map(
        |((family, mover, retired_at_ms), old, entries)| {
            let mut offset = 0;
            let entries = entries.into_iter().map(|(gap, length, (writer, sequence, at))| {
                let entry = ForwardingEntry {
                    offset: offset + gap,
                    new: Location {
                        segment: SegmentId {
                            // Never the old segment itself.
                            writer: WriterId(writer | 1),
                            sequence,
                        },
                        offset: at,
                        length,
                    },
                };
                offset += gap + length;
                entry
            });
            ForwardingRecord {
                family: FamilyId(family),
                old: SegmentId {
                    writer: WriterId(old.writer.0 & !1),
                    ..old
                },
                mover: WriterId(mover),
                retired_at_ms,
                entries: entries.collect(),
            }
        },
    )
}

proptest! {
    #[test]
    fn a_record_is_read_as_it_was_written_and_found_under_its_name(record in record()) {
        prop_assert_eq!(ForwardingRecord::decode(&record.encode()), Ok(record.clone()));
        let key = ForwardingRecord::key(&record.family, record.old, record.mover);
        prop_assert!(key.starts_with(&ForwardingRecord::prefix(&record.family, record.old)));
        prop_assert_eq!(ForwardingRecord::parse_key(&key), Some((record.family, record.old, record.mover)));
        prop_assert_eq!(ForwardingRecord::parse_key(&key[..key.len() - 1]), None);
        prop_assert_eq!(SegmentId::parse_key(&key), None);
    }

    #[test]
    fn every_moved_object_is_found_and_nothing_else(record in record(), offset: u32, length: u32) {
        for entry in &record.entries {
            let old = Location { segment: record.old, offset: entry.offset, length: entry.new.length };
            prop_assert_eq!(record.find(&old), Some(entry.new));
            prop_assert_eq!(record.find(&Location { length: old.length + 1, ..old }), None);
            prop_assert_eq!(record.find(&entry.new), None, "another segment");
        }
        let stray = Location { segment: record.old, offset, length };
        let known = record.entries.iter().any(|entry| entry.offset == offset && entry.new.length == length);
        prop_assert_eq!(record.find(&stray).is_some(), known);
    }

    #[test]
    fn a_damaged_record_is_refused(record in record(), bit: prop::sample::Index) {
        let bytes = record.encode();
        let damaged = flipped(&bytes, bit.index(8 * bytes.len()));
        prop_assert!(ForwardingRecord::decode(&damaged).is_err());
        prop_assert!(ForwardingRecord::decode(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn a_usage_leaf_is_read_as_it_was_written(live in vec(any::<u32>(), USAGE_SEGMENTS), extra: u8) {
        let leaf = UsageLeaf { live_bytes: live.clone().try_into().unwrap() };
        let plain = leaf.to_plain();
        prop_assert_eq!(UsageLeaf::from_plain(&plain), Ok(leaf.clone()));
        prop_assert!(UsageLeaf::from_plain(&plain[..plain.len() - 1]).is_err());
        prop_assert!(UsageLeaf::from_plain(&[&plain[..], &[extra]].concat()).is_err());
        prop_assert_eq!(leaf.is_empty(), live.iter().all(|live| *live == 0));
    }

    #[test]
    fn two_segments_never_share_a_slot(left in segment_id(), right in segment_id(), narrow: bool) {
        let squeeze = |id: SegmentId| if narrow {
            SegmentId { writer: WriterId(id.writer.0 % 4), sequence: id.sequence % 300 }
        } else {
            id
        };
        let (left, right) = (squeeze(left), squeeze(right));
        if let (Some(one), Some(other)) = (usage_slot(left), usage_slot(right)) {
            prop_assert_eq!(one == other, left == right);
            prop_assert_eq!(one.0, left.writer.0 << 25 | left.sequence >> 7);
        }
    }

    #[test]
    fn a_leaf_is_recognised_by_its_place(object in object()) {
        let verified = decode_object(object.bytes.clone()).unwrap().verify(&object.uid, None).unwrap();
        let is_leaf = object.header.kind == Kind::Block && object.header.place.inode == USAGE_MAP;
        prop_assert!(is_leaf || UsageLeaf::from_verified(&verified).is_err());
    }
}

#[test]
fn the_usage_map_names_segments_up_to_its_bounds() {
    let id = |writer, sequence| SegmentId {
        writer: WriterId(writer),
        sequence,
    };
    assert_eq!(usage_slot(id(1, 0)), Some((1 << 25, 0)));
    assert_eq!(usage_slot(id(1, 129)), Some((1 << 25 | 1, 1)));
    assert_eq!(
        usage_slot(id((1 << 39) - 1, (1 << 32) - 1)),
        Some((u64::MAX, 127))
    );
    assert_eq!(usage_slot(id(1 << 39, 0)), None);
    assert_eq!(usage_slot(id(1, 1 << 32)), None);
}

#[test]
#[should_panic(expected = "leads back")]
fn no_record_leads_back_into_its_own_segment() {
    let old = SegmentId {
        writer: WriterId(1),
        sequence: 1,
    };
    let new = Location {
        segment: old,
        offset: 52,
        length: 10,
    };
    let _ = ForwardingRecord {
        family: FamilyId([1; 16]),
        old,
        mover: WriterId(2),
        retired_at_ms: 0,
        entries: vec![ForwardingEntry { offset: 100, new }],
    }
    .encode();
}

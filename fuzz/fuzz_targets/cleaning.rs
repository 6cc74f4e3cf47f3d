//! Any bytes are one forwarding record, or one usage leaf, or one leaf of the manifest, or none; what is accepted encodes to itself.
//!
//! The checksum is made right first, or the fuzzer would seldom get past it.
#![no_main]

use firn_format::{ForwardingRecord, ManifestLeaf, UsageLeaf};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check(data);
    if let Some((body, _)) = data.split_last_chunk::<4>() {
        check(&[body, &crc32c::crc32c(body).to_le_bytes()].concat());
    }
});

fn check(bytes: &[u8]) {
    if let Ok(record) = ForwardingRecord::decode(bytes) {
        assert_eq!(ForwardingRecord::decode(&record.encode()).as_ref(), Ok(&record));
        for entry in &record.entries {
            let old = firn_format::Location {
                segment: record.old,
                offset: entry.offset,
                length: entry.new.length,
            };
            assert_eq!(record.find(&old), Some(entry.new));
        }
    }
    if let Ok(leaf) = UsageLeaf::from_plain(bytes) {
        assert_eq!(UsageLeaf::from_plain(&leaf.to_plain()), Ok(leaf));
    }
    if let Ok(leaf) = ManifestLeaf::from_plain(bytes) {
        assert_eq!(ManifestLeaf::from_plain(&leaf.to_plain()), Ok(leaf));
    }
}

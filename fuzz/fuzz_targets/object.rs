//! Any bytes are one object or none; what is accepted encodes to the same bytes and survives moving its children.
//!
//! The checksum at the end is made right first, or the fuzzer would seldom get past it.
#![no_main]

use bytes::Bytes;
use firn_format::{Location, decode_object, encode_object, relocate_children};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = decode_object(Bytes::copy_from_slice(data));

    let bytes = Bytes::from(with_checksum(data));
    let Ok(fetched) = decode_object(bytes.clone()) else {
        return;
    };
    let uid = fetched.uid();
    let place = fetched.unverified_header().place;
    let verified = fetched
        .verify(&uid, Some(place))
        .expect("it has its own uid and place");
    let encoded = encode_object(verified.header.clone(), &verified.sealed_payload);
    assert_eq!(encoded.bytes, bytes);
    assert_eq!(encoded.uid, uid);

    let moved = relocate_children(&encoded, |_| Location::UNKNOWN);
    assert_eq!(moved.uid, uid);
    decode_object(moved.bytes)
        .expect("moving children keeps an object whole")
        .verify(&uid, Some(place))
        .expect("and keeps its uid");
});

fn with_checksum(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    if let Some(end) = data.len().checked_sub(4)
        && let Some(count) = data.get(14..16)
    {
        let locations = 24 * usize::from(u16::from_le_bytes([count[0], count[1]]));
        if let Some(start) = end.checked_sub(locations) {
            let checksum = crc32c::crc32c(&bytes[start..end]);
            bytes[end..].copy_from_slice(&checksum.to_le_bytes());
        }
    }
    bytes
}

//! Any bytes are one key ring or none; what is accepted encodes to the same bytes, and none is the tenant's by chance.
#![no_main]

use bytes::Bytes;
use firn_seal::{KeyRing, RecoveryPhrase};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(ring) = KeyRing::decode(bytes.clone()) {
        assert_eq!(ring.encode(), bytes);
        let stranger = RecoveryPhrase::from_entropy([0x77; 32]).signing_key().public();
        assert!(ring.verify(&stranger).is_err());
    }
});

//! Decoding a key ring allocates no more than a small multiple of its bytes, whatever they claim.

#[path = "../../format/tests/counting/mod.rs"]
mod counting;

use bytes::Bytes;
use counting::allocated_by;
use firn_format::*;
use firn_seal::*;

fn ring(edges: u32) -> Bytes {
    let phrase = RecoveryPhrase::from_entropy([1; 32]);
    let mut recipients = vec![Recipient {
        name: "r".to_owned(),
        kind: RecipientKind::Recovery,
        public: phrase.recovery_secret().public(),
    }];
    for edge in 0..edges {
        let entropy = blake3::hash(&edge.to_le_bytes());
        recipients.push(Recipient {
            name: edge.to_string(),
            kind: RecipientKind::Edge,
            public: RecipientSecret::derive(entropy.as_bytes()).public(),
        });
    }
    let mut stream = blake3::Hasher::new().finalize_xof();
    let mut entropy = |bytes: &mut [u8]| stream.fill(bytes);
    let signer = phrase.signing_key();
    KeyRing::create(
        FamilyId([1; 16]),
        VolumeId([1; 16]),
        recipients,
        &signer,
        &mut entropy,
    )
    .unwrap()
    .0
    .encode()
}

#[test]
fn claims_are_not_believed() {
    for edges in [0, 1, 30] {
        let honest = ring(edges);
        let mut inputs = vec![honest.clone()];
        for offset in 0..honest.len().min(300) {
            for claim in [&[0xff; 4][..], &[0, 4, 0, 0], &[0xff]] {
                let mut bytes = honest.to_vec();
                let end = bytes.len().min(offset + claim.len());
                bytes[offset..end].copy_from_slice(&claim[..end - offset]);
                inputs.push(bytes.into());
            }
        }
        for bytes in inputs {
            let allocated = allocated_by(|| KeyRing::decode(bytes.clone()));
            assert!(
                allocated <= 2 * bytes.len() + 512,
                "{allocated} for {}",
                bytes.len()
            );
        }
    }
}

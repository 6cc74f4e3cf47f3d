//! Throughput of sealing and opening objects and records on this machine, one thread, beside the algorithms alone.
//!
//! `cargo run --release -p firn-seal --example throughput`
#![allow(
    clippy::disallowed_methods,
    reason = "measures time, runs under no simulation"
)]

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bytes::{Bytes, BytesMut};
use firn_format::*;
use firn_seal::*;
use std::{
    collections::BTreeMap,
    hint::black_box,
    time::{Duration, Instant},
};

/// Each figure is the best of so many rounds.
const ROUNDS: u32 = 5;
const ROUND: Duration = Duration::from_millis(100);

/// MB/s of `work` on `bytes` a call.
fn rate<T>(bytes: usize, mut work: impl FnMut() -> T) -> f64 {
    let mut best = 0.0f64;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut calls = 0usize;
        while start.elapsed() < ROUND {
            for _ in 0..8 {
                black_box(work());
            }
            calls += 8;
        }
        best = best.max((calls * bytes) as f64 / start.elapsed().as_secs_f64() / 1e6);
    }
    best
}

fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

/// Shrinks to about half, as source text does.
fn text(length: usize) -> Vec<u8> {
    let mut words = noise(length);
    for chunk in words.chunks_mut(16) {
        let (word, rest) = chunk.split_at_mut(chunk.len() / 2);
        word.iter_mut().for_each(|byte| *byte = b'a' + *byte % 16);
        rest.fill(b' ');
    }
    words
}

fn print(name: &str, rates: impl IntoIterator<Item = f64>) {
    let columns: Vec<_> = rates.into_iter().map(|rate| format!("{rate:9.0}")).collect();
    println!("{name:<34}{}", columns.join(""));
}

fn main() {
    let sizes = [4 << 10, 32 << 10, 1 << 20];
    println!("MB/s of payload, one thread          4 KiB   32 KiB    1 MiB");
    let payload = noise(1 << 20);
    print(
        "BLAKE3 alone",
        sizes.map(|size| rate(size, || blake3::hash(&payload[..size]))),
    );
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[7; 32]).expect("32 bytes are a key"));
    let mut room = payload.clone();
    let gcm = sizes.map(|size| {
        rate(size, || {
            let nonce = Nonce::assume_unique_for_key([0; 12]);
            key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut room[..size])
        })
    });
    print("AES-256-GCM alone, aws-lc", gcm);
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        use ring::aead;
        let key = aead::UnboundKey::new(&aead::AES_256_GCM, &[7; 32]).expect("32 bytes are a key");
        let key = aead::LessSafeKey::new(key);
        let gcm = sizes.map(|size| {
            rate(size, || {
                let nonce = aead::Nonce::assume_unique_for_key([0; 12]);
                key.seal_in_place_separate_tag(nonce, aead::Aad::empty(), &mut room[..size])
            })
        });
        print("AES-256-GCM alone, ring", gcm);
    }

    let keys = Keys::new(
        FamilyId([1; 16]),
        BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([7; 32]))]),
    );
    let segment = SegmentId {
        writer: WriterId(1),
        sequence: 1,
    };
    let sealer = ObjectSealer::new(&keys, [1; 32], &segment);
    let opener = ObjectOpener::new(keys.clone());
    let seal = |payload: &[u8], compression| {
        let place = Place {
            inode: 20,
            level: 0,
            index: 0,
        };
        let slot = sealer.reserve_slot();
        sealer
            .seal(
                slot,
                Kind::Block,
                place,
                Version(1),
                Bytes::new(),
                Vec::new(),
                payload,
                compression,
            )
            .expect("the slot is fresh")
    };
    for (name, payload, compression) in [
        ("no compression", noise(1 << 20), Compression::None),
        ("lz4, incompressible", noise(1 << 20), Compression::Lz4),
        ("lz4, text", text(1 << 20), Compression::Lz4),
    ] {
        let sealing = sizes.map(|size| rate(size, || seal(&payload[..size], compression)));
        print(&format!("seal and hash ({name})"), sealing);
        let opening = sizes.map(|size| {
            let object = seal(&payload[..size], compression);
            rate(size, || {
                let fetched = decode_object(object.bytes.clone()).expect("it was encoded");
                let verified = fetched.verify(&object.uid, None).expect("it has its uid");
                opener.open(verified)
            })
        });
        print(&format!("verify and open ({name})"), opening);
    }

    let context = RecordContext::journal(VolumeId([1; 16]), WriterId(1), 1);
    let records = RecordSealer::new(&keys, [1; 32], context);
    let mut group = BytesMut::with_capacity(4 << 20);
    let mut slot = 0;
    let journal = sizes.map(|size| {
        rate(size, || {
            group.clear();
            records
                .append_framed(slot, &[&payload[..size]], &mut group)
                .expect("slots rise");
            slot += 1;
        })
    });
    print("journal record: copy, seal, frame", journal);
    let replay = sizes.map(|size| {
        group.clear();
        records
            .append_framed(slot, &[&payload[..size]], &mut group)
            .expect("slots rise");
        slot += 1;
        let framed = Bytes::copy_from_slice(&group);
        rate(size, || {
            let RecordScan::Record { payload, .. } = records.framing().next(&framed, slot - 1) else {
                unreachable!("it was framed");
            };
            records.open(slot - 1, framed.slice(payload))
        })
    });
    print("journal record: check, open", replay);
}

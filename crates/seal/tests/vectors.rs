//! Golden vectors of what is sealed, and a second reader of them.
//!
//! The second reader is written from `docs/formats.md` alone: it finds its fields at the offsets drawn there and uses
//! other implementations of the algorithms than the crate does. Where the two agree, the specification is complete.
//!
//! After a deliberate change of a format (a new version, hence a new folder) write the vectors anew with
//! `cargo test -p firn-seal --test vectors -- --ignored`; the vectors of earlier versions stay as they are.

#[path = "../../format/tests/hexfile/mod.rs"]
mod hexfile;

use aes_gcm::{
    Aes256Gcm, KeyInit,
    aead::{Aead, Payload},
};
use bytes::{Bytes, BytesMut};
use firn_format::*;
use firn_seal::*;
use std::{collections::BTreeMap, fs, path::PathBuf};

const FAMILY: FamilyId = FamilyId([0xf0; 16]);
const VOLUME: VolumeId = VolumeId([0x70; 16]);
const EPOCH_KEY: [u8; 32] = [0x6b; 32];
const ENTROPY: [u8; 32] = [0xe0; 32];
const SEGMENT: SegmentId = SegmentId {
    writer: WriterId(3),
    sequence: 4,
};
const PLACE: Place = Place {
    inode: 20,
    level: 0,
    index: 5,
};
const TEXT: &[u8] =
    b"Firn is old snow, on its way to become ice. Firn is old snow, on its way to become ice.";

fn path(name: &str) -> PathBuf {
    PathBuf::from(format!("tests/vectors/v1/{name}.hex"))
}

/// Key rings have a format, and so a version, of their own.
fn key_ring_path() -> PathBuf {
    PathBuf::from("tests/vectors/v2/key-ring.hex")
}

/// So have journals.
fn journal_path(version: u8) -> PathBuf {
    PathBuf::from(format!("tests/vectors/v{version}/journal.hex"))
}

fn vector(name: &str) -> Bytes {
    hexfile::read(&path(name)).into()
}

fn keys() -> Keys {
    Keys::new(
        FAMILY,
        BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes(EPOCH_KEY))]),
    )
}

fn object(compression: Compression) -> EncodedObject {
    let sealer = ObjectSealer::new(&keys(), ENTROPY, &SEGMENT);
    sealer.reserve_slot();
    let slot = sealer.reserve_slot();
    sealer
        .seal(
            slot,
            Kind::Block,
            PLACE,
            Version(7),
            Bytes::new(),
            Vec::new(),
            TEXT,
            compression,
        )
        .unwrap()
}

fn journal() -> Vec<u8> {
    let context = RecordContext::journal(VOLUME, WriterId(3), 9);
    let sealer = RecordSealer::new(&keys(), ENTROPY, context).in_place_of(JournalUse::Recycled);
    let mut file = BytesMut::from(&sealer.journal_header().encode()[..]);
    sealer.append_framed(0, &[TEXT], &mut file).unwrap();
    sealer.append_framed(1, &[b"two ", b"parts"], &mut file).unwrap();
    file.to_vec()
}

fn phrase() -> RecoveryPhrase {
    RecoveryPhrase::from_entropy([0x11; 32])
}

fn edge_secret() -> RecipientSecret {
    RecipientSecret::derive(&[0xed; 32])
}

fn key_ring() -> Vec<u8> {
    let mut stream = blake3::Hasher::new().update(&ENTROPY).finalize_xof();
    let mut entropy = |bytes: &mut [u8]| stream.fill(bytes);
    let recipients = vec![
        Recipient {
            name: "recovery".to_owned(),
            kind: RecipientKind::Recovery,
            public: phrase().recovery_secret().public(),
        },
        Recipient {
            name: "oslo".to_owned(),
            kind: RecipientKind::Edge,
            public: edge_secret().public(),
        },
    ];
    let signer = phrase().signing_key();
    let (ring, keys) = KeyRing::create(FAMILY, VOLUME, recipients, &signer, &mut entropy).unwrap();
    let ring = ring.verify(&signer.public()).unwrap();
    let (ring, _) = ring.rotate(&keys, &signer, &mut entropy).unwrap();
    ring.encode().to_vec()
}

fn phrase_path() -> PathBuf {
    path("phrase").with_extension("txt")
}

fn phrase_vector() -> String {
    format!(
        "# The recovery phrase of 32 bytes 11, and what it derives\nwords: {}\ntenant: {}\nrecovery: {}\n",
        *phrase().expose_words(),
        phrase().signing_key().public(),
        phrase().recovery_secret().public()
    )
}

fn current() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    vec![
        (
            "object-raw",
            "A sealed Block",
            object(Compression::None).bytes.to_vec(),
        ),
        (
            "object-lz4",
            "The same, compressed",
            object(Compression::Lz4).bytes.to_vec(),
        ),
    ]
}

#[test]
#[ignore = "writes the vectors of the current version"]
fn regenerate() {
    for (name, title, bytes) in current() {
        hexfile::write(&path(name), title, &bytes);
    }
    fs::write(phrase_path(), phrase_vector()).unwrap();
    let title = "A key ring of two recipients and two epochs, signed for a volume";
    hexfile::write(&key_ring_path(), title, &key_ring());
    let title = "A journal file of two sealed records, recycled";
    hexfile::write(&journal_path(JOURNAL_VERSION), title, &journal());
}

#[test]
fn this_build_writes_what_it_always_wrote() {
    for (name, _, bytes) in current() {
        assert_eq!(
            vector(name),
            bytes,
            "{name}: a format changed without a new version"
        );
    }
    assert_eq!(
        hexfile::read(&key_ring_path()),
        key_ring(),
        "key-ring: a format changed without a new version"
    );
    assert_eq!(
        hexfile::read(&journal_path(JOURNAL_VERSION)),
        journal(),
        "journal: a format changed without a new version"
    );
}

#[test]
fn objects_of_version_1_are_opened() {
    for name in ["object-raw", "object-lz4"] {
        let fetched = decode_object(vector(name)).unwrap();
        let uid = fetched.uid();
        let verified = fetched.verify(&uid, Some(PLACE)).unwrap();
        assert_eq!(
            &ObjectOpener::new(keys()).open(verified).unwrap().payload[..],
            TEXT,
            "{name}"
        );
    }
}

#[test]
fn journals_of_both_versions_are_opened() {
    for version in [1, 2] {
        let file = Bytes::from(hexfile::read(&journal_path(version)));
        let header = JournalFileHeader::decode(&file).unwrap();
        let opener = RecordOpener::of_journal(&keys(), &header).unwrap();
        let mut rest = file.slice(JOURNAL_HEADER_BYTES..);
        for (slot, expected) in [(0, TEXT), (1, b"two parts")] {
            let RecordScan::Record { payload, total_bytes } = header.framing().next(&rest, slot) else {
                panic!("record {slot} is there");
            };
            assert_eq!(&opener.open(slot, rest.slice(payload)).unwrap()[..], expected);
            rest = rest.slice(total_bytes..);
        }
    }
}

#[test]
fn key_rings_of_both_versions_are_opened() {
    let rings = [
        (vector("key-ring"), None),
        (hexfile::read(&key_ring_path()).into(), Some(VOLUME)),
    ];
    for (bytes, volume) in rings {
        let ring = KeyRing::decode(bytes).unwrap();
        let ring = ring.verify(&phrase().signing_key().public()).unwrap();
        assert_eq!(
            (ring.family(), ring.generation(), ring.current(), ring.volume()),
            (FAMILY, 2, KeyEpoch(2), volume)
        );
        for secret in [phrase().recovery_secret(), edge_secret()] {
            assert_eq!(ring.open(&secret).unwrap().epochs().len(), 2);
        }
    }
}

#[test]
fn a_phrase_of_version_1_still_gives_the_same_identities() {
    let expected = fs::read_to_string(phrase_path()).unwrap();
    assert_eq!(phrase_vector(), expected);
    let words = expected.lines().nth(1).unwrap().strip_prefix("words: ").unwrap();
    let parsed = RecoveryPhrase::parse(words).unwrap();
    assert_eq!(parsed.signing_key().public(), phrase().signing_key().public());
}

/// The second reader.
mod second {
    use super::*;

    pub fn field<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
        bytes[offset..offset + N].try_into().unwrap()
    }

    pub fn number(bytes: &[u8], offset: usize) -> usize {
        u32::from_le_bytes(field(bytes, offset)) as usize
    }

    pub fn cipher(salt: &[u8], label: &[u8]) -> Aes256Gcm {
        let mut key = [0; 32];
        hkdf::Hkdf::<sha2::Sha256>::new(Some(salt), &EPOCH_KEY)
            .expand(&[label, &FAMILY.0].concat(), &mut key)
            .unwrap();
        Aes256Gcm::new(&key.into())
    }

    pub fn nonce(slot: [u8; 4]) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&slot);
        nonce
    }

    pub fn open_object(object: &[u8]) -> (u8, Vec<u8>) {
        let children = u16::from_le_bytes(field(object, 14)) as usize;
        let sealed_start = 88 + number(object, 52) + children * 34;
        let sealed_end = sealed_start + number(object, 4);
        assert_eq!(object.len(), sealed_end + children * 24 + 4);
        let aad = [&FAMILY.0[..], &object[8..sealed_start]].concat();
        let payload = Payload {
            msg: &object[sealed_start..sealed_end],
            aad: &aad,
        };
        let cipher = cipher(&object[56..88], b"firn 1 object");
        let opened = cipher.decrypt(&nonce(field(object, 44)).into(), payload).unwrap();
        (object[13], opened)
    }

    /// Seals as the specification says, whatever codec the header names.
    pub fn seal_object(codec: Codec, opened_bytes: u32, compressed: &[u8]) -> EncodedObject {
        let header = ObjectHeader {
            seal: SealHeader {
                codec,
                opened_bytes,
                ..object(Compression::None).header.seal
            },
            ..object(Compression::None).header
        };
        let aad = [&FAMILY.0[..], &authenticated_bytes(&header)].concat();
        let payload = Payload {
            msg: compressed,
            aad: &aad,
        };
        let cipher = cipher(&header.seal.salt, b"firn 1 object");
        let nonce = nonce(header.seal.slot.to_le_bytes());
        let sealed = cipher.encrypt(&nonce.into(), payload).unwrap();
        encode_object(header, &sealed)
    }
}

#[test]
fn a_second_reader_opens_the_objects() {
    let (codec, opened) = second::open_object(&vector("object-raw"));
    assert_eq!((codec, &opened[..]), (0, TEXT));
    let (codec, opened) = second::open_object(&vector("object-lz4"));
    assert_eq!(codec, 1);
    assert!(opened.len() < TEXT.len());
    assert_eq!(lz4_flex::block::decompress(&opened, TEXT.len()).unwrap(), TEXT);
}

#[test]
fn a_second_reader_finds_the_volume_of_a_key_ring() {
    let ring = hexfile::read(&key_ring_path());
    assert_eq!(ring[8], 2, "version");
    assert_eq!(second::field::<16>(&ring, 20), FAMILY.0);
    assert_eq!(second::field::<8>(&ring, 36), 2_u64.to_le_bytes());
    assert_eq!(second::field::<16>(&ring, 76), VOLUME.0);
    // The first recipient: recovery, of 8 bytes of name.
    assert_eq!(ring[92..94], [3, 8]);
    assert_eq!(&ring[126..134], b"recovery");
}

#[test]
fn a_second_reader_opens_the_journal() {
    let second_seed = |file: &[u8]| crc32c::crc32c(&file[48..80]);
    for (version, seed_of) in [(1, (|_: &[u8]| 0) as fn(&[u8]) -> u32), (2, second_seed)] {
        let file = hexfile::read(&journal_path(version));
        assert_eq!(file[8], version);
        second_opens(&file, seed_of(&file));
    }
}

fn second_opens(file: &[u8], seed: u32) {
    let cipher = second::cipher(&file[48..80], b"firn 1 journal");
    let mut offset = 84;
    for (slot, expected) in [(0u32, TEXT), (1, b"two parts")] {
        let sealed = &file[offset + 8..offset + 8 + second::number(file, offset)];
        assert_eq!(second::number(file, offset + 4), (slot ^ seed) as usize);
        let end = offset + 8 + sealed.len();
        let checksum = crc32c::crc32c_append(seed, &file[offset..end]) as usize;
        assert_eq!(second::number(file, end), checksum);
        let aad = [&FAMILY.0[..], &file[16..48], &slot.to_le_bytes()].concat();
        let payload = Payload {
            msg: sealed,
            aad: &aad,
        };
        let nonce = second::nonce(slot.to_le_bytes());
        assert_eq!(cipher.decrypt(&nonce.into(), payload).unwrap(), expected);
        offset += 8 + sealed.len() + 4;
    }
    assert_eq!(offset, file.len());
}

fn open(object: &EncodedObject) -> Result<OpenedObject, SealError> {
    let fetched = decode_object(object.bytes.clone()).unwrap();
    ObjectOpener::new(keys()).open(fetched.verify(&object.uid, None).unwrap())
}

#[test]
fn what_a_second_writer_seals_is_opened() {
    let object = second::seal_object(Codec::Raw, 4, b"text");
    assert_eq!(&open(&object).unwrap().payload[..], b"text");
}

#[test]
fn an_authentic_payload_that_is_not_what_its_header_says_is_refused() {
    let compressed = lz4_flex::block::compress(TEXT);
    let length = TEXT.len() as u32;
    assert!(open(&second::seal_object(Codec::Lz4, length, &compressed)).is_ok());
    for (codec, opened_bytes, payload) in [
        (Codec::Lz4, length - 1, &compressed[..]),
        (Codec::Lz4, length + 1, &compressed),
        (Codec::Lz4, length, &compressed[..compressed.len() - 1]),
        (Codec::Lz4, length, b""),
        (Codec::Raw, length - 1, TEXT),
    ] {
        assert_eq!(
            open(&second::seal_object(codec, opened_bytes, payload)).unwrap_err(),
            SealError::DoesNotDecompress {
                place: PLACE,
                opened_bytes
            }
        );
    }
}

#[test]
fn a_codec_this_build_cannot_undo_is_named() {
    let error = open(&second::seal_object(Codec::Zstd, 4, b"frame")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "object at inode 20, block 5 is compressed with Zstd: use a build of firn that reads it"
    );
}

//! Golden vectors: what this build writes, byte for byte, and what every later build must still read.
//!
//! After a deliberate change of a format (a new version, hence a new folder) write them anew with
//! `cargo test -p firn-format --test vectors -- --ignored`; the vectors of earlier versions stay as they are.

mod hexfile;

use bytes::Bytes;
use firn_format::*;
use std::path::PathBuf;

const FAMILY: FamilyId = FamilyId([0xf0; 16]);
const VOLUME: VolumeId = VolumeId([0x70; 16]);
const SEGMENT: SegmentId = SegmentId {
    writer: WriterId(0x0102_0304_0506_0708),
    sequence: 0x1112_1314_1516_1718,
};

fn path(name: &str) -> PathBuf {
    PathBuf::from(format!("tests/vectors/v1/{name}.hex"))
}

/// Journals have a version of their own.
fn journal_path(version: u8) -> PathBuf {
    PathBuf::from(format!("tests/vectors/v{version}/journal.hex"))
}

fn vector(name: &str) -> Bytes {
    hexfile::read(&path(name)).into()
}

fn seal_header(slot: u32) -> SealHeader {
    let mut salt = [0; 32];
    salt.iter_mut()
        .zip(0xa0..)
        .for_each(|(byte, value)| *byte = value);
    SealHeader {
        key_epoch: KeyEpoch(0x2122_2324),
        salt,
        slot,
        codec: Codec::Lz4,
        opened_bytes: 0x0001_2345,
    }
}

fn child(slot: u16) -> Child {
    Child {
        slot,
        pointer: Pointer {
            uid: Uid([slot as u8; 32]),
            location: Location {
                segment: SEGMENT,
                offset: 0x3132_3334,
                length: 0x4142_4344,
            },
        },
    }
}

fn block() -> EncodedObject {
    let header = ObjectHeader {
        kind: Kind::Block,
        features: Features::NONE,
        place: Place {
            inode: 0x5152_5354_5556_5758,
            level: 0,
            index: 0x6162_6364_6566_6768,
        },
        birth: Version(0x7172_7374_7576_7778),
        seal: seal_header(1),
        plain: Bytes::new(),
        children: Vec::new(),
    };
    encode_object(header, b"a sealed payload is opaque here")
}

fn node() -> EncodedObject {
    let header = ObjectHeader {
        kind: Kind::Node,
        place: Place {
            level: 2,
            ..block().header.place
        },
        seal: seal_header(2),
        children: vec![child(0), child(5), child(127)],
        ..block().header
    };
    encode_object(header, &[0xee; SEAL_TAG_BYTES])
}

fn root(slot: u16, level: u8) -> TreeRoot {
    TreeRoot {
        pointer: child(slot).pointer,
        level,
    }
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        family: FAMILY,
        volume: VOLUME,
        version: Version(9),
        epoch: OwnershipEpoch(2),
        writer: SEGMENT.writer,
        previous: Some(Uid([0x99; 32])),
        fork: Some(ForkPoint {
            volume: VolumeId([0x71; 16]),
            version: Version(4),
            uid: Uid([0x44; 32]),
        }),
        inode_map: Some(root(0, 3)),
        orphans: None,
        usage: Some(root(2, 1)),
        snapshots: vec![SnapshotRoot {
            id: 1,
            version: Version(7),
            created_ms: 1_700_000_000_000,
            protected_until_ms: -1,
            inode_map: root(3, 2),
            orphans: Some(root(4, 1)),
        }],
        cleaner_sequence: 6,
        committed_at_ms: 1_700_000_001_000,
        manifest: None,
    }
}

fn manifest_entry(byte: u8) -> ManifestEntry {
    ManifestEntry {
        length: 0x0012_3400 + u32::from(byte),
        segment_hash: [byte; 32],
        index_hash: [byte ^ 0xff; 32],
        birth: Version(0x0607),
    }
}

fn checkpoint_with_manifest() -> Checkpoint {
    let listed = |sequence, entry| ListedSegment {
        segment: SegmentId { sequence, ..SEGMENT },
        entry,
    };
    Checkpoint {
        manifest: Some(ManifestPart {
            root: Some(root(5, 4)),
            newest_round: 0x0102_0304,
            listed: vec![
                listed(3, manifest_entry(0x31)),
                listed(0x0405, ManifestEntry::unread(Version(8))),
            ],
            gathering: None,
        }),
        ..checkpoint()
    }
}

fn checkpoint_with_gathering() -> Checkpoint {
    let mut checkpoint = checkpoint_with_manifest();
    let part = checkpoint.manifest.as_mut().unwrap();
    part.gathering = Some(Gathering {
        stage: GatheringStage::Retained,
        tree: 1,
        told: true,
        root: 0x11,
        inode: 0x12,
        block: 0x13,
        proposal: 0x14,
        begun_at_ms: 0x15,
        bytes_per_second: 0x16,
        segments: 0x17,
        lost: 0x18,
        unreadable: 0x19,
        data_bytes: 0x1a,
        run: 0x1b,
    });
    checkpoint
}

fn manifest_leaf() -> ManifestLeaf {
    let mut leaf = ManifestLeaf::default();
    for (slot, entry) in [
        (127, manifest_entry(2)),
        (0, manifest_entry(1)),
        (9, ManifestEntry::unread(Version(2))),
    ] {
        leaf.insert(slot, entry);
    }
    leaf
}

fn checkpoint_object() -> EncodedObject {
    let (plain, children) = checkpoint().to_plain_and_children();
    let header = ObjectHeader {
        kind: Kind::Checkpoint,
        features: Features::NONE,
        place: checkpoint().place(),
        birth: checkpoint().version,
        seal: seal_header(3),
        plain,
        children,
    };
    encode_object(header, b"the engine's own state, sealed")
}

fn objects() -> [EncodedObject; 3] {
    [block(), node(), checkpoint_object()]
}

fn segment() -> Vec<u8> {
    let mut builder = SegmentBuilder::new(FAMILY, SEGMENT);
    for object in objects() {
        builder.push(&object);
    }
    builder.finish().concat()
}

fn journal_header(usage: JournalUse) -> JournalFileHeader {
    JournalFileHeader {
        volume: VOLUME,
        writer: SEGMENT.writer,
        number: 5,
        key_epoch: seal_header(0).key_epoch,
        salt: seal_header(0).salt,
        usage,
    }
}

const RECORDS: [&[u8]; 2] = [b"first sealed record", b"second"];

fn journal() -> Vec<u8> {
    let header = journal_header(JournalUse::Recycled);
    let mut file = header.encode().to_vec();
    for (slot, sealed) in (0..).zip(RECORDS) {
        let frame = header.framing().frame(slot, sealed);
        file.extend([&frame.head[..], sealed, &frame.tail].concat());
    }
    // What an earlier use of the file left: its third record.
    let earlier = Framing::new(JournalUse::First, &[0x0e; 32]);
    let frame = earlier.frame(2, b"stale");
    file.extend([&frame.head[..], b"stale", &frame.tail].concat());
    file
}

fn forwarding() -> ForwardingRecord {
    let entry = |offset, length| ForwardingEntry {
        offset,
        new: Location {
            segment: SegmentId {
                writer: WriterId(9),
                sequence: 4,
            },
            offset: offset + 0x1000,
            length,
        },
    };
    ForwardingRecord {
        family: FAMILY,
        old: SEGMENT,
        mover: WriterId(9),
        retired_at_ms: 1_700_000_002_000,
        entries: vec![entry(52, 100), entry(0x0001_0203, 0x1122)],
    }
}

fn usage_leaf() -> UsageLeaf {
    let mut leaf = UsageLeaf::default();
    leaf.live_bytes[0] = 0x0102_0304;
    leaf.live_bytes[127] = 4 << 20;
    leaf
}

fn current() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    vec![
        ("block", "An object of kind Block", block().bytes.to_vec()),
        (
            "node",
            "An object of kind Node with three children",
            node().bytes.to_vec(),
        ),
        (
            "checkpoint",
            "An object of kind Checkpoint",
            checkpoint_object().bytes.to_vec(),
        ),
        ("segment", "A segment of those three objects", segment()),
        (
            "pointer",
            "A pointer on its own",
            child(0xab).pointer.to_bytes().to_vec(),
        ),
        (
            "forwarding",
            "A forwarding record of two objects",
            forwarding().encode().to_vec(),
        ),
        (
            "usage-leaf",
            "The plain section of a leaf of the usage map",
            usage_leaf().to_plain().to_vec(),
        ),
        (
            "manifest-leaf",
            "The plain section of a leaf of the manifest",
            manifest_leaf().to_plain().to_vec(),
        ),
        (
            "checkpoint-with-manifest",
            "The plain section of a checkpoint with a manifest",
            checkpoint_with_manifest().to_plain_and_children().0.to_vec(),
        ),
        (
            "checkpoint-with-gathering",
            "The plain section of a checkpoint whose manifest is being gathered",
            checkpoint_with_gathering().to_plain_and_children().0.to_vec(),
        ),
    ]
}

#[test]
#[ignore = "writes the vectors of the current version"]
fn regenerate() {
    for (name, title, bytes) in current() {
        hexfile::write(&path(name), title, &bytes);
    }
    let title = "A journal file of two records, recycled: behind them stands a record of its earlier use";
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
    let written = hexfile::read(&journal_path(JOURNAL_VERSION));
    assert_eq!(
        written,
        journal(),
        "journal: a format changed without a new version"
    );
}

#[test]
fn objects_of_version_1_are_read() {
    for (name, expected) in ["block", "node", "checkpoint"].into_iter().zip(objects()) {
        let bytes = vector(name);
        let hashed_bytes = bytes.len() - 4 - 24 * expected.header.children.len();
        assert_eq!(expected.uid.0, *blake3::hash(&bytes[..hashed_bytes]).as_bytes());
        let fetched = decode_object(bytes).unwrap();
        let verified = fetched
            .verify(&expected.uid, Some(expected.header.place))
            .unwrap();
        assert_eq!(verified.into_encoded(), expected, "{name}");
    }
    let fetched = decode_object(vector("checkpoint")).unwrap();
    let uid = fetched.uid();
    assert_eq!(
        Checkpoint::from_verified(&fetched.verify(&uid, None).unwrap()),
        Ok(checkpoint())
    );
}

#[test]
fn segments_of_version_1_are_read() {
    let segment = decode_segment(vector("segment")).unwrap();
    assert_eq!((segment.family, segment.id), (FAMILY, SEGMENT));
    assert_eq!(segment.entries.len(), 3);
    for (entry, object) in segment.entries.iter().zip(objects()) {
        assert_eq!(segment.object(entry), object.bytes);
        assert_eq!(entry.uid, object.uid);
    }
}

#[test]
fn journals_of_both_versions_are_read() {
    for (version, usage) in [(1, JournalUse::Unseeded), (2, JournalUse::Recycled)] {
        let file = hexfile::read(&journal_path(version));
        let header = JournalFileHeader::decode(&file).unwrap();
        assert_eq!(header, journal_header(usage));
        let mut rest = &file[JOURNAL_HEADER_BYTES..];
        for (slot, sealed) in (0..).zip(RECORDS) {
            let RecordScan::Record { payload, total_bytes } = header.framing().next(rest, slot) else {
                panic!("record {slot} is there");
            };
            assert_eq!(&rest[payload], sealed);
            rest = &rest[total_bytes..];
        }
        assert_eq!(header.framing().next(rest, 2), RecordScan::End);
    }
}

#[test]
fn pointers_of_version_1_are_read() {
    let bytes: [u8; Pointer::BYTES] = vector("pointer")[..].try_into().unwrap();
    assert_eq!(Pointer::from_bytes(&bytes), child(0xab).pointer);
}

#[test]
fn forwarding_records_of_version_1_are_read() {
    assert_eq!(ForwardingRecord::decode(&vector("forwarding")), Ok(forwarding()));
}

#[test]
fn usage_leaves_of_version_1_are_read() {
    assert_eq!(UsageLeaf::from_plain(&vector("usage-leaf")), Ok(usage_leaf()));
    assert_eq!(
        ManifestLeaf::from_plain(&vector("manifest-leaf")),
        Ok(manifest_leaf())
    );
    let (_, children) = checkpoint_with_manifest().to_plain_and_children();
    assert_eq!(
        Checkpoint::from_plain_and_children(&vector("checkpoint-with-manifest"), &children),
        Ok(checkpoint_with_manifest())
    );
    assert_eq!(
        Checkpoint::from_plain_and_children(&vector("checkpoint-with-gathering"), &children),
        Ok(checkpoint_with_gathering())
    );
}

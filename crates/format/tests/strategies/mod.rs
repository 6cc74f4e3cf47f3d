//! Arbitrary but well-formed things, shared by the property tests.
#![allow(dead_code, reason = "each test file uses a part")]

use bytes::Bytes;
use firn_format::{radix::FANOUT, *};
use proptest::{collection::vec, option, prelude::*, sample::subsequence};

pub fn uid() -> impl Strategy<Value = Uid> {
    any::<[u8; 32]>().prop_map(Uid)
}

pub fn segment_id() -> impl Strategy<Value = SegmentId> {
    any::<(u64, u64)>().prop_map(|(writer, sequence)| SegmentId {
        writer: WriterId(writer),
        sequence,
    })
}

pub fn location() -> impl Strategy<Value = Location> {
    (segment_id(), any::<u32>(), any::<u32>()).prop_map(|(segment, offset, length)| Location {
        segment,
        offset,
        length,
    })
}

pub fn pointer() -> impl Strategy<Value = Pointer> {
    (uid(), location()).prop_map(|(uid, location)| Pointer { uid, location })
}

pub fn children() -> impl Strategy<Value = Vec<Child>> {
    (0..=12usize)
        .prop_flat_map(|count| {
            let slots = subsequence((0..FANOUT).collect::<Vec<_>>(), count);
            (slots, vec(pointer(), count))
        })
        .prop_map(|(slots, pointers)| {
            let filled = slots.into_iter().zip(pointers);
            filled.map(|(slot, pointer)| Child { slot, pointer }).collect()
        })
}

pub fn kind_and_place() -> impl Strategy<Value = (Kind, Place)> {
    (1u8..=4, any::<u64>(), 1..=MAX_LEVEL, any::<u64>()).prop_map(|(kind, inode, level, index)| {
        let kind = Kind::from_byte(kind).expect("1 to 4 are kinds");
        let level = if kind == Kind::Node { level } else { 0 };
        (kind, Place { inode, level, index })
    })
}

pub fn seal_header() -> impl Strategy<Value = SealHeader> {
    let opened_bytes = 0..=MAX_PAYLOAD_BYTES as u32;
    (
        any::<u32>(),
        any::<[u8; 32]>(),
        any::<u32>(),
        0u8..=2,
        opened_bytes,
    )
        .prop_map(|(key_epoch, salt, slot, codec, opened_bytes)| SealHeader {
            key_epoch: KeyEpoch(key_epoch),
            salt,
            slot,
            codec: Codec::from_byte(codec).expect("0 to 2 are codecs"),
            opened_bytes,
        })
}

pub fn header() -> impl Strategy<Value = ObjectHeader> {
    // Optional feature flags must survive a build that does not know them.
    let features = any::<u8>().prop_map(|optional| Features(u16::from(optional) << 8));
    let plain = vec(any::<u8>(), 0..80);
    (
        kind_and_place(),
        features,
        any::<u64>(),
        seal_header(),
        plain,
        children(),
    )
        .prop_map(
            |((kind, place), features, birth, seal, plain, children)| ObjectHeader {
                kind,
                features,
                place,
                birth: Version(birth),
                seal,
                plain: Bytes::from(plain),
                children,
            },
        )
}

pub fn object() -> impl Strategy<Value = EncodedObject> {
    (header(), vec(any::<u8>(), 0..200)).prop_map(|(header, sealed)| encode_object(header, &sealed))
}

pub fn tree_root() -> impl Strategy<Value = TreeRoot> {
    (pointer(), 1..=MAX_LEVEL).prop_map(|(pointer, level)| TreeRoot { pointer, level })
}

pub fn snapshot() -> impl Strategy<Value = SnapshotRoot> {
    (
        any::<(u64, u64, i64, i64)>(),
        tree_root(),
        option::of(tree_root()),
    )
        .prop_map(
            |((id, version, created_ms, protected_until_ms), inode_map, orphans)| SnapshotRoot {
                id,
                version: Version(version),
                created_ms,
                protected_until_ms,
                inode_map,
                orphans,
            },
        )
}

pub fn fork() -> impl Strategy<Value = ForkPoint> {
    (any::<[u8; 16]>(), any::<u64>(), uid()).prop_map(|(volume, version, uid)| ForkPoint {
        volume: VolumeId(volume),
        version: Version(version),
        uid,
    })
}

pub fn manifest_entry() -> impl Strategy<Value = ManifestEntry> {
    let read = (1..=MAX_SEGMENT_BYTES as u32, any::<([u8; 32], [u8; 32], u64)>());
    prop_oneof![
        4 => read.prop_map(|(length, (segment_hash, index_hash, birth))| ManifestEntry {
            length,
            segment_hash,
            index_hash,
            birth: Version(birth),
        }),
        1 => any::<u64>().prop_map(|birth| ManifestEntry::unread(Version(birth))),
    ]
}

fn gathering() -> impl Strategy<Value = Gathering> {
    let stage = prop_oneof![
        Just(GatheringStage::Waiting),
        Just(GatheringStage::Head),
        Just(GatheringStage::Retained),
        Just(GatheringStage::Gaps),
        Just(GatheringStage::Settled),
    ];
    let numbers = any::<(u8, [u64; 5], i64, [u64; 5])>();
    (stage, numbers).prop_map(|(stage, (tree, at, begun_at_ms, counts))| Gathering {
        stage,
        tree,
        told: tree & 1 == 1,
        root: at[0],
        inode: at[1],
        block: at[2],
        proposal: at[3],
        begun_at_ms,
        bytes_per_second: at[4],
        segments: counts[0],
        lost: counts[1],
        unreadable: counts[2],
        data_bytes: counts[3],
        run: counts[4],
    })
}

pub fn manifest_part() -> impl Strategy<Value = ManifestPart> {
    let listed = proptest::collection::btree_map(segment_id(), manifest_entry(), 0..=MAX_LISTED_SEGMENTS);
    let parts = (
        option::of(tree_root()),
        any::<u64>(),
        listed,
        option::of(gathering()),
    );
    parts.prop_map(|(root, newest_round, listed, gathering)| ManifestPart {
        gathering,
        root,
        newest_round,
        listed: listed
            .into_iter()
            .map(|(segment, entry)| ListedSegment { segment, entry })
            .collect(),
    })
}

pub fn checkpoint() -> impl Strategy<Value = Checkpoint> {
    let ids = any::<([u8; 16], [u8; 16], u64, u64, u64, u64, i64)>();
    let roots = (
        option::of(tree_root()),
        option::of(tree_root()),
        option::of(tree_root()),
    );
    let links = (option::of(uid()), option::of(fork()), option::of(manifest_part()));
    (ids, roots, links, vec(snapshot(), 0..5)).prop_map(
        |(
            (family, volume, version, epoch, writer, cleaner_sequence, committed_at_ms),
            (inode_map, orphans, usage),
            (previous, fork, manifest),
            snapshots,
        )| Checkpoint {
            family: FamilyId(family),
            volume: VolumeId(volume),
            version: Version(version),
            epoch: OwnershipEpoch(epoch),
            writer: WriterId(writer),
            previous,
            fork,
            inode_map,
            orphans,
            usage,
            snapshots,
            cleaner_sequence,
            committed_at_ms,
            manifest,
        },
    )
}

/// The object that holds a checkpoint, its seal left out.
pub fn checkpoint_object(checkpoint: &Checkpoint) -> EncodedObject {
    let (plain, children) = checkpoint.to_plain_and_children();
    let header = ObjectHeader {
        kind: Kind::Checkpoint,
        features: Features::NONE,
        place: checkpoint.place(),
        birth: checkpoint.version,
        seal: SealHeader {
            key_epoch: KeyEpoch(1),
            salt: [0x5a; 32],
            slot: 0,
            codec: Codec::Raw,
            opened_bytes: 0,
        },
        plain,
        children,
    };
    encode_object(header, &[0xee; SEAL_TAG_BYTES])
}

/// `bytes` with one bit turned over.
pub fn flipped(bytes: &[u8], bit: usize) -> Bytes {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes.into()
}

/// Something that looks like `bytes` but may be cut, lengthened, or wrong anywhere.
pub fn damaged(bytes: Bytes) -> impl Strategy<Value = Bytes> {
    let edits = vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (
        edits,
        any::<prop::sample::Index>(),
        vec(any::<u8>(), 0..9),
        any::<bool>(),
    )
        .prop_map(move |(edits, cut, tail, keep_all)| {
            let mut bytes = bytes.to_vec();
            for (at, value) in edits {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if !keep_all {
                bytes.truncate(cut.index(bytes.len() + 1));
            }
            bytes.extend(tail);
            bytes.into()
        })
}

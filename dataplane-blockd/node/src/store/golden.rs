//! The bytes of layout version 1, for ever, written down from the layouts at the beginnings of the modules. If a test here fails,
//! nodes no longer read what earlier builds wrote: raise the version instead.

use super::{
    checkpoint::Contents,
    entry::{Entries, Entry, Place},
    fields::fields,
    index::{self, TractPlace},
    journal,
    layout::{self, Frame, Geometry},
    record::Record,
    state::DiskFacts,
};
use firn_blockd_protocol::{DiskId, Fence, Generation, NodeId, Replication, RowIndex, RowVersion, TractId};
use firn_codec::Writer;

const TRACT: TractId = TractId {
    disk: DiskId([0xdd; 16]),
    index: 0x0605,
};

fn place() -> TractPlace {
    TractPlace {
        tract: TRACT,
        replication: Replication::new(3).expect("three are made"),
        row: RowIndex(0x0807),
        since: RowVersion(0x0a09),
    }
}

fn checked(bytes: &[&[u8]]) -> Vec<u8> {
    let mut bytes = bytes.concat();
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

#[test]
fn the_superblock() {
    let geometry = Geometry {
        groups: 2,
        home_frames: 3,
        scratch_frames: 4,
        journal_bytes: 1 << 20,
    };
    let bytes = layout::encode_superblock(NodeId([0xaa; 16]), &geometry);
    let expected = checked(&[
        b"FIRNBLKD\x01\0",
        &[0xaa; 16],
        b"\x02\0\0\0\x03\0\0\0\x04\0\0\0\0\0\x10\0\0\0\0\0",
    ]);
    assert_eq!(bytes, expected);
    let decoded = layout::decode_superblock(&bytes);
    assert_eq!(decoded, Ok((NodeId([0xaa; 16]), geometry)));
    for cut in 0..bytes.len() {
        assert!(layout::decode_superblock(&bytes[..cut]).is_err());
    }
}

#[test]
fn an_index_region() {
    let entry = Entry {
        generation: Generation::new(Fence(0x0201), 0x0403),
        checksum: 0x0c0b_0a09,
        place: Place::Slot(5),
    };
    let mut entries = Entries::absent();
    entries.set(1, entry);
    let bytes = index::encode(Frame(0x0b), 0x0d, Some((place(), &entries)));
    let header = [
        &b"FBIX\x01\0\x01\x03\x0b\0\0\0\x0d\0\0\0\0\0\0\0"[..],
        &[0xdd; 16],
        b"\x05\x06\0\0\x07\x08\0\0\x09\x0a\0\0\0\0\0\0",
        &[0; 72],
    ]
    .concat();
    assert_eq!(bytes[..124], header);
    let table = [
        &[0; 20][..],
        b"\x01\x02\0\0\x03\x04\0\0\0\0\0\0\x09\x0a\x0b\x0c\x07\0\0\0",
        &[0; 2046 * 20],
    ]
    .concat();
    assert_eq!(bytes[128..], table);
    assert_eq!(
        bytes[124..128],
        crc32c::crc32c(&[header, table].concat()).to_le_bytes()
    );
    let region = index::decode(Frame(0x0b), &bytes).expect("it is whole");
    let (read, entries) = region.used.expect("it is of a tract");
    assert_eq!((region.version, read, entries.get(1)), (0x0d, place(), entry));
    assert!(index::decode(Frame(0x0c), &bytes).is_none());
    assert!(index::decode(Frame(0x0b), &bytes[..bytes.len() - 1]).is_none());
}

#[test]
fn the_index_region_of_a_free_frame() {
    let bytes = index::encode(Frame(1), 2, None);
    let header = [&b"FBIX\x01\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\0"[..], &[0; 104]].concat();
    assert_eq!(bytes[..124], header);
    assert_eq!(bytes[128..], [0; 2048 * 20]);
    let region = index::decode(Frame(1), &bytes).expect("it is whole");
    assert!(region.version == 2 && region.used.is_none());
}

#[test]
fn records_and_their_batch() {
    let disk = DiskId([0xdd; 16]);
    let frame = Frame(0x0b);
    let records = [
        Record::Allocate {
            frame,
            place: place(),
        },
        Record::Reset {
            frame,
            tract: TRACT,
            since: RowVersion(0x0a09),
        },
        Record::Release { frame, tract: TRACT },
        Record::Fence {
            disk,
            fence: Fence(0x0201),
        },
        Record::Settled {
            disk,
            settled: Generation::new(Fence(0x0201), 0x0403),
        },
        Record::Forget { disk },
        Record::Blocks {
            frame,
            tract: TRACT,
            first: 0x0102,
            generation: Generation::new(Fence(0x0201), 0x0403),
            entries: vec![(7, 0x0c0b_0a09), (1, 0)],
        },
    ];
    let mut writer = Writer::default();
    records.iter().for_each(|record| record.encode(&mut writer));
    let tract = [&b"\x0b\0\0\0"[..], &disk.0, b"\x05\x06\0\0"].concat();
    let payload = [
        &b"\x01"[..],
        &tract,
        b"\x03\x07\x08\0\0\x09\x0a\0\0\0\0\0\0",
        b"\x02",
        &tract,
        b"\x09\x0a\0\0\0\0\0\0",
        b"\x03",
        &tract,
        b"\x04",
        &disk.0,
        b"\x01\x02\0\0",
        b"\x05",
        &disk.0,
        b"\x01\x02\0\0\x03\x04\0\0\0\0\0\0",
        b"\x06",
        &disk.0,
        b"\x07",
        &tract,
        b"\x02\x01\x02\0\x01\x02\0\0\x03\x04\0\0\0\0\0\0",
        b"\x07\0\0\0\x09\x0a\x0b\x0c\x01\0\0\0\0\0\0\0",
    ]
    .concat();
    assert_eq!(writer.as_slice(), payload);
    let mut input = fields(&payload);
    for record in &records {
        assert_eq!(Record::decode(&mut input).as_ref(), Ok(record));
    }
    assert_eq!(input.remaining(), 0);
    for cut in 0..payload.len() {
        let mut input = fields(&payload[..cut]);
        let whole = (0..records.len()).all(|_| Record::decode(&mut input).is_ok());
        assert!(!whole, "{cut} of {} bytes", payload.len());
    }

    let batch = journal::encode(0x0201, 3, &payload);
    let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
    let header = [&b"FBJB"[..], &length, b"\x01\x02\0\0\0\0\0\0\x03\0\0\0"].concat();
    let checksum = crc32c::crc32c(&[&header[..], &payload].concat()).to_le_bytes();
    let mut expected = [&header[..], &checksum, &payload].concat();
    expected.resize(512, 0);
    assert_eq!(batch, expected);
    assert_eq!(journal::decode(&batch), Some((0x0201, 3, &payload[..])));
}

#[test]
fn the_state_file() {
    let contents = Contents {
        first_needed: 0x0201,
        disks: [(DiskId([0xdd; 16]), DiskFacts { fence: Fence(0x0403) })].into(),
        region_versions: vec![5, 6],
    };
    let bytes = contents.encode();
    let expected = checked(&[
        b"FIRNBLKS\x01\0\x01\x02\0\0\0\0\0\0\x01\0\0\0",
        &[0xdd; 16],
        b"\x03\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        b"\x02\0\0\0\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0",
    ]);
    assert_eq!(bytes, expected);
    assert_eq!(Contents::decode(&bytes), Ok(contents));
    for cut in 0..bytes.len() {
        assert!(Contents::decode(&bytes[..cut]).is_err());
    }
}

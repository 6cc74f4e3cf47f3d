//! The bytes of the versions that are spoken, for ever. If a test here fails, the protocol has changed: raise its version instead.
//!
//! `golden-1.txt` and `golden-2.txt` have a line for each message: its name, a colon, and the frame's header and body in
//! hexadecimal (data is whole blocks and stands for itself).

use bytes::Bytes;
use data_encoding::HEXLOWER;
use firn_blockd_protocol::*;
use std::fmt::Write as _;

fn id(first: u8) -> [u8; 16] {
    std::array::from_fn(|at| first + at as u8)
}

fn row() -> Row {
    Row {
        replication: Replication::new(2).expect("two"),
        index: RowIndex(5),
        version: RowVersion(9),
        replicas: vec![
            Replica {
                node: NodeId(id(0x20)),
                state: ReplicaState::Active,
                since: RowVersion(1),
                address: "10.0.0.7:7300".into(),
            },
            Replica {
                node: NodeId(id(0x30)),
                state: ReplicaState::Joining,
                since: RowVersion(9),
                address: "node.example:7300".into(),
            },
        ],
    }
}

fn frames(version: u8) -> Vec<(&'static str, Frame)> {
    let disk = DiskId(id(0x10));
    let tract = TractId { disk, index: 3 };
    let range = BlockRange::new(100, 2).expect("within the tract");
    let data: Bytes = (0..2 * BLOCK_BYTES).map(|at| at as u8).collect();
    let blocks = WriteBlocks::new(tract, range, data.clone()).expect("two blocks");
    let (fence, rows) = (Fence(7), RowVersion(9));
    let generation = Generation::new(fence, 42);
    let earlier = Generation::new(fence, 40);
    let first = data.slice(..BLOCK_BYTES);
    let checksum = block_checksum(tract, 100, &first);
    let requests = [
        (
            "hello",
            Request::Hello {
                lowest: 1,
                highest: 1,
                program: "golden".into(),
            },
        ),
        (
            "authenticate",
            Request::Authenticate {
                capability: Bytes::from_static(b"capability"),
            },
        ),
        (
            "write",
            Request::Write {
                tract,
                row: rows,
                generation,
                range,
                blocks,
            },
        ),
        (
            "trim",
            Request::Trim {
                tract,
                row: rows,
                generation,
                range: BlockRange::TRACT,
            },
        ),
        (
            "fetch",
            Request::Fetch {
                tract,
                row: rows,
                fence: Fence(0),
                range,
            },
        ),
        ("set-fence", Request::SetFence { disk, fence }),
        (
            "list",
            Request::List {
                disk: None,
                row: Some(RowAt {
                    replication: Replication::new(2).expect("two"),
                    index: RowIndex(5),
                    version: rows,
                }),
                after: Some(tract),
                limit: 512,
            },
        ),
    ];
    let replies = [
        (
            "hello-reply",
            Reply::Hello(HelloReply {
                version: 1,
                node: NodeId(id(0x20)),
                incarnation: 0x1122_3344_5566_7788,
                requests_in_flight: 256,
                bytes_in_flight: 16 << 20,
            }),
        ),
        (
            "authenticated",
            Reply::Authenticated {
                expires_unix_ms: 1_800_000_000_000,
            },
        ),
        ("written", Reply::Written),
        (
            "fetched",
            Reply::Fetched(VersionedBlocks {
                range,
                versions: vec![
                    BlockVersion {
                        generation,
                        state: BlockState::Written(checksum),
                    },
                    BlockVersion {
                        generation: earlier,
                        state: BlockState::Trimmed,
                    },
                ],
                data: first,
            }),
        ),
        (
            "list-reply",
            Reply::List {
                tracts: vec![tract],
                more: true,
            },
        ),
    ];
    let refusals = [
        ("fenced", Refusal::Fenced { current: Fence(8) }),
        ("wrong-row", Refusal::WrongRow { newest: row() }),
        ("damaged", Refusal::Damaged { block: 101 }),
        ("disk-failed", Refusal::Disk("input/output error".into())),
    ];
    let mut frames: Vec<(&'static str, Frame)> = Vec::new();
    frames.extend(
        requests
            .iter()
            .map(|(name, request)| (*name, encode_request(version, 77, request))),
    );
    frames.extend(
        replies
            .iter()
            .map(|(name, reply)| (*name, encode_reply(version, 77, reply))),
    );
    frames.extend(refusals.iter().map(|(name, refusal)| {
        (
            *name,
            encode_refusal(version, 77, Operation::Write as u8, refusal),
        )
    }));
    frames
}

fn text(version: u8) -> String {
    let mut text = String::new();
    for (name, frame) in frames(version) {
        let _ = writeln!(text, "{name}: {}", HEXLOWER.encode(&frame.head()));
    }
    text
}

#[test]
fn the_bytes_of_version_2_have_not_changed() {
    let text = text(2);
    assert!(
        text == include_str!("golden-2.txt"),
        "these are the bytes now:\n{text}"
    );
}

/// What was written by the version before, in which writes and lists said more than anybody looked at, is understood.
#[test]
fn the_bytes_of_version_1_are_still_read() {
    let golden: std::collections::BTreeMap<_, _> = include_str!("golden-1.txt")
        .lines()
        .filter_map(|line| line.split_once(": "))
        .collect();
    for (name, frame) in frames(1) {
        let hex = HEXLOWER.encode(&frame.head());
        let bytes = HEXLOWER.decode(golden[name].as_bytes()).expect("hexadecimal");
        let mut stream = bytes::BytesMut::from(&bytes[..]);
        stream.extend_from_slice(&frame.data);
        let old = Frame::from_bytes(&mut stream).expect("a frame").expect("whole");
        if frame.header.kind == FrameKind::Request {
            assert_eq!(decode_request(&old), decode_request(&frame), "{name}");
        } else {
            assert_eq!(decode_reply(&old), decode_reply(&frame), "{name}");
        }
        // What is written in it says that nothing is settled and that all is durable; the rest is the same to the byte.
        if !["write", "trim", "list-reply"].contains(&name) {
            assert_eq!(hex, golden[name], "{name}");
        }
    }
}

#[test]
fn a_block_checksum_is_crc32c_of_its_place_and_its_bytes() {
    let tract = TractId {
        disk: DiskId(id(0)),
        index: 0x0403_0201,
    };
    let mut bytes: Vec<u8> = id(0).to_vec();
    bytes.extend([1, 2, 3, 4, 0x34, 0x12]);
    bytes.extend([0xab; BLOCK_BYTES]);
    // Bit by bit, from the polynomial: a second implementation.
    let mut remainder = !0_u32;
    for byte in bytes {
        remainder ^= u32::from(byte);
        for _ in 0..8 {
            remainder = (remainder >> 1) ^ (0x82f6_3b78 * (remainder & 1));
        }
    }
    assert_eq!(block_checksum(tract, 0x1234, &[0xab; BLOCK_BYTES]), !remainder);
}

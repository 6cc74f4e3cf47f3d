//! Whatever can be said can be read, and whatever else arrives is refused without a panic.

use bytes::{Bytes, BytesMut};
use firn_blockd_protocol::*;
use proptest::prelude::*;

fn disk() -> impl Strategy<Value = DiskId> {
    any::<[u8; 16]>().prop_map(DiskId)
}

fn tract() -> impl Strategy<Value = TractId> {
    (disk(), any::<u32>()).prop_map(|(disk, index)| TractId { disk, index })
}

fn generation() -> impl Strategy<Value = Generation> {
    (any::<u32>(), any::<u64>()).prop_map(|(fence, sequence)| Generation::new(Fence(fence), sequence))
}

fn small_range() -> impl Strategy<Value = BlockRange> {
    (0..TRACT_BLOCKS - 6, 1..6_u16).prop_map(|(first, count)| BlockRange::new(first, count).unwrap())
}

fn any_range() -> impl Strategy<Value = BlockRange> {
    (0..TRACT_BLOCKS)
        .prop_flat_map(|first| (Just(first), 1..=TRACT_BLOCKS - first))
        .prop_map(|(first, count)| BlockRange::new(first, count).unwrap())
}

fn data(range: BlockRange, seed: u8) -> Bytes {
    (0..range.bytes())
        .map(|at| (at as u8).wrapping_mul(31) ^ seed)
        .collect()
}

fn request() -> impl Strategy<Value = Request> {
    let change = || (tract(), any::<u64>(), generation());
    prop_oneof![
        (any::<u8>(), any::<u8>(), ".{0,40}").prop_map(|(lowest, highest, program)| Request::Hello {
            lowest,
            highest,
            program
        }),
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(|bytes| Request::Authenticate {
            capability: bytes.into()
        }),
        (tract(), any::<u64>(), any::<u32>(), small_range()).prop_map(|(tract, row, fence, range)| {
            Request::Fetch {
                tract,
                row: RowVersion(row),
                fence: Fence(fence),
                range,
            }
        }),
        (change(), small_range(), any::<u8>()).prop_map(|((tract, row, generation), range, seed)| {
            Request::Write {
                tract,
                row: RowVersion(row),
                generation,
                range,
                blocks: WriteBlocks::new(tract, range, data(range, seed)).unwrap(),
            }
        }),
        (change(), any_range()).prop_map(|((tract, row, generation), range)| {
            Request::Trim {
                tract,
                row: RowVersion(row),
                generation,
                range,
            }
        }),
        (disk(), any::<u32>()).prop_map(|(disk, fence)| Request::SetFence {
            disk,
            fence: Fence(fence)
        }),
        (
            prop_oneof![
                disk().prop_map(Ok),
                (1..=3_u8, any::<u32>(), any::<u64>()).prop_map(Err)
            ],
            proptest::option::of(tract()),
            1..=limits::MAX_LIST as u16
        )
            .prop_map(|(of, after, limit)| Request::List {
                disk: of.ok(),
                row: of.err().map(|(copies, index, version)| RowAt {
                    replication: Replication::new(copies).unwrap(),
                    index: RowIndex(index),
                    version: RowVersion(version),
                }),
                after,
                limit
            }),
    ]
}

fn row() -> impl Strategy<Value = Row> {
    let replica = (any::<[u8; 16]>(), any::<bool>(), any::<u64>(), "[a-z0-9.:]{0,60}").prop_map(
        |(node, active, since, address)| Replica {
            node: NodeId(node),
            state: if active {
                ReplicaState::Active
            } else {
                ReplicaState::Joining
            },
            since: RowVersion(since),
            address,
        },
    );
    (
        1..=3_u8,
        any::<u32>(),
        any::<u64>(),
        proptest::collection::vec(replica, 0..limits::MAX_REPLICAS),
    )
        .prop_map(|(copies, index, version, replicas)| Row {
            replication: Replication::new(copies).unwrap(),
            index: RowIndex(index),
            version: RowVersion(version),
            replicas,
        })
}

fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        ".{0,80}".prop_map(Refusal::Malformed),
        any::<u8>().prop_map(Refusal::UnknownOperation),
        (any::<u8>(), any::<u8>()).prop_map(|(lowest, highest)| Refusal::Version { lowest, highest }),
        Just(Refusal::NotAuthenticated),
        ".{0,80}".prop_map(Refusal::CapabilityInvalid),
        Just(Refusal::CapabilityExpired),
        ".{0,80}".prop_map(Refusal::NotPermitted),
        Just(Refusal::UnknownDisk),
        any::<u32>().prop_map(|tracts| Refusal::OutOfRange { tracts }),
        row().prop_map(|newest| Refusal::WrongRow { newest }),
        Just(Refusal::NotFenced),
        any::<u32>().prop_map(|fence| Refusal::Fenced {
            current: Fence(fence)
        }),
        Just(Refusal::Joining),
        Just(Refusal::Full),
        any::<u16>().prop_map(|block| Refusal::Damaged { block }),
        any::<u16>().prop_map(|block| Refusal::DataChecksum { block }),
        Just(Refusal::Busy),
        ".{0,80}".prop_map(Refusal::NotServing),
        ".{0,80}".prop_map(Refusal::Disk),
        Just(Refusal::WrongNode),
        Just(Refusal::Superseded),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    let versions = (tract(), small_range(), any::<u8>(), any::<u8>(), generation());
    prop_oneof![
        any::<([u8; 16], u64, u32, u32)>().prop_map(
            |(node, incarnation, requests_in_flight, bytes_in_flight)| Reply::Hello(HelloReply {
                version: 1,
                node: NodeId(node),
                incarnation,
                requests_in_flight,
                bytes_in_flight
            })
        ),
        any::<i64>().prop_map(|expires_unix_ms| Reply::Authenticated { expires_unix_ms }),
        versions.prop_map(|(tract, range, present, seed, generation)| {
            let all = WriteBlocks::new(tract, range, data(range, seed)).unwrap();
            let mut kept = BytesMut::new();
            let versions = all
                .checksums
                .iter()
                .enumerate()
                .map(|(at, checksum)| {
                    let state = match (present >> at & 1, seed >> at & 1) {
                        (1, _) => {
                            kept.extend_from_slice(&all.data[at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES]);
                            BlockState::Written(*checksum)
                        }
                        (_, 1) => BlockState::Trimmed,
                        _ => BlockState::Absent,
                    };
                    let generation = match state {
                        BlockState::Absent => Generation::ZERO,
                        BlockState::Trimmed | BlockState::Written(_) => generation,
                    };
                    BlockVersion { generation, state }
                })
                .collect();
            Reply::Fetched(VersionedBlocks {
                range,
                versions,
                data: kept.freeze(),
            })
        }),
        Just(Reply::Written),
        Just(Reply::Trimmed),
        Just(Reply::FenceSet),
        (proptest::collection::vec(tract(), 0..5), any::<bool>())
            .prop_map(|(tracts, more)| Reply::List { tracts, more }),
    ]
}

fn through_bytes(frame: &Frame) -> Frame {
    let mut bytes = BytesMut::from(&frame.to_bytes()[..]);
    let read = Frame::from_bytes(&mut bytes)
        .unwrap()
        .expect("the frame is whole");
    assert!(bytes.is_empty(), "nothing is left over");
    read
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_request_is_read_as_it_was_written(version in PREVIOUS_VERSION..=PROTOCOL_VERSION, number: u64, request in request()) {
        let frame = through_bytes(&encode_request(version, number, &request));
        prop_assert_eq!(frame.header.request, number);
        prop_assert_eq!(decode_request(&frame), Ok(request));
    }

    #[test]
    fn every_reply_is_read_as_it_was_written(version in PREVIOUS_VERSION..=PROTOCOL_VERSION, number: u64, reply in reply()) {
        let frame = through_bytes(&encode_reply(version, number, &reply));
        prop_assert_eq!(decode_reply(&frame), Ok(Ok(reply)));
    }

    #[test]
    fn every_refusal_is_read_as_it_was_written(number: u64, refusal in refusal()) {
        let frame = through_bytes(&encode_refusal(PROTOCOL_VERSION, number, 4, &refusal));
        prop_assert_eq!(decode_reply(&frame), Ok(Err(refusal)));
    }

    #[test]
    fn a_frame_cut_anywhere_is_waited_for(request in request(), cut: prop::sample::Index) {
        let whole = encode_request(PROTOCOL_VERSION, 1, &request).to_bytes();
        let mut part = BytesMut::from(&whole[..cut.index(whole.len())]);
        prop_assert_eq!(Frame::from_bytes(&mut part), Ok(None));
    }

    #[test]
    fn a_flipped_bit_in_header_or_body_never_passes(request in request(), at: prop::sample::Index, bit in 0..8_u8) {
        let frame = encode_request(PROTOCOL_VERSION, 1, &request);
        let mut bytes = BytesMut::from(&frame.to_bytes()[..]);
        let at = at.index(limits::HEADER_BYTES + frame.body.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(!matches!(Frame::from_bytes(&mut bytes), Ok(Some(_))));
    }

    #[test]
    fn bodies_of_any_bytes_are_refused_or_understood(
        version in 0..4_u8,
        operation: u8,
        status: u8,
        body in proptest::collection::vec(any::<u8>(), 0..600),
        blocks in 0..3_usize,
    ) {
        for kind in [FrameKind::Request, FrameKind::Reply] {
            let header = FrameHeader { version, kind, operation, status, request: 1 };
            let data = Bytes::from(vec![7; blocks * BLOCK_BYTES]);
            let frame = through_bytes(&Frame { header, body: body.clone().into(), data });
            let _ = decode_request(&frame);
            let _ = decode_reply(&frame);
        }
    }

    #[test]
    fn streams_of_any_bytes_are_no_frames(bytes in proptest::collection::vec(any::<u8>(), 0..200), keep_magic: bool) {
        let mut stream = BytesMut::new();
        if keep_magic {
            stream.extend_from_slice(b"FBD1");
        }
        stream.extend_from_slice(&bytes);
        prop_assert!(!matches!(Frame::from_bytes(&mut stream), Ok(Some(_))));
    }
}

#[test]
fn lengths_beyond_the_bounds_are_refused_before_anything_is_waited_for() {
    let header = FrameHeader {
        version: PROTOCOL_VERSION,
        kind: FrameKind::Request,
        operation: Operation::Write as u8,
        status: 0,
        request: 1,
    };
    let too_long = [
        (vec![0; limits::MAX_BODY_BYTES + 1], vec![]),
        (vec![], vec![0; limits::MAX_DATA_BYTES + BLOCK_BYTES]),
        (vec![], vec![0; 100]),
    ];
    for (body, data) in too_long {
        let frame = Frame {
            header,
            body: body.into(),
            data: data.into(),
        };
        let mut head = BytesMut::from(&frame.to_bytes()[..limits::HEADER_BYTES]);
        assert!(matches!(
            Frame::from_bytes(&mut head),
            Err(DecodeError::Invalid { .. })
        ));
    }
}

#[test]
fn damaged_blocks_are_found_wherever_they_lie() {
    let tract = TractId {
        disk: DiskId([1; 16]),
        index: 9,
    };
    let range = BlockRange::new(4, 3).unwrap();
    let good = WriteBlocks::new(tract, range, data(range, 5)).unwrap();
    assert_eq!(good.first_damaged(tract, range), None);
    let mut damaged = BytesMut::from(&good.data[..]);
    damaged[BLOCK_BYTES + 17] ^= 4;
    let damaged = WriteBlocks {
        data: damaged.freeze(),
        ..good.clone()
    };
    assert_eq!(damaged.first_damaged(tract, range), Some(5));
    // The same bytes in another place are damaged too.
    let elsewhere = TractId { index: 10, ..tract };
    assert_eq!(good.first_damaged(elsewhere, range), Some(4));
}

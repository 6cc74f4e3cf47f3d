//! XDR: what is encoded decodes to the same, and no input does harm.

use bytes::Bytes;
use firn_nfs::{
    WireHandle, fuzz_rpc_message,
    rpc::{Assembler, AuthSys, CallHeader, Credential, Step},
    v3::types::*,
    xdr::{Array, Decode, Decoder, Encode, Encoder, Opaque},
};
use proptest::{collection::vec, option, prelude::*};

fn encoded(value: &impl Encode) -> Bytes {
    let mut out = Encoder::new();
    value.encode(&mut out);
    let length = out.len();
    let bytes = out.into_bytes();
    assert_eq!(bytes.len(), length);
    assert_eq!(bytes.len() % 4, 0);
    bytes
}

/// Decodes to itself, and every shorter input is an error.
#[track_caller]
fn round_trips<T: Encode + Decode + PartialEq + std::fmt::Debug>(value: &T) {
    let bytes = encoded(value);
    let mut input = Decoder::new(bytes.clone());
    assert_eq!(T::decode(&mut input).as_ref(), Ok(value));
    assert_eq!(input.remaining(), 0);
    for length in 0..bytes.len() {
        assert!(
            T::decode(&mut Decoder::new(bytes.slice(..length))).is_err(),
            "{length} of {} bytes",
            bytes.len()
        );
    }
}

fn opaque<const MAX: usize>(limit: usize) -> impl Strategy<Value = Opaque<MAX>> {
    vec(any::<u8>(), 0..=limit).prop_map(|bytes| Opaque(bytes.into()))
}

fn handle() -> impl Strategy<Value = WireHandle> {
    opaque(64)
}

fn time() -> impl Strategy<Value = Time> {
    any::<(u32, u32)>().prop_map(|(seconds, nanoseconds)| Time { seconds, nanoseconds })
}

fn new_time() -> impl Strategy<Value = NewTime> {
    prop_oneof![
        Just(NewTime::Keep),
        Just(NewTime::ServerTime),
        time().prop_map(NewTime::ClientTime)
    ]
}

fn new_attributes() -> impl Strategy<Value = NewAttributes> {
    let numbers = any::<(Option<u32>, Option<u32>, Option<u32>, Option<u64>)>();
    (numbers, new_time(), new_time()).prop_map(|((mode, uid, gid, size_bytes), accessed, modified)| {
        NewAttributes {
            mode,
            uid,
            gid,
            size_bytes,
            accessed,
            modified,
        }
    })
}

fn file_type() -> impl Strategy<Value = FileType> {
    prop::sample::select(vec![
        FileType::Regular,
        FileType::Directory,
        FileType::BlockDevice,
        FileType::CharacterDevice,
        FileType::Symlink,
        FileType::Socket,
        FileType::Fifo,
    ])
}

prop_compose! {
    fn attributes()(
        kind in file_type(),
        small in any::<[u32; 6]>(),
        large in any::<[u64; 4]>(),
        times in (time(), time(), time()),
    ) -> FileAttributes {
        let [mode, links, uid, gid, major, minor] = small;
        let [size_bytes, used_bytes, file_system, inode] = large;
        FileAttributes {
            kind, mode, links, uid, gid, size_bytes, used_bytes,
            device: Device { major, minor },
            file_system, inode,
            accessed: times.0, modified: times.1, changed: times.2,
        }
    }
}

fn wcc() -> impl Strategy<Value = WccData> {
    let before = (any::<u64>(), time(), time()).prop_map(|(size_bytes, modified, changed)| WccAttributes {
        size_bytes,
        modified,
        changed,
    });
    (option::of(before), option::of(attributes())).prop_map(|(before, after)| WccData { before, after })
}

fn at() -> impl Strategy<Value = Entry> {
    (handle(), opaque(300)).prop_map(|(directory, name)| Entry { directory, name })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn calls_decode_to_what_was_encoded(
        (file, at) in (handle(), at()),
        new in new_attributes(),
        guard in option::of(time()),
        (offset, count, bytes) in any::<(u64, u32, [u8; 8])>(),
        data in vec(any::<u8>(), 0..200),
    ) {
        round_trips(&SetAttributesCall { file: file.clone(), attributes: new.clone(), guard });
        round_trips(&ReadCall { file: file.clone(), offset, count });
        let data = Payload::from(Bytes::from(data));
        round_trips(&WriteCall { file: file.clone(), offset, count, stable: StableHow::DataSync, data });
        for how in [CreateHow::Unchecked(new.clone()), CreateHow::Guarded(new.clone()), CreateHow::Exclusive(bytes)] {
            round_trips(&CreateCall { at: at.clone(), how });
        }
        let device = Device { major: count, minor: 1 };
        for node in [
            NewNode::CharacterDevice(new.clone(), device),
            NewNode::BlockDevice(new.clone(), device),
            NewNode::Socket(new.clone()),
            NewNode::Fifo(new),
            NewNode::Other(FileType::Symlink),
        ] {
            round_trips(&MakeNodeCall { at: at.clone(), node });
        }
        round_trips(&RenameCall { from: at.clone(), to: at.clone() });
        round_trips(&LinkCall { file: file.clone(), at });
        round_trips(&ReadDirectoryPlusCall {
            directory: file, cookie: offset, verifier: bytes, directory_count: count, maximum_count: count,
        });
    }

    #[test]
    fn results_decode_to_what_was_encoded(
        attributes in option::of(attributes()),
        wcc in wcc(),
        handles in vec((any::<(u64, u64)>(), opaque(255), option::of(handle())), 0..5),
        end in any::<bool>(),
    ) {
        let entry = |((inode, cookie), name, handle)| DirectoryEntryPlus {
            inode, name, cookie, attributes: attributes.clone(), handle,
        };
        let entries = handles.into_iter().map(entry).collect();
        let list = DirectoryListPlus { attributes: attributes.clone(), verifier: [3; 8], entries, end };
        round_trips::<Result<_, Failed<Option<FileAttributes>>>>(&Ok(list));
        round_trips::<Result<WccData, _>>(&Err(Failed { status: firn_nfs::v3::Status::Io, body: wcc.clone() }));
        round_trips(&RenameDirectories { from: wcc.clone(), to: wcc.clone() });
        round_trips(&Made { file: None, attributes, directory: wcc });
    }

    #[test]
    fn call_headers_decode_to_what_was_encoded(
        (transaction, program, version, procedure, uid, gid) in any::<(u32, u32, u32, u32, u32, u32)>(),
        machine in opaque(255),
        groups in vec(any::<u32>(), 0..=16),
        anonymous in any::<bool>(),
    ) {
        let sys = AuthSys { stamp: 1, machine, uid, gid, groups: Array(groups) };
        let credential = if anonymous { Credential::None } else { Credential::Sys(sys) };
        let header = CallHeader { transaction, program, version, procedure, credential };
        let bytes = encoded(&header);
        let mut input = Decoder::new(bytes.clone());
        prop_assert_eq!(CallHeader::decode(&mut input), Ok(header));
        prop_assert_eq!(input.remaining(), 0);
        for length in 0..bytes.len() {
            prop_assert!(CallHeader::decode(&mut Decoder::new(bytes.slice(..length))).is_err());
        }
    }

    #[test]
    fn parts_and_copies_encode_alike(parts in vec(vec(any::<u8>(), 0..5000), 0..6)) {
        let whole = parts.concat();
        let parts: Vec<Bytes> = parts.into_iter().map(Bytes::from).collect();
        let mut shared = Encoder::new();
        shared.u32(7);
        shared.shared(&parts);
        shared.u32(8);
        let mut copied = Encoder::new();
        copied.u32(7);
        copied.opaque(&whole);
        copied.u32(8);
        prop_assert_eq!(shared.len(), copied.len());
        prop_assert_eq!(shared.into_segments().concat(), copied.into_bytes());
    }

    #[test]
    fn records_survive_any_cutting(
        messages in vec(vec(any::<u8>(), 0..300), 1..6),
        cuts in vec(1usize..80, 1..30),
        fragment in 1usize..200,
    ) {
        let mut stream = Vec::new();
        for message in &messages {
            let mut chunks: Vec<&[u8]> = message.chunks(fragment).collect();
            if chunks.is_empty() {
                chunks.push(&[]);
            }
            let last = chunks.len() - 1;
            for (number, chunk) in chunks.into_iter().enumerate() {
                let word = chunk.len() as u32 | if number == last { 1 << 31 } else { 0 };
                stream.extend_from_slice(&word.to_be_bytes());
                stream.extend_from_slice(chunk);
            }
        }
        let mut assembler = Assembler::new(300);
        let (mut got, mut rest) = (Vec::new(), &stream[..]);
        for cut in cuts.into_iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (mut head, tail) = rest.split_at(cut.min(rest.len()));
            rest = tail;
            loop {
                match assembler.step(&mut head).unwrap() {
                    Step::NeedInput => break,
                    Step::Full { .. } => prop_assert!(false, "so small a record needs no grant"),
                    Step::Record(record) => got.push(record.to_vec()),
                }
            }
        }
        // An empty last fragment is complete with its marker; the event comes with the next step.
        let mut nothing: &[u8] = &[];
        if let Step::Record(record) = assembler.step(&mut nothing).unwrap() {
            got.push(record.to_vec());
        }
        prop_assert_eq!(got, messages);
    }

    #[test]
    fn arbitrary_messages_do_no_harm(bytes in vec(any::<u8>(), 0..600)) {
        fuzz_rpc_message(&bytes);
    }
}

#[test]
fn a_count_that_promises_more_than_there_is_allocates_nothing() {
    let huge = Bytes::from_static(&[0xff; 8]);
    assert!(Opaque::<{ usize::MAX }>::decode(&mut Decoder::new(huge.clone())).is_err());
    assert!(Array::<u64, { usize::MAX }>::decode(&mut Decoder::new(huge)).is_err());
}

#[test]
fn write_data_is_a_slice_of_the_message_and_not_a_copy() {
    let call = WriteCall {
        file: WireHandle::default(),
        offset: 0,
        count: 10_000,
        stable: StableHow::Unstable,
        data: Bytes::from(vec![1; 10_000]).into(),
    };
    let message = encoded(&call);
    let decoded = WriteCall::decode(&mut Decoder::new(message.clone())).unwrap();
    let (message, data) = (message.as_ptr_range(), decoded.data.0[0].as_ptr_range());
    assert!(message.start <= data.start && data.end <= message.end);
}

#[test]
fn read_data_is_passed_on_and_not_copied() {
    let cached = Bytes::from(vec![1; 10_000]);
    let mut out = Encoder::new();
    Payload::from(cached.clone()).encode(&mut out);
    assert!(
        out.into_segments()
            .iter()
            .any(|segment| segment.as_ptr() == cached.as_ptr())
    );
}

/// Opaque values of known bytes: RFC 4506 §4.10 and RFC 5531 appendix A.
#[test]
fn known_values_have_the_bytes_of_the_standard() {
    assert_eq!(
        &encoded(&Opaque::<9>::from("sillyprog"))[..],
        b"\0\0\0\x09sillyprog\0\0\0"
    );
    assert_eq!(&encoded(&Some(5u32))[..], [0, 0, 0, 1, 0, 0, 0, 5]);
    assert_eq!(&encoded(&None::<u32>)[..], [0, 0, 0, 0]);
    assert_eq!(
        &encoded(&vec![1u32, 2])[..],
        [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0]
    );
    assert_eq!(&encoded(&-2i32)[..], [0xff, 0xff, 0xff, 0xfe]);
}

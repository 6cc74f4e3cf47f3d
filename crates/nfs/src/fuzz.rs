//! Fuzz entry point: every decoder that sees bytes of a client.

use crate::{
    handle::WireHandle,
    mount,
    rpc::{Assembler, CallHeader, Step},
    v3::{Procedure, types},
    xdr::{Decode, Decoder, Encode, Encoder, Opaque},
};
use bytes::Bytes;

/// The largest record the fuzzed assembler takes: small, so that its limit is met.
const RECORD_BYTES: usize = 4096;

/// Takes `data` as a stream of records and as one RPC message, decodes it as calls and results of every procedure, and
/// checks that whatever decodes, encodes and decodes again to the same.
///
/// # Panics
/// If that does not hold.
pub fn fuzz_rpc_message(data: &[u8]) {
    let mut assembler = Assembler::new(RECORD_BYTES);
    let mut input = data;
    let mut taken = 0;
    loop {
        match assembler.step(&mut input) {
            Ok(Step::Record(record)) => {
                taken += record.len();
                assert!(taken <= data.len(), "records hold no more than was received");
            }
            Ok(Step::Full { wanted_bytes }) => {
                assert!(wanted_bytes <= RECORD_BYTES);
                assembler.grant(wanted_bytes);
            }
            Ok(Step::NeedInput) | Err(_) => break,
        }
    }
    let message = Bytes::copy_from_slice(data);
    let mut input = Decoder::new(message.clone());
    if let Ok(header) = CallHeader::decode(&mut input) {
        let again = CallHeader::decode(&mut Decoder::new(encode(&header)));
        assert_eq!(again.as_ref(), Ok(&header));
        if let Some(procedure) = Procedure::from_number(header.procedure) {
            call(procedure, input.rest());
        }
    }
    // Also without a header, so that a fuzzer need not find one first.
    for procedure in Procedure::ALL {
        call(procedure, message.clone());
    }
    check::<types::GetAclCall>(&message);
    check::<types::SetAclCall>(&message);
    results(&message);
}

fn encode(value: &impl Encode) -> Bytes {
    let mut out = Encoder::new();
    value.encode(&mut out);
    out.into_bytes()
}

fn check<T: Decode + Encode + PartialEq + std::fmt::Debug>(bytes: &Bytes) {
    if let Ok(value) = T::decode(&mut Decoder::new(bytes.clone())) {
        let encoded = encode(&value);
        assert!(encoded.len() <= bytes.len(), "nothing grows out of its input");
        assert_eq!(T::decode(&mut Decoder::new(encoded)).as_ref(), Ok(&value));
    }
}

fn call(procedure: Procedure, arguments: Bytes) {
    let bytes = &arguments;
    match procedure {
        Procedure::Null => {}
        Procedure::GetAttributes
        | Procedure::ReadLink
        | Procedure::FileSystemStatus
        | Procedure::FileSystemInformation
        | Procedure::PathConfiguration => check::<WireHandle>(bytes),
        Procedure::SetAttributes => check::<types::SetAttributesCall>(bytes),
        Procedure::Lookup | Procedure::Remove | Procedure::RemoveDirectory => check::<types::Entry>(bytes),
        Procedure::Access => check::<types::AccessCall>(bytes),
        Procedure::Read => check::<types::ReadCall>(bytes),
        Procedure::Write => check::<types::WriteCall>(bytes),
        Procedure::Create => check::<types::CreateCall>(bytes),
        Procedure::MakeDirectory => check::<types::MakeDirectoryCall>(bytes),
        Procedure::MakeSymlink => check::<types::SymlinkCall>(bytes),
        Procedure::MakeNode => check::<types::MakeNodeCall>(bytes),
        Procedure::Rename => check::<types::RenameCall>(bytes),
        Procedure::Link => check::<types::LinkCall>(bytes),
        Procedure::ReadDirectory => check::<types::ReadDirectoryCall>(bytes),
        Procedure::ReadDirectoryPlus => check::<types::ReadDirectoryPlusCall>(bytes),
        Procedure::Commit => check::<types::CommitCall>(bytes),
    }
}

fn results(bytes: &Bytes) {
    type OrAttributes<S> = Result<S, types::Failed<Option<types::FileAttributes>>>;
    check::<OrAttributes<types::Found>>(bytes);
    check::<OrAttributes<types::ReadData>>(bytes);
    check::<OrAttributes<types::DirectoryList>>(bytes);
    check::<OrAttributes<types::DirectoryListPlus>>(bytes);
    check::<OrAttributes<types::FileSystemInformation>>(bytes);
    check::<OrAttributes<types::AclResult>>(bytes);
    check::<Result<types::Made, types::Failed<types::WccData>>>(bytes);
    check::<Vec<mount::ExportEntry>>(bytes);
    check::<Vec<mount::MountEntry>>(bytes);
    check::<Opaque<{ crate::PATH_MAX_BYTES }>>(bytes);
}

//! Any bytes are records, calls and results of NFS, or none; what decodes, encodes and decodes again to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| firn_nfs::fuzz_rpc_message(data));

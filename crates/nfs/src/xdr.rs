//! XDR (RFC 4506): the byte layout of every ONC RPC message.
//!
//! Everything is a multiple of four bytes, big endian. Decoding takes a shared [`Bytes`](bytes::Bytes) and hands out slices
//! of it, so the data of a WRITE is never copied after it was received; encoding collects small fields in one buffer and
//! takes large data by reference, so the data of a READ goes from the cache to the socket uncopied.
//!
//! Decoding is total: any input gives a value or an [`XdrError`]. No length in the input is trusted: nothing is allocated
//! for a count before the bytes it promises have been seen to be there.

mod decode;
mod encode;
mod values;

pub use decode::{Decoder, XdrError};
pub use encode::Encoder;
pub use values::{Array, Decode, Encode, Opaque};
pub(crate) use values::{xdr_enum, xdr_struct};

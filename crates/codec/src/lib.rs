//! A bounded cursor over bytes: reads and writes the fields of stored and sent records.
//!
//! Integers have the [byte order](ByteOrder) of their format, little-endian unless it says otherwise; LEB128 numbers and texts are
//! taken in their shortest form only, so that equal records have equal bytes. Input is believed in nothing: a reader neither panics
//! nor allocates by a length that it has not checked. It reads borrowed bytes, or shared ones without copying what it takes
//! ([`Input`]). What an error says is the format's own matter, by [`Codec`] and [`VariableCodec`].

mod byte_order;
mod input;
mod reader;
mod writer;

pub use byte_order::ByteOrder;
pub use input::Input;
pub use reader::{Codec, Reader, VariableCodec};
pub use writer::Writer;

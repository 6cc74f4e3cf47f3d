//! A bounded cursor over bytes: reads and writes the fields of stored and sent records.
//!
//! Integers are little-endian; LEB128 numbers and texts are taken in their shortest form only, so that equal records have equal
//! bytes. Input is believed in nothing: a reader neither panics nor allocates by a length that it has not checked. What an
//! error says is the format's own matter, by [`Codec`] and
//! [`VariableCodec`].

mod reader;
mod writer;

pub use reader::{Codec, Reader, VariableCodec};
pub use writer::Writer;

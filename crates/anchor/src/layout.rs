//! Reading and writing the bytes of tuples, each of which begins with its layout's number and its kind.

use crate::TupleError;
use firn_codec::{Codec, VariableCodec};

pub(crate) use firn_codec::Writer;

/// The format of all tuples.
pub(crate) struct Tuple;

/// Reads a tuple.
pub(crate) type Reader<'a> = firn_codec::Reader<'a, Tuple>;

impl Codec for Tuple {
    type Error = TupleError;

    fn truncated(&self, offset: usize, _needed: usize, found: usize) -> TupleError {
        TupleError::Truncated {
            offset: offset + found,
        }
    }
}

impl VariableCodec for Tuple {
    fn malformed(&self, what: &'static str, offset: usize) -> TupleError {
        TupleError::Malformed { what, offset }
    }
}

/// Starts behind the two bytes with which every tuple begins.
pub(crate) fn open(bytes: &[u8], layout: u8, kind: u8) -> Result<Reader<'_>, TupleError> {
    open_versions(bytes, layout, layout, kind).map(|(reader, _)| reader)
}

/// The same of a tuple of which several layouts are read; tells which one it is.
pub(crate) fn open_versions(
    bytes: &[u8],
    oldest: u8,
    newest: u8,
    kind: u8,
) -> Result<(Reader<'_>, u8), TupleError> {
    let mut reader = Reader::new(Tuple, bytes);
    let layout = reader.u8()?;
    if layout < oldest || layout > newest {
        return Err(TupleError::UnknownVersion { found: layout });
    }
    if reader.u8()? != kind {
        return Err(reader.malformed("the kind of another tuple"));
    }
    Ok((reader, layout))
}

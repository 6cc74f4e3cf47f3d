//! Reading and writing the bytes of tuples, each of which begins with its layout's number and its kind.

use crate::TupleError;
use firn_codec::{Codec, VariableCodec};
use firn_format::{Location, SegmentId, WriterId};

pub(crate) use firn_codec::Writer;

/// The format of all tuples.
pub(crate) struct Tuple;

/// Reads a tuple.
pub(crate) type Reader<'a> = firn_codec::Reader<&'a [u8], Tuple>;

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

pub(crate) fn write_segment(writer: &mut Writer, segment: SegmentId) {
    writer.u64(segment.writer.0);
    writer.u64(segment.sequence);
}

pub(crate) fn read_segment(reader: &mut Reader<'_>) -> Result<SegmentId, TupleError> {
    Ok(SegmentId {
        writer: WriterId(reader.u64()?),
        sequence: reader.u64()?,
    })
}

pub(crate) fn write_location(writer: &mut Writer, location: &Location) {
    write_segment(writer, location.segment);
    writer.u32(location.offset);
    writer.u32(location.length);
}

pub(crate) fn read_location(reader: &mut Reader<'_>) -> Result<Location, TupleError> {
    Ok(Location {
        segment: read_segment(reader)?,
        offset: reader.u32()?,
        length: reader.u32()?,
    })
}

//! Fields are read as they were written, whatever else the bytes may be, and in one form only.

use bytes::Bytes;
use firn_codec::{ByteOrder, Codec, Reader, VariableCodec, Writer};
use proptest::prelude::*;

/// A format whose errors are texts with their offset.
struct Plain;

impl Codec for Plain {
    type Error = (&'static str, usize);

    fn truncated(&self, offset: usize, needed: usize, found: usize) -> Self::Error {
        assert!(needed > found);
        ("cut short", offset)
    }
}

impl VariableCodec for Plain {
    fn malformed(&self, what: &'static str, offset: usize) -> Self::Error {
        (what, offset)
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Field {
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    I64(i64),
    Number(u64),
    Difference(i64),
    Text(String),
    Array([u8; 5]),
}

impl Field {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::U8(value) => writer.u8(*value),
            Self::U16(value) => writer.u16(*value),
            Self::U32(value) => writer.u32(*value),
            Self::U64(value) => writer.u64(*value),
            Self::I64(value) => writer.i64(*value),
            Self::Number(value) => writer.number(*value),
            Self::Difference(value) => writer.difference(*value),
            Self::Text(value) => writer.text(value),
            Self::Array(value) => writer.raw(value),
        }
    }

    /// Reads a field of this kind.
    fn read(&self, reader: &mut Reader<&[u8], Plain>) -> Result<Self, (&'static str, usize)> {
        Ok(match self {
            Self::U8(_) => Self::U8(reader.u8()?),
            Self::U16(_) => Self::U16(reader.u16()?),
            Self::U32(_) => Self::U32(reader.u32()?),
            Self::U64(_) => Self::U64(reader.u64()?),
            Self::I64(_) => Self::I64(reader.i64()?),
            Self::Number(_) => Self::Number(reader.number()?),
            Self::Difference(_) => Self::Difference(reader.difference()?),
            Self::Text(_) => Self::Text(reader.text()?.to_owned()),
            Self::Array(_) => Self::Array(reader.array()?),
        })
    }
}

fn field() -> impl Strategy<Value = Field> {
    prop_oneof![
        any::<u8>().prop_map(Field::U8),
        any::<u16>().prop_map(Field::U16),
        any::<u32>().prop_map(Field::U32),
        any::<u64>().prop_map(Field::U64),
        any::<i64>().prop_map(Field::I64),
        (any::<u64>(), 0..64_u32).prop_map(|(value, shift)| Field::Number(value >> shift)),
        (any::<i64>(), 0..64_u32).prop_map(|(value, shift)| Field::Difference(value >> shift)),
        "\\PC{0,60}".prop_map(Field::Text),
        any::<[u8; 5]>().prop_map(Field::Array),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back_and_any_cut_of_it_is_told(fields in prop::collection::vec(field(), 0..20), cut in any::<prop::sample::Index>()) {
        let mut writer = Writer::default();
        fields.iter().for_each(|field| field.write(&mut writer));
        let bytes = writer.finish();
        let mut reader = Reader::new(Plain, &bytes[..]);
        for field in &fields {
            let read = field.read(&mut reader);
            prop_assert_eq!(read.as_ref(), Ok(field));
        }
        prop_assert_eq!(reader.finish(), Ok(()));
        if !bytes.is_empty() {
            let bytes = &bytes[..cut.index(bytes.len())];
            let mut reader = Reader::new(Plain, bytes);
            let failed = fields.iter().find_map(|field| field.read(&mut reader).err());
            prop_assert!(failed.is_some_and(|(what, offset)| what == "cut short" && offset <= bytes.len()));
        }
    }

    #[test]
    fn no_bytes_panic_a_reader_and_what_it_takes_has_one_form(bytes in prop::collection::vec(any::<u8>(), 0..80), kinds in prop::collection::vec(field(), 0..20)) {
        let mut reader = Reader::new(Plain, &bytes[..]);
        let mut writer = Writer::default();
        for kind in kinds {
            match kind.read(&mut reader) {
                Ok(field) => field.write(&mut writer),
                Err((_, offset)) => {
                    prop_assert!(offset <= bytes.len());
                    break;
                }
            }
        }
        let written = writer.as_slice();
        prop_assert!(bytes.starts_with(written), "{written:?} of {bytes:?}");
    }
}

#[test]
fn numbers_have_one_form_and_64_bits() {
    let read = |bytes: &[u8]| Reader::new(Plain, bytes).number();
    assert_eq!(
        read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        Ok(u64::MAX)
    );
    assert_eq!(read(&[0x80, 0]), Err(("a number longer than it need be", 2)));
    assert_eq!(
        read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]),
        Err(("a number beyond 64 bits", 10))
    );
    assert_eq!(read(&[0x80; 11]), Err(("a number beyond 64 bits", 10)));
    assert_eq!(
        Reader::new(Plain, &[1, 0xff]).text(),
        Err(("a name that is not UTF-8", 2))
    );
    assert_eq!(Reader::new(Plain, &[0]).finish(), Err(("bytes after the end", 0)));
    assert!(Reader::new(Plain, &[0]).take(usize::MAX).is_err());
}

/// A format of the network's byte order.
#[derive(Clone)]
struct Network;

impl Codec for Network {
    type Error = (usize, usize, usize);
    const BYTE_ORDER: ByteOrder = ByteOrder::Big;

    fn truncated(&self, offset: usize, needed: usize, found: usize) -> Self::Error {
        (offset, needed, found)
    }
}

#[test]
fn integers_have_the_byte_order_of_their_format() {
    let mut writer = Writer::big_endian(0);
    writer.u16(0x0102);
    writer.u32(0x0304_0506);
    writer.u64(0x0708_090a_0b0c_0d0e);
    writer.i64(-2);
    let bytes = writer.finish();
    let counted = (1..=14).chain([0xff; 7]).chain([0xfe]);
    assert_eq!(bytes, counted.collect::<Vec<u8>>());
    let mut reader = Reader::new(Network, &bytes);
    assert_eq!(reader.u16(), Ok(0x0102));
    assert_eq!(reader.u32(), Ok(0x0304_0506));
    assert_eq!(reader.u64(), Ok(0x0708_090a_0b0c_0d0e));
    assert_eq!(reader.i64(), Ok(-2));
    assert_eq!(reader.u16(), Err((22, 2, 0)));
    let mut reader = Reader::new(Plain, &bytes);
    assert_eq!(reader.u16(), Ok(0x0201));
}

#[test]
fn parts_of_shared_bytes_are_slices_of_them() {
    let bytes = Bytes::from((0..100).collect::<Vec<u8>>());
    let mut reader = Reader::new(Network, bytes.clone());
    reader.skip(10).unwrap();
    let part = reader.take(20).unwrap();
    assert_eq!(part, bytes[10..30]);
    assert!(bytes.as_ptr_range().contains(&part.as_ptr()));
    let rest = reader.rest();
    assert_eq!((rest.len(), rest.as_ptr()), (70, bytes[30..].as_ptr()));
    assert_eq!(reader.clone().offset(), 30);
}

#[test]
fn padding_is_passed_over_and_must_be_there() {
    let bytes = [1, 2, 3, 0xee, 5, 6, 7];
    let mut reader = Reader::new(Network, &bytes);
    assert_eq!(reader.take_padded(3, 4), Ok(&[1, 2, 3][..]));
    assert_eq!(reader.offset(), 4);
    assert_eq!(reader.take_padded(3, 4), Err((4, 4, 3)));
    assert_eq!(reader.take_padded(usize::MAX, 4), Err((4, usize::MAX, 3)));
    assert_eq!(reader.skip(4), Err((4, 4, 3)));
    assert_eq!(reader.take_padded(0, 4), Ok(&[][..]));
    assert_eq!(reader.take(3), Ok(&[5, 6, 7][..]));
}

#[test]
fn zeros_fill_up_and_take_nothing_away() {
    let mut writer = Writer::default();
    writer.u8(7);
    writer.zeros_to(4);
    writer.zeros_to(2);
    assert_eq!((writer.len(), writer.is_empty()), (4, false));
    assert_eq!(writer.finish(), [7, 0, 0, 0]);
}

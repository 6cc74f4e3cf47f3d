//! Fields are read as they were written, whatever else the bytes may be, and in one form only.

use firn_codec::{Codec, Reader, VariableCodec, Writer};
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
    fn read(&self, reader: &mut Reader<'_, Plain>) -> Result<Self, (&'static str, usize)> {
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
        let mut reader = Reader::new(Plain, &bytes);
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
        let mut reader = Reader::new(Plain, &bytes);
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

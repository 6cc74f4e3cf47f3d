//! Text encoding of ids, numbers and layouts in the JSON of calls: one spelling each, and nothing else is read.
//!
//! ```text
//! volume     a volume                   vol_ and lower-case hexadecimal digits
//! hex        owners and random marks    lower-case hexadecimal digits
//! number     numbers of 64 bits         decimal digits in a text: many readers of JSON round such numbers
//! segment    a segment's name           <writer>/<sequence>, 16 hexadecimal digits each, as in its key in the log
//! locks      those of a member          base64 without padding of one after the other, as they are stored
//! layout     roots, proposals, …        base64 without padding of the bytes in which they are stored
//! ```

use crate::{
    OwnerId, Proposal, RecordedLock, RetiredSegment, RetirementRound, Root, TupleError, TupleVersion,
    handover::locks::LOCK_BYTES,
    layout::{Reader, Tuple, Writer},
};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use bytes::Bytes;
use data_encoding::HEXLOWER;
use firn_format::{OwnershipEpoch, SegmentId, Version, VolumeId, WriterId};

/// Something with exactly one text.
pub(crate) trait Spelt: Sized {
    fn spell(&self) -> String;
    fn read(text: &str) -> Result<Self, String>;
}

macro_rules! hex {
    ($($name:ty: $wrap:expr, $bytes:expr;)*) => {$(
        impl Spelt for $name {
            fn spell(&self) -> String {
                HEXLOWER.encode(&$bytes(self))
            }

            fn read(text: &str) -> Result<Self, String> {
                let bytes = HEXLOWER.decode(text.as_bytes()).ok();
                let bytes = bytes.and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
                bytes.map($wrap).ok_or_else(|| "not 32 hexadecimal digits in lower case".to_owned())
            }
        }
    )*};
}

hex! {
    OwnerId: OwnerId, |id: &OwnerId| id.0;
    [u8; 16]: |bytes| bytes, |bytes: &[u8; 16]| *bytes;
}

macro_rules! number {
    ($($name:ty: $wrap:expr, $number:expr;)*) => {$(
        impl Spelt for $name {
            fn spell(&self) -> String {
                $number(self).to_string()
            }

            fn read(text: &str) -> Result<Self, String> {
                // `parse` would also take a sign, and zeros before the number.
                let number = text.parse::<u64>().ok().filter(|number| number.to_string() == text);
                number.map($wrap).ok_or_else(|| "not a number of 64 bits in decimal digits".to_owned())
            }
        }
    )*};
}

number! {
    u64: |number| number, |number: &u64| *number;
    TupleVersion: firn_table::ItemVersion, |version: &TupleVersion| version.0;
    WriterId: WriterId, |writer: &WriterId| writer.0;
    Version: Version, |version: &Version| version.0;
    OwnershipEpoch: OwnershipEpoch, |epoch: &OwnershipEpoch| epoch.0;
}

impl Spelt for VolumeId {
    fn spell(&self) -> String {
        self.to_string()
    }

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error| format!("{error}"))
    }
}

impl Spelt for SegmentId {
    fn spell(&self) -> String {
        format!("{:016x}/{:016x}", self.writer.0, self.sequence)
    }

    fn read(text: &str) -> Result<Self, String> {
        // The spelling is that of a segment's key, which knows how to read itself.
        let key = format!("{}/log/{text}", "0".repeat(32));
        match SegmentId::parse_key(&key) {
            Some((_, segment)) => Ok(segment),
            None => Err("no segment's name: 16 hexadecimal digits, '/', 16 more".to_owned()),
        }
    }
}

macro_rules! layout {
    ($($name:ty),*) => {$(
        impl Spelt for $name {
            fn spell(&self) -> String {
                STANDARD_NO_PAD.encode(self.to_bytes())
            }

            fn read(text: &str) -> Result<Self, String> {
                let bytes = STANDARD_NO_PAD.decode(text).map_err(|_| "not base64 without padding".to_owned())?;
                Self::from_bytes(&bytes).map_err(|error: TupleError| error.to_string())
            }
        }
    )*};
}

layout!(Root, Proposal, RetiredSegment, RetirementRound);

impl Spelt for Bytes {
    fn spell(&self) -> String {
        STANDARD_NO_PAD.encode(self)
    }

    fn read(text: &str) -> Result<Self, String> {
        let bytes = STANDARD_NO_PAD.decode(text);
        bytes
            .map(Bytes::from)
            .map_err(|_| "not base64 without padding".to_owned())
    }
}

impl Spelt for Vec<RecordedLock> {
    fn spell(&self) -> String {
        let mut writer = Writer::default();
        self.iter().for_each(|lock| lock.write(&mut writer));
        STANDARD_NO_PAD.encode(writer.finish())
    }

    fn read(text: &str) -> Result<Self, String> {
        let bytes = Bytes::read(text)?;
        let chunks = bytes.chunks_exact(LOCK_BYTES);
        if !chunks.remainder().is_empty() {
            return Err("not whole locks".to_owned());
        }
        let read =
            |chunk| RecordedLock::read(&mut Reader::new(Tuple, chunk)).map_err(|error| error.to_string());
        chunks.map(read).collect()
    }
}

pub(crate) fn serialize<T: Spelt, S: serde::Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.spell())
}

pub(crate) fn deserialize<'de, T: Spelt, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
    T::read(&text).map_err(serde::de::Error::custom)
}

/// The same of what may be absent.
pub(crate) mod option {
    use super::Spelt;

    pub(crate) fn serialize<T: Spelt, S: serde::Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, T: Spelt, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let text = <Option<std::borrow::Cow<'de, str>> as serde::Deserialize>::deserialize(deserializer)?;
        text.map(|text| T::read(&text).map_err(serde::de::Error::custom))
            .transpose()
    }
}

//! Byte strings as lower-case hexadecimal digits, in fields of a report.

use firn_ids::{Hex, parse_hex};
use serde::{Deserialize, Deserializer, Serializer, de::Error};
use std::borrow::Cow;

pub fn serialize<const N: usize, S: Serializer>(bytes: &[u8; N], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Hex(bytes))
}

pub fn deserialize<'de, const N: usize, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; N], D::Error> {
    let text = Cow::<'de, str>::deserialize(deserializer)?;
    parse_hex(&text).ok_or_else(|| D::Error::custom(format!("not {} lower-case hex digits", 2 * N)))
}

/// Digits, or null.
pub mod optional {
    use super::{Cow, Deserialize, Deserializer, Error, Hex, Serializer, parse_hex};

    pub fn serialize<const N: usize, S: Serializer>(
        bytes: &Option<[u8; N]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => serializer.collect_str(&Hex(bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, const N: usize, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<[u8; N]>, D::Error> {
        let Some(text) = Option::<Cow<'de, str>>::deserialize(deserializer)? else {
            return Ok(None);
        };
        let bytes = parse_hex(&text);
        let wrong = || D::Error::custom(format!("not {} lower-case hex digits", 2 * N));
        bytes.map(Some).ok_or_else(wrong)
    }
}

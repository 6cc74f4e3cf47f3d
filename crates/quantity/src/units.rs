//! A whole number with a unit, the form of sizes and spans.

use serde::{
    Deserializer,
    de::{Error, Visitor},
};
use std::fmt;

/// A text that is no quantity of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// No whole number, or no unit after it that is known here.
    #[error("{text:?} has no unit that is known here; write for example \"{example}\"")]
    Form {
        /// Its beginning.
        text: String,
        /// One that is right.
        example: &'static str,
    },
    /// More than 64 bits of the smallest unit.
    #[error("{text:?} is too large")]
    TooLarge {
        /// What was written.
        text: String,
    },
}

/// The units of one kind of quantity.
pub(crate) struct Units {
    /// Each with how many of the smallest it is.
    pub(crate) units: &'static [(&'static str, u64)],
    pub(crate) example: &'static str,
    /// What a configuration key of it wants.
    pub(crate) expected: &'static str,
}

/// Of a text that is wrong this much is repeated.
const REPEATED_CHARACTERS: usize = 40;

impl Units {
    pub(crate) fn parse(&self, text: &str) -> Result<u64, ParseQuantityError> {
        let repeated = || text.chars().take(REPEATED_CHARACTERS).collect();
        let wrong = || ParseQuantityError::Form {
            text: repeated(),
            example: self.example,
        };
        let too_large = || ParseQuantityError::TooLarge { text: repeated() };
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let (_, scale) = self
            .units
            .iter()
            .find(|(name, _)| *name == unit.trim())
            .ok_or_else(wrong)?;
        if number.is_empty() {
            return Err(wrong());
        }
        let number: u64 = number.parse().map_err(|_| too_large())?;
        number.checked_mul(*scale).ok_or_else(too_large)
    }

    /// From a configuration file, where a bare number is answered with how to write it.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        &'static self,
        deserializer: D,
    ) -> Result<u64, D::Error> {
        deserializer.deserialize_any(Text(self))
    }
}

struct Text(&'static Units);

impl Visitor<'_> for Text {
    type Value = u64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        self.0.parse(text).map_err(E::custom)
    }
}

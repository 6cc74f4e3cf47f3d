//! A quantity of units, in JSON a text of digits: sums of byte-hours are beyond what floating point holds.

use serde::{Deserialize, Serialize};
use std::fmt;

/// So many units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Quantity(pub u128);

impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl TryFrom<String> for Quantity {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let units: u128 = text.parse().map_err(|_| format!("{text:?} is no quantity"))?;
        if units.to_string() == text {
            Ok(Self(units))
        } else {
            Err(format!("{text:?} is not the way {units} is written"))
        }
    }
}

impl From<Quantity> for String {
    fn from(quantity: Quantity) -> Self {
        quantity.0.to_string()
    }
}

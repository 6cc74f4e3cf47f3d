//! Value of a sample.

use prometheus_client::encoding::{
    CounterValueEncoder, EncodeCounterValue, EncodeGaugeValue, GaugeValueEncoder,
};
use std::fmt;

/// A sample's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// What was counted; of a state, 1 for yes and 0 for no.
    Count(u64),
    /// What was measured.
    Measure(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Count(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Count(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Count(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Measure(value)
    }
}

impl EncodeGaugeValue for Value {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Count(value) => EncodeGaugeValue::encode(value, encoder),
            Self::Measure(value) => EncodeGaugeValue::encode(value, encoder),
        }
    }
}

impl EncodeCounterValue for Value {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Count(value) => EncodeCounterValue::encode(value, encoder),
            Self::Measure(value) => EncodeCounterValue::encode(value, encoder),
        }
    }
}

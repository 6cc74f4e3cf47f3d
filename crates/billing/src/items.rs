//! Items that are JSON: `{"v":1, …}`.

use crate::BillingError;
use bytes::Bytes;
use firn_table::Item;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// The version written. A later one that means something else gets another number and a way to read this one.
const VERSION: u32 = 1;
/// The version of a forwarding record: builds from before there were any refuse it as a later one.
const FORWARDING: u32 = 2;

#[derive(Serialize)]
struct Versioned<'a, T> {
    v: u32,
    #[serde(flatten)]
    content: &'a T,
}

pub(crate) fn encode<T: Serialize>(content: &T) -> Result<Bytes, BillingError> {
    serde_json::to_vec(&Versioned { v: VERSION, content })
        .map(Bytes::from)
        .map_err(|error| BillingError::Invalid(error.to_string()))
}

/// The record that a head leaves where it was, when it moves to its shard.
pub(crate) fn forwarding() -> Bytes {
    Bytes::from(format!("{{\"v\":{FORWARDING}}}"))
}

pub(crate) fn is_forwarding(item: &Item) -> bool {
    item.value == forwarding()
}

pub(crate) fn decode<T: DeserializeOwned>(item: &Item) -> Result<T, BillingError> {
    let wrong = |what: String| BillingError::Item {
        key: format!("{}/{}", item.key.partition, item.key.sort),
        what,
    };
    let mut value: Value = serde_json::from_slice(&item.value).map_err(|error| wrong(error.to_string()))?;
    // Taken off, so that the content may refuse fields it does not know.
    let version = value.as_object_mut().and_then(|fields| fields.remove("v"));
    if version.as_ref().and_then(Value::as_u64) != Some(u64::from(VERSION)) {
        return Err(wrong(format!(
            "it has version {version:?}, this build reads {VERSION}"
        )));
    }
    serde_json::from_value(value).map_err(|error| wrong(error.to_string()))
}

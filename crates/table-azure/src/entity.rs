//! Items as entities in JSON.

use crate::keys;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use firn_table::{Item, ItemKey, ItemVersion, MAX_ITEM_BYTES, TableError};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Azure's limit of a binary property.
const PROPERTY_BYTES: usize = 64 << 10;
/// The properties of the largest item.
const PROPERTIES: usize = MAX_ITEM_BYTES.div_ceil(PROPERTY_BYTES);

/// An entity as Azure writes it.
#[derive(Deserialize)]
pub(crate) struct Entity {
    #[serde(rename = "odata.etag")]
    pub(crate) tag: Option<String>,
    #[serde(rename = "RowKey")]
    row_key: String,
    version: Option<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// An answer to a query.
#[derive(Deserialize)]
pub(crate) struct Entities {
    pub(crate) value: Vec<Entity>,
}

/// What is found under a key.
pub(crate) enum Found {
    Item(Item),
    /// The mark of a check that found nothing; counts as absent.
    Placeholder,
}

fn keyed(key: &ItemKey) -> Map<String, Value> {
    let mut entity = Map::new();
    entity.insert("PartitionKey".into(), keys::encode(&key.partition).into());
    entity.insert("RowKey".into(), keys::encode(&key.sort).into());
    entity
}

/// An item.
pub(crate) fn item(key: &ItemKey, version: ItemVersion, value: &[u8]) -> Value {
    let mut entity = keyed(key);
    entity.insert("version".into(), version.0.to_string().into());
    for (number, bytes) in value.chunks(PROPERTY_BYTES).enumerate() {
        entity.insert(format!("value{number}@odata.type"), "Edm.Binary".into());
        entity.insert(format!("value{number}"), STANDARD.encode(bytes).into());
    }
    Value::Object(entity)
}

/// An entity that says: checked, and absent.
pub(crate) fn placeholder(key: &ItemKey) -> Value {
    Value::Object(keyed(key))
}

/// What a merge writes that changes nothing: the version that is there, if one is.
pub(crate) fn unchanged(version: Option<ItemVersion>) -> Value {
    match version {
        Some(version) => json!({ "version": version.0.to_string() }),
        None => json!({}),
    }
}

impl Entity {
    /// # Errors
    /// [`TableError::Refused`] if something else writes into the table.
    pub(crate) fn decode(mut self, partition: &str) -> Result<(ItemKey, Found), TableError> {
        let row_key = std::mem::take(&mut self.row_key);
        let foreign = || {
            TableError::Refused(format!(
                "the entity {row_key:?} is none of ours: something else writes into this table"
            ))
        };
        let sort = keys::decode(&row_key).ok_or_else(foreign)?;
        let key = ItemKey::new(partition, sort);
        let has_value = self.others.contains_key("value0");
        let version = match self.version.take() {
            Some(version) => ItemVersion(version.parse().map_err(|_| foreign())?),
            None if has_value => return Err(foreign()),
            None => return Ok((key, Found::Placeholder)),
        };
        let mut value = Vec::new();
        for number in 0..PROPERTIES {
            match self.others.get(&format!("value{number}")) {
                Some(Value::String(text)) => {
                    value.extend_from_slice(&STANDARD.decode(text).map_err(|_| foreign())?);
                }
                Some(_) => return Err(foreign()),
                None => break,
            }
        }
        let value = Bytes::from(value);
        let found = Item {
            key: key.clone(),
            version,
            value,
        };
        Ok((key, Found::Item(found)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(entity: Value) -> Result<Found, TableError> {
        let entity: Entity = serde_json::from_value(entity).unwrap();
        entity.decode("p").map(|(_, found)| found)
    }

    #[test]
    fn items_of_every_size_come_back() {
        let key = ItemKey::new("p", "a/b");
        for bytes in [0, 1, PROPERTY_BYTES, PROPERTY_BYTES + 1, MAX_ITEM_BYTES] {
            let value: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            let entity = item(&key, ItemVersion(u64::MAX), &value);
            match decoded(entity).unwrap() {
                Found::Item(found) => {
                    assert_eq!((&found.key, found.version), (&key, ItemVersion(u64::MAX)));
                    assert!(found.value == value, "{bytes} bytes");
                }
                Found::Placeholder => panic!("an item of {bytes} bytes"),
            }
        }
        assert!(matches!(decoded(placeholder(&key)), Ok(Found::Placeholder)));
    }

    #[test]
    fn what_others_wrote_is_refused() {
        for entity in [
            json!({"PartitionKey": "x", "RowKey": "not ours"}),
            json!({"PartitionKey": "x", "RowKey": "C4", "version": "one"}),
            json!({"PartitionKey": "x", "RowKey": "C4", "value0": "AA=="}),
            json!({"PartitionKey": "x", "RowKey": "C4", "version": "1", "value0": 7}),
            json!({"PartitionKey": "x", "RowKey": "C4", "version": "1", "value0": "!"}),
        ] {
            assert!(
                matches!(decoded(entity.clone()), Err(TableError::Refused(_))),
                "{entity}"
            );
        }
    }
}

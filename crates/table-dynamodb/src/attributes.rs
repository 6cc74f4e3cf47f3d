//! Items and conditions as DynamoDB writes them.

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};
use bytes::Bytes;
use firn_table::{Condition, Item, ItemKey, ItemVersion, TableError};
use std::collections::HashMap;

pub(crate) const PARTITION: &str = "partition";
pub(crate) const SORT: &str = "sort";
pub(crate) const VERSION: &str = "version";
pub(crate) const VALUE: &str = "value";

/// The names are placeholders (`#p`) in expressions, because DynamoDB reserves some of the words.
pub(crate) const PARTITION_NAME: (&str, &str) = ("#p", PARTITION);
pub(crate) const SORT_NAME: (&str, &str) = ("#s", SORT);
pub(crate) const VERSION_NAME: (&str, &str) = ("#v", VERSION);

pub(crate) type Attributes = HashMap<String, AttributeValue>;

pub(crate) fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

pub(crate) fn key_attributes(key: &ItemKey) -> Attributes {
    HashMap::from([
        (PARTITION.to_owned(), text(&key.partition)),
        (SORT.to_owned(), text(&key.sort)),
    ])
}

pub(crate) fn item_attributes(key: &ItemKey, version: ItemVersion, value: &Bytes) -> Attributes {
    let mut attributes = key_attributes(key);
    attributes.insert(VERSION.to_owned(), AttributeValue::N(version.0.to_string()));
    attributes.insert(VALUE.to_owned(), AttributeValue::B(Blob::new(value.as_ref())));
    attributes
}

/// A condition as expression, names and values.
pub(crate) struct Expression {
    pub(crate) text: &'static str,
    pub(crate) names: HashMap<String, String>,
    pub(crate) values: Option<Attributes>,
}

pub(crate) fn expression(condition: Condition) -> Expression {
    let names =
        |(placeholder, name): (&str, &str)| HashMap::from([(placeholder.to_owned(), name.to_owned())]);
    match condition {
        Condition::Absent => Expression {
            text: "attribute_not_exists(#p)",
            names: names(PARTITION_NAME),
            values: None,
        },
        Condition::Version(version) => Expression {
            text: "#v = :v",
            names: names(VERSION_NAME),
            values: Some(HashMap::from([(
                ":v".to_owned(),
                AttributeValue::N(version.0.to_string()),
            )])),
        },
    }
}

pub(crate) fn version_of(attributes: &Attributes) -> Option<ItemVersion> {
    match attributes.get(VERSION)? {
        AttributeValue::N(digits) => digits.parse().ok().map(ItemVersion),
        _ => None,
    }
}

/// # Errors
/// [`TableError::Refused`] if something else writes into the table.
pub(crate) fn decode(mut attributes: Attributes) -> Result<Item, TableError> {
    let version = version_of(&attributes);
    let value = attributes.remove(VALUE);
    match (
        attributes.remove(PARTITION),
        attributes.remove(SORT),
        version,
        value,
    ) {
        (
            Some(AttributeValue::S(partition)),
            Some(AttributeValue::S(sort)),
            Some(version),
            Some(AttributeValue::B(value)),
        ) => Ok(Item {
            key: ItemKey { partition, sort },
            version,
            value: value.into_inner().into(),
        }),
        (partition, sort, _, _) => Err(TableError::Refused(format!(
            "the item {partition:?} {sort:?} has no version and value: something else writes into this table"
        ))),
    }
}

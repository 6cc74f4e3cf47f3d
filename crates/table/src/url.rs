//! Table URL: how a configuration names a table.
//!
//! ```text
//! redb:PATH                                        the embedded table in one file
//! dynamodb://TABLE[?region=R][&endpoint=URL][&create=true]
//! ```
//!
//! Values of parameters may be percent-encoded. Region and credentials not given come from where AWS tools look for them.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::{fmt, path::PathBuf, str::FromStr};

/// What a parameter keeps as it is: what RFC 3986 calls unreserved, and what addresses are made of.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':')
    .remove(b'/')
    .remove(b'[')
    .remove(b']');

/// A table's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableUrl {
    /// The embedded engine.
    Redb {
        /// Its file.
        path: PathBuf,
    },
    /// DynamoDB, or what speaks like it.
    DynamoDb(DynamoDbUrl),
}

/// A DynamoDB table's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamoDbUrl {
    /// The table's name: 3 to 255 of `A-Z a-z 0-9 _ . -`.
    pub table: String,
    /// Its region; otherwise that of the environment or profile.
    pub region: Option<String>,
    /// An address other than AWS's own, such as DynamoDB Local.
    pub endpoint: Option<String>,
    /// Whether to create the table if it does not exist.
    pub create: bool,
}

/// Why a text is no table address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableUrlError {
    /// It begins with neither `redb:` nor `dynamodb://`.
    #[error("{0:?} names no table: write redb:PATH or dynamodb://TABLE?region=REGION")]
    Scheme(String),
    /// `redb:` without a path.
    #[error("redb: needs the path of a file, such as redb:/var/lib/firn/table.redb")]
    NoPath,
    /// A table's name DynamoDB would not accept.
    #[error("{0:?} is no DynamoDB table name: 3 to 255 letters, digits, '_', '.' and '-'")]
    Name(String),
    /// A parameter that is unknown, given twice or without a value.
    #[error("{0:?} is not a parameter of dynamodb:// (region=, endpoint=, create=true), or is given twice")]
    Parameter(String),
    /// A value that cannot be what its parameter needs.
    #[error("{value:?} is no value for {parameter}: {wanted}")]
    Value {
        /// The parameter.
        parameter: &'static str,
        /// What was given.
        value: String,
        /// What is needed.
        wanted: &'static str,
    },
}

impl FromStr for TableUrl {
    type Err = TableUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("redb:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() || path.ends_with('/') {
                return Err(TableUrlError::NoPath);
            }
            return Ok(Self::Redb { path: path.into() });
        }
        let Some(rest) = text.strip_prefix("dynamodb://") else {
            return Err(TableUrlError::Scheme(text.to_owned()));
        };
        let (table, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut url = DynamoDbUrl::new(table)?;
        let mut create = None;
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let unknown = || TableUrlError::Parameter(part.to_owned());
            let (name, value) = part.split_once('=').ok_or_else(unknown)?;
            let value = percent_decode_str(value)
                .decode_utf8()
                .map_err(|_| unknown())?
                .into_owned();
            match name {
                "region" if url.region.is_none() => url.region = Some(check_region(value)?),
                "endpoint" if url.endpoint.is_none() => url.endpoint = Some(check_endpoint(value)?),
                "create" if create.is_none() => create = Some(check_bool(value)?),
                _ => return Err(unknown()),
            }
        }
        url.create = create.unwrap_or(false);
        Ok(Self::DynamoDb(url))
    }
}

impl DynamoDbUrl {
    /// A table by its name, everything else from the environment.
    ///
    /// # Errors
    /// [`TableUrlError::Name`] if DynamoDB would not accept the name.
    pub fn new(table: &str) -> Result<Self, TableUrlError> {
        let valid = (3..=255).contains(&table.len())
            && table
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'));
        if !valid {
            return Err(TableUrlError::Name(table.to_owned()));
        }
        Ok(Self {
            table: table.to_owned(),
            region: None,
            endpoint: None,
            create: false,
        })
    }
}

impl fmt::Display for TableUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redb { path } => write!(formatter, "redb:{}", path.display()),
            Self::DynamoDb(url) => url.fmt(formatter),
        }
    }
}

impl fmt::Display for DynamoDbUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "dynamodb://{}", self.table)?;
        let mut separator = '?';
        let mut parameter = |formatter: &mut fmt::Formatter<'_>, name: &str, value: &str| {
            let result = write!(
                formatter,
                "{separator}{name}={}",
                utf8_percent_encode(value, ESCAPED)
            );
            separator = '&';
            result
        };
        if let Some(region) = &self.region {
            parameter(formatter, "region", region)?;
        }
        if let Some(endpoint) = &self.endpoint {
            parameter(formatter, "endpoint", endpoint)?;
        }
        if self.create {
            parameter(formatter, "create", "true")?;
        }
        Ok(())
    }
}

fn check_region(value: String) -> Result<String, TableUrlError> {
    let valid = !value.is_empty()
        && value.len() <= 64
        && value
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if valid {
        Ok(value)
    } else {
        Err(TableUrlError::Value {
            parameter: "region",
            value,
            wanted: "a region's name, such as eu-central-1",
        })
    }
}

fn check_endpoint(value: String) -> Result<String, TableUrlError> {
    let host = value
        .strip_prefix("http://")
        .or_else(|| value.strip_prefix("https://"));
    if host.is_some_and(|host| !host.is_empty() && !host.contains(char::is_whitespace)) {
        Ok(value)
    } else {
        Err(TableUrlError::Value {
            parameter: "endpoint",
            value,
            wanted: "an http:// or https:// address",
        })
    }
}

fn check_bool(value: String) -> Result<bool, TableUrlError> {
    match value.as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(TableUrlError::Value {
            parameter: "create",
            value,
            wanted: "true or false",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_the_embedded_table() {
        for (text, path) in [
            ("redb:table.redb", "table.redb"),
            ("redb:/var/lib/firn/table.redb", "/var/lib/firn/table.redb"),
            ("redb:///var/lib/firn/table.redb", "/var/lib/firn/table.redb"),
        ] {
            assert_eq!(text.parse(), Ok(TableUrl::Redb { path: path.into() }));
        }
        assert_eq!("redb:".parse::<TableUrl>(), Err(TableUrlError::NoPath));
        assert_eq!("redb:/var/lib/".parse::<TableUrl>(), Err(TableUrlError::NoPath));
    }

    #[test]
    fn a_dynamodb_address_carries_its_parameters_there_and_back() {
        let text =
            "dynamodb://firn-roots?region=eu-central-1&endpoint=http%3A%2F%2F127.0.0.1%3A8001&create=true";
        let url: TableUrl = text.parse().unwrap();
        assert_eq!(
            url,
            TableUrl::DynamoDb(DynamoDbUrl {
                table: "firn-roots".into(),
                region: Some("eu-central-1".into()),
                endpoint: Some("http://127.0.0.1:8001".into()),
                create: true,
            })
        );
        assert_eq!(url.to_string().parse(), Ok(url));
    }

    #[test]
    fn what_is_wrong_with_an_address_is_named() {
        for text in [
            "",
            "s3://bucket",
            "dynamodb://ab",
            "dynamodb://white space",
            "dynamodb://table?colour=red",
            "dynamodb://table?region=a&region=b",
            "dynamodb://table?region",
            "dynamodb://table?region=",
            "dynamodb://table?region=%4",
            "dynamodb://table?region=%ff",
            "dynamodb://table?endpoint=127.0.0.1:8001",
            "dynamodb://table?create=perhaps",
        ] {
            assert!(text.parse::<TableUrl>().is_err(), "{text:?} was accepted");
        }
    }
}

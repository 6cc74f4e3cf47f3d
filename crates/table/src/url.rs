//! Table URL: how a configuration names a table.
//!
//! ```text
//! redb:PATH                                        the embedded table in one file
//! dynamodb://TABLE[?region=R][&endpoint=URL][&create=true]
//! azure-table://TABLE[?account=A][&endpoint=URL][&create=true]
//! ```
//!
//! Values of parameters may be percent-encoded. What is not given, and credentials, come from where the clouds' own tools look for them:
//! region and keys of AWS, `AZURE_STORAGE_ACCOUNT_NAME` and its key or identity of Azure.

mod azure;

pub use azure::AzureTableUrl;
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
    /// Table Storage of Azure, or what speaks like it.
    AzureTable(AzureTableUrl),
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
    /// It begins with none of `redb:`, `dynamodb://` and `azure-table://`.
    #[error(
        "{0:?} names no table: write redb:PATH, dynamodb://TABLE?region=REGION or azure-table://TABLE?account=ACCOUNT"
    )]
    Scheme(String),
    /// `redb:` without a path.
    #[error("redb: needs the path of a file, such as redb:/var/lib/firn/table.redb")]
    NoPath,
    /// A table's name DynamoDB would not accept.
    #[error("{0:?} is no DynamoDB table name: 3 to 255 letters, digits, '_', '.' and '-'")]
    Name(String),
    /// A table's name Azure would not accept.
    #[error("{0:?} is no name of an Azure table: a letter, then 2 to 62 letters and digits")]
    AzureName(String),
    /// A parameter that is unknown, given twice or without a value.
    #[error("{part:?} is not a parameter of {scheme} ({takes}), or is given twice")]
    Parameter {
        /// What was given.
        part: String,
        /// Of what kind of address.
        scheme: &'static str,
        /// What it takes.
        takes: &'static str,
    },
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
        if let Some(rest) = text.strip_prefix("azure-table://") {
            return AzureTableUrl::parse(rest).map(Self::AzureTable);
        }
        let Some(rest) = text.strip_prefix("dynamodb://") else {
            return Err(TableUrlError::Scheme(text.to_owned()));
        };
        let (table, mut parameters) = Parameters::split(
            rest,
            "dynamodb://",
            &["region", "endpoint", "create"],
            "region=, endpoint=, create=true",
        )?;
        let mut url = DynamoDbUrl::new(table)?;
        url.region = parameters.take("region").map(check_region).transpose()?;
        url.endpoint = parameters.take("endpoint").map(check_endpoint).transpose()?;
        url.create = parameters.take("create").map_or(Ok(false), check_bool)?;
        Ok(Self::DynamoDb(url))
    }
}

/// The parameters of an address, each at most once.
struct Parameters(Vec<(&'static str, String)>);

impl Parameters {
    /// What stands before the question mark, and the parameters behind it.
    fn split<'a>(
        text: &'a str,
        scheme: &'static str,
        names: &[&'static str],
        takes: &'static str,
    ) -> Result<(&'a str, Self), TableUrlError> {
        let (head, query) = text.split_once('?').unwrap_or((text, ""));
        let mut found: Vec<(&'static str, String)> = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let unknown = || TableUrlError::Parameter {
                part: part.to_owned(),
                scheme,
                takes,
            };
            let (name, value) = part.split_once('=').ok_or_else(unknown)?;
            let name = *names.iter().find(|known| **known == name).ok_or_else(unknown)?;
            if found.iter().any(|(known, _)| *known == name) {
                return Err(unknown());
            }
            let value = percent_decode_str(value)
                .decode_utf8()
                .map_err(|_| unknown())?
                .into_owned();
            found.push((name, value));
        }
        Ok((head, Self(found)))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| *known == name)?;
        Some(self.0.swap_remove(at).1)
    }
}

/// Writes an address with those of its parameters that are given.
fn write_url(
    formatter: &mut fmt::Formatter<'_>,
    head: &str,
    parameters: &[(&str, Option<&str>)],
) -> fmt::Result {
    formatter.write_str(head)?;
    let given = parameters
        .iter()
        .filter_map(|(name, value)| value.map(|value| (name, value)));
    for (number, (name, value)) in given.enumerate() {
        let separator = if number == 0 { '?' } else { '&' };
        write!(
            formatter,
            "{separator}{name}={}",
            utf8_percent_encode(value, ESCAPED)
        )?;
    }
    Ok(())
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
            Self::AzureTable(url) => url.fmt(formatter),
        }
    }
}

impl fmt::Display for DynamoDbUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_url(
            formatter,
            &format!("dynamodb://{}", self.table),
            &[
                ("region", self.region.as_deref()),
                ("endpoint", self.endpoint.as_deref()),
                ("create", self.create.then_some("true")),
            ],
        )
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

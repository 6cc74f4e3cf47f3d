//! Address of a table in a storage account of Azure.

use super::{Parameters, TableUrlError, check_bool, check_endpoint, write_url};
use std::fmt;

/// An Azure table's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AzureTableUrl {
    /// The table's name: a letter, then 2 to 62 letters and digits.
    pub table: String,
    /// The storage account; otherwise that of the environment.
    pub account: Option<String>,
    /// Where the account's tables are served other than at Microsoft's own address, such as Azurite; with the account's name as its path
    /// where the server is addressed so.
    pub endpoint: Option<String>,
    /// Whether to create the table if it does not exist.
    pub create: bool,
}

impl AzureTableUrl {
    /// A table by its name, everything else from the environment.
    ///
    /// # Errors
    /// [`TableUrlError::AzureName`] if Azure would not accept the name.
    pub fn new(table: &str) -> Result<Self, TableUrlError> {
        let valid = (3..=63).contains(&table.len())
            && table.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && table.starts_with(|first: char| first.is_ascii_alphabetic());
        if !valid {
            return Err(TableUrlError::AzureName(table.to_owned()));
        }
        Ok(Self {
            table: table.to_owned(),
            account: None,
            endpoint: None,
            create: false,
        })
    }

    /// Reads what follows the scheme.
    pub(super) fn parse(text: &str) -> Result<Self, TableUrlError> {
        let (table, mut parameters) = Parameters::split(
            text,
            "azure-table://",
            &["account", "endpoint", "create"],
            "account=, endpoint=, create=true",
        )?;
        let mut url = Self::new(table)?;
        url.account = parameters.take("account").map(check_account).transpose()?;
        let endpoint = parameters.take("endpoint").map(check_endpoint).transpose()?;
        url.endpoint = endpoint.map(check_line).transpose()?;
        url.create = parameters.take("create").map_or(Ok(false), check_bool)?;
        Ok(url)
    }
}

impl fmt::Display for AzureTableUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_url(
            formatter,
            &format!("azure-table://{}", self.table),
            &[
                ("account", self.account.as_deref()),
                ("endpoint", self.endpoint.as_deref()),
                ("create", self.create.then_some("true")),
            ],
        )
    }
}

fn check_account(value: String) -> Result<String, TableUrlError> {
    let valid = (3..=24).contains(&value.len())
        && value
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if valid {
        Ok(value)
    } else {
        Err(TableUrlError::Value {
            parameter: "account",
            value,
            wanted: "a storage account's name, 3 to 24 lower-case letters and digits",
        })
    }
}

/// An identity's token is sent as it is, and whoever taps the line could use it: in the clear to this machine only.
fn check_line(value: String) -> Result<String, TableUrlError> {
    let host = value
        .strip_prefix("http://")
        .map(|rest| rest.split('/').next().unwrap_or_default());
    let name = host.map(|host| match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    });
    if value.contains(['?', '#', '@'])
        || name.is_some_and(|name| !matches!(name, "127.0.0.1" | "localhost" | "[::1]"))
    {
        return Err(TableUrlError::Value {
            parameter: "endpoint",
            value,
            wanted: "an https:// address (http:// on this machine only) without a query",
        });
    }
    Ok(value.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableUrl;

    #[test]
    fn an_azure_address_carries_its_parameters_there_and_back() {
        let text =
            "azure-table://firnroots?account=acme&endpoint=http%3A%2F%2F127.0.0.1%3A10002/acme/&create=true";
        let url: TableUrl = text.parse().unwrap();
        assert_eq!(
            url,
            TableUrl::AzureTable(AzureTableUrl {
                table: "firnroots".into(),
                account: Some("acme".into()),
                endpoint: Some("http://127.0.0.1:10002/acme".into()),
                create: true,
            })
        );
        assert_eq!(url.to_string().parse(), Ok(url));
    }

    #[test]
    fn what_is_wrong_with_an_azure_address_is_named() {
        for text in [
            "azure-table://",
            "azure-table://ab",
            "azure-table://firn-roots",
            "azure-table://1roots",
            "azure-table://roots?account=",
            "azure-table://roots?account=Acme",
            "azure-table://roots?region=westeurope",
            "azure-table://roots?account=acme&account=acme",
            "azure-table://roots?endpoint=127.0.0.1:10002",
            "azure-table://roots?endpoint=http://tables.example",
            "azure-table://roots?endpoint=http://127.0.0.1.example:10002",
            "azure-table://roots?endpoint=https://tables.example?x=y",
            "azure-table://roots?create=perhaps",
        ] {
            assert!(text.parse::<TableUrl>().is_err(), "{text:?} was accepted");
        }
        let said = "azure-table://roots?region=x".parse::<TableUrl>().unwrap_err();
        assert!(said.to_string().contains("account="), "{said}");
    }
}

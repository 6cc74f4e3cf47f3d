//! The opener of tables that hold an anchor's roots: the embedded one, DynamoDB's and Azure's, whichever an address names. A leaf crate, so
//! that nothing else waits for the cloud SDKs to compile.
//!
//! The control plane and disk nodes open theirs with [`firn_table_dynamodb`] alone: their transactions span partitions, which Azure's do
//! not (crate firn-table-azure).

use firn_env::Env;
use firn_table::{Table, TableError, TablePrices, TableUrl};
use firn_table_azure::AzureTable;
use std::sync::Arc;

/// Opens the table at `url`, and says what its requests cost.
///
/// A table in a file (`redb:`) serves one process at a time.
///
/// # Errors
/// [`TableError`], which names the file or the address.
pub async fn open(env: &Env, url: &TableUrl) -> Result<(Arc<dyn Table>, TablePrices), TableError> {
    Ok(match url {
        TableUrl::AzureTable(azure) => (Arc::new(AzureTable::open(env, azure).await?), prices(url)),
        TableUrl::Redb { .. } | TableUrl::DynamoDb(_) => firn_table_dynamodb::open(env, url).await?,
    })
}

/// What requests to the table at `url` cost, be it there or not.
pub fn prices(url: &TableUrl) -> TablePrices {
    match url {
        TableUrl::Redb { .. } => TablePrices::FREE,
        TableUrl::DynamoDb(_) => TablePrices::DYNAMODB_ON_DEMAND,
        TableUrl::AzureTable(_) => TablePrices::AZURE_TABLE,
    }
}

/// Whether a table in a cloud is there; nothing is made. `None`: it is one in a file.
///
/// # Errors
/// [`TableError`] if the cloud is away or refuses to say.
pub async fn exists(env: &Env, url: &TableUrl) -> Result<Option<bool>, TableError> {
    match url {
        TableUrl::Redb { .. } => Ok(None),
        TableUrl::DynamoDb(url) => firn_table_dynamodb::exists(env, url).await.map(Some),
        TableUrl::AzureTable(url) => firn_table_azure::exists(env, url).await.map(Some),
    }
}

//! The opener of tables: whichever engine an address names. Every program that takes a table's address opens it here.

use crate::DynamoDbTable;
use firn_env::Env;
use firn_table::{RedbTable, Table, TableError, TablePrices, TableUrl};
use std::sync::Arc;

/// Opens the table at `url`, and says what its requests cost.
///
/// A table in a file (`redb:`) serves one process at a time.
///
/// # Errors
/// [`TableError`], which names the file or the address.
pub async fn open(env: &Env, url: &TableUrl) -> Result<(Arc<dyn Table>, TablePrices), TableError> {
    Ok(match url {
        TableUrl::Redb { path } => (Arc::new(RedbTable::open(env, path).await?), TablePrices::FREE),
        TableUrl::DynamoDb(url) => (
            Arc::new(DynamoDbTable::open(env, url).await?),
            TablePrices::DYNAMODB_ON_DEMAND,
        ),
    })
}

//! The opener of tables in whose transactions partitions are spanned: the embedded one, or DynamoDB's.

use crate::DynamoDbTable;
use firn_env::Env;
use firn_table::{DynamoDbUrl, RedbTable, Table, TableError, TablePrices, TableUrl};
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
        TableUrl::AzureTable(_) => {
            return Err(TableError::Refused(format!(
                "{url} cannot be used here: transactions of the control plane and of disk nodes span partitions, and Azure's do not; \
                 use redb:PATH or dynamodb://TABLE"
            )));
        }
    })
}

/// Opens the table at `url` with the partitions that begin with `prefix` in the table at `apart`: for a process that reaches both, beside
/// processes whose credentials reach one of them. Transactions span the two.
///
/// # Errors
/// [`TableError::Refused`] if the two cannot be in one transaction (both must be DynamoDB's, with the region and endpoint written alike), or
/// are one table; otherwise as [`open`].
pub async fn open_with_partitions_apart(
    env: &Env,
    url: &TableUrl,
    prefix: &str,
    apart: &TableUrl,
) -> Result<(Arc<dyn Table>, TablePrices), TableError> {
    let (TableUrl::DynamoDb(url), TableUrl::DynamoDb(apart)) = (url, apart) else {
        return Err(TableError::Refused(format!(
            "{apart} cannot be beside {url}: only tables of DynamoDB are kept apart; a file is one process's, and whoever reads it reads all"
        )));
    };
    let place = |url: &DynamoDbUrl| (url.region.clone(), url.endpoint.clone());
    if place(url) != place(apart) {
        return Err(TableError::Refused(format!(
            "{apart} cannot be beside {url}: a transaction spans tables of one region only; write region and endpoint of both alike"
        )));
    }
    if url.table == apart.table {
        return Err(TableError::Refused(format!("{apart} and {url} are one table")));
    }
    let other = DynamoDbTable::open(env, apart).await?;
    let table = DynamoDbTable::open(env, url).await?;
    Ok((
        Arc::new(table.with_partitions_in(prefix, &other)),
        TablePrices::DYNAMODB_ON_DEMAND,
    ))
}

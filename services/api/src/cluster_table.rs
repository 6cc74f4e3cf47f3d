//! The table of a cluster of disk nodes, which must be another than the service's.

use firn_table::TableUrl;
use std::{fs, path::Path};

/// Nodes would open the service's table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--cluster-table names the service's own table, which every disk node could then read and change. Nothing was started. Give \
     cluster {cluster} a table of its own; one that is in the service's table already is moved, with everything stopped, by: \
     firn-blockd --config NEW.toml move-table --from {services}"
)]
pub struct SharedTable {
    services: TableUrl,
    cluster: String,
}

/// Refuses `own` as the table of a cluster where it is the service's: whoever has a node's credentials can read and change all of it.
///
/// # Errors
/// [`SharedTable`].
pub fn require_own_table(services: &TableUrl, own: &TableUrl, cluster: &str) -> Result<(), SharedTable> {
    let is_same = match (services, own) {
        (TableUrl::Redb { path: one }, TableUrl::Redb { path: other }) => {
            let place = |path: &Path| {
                let directory = fs::canonicalize(path.parent()?).ok()?;
                Some(directory.join(path.file_name()?))
            };
            one == other || (place(one).is_some() && place(one) == place(other))
        }
        // Regions and endpoints may be left out, or written in two ways: one name is too few for two tables.
        (TableUrl::DynamoDb(one), TableUrl::DynamoDb(other)) => one.table == other.table,
        (TableUrl::AzureTable(one), TableUrl::AzureTable(other)) => one.table == other.table,
        (TableUrl::Redb { .. } | TableUrl::DynamoDb(_) | TableUrl::AzureTable(_), _) => false,
    };
    if is_same {
        return Err(SharedTable {
            services: services.clone(),
            cluster: cluster.to_owned(),
        });
    }
    Ok(())
}

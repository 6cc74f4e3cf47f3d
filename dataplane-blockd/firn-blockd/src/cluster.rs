//! From the configuration to the cluster's table.

use crate::{
    config::{ClusterSection, Config},
    failure::Failure,
    security::{Operator, Secret},
};
use firn_blockd_placement::{DiskRecord, DiskState, Placement};
use firn_blockd_protocol::TenantId;
use firn_env::{Env, println};
use firn_table::{Table, TableUrl};
use futures::future::select;
use std::{path::Path, pin::pin, sync::Arc, time::Duration};

/// Opens the cluster's table. `directory` is made if it is not there.
pub async fn open_placement(config: &Config, directory: &Path) -> Result<(Env, Placement), Failure> {
    let env = environment(directory)?;
    let table = open_table(&env, &config.cluster.table).await?;
    let placement = Placement::new(env.clone(), table, &config.cluster.name)?;
    Ok((env, placement))
}

async fn open_table(env: &Env, url: &TableUrl) -> Result<Arc<dyn Table>, Failure> {
    let (table, _) = firn_table_dynamodb::open(env, url).await.map_err(|error| {
        let advice = match url {
            TableUrl::Redb { .. } => {
                "; a redb table serves one process at a time: use dynamodb:// for several, or firn-blockd dev"
            }
            TableUrl::DynamoDb(_) | TableUrl::AzureTable(_) => "",
        };
        Failure::new(format!("{error}{advice}"))
    })?;
    Ok(table)
}

/// How long nodes are watched for a heartbeat before their cluster is moved: several times what is between two.
const WATCHED: Duration = Duration::from_secs(10);

/// `firn-blockd move-table`: what the cluster has in another table comes into its own.
pub async fn move_table(config: &Config, from: &TableUrl) -> Result<(), Failure> {
    if *from == config.cluster.table {
        return Err(Failure::usage(
            "the cluster is in that table already: --from names another",
        ));
    }
    let (env, placement) = open_placement(config, config.directory()?).await?;
    let old = Placement::new(env.clone(), open_table(&env, from).await?, &config.cluster.name)?;
    let items = placement.move_from(&old, WATCHED).await?;
    println!(
        "cluster {} is in its own table ({items} items were moved); start the nodes with it, and the service with --cluster-table",
        config.cluster.name
    );
    Ok(())
}

/// The outside of a command.
pub struct Outside {
    pub env: Env,
    pub placement: Placement,
    pub operator: Arc<Operator>,
}

impl Outside {
    /// Opens the table and reads the secret. `directory` is made if it is not there.
    pub async fn open(config: &Config, directory: &Path) -> Result<Self, Failure> {
        let ClusterSection {
            secret, trust_domain, ..
        } = &config.cluster;
        let secret = secret.as_deref().ok_or_else(|| {
            Failure::usage("the configuration names no cluster.secret, which everything but `node` needs")
        })?;
        let (env, placement) = open_placement(config, directory).await?;
        let operator = Operator::new(&env, &Secret::read(secret)?, trust_domain)?;
        Ok(Self {
            env,
            placement,
            operator: Arc::new(operator),
        })
    }

    /// The tenant's disk of this name.
    pub async fn disk(&self, tenant: TenantId, name: &str) -> Result<DiskRecord, Failure> {
        let record = self.placement.disk_named(tenant, name).await?;
        match record.state {
            DiskState::Ready => Ok(record),
            DiskState::Deleting { .. } => Err(Failure::new(format!("disk {name} is being deleted"))),
        }
    }
}

/// An environment whose disk is a directory, which is made if it is not there.
pub fn environment(directory: &Path) -> Result<Env, Failure> {
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::new(format!("cannot make {}: {error}", directory.display())))?;
    firn_env::real(directory).map_err(Failure::new)
}

/// Ends when the process is asked to.
pub async fn until_stopped() -> Result<(), Failure> {
    let mut terminate =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).map_err(Failure::new)?;
    select(pin!(tokio::signal::ctrl_c()), pin!(terminate.recv())).await;
    Ok(())
}

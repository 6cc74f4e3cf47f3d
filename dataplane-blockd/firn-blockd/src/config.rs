//! The configuration file. `firn-blockd.example.toml` explains every key; a test holds the two together.

use crate::failure::Failure;
use firn_blockd_node::{DiskModel, MEMORY_BYTES_MIN, NodeOptions};
use firn_blockd_protocol::{NodeId, TenantId};
use firn_quantity::Size;
use firn_store::StoreUrl;
use firn_table::TableUrl;
use serde::{Deserialize, Deserializer, de::Error};
use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

/// Below it a node's own cluster is kept out by thresholds.
const CONNECTIONS_MIN: u32 = 16;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub cluster: ClusterSection,
    pub service: Option<ServiceSection>,
    pub node: Option<NodeSection>,
    pub client: Option<ClientSection>,
}

/// Which cluster, and what proves that one belongs to it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSection {
    #[serde(default = "default_name")]
    pub name: String,
    /// The cluster's own, in which nothing else lies: every node opens it.
    #[serde(deserialize_with = "from_text")]
    pub table: TableUrl,
    /// Absent where a control plane issues certificates.
    pub secret: Option<PathBuf>,
    #[serde(default = "default_trust_domain")]
    pub trust_domain: String,
}

/// The control plane that this machine's node joins.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSection {
    /// Where it is reached: https only.
    pub server: String,
    /// Whose node it is.
    #[serde(deserialize_with = "from_text")]
    pub tenant: TenantId,
    /// Which node, as it was invited.
    #[serde(deserialize_with = "from_text")]
    pub node: NodeId,
}

/// This machine's node.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSection {
    /// Where its store is.
    pub directory: PathBuf,
    /// What it may use.
    pub size: Size,
    /// Where it listens.
    #[serde(default = "default_listen")]
    pub listen: String,
    /// Where others reach it, if elsewhere.
    pub advertise: Option<String>,
    /// What fails with it: copies are in different domains.
    #[serde(default = "default_name")]
    pub domain: String,
    /// Makes its disk as slow as this.
    #[serde(default, deserialize_with = "from_optional_text")]
    pub model: Option<DiskModel>,
    /// Whether it has an arm: then tenants share it by deficit round robin, each request charged with its movement.
    #[serde(default)]
    pub rotates: bool,
    /// After so many silent seconds others copy what it had.
    #[serde(default = "default_dead_after")]
    pub dead_after_seconds: u64,
    /// Connections open at once, which their owners share.
    #[serde(default = "default_connections")]
    pub connections: u32,
    /// Memory for requests and replies in flight, shared alike.
    #[serde(default = "default_memory")]
    pub memory: Size,
    /// Where Prometheus scrapes it; nowhere if absent.
    pub metrics: Option<String>,
}

/// Whoever uses disks on this machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientSection {
    pub tenant: TenantId,
    pub state_directory: PathBuf,
    #[serde(default = "default_capability_seconds")]
    pub capability_seconds: u64,
    /// Where snapshots are kept.
    #[serde(default, deserialize_with = "from_optional_text")]
    pub snapshots: Option<StoreUrl>,
}

fn default_name() -> String {
    "default".into()
}

fn default_trust_domain() -> String {
    "blockd.firn".into()
}

fn default_listen() -> String {
    "0.0.0.0:7300".into()
}

fn default_dead_after() -> u64 {
    10
}

fn default_connections() -> u32 {
    u32::try_from(NodeOptions::default().connections).unwrap_or(u32::MAX)
}

fn default_memory() -> Size {
    Size(NodeOptions::default().memory_bytes as u64)
}

fn default_capability_seconds() -> u64 {
    3600
}

fn from_text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: std::fmt::Display,
{
    String::deserialize(deserializer)?
        .parse()
        .map_err(D::Error::custom)
}

fn from_optional_text<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: std::fmt::Display,
{
    from_text(deserializer).map(Some)
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let wrong = |error: &dyn std::fmt::Display| Failure::usage(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
        toml::from_str(&text).map_err(|error| wrong(&error))
    }

    /// The section `[node]`.
    pub fn node(&self) -> Result<&NodeSection, Failure> {
        let node = self.node.as_ref().ok_or_else(|| {
            Failure::usage("the configuration has no section [node]; add directory and size")
        })?;
        if node.memory.0 < MEMORY_BYTES_MIN as u64 {
            return Err(Failure::usage(format!(
                "[node] memory = {} bytes are too few for the largest requests; give it at least {} MiB",
                node.memory.0,
                MEMORY_BYTES_MIN >> 20
            )));
        }
        if node.connections < CONNECTIONS_MIN {
            return Err(Failure::usage(format!(
                "[node] connections = {}: at least {CONNECTIONS_MIN} are needed, so that every owner gets one",
                node.connections
            )));
        }
        Ok(node)
    }

    /// Where commands about the whole cluster may keep something.
    pub fn directory(&self) -> Result<&Path, Failure> {
        match (&self.client, &self.node) {
            (Some(client), _) => Ok(&client.state_directory),
            (None, Some(node)) => Ok(&node.directory),
            (None, None) => Err(Failure::usage(
                "the configuration has neither [node] nor [client]",
            )),
        }
    }

    /// The section `[client]`.
    pub fn client(&self) -> Result<&ClientSection, Failure> {
        self.client.as_ref().ok_or_else(|| {
            Failure::usage("the configuration has no section [client]; add tenant and state_directory")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../firn-blockd.example.toml");

    #[test]
    fn the_example_is_a_configuration_and_names_every_key() {
        let config: Config = toml::from_str(EXAMPLE).expect("the example is valid");
        assert!(config.node().is_ok() && config.client().is_ok() && config.service.is_some());
        for key in [
            "name",
            "table",
            "secret",
            "trust_domain",
            "server",
            "node",
            "directory",
            "size",
            "listen",
            "advertise",
            "domain",
            "model",
            "rotates",
            "dead_after_seconds",
            "connections",
            "memory",
            "metrics",
            "tenant",
            "state_directory",
            "capability_seconds",
            "snapshots",
        ] {
            assert!(EXAMPLE.contains(&format!("{key} = ")), "{key}");
        }
        let unknown = EXAMPLE.replace("listen = ", "listens = ");
        assert!(toml::from_str::<Config>(&unknown).is_err());
    }
}

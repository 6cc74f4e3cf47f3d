//! The seam to what gives the service machines. The control plane decides *that* a node is to be; on which machine, this decides.
//!
//! A machine is told in its **user data** which node it is and how it joins: a script with a join secret that is good once and for an
//! hour. Nothing else is handed to it, so whatever runs scripts at its first start can be a provisioner.
//!
//! | provisioner | machine | found again by |
//! |---|---|---|
//! | [`Processes`] | a process of this machine that runs the script | a file with its process id |
//! | [`Ec2`](crate::Ec2) | an instance | its tags |

mod process;

pub use process::Processes;

use async_trait::async_trait;
use firn_identity::{NodeId, TenantId};
use zeroize::Zeroizing;

/// What a new machine is to become.
#[derive(Clone)]
pub struct NodePlan {
    /// Whose node.
    pub tenant: TenantId,
    /// Which.
    pub node: NodeId,
    /// What fails together with it; for EC2 the availability zone.
    pub failure_domain: String,
    /// The script that its machine runs at its first start. It holds the join secret.
    pub user_data: Zeroizing<String>,
}

/// A machine that was started for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// For which.
    pub node: NodeId,
    /// What its provisioner calls it.
    pub name: String,
}

/// Why there is no machine, or why it is still there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProvisionError {
    /// Asking again changes nothing.
    #[error("no machine is given: {0}")]
    Refused(String),
    /// It did not answer, or not in time; it may have happened. Calling again is safe.
    #[error("what gives machines did not answer: {0}")]
    Unavailable(String),
}

/// Starts and ends machines. Every call is idempotent: a saga that was interrupted calls again with the same arguments.
#[async_trait]
pub trait NodeProvisioner: Send + Sync {
    /// Starts the node's machine; if there is one, that is the one.
    async fn launch(&self, plan: &NodePlan) -> Result<Machine, ProvisionError>;
    /// The machines that run or are about to, of all nodes of a tenant.
    async fn machines(&self, tenant: TenantId) -> Result<Vec<Machine>, ProvisionError>;
    /// Ends the node's machine; one that is not there is ended.
    async fn terminate(&self, tenant: TenantId, node: NodeId) -> Result<(), ProvisionError>;
}

/// What every machine of a pool is told alike. [`user_data`](Boot::user_data) makes a script of it.
#[derive(Clone, Debug)]
pub struct Boot {
    /// Where the service is reached, such as `https://api.example.org`.
    pub server: String,
    /// The authority of the service's certificate in PEM, if the machine's own authorities do not know it.
    pub authority: Option<String>,
    /// The cluster's name, as in `firn-blockd.toml`.
    pub cluster: String,
    /// The cluster's own table, such as `dynamodb://firn-disks?region=eu-central-1`: every node reads and writes all of it.
    pub table: String,
    /// What of its disk a node may use.
    pub node_bytes: u64,
}

const SCRIPT: &str = include_str!("provision/user-data.sh");

impl Boot {
    /// The script of one node's machine.
    ///
    /// # Errors
    /// [`ProvisionError::Refused`] if something would end the place it is written to: quotes and line ends have no use in any of it.
    pub fn user_data(
        &self,
        tenant: TenantId,
        node: NodeId,
        failure_domain: &str,
        join_secret: &str,
    ) -> Result<Zeroizing<String>, ProvisionError> {
        let authority = self.authority.clone().unwrap_or_default();
        let size = self.node_bytes.to_string();
        let (tenant, node) = (tenant.to_string(), node.to_string());
        let values = [
            ("SERVER", &*self.server),
            ("CLUSTER", &*self.cluster),
            ("TABLE", &*self.table),
            ("SIZE", &*size),
            ("TENANT", &*tenant),
            ("NODE", &*node),
            ("DOMAIN", failure_domain),
            ("JOIN_SECRET", join_secret),
        ];
        let is_plain = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_graphic() && !b"'\"\\`$".contains(&byte))
        };
        if let Some((name, _)) = values.iter().find(|(_, value)| !is_plain(value)) {
            return Err(ProvisionError::Refused(format!(
                "{name} cannot be written into a script"
            )));
        }
        let is_pem = authority
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+/=- \n".contains(&byte));
        if !is_pem {
            return Err(ProvisionError::Refused("the authority is not PEM".into()));
        }
        let mut script = Zeroizing::new(SCRIPT.replace("@AUTHORITY@", authority.trim_end()));
        for (name, value) in values {
            script = Zeroizing::new(script.replace(&format!("@{name}@"), value));
        }
        Ok(script)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot() -> Boot {
        Boot {
            server: "https://api.example.org".into(),
            authority: Some("-----BEGIN CERTIFICATE-----\nAAA=\n-----END CERTIFICATE-----\n".into()),
            cluster: "main".into(),
            table: "dynamodb://firn-disks?region=eu".into(),
            node_bytes: 1 << 40,
        }
    }

    #[test]
    fn a_script_names_its_node_and_has_no_place_left_open() {
        let (tenant, node) = (TenantId([1; 16]), NodeId([2; 16]));
        let script = boot().user_data(tenant, node, "zone-a", "firnjoin_x").unwrap();
        assert!(
            script.starts_with("#!/bin/sh\n") && !script.contains('@'),
            "{}",
            &**script
        );
        for part in [
            &*node.to_string(),
            &*tenant.to_string(),
            "firnjoin_x",
            "zone-a",
            "1099511627776",
            "AAA=",
        ] {
            assert!(script.contains(part), "{part}");
        }
    }

    #[test]
    fn what_would_end_a_quotation_is_refused() {
        for wrong in ["a'b", "a\nb", "$(x)", "`x`", "a\"b", "a\\b", "a b"] {
            let made = boot().user_data(TenantId([1; 16]), NodeId([2; 16]), wrong, "x");
            assert!(matches!(made, Err(ProvisionError::Refused(_))), "{wrong}");
        }
        let boot = Boot {
            authority: Some("'; rm -r /; '".into()),
            ..boot()
        };
        assert!(
            boot.user_data(TenantId([1; 16]), NodeId([2; 16]), "a", "x")
                .is_err()
        );
    }
}

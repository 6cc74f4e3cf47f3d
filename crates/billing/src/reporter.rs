//! Reporters of usage: the identity that the connection proved, and the role that it gives (charged, or compared only).

use firn_usage::{SourceId, TenantName};
use serde::{Deserialize, Serialize};

/// What a report is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReporterRole {
    /// Seen by the service itself: charged.
    Observed,
    /// Said by a customer's own edge: compared, never charged.
    Advisory,
}

/// An authenticated sender. Made by whoever verified the certificate or token, and by nobody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reporter {
    identity: SourceId,
    tenant: Option<TenantName>,
}

impl Reporter {
    /// A component of the service: it observes all tenants, and what it reports is charged.
    pub fn service(identity: SourceId) -> Self {
        Self {
            identity,
            tenant: None,
        }
    }

    /// An edge: bound to its tenant, and advisory.
    pub fn edge(identity: SourceId, tenant: TenantName) -> Self {
        Self {
            identity,
            tenant: Some(tenant),
        }
    }

    /// The one source under which it may report.
    pub fn identity(&self) -> &SourceId {
        &self.identity
    }

    /// The one tenant of which it may report; none: all.
    pub fn tenant(&self) -> Option<&TenantName> {
        self.tenant.as_ref()
    }

    /// What its reports are worth.
    pub fn role(&self) -> ReporterRole {
        match self.tenant {
            None => ReporterRole::Observed,
            Some(_) => ReporterRole::Advisory,
        }
    }
}

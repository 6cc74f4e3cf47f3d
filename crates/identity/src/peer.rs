//! The name in a certificate: a SPIFFE ID, so that a gateway reads it as we do.
//!
//! ```text
//! spiffe://<trust domain>/tenant/<tenant>/edge/<edge>       an edge is a tenant's: its certificate says whose
//! spiffe://<trust domain>/tenant/<tenant>/node/<node>       so is a node that a tenant runs for itself
//! spiffe://<trust domain>/tenant/<tenant>/disk/<disk>/attachment/<key>   a machine that attaches one disk, by its key
//! spiffe://<trust domain>/node/<node>                       the fleet's nodes, the API and the cleaner serve all tenants
//! spiffe://<trust domain>/service/<name>
//! ```
//!
//! A node copies from others, so the name says in whose cluster it may: the API writes a name of the fleet only for the tenant
//! in whose name the operator runs it, and nodes believe only names of their own cluster ([`PeerKind::is_node_beside`]).

use crate::{DiskId, EdgeId, KeyHash, NodeId, TenantId};
use rustls::pki_types::CertificateDer;
use std::fmt;

/// The longest trust domain and the longest service name.
const MAX_LABEL_BYTES: usize = 63;

/// What a peer is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerKind {
    /// An edge proxy of a tenant.
    Edge {
        /// Whose.
        tenant: TenantId,
        /// Which.
        edge: EdgeId,
    },
    /// A blockd node of the fleet, which holds blocks of all tenants.
    Node(NodeId),
    /// A blockd node that a tenant runs for itself: it has no business in the fleet.
    TenantNode {
        /// Whose.
        tenant: TenantId,
        /// Which.
        node: NodeId,
    },
    /// A machine of a tenant's that attaches one disk: its name is of its key, so that no other key can have it.
    Attachment {
        /// Whose disk.
        tenant: TenantId,
        /// Which.
        disk: DiskId,
        /// The hash of the key that its certificate is for.
        key: KeyHash,
    },
    /// A service of ours: lower-case letters, digits and hyphens.
    Service(String),
}

impl PeerKind {
    /// The node it names, if it names one: of the fleet or of a tenant.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Self::Node(node) | Self::TenantNode { node, .. } => Some(*node),
            Self::Edge { .. } | Self::Attachment { .. } | Self::Service(_) => None,
        }
    }

    /// The name of another node in the cluster of this one: of the fleet, or of the same tenant. Nothing if this is no node.
    pub fn beside(&self, node: NodeId) -> Option<Self> {
        match self {
            Self::Node(_) => Some(Self::Node(node)),
            Self::TenantNode { tenant, .. } => Some(Self::TenantNode {
                tenant: *tenant,
                node,
            }),
            Self::Edge { .. } | Self::Attachment { .. } | Self::Service(_) => None,
        }
    }

    /// Whether both are nodes that can be in one cluster: both of the fleet, or both of one tenant. Only such nodes copy from
    /// each other.
    pub fn is_node_beside(&self, other: &Self) -> bool {
        other
            .node()
            .is_some_and(|node| self.beside(node).as_ref() == Some(other))
    }
}

/// Who a certificate says its holder is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerIdentity {
    /// The installation it belongs to.
    pub trust_domain: String,
    /// What and who.
    pub kind: PeerKind,
}

/// Why a certificate's name is not one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The bytes are no certificate.
    #[error("not a certificate")]
    NotACertificate,
    /// Not exactly one name, or not of the form we write.
    #[error("the certificate does not hold exactly one Firn name")]
    NotOurName,
}

impl PeerIdentity {
    /// Reads a name.
    ///
    /// # Errors
    /// [`PeerError::NotOurName`] if it is not exactly of the form above.
    pub fn parse(uri: &str) -> Result<Self, PeerError> {
        let path = uri.strip_prefix("spiffe://").ok_or(PeerError::NotOurName)?;
        let parts: Vec<&str> = path.split('/').take(8).collect();
        let kind = match parts[1..] {
            ["tenant", tenant, "edge", edge] => PeerKind::Edge {
                tenant: tenant.parse().map_err(|_| PeerError::NotOurName)?,
                edge: edge.parse().map_err(|_| PeerError::NotOurName)?,
            },
            ["tenant", tenant, "node", node] => PeerKind::TenantNode {
                tenant: tenant.parse().map_err(|_| PeerError::NotOurName)?,
                node: node.parse().map_err(|_| PeerError::NotOurName)?,
            },
            ["tenant", tenant, "disk", disk, "attachment", key] => PeerKind::Attachment {
                tenant: tenant.parse().map_err(|_| PeerError::NotOurName)?,
                disk: disk.parse().map_err(|_| PeerError::NotOurName)?,
                key: KeyHash::parse(key).ok_or(PeerError::NotOurName)?,
            },
            ["node", node] => PeerKind::Node(node.parse().map_err(|_| PeerError::NotOurName)?),
            ["service", name] if is_label(name, false) => PeerKind::Service(name.to_owned()),
            [..] => return Err(PeerError::NotOurName),
        };
        if !is_label(parts[0], true) {
            return Err(PeerError::NotOurName);
        }
        Ok(Self {
            trust_domain: parts[0].to_owned(),
            kind,
        })
    }

    /// Reads the name of a certificate **that was verified**, as a TLS connection's peer certificate was.
    ///
    /// # Errors
    /// [`PeerError`] if it holds no such name, or more than one.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Result<Self, PeerError> {
        let certificate =
            webpki::EndEntityCert::try_from(certificate).map_err(|_| PeerError::NotACertificate)?;
        let mut names = certificate.valid_uri_names();
        match (names.next(), names.next()) {
            (Some(name), None) => Self::parse(name),
            (None, _) | (Some(_), Some(_)) => Err(PeerError::NotOurName),
        }
    }

    /// Whether the name can be written into a certificate and read back.
    pub(crate) fn is_writable(&self) -> bool {
        Self::parse(&self.to_string()).as_ref() == Ok(self)
    }
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "spiffe://{}/", self.trust_domain)?;
        match &self.kind {
            PeerKind::Edge { tenant, edge } => write!(formatter, "tenant/{tenant}/edge/{edge}"),
            PeerKind::TenantNode { tenant, node } => write!(formatter, "tenant/{tenant}/node/{node}"),
            PeerKind::Attachment { tenant, disk, key } => {
                write!(formatter, "tenant/{tenant}/disk/{disk}/attachment/{key}")
            }
            PeerKind::Node(node) => write!(formatter, "node/{node}"),
            PeerKind::Service(name) => write!(formatter, "service/{name}"),
        }
    }
}

fn is_label(text: &str, dots: bool) -> bool {
    (1..=MAX_LABEL_BYTES).contains(&text.len())
        && text.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || (dots && byte == b'.')
        })
}

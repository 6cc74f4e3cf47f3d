//! Authorization of a node's callers: capabilities and names.
//!
//! A capability names a tenant, a disk under one fence, the rights, and when it ends. It is presented on a connection and
//! holds there until it ends. A node trusts an [`Authenticator`] to tell it what a capability's bytes, or the name in a
//! caller's certificate, mean; [`CapabilityAuthenticator`] reads the capabilities of `firn-identity`, which the API signs
//! and a node checks without asking anybody.
//!
//! A node needs no capability to copy from another: its certificate says which one it is, and the table in which rows. Where there
//! are no certificates (simulations), a capability with the right to repair and no disk stands for it, and only there.
//!
//! Where there are certificates, who calls is what they say, never what is presented: a capability must name the caller as its
//! holder, so that one that was copied is good for nobody; an edge's must be its own tenant's, and an attached machine's for the one
//! disk that its certificate names.

use firn_blockd_protocol::{DiskId, Fence, NodeId, Peer, Refusal, TenantId};
use firn_env::WallTime;
use firn_identity::{CapabilityError, CapabilityVerifier, PeerKind, Rights, UnixTime};

/// What a capability allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One attach of one disk.
    Disk {
        /// Which disk.
        disk: DiskId,
        /// Under this fence and no other.
        fence: Fence,
        /// Writing too.
        write: bool,
        /// Setting the fence too.
        attach: bool,
    },
    /// A node: of the rows that it is in it may list and fetch, to copy.
    Node(NodeId),
}

/// What a verified capability says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whose work it is, for the fair queue of the disk.
    pub tenant: TenantId,
    /// What it allows.
    pub scope: Scope,
    /// When it ends, in milliseconds since 1970.
    pub expires_unix_ms: i64,
}

/// Why a capability is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// Nobody of this cluster made it, or not for this caller.
    #[error("the capability is not valid: {0}")]
    Invalid(String),
    /// It has ended.
    #[error("the capability has expired")]
    Expired,
}

impl From<AuthError> for Refusal {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::Invalid(reason) => Self::CapabilityInvalid(reason),
            AuthError::Expired => Self::CapabilityExpired,
        }
    }
}

/// Says what callers may do.
pub trait Authenticator: Send + Sync + 'static {
    /// What these bytes allow this caller.
    ///
    /// # Errors
    /// [`AuthError`].
    fn verify(&self, capability: &[u8], peer: &Peer, now: WallTime) -> Result<Grant, AuthError>;

    /// What a caller's name allows by itself.
    fn by_name(&self, peer: &Peer) -> Option<Grant>;
}

/// The tenant for whom nodes copy: everybody.
const NOBODY: TenantId = TenantId([0; 16]);
/// The disk in a capability that is for no disk.
const NO_DISK: [u8; 16] = [0; 16];

/// Accepts the capabilities that the holders of some keys signed.
pub struct CapabilityAuthenticator {
    verifier: CapabilityVerifier,
    /// The tenant whose cluster it is; nobody's in the fleet.
    own: Option<TenantId>,
}

impl CapabilityAuthenticator {
    /// Accepts what this verifier accepts.
    pub fn new(verifier: CapabilityVerifier) -> Self {
        Self { verifier, own: None }
    }

    /// The same for a cluster that a tenant runs for itself: its nodes are those whose certificates name the tenant, and its
    /// disks are the tenant's.
    #[must_use]
    pub fn of_tenant(self, tenant: TenantId) -> Self {
        Self {
            own: Some(tenant),
            ..self
        }
    }
}

impl Authenticator for CapabilityAuthenticator {
    fn verify(&self, capability: &[u8], peer: &Peer, now: WallTime) -> Result<Grant, AuthError> {
        let invalid = |error: CapabilityError| match error {
            CapabilityError::Expired => AuthError::Expired,
            other => AuthError::Invalid(other.to_string()),
        };
        let verified = self
            .verifier
            .verify(capability, UnixTime::from_wall(now))
            .map_err(invalid)?;
        let says = verified.capability();
        match (&peer.identity, says.holder) {
            (Some(_), None) => return Err(AuthError::Invalid("it names no holder".into())),
            (Some(identity), Some(_)) => {
                verified
                    .permit(says.tenant, says.disk, Rights::default(), says.fence, identity)
                    .map_err(invalid)?;
                let (tenant, disk) = match identity.kind {
                    PeerKind::Edge { tenant, .. } => (Some(tenant), None),
                    PeerKind::Attachment { tenant, disk, .. } => (Some(tenant), Some(disk)),
                    PeerKind::Node(_) | PeerKind::TenantNode { .. } | PeerKind::Service(_) => (None, None),
                };
                if tenant.is_some_and(|tenant| tenant != says.tenant) {
                    return Err(AuthError::Invalid("it is another tenant's".into()));
                }
                if disk.is_some_and(|disk| disk != says.disk) {
                    return Err(AuthError::Invalid("it is for another disk".into()));
                }
            }
            (None, Some(_)) => return Err(invalid(CapabilityError::WrongHolder)),
            (None, None) => {}
        }
        if self.own.is_some_and(|own| own != says.tenant) {
            return Err(AuthError::Invalid("this cluster is another tenant's".into()));
        }
        let expires_unix_ms = i64::try_from(says.expires.0.saturating_mul(1000)).unwrap_or(i64::MAX);
        if now.as_millis() >= expires_unix_ms {
            return Err(AuthError::Expired);
        }
        let scope = if says.disk.0 == NO_DISK {
            // With a certificate a node is who that says.
            if !says.rights.include(Rights::REPAIR) || peer.identity.is_some() {
                return Err(AuthError::Invalid("it is for no disk".into()));
            }
            Scope::Node(NodeId(says.tenant.0))
        } else {
            if !says.rights.include(Rights::READ) {
                return Err(AuthError::Invalid("it does not allow reading".into()));
            }
            let fence = u32::try_from(says.fence)
                .map_err(|_| AuthError::Invalid("its fence is beyond what a disk can have".into()))?;
            Scope::Disk {
                disk: says.disk,
                fence: Fence(fence),
                write: says.rights.include(Rights::WRITE),
                attach: says.rights.include(Rights::ATTACH),
            }
        };
        Ok(Grant {
            tenant: match scope {
                Scope::Disk { .. } => says.tenant,
                Scope::Node(_) => NOBODY,
            },
            scope,
            expires_unix_ms,
        })
    }

    fn by_name(&self, peer: &Peer) -> Option<Grant> {
        let node = match (&peer.identity.as_ref()?.kind, self.own) {
            (PeerKind::Node(node), None) => *node,
            (PeerKind::TenantNode { tenant, node }, Some(own)) if *tenant == own => *node,
            // Nodes of other clusters are strangers, as are all who are no nodes.
            (PeerKind::Node(_) | PeerKind::TenantNode { .. }, _)
            | (PeerKind::Edge { .. } | PeerKind::Attachment { .. } | PeerKind::Service(_), _) => return None,
        };
        Some(Grant {
            tenant: NOBODY,
            scope: Scope::Node(node),
            // As long as the connection, which its certificate has opened.
            expires_unix_ms: i64::MAX,
        })
    }
}

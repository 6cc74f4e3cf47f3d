//! Who may do what: capabilities.
//!
//! A capability names a tenant, a scope (a disk under one fence, or a node of the cluster), and when it ends. It is
//! presented on a connection and holds there until it ends. A node trusts an [`Authenticator`] to tell it what a
//! capability's bytes mean; [`KeyedAuthenticator`] is the one for clusters whose members share a key.

use aws_lc_rs::hmac;
use bytes::Bytes;
use firn_blockd_protocol::{DiskId, Fence, NodeId, Refusal, TenantId};
use firn_env::WallTime;

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
    },
    /// A node of the cluster: it may list and fetch, to copy.
    Node(NodeId),
}

/// What a verified capability says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whose work it is, for the turns at the disk.
    pub tenant: TenantId,
    /// What it allows.
    pub scope: Scope,
    /// When it ends, in milliseconds since 1970.
    pub expires_unix_ms: i64,
}

/// Why a capability is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// Nobody of this cluster made it.
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

/// Verifies capabilities.
pub trait Authenticator: Send + Sync + 'static {
    /// What these bytes allow.
    ///
    /// # Errors
    /// [`AuthError`].
    fn verify(&self, capability: &[u8], now: WallTime) -> Result<Grant, AuthError>;
}

/// A capability to be signed.
pub type Capability = Grant;

/// Signs and verifies with one key that all members of the cluster share (HMAC-SHA-256).
///
/// ```text
/// capability = version u8 | tenant [16] | scope u8 | disk or node [16] | fence u32 | write u8 | expires i64 | mac [32]
/// ```
///
/// It is a bearer's token: it must travel over connections that nobody reads.
pub struct KeyedAuthenticator {
    key: hmac::Key,
}

const VERSION: u8 = 1;
const FIELDS_BYTES: usize = 1 + 16 + 1 + 16 + 4 + 1 + 8;

impl KeyedAuthenticator {
    /// With this key, of 32 bytes of good randomness.
    pub fn new(key: &[u8; 32]) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, key),
        }
    }

    /// The bytes of a capability.
    pub fn sign(&self, capability: &Capability) -> Bytes {
        let mut bytes = vec![VERSION];
        bytes.extend(capability.tenant.0);
        match capability.scope {
            Scope::Disk { disk, fence, write } => {
                bytes.push(1);
                bytes.extend(disk.0);
                bytes.extend(fence.0.to_le_bytes());
                bytes.push(write.into());
            }
            Scope::Node(node) => {
                bytes.push(2);
                bytes.extend(node.0);
                bytes.extend([0; 5]);
            }
        }
        bytes.extend(capability.expires_unix_ms.to_le_bytes());
        let mac = hmac::sign(&self.key, &bytes);
        bytes.extend_from_slice(mac.as_ref());
        bytes.into()
    }
}

impl Authenticator for KeyedAuthenticator {
    fn verify(&self, capability: &[u8], now: WallTime) -> Result<Grant, AuthError> {
        let invalid = |reason: &str| AuthError::Invalid(reason.into());
        if capability.len() != FIELDS_BYTES + 32 || capability[0] != VERSION {
            return Err(invalid("it is not of this kind"));
        }
        let (fields, mac) = capability.split_at(FIELDS_BYTES);
        hmac::verify(&self.key, fields, mac).map_err(|_| invalid("its signature does not match"))?;
        let id = |at: usize| -> [u8; 16] { fields[at..at + 16].try_into().expect("sixteen bytes") };
        let scope = match (fields[17], fields[38]) {
            (1, write @ (0 | 1)) => Scope::Disk {
                disk: DiskId(id(18)),
                fence: Fence(u32::from_le_bytes(fields[34..38].try_into().expect("four bytes"))),
                write: write == 1,
            },
            (2, 0) => Scope::Node(NodeId(id(18))),
            _ => return Err(invalid("its scope is unknown")),
        };
        let expires_unix_ms = i64::from_le_bytes(fields[39..47].try_into().expect("eight bytes"));
        if now.as_millis() >= expires_unix_ms {
            return Err(AuthError::Expired);
        }
        Ok(Grant {
            tenant: TenantId(id(1)),
            scope,
            expires_unix_ms,
        })
    }
}

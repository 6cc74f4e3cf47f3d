//! Access of a client to nodes: its transport, and the capability that it presents.

use async_trait::async_trait;
use bytes::Bytes;
use firn_blockd_protocol::{DiskId, Fence, TenantId, Transport};
use firn_env::Env;
use firn_identity::{Capability, CapabilityIssuer, HolderHash, Rights, UnixTime};
use std::sync::Arc;

/// A client's way to nodes; cheap to clone.
#[derive(Clone)]
pub struct Access {
    /// What connections travel over.
    pub transport: Transport,
    /// Where capabilities come from.
    pub capabilities: Arc<dyn CapabilitySource>,
}

/// Why there is no capability now. It is asked for again as long as it is needed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no capability for this disk: {0}")]
pub struct NoCapability(pub String);

/// Gives capabilities: the API, or whoever holds the cluster's signing key.
#[async_trait]
pub trait CapabilitySource: Send + Sync + 'static {
    /// One for an attach of a disk, for all that a client does.
    ///
    /// # Errors
    /// [`NoCapability`].
    async fn capability(&self, tenant: TenantId, disk: DiskId, fence: Fence) -> Result<Bytes, NoCapability>;
}

/// Signs capabilities itself: where the operator of the cluster and its user are the same.
pub struct IssuedHere {
    env: Env,
    issuer: CapabilityIssuer,
    holder: Option<HolderHash>,
    seconds: u64,
}

impl IssuedHere {
    /// Signs with `issuer` for `holder` (anyone if nobody is named), each for so many seconds.
    pub fn new(env: &Env, issuer: CapabilityIssuer, holder: Option<HolderHash>, seconds: u64) -> Self {
        Self {
            env: env.clone(),
            issuer,
            holder,
            seconds,
        }
    }
}

#[async_trait]
impl CapabilitySource for IssuedHere {
    async fn capability(&self, tenant: TenantId, disk: DiskId, fence: Fence) -> Result<Bytes, NoCapability> {
        let now = UnixTime::from_wall(self.env.wall());
        let capability = Capability {
            tenant,
            disk,
            rights: Rights::READ.and(Rights::WRITE).and(Rights::ATTACH),
            fence: fence.0.into(),
            not_before: now,
            expires: now.plus(self.seconds),
            holder: self.holder,
        };
        Ok(Bytes::copy_from_slice(&self.issuer.issue(&capability)))
    }
}

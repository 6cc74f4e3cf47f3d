//! Clouds that give whatever is asked for.

use async_trait::async_trait;
use firn_api::{CloudError, CloudSession, CloudSessions, Place, ProofRequest, SessionRequest};
use firn_identity::{TenantId, UnixTime};

/// A cloud that gives whatever is asked for, and shows in the session's token what that was.
pub struct Cloud;

#[async_trait]
impl CloudSessions for Cloud {
    fn managed(&self, region: &str, tenant: TenantId, volume: firn_identity::VolumeId) -> Option<Place> {
        (region != "nowhere").then(|| Place {
            bucket: format!("firn-{region}"),
            prefix: format!("{tenant}/{volume}"),
        })
    }

    async fn start(&self, request: &SessionRequest) -> Result<CloudSession, CloudError> {
        Ok(CloudSession {
            access_key_id: request.edge.to_string(),
            secret_access_key: request.role.clone().unwrap_or_default(),
            session_token: request.policy.clone(),
            expires: UnixTime(request.seconds),
        })
    }

    /// Roles called `shut` refuse everybody.
    async fn prove(&self, request: &ProofRequest) -> Result<(), CloudError> {
        if request.role.ends_with("shut") {
            return Err(CloudError::Refused("AccessDenied".into()));
        }
        Ok(())
    }
}

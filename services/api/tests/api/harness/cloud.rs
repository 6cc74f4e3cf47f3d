//! Clouds that give whatever is asked for.

use async_trait::async_trait;
use firn_api::{
    AwsSession, CloudCredential, CloudError, CloudSession, CloudSessions, Place, ProofRequest, RingObject,
    SessionRequest,
};
use firn_identity::{TenantId, UnixTime};

/// A cloud that gives whatever is asked for, and shows in the session's token what that was.
pub struct Cloud;

#[async_trait]
impl CloudSessions for Cloud {
    fn managed(&self, region: &str, tenant: TenantId, volume: firn_identity::VolumeId) -> Option<Place> {
        (region != "nowhere").then(|| Place {
            account: None,
            bucket: format!("firn-{region}"),
            prefix: format!("{tenant}/{volume}"),
        })
    }

    fn regions(&self) -> Option<Vec<String>> {
        None
    }

    async fn start(&self, request: &SessionRequest) -> Result<CloudSession, CloudError> {
        let policy = request.policy();
        let session = AwsSession {
            access_key_id: request.edge.to_string(),
            secret_access_key: request.role.clone().unwrap_or_default(),
            session_token: policy.map_err(|error| CloudError::Refused(error.to_string()))?,
        };
        Ok(CloudSession {
            credential: CloudCredential::Aws(session),
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

    async fn keep(&self, ring: &RingObject) -> Result<(), CloudError> {
        assert!(ring.key.contains("/keyring/"), "{ring:?}");
        Ok(())
    }
}

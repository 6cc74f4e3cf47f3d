//! A service in two clouds.

use super::{CloudError, CloudSession, CloudSessions, Place, ProofRequest, RingObject, SessionRequest};
use async_trait::async_trait;
use firn_identity::{TenantId, VolumeId};
use std::sync::Arc;

/// A service in two clouds: each is asked for its own places.
pub struct BothClouds {
    /// For buckets of S3.
    pub s3: Arc<dyn CloudSessions>,
    /// For containers of Azure.
    pub azure: Arc<dyn CloudSessions>,
}

impl BothClouds {
    fn of(&self, place: &Place) -> &dyn CloudSessions {
        match place.account {
            None => &*self.s3,
            Some(_) => &*self.azure,
        }
    }
}

#[async_trait]
impl CloudSessions for BothClouds {
    fn managed(&self, region: &str, tenant: TenantId, volume: VolumeId) -> Option<Place> {
        let in_s3 = self.s3.managed(region, tenant, volume);
        in_s3.or_else(|| self.azure.managed(region, tenant, volume))
    }

    fn store_url(&self, place: &Place, region: &str) -> Option<String> {
        self.of(place).store_url(place, region)
    }

    fn regions(&self) -> Option<Vec<String>> {
        let (mut all, azure) = (self.s3.regions()?, self.azure.regions()?);
        all.extend(azure);
        Some(all)
    }

    async fn start(&self, request: &SessionRequest) -> Result<CloudSession, CloudError> {
        self.of(&request.place).start(request).await
    }

    async fn prove(&self, request: &ProofRequest) -> Result<(), CloudError> {
        self.of(&request.place).prove(request).await
    }

    async fn keep(&self, ring: &RingObject) -> Result<(), CloudError> {
        self.of(&ring.place).keep(ring).await
    }
}

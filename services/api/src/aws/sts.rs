//! Sessions of AWS's Security Token Service: a role, narrowed by a session policy to one volume's prefix, for a quarter of an hour.

use super::{
    AwsAccount, AwsError,
    proof::{keep_ring, prove_objects},
};
use crate::{
    cloud::{
        AwsSession, CloudCredential, CloudError, CloudSession, CloudSessions, Place, ProofRequest,
        RingObject, SESSION_SECONDS, SessionRequest,
    },
    secrets::hex,
};
use async_trait::async_trait;
use firn_identity::{TenantId, TenantVolume, UnixTime, VolumeId};
use jiff::Timestamp;
use std::collections::BTreeMap;

const VERSION: &str = "2011-06-15";

/// Gives sessions of roles that this service may assume: its own for buckets it manages, a tenant's for the tenant's.
pub struct StsSessions {
    account: AwsAccount,
    /// The role for managed buckets.
    role: String,
    /// Managed buckets by region.
    buckets: BTreeMap<String, String>,
    /// Where buckets are, if not at Amazon's.
    object_endpoint: Option<String>,
}

impl StsSessions {
    /// `role` is assumed for the buckets in `buckets`, which are named by region.
    pub fn new(account: AwsAccount, role: String, buckets: BTreeMap<String, String>) -> Self {
        Self {
            account,
            role,
            buckets,
            object_endpoint: None,
        }
    }

    /// Looks for tenants' buckets at a store that is not Amazon's own.
    pub fn with_object_endpoint(self, endpoint: Option<String>) -> Self {
        Self {
            object_endpoint: endpoint,
            ..self
        }
    }

    async fn assume(
        &self,
        role: &str,
        name: &str,
        policy: &str,
        external_id: Option<&str>,
        seconds: u64,
    ) -> Result<(AwsSession, UnixTime), CloudError> {
        let mut fields = vec![
            ("RoleArn", role.to_owned()),
            ("RoleSessionName", name.to_owned()),
            ("DurationSeconds", seconds.to_string()),
            ("Policy", policy.to_owned()),
        ];
        fields.extend(external_id.map(|id| ("ExternalId", id.to_owned())));
        let fields: Vec<_> = fields
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let reply = self
            .account
            .call("sts", VERSION, "AssumeRole", &fields)
            .await
            .map_err(|error| match error {
                AwsError::Refused { .. } => CloudError::Refused(error.to_string()),
                AwsError::Unavailable { .. } => CloudError::Unavailable(error.to_string()),
            })?;
        let field = |name: &str| {
            let missing = || CloudError::Unavailable(format!("the reply names no {name}"));
            reply
                .first(name)
                .filter(|text| !text.is_empty())
                .ok_or_else(missing)
        };
        let expires = field("Expiration")?;
        let session = AwsSession {
            access_key_id: field("AccessKeyId")?,
            secret_access_key: field("SecretAccessKey")?,
            session_token: field("SessionToken")?,
        };
        let ends =
            time(&expires).ok_or_else(|| CloudError::Unavailable(format!("{expires:?} is no time")))?;
        Ok((session, ends))
    }
}

/// RFC 3339, as AWS writes it: `2026-11-21T23:00:00Z`, perhaps with a fraction, which is dropped.
fn time(text: &str) -> Option<UnixTime> {
    let time: Timestamp = text.parse().ok()?;
    u64::try_from(time.as_second()).ok().map(UnixTime)
}

#[async_trait]
impl CloudSessions for StsSessions {
    fn managed(&self, region: &str, tenant: TenantId, volume: VolumeId) -> Option<Place> {
        self.buckets.get(region).map(|bucket| Place {
            account: None,
            bucket: bucket.clone(),
            prefix: TenantVolume { tenant, volume }.to_string(),
        })
    }

    fn store_url(&self, place: &Place, region: &str) -> Option<String> {
        let Place { bucket, prefix, .. } = place;
        let endpoint = self.object_endpoint.as_ref();
        let endpoint = endpoint.map_or(String::new(), |endpoint| format!("&endpoint={endpoint}"));
        Some(format!("s3://{bucket}/{prefix}?region={region}{endpoint}"))
    }

    fn regions(&self) -> Option<Vec<String>> {
        Some(self.buckets.keys().cloned().collect())
    }

    async fn start(&self, request: &SessionRequest) -> Result<CloudSession, CloudError> {
        let refused = |why: String| CloudError::Refused(why);
        if request.place.account.is_some() {
            return Err(refused("that is no bucket of S3".into()));
        }
        let policy = request.policy().map_err(|error| refused(error.to_string()))?;
        let own = request.role.as_ref();
        let role = own.unwrap_or(&self.role);
        // By this name the bucket's log tells edges apart.
        let name = request.edge.to_string();
        // A tenant's role demands the tenant's external id: so no tenant can name another's role.
        let external_id = own.map(|_| &*request.external_id);
        let (session, expires) = self
            .assume(role, &name, &policy, external_id, request.seconds)
            .await?;
        Ok(CloudSession {
            credential: CloudCredential::Aws(session),
            expires,
        })
    }

    async fn prove(&self, request: &ProofRequest) -> Result<(), CloudError> {
        let nonce = hex(&self.account.env.random_bytes::<16>());
        let name = format!("proof-{}", request.volume);
        let policy = request.place.proof_policy(&nonce);
        let ask = async |external_id: &str| {
            self.assume(&request.role, &name, &policy, Some(external_id), SESSION_SECONDS)
                .await
        };
        // A role that does not look at the external id could be named by any other tenant.
        let stranger = format!("not-{nonce}");
        match ask(&stranger).await {
            Err(CloudError::Refused(_)) => {}
            Err(error) => return Err(error),
            Ok(_) => {
                return Err(CloudError::Refused(
                    "the role lets anybody in who names it: its trust policy must demand sts:ExternalId"
                        .into(),
                ));
            }
        }
        let (session, _) = ask(&request.external_id).await?;
        let endpoint = self.object_endpoint.as_deref();
        prove_objects(&self.account.env, &request.place, &nonce, &session, endpoint).await
    }

    async fn keep(&self, ring: &RingObject) -> Result<(), CloudError> {
        let own = ring.role.as_ref();
        let role = own.unwrap_or(&self.role);
        let name = format!("rings-{}", ring.volume);
        let external_id = own.map(|_| &*ring.external_id);
        let (session, _) = self
            .assume(role, &name, &ring.policy(), external_id, SESSION_SECONDS)
            .await?;
        keep_ring(&self.account.env, ring, &session, self.object_endpoint.as_deref()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_the_calendar_has_them() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2000-03-01T00:00:00Z", 951_868_800),
            ("2026-11-21T23:00:00.123Z", 1_795_302_000),
            ("2026-11-21T23:00:00+01:00", 1_795_298_400),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
        ] {
            assert_eq!(time(text), Some(UnixTime(seconds)), "{text}");
        }
        for wrong in ["", "2026-11-21", "2026-13-01T00:00:00Z", "2026-11-21T24:00:00Z"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
    }
}

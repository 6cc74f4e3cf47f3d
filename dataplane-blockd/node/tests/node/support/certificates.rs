//! Certificates of a cluster's authority, and connections under any name that it knows.

use super::{KEY, capability_for};
use bytes::Bytes;
use firn_blockd_node::{CapabilityAuthenticator, Scope, Security};
use firn_blockd_protocol::*;
use firn_env::Env;
use firn_identity::{
    CapabilityIssuer, CapabilityVerifier, CertificateAuthority, Expected, HolderHash, MAX_CAPABILITY_SECONDS,
    PeerIdentity, PeerKind, SigningKey, TlsIdentity, UnixTime, certificate_request, client_config,
};
use std::sync::Arc;
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

const TRUST_DOMAIN: &str = "firn.test";
/// Before every simulation begins.
const AUTHORITY_SINCE: UnixTime = UnixTime(1_735_689_600);

fn authority() -> CertificateAuthority {
    CertificateAuthority::from_seed([5; 32], TRUST_DOMAIN, AUTHORITY_SINCE).expect("it is a name")
}

/// Somebody to whom the service's authority gave a certificate.
#[derive(Clone)]
pub struct Named {
    pub name: PeerIdentity,
    identity: TlsIdentity,
}

impl Named {
    pub fn new(env: &Env, kind: PeerKind) -> Self {
        let name = PeerIdentity {
            trust_domain: TRUST_DOMAIN.into(),
            kind,
        };
        let key = SigningKey::from_seed(env.random_bytes());
        let request = certificate_request(&key, &name);
        let now = UnixTime::from_wall(env.wall());
        let mut entropy = |bytes: &mut [u8]| bytes.copy_from_slice(&env.random_bytes::<32>()[..bytes.len()]);
        let issued = authority()
            .issue(&request, &name, &[], now, &mut entropy)
            .expect("the request is its own");
        Self {
            name,
            identity: TlsIdentity::new(&key, &issued).expect("key and certificate belong together"),
        }
    }

    /// What a node under this name is secured with, as one that joined through the service.
    pub fn security(&self, env: &Env) -> Security {
        let authorities = vec![authority().certificate().clone()];
        let transport = Transport::mutual(env, self.identity.clone(), authorities, TRUST_DOMAIN)
            .expect("the authority's certificate is one");
        let verifier = CapabilityVerifier::new([CapabilityIssuer::from_seed(KEY).public()]);
        let accepts = CapabilityAuthenticator::new(verifier);
        Security {
            transport,
            authenticator: Arc::new(match self.name.kind {
                PeerKind::TenantNode { tenant, .. } => accepts.of_tenant(tenant),
                _ => accepts,
            }),
            capability: Arc::new(|| None),
        }
    }

    /// Connects to whoever is called `server`, which the caller knows: what keeps strangers out must be at the other end.
    pub async fn connect(
        &self,
        env: &Env,
        server: PeerKind,
        address: &str,
        options: ConnectionOptions,
    ) -> Result<Connection, CallError> {
        let expected = Expected::Peer(PeerIdentity {
            trust_domain: TRUST_DOMAIN.into(),
            kind: server,
        });
        let lost = |error: std::io::Error| CallError::Lost(error.to_string());
        let authorities = [authority().certificate().clone()];
        let config = client_config(env, &self.identity, &authorities, expected).expect("it is a certificate");
        let stream = env.network().connect(address).await.map_err(lost)?;
        let sent = ServerName::try_from("node.firn").expect("a constant that is a name");
        let stream = TlsConnector::from(Arc::new(config))
            .connect(sent, stream)
            .await
            .map_err(lost)?;
        Connection::over(env, Box::new(stream), options).await
    }

    /// A capability of the cluster's issuer for this holder.
    pub fn capability(&self, env: &Env, tenant: TenantId, scope: Scope) -> Bytes {
        let expires = UnixTime::from_wall(env.wall()).plus(MAX_CAPABILITY_SECONDS);
        capability_for(env, tenant, scope, expires, Some(HolderHash::of(&self.name)))
    }
}

//! A node whose certificates come from the control plane: it joins once with a secret, says that it lives, renews.
//!
//! ```text
//! <directory>/identity/join-secret            given to the machine; removed once it was used
//! <directory>/identity/server-authority.pem   the authority of the service's certificate, if the machine's own do not know it
//! <directory>/identity/joined.json            key, certificate, authority, capability key; replaced whole
//! ```
//!
//! The service's heartbeats tell people and the pool that the node lives; the cluster's own, in the table, are what placement goes
//! by. So a service that is away holds up nothing that the node does.

use crate::{config::ServiceSection, failure::Failure, https};
use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_blockd_node::{CapabilityAuthenticator, Node, Security};
use firn_blockd_protocol::Transport;
use firn_env::{Backoff, Env, Retry};
use firn_identity::{
    CapabilityKey, CapabilityVerifier, CertificateDer, IssuedCertificate, JoinSecret, NodeId, PeerIdentity,
    PeerKind, SigningKey, TlsIdentity, UnixTime, certificate_request,
};
use firn_usage::{SinkError, UsageBatch, UsageSink};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use std::{
    fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use zeroize::Zeroizing;

/// A tract's bytes: what free tracts are told in.
const TRACT_BYTES: u64 = 8 << 20;
/// A node that missed a dozen of these is lost to the service.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Tries to join, a second apart: a service that is being started, or a network that comes up. Then the machine is at fault.
const JOIN_RETRY: Retry = Retry::new(Backoff::constant(Duration::from_secs(1)), 120);
const FILE_BYTES_MAX: u64 = 64 << 10;
const VERSION: u16 = 1;

/// `joined.json`.
#[derive(Clone, Serialize, Deserialize)]
struct Kept {
    version: u16,
    /// The seed of the signing key, base64.
    #[serde(serialize_with = "show_secret", deserialize_with = "read_secret")]
    key: Zeroizing<String>,
    certificate: String,
    authority: String,
    capability_key: String,
    expires: u64,
    renew_after: u64,
}

fn show_secret<S: Serializer>(secret: &Zeroizing<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret)
}

fn read_secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Zeroizing<String>, D::Error> {
    String::deserialize(deserializer).map(Zeroizing::new)
}

/// What the service issues.
#[derive(Deserialize)]
struct Issued {
    certificate: String,
    authority: String,
    expires: u64,
    renew_after: u64,
}

#[derive(Deserialize)]
struct Answer {
    certificate: Issued,
    capability_key: String,
}

/// A node that has joined.
pub struct Joined {
    env: Env,
    service: ServiceSection,
    place: PathBuf,
    kept: Kept,
    identity: TlsIdentity,
    name: PeerIdentity,
}

fn decoded(what: &str, text: &str) -> Result<Vec<u8>, Failure> {
    STANDARD_NO_PAD
        .decode(text)
        .map_err(|_| Failure::new(format!("{what} is not base64")))
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::usage(format!("{}: {error}", path.display()));
    let length = fs::metadata(path).map_err(|error| failed(&error))?.len();
    if length > FILE_BYTES_MAX {
        return Err(failed(&format!("{length} bytes are too many")));
    }
    fs::read(path).map(Zeroizing::new).map_err(|error| failed(&error))
}

/// Replaces a file that only its owner reads, whole: a crash leaves the old one or the new one.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let next = path.with_extension("new");
    let written = || {
        match fs::remove_file(&next) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&next)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&next, path)?;
        match path.parent() {
            Some(directory) => fs::File::open(directory)?.sync_all(),
            None => Ok(()),
        }
    };
    written().map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

impl Kept {
    fn signing_key(&self) -> Result<SigningKey, Failure> {
        let seed = Zeroizing::new(decoded("the key in joined.json", &self.key)?);
        let seed: [u8; 32] = seed[..]
            .try_into()
            .map_err(|_| Failure::new("the key in joined.json is none"))?;
        Ok(SigningKey::from_seed(seed))
    }

    fn issued(&self) -> Result<IssuedCertificate, Failure> {
        Ok(IssuedCertificate {
            certificate: CertificateDer::from(decoded("the certificate", &self.certificate)?),
            expires: UnixTime(self.expires),
            renew_after: UnixTime(self.renew_after),
        })
    }
}

/// Calls the service; with a certificate once there is one.
async fn call(
    service: &ServiceSection,
    place: &Path,
    kept: Option<&Kept>,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, Failure> {
    let authority = place.join("server-authority.pem");
    let authority = match authority.exists() {
        true => Some(read(&authority)?),
        false => None,
    };
    let identity = match kept {
        Some(kept) => Some((
            kept.signing_key()?,
            decoded("the certificate", &kept.certificate)?,
        )),
        None => None,
    };
    let identity = identity
        .as_ref()
        .map(|(key, certificate)| (key, &certificate[..]));
    let client = https::client(authority.as_deref().map(|text| &text[..]), identity)?;
    let url = format!("{}{path}", service.server.trim_end_matches('/'));
    let request = match body {
        None => client.get(&url),
        Some(body) => client
            .post(&url)
            .header("content-type", "application/json")
            .body(body.to_string()),
    };
    let silent = |why: &dyn std::fmt::Display| Failure::new(format!("{url}: {why}"));
    let (status, text) = https::exchange(request).await.map_err(|why| silent(&why))?;
    let reply: Value = serde_json::from_slice(&text).unwrap_or_default();
    if status.is_success() {
        return Ok(reply);
    }
    let why = format!(
        "{url} answers {status}: {}",
        reply["detail"].as_str().unwrap_or_default()
    );
    // What the service refuses it will refuse again; anything else may pass.
    Err(if status.is_client_error() && status.as_u16() != 429 {
        Failure::usage(why)
    } else {
        Failure::new(why)
    })
}

impl Joined {
    /// Takes up what an earlier start kept, or joins.
    ///
    /// # Errors
    /// If the service refuses the secret, or does not answer for two minutes.
    pub async fn open(
        env: &Env,
        service: &ServiceSection,
        directory: &Path,
        address: &str,
        capacity_tracts: u64,
    ) -> Result<Self, Failure> {
        let place = directory.join("identity");
        let file = place.join("joined.json");
        let kept = if file.exists() {
            let kept: Kept = serde_json::from_slice(&read(&file)?)
                .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
            if kept.version != VERSION {
                return Err(Failure::usage(format!(
                    "{}: version {}, this build reads {VERSION}",
                    file.display(),
                    kept.version
                )));
            }
            kept
        } else {
            let kept = join(env, service, &place, address, capacity_tracts).await?;
            replace(&file, &serde_json::to_vec(&kept).map_err(Failure::new)?)?;
            kept
        };
        // It is of no more use to anybody; that it lay there until now is why it is good for an hour only.
        let _ = fs::remove_file(place.join("join-secret"));
        let issued = kept.issued()?;
        let name = PeerIdentity::of_certificate(&issued.certificate)
            .map_err(|error| Failure::new(format!("this node's certificate names nobody: {error}")))?;
        let names = [fleets_name(service), tenants_name(service)];
        if !names.contains(&name.kind) {
            return Err(Failure::usage(format!(
                "{} holds the certificate of {name}, and the configuration names {}",
                file.display(),
                service.node
            )));
        }
        Ok(Self {
            env: env.clone(),
            service: service.clone(),
            identity: TlsIdentity::new(&kept.signing_key()?, &issued).map_err(Failure::new)?,
            place,
            kept,
            name,
        })
    }

    /// Which node it is.
    pub fn node(&self) -> NodeId {
        self.service.node
    }

    /// What the node shows and believes.
    ///
    /// # Errors
    /// If what was kept is no certificate.
    pub fn security(&self) -> Result<Security, Failure> {
        let authority = CertificateDer::from(decoded("the authority", &self.kept.authority)?);
        let transport = Transport::mutual(
            &self.env,
            self.identity.clone(),
            vec![authority],
            &self.name.trust_domain,
        )
        .map_err(Failure::new)?;
        let key = capability_key(&self.kept.capability_key)?;
        let verifier = CapabilityVerifier::new([key]);
        Ok(Security {
            transport,
            authenticator: Arc::new(match self.name.kind {
                PeerKind::TenantNode { tenant, .. } => {
                    CapabilityAuthenticator::new(verifier).of_tenant(tenant)
                }
                _ => CapabilityAuthenticator::new(verifier),
            }),
            capability: Arc::new(|| None),
        })
    }

    /// Where this node's usage records go.
    pub fn usage_sink(&self) -> Arc<dyn UsageSink> {
        Arc::new(ServiceSink {
            service: self.service.clone(),
            place: self.place.clone(),
            path: self.path("usage"),
        })
    }

    /// Says again and again that the node lives and what is free, and renews its certificate; until the surrounding task ends.
    pub async fn report(mut self, node: &Node) {
        loop {
            if let Err(error) = self.beat(node).await {
                tracing::warn!(%error, "the service was not told that this node lives");
            }
            if UnixTime::from_wall(self.env.wall()) >= self.identity.renew_after()
                && let Err(error) = self.renew().await
            {
                tracing::warn!(%error, "the certificate was not renewed; the next look tries again");
            }
            self.env.sleep(HEARTBEAT).await;
        }
    }

    fn path(&self, what: &str) -> String {
        format!(
            "/v1/tenants/{}/nodes/{}/{what}",
            self.service.tenant, self.service.node
        )
    }

    async fn beat(&self, node: &Node) -> Result<(), Failure> {
        let store = node.store();
        let free = store
            .geometry()
            .capacity_tracts()
            .saturating_sub(store.used_tracts());
        let body = json!({ "free_bytes": free * TRACT_BYTES });
        let path = self.path("heartbeat");
        call(&self.service, &self.place, Some(&self.kept), &path, Some(&body))
            .await
            .map(drop)
    }

    async fn renew(&mut self) -> Result<(), Failure> {
        let (key, seed) = new_key(&self.env);
        let request = certificate_request(&key, &self.name);
        let body = json!({ "certificate_request": STANDARD_NO_PAD.encode(request) });
        let path = self.path("certificate");
        let reply = call(&self.service, &self.place, Some(&self.kept), &path, Some(&body)).await?;
        let issued: Issued = serde_json::from_value(reply).map_err(Failure::new)?;
        let kept = Kept {
            key: seed,
            certificate: issued.certificate,
            authority: issued.authority,
            expires: issued.expires,
            renew_after: issued.renew_after,
            ..self.kept.clone()
        };
        self.identity.renew(&key, &kept.issued()?).map_err(Failure::new)?;
        replace(
            &self.place.join("joined.json"),
            &serde_json::to_vec(&kept).map_err(Failure::new)?,
        )?;
        self.kept = kept;
        Ok(())
    }
}

/// The service's door for this node's usage records.
struct ServiceSink {
    service: ServiceSection,
    place: PathBuf,
    path: String,
}

#[async_trait]
impl UsageSink for ServiceSink {
    async fn accept(&self, batch: &UsageBatch) -> Result<(), SinkError> {
        let refused = |why: &dyn std::fmt::Display| SinkError::Refused(why.to_string());
        let batch = batch.encode().map_err(|error| refused(&error))?;
        let body = json!({ "batch": STANDARD_NO_PAD.encode(batch) });
        // With the newest certificate: it is replaced whole when it is renewed.
        let kept = read(&self.place.join("joined.json"))
            .and_then(|text| serde_json::from_slice::<Kept>(&text).map_err(Failure::new))
            .map_err(|failure| SinkError::Unavailable(failure.to_string()))?;
        match call(&self.service, &self.place, Some(&kept), &self.path, Some(&body)).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.is_usage() => Err(refused(&failure)),
            Err(failure) => Err(SinkError::Unavailable(failure.to_string())),
        }
    }
}

/// What the node is called if it is one of the fleet.
fn fleets_name(service: &ServiceSection) -> PeerKind {
    PeerKind::Node(service.node)
}

/// What it is called if the tenant runs it for itself.
fn tenants_name(service: &ServiceSection) -> PeerKind {
    PeerKind::TenantNode {
        tenant: service.tenant,
        node: service.node,
    }
}

fn new_key(env: &Env) -> (SigningKey, Zeroizing<String>) {
    let seed = Zeroizing::new(env.random_bytes::<32>());
    (
        SigningKey::from_seed(*seed),
        Zeroizing::new(STANDARD_NO_PAD.encode(seed.as_slice())),
    )
}

fn capability_key(text: &str) -> Result<CapabilityKey, Failure> {
    let digit = |digit: u8| {
        (digit as char)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let bytes: Option<Vec<u8>> = text
        .as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect();
    bytes
        .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok())
        .map(CapabilityKey::from_bytes)
        .ok_or_else(|| Failure::new("what the service calls its capability key is not 64 hexadecimal digits"))
}

/// Joins: once, with the secret that the machine was given.
async fn join(
    env: &Env,
    service: &ServiceSection,
    place: &Path,
    address: &str,
    capacity_tracts: u64,
) -> Result<Kept, Failure> {
    let path = place.join("join-secret");
    let text = read(&path)?;
    let secret = std::str::from_utf8(&text)
        .ok()
        .and_then(|text| JoinSecret::parse(text.trim()).ok())
        .ok_or_else(|| Failure::usage(format!("{} is no join secret", path.display())))?;
    let mut attempts = JOIN_RETRY.begin(env);
    loop {
        match join_once(env, service, place, address, capacity_tracts, &secret).await {
            // A refusal is final: the secret is used, wrong, or too old.
            Err(failure) if !failure.is_usage() => {
                tracing::warn!(%failure, "the service did not take this node yet");
                attempts.again(failure).await?;
            }
            result => return result,
        }
    }
}

async fn join_once(
    env: &Env,
    service: &ServiceSection,
    place: &Path,
    address: &str,
    capacity_tracts: u64,
    secret: &JoinSecret,
) -> Result<Kept, Failure> {
    let health = call(service, place, None, "/healthz", None).await?;
    let trust_domain = health["trust_domain"]
        .as_str()
        .ok_or_else(|| Failure::new("the service does not say in which trust domain it is"))?;
    let (key, seed) = new_key(env);
    let request = |kind| {
        let name = PeerIdentity {
            trust_domain: trust_domain.to_owned(),
            kind,
        };
        STANDARD_NO_PAD.encode(certificate_request(&key, &name))
    };
    // Whether the tenant's nodes are the fleet's, the service knows: it takes the one of the two that is true.
    let body = json!({
        "authenticator": &**secret.authenticator().expose(),
        "certificate_request": request(fleets_name(service)),
        "tenant_certificate_request": request(tenants_name(service)),
        "address": address,
        "capacity_bytes": capacity_tracts * TRACT_BYTES,
    });
    let url = format!("/v1/tenants/{}/nodes/{}/join", service.tenant, service.node);
    let reply = call(service, place, None, &url, Some(&body)).await?;
    let answer: Answer = serde_json::from_value(reply).map_err(Failure::new)?;
    capability_key(&answer.capability_key)?;
    Ok(Kept {
        version: VERSION,
        key: seed,
        certificate: answer.certificate.certificate,
        authority: answer.certificate.authority,
        capability_key: answer.capability_key,
        expires: answer.certificate.expires,
        renew_after: answer.certificate.renew_after,
    })
}

//! Taking up what `firn edge join` and `firn edge approve` prepared: the keys of the tenant's volume, from the service that keeps
//! them wrapped.
//!
//! ```text
//! state directory after `firn edge join`
//!   enrolment.json               service, tenant, its key, edge, volumes; it came sealed under the join secret, so it is authentic
//!   recipient                    the secret to which keys are wrapped
//!   key.der, certificate.der     who this edge is, towards the service
//!   server-authority.pem         whom to take for the service, if not whom the system trusts
//!
//! service ─ newest key ring ─▶ signed by the tenant's key? ─▶ no older than the bucket's? ─▶ opens with our secret? ─▶ bucket
//! ```
//!
//! The service is not trusted with keys: a ring that the tenant did not sign, of another family, or older than one in the bucket
//! ends the command, and nothing is changed. A service that does not answer ends nothing: the bucket has the last ring.

use crate::{config::Config, failure::Failure, identity::Identity, parts::Outside};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use bytes::Bytes;
use firn_anchor::AnchorError;
use firn_format::{FamilyId, VolumeId};
use firn_identity::pem;
use firn_seal::{KeyRing, KeyRingError, RecipientSecret, TenantPublic, VerifiedKeyRing};
use firn_store::{ObjectKey, PutMode, Store, StoreError};
use firn_volume::{FormatOptions, Volume};
use serde::Deserialize;
use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};
use zeroize::Zeroizing;

/// The largest file of an enrolment that is read; an invitation has some hundred bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// The largest reply: a key ring of 256 KiB in base64 and JSON, with room.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// A service that takes longer is taken for one that does not answer: serving must not wait for it.
const PATIENCE: Duration = Duration::from_secs(10);
const VERSION: u16 = 1;

/// What became of an attempt to take up keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enrolment {
    /// This edge can serve its volume.
    Ready {
        /// The volume was made, since nobody had served it yet.
        made: bool,
        /// Which.
        place: Place,
    },
    /// The volume's keys are not wrapped to this edge yet.
    NotApproved {
        /// The edge's name, for `firn edge approve`.
        name: String,
    },
}

/// Which volume an edge serves: by its names towards the service, and by the family under which it lies in the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose.
    pub tenant: firn_identity::TenantId,
    /// As the service calls it.
    pub volume: firn_identity::VolumeId,
    /// As the bucket calls it.
    pub family: FamilyId,
}

impl fmt::Display for Enrolment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready { made: true, .. } => {
                write!(formatter, "The volume was made. Serve it with: firn-edge run")
            }
            Self::Ready { made: false, .. } => write!(
                formatter,
                "This edge can serve the volume: firn-edge run. If another edge has it, drain it there first"
            ),
            Self::NotApproved { name } => write!(
                formatter,
                "Not approved yet. Where this edge was invited: firn edge approve {name}"
            ),
        }
    }
}

/// `enrolment.json`, as `firn edge join` wrote it.
#[derive(Deserialize)]
struct Invitation {
    version: u16,
    server: String,
    tenant: firn_identity::TenantId,
    tenant_key: String,
    name: String,
    volumes: Vec<String>,
}

fn file(config: &Config, name: &str) -> PathBuf {
    config.volume.state_directory.join(name)
}

fn is_joined(config: &Config) -> bool {
    file(config, "enrolment.json").exists()
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let failed = |error: &dyn fmt::Display| Failure::usage(format!("{}: {error}", path.display()));
    let length = std::fs::metadata(path).map_err(|error| failed(&error))?.len();
    if length > FILE_BYTES_MAX {
        return Err(failed(&format!("{length} bytes are no file of an enrolment")));
    }
    std::fs::read(path)
        .map(Zeroizing::new)
        .map_err(|error| failed(&error))
}

/// A joined edge, before it has keys.
struct Joined {
    invitation: Invitation,
    tenant: TenantPublic,
    secret: RecipientSecret,
    volume: firn_identity::VolumeId,
}

impl Joined {
    fn load(config: &Config) -> Result<Self, Failure> {
        let path = file(config, "enrolment.json");
        let wrong = |why: &dyn fmt::Display| Failure::usage(format!("{}: {why}", path.display()));
        let invitation: Invitation = serde_json::from_slice(&read(&path)?).map_err(|error| wrong(&error))?;
        if invitation.version != VERSION {
            return Err(wrong(&format!(
                "version {}, this build reads {VERSION}",
                invitation.version
            )));
        }
        let tenant = invitation
            .tenant_key
            .parse::<HexKey>()
            .map_err(|error| wrong(&error))?
            .0;
        let volume = match &invitation.volumes[..] {
            [] => return Err(wrong(&"it names no volume")),
            [only] => only,
            several => several
                .iter()
                .find(|id| **id == config.volume.name)
                .ok_or_else(|| {
                    wrong(&format!(
                        "this edge is invited to several volumes; set volume.name to the id of one: {}",
                        several.join(", ")
                    ))
                })?,
        };
        let volume = volume.parse().map_err(|error| wrong(&error))?;
        let secret = read(&file(config, "recipient"))?;
        let secret = <&[u8; 32]>::try_from(&secret[..])
            .ok()
            .and_then(|bytes| RecipientSecret::from_bytes(bytes).ok())
            .ok_or_else(|| Failure::usage("the file `recipient` in the state directory is no secret"))?;
        Ok(Self {
            tenant: TenantPublic::from_bytes(tenant),
            invitation,
            secret,
            volume,
        })
    }

    fn client(&self, config: &Config) -> Result<reqwest::Client, Failure> {
        let (key, certificate) = (
            read(&file(config, "key.der"))?,
            read(&file(config, "certificate.der"))?,
        );
        let mut both = pem("PRIVATE KEY", &key);
        both.push_str(&pem("CERTIFICATE", &certificate));
        let identity = reqwest::Identity::from_pem(both.as_bytes())
            .map_err(|error| Failure::usage(format!("this edge's certificate: {error}")))?;
        let mut builder = reqwest::Client::builder()
            .tls_version_min(reqwest::tls::Version::TLS_1_3)
            .redirect(reqwest::redirect::Policy::none())
            .https_only(true)
            .user_agent(concat!("firn-edge/", env!("CARGO_PKG_VERSION")))
            .identity(identity)
            .timeout(PATIENCE);
        let authority = file(config, "server-authority.pem");
        if authority.exists() {
            let certificate = reqwest::Certificate::from_pem(&read(&authority)?)
                .map_err(|error| Failure::usage(format!("{}: {error}", authority.display())))?;
            builder = builder.tls_certs_only([certificate]);
        }
        builder
            .build()
            .map_err(|error| Failure::new(format!("TLS: {error}")))
    }

    /// The newest ring that the service has: checked, and nothing more.
    async fn ring(&self, config: &Config) -> Result<Asked, Failure> {
        let Invitation { server, tenant, .. } = &self.invitation;
        let url = format!(
            "{}/v1/tenants/{tenant}/volumes/{}/keyring",
            server.trim_end_matches('/'),
            self.volume
        );
        let mut response = match self.client(config)?.get(url).send().await {
            Ok(response) => response,
            Err(error) => return Ok(Asked::Silent(error.to_string())),
        };
        let status = response.status();
        let mut text = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if text.len() + chunk.len() <= REPLY_BYTES_MAX => {
                    text.extend_from_slice(&chunk);
                }
                Ok(Some(_)) => return Ok(Asked::Silent("its reply does not end".into())),
                Ok(None) => break,
                Err(error) => return Ok(Asked::Silent(error.to_string())),
            }
        }
        if status.is_server_error() || status.as_u16() == 429 {
            return Ok(Asked::Silent(format!("it answers {status}")));
        }
        let reply: Reply = serde_json::from_slice(&text).unwrap_or_default();
        match (status.as_u16(), reply.key_ring) {
            (200, Some(ring)) => {
                let bytes = STANDARD_NO_PAD
                    .decode(ring)
                    .map_err(|_| Failure::new("what the service gives as the key ring is none"))?;
                let ring = KeyRing::decode(bytes.into())
                    .and_then(|ring| ring.verify(&self.tenant))
                    .map_err(|error| {
                        Failure::new(format!(
                            "the service's key ring is not to be trusted: {error}; nothing was changed"
                        ))
                    })?;
                Ok(Asked::Ring(Box::new(ring)))
            }
            (404, _) => Ok(Asked::None),
            _ => Err(Failure::usage(format!(
                "the service refuses this edge ({status}): {}",
                reply.detail.unwrap_or_default()
            ))),
        }
    }
}

/// 32 bytes as hex digits.
struct HexKey([u8; 32]);

impl std::str::FromStr for HexKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "the tenant's key has not 64 hex digits";
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digit = |digit: u8| (digit as char).to_digit(16).ok_or(wrong);
            *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).map_err(|_| wrong)?;
        }
        Ok(Self(bytes))
    }
}

enum Asked {
    Ring(Box<VerifiedKeyRing>),
    /// The volume has none.
    None,
    /// It did not answer.
    Silent(String),
}

#[derive(Default, Deserialize)]
struct Reply {
    key_ring: Option<String>,
    detail: Option<String>,
}

/// Takes up the keys of this edge's volume, and makes the volume if nobody did.
///
/// Safe to repeat, also after a crash anywhere: the ring is put first, the identity written last.
///
/// # Errors
/// [`Failure`]: the state directory is not one that `firn edge join` made, the service refuses this edge or shows a ring that the
/// tenant did not sign, or store and table do not answer. Not being approved yet is no error.
pub async fn enrol(config: &Config, outside: &Outside) -> Result<Enrolment, Failure> {
    if !is_joined(config) {
        return Err(Failure::usage(format!(
            "{} is not the state directory of a joined edge; run there: firn edge join --state {}",
            config.volume.state_directory.display(),
            config.volume.state_directory.display(),
        )));
    }
    let joined = Joined::load(config)?;
    let place = |family| Place {
        tenant: joined.invitation.tenant,
        volume: joined.volume,
        family,
    };
    if Identity::exists(&config.volume.state_directory) {
        let identity = Identity::load(&config.volume.state_directory)?;
        return Ok(Enrolment::Ready {
            made: false,
            place: place(identity.family),
        });
    }
    let not_approved = || Enrolment::NotApproved {
        name: joined.invitation.name.clone(),
    };
    let ring = match joined.ring(config).await? {
        Asked::Ring(ring) => ring,
        Asked::None => return Ok(not_approved()),
        Asked::Silent(why) => {
            return Err(Failure::new(format!(
                "{} did not answer: {why}",
                joined.invitation.server
            )));
        }
    };
    let keys = match ring.open(&joined.secret) {
        Ok(keys) => keys,
        Err(KeyRingError::NotARecipient { .. }) => return Ok(not_approved()),
        Err(error) => return Err(Failure::new(format!("the key ring does not open: {error}"))),
    };
    keep(&ring, &*outside.stack.store).await?;
    let place = place(ring.family());
    let identity = Identity {
        family: ring.family(),
        volume: VolumeId(joined.volume.0),
        tenant: joined.tenant,
        secret: joined.secret,
        handle_key: Zeroizing::new(outside.env.random_bytes()),
        generation: ring.generation(),
    };
    let anchor = outside.anchor(identity.family);
    match anchor.create_family().await {
        Ok(()) | Err(AnchorError::FamilyExists { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let is_there = match anchor.load(identity.volume).await {
        Ok((tuple, _)) => tuple.root.is_some(),
        Err(AnchorError::NoSuchVolume { .. }) => false,
        Err(error) => return Err(error.into()),
    };
    if !is_there {
        let parts = outside.parts(identity.family, identity.volume, keys);
        let options = FormatOptions::default();
        Volume::format(&parts, &config.volume.name, options, &config.volume_config()).await?;
    }
    identity.create(&config.volume.state_directory)?;
    Ok(Enrolment::Ready {
        made: !is_there,
        place,
    })
}

/// The identity of the state directory. If it came from the service, the newest ring is fetched first.
pub async fn renewed(config: &Config, outside: &Outside) -> Result<Identity, Failure> {
    let identity = Identity::load(&config.volume.state_directory)?;
    if !is_joined(config) {
        return Ok(identity);
    }
    match Joined::load(config)?.ring(config).await? {
        Asked::Ring(ring) => {
            let store = &*outside.stack.store;
            let newest = identity.newest_ring(store).await?;
            let seen = newest.map_or(identity.generation, |newest| newest.max(identity.generation));
            ring.check(&identity.family, seen)
                .map_err(|error| Failure::new(format!("the service's key ring: {error}")))?;
            keep(&ring, store).await?;
        }
        Asked::None => {
            return Err(Failure::new(
                "the service says that the volume has no key ring, and one was seen before; nothing was changed",
            ));
        }
        Asked::Silent(why) => {
            tracing::warn!(
                why,
                "the service did not answer; the newest key ring of the bucket is used"
            );
        }
    }
    Ok(identity)
}

/// Puts a verified ring into the bucket, where every edge and a recovery look for it.
async fn keep(ring: &VerifiedKeyRing, store: &dyn Store) -> Result<(), Failure> {
    let key = ObjectKey::new(&ring.ring().object_key());
    let bytes = ring.ring().encode();
    match store.put(&key, vec![bytes.clone()], PutMode::Create).await {
        Ok(_) => Ok(()),
        Err(StoreError::AlreadyExists { .. }) => {
            let found: Bytes = store.get(&key).await.map_err(Failure::new)?;
            if found == bytes {
                return Ok(());
            }
            Err(Failure::new(format!(
                "the bucket has another key ring under {key}: two were made of one generation; nothing was changed"
            )))
        }
        Err(error) => Err(Failure::new(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_key_is_read_exactly() {
        let text = format!("{}ff", "00".repeat(31));
        assert_eq!(text.parse::<HexKey>().expect("a key").0[31], 255);
        for wrong in ["", "00", &"0g".repeat(32), &"é".repeat(32), &"00".repeat(33)] {
            assert!(wrong.parse::<HexKey>().is_err(), "{wrong}");
        }
    }
}

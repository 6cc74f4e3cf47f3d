//! Enrolment with a service: what `firn edge join` left in the state directory, and the HTTP client to the service that it opens.
//!
//! A volume that was granted to the edge, or to its tenant, is in no invitation: the configuration names it by its id, and says whose it is if it is
//! another tenant's ([`crate::granted`]).
//!
//! An edge that serves several volumes can be enrolled once for all of them: in the directory of `[edge]`, where each `[[volume]]` whose name is
//! the id of a volume of the invitation finds it. What a volume keeps of its own (keys, the newest desired state, its spool) stays in its own.

use crate::{anchor::AnchorAt, certificate, config::Config, failure::Failure, granted::HexKey};
use firn_identity::{EdgeId, TenantId, VolumeId};
use firn_seal::{RecipientSecret, TenantPublic};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, SystemTime},
};
use zeroize::Zeroizing;

/// The largest file of an enrolment that is read; an invitation has some hundred bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// The largest reply: a page of a table, which ends with the item that crosses 1 MiB, in base64 and JSON.
const REPLY_BYTES_MAX: usize = 3 << 20;
/// A service that takes longer is taken for one that does not answer: serving must not wait for it.
const TIMEOUT: Duration = Duration::from_secs(10);
pub const VERSION: u16 = 2;
pub const OLDEST_VERSION: u16 = 1;

/// `enrolment.json`, as `firn edge join` wrote it.
#[derive(Deserialize)]
pub struct Invitation {
    version: u16,
    pub server: String,
    pub tenant: TenantId,
    tenant_key: String,
    edge: EdgeId,
    pub name: String,
    volumes: Vec<String>,
    /// By volume, since version 2.
    #[serde(default)]
    pinned: BTreeMap<String, Pinned>,
}

/// What the inviter knew of a volume's keys.
#[derive(Deserialize)]
pub struct Pinned {
    /// Whose keys open it.
    pub family: String,
    /// The newest key ring's.
    pub generation: u64,
}

const ENROLMENT: &str = "enrolment.json";

/// A file of the volume's own state directory.
pub fn file(config: &Config, name: &str) -> PathBuf {
    config.volume.state_directory.join(name)
}

/// Where `firn edge join` left an enrolment for this volume: its own state directory, else the edge's.
fn enrolled(config: &Config) -> Option<&Path> {
    let (own, shared) = (&config.volume.state_directory, &config.edge.directory);
    if own.join(ENROLMENT).exists() {
        return Some(own);
    }
    let path = shared.join(ENROLMENT);
    let name = &config.volume.name;
    // Volumes that are somebody else's, or of no service, may be served beside.
    if !config.edge.has_names || name.parse::<VolumeId>().is_err() || !path.exists() {
        return None;
    }
    let invited = invitation(&path).is_ok_and(|invitation| invitation.volumes.contains(name));
    (invited || named_by_grant(config).is_some()).then_some(shared)
}

/// The volume that the configuration names by its id where it may be one that was granted: who follows asks the service for it, whatever the
/// invitation says.
fn named_by_grant(config: &Config) -> Option<VolumeId> {
    let is_of_others = config.volume.has_other_writers();
    let may_be = config.volume.owner.is_some() || (is_of_others && config.volume.anchor == AnchorAt::Service);
    config.volume.name.parse().ok().filter(|_| may_be)
}

/// Whether this volume is served by an edge that joined.
pub fn is_joined(config: &Config) -> bool {
    enrolled(config).is_some()
}

/// A file of the enrolment.
pub fn enrolment_file(config: &Config, name: &str) -> PathBuf {
    enrolled(config)
        .unwrap_or(&config.volume.state_directory)
        .join(name)
}

fn invitation(path: &Path) -> Result<Invitation, Failure> {
    let wrong = |why: &dyn fmt::Display| Failure::usage(format!("{}: {why}", path.display()));
    let invitation: Invitation = serde_json::from_slice(&read(path)?).map_err(|error| wrong(&error))?;
    if (OLDEST_VERSION..=VERSION).contains(&invitation.version) {
        return Ok(invitation);
    }
    Err(wrong(&format!(
        "version {}, this build reads {OLDEST_VERSION} to {VERSION}",
        invitation.version
    )))
}

/// Reads a small file, which may hold a secret.
pub fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
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
pub struct Joined {
    pub invitation: Invitation,
    /// What the volume's tenant signs key rings with.
    pub tenant: TenantPublic,
    /// Whose volume it is.
    pub owner: TenantId,
    /// To which keys are wrapped.
    pub secret: RecipientSecret,
    /// Which volume it serves.
    pub volume: VolumeId,
    /// The way to the service, with the certificate that was written then: what is asked often should not begin with a handshake.
    client: Mutex<Option<(SystemTime, reqwest::Client)>>,
}

impl Joined {
    /// Reads the state directory.
    pub fn load(config: &Config) -> Result<Self, Failure> {
        let path = enrolment_file(config, ENROLMENT);
        let wrong = |why: &dyn fmt::Display| Failure::usage(format!("{}: {why}", path.display()));
        let invitation = invitation(&path)?;
        let tenant = invitation
            .tenant_key
            .parse::<HexKey>()
            .map_err(|error| wrong(&error))?
            .0;
        let volume = match (named_by_grant(config), &invitation.volumes[..]) {
            (Some(granted), _) => &granted.to_string(),
            (None, []) => {
                return Err(wrong(
                    &"it names no volume, so this edge opens what is granted to it: set volume.name to the id of such a volume, with the lines that \
                      firn share accept printed",
                ));
            }
            (None, [only]) => only,
            (None, several) => several
                .iter()
                .find(|id| **id == config.volume.name)
                .ok_or_else(|| {
                    wrong(&format!(
                        "this edge is invited to several volumes; set volume.name to the id of one, or serve all, each as a [[volume]] with its id as name: {}",
                        several.join(", ")
                    ))
                })?,
        };
        let volume = volume.parse().map_err(|error| wrong(&error))?;
        let secret = read(&enrolment_file(config, "recipient"))?;
        let secret = <&[u8; 32]>::try_from(&secret[..])
            .ok()
            .and_then(|bytes| RecipientSecret::from_bytes(bytes).ok())
            .ok_or_else(|| Failure::usage("the file `recipient` in the state directory is no secret"))?;
        let (owner, tenant) = match config.volume.owner {
            Some(owner) => (owner.tenant, owner.key),
            None => (invitation.tenant, TenantPublic::from_bytes(tenant)),
        };
        Ok(Self {
            tenant,
            owner,
            invitation,
            secret,
            volume,
            client: Mutex::new(None),
        })
    }

    /// Whether this edge was not invited to the volume, so that it is let in by a grant.
    pub fn is_granted(&self) -> bool {
        !self.invitation.volumes.contains(&self.volume.to_string())
    }

    /// The address of something of the tenant's.
    pub fn at(&self, path: &str) -> String {
        let Invitation { server, tenant, .. } = &self.invitation;
        format!("{}/v1/tenants/{tenant}/{path}", server.trim_end_matches('/'))
    }

    /// What the invitation says of this edge's volume; none if it was made before invitations did.
    pub fn pinned(&self) -> Option<&Pinned> {
        self.invitation.pinned.get(&self.volume.to_string())
    }

    /// The edge, as the service calls it.
    pub fn edge(&self) -> EdgeId {
        self.invitation.edge
    }

    /// A client with the newest certificate.
    pub fn client(&self, config: &Config) -> Result<reqwest::Client, Failure> {
        let written = certificate::written(config)?;
        let mut known = self.client.lock().expect("no panic under this lock");
        if let Some((then, client)) = &*known
            && *then == written
        {
            return Ok(client.clone());
        }
        let client = Self::new_client(config)?;
        *known = Some((written, client.clone()));
        Ok(client)
    }

    fn new_client(config: &Config) -> Result<reqwest::Client, Failure> {
        let mut builder = reqwest::Client::builder()
            .tls_version_min(reqwest::tls::Version::TLS_1_3)
            .redirect(reqwest::redirect::Policy::none())
            .https_only(true)
            .user_agent(concat!("firn-edge/", env!("CARGO_PKG_VERSION")))
            .identity(certificate::identity(config)?)
            .timeout(TIMEOUT);
        let authority = enrolment_file(config, "server-authority.pem");
        if authority.exists() {
            let certificate = reqwest::Certificate::from_pem(&read(&authority)?)
                .map_err(|error| Failure::usage(format!("{}: {error}", authority.display())))?;
            builder = builder.tls_certs_only([certificate]);
        }
        builder
            .build()
            .map_err(|error| Failure::new(format!("TLS: {error}")))
    }

    /// Asks the service for something of the tenant's; with a body, to make something.
    ///
    /// An error is a refusal, which is final: a service that does not answer is [`Asked::Silent`].
    pub async fn ask(&self, config: &Config, path: &str, body: Option<&Value>) -> Result<Asked, Failure> {
        let reply = match self.exchange(config, path, body).await? {
            Ok(reply) => reply,
            Err(why) => return Ok(Asked::Silent(why)),
        };
        match reply.status {
            200..300 => Ok(Asked::Answer(reply.text)),
            404 => Ok(Asked::Nothing),
            status => Err(Failure::usage(format!(
                "the service refuses this edge ({status}): {}",
                reply.problem().detail
            ))),
        }
    }

    /// Sends a request to the service; the inner error is why there was no answer, which includes that it is overloaded or broken.
    ///
    /// # Errors
    /// If this edge's own files do not make a client.
    pub async fn exchange(
        &self,
        config: &Config,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Result<Reply, String>, Failure> {
        let url = self.at(path);
        let client = self.client(config)?;
        let request = match body {
            None => client.get(url),
            Some(body) => client
                .post(url)
                .header("content-type", "application/json")
                .body(body.to_string()),
        };
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let status = response.status();
        let mut text = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if text.len() + chunk.len() <= REPLY_BYTES_MAX => {
                    text.extend_from_slice(&chunk);
                }
                Ok(Some(_)) => return Ok(Err("its reply does not end".into())),
                Ok(None) => break,
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
        if status.is_server_error() || status.as_u16() == 429 {
            return Ok(Err(format!("it answers {status}")));
        }
        let status = status.as_u16();
        Ok(Ok(Reply { status, text }))
    }
}

/// What the service answered.
pub struct Reply {
    /// HTTP's status: neither one of a broken service nor of an overloaded one.
    pub status: u16,
    /// The body.
    pub text: Vec<u8>,
}

impl Reply {
    /// Why something was refused; empty if the body does not say.
    pub fn problem(&self) -> Problem {
        serde_json::from_slice(&self.text).unwrap_or_default()
    }
}

/// What became of a question.
pub enum Asked {
    /// The reply's text.
    Answer(Vec<u8>),
    /// There is no such thing.
    Nothing,
    /// It did not answer.
    Silent(String),
}

/// Why something was refused.
#[derive(Default, Deserialize)]
pub struct Problem {
    /// For programs: one of those in `docs/errors.md`.
    #[serde(default)]
    pub code: String,
    /// For people.
    #[serde(default)]
    pub detail: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_enrolment_of_the_edge_is_of_the_volumes_that_it_names_and_of_no_other() {
        let place = tempfile::tempdir().expect("a directory");
        let [named, other] = [7, 8].map(|byte| VolumeId([byte; 16]).to_string());
        let mut text = format!("[edge]\nstate_directory = \"{}\"\n", place.path().display());
        for name in [&named, &other, "homes"] {
            text.push_str(&format!(
                "[[volume]]\nname = \"{name}\"\nstore = \"file:///srv/store\"\nanchor = \"service\"\n\
                 [[export]]\npath = \"/{name}\"\nvolume = \"{name}\"\nclients = [\"127.0.0.0/8\"]\n"
            ));
        }
        let edge = crate::config::EdgeConfig::parse(&text).expect("fine");
        let joined = || edge.volumes.iter().map(is_joined).collect::<Vec<_>>();
        assert_eq!(joined(), [false, false, false]);
        let enrolment = serde_json::json!({
            "version": VERSION, "server": "https://firn.example", "tenant": TenantId([1; 16]), "tenant_key": "00",
            "edge": EdgeId([2; 16]), "name": "office", "volumes": [named, "homes"],
        });
        std::fs::write(place.path().join(ENROLMENT), enrolment.to_string()).expect("written");
        // The third is called so by its administrator; ids are the service's.
        assert_eq!(joined(), [true, false, false]);
        let [first, ..] = &edge.volumes[..] else {
            panic!("three volumes");
        };
        assert_eq!(enrolment_file(first, "recipient"), place.path().join("recipient"));
        // One of its own goes before.
        std::fs::create_dir_all(&first.volume.state_directory).expect("made");
        std::fs::write(file(first, ENROLMENT), enrolment.to_string()).expect("written");
        assert_eq!(enrolment_file(first, "recipient"), file(first, "recipient"));
    }
}

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

use crate::{
    by_inode::{self, WrittenLeases},
    config::Config,
    failure::Failure,
    identity::Identity,
    joined::{Asked, Joined, is_joined},
    parts::Outside,
    rings::{self, Owner, keep, newest_in},
};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_anchor::AnchorError;
use firn_env::eprintln;
use firn_format::FamilyId;
use firn_seal::{KeyRing, KeyRingError, VerifiedKeyRing};
use firn_volume::{FormatOptions, Volume};
use serde::Deserialize;
use std::{fmt, time::Duration};
use zeroize::Zeroizing;

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

/// The newest ring, as the service has it.
pub enum Newest {
    /// Signed by the tenant, and for no other volume.
    Ring(Box<VerifiedKeyRing>),
    /// The volume has none.
    None,
    /// The service did not answer.
    Silent(String),
}

#[derive(Deserialize)]
struct Reply {
    key_ring: String,
}

/// What the service says of a volume, as far as its making is concerned.
#[derive(Deserialize)]
struct Described {
    /// A service of the release before does not say it, and has no others.
    #[serde(default)]
    leases: WrittenLeases,
}

/// Whether the volume was asked for as one that several offices write at the same moment.
async fn is_by_inode(joined: &Joined, config: &Config) -> Result<bool, Failure> {
    let path = format!("volumes/{}", joined.volume);
    let silent = |why: &dyn fmt::Display| {
        Failure::new(format!(
            "{} did not say how the volume is to be made: {why}; nothing was changed",
            joined.invitation.server
        ))
    };
    match joined.ask(config, &path, None).await? {
        Asked::Answer(text) => {
            let said: Described = serde_json::from_slice(&text).map_err(|error| silent(&error))?;
            Ok(said.leases == WrittenLeases::Inode)
        }
        Asked::Nothing => Err(silent(&"it has no such volume")),
        Asked::Silent(why) => Err(silent(&why)),
    }
}

/// The newest ring that the service has: signed by the tenant, and for no other volume than this edge's.
///
/// # Errors
/// If what the service gives is no such ring, or it refuses this edge.
pub async fn newest(joined: &Joined, config: &Config) -> Result<Newest, Failure> {
    let path = format!("volumes/{}/keyring", joined.volume);
    let text = match joined.ask(config, &path, None).await? {
        Asked::Answer(text) => text,
        Asked::Nothing => return Ok(Newest::None),
        Asked::Silent(why) => return Ok(Newest::Silent(why)),
    };
    let untrusted = |why: &dyn fmt::Display| {
        Failure::new(format!(
            "the service's key ring is not to be trusted: {why}; nothing was changed"
        ))
    };
    let reply: Reply = serde_json::from_slice(&text).map_err(|error| untrusted(&error))?;
    let bytes = STANDARD_NO_PAD
        .decode(reply.key_ring)
        .map_err(|error| untrusted(&error))?;
    let ring = KeyRing::decode(bytes.into())
        .and_then(|ring| ring.verify(&joined.tenant))
        .and_then(|ring| ring.check_volume(&joined.volume).map(|()| ring))
        .map_err(|error| untrusted(&error))?;
    Ok(Newest::Ring(Box::new(ring)))
}

/// Takes up the keys of this edge's volume, and makes the volume, laid out so, if nobody did. Whether several offices write it at the same moment the service says: it was
/// asked for so.
///
/// Safe to repeat, also after a crash anywhere: the ring is put first, the identity written last.
///
/// # Errors
/// [`Failure`]: the state directory is not one that `firn edge join` made, the service refuses this edge or shows a ring that the
/// tenant did not sign, or store and table do not answer. Not being approved yet is no error.
pub async fn enrol(config: &Config, outside: &Outside, options: FormatOptions) -> Result<Enrolment, Failure> {
    if !is_joined(config) {
        return Err(Failure::usage(format!(
            "{} is not the state directory of a joined edge; run there: firn edge join --state {}",
            config.volume.state_directory.display(),
            config.volume.state_directory.display(),
        )));
    }
    let joined = Joined::load(config)?;
    let place = |family| Place {
        tenant: joined.owner,
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
    let ring = match newest(&joined, config).await? {
        Newest::Ring(ring) => ring,
        Newest::None => return Ok(not_approved()),
        Newest::Silent(why) => {
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
    check_pinned(&joined, &ring)?;
    let store = &*outside.stack.store;
    let owner = Owner {
        family: ring.family(),
        tenant: joined.tenant,
    };
    // Nothing was seen here yet, but the bucket may have: an older ring lacks keys, and lists who was removed since.
    let (in_bucket, passed) = newest_in(store, &owner, 0).await?;
    for object in passed {
        tracing::warn!(key = %object.key, why = object.why, "passed over: this is no key ring of the tenant's; remove it");
    }
    if let Some(in_bucket) = in_bucket {
        ring.check_after(&in_bucket.seen()).map_err(|error| {
            Failure::new(format!(
                "the service's key ring, compared with the bucket's: {error}; nothing was changed"
            ))
        })?;
    }
    let is_followed = config.volume.follow.is_some();
    // Who was granted a volume, or follows it, does not make it.
    let may_make = !is_followed && !joined.is_granted();
    let options = FormatOptions {
        by_inode: may_make && is_by_inode(&joined, config).await?,
        ..options
    };
    if !is_followed {
        keep(&ring, store).await?;
    }
    let place = place(ring.family());
    let identity = Identity {
        family: ring.family(),
        volume: joined.volume,
        tenant: joined.tenant,
        secret: joined.secret,
        handle_key: Zeroizing::new(outside.env.random_bytes()),
        generation: ring.generation(),
    };
    let anchor = outside.anchor(identity.family);
    if may_make {
        match anchor.create_family().await {
            Ok(()) | Err(AnchorError::FamilyExists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let found = match anchor.load(identity.volume).await {
        Ok((tuple, _)) => Some(tuple),
        Err(AnchorError::NoSuchVolume { .. } | AnchorError::NoSuchFamily { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let is_there = found.as_ref().is_some_and(|tuple| tuple.root.is_some());
    if !is_there && !may_make {
        return Err(Failure::usage(
            "the volume is another's, to be followed or shared, and no edge has made it yet; nothing was changed. Start the edge that owns it first",
        ));
    }
    if may_make && (!is_there || options.by_inode) {
        by_inode::check_making(config, &options)?;
        let parts = outside.parts(identity.family, identity.volume, keys);
        match is_there {
            false => {
                Volume::format(&parts, &config.volume.name, options, &config.volume_config()?).await?;
            }
            // Made so already, or by a try that was cut off; one that somebody has written is refused.
            true => Volume::mark_by_inode(&parts).await?,
        }
    }
    rings::save(&config.volume.state_directory, &ring)?;
    identity.create(&config.volume.state_directory)?;
    Ok(Enrolment::Ready {
        made: !is_there,
        place,
    })
}

/// How often it is looked whether this edge was approved, and for how long: somebody elsewhere has to type a command.
const LOOK_PERIOD: Duration = Duration::from_secs(2);
const LOOKING_MAX: Duration = Duration::from_secs(2 * 3600);

/// The same, waiting until this edge is approved. A service that does not answer meanwhile ends the waiting, as all other failures do.
///
/// # Errors
/// As [`enrol`].
pub async fn enrol_once_approved(
    config: &Config,
    outside: &Outside,
    options: FormatOptions,
) -> Result<Enrolment, Failure> {
    let began = outside.env.now();
    let mut has_said = false;
    loop {
        let enrolled = enrol(config, outside, options).await?;
        let is_waiting = matches!(enrolled, Enrolment::NotApproved { .. });
        if !is_waiting || outside.env.now().since(began) > LOOKING_MAX {
            return Ok(enrolled);
        }
        if !has_said {
            eprintln!("{enrolled}   (waiting for it)");
            has_said = true;
        }
        outside.env.sleep(LOOK_PERIOD).await;
    }
}

/// What the inviter pinned when it made the invitation: of which family the volume is, and how new its ring was then.
fn check_pinned(joined: &Joined, ring: &VerifiedKeyRing) -> Result<(), Failure> {
    if joined.is_granted() {
        // Signed by its owner for this volume, and nothing was known of it here.
        return Ok(());
    }
    let Some(pinned) = joined.pinned() else {
        tracing::warn!(
            "the invitation is one of an older firn and does not say of which family its volume is"
        );
        return Ok(());
    };
    let untrusted = |why: String| {
        Err(Failure::new(format!(
            "the service's key ring is not the one that this edge was invited to: {why}; nothing was changed"
        )))
    };
    if pinned.family != ring.family().to_string() {
        return untrusted(format!(
            "it is of family {}, the invitation says {}",
            ring.family(),
            pinned.family
        ));
    }
    if ring.generation() < pinned.generation {
        return untrusted(format!(
            "it is of generation {}, and generation {} was there when the invitation was made",
            ring.generation(),
            pinned.generation
        ));
    }
    Ok(())
}

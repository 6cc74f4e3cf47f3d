//! Key rings, on the tenant's side: made, verified against the pinned key, extended, shortened. The service stores them and is
//! never believed about them.

use crate::{
    failure::{Exit, Failure},
    hexadecimal::{hex, unhex},
    pins::PinnedVolume,
    random::{entropy, filled},
    screen::field,
    session::Session,
};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_format::{FamilyId, VolumeId};
use firn_seal::{
    KeyRing, Recipient, RecipientKind, RecipientPublic, RecoveryPhrase, SeenRing, TenantPublic,
    VerifiedKeyRing,
};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The first ring of a new volume, wrapped to the recovery key only: edges are added when they joined.
pub fn first(phrase: &RecoveryPhrase, volume: VolumeId) -> Result<KeyRing, Failure> {
    let mut family = [0; 16];
    entropy(&mut family)?;
    // From the phrase itself, not from what the service says the recovery key is.
    let recovery = Recipient {
        name: "recovery".into(),
        kind: RecipientKind::Recovery,
        public: phrase.recovery_secret().public(),
    };
    let (ring, _) = KeyRing::create(
        FamilyId(family),
        volume,
        vec![recovery],
        &phrase.signing_key(),
        &mut filled,
    )
    .map_err(|error| Failure::failed(error.to_string()))?;
    Ok(ring)
}

/// Gives a volume that has no keys yet its first ring, which is signed for its id: so the id must be known before.
pub async fn put_first(
    session: &mut Session,
    phrase: &RecoveryPhrase,
    volume: &Value,
) -> Result<(), Failure> {
    let id = field(volume, "id");
    if session.profile.volumes.contains_key(&id) {
        return Err(Failure::untrusted(format!(
            "the service says that {id} has no keys, and its key ring was seen before"
        )));
    }
    let ring = first(phrase, volume_id(&id)?)?;
    put(session, volume, ring).await
}

/// A volume's id as rings are signed for it.
fn volume_id(id: &str) -> Result<VolumeId, Failure> {
    id.parse()
        .map_err(|error| Failure::untrusted(format!("what the service calls a volume's id: {error}")))
}

/// A volume's newest ring: signed by the pinned key, for this volume, and continuing what was seen before.
pub async fn fetch(session: &mut Session, volume: &Value) -> Result<Option<VerifiedKeyRing>, Failure> {
    let id = field(volume, "id");
    let pin = session.profile.volumes.get(&id).cloned();
    if volume["key_ring_generation"].as_u64() == Some(0) {
        return match pin {
            None => Ok(None),
            Some(seen) => Err(Failure::untrusted(format!(
                "the service says that volume {id} has no key ring, and generation {} was seen before",
                seen.generation
            ))),
        };
    }
    let wanted = volume_id(&id)?;
    let reply = session.get(&format!("volumes/{id}/keyring")).await?;
    let text = field(&reply.body, "key_ring");
    let bytes = STANDARD_NO_PAD
        .decode(text)
        .map_err(|_| Failure::untrusted(format!("what the service gives as the key ring of {id} is none")))?;
    let ring = KeyRing::decode(bytes.into())
        .and_then(|ring| ring.verify(&pinned(session)?))
        .and_then(|ring| ring.check_volume(&wanted).map(|()| ring))
        .map_err(|error| Failure::untrusted(format!("the key ring of {id}: {error}")))?;
    if let Some(pin) = &pin {
        continues(&ring, pin, wanted)
            .map_err(|why| Failure::untrusted(format!("the key ring of {id}: {why}")))?;
    }
    if field(volume, "family") != ring.family().to_string() {
        return Err(Failure::untrusted(format!(
            "the key ring of {id} is of another family than the service says"
        )));
    }
    pin_ring(session, volume, &ring)?;
    Ok(Some(ring))
}

/// Checks a ring against what was seen of its volume before; the error is why it is not taken.
fn continues(ring: &VerifiedKeyRing, pin: &PinnedVolume, volume: VolumeId) -> Result<(), String> {
    let known = pin.family.as_ref().zip(pin.hash.as_ref());
    let Some((family, hash)) = known else {
        // A profile of version 1: the generation is all that it says.
        let checked = ring.check(&ring.family(), pin.generation);
        return checked.map_err(|error| error.to_string());
    };
    let family: FamilyId = family.parse().map_err(|error| format!("the profile: {error}"))?;
    let seen = SeenRing {
        family,
        volume: pin.bound.then_some(volume),
        generation: pin.generation,
        hash: unhex(hash).ok_or("the profile: a hash is none")?,
    };
    ring.check_after(&seen).map_err(|error| error.to_string())
}

/// Remembers a ring as the newest of its volume.
fn pin_ring(session: &mut Session, volume: &Value, ring: &VerifiedKeyRing) -> Result<(), Failure> {
    let seen = ring.seen();
    let pin = PinnedVolume {
        family: Some(seen.family.to_string()),
        generation: seen.generation,
        hash: Some(hex(&seen.hash)),
        bound: seen.volume.is_some(),
        name: field(volume, "name"),
    };
    let id = field(volume, "id");
    if session.profile.volumes.get(&id) != Some(&pin) {
        session.profile.volumes.insert(id, pin);
        session.save()?;
    }
    Ok(())
}

/// Volumes that were seen here and are not among those that the service lists; erased ones stay listed.
pub fn hidden(session: &Session, listed: &[Value]) -> Vec<String> {
    let listed: BTreeSet<String> = listed.iter().map(|volume| field(volume, "id")).collect();
    let pinned = session.profile.volumes.keys();
    pinned.filter(|id| !listed.contains(*id)).cloned().collect()
}

fn pinned(session: &Session) -> Result<TenantPublic, firn_seal::KeyRingError> {
    // Checked when it was pinned.
    Ok(TenantPublic::from_bytes(
        unhex(&session.profile.tenant_key).unwrap_or_default(),
    ))
}

/// Adds an edge to a volume's ring, unless it is in it.
pub async fn add_edge(
    session: &mut Session,
    phrase: &RecoveryPhrase,
    volume: &Value,
    edge: &str,
    public: RecipientPublic,
) -> Result<bool, Failure> {
    let id = field(volume, "id");
    let ring = fetch(session, volume).await?.ok_or_else(|| {
        Failure::new(Exit::Conflict, format!("volume {id} has no key ring"))
            .next("make volumes with: firn volume create")
    })?;
    if let Some(known) = ring.recipients().iter().find(|recipient| recipient.name == edge) {
        if known.public == public {
            return Ok(false);
        }
        return Err(Failure::untrusted(format!(
            "the key ring of {id} lists {edge} with another key"
        )));
    }
    let failed = |error: firn_seal::KeyRingError| Failure::failed(format!("the key ring of {id}: {error}"));
    let keys = ring.open(&phrase.recovery_secret()).map_err(failed)?;
    let recipient = Recipient {
        name: edge.to_owned(),
        kind: RecipientKind::Edge,
        public,
    };
    let next = ring
        .bound_to(volume_id(&id)?)
        .map_err(failed)?
        .add_recipient(&keys, recipient, &phrase.signing_key(), &mut filled)
        .map_err(failed)?;
    put(session, volume, next).await?;
    Ok(true)
}

/// Takes an edge out of a volume's ring and starts a new key epoch, unless it is not in it.
pub async fn remove_edge(
    session: &mut Session,
    phrase: &RecoveryPhrase,
    volume: &Value,
    edge: &str,
) -> Result<bool, Failure> {
    let id = field(volume, "id");
    let Some(ring) = fetch(session, volume).await? else {
        return Ok(false);
    };
    if ring.recipients().iter().all(|recipient| recipient.name != edge) {
        return Ok(false);
    }
    let failed = |error: firn_seal::KeyRingError| Failure::failed(format!("the key ring of {id}: {error}"));
    let keys = ring.open(&phrase.recovery_secret()).map_err(failed)?;
    let (next, _) = ring
        .bound_to(volume_id(&id)?)
        .map_err(failed)?
        .remove_recipient(&keys, edge, &phrase.signing_key(), &mut filled)
        .map_err(failed)?;
    put(session, volume, next).await?;
    Ok(true)
}

/// Starts a new key epoch of a volume for those who have its keys.
pub async fn rotate(session: &mut Session, phrase: &RecoveryPhrase, volume: &Value) -> Result<(), Failure> {
    let id = field(volume, "id");
    let ring = fetch(session, volume).await?.ok_or_else(|| {
        Failure::new(Exit::Conflict, format!("volume {id} has no key ring"))
            .next("make volumes with: firn volume create")
    })?;
    let failed = |error: firn_seal::KeyRingError| Failure::failed(format!("the key ring of {id}: {error}"));
    let keys = ring.open(&phrase.recovery_secret()).map_err(failed)?;
    let (next, _) = ring
        .bound_to(volume_id(&id)?)
        .map_err(failed)?
        .rotate(&keys, &phrase.signing_key(), &mut filled)
        .map_err(failed)?;
    put(session, volume, next).await
}

/// Stores a ring that was made here. What is remembered of it is what was signed, not what the service answers.
async fn put(session: &mut Session, volume: &Value, ring: KeyRing) -> Result<(), Failure> {
    let body = json!({ "key_ring": STANDARD_NO_PAD.encode(ring.encode()) });
    let path = format!("volumes/{}/keyring", field(volume, "id"));
    session.call(Method::PUT, &path, Some(&body), None).await?;
    let ring = ring
        .verify(&pinned(session).map_err(|error| Failure::failed(error.to_string()))?)
        .map_err(|error| Failure::failed(error.to_string()))?;
    pin_ring(session, volume, &ring)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_ring_opens_with_the_phrase_and_verifies_with_its_key_only() {
        let phrase = RecoveryPhrase::from_entropy([5; 32]);
        let made = first(&phrase, VolumeId([7; 16])).unwrap();
        let decode = || KeyRing::decode(made.encode()).unwrap();
        let ring = decode().verify(&phrase.signing_key().public()).unwrap();
        assert!(ring.open(&phrase.recovery_secret()).is_ok());
        let other = RecoveryPhrase::from_entropy([6; 32]);
        assert!(decode().verify(&other.signing_key().public()).is_err());
        assert!(ring.open(&other.recovery_secret()).is_err());
    }
}

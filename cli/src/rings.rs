//! Key rings, on the tenant's side: made, verified against the pinned key, extended, shortened. The service stores them and is
//! never believed about them.

use crate::{
    failure::{Exit, Failure},
    session::Session,
};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use firn_format::FamilyId;
use firn_seal::{
    KeyRing, Recipient, RecipientKind, RecipientPublic, RecoveryPhrase, TenantPublic, VerifiedKeyRing,
};
use reqwest::Method;
use serde_json::{Value, json};

/// Fills `bytes` from the operating system.
pub fn entropy(bytes: &mut [u8]) -> Result<(), Failure> {
    getrandom::fill(bytes)
        .map_err(|error| Failure::failed(format!("the system gives no random bytes: {error}")))
}

/// As the key crates take it. The system was asked once when the program began to need it; that it stops giving is no state
/// to go on in.
pub fn filled(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives random bytes");
}

/// `N` random bytes as hex digits.
pub fn random_hex<const N: usize>() -> Result<String, Failure> {
    let mut bytes = [0; N];
    entropy(&mut bytes)?;
    Ok(hex(&bytes))
}

/// Lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

/// Reads exactly `N` bytes of hex digits, in either case: people type some of them.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    HEXLOWER_PERMISSIVE.decode_mut(text.as_bytes(), &mut bytes).ok()?;
    Some(bytes)
}

/// The first ring of a new volume, wrapped to the recovery key only: edges are added when they joined.
pub fn first(phrase: &RecoveryPhrase) -> Result<String, Failure> {
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
        vec![recovery],
        &phrase.signing_key(),
        &mut filled,
    )
    .map_err(|error| Failure::failed(error.to_string()))?;
    Ok(STANDARD_NO_PAD.encode(ring.encode()))
}

/// A volume's newest ring: signed by the pinned key, of the family it should be, and no older than one seen before.
pub async fn fetch(session: &mut Session, volume: &Value) -> Result<Option<VerifiedKeyRing>, Failure> {
    let id = crate::screen::field(volume, "id");
    if volume["key_ring_generation"].as_u64() == Some(0) {
        return match session.profile.key_rings.get(&id) {
            None => Ok(None),
            Some(seen) => Err(Failure::untrusted(format!(
                "the service says that volume {id} has no key ring, and generation {seen} was seen before"
            ))),
        };
    }
    let reply = session.get(&format!("volumes/{id}/keyring")).await?;
    let text = crate::screen::field(&reply.body, "key_ring");
    let bytes = STANDARD_NO_PAD
        .decode(text)
        .map_err(|_| Failure::untrusted(format!("what the service gives as the key ring of {id} is none")))?;
    let ring = KeyRing::decode(bytes.into())
        .and_then(|ring| ring.verify(&pinned(session)?))
        .map_err(|error| Failure::untrusted(format!("the key ring of {id}: {error}")))?;
    let seen = session.profile.key_rings.get(&id).copied().unwrap_or(0);
    ring.check(&ring.family(), seen)
        .map_err(|error| Failure::untrusted(format!("the key ring of {id}: {error}")))?;
    if crate::screen::field(volume, "family") != ring.family().to_string() {
        return Err(Failure::untrusted(format!(
            "the key ring of {id} is of another family than the service says"
        )));
    }
    if ring.generation() > seen {
        session.profile.key_rings.insert(id, ring.generation());
        session.save()?;
    }
    Ok(Some(ring))
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
    let id = crate::screen::field(volume, "id");
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
        .add_recipient(&keys, recipient, &phrase.signing_key(), &mut filled)
        .map_err(failed)?;
    put(session, &id, &next).await?;
    Ok(true)
}

/// Takes an edge out of a volume's ring and starts a new key epoch, unless it is not in it.
pub async fn remove_edge(
    session: &mut Session,
    phrase: &RecoveryPhrase,
    volume: &Value,
    edge: &str,
) -> Result<bool, Failure> {
    let id = crate::screen::field(volume, "id");
    let Some(ring) = fetch(session, volume).await? else {
        return Ok(false);
    };
    if ring.recipients().iter().all(|recipient| recipient.name != edge) {
        return Ok(false);
    }
    let failed = |error: firn_seal::KeyRingError| Failure::failed(format!("the key ring of {id}: {error}"));
    let keys = ring.open(&phrase.recovery_secret()).map_err(failed)?;
    let (next, _) = ring
        .remove_recipient(&keys, edge, &phrase.signing_key(), &mut filled)
        .map_err(failed)?;
    put(session, &id, &next).await?;
    Ok(true)
}

/// Starts a new key epoch of a volume for those who have its keys.
pub async fn rotate(session: &mut Session, phrase: &RecoveryPhrase, volume: &Value) -> Result<(), Failure> {
    let id = crate::screen::field(volume, "id");
    let ring = fetch(session, volume).await?.ok_or_else(|| {
        Failure::new(Exit::Conflict, format!("volume {id} has no key ring"))
            .next("make volumes with: firn volume create")
    })?;
    let failed = |error: firn_seal::KeyRingError| Failure::failed(format!("the key ring of {id}: {error}"));
    let keys = ring.open(&phrase.recovery_secret()).map_err(failed)?;
    let (next, _) = ring
        .rotate(&keys, &phrase.signing_key(), &mut filled)
        .map_err(failed)?;
    put(session, &id, &next).await
}

async fn put(session: &mut Session, volume: &str, ring: &KeyRing) -> Result<(), Failure> {
    let body = json!({ "key_ring": STANDARD_NO_PAD.encode(ring.encode()) });
    let reply = session
        .call(
            Method::PUT,
            &format!("volumes/{volume}/keyring"),
            Some(&body),
            None,
        )
        .await?;
    if let Some(generation) = reply.body["key_ring_generation"].as_u64() {
        session.profile.key_rings.insert(volume.to_owned(), generation);
        session.save()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_ring_opens_with_the_phrase_and_verifies_with_its_key_only() {
        let phrase = RecoveryPhrase::from_entropy([5; 32]);
        let text = first(&phrase).unwrap();
        let decode = || KeyRing::decode(STANDARD_NO_PAD.decode(&text).unwrap().into()).unwrap();
        let ring = decode().verify(&phrase.signing_key().public()).unwrap();
        assert!(ring.open(&phrase.recovery_secret()).is_ok());
        let other = RecoveryPhrase::from_entropy([6; 32]);
        assert!(decode().verify(&other.signing_key().public()).is_err());
        assert!(ring.open(&other.recovery_secret()).is_err());
    }

    #[test]
    fn hex_is_exact() {
        assert_eq!(unhex::<2>(&hex(&[0, 255])), Some([0, 255]));
        for wrong in ["", "0", "00f", "zz00", "+0ff"] {
            assert_eq!(unhex::<2>(wrong), None, "{wrong}");
        }
    }
}

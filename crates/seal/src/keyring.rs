//! The key ring: a family's keys, wrapped to everyone who may read.
//!
//! A ring lists the recipients (edges, members, the recovery key) and, for every epoch, the epoch key in an HPKE envelope
//! to each of them. The tenant's signing key signs it, so neither the bucket nor the service that hands it out can slip in
//! a recipient. It names the volume it is for, so that a ring handed out in the place of another volume's is noticed. Rings
//! are never changed: each has a generation and names the hash of the one before, and lies at a key of its own, so an old
//! one is told from the current one and a fork is noticed.
//!
//! ```text
//! decode ─► KeyRing ── verify(tenant) ─► VerifiedKeyRing ── check · check_after(newest seen) ── open(secret) ─► Keys
//!                                              │
//!                    rotate · add_recipient · remove_recipient (each needs opened keys and the signing key)
//!                                              └─► KeyRing of the next generation
//! ```
//!
//! Removing a recipient starts a new epoch. What it could read before it can still read if it kept the keys or the data;
//! only rewriting the data (`rekey`) changes that.

mod encoding;
mod envelope;
mod error;

use crate::{EpochKey, Keys, RecipientPublic, RecipientSecret, TenantPublic, TenantSigningKey};
use bytes::Bytes;
pub use encoding::FORMATS;
use envelope::Envelope;
pub use error::KeyRingError;
use firn_format::{FamilyId, FormatError, KeyEpoch, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

/// The most recipients of a ring: a large customer has some hundred offices.
pub const MAX_RECIPIENTS: usize = 1024;
/// The most epochs of a ring: a rotation a week for twenty years.
pub const MAX_EPOCHS: usize = 1024;
/// The longest name of a recipient.
const MAX_NAME_BYTES: usize = 255;

/// A source of fresh entropy, such as the environment's randomness: fills the whole slice.
pub type Entropy<'a> = &'a mut dyn FnMut(&mut [u8]);

/// What a recipient is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RecipientKind {
    /// An edge proxy.
    Edge = 1,
    /// A person of the tenant's.
    Member = 2,
    /// The key derived from the recovery phrase.
    Recovery = 3,
}

impl RecipientKind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Edge, Self::Member, Self::Recovery]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// Someone a family's keys are wrapped to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipient {
    /// What people call it; unique within a ring, 1 to 255 bytes.
    pub name: String,
    /// What it is.
    pub kind: RecipientKind,
    /// Its key; unique within a ring.
    pub public: RecipientPublic,
}

/// One key of the family, wrapped.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Epoch {
    epoch: KeyEpoch,
    /// See [`EpochKey::commitment`].
    commitment: [u8; 32],
    /// One for each recipient, in their order.
    envelopes: Vec<Envelope>,
}

/// A key ring, not yet known to be the tenant's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRing {
    family: FamilyId,
    volume: Option<VolumeId>,
    generation: u64,
    previous: [u8; 32],
    recipients: Vec<Recipient>,
    epochs: Vec<Epoch>,
    encoded: Bytes,
}

impl KeyRing {
    /// Makes the first ring of a family, with one fresh key, for the volume that the family is made for. Clones of the volume
    /// share its keys, and its ring.
    ///
    /// # Errors
    /// If the recipients cannot be listed together, or none of them is for recovery.
    pub fn create(
        family: FamilyId,
        volume: VolumeId,
        recipients: Vec<Recipient>,
        signer: &TenantSigningKey,
        entropy: Entropy<'_>,
    ) -> Result<(Self, Keys), KeyRingError> {
        let epoch = KeyEpoch(1);
        let key = fresh_key(entropy);
        let keys = Keys::new(family, BTreeMap::from([(epoch, key.clone())]));
        check_recipients(&recipients)?;
        let epochs = vec![wrap_to_all(&family, epoch, &key, &recipients, entropy)];
        let ring = Draft {
            family,
            volume: Some(volume),
            generation: 1,
            previous: [0; 32],
            recipients,
            epochs,
        };
        Ok((ring.sign(signer), keys))
    }

    /// Reads a ring; nothing vouches for it yet.
    ///
    /// # Errors
    /// If the bytes are no ring that this build can read.
    pub fn decode(bytes: Bytes) -> Result<Self, KeyRingError> {
        encoding::decode(bytes)
    }

    /// What this build does not know of a ring that the tenant signed: its version, or a feature. `None` of anything else, that is of rings
    /// that this build reads and of what nobody vouches for. In every version a ring ends with the signature over all before it.
    pub fn newer(bytes: &Bytes, tenant: &TenantPublic) -> Option<FormatError> {
        let error = match encoding::decode(bytes.clone()) {
            Err(KeyRingError::Format(
                error @ (FormatError::UnknownVersion { .. } | FormatError::UnknownFeatures { .. }),
            )) => error,
            Ok(_) | Err(_) => return None,
        };
        let (body, signature) = bytes.split_last_chunk::<{ encoding::SIGNATURE_BYTES }>()?;
        tenant
            .verifies(&encoding::signed_message(body), signature)
            .then_some(error)
    }

    /// The bytes that go into the bucket and to the service.
    pub fn encode(&self) -> Bytes {
        self.encoded.clone()
    }

    /// The name of the ring's object in the family's bucket.
    pub fn object_key(&self) -> String {
        Self::object_key_of(&self.family, self.generation)
    }

    /// The name of the object of a family's ring of one generation.
    pub fn object_key_of(family: &FamilyId, generation: u64) -> String {
        format!("{}{generation:016x}", Self::object_prefix(family))
    }

    /// What the names of all of a family's rings begin with; a listing gives them oldest first.
    pub fn object_prefix(family: &FamilyId) -> String {
        format!("{family}/keyring/")
    }

    /// Checks that the tenant signed it.
    ///
    /// # Errors
    /// If not.
    pub fn verify(self, tenant: &TenantPublic) -> Result<VerifiedKeyRing, KeyRingError> {
        let (body, signature) = encoding::split_signature(&self.encoded);
        if tenant.verifies(&encoding::signed_message(body), signature) {
            Ok(VerifiedKeyRing(self))
        } else {
            Err(KeyRingError::BadSignature {
                generation: self.generation,
                tenant: *tenant,
            })
        }
    }

    /// Opens a verified ring; the same as [`VerifiedKeyRing::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(ring: &VerifiedKeyRing, secret: &RecipientSecret) -> Result<Keys, KeyRingError> {
        ring.open(secret)
    }

    fn hash(&self) -> [u8; 32] {
        *blake3::hash(&self.encoded).as_bytes()
    }
}

/// What is remembered of the newest ring seen, so that whatever comes later can be checked against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenRing {
    /// The family.
    pub family: FamilyId,
    /// The volume it was signed for, if it says.
    pub volume: Option<VolumeId>,
    /// Its generation.
    pub generation: u64,
    /// BLAKE3 of the whole ring.
    pub hash: [u8; 32],
}

/// A key ring that the tenant signed. Only [`KeyRing::verify`] makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedKeyRing(KeyRing);

impl VerifiedKeyRing {
    /// The family whose keys it holds.
    pub fn family(&self) -> FamilyId {
        self.0.family
    }

    /// The volume that it was signed for; none in a ring that was begun with version 1 of the format and not
    /// [bound](Self::bound_to) since.
    pub fn volume(&self) -> Option<VolumeId> {
        self.0.volume
    }

    /// The same ring, whose successors are signed for `volume`; for rings that say nothing of a volume yet.
    ///
    /// # Errors
    /// If it is signed for another one.
    pub fn bound_to(mut self, volume: VolumeId) -> Result<Self, KeyRingError> {
        self.check_volume(&volume)?;
        self.0.volume = Some(volume);
        Ok(self)
    }

    /// Checks that it is not signed for another volume than the wanted one. A ring of version 1 passes: what it is for is then
    /// known by its family only.
    ///
    /// # Errors
    /// If it is.
    pub fn check_volume(&self, expected: &VolumeId) -> Result<(), KeyRingError> {
        match self.0.volume {
            Some(found) if found != *expected => Err(KeyRingError::WrongVolume {
                expected: *expected,
                found,
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Counts the rings of a family, from 1.
    pub fn generation(&self) -> u64 {
        self.0.generation
    }

    /// The epoch that new data is sealed under.
    pub fn current(&self) -> KeyEpoch {
        self.0.epochs.last().expect("a ring has a key").epoch
    }

    /// All epochs, oldest first.
    pub fn epochs(&self) -> impl Iterator<Item = KeyEpoch> {
        self.0.epochs.iter().map(|epoch| epoch.epoch)
    }

    /// Everyone the keys are wrapped to.
    pub fn recipients(&self) -> &[Recipient] {
        &self.0.recipients
    }

    /// The ring itself, to be stored.
    pub fn ring(&self) -> &KeyRing {
        &self.0
    }

    /// Checks that this is the wanted family's ring and no older than the newest one seen.
    ///
    /// # Errors
    /// If not.
    pub fn check(&self, family: &FamilyId, newest_generation_seen: u64) -> Result<(), KeyRingError> {
        if self.family() != *family {
            return Err(KeyRingError::WrongFamily {
                expected: *family,
                found: self.family(),
            });
        }
        if self.generation() < newest_generation_seen {
            return Err(KeyRingError::Stale {
                found: self.generation(),
                newest_seen: newest_generation_seen,
            });
        }
        Ok(())
    }

    /// Checks that this ring was made from `previous` and no other.
    ///
    /// # Errors
    /// If not: two rings of one generation exist, so two administrators changed the ring at a time.
    pub fn check_follows(&self, previous: &Self) -> Result<(), KeyRingError> {
        if previous.generation() + 1 == self.generation() && previous.0.hash() == self.0.previous {
            return Ok(());
        }
        Err(KeyRingError::Forked {
            generation: self.generation(),
            previous: previous.generation(),
        })
    }

    /// What to remember of it.
    pub fn seen(&self) -> SeenRing {
        SeenRing {
            family: self.0.family,
            volume: self.0.volume,
            generation: self.0.generation,
            hash: self.0.hash(),
        }
    }

    /// Checks that this ring may be taken after `newest`: of the same family and volume, no older, and where the generations
    /// are equal or neighbours, the same ring or its successor. What lies between more distant ones is not at hand.
    ///
    /// # Errors
    /// If not.
    pub fn check_after(&self, newest: &SeenRing) -> Result<(), KeyRingError> {
        self.check(&newest.family, newest.generation)?;
        if let Some(expected) = newest.volume {
            let found = self.0.volume.unwrap_or(encoding::UNBOUND);
            if found != expected {
                return Err(KeyRingError::WrongVolume { expected, found });
            }
        }
        let is_forked = match self.generation() - newest.generation {
            0 => self.0.hash() != newest.hash,
            1 => self.0.previous != newest.hash,
            _ => false,
        };
        if is_forked {
            return Err(KeyRingError::Forked {
                generation: self.generation(),
                previous: newest.generation,
            });
        }
        Ok(())
    }

    /// Opens all keys with a recipient's secret.
    ///
    /// # Errors
    /// If the secret is no recipient's, or an envelope does not hold the key that the ring names.
    pub fn open(&self, secret: &RecipientSecret) -> Result<Keys, KeyRingError> {
        let public = secret.public();
        let position = self
            .recipients()
            .iter()
            .position(|recipient| recipient.public == public)
            .ok_or(KeyRingError::NotARecipient {
                public,
                generation: self.generation(),
            })?;
        let mut opened = BTreeMap::new();
        for entry in &self.0.epochs {
            let key = entry.envelopes[position]
                .open(&self.0.family, entry.epoch, secret)
                .filter(|key| key.commitment(&self.0.family, entry.epoch) == entry.commitment)
                .ok_or_else(|| KeyRingError::BadEnvelope {
                    epoch: entry.epoch,
                    recipient: self.recipients()[position].name.clone(),
                })?;
            opened.insert(entry.epoch, key);
        }
        Ok(Keys::new(self.0.family, opened))
    }

    /// Starts a new epoch for the same recipients.
    ///
    /// # Errors
    /// If the keys are not this ring's, or it has [`MAX_EPOCHS`].
    pub fn rotate(
        &self,
        keys: &Keys,
        signer: &TenantSigningKey,
        entropy: Entropy<'_>,
    ) -> Result<(KeyRing, Keys), KeyRingError> {
        self.check_keys(keys)?;
        self.successor(self.0.recipients.clone())
            .add_epoch(keys, entropy)
            .map(|(ring, keys)| (ring.sign(signer), keys))
    }

    /// Wraps all keys to one more recipient.
    ///
    /// # Errors
    /// If the keys are not this ring's, or the recipient cannot be listed.
    pub fn add_recipient(
        &self,
        keys: &Keys,
        recipient: Recipient,
        signer: &TenantSigningKey,
        entropy: Entropy<'_>,
    ) -> Result<KeyRing, KeyRingError> {
        self.check_keys(keys)?;
        let mut recipients = self.0.recipients.clone();
        recipients.push(recipient.clone());
        check_recipients(&recipients)?;
        let mut ring = self.successor(recipients);
        for entry in &mut ring.epochs {
            let key = keys.epoch(entry.epoch).map_err(|_| KeyRingError::WrongKeys)?;
            let envelope = Envelope::seal(&ring.family, entry.epoch, &key, &recipient.public, entropy);
            entry.envelopes.push(envelope);
        }
        Ok(ring.sign(signer))
    }

    /// Drops a recipient and starts a new epoch, so that it can read nothing written from now on.
    ///
    /// # Errors
    /// If the keys are not this ring's, no recipient has that name, or none would be left for recovery.
    pub fn remove_recipient(
        &self,
        keys: &Keys,
        name: &str,
        signer: &TenantSigningKey,
        entropy: Entropy<'_>,
    ) -> Result<(KeyRing, Keys), KeyRingError> {
        self.check_keys(keys)?;
        let mut recipients = self.0.recipients.clone();
        let position = recipients
            .iter()
            .position(|recipient| recipient.name == name)
            .ok_or_else(|| KeyRingError::UnknownRecipient {
                name: name.to_owned(),
            })?;
        recipients.remove(position);
        check_recipients(&recipients)?;
        let mut ring = self.successor(recipients);
        for entry in &mut ring.epochs {
            entry.envelopes.remove(position);
        }
        ring.add_epoch(keys, entropy)
            .map(|(ring, keys)| (ring.sign(signer), keys))
    }

    fn successor(&self, recipients: Vec<Recipient>) -> Draft {
        Draft {
            family: self.0.family,
            volume: self.0.volume,
            generation: self.0.generation + 1,
            previous: self.0.hash(),
            recipients,
            epochs: self.0.epochs.clone(),
        }
    }

    fn check_keys(&self, keys: &Keys) -> Result<(), KeyRingError> {
        let same = keys.family() == self.0.family
            && keys.epochs().into_iter().eq(self.epochs())
            && self.0.epochs.iter().all(|entry| {
                keys.epoch(entry.epoch)
                    .is_ok_and(|key| key.commitment(&self.0.family, entry.epoch) == entry.commitment)
            });
        if same {
            Ok(())
        } else {
            Err(KeyRingError::WrongKeys)
        }
    }
}

/// A ring that is not signed yet.
struct Draft {
    family: FamilyId,
    volume: Option<VolumeId>,
    generation: u64,
    previous: [u8; 32],
    recipients: Vec<Recipient>,
    epochs: Vec<Epoch>,
}

impl Draft {
    fn add_epoch(mut self, keys: &Keys, entropy: Entropy<'_>) -> Result<(Self, Keys), KeyRingError> {
        if self.epochs.len() >= MAX_EPOCHS {
            return Err(KeyRingError::Full {
                what: "epochs",
                limit: MAX_EPOCHS,
            });
        }
        let epoch = keys.current().next();
        let key = fresh_key(entropy);
        self.epochs
            .push(wrap_to_all(&self.family, epoch, &key, &self.recipients, entropy));
        Ok((self, keys.with(epoch, key)))
    }

    fn sign(self, signer: &TenantSigningKey) -> KeyRing {
        let encoded = encoding::encode(&self, signer);
        let Self {
            family,
            volume,
            generation,
            previous,
            recipients,
            epochs,
        } = self;
        KeyRing {
            family,
            volume,
            generation,
            previous,
            recipients,
            epochs,
            encoded,
        }
    }
}

fn fresh_key(entropy: Entropy<'_>) -> EpochKey {
    EpochKey::filled(|bytes| entropy(bytes))
}

fn wrap_to_all(
    family: &FamilyId,
    epoch: KeyEpoch,
    key: &EpochKey,
    recipients: &[Recipient],
    entropy: Entropy<'_>,
) -> Epoch {
    Epoch {
        epoch,
        commitment: key.commitment(family, epoch),
        envelopes: recipients
            .iter()
            .map(|recipient| Envelope::seal(family, epoch, key, &recipient.public, entropy))
            .collect(),
    }
}

fn check_recipients(recipients: &[Recipient]) -> Result<(), KeyRingError> {
    if recipients.len() > MAX_RECIPIENTS {
        return Err(KeyRingError::Full {
            what: "recipients",
            limit: MAX_RECIPIENTS,
        });
    }
    let mut names = BTreeSet::new();
    let mut publics = BTreeSet::new();
    for recipient in recipients {
        let refuse = |reason| {
            Err(KeyRingError::BadRecipient {
                name: recipient.name.clone(),
                reason,
            })
        };
        if !(1..=MAX_NAME_BYTES).contains(&recipient.name.len()) {
            return refuse("a name has 1 to 255 bytes");
        }
        if !names.insert(&recipient.name) {
            return refuse("the name is taken");
        }
        if !publics.insert(recipient.public) {
            return refuse("the key is listed under another name");
        }
    }
    if !recipients
        .iter()
        .any(|recipient| recipient.kind == RecipientKind::Recovery)
    {
        return Err(KeyRingError::NoRecovery);
    }
    Ok(())
}

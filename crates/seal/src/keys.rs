//! Opened keys: what a family's objects are sealed with. Wiped when the last handle is dropped, and never printed.

use crate::{SealError, secret::Secret};
use firn_format::{FamilyId, KeyEpoch};
use std::{collections::BTreeMap, fmt, sync::Arc};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The key of one epoch.
#[derive(Clone)]
pub struct EpochKey(Secret);

impl EpochKey {
    /// Takes 32 bytes of key.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Secret::new(bytes))
    }

    /// Lets `fill` write the key where it will stay.
    pub(crate) fn filled(fill: impl FnOnce(&mut [u8; 32])) -> Self {
        Self(Secret::filled(fill))
    }

    pub(crate) fn expose(&self) -> &[u8; 32] {
        self.0.expose()
    }

    /// A value that only this key has and that tells nothing of it; the key ring lists it, so that a recipient notices
    /// when it was handed another key than the others.
    pub(crate) fn commitment(&self, family: &FamilyId, epoch: KeyEpoch) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("firn 1 epoch key commitment");
        hasher.update(&family.0);
        hasher.update(&epoch.0.to_le_bytes());
        hasher.update(self.0.expose());
        let commitment = *hasher.finalize().as_bytes();
        hasher.zeroize();
        commitment
    }
}

impl ZeroizeOnDrop for EpochKey {}

impl fmt::Debug for EpochKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("EpochKey(secret)")
    }
}

struct Opened {
    family: FamilyId,
    current: KeyEpoch,
    epochs: BTreeMap<KeyEpoch, EpochKey>,
}

/// The keys of a family, opened. Cheap to clone.
#[derive(Clone)]
pub struct Keys(Arc<Opened>);

impl Keys {
    /// Gathers the keys of a family; new data is sealed under the newest.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(family: FamilyId, epochs: BTreeMap<KeyEpoch, EpochKey>) -> Self {
        let current = *epochs.last_key_value().expect("a family has a key").0;
        Self(Arc::new(Opened {
            family,
            current,
            epochs,
        }))
    }

    /// The family.
    pub fn family(&self) -> FamilyId {
        self.0.family
    }

    /// The epoch that new data is sealed under.
    pub fn current(&self) -> KeyEpoch {
        self.0.current
    }

    /// The epochs whose keys are at hand.
    pub fn epochs(&self) -> impl Iterator<Item = KeyEpoch> {
        self.0.epochs.keys().copied()
    }

    /// The raw keys, for whoever searches a place where they must not be.
    #[cfg(feature = "reveal")]
    pub fn reveal(&self) -> impl Iterator<Item = (KeyEpoch, zeroize::Zeroizing<[u8; 32]>)> {
        let epochs = self.0.epochs.iter();
        epochs.map(|(epoch, key)| (*epoch, zeroize::Zeroizing::new(*key.expose())))
    }

    pub(crate) fn epoch(&self, epoch: KeyEpoch) -> Result<&EpochKey, SealError> {
        self.0.epochs.get(&epoch).ok_or(SealError::UnknownKeyEpoch {
            epoch,
            newest: self.0.current,
        })
    }

    pub(crate) fn current_key(&self) -> &EpochKey {
        &self.0.epochs[&self.0.current]
    }

    /// The same keys and one more.
    pub(crate) fn with(&self, epoch: KeyEpoch, key: EpochKey) -> Self {
        let mut epochs = self.0.epochs.clone();
        epochs.insert(epoch, key);
        Self::new(self.0.family, epochs)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Keys")
            .field("family", &self.0.family)
            .field("current", &self.0.current)
            .field("epochs", &self.0.epochs.len())
            .finish_non_exhaustive()
    }
}

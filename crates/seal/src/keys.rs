//! Opened keys: what a family's objects are sealed with. Wiped when the last handle is dropped, and never printed.

use crate::{SealError, secret::Secret};
use firn_format::{FamilyId, KeyEpoch};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
};
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

/// The keys of a family at one moment.
pub(crate) struct Opened {
    current: KeyEpoch,
    epochs: BTreeMap<KeyEpoch, EpochKey>,
}

impl Opened {
    pub(crate) fn current(&self) -> KeyEpoch {
        self.current
    }

    pub(crate) fn current_key(&self) -> &EpochKey {
        &self.epochs[&self.current]
    }
}

/// The keys of a family, opened. Cheap to clone, and shared: what one clone [adopts](Keys::adopt), all see, so that a new epoch
/// reaches whoever seals without anything being opened again.
#[derive(Clone)]
pub struct Keys {
    family: FamilyId,
    opened: Arc<RwLock<Arc<Opened>>>,
}

/// Keys that may not be adopted. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("these keys of family {family} do not continue those at hand: {why}")]
pub struct NotTheNextKeys {
    /// Whose they are.
    pub family: FamilyId,
    /// What is wrong with them.
    pub why: &'static str,
}

impl Keys {
    /// Gathers the keys of a family; new data is sealed under the newest.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(family: FamilyId, epochs: BTreeMap<KeyEpoch, EpochKey>) -> Self {
        let current = *epochs.last_key_value().expect("a family has a key").0;
        let opened = Arc::new(Opened { current, epochs });
        Self {
            family,
            opened: Arc::new(RwLock::new(opened)),
        }
    }

    /// The keys as they are now; later epochs do not change what was returned.
    pub(crate) fn now(&self) -> Arc<Opened> {
        self.opened.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The family.
    pub fn family(&self) -> FamilyId {
        self.family
    }

    /// The epoch that new data is sealed under.
    pub fn current(&self) -> KeyEpoch {
        self.now().current
    }

    /// The epochs whose keys are at hand, oldest first.
    pub fn epochs(&self) -> Vec<KeyEpoch> {
        self.now().epochs.keys().copied().collect()
    }

    /// Takes over what `newer` has beyond these keys, in all clones at once; new data is sealed under its newest epoch from then
    /// on. Returns whether the newest epoch is another one now.
    ///
    /// # Errors
    /// If `newer` is of another family, lacks an epoch, has another key for one, or ends with an older epoch: then it was not
    /// opened from a later ring. Nothing was changed.
    pub fn adopt(&self, newer: &Self) -> Result<bool, NotTheNextKeys> {
        let refuse = |why| {
            Err(NotTheNextKeys {
                family: newer.family,
                why,
            })
        };
        if newer.family != self.family {
            return refuse("they are another family's");
        }
        let next = newer.now();
        let mut opened = self.opened.write().unwrap_or_else(PoisonError::into_inner);
        for (epoch, key) in &opened.epochs {
            let Some(found) = next.epochs.get(epoch) else {
                return refuse("an epoch is missing");
            };
            if found.commitment(&self.family, *epoch) != key.commitment(&self.family, *epoch) {
                return refuse("the key of an epoch is another one");
            }
        }
        // All of the present epochs are among the next ones, so the newest of those is no older.
        let changed = next.current != opened.current;
        *opened = next;
        Ok(changed)
    }

    /// The raw keys, for whoever searches a place where they must not be.
    #[cfg(feature = "reveal")]
    pub fn reveal(&self) -> Vec<(KeyEpoch, zeroize::Zeroizing<[u8; 32]>)> {
        let opened = self.now();
        let epochs = opened.epochs.iter();
        epochs
            .map(|(epoch, key)| (*epoch, zeroize::Zeroizing::new(*key.expose())))
            .collect()
    }

    pub(crate) fn epoch(&self, epoch: KeyEpoch) -> Result<EpochKey, SealError> {
        let opened = self.now();
        opened
            .epochs
            .get(&epoch)
            .cloned()
            .ok_or(SealError::UnknownKeyEpoch {
                epoch,
                newest: opened.current,
            })
    }

    /// The same keys and one more, apart from these.
    pub(crate) fn with(&self, epoch: KeyEpoch, key: EpochKey) -> Self {
        let mut epochs = self.now().epochs.clone();
        epochs.insert(epoch, key);
        Self::new(self.family, epochs)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opened = self.now();
        formatter
            .debug_struct("Keys")
            .field("family", &self.family)
            .field("current", &opened.current)
            .field("epochs", &opened.epochs.len())
            .finish_non_exhaustive()
    }
}

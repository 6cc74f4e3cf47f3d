//! Derived keys: AES-256-GCM under HKDF-SHA256(epoch key, salt, purpose and family), with the slot as the nonce.
//!
//! A derived key lives as long as one segment or one journal file, so its nonces can simply count. The salt decides the
//! key; it is hedged: hashed from entropy *and* from the name of what will be sealed, which no writer uses twice. So even
//! a machine whose random numbers repeat (a cloned one, or a broken one) draws another salt for another name.

use crate::{
    EpochKey, SealError,
    aead::{Aes256Gcm, KEY_BYTES, Nonce, NotAuthentic},
};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use firn_format::{FamilyId, SEAL_TAG_BYTES};
use zeroize::Zeroizing;

/// The key of one segment or file.
pub(crate) struct DerivedKey(Aes256Gcm);

/// What HKDF is asked for.
struct OneKey;

impl KeyType for OneKey {
    fn len(&self) -> usize {
        KEY_BYTES
    }
}

impl DerivedKey {
    pub(crate) fn new(key: &EpochKey, salt: &[u8; 32], purpose: &str, family: &FamilyId) -> Self {
        let info = [purpose.as_bytes(), &family.0];
        let prk = Salt::new(HKDF_SHA256, salt).extract(key.expose());
        let okm = prk
            .expand(&info, OneKey)
            .expect("32 bytes are within what HKDF-SHA256 can give");
        let mut derived = Zeroizing::new([0; KEY_BYTES]);
        okm.fill(&mut derived[..])
            .expect("as many bytes as were asked for");
        Self(Aes256Gcm::new(&derived))
    }

    /// Seals `opened` into `sealed`, which has room for it and the tag.
    pub(crate) fn seal_into(&self, slot: u32, authenticated: &[u8], opened: &[u8], sealed: &mut [u8]) {
        self.seal_with_tail(slot, authenticated, sealed, 0, opened);
    }

    /// Seals in place; the last bytes of `buffer` are room for the tag.
    pub(crate) fn seal_in_place(&self, slot: u32, authenticated: &[u8], buffer: &mut [u8]) {
        let opened_bytes = buffer.len() - SEAL_TAG_BYTES;
        self.seal_with_tail(slot, authenticated, buffer, opened_bytes, &[]);
    }

    /// Seals the first `head_bytes` of `buffer` in place, and `tail` from where it is into what follows them; the last bytes of
    /// `buffer` are room for the tag. The bytes are those of sealing head and tail as one.
    pub(crate) fn seal_with_tail(
        &self,
        slot: u32,
        authenticated: &[u8],
        buffer: &mut [u8],
        head_bytes: usize,
        tail: &[u8],
    ) {
        self.0
            .seal_with_tail(nonce(slot), authenticated, buffer, head_bytes, tail);
    }

    /// Opens `sealed` into `opened`, which is exactly a tag shorter.
    pub(crate) fn open_into(
        &self,
        slot: u32,
        authenticated: &[u8],
        sealed: &[u8],
        opened: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        self.0.open_into(nonce(slot), authenticated, sealed, opened)
    }

    /// Opens in place; the payload is what precedes the tag.
    pub(crate) fn open_in_place(
        &self,
        slot: u32,
        authenticated: &[u8],
        buffer: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        self.0.open_in_place(nonce(slot), authenticated, buffer)
    }
}

fn nonce(slot: u32) -> Nonce {
    let mut nonce = Nonce::default();
    nonce[..4].copy_from_slice(&slot.to_le_bytes());
    nonce
}

/// A salt that repeats only if both the entropy and the name do.
pub(crate) fn hedged_salt(entropy: &[u8; 32], purpose: &str, family: &FamilyId, name: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(entropy);
    for part in [purpose.as_bytes(), &family.0].iter().chain(name) {
        // Lengths keep parts apart: ("ab", "c") must not hash like ("a", "bc").
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// `seal_into` and `open_into` work on sealed bytes that are longer than opened ones by this.
pub(crate) fn opened_bytes(sealed: usize) -> Option<usize> {
    sealed.checked_sub(SEAL_TAG_BYTES)
}

/// Refuses payloads beyond a limit.
pub(crate) fn check_size(found_bytes: usize, limit_bytes: usize) -> Result<(), SealError> {
    if found_bytes > limit_bytes {
        return Err(SealError::PayloadTooLarge {
            found_bytes,
            limit_bytes,
        });
    }
    Ok(())
}

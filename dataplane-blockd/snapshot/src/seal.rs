//! Names and seals of what stands in the object store.
//!
//! ```text
//! uid                     = 24 bytes of BLAKE3, keyed with a key of the disk's, of (kind u8 | payload); then the epoch
//! tract, index page, root = format u8 (2) | kind u8 | ciphertext | tag 16              key: HKDF(disk's key, kind, uid)
//! generation              = format u8 (2) | kind u8 | salt [32] | ciphertext | tag 16  key: HKDF(disk's key, kind, salt)
//! ```
//!
//! AES-256-GCM. Each key seals one content, since uid or salt decide it, so the nonce is zero. Kind, disk and uid (of a generation its
//! number) are authenticated. Equal tracts of one disk and epoch get the same name, which is what spares their upload; the store
//! learns that they are equal, and how large they are, and nothing else. Different disks never share names.

use crate::format::Uid;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use bytes::{BufMut, Bytes, BytesMut};
use firn_blockd_disk::derive_key;
use firn_blockd_protocol::DiskId;
use zeroize::Zeroizing;

const FORMAT: u8 = 2;
const TAG_BYTES: usize = 16;
const SALT_BYTES: usize = 32;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tract,
    Index,
    Root,
    Generation,
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Self::Tract => 1,
            Self::Index => 2,
            Self::Root => 3,
            Self::Generation => 4,
        }
    }

    /// Its folder in the store.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Tract => "tracts",
            Self::Index => "index",
            Self::Root => "roots",
            Self::Generation => "turns",
        }
    }
}

/// The keys of one disk's snapshots.
#[derive(Clone)]
pub(crate) struct Keys {
    disk: DiskId,
    naming: Zeroizing<[u8; 32]>,
    sealing: Zeroizing<[u8; 32]>,
}

impl Keys {
    pub(crate) fn new(disk: DiskId, key: &[u8; 32]) -> Self {
        Self {
            disk,
            naming: derive_key(key, &[b"firn disk snapshot names", &disk.0]),
            sealing: derive_key(key, &[b"firn disk snapshot seals", &disk.0]),
        }
    }

    pub(crate) fn uid(&self, kind: Kind, payload: &[u8], epoch: u64) -> Uid {
        let mut hasher = blake3::Hasher::new_keyed(&self.naming);
        hasher.update(&[kind.number()]).update(payload);
        Uid::new(hasher.finalize().as_bytes(), epoch)
    }

    fn key(&self, kind: Kind, one: &[u8; 32]) -> LessSafeKey {
        let key = derive_key(&self.sealing, &[b"object", &[kind.number()], one]);
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*key).expect("the key has the right length"))
    }

    fn place(&self, kind: Kind, name: &[u8]) -> Vec<u8> {
        [&[FORMAT, kind.number()], &self.disk.0[..], name].concat()
    }

    /// Seals a tract, an index page or a root.
    pub(crate) fn seal(&self, kind: Kind, uid: Uid, payload: &[u8]) -> Bytes {
        let mut sealed = BytesMut::with_capacity(2 + payload.len() + TAG_BYTES);
        sealed.put_slice(&[FORMAT, kind.number()]);
        self.append(
            &mut sealed,
            &self.key(kind, &uid.0),
            &self.place(kind, &uid.0),
            payload,
        );
        sealed.freeze()
    }

    fn append(&self, sealed: &mut BytesMut, key: &LessSafeKey, place: &[u8], payload: &[u8]) {
        let from = sealed.len();
        sealed.put_slice(payload);
        let tag = key
            .seal_in_place_separate_tag(zero_nonce(), Aad::from(place), &mut sealed[from..])
            .expect("objects are far shorter than what AES-GCM can seal");
        sealed.put_slice(tag.as_ref());
    }

    /// Opens a tract, an index page or a root, and verifies that it is the one of this name.
    pub(crate) fn open(&self, kind: Kind, uid: Uid, sealed: &[u8]) -> Result<Bytes, &'static str> {
        let rest = head(kind, sealed)?;
        let payload = decrypt(&self.key(kind, &uid.0), &self.place(kind, &uid.0), rest)?;
        if !self.uid(kind, &payload, 0).is_like(&uid) {
            return Err("its content is not what its name says");
        }
        Ok(payload)
    }

    /// Seals a root under a salt that is never used again.
    pub(crate) fn seal_generation(&self, number: u64, salt: [u8; SALT_BYTES], payload: &[u8]) -> Bytes {
        let mut sealed = BytesMut::with_capacity(2 + SALT_BYTES + payload.len() + TAG_BYTES);
        sealed.put_slice(&[FORMAT, Kind::Generation.number()]);
        sealed.put_slice(&salt);
        let place = self.place(Kind::Generation, &number.to_be_bytes());
        self.append(&mut sealed, &self.key(Kind::Generation, &salt), &place, payload);
        sealed.freeze()
    }

    pub(crate) fn open_generation(&self, number: u64, sealed: &[u8]) -> Result<Bytes, &'static str> {
        let rest = head(Kind::Generation, sealed)?;
        let (salt, rest) = rest.split_first_chunk::<SALT_BYTES>().ok_or("it is too short")?;
        let place = self.place(Kind::Generation, &number.to_be_bytes());
        decrypt(&self.key(Kind::Generation, salt), &place, rest)
    }
}

fn zero_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

fn head(kind: Kind, sealed: &[u8]) -> Result<&[u8], &'static str> {
    match sealed.split_first_chunk::<2>() {
        Some((head, rest)) if *head == [FORMAT, kind.number()] => Ok(rest),
        Some(_) => Err("it is of another kind or of a later format"),
        None => Err("it is too short"),
    }
}

fn decrypt(key: &LessSafeKey, place: &[u8], sealed: &[u8]) -> Result<Bytes, &'static str> {
    let mut buffer = BytesMut::from(sealed);
    let length = key
        .open_in_place(zero_nonce(), Aad::from(place), &mut buffer)
        .map_err(|_| "it is not authentic")?
        .len();
    buffer.truncate(length);
    Ok(buffer.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_under_its_own_name_disk_and_kind_only() {
        let keys = Keys::new(DiskId([1; 16]), &[7; 32]);
        let uid = keys.uid(Kind::Tract, b"content", 3);
        let sealed = keys.seal(Kind::Tract, uid, b"content");
        assert_eq!(
            keys.open(Kind::Tract, uid, &sealed).as_deref(),
            Ok(&b"content"[..])
        );
        assert_eq!(
            sealed,
            keys.seal(Kind::Tract, uid, b"content"),
            "the same content is the same object"
        );
        for (at, _) in sealed.iter().enumerate() {
            let mut damaged = sealed.to_vec();
            damaged[at] ^= 1;
            assert!(keys.open(Kind::Tract, uid, &damaged).is_err(), "byte {at}");
            assert!(keys.open(Kind::Tract, uid, &sealed[..at]).is_err(), "cut at {at}");
        }
        let other = Keys::new(DiskId([2; 16]), &[7; 32]);
        assert!(
            other.open(Kind::Tract, uid, &sealed).is_err() && other.uid(Kind::Tract, b"content", 3) != uid
        );
        assert!(
            Keys::new(DiskId([1; 16]), &[8; 32])
                .open(Kind::Tract, uid, &sealed)
                .is_err()
        );
        assert!(keys.open(Kind::Index, uid, &sealed).is_err());
        assert_ne!(keys.uid(Kind::Index, b"content", 3), uid);
        let wrong = keys.seal(Kind::Tract, uid, b"another");
        assert!(
            keys.open(Kind::Tract, uid, &wrong).is_err(),
            "the name says what it holds"
        );
        let later = keys.uid(Kind::Tract, b"content", 4);
        assert!(later != uid && later.is_like(&uid) && later.epoch() == 4);
        assert_eq!(Uid::parse(&later.to_string()), Some(later));
        assert!(
            keys.open(Kind::Tract, later, &sealed).is_err(),
            "what one epoch stored does not pass for what another did"
        );
        let generation = keys.seal_generation(7, [3; 32], b"generation");
        assert_eq!(
            keys.open_generation(7, &generation).as_deref(),
            Ok(&b"generation"[..])
        );
        assert!(keys.open_generation(8, &generation).is_err());
    }
}

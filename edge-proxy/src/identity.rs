//! Who this edge is: its keys, in one file of the state directory that nobody else may read.
//!
//! ```text
//! identity = "FIRNEDGE" | version u8 | family [16] | volume [16] | tenant public [32] | recipient secret [32]
//!          | handle key [32] | newest key ring generation seen u64
//! ```

use crate::failure::Failure;
use bytes::{Buf, Bytes};
use firn_format::{FamilyId, VolumeId};
use firn_seal::{KeyRing, Keys, RecipientSecret, TenantPublic};
use firn_store::{ObjectKey, Store};
use std::{
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

const MAGIC: &[u8; 8] = b"FIRNEDGE";
const VERSION: u8 = 1;
const BYTES: usize = 8 + 1 + 16 + 16 + 32 + 32 + 32 + 8;

/// See the module.
pub struct Identity {
    pub family: FamilyId,
    pub volume: VolumeId,
    pub tenant: TenantPublic,
    pub secret: RecipientSecret,
    pub handle_key: Zeroizing<[u8; 32]>,
    pub generation: u64,
}

fn path(state_directory: &Path) -> PathBuf {
    state_directory.join("identity")
}

impl Identity {
    /// Whether the state directory has one.
    pub fn exists(state_directory: &Path) -> bool {
        path(state_directory).exists()
    }

    /// Writes a new identity; one that is there is never replaced.
    pub fn create(&self, state_directory: &Path) -> Result<(), Failure> {
        let path = path(state_directory);
        let failed =
            |error: std::io::Error| Failure::new(format!("cannot write {}: {error}", path.display()));
        let mut bytes = Zeroizing::new(Vec::with_capacity(BYTES));
        bytes.extend_from_slice(MAGIC);
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.family.0);
        bytes.extend_from_slice(&self.volume.0);
        bytes.extend_from_slice(&self.tenant.to_bytes());
        bytes.extend_from_slice(&*self.secret.to_bytes());
        bytes.extend_from_slice(&*self.handle_key);
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        file.write_all(&bytes).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        std::fs::File::open(state_directory)
            .and_then(|directory| directory.sync_all())
            .map_err(failed)
    }

    /// Reads the identity of a state directory.
    pub fn load(state_directory: &Path) -> Result<Self, Failure> {
        Self::load_file(&path(state_directory))
    }

    /// Reads an identity from a file.
    pub fn load_file(path: &Path) -> Result<Self, Failure> {
        let bytes = std::fs::read(path).map(Zeroizing::new).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Failure::usage(format!(
                "{} does not exist: this edge has no identity yet, and nothing was changed. Make a new volume with `firn-edge \
                 format`; serve one that another edge has with `firn-edge join --identity FILE` (FILE is that edge's `identity`), \
                 or after `firn edge join` with `firn-edge enrol`; bring one back whose edges are all lost with `firn-edge recover`",
                path.display()
            )),
            _ => Failure::new(format!("cannot read {}: {error}", path.display())),
        })?;
        Self::decode(&bytes).ok_or_else(|| {
            Failure::usage(format!(
                "{} is not an identity this build can read; restore it from a backup of the state directory",
                path.display()
            ))
        })
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        if bytes.len() != BYTES || !rest.starts_with(MAGIC) || bytes[8] != VERSION {
            return None;
        }
        rest.advance(9);
        fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
            let mut array = [0; N];
            rest.copy_to_slice(&mut array);
            array
        }
        Some(Self {
            family: FamilyId(take(&mut rest)),
            volume: VolumeId(take(&mut rest)),
            tenant: TenantPublic::from_bytes(take(&mut rest)),
            secret: RecipientSecret::from_bytes(&take(&mut rest)).ok()?,
            handle_key: Zeroizing::new(take(&mut rest)),
            generation: rest.get_u64_le(),
        })
    }

    /// Fetches the newest key ring from the bucket, checks that the tenant signed it and that it is no older than what was
    /// seen, and opens it.
    pub async fn open_keys(&self, store: &dyn Store) -> Result<Keys, Failure> {
        let key = self.newest_key(store).await?.ok_or_else(|| {
            let prefix = KeyRing::object_prefix(&self.family);
            Failure::new(format!(
                "the store has no key ring under {prefix}: it is not the store of this volume"
            ))
        })?;
        let bytes: Bytes = store.get(&key).await.map_err(Failure::new)?;
        let ring = KeyRing::decode(bytes)
            .and_then(|ring| ring.verify(&self.tenant))
            .map_err(|error| {
                Failure::new(format!(
                    "the key ring {key} is not to be trusted: {error}; nothing was changed"
                ))
            })?;
        ring.check(&self.family, self.generation).map_err(Failure::new)?;
        ring.open(&self.secret).map_err(|error| {
            Failure::new(format!(
                "this edge's key does not open the key ring {key}: {error}"
            ))
        })
    }

    async fn newest_key(&self, store: &dyn Store) -> Result<Option<ObjectKey>, Failure> {
        let prefix = KeyRing::object_prefix(&self.family);
        let mut newest: Option<ObjectKey> = None;
        loop {
            let page = store.list(&prefix, newest.as_ref()).await.map_err(Failure::new)?;
            newest = page.objects.last().map(|object| object.key.clone()).or(newest);
            if !page.more {
                return Ok(newest);
            }
        }
    }

    /// The generation of the bucket's newest key ring, as its name says: whoever can put it there could only make this edge
    /// refuse more.
    pub async fn newest_ring(&self, store: &dyn Store) -> Result<Option<u64>, Failure> {
        let key = self.newest_key(store).await?;
        Ok(key.and_then(|key| {
            let digits = key.as_str().rsplit('/').next()?.to_owned();
            u64::from_str_radix(&digits, 16).ok()
        }))
    }
}

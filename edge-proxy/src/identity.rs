//! Identity of this edge: its keys, in one file of the state directory that nobody else may read.
//!
//! ```text
//! identity = "FIRNEDGE" | version u8 | family [16] | volume [16] | tenant public [32] | recipient secret [32]
//!          | handle key [32] | generation of the key ring it was made with u64
//! ```
//!
//! The file is written once. The newest key ring taken since is beside it ([`crate::rings`]).

use crate::{failure::Failure, rings::Owner};
use bytes::Buf;
use firn_format::{FamilyId, VolumeId};
use firn_seal::{RecipientSecret, TenantPublic};
use std::{
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

const MAGIC: &[u8; 8] = b"FIRNEDGE";
pub const VERSION: u8 = 1;
const BYTES: usize = 8 + 1 + 16 + 16 + 32 + 32 + 32 + 8;

/// See the module.
pub struct Identity {
    pub family: FamilyId,
    pub volume: VolumeId,
    pub tenant: TenantPublic,
    pub secret: RecipientSecret,
    pub handle_key: Zeroizing<[u8; 32]>,
    /// Of the key ring it was made with: no older one is ever taken.
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

    /// Whose key rings this edge takes.
    pub fn owner(&self) -> Owner {
        Owner {
            family: self.family,
            tenant: self.tenant,
        }
    }
}

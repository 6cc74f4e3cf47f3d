//! The newest key ring that this edge has taken, in its state directory: what comes later must continue it.
//!
//! The file `key-ring` holds the ring as it is in the bucket: signed, and wrapped to those who may read. It is replaced whole, so that
//! a crash leaves the old one or the new one, and it is written before the ring is used.

use super::Owner;
use crate::{failure::Failure, identity::Identity, replace::replace};
use firn_seal::{KeyRing, Keys, VerifiedKeyRing};
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

fn path(state_directory: &Path) -> PathBuf {
    state_directory.join("key-ring")
}

/// The ring that was kept, if there is one.
///
/// # Errors
/// If the file cannot be read, or is no ring of the owner's.
pub fn load(state_directory: &Path, owner: &Owner) -> Result<Option<VerifiedKeyRing>, Failure> {
    let path = path(state_directory);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::new(format!("cannot read {}: {error}", path.display()))),
    };
    let ring = KeyRing::decode(bytes.into())
        .and_then(|ring| ring.verify(&owner.tenant))
        .and_then(|ring| ring.check(&owner.family, 0).map(|()| ring))
        .map_err(|error| {
            Failure::usage(format!(
                "{}: {error}. Nothing was changed. If the disk damaged the file, move it away: the newest key ring is then taken from \
                 the bucket and the service, and only its generation when this edge was set up is checked",
                path.display()
            ))
        })?;
    Ok(Some(ring))
}

/// Opens the kept ring without asking anybody for a newer one, for an edge whose cloud is away.
///
/// # Errors
/// If there is none, it is older than the one this edge was set up with, or this edge's key does not open it.
pub fn open_kept(state_directory: &Path, identity: &Identity) -> Result<Keys, Failure> {
    let ring = load(state_directory, &identity.owner())?.ok_or_else(|| {
        Failure::new(
            "this edge has kept no key ring: it was never started by this version with the cloud there",
        )
    })?;
    if ring.generation() < identity.generation {
        return Err(Failure::new(format!(
            "the kept key ring is of generation {}, and this edge was set up with {}: it is an old one",
            ring.generation(),
            identity.generation
        )));
    }
    ring.open(&identity.secret).map_err(|error| {
        Failure::new(format!(
            "this edge's key does not open the kept key ring of generation {}: {error}",
            ring.generation()
        ))
    })
}

/// Replaces the kept ring.
///
/// # Errors
/// If the state directory cannot be written; the ring that was kept is still there.
pub fn save(state_directory: &Path, ring: &VerifiedKeyRing) -> Result<(), Failure> {
    let path = path(state_directory);
    replace(&path, &ring.ring().encode())
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))
}

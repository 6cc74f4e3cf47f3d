//! Key rings in the bucket: the newest that verifies, whatever else lies beside it.
//!
//! Names are the generations in hexadecimal, so a listing gives them oldest first. The newest are looked at first; an object that is
//! not what its name says is passed over. Whoever may put objects there, such as a stolen edge, can put many: so at most
//! [`LOOKS_MAX`] are looked at from the newest downwards and as many from the oldest upwards, where those lie that were put before
//! anybody was stolen.

use super::Owner;
use crate::failure::Failure;
use bytes::Bytes;
use firn_seal::{KeyRing, VerifiedKeyRing};
use firn_store::{ObjectInfo, ObjectKey, PutMode, Store, StoreError};
use std::collections::VecDeque;

/// Objects read in search of the newest ring, from either end.
const LOOKS_MAX: usize = 64;
/// Pages of names: a million. A family has some thousand rings at most.
const PAGES_MAX: usize = 1000;
/// A ring of a hundred recipients and five hundred epochs; the service takes 256 KiB.
const RING_BYTES_MAX: u64 = 4 << 20;

/// An object among the key rings that is none of the tenant's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Its name.
    pub key: ObjectKey,
    /// Why it was not taken.
    pub why: String,
}

/// The newest ring of `owner` in the bucket whose generation is `least` or higher, and what was passed over on the way.
///
/// # Errors
/// If the store does not answer; with the exit code of a refusal if a newer build made a ring that the tenant signed: it may have keys without
/// which this edge reads nothing, and may lack one that this edge would go on sealing with.
pub async fn newest_in(
    store: &dyn Store,
    owner: &Owner,
    least: u64,
) -> Result<(Option<VerifiedKeyRing>, Vec<Passed>), Failure> {
    let names = names(store, owner, least).await?;
    let mut passed = Vec::new();
    for object in names.newest.iter().rev() {
        match read(store, owner, object).await? {
            Ok(ring) => return Ok((Some(ring), passed)),
            Err(why) => passed.push(why),
        }
    }
    let mut best = None;
    for object in &names.oldest {
        match read(store, owner, object).await? {
            Ok(ring) => best = Some(ring),
            Err(why) => passed.push(why),
        }
    }
    Ok((best, passed))
}

/// Names at both ends of the listing, each once.
#[derive(Default)]
struct Names {
    oldest: Vec<ObjectInfo>,
    newest: VecDeque<ObjectInfo>,
}

async fn names(store: &dyn Store, owner: &Owner, least: u64) -> Result<Names, Failure> {
    let prefix = KeyRing::object_prefix(&owner.family);
    let mut after = least
        .checked_sub(1)
        .map(|before| ObjectKey::new(&KeyRing::object_key_of(&owner.family, before)));
    let mut names = Names::default();
    for _ in 0..PAGES_MAX {
        let page = store.list(&prefix, after.as_ref()).await.map_err(Failure::new)?;
        after = page.objects.last().map(|object| object.key.clone()).or(after);
        for object in page.objects {
            names.newest.push_back(object);
            if names.newest.len() > LOOKS_MAX
                && let Some(object) = names.newest.pop_front()
                && names.oldest.len() < LOOKS_MAX
            {
                names.oldest.push(object);
            }
        }
        if !page.more {
            return Ok(names);
        }
    }
    tracing::warn!(%prefix, "there are more objects than any family has key rings; not all were listed");
    Ok(names)
}

/// Reads one object; the inner error is why it is no ring of the owner's.
async fn read(
    store: &dyn Store,
    owner: &Owner,
    object: &ObjectInfo,
) -> Result<Result<VerifiedKeyRing, Passed>, Failure> {
    let passed = |why: String| {
        Ok(Err(Passed {
            key: object.key.clone(),
            why,
        }))
    };
    if object.size_bytes > RING_BYTES_MAX {
        return passed(format!("{} bytes are no key ring", object.size_bytes));
    }
    let bytes: Bytes = match store.get(&object.key).await {
        Ok(bytes) => bytes,
        Err(error @ StoreError::NotFound { .. }) => return passed(error.to_string()),
        Err(error) => return Err(Failure::new(error)),
    };
    if let Some(error) = KeyRing::newer(&bytes, &owner.tenant) {
        return Err(Failure::usage(format!(
            "{}: {error}; a newer build of firn made this key ring, and the tenant signed it. Nothing was changed, and everything acknowledged \
             is safe. Install the version that made it, or a newer one",
            object.key
        )));
    }
    let ring = match KeyRing::decode(bytes).and_then(|ring| ring.verify(&owner.tenant)) {
        Ok(ring) => ring,
        Err(error) => return passed(error.to_string()),
    };
    // A real ring under another name would pass for a newer one, or for another family's.
    if ring.ring().object_key() != object.key.as_str() {
        return passed(format!(
            "it is the ring of generation {} of family {}",
            ring.generation(),
            ring.family()
        ));
    }
    Ok(Ok(ring))
}

/// Puts a verified ring into the bucket, where every edge and a recovery look for it, unless it is there.
///
/// # Errors
/// If the store refuses it, or has another object of its name.
pub async fn keep(ring: &VerifiedKeyRing, store: &dyn Store) -> Result<(), Failure> {
    let key = ObjectKey::new(&ring.ring().object_key());
    let bytes = ring.ring().encode();
    match store.get(&key).await {
        Ok(found) => return compare(&key, &found, &bytes),
        Err(StoreError::NotFound { .. }) => {}
        Err(error) => return Err(Failure::new(error)),
    }
    match store.put(&key, vec![bytes.clone()], PutMode::Create).await {
        Ok(()) => Ok(()),
        Err(StoreError::AlreadyExists { .. }) => {
            let found = store.get(&key).await.map_err(Failure::new)?;
            compare(&key, &found, &bytes)
        }
        Err(error) => Err(Failure::new(error)),
    }
}

fn compare(key: &ObjectKey, found: &Bytes, wanted: &Bytes) -> Result<(), Failure> {
    if found == wanted {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the bucket has something else under {key} than the key ring of that generation: two rings were made of one, or somebody put \
         an object there who should not; nothing was changed. Remove it with credentials that may delete, if `firn volume show` lists \
         the right recipients"
    )))
}

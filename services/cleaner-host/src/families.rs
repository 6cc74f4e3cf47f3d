//! Which families there are in a bucket: one listing each, since everything of a family has its id before the first slash.

use firn_format::FamilyId;
use firn_store::{ObjectKey, Store, StoreError};

/// Families that one timer's round looks for; a place with more drives its cleaner by the queue.
pub(crate) const MAX_FAMILIES: usize = 1000;
/// Listings that finding them may take: foreign objects take some as well.
const MAX_LISTINGS: usize = 2 * MAX_FAMILIES;

/// What was found.
pub(crate) struct Found {
    pub families: Vec<FamilyId>,
    /// Whether the search ended before the bucket did.
    pub more: bool,
}

/// Finds families. Objects outside a family's place (everything the bucket may hold beside Firn's) are passed over.
pub(crate) async fn find(store: &dyn Store) -> Result<Found, StoreError> {
    let mut found = Found {
        families: Vec::new(),
        more: false,
    };
    let mut after: Option<ObjectKey> = None;
    for _ in 0..MAX_LISTINGS {
        let page = store.list("", after.as_ref()).await?;
        let known = found.families.last().copied();
        let family = page
            .objects
            .iter()
            .filter_map(|object| family_of(&object.key))
            .find(|family| Some(*family) != known);
        match family {
            Some(_) if found.families.len() == MAX_FAMILIES => {
                found.more = true;
                return Ok(found);
            }
            Some(family) => {
                found.families.push(family);
                after = Some(behind(family));
            }
            None if page.more => after = page.objects.last().map(|last| last.key.clone()),
            None => return Ok(found),
        }
    }
    found.more = true;
    Ok(found)
}

fn family_of(key: &ObjectKey) -> Option<FamilyId> {
    key.as_str()
        .split_once('/')
        .and_then(|(first, _)| first.parse().ok())
}

/// A name behind all that Firn gives to objects of a family.
fn behind(family: FamilyId) -> ObjectKey {
    ObjectKey::new(&format!("{family}/zzzzzzzz"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use firn_store::{MemoryStore, PutMode};

    async fn found(keys: &[String]) -> (Vec<u8>, u64, bool) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let env = firn_env::real(directory.path()).expect("an environment");
        let store = firn_store::Metered::new(std::sync::Arc::new(MemoryStore::new(&env)));
        for key in keys {
            store
                .put(
                    &ObjectKey::new(key),
                    vec![Bytes::from_static(b"x")],
                    PutMode::Create,
                )
                .await
                .expect("a put");
        }
        let found = find(&store).await.expect("a listing");
        let firsts = found.families.iter().map(|family| family.0[0]).collect();
        (firsts, store.meter().usage().lists, found.more)
    }

    fn key(family: u8, rest: &str) -> String {
        format!("{}/{rest}", FamilyId([family; 16]))
    }

    #[tokio::test]
    async fn every_family_is_found_with_one_listing_among_whatever_else_is_there() {
        let mut keys = vec!["a-file".to_owned(), "0/0".to_owned(), "zoo/keeper".to_owned()];
        for family in [3, 4, 0xfe] {
            for object in 0..50 {
                keys.push(key(family, &format!("log/{object:016x}/0000000000000000")));
            }
            keys.push(key(family, "ring/0000000000000001"));
        }
        assert_eq!(found(&keys).await, (vec![3, 4, 0xfe], 4, false));
        assert_eq!(found(&[]).await, (vec![], 1, false));
    }

    #[tokio::test]
    async fn pages_full_of_foreign_objects_hide_no_family() {
        let mut keys: Vec<String> = (0..2500)
            .map(|number| format!("00-foreign/{number:05}"))
            .collect();
        keys.push(key(9, "log/0000000000000001/0000000000000000"));
        keys.push(key(9, "zzzzzzzzz"));
        let (families, _, more) = found(&keys).await;
        assert_eq!((families, more), (vec![9], false));
    }
}

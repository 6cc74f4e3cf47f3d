//! Enumeration of the families in a bucket: one listing each, since everything of a family has its id before the first slash, or
//! in a bucket of the service behind the tenant and the volume whose it is.

use crate::Target;
use firn_format::FamilyId;
use firn_identity::TenantVolume;
use firn_store::{ObjectKey, Store, StoreError};

/// Families that one timer's round looks for; a place with more drives its cleaner by the queue.
pub(crate) const MAX_FAMILIES: usize = 1000;
/// Listings that finding them may take: foreign objects take some as well.
const MAX_LISTINGS: usize = 2 * MAX_FAMILIES;

/// How a bucket is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Division {
    /// `<family>/…`
    Families,
    /// `<tenant>/<volume>/<family>/…`
    Volumes,
}

/// What was found.
pub(crate) struct Found {
    pub targets: Vec<Target>,
    /// Whether the search ended before the bucket did.
    pub more: bool,
}

/// Finds families. Objects outside a family's place (everything the bucket may hold beside Firn's) are passed over.
pub(crate) async fn find(store: &dyn Store, division: Division) -> Result<Found, StoreError> {
    let mut found = Found {
        targets: Vec::new(),
        more: false,
    };
    let mut after: Option<ObjectKey> = None;
    for _ in 0..MAX_LISTINGS {
        let page = store.list("", after.as_ref()).await?;
        let known = found.targets.last().copied();
        let target = page
            .objects
            .iter()
            .filter_map(|object| target_of(&object.key, division))
            .find(|target| Some(*target) != known);
        match target {
            Some(_) if found.targets.len() == MAX_FAMILIES => {
                found.more = true;
                return Ok(found);
            }
            Some(target) => {
                found.targets.push(target);
                after = Some(behind(target));
            }
            None if page.more => after = page.objects.last().map(|last| last.key.clone()),
            None => return Ok(found),
        }
    }
    found.more = true;
    Ok(found)
}

fn target_of(key: &ObjectKey, division: Division) -> Option<Target> {
    let mut parts = key.as_str().splitn(4, '/');
    let mut next = || parts.next();
    let volume = match division {
        Division::Families => None,
        Division::Volumes => Some(TenantVolume {
            tenant: next()?.parse().ok()?,
            volume: next()?.parse().ok()?,
        }),
    };
    let family = next()?.parse::<FamilyId>().ok()?;
    // The family's name alone is an object of somebody else's.
    next()?;
    Some(Target { volume, family })
}

/// A name behind all that Firn gives to objects of a family.
fn behind(target: Target) -> ObjectKey {
    ObjectKey::new(&match target.volume {
        None => format!("{}/zzzzzzzz", target.family),
        Some(volume) => format!("{volume}/{}/zzzzzzzz", target.family),
    })
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
        let found = find(&store, Division::Families).await.expect("a listing");
        let firsts = found
            .targets
            .iter()
            .map(|target| {
                assert_eq!(target.volume, None);
                target.family.0[0]
            })
            .collect();
        let lists = store.meter().usage().lists;
        (firsts, lists, found.more)
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

    #[tokio::test]
    async fn in_a_bucket_of_the_service_families_lie_below_their_tenants_and_volumes() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let env = firn_env::real(directory.path()).expect("an environment");
        let store = firn_store::Metered::new(std::sync::Arc::new(MemoryStore::new(&env)));
        let volume = |tenant: u8, volume: u8| TenantVolume {
            tenant: firn_identity::TenantId([tenant; 16]),
            volume: firn_identity::VolumeId([volume; 16]),
        };
        let wanted = [
            (volume(1, 2), FamilyId([7; 16])),
            (volume(1, 3), FamilyId([7; 16])),
            (volume(2, 1), FamilyId([1; 16])),
            (volume(2, 1), FamilyId([9; 16])),
        ];
        let mut keys = vec![
            key(5, "log/0000000000000001/0000000000000000"),
            format!("{}/firn-proof/x", volume(1, 2)),
            format!("{}/log/{}/x", volume(1, 2).tenant, FamilyId([3; 16])),
            format!("{}/{}", volume(1, 2), FamilyId([3; 16])),
        ];
        for (volume, family) in wanted {
            for object in 0..30 {
                keys.push(format!("{volume}/{family}/log/{object:016x}/0000000000000000"));
            }
        }
        for key in &keys {
            let content = vec![Bytes::from_static(b"x")];
            store
                .put(&ObjectKey::new(key), content, PutMode::Create)
                .await
                .expect("a put");
        }
        let found = find(&store, Division::Volumes).await.expect("a listing");
        let found: Vec<_> = found
            .targets
            .iter()
            .map(|target| (target.volume.expect("a volume"), target.family))
            .collect();
        assert_eq!(found, wanted);
        assert_eq!(store.meter().usage().lists, 5);
    }
}

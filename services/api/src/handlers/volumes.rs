//! Volumes: where they lie, and their end. Their key rings are in [`super::rings`].
//!
//! | state | delete | undelete | erase, or its time is over |
//! |---|---|---|---|
//! | active | deleted | refused | refused |
//! | deleted | stays | active, if its time is not over | erasing: a [saga](crate::saga) removes every key ring |
//! | erasing | refused | refused | stays; by itself erased: name and quota given back |
//! | erased | refused | refused | stays |

use super::{
    LimitsRecord, NameRecord, name_sort, require_free_name,
    rings::{RING_BODY_BYTES, RingRecord, read_ring, tenant_key},
    tenants::TenantRecord,
};
use crate::{
    cloud::{CloudError, CloudSessions, Place, ProofRequest},
    context::TenantContext,
    endpoint::{Call, Endpoint, Reply},
    names::DisplayName,
    problem::{Code, Problem},
    saga::{SagaRecord, Work},
    store::{Change, Loaded, Record, TenantStore},
    types::{
        Bucket, ChangeVolume, CreateVolume, InUse, Nothing, RekeyOrder, SnapshotPolicy, Volume, VolumeRekey,
        VolumeState,
    },
};
use axum::http::{Method, StatusCode};
use firn_identity::{Principal, TenantId, UnixTime, VolumeId};
use serde::{Deserialize, Serialize};

/// How long a deleted volume can be undeleted: a month, so that a monthly look at the list still finds it.
const UNDELETE_SECONDS: u64 = 30 * 24 * 3600;

/// Half of the snapshots that a volume can have: the rest is for those that people make. Edges refuse a policy of more.
const MAX_SNAPSHOTS_KEPT: u32 = 500;

/// A volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VolumeRecord {
    pub(crate) volume: Volume,
}

impl Record for VolumeRecord {
    const KIND: &'static str = "volume";
}

impl VolumeRecord {
    pub(crate) fn sort(id: VolumeId) -> String {
        format!("volume/{id}")
    }

    /// Whether it was deleted so long ago that it cannot be undeleted any more.
    pub(crate) fn is_overdue(&self, now: UnixTime) -> bool {
        let deleted = self
            .volume
            .deleted
            .filter(|_| self.volume.state == VolumeState::Deleted);
        deleted.is_some_and(|deleted| deleted.plus(UNDELETE_SECONDS) < now)
    }

    /// The same, on its way to being erased.
    pub(crate) fn erasing(&self, saga: &SagaRecord) -> Self {
        let mut record = self.clone();
        record.volume.state = VolumeState::Erasing;
        record.volume.operation = Some(saga.id.clone());
        record
    }
}

fn sort(id: VolumeId) -> String {
    VolumeRecord::sort(id)
}

/// A volume's place in the index of names.
pub(crate) fn volume_name_sort(name: &DisplayName) -> String {
    name_sort("volume", &name.folded())
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    const VOLUMES: &str = "/v1/tenants/{tenant}/volumes";
    const VOLUME: &str = "/v1/tenants/{tenant}/volumes/{volume}";
    vec![
        Endpoint::new(Method::GET, VOLUMES, "listVolumes", "Lists volumes", list).lists::<Volume>(),
        Endpoint::new(Method::POST, VOLUMES, "createVolume", "Makes a volume", create)
            .takes::<CreateVolume>()
            .up_to(RING_BODY_BYTES)
            .gives::<Volume>(StatusCode::CREATED),
        Endpoint::new(Method::GET, VOLUME, "getVolume", "Shows a volume", get)
            .gives::<Volume>(StatusCode::OK)
            .tagged(),
        Endpoint::new(
            Method::PATCH,
            VOLUME,
            "changeVolume",
            "Renames a volume, sets its snapshot policy, or asks for a rekey",
            change,
        )
        .takes::<ChangeVolume>()
        .gives::<Volume>(StatusCode::OK)
        .if_match(),
        Endpoint::new(
            Method::DELETE,
            VOLUME,
            "deleteVolume",
            "Deletes a volume, so that it can be undeleted",
            delete,
        )
        .gives::<Volume>(StatusCode::OK)
        .if_match(),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/volumes/{volume}/undelete",
            "undeleteVolume",
            "Brings a deleted volume back",
            undelete,
        )
        .takes::<Nothing>()
        .gives::<Volume>(StatusCode::OK),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/volumes/{volume}/erase",
            "eraseVolume",
            "Starts to remove a deleted volume's keys from the service, for ever",
            erase,
        )
        .takes::<Nothing>()
        .gives::<Volume>(StatusCode::OK),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/volumes/{volume}/prove",
            "proveBucket",
            "Shows that a bucket you bring is yours: through the role you grant an object is put, read and removed",
            prove,
        )
        .takes::<Nothing>()
        .gives::<Volume>(StatusCode::OK),
    ]
}

/// `regions`: where managed volumes may lie, if the service says so ([`CloudSessions::regions`](crate::cloud::CloudSessions::regions)).
fn check_bucket(bucket: &Bucket, regions: Option<&[String]>) -> Result<(), Problem> {
    let plain = |text: &str, limit: usize| {
        (1..=limit).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match bucket {
        Bucket::Managed { region } => {
            let fits = (1..=32).contains(&region.len())
                && region
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
            if !fits {
                return Err(Problem::field(
                    "bucket.region",
                    "a region's name, such as eu-central-1",
                ));
            }
            match regions {
                Some(regions) if !regions.contains(region) => {
                    let known = match regions {
                        [] => "none: bring a bucket of your own".to_owned(),
                        regions => regions.join(", "),
                    };
                    Err(Problem::field(
                        "bucket.region",
                        format!("{region} is not one of the service's regions ({known})"),
                    ))
                }
                Some(_) | None => Ok(()),
            }
        }
        Bucket::Own { url, role } => {
            let known = url.starts_with("s3://") || url.starts_with("azure://");
            if !known
                || !plain(url, 512)
                || url
                    .split('/')
                    .skip(2)
                    .any(|part| part.is_empty() || part == "." || part == "..")
            {
                return Err(Problem::field(
                    "bucket.url",
                    "s3://bucket/prefix or azure://account/container/prefix",
                ));
            }
            if plain(role, 512) {
                Ok(())
            } else {
                Err(Problem::field("bucket.role", "the name of a role you grant us"))
            }
        }
    }
}

fn check_policy(policy: &SnapshotPolicy) -> Result<(), Problem> {
    let within = policy.last <= 1024
        && policy.hourly <= 744
        && policy.daily <= 366
        && policy.weekly <= 520
        && policy.monthly <= 120;
    if !within {
        return Err(Problem::field(
            "snapshot_policy",
            "beyond what the document allows",
        ));
    }
    let kept: u32 = [
        policy.last,
        policy.hourly,
        policy.daily,
        policy.weekly,
        policy.monthly,
    ]
    .into_iter()
    .map(u32::from)
    .sum();
    if kept > MAX_SNAPSHOTS_KEPT {
        return Err(Problem::field(
            "snapshot_policy",
            format!("it keeps {kept} snapshots in all, and at most {MAX_SNAPSHOTS_KEPT} are kept"),
        ));
    }
    Ok(())
}

/// An edge sees the volumes it serves and no other.
async fn check_served(store: &TenantStore, context: &TenantContext, volume: VolumeId) -> Result<(), Problem> {
    let Some(Principal::Edge(edge)) = context.caller().map(|caller| caller.principal) else {
        return Ok(());
    };
    let record = store
        .require::<super::EdgeRecord>(&super::EdgeRecord::sort(edge), edge)
        .await?;
    if record.record.edge.volumes.contains(&volume) {
        Ok(())
    } else {
        Err(Problem::not_found(volume))
    }
}

pub(super) async fn load(call: &Call) -> Result<(TenantStore, VolumeId, Loaded<VolumeRecord>), Problem> {
    let id: VolumeId = call.param("volume")?;
    let store = call.store()?;
    check_served(&store, call.context()?, id).await?;
    let loaded = store.require::<VolumeRecord>(&sort(id), id).await?;
    Ok((store, id, loaded))
}

pub(super) fn require_state(
    loaded: &Loaded<VolumeRecord>,
    wanted: VolumeState,
    what: &str,
) -> Result<(), Problem> {
    let state = loaded.record.volume.state;
    if state == wanted {
        return Ok(());
    }
    Err(Problem::new(
        Code::WrongState,
        format!("the volume is {state:?}; only a volume that is {wanted:?} can be {what}"),
    ))
}

/// A volume as it is told: where it lies is the cloud's matter, and in no record.
pub(super) fn shown(cloud: &dyn CloudSessions, tenant: TenantId, mut volume: Volume) -> Volume {
    if let Bucket::Managed { region } = &volume.bucket {
        let place = cloud.managed(region, tenant, volume.id);
        volume.store = place.and_then(|place| cloud.store_url(&place, region));
    }
    volume
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let tenant = call.context()?.tenant();
    let cloud = call.app.cloud();
    call.list::<VolumeRecord, _>("volume/", |record| shown(cloud, tenant, record.volume))
        .await
}

async fn get(call: Call) -> Result<Reply, Problem> {
    let (_, _, loaded) = load(&call).await?;
    let volume = loaded.record.volume.clone();
    let volume = shown(call.app.cloud(), call.context()?.tenant(), volume);
    Ok(Reply::json(StatusCode::OK, &volume).tagged(&loaded))
}

async fn create(call: Call) -> Result<Reply, Problem> {
    let body: CreateVolume = call.body()?;
    check_bucket(&body.bucket, call.app.cloud().regions().as_deref())?;
    check_policy(&body.snapshot_policy)?;
    let store = call.store()?;
    let name = volume_name_sort(&body.name);
    require_free_name(&store, &name).await?;
    let limits = LimitsRecord::load(&store).await?;
    let taken = limits.record.take(
        "volumes",
        InUse {
            volumes: 1,
            ..InUse::default()
        },
    )?;
    let ring = match &body.key_ring {
        None => None,
        Some(text) => {
            let ring = read_ring(text, &tenant_key(&store).await?)?;
            if ring.generation() != 1 {
                return Err(Problem::new(
                    Code::KeyRingRefused,
                    "a new volume starts with generation 1",
                ));
            }
            if ring.volume().is_some() {
                return Err(Problem::new(
                    Code::KeyRingRefused,
                    "the key ring is signed for a volume, and this one has no id yet; make it without, then put its ring",
                ));
            }
            Some((text.clone(), ring))
        }
    };
    let volume = Volume {
        id: VolumeId::random(&mut call.app.entropy()),
        name: body.name,
        bucket: body.bucket,
        store: None,
        state: VolumeState::Active,
        deleted: None,
        snapshot_policy: body.snapshot_policy,
        leases: body.leases,
        key_ring_generation: u64::from(ring.is_some()),
        family: ring.as_ref().map(|(_, ring)| ring.family().to_string()),
        bucket_proved: None,
        rekey: None,
        operation: None,
        created: call.app.now(),
    };
    let mut change = call
        .change("volume.create", volume.id)?
        .create(
            &sort(volume.id),
            &VolumeRecord {
                volume: volume.clone(),
            },
        )
        .create(
            &name,
            &NameRecord {
                owner: volume.id.to_string(),
            },
        )
        .update(&limits, &taken);
    if let Some((key_ring, _)) = ring {
        change = change.create(&RingRecord::sort(volume.id, 1), &RingRecord::new(key_ring));
    }
    call.commit(change, Reply::json(StatusCode::CREATED, &volume))
        .await
}

async fn change(call: Call) -> Result<Reply, Problem> {
    let body: ChangeVolume = call.body()?;
    if let Some(policy) = &body.snapshot_policy {
        check_policy(policy)?;
    }
    let (store, id, loaded) = load(&call).await?;
    call.check_if_match(&loaded)?;
    require_state(&loaded, VolumeState::Active, "changed")?;
    let mut record = loaded.record.clone();
    let mut change = call.change("volume.change", id)?;
    if let Some(name) = body.name {
        change = rename(&store, change, &record.volume, &name).await?;
        record.volume.name = name;
    }
    if let Some(policy) = body.snapshot_policy {
        record.volume.snapshot_policy = policy;
    }
    if let Some(order) = body.rekey {
        check_rekey(&store, &record.volume, &order).await?;
        let what = if order.stop { "stop" } else { "start" };
        change = change.detail(format!("rekey {what}, to key epoch {}", order.to_epoch));
        record.volume.rekey = Some(VolumeRekey {
            number: record
                .volume
                .rekey
                .map_or(1, |before| before.number.saturating_add(1)),
            order,
            asked: call.app.now(),
        });
    }
    let change = change.update(&loaded, &record);
    call.commit(change, Reply::json(StatusCode::OK, &record.volume))
        .await
}

/// Edges refuse other rates, and keys that the newest ring does not have.
async fn check_rekey(store: &TenantStore, volume: &Volume, order: &RekeyOrder) -> Result<(), Problem> {
    if !(16 << 10..=1 << 40).contains(&order.bytes_per_second) {
        return Err(Problem::field(
            "rekey.bytes_per_second",
            "from 16 KiB to 1 TiB a second",
        ));
    }
    let ring = store
        .require::<RingRecord>(
            &RingRecord::sort(volume.id, volume.key_ring_generation),
            format!("a key ring of {}", volume.id),
        )
        .await?;
    let ring = read_ring(ring.record.text(), &tenant_key(store).await?)?;
    if ring.epochs().any(|epoch| epoch.0 == order.to_epoch) {
        return Ok(());
    }
    Err(Problem::field(
        "rekey.to_epoch",
        format!(
            "the newest key ring has no such key epoch; its newest is {}",
            ring.current().0
        ),
    ))
}

/// Moves a volume's entry in the index of names.
async fn rename(
    store: &TenantStore,
    change: Change,
    volume: &Volume,
    name: &DisplayName,
) -> Result<Change, Problem> {
    let (old, new) = (volume_name_sort(&volume.name), volume_name_sort(name));
    if old == new {
        return Ok(change);
    }
    require_free_name(store, &new).await?;
    let entry = store.require::<NameRecord>(&old, "the volume's name").await?;
    Ok(change.delete(&entry).create(
        &new,
        &NameRecord {
            owner: volume.id.to_string(),
        },
    ))
}

async fn delete(call: Call) -> Result<Reply, Problem> {
    let (_, id, loaded) = load(&call).await?;
    call.check_if_match(&loaded)?;
    if loaded.record.volume.state == VolumeState::Deleted {
        return Ok(Reply::json(StatusCode::OK, &loaded.record.volume));
    }
    require_state(&loaded, VolumeState::Active, "deleted")?;
    let mut record = loaded.record.clone();
    record.volume.state = VolumeState::Deleted;
    record.volume.deleted = Some(call.app.now());
    let change = call.change("volume.delete", id)?.update(&loaded, &record);
    call.commit(change, Reply::json(StatusCode::OK, &record.volume))
        .await
}

async fn undelete(call: Call) -> Result<Reply, Problem> {
    let _: Nothing = call.body()?;
    let (_, id, loaded) = load(&call).await?;
    require_state(&loaded, VolumeState::Deleted, "undeleted")?;
    if loaded.record.is_overdue(call.app.now()) {
        return Err(Problem::new(
            Code::WrongState,
            "its time to be undeleted is over; it is about to be erased",
        ));
    }
    let mut record = loaded.record.clone();
    record.volume.state = VolumeState::Active;
    record.volume.deleted = None;
    let change = call.change("volume.undelete", id)?.update(&loaded, &record);
    call.commit(change, Reply::json(StatusCode::OK, &record.volume))
        .await
}

async fn erase(call: Call) -> Result<Reply, Problem> {
    let _: Nothing = call.body()?;
    let (_, id, loaded) = load(&call).await?;
    if matches!(
        loaded.record.volume.state,
        VolumeState::Erasing | VolumeState::Erased
    ) {
        return Ok(Reply::json(StatusCode::OK, &loaded.record.volume));
    }
    require_state(&loaded, VolumeState::Deleted, "erased")?;
    let context = call.context()?;
    let principal = context.caller().map(|caller| caller.principal);
    let saga = SagaRecord::new(call.app.env(), principal, Work::EraseVolume { volume: id });
    let record = loaded.record.erasing(&saga);
    let change = call.change("volume.erase", id)?.update(&loaded, &record);
    let change = saga.begin(context.tenant(), change);
    let reply = call
        .commit(change, Reply::json(StatusCode::OK, &record.volume))
        .await?;
    call.app.wake_sagas();
    Ok(reply)
}

/// Safe to repeat; each proof is a new one, so that a role that was narrowed since is noticed.
async fn prove(call: Call) -> Result<Reply, Problem> {
    let _: Nothing = call.body()?;
    let (store, id, loaded) = load(&call).await?;
    require_state(&loaded, VolumeState::Active, "proved")?;
    let Bucket::Own { url, role } = &loaded.record.volume.bucket else {
        return Err(Problem::new(
            Code::WrongState,
            "the volume lies in a bucket of the service's; there is nothing to prove",
        ));
    };
    let nowhere = |why: String| Problem::new(Code::WrongState, why);
    let tenant = store
        .require::<TenantRecord>(TenantRecord::SORT, "the tenant")
        .await?;
    let request = ProofRequest {
        volume: id,
        place: Place::parse(url).map_err(|error| nowhere(error.to_string()))?,
        role: role.clone(),
        external_id: tenant.record.tenant.external_id.clone(),
    };
    call.app
        .cloud()
        .prove(&request)
        .await
        .map_err(|error| match error {
            CloudError::Refused(_) => nowhere(format!("the bucket is not proved: {error}")),
            CloudError::Unavailable(_) => Problem::new(Code::StorageUnavailable, error.to_string()),
        })?;
    let mut record = loaded.record.clone();
    record.volume.bucket_proved = Some(call.app.now());
    let change = call
        .change("volume.prove", id)?
        .detail(url.clone())
        .update(&loaded, &record);
    call.commit(change, Reply::json(StatusCode::OK, &record.volume))
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_the_service_is_not_in_is_refused_and_those_it_is_in_are_named() {
        let of = |region: &str| Bucket::Managed {
            region: region.to_owned(),
        };
        let regions = ["eu-central-1".to_owned(), "us-east-1".to_owned()];
        assert_eq!(check_bucket(&of("us-east-1"), Some(&regions)), Ok(()));
        let refused = check_bucket(&of("mars"), Some(&regions)).expect_err("nowhere");
        assert!(refused.detail.contains("mars") && refused.detail.contains("eu-central-1, us-east-1"));
        let refused = check_bucket(&of("eu-central-1"), Some(&[])).expect_err("no buckets at all");
        assert!(refused.detail.contains("of your own"), "{refused}");
        // Without a cloud a region is only a name, which has a form all the same.
        assert_eq!(check_bucket(&of("mars"), None), Ok(()));
        assert!(check_bucket(&of("EU west"), None).is_err());
    }
}

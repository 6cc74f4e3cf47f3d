//! Key rings: stored for the tenant, and put into the bucket for its edges.
//!
//! The service holds a volume's keys only wrapped, in rings that the tenant's key signs. It refuses a ring that is not the
//! tenant's next one, or is signed for another volume, so that two administrators do not overwrite each other; clients check all of it
//! again. A ring may leave generations out: after a restored backup the service may lack some that the tenant has made.
//!
//! Edges that take their credentials from the service cannot put key rings ([`crate::cloud`]): the service does, when a ring is stored and
//! before it gives a session.

use super::{
    VolumeRecord, base64_field,
    served::served,
    tenants::TenantRecord,
    volumes::{load, require_state},
};
use crate::{
    cloud::{Place, RingObject},
    endpoint::{Call, Endpoint, Reply},
    problem::{Code, Problem},
    secrets::unhex,
    store::{Record, TenantStore},
    types::{Bucket, Edge, KeyRingText, Volume, VolumeState},
};
use axum::http::{Method, StatusCode};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_identity::{Principal, TenantId, VolumeId};
use firn_seal::{KeyRing, TenantPublic, VerifiedKeyRing};
use serde::{Deserialize, Serialize};

/// The largest key ring: with base64 and JSON it still fits one item of the table.
const MAX_RING_BYTES: usize = 256 << 10;
/// Base64 of the largest ring, and the other fields.
pub(super) const RING_BODY_BYTES: usize = 400 << 10;

/// One generation of a volume's key ring.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RingRecord {
    key_ring: String,
}

impl Record for RingRecord {
    const KIND: &'static str = "key-ring";
}

impl RingRecord {
    pub(crate) fn new(key_ring: String) -> Self {
        Self { key_ring }
    }

    /// The ring, in base64.
    pub(crate) fn text(&self) -> &str {
        &self.key_ring
    }

    /// Where the ring of one generation lies.
    pub(crate) fn sort(volume: VolumeId, generation: u64) -> String {
        format!("{}{generation:016x}", Self::prefix(volume))
    }

    /// What the sort keys of all of a volume's rings begin with.
    pub(crate) fn prefix(volume: VolumeId) -> String {
        format!("key-ring/{volume}/")
    }
}

/// A ring from outside, if the tenant signed it, and for no other volume.
pub(crate) async fn verified_ring(
    store: &TenantStore,
    volume: VolumeId,
    text: &str,
) -> Result<VerifiedKeyRing, Problem> {
    let ring = read_ring(text, &tenant_key(store).await?)?;
    ring.check_volume(&volume)
        .map_err(|error| Problem::new(Code::KeyRingRefused, error.to_string()))?;
    Ok(ring)
}

/// Those of an edge's volumes whose newest key ring still lists its key.
pub(crate) async fn volumes_that_list(store: &TenantStore, edge: &Edge) -> Result<Vec<VolumeId>, Problem> {
    let Some(key) = &edge.recipient_key else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for id in &edge.volumes {
        let Some(volume) = store.get::<VolumeRecord>(&VolumeRecord::sort(*id)).await? else {
            continue;
        };
        let generation = volume.record.volume.key_ring_generation;
        let Some(ring) = store
            .get::<RingRecord>(&RingRecord::sort(*id, generation))
            .await?
        else {
            continue;
        };
        let ring = read_ring(&ring.record.key_ring, &tenant_key(store).await?)?;
        if ring
            .recipients()
            .iter()
            .any(|recipient| recipient.public.to_string() == *key)
        {
            found.push(*id);
        }
    }
    Ok(found)
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    const RING: &str = "/v1/tenants/{tenant}/volumes/{volume}/keyring";
    vec![
        Endpoint::new(
            Method::GET,
            RING,
            "getKeyRing",
            "Shows the newest key ring",
            get_ring,
        )
        .gives::<KeyRingText>(StatusCode::OK)
        .tagged(),
        Endpoint::new(
            Method::PUT,
            RING,
            "putKeyRing",
            "Stores the next key ring",
            put_ring,
        )
        .takes::<KeyRingText>()
        .up_to(RING_BODY_BYTES)
        .gives::<Volume>(StatusCode::OK),
    ]
}

pub(super) async fn tenant_key(store: &TenantStore) -> Result<TenantPublic, Problem> {
    let tenant = store
        .require::<TenantRecord>(TenantRecord::SORT, "the tenant")
        .await?;
    unhex(&tenant.record.tenant.tenant_key)
        .map(TenantPublic::from_bytes)
        .ok_or_else(|| Problem::internal("the tenant's key is not hex"))
}

pub(super) fn read_ring(text: &str, tenant: &TenantPublic) -> Result<VerifiedKeyRing, Problem> {
    let bytes = base64_field("key_ring", text, MAX_RING_BYTES)?;
    KeyRing::decode(bytes.into())
        .and_then(|ring| ring.verify(tenant))
        .map_err(|error| Problem::new(Code::KeyRingRefused, error.to_string()))
}

async fn get_ring(call: Call) -> Result<Reply, Problem> {
    let asks = call.context()?.caller().map(|caller| caller.principal);
    let (store, id, loaded) = match asks {
        Some(Principal::Edge(edge)) => {
            let id: VolumeId = call.param("volume")?;
            let opened = served(&call, edge, id).await?;
            (opened.store, id, opened.volume)
        }
        _ => load(&call).await?,
    };
    let generation = loaded.record.volume.key_ring_generation;
    let ring = store
        .require::<RingRecord>(&RingRecord::sort(id, generation), format!("a key ring of {id}"))
        .await?;
    let text = KeyRingText {
        key_ring: ring.record.key_ring.clone(),
    };
    Ok(Reply::json(StatusCode::OK, &text).tagged(&ring))
}

async fn put_ring(call: Call) -> Result<Reply, Problem> {
    let body: KeyRingText = call.body()?;
    let (store, id, loaded) = load(&call).await?;
    require_state(&loaded, VolumeState::Active, "given a key ring")?;
    let tenant = tenant_key(&store).await?;
    let ring = read_ring(&body.key_ring, &tenant)?;
    ring.check_volume(&id)
        .map_err(|error| Problem::new(Code::KeyRingRefused, error.to_string()))?;
    let generation = loaded.record.volume.key_ring_generation;
    if generation == 0 {
        if ring.generation() != 1 {
            return Err(Problem::new(
                Code::KeyRingRefused,
                "the first key ring has generation 1",
            ));
        }
    } else {
        let before = store
            .require::<RingRecord>(&RingRecord::sort(id, generation), "the key ring before")
            .await?;
        if before.record.key_ring == body.key_ring {
            return Ok(Reply::json(StatusCode::OK, &loaded.record.volume));
        }
        let before = read_ring(&before.record.key_ring, &tenant)?;
        ring.check_after(&before.seen()).map_err(|error| {
            Problem::new(
                Code::KeyRingRefused,
                format!("{error}; fetch the newest and change that"),
            )
        })?;
    }
    let mut record = loaded.record.clone();
    record.volume.key_ring_generation = ring.generation();
    record.volume.family = Some(ring.family().to_string());
    let change = call
        .change("key-ring.put", id)?
        .detail(format!(
            "generation {}, {} recipients",
            ring.generation(),
            ring.recipients().len()
        ))
        .update(&loaded, &record)
        .create(
            &RingRecord::sort(id, ring.generation()),
            &RingRecord {
                key_ring: body.key_ring,
            },
        );
    let reply = call
        .commit(change, Reply::json(StatusCode::OK, &record.volume))
        .await?;
    // So that running edges may take it up at once; if it does not succeed now, the next session of an edge does it.
    keep_newest(&call, &store, call.context()?.tenant(), &record.volume).await;
    Ok(reply)
}

/// Where a volume lies, and the tenant's role for it if the bucket is the tenant's own.
///
/// # Errors
/// If the service keeps no bucket there, or it was not shown that the bucket is the tenant's.
pub(super) fn place_of(
    call: &Call,
    owner: TenantId,
    volume: &Volume,
) -> Result<(Place, Option<String>), Problem> {
    let nowhere = |why: String| Problem::new(Code::WrongState, why);
    match &volume.bucket {
        Bucket::Managed { region } => {
            let place = call.app.cloud().managed(region, owner, volume.id);
            let place = place.ok_or_else(|| nowhere(format!("this service keeps no bucket in {region}")))?;
            Ok((place, None))
        }
        Bucket::Own { .. } if volume.bucket_proved.is_none() => Err(nowhere(
            "it was not shown that the bucket is yours; set the role up and prove it: firn volume prove"
                .into(),
        )),
        Bucket::Own { url, role } => {
            let place = Place::parse(url).map_err(|error| nowhere(error.to_string()))?;
            Ok((place, Some(role.clone())))
        }
    }
}

/// Puts the newest key ring into the volume's bucket, if the service reaches it. A failure keeps nobody from anything: edges seal
/// nothing under an epoch whose ring is not there.
pub(super) async fn keep_newest(call: &Call, store: &TenantStore, owner: TenantId, volume: &Volume) {
    match newest_object(call, store, owner, volume).await {
        Ok(Some(ring)) => {
            if let Err(error) = call.app.cloud().keep(&ring).await {
                tracing::warn!(%error, volume = %volume.id, key = ring.key, "the newest key ring is not in the bucket");
            }
        }
        Ok(None) => {}
        Err(problem) => {
            tracing::warn!(%problem, volume = %volume.id, "the newest key ring was not put into the bucket");
        }
    }
}

async fn newest_object(
    call: &Call,
    store: &TenantStore,
    owner: TenantId,
    volume: &Volume,
) -> Result<Option<RingObject>, Problem> {
    let Ok((place, role)) = place_of(call, owner, volume) else {
        return Ok(None);
    };
    let Some(ring) = store
        .get::<RingRecord>(&RingRecord::sort(volume.id, volume.key_ring_generation))
        .await?
    else {
        return Ok(None);
    };
    let tenant = store
        .require::<TenantRecord>(TenantRecord::SORT, "the tenant")
        .await?;
    let key_ring = &ring.record.key_ring;
    let bytes = STANDARD_NO_PAD
        .decode(key_ring)
        .map_err(|_| Problem::internal("a stored key ring is not in base64"))?;
    Ok(Some(RingObject {
        volume: volume.id,
        place,
        role,
        external_id: tenant.record.tenant.external_id.clone(),
        key: read_ring(key_ring, &tenant_key(store).await?)?
            .ring()
            .object_key(),
        bytes,
    }))
}

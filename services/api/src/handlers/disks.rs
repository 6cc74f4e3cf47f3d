//! Disks: their records, and capabilities to use them. Work that touches nodes is a [saga](crate::saga).

use super::{
    EdgeRecord, LimitsRecord, NameRecord,
    attachments::{self, require_detached, require_usable},
    name_sort, require_free_name,
};
use crate::{
    endpoint::{Call, Endpoint, Reply},
    names::DisplayName,
    problem::{Code, Problem},
    saga::{DiskWork, SagaRecord, Work},
    secrets::hex,
    store::Record,
    types::{
        AttachDisk, CreateDisk, Disk, DiskAttached, DiskChange, DiskState, EdgeState, GrowDisk, InUse,
        Listing, MAX_DISK_BYTES, Operation, REPLICAS_MAX, TRACT_BYTES,
    },
};
use axum::http::{Method, StatusCode};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use firn_identity::{Capability, DiskId, EdgeId, HolderHash, PeerIdentity, PeerKind, Rights};
use firn_quantity::Size;
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};

/// A disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DiskRecord {
    pub(crate) disk: Disk,
}

impl Record for DiskRecord {
    const KIND: &'static str = "disk";
}

impl DiskRecord {
    pub(crate) fn sort(id: DiskId) -> String {
        format!("disk/{id}")
    }
}

/// A disk's place in the index of names.
pub(crate) fn disk_name_sort(name: &DisplayName) -> String {
    name_sort("disk", &name.folded())
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    const DISKS: &str = "/v1/tenants/{tenant}/disks";
    const DISK: &str = "/v1/tenants/{tenant}/disks/{disk}";
    vec![
        Endpoint::new(Method::GET, DISKS, "listDisks", "Lists disks", list).lists::<Disk>(),
        Endpoint::new(Method::POST, DISKS, "createDisk", "Starts to make a disk", create)
            .takes::<CreateDisk>()
            .gives::<DiskChange>(StatusCode::ACCEPTED),
        Endpoint::new(Method::GET, DISK, "getDisk", "Shows a disk", get)
            .gives::<Disk>(StatusCode::OK)
            .tagged(),
        Endpoint::new(
            Method::DELETE,
            DISK,
            "deleteDisk",
            "Starts to remove a disk and all on it",
            delete,
        )
        .gives::<DiskChange>(StatusCode::ACCEPTED)
        .if_match(),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/disks/{disk}/grow",
            "growDisk",
            "Starts to make a disk larger",
            grow,
        )
        .takes::<GrowDisk>()
        .gives::<DiskChange>(StatusCode::ACCEPTED),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/disks/{disk}/attach",
            "attachDisk",
            "Gives a capability to use a disk; one that may write ends the attachment before",
            attach,
        )
        .takes::<AttachDisk>()
        .gives::<DiskAttached>(StatusCode::OK),
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/operations/{operation}",
            "getOperation",
            "Shows how far an operation has come",
            operation,
        )
        .gives::<Operation>(StatusCode::OK),
    ]
}

fn check_size(size_bytes: u64) -> Result<(), Problem> {
    if (TRACT_BYTES..=MAX_DISK_BYTES).contains(&size_bytes) && size_bytes.is_multiple_of(TRACT_BYTES) {
        Ok(())
    } else {
        Err(Problem::field(
            "size_bytes",
            format!(
                "a multiple of {} up to {}",
                Size(TRACT_BYTES),
                Size(MAX_DISK_BYTES)
            ),
        ))
    }
}

fn saga(call: &Call, disk: &Disk, kind: DiskWork, size_bytes: u64) -> Result<SagaRecord, Problem> {
    let principal = call.context()?.caller().map(|caller| caller.principal);
    let work = Work::Disk {
        kind,
        disk: disk.id,
        size_bytes,
        replicas: disk.replicas,
    };
    Ok(SagaRecord::new(call.app.env(), principal, work))
}

fn require_ready(disk: &Disk) -> Result<(), Problem> {
    if disk.state == DiskState::Ready {
        return Ok(());
    }
    Err(Problem::new(
        Code::WrongState,
        format!("the disk is {:?}; wait until it is ready", disk.state),
    ))
}

async fn list(call: Call) -> Result<Reply, Problem> {
    const PREFIX: &str = "disk/";
    let (limit, after) = call.page(PREFIX)?;
    let (records, next) = call
        .store()?
        .page::<DiskRecord>(PREFIX, after.as_deref(), limit)
        .await?;
    // Side by side: each is one read, and a page has a hundred.
    let shown = records
        .into_iter()
        .map(|loaded| attachments::shown(&call, loaded.record.disk));
    let listing = Listing {
        items: try_join_all(shown).await?,
        next_cursor: next.map(|next| URL_SAFE_NO_PAD.encode(next)),
    };
    Ok(Reply::json(StatusCode::OK, &listing))
}

async fn get(call: Call) -> Result<Reply, Problem> {
    let id: DiskId = call.param("disk")?;
    let disk = call
        .store()?
        .require::<DiskRecord>(&DiskRecord::sort(id), id)
        .await?;
    let shown = attachments::shown(&call, disk.record.disk.clone()).await?;
    Ok(Reply::json(StatusCode::OK, &shown).tagged(&disk))
}

async fn create(call: Call) -> Result<Reply, Problem> {
    let body: CreateDisk = call.body()?;
    check_size(body.size_bytes)?;
    if !(1..=REPLICAS_MAX).contains(&body.replicas) {
        return Err(Problem::field("replicas", format!("1 to {REPLICAS_MAX}")));
    }
    let store = call.store()?;
    let name = disk_name_sort(&body.name);
    require_free_name(&store, &name).await?;
    let limits = LimitsRecord::load(&store).await?;
    let more = InUse {
        disks: 1,
        disk_bytes: body.size_bytes,
        ..InUse::default()
    };
    let taken = limits.record.take("disks or bytes of disks", more)?;
    let disk = Disk {
        id: DiskId::random(&mut call.app.entropy()),
        name: body.name,
        size_bytes: body.size_bytes,
        replicas: body.replicas,
        state: DiskState::Creating,
        fence: 0,
        attached: None,
        created: call.app.now(),
    };
    let saga = saga(&call, &disk, DiskWork::Create, disk.size_bytes)?;
    let change = call
        .change("disk.create", disk.id)?
        .detail(format!("{} bytes, {} copies", disk.size_bytes, disk.replicas))
        .create(&DiskRecord::sort(disk.id), &DiskRecord { disk: disk.clone() })
        .create(
            &name,
            &NameRecord {
                owner: disk.id.to_string(),
            },
        )
        .update(&limits, &taken);
    start(&call, change, disk, &saga).await
}

/// Commits the intent and wakes whoever drives sagas.
async fn start(
    call: &Call,
    change: crate::store::Change,
    disk: Disk,
    saga: &SagaRecord,
) -> Result<Reply, Problem> {
    let change = saga.begin(call.context()?.tenant(), change);
    let reply = Reply::json(
        StatusCode::ACCEPTED,
        &DiskChange {
            disk,
            operation: saga.show(),
        },
    );
    let reply = call.commit(change, reply).await?;
    call.app.wake_sagas();
    Ok(reply)
}

async fn delete(call: Call) -> Result<Reply, Problem> {
    let id: DiskId = call.param("disk")?;
    let loaded = call
        .store()?
        .require::<DiskRecord>(&DiskRecord::sort(id), id)
        .await?;
    call.check_if_match(&loaded)?;
    require_ready(&loaded.record.disk)?;
    require_detached(&call, id).await?;
    let mut record = loaded.record.clone();
    record.disk.state = DiskState::Deleting;
    let saga = saga(&call, &record.disk, DiskWork::Delete, record.disk.size_bytes)?;
    let change = call.change("disk.delete", id)?.update(&loaded, &record);
    start(&call, change, record.disk, &saga).await
}

async fn grow(call: Call) -> Result<Reply, Problem> {
    let body: GrowDisk = call.body()?;
    check_size(body.size_bytes)?;
    let id: DiskId = call.param("disk")?;
    let store = call.store()?;
    let loaded = store.require::<DiskRecord>(&DiskRecord::sort(id), id).await?;
    require_ready(&loaded.record.disk)?;
    let from_bytes = loaded.record.disk.size_bytes;
    if body.size_bytes <= from_bytes {
        return Err(Problem::field(
            "size_bytes",
            format!("more than {from_bytes}: a disk never shrinks"),
        ));
    }
    let limits = LimitsRecord::load(&store).await?;
    let more = InUse {
        disk_bytes: body.size_bytes - from_bytes,
        ..InUse::default()
    };
    let taken = limits.record.take("bytes of disks", more)?;
    let mut record = loaded.record.clone();
    record.disk.state = DiskState::Growing;
    let saga = saga(
        &call,
        &record.disk,
        DiskWork::Grow { from_bytes },
        body.size_bytes,
    )?;
    let change = call
        .change("disk.grow", id)?
        .detail(format!("from {from_bytes} to {} bytes", body.size_bytes))
        .update(&loaded, &record)
        .update(&limits, &taken);
    start(&call, change, record.disk, &saga).await
}

async fn attach(call: Call) -> Result<Reply, Problem> {
    let body: AttachDisk = call.body()?;
    let id: DiskId = call.param("disk")?;
    let loaded = call
        .store()?
        .require::<DiskRecord>(&DiskRecord::sort(id), id)
        .await?;
    require_usable(&loaded.record.disk)?;
    let edge = holder(&call, body.edge).await?;
    let holder = HolderHash::of(&edge);
    let mut record = loaded.record.clone();
    record.disk.fence = match call.app.placement().cluster() {
        // Attachments are the cluster's to number: nodes believe no others.
        Some(cluster) if body.read_only => cluster.disk(id).await.map(|disk| disk.fence.into()),
        Some(cluster) => {
            let attached = cluster.attach_disk(id, &edge.to_string(), true).await;
            attached.map(|attached| attached.fence.0.into())
        }
        None => Ok(record.disk.fence + u64::from(!body.read_only)),
    }
    .map_err(attachments::unanswered)?;
    let rights = if body.read_only {
        Rights::READ
    } else {
        Rights::READ.and(Rights::WRITE).and(Rights::ATTACH)
    };
    let now = call.app.now();
    let capability = Capability {
        tenant: call.context()?.tenant(),
        disk: id,
        rights,
        fence: record.disk.fence,
        not_before: now,
        expires: now.plus(call.app.disk_capability_seconds()),
        holder: Some(holder),
    };
    let issuer = call.app.capabilities();
    let attached = DiskAttached {
        capability: STANDARD_NO_PAD.encode(issuer.issue(&capability)),
        capability_key: hex(&issuer.public().to_bytes()),
        fence: record.disk.fence,
        expires: capability.expires,
    };
    let change = call
        .change("disk.attach", id)?
        .detail(format!("fence {}, {rights:?}", record.disk.fence))
        .update(&loaded, &record);
    call.commit(change, Reply::json(StatusCode::OK, &attached)).await
}

/// Whose certificate the capability is bound to: the caller's own, if it is an edge of the tenant's, or that of the edge which the
/// body names. A capability that is good for whoever holds it would be good for any other tenant who gets hold of it.
async fn holder(call: &Call, edge: Option<EdgeId>) -> Result<PeerIdentity, Problem> {
    let tenant = call.context()?.tenant();
    let shown = match &call.peer {
        Some(peer) if peer.trust_domain == call.app.trust_domain() => match peer.kind {
            PeerKind::Edge { tenant: of, edge } if of == tenant => Some(edge),
            _ => None,
        },
        Some(_) | None => None,
    };
    let edge = edge.or(shown).ok_or_else(|| {
        Problem::field(
            "edge",
            "name the edge that attaches the disk, or call with its certificate: the capability is good for its holder only",
        )
    })?;
    let known = call.store()?.get::<EdgeRecord>(&EdgeRecord::sort(edge)).await?;
    if !known.is_some_and(|known| known.record.edge.state == EdgeState::Active) {
        return Err(Problem::field(
            "edge",
            format!("{edge} is no active edge of this tenant"),
        ));
    }
    Ok(PeerIdentity {
        trust_domain: call.app.trust_domain().to_owned(),
        kind: PeerKind::Edge { tenant, edge },
    })
}

async fn operation(call: Call) -> Result<Reply, Problem> {
    let id: String = call.param("operation")?;
    if !SagaRecord::is_id(&id) {
        return Err(Problem::not_found("the operation"));
    }
    let saga = call
        .store()?
        .require::<SagaRecord>(&SagaRecord::sort(&id), &id)
        .await?;
    Ok(Reply::json(StatusCode::OK, &saga.record.show()))
}

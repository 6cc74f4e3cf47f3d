//! Sagas: work of several steps that cannot be one transaction, because something outside the table is part of it.
//!
//! The request itself commits the intent: the disk's record in its passing state, the quota, the saga and its entry in the
//! index of open sagas, all in one transaction. From then on the saga is driven to an end, by whoever is alive:
//!
//! | kind | place | after success | after refusal: unplace |
//! |---|---|---|---|
//! | create | put all tracts | disk ready | remove tracts; disk, name and quota gone |
//! | grow | put more tracts | disk ready, larger | (nothing was put) disk ready, as before; quota given back |
//! | delete | remove all tracts | disk, name and quota gone | cannot be refused |
//!
//! Each arrow is a conditional write of the saga's record, so a step is repeated after a crash but never skipped, and of two
//! drivers one loses without harm. What is repeated is idempotent ([`DiskPlacement`](crate::placement::DiskPlacement)); the
//! last step writes outcome, audit entry and the index in one transaction.

use crate::{
    app::App,
    context::TenantContext,
    handlers::{DiskRecord, LimitsRecord, NameRecord, disk_name_sort},
    placement::{DiskPlan, PlacementError},
    problem::{Code, Problem},
    store::{self, Change, Loaded, Record, TenantStore},
    types::{DiskState, InUse, Operation},
};
use firn_identity::{DiskId, Principal, TenantId};
use firn_table::{Condition, ItemKey, Write};
use serde::{Deserialize, Serialize};

/// What is done to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SagaKind {
    Create,
    Grow { from_bytes: u64 },
    Delete,
}

/// Which step comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SagaStep {
    Place,
    Publish,
    Unplace,
    Done,
    Undone,
}

/// A saga's persisted log: what it is about, and how far it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SagaRecord {
    pub(crate) id: String,
    pub(crate) kind: SagaKind,
    pub(crate) disk: DiskId,
    pub(crate) size_bytes: u64,
    pub(crate) replicas: u8,
    pub(crate) step: SagaStep,
    pub(crate) steps_done: u32,
    pub(crate) failure: Option<String>,
    pub(crate) principal: Option<Principal>,
}

impl Record for SagaRecord {
    const KIND: &'static str = "saga";
}

/// An entry of the index of open sagas.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OpenSaga {
    tenant: TenantId,
    id: String,
}

impl Record for OpenSaga {
    const KIND: &'static str = "open-saga";
}

const INDEX: &str = "open-sagas";

impl SagaRecord {
    pub(crate) fn sort(id: &str) -> String {
        format!("saga/{id}")
    }

    /// Adds the saga and its index entry to the change that commits the intent.
    pub(crate) fn begin(&self, tenant: TenantId, change: Change) -> Change {
        let open = OpenSaga {
            tenant,
            id: self.id.clone(),
        };
        change
            .create(&Self::sort(&self.id), self)
            .create_outside(index_key(tenant, &self.id), &open)
    }

    pub(crate) fn show(&self) -> Operation {
        Operation {
            id: self.id.clone(),
            kind: self.action().to_owned(),
            target: self.disk.to_string(),
            steps_done: self.steps_done,
            state: match self.step {
                SagaStep::Place | SagaStep::Publish | SagaStep::Unplace => "running",
                SagaStep::Done => "done",
                SagaStep::Undone => "undone",
            }
            .to_owned(),
            failure: self.failure.clone(),
        }
    }

    fn action(&self) -> &'static str {
        match self.kind {
            SagaKind::Create => "disk.create",
            SagaKind::Grow { .. } => "disk.grow",
            SagaKind::Delete => "disk.delete",
        }
    }

    fn plan(&self, tenant: TenantId) -> DiskPlan {
        DiskPlan {
            tenant,
            disk: self.disk,
            size_bytes: self.size_bytes,
            replicas: self.replicas,
        }
    }

    fn next(&self, step: SagaStep, failure: Option<String>) -> Self {
        Self {
            step,
            steps_done: self.steps_done + 1,
            failure: failure.or_else(|| self.failure.clone()),
            ..self.clone()
        }
    }
}

fn index_key(tenant: TenantId, id: &str) -> ItemKey {
    ItemKey::new(INDEX, format!("{tenant}/{id}"))
}

/// Drives every open saga as far as it goes; returns how many are still open.
///
/// # Errors
/// If the index cannot be read. A saga that cannot go on now is logged and left open.
pub async fn drive_all(app: &App) -> Result<usize, Problem> {
    let mut open = 0;
    let mut after = None;
    loop {
        let page = app.table().query(INDEX, "", after.as_deref(), 100).await?;
        for item in &page.items {
            let entry: OpenSaga = store::decode(item)?;
            if let Err(problem) = drive(app, entry.tenant, &entry.id).await {
                tracing::warn!(saga = entry.id, %problem, "a saga waits for its next try");
                open += 1;
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(open),
        }
    }
}

/// Drives one saga to its end.
async fn drive(app: &App, tenant: TenantId, id: &str) -> Result<(), Problem> {
    let store = TenantStore::of(app.table(), &TenantContext::for_service(tenant));
    // Four steps at most, each lost to another driver a few times at most; more would be a fault of ours.
    for _ in 0..64 {
        let saga = store.require::<SagaRecord>(&SagaRecord::sort(id), id).await?;
        app.env().fault_point("saga.before_step").await;
        let stepped = match saga.record.step {
            SagaStep::Place => place(app, tenant, &store, &saga).await,
            SagaStep::Publish => publish(app, tenant, &store, &saga).await,
            SagaStep::Unplace => unplace(app, tenant, &store, &saga).await,
            SagaStep::Done | SagaStep::Undone => return Ok(()),
        };
        match stepped {
            // Another driver was faster, or another change of the tenant came between: look again.
            Err(problem) if problem.code == Code::ChangedMeanwhile => {}
            result => result?,
        }
    }
    Err(Problem::internal(format!("saga {id} does not come to an end")))
}

async fn place(
    app: &App,
    tenant: TenantId,
    store: &TenantStore,
    saga: &Loaded<SagaRecord>,
) -> Result<(), Problem> {
    let plan = saga.record.plan(tenant);
    let placed = match saga.record.kind {
        SagaKind::Create => app.placement().create(&plan).await,
        SagaKind::Grow { .. } => app.placement().grow(&plan).await,
        SagaKind::Delete => app.placement().remove(tenant, plan.disk).await,
    };
    app.env().fault_point("saga.after_placement").await;
    let next = match placed {
        Ok(()) => saga.record.next(SagaStep::Publish, None),
        Err(PlacementError::NoCapacity(why)) if saga.record.kind != SagaKind::Delete => {
            saga.record.next(SagaStep::Unplace, Some(why))
        }
        Err(error) => return Err(Problem::new(Code::StorageUnavailable, error.to_string())),
    };
    let write = Write::Put {
        key: saga.key.clone(),
        value: store::encode(&next),
        condition: Condition::Version(saga.version),
    };
    store.table().transact(vec![write]).await?;
    Ok(())
}

async fn publish(
    app: &App,
    tenant: TenantId,
    store: &TenantStore,
    saga: &Loaded<SagaRecord>,
) -> Result<(), Problem> {
    let disk = store
        .require::<DiskRecord>(&DiskRecord::sort(saga.record.disk), saga.record.disk)
        .await?;
    let mut record = disk.record.clone();
    record.disk.state = DiskState::Ready;
    let change = ended(tenant, store, saga, SagaStep::Done).await?;
    let change = match saga.record.kind {
        SagaKind::Create => change.update(&disk, &record),
        SagaKind::Grow { .. } => {
            record.disk.size_bytes = saga.record.size_bytes;
            change.update(&disk, &record)
        }
        SagaKind::Delete => gone(store, change, &disk).await?,
    };
    change.commit(app.env(), None).await?;
    Ok(())
}

async fn unplace(
    app: &App,
    tenant: TenantId,
    store: &TenantStore,
    saga: &Loaded<SagaRecord>,
) -> Result<(), Problem> {
    let disk = store
        .require::<DiskRecord>(&DiskRecord::sort(saga.record.disk), saga.record.disk)
        .await?;
    let change = ended(tenant, store, saga, SagaStep::Undone)
        .await?
        .detail(saga.record.failure.clone().unwrap_or_default());
    let change = match saga.record.kind {
        SagaKind::Create => {
            app.placement()
                .remove(tenant, saga.record.disk)
                .await
                .map_err(|error| Problem::new(Code::StorageUnavailable, error.to_string()))?;
            app.env().fault_point("saga.after_placement").await;
            gone(store, change, &disk).await?
        }
        SagaKind::Grow { from_bytes } => {
            let mut record = disk.record.clone();
            record.disk.state = DiskState::Ready;
            let limits = LimitsRecord::load(store).await?;
            let less = InUse {
                disk_bytes: saga.record.size_bytes - from_bytes,
                ..InUse::default()
            };
            change
                .update(&disk, &record)
                .update(&limits, &limits.record.give_back(less))
        }
        SagaKind::Delete => return Err(Problem::internal("a removal cannot be undone")),
    };
    change.commit(app.env(), None).await?;
    Ok(())
}

/// Ends the saga and takes it out of the index.
async fn ended(
    tenant: TenantId,
    store: &TenantStore,
    saga: &Loaded<SagaRecord>,
    step: SagaStep,
) -> Result<Change, Problem> {
    let open = store::load::<OpenSaga>(store.table(), &index_key(tenant, &saga.record.id))
        .await?
        .ok_or_else(|| Problem::new(Code::ChangedMeanwhile, "another driver ended it"))?;
    let action = match step {
        SagaStep::Undone => "disk.undone",
        SagaStep::Place | SagaStep::Publish | SagaStep::Unplace | SagaStep::Done => "disk.done",
    };
    Ok(
        Change::new(store, saga.record.principal, action, saga.record.disk)
            .detail(saga.record.action())
            .update(saga, &saga.record.next(step, None))
            .delete(&open),
    )
}

/// Removes a disk's record, its name and what it took of the quota.
async fn gone(store: &TenantStore, change: Change, disk: &Loaded<DiskRecord>) -> Result<Change, Problem> {
    let name = disk_name_sort(&disk.record.disk.name);
    let entry = store.require::<NameRecord>(&name, "the disk's name").await?;
    let limits = LimitsRecord::load(store).await?;
    let less = InUse {
        disks: 1,
        disk_bytes: disk.record.disk.size_bytes,
        ..InUse::default()
    };
    Ok(change
        .delete(disk)
        .delete(&entry)
        .update(&limits, &limits.record.give_back(less)))
}

//! Disks: tracts on nodes, and the record that says that there is a disk. The table of steps is in [`super`].

use super::{SagaStep, Step, Stepped};
use crate::{
    handlers::{DiskRecord, LimitsRecord, NameRecord, disk_name_sort},
    placement::{DiskPlan, PlacementError},
    pool::{self, Prospect},
    problem::{Code, Problem},
    store::{Change, Loaded},
    types::{DiskState, InUse},
};
use firn_identity::DiskId;
use serde::{Deserialize, Serialize};

/// What is done to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DiskWork {
    Create,
    Grow { from_bytes: u64 },
    Delete,
}

impl DiskWork {
    pub(super) fn action(self) -> &'static str {
        match self {
            Self::Create => "disk.create",
            Self::Grow { .. } => "disk.grow",
            Self::Delete => "disk.delete",
        }
    }
}

pub(super) async fn step(
    step: &Step<'_>,
    kind: DiskWork,
    disk: DiskId,
    size_bytes: u64,
    replicas: u8,
) -> Result<Stepped, Problem> {
    let plan = DiskPlan {
        tenant: step.tenant,
        disk,
        size_bytes,
        replicas,
    };
    match step.saga.record.step {
        SagaStep::Place => place(step, kind, &plan).await,
        SagaStep::Publish => publish(step, kind, &plan).await,
        SagaStep::Unplace => unplace(step, kind, &plan).await,
        _ => Err(step.impossible()),
    }
}

async fn place(step: &Step<'_>, kind: DiskWork, plan: &DiskPlan) -> Result<Stepped, Problem> {
    let placement = step.app.placement();
    let placed = match kind {
        DiskWork::Create => placement.create(plan).await,
        DiskWork::Grow { .. } => placement.grow(plan).await,
        DiskWork::Delete => placement.remove(plan.tenant, plan.disk).await,
    };
    step.app.env().fault_point("saga.after_placement").await;
    match placed {
        Ok(()) => step.go_on(SagaStep::Publish, None).await,
        Err(PlacementError::NoCapacity(why)) => {
            let new_bytes = match kind {
                DiskWork::Create => plan.size_bytes,
                DiskWork::Grow { from_bytes } => plan.size_bytes.saturating_sub(from_bytes),
                DiskWork::Delete => return Err(Problem::new(Code::StorageUnavailable, why)),
            };
            let waits = step.saga.record.waits.as_ref();
            match pool::scale_up(step.app, plan, new_bytes, waits, why).await? {
                Prospect::Coming(waits) => step.wait(waits).await,
                Prospect::None(why) => step.go_on(SagaStep::Unplace, Some(why)).await,
            }
        }
        // The latter is said of nodes that leave.
        Err(error @ (PlacementError::Unavailable(_) | PlacementError::TooFewNodes(_))) => {
            Err(Problem::new(Code::StorageUnavailable, error.to_string()))
        }
    }
}

async fn load(step: &Step<'_>, disk: DiskId) -> Result<Loaded<DiskRecord>, Problem> {
    step.store.require(&DiskRecord::sort(disk), disk).await
}

async fn publish(step: &Step<'_>, kind: DiskWork, plan: &DiskPlan) -> Result<Stepped, Problem> {
    let disk = load(step, plan.disk).await?;
    let mut record = disk.record.clone();
    record.disk.state = DiskState::Ready;
    let change = step.ended(SagaStep::Done).await?;
    let change = match kind {
        DiskWork::Create => change.update(&disk, &record),
        DiskWork::Grow { .. } => {
            record.disk.size_bytes = plan.size_bytes;
            change.update(&disk, &record)
        }
        DiskWork::Delete => gone(step, change, &disk).await?,
    };
    step.commit(change).await
}

async fn unplace(step: &Step<'_>, kind: DiskWork, plan: &DiskPlan) -> Result<Stepped, Problem> {
    let disk = load(step, plan.disk).await?;
    let change = step
        .ended(SagaStep::Undone)
        .await?
        .detail(step.saga.record.failure.clone().unwrap_or_default());
    let change = match kind {
        DiskWork::Create => {
            step.app
                .placement()
                .remove(plan.tenant, plan.disk)
                .await
                .map_err(|error| Problem::new(Code::StorageUnavailable, error.to_string()))?;
            step.app.env().fault_point("saga.after_placement").await;
            gone(step, change, &disk).await?
        }
        DiskWork::Grow { from_bytes } => {
            let mut record = disk.record.clone();
            record.disk.state = DiskState::Ready;
            let limits = LimitsRecord::load(step.store).await?;
            let less = InUse {
                disk_bytes: plan.size_bytes - from_bytes,
                ..InUse::default()
            };
            change
                .update(&disk, &record)
                .update(&limits, &limits.record.give_back(less))
        }
        DiskWork::Delete => return Err(Problem::internal("a removal cannot be undone")),
    };
    step.commit(change).await
}

/// Removes a disk's record, its name and what it took of the quota.
async fn gone(step: &Step<'_>, change: Change, disk: &Loaded<DiskRecord>) -> Result<Change, Problem> {
    let name = disk_name_sort(&disk.record.disk.name);
    let entry = step.store.require::<NameRecord>(&name, "the disk's name").await?;
    let limits = LimitsRecord::load(step.store).await?;
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

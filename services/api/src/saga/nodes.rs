//! Nodes that the service starts and ends by itself, and nodes that are emptied. The table of steps is in [`super`].
//!
//! A node's record outlives its machine and comes before it, so that no machine runs of which no record tells.

use super::{SagaStep, Step, Stepped};
use crate::{
    handlers::{LimitsRecord, NodeRecord, name_entry, node_name_sort},
    placement::PlacementError,
    problem::{Code, Problem},
    provision::ProvisionError,
    store::{Loaded, encode},
    types::{InUse, NodeState},
};
use firn_identity::{NodeId, UnixTime};
use firn_table::{Condition, Write};

pub(super) async fn launch(step: &Step<'_>, node: NodeId, deadline: UnixTime) -> Result<Stepped, Problem> {
    match step.saga.record.step {
        SagaStep::Launch => start(step, node, deadline).await,
        SagaStep::Settle => joined(step, node, deadline).await,
        SagaStep::Publish => serve(step, node).await,
        SagaStep::Unlaunch => close_the_door(step, node).await,
        SagaStep::Terminate => terminate(step, node).await,
        SagaStep::Remove => remove(step, node, SagaStep::Undone).await,
        _ => Err(step.impossible()),
    }
}

pub(super) async fn drain(step: &Step<'_>, node: NodeId) -> Result<Stepped, Problem> {
    match step.saga.record.step {
        SagaStep::Drain => {
            if let Some(why) = too_few(step, node).await? {
                return step.go_on(SagaStep::Undrain, Some(why)).await;
            }
            step.app.placement().drain(node).await.map_err(silent)?;
            step.app.env().fault_point("saga.after_placement").await;
            step.go_on(SagaStep::Settle, None).await
        }
        SagaStep::Settle => {
            if step.app.placement().is_empty(node).await.map_err(silent)? {
                return step.go_on(SagaStep::Terminate, None).await;
            }
            // Others may have left since, and then nothing would ever move.
            match too_few(step, node).await? {
                Some(why) => step.go_on(SagaStep::Undrain, Some(why)).await,
                None => Ok(Stepped::NotYet),
            }
        }
        SagaStep::Undrain => {
            step.app.placement().undrain(node).await.map_err(silent)?;
            step.app.env().fault_point("saga.after_placement").await;
            serve_again(step, node).await
        }
        SagaStep::Terminate => terminate(step, node).await,
        SagaStep::Remove => remove(step, node, SagaStep::Done).await,
        _ => Err(step.impossible()),
    }
}

/// Why those that remain could not hold what the node holds.
async fn too_few(step: &Step<'_>, node: NodeId) -> Result<Option<String>, Problem> {
    match step.app.placement().may_drain(node).await {
        Ok(()) => Ok(None),
        Err(PlacementError::TooFewNodes(why)) => Ok(Some(why)),
        Err(error) => Err(silent(error)),
    }
}

/// As if nobody had wanted it to leave. If it is lost, that is noticed as of any other.
async fn serve_again(step: &Step<'_>, node: NodeId) -> Result<Stepped, Problem> {
    let loaded = load(step, node).await?;
    let mut record = loaded.record.clone();
    record.node.state = NodeState::Active;
    record.node.operation = None;
    let why = step.saga.record.failure.clone().unwrap_or_default();
    let change = step
        .ended(SagaStep::Undone)
        .await?
        .detail(why)
        .update(&loaded, &record);
    step.commit(change).await
}

fn silent(error: PlacementError) -> Problem {
    Problem::new(Code::StorageUnavailable, error.to_string())
}

async fn load(step: &Step<'_>, node: NodeId) -> Result<Loaded<NodeRecord>, Problem> {
    step.store.require(&NodeRecord::sort(node), node).await
}

async fn start(step: &Step<'_>, node: NodeId, deadline: UnixTime) -> Result<Stepped, Problem> {
    let loaded = load(step, node).await?;
    let Some(pool) = step.app.pool() else {
        return step
            .go_on(SagaStep::Unlaunch, Some("the pool is gone".into()))
            .await;
    };
    let plan = pool.plan(step.app, step.tenant, node, &loaded.record.node.failure_domain);
    let launched = match plan {
        Ok(plan) => pool.provisioner.launch(&plan).await,
        Err(error) => Err(error),
    };
    step.app.env().fault_point("saga.after_provisioner").await;
    match launched {
        Ok(machine) => {
            let mut record = loaded.record.clone();
            record.node.machine = Some(machine.name);
            let note = Write::Put {
                key: loaded.key.clone(),
                value: encode(&record),
                condition: Condition::Version(loaded.version),
            };
            step.go_on_with(SagaStep::Settle, None, vec![note]).await
        }
        Err(ProvisionError::Refused(why)) => step.go_on(SagaStep::Unlaunch, Some(why)).await,
        Err(ProvisionError::Unavailable(why)) if step.app.now() >= deadline => {
            step.go_on(SagaStep::Unlaunch, Some(why)).await
        }
        Err(error) => Err(Problem::new(Code::StorageUnavailable, error.to_string())),
    }
}

async fn joined(step: &Step<'_>, node: NodeId, deadline: UnixTime) -> Result<Stepped, Problem> {
    let state = load(step, node).await?.record.node.state;
    if state != NodeState::Invited {
        step.go_on(SagaStep::Publish, None).await
    } else if step.app.now() >= deadline {
        let why = "its machine runs, but did not join in time".to_owned();
        step.go_on(SagaStep::Unlaunch, Some(why)).await
    } else {
        Ok(Stepped::NotYet)
    }
}

async fn serve(step: &Step<'_>, node: NodeId) -> Result<Stepped, Problem> {
    let loaded = load(step, node).await?;
    let mut record = loaded.record.clone();
    record.node.operation = None;
    let change = step.ended(SagaStep::Done).await?.update(&loaded, &record);
    step.commit(change).await
}

/// From here on it cannot join; if it just did, it stays.
async fn close_the_door(step: &Step<'_>, node: NodeId) -> Result<Stepped, Problem> {
    let loaded = load(step, node).await?;
    if loaded.record.node.state != NodeState::Invited {
        return step.go_on(SagaStep::Publish, None).await;
    }
    let mut record = loaded.record.clone();
    record.authenticator_hash = None;
    let note = Write::Put {
        key: loaded.key.clone(),
        value: encode(&record),
        condition: Condition::Version(loaded.version),
    };
    step.go_on_with(SagaStep::Terminate, None, vec![note]).await
}

async fn terminate(step: &Step<'_>, node: NodeId) -> Result<Stepped, Problem> {
    let loaded = load(step, node).await?;
    step.app.placement().forget(node).await.map_err(silent)?;
    step.app.env().fault_point("saga.after_placement").await;
    if loaded.record.is_provisioned {
        let pool = step.app.pool().ok_or_else(|| {
            Problem::new(
                Code::StorageUnavailable,
                "the machine cannot be ended: this service was started without the pool",
            )
        })?;
        pool.provisioner
            .terminate(step.tenant, node)
            .await
            .map_err(|error| Problem::new(Code::StorageUnavailable, error.to_string()))?;
        step.app.env().fault_point("saga.after_provisioner").await;
    }
    step.go_on(SagaStep::Remove, None).await
}

async fn remove(step: &Step<'_>, node: NodeId, end: SagaStep) -> Result<Stepped, Problem> {
    let loaded = load(step, node).await?;
    let limits = LimitsRecord::load(step.store).await?;
    let given = limits.record.give_back(InUse {
        nodes: 1,
        ..InUse::default()
    });
    let why = step.saga.record.failure.clone();
    let mut change = step.ended(end).await?.delete(&loaded).update(&limits, &given);
    if let Some(entry) = name_entry(step.store, &node_name_sort(&loaded.record.node.name), node).await? {
        change = change.delete(&entry);
    }
    if let Some(why) = why {
        change = change.detail(why);
    }
    step.commit(change).await
}

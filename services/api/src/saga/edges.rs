//! Removing an edge. Its request makes it refused everywhere a token or certificate is asked for, in the transaction of the
//! intent itself. What it may still hold are credentials of the cloud, which nobody can take back and which end by themselves;
//! the saga waits for that, so that "done" means that nothing it was given opens anything any more.

use super::{SagaStep, Step, Stepped};
use crate::{
    handlers::{EdgeRecord, volumes_that_list},
    problem::Problem,
};
use firn_identity::{EdgeId, UnixTime};

pub(super) async fn step(step: &Step<'_>, edge: EdgeId, cut_off: UnixTime) -> Result<Stepped, Problem> {
    match step.saga.record.step {
        SagaStep::Settle if step.app.now() < cut_off => Ok(Stepped::NotYet),
        SagaStep::Settle => step.go_on(SagaStep::Publish, None).await,
        SagaStep::Publish => publish(step, edge).await,
        _ => Err(step.impossible()),
    }
}

/// The service cannot change key rings; it tells which ones still let the edge read what is written from now on.
async fn publish(step: &Step<'_>, edge: EdgeId) -> Result<Stepped, Problem> {
    let loaded = step
        .store
        .require::<EdgeRecord>(&EdgeRecord::sort(edge), edge)
        .await?;
    let listing = volumes_that_list(step.store, &loaded.record.edge).await?;
    let detail = if listing.is_empty() {
        "no key ring lists its key".to_owned()
    } else {
        let volumes: Vec<String> = listing.iter().map(ToString::to_string).collect();
        format!("its key is still in the key rings of {}", volumes.join(", "))
    };
    let change = step.ended(SagaStep::Done).await?.detail(detail).check(&loaded);
    step.commit(change).await
}

//! Desired and observed state of edges: one exchange within the report that an edge makes anyway (decision 0121).
//!
//! ```text
//! edge ── usage?, observed state ──▶ stored as edge-state/<edge> ──▶ shown with the edge
//!      ◀── signed document, if it has an older one ── made here of the budget's cap and its volumes' policies
//! ```
//!
//! The generation rises when what the document would say differs from what it said, in the write that stores the report. The record is read
//! before what the document is made of, and written under the version that was read: so of two instances the one that knew less starts over.

use super::{EdgeRecord, LimitsRecord, VolumeRecord, sessions::require_active};
use crate::{
    app::App,
    endpoint::Call,
    problem::Problem,
    store::{Loaded, Record, TenantStore, encode},
    types::{Edge, SnapshotPolicy, VolumeRekey, VolumeState},
};
use firn_edge_state::{
    DesiredContent, DesiredRekey, DesiredState, DesiredVolume, FORMAT, NewWrites, ObservedState,
    SnapshotTiers,
};
use firn_identity::{EdgeId, UnixTime};
use firn_table::{Condition, Write};
use serde::{Deserialize, Serialize};

/// What is wanted of an edge, and what it said last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EdgeStateRecord {
    generation: u64,
    content: DesiredContent,
    observed: ObservedState,
    /// When that was.
    at: UnixTime,
}

impl Record for EdgeStateRecord {
    const KIND: &'static str = "edge-state";
}

impl EdgeStateRecord {
    pub(crate) fn sort(edge: EdgeId) -> String {
        format!("edge-state/{edge}")
    }
}

impl From<SnapshotPolicy> for SnapshotTiers {
    fn from(policy: SnapshotPolicy) -> Self {
        Self {
            last: policy.last,
            hourly: policy.hourly,
            daily: policy.daily,
            weekly: policy.weekly,
            monthly: policy.monthly,
        }
    }
}

/// An edge with what it said last, if it did.
pub(super) async fn with_observed(store: &TenantStore, mut edge: Edge) -> Result<Edge, Problem> {
    let state = store
        .get::<EdgeStateRecord>(&EdgeStateRecord::sort(edge.id))
        .await?;
    if let Some(Loaded { record, .. }) = state {
        edge.last_seen = edge.last_seen.max(Some(record.at));
        edge.desired_generation = Some(record.generation);
        edge.observed = Some(record.observed);
    }
    Ok(edge)
}

fn desired_rekey(VolumeRekey { number, order, .. }: VolumeRekey) -> DesiredRekey {
    DesiredRekey {
        number,
        to_epoch: order.to_epoch,
        bytes_per_second: order.bytes_per_second,
        is_stopped: order.stop,
    }
}

/// What the service wants of an edge at this moment.
async fn wanted(store: &TenantStore, edge: &Edge) -> Result<DesiredContent, Problem> {
    let limits = LimitsRecord::load(store).await?.record;
    let mut volumes = Vec::new();
    for id in &edge.volumes {
        let Some(volume) = store.get::<VolumeRecord>(&VolumeRecord::sort(*id)).await? else {
            continue;
        };
        let volume = volume.record.volume;
        if volume.state == VolumeState::Active {
            volumes.push(DesiredVolume {
                volume: volume.id,
                snapshots: volume.snapshot_policy.into(),
                rekey: volume.rekey.map(desired_rekey),
            });
        }
    }
    Ok(DesiredContent {
        new_writes: if limits.capped {
            NewWrites::RefusedByCap
        } else {
            NewWrites::Allowed
        },
        volumes,
    })
}

/// Of which generation `content` is. An edge may have seen a newer one than is stored, after a restored backup: then it goes on from there.
fn generation(
    stored: Option<&EdgeStateRecord>,
    content: &DesiredContent,
    in_force: u64,
) -> Result<u64, Problem> {
    match stored {
        Some(stored) if stored.content == *content && stored.generation >= in_force => Ok(stored.generation),
        _ => stored
            .map_or(0, |stored| stored.generation)
            .max(in_force)
            .checked_add(1)
            .ok_or_else(|| Problem::field("state.in_force", "no generation comes after it")),
    }
}

/// Stores what an edge says of itself; gives the signed document if it should have another than the one in force.
///
/// # Errors
/// If the edge was removed or says too much; of another change if somebody was faster.
pub(super) async fn exchange(
    call: &Call,
    edge: EdgeId,
    observed: ObservedState,
) -> Result<Option<String>, Problem> {
    observed
        .check()
        .map_err(|field| Problem::field(&format!("state.{field}"), "beyond what the document allows"))?;
    let store = call.store()?;
    let sort = EdgeStateRecord::sort(edge);
    let stored = store.get::<EdgeStateRecord>(&sort).await?;
    let known = store.require::<EdgeRecord>(&EdgeRecord::sort(edge), edge).await?;
    require_active(&known)?;
    let content = wanted(&store, &known.record.edge).await?;
    let generation = generation(
        stored.as_ref().map(|stored| &stored.record),
        &content,
        observed.in_force,
    )?;
    let has_refused = observed
        .refused
        .as_ref()
        .is_some_and(|refused| refused.generation == Some(generation));
    let is_due = observed.in_force != generation && !has_refused;
    let document = is_due
        .then(|| sign(&call.app, call, edge, generation, &content))
        .transpose()?;
    let record = EdgeStateRecord {
        generation,
        content,
        observed,
        at: call.app.now(),
    };
    let write = Write::Put {
        key: store.key(&sort),
        value: encode(&record),
        condition: stored.map_or(Condition::Absent, |stored| Condition::Version(stored.version)),
    };
    store.table().transact(vec![write]).await?;
    Ok(document)
}

fn sign(
    app: &App,
    call: &Call,
    edge: EdgeId,
    generation: u64,
    content: &DesiredContent,
) -> Result<String, Problem> {
    let desired = DesiredState {
        format: FORMAT,
        service_version: env!("CARGO_PKG_VERSION").into(),
        tenant: call.context()?.tenant(),
        edge,
        generation,
        content: content.clone(),
    };
    Ok(desired.sign(app.authority()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Code;

    fn stored(generation: u64, new_writes: NewWrites) -> EdgeStateRecord {
        EdgeStateRecord {
            generation,
            content: DesiredContent {
                new_writes,
                volumes: Vec::new(),
            },
            observed: ObservedState::default(),
            at: UnixTime(0),
        }
    }

    #[test]
    fn a_generation_rises_with_what_is_wanted_and_goes_on_from_what_the_edge_has() {
        let (open, capped) = (
            DesiredContent::default(),
            stored(1, NewWrites::RefusedByCap).content,
        );
        let of = |stored: Option<&EdgeStateRecord>, content, in_force| generation(stored, content, in_force);
        assert_eq!(of(None, &open, 0), Ok(1));
        let third = stored(3, NewWrites::Allowed);
        assert_eq!(of(Some(&third), &open, 0), Ok(3));
        assert_eq!(of(Some(&third), &open, 3), Ok(3));
        assert_eq!(of(Some(&third), &capped, 3), Ok(4));
        // The service was restored to an earlier moment: what the edge has is of another content, for all that is known.
        assert_eq!(of(Some(&third), &open, 7), Ok(8));
        assert_eq!(of(None, &capped, 7), Ok(8));
        assert_eq!(of(None, &open, u64::MAX).unwrap_err().code, Code::InvalidField);
    }
}

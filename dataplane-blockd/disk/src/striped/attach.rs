//! Attaching a striped disk: fence all replicas, then make them equal where they may differ.

use super::{
    engine::{StripedConfig, StripedEngine},
    marks,
};
use crate::{
    mutants::Mutant,
    replicas::{AttachError, Copy, Replicas, Stored, settle},
    types::{Body, Incarnation, Unit, Version},
};
use futures::stream::{self, StreamExt, TryStreamExt};
use std::collections::BTreeSet;

/// Blocks compared at once: enough to keep some nodes busy through a round trip, a quarter of a mebibyte from each.
const RECONCILED_AT_ONCE: usize = 64;

/// A disk that was attached.
#[derive(Debug)]
pub struct Attached {
    /// The writer.
    pub engine: StripedEngine,
    /// Regions that were reconciled: none after a clean detach.
    pub reconciled_regions: u64,
}

/// Attaches as `incarnation`, which no attach had before. A crash at any point leaves all that the next attach needs.
///
/// # Errors
/// If replicas fail, or a later attach came first.
pub async fn attach(
    replicas: &dyn Replicas,
    incarnation: Incarnation,
    config: StripedConfig,
) -> Result<Attached, AttachError> {
    let planted = config.planted;
    if !planted.is(Mutant::SkipFence) {
        for path in 0..replicas.paths() {
            replicas.fence(path, incarnation).await?;
        }
    }
    let mut sequence = 0;
    let mut reconciled_regions = 0;
    for page in 0..marks::pages(config.blocks, config.region_blocks) {
        let (mut marked, mut readable) = (BTreeSet::new(), false);
        // A page that was under way may be on some replicas only, so every mark counts. One that is damaged there is
        // whole elsewhere.
        for copy in replicas.load_all(Unit::Intent(page)).await? {
            match copy {
                Copy::Holds(stored) => {
                    readable = true;
                    marked.extend(marks::decode(page, &stored.body));
                }
                Copy::Empty => readable = true,
                Copy::Damaged => {}
            }
        }
        if !readable {
            // Nobody can say what is marked, so all of it is.
            marked = marks::regions(page, config.blocks, config.region_blocks).collect();
        }
        for region in &marked {
            let first = region * config.region_blocks;
            if planted.is(Mutant::SkipReconciliation) {
                continue;
            }
            let from_first = planted.is(Mutant::ReconcileFromFirstReplica);
            let last = (first + config.region_blocks).min(config.blocks);
            stream::iter(first..last)
                .map(|block| reconcile(replicas, block, from_first))
                .buffer_unordered(RECONCILED_AT_ONCE)
                .try_collect::<()>()
                .await?;
        }
        if !marked.is_empty() {
            reconciled_regions += marked.len() as u64;
            sequence += 1;
            let version = Version {
                incarnation,
                sequence,
            };
            for path in 0..replicas.paths() {
                replicas
                    .store(path, Unit::Intent(page), version, Body::Zero)
                    .await?;
            }
        }
    }
    Ok(Attached {
        engine: StripedEngine::new(config, replicas.paths(), incarnation, sequence),
        reconciled_regions,
    })
}

async fn reconcile(replicas: &dyn Replicas, block: u64, from_first: bool) -> Result<(), AttachError> {
    let newest = |found: &[Option<Stored>]| {
        if from_first {
            return found.iter().flatten().next().cloned();
        }
        found
            .iter()
            .flatten()
            .max_by_key(|stored| stored.version)
            .cloned()
    };
    settle(replicas, Unit::Block(block), newest, true).await?;
    Ok(())
}

//! Attaching a striped disk: fence all replicas, then make them equal where they may differ.

use super::{
    engine::{StripedConfig, StripedEngine},
    marks,
};
use crate::{
    mutants::Mutant,
    replicas::{AttachError, ReplicaError, Replicas, Stored, settle},
    types::{Body, Incarnation, Unit, Version},
};
use std::collections::BTreeSet;

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
        for copy in 0..replicas.copies() {
            // A page that was under way may be on some replicas only, so every mark counts. One that is damaged there is
            // whole elsewhere.
            match replicas.load(copy, Unit::Intent(page)).await {
                Ok(stored) => {
                    readable = true;
                    if let Some(stored) = stored {
                        marked.extend(marks::decode(page, &stored.body));
                    }
                }
                Err(ReplicaError::Damaged { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !readable {
            // Nobody can say what is marked, so all of it is.
            marked = marks::regions(page, config.blocks, config.region_blocks).collect();
        }
        for region in &marked {
            let first = region * config.region_blocks;
            for block in first..(first + config.region_blocks).min(config.blocks) {
                if !planted.is(Mutant::SkipReconciliation) {
                    reconcile(replicas, block, planted.is(Mutant::ReconcileFromFirstReplica)).await?;
                }
            }
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

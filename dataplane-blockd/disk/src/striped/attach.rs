//! Attaching a striped disk: fence all replicas, then make them equal where they may differ.

use super::{
    dirty_region_log,
    engine::{StripedConfig, StripedEngine},
};
use crate::{
    replicas::{AttachError, Copy, Replicas, Stored, settle_found},
    types::{Body, Incarnation, Unit, Version},
};
use futures::stream::{self, StreamExt, TryStreamExt};
use std::{collections::BTreeSet, ops::Range};

/// Blocks that are compared together: 1 MiB of each copy, which are eight units of the stripe, on as many tracts.
const GROUP_BLOCKS: u64 = 256;
/// Such groups at once: enough to keep the arms of a large cluster busy, in 16 MiB of memory for each copy.
const GROUPS_AT_ONCE: usize = 16;

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
    if !firn_env::planted!("disk.skip_fence") {
        for path in 0..replicas.paths() {
            replicas.fence(path, incarnation).await?;
        }
    }
    let mut sequence = 0;
    let mut reconciled_regions = 0;
    for page in 0..dirty_region_log::pages(config.blocks, config.regions) {
        let (mut marked, mut readable) = (BTreeSet::new(), false);
        // A page that was under way may be on some replicas only, so every mark counts. One that is damaged there is
        // whole elsewhere.
        for copy in replicas.load_all(Unit::Intent(page)).await? {
            match copy {
                Copy::Holds(stored) => {
                    let newest = stored.version.incarnation;
                    if !incarnation.follows(newest) {
                        return Err(AttachError::Reused {
                            given: incarnation,
                            newest,
                        });
                    }
                    readable = true;
                    marked.extend(dirty_region_log::decode(page, &stored.body));
                }
                Copy::Empty => readable = true,
                Copy::Damaged | Copy::Joining => {}
            }
        }
        if !readable {
            // Nobody can say what is marked, so all of it is.
            marked = dirty_region_log::regions(page, config.blocks, config.regions).collect();
        }
        if !firn_env::planted!("disk.skip_reconciliation") {
            let from_first = firn_env::planted!("disk.reconcile_from_first_replica");
            let groups = marked.iter().flat_map(|region| {
                let first = region * config.regions.blocks;
                let last = (first + config.regions.blocks).min(config.blocks);
                let begins = (first..last).step_by(GROUP_BLOCKS as usize);
                begins.map(move |begin| begin..last.min(begin + GROUP_BLOCKS))
            });
            stream::iter(groups.collect::<Vec<_>>())
                .map(|blocks| reconcile(replicas, blocks, incarnation, from_first))
                .buffer_unordered(GROUPS_AT_ONCE)
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

/// Makes all replicas of blocks equal.
async fn reconcile(
    replicas: &dyn Replicas,
    blocks: Range<u64>,
    incarnation: Incarnation,
    from_first: bool,
) -> Result<(), AttachError> {
    let units: Vec<Unit> = blocks.map(Unit::Block).collect();
    let found = replicas.load_all_many(&units).await?;
    for (unit, copies) in units.into_iter().zip(found) {
        reconcile_one(replicas, unit, copies, incarnation, from_first).await?;
    }
    Ok(())
}

/// Makes all replicas of a block equal, joining ones included: of those nobody knows what they hold, so they are told in any case.
/// A change that only such a one had was never acknowledged, and would come back with it when it is active.
async fn reconcile_one(
    replicas: &dyn Replicas,
    unit: Unit,
    copies: Vec<Copy>,
    incarnation: Incarnation,
    from_first: bool,
) -> Result<(), AttachError> {
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
    let joins = copies.contains(&Copy::Joining);
    let chosen = settle_found(replicas, unit, copies, newest, true).await?;
    if chosen.is_none() && joins {
        let version = Version {
            incarnation,
            sequence: 0,
        };
        for path in 0..replicas.paths() {
            replicas.store(path, unit, version, Body::Zero).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::ReplicaError;
    use async_trait::async_trait;
    use futures::FutureExt;
    use std::sync::Mutex;

    /// One active replica and one that joins, reached by one path.
    struct OneJoins {
        held: Option<Stored>,
        told: Mutex<Vec<Body>>,
    }

    #[async_trait]
    impl Replicas for OneJoins {
        fn copies(&self) -> usize {
            1
        }

        async fn fence(&self, _path: usize, _incarnation: Incarnation) -> Result<(), ReplicaError> {
            Ok(())
        }

        async fn store(
            &self,
            _path: usize,
            _unit: Unit,
            _version: Version,
            body: Body,
        ) -> Result<(), ReplicaError> {
            self.told.lock().unwrap().push(body);
            Ok(())
        }

        async fn load(&self, _copy: usize, _unit: Unit) -> Result<Option<Stored>, ReplicaError> {
            Ok(self.held.clone())
        }

        async fn load_all(&self, _unit: Unit) -> Result<Vec<Copy>, ReplicaError> {
            let active = self.held.clone().map_or(Copy::Empty, Copy::Holds);
            Ok(vec![active, Copy::Joining])
        }
    }

    #[test]
    fn a_replica_that_joins_is_told_what_counts_whatever_it_holds() {
        let stored = Stored {
            version: Version {
                incarnation: Incarnation(6),
                sequence: 423,
            },
            body: Body::Data(vec![7; 4096].into()),
        };
        for (held, told) in [(Some(stored.clone()), stored.body), (None, Body::Zero)] {
            let replicas = OneJoins {
                held,
                told: Mutex::default(),
            };
            let done = reconcile(&replicas, 2..3, Incarnation(7), false).now_or_never();
            done.expect("nothing is waited for").unwrap();
            assert_eq!(*replicas.told.lock().unwrap(), [told]);
        }
    }
}

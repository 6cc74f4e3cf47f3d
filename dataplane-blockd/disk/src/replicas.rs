//! The seam between a virtual disk and the nodes that hold it.

use crate::types::{Body, Incarnation, Store, Unit, Version};
use async_trait::async_trait;
use std::ops::Range;

/// What a replica holds in a unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    /// As what it was written. It is authentic: sealed together with the content.
    pub version: Version,
    /// The content.
    pub body: Body,
}

/// Why a replica did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// It cannot be reached now; asking again is safe.
    #[error("replica {replica} cannot be reached: {why}")]
    Unreachable {
        /// Which.
        replica: usize,
        /// What the connection said.
        why: String,
    },
    /// What it holds is torn, rotten or forged.
    #[error("what replica {replica} holds in {unit:?} is damaged")]
    Damaged {
        /// Which.
        replica: usize,
        /// Where.
        unit: Unit,
    },
    /// A later attach owns the disk: nothing of this one will be done any more.
    #[error("the disk was attached elsewhere as attach {}; nothing written through this attach arrives any more", by.fence())]
    Fenced {
        /// The owner.
        by: Incarnation,
    },
}

/// All replicas of one disk, as one attach sees them. A unit is valid as a whole or not at all.
///
/// What is written goes by *paths*, what is read comes from *copies*. Where replicas are fixed, each copy has a path of its own,
/// and a unit is durable when every path has stored it. Where a table says which nodes hold a unit, there is one path: it has
/// stored a unit when all replicas of one version of its row have, which nobody can tell path by path.
#[async_trait]
pub trait Replicas: Send + Sync + 'static {
    /// How many copies can be read: one to three.
    fn copies(&self) -> usize;

    /// How many paths lead there: as many as copies, or one.
    fn paths(&self) -> usize {
        self.copies()
    }

    /// Makes this attach the owner of what lies behind a path, durably: whatever earlier ones still send is refused from now on.
    ///
    /// # Errors
    /// [`ReplicaError::Fenced`] if this or a later incarnation was seen there.
    async fn fence(&self, path: usize, incarnation: Incarnation) -> Result<(), ReplicaError>;

    /// Makes a unit durable behind a path, unless the same or a greater version is there already.
    ///
    /// # Errors
    /// If it cannot be reached, or is fenced; it may then be done or not, until it is.
    async fn store(&self, path: usize, unit: Unit, version: Version, body: Body) -> Result<(), ReplicaError>;

    /// Makes consecutive blocks in place read as zeroes, durably behind a path, as [`Replicas::store`] does with one.
    ///
    /// # Errors
    /// As of `store`; it may then be done for any of them.
    async fn zero(&self, path: usize, blocks: Range<u64>, version: Version) -> Result<(), ReplicaError> {
        for block in blocks {
            self.store(path, Unit::Block(block), version, Body::Zero).await?;
        }
        Ok(())
    }

    /// Which of these stores, made at one moment, travel together: positions in `stores`, each once.
    fn groups(&self, stores: &[&Store]) -> Vec<Vec<usize>> {
        (0..stores.len()).map(|at| vec![at]).collect()
    }

    /// Makes the stores of a group durable, each unit as [`Replicas::store`] does. A run is one store of many blocks.
    ///
    /// # Errors
    /// As of `store`; it may then be done for any unit of them.
    async fn store_group(&self, path: usize, group: &[Store]) -> Result<(), ReplicaError> {
        for store in group {
            for unit in store.units() {
                self.store(path, unit, store.version, store.body_of(unit)).await?;
            }
        }
        Ok(())
    }

    /// What one copy holds; nothing if it was never written.
    ///
    /// # Errors
    /// If it is damaged, cannot be reached, or is fenced.
    async fn load(&self, copy: usize, unit: Unit) -> Result<Option<Stored>, ReplicaError>;

    /// What a copy of a run of blocks in place holds, in parts that follow each other and cover it. Where neighbours lie together, one
    /// request serves many.
    async fn load_run(&self, copy: usize, blocks: Range<u64>) -> Vec<LoadedPart> {
        let mut parts = Vec::new();
        for block in blocks {
            let body = match self.load(copy, Unit::Block(block)).await {
                Ok(None) => Some(Body::Zero),
                Ok(Some(stored)) => Some(stored.body),
                Err(_) => None,
            };
            parts.push(LoadedPart { blocks: 1, body });
        }
        parts
    }

    /// What every copy holds; a copy that is damaged or joins says so in its place, joining ones at the end. Recovery asks for it, and must miss none: where a
    /// table names the copies, it may for a while name more of them than [`Replicas::copies`].
    ///
    /// # Errors
    /// If one cannot be reached, or is fenced.
    async fn load_all(&self, unit: Unit) -> Result<Vec<Copy>, ReplicaError> {
        let mut found = Vec::with_capacity(self.copies());
        for copy in 0..self.copies() {
            found.push(match self.load(copy, unit).await {
                Ok(None) => Copy::Empty,
                Ok(Some(stored)) => Copy::Holds(stored),
                Err(ReplicaError::Damaged { .. }) => Copy::Damaged,
                Err(error) => return Err(error),
            });
        }
        Ok(found)
    }

    /// The same of many units, in their order. Where neighbours lie together, one request of each copy serves many.
    ///
    /// # Errors
    /// As of `load_all`.
    async fn load_all_many(&self, units: &[Unit]) -> Result<Vec<Vec<Copy>>, ReplicaError> {
        let mut found = Vec::with_capacity(units.len());
        for unit in units {
            found.push(self.load_all(*unit).await?);
        }
        Ok(found)
    }
}

/// Consecutive blocks of a run as they were loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedPart {
    /// How many.
    pub blocks: u64,
    /// Their content, one behind the other; nothing if each must be loaded by itself, for whatever reason.
    pub body: Option<Body>,
}

/// What a copy of a unit turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copy {
    /// Never written.
    Empty,
    /// Torn, rotten or forged.
    Damaged,
    /// Of a replica that takes changes and is not read yet. What it holds may be newer than what counts: changes that the other
    /// replicas never had.
    Joining,
    /// This.
    Holds(Stored),
}

/// Why a disk could not be attached. Nothing was changed but fences, and copies completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// A replica failed.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// No replica has a valid checkpoint.
    #[error(
        "no replica has a valid checkpoint: the disk was never formatted, or its log is lost; restore a snapshot"
    )]
    NoCheckpoint,
    /// A checkpoint that is authentic but makes no sense.
    #[error("the checkpoint is authentic but malformed: it was written by a later version, or by a bug")]
    BadCheckpoint,
    /// The disk was attached under this fence, or a later one, before: the table gave it out again. Going on would seal other
    /// content under names that were used, and what nodes hold of the earlier attach would win over what this one writes.
    #[error(
        "the disk was attached as {} before, and the table gave out {}: it was restored from a backup. Nothing was written; attach \
         again, each attach is given the next number",
        newest.fence(), given.fence()
    )]
    Reused {
        /// This attach.
        given: Incarnation,
        /// The newest that left something.
        newest: Incarnation,
    },
}

/// Brings the newest valid copy of a unit to all replicas, and returns it.
pub(crate) async fn settle(
    replicas: &dyn Replicas,
    unit: Unit,
    pick: impl Fn(&[Option<Stored>]) -> Option<Stored>,
    copy: bool,
) -> Result<Option<Stored>, ReplicaError> {
    let copies = replicas.load_all(unit).await?;
    settle_found(replicas, unit, copies, pick, copy).await
}

/// The same of copies that were loaded.
pub(crate) async fn settle_found(
    replicas: &dyn Replicas,
    unit: Unit,
    copies: Vec<Copy>,
    pick: impl Fn(&[Option<Stored>]) -> Option<Stored>,
    copy: bool,
) -> Result<Option<Stored>, ReplicaError> {
    let found: Vec<Option<Stored>> = copies
        .into_iter()
        .map(|copy| match copy {
            Copy::Holds(stored) => Some(stored),
            Copy::Empty | Copy::Damaged | Copy::Joining => None,
        })
        .collect();
    let Some(chosen) = pick(&found) else {
        return Ok(None);
    };
    if copy {
        let has = |copy: &Option<Stored>| copy.as_ref() == Some(&chosen);
        let (paths, everywhere) = (replicas.paths(), found.iter().all(has));
        for path in 0..paths {
            let there = if paths == found.len() {
                has(&found[path])
            } else {
                everywhere
            };
            if !there {
                replicas
                    .store(path, unit, chosen.version, chosen.body.clone())
                    .await?;
            }
        }
    }
    Ok(Some(chosen))
}

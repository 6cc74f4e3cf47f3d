//! Replicas in memory, with what can go wrong on real ones.

use async_trait::async_trait;
use firn_blockd_disk::{Body, Incarnation, ReplicaError, Replicas, Stored, Unit, Version};
use std::{
    collections::BTreeMap,
    future::pending,
    sync::{Arc, Mutex, MutexGuard},
};

/// What is left of the store at which the power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It never arrived.
    Lost,
    /// It is durable, though nobody was told.
    Applied,
    /// A part of it arrived: the unit is no longer valid. Only of units larger than what a node writes as one.
    Torn,
}

/// All replicas of one disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct World {
    units: Vec<BTreeMap<Unit, Option<Stored>>>,
    fences: Vec<Incarnation>,
}

/// Whether a unit can be torn: larger than the 4 KiB that a node replaces as one.
pub fn is_large(unit: Unit) -> bool {
    matches!(unit, Unit::Log(_) | Unit::Checkpoint(_))
}

impl World {
    /// Empty replicas.
    pub fn new(replicas: usize) -> Self {
        Self {
            units: vec![BTreeMap::new(); replicas],
            fences: vec![Incarnation(0); replicas],
        }
    }

    /// How many.
    pub fn replicas(&self) -> usize {
        self.units.len()
    }

    /// A store arrives from an attach. Refused if a later attach has fenced the replica.
    pub fn apply(
        &mut self,
        by: Incarnation,
        replica: usize,
        unit: Unit,
        version: Version,
        body: &Body,
        fate: Fate,
    ) -> bool {
        if by < self.fences[replica] {
            return false;
        }
        if fate == Fate::Lost
            || self
                .load(replica, unit)
                .is_some_and(|held| held.version >= version)
        {
            return true;
        }
        if fate == Fate::Torn && !is_large(unit) {
            return true;
        }
        let held = self.units[replica].entry(unit).or_default();
        *held = (fate == Fate::Applied).then(|| Stored {
            version,
            body: body.clone(),
        });
        true
    }

    /// What a replica has.
    pub fn load(&self, replica: usize, unit: Unit) -> Option<&Stored> {
        self.units[replica].get(&unit).and_then(Option::as_ref)
    }

    /// Units that a replica has or had, in order.
    pub fn units(&self, replica: usize) -> Vec<Unit> {
        self.units[replica].keys().copied().collect()
    }

    /// A unit becomes unreadable.
    pub fn rot(&mut self, replica: usize, unit: Unit) {
        self.units[replica].insert(unit, None);
    }
}

/// A world as one attach sees it, which may lose its power after some more steps.
pub struct Attach {
    world: Arc<Mutex<World>>,
    incarnation: Incarnation,
    left: Mutex<Option<u64>>,
    last: Fate,
}

impl Attach {
    /// With power for `left` steps (for ever if none); `last` is what becomes of the store at which it ends.
    pub fn new(world: Arc<Mutex<World>>, incarnation: Incarnation, left: Option<u64>, last: Fate) -> Self {
        Self {
            world,
            incarnation,
            left: Mutex::new(left),
            last,
        }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no panic under this lock")
    }

    /// Whether the power lasts for this step.
    fn step(&self) -> bool {
        let mut left = self.left.lock().expect("no panic under this lock");
        match left.as_mut() {
            None => true,
            Some(0) => false,
            Some(steps) => {
                *steps -= 1;
                true
            }
        }
    }
}

#[async_trait]
impl Replicas for Attach {
    fn copies(&self) -> usize {
        self.world().replicas()
    }

    async fn fence(&self, replica: usize, incarnation: Incarnation) -> Result<(), ReplicaError> {
        if !self.step() {
            return pending().await;
        }
        let mut world = self.world();
        let by = world.fences[replica];
        if incarnation <= by {
            return Err(ReplicaError::Fenced { by });
        }
        world.fences[replica] = incarnation;
        Ok(())
    }

    async fn store(
        &self,
        replica: usize,
        unit: Unit,
        version: Version,
        body: Body,
    ) -> Result<(), ReplicaError> {
        let alive = self.step();
        let fate = if alive { Fate::Applied } else { self.last };
        let accepted = self
            .world()
            .apply(self.incarnation, replica, unit, version, &body, fate);
        if !alive {
            return pending().await;
        }
        if accepted {
            return Ok(());
        }
        let by = self.world().fences[replica];
        Err(ReplicaError::Fenced { by })
    }

    async fn load(&self, replica: usize, unit: Unit) -> Result<Option<Stored>, ReplicaError> {
        if !self.step() {
            return pending().await;
        }
        match self.world().units[replica].get(&unit) {
            None => Ok(None),
            Some(Some(stored)) => Ok(Some(stored.clone())),
            Some(None) => Err(ReplicaError::Damaged { replica, unit }),
        }
    }
}

//! Histories against an engine with one guard taken out: each must be caught, or the histories prove nothing.

use crate::{
    engine::Engine,
    runner::{Plan, run_many},
};
use firn_anchor::mutants::Mutant as AnchorMutant;
use firn_cleaner::mutants::Mutant as CleanerMutant;
use firn_volume::mutants::Mutant;
use std::sync::Arc;

/// Seeds within which each must be caught.
pub const SEEDS_MAX: u64 = 500;

/// One guard taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Of the engine.
    Volume(Mutant),
    /// Of the anchor.
    Anchor(AnchorMutant),
    /// Of the cleaners.
    Cleaner(CleanerMutant),
}

impl Planted {
    /// All that histories of whole edges must catch. Two of the engine's bugs show only where a history is steered to them,
    /// and are caught by the engine's own tests; most of the anchor's by the anchor's own histories.
    pub fn all() -> Vec<Self> {
        let elsewhere = [
            Mutant::TrimOneRecordEarly,
            Mutant::TrustTheDiskCache,
            // These need a cleaner that means harm; `crates/volume/tests/engine/cleaning.rs` has one.
            Mutant::MergeAnyBase,
            Mutant::MergeDifferentUids,
            Mutant::MergeUnverified,
            Mutant::ForwardUnverified,
        ];
        let volume = Mutant::ALL
            .into_iter()
            .filter(|mutant| !elsewhere.contains(mutant))
            .map(Self::Volume);
        let anchor = [AnchorMutant::CommitWithoutFence, AnchorMutant::TakeoverDropsRoot];
        // The cleaner's own histories (`crates/cleaner/tests/simulation.rs`) are steered to the others and catch all of them.
        let cleaner = [
            CleanerMutant::DeleteWithoutGrace,
            CleanerMutant::NoForwardingRecord,
            CleanerMutant::IgnoreSnapshots,
            CleanerMutant::ForgetOneObject,
            CleanerMutant::OrphansByAge,
            CleanerMutant::PruneAtOnce,
            CleanerMutant::JudgeUncommitted,
        ];
        volume
            .chain(anchor.into_iter().map(Self::Anchor))
            .chain(cleaner.into_iter().map(Self::Cleaner))
            .collect()
    }

    /// Its name.
    pub fn name(self) -> String {
        match self {
            Self::Volume(mutant) => mutant.name().to_owned(),
            Self::Anchor(bug) => format!("anchor: {}", bug.name()),
            Self::Cleaner(bug) => format!("cleaner: {}", bug.name()),
        }
    }

    /// The first seed that catches it, and by what.
    pub fn caught(self, threads: usize) -> Option<(u64, String)> {
        let build = move |simulation: &firn_env::sim::Simulation, random: &mut firn_env::sim::Seeded| {
            let (volume, anchor, cleaner) = match self {
                Self::Volume(mutant) => (Some(mutant), None, None),
                Self::Anchor(bug) => (None, Some(bug), None),
                Self::Cleaner(bug) => (None, None, Some(bug)),
            };
            Arc::new(Engine::new(simulation, random).with_planted(volume, anchor, cleaner))
                as Arc<dyn crate::system::System>
        };
        let plan = Plan {
            first: 0,
            count: SEEDS_MAX,
            threads,
            stop_at_failure: true,
        };
        let summary = run_many(&build, plan);
        let (seed, failures) = summary.failed.into_iter().next()?;
        Some((seed, failures.into_iter().next().unwrap_or_default()))
    }
}

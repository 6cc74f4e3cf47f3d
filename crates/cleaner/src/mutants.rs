//! Planted bugs: guards of the cleaner that can be taken out on purpose, one at a time.
//!
//! The simulation in `tests/` must notice each of them; otherwise it proves nothing. Without the cargo feature `mutants` the
//! question [`active`] is the constant `false`, and the broken branch is not in the build.

use firn_env::Env;

/// A guard that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// A segment is deleted as soon as it is retired.
    DeleteWithoutGrace,
    /// Objects are moved and nobody is told where to.
    NoForwardingRecord,
    /// What only a snapshot needs is taken for dead.
    IgnoreSnapshots,
    /// Only the first volume of the family is asked what it needs.
    IgnoreClones,
    /// What only a root retained at a takeover needs is taken for dead.
    IgnoreRetainedRoots,
    /// The proposal names the newest root, whatever was relocated.
    ProposeOnAnotherBase,
    /// Moved bytes are not compared with their hash.
    SkipVerification,
    /// A segment is retired although one of its live objects was not moved.
    ForgetOneObject,
    /// A segment that no root refers to is garbage once it is a minute old.
    OrphansByAge,
    /// The sweep goes on behind segments it has not looked at.
    CursorSkips,
    /// What a cleaner decided is written although another retired segments meanwhile.
    RetireWithoutRound,
    /// A forwarding record goes as soon as its segment is deleted.
    PruneAtOnce,
    /// Objects newer than the head are judged like the others.
    JudgeUncommitted,
}

impl Mutant {
    /// Every mutant of this crate.
    pub const ALL: [Self; 13] = [
        Self::DeleteWithoutGrace,
        Self::NoForwardingRecord,
        Self::IgnoreSnapshots,
        Self::IgnoreClones,
        Self::IgnoreRetainedRoots,
        Self::ProposeOnAnotherBase,
        Self::SkipVerification,
        Self::ForgetOneObject,
        Self::OrphansByAge,
        Self::CursorSkips,
        Self::RetireWithoutRound,
        Self::PruneAtOnce,
        Self::JudgeUncommitted,
    ];

    /// The name used on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeleteWithoutGrace => "delete_without_grace",
            Self::NoForwardingRecord => "no_forwarding_record",
            Self::IgnoreSnapshots => "ignore_snapshots",
            Self::IgnoreClones => "ignore_clones",
            Self::IgnoreRetainedRoots => "ignore_retained_roots",
            Self::ProposeOnAnotherBase => "propose_on_another_base",
            Self::SkipVerification => "skip_verification",
            Self::ForgetOneObject => "forget_one_object",
            Self::OrphansByAge => "orphans_by_age",
            Self::CursorSkips => "cursor_skips",
            Self::RetireWithoutRound => "retire_without_round",
            Self::PruneAtOnce => "prune_at_once",
            Self::JudgeUncommitted => "judge_uncommitted",
        }
    }

    /// The mutant of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mutant| mutant.name() == name)
    }
}

/// Whether `mutant` is planted in this environment ([`firn_env::FaultPoints::plant`]).
#[cfg(feature = "mutants")]
pub fn active(env: &Env, mutant: Mutant) -> bool {
    env.is_planted(mutant.name())
}

/// Whether `mutant` is planted: never, in this build.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn active(_env: &Env, _mutant: Mutant) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::Mutant;

    #[test]
    fn every_mutant_is_found_by_its_name() {
        for mutant in Mutant::ALL {
            assert_eq!(Mutant::from_name(mutant.name()), Some(mutant));
        }
        assert_eq!(Mutant::from_name("no_such_bug"), None);
    }
}

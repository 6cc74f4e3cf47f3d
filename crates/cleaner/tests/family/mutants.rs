//! The planted bugs that the histories must notice; otherwise they prove nothing.

/// Each by its name, with what it does.
pub const MUTANTS: [&str; 13] = [
    // A segment is deleted as soon as it is retired.
    "cleaner.delete_without_grace",
    // Objects are moved and nobody is told where to.
    "cleaner.no_forwarding_record",
    // What only a snapshot needs is taken for dead.
    "cleaner.ignore_snapshots",
    // Only the first volume of the family is asked what it needs.
    "cleaner.ignore_clones",
    // What only a root retained at a takeover needs is taken for dead.
    "cleaner.ignore_retained_roots",
    // The proposal names the newest root, whatever was relocated.
    "cleaner.propose_on_another_base",
    // Moved bytes are not compared with their hash.
    "cleaner.skip_verification",
    // A segment is retired although one of its live objects was not moved.
    "cleaner.forget_one_object",
    // A segment that no root refers to is garbage once it is a minute old.
    "cleaner.orphans_by_age",
    // The sweep goes on behind segments it has not looked at.
    "cleaner.cursor_skips",
    // What a cleaner decided is written although another retired segments meanwhile.
    "cleaner.retire_without_round",
    // A forwarding record goes as soon as its segment is deleted.
    "cleaner.prune_at_once",
    // Objects newer than the head are judged like the others.
    "cleaner.judge_uncommitted",
];

/// Those that the histories with a second store must notice.
pub const REPAIR_MUTANTS: [&str; 7] = [
    // Nothing is read from the second store.
    "cleaner.repair_from_the_first_alone",
    // Moved bytes are not compared with their hash: what is damaged in the second store as well is written anew.
    "cleaner.skip_verification",
    // What only a snapshot needs is not written anew.
    "cleaner.ignore_snapshots",
    // Objects are written anew and nobody is told where.
    "cleaner.no_forwarding_record",
    // A lost segment is retired although one of its live objects was not moved.
    "cleaner.forget_one_object",
    // A segment that was retired meanwhile is judged and retired once more.
    "cleaner.repair_of_a_retired_segment",
    // What the first store does not have is deleted from the second, whoever removed it.
    "mirror.absent_is_unneeded",
];

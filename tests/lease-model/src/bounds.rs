//! The bounds within which everything is tried: for each change, each week, and for each planted bug.

use crate::{Bounds, Bug, Kind, Limits};

/// Without an end but that of the histories, or of a memory of 8 GiB.
const ALL: Limits = Limits {
    depth: usize::MAX,
    states: 12_000_000,
};

const NOTHING: Bounds = Bounds {
    name: "",
    kinds: &[Kind::Write],
    operations: 2,
    crashes: 0,
    partitions: 0,
    losses: 0,
    departures: 0,
    returns: 0,
    has_newcomer: false,
    limits: ALL,
};

/// What every change runs.
pub const SMALL: &[Bounds] = &[
    Bounds {
        name: "writes",
        operations: 3,
        ..NOTHING
    },
    Bounds {
        name: "links",
        kinds: &[Kind::Pair],
        operations: 3,
        ..NOTHING
    },
    Bounds {
        name: "renames",
        kinds: &[Kind::Move],
        ..NOTHING
    },
    Bounds {
        name: "unstable",
        kinds: &[Kind::Unstable, Kind::Write],
        crashes: 1,
        ..NOTHING
    },
    Bounds {
        name: "losses",
        losses: 2,
        ..NOTHING
    },
    Bounds {
        name: "crashes",
        crashes: 1,
        losses: 1,
        ..NOTHING
    },
    Bounds {
        name: "partitions",
        partitions: 1,
        returns: 1,
        ..NOTHING
    },
    Bounds {
        name: "departures",
        departures: 1,
        returns: 1,
        losses: 1,
        ..NOTHING
    },
    Bounds {
        name: "newcomer",
        has_newcomer: true,
        returns: 1,
        ..NOTHING
    },
];

/// What every week runs.
pub const LARGE: &[Bounds] = &[
    Bounds {
        name: "all-faults",
        partitions: 1,
        crashes: 1,
        losses: 1,
        departures: 1,
        returns: 1,
        ..NOTHING
    },
    Bounds {
        name: "everything",
        kinds: &[Kind::Pair, Kind::Move, Kind::Unstable],
        partitions: 1,
        losses: 1,
        returns: 1,
        ..NOTHING
    },
    Bounds {
        name: "three-partition",
        operations: 3,
        partitions: 1,
        ..NOTHING
    },
    Bounds {
        name: "three-links",
        kinds: &[Kind::Write, Kind::Pair],
        operations: 3,
        partitions: 1,
        ..NOTHING
    },
    Bounds {
        name: "three-renames",
        kinds: &[Kind::Move],
        operations: 3,
        ..NOTHING
    },
    Bounds {
        name: "three-newcomer",
        operations: 3,
        partitions: 1,
        has_newcomer: true,
        ..NOTHING
    },
    Bounds {
        name: "three-returns",
        operations: 3,
        partitions: 1,
        returns: 1,
        ..NOTHING
    },
    Bounds {
        name: "two-crashes",
        crashes: 2,
        partitions: 1,
        ..NOTHING
    },
    Bounds {
        name: "two-partitions",
        partitions: 2,
        returns: 1,
        ..NOTHING
    },
    Bounds {
        name: "four-writes",
        operations: 4,
        ..NOTHING
    },
];

/// Where a bug is looked for.
pub fn hunt(bug: Bug) -> Bounds {
    let two = |name, kinds| Bounds {
        name,
        kinds,
        ..NOTHING
    };
    match bug {
        Bug::UseBeforeAdoption
        | Bug::RootReadBeforeLease
        | Bug::GiveBeforePublish
        | Bug::RebaseWithoutAdoption
        | Bug::ReadJoinsEarlier => Bounds {
            operations: 3,
            ..two("writes", &[Kind::Write])
        },
        Bug::NoLeafCheck | Bug::LostByArenasAlone => Bounds {
            partitions: 1,
            returns: 1,
            ..two("returns", &[Kind::Write])
        },
        Bug::RenameWithoutShape => two("renames", &[Kind::Move]),
        Bug::ShapeNeverLost => Bounds {
            partitions: 1,
            ..two("renames", &[Kind::Move])
        },
        Bug::CommitIdOnlyInRoot | Bug::DoubtWithoutFence => Bounds {
            losses: 1,
            ..two("losses", &[Kind::Write])
        },
        Bug::GiftWithoutOwnRecord => Bounds {
            crashes: 1,
            ..two("crashes", &[Kind::Write])
        },
        Bug::GiftInDoubtWithoutFence => Bounds {
            losses: 1,
            ..two("losses", &[Kind::Write])
        },
        Bug::BeatCountsFromReply
        | Bug::ReadsByLapsedLease
        | Bug::BreakOnAnyVersion
        | Bug::BreakWithoutRetaining => Bounds {
            partitions: 1,
            ..two("partitions", &[Kind::Write])
        },
        Bug::TakeOnAnyVersion | Bug::ArenasBeforePresence => Bounds {
            departures: 1,
            operations: 3,
            ..two("departures", &[Kind::Write])
        },
        Bug::TakeFromNobodyOnAnyRecord => Bounds {
            has_newcomer: true,
            ..two("newcomer", &[Kind::Write])
        },
        Bug::TaintedReplayedAlone => Bounds {
            partitions: 1,
            operations: 3,
            ..two("links", &[Kind::Write, Kind::Pair])
        },
        Bug::VerifierKept => Bounds {
            partitions: 1,
            ..two("unstable", &[Kind::Write, Kind::Unstable])
        },
        Bug::PinsInAnyOrder => two("links", &[Kind::Pair]),
        Bug::MergeBelowUnheld => two("relocations", &[Kind::Write, Kind::Relocate]),
    }
}

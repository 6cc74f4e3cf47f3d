//! The planted bugs that the histories must find; without them they prove nothing.

/// Each by its name, with what it does.
pub(super) const MUTANTS: [&str; 19] = [
    // A batch that partly overlaps what was received is taken as wholly new.
    "billing.overlap_is_new",
    // What was overtaken counts as received.
    "billing.reordered_is_lost",
    // The sender is told that its batch is received before it is.
    "billing.acknowledge_first",
    // A table that does not answer is taken for one that did.
    "billing.doubt_is_success",
    // Two records under one name are not noticed.
    "billing.nothing_contradicts",
    // A gap is never reported.
    "billing.gaps_are_forgotten",
    // Anybody may report as anybody, of anybody.
    "billing.any_source",
    // A chunk's marker stays, now and then, when it was added to the hours.
    "billing.marker_stays",
    // Quantities are cut to 32 bits.
    "billing.quantity_is_32_bits",
    // An edge's own counts are charged.
    "billing.advisory_is_charged",
    // The fold does not check whether a month was closed meanwhile.
    "billing.close_is_not_checked",
    // Late usage is added to the month it belongs to, closed or not.
    "billing.late_edits_the_past",
    // A credit that is granted twice counts twice.
    "billing.credits_repeat",
    // A head moves to its shard and nothing says so where it was.
    "billing.moves_without_a_trace",
    // Markers in shards are not looked for.
    "billing.shards_are_not_folded",
    // Two groups of one round fold the same tenant.
    "billing.tenants_are_not_parted",
    // Of two folds that add to one hour the later one puts its sum over the other's.
    "billing.hours_are_not_compared",
    // A chunk's marker is removed before its records are in the hours.
    "billing.markers_go_first",
    // Each hour is priced and rounded by itself.
    "billing.round_each_hour",
];

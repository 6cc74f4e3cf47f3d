//! The planted bugs that the histories must find; without them they prove nothing.

/// Each by its name, with what it does.
pub(super) const MUTANTS: [&str; 8] = [
    // Appended records are acknowledged before the sync.
    "usage.acknowledge_before_sync",
    // Records may be sent before the sync, so that a number is given twice after a crash.
    "usage.send_before_sync",
    // What is found at the start is taken for durable.
    "usage.skip_sync_at_open",
    // The name of a new file is not made durable.
    "usage.skip_directory_sync",
    // A file is removed once its records were sent, received or not.
    "usage.remove_before_receipt",
    // An unavailable receiver is taken for a receipt.
    "usage.doubt_is_receipt",
    // Each start begins a new incarnation, under which old records are sent again.
    "usage.incarnation_anew",
    // The last file is removed too when all was delivered, and the numbers begin anew.
    "usage.forget_sequence",
];

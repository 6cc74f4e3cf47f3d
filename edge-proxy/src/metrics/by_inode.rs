//! Figures of a volume that is written beside other edges, as Prometheus is told them.

use super::families::Families;
use crate::by_inode::ByInodePart;

pub(super) fn expose(out: &mut Families, by_inode: &ByInodePart) {
    // As of a volume that offices own by turns, so that one alert does for both.
    out.gauge(
        "shared_lapsed",
        "1 while no heartbeat of this owner reaches the anchor and clients wait.",
        !by_inode.lease_holds,
    );
    out.gauge(
        "members_version",
        "The version of the root in memory.",
        by_inode.version,
    );
    out.gauge(
        "members_leases_held",
        "Leases that this office holds beside its home, as it saw them last.",
        by_inode.leases_held,
    );
    out.gauge(
        "members_leases_wanted",
        "Of what this office holds, that for which others wait.",
        by_inode.leases_wanted,
    );
    out.counter(
        "members_root_reads_total",
        "Reads of the root for clients that read what other offices may have changed.",
        by_inode.root_reads,
    );
    out.counter(
        "members_lease_waits_total",
        "Changes that had to get a lease first.",
        by_inode.lease_waits,
    );
    out.counter(
        "members_lease_wait_seconds_total",
        "How long they waited for it, all together.",
        by_inode.waits_ms as f64 / 1e3,
    );
    out.gauge(
        "members_unpublished_bytes",
        "About how much of what was changed here other offices do not see yet.",
        by_inode.unpublished_bytes,
    );
    out.gauge(
        "members_unpublished_limit_bytes",
        "How much may be unpublished: what the uplink takes in recall_within.",
        by_inode.unpublished_limit_bytes,
    );
    out.gauge(
        "members_uplink_bytes_per_second",
        "What the uplink takes, as measured by uploads.",
        by_inode.uplink_bytes_per_second,
    );
    out.counter(
        "members_uplink_waits_total",
        "Changes that waited for the uplink.",
        by_inode.uplink_waits,
    );
    out.gauge(
        "members_locks_decided",
        "1 while this office decides about locks for all offices.",
        by_inode.decides_locks,
    );
    out.counter(
        "members_lock_terms_total",
        "Times that this office got to decide about locks.",
        by_inode.lock_terms,
    );
    out.counter(
        "members_lock_breaks_total",
        "Offices that were gone, whose locks were broken here.",
        by_inode.lock_breaks,
    );
    out.counter(
        "members_locks_lost_total",
        "Locks of clients here that were broken.",
        by_inode.locks_lost,
    );
}

//! Figures of calls that are answered once what they changed is in the cloud, as Prometheus is told them.

use super::families::Families;
use crate::durability::LevelTwoPart;

/// `None`: the volume answers nothing at level 2. Whether the cloud is away is told all the same, so that one alert does for all edges.
pub(super) fn expose(out: &mut Families, level_two: Option<&LevelTwoPart>) {
    out.gauge(
        "level_two_away",
        "1 while the cloud takes nothing of what calls wait for.",
        level_two.is_some_and(|level_two| level_two.away_ms.is_some()),
    );
    let Some(level_two) = level_two else { return };
    out.gauge(
        "level_two_waiting",
        "Calls that wait until what they changed is in the cloud.",
        level_two.waiting,
    );
    out.counter(
        "level_two_answered_total",
        "Calls that waited for the cloud and were answered.",
        level_two.answered,
    );
    out.counter(
        "level_two_commits_total",
        "Commits that answered at least one of them.",
        level_two.commits,
    );
    out.gauge(
        "level_two_group_max",
        "The most calls that one commit answered.",
        level_two.largest_group,
    );
    out.counter(
        "level_two_wait_seconds_total",
        "How long the answered ones waited, all together.",
        level_two.waited_ms as f64 / 1e3,
    );
    out.counter(
        "level_two_refused_total",
        "Calls that were told to try again, or failed, since the cloud was away.",
        level_two.refused,
    );
    out.counter(
        "level_two_accepted_total",
        "Calls that were answered by the journal alone, since the cloud was away.",
        level_two.accepted,
    );
}

//! Figures of the second store, as Prometheus is told them. Without one, those are told that alerts are made of, so that a rule finds its figure.

use super::families::Families;
use crate::second::SecondPart;

pub(super) fn expose(out: &mut Families, second: Option<&SecondPart>) {
    let is = |state: &str| second.is_some_and(|second| second.state == state);
    out.gauge(
        "second_store_behind_seconds",
        "Age of the oldest member that the second store does not have yet; 0 if it has all, or there is none.",
        second.map_or(0.0, |second| second.behind_ms as f64 / 1e3),
    );
    out.gauge(
        "second_store_alias",
        "1 if the second store is the first under another name: nothing is mirrored.",
        is("alias"),
    );
    out.gauge(
        "second_store_lost_segments",
        "Segments that the first store lost or altered, that the second has, and that were not repaired yet.",
        second.map_or(0, |second| second.lost_segments.max(second.segments_read)),
    );
    out.gauge(
        "second_store_parity_broken",
        "Parity groups that cannot be changed: damaged, of a newer version, or with more losses than they make up for.",
        second
            .and_then(|second| second.parity.as_ref())
            .map_or(0, |parity| parity.broken),
    );
    let Some(second) = second else { return };
    out.gauge(
        "second_store_backlog_objects",
        "Members that wait for their copy in the second store.",
        second.backlog_objects,
    );
    out.gauge(
        "second_store_backlog_bytes",
        "Bytes of members that wait for their copy in the second store.",
        second.backlog_bytes,
    );
    out.gauge(
        "second_store_refusing",
        "1 if the second store does not take what is put: it is away, full, or read-only.",
        is("refusing") || is("unchecked"),
    );
    out.gauge(
        "second_store_compared_timestamp_seconds",
        "When both stores were last compared; 0 if not since the start.",
        second.compared_at_ms.unwrap_or(0) as f64 / 1e3,
    );
    out.gauge(
        "second_store_damaged",
        "Members that are damaged in the second store, or in the first with no copy.",
        second.damaged,
    );
    out.counter(
        "second_store_copied_bytes_total",
        "Bytes copied into the second store.",
        second.copied_bytes,
    );
    out.counter(
        "second_store_deleted_objects_total",
        "Members deleted from the second store, keep_deleted after the first.",
        second.deleted_objects,
    );
    out.counter(
        "second_store_reads_total",
        "Objects that the first store had lost and readers had from the second.",
        second.reads_answered,
    );
    out.counter(
        "second_store_requests_total",
        "Requests sent to the second store.",
        second.requests,
    );
    out.counter(
        "second_store_dollars_total",
        "What the second store's requests and transfers cost at list prices.",
        second.nanodollars as f64 / 1e9,
    );
    let Some(parity) = &second.parity else { return };
    out.gauge(
        "second_store_parity_members",
        "Segments in parity groups of the second store.",
        parity.members,
    );
    out.gauge(
        "second_store_parity_member_bytes",
        "Bytes of the segments in parity groups.",
        parity.member_bytes,
    );
    out.gauge(
        "second_store_parity_bytes",
        "Bytes of parities and group objects in the second store.",
        parity.parity_bytes,
    );
    out.gauge(
        "second_store_parity_waiting",
        "Cold segments that are in no parity group yet.",
        parity.waiting,
    );
    out.gauge(
        "second_store_parity_held",
        "Members of parity groups whose deletion waits until their group is written without them.",
        parity.held,
    );
    out.gauge(
        "second_store_parity_absent",
        "Members of parity groups that are in neither store and were not repaired yet.",
        parity.absent,
    );
    let hold = parity.hold.clone().unwrap_or_default();
    out.gauge(
        "second_store_parity_without_copy",
        "Members of parity groups that the first store alone has.",
        hold.without_copy,
    );
    out.gauge(
        "second_store_parity_without_copy_bytes",
        "Bytes of the members of parity groups that the first store alone has.",
        hold.without_copy_bytes,
    );
    out.gauge(
        "second_store_parity_copies_to_drop",
        "Members of parity groups whose copy is to go and did not yet.",
        hold.copies_to_drop,
    );
    out.gauge(
        "second_store_parity_hold_segments",
        "Retired segments that wait in the first store until their parity groups are written without them.",
        hold.retired,
    );
    out.gauge(
        "second_store_parity_hold_bytes",
        "Bytes of the retired segments that wait for parity groups.",
        hold.retired_bytes,
    );
    out.gauge(
        "second_store_parity_hold_since_timestamp_seconds",
        "Since when the oldest retired segment waits for parity groups; 0 if none does.",
        hold.retired_since_ms.unwrap_or(0) as f64 / 1e3,
    );
    out.counter(
        "second_store_parity_rows_restored_total",
        "Rows of 64 KiB that were computed from parity groups.",
        parity.rows_restored,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::second::ParityPart;
    use firn_metrics::Metrics;

    fn told(second: Option<SecondPart>) -> String {
        let metrics = Metrics::new("firn", move |out| {
            let mut families = Families::default();
            expose(&mut families, second.as_ref());
            families.expose(out);
        });
        metrics.text()
    }

    fn value(told: &str, figure: &str) -> Option<f64> {
        let name = format!("firn_second_store_{figure} ");
        told.lines()
            .find_map(|line| line.strip_prefix(&name)?.parse().ok())
    }

    #[test]
    fn what_alerts_are_made_of_is_there_without_a_second_store_too() {
        let alerts = include_str!("../../../infra/prometheus/edge-alerts.yaml");
        let mut asked_for = 0;
        for rest in alerts.split("firn_second_store_").skip(1) {
            let end = rest.find(|letter: char| letter != '_' && !letter.is_ascii_alphanumeric());
            let figure = &rest[..end.unwrap_or(rest.len())];
            assert_eq!(value(&told(None), figure), Some(0.0), "{figure}");
            asked_for += 1;
        }
        assert!(asked_for > 3, "{asked_for}");
        assert_eq!(value(&told(None), "refusing"), None);
        let sick = told(Some(SecondPart {
            state: "alias".into(),
            lost_segments: 3,
            behind_ms: 1500,
            parity: Some(ParityPart {
                held: 2,
                ..ParityPart::default()
            }),
            ..SecondPart::default()
        }));
        for (figure, expected) in [
            ("alias", 1.0),
            ("lost_segments", 3.0),
            ("behind_seconds", 1.5),
            ("refusing", 0.0),
            ("parity_held", 2.0),
            ("parity_broken", 0.0),
        ] {
            assert_eq!(value(&sick, figure), Some(expected), "{figure}: {sick}");
        }
    }
}

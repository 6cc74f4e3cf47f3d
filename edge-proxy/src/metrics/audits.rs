//! Figures of audits, as Prometheus is told them: those of the last one outlive a restart, as what is kept of it does.

use super::families::Families;
use crate::auditor::AuditPart;
use firn_audit_report::Outcome;

pub(super) fn expose(out: &mut Families, audit: &AuditPart) {
    let seconds = |ms: Option<i64>| ms.unwrap_or(0) as f64 / 1e3;
    let last = audit.last.as_ref();
    let is = |outcome| last.is_some_and(|last| last.outcome == outcome);
    out.gauge(
        "audit_every_seconds",
        "How often the edge audits the volume; 0: only when somebody asks.",
        audit.every_ms.unwrap_or(0) as f64 / 1e3,
    );
    out.gauge(
        "audit_last_timestamp_seconds",
        "When the last audit ended; 0 if none is kept.",
        seconds(last.map(|last| last.ended_at_ms)),
    );
    out.gauge(
        "audit_last_intact_timestamp_seconds",
        "When the last audit ended that asked for everything and found it right; 0 if none is kept.",
        seconds(audit.last_intact_at_ms),
    );
    out.gauge(
        "audit_damaged",
        "1 if the last audit found something lost or altered in the store.",
        last.is_some_and(|last| last.is_first_damaged),
    );
    let second = last.and_then(|last| last.second.as_ref());
    out.gauge(
        "audit_second_damaged",
        "1 if the last audit found something missing or altered in the second store.",
        second.is_some_and(|second| second.is_damaged),
    );
    out.gauge(
        "audit_second_one_percent_found",
        "The probability with which the last audit would have met one damaged byte of the second store in a hundred; 0 if it was not audited.",
        second.map_or(0.0, |second| second.one_percent_found),
    );
    out.gauge(
        "audit_incomplete",
        "1 if the budget of the last audit was not enough for everything.",
        is(Outcome::Incomplete),
    );
    out.gauge(
        "audit_overdue",
        "1 if audits are made by a calendar, and for three of its periods none found everything right.",
        audit.is_overdue,
    );
    out.gauge(
        "audit_one_percent_found",
        "The probability with which the last audit would have met one damaged byte of data in a hundred.",
        last.map_or(0.0, |last| last.one_percent_found),
    );
    out.gauge(
        "audit_last_dollars",
        "What the last audit's requests and transfers cost at list prices; part of the store's.",
        last.map_or(0.0, |last| last.nanodollars as f64 / 1e9),
    );
}

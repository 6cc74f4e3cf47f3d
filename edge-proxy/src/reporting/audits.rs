//! Filing of audit reports: each signed report is brought to the service once, where `firn audit list VOLUME` shows it.
//!
//! Which was the last is kept in the volume's state directory (`audits-filed`), so a restart brings nothing again. The service has a copy; what counts
//! is the bucket's. Nothing is asked while no audit was made.

use super::{IDLE_PERIOD, LOOK, Reporting};
use crate::{auditor::Auditor, joined};
use firn_audit_report::SignedReport;
use serde_json::json;

const FILED: &str = "audits-filed";

/// What became of a report.
enum Filed {
    Kept,
    /// The service will not have it, now or later.
    Refused,
    /// It has nothing of this edge any more.
    NotFromHere(String),
    NotNow,
}

impl Reporting {
    /// Brings reports for ever; end it by aborting its task.
    pub(super) async fn keep_filing(&self, auditor: &Auditor) {
        let path = joined::file(&self.config, FILED);
        let kept = std::fs::read_to_string(&path).ok();
        let mut last: u64 = kept.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let mut seen = None;
        let mut is_told = false;
        loop {
            let newest = auditor.part().last.map(|last| last.ended_at_ms);
            let mut is_done = true;
            if newest != seen {
                for report in auditor.reports_after(last).await {
                    match self.file(&report).await {
                        Filed::Kept | Filed::Refused => {
                            last = report.report().sequence;
                            is_told = false;
                        }
                        Filed::NotFromHere(why) => {
                            if !std::mem::replace(&mut is_told, true) {
                                tracing::warn!(
                                    sequence = report.report().sequence,
                                    why,
                                    "the service takes no report of an audit from this edge; the bucket has them (firn-edge audit list), and they are \
                                     brought once the edge is let in again"
                                );
                            }
                            is_done = false;
                            break;
                        }
                        Filed::NotNow => {
                            is_done = false;
                            break;
                        }
                    }
                    if let Err(error) = std::fs::write(&path, format!("{last}\n")) {
                        tracing::debug!(%error, "reports of audits are brought to the service again after a restart");
                    }
                }
            }
            if is_done {
                seen = newest;
            }
            self.env.sleep(if is_done { LOOK } else { IDLE_PERIOD }).await;
        }
    }

    async fn file(&self, report: &SignedReport) -> Filed {
        let (edge, volume) = (self.joined.edge(), self.joined.volume);
        let path = format!("edges/{edge}/volumes/{volume}/audits");
        let body = json!({ "report": report.text() });
        let sequence = report.report().sequence;
        match self.joined.exchange(&self.config, &path, Some(&body)).await {
            Ok(Ok(reply)) if (200..300).contains(&reply.status) => Filed::Kept,
            // Of before reports were brought, of too many requests, or in trouble.
            Ok(Ok(reply)) if matches!(reply.status, 401 | 403) => Filed::NotFromHere(reply.problem().detail),
            Ok(Ok(reply)) if matches!(reply.status, 404 | 405 | 429 | 500..) => Filed::NotNow,
            Ok(Ok(reply)) => {
                let problem = reply.problem();
                tracing::warn!(
                    sequence,
                    status = reply.status,
                    code = problem.code,
                    why = problem.detail,
                    "the service does not keep the report of an audit; the bucket has it"
                );
                Filed::Refused
            }
            Ok(Err(_)) | Err(_) => Filed::NotNow,
        }
    }
}

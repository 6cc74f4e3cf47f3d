//! Signed reports of audits: brought by the edges that made them, kept by volume, shown to whoever may read volumes.
//!
//! ```text
//! edge ── report ──▶ signed by the key that it names? ──▶ audit-report/<volume>/<sequence modulo 400, 3 digits>
//! ```
//!
//! The newest 400 of each volume, as an edge keeps them; the bucket has all. A place is taken over by a later report only, and a number is never given
//! to another report: so a copy here shows what was signed, or that something was replaced. Whose key signed is for clients to judge: the service knows
//! no more than which edge brought it.

use super::{
    EdgeRecord,
    sessions::require_active,
    volumes::{self, require_state},
};
use crate::{
    endpoint::{Call, Endpoint, Reply},
    problem::{Code, Problem},
    secrets::hex,
    store::{Record, encode},
    types::{AuditReportFile, AuditReportFiled, FileAuditReport, VolumeState},
};
use axum::http::{Method, StatusCode};
use firn_audit_report::SignedReport;
use firn_identity::{EdgeId, UnixTime, VolumeId};
use firn_table::{Condition, Write};
use serde::{Deserialize, Serialize};

/// Reports of a volume that are kept: a daily one for a year.
const KEPT: u64 = 400;
/// The longest report that is taken: twice what one with all that it may name has.
pub(crate) const REPORT_BYTES_MAX: usize = 96 << 10;
/// It in JSON, its quotes escaped.
const BODY_BYTES: usize = 2 * REPORT_BYTES_MAX;

/// One report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AuditReportRecord {
    sequence: u64,
    edge: EdgeId,
    at: UnixTime,
    report: String,
}

impl Record for AuditReportRecord {
    const KIND: &'static str = "audit-report";
}

impl AuditReportRecord {
    fn sort(volume: VolumeId, sequence: u64) -> String {
        format!("{}{:03}", Self::prefix(volume), sequence % KEPT)
    }

    /// What the sort keys of all of a volume's reports begin with.
    pub(crate) fn prefix(volume: VolumeId) -> String {
        format!("audit-report/{volume}/")
    }
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/edges/{edge}/volumes/{volume}/audits",
            "fileAuditReport",
            "Keeps the signed report of an audit of a volume that the edge serves; again is as once",
            file,
        )
        .takes::<FileAuditReport>()
        .up_to(BODY_BYTES)
        .gives::<AuditReportFiled>(StatusCode::OK),
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/volumes/{volume}/audits",
            "listAuditReports",
            "Lists the newest 400 signed reports of a volume's audits, in no order",
            list,
        )
        .lists::<AuditReportFile>(),
    ]
}

async fn file(call: Call) -> Result<Reply, Problem> {
    let body: FileAuditReport = call.body()?;
    let edge: EdgeId = call.param("edge")?;
    if body.report.len() > REPORT_BYTES_MAX {
        let why = format!("more than {REPORT_BYTES_MAX} bytes");
        return Err(Problem::field("report", why));
    }
    let signed =
        SignedReport::open(body.report.as_bytes()).map_err(|error| Problem::field("report", error))?;
    let sequence = signed.report().sequence;
    let store = call.store()?;
    require_active(&store.require::<EdgeRecord>(&EdgeRecord::sort(edge), edge).await?)?;
    // Of this tenant's volumes: who only follows another's audits nothing.
    let (_, volume, loaded) = volumes::load(&call).await?;
    require_state(&loaded, VolumeState::Active, "audited by an edge")?;
    let sort = AuditReportRecord::sort(volume, sequence);
    let stored = store.get::<AuditReportRecord>(&sort).await?;
    let filed = AuditReportFiled {
        sequence,
        hash: hex(&signed.hash()),
    };
    if let Some(stored) = &stored {
        if stored.record.report == body.report || stored.record.sequence > sequence {
            return Ok(Reply::json(StatusCode::OK, &filed));
        }
        if stored.record.sequence == sequence {
            let why = format!("another report {sequence} of this volume is kept; it stays");
            return Err(Problem::new(Code::WrongState, why));
        }
    }
    let record = AuditReportRecord {
        sequence,
        edge,
        at: call.app.now(),
        report: body.report,
    };
    let write = Write::Put {
        key: store.key(&sort),
        value: encode(&record),
        condition: stored.map_or(Condition::Absent, |stored| Condition::Version(stored.version)),
    };
    store.table().transact(vec![write]).await?;
    Ok(Reply::json(StatusCode::OK, &filed))
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let (_, volume, _) = volumes::load(&call).await?;
    call.list::<AuditReportRecord, _>(&AuditReportRecord::prefix(volume), |record| AuditReportFile {
        sequence: record.sequence,
        edge: record.edge,
        at: record.at,
        report: record.report,
    })
    .await
}

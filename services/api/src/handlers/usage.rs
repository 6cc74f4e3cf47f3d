//! Usage: reported by edges and by the service's own components, read by the hour.
//!
//! The source of a report is who the connection or token proves the sender to be, and the ledger refuses a batch under any
//! other name:
//!
//! | sender | proved by | source | worth |
//! |---|---|---|---|
//! | an edge | its certificate or token | `edge/<edge>` | advisory, of its own tenant only |
//! | a node of the fleet | its certificate | `node/<node>` | observed: charged |
//! | a node that a tenant runs for itself | its certificate | `node/<node>` | advisory, of its own tenant only |
//! | a component of the service | its certificate (`service/anchor`, `service/cleaner`) | `anchor`, `cleaner` | observed: charged |

use super::{EdgeRecord, bills::refused, edge_state};
use crate::{
    endpoint::{Call, Endpoint, Reply},
    problem::{Code, Problem},
    types::{EdgeReported, Listing, ReportEdge, ReportUsage, UsageHour, UsageReceived},
};
use axum::http::{Method, StatusCode};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use firn_anchor_service::GrantedCaller;
use firn_billing::{Hour, Month, Reporter};
use firn_identity::{EdgeId, NodeId, PeerKind};
use firn_usage::{BATCH_MAX_BYTES, ResourceName, SourceId, TenantName, UsageBatch};

/// Components whose observations are charged.
const OBSERVERS: [&str; 2] = ["anchor", "cleaner"];
/// A batch in base64, and its name around it.
const REPORT_BODY_BYTES: usize = BATCH_MAX_BYTES / 3 * 4 + 1024;
/// An observed state of as many volumes as an edge can have, with as long texts as it may have.
const STATE_BODY_BYTES: usize = 96 << 10;
/// What cursors of hours begin with.
const CURSOR: &str = "hour/";

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/edges/{edge}/usage",
            "reportEdgeUsage",
            "Takes what an edge counted (compared with what the service saw, never charged) and how it stands; gives its desired state",
            report_edge,
        )
        .takes::<ReportEdge>()
        .up_to(REPORT_BODY_BYTES + STATE_BODY_BYTES)
        .gives::<EdgeReported>(StatusCode::OK),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/nodes/{node}/usage",
            "reportNodeUsage",
            "Takes what a disk node served, by its certificate: charged if the node is one of the fleet",
            report_node,
        )
        .takes::<ReportUsage>()
        .up_to(REPORT_BODY_BYTES)
        .gives::<UsageReceived>(StatusCode::OK),
        Endpoint::new(
            Method::POST,
            "/v1/usage",
            "reportUsage",
            "Takes what a component of the service observed, by its certificate",
            report,
        )
        .takes::<ReportUsage>()
        .up_to(REPORT_BODY_BYTES)
        .gives::<UsageReceived>(StatusCode::OK),
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/usage/{month}",
            "listUsage",
            "Lists a month's hours of usage; a page covers up to `limit` hours, those without usage left out",
            list,
        )
        .lists::<UsageHour>(),
    ]
}

async fn accept(
    call: &Call,
    reporter: Result<Reporter, firn_usage::NameError>,
    batch: &str,
) -> Result<UsageReceived, Problem> {
    keep(call, reporter, &decoded(batch)?).await
}

fn decoded(batch: &str) -> Result<UsageBatch, Problem> {
    let bytes = super::base64_field("batch", batch, BATCH_MAX_BYTES)?;
    UsageBatch::decode(&bytes).map_err(|error| Problem::field("batch", error))
}

async fn keep(
    call: &Call,
    reporter: Result<Reporter, firn_usage::NameError>,
    batch: &UsageBatch,
) -> Result<UsageReceived, Problem> {
    let reporter = reporter.map_err(Problem::internal)?;
    let receipt = call
        .app
        .billing()
        .accept(&reporter, batch)
        .await
        .map_err(refused)?;
    Ok(UsageReceived {
        kept: receipt.kept,
        duplicates: receipt.duplicates,
    })
}

/// A report of nothing but usage.
async fn accept_usage(
    call: &Call,
    reporter: Result<Reporter, firn_usage::NameError>,
) -> Result<Reply, Problem> {
    let body: ReportUsage = call.body()?;
    let received = accept(call, reporter, &body.batch).await?;
    Ok(Reply::json(StatusCode::OK, &received))
}

async fn report_edge(call: Call) -> Result<Reply, Problem> {
    let edge: EdgeId = call.param("edge")?;
    let body: ReportEdge = call.body()?;
    let mut reported = EdgeReported::default();
    if let Some(batch) = &body.batch {
        let tenant = TenantName::from(call.context()?.tenant());
        let source = SourceId::new(&format!("edge/{edge}"));
        let reporter = source.map(|source| Reporter::edge(source, tenant));
        let batch = by_grantee(&call, edge, decoded(batch)?).await?;
        let received = keep(&call, reporter, &batch).await?;
        (reported.kept, reported.duplicates) = (received.kept, received.duplicates);
    }
    // After the batch, which is kept already if this starts over: then its records are duplicates.
    if let Some(state) = body.state {
        reported.desired = edge_state::exchange(&call, edge, state).await?;
    }
    Ok(Reply::json(StatusCode::OK, &reported))
}

/// The batch with the edge's name at volumes that it serves by a grant: what it caused there is shown to their owners
/// ([`super::shared_costs`]).
async fn by_grantee(call: &Call, edge: EdgeId, batch: UsageBatch) -> Result<UsageBatch, Problem> {
    let store = call.store()?;
    let known = store.require::<EdgeRecord>(&EdgeRecord::sort(edge), edge).await?;
    let invited: Vec<String> = known
        .record
        .edge
        .volumes
        .iter()
        .map(ToString::to_string)
        .collect();
    let caller = GrantedCaller {
        tenant: call.context()?.tenant(),
        edge,
    };
    let (caller, mut observations) = (caller.to_string(), batch.observations().to_vec());
    for observation in &mut observations {
        let Some((volume, _)) = observation.resource.volume() else {
            continue;
        };
        let grantee = match invited.iter().any(|invited| invited == volume) {
            true => None,
            false => Some(&*caller),
        };
        observation.resource =
            ResourceName::of_volume(volume, grantee).map_err(|error| Problem::field("batch", error))?;
    }
    let (source, incarnation) = (batch.source().clone(), batch.incarnation());
    UsageBatch::new(source, incarnation, batch.first_sequence(), observations)
        .map_err(|error| Problem::field("batch", error))
}

async fn report_node(call: Call) -> Result<Reply, Problem> {
    let node: NodeId = call.param("node")?;
    if call.peer.as_ref().and_then(|peer| peer.kind.node()) != Some(node) {
        let why = "what a node served is taken from the node itself, by its certificate";
        return Err(Problem::new(Code::CertificateRefused, why));
    }
    let source = SourceId::new(&format!("node/{node}")).map_err(Problem::internal)?;
    let tenant = call.context()?.tenant();
    // The service's own nodes observe; those that a tenant runs for itself are on the tenant's machines.
    let reporter = if call.app.is_fleets(tenant) {
        Reporter::service(source)
    } else {
        Reporter::edge(source, TenantName::from(tenant))
    };
    accept_usage(&call, Ok(reporter)).await
}

async fn report(call: Call) -> Result<Reply, Problem> {
    let name = require_service(&call, &OBSERVERS)?;
    accept_usage(&call, SourceId::new(&name).map(Reporter::service)).await
}

/// The name of the service's own component at the other end, if it is one of `names`.
pub(super) fn require_service(call: &Call, names: &[&str]) -> Result<String, Problem> {
    match &call.peer {
        Some(peer) if peer.trust_domain == call.app.trust_domain() => match &peer.kind {
            PeerKind::Service(name) if names.contains(&name.as_str()) => return Ok(name.clone()),
            PeerKind::Service(_)
            | PeerKind::Edge { .. }
            | PeerKind::Attachment { .. }
            | PeerKind::Node(_)
            | PeerKind::TenantNode { .. } => {}
        },
        Some(_) | None => {}
    }
    Err(Problem::new(
        Code::CredentialRefused,
        format!(
            "only a client certificate of service/{} opens this",
            names.join(" or service/")
        ),
    ))
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let month: Month = call.param("month")?;
    let (limit, cursor) = call.page(CURSOR)?;
    let (first, end) = (month.first_hour(), month.next().first_hour());
    let from = match cursor {
        None => first,
        Some(cursor) => cursor
            .strip_prefix(CURSOR)
            .and_then(|hour| hour.parse::<Hour>().ok())
            .filter(|hour| (first..end).contains(hour))
            .ok_or_else(|| Problem::new(Code::MalformedParameter, "cursor: it is of another month"))?,
    };
    let until = end.min(Hour(from.0.saturating_add(u32::try_from(limit).unwrap_or(1))));
    let tenant = TenantName::from(call.context()?.tenant());
    let hours = call
        .app
        .billing()
        .hours(&tenant, from, until)
        .await
        .map_err(refused)?;
    let listing = Listing {
        items: hours
            .iter()
            .map(|(hour, entries)| UsageHour::of(*hour, entries))
            .collect(),
        next_cursor: (until < end).then(|| URL_SAFE_NO_PAD.encode(format!("{CURSOR}{until}"))),
    };
    Ok(Reply::json(StatusCode::OK, &listing))
}

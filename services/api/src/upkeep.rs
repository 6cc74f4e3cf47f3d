//! Billing upkeep of the service: passes that are short, repeatable and safe in any number of instances.
//!
//! | pass | how often | what |
//! |---|---|---|
//! | fold | 2 s | root commits that this instance made into the ledger; received records into the hours of their tenants |
//! | watch | 60 s | root commits whose instance died; gaps; nodes that are silent or not needed; capacity of the last hour; budgets: alerts, mail, hard caps; findings into the audit log |
//! | settle | 10 min | edges' counts against the service's; months that are over are closed |
//!
//! A pass that fails is logged, and the next one does what it left. One tenant's failure does not keep the others waiting.

use crate::{
    app::App,
    backup::{KnownTenant, TENANTS},
    context::TenantContext,
    handlers::{EdgeRecord, LimitsRecord, MemberRecord, find_lost_nodes, refused, set_capped},
    mailer::Mail,
    metering::{self, each},
    pool::reconcile,
    problem::{Code, Problem},
    store::{self, Change, Record, TenantStore},
    types::EdgeState,
};
use firn_billing::{Alert, Budget, Finding, Hour, Money, REPORT_LAG};
use firn_identity::{Role, TenantId, VolumeId};
use firn_usage::{ResourceName, Spool, TenantName};
use futures::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{pin::pin, time::Duration};

const FOLD_PERIOD: Duration = Duration::from_secs(2);
const WATCH_PERIOD: Duration = Duration::from_secs(60);
const SETTLE_PERIOD: Duration = Duration::from_secs(600);
/// Transactions of one fold pass: some two million records, after which others get their turn.
const FOLD_STEPS: usize = 64;
/// Tenants that a pass visits at the same time. A visit is some ten requests to the table, one after the other: at 5 ms each, one tenant after the
/// other would take longer than [`WATCH_PERIOD`] for a thousand of them; so many at once take a minute for twenty thousand.
const TENANTS_AT_ONCE: usize = 16;
/// Hours of a window in which an edge is compared with the service. Windows lie side by side, so that each is judged once.
const WINDOW_HOURS: u32 = 6;
/// Months closed in one pass: more are due only after years of standstill.
const CLOSED_AT_ONCE: usize = 12;
/// Findings this old were copied long ago.
const FINDINGS_DAYS: u64 = 7;
/// Edges of one volume that a finding names.
const EDGES_NAMED: usize = 16;
/// Findings copied in one pass for one tenant.
const FINDINGS_AT_ONCE: usize = 100;

/// Runs the passes for ever; end it by aborting its task. `spool` is where this instance's requests are written down.
pub(crate) async fn run(app: App, spool: Spool) {
    let fold = repeat(&app, FOLD_PERIOD, "fold", || async {
        let counted = metering::settle_commits(&app).await.map(drop);
        fold(&app).await.and(counted)
    });
    let watch = repeat(&app, WATCH_PERIOD, "watch", || async {
        if let Err(error) = metering::record_operations(&app, &spool).await {
            tracing::warn!(%error, "counted requests wait for the spool");
        }
        watch(&app).await
    });
    let settle = repeat(&app, SETTLE_PERIOD, "settle", || settle(&app));
    futures::future::join3(fold, watch, settle).await;
}

async fn repeat<F, Fut>(app: &App, period: Duration, name: &str, pass: F)
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<(), Problem>>,
{
    loop {
        if let Err(problem) = pass().await {
            tracing::warn!(pass = name, %problem, "the next pass goes on");
        }
        app.env().sleep(period).await;
    }
}

/// Moves received records into the hours, a bounded number of them.
///
/// # Errors
/// If storage did not answer; nothing counts twice.
pub async fn fold(app: &App) -> Result<(), Problem> {
    app.billing().fold(FOLD_STEPS).await.map(drop).map_err(refused)
}

/// Reports gaps, observes capacity, checks budgets, copies findings.
///
/// # Errors
/// The last of the failures, after everything was tried.
pub async fn watch(app: &App) -> Result<(), Problem> {
    let pool = reconcile(app).await.map(drop);
    let gaps = app.billing().report_gaps().await.map(drop).map_err(refused);
    let tenants = for_each_tenant(app, |tenant| async move {
        find_lost_nodes(app, tenant).await?;
        metering::observe_capacity(app, tenant).await?;
        metering::settle_commits_of(app, tenant).await?;
        check_budget(app, tenant).await?;
        copy_findings(app, tenant).await
    })
    .await;
    pool.and(gaps).and(tenants)
}

/// Compares edges' counts with the service's, and closes months that are over.
///
/// # Errors
/// As [`watch`].
pub async fn settle(app: &App) -> Result<(), Problem> {
    for_each_tenant(app, |tenant| async move {
        let tenant = TenantName::from(tenant);
        let lag_ms = u64::try_from(REPORT_LAG.as_millis()).unwrap_or(u64::MAX);
        let reported = Hour::of_ms(metering::now_ms(app).saturating_sub(lag_ms));
        let until = Hour(reported.0 / WINDOW_HOURS * WINDOW_HOURS);
        let from = Hour(until.0.saturating_sub(WINDOW_HOURS));
        app.billing()
            .reconcile_between(&tenant, from, until)
            .await
            .map_err(refused)?;
        app.billing()
            .close_due(&tenant, CLOSED_AT_ONCE)
            .await
            .map_err(refused)?;
        Ok(())
    })
    .await
}

async fn for_each_tenant<'a, F, Fut>(app: &'a App, pass: F) -> Result<(), Problem>
where
    F: Fn(TenantId) -> Fut,
    Fut: Future<Output = Result<(), Problem>> + 'a,
{
    let mut outcome = Ok(());
    let mut after = None;
    loop {
        let page = app.table().query(TENANTS, "", after.as_deref(), 100).await?;
        let tenants = page
            .items
            .iter()
            .map(|item| Ok(store::decode::<KnownTenant>(item)?.tenant))
            .collect::<Result<Vec<TenantId>, Problem>>()?;
        let visit = async |tenant| (tenant, pass(tenant).await);
        let mut visits = pin!(stream::iter(tenants).map(visit).buffer_unordered(TENANTS_AT_ONCE));
        while let Some((tenant, visited)) = visits.next().await {
            if let Err(problem) = visited {
                tracing::warn!(%tenant, %problem, "a tenant waits for the next pass");
                outcome = Err(problem);
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return outcome,
        }
    }
}

/// The budget as the ledger knows it: the limits' record is what counts, and is mirrored before each look.
fn mirrored(limits: &LimitsRecord) -> [(&'static str, Option<Budget>); 2] {
    let budget = |id: &str, nanos: Option<u64>, thresholds: &[u16], hard_cap| {
        let amount = Money(i128::from(nanos.filter(|nanos| *nanos > 0)?));
        Some(Budget {
            id: ResourceName::new(id).expect("a plain word"),
            amount,
            thresholds: thresholds.to_vec(),
            hard_cap,
        })
    };
    [
        (
            "alert",
            budget("alert", limits.budget.alert_nano_dollars, &[100], false),
        ),
        (
            "hard-cap",
            budget("hard-cap", limits.budget.hard_cap_nano_dollars, &[80, 100], true),
        ),
    ]
}

/// Holds a tenant's budget against what it spent: mails alerts, sets and lifts the cap.
///
/// # Errors
/// If storage did not answer; the next pass repeats it.
pub async fn check_budget(app: &App, tenant: TenantId) -> Result<(), Problem> {
    let store = TenantStore::of(app.table(), &TenantContext::for_service(tenant));
    let limits = LimitsRecord::load(&store).await?.record;
    // A hard cap of nothing is reached before anything is spent.
    let forbids_all = limits.budget.hard_cap_nano_dollars == Some(0);
    let payer = TenantName::from(tenant);
    let mut any = false;
    for (id, budget) in mirrored(&limits) {
        match budget {
            Some(budget) => {
                any = true;
                app.billing().set_budget(&payer, &budget).await.map_err(refused)?;
            }
            None => {
                let id = ResourceName::new(id).expect("a plain word");
                app.billing().remove_budget(&payer, &id).await.map_err(refused)?;
            }
        }
    }
    let mut reached = forbids_all;
    if any {
        let state = app.billing().check_budgets(&payer).await.map_err(refused)?;
        reached |= state.reached_cap.is_some();
        for alert in &state.raised {
            tell(app, &store, alert).await?;
        }
    }
    if reached != limits.capped {
        set_capped(app, tenant, reached).await?;
    }
    Ok(())
}

/// Mails an alert to those who pay. An alert is raised once, so a letter that is not taken is only logged: the alert stays
/// in the list of alerts.
async fn tell(app: &App, store: &TenantStore, alert: &Alert) -> Result<(), Problem> {
    let mut after = None;
    loop {
        let (members, next) = store
            .page::<MemberRecord>("member/", after.as_deref(), 100)
            .await?;
        for member in members.into_iter().map(|loaded| loaded.record) {
            if !member.is_active() || !matches!(member.member.role, Role::Owner | Role::Billing) {
                continue;
            }
            let mail = Mail {
                to: member.member.email.as_str().to_owned(),
                subject: format!("Firn: {} % of your budget is spent", alert.threshold),
                body: format!(
                    "In {} your tenant has spent {} of the {} ({}).\nSee: firn cost",
                    alert.month, alert.spent, alert.amount, alert.budget
                ),
            };
            if let Err(error) = app.mailer().send(&mail).await {
                tracing::warn!(%error, "an alert could not be mailed");
            }
        }
        match next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

/// That a finding of billing is in the tenant's audit log.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct FindingNoted {}

impl Record for FindingNoted {
    const KIND: &'static str = "finding-noted";
}

/// A finding about a volume's edges, with the names of those that serve it: one of them is broken, cut off, or lies.
async fn with_edges(store: &TenantStore, finding: &Finding, text: String) -> Result<String, Problem> {
    let (Finding::UnderReported { resource, .. }
    | Finding::OverReported { resource, .. }
    | Finding::Silent { resource, .. }) = finding
    else {
        return Ok(text);
    };
    let volume = resource.as_str().strip_prefix("volume/");
    let Some(volume) = volume.and_then(|volume| volume.parse::<VolumeId>().ok()) else {
        return Ok(text);
    };
    let mut serving = Vec::new();
    each::<EdgeRecord>(store, "edge/", |record| {
        let edge = record.edge;
        if edge.volumes.contains(&volume) && edge.state == EdgeState::Active && serving.len() < EDGES_NAMED {
            serving.push(json!({ "id": edge.id, "name": edge.name }));
        }
    })
    .await?;
    let mut detail = serde_json::to_value(finding).map_err(Problem::internal)?;
    detail["edges"] = serving.into();
    Ok(detail.to_string())
}

/// Copies what billing found about a tenant into its audit log, each finding once.
///
/// # Errors
/// If storage did not answer; the next pass goes on.
pub async fn copy_findings(app: &App, tenant: TenantId) -> Result<(), Problem> {
    let store = TenantStore::of(app.table(), &TenantContext::for_service(tenant));
    let payer = TenantName::from(tenant);
    let oldest_ms = metering::now_ms(app).saturating_sub(FINDINGS_DAYS * 86_400_000);
    let mut after = Some(format!("{oldest_ms:020}"));
    let mut copied = 0;
    while let Some(start) = after.take() {
        let page = app
            .billing()
            .audit_events(Some(&payer), Some(&start), 100)
            .await
            .map_err(refused)?;
        for event in page.events {
            let text = serde_json::to_string(&event.finding).map_err(Problem::internal)?;
            let digest = blake3::hash(format!("{}|{text}", event.at_ms).as_bytes()).to_hex();
            let noted = format!("finding/{}", &digest[..32]);
            if store.get::<FindingNoted>(&noted).await?.is_some() {
                continue;
            }
            let detail = with_edges(&store, &event.finding, text).await?;
            let change = Change::new(&store, None, "billing.finding", tenant)
                .detail(detail)
                .create(&noted, &FindingNoted {});
            match change.commit(app.env(), None).await {
                // Another instance, or another change of the tenant: the next pass looks again.
                Err(problem) if problem.code == Code::ChangedMeanwhile => return Ok(()),
                result => result.map(drop)?,
            }
            copied += 1;
            if copied >= FINDINGS_AT_ONCE {
                return Ok(());
            }
        }
        after = page.next;
    }
    Ok(())
}

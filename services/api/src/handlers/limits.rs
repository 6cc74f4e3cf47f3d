//! Quotas and budgets: one record a tenant, changed in the transaction of whatever takes or gives back.

use crate::{
    app::App,
    context::TenantContext,
    endpoint::{Call, Endpoint, Reply},
    problem::{Code, Problem},
    store::{Change, Loaded, Record, TenantStore},
    types::{Budget, InUse, Quota, QuotaReport},
    upkeep::check_budget,
};
use axum::http::{Method, StatusCode};
use firn_identity::TenantId;
use serde::{Deserialize, Serialize};

/// What a tenant may have and spend, and what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LimitsRecord {
    pub(crate) quota: Quota,
    pub(crate) in_use: InUse,
    pub(crate) budget: Budget,
    /// Set by billing when the hard cap is reached; provisioning is then refused, and edges are told to refuse new writes.
    pub(crate) capped: bool,
    /// Members with the role owner: never none.
    pub(crate) owners: u32,
}

impl Record for LimitsRecord {
    const KIND: &'static str = "limits";
}

impl LimitsRecord {
    pub(crate) const SORT: &'static str = "limits";

    pub(crate) async fn load(store: &TenantStore) -> Result<Loaded<Self>, Problem> {
        store.require(Self::SORT, "the tenant").await
    }

    /// Takes `more` of something: refused over the quota or when the budget is spent.
    pub(crate) fn take(&self, what: &str, more: InUse) -> Result<Self, Problem> {
        if self.capped {
            return Err(Problem::new(
                Code::BudgetExhausted,
                "the hard cap of this month's budget is reached: nothing new is provisioned, and edges and disks refuse new writes; what is there \
                 can be read and deleted. An owner or billing member can raise it",
            ));
        }
        let exceeded = || {
            Problem::new(
                Code::QuotaExceeded,
                format!("the quota allows no more {what}; remove some, or ask for a higher quota"),
            )
        };
        let add = |used: u32, more: u32, limit: u32| {
            used.checked_add(more)
                .filter(|sum| more == 0 || *sum <= limit)
                .ok_or_else(exceeded)
        };
        let (used, quota) = (&self.in_use, &self.quota);
        let disk_bytes = used
            .disk_bytes
            .checked_add(more.disk_bytes)
            .filter(|sum| more.disk_bytes == 0 || *sum <= quota.disk_bytes)
            .ok_or_else(exceeded)?;
        let in_use = InUse {
            volumes: add(used.volumes, more.volumes, quota.volumes)?,
            edges: add(used.edges, more.edges, quota.edges)?,
            disks: add(used.disks, more.disks, quota.disks)?,
            disk_bytes,
            nodes: add(used.nodes, more.nodes, quota.nodes)?,
            members: add(used.members, more.members, quota.members)?,
            keys: add(used.keys, more.keys, quota.keys)?,
        };
        Ok(Self {
            in_use,
            ..self.clone()
        })
    }

    /// Gives `less` back.
    ///
    /// # Panics
    /// If more is given back than was taken: the count would be wrong for ever after.
    pub(crate) fn give_back(&self, less: InUse) -> Self {
        let subtract = |used: u32, less: u32| {
            used.checked_sub(less)
                .expect("nothing is given back that was not taken")
        };
        let used = &self.in_use;
        let in_use = InUse {
            volumes: subtract(used.volumes, less.volumes),
            edges: subtract(used.edges, less.edges),
            disks: subtract(used.disks, less.disks),
            disk_bytes: used
                .disk_bytes
                .checked_sub(less.disk_bytes)
                .expect("nothing is given back that was not taken"),
            nodes: subtract(used.nodes, less.nodes),
            members: subtract(used.members, less.members),
            keys: subtract(used.keys, less.keys),
        };
        Self {
            in_use,
            ..self.clone()
        }
    }
}

/// Stops or allows a tenant's provisioning and its edges' new writes: billing calls it when a month's hard cap is reached, and when it no longer is.
/// What was acknowledged, reads, deletes, export and cleaning are not touched. Calling it twice is calling it once.
///
/// # Errors
/// If there is no such tenant, or storage did not answer.
pub async fn set_capped(app: &App, tenant: TenantId, capped: bool) -> Result<(), Problem> {
    let store = TenantStore::of(app.table(), &TenantContext::for_service(tenant));
    // As often as a request would start over.
    for _ in 0..12 {
        let limits = LimitsRecord::load(&store).await?;
        if limits.record.capped == capped {
            return Ok(());
        }
        let record = LimitsRecord {
            capped,
            ..limits.record.clone()
        };
        let action = if capped {
            "budget.capped"
        } else {
            "budget.uncapped"
        };
        let change = Change::new(&store, None, action, tenant).update(&limits, &record);
        match change.commit(app.env(), None).await {
            Err(problem) if problem.code == Code::ChangedMeanwhile => {}
            result => return result.map(drop),
        }
    }
    Err(Problem::new(
        Code::ChangedMeanwhile,
        "the tenant is busy; call again",
    ))
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    const BUDGET: &str = "/v1/tenants/{tenant}/budget";
    vec![
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/quota",
            "getQuota",
            "Shows what may be had and what is used",
            quota,
        )
        .gives::<QuotaReport>(StatusCode::OK),
        Endpoint::new(
            Method::GET,
            BUDGET,
            "getBudget",
            "Shows what may be spent in a month",
            get_budget,
        )
        .gives::<Budget>(StatusCode::OK)
        .tagged(),
        Endpoint::new(
            Method::PUT,
            BUDGET,
            "setBudget",
            "Sets what may be spent in a month",
            set_budget,
        )
        .takes::<Budget>()
        .gives::<Budget>(StatusCode::OK)
        .if_match(),
    ]
}

async fn quota(call: Call) -> Result<Reply, Problem> {
    let limits = LimitsRecord::load(&call.store()?).await?.record;
    Ok(Reply::json(
        StatusCode::OK,
        &QuotaReport {
            quota: limits.quota,
            in_use: limits.in_use,
        },
    ))
}

async fn get_budget(call: Call) -> Result<Reply, Problem> {
    let limits = LimitsRecord::load(&call.store()?).await?;
    Ok(Reply::json(StatusCode::OK, &limits.record.budget).tagged(&limits))
}

async fn set_budget(call: Call) -> Result<Reply, Problem> {
    let budget: Budget = call.body()?;
    if let (Some(alert), Some(cap)) = (budget.alert_nano_dollars, budget.hard_cap_nano_dollars)
        && alert > cap
    {
        return Err(Problem::field(
            "alert_nano_dollars",
            "above the hard cap it would never be reached",
        ));
    }
    let limits = LimitsRecord::load(&call.store()?).await?;
    call.check_if_match(&limits)?;
    let record = LimitsRecord {
        budget,
        ..limits.record.clone()
    };
    let change = call
        .change("budget.set", call.context()?.tenant())?
        .detail(format!(
            "alert {:?}, hard cap {:?}",
            budget.alert_nano_dollars, budget.hard_cap_nano_dollars
        ))
        .update(&limits, &record);
    let reply = call.commit(change, Reply::json(StatusCode::OK, &budget)).await?;
    // The next pass would do it within a minute; whoever raises a cap waits for their clients' writes.
    if let Err(problem) = check_budget(&call.app, call.context()?.tenant()).await {
        tracing::warn!(%problem, "the budget is looked at by the next pass");
    }
    Ok(reply)
}

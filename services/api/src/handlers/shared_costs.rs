//! Costs of shared volumes by who caused them: the owner pays for a volume (SCFS's pay-per-ownership), and sees what each grantee did.
//!
//! ```text
//! owner's ledger      volume/V, volume/V/by/TENANT/EDGE     commits as the anchor counted them ─▶ shares of each meter's price
//! grantees' ledgers            volume/V/by/TENANT/EDGE      what their edges say: operations, requests, bytes; never charged
//! ```
//!
//! Amounts are the shares of [`firn_billing::explain`], which add up to the price of each meter to the last billionth; a line is a sum of them, so
//! the lines add up to what the volume costs. Of a grantee's ledger only entries of this volume are read, and a grantee is shown
//! the lines of its own edges.

use super::{
    bills::refused,
    granted::AcceptedRecord,
    grants::{GRANTS, GrantRecord},
};
use crate::{
    context::TenantContext,
    endpoint::{Call, Endpoint, Reply},
    metering::each,
    problem::Problem,
    store::TenantStore,
    types::{Grantee, SharedCostLine, SharedCosts, SharedVolumeCost},
};
use axum::http::{Method, StatusCode};
use firn_anchor_service::GrantedCaller;
use firn_billing::{Entries, Explanation, Money, Month, ReporterRole};
use firn_identity::{TenantId, VolumeId};
use firn_usage::{Meter, TenantName};
use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr as _,
};

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/shared-costs/{month}",
            "explainSharedCosts",
            "Shows who caused what of the volumes that are shared",
            shared_costs,
        )
        .gives::<SharedCosts>(StatusCode::OK),
    ]
}

/// What one edge caused so far.
#[derive(Default)]
struct Caused {
    amount: Money,
    commits: u128,
    operations: u128,
    requests: u128,
    bytes_up: u128,
    bytes_down: u128,
}

/// By grantee; `None`: by the volume's own edges and by nobody.
type Lines = BTreeMap<Option<GrantedCaller>, Caused>;

fn caller_of(grantee: &str) -> Option<GrantedCaller> {
    let (tenant, edge) = grantee.split_once('/')?;
    Some(GrantedCaller {
        tenant: tenant.parse().ok()?,
        edge: edge.parse().ok()?,
    })
}

/// Of which volume an entry is, and which grantee's; `None`: of no volume.
fn place(resource: &firn_usage::ResourceName) -> Option<(VolumeId, Option<GrantedCaller>)> {
    let (volume, grantee) = resource.volume()?;
    let volume = VolumeId::from_str(volume).ok()?;
    match grantee {
        None => Some((volume, None)),
        Some(grantee) => Some((volume, Some(caller_of(grantee)?))),
    }
}

/// Adds what a volume costs its owner.
fn add_charges(lines: &mut Lines, volume: VolumeId, explanation: &Explanation) -> Result<(), Problem> {
    for share in &explanation.shares {
        let Some((of, grantee)) = place(&share.resource) else {
            continue;
        };
        if of == volume {
            let line = lines.entry(grantee).or_default();
            line.amount = line.amount.plus(share.amount).map_err(Problem::internal)?;
            if share.meter == Meter::ROOT_COMMITS {
                line.commits = line.commits.saturating_add(share.quantity.0);
            }
        }
    }
    Ok(())
}

/// Adds what the edges of a tenant say, which can speak of its own edges only.
fn add_reports(lines: &mut Lines, volume: VolumeId, owner: TenantId, tenant: TenantId, said: &Entries) {
    for (key, totals) in said {
        let Some((of, grantee)) = place(&key.resource) else {
            continue;
        };
        let is_its = match grantee {
            None => tenant == owner,
            Some(caller) => caller.tenant == tenant,
        };
        if of != volume || key.role != ReporterRole::Advisory || !is_its {
            continue;
        }
        let line = lines.entry(grantee).or_default();
        let sum = match key.meter {
            Meter::EDGE_OPERATIONS => &mut line.operations,
            Meter::EDGE_REQUESTS => &mut line.requests,
            Meter::EDGE_BYTES_UP => &mut line.bytes_up,
            Meter::EDGE_BYTES_DOWN => &mut line.bytes_down,
            _ => continue,
        };
        *sum = sum.saturating_add(totals.quantity);
    }
}

fn cost(
    volume: VolumeId,
    owner: TenantId,
    currency: String,
    lines: &Lines,
) -> Result<SharedVolumeCost, Problem> {
    let total = Money::sum(lines.values().map(|line| line.amount)).map_err(Problem::internal)?;
    let line = |(grantee, caused): (&Option<GrantedCaller>, &Caused)| SharedCostLine {
        tenant: grantee.map_or(owner, |caller| caller.tenant),
        edge: grantee.map(|caller| caller.edge),
        commits: caused.commits.to_string(),
        operations: caused.operations.to_string(),
        requests: caused.requests.to_string(),
        bytes_up: caused.bytes_up.to_string(),
        bytes_down: caused.bytes_down.to_string(),
        amount_nanos: caused.amount.0.to_string(),
    };
    Ok(SharedVolumeCost {
        volume,
        owner,
        currency,
        lines: lines.iter().map(line).collect(),
        total_nanos: total.0.to_string(),
    })
}

/// The ledgers of a month that are looked into, each read once.
struct Ledgers<'a> {
    call: &'a Call,
    month: Month,
    said: BTreeMap<TenantId, Entries>,
    explained: BTreeMap<TenantId, Explanation>,
}

impl Ledgers<'_> {
    async fn said(&mut self, tenant: TenantId) -> Result<&Entries, Problem> {
        if !self.said.contains_key(&tenant) {
            let (from, until) = (self.month.first_hour(), self.month.next().first_hour());
            let billing = self.call.app.billing();
            let totals = billing.totals(&TenantName::from(tenant), from, until).await;
            self.said.insert(tenant, totals.map_err(refused)?);
        }
        Ok(&self.said[&tenant])
    }

    async fn explained(&mut self, tenant: TenantId) -> Result<&Explanation, Problem> {
        if !self.explained.contains_key(&tenant) {
            let billing = self.call.app.billing();
            let explained = billing.explain(&TenantName::from(tenant), self.month).await;
            self.explained.insert(tenant, explained.map_err(refused)?);
        }
        Ok(&self.explained[&tenant])
    }
}

async fn shared_costs(call: Call) -> Result<Reply, Problem> {
    let month: Month = call.param("month")?;
    let own = call.context()?.tenant();
    let store = TenantStore::of(call.app.table(), &TenantContext::for_service(own));
    let mut grantees: BTreeMap<VolumeId, BTreeSet<TenantId>> = BTreeMap::new();
    each::<GrantRecord>(&store, GRANTS, |grant| {
        let tenants = grantees.entry(grant.volume()).or_default();
        if let Grantee::Tenant(tenant) = grant.grantee() {
            tenants.insert(tenant);
        }
    })
    .await?;
    let mut ledgers = Ledgers {
        call: &call,
        month,
        said: BTreeMap::new(),
        explained: BTreeMap::new(),
    };
    let mut given = Vec::new();
    for (volume, tenants) in grantees {
        let mut lines = Lines::from([(None, Caused::default())]);
        let explanation = ledgers.explained(own).await?;
        let currency = explanation.currency.clone();
        add_charges(&mut lines, volume, explanation)?;
        for tenant in std::iter::once(own).chain(tenants) {
            add_reports(&mut lines, volume, own, tenant, ledgers.said(tenant).await?);
        }
        given.push(cost(volume, own, currency, &lines)?);
    }
    let mut accepted = Vec::new();
    each::<AcceptedRecord>(&store, AcceptedRecord::PREFIX, |record| {
        accepted.push((record.volume(), record.owner));
    })
    .await?;
    let mut granted = Vec::new();
    for (volume, owner) in accepted {
        let mut lines = Lines::new();
        let explanation = ledgers.explained(owner).await?;
        let currency = explanation.currency.clone();
        add_charges(&mut lines, volume, explanation)?;
        add_reports(&mut lines, volume, owner, own, ledgers.said(own).await?);
        lines.retain(|grantee, _| grantee.is_some_and(|caller| caller.tenant == own));
        granted.push(cost(volume, owner, currency, &lines)?);
    }
    let costs = SharedCosts {
        month: month.to_string(),
        given,
        granted,
    };
    Ok(Reply::json(StatusCode::OK, &costs))
}

//! The tenant itself, and taking back one's own token.

use super::LimitsRecord;
use crate::{
    endpoint::{Call, Endpoint, Reply},
    problem::{Code, Problem},
    store::Record,
    types::{ChangeTenant, Tenant},
};
use axum::http::{Method, StatusCode};
use firn_identity::Revoked;
use serde::{Deserialize, Serialize};

/// A customer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TenantRecord {
    pub(crate) tenant: Tenant,
}

impl Record for TenantRecord {
    const KIND: &'static str = "tenant";
}

impl TenantRecord {
    pub(crate) const SORT: &'static str = "tenant";
}

pub(crate) const CLOSED: &str = "closed";

pub(super) fn endpoints() -> Vec<Endpoint> {
    const TENANT: &str = "/v1/tenants/{tenant}";
    vec![
        Endpoint::new(Method::GET, TENANT, "getTenant", "Shows the tenant", get)
            .gives::<Tenant>(StatusCode::OK)
            .tagged(),
        Endpoint::new(
            Method::PATCH,
            TENANT,
            "changeTenant",
            "Renames the tenant",
            change,
        )
        .takes::<ChangeTenant>()
        .gives::<Tenant>(StatusCode::OK)
        .if_match(),
        Endpoint::new(
            Method::DELETE,
            TENANT,
            "closeTenant",
            "Closes the tenant, once nothing is left in it",
            close,
        )
        .gives_nothing()
        .if_match(),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/tokens/revoke",
            "revokeToken",
            "Takes back the token it is called with",
            revoke,
        )
        .gives_nothing(),
    ]
}

async fn get(call: Call) -> Result<Reply, Problem> {
    let tenant = call
        .store()?
        .require::<TenantRecord>(TenantRecord::SORT, "the tenant")
        .await?;
    Ok(Reply::json(StatusCode::OK, &tenant.record.tenant).tagged(&tenant))
}

async fn change(call: Call) -> Result<Reply, Problem> {
    let body: ChangeTenant = call.body()?;
    let loaded = call
        .store()?
        .require::<TenantRecord>(TenantRecord::SORT, "the tenant")
        .await?;
    call.check_if_match(&loaded)?;
    let mut record = loaded.record.clone();
    record.tenant.name = body.name;
    let reply = Reply::json(StatusCode::OK, &record.tenant);
    let change = call
        .change("tenant.rename", record.tenant.id)?
        .update(&loaded, &record);
    call.commit(change, reply).await
}

async fn close(call: Call) -> Result<Reply, Problem> {
    let store = call.store()?;
    let loaded = store
        .require::<TenantRecord>(TenantRecord::SORT, "the tenant")
        .await?;
    call.check_if_match(&loaded)?;
    let limits = LimitsRecord::load(&store).await?;
    let used = &limits.record.in_use;
    if used.volumes + used.disks + used.edges + used.nodes > 0 {
        return Err(Problem::new(
            Code::WrongState,
            format!(
                "{} volumes, {} disks, {} edges and {} nodes are left; erase and remove them first, so that nothing is lost unseen",
                used.volumes, used.disks, used.edges, used.nodes
            ),
        ));
    }
    let mut record = loaded.record.clone();
    record.tenant.state = CLOSED.into();
    let change = call
        .change("tenant.close", record.tenant.id)?
        .update(&loaded, &record)
        .check(&limits);
    let revoked = [Revoked::Tenant(record.tenant.id)];
    call.commit_revoking(change, &revoked, Reply::nothing()).await
}

async fn revoke(call: Call) -> Result<Reply, Problem> {
    let caller = call.context()?.proved()?;
    if let Some(token) = caller.token {
        let tenant = call.context()?.tenant();
        call.once(|| call.app.limiter().admit_revocation(call.app.env(), tenant))?;
        call.app.revoke(tenant, &[Revoked::Token(token)]).await?;
    }
    Ok(Reply::nothing())
}

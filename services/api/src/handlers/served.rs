//! Admission of an edge to a volume that it was invited to, or that was granted to it or to its tenant.
//!
//! ```text
//! edge of B asks for V ──▶ invited to V ─────────────────────────────────────────────────────────▶ as what serves it
//!                          grant/V/<edge> of B, not revoked ───────────────────────────────────────▶ as the grant says
//!                          granted/V of B, not left ─▶ owner A ─▶ grant/V/<B> of A, not revoked, names it ─▶ as the grant says
//!                          neither ────────────────────────────────────────────────────────────────▶ there is no such volume
//! ```
//!
//! The records that let it in are looked at at every request, and a change is made together with checks that they are unchanged: so a revoked
//! grant admits nothing from its transaction on, at any instance. This, and the bill of shared volumes ([`super::shared_costs`]), is where a
//! request of one tenant reads what is another's, and it reads what names the two.

use super::{
    EdgeRecord, VolumeRecord, granted::AcceptedRecord, grants::GrantRecord, sessions::require_active,
    volumes::require_state,
};
use crate::{
    context::TenantContext,
    endpoint::Call,
    problem::{Code, Problem},
    store::{Loaded, TenantStore},
    types::{GrantAccess, Grantee, VolumeState},
};
use firn_anchor::AnchorRole;
use firn_identity::{EdgeId, TenantId, VolumeId};
use firn_table::{Condition, Write};

/// A volume that the asking edge is let into.
pub(super) struct Served {
    /// Whose it is.
    pub owner: TenantId,
    /// Whose edge it is that asks.
    pub grantee: TenantId,
    /// The owner's records.
    pub store: TenantStore,
    /// It.
    pub volume: Loaded<VolumeRecord>,
    /// The edge's record, in its own tenant.
    pub edge: Loaded<EdgeRecord>,
    /// As what, if it is by a grant.
    pub access: Option<GrantAccess>,
    /// What must still hold in the instant of a change.
    pub guards: Vec<Write>,
}

impl Served {
    /// What the edge is to the volume's roots.
    pub fn role(&self) -> AnchorRole {
        match self.access {
            None => AnchorRole::Edge,
            Some(GrantAccess::Write) => AnchorRole::Edge,
            Some(GrantAccess::Read) => AnchorRole::Observer,
        }
    }
}

fn unchanged<T>(loaded: &Loaded<T>) -> Write {
    Write::Check {
        key: loaded.key.clone(),
        condition: Condition::Version(loaded.version),
    }
}

/// The records of the owner of a volume that was granted to the caller's tenant.
pub(super) fn records_of(call: &Call, owner: TenantId) -> TenantStore {
    TenantStore::of(call.app.table(), &TenantContext::for_grant(owner))
}

fn revoked(volume: VolumeId) -> Problem {
    Problem::new(
        Code::GrantRevoked,
        format!("the grant of {volume} was revoked; nothing of the volume is shown to this edge any more"),
    )
}

/// The volume that the path names, as the asking edge is let into it.
pub(super) async fn served(call: &Call, edge: EdgeId, volume: VolumeId) -> Result<Served, Problem> {
    let own = call.store()?;
    let tenant = call.context()?.tenant();
    let record = own.require::<EdgeRecord>(&EdgeRecord::sort(edge), edge).await?;
    require_active(&record)?;
    let mut guards = vec![unchanged(&record)];
    let (owner, store, access) = if record.record.edge.volumes.contains(&volume) {
        (tenant, own, None)
    } else if let Some(grant) = own
        .get::<GrantRecord>(&GrantRecord::sort(volume, Grantee::Edge(edge)))
        .await?
    {
        if grant.record.is_revoked() {
            return Err(revoked(volume));
        }
        guards.push(unchanged(&grant));
        (tenant, own, Some(grant.record.access))
    } else if let Some(accepted) = own.get::<AcceptedRecord>(&AcceptedRecord::sort(volume)).await? {
        if accepted.record.is_left() {
            return Err(Problem::new(
                Code::GrantRevoked,
                format!(
                    "this tenant left the grant of {volume}; nothing of the volume is shown to this edge any more"
                ),
            ));
        }
        guards.push(unchanged(&accepted));
        let owner = accepted.record.owner;
        let store = records_of(call, owner);
        let sort = GrantRecord::sort(volume, Grantee::Tenant(tenant));
        let grant = store.get::<GrantRecord>(&sort).await?;
        let grant = grant.ok_or_else(|| Problem::not_found(volume))?;
        if grant.record.is_revoked() {
            return Err(revoked(volume));
        }
        if !grant.record.admits(edge) {
            return Err(Problem::new(
                Code::WrongState,
                format!("the owner of {volume} has not approved this edge yet: firn share approve, there"),
            ));
        }
        guards.push(unchanged(&grant));
        (owner, store, Some(grant.record.access))
    } else {
        return Err(Problem::not_found(volume));
    };
    let known = store
        .require::<VolumeRecord>(&VolumeRecord::sort(volume), volume)
        .await?;
    require_state(&known, VolumeState::Active, "opened by an edge")?;
    guards.push(unchanged(&known));
    Ok(Served {
        owner,
        grantee: tenant,
        store,
        volume: known,
        edge: record,
        access,
        guards,
    })
}

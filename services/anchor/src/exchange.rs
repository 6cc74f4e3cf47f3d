//! One exchange of a host that serves one caller at a time by name: grant, size, call, role, answer; the same for each host.

use crate::{
    Admitted, AnchorService,
    grants::{CallerName, Grants},
};
use firn_anchor::{AnchorAnswer, AnchorCall, AnchorRole, EDGE_CALL_BYTES_MAX};
use firn_identity::{TenantId, TenantVolume, VolumeId};
use firn_table::TableError;
use serde_json::json;

/// The largest call of a cleaner retires some fifty segments and proposes heads, each with up to 34 KiB of text.
const CLEANER_CALL_BYTES: usize = 2 << 20;

/// Why a call was not answered: in the words of the control plane (docs/errors.md).
#[derive(Debug)]
pub struct Refusal {
    /// Of HTTP.
    pub status: u16,
    /// What programs tell refusals apart by.
    pub code: &'static str,
    /// For people.
    pub detail: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(status: u16, code: &'static str, detail: impl ToString) -> Self {
        Self {
            status,
            code,
            detail: detail.to_string(),
        }
    }

    /// What the caller is sent.
    pub fn body(&self) -> String {
        json!({ "code": self.code, "detail": self.detail }).to_string()
    }
}

/// A caller at a volume, as far as it was granted.
pub struct Visit {
    caller: CallerName,
    volume: TenantVolume,
    role: AnchorRole,
}

impl Visit {
    /// Lets a caller in, or not. Where a volume is named that is none, and where one is that was not granted, the answer is the same.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn admit(grants: &Grants, caller: CallerName, tenant: &str, volume: &str) -> Result<Self, Refusal> {
        let refused = || {
            let why = format!("{caller} was granted nothing of {tenant}/{volume}");
            Refusal::new(403, "not_allowed", why)
        };
        let volume = match (tenant.parse::<TenantId>(), volume.parse::<VolumeId>()) {
            (Ok(tenant), Ok(volume)) => TenantVolume { tenant, volume },
            (Err(_), _) | (_, Err(_)) => return Err(refused()),
        };
        let role = grants.role(&caller, volume).ok_or_else(refused)?;
        Ok(Self { caller, volume, role })
    }

    /// Bytes of this caller's calls, at most.
    pub fn call_bytes(&self) -> usize {
        match self.role {
            AnchorRole::Cleaner => CLEANER_CALL_BYTES,
            AnchorRole::Edge | AnchorRole::Observer => EDGE_CALL_BYTES_MAX,
        }
    }

    /// Makes the call that is in `body`.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn answer(self, service: &AnchorService, body: &[u8]) -> Result<AnchorAnswer, Refusal> {
        let limit = self.call_bytes();
        if body.len() > limit {
            let why = format!("{limit} bytes at most, not {}", body.len());
            return Err(Refusal::new(413, "body_too_large", why));
        }
        let asked: AnchorCall =
            serde_json::from_slice(body).map_err(|error| Refusal::new(400, "malformed_body", error))?;
        let Self { caller, volume, role } = self;
        let principal = caller.principal();
        if !role.may(&asked) {
            let why = format!("{caller} may not make this call: its role is {role:?}");
            return Err(Refusal::new(403, "not_allowed", why));
        }
        let admitted = Admitted {
            volume,
            role,
            principal,
            guards: Vec::new(),
            granted: None,
        };
        service.answer(admitted, asked).await.map_err(refused)
    }
}

fn refused(error: TableError) -> Refusal {
    match error {
        TableError::Limit(why) => Refusal::new(422, "invalid_field", why),
        TableError::Unavailable(why) | TableError::InvalidAnswer(why) => {
            tracing::warn!(why, "the table did not answer");
            let detail = "the table did not answer; the change may have happened: ask again";
            Refusal::new(503, "storage_unavailable", detail)
        }
        error @ (TableError::ConditionFailed { .. } | TableError::Refused(_)) => {
            tracing::error!(%error, "the table refuses the service");
            Refusal::new(500, "internal", "it was logged; nothing was changed")
        }
    }
}

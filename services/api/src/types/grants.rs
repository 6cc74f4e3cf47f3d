//! Grants: who else may open a volume, and as what.

use firn_identity::{EdgeId, ParseIdError, TenantId, UnixTime, VolumeId};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};
use utoipa::ToSchema;

/// Whom something was granted: an edge of the volume's own tenant, or another tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grantee {
    /// An edge of the same tenant.
    Edge(EdgeId),
    /// Another tenant, for those of its edges that it names and the owner approves.
    Tenant(TenantId),
}

impl fmt::Display for Grantee {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edge(id) => id.fmt(formatter),
            Self::Tenant(id) => id.fmt(formatter),
        }
    }
}

impl FromStr for Grantee {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.starts_with(TenantId::PREFIX) {
            true => text.parse().map(Self::Tenant),
            false => text.parse().map(Self::Edge),
        }
    }
}

impl Serialize for Grantee {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Grantee {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// What a grant lets its edges do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrantAccess {
    /// Follow the volume: read its roots and objects, and change nothing.
    Read,
    /// Change the volume too, by turns with its other edges.
    Write,
}

impl GrantAccess {
    /// Its name, as acceptances are signed for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// What a grant has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrantState {
    /// The other tenant has not accepted it.
    Offered,
    /// The other tenant named edges, and the owner has not approved all of them.
    Accepted,
    /// Its edges are let in.
    Active,
    /// The other tenant declined it, or left: its edges are refused. The owner revokes it, so that a new key epoch begins.
    Left,
    /// Its edges are refused.
    Revoked,
}

/// An edge, and the key to which the volume's keys are wrapped for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantedEdge {
    /// Which.
    #[schema(value_type = String)]
    pub edge: EdgeId,
    /// Its public key, 64 hex digits.
    #[schema(min_length = 64, max_length = 64)]
    pub recipient_key: String,
}

/// Grants a volume.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateGrant {
    /// Whom: the id of an edge of this tenant, or of another tenant.
    #[schema(value_type = String)]
    pub grantee: Grantee,
    /// Of another tenant its public key, 64 hex digits, as its people tell it by another way than this service.
    #[serde(default)]
    #[schema(min_length = 64, max_length = 64)]
    pub grantee_key: Option<String>,
    /// As what.
    pub access: GrantAccess,
}

/// Lets edges in for which the volume's keys were wrapped.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApproveGrant {
    /// All of them, also those that were approved before.
    #[schema(max_items = 64)]
    pub edges: Vec<GrantedEdge>,
}

/// What the other tenant accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Acceptance {
    /// The edges that are to open the volume.
    #[schema(max_items = 64)]
    pub edges: Vec<GrantedEdge>,
    /// Ed25519 by the accepting tenant's key over owner, volume, tenant, access and edges (docs/formats.md), 128 hex digits.
    #[schema(min_length = 128, max_length = 128)]
    pub signature: String,
}

/// A grant, as the volume's owner sees it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VolumeGrant {
    /// Of which volume.
    #[schema(value_type = String)]
    pub volume: VolumeId,
    /// Whom.
    #[schema(value_type = String)]
    pub grantee: Grantee,
    /// The other tenant's public key, as the owner named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grantee_key: Option<String>,
    /// As what.
    pub access: GrantAccess,
    /// What it has come to.
    pub state: GrantState,
    /// What the other tenant accepted: check the signature before wrapping a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<Acceptance>,
    /// The edges that are let in.
    pub edges: Vec<GrantedEdge>,
    /// When it was made.
    #[schema(value_type = u64)]
    pub created: UnixTime,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub revoked: Option<UnixTime>,
    /// When the last credentials of the cloud that its edges may hold end, once it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub credentials_end: Option<UnixTime>,
}

/// Accepts a grant of another tenant's volume.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptGrant {
    /// Whose volume it is.
    #[schema(value_type = String)]
    pub owner: TenantId,
    /// Which.
    #[schema(value_type = String)]
    pub volume: VolumeId,
    /// With which edges of this tenant.
    #[schema(max_items = 64)]
    pub edges: Vec<GrantedEdge>,
    /// See [`Acceptance`].
    #[schema(min_length = 128, max_length = 128)]
    pub signature: String,
}

/// Declines a grant of another tenant's volume, or leaves it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaveGrant {
    /// Whose volume it is.
    #[schema(value_type = String)]
    pub owner: TenantId,
    /// Which.
    #[schema(value_type = String)]
    pub volume: VolumeId,
}

/// A grant of another tenant's volume, as the tenant sees it that accepted it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AcceptedGrant {
    /// Whose volume it is.
    #[schema(value_type = String)]
    pub owner: TenantId,
    /// Which.
    #[schema(value_type = String)]
    pub volume: VolumeId,
    /// What its owner calls it.
    pub name: String,
    /// Where it lies, as the configuration of an edge names it, if the service gives credentials for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// As what.
    pub access: GrantAccess,
    /// What it has come to.
    pub state: GrantState,
    /// The edges that were named.
    pub edges: Vec<GrantedEdge>,
    /// When they were named last.
    #[schema(value_type = u64)]
    pub accepted: UnixTime,
}

//! Edges: how one joins, and what is known of it.

use crate::names::DisplayName;
use firn_edge_state::ObservedState;
use firn_identity::{EdgeId, UnixTime, VolumeId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Invites an edge. The join secret is made by the client and never sent: this is what can be had from it without it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InviteEdge {
    /// What it is called.
    #[schema(value_type = String, min_length = 1, max_length = 64)]
    pub name: DisplayName,
    /// The volumes it will serve.
    #[serde(default)]
    #[schema(value_type = Vec<String>, max_items = 64)]
    pub volumes: Vec<VolumeId>,
    /// The secret's look-up id.
    #[schema(min_length = 22, max_length = 22)]
    pub lookup: String,
    /// SHA-256 of the secret's authenticator, 64 hex digits.
    #[schema(min_length = 64, max_length = 64)]
    pub authenticator_hash: String,
    /// The invitation's content sealed under the secret's wrapping key, base64 without padding.
    #[schema(min_length = 1, max_length = 90_000)]
    pub sealed: String,
}

/// Joins as an edge: done once, by whoever holds the secret.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinEdge {
    /// The secret's authenticator.
    #[schema(min_length = 43, max_length = 43)]
    pub authenticator: String,
    /// The public key that volume keys are to be wrapped to, 64 hex digits.
    #[schema(min_length = 64, max_length = 64)]
    pub recipient_key: String,
    /// The certificate request, base64 without padding.
    #[schema(min_length = 1, max_length = 1024)]
    pub certificate_request: String,
    /// HMAC under the secret's binding key over recipient key and certificate request, 64 hex digits: what shows the inviter
    /// that these keys are the edge's and not the service's.
    #[schema(min_length = 64, max_length = 64)]
    pub binding: String,
}

/// A certificate for mutual TLS.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CertificateIssued {
    /// The certificate, DER in base64 without padding.
    pub certificate: String,
    /// The authority's certificate.
    pub authority: String,
    /// When it expires.
    #[schema(value_type = u64)]
    pub expires: UnixTime,
    /// When to ask for the next.
    #[schema(value_type = u64)]
    pub renew_after: UnixTime,
}

/// What an edge learns when it joins.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EdgeJoined {
    /// The edge.
    pub edge: Edge,
    /// Its first certificate.
    pub certificate: CertificateIssued,
    /// The invitation's sealed content. The service has deleted its copy.
    pub sealed: String,
}

/// Asks for the next certificate.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewCertificate {
    /// The request, base64 without padding.
    #[schema(min_length = 1, max_length = 1024)]
    pub certificate_request: String,
}

/// What an edge's life has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EdgeState {
    /// Its invitation waits.
    Invited,
    /// It joined.
    Active,
    /// It was removed and is refused.
    Revoked,
}

/// An edge.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Edge {
    /// Its id.
    #[schema(value_type = String)]
    pub id: EdgeId,
    /// What it is called.
    #[schema(value_type = String)]
    pub name: DisplayName,
    /// What its life has come to.
    pub state: EdgeState,
    /// The volumes it serves.
    #[schema(value_type = Vec<String>)]
    pub volumes: Vec<VolumeId>,
    /// When its invitation expires.
    #[schema(value_type = u64)]
    pub invitation_expires: UnixTime,
    /// Its public key, 64 hex digits, once it joined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipient_key: Option<String>,
    /// The certificate request it joined with, which the binding covers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_request: Option<String>,
    /// See [`JoinEdge`]: check it before wrapping a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// What cuts it off, once it was removed: done when nothing it was given opens anything any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// When it was last heard of: it reports every ten minutes at least while it runs; absent before the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub last_seen: Option<UnixTime>,
    /// What it said of itself then; absent for an edge that never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<ObservedState>,
    /// The generation of the desired state that the service has for it: once that is in force, the edge does what was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_generation: Option<u64>,
    /// When it was invited.
    #[schema(value_type = u64)]
    pub created: UnixTime,
}

/// What an edge reports: what it counted, how it stands, or both.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportEdge {
    /// An encoded batch of usage records (docs/formats.md), base64 without padding.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 349_526)]
    pub batch: Option<String>,
    /// How it stands. Unlike other bodies it may have fields that the service does not know, since edges may be newer than the service.
    #[serde(default)]
    pub state: Option<ObservedState>,
}

/// What became of a report.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct EdgeReported {
    /// Usage records kept now.
    pub kept: u64,
    /// Usage records that were there before.
    pub duplicates: u64,
    /// The desired state, signed by the authority whose certificate the edge got when it joined; absent if what is in force is it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<String>,
}

/// Credentials of the cloud that end by themselves. They read, list and add under one prefix; they cannot delete or overwrite.
///
/// Those of one cloud are there: the three of AWS, or the two of Azure.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct CloudSessionStarted {
    /// The bucket; on Azure the container.
    pub bucket: String,
    /// What the names of the volume's objects begin with.
    pub prefix: String,
    /// Public part.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub access_key_id: String,
    /// Secret part.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub secret_access_key: String,
    /// What marks it as a session.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub session_token: String,
    /// The storage account.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub azure_account: String,
    /// A shared access signature, as the query of a URL: secret.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub azure_signature: String,
    /// Whether it adds only to the logs of writers that the edge drew before it was asked for: after each draw another is asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_held_to_its_logs: bool,
    /// When it ends, in seconds since 1970.
    #[schema(value_type = u64)]
    pub expires: UnixTime,
}

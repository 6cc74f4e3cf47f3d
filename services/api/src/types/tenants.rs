//! Tenants, members, API keys, tokens, audit.

use crate::names::{DisplayName, Email};
use firn_identity::{KeyId, MemberId, Principal, Role, TenantId, UnixTime};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Asks for a tenant.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignUp {
    /// Where the confirmation goes; its reader becomes the owner.
    #[schema(value_type = String, format = "email", max_length = 254)]
    pub email: Email,
    /// What the tenant is called.
    #[schema(value_type = String, min_length = 1, max_length = 64)]
    pub tenant_name: DisplayName,
}

/// A sign-up was noted. It says the same whether or not the address is known already.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SignUpNoted {
    /// Names the sign-up in the confirmation.
    pub signup: String,
    /// When the code in the mail expires, in seconds since 1970.
    #[schema(value_type = u64)]
    pub expires: UnixTime,
}

/// Confirms a sign-up. The keys are made by the client from the recovery phrase, which never leaves it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfirmSignUp {
    /// The code from the mail.
    #[schema(min_length = 1, max_length = 64)]
    pub code: String,
    /// The tenant's public signing key: 64 hex digits. Clients pin it; it never changes.
    #[schema(min_length = 64, max_length = 64)]
    pub tenant_key: String,
    /// The recovery recipient's public key: 64 hex digits.
    #[schema(min_length = 64, max_length = 64)]
    pub recovery_key: String,
}

/// A tenant that was just made.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Welcome {
    /// The tenant.
    pub tenant: Tenant,
    /// Its owner.
    pub member: Member,
    /// The owner's API key; this is the only time it is shown.
    pub api_key: String,
}

/// Lets an owner in again who has the recovery phrase and no key.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Recover {
    /// The tenant's public signing key, as the phrase gives it: 64 hex digits. The tenant is found by it.
    #[schema(min_length = 64, max_length = 64)]
    pub tenant_key: String,
    /// The tenant, if it was made before tenants were found by their keys.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub tenant: Option<TenantId>,
    /// The owner's address; a letter goes there.
    #[schema(value_type = String, format = "email", max_length = 254)]
    pub email: Email,
    /// Ed25519 over the claim (docs/formats.md, recovery phrase), 128 hex digits.
    #[schema(min_length = 128, max_length = 128)]
    pub signature: String,
}

/// A recovery waits for the code in the letter.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RecoveryNoted {
    /// Names the recovery in the confirmation.
    pub recovery: String,
    /// The tenant.
    #[schema(value_type = String)]
    pub tenant: TenantId,
    /// When the code in the letter expires, in seconds since 1970.
    #[schema(value_type = u64)]
    pub expires: UnixTime,
}

/// Confirms a recovery.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfirmRecovery {
    /// The code from the letter.
    #[schema(min_length = 1, max_length = 64)]
    pub code: String,
    /// Ed25519 over the claim (docs/formats.md, recovery phrase), 128 hex digits.
    #[schema(min_length = 128, max_length = 128)]
    pub signature: String,
}

/// An owner who is in again.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Recovered {
    /// The tenant.
    pub tenant: Tenant,
    /// The owner.
    pub member: Member,
    /// The owner's new API key; this is the only time it is shown.
    pub api_key: String,
    /// What the owner's keys were called that were revoked with this.
    #[schema(value_type = Vec<String>)]
    pub revoked_keys: Vec<DisplayName>,
}

/// A customer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    /// Its id.
    #[schema(value_type = String)]
    pub id: TenantId,
    /// What it is called.
    #[schema(value_type = String)]
    pub name: DisplayName,
    /// Public signing key, 64 hex digits. A client that pinned another one must stop.
    pub tenant_key: String,
    /// Public recovery key, 64 hex digits.
    pub recovery_key: String,
    /// What cloud roles that the tenant grants us must demand, so that nobody else can make us use them.
    pub external_id: String,
    /// `open`, or `closing` once it was closed.
    pub state: String,
    /// When it was made.
    #[schema(value_type = u64)]
    pub created: UnixTime,
}

/// Changes a tenant.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeTenant {
    /// Its new name.
    #[schema(value_type = String, min_length = 1, max_length = 64)]
    pub name: DisplayName,
}

/// A person of a tenant's.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// Their id.
    #[schema(value_type = String)]
    pub id: MemberId,
    /// Their address.
    #[schema(value_type = String)]
    pub email: Email,
    /// What they may do.
    #[schema(value_type = String)]
    pub role: Role,
    /// `invited` until they confirmed.
    pub state: String,
    /// Public key under which volume keys may be wrapped for them, 64 hex digits; vouched for by the key ring, not by us.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// When they were invited.
    #[schema(value_type = u64)]
    pub created: UnixTime,
}

/// Invites a member.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InviteMember {
    /// Where the invitation goes.
    #[schema(value_type = String, format = "email", max_length = 254)]
    pub email: Email,
    /// owner, admin, operator, billing or reader.
    #[schema(value_type = String)]
    pub role: Role,
}

/// Changes a member's role.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeMember {
    /// owner, admin, operator, billing or reader.
    #[schema(value_type = String)]
    pub role: Role,
}

/// Confirms an invitation.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfirmInvitation {
    /// The code from the mail.
    #[schema(min_length = 1, max_length = 64)]
    pub code: String,
    /// The member's public key, 64 hex digits.
    #[schema(min_length = 64, max_length = 64)]
    pub public_key: Option<String>,
}

/// A member who just confirmed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MemberWelcome {
    /// The member.
    pub member: Member,
    /// Their API key; this is the only time it is shown.
    pub api_key: String,
}

/// An API key; its secret is shown when it is made and never again.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// Its id.
    #[schema(value_type = String)]
    pub id: KeyId,
    /// What it is called.
    #[schema(value_type = String)]
    pub name: DisplayName,
    /// In which role it acts.
    #[schema(value_type = String)]
    pub role: Role,
    /// What of the role's rights it is limited to; empty: all.
    pub scopes: Vec<String>,
    /// When it expires.
    #[schema(value_type = u64)]
    pub expires: UnixTime,
    /// Whether it was revoked.
    pub revoked: bool,
    /// When it was made.
    #[schema(value_type = u64)]
    pub created: UnixTime,
}

/// Asks for an API key. Its role may not exceed one's own.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// What it is called.
    #[schema(value_type = String, min_length = 1, max_length = 64)]
    pub name: DisplayName,
    /// owner, admin, operator, billing or reader.
    #[schema(value_type = String)]
    pub role: Role,
    /// What of the role's rights: such as `volume:read`; empty or absent: all.
    #[serde(default)]
    #[schema(max_items = 32)]
    pub scopes: Vec<String>,
    /// For how many seconds it holds; at most a year, which is the default.
    #[serde(default)]
    #[schema(minimum = 60, maximum = 31_622_400)]
    pub lifetime_seconds: Option<u64>,
}

/// An API key that was just made.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeyCreated {
    /// The key.
    pub key: Key,
    /// The secret; this is the only time it is shown.
    pub api_key: String,
}

/// Exchanges an API key for a token.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExchangeKey {
    /// The API key.
    #[schema(min_length = 1, max_length = 128)]
    pub api_key: String,
    /// For which service; `firn-api` if absent.
    #[schema(max_length = 64)]
    pub audience: Option<String>,
    /// Fewer rights than the key has; absent: all of the key's.
    #[schema(max_items = 32)]
    pub scopes: Option<Vec<String>>,
}

/// A token.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenIssued {
    /// The token, for the header `Authorization: Bearer …`.
    pub token: String,
    /// When it expires.
    #[schema(value_type = u64)]
    pub expires: UnixTime,
    /// Whom it speaks for: a member, a key, or a machine, by its id.
    #[schema(value_type = String)]
    pub principal: Principal,
    /// What it may do: the least of what its key and its member may do now.
    #[schema(value_type = String)]
    pub role: Role,
}

/// One change, as the audit log keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Counts a tenant's entries, from 1.
    pub sequence: u64,
    /// When.
    #[schema(value_type = u64)]
    pub at: UnixTime,
    /// Who: a member, key, edge or node; absent before there was any.
    #[schema(value_type = Option<String>)]
    pub principal: Option<Principal>,
    /// What was done.
    pub action: String,
    /// To what.
    pub target: String,
    /// What is worth knowing beside; never a secret.
    pub detail: String,
    /// Random, so that a writer whose reply was lost knows its own entry.
    pub nonce: String,
    /// Hash of the entry before, 64 hex digits; zeros for the first.
    pub previous: String,
    /// Hash of this entry, which covers all above.
    pub hash: String,
}

/// The newest entry's hash, signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditHead {
    /// Whose.
    #[schema(value_type = String)]
    pub tenant: TenantId,
    /// The newest entry.
    pub sequence: u64,
    /// Its hash.
    pub hash: String,
    /// When this was signed.
    #[schema(value_type = u64)]
    pub at: UnixTime,
    /// ES256 over `firn 1 audit head`, tenant, sequence, hash and time, separated by line feeds; 128 hex digits.
    pub signature: String,
    /// The key it was signed with: an uncompressed P-256 point, 130 hex digits. Keep it apart from the log.
    pub public_key: String,
}

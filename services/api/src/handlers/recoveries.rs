//! Account recovery: an owner without any key gets in again, by the recovery phrase and by a letter to their address.
//!
//! ```text
//! client                                                       service
//!   tenant's public key, address, claim signed by the phrase ─▶ the key's tenant, an owner of this address; letter with a code
//!   code, claim over recovery and code signed by the phrase ──▶ new login key; the owner's earlier keys are revoked; all owners get
//!                                                               a letter
//! ```
//!
//! The service knows the tenant's public key from the sign-up, so it can check a signature of the phrase's signing key and learns
//! nothing of the phrase. Neither the letter alone nor the phrase alone opens the account. Nobody without the phrase has a letter sent,
//! or learns whether an address or a key is known: every refusal is the same.

use super::{
    LimitsRecord, NameRecord, hex_field, keys,
    members::{self, MemberRecord},
    signup, tenants,
};
use crate::{
    backup::KnownTenant,
    context::TenantContext,
    endpoint::{Call, Endpoint, Reply},
    mailer::Mail,
    names::Email,
    problem::{Code, Problem},
    secrets::{hex, unhex},
    store::{self, Change, Loaded, Record, TenantStore},
    sweep::Expiring,
    types::{ConfirmRecovery, Member, Recover, Recovered, RecoveryNoted, Tenant},
};
use axum::http::{Method, StatusCode};
use firn_identity::{MemberId, Principal, Revoked, Role, UnixTime, equal_in_constant_time};
use firn_seal::{RecoveryClaim, TenantPublic};
use firn_table::ItemKey;
use serde::{Deserialize, Serialize};

/// How long a letter's code is good: whoever asked waits for it.
const CODE_SECONDS: u64 = 3600;
/// Which tenant a public signing key is of, by its hex digits.
pub(crate) const TENANT_KEYS: &str = "tenant-keys";
/// Two items each, of a hundred that a transaction may have.
const REVOKED_AT_ONCE: usize = 40;
/// Owners who get a letter about a recovery.
const OWNERS_TOLD: usize = 20;

/// A recovery that waits for its letter's code.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RecoveryRecord {
    member: MemberId,
    code_hash: String,
    expires: UnixTime,
}

impl Record for RecoveryRecord {
    const KIND: &'static str = "recovery";
}

impl Expiring for RecoveryRecord {
    fn expires(&self) -> UnixTime {
        self.expires
    }
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/recoveries",
            "recover",
            "Lets an owner in again who has the recovery phrase: sends a letter",
            recover,
        )
        .takes::<Recover>()
        .gives::<RecoveryNoted>(StatusCode::ACCEPTED),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/recoveries/{recovery}/confirm",
            "confirmRecovery",
            "Gives the owner a new key, with the code from the letter and the recovery phrase",
            confirm,
        )
        .takes::<ConfirmRecovery>()
        .gives::<Recovered>(StatusCode::OK),
    ]
}

fn sort(recovery: &str) -> String {
    format!("recovery/{recovery}")
}

/// Where the tenant of a public signing key stands.
pub(super) fn tenant_key_item(tenant_key: &[u8; 32]) -> ItemKey {
    ItemKey::new(TENANT_KEYS, hex(tenant_key))
}

fn refused() -> Problem {
    Problem::new(
        Code::CredentialRefused,
        "no tenant here has this recovery phrase and an owner of this address",
    )
}

fn signature(text: &str) -> Result<[u8; 64], Problem> {
    hex_field("signature", text)
}

/// The tenant, if it is open and its key made the claim.
async fn claimed(
    store: &TenantStore,
    claim: &RecoveryClaim<'_>,
    signature: &[u8; 64],
) -> Result<Option<Tenant>, Problem> {
    let Some(tenant) = store
        .get::<tenants::TenantRecord>(tenants::TenantRecord::SORT)
        .await?
    else {
        return Ok(None);
    };
    let tenant = tenant.record.tenant;
    let key =
        unhex::<32>(&tenant.tenant_key).ok_or_else(|| Problem::internal("a tenant's key is not hex"))?;
    let is_good = tenant.state != tenants::CLOSED && claim.is_of(&TenantPublic::from_bytes(key), signature);
    Ok(is_good.then_some(tenant))
}

/// The owner of an address.
async fn owner(store: &TenantStore, email: &Email) -> Result<Option<Member>, Problem> {
    let Some(entry) = store.get::<NameRecord>(&members::email_sort(email)).await? else {
        return Ok(None);
    };
    let id: MemberId = entry.record.owner.parse().map_err(Problem::internal)?;
    still_owner(store, id).await
}

async fn still_owner(store: &TenantStore, id: MemberId) -> Result<Option<Member>, Problem> {
    let member = store.get::<MemberRecord>(&MemberRecord::sort(id)).await?;
    Ok(member
        .filter(|member| member.record.is_active() && member.record.member.role == Role::Owner)
        .map(|member| member.record.member))
}

async fn recover(call: Call) -> Result<Reply, Problem> {
    let body: Recover = call.body()?;
    let tenant_key: [u8; 32] = hex_field("tenant_key", &body.tenant_key)?;
    let signature = signature(&body.signature)?;
    let claim = RecoveryClaim::Asked {
        trust_domain: call.app.trust_domain(),
        email: body.email.as_str(),
    };
    // Before anything is looked up.
    if !claim.is_of(&TenantPublic::from_bytes(tenant_key), &signature) {
        return Err(refused());
    }
    let tenant = match body.tenant {
        Some(tenant) => tenant,
        None => {
            store::load::<KnownTenant>(call.app.table(), &tenant_key_item(&tenant_key))
                .await?
                .ok_or_else(refused)?
                .record
                .tenant
        }
    };
    let tenant_store = TenantStore::of(call.app.table(), &TenantContext::at_the_door(tenant));
    let shown = claimed(&tenant_store, &claim, &signature)
        .await?
        .ok_or_else(refused)?;
    let member = owner(&tenant_store, &body.email).await?.ok_or_else(refused)?;
    call.once(|| {
        let recipient = body.email.folded();
        call.app.limiter().admit_recovery(call.app.env(), recipient)
    })?;
    let recovery = hex(&call.app.env().random_bytes::<16>());
    let (code, code_hash) = signup::new_code(&call);
    let record = RecoveryRecord {
        member: member.id,
        code_hash,
        expires: call.app.now().plus(CODE_SECONDS),
    };
    Change::new(&tenant_store, None, "member.recover-asked", member.id)
        .detail("the recovery phrase was shown; a letter goes to this owner")
        .create(&sort(&recovery), &record)
        .commit(call.app.env(), None)
        .await?;
    let mail = Mail {
        to: member.email.as_str().to_owned(),
        subject: "Get into Firn again".into(),
        body: format!(
            "Somebody who has the recovery phrase of {} wants to get in as you.\n\nTenant: {tenant}\nRecovery: {recovery}\n\
             Code: {code}\n\nIt is good for an hour. If it was not you, tell nobody the code: somebody else has your recovery phrase.",
            shown.name
        ),
    };
    call.app
        .mailer()
        .send(&mail)
        .await
        .map_err(|error| Problem::new(Code::MailUnavailable, error.to_string()))?;
    Ok(Reply::json(
        StatusCode::ACCEPTED,
        &RecoveryNoted {
            recovery,
            tenant,
            expires: record.expires,
        },
    ))
}

/// The keys with which somebody can act as this owner, and that are not revoked. What the owner made for less goes on.
async fn owner_keys(store: &TenantStore, member: MemberId) -> Result<Vec<Loaded<keys::KeyRecord>>, Problem> {
    let is_owners = |key: &keys::KeyRecord| {
        let acts_as_owner = key.acts_as == Principal::Member(member) || key.key.role == Role::Owner;
        key.made_by == member && acts_as_owner && !key.key.revoked
    };
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let (page, next) = store
            .page::<keys::KeyRecord>("key/", after.as_deref(), 100)
            .await?;
        found.extend(page.into_iter().filter(|key| is_owners(&key.record)));
        match next {
            Some(next) => after = Some(next),
            None => return Ok(found),
        }
    }
}

async fn confirm(call: Call) -> Result<Reply, Problem> {
    let body: ConfirmRecovery = call.body()?;
    let recovery: String = call.param("recovery")?;
    unhex::<16>(&recovery).ok_or_else(signup::code_refused)?;
    let signature = signature(&body.signature)?;
    let store = call.store()?;
    let loaded = store
        .get::<RecoveryRecord>(&sort(&recovery))
        .await?
        .ok_or_else(signup::code_refused)?;
    let shown = signup::code_hash(&body.code);
    let is_codes = equal_in_constant_time(loaded.record.code_hash.as_bytes(), shown.as_bytes());
    if !is_codes || loaded.record.expires < call.app.now() {
        return Err(signup::code_refused());
    }
    let claim = RecoveryClaim::Confirmed {
        trust_domain: call.app.trust_domain(),
        recovery: &recovery,
        code: &body.code,
    };
    let tenant = claimed(&store, &claim, &signature)
        .await?
        .ok_or_else(signup::code_refused)?;
    let member = still_owner(&store, loaded.record.member)
        .await?
        .ok_or_else(signup::code_refused)?;
    let limits = LimitsRecord::load(&store).await?;
    let mut before = owner_keys(&store, member.id).await?;
    // As many as fit into one transaction; more make a second recovery, which finds the others.
    before.truncate(REVOKED_AT_ONCE);
    let (key, api_key) = keys::login_key(&call, &store, &member).await?;
    // Neither a quota nor a cap keeps an owner out.
    let mut counted = limits.record.clone();
    let ended = u32::try_from(before.len()).unwrap_or(u32::MAX);
    counted.in_use.keys = counted.in_use.keys.saturating_sub(ended) + 1;
    let mut change = call
        .change("member.recover", member.id)?
        .by(Principal::Member(member.id))
        .detail(format!(
            "by recovery phrase and letter: new key {}; {ended} earlier keys of the owner are revoked",
            key.key.id
        ))
        .delete(&loaded)
        .update(&limits, &counted);
    for old in &before {
        let mut revoked = old.record.clone();
        revoked.key.revoked = true;
        change = change.update(old, &revoked);
        if let Some(entry) = keys::name_entry_of(&store, &revoked.key).await? {
            change = change.delete(&entry);
        }
    }
    let change = keys::noted(change, &key);
    // Tokens of the keys that were lost, too.
    let mut revoked = vec![Revoked::Principal(Principal::Member(member.id))];
    revoked.extend(before.iter().map(|old| Revoked::Principal(old.record.acts_as)));
    let recovered = Recovered {
        tenant,
        member: member.clone(),
        api_key: api_key.to_string(),
        revoked_keys: before.into_iter().map(|old| old.record.key.name).collect(),
    };
    let reply = Reply::json(StatusCode::OK, &recovered);
    let reply = call.commit_revoking(change, &revoked, reply).await?;
    tell_owners(&call, &store, &recovered).await;
    Ok(reply)
}

/// A letter to every owner; what counts is the entry in the audit log, so one that is not taken keeps nobody out.
async fn tell_owners(call: &Call, store: &TenantStore, recovered: &Recovered) {
    let members = match store.page::<MemberRecord>("member/", None, 100).await {
        Ok((members, _)) => members,
        Err(error) => {
            tracing::warn!(%error, "owners were not told of a recovery");
            return;
        }
    };
    let owners = members.into_iter().map(|member| member.record);
    let owners = owners.filter(|member| member.is_active() && member.member.role == Role::Owner);
    for owner in owners.take(OWNERS_TOLD) {
        let mail = Mail {
            to: owner.member.email.as_str().to_owned(),
            subject: "An owner got into Firn again".into(),
            body: format!(
                "{} got into {} again with the recovery phrase, and has a new key; their earlier keys are revoked.\n\nIf that was not \
                 meant, revoke the key and remove the member: firn key list, firn member list.",
                recovered.member.email.as_str(),
                recovered.tenant.name
            ),
        };
        if let Err(error) = call.app.mailer().send(&mail).await {
            tracing::warn!(%error, owner = %owner.member.id, "an owner was not told of a recovery");
        }
    }
}

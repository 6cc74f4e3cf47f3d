//! Sign-up: an address is noted, a code is mailed, and whoever reads the mail makes the tenant.
//!
//! A sign-up for an address that has a tenant already looks the same, so nobody learns who is a customer. The tenant's id is
//! derived from the sign-up's, so a confirmation whose reply was lost finds the first reply instead of making a second tenant.

use super::{
    LimitsRecord, hex_field, keys,
    members::{self, MemberRecord},
    recoveries,
    tenants::TenantRecord,
};
use crate::{
    backup::{KnownTenant, TENANTS},
    context::TenantContext,
    endpoint::{Call, Endpoint, Reply},
    idempotency::Attempt,
    mailer::Mail,
    names::{DisplayName, Email},
    problem::{Code, Problem},
    secrets::hex,
    store::{self, Change, Record, TenantStore},
    sweep::Expiring,
    types::{ConfirmSignUp, Member, SignUp, SignUpNoted, Tenant, Welcome},
};
use axum::http::{Method, StatusCode};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use firn_identity::{MemberId, Principal, Role, TenantId, UnixTime, equal_in_constant_time};
use firn_table::{Condition, ItemKey, Write};
use serde::{Deserialize, Serialize};

/// How long a code in a mail is good.
pub(super) const CODE_SECONDS: u64 = 24 * 3600;

/// A sign-up that waits for its confirmation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SignUpRecord {
    email: Email,
    tenant_name: DisplayName,
    code_hash: String,
    expires: UnixTime,
}

impl Record for SignUpRecord {
    const KIND: &'static str = "signup";
}

impl Expiring for SignUpRecord {
    fn expires(&self) -> UnixTime {
        self.expires
    }
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/signups",
            "signUp",
            "Asks for a tenant",
            sign_up,
        )
        .takes::<SignUp>()
        .gives::<SignUpNoted>(StatusCode::ACCEPTED),
        Endpoint::new(
            Method::POST,
            "/v1/signups/{signup}/confirm",
            "confirmSignUp",
            "Makes the tenant, with the code from the mail",
            confirm,
        )
        .takes::<ConfirmSignUp>()
        .gives::<Welcome>(StatusCode::CREATED),
    ]
}

fn key(signup: &str) -> ItemKey {
    ItemKey::new("signup", signup)
}

/// A code for a mail, and what is stored of it.
pub(super) fn new_code(call: &Call) -> (String, String) {
    let code = URL_SAFE_NO_PAD.encode(call.app.env().random_bytes::<16>());
    let hash = code_hash(&code);
    (code, hash)
}

pub(super) fn code_hash(code: &str) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("firn-api 1 mailed code");
    hasher.update(code.as_bytes());
    hex(hasher.finalize().as_bytes())
}

pub(super) fn code_refused() -> Problem {
    Problem::new(
        Code::CredentialRefused,
        "the code is wrong, used or expired; ask for a new one",
    )
}

async fn sign_up(call: Call) -> Result<Reply, Problem> {
    let body: SignUp = call.body()?;
    call.once(|| {
        let recipient = body.email.folded();
        call.app
            .limiter()
            .admit_sign_up(call.app.env(), call.address, recipient)
    })?;
    let signup = hex(&call.app.env().random_bytes::<16>());
    let (code, code_hash) = new_code(&call);
    let expires = call.app.now().plus(CODE_SECONDS);
    let record = SignUpRecord {
        email: body.email.clone(),
        tenant_name: body.tenant_name,
        code_hash,
        expires,
    };
    let write = Write::Put {
        key: key(&signup),
        value: store::encode(&record),
        condition: Condition::Absent,
    };
    call.app.table().transact(vec![write]).await?;
    let mail = Mail {
        to: body.email.as_str().to_owned(),
        subject: "Confirm your Firn account".into(),
        body: format!(
            "Somebody, hopefully you, asked for a Firn account.\n\nSign-up: {signup}\nCode: {code}\n\nIt is good for a day. \
             If it was not you, do nothing."
        ),
    };
    call.app
        .mailer()
        .send(&mail)
        .await
        .map_err(|error| Problem::new(Code::MailUnavailable, error.to_string()))?;
    Ok(Reply::json(
        StatusCode::ACCEPTED,
        &SignUpNoted { signup, expires },
    ))
}

async fn confirm(call: Call) -> Result<Reply, Problem> {
    let body: ConfirmSignUp = call.body()?;
    let signup: String = call.param("signup")?;
    crate::secrets::unhex::<16>(&signup).ok_or_else(code_refused)?;
    let tenant_key: [u8; 32] = hex_field("tenant_key", &body.tenant_key)?;
    let recovery_key: [u8; 32] = hex_field("recovery_key", &body.recovery_key)?;
    firn_seal::RecipientPublic::from_bytes(&recovery_key)
        .map_err(|error| Problem::field("recovery_key", error))?;

    let derived = call.app.master().blind(&signup);
    let tenant = TenantId(crate::secrets::unhex(&derived[..32]).expect("a hash has hex digits"));
    let context = TenantContext::at_the_door(tenant);
    let store = TenantStore::of(call.app.table(), &context);
    if body.code.is_empty() {
        return Err(code_refused());
    }
    let attempt = Attempt::new(
        &call.app,
        &context,
        &code_hash(&body.code),
        "confirmSignUp",
        &signup,
        &call.body,
    )?;
    if let Some(reply) = attempt.earlier(&call.app, &store).await? {
        return Ok(reply);
    }
    let noted = store::load::<SignUpRecord>(call.app.table(), &key(&signup))
        .await?
        .ok_or_else(code_refused)?;
    let good = equal_in_constant_time(
        noted.record.code_hash.as_bytes(),
        code_hash(&body.code).as_bytes(),
    );
    let now = call.app.now();
    if !good || noted.record.expires < now {
        return Err(code_refused());
    }

    let member = Member {
        id: MemberId::random(&mut call.app.entropy()),
        email: noted.record.email.clone(),
        role: Role::Owner,
        state: members::ACTIVE.into(),
        public_key: None,
        created: now,
    };
    let shown = Tenant {
        id: tenant,
        name: noted.record.tenant_name.clone(),
        tenant_key: hex(&tenant_key),
        recovery_key: hex(&recovery_key),
        external_id: format!("firn-{}", hex(&call.app.env().random_bytes::<16>())),
        state: "open".into(),
        created: now,
    };
    let (key_record, api_key) = keys::login_key(&call, &store, &member).await?;
    let welcome = Welcome {
        tenant: shown.clone(),
        member: member.clone(),
        api_key: api_key.to_string(),
    };
    let reply = Reply::json(StatusCode::CREATED, &welcome);
    let mut limits = LimitsRecord::default();
    limits.in_use.members = 1;
    limits.in_use.keys = 1;
    limits.owners = 1;
    let change = Change::new(
        &store,
        Some(Principal::Member(member.id)),
        "tenant.create",
        tenant,
    )
    .create(TenantRecord::SORT, &TenantRecord { tenant: shown })
    .create(
        &MemberRecord::sort(member.id),
        &MemberRecord {
            member: member.clone(),
            code_hash: None,
            code_expires: None,
            invited_by: None,
        },
    )
    .create(
        &members::email_sort(&member.email),
        &members::email_record(member.id),
    )
    .create(LimitsRecord::SORT, &limits)
    .create_outside(ItemKey::new(TENANTS, tenant.to_string()), &KnownTenant { tenant })
    .delete(&noted);
    // By its phrase a tenant is found again. Whoever signs up with a key that is another's is not found by it.
    let by_key = recoveries::tenant_key_item(&tenant_key);
    let change = match store::load::<KnownTenant>(call.app.table(), &by_key).await? {
        None => change.create_outside(by_key, &KnownTenant { tenant }),
        Some(_) => change,
    };
    keys::noted(change, &key_record)
        .commit(call.app.env(), Some(attempt.keep(&call.app, &reply)?))
        .await?;
    Ok(reply)
}

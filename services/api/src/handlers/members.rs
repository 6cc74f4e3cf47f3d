//! Members: invited by mail, confirmed by the mail's code, never without an owner.

use super::{LimitsRecord, NameRecord, hex_field, keys, require_free_name, signup, tenants::TenantRecord};
use crate::{
    endpoint::{Call, Endpoint, Reply},
    mailer::Mail,
    names::Email,
    problem::{Code, Problem},
    secrets::hex,
    store::{Record, TenantStore},
    types::{ChangeMember, ConfirmInvitation, InUse, InviteMember, Member, MemberWelcome},
};
use axum::http::{Method, StatusCode};
use firn_identity::{MemberId, Principal, Revoked, Role, UnixTime, equal_in_constant_time};
use serde::{Deserialize, Serialize};

pub(super) const ACTIVE: &str = "active";
const INVITED: &str = "invited";

/// A person of a tenant's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MemberRecord {
    pub(crate) member: Member,
    /// Hash of the code in the invitation's mail.
    pub(crate) code_hash: Option<String>,
    pub(crate) code_expires: Option<UnixTime>,
    /// Who invited them, until they confirmed; nobody knows of invitations made by earlier builds.
    #[serde(default)]
    pub(crate) invited_by: Option<Principal>,
}

impl Record for MemberRecord {
    const KIND: &'static str = "member";
}

impl MemberRecord {
    /// Whether the invitation was accepted.
    pub(crate) fn is_active(&self) -> bool {
        self.member.state == ACTIVE
    }

    pub(crate) fn sort(id: MemberId) -> String {
        format!("member/{id}")
    }
}

pub(crate) fn email_sort(email: &Email) -> String {
    super::name_sort("email", &email.folded())
}

pub(super) fn email_record(member: MemberId) -> NameRecord {
    NameRecord {
        owner: member.to_string(),
    }
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    const MEMBERS: &str = "/v1/tenants/{tenant}/members";
    const MEMBER: &str = "/v1/tenants/{tenant}/members/{member}";
    vec![
        Endpoint::new(Method::GET, MEMBERS, "listMembers", "Lists members", list).lists::<Member>(),
        Endpoint::new(
            Method::POST,
            MEMBERS,
            "inviteMember",
            "Invites somebody by mail",
            invite,
        )
        .takes::<InviteMember>()
        .gives::<Member>(StatusCode::CREATED),
        Endpoint::new(Method::GET, MEMBER, "getMember", "Shows a member", get)
            .gives::<Member>(StatusCode::OK)
            .tagged(),
        Endpoint::new(
            Method::PATCH,
            MEMBER,
            "changeMember",
            "Gives a member another role",
            change,
        )
        .takes::<ChangeMember>()
        .gives::<Member>(StatusCode::OK)
        .if_match(),
        Endpoint::new(
            Method::DELETE,
            MEMBER,
            "removeMember",
            "Removes a member and ends their keys and tokens",
            remove,
        )
        .gives_nothing()
        .if_match(),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/members/{member}/confirm",
            "confirmMember",
            "Accepts an invitation, with the code from the mail",
            confirm,
        )
        .takes::<ConfirmInvitation>()
        .gives::<MemberWelcome>(StatusCode::OK),
    ]
}

/// What somebody of role `granter` may make others: owners anything, admins anything but owners.
pub(super) fn may_grant(granter: Role, granted: Role) -> Result<(), Problem> {
    let person = matches!(
        granted,
        Role::Owner | Role::Admin | Role::Operator | Role::Billing | Role::Reader
    );
    if !person {
        return Err(Problem::field(
            "role",
            "one of owner, admin, operator, billing, reader",
        ));
    }
    if granter.may_grant(granted) {
        Ok(())
    } else {
        Err(Problem::new(
            Code::NotAllowed,
            format!("role {granter} may not grant {granted}"),
        ))
    }
}

/// The role in which somebody may act at `now`: a member's own, a key's as far as its member's goes. Nothing if the member or
/// the key is gone, revoked or expired, and for machines.
pub(super) async fn present_role(
    store: &TenantStore,
    principal: Principal,
    now: UnixTime,
) -> Result<Option<Role>, Problem> {
    let (member, limited_to) = match principal {
        Principal::Member(member) => (member, None),
        Principal::Key(key) => match store.get::<keys::KeyRecord>(&keys::sort(key)).await? {
            Some(key) if key.record.is_good(now) => (key.record.made_by, Some(key.record.key.role)),
            Some(_) | None => return Ok(None),
        },
        Principal::Edge(_) | Principal::Node(_) => return Ok(None),
    };
    let member = store.get::<MemberRecord>(&MemberRecord::sort(member)).await?;
    Ok(member
        .filter(|member| member.record.is_active())
        .and_then(|member| match limited_to {
            None => Some(member.record.member.role),
            Some(role) => member.record.member.role.meet(role),
        }))
}

async fn list(call: Call) -> Result<Reply, Problem> {
    call.list::<MemberRecord, _>("member/", |record| record.member)
        .await
}

async fn get(call: Call) -> Result<Reply, Problem> {
    let id: MemberId = call.param("member")?;
    let member = call
        .store()?
        .require::<MemberRecord>(&MemberRecord::sort(id), id)
        .await?;
    Ok(Reply::json(StatusCode::OK, &member.record.member).tagged(&member))
}

async fn invite(call: Call) -> Result<Reply, Problem> {
    let body: InviteMember = call.body()?;
    may_grant(call.context()?.proved()?.role, body.role)?;
    let store = call.store()?;
    require_free_name(&store, &email_sort(&body.email)).await?;
    let limits = LimitsRecord::load(&store).await?;
    let taken = limits.record.take(
        "members",
        InUse {
            members: 1,
            ..InUse::default()
        },
    )?;
    let tenant = call.context()?.tenant();
    call.once(|| {
        let recipient = body.email.folded();
        call.app
            .limiter()
            .admit_invitation(call.app.env(), tenant, recipient)
    })?;
    let (code, code_hash) = signup::new_code(&call);
    let now = call.app.now();
    let member = Member {
        id: MemberId::random(&mut call.app.entropy()),
        email: body.email,
        role: body.role,
        state: INVITED.into(),
        public_key: None,
        created: now,
    };
    let record = MemberRecord {
        member: member.clone(),
        code_hash: Some(code_hash),
        code_expires: Some(now.plus(signup::CODE_SECONDS)),
        invited_by: Some(call.context()?.proved()?.principal),
    };
    let change = call
        .change("member.invite", member.id)?
        .detail(format!("as {}", member.role))
        .create(&MemberRecord::sort(member.id), &record)
        .create(&email_sort(&member.email), &email_record(member.id))
        .update(&limits, &taken);
    let reply = call
        .commit(change, Reply::json(StatusCode::CREATED, &member))
        .await?;
    let mail = Mail {
        to: member.email.as_str().to_owned(),
        subject: "You are invited to Firn".into(),
        body: format!(
            "Tenant: {tenant}\nMember: {}\nCode: {code}\n\nIt is good for a day.",
            member.id
        ),
    };
    call.app.mailer().send(&mail).await.map_err(|error| {
        Problem::new(
            Code::MailUnavailable,
            format!("{error}; the member is noted: remove and invite again"),
        )
    })?;
    Ok(reply)
}

async fn confirm(call: Call) -> Result<Reply, Problem> {
    let body: ConfirmInvitation = call.body()?;
    let id: MemberId = call.param("member")?;
    let public_key = body
        .public_key
        .as_deref()
        .map(|text| hex_field::<32>("public_key", text))
        .transpose()?;
    if let Some(key) = &public_key {
        firn_seal::RecipientPublic::from_bytes(key).map_err(|error| Problem::field("public_key", error))?;
    }
    let store = call.store()?;
    let loaded = store
        .get::<MemberRecord>(&MemberRecord::sort(id))
        .await?
        .ok_or_else(signup::code_refused)?;
    let stored = loaded.record.code_hash.clone().unwrap_or_default();
    let shown = signup::code_hash(&body.code);
    let in_time = loaded
        .record
        .code_expires
        .is_some_and(|expires| expires >= call.app.now());
    if !equal_in_constant_time(stored.as_bytes(), shown.as_bytes()) || !in_time {
        return Err(signup::code_refused());
    }
    if let Some(inviter) = loaded.record.invited_by {
        let role = present_role(&store, inviter, call.app.now()).await?;
        if !role.is_some_and(|role| role.may_grant(loaded.record.member.role)) {
            return Err(Problem::new(
                Code::CredentialRefused,
                "whoever invited you is gone or may no longer give this role; ask for a new invitation",
            ));
        }
    }
    let limits = LimitsRecord::load(&store).await?;
    let mut taken = limits.record.take(
        "keys",
        InUse {
            keys: 1,
            ..InUse::default()
        },
    )?;
    let mut record = loaded.record.clone();
    record.code_hash = None;
    record.code_expires = None;
    record.invited_by = None;
    record.member.state = ACTIVE.into();
    record.member.public_key = public_key.map(|key| hex(&key));
    if record.member.role == Role::Owner {
        taken.owners += 1;
    }
    let (key, api_key) = keys::login_key(&call, &store, &record.member).await?;
    let welcome = MemberWelcome {
        member: record.member.clone(),
        api_key: api_key.to_string(),
    };
    let change = call
        .change("member.confirm", id)?
        .by(Principal::Member(id))
        .update(&loaded, &record)
        .update(&limits, &taken);
    let change = keys::noted(change, &key);
    call.commit(change, Reply::json(StatusCode::OK, &welcome)).await
}

/// Who was invited as one is none before they confirmed.
fn is_owner(member: &Member) -> bool {
    member.role == Role::Owner && member.state == ACTIVE
}

/// An owner who confirmed counts; the last one stays.
fn without_owner(limits: &LimitsRecord, member: &Member) -> Result<LimitsRecord, Problem> {
    let mut changed = limits.clone();
    if is_owner(member) {
        if limits.owners <= 1 {
            return Err(Problem::new(
                Code::WrongState,
                "the last owner stays; make somebody else owner first",
            ));
        }
        changed.owners -= 1;
    }
    Ok(changed)
}

async fn change(call: Call) -> Result<Reply, Problem> {
    let body: ChangeMember = call.body()?;
    let id: MemberId = call.param("member")?;
    let role = call.context()?.proved()?.role;
    may_grant(role, body.role)?;
    let store = call.store()?;
    let loaded = store.require::<MemberRecord>(&MemberRecord::sort(id), id).await?;
    call.check_if_match(&loaded)?;
    may_grant(role, loaded.record.member.role)?;
    let limits = LimitsRecord::load(&store).await?;
    let mut counted = without_owner(&limits.record, &loaded.record.member).or_else(|problem| {
        if body.role == Role::Owner {
            Ok(limits.record.clone())
        } else {
            Err(problem)
        }
    })?;
    if is_owner(&loaded.record.member) && body.role != Role::Owner {
        keys::require_key_of_owner(&store, call.app.now(), |key| key.made_by != id).await?;
    }
    let mut record = loaded.record.clone();
    record.member.role = body.role;
    if body.role == Role::Owner && record.member.state == ACTIVE {
        counted.owners = if loaded.record.member.role == Role::Owner {
            limits.record.owners
        } else {
            limits.record.owners + 1
        };
    }
    let change = call
        .change("member.change", id)?
        .detail(format!("from {} to {}", loaded.record.member.role, body.role))
        .update(&loaded, &record)
        .update(&limits, &counted);
    // Tokens of the old role end now, not in five minutes; so do those of the keys they made, which may do no more than they.
    let mut revoked = keys::made_by(&store, id).await?;
    revoked.push(Revoked::Principal(Principal::Member(id)));
    let reply = Reply::json(StatusCode::OK, &record.member);
    call.commit_revoking(change, &revoked, reply).await
}

async fn remove(call: Call) -> Result<Reply, Problem> {
    let id: MemberId = call.param("member")?;
    let store = call.store()?;
    let loaded = store.require::<MemberRecord>(&MemberRecord::sort(id), id).await?;
    call.check_if_match(&loaded)?;
    may_grant(call.context()?.proved()?.role, loaded.record.member.role)?;
    let email = store
        .get::<NameRecord>(&email_sort(&loaded.record.member.email))
        .await?;
    let limits = LimitsRecord::load(&store).await?;
    let given = without_owner(&limits.record, &loaded.record.member)?.give_back(InUse {
        members: 1,
        ..InUse::default()
    });
    if is_owner(&loaded.record.member) {
        keys::require_key_of_owner(&store, call.app.now(), |key| key.made_by != id).await?;
    }
    let tenant = store
        .require::<TenantRecord>(TenantRecord::SORT, "the tenant")
        .await?;
    let mut change = call
        .change("member.remove", id)?
        .detail("rotate the key epoch: what they could read they may have kept")
        .delete(&loaded)
        .check(&tenant)
        .update(&limits, &given);
    if let Some(email) = &email {
        change = change.delete(email);
    }
    // Their keys are refused from now on because their member is gone; what is left are tokens already handed out.
    let mut revoked = keys::made_by(&store, id).await?;
    revoked.push(Revoked::Principal(Principal::Member(id)));
    call.commit_revoking(change, &revoked, Reply::nothing()).await
}

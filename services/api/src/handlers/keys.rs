//! API keys, and the tokens they are exchanged for.
//!
//! A **login key** acts as the member it was made for, in the role the member has at that moment. Any other key acts as
//! itself, in the role and scopes it was made with as far as the present role of the member who made it includes them
//! ([`Role::meet`]), and only as long as that member is there. Whoever changes a member's role ends the tokens of their keys in
//! the same transaction, so that no token is of more than its key's present role.
//!
//! A key's name is its own until it is revoked. One that expired, or whose member is gone, gives its name up to whoever asks for it,
//! and is revoked with that.

use super::{
    LimitsRecord, NameRecord,
    members::{self, MemberRecord},
    name_entry, name_sort, name_taken,
    tenants::{self, TenantRecord},
};
use crate::{
    app::AUDIENCE,
    endpoint::{Call, Endpoint, Reply},
    names::DisplayName,
    problem::{Code, Problem},
    store::{Change, Loaded, Record, TenantStore},
    types::{CreateKey, ExchangeKey, InUse, Key, KeyCreated, Member, TokenIssued},
};
use axum::http::{Method, StatusCode};
use firn_identity::{
    ApiKey, ApiKeyHash, Grant, KeyId, MAX_SCOPE_BYTES, MAX_SCOPES, MAX_TOKEN_SECONDS, MemberId, Principal,
    Revoked, Role, UnixTime,
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// The longest life of a key.
const MAX_KEY_SECONDS: u64 = 366 * 24 * 3600;
const MIN_KEY_SECONDS: u64 = 60;

/// An API key, as far as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeyRecord {
    pub(crate) key: Key,
    pub(crate) hash: ApiKeyHash,
    pub(crate) acts_as: Principal,
    pub(crate) made_by: MemberId,
}

impl Record for KeyRecord {
    const KIND: &'static str = "key";
}

impl KeyRecord {
    /// Whether it is neither revoked nor expired.
    pub(crate) fn is_good(&self, now: UnixTime) -> bool {
        !self.key.revoked && self.key.expires > now
    }
}

pub(super) fn sort(id: KeyId) -> String {
    format!("key/{id}")
}

/// A key's place in the index of names.
pub(crate) fn key_name_sort(name: &DisplayName) -> String {
    name_sort("key", &name.folded())
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    const KEYS: &str = "/v1/tenants/{tenant}/keys";
    const KEY: &str = "/v1/tenants/{tenant}/keys/{key}";
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/tokens",
            "exchangeKey",
            "Exchanges an API key for a token of at most five minutes",
            exchange,
        )
        .takes::<ExchangeKey>()
        .gives::<TokenIssued>(StatusCode::CREATED),
        Endpoint::new(
            Method::GET,
            KEYS,
            "listKeys",
            "Lists API keys, without their secrets",
            list,
        )
        .lists::<Key>(),
        Endpoint::new(
            Method::POST,
            KEYS,
            "createKey",
            "Makes an API key; its secret is shown this once",
            create,
        )
        .takes::<CreateKey>()
        .gives::<KeyCreated>(StatusCode::CREATED),
        Endpoint::new(
            Method::GET,
            KEY,
            "getKey",
            "Shows an API key, without its secret",
            get,
        )
        .gives::<Key>(StatusCode::OK)
        .tagged(),
        Endpoint::new(
            Method::DELETE,
            KEY,
            "revokeKey",
            "Revokes an API key and the tokens it gave",
            revoke,
        )
        .gives_nothing()
        .if_match(),
    ]
}

fn key_record(
    call: &Call,
    name: DisplayName,
    role: Role,
    scopes: Vec<String>,
    seconds: u64,
    made_by: MemberId,
    acts_as: Option<Principal>,
) -> (KeyRecord, Zeroizing<String>) {
    let secret = ApiKey::generate(&mut call.app.entropy());
    let now = call.app.now();
    let record = KeyRecord {
        key: Key {
            id: secret.id(),
            name,
            role,
            scopes,
            expires: now.plus(seconds),
            revoked: false,
            created: now,
        },
        hash: secret.hash(),
        acts_as: acts_as.unwrap_or(Principal::Key(secret.id())),
        made_by,
    };
    (record, secret.expose())
}

/// The key a member logs in with: `login`, or if that is another's, `login of ADDRESS`, or by its id.
pub(super) async fn login_key(
    call: &Call,
    store: &TenantStore,
    member: &Member,
) -> Result<(KeyRecord, Zeroizing<String>), Problem> {
    let named = |text: String| DisplayName::try_from(text);
    let login = named("login".to_owned()).map_err(Problem::internal)?;
    let acts_as = Some(Principal::Member(member.id));
    let (mut record, secret) = key_record(
        call,
        login,
        member.role,
        Vec::new(),
        MAX_KEY_SECONDS,
        member.id,
        acts_as,
    );
    let others = [
        format!("login of {}", member.email.as_str()),
        format!("login {}", record.key.id),
    ];
    for other in others {
        if store
            .get::<NameRecord>(&key_name_sort(&record.key.name))
            .await?
            .is_none()
        {
            break;
        }
        // An address may be longer than a name.
        record.key.name = named(other).unwrap_or(record.key.name);
    }
    Ok((record, secret))
}

/// Writes a new key and the entry of its name.
pub(super) fn noted(change: Change, record: &KeyRecord) -> Change {
    let entry = NameRecord {
        owner: record.key.id.to_string(),
    };
    change
        .create(&sort(record.key.id), record)
        .create(&key_name_sort(&record.key.name), &entry)
}

/// The entry of a key's name.
pub(super) async fn name_entry_of(
    store: &TenantStore,
    key: &Key,
) -> Result<Option<Loaded<NameRecord>>, Problem> {
    name_entry(store, &key_name_sort(&key.name), key.id).await
}

/// Who has the name of a key that is to be made: nobody, or a key that is of no use any more.
///
/// # Errors
/// [`Code::NameTaken`].
async fn given_up(
    store: &TenantStore,
    name: &DisplayName,
    now: UnixTime,
) -> Result<Option<(Loaded<NameRecord>, Option<Loaded<KeyRecord>>)>, Problem> {
    let Some(entry) = store.get::<NameRecord>(&key_name_sort(name)).await? else {
        return Ok(None);
    };
    let id: KeyId = entry.record.owner.parse().map_err(Problem::internal)?;
    let holder = store.get::<KeyRecord>(&sort(id)).await?;
    if let Some(holder) = &holder
        && holder.record.is_good(now)
        && store
            .get::<MemberRecord>(&MemberRecord::sort(holder.record.made_by))
            .await?
            .is_some()
    {
        return Err(name_taken(&entry.record));
    }
    Ok(Some((entry, holder)))
}

/// What to revoke when a member goes or gets another role: the tokens of every key they made.
pub(super) async fn made_by(store: &TenantStore, member: MemberId) -> Result<Vec<Revoked>, Problem> {
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let (keys, next) = store.page::<KeyRecord>("key/", after.as_deref(), 100).await?;
        let theirs = keys.iter().filter(|key| key.record.made_by == member);
        found.extend(theirs.map(|key| Revoked::Principal(key.record.acts_as)));
        match next {
            Some(next) => after = Some(next),
            None => return Ok(found),
        }
    }
}

/// Whether the key lets somebody act as an owner at `now`.
async fn is_of_owner(store: &TenantStore, record: &KeyRecord, now: UnixTime) -> Result<bool, Problem> {
    if !record.is_good(now) {
        return Ok(false);
    }
    let member = store
        .get::<MemberRecord>(&MemberRecord::sort(record.made_by))
        .await?;
    Ok(member
        .filter(|member| member.record.is_active() && member.record.member.role == Role::Owner)
        .is_some_and(|_| {
            record.acts_as == Principal::Member(record.made_by) || record.key.role == Role::Owner
        }))
}

/// A tenant always has a key with which an owner can log in: nothing else lets anybody in again.
///
/// `stays` says which keys will still be there. The caller has loaded the tenant's [`LimitsRecord`] before and changes it in the same
/// transaction, so that of two who take the last two keys one has to look again.
///
/// # Errors
/// [`Code::WrongState`] if no owner's key would be left.
pub(super) async fn require_key_of_owner(
    store: &TenantStore,
    now: UnixTime,
    stays: impl Fn(&KeyRecord) -> bool,
) -> Result<(), Problem> {
    let mut after = None;
    loop {
        let (keys, next) = store.page::<KeyRecord>("key/", after.as_deref(), 100).await?;
        for key in keys.iter().filter(|key| stays(&key.record)) {
            if is_of_owner(store, &key.record, now).await? {
                return Ok(());
            }
        }
        match next {
            Some(next) => after = Some(next),
            None => {
                return Err(Problem::new(
                    Code::WrongState,
                    "no owner could log in any more: it is the last key that an owner has; make another first \
                     (firn key create NAME --role owner)",
                ));
            }
        }
    }
}

fn check_scopes(scopes: &[String]) -> Result<(), Problem> {
    let is_scope = |scope: &String| {
        (1..=MAX_SCOPE_BYTES).contains(&scope.len())
            && scope
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b':')
    };
    if scopes.len() > MAX_SCOPES || !scopes.iter().all(is_scope) {
        return Err(Problem::field(
            "scopes",
            format!("at most {MAX_SCOPES}, each such as volume:read"),
        ));
    }
    Ok(())
}

/// Whether `narrow` stays within `wide`, where none at all means all.
fn is_within(narrow: &[String], wide: &[String]) -> bool {
    wide.is_empty() || (!narrow.is_empty() && narrow.iter().all(|scope| wide.contains(scope)))
}

async fn list(call: Call) -> Result<Reply, Problem> {
    call.list::<KeyRecord, _>("key/", |record| record.key).await
}

async fn get(call: Call) -> Result<Reply, Problem> {
    let id: KeyId = call.param("key")?;
    let key = call.store()?.require::<KeyRecord>(&sort(id), id).await?;
    Ok(Reply::json(StatusCode::OK, &key.record.key).tagged(&key))
}

async fn create(call: Call) -> Result<Reply, Problem> {
    let body: CreateKey = call.body()?;
    let caller = call.context()?.proved()?.clone();
    let Principal::Member(member) = caller.principal else {
        return Err(Problem::new(
            Code::NotAllowed,
            "keys are made by members, so that somebody answers for each",
        ));
    };
    members::may_grant(caller.role, body.role)?;
    check_scopes(&body.scopes)?;
    if !is_within(&body.scopes, &caller.scopes) {
        return Err(Problem::new(
            Code::NotAllowed,
            "a key may not reach further than the token it is made with",
        ));
    }
    let seconds = body.lifetime_seconds.unwrap_or(MAX_KEY_SECONDS);
    if !(MIN_KEY_SECONDS..=MAX_KEY_SECONDS).contains(&seconds) {
        return Err(Problem::field(
            "lifetime_seconds",
            format!("{MIN_KEY_SECONDS} to {MAX_KEY_SECONDS}"),
        ));
    }
    let store = call.store()?;
    let one = || InUse {
        keys: 1,
        ..InUse::default()
    };
    let before = given_up(&store, &body.name, call.app.now()).await?;
    let limits = LimitsRecord::load(&store).await?;
    let ended = before.as_ref().and_then(|(_, holder)| holder.as_ref());
    let ended = ended.filter(|holder| !holder.record.key.revoked);
    let free = match ended {
        Some(_) => limits.record.give_back(one()),
        None => limits.record.clone(),
    };
    let taken = free.take("keys", one())?;
    let (record, api_key) = key_record(&call, body.name, body.role, body.scopes, seconds, member, None);
    let created = KeyCreated {
        key: record.key.clone(),
        api_key: api_key.to_string(),
    };
    let mut change = call.change("key.create", record.key.id)?.update(&limits, &taken);
    let mut detail = format!("as {}", record.key.role);
    if let Some(holder) = ended {
        let mut revoked = holder.record.clone();
        revoked.key.revoked = true;
        detail.push_str(&format!(
            "; in place of {}, which was of no use any more",
            revoked.key.id
        ));
        change = change.update(holder, &revoked);
    }
    let change = match &before {
        None => noted(change, &record),
        Some((entry, _)) => change.create(&sort(record.key.id), &record).update(
            entry,
            &NameRecord {
                owner: record.key.id.to_string(),
            },
        ),
    };
    let change = change.detail(detail);
    call.commit(change, Reply::json(StatusCode::CREATED, &created))
        .await
}

async fn revoke(call: Call) -> Result<Reply, Problem> {
    let id: KeyId = call.param("key")?;
    let store = call.store()?;
    let loaded = store.require::<KeyRecord>(&sort(id), id).await?;
    call.check_if_match(&loaded)?;
    if loaded.record.key.revoked {
        return Ok(Reply::nothing());
    }
    members::may_grant(call.context()?.proved()?.role, loaded.record.key.role)?;
    let limits = LimitsRecord::load(&store).await?;
    let now = call.app.now();
    if is_of_owner(&store, &loaded.record, now).await? {
        require_key_of_owner(&store, now, |other| other.key.id != id).await?;
    }
    let given = limits.record.give_back(InUse {
        keys: 1,
        ..InUse::default()
    });
    let mut record = loaded.record.clone();
    record.key.revoked = true;
    let mut change = call
        .change("key.revoke", id)?
        .update(&loaded, &record)
        .update(&limits, &given);
    if let Some(entry) = name_entry_of(&store, &record.key).await? {
        change = change.delete(&entry);
    }
    let revoked = [Revoked::Principal(record.acts_as)];
    call.commit_revoking(change, &revoked, Reply::nothing()).await
}

async fn exchange(call: Call) -> Result<Reply, Problem> {
    let body: ExchangeKey = call.body()?;
    let refused = || {
        Problem::new(
            Code::CredentialRefused,
            "the API key is wrong, revoked or expired, or not of this tenant",
        )
    };
    let shown = ApiKey::parse(&body.api_key).map_err(|_| refused())?;
    let store = call.store()?;
    let record = store
        .get::<KeyRecord>(&sort(shown.id()))
        .await?
        .ok_or_else(refused)?
        .record;
    let now = call.app.now();
    if !record.hash.matches(&shown) || !record.is_good(now) {
        return Err(refused());
    }
    let member = store
        .get::<MemberRecord>(&MemberRecord::sort(record.made_by))
        .await?
        .ok_or_else(refused)?
        .record
        .member;
    let tenant = store
        .require::<TenantRecord>(TenantRecord::SORT, "the tenant")
        .await?
        .record
        .tenant;
    if tenant.state == tenants::CLOSED {
        return Err(refused());
    }
    let scopes = match body.scopes {
        None => record.key.scopes.clone(),
        Some(scopes) => {
            check_scopes(&scopes)?;
            if !is_within(&scopes, &record.key.scopes) {
                return Err(Problem::new(
                    Code::NotAllowed,
                    "the API key does not have these scopes",
                ));
            }
            scopes
        }
    };
    let audience = body.audience.unwrap_or_else(|| AUDIENCE.to_owned());
    let is_service = (1..=64).contains(&audience.len())
        && audience
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !is_service {
        return Err(Problem::field("audience", "a service's name, such as firn-api"));
    }
    let role = if record.acts_as == Principal::Member(member.id) {
        member.role
    } else {
        member.role.meet(record.key.role).ok_or_else(refused)?
    };
    let grant = Grant {
        audience,
        principal: record.acts_as,
        tenant: tenant.id,
        role,
        scopes,
        lifetime_seconds: MAX_TOKEN_SECONDS.min(record.key.expires.0 - now.0),
    };
    let (token, claims) = call.app.issuer().issue(&grant, now, &mut call.app.entropy());
    Ok(Reply::json(
        StatusCode::CREATED,
        &TokenIssued {
            token,
            expires: claims.expires,
            principal: grant.principal,
            role: grant.role,
        },
    ))
}

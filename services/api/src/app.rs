//! The service's parts in one value, cheap to clone.

use crate::{
    cloud::CloudSessions,
    limiter::{Limiter, Limits},
    mailer::Mailer,
    metering::OperationCounts,
    metrics::RequestFigures,
    placement::DiskPlacement,
    policy::Policy,
    pool::Pool,
    problem::Problem,
    secrets::MasterSecret,
    store::{self, Change, Record},
    tenant_locks::TenantLocks,
};
use firn_anchor_service::AnchorService;
use firn_billing::Billing;
use firn_env::{Env, Watched};
use firn_identity::{
    AuthorityError, CapabilityIssuer, CertificateAuthority, JwkSet, KEY_PERIOD_SECONDS, Revocations, Revoked,
    SigningKey, TenantId, TokenIssuer, TokenVerifier, UnixTime,
};
use firn_table::{Condition, ItemKey, ItemVersion, Table, TableError, Write};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::Semaphore;

/// The audience of tokens for this service.
pub const AUDIENCE: &str = "firn-api";

/// Within this time a token that was taken back is refused by every instance and by every verifier that follows the list, if the
/// table answers: an instance reads the list every two seconds, one whose table does not answer again after a quarter of a
/// second, and whoever follows `GET /v1/revocations/after/{sequence}` is told at once by the instance it asks.
pub const REVOKED_WITHIN: Duration = Duration::from_secs(5);
const REVOCATION_PERIOD: Duration = Duration::from_secs(2);
const REVOCATION_RETRY: Duration = Duration::from_millis(250);
/// Well below the 30 s after which gateways give a request up.
const REVOCATION_WAIT: Duration = Duration::from_secs(10);
/// Verifiers with a token or a certificate that wait at one instance: each costs a connection and some kilobytes.
const REVOCATION_WAITERS: usize = 256;
/// Strangers that wait beside them, in all and of one address.
const STRANGERS_WAITING: usize = 32;
const STRANGERS_WAITING_PER_ADDRESS: usize = 4;
/// How long a signed list is given to all who ask before it is signed anew.
const SIGNED_SECONDS: u64 = 60;

/// How long the capability of a disk's attachment holds. Machines renew it when a twelfth is over, so they go on for at least 110
/// minutes while the service is away; and one that was cut off from the service by force can use what it has for no longer.
pub const DISK_CAPABILITY_SECONDS: u64 = 2 * 3600;

/// What a service is made of.
pub struct Parts {
    /// The outside world.
    pub env: Env,
    /// Where everything is stored.
    pub table: Arc<dyn Table>,
    /// What all keys derive from.
    pub master: MasterSecret,
    /// Who may do what.
    pub policy: Arc<dyn Policy>,
    /// Sends mail.
    pub mailer: Arc<dyn Mailer>,
    /// Places disks.
    pub placement: Arc<dyn DiskPlacement>,
    /// Nodes that the service starts by itself; none: disks go where they fit, or nowhere.
    pub pool: Option<Pool>,
    /// The tenant in whose name the operator runs nodes of the fleet, which copy every tenant's sealed blocks; the pool's tenant
    /// is one as well. Nodes of all others are their own and have no business in the fleet.
    pub fleet_tenant: Option<TenantId>,
    /// Gives edges credentials of the cloud.
    pub cloud: Arc<dyn CloudSessions>,
    /// The service's address: what tokens name as their issuer.
    pub issuer: String,
    /// The address of edges, nodes and machines with disks, where it is another than people's; invitations name it.
    pub machine_server: Option<String>,
    /// The installation's name in certificates.
    pub trust_domain: String,
    /// Counts replacements of leaked token keys.
    pub token_generation: u32,
    /// For how many seconds a machine that has a disk may use it without a word of the service: [`DISK_CAPABILITY_SECONDS`], unless the
    /// operator wants another.
    pub disk_capability_seconds: u64,
    /// Whether what all tenants' usage shares is spread over many partitions of the table: all instances must be of builds that know of it.
    pub spread_ledger: bool,
    /// How often what may be asked for.
    pub limits: Limits,
}

/// The service.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    parts: Parts,
    issuer: TokenIssuer,
    verifier: RwLock<TokenVerifier>,
    authority: CertificateAuthority,
    capabilities: CapabilityIssuer,
    audit_key: SigningKey,
    sagas: tokio::sync::Notify,
    /// The number of the list in force.
    revoked: Watched<u64>,
    waiters: Semaphore,
    strangers: Mutex<BTreeMap<IpAddr, usize>>,
    /// The period of keys of the set that the verifier has.
    key_period: AtomicU64,
    /// The signed list: its number, when it was signed, and its text.
    signed: Mutex<(u64, UnixTime, Arc<str>)>,
    billing: Arc<Billing>,
    anchor: AnchorService,
    counts: OperationCounts,
    served: RequestFigures,
    limiter: Limiter,
    tenant_locks: TenantLocks,
}

impl Record for Revocations {
    const KIND: &'static str = "revocations";
    const VERSION: u16 = 2;

    /// Version 1 was one list for all tenants; [`Revocations`] keeps its entries until they expire.
    fn upgrade(version: u16, record: serde_json::Value) -> Option<serde_json::Value> {
        (version == 1).then_some(record)
    }
}

pub(crate) fn revocations_key() -> ItemKey {
    ItemKey::new("service", "revocations")
}

impl App {
    /// Puts a service together.
    ///
    /// # Errors
    /// If the trust domain is no name.
    pub fn new(parts: Parts) -> Result<Self, AuthorityError> {
        let issuer = TokenIssuer::new(&*parts.issuer, parts.master.token_keys(parts.token_generation));
        let now = UnixTime::from_wall(parts.env.wall());
        let verifier = TokenVerifier::new(&*parts.issuer, AUDIENCE, issuer.public_keys(now));
        Ok(Self(Arc::new(Inner {
            authority: parts.master.authority(&parts.trust_domain)?,
            capabilities: parts.master.capabilities(),
            audit_key: parts.master.audit_key(),
            verifier: RwLock::new(verifier),
            issuer,
            billing: Arc::new(Billing::new(&parts.env, parts.table.clone()).spread(parts.spread_ledger)),
            anchor: AnchorService::new(parts.table.clone()),
            counts: OperationCounts::default(),
            served: RequestFigures::default(),
            limiter: Limiter::new(parts.limits),
            tenant_locks: TenantLocks::default(),
            parts,
            sagas: tokio::sync::Notify::new(),
            revoked: Watched::new(0),
            waiters: Semaphore::new(REVOCATION_WAITERS),
            strangers: Mutex::default(),
            key_period: AtomicU64::new(now.0 / KEY_PERIOD_SECONDS),
            signed: Mutex::new((0, UnixTime(0), "".into())),
        })))
    }

    /// Where edges, nodes and machines with disks call, if it is another address than people's.
    pub(crate) fn machine_server(&self) -> Option<&str> {
        self.0.parts.machine_server.as_deref()
    }

    pub(crate) fn env(&self) -> &Env {
        &self.0.parts.env
    }

    pub(crate) fn table(&self) -> &Arc<dyn Table> {
        &self.0.parts.table
    }

    pub(crate) fn master(&self) -> &MasterSecret {
        &self.0.parts.master
    }

    pub(crate) fn policy(&self) -> &dyn Policy {
        &*self.0.parts.policy
    }

    pub(crate) fn mailer(&self) -> &dyn Mailer {
        &*self.0.parts.mailer
    }

    pub(crate) fn placement(&self) -> &dyn DiskPlacement {
        &*self.0.parts.placement
    }

    pub(crate) fn pool(&self) -> Option<&Pool> {
        self.0.parts.pool.as_ref()
    }

    /// Whether this tenant's nodes are the fleet's.
    pub(crate) fn is_fleets(&self, tenant: TenantId) -> bool {
        self.0.parts.fleet_tenant == Some(tenant)
            || self.pool().is_some_and(|pool| pool.settings.tenant == tenant)
    }

    /// The ledger, over the same table.
    pub fn billing(&self) -> &Arc<Billing> {
        &self.0.billing
    }

    /// The anchor of the volumes that edges serve.
    pub(crate) fn anchor(&self) -> &AnchorService {
        &self.0.anchor
    }

    pub(crate) fn limiter(&self) -> &Limiter {
        &self.0.limiter
    }

    pub(crate) fn tenant_locks(&self) -> &TenantLocks {
        &self.0.tenant_locks
    }

    pub(crate) fn counts(&self) -> &OperationCounts {
        &self.0.counts
    }

    pub(crate) fn served(&self) -> &RequestFigures {
        &self.0.served
    }

    pub(crate) fn cloud(&self) -> &dyn CloudSessions {
        &*self.0.parts.cloud
    }

    pub(crate) fn issuer(&self) -> &TokenIssuer {
        &self.0.issuer
    }

    /// The certificate authority.
    pub fn authority(&self) -> &CertificateAuthority {
        &self.0.authority
    }

    pub(crate) fn disk_capability_seconds(&self) -> u64 {
        self.0.parts.disk_capability_seconds
    }

    pub(crate) fn capabilities(&self) -> &CapabilityIssuer {
        &self.0.capabilities
    }

    pub(crate) fn audit_key(&self) -> &SigningKey {
        &self.0.audit_key
    }

    pub(crate) fn trust_domain(&self) -> &str {
        &self.0.parts.trust_domain
    }

    /// The service's clock.
    pub fn now(&self) -> UnixTime {
        UnixTime::from_wall(self.env().wall())
    }

    pub(crate) fn entropy(&self) -> impl FnMut(&mut [u8]) + '_ {
        |bytes| {
            for chunk in bytes.chunks_mut(32) {
                let fresh = zeroize::Zeroizing::new(self.env().random_bytes::<32>());
                chunk.copy_from_slice(&fresh[..chunk.len()]);
            }
        }
    }

    pub(crate) fn verify_token(
        &self,
        text: &str,
    ) -> Result<firn_identity::VerifiedToken, firn_identity::TokenError> {
        let now = self.now();
        {
            let verifier = self.0.verifier.read().expect("no panic under this lock");
            match verifier.verify(text, now) {
                Err(firn_identity::TokenError::UnknownKey) => {}
                result => return result,
            }
        }
        // A key that is not of this day's set is nobody's, and a stranger who names one costs no more than that.
        if !self.follow_the_day(now) {
            return Err(firn_identity::TokenError::UnknownKey);
        }
        let verifier = self.0.verifier.read().expect("no panic under this lock");
        verifier.verify(text, now)
    }

    /// Makes the key set anew if the day has changed since it was made; says whether it did.
    fn follow_the_day(&self, now: UnixTime) -> bool {
        let period = now.0 / KEY_PERIOD_SECONDS;
        if self.0.key_period.swap(period, Ordering::SeqCst) == period {
            return false;
        }
        let keys = self.0.issuer.public_keys(now);
        self.0.verifier.write().expect("no panic under this lock").keys = keys;
        true
    }

    /// The keys tokens are checked with.
    pub(crate) fn public_keys(&self) -> JwkSet {
        self.follow_the_day(self.now());
        let verifier = self.0.verifier.read().expect("no panic under this lock");
        verifier.keys.clone()
    }

    /// The list of revocations as verifiers take it. Signing costs; so a list is signed once for all who ask within a minute.
    pub(crate) fn signed_revocations(&self) -> Arc<str> {
        let (list, now) = (self.revocations(), self.now());
        let mut signed = self.0.signed.lock().expect("no panic under this lock");
        let (sequence, at, text) = &*signed;
        if *sequence == list.sequence() && *at <= now && now < at.plus(SIGNED_SECONDS) {
            return text.clone();
        }
        let text: Arc<str> = self.issuer().sign_revocations(&list, now).into();
        *signed = (list.sequence(), now, text.clone());
        text
    }

    /// The list of revocations with more of a tenant's on it, and the version of the item it was read from.
    async fn longer_list(
        &self,
        tenant: TenantId,
        what: &[Revoked],
    ) -> Result<(Revocations, Option<ItemVersion>), Problem> {
        let stored = store::load::<Revocations>(self.table(), &revocations_key()).await?;
        let version = stored.as_ref().map(|stored| stored.version);
        let mut list = stored.map(|stored| stored.record).unwrap_or_default();
        for what in what {
            list.revoke(tenant, *what, self.now());
        }
        Ok((list, version))
    }

    /// Adds to a change that tokens of the tenant are taken back. Once it is committed, the list is to be [installed](App::install).
    pub(crate) async fn revoking(
        &self,
        tenant: TenantId,
        change: Change,
        what: &[Revoked],
    ) -> Result<(Change, Revocations), Problem> {
        let (list, version) = self.longer_list(tenant, what).await?;
        Ok((change.replace_outside(revocations_key(), version, &list), list))
    }

    /// Takes tokens of the tenant back: here at once, in other instances and at verifiers within [`REVOKED_WITHIN`].
    pub(crate) async fn revoke(&self, tenant: TenantId, what: &[Revoked]) -> Result<(), Problem> {
        // Eight tries: writers of this item are rare, and each loser was beaten by one who finished.
        for _ in 0..8 {
            let (list, version) = self.longer_list(tenant, what).await?;
            let write = Write::Put {
                key: revocations_key(),
                value: store::encode(&list),
                condition: version.map_or(Condition::Absent, Condition::Version),
            };
            match self.table().transact(vec![write]).await {
                Ok(_) => {
                    self.install(list);
                    return Ok(());
                }
                // After "unavailable" it may have happened or not; doing it again only revokes the same again.
                Err(TableError::ConditionFailed { .. } | TableError::Unavailable(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(TableError::Unavailable("the list of revocations is contended".into()).into())
    }

    /// Takes a list into force that is stored, and tells it to all who wait for one.
    pub(crate) fn install(&self, list: Revocations) {
        let sequence = {
            let mut verifier = self.0.verifier.write().expect("no panic under this lock");
            if list.sequence() >= verifier.revocations.sequence() {
                verifier.revocations = list;
            }
            verifier.revocations.sequence()
        };
        if sequence > self.0.revoked.get() {
            self.0.revoked.set(sequence);
        }
    }

    /// Reads what other instances revoked.
    ///
    /// # Errors
    /// If storage did not answer: the list at hand stays in force.
    pub async fn refresh(&self) -> Result<(), Problem> {
        if let Some(stored) = store::load::<Revocations>(self.table(), &revocations_key()).await? {
            self.install(stored.record);
        }
        Ok(())
    }

    /// Follows what other instances revoke, for ever; end it by aborting its task. See [`REVOKED_WITHIN`].
    pub async fn follow_revocations(&self) {
        loop {
            let pause = match self.refresh().await {
                Ok(()) => REVOCATION_PERIOD,
                Err(problem) => {
                    tracing::warn!(%problem, "revocations of other instances could not be read");
                    REVOCATION_RETRY
                }
            };
            self.env().sleep(pause).await;
        }
    }

    /// Waits for a list newer than number `sequence`, or until [`REVOCATION_WAIT`] is over. Verifiers that are known have places of
    /// their own, so that strangers (of whom `stranger` is the address) cannot take them. Whoever finds none free is answered at
    /// once, as by a poll.
    pub(crate) async fn newer_revocations(&self, sequence: u64, stranger: Option<IpAddr>) {
        let _place = match stranger {
            None => match self.0.waiters.try_acquire() {
                Ok(place) => (Some(place), None),
                Err(_) => return,
            },
            Some(address) => match StrangersPlace::take(self, address) {
                Some(place) => (None, Some(place)),
                None => return,
            },
        };
        let newer = self.0.revoked.wait_for(|newest| *newest > sequence);
        // Whether it came or not, the answer is the list at hand.
        let _ = self.env().timeout(REVOCATION_WAIT, newer).await;
    }

    pub(crate) fn revocations(&self) -> Revocations {
        let mut list = self
            .0
            .verifier
            .read()
            .expect("no panic under this lock")
            .revocations
            .clone();
        list.forget(self.now());
        list
    }

    pub(crate) fn wake_sagas(&self) {
        self.0.sagas.notify_one();
    }

    pub(crate) async fn sagas_woken(&self) {
        self.0.sagas.notified().await;
    }
}

/// A stranger's place among those who wait for revocations.
struct StrangersPlace<'a> {
    app: &'a App,
    address: IpAddr,
}

impl<'a> StrangersPlace<'a> {
    fn take(app: &'a App, address: IpAddr) -> Option<Self> {
        let mut waiting = app.0.strangers.lock().expect("no panic under this lock");
        if waiting.values().sum::<usize>() >= STRANGERS_WAITING {
            return None;
        }
        let own = waiting.entry(address).or_default();
        if *own >= STRANGERS_WAITING_PER_ADDRESS {
            return None;
        }
        *own += 1;
        Some(Self { app, address })
    }
}

impl Drop for StrangersPlace<'_> {
    fn drop(&mut self) {
        let mut waiting = self.app.0.strangers.lock().expect("no panic under this lock");
        if let Some(own) = waiting.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                waiting.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileMailer, NoCloud, NoFleet, POLICY, RegoPolicy};
    use firn_identity::TokenError;
    use firn_table::MemoryTable;
    use std::sync::mpsc;

    fn app(env: &Env) -> App {
        App::new(Parts {
            env: env.clone(),
            table: MemoryTable::new().connect(env),
            master: MasterSecret::new(&[42; 32]),
            policy: Arc::new(RegoPolicy::compile(POLICY).unwrap()),
            mailer: Arc::new(FileMailer::new(env)),
            placement: Arc::new(NoFleet),
            pool: None,
            fleet_tenant: None,
            cloud: Arc::new(NoCloud),
            issuer: "https://firn.example".into(),
            machine_server: None,
            trust_domain: "firn.example".into(),
            token_generation: 0,
            disk_capability_seconds: DISK_CAPABILITY_SECONDS,
            spread_ledger: false,
            limits: Limits::default(),
        })
        .unwrap()
    }

    /// Deriving keys under a lock that every request needs, a stranger could hold everybody up with made-up key ids.
    #[test]
    #[allow(
        clippy::disallowed_methods,
        reason = "the lock is held while another thread asks"
    )]
    fn an_unknown_key_takes_no_lock_that_others_wait_for() {
        let directory = tempfile::tempdir().unwrap();
        let env = firn_env::real(directory.path()).unwrap();
        let app = app(&env);
        let stranger = TokenIssuer::new("https://firn.example", MasterSecret::new(&[43; 32]).token_keys(0));
        let grant = firn_identity::Grant {
            audience: AUDIENCE.into(),
            principal: firn_identity::Principal::Member(firn_identity::MemberId([1; 16])),
            tenant: TenantId([1; 16]),
            role: firn_identity::Role::Owner,
            scopes: Vec::new(),
            lifetime_seconds: 300,
        };
        let (token, _) = stranger.issue(&grant, app.now(), &mut |bytes| bytes.fill(1));
        let others = app.0.verifier.read().unwrap();
        let (answer, answered) = mpsc::channel();
        let asked = app.clone();
        let asking = std::thread::spawn(move || drop(answer.send(asked.verify_token(&token))));
        let answered = answered.recv_timeout(Duration::from_secs(20));
        drop(others);
        asking.join().unwrap();
        let answered = answered.expect("it waits for a lock that readers hold");
        assert_eq!(answered.unwrap_err(), TokenError::UnknownKey);
    }

    #[test]
    fn a_signed_list_is_signed_once_for_all_who_ask_until_it_changes() {
        let directory = tempfile::tempdir().unwrap();
        let env = firn_env::real(directory.path()).unwrap();
        let app = app(&env);
        let first = app.signed_revocations();
        assert!(Arc::ptr_eq(&first, &app.signed_revocations()));
        let mut list = app.revocations();
        list.revoke(TenantId([1; 16]), Revoked::Tenant(TenantId([1; 16])), app.now());
        app.install(list);
        assert!(!Arc::ptr_eq(&first, &app.signed_revocations()));
    }
}

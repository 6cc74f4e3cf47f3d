//! The service's parts in one value, cheap to clone.

use crate::{
    cloud::CloudSessions,
    limiter::{Limiter, RequestRate},
    mailer::Mailer,
    metering::OperationCounts,
    placement::DiskPlacement,
    policy::Policy,
    pool::Pool,
    problem::Problem,
    secrets::MasterSecret,
    store::{self, Change, Record},
    tenant_locks::TenantLocks,
};
use firn_billing::Billing;
use firn_env::{Env, Watched};
use firn_identity::{
    AuthorityError, CapabilityIssuer, CertificateAuthority, Revocations, Revoked, SigningKey, TokenIssuer,
    TokenVerifier, UnixTime,
};
use firn_table::{Condition, ItemKey, ItemVersion, Table, TableError, Write};
use std::{
    sync::{Arc, RwLock},
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
/// Verifiers that wait at one instance: each costs a connection and some kilobytes.
const REVOCATION_WAITERS: usize = 256;

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
    /// Gives edges credentials of the cloud.
    pub cloud: Arc<dyn CloudSessions>,
    /// The service's address: what tokens name as their issuer.
    pub issuer: String,
    /// The installation's name in certificates.
    pub trust_domain: String,
    /// Counts replacements of leaked token keys.
    pub token_generation: u32,
    /// How many requests each tenant may send; none: as many as it likes.
    pub request_rate: Option<RequestRate>,
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
    billing: Billing,
    counts: OperationCounts,
    limiter: Limiter,
    turns: TenantLocks,
}

impl Record for Revocations {
    const KIND: &'static str = "revocations";
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
            billing: Billing::new(&parts.env, parts.table.clone()),
            counts: OperationCounts::default(),
            limiter: Limiter::new(parts.request_rate),
            turns: TenantLocks::default(),
            parts,
            sagas: tokio::sync::Notify::new(),
            revoked: Watched::new(0),
            waiters: Semaphore::new(REVOCATION_WAITERS),
        })))
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

    /// The ledger, over the same table.
    pub fn billing(&self) -> &Billing {
        &self.0.billing
    }

    pub(crate) fn limiter(&self) -> &Limiter {
        &self.0.limiter
    }

    pub(crate) fn turns(&self) -> &TenantLocks {
        &self.0.turns
    }

    pub(crate) fn counts(&self) -> &OperationCounts {
        &self.0.counts
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
        // The day may have changed since the set was made. Deriving three keys is cheap enough for a stranger to ask for.
        let mut verifier = self.0.verifier.write().expect("no panic under this lock");
        verifier.keys = self.0.issuer.public_keys(now);
        verifier.verify(text, now)
    }

    /// The list of revocations with more on it, and the version of the item it was read from.
    async fn longer_list(&self, what: &[Revoked]) -> Result<(Revocations, Option<ItemVersion>), Problem> {
        let stored = store::load::<Revocations>(self.table(), &revocations_key()).await?;
        let version = stored.as_ref().map(|stored| stored.version);
        let mut list = stored.map(|stored| stored.record).unwrap_or_default();
        for what in what {
            list.revoke(*what, self.now());
        }
        Ok((list, version))
    }

    /// Adds to a change that tokens are taken back. Once it is committed, the list is to be [installed](App::install).
    pub(crate) async fn revoking(
        &self,
        change: Change,
        what: &[Revoked],
    ) -> Result<(Change, Revocations), Problem> {
        let (list, version) = self.longer_list(what).await?;
        Ok((change.replace_outside(revocations_key(), version, &list), list))
    }

    /// Takes tokens back: here at once, in other instances and at verifiers within [`REVOKED_WITHIN`].
    pub(crate) async fn revoke(&self, what: &[Revoked]) -> Result<(), Problem> {
        // Eight tries: writers of this item are rare, and each loser was beaten by one who finished.
        for _ in 0..8 {
            let (list, version) = self.longer_list(what).await?;
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

    /// Waits for a list newer than number `sequence`, or until [`REVOCATION_WAIT`] is over. Beyond [`REVOCATION_WAITERS`]
    /// nobody waits: who asks then is answered at once, as by a poll.
    pub(crate) async fn newer_revocations(&self, sequence: u64) {
        let Ok(_place) = self.0.waiters.try_acquire() else {
            return;
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

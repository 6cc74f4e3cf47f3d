//! Rate limits: how often a tenant, an address or a recipient may cause something, so that one's storm is not everybody's. Each
//! instance limits by itself; a gateway has limits by tenant and by address as well.
//!
//! The generic cell rate algorithm: of each key one number is kept, the moment at which its bucket will be full again. A request
//! moves it by one interval; a request that would move it more than the burst ahead of now is refused, and told when to come again.
//!
//! What is kept is bounded: keys whose buckets are full again are forgotten, and those that do not fit share one bucket, so that
//! inventing keys gets nobody past the limit.

use crate::problem::{Code, Problem};
use firn_env::{Env, Monotonic};
use firn_identity::TenantId;
use std::{
    collections::HashMap,
    hash::Hash,
    net::{IpAddr, Ipv4Addr},
    sync::Mutex,
    time::Duration,
};

/// Keys remembered at once. Far more than are busy at a moment, at some 50 bytes each.
const REMEMBERED: usize = 100_000;
/// Between two looks for keys that can be forgotten, each of which passes over all of them.
const FORGET_PERIOD: Duration = Duration::from_secs(1);

/// How many requests a tenant may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRate {
    /// A second, in the long run; not zero.
    pub per_second: u32,
    /// At once, after a rest; not zero.
    pub burst: u32,
}

/// What an instance limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests of one tenant; none: as many as it likes.
    pub tenant: Option<RequestRate>,
    /// Requests of one address without token and certificate.
    pub stranger: RequestRate,
    /// Sign-ups from one address within an hour, and at once.
    pub sign_ups_per_address: u32,
    /// Sign-ups from everywhere within an hour, and at once: 24 times as many can wait for their codes, at some 300 bytes each.
    pub sign_ups: u32,
}

impl Default for Limits {
    /// As shipped, but for requests of tenants.
    fn default() -> Self {
        Self {
            tenant: None,
            // An office's programs ask for a token every five minutes each.
            stranger: RequestRate {
                per_second: 50,
                burst: 200,
            },
            // A class of students behind one address signs up within the hour.
            sign_ups_per_address: 30,
            sign_ups: 1800,
        }
    }
}

/// How often something may happen.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// Between two, in the long run.
    interval: Duration,
    /// At once, after a rest.
    burst: u32,
}

impl Rate {
    const fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst }
    }

    fn hourly(count: u32) -> Self {
        Self::new(Duration::from_secs(3600) / count.max(1), count.max(1))
    }
}

impl From<RequestRate> for Rate {
    fn from(rate: RequestRate) -> Self {
        Self::new(Duration::from_secs(1) / rate.per_second.max(1), rate.burst.max(1))
    }
}

/// The buckets of all keys of one kind.
struct Buckets<K> {
    rate: Rate,
    remembered: usize,
    state: Mutex<State<K>>,
}

struct State<K> {
    full_again: HashMap<K, Monotonic>,
    /// The bucket of all keys that are not remembered.
    others: Option<Monotonic>,
    looked: Option<Monotonic>,
}

impl<K: Eq + Hash> Buckets<K> {
    fn new(rate: Rate) -> Self {
        Self::remembering(rate, REMEMBERED)
    }

    fn remembering(rate: Rate, remembered: usize) -> Self {
        let state = State {
            full_again: HashMap::new(),
            others: None,
            looked: None,
        };
        Self {
            rate,
            remembered,
            state: Mutex::new(state),
        }
    }

    /// Takes one from the key's bucket, or says after how long there will be one.
    fn take(&self, now: Monotonic, key: K) -> Result<(), Duration> {
        let mut state = self.state.lock().expect("no panic under this lock");
        let state = &mut *state;
        if state.full_again.len() >= self.remembered
            && state
                .looked
                .is_none_or(|looked| now >= looked.after(FORGET_PERIOD))
        {
            state.looked = Some(now);
            state.full_again.retain(|_, full| *full > now);
        }
        let has_room = state.full_again.len() < self.remembered || state.full_again.contains_key(&key);
        let full = if has_room {
            state.full_again.get(&key).copied()
        } else {
            state.others
        };
        let full = full.filter(|full| *full > now).unwrap_or(now);
        let next = full.after(self.rate.interval);
        let ahead = now.after(self.rate.interval * self.rate.burst);
        if next > ahead {
            return Err(next.since(ahead));
        }
        if has_room {
            state.full_again.insert(key, next);
        } else {
            state.others = Some(next);
        }
        Ok(())
    }
}

/// Mails to one address, whoever caused them: a code got lost twice.
const RECIPIENT: Rate = Rate::new(Duration::from_secs(20 * 60), 3);
/// Invitations of one tenant: a company comes with its people on one day.
const INVITATIONS: Rate = Rate::new(Duration::from_secs(60), 100);
/// Revocations of one tenant: each replaces an item that all tenants share.
const REVOCATIONS: Rate = Rate::new(Duration::from_millis(500), 100);

/// All limits of an instance.
pub(crate) struct Limiter {
    limits: Limits,
    tenants: Option<Buckets<TenantId>>,
    strangers: Buckets<IpAddr>,
    recipients: Buckets<String>,
    sign_up_addresses: Buckets<IpAddr>,
    sign_ups: Buckets<()>,
    invitations: Buckets<TenantId>,
    revocations: Buckets<TenantId>,
}

impl Limiter {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            tenants: limits.tenant.map(|rate| Buckets::new(rate.into())),
            strangers: Buckets::new(limits.stranger.into()),
            recipients: Buckets::new(RECIPIENT),
            sign_up_addresses: Buckets::new(Rate::hourly(limits.sign_ups_per_address)),
            sign_ups: Buckets::new(Rate::hourly(limits.sign_ups)),
            invitations: Buckets::new(INVITATIONS),
            revocations: Buckets::new(REVOCATIONS),
        }
    }

    /// Lets a request of a tenant's through, or says that it is one too many.
    pub(crate) fn admit(&self, env: &Env, tenant: TenantId) -> Result<(), Problem> {
        let (Some(tenants), Some(rate)) = (&self.tenants, self.limits.tenant) else {
            return Ok(());
        };
        tenants.take(env.now(), tenant).map_err(|wait| {
            let why = format!("this tenant may send {} requests a second", rate.per_second);
            refuse(&why, wait)
        })
    }

    /// The same for a request of nobody known. Whose door it knocks at makes no difference: else strangers could use up what a
    /// tenant may send.
    pub(crate) fn admit_stranger(&self, env: &Env, address: IpAddr) -> Result<(), Problem> {
        self.strangers.take(env.now(), address).map_err(|wait| {
            let rate = self.limits.stranger.per_second;
            let why = format!("this address may send {rate} requests a second without token or certificate");
            refuse(&why, wait)
        })
    }

    /// Lets a sign-up through: by where it comes from, where its mail goes, and how many there are.
    pub(crate) fn admit_sign_up(
        &self,
        env: &Env,
        address: Option<IpAddr>,
        recipient: String,
    ) -> Result<(), Problem> {
        let now = env.now();
        let address = address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        self.sign_up_addresses.take(now, address).map_err(|wait| {
            let count = self.limits.sign_ups_per_address;
            refuse(
                &format!("{count} sign-ups an hour are let through from one address"),
                wait,
            )
        })?;
        self.admit_mail(now, recipient)?;
        self.sign_ups
            .take(now, ())
            .map_err(|wait| refuse("too many people sign up at this moment", wait))
    }

    /// Lets an invitation through: by whose it is and where its mail goes.
    pub(crate) fn admit_invitation(
        &self,
        env: &Env,
        tenant: TenantId,
        recipient: String,
    ) -> Result<(), Problem> {
        let now = env.now();
        self.invitations.take(now, tenant).map_err(|wait| {
            refuse(
                "this tenant may send 100 invitations at once and one a minute",
                wait,
            )
        })?;
        self.admit_mail(now, recipient)
    }

    /// Lets the letter of a recovery through, by where it goes: whoever caused it has the phrase.
    pub(crate) fn admit_recovery(&self, env: &Env, recipient: String) -> Result<(), Problem> {
        self.admit_mail(env.now(), recipient)
    }

    fn admit_mail(&self, now: Monotonic, recipient: String) -> Result<(), Problem> {
        self.recipients.take(now, recipient).map_err(|wait| {
            let why = "three mails at once and three an hour go to one address; look for those sent before, their codes are good";
            refuse(why, wait)
        })
    }

    /// Lets a revocation of a tenant's through.
    pub(crate) fn admit_revocation(&self, env: &Env, tenant: TenantId) -> Result<(), Problem> {
        self.revocations.take(env.now(), tenant).map_err(|wait| {
            refuse(
                "this tenant may take back 100 tokens at once and two a second",
                wait,
            )
        })
    }
}

fn refuse(why: &str, wait: Duration) -> Problem {
    let seconds = u32::try_from(wait.as_millis().div_ceil(1000).max(1)).unwrap_or(u32::MAX);
    Problem::new(
        Code::RateLimited,
        format!("{why}; nothing was done, try again in {seconds} s"),
    )
    .retry_after(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_env::sim::Simulation;

    #[test]
    fn a_burst_is_let_through_then_the_rate_and_another_tenant_does_not_notice() {
        let simulation = Simulation::new(1);
        let env = simulation.env();
        let run = async move {
            let limiter = Limiter::new(Limits {
                tenant: Some(RequestRate {
                    per_second: 10,
                    burst: 5,
                }),
                ..Limits::default()
            });
            let (one, other) = (TenantId([1; 16]), TenantId([2; 16]));
            let admitted = |tenant| (0..20).filter(|_| limiter.admit(&env, tenant).is_ok()).count();
            assert_eq!(admitted(one), 5);
            assert_eq!(admitted(other), 5);
            env.sleep(Duration::from_millis(200)).await;
            assert_eq!(admitted(one), 2, "two tenths of a second at ten a second");
            env.sleep(Duration::from_secs(3600)).await;
            assert_eq!(admitted(one), 5, "a rest saves up no more than a burst");
            assert_eq!(limiter.admit(&env, one).unwrap_err().code, Code::RateLimited);
            let unlimited = Limiter::new(Limits::default());
            assert!((0..1000).all(|_| unlimited.admit(&env, one).is_ok()));
        };
        simulation.run(run).unwrap();
    }

    #[test]
    fn inventing_keys_fills_no_memory_and_gets_nobody_past_the_limit() {
        let simulation = Simulation::new(1);
        let env = simulation.env();
        let run = async move {
            let buckets = Buckets::remembering(Rate::new(Duration::from_secs(10), 2), 100);
            let let_in = (0..10_000)
                .filter(|key| buckets.take(env.now(), *key).is_ok())
                .count();
            assert_eq!(let_in, 102, "a hundred keys, and the one bucket of all others");
            assert_eq!(buckets.state.lock().unwrap().full_again.len(), 100);
            env.sleep(Duration::from_secs(11)).await;
            assert_eq!(
                buckets.take(env.now(), 20_000),
                Ok(()),
                "those that rested are forgotten"
            );
            assert_eq!(buckets.state.lock().unwrap().full_again.len(), 1);
        };
        simulation.run(run).unwrap();
    }

    #[test]
    fn who_is_refused_is_told_when_to_come_again_and_is_let_in_then() {
        let simulation = Simulation::new(1);
        let env = simulation.env();
        let run = async move {
            let buckets = Buckets::new(Rate::new(Duration::from_secs(20 * 60), 3));
            assert!((0..3).all(|_| buckets.take(env.now(), ()).is_ok()));
            env.sleep(Duration::from_secs(60)).await;
            let wait = buckets.take(env.now(), ()).unwrap_err();
            assert_eq!(wait, Duration::from_secs(19 * 60));
            env.sleep(wait).await;
            assert_eq!(buckets.take(env.now(), ()), Ok(()));
        };
        simulation.run(run).unwrap();
    }
}

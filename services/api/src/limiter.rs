//! A limit of requests for each tenant, so that one tenant's storm is not everybody's. The gateway has the same and one by
//! address; this one holds where there is no gateway, in each instance by itself.
//!
//! The generic cell rate algorithm: of each tenant one number is kept, the moment at which its bucket will be full again. A
//! request moves it by one interval; a request that would move it more than the burst ahead of now is refused.

use crate::problem::{Code, Problem};
use firn_env::{Env, Monotonic};
use firn_identity::TenantId;
use std::{collections::HashMap, sync::Mutex, time::Duration};

/// Tenants remembered at once; those whose buckets are full again are forgotten first. Far more than are busy at a moment.
const REMEMBERED: usize = 100_000;

/// How many requests a tenant may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRate {
    /// A second, in the long run; not zero.
    pub per_second: u32,
    /// At once, after a rest; not zero.
    pub burst: u32,
}

/// The limits of all tenants.
pub(crate) struct Limiter {
    rate: Option<RequestRate>,
    full_again: Mutex<HashMap<TenantId, Monotonic>>,
}

impl Limiter {
    pub(crate) fn new(rate: Option<RequestRate>) -> Self {
        Self {
            rate,
            full_again: Mutex::new(HashMap::new()),
        }
    }

    /// Lets a request of a tenant's through, or says that it is one too many.
    pub(crate) fn admit(&self, env: &Env, tenant: TenantId) -> Result<(), Problem> {
        let Some(rate) = self.rate else {
            return Ok(());
        };
        let now = env.now();
        let interval = Duration::from_secs(1) / rate.per_second.max(1);
        let ahead = interval * rate.burst.max(1);
        let mut all = self.full_again.lock().expect("no panic under this lock");
        if all.len() >= REMEMBERED {
            all.retain(|_, full| *full > now);
        }
        let full = all
            .get(&tenant)
            .copied()
            .filter(|full| *full > now)
            .unwrap_or(now);
        let next = full.after(interval);
        if next > now.after(ahead) {
            return Err(Problem::new(
                Code::RateLimited,
                format!(
                    "this tenant may send {} requests a second; wait for a moment",
                    rate.per_second
                ),
            ));
        }
        if all.len() < REMEMBERED || all.contains_key(&tenant) {
            all.insert(tenant, next);
        }
        Ok(())
    }
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
            let limiter = Limiter::new(Some(RequestRate {
                per_second: 10,
                burst: 5,
            }));
            let (one, other) = (TenantId([1; 16]), TenantId([2; 16]));
            let admitted = |tenant| (0..20).filter(|_| limiter.admit(&env, tenant).is_ok()).count();
            assert_eq!(admitted(one), 5);
            assert_eq!(admitted(other), 5);
            env.sleep(Duration::from_millis(200)).await;
            assert_eq!(admitted(one), 2, "two tenths of a second at ten a second");
            env.sleep(Duration::from_secs(3600)).await;
            assert_eq!(admitted(one), 5, "a rest saves up no more than a burst");
            assert_eq!(limiter.admit(&env, one).unwrap_err().code, Code::RateLimited);
            let unlimited = Limiter::new(None);
            assert!((0..1000).all(|_| unlimited.admit(&env, one).is_ok()));
        };
        simulation.run(run).unwrap();
    }
}

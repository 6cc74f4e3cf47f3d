//! Validity of leases: until when others cannot have broken them.
//!
//! Less than [`VALID_FOR`] have passed since the *sending* of the last acknowledged sign of life, by the monotonic clock and by the wall clock: the
//! former stands still while a machine is suspended, the latter does not. A wall clock that steps back further than time servers do
//! ends the validity too, until the next sign of life.

use firn_env::{Env, Monotonic, WallTime};
use std::time::Duration;

/// Leases are used so long after the last sign of life that was acknowledged was sent. Others break after
/// [`BREAK_AFTER`](crate::BREAK_AFTER) by their own clocks, which may differ by a third.
pub const VALID_FOR: Duration = Duration::from_secs(40);

/// How far the wall clock may step back without being taken for a jump.
const STEP_BACK_MS: i64 = 5_000;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    /// When the last sign of life that was acknowledged was sent, by both clocks; `None`: the incarnation is over.
    sent: Option<(Monotonic, WallTime)>,
}

impl Validity {
    /// Of an incarnation that said that it is there at `heard_at`, in a call that began at `called_at`.
    pub fn new(heard_at: Monotonic, called_at: WallTime) -> Self {
        Self {
            sent: Some((heard_at, called_at)),
        }
    }

    /// A call was answered that began at `called_at`, after which the last acknowledged sign of life was sent at `heard_at`.
    pub fn renew(&mut self, heard_at: Monotonic, called_at: WallTime) {
        if let Some(sent) = &mut self.sent
            && heard_at > sent.0
        {
            *sent = (heard_at, called_at);
        }
    }

    /// Nothing is valid any more.
    pub fn end(&mut self) {
        self.sent = None;
    }

    /// Whether leases may be used now.
    pub fn holds(&self, env: &Env) -> bool {
        let Some((sent, sent_wall)) = self.sent else {
            return false;
        };
        let elapsed_wall = env.wall().as_millis().saturating_sub(sent_wall.as_millis());
        let limit = i64::try_from(VALID_FOR.as_millis()).unwrap_or(i64::MAX);
        let is_young = env.now().since(sent) < VALID_FOR && (-STEP_BACK_MS..limit).contains(&elapsed_wall);
        is_young || firn_env::planted!("leases.lapsed_lease_used")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_env::sim::Simulation;

    #[test]
    fn leases_lapse_by_either_clock_and_count_from_the_sending() {
        let simulation = Simulation::new(1);
        let machine = simulation.machine("office");
        let env = machine.env();
        let ran = simulation.run(async move {
            let mut validity = Validity::new(env.now(), env.wall());
            env.sleep(Duration::from_secs(39)).await;
            assert!(validity.holds(&env));
            env.sleep(Duration::from_secs(1)).await;
            assert!(!validity.holds(&env), "forty seconds");
            validity.renew(env.now(), env.wall());
            assert!(validity.holds(&env));
            machine.jump_wall(41_000_000_000);
            assert!(!validity.holds(&env), "it was suspended");
            env.sleep(Duration::from_secs(1)).await;
            validity.renew(env.now(), env.wall());
            machine.jump_wall(-6_000_000_000);
            assert!(!validity.holds(&env), "the wall clock was set back");
            env.sleep(Duration::from_secs(1)).await;
            validity.renew(env.now(), env.wall());
            let renewed = validity;
            validity.end();
            validity.renew(env.now(), env.wall());
            assert!(renewed.holds(&env) && !validity.holds(&env), "it is over");
        });
        assert!(ran.is_ok());
    }
}

//! The lease of an owner: until when others cannot have taken the volume over.

use super::MemberOptions;
use firn_anchor::Beating;
use firn_env::{Env, Monotonic, WallTime};
use std::{sync::Mutex, time::Duration};

/// How far the wall clock may step back without being taken for a jump.
const STEP_BACK_MS: i64 = 5_000;

/// See the module.
pub(crate) struct Lease {
    pub beating: Beating,
    lapse_after: Duration,
    /// When the last beat was sent that was acknowledged, by both clocks.
    sent: Mutex<(Monotonic, WallTime)>,
}

impl Lease {
    /// One that is valid from now on, if the beat that is sent next is acknowledged.
    pub fn begin(env: &Env, options: &MemberOptions, beating: Beating) -> Self {
        Self {
            beating,
            lapse_after: options.lapse_after,
            sent: Mutex::new((env.now(), env.wall())),
        }
    }

    /// A beat was acknowledged that was sent then.
    pub fn renew(&self, sent: (Monotonic, WallTime)) {
        *self.sent.lock().expect("no panic under this lock") = sent;
    }

    /// Whether it holds. The monotonic clock stands still while the machine is suspended, the wall clock does not.
    pub fn holds(&self, env: &Env) -> bool {
        let (sent, sent_wall) = *self.sent.lock().expect("no panic under this lock");
        let elapsed = env.now().since(sent);
        let elapsed_wall = env.wall().as_millis().saturating_sub(sent_wall.as_millis());
        let limit = i64::try_from(self.lapse_after.as_millis()).unwrap_or(i64::MAX);
        (elapsed < self.lapse_after && (-STEP_BACK_MS..limit).contains(&elapsed_wall))
            || firn_env::planted!("volume.member_serves_lapsed")
    }

    /// Since the last acknowledged beat was sent.
    pub fn age(&self, now: Monotonic) -> Duration {
        now.since(self.sent.lock().expect("no panic under this lock").0)
    }
}

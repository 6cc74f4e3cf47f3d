//! The measured speed of the uplink: bytes of segments that are uploaded over the time in which at least one was on its way.
//!
//! Segments below 256 KiB say more of the way than of the line: they only raise what is taken for it before anything was measured. Left out is what failed, since a store that is away is no slow line. Each mebibyte that was uploaded is a sample, of
//! which the newest counts a quarter: a line that becomes slower is known by after some megabytes of the upload that is under way.

use firn_env::{Env, Monotonic};
use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

/// Before anything was measured: 2 Mbit/s, which few lines do not take. The first mebibyte says what it is.
pub const UPLINK_AT_FIRST: u64 = 250_000;
/// What is smaller is left out.
const COUNTED_FROM: u64 = 256 << 10;
/// So much makes a sample, and so long but for the first.
const SAMPLE_BYTES: u64 = 1 << 20;
const SAMPLE_TAKES: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Default)]
pub struct Uplink(Mutex<Measured>);

#[derive(Default)]
struct Measured {
    on_their_way: usize,
    /// Since when time is counted that is in no sample.
    since: Monotonic,
    bytes: u64,
    busy: Duration,
    bytes_per_second: Option<u64>,
    /// What small segments have shown that the line takes at least.
    at_least: u64,
}

impl Measured {
    /// Time goes on.
    fn tick(&mut self, now: Monotonic) {
        if self.on_their_way > 0 {
            self.busy += now.since(self.since);
        }
        self.since = now;
    }
}

/// A segment on its way. One that is dropped failed.
pub struct OnItsWay<'a> {
    uplink: &'a Uplink,
    env: &'a Env,
    bytes: u64,
    began: Monotonic,
    has_arrived: bool,
}

impl Uplink {
    fn lock(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().expect("no panic under this lock")
    }

    /// Bytes a second.
    pub fn bytes_per_second(&self) -> u64 {
        let measured = self.lock();
        let at_first = measured.at_least.max(UPLINK_AT_FIRST);
        measured.bytes_per_second.unwrap_or(at_first)
    }

    /// So much begins its way.
    pub fn begin<'a>(&'a self, env: &'a Env, bytes: u64) -> OnItsWay<'a> {
        if bytes >= COUNTED_FROM {
            let mut measured = self.lock();
            measured.tick(env.now());
            measured.on_their_way += 1;
        }
        OnItsWay {
            uplink: self,
            env,
            bytes,
            began: env.now(),
            has_arrived: false,
        }
    }
}

impl OnItsWay<'_> {
    /// The store has it.
    pub fn arrived(mut self) {
        self.has_arrived = true;
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        let mut measured = self.uplink.lock();
        if self.bytes < COUNTED_FROM {
            let at_least = per_second(self.bytes, self.env.now().since(self.began));
            if self.has_arrived {
                measured.at_least = measured.at_least.max(at_least);
            }
            return;
        }
        measured.tick(self.env.now());
        measured.on_their_way -= 1;
        if !self.has_arrived {
            (measured.bytes, measured.busy) = (0, Duration::ZERO);
            return;
        }
        measured.bytes += self.bytes;
        // What arrives right after another that was on its way beside it took longer than since then: it counts with what follows.
        let is_short = measured.bytes_per_second.is_some() && measured.busy < SAMPLE_TAKES;
        if measured.bytes < SAMPLE_BYTES || is_short {
            return;
        }
        let sample = per_second(measured.bytes, measured.busy);
        let before = measured.bytes_per_second;
        measured.bytes_per_second = Some(before.map_or(sample, |before| before / 4 * 3 + sample / 4).max(1));
        (measured.bytes, measured.busy) = (0, Duration::ZERO);
    }
}

fn per_second(bytes: u64, within: Duration) -> u64 {
    let micros = within.as_micros().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000 / micros).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_env::sim::Simulation;

    async fn upload(env: &Env, uplink: &Uplink, bytes: u64, takes: Duration) {
        let on_its_way = uplink.begin(env, bytes);
        env.sleep(takes).await;
        on_its_way.arrived();
    }

    #[test]
    fn the_line_is_known_by_what_is_on_its_way_side_by_side_and_by_no_small_segments() {
        let simulation = Simulation::new(1);
        let env = simulation.env();
        let ran = simulation.run(async move {
            let uplink = Uplink::default();
            assert_eq!(uplink.bytes_per_second(), UPLINK_AT_FIRST);
            for _ in 0..1000 {
                upload(&env, &uplink, 1000, Duration::from_millis(30)).await;
            }
            assert_eq!(uplink.bytes_per_second(), UPLINK_AT_FIRST, "too small to tell");
            upload(&env, &uplink, 200_000, Duration::from_millis(200)).await;
            upload(&env, &uplink, 100_000, Duration::from_millis(200)).await;
            assert_eq!(uplink.bytes_per_second(), 1_000_000, "at least");
            // Four megabytes in two seconds, side by side.
            let two = || upload(&env, &uplink, 2 << 20, Duration::from_secs(2));
            futures::join!(two(), two());
            assert_eq!(
                uplink.bytes_per_second(),
                1 << 20,
                "the first of both is a sample of its own"
            );
            // Idle time is none of the line's.
            env.sleep(Duration::from_secs(100)).await;
            for _ in 0..30 {
                upload(&env, &uplink, 4 << 20, Duration::from_secs(8)).await;
            }
            let slower = uplink.bytes_per_second();
            assert!((500_000..530_000).contains(&slower), "{slower}");
            // One that failed is no sample, however long that took.
            let failed = uplink.begin(&env, 4 << 20);
            env.sleep(Duration::from_secs(1000)).await;
            drop(failed);
            assert_eq!(uplink.bytes_per_second(), slower);
        });
        assert!(ran.is_ok());
    }
}

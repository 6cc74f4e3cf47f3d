//! A bound on bytes in flight, shared fairly between connections and between client addresses.
//!
//! ```text
//! whole = large | small | finishing          small: an eighth, for charges up to SMALL_BYTES
//!                                            finishing: room for the rest of a few records, see below
//! ```
//!
//! A charge is taken from three places: the whole, the address's half of it and the connection's quarter of it. So neither a
//! connection nor an address that sends much and reads nothing can starve the others, and large charges never stand in the way
//! of small ones. Waiters are served in order.
//!
//! **No deadlock.** A reply is charged at once, by whoever holds nothing of the same budget. A record is charged in steps as it
//! is received, so records could wait for each other with all memory in their hands. Therefore one that has to wait for its
//! next step may also get one of a few permits to *finish*: its rest is covered by memory set aside.
//!
//! **No hold-up.** Whoever waits makes [`Budget::pressure`] known. The server then ends connections that hold memory and move
//! slowly, so that waiting for the slow has an end too.

use firn_env::{Env, Monotonic};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Charges up to this are small: every call but a WRITE, every reply but those of READ and READDIR.
pub(super) const SMALL_BYTES: usize = super::record::SMALL_BYTES;
/// Records that may finish at one time though memory is used up.
const FINISHING: usize = 4;
const OPEN: &str = "budgets are never closed";

/// Bytes that all connections together may hold.
#[derive(Clone)]
pub(super) struct Budget {
    env: Env,
    whole: Pools,
    finishing: Arc<Semaphore>,
    addresses: Arc<Mutex<BTreeMap<IpAddr, Weak<Pools>>>>,
    pressure: Arc<Pressure>,
}

/// One connection's part of a [`Budget`].
#[derive(Clone)]
pub(super) struct Share {
    env: Env,
    whole: Pools,
    /// Kept for as long as one of the address's connections is open.
    address: Arc<Pools>,
    own: Pools,
    finishing: Arc<Semaphore>,
    pressure: Arc<Pressure>,
}

/// Bytes held; given back when dropped.
#[derive(Debug)]
pub(super) struct Charge {
    _own: OwnedSemaphorePermit,
    _address: OwnedSemaphorePermit,
    _whole: OwnedSemaphorePermit,
}

/// What a record holds while it is received, and until its reply is written.
#[derive(Debug, Default)]
pub(super) struct RecordCharge {
    charges: Vec<Charge>,
    bytes: usize,
    finishing: Option<OwnedSemaphorePermit>,
}

/// Somebody waits for memory.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    waiting: AtomicUsize,
    since: AtomicU64,
    begun: Notify,
}

#[derive(Clone, Debug)]
struct Pools {
    large: Arc<Semaphore>,
    large_bytes: usize,
    small: Arc<Semaphore>,
    small_bytes: usize,
}

impl Pools {
    fn new(large_bytes: usize, small_bytes: usize) -> Self {
        Self {
            large: Arc::new(Semaphore::new(large_bytes)),
            large_bytes,
            small: Arc::new(Semaphore::new(small_bytes)),
            small_bytes,
        }
    }

    /// The `divisor`-th part of it, but room for one charge of `largest_bytes`.
    fn part(&self, divisor: usize, largest_bytes: usize) -> Self {
        let large = (self.large_bytes / divisor).max(largest_bytes);
        let small = (self.small_bytes / divisor).max(SMALL_BYTES);
        Self::new(large.min(self.large_bytes), small.min(self.small_bytes))
    }
}

impl Budget {
    /// Of `bytes`, or what a few charges of `largest_bytes` need if that is more.
    pub(super) fn new(env: &Env, bytes: usize, largest_bytes: usize) -> Self {
        let bytes = bytes.min(u32::MAX as usize / 2);
        let small = (bytes / 8).max(4 * SMALL_BYTES);
        let finishing = if bytes >= 4 * FINISHING * largest_bytes {
            FINISHING
        } else {
            1
        };
        let large = bytes.saturating_sub(small + finishing * largest_bytes);
        Self {
            env: env.clone(),
            whole: Pools::new(large.max(largest_bytes), small),
            finishing: Arc::new(Semaphore::new(finishing)),
            addresses: Arc::default(),
            pressure: Arc::default(),
        }
    }

    /// A connection's share, of `address`; single charges are up to `largest_bytes`.
    pub(super) fn share(&self, address: IpAddr, largest_bytes: usize) -> Share {
        let mut addresses = self.addresses.lock().expect("no panic under this lock");
        let known = addresses.get(&address).and_then(Weak::upgrade);
        let of_address = known.unwrap_or_else(|| {
            addresses.retain(|_, pools| pools.strong_count() > 0);
            let pools = Arc::new(self.whole.part(2, largest_bytes));
            addresses.insert(address, Arc::downgrade(&pools));
            pools
        });
        Share {
            env: self.env.clone(),
            own: self.whole.part(4, largest_bytes),
            address: of_address,
            whole: self.whole.clone(),
            finishing: self.finishing.clone(),
            pressure: self.pressure.clone(),
        }
    }

    /// Whether somebody waits, and since when.
    pub(super) fn pressure(&self) -> &Pressure {
        &self.pressure
    }

    #[cfg(test)]
    pub(super) fn available_bytes(&self) -> usize {
        self.whole.large.available_permits() + self.whole.small.available_permits()
    }
}

impl Pressure {
    /// Completes when somebody waits.
    pub(super) async fn begun(&self) {
        while self.waiting.load(Relaxed) == 0 {
            self.begun.notified().await;
        }
    }

    /// For how long somebody has waited; `None` if nobody does. Others may have come and gone meanwhile: memory that is
    /// short all the time is short.
    pub(super) fn lasts(&self, now: Monotonic) -> Option<Duration> {
        let waits = self.waiting.load(Relaxed) > 0;
        waits.then(|| now.since(Monotonic(self.since.load(Relaxed))))
    }

    fn wait(&self, now: Monotonic) -> Waiting<'_> {
        if self.waiting.fetch_add(1, Relaxed) == 0 {
            self.since.store(now.0, Relaxed);
            self.begun.notify_one();
        }
        Waiting(self)
    }
}

struct Waiting<'a>(&'a Pressure);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

impl Share {
    /// Waits until `bytes` may be held. More than a whole share counts as a share.
    pub(super) async fn charge(&self, bytes: usize) -> Charge {
        if let Some(charge) = self.try_charge(bytes) {
            return charge;
        }
        let _waiting = self.pressure.wait(self.env.now());
        let (permits, pools) = self.pools(bytes);
        let [own, address, whole] = pools.map(|pool| pool.clone());
        Charge {
            _own: own.acquire_many_owned(permits).await.expect(OPEN),
            _address: address.acquire_many_owned(permits).await.expect(OPEN),
            _whole: whole.acquire_many_owned(permits).await.expect(OPEN),
        }
    }

    fn pools(&self, bytes: usize) -> (u32, [&Arc<Semaphore>; 3]) {
        let all = [&self.own, &*self.address, &self.whole];
        if bytes <= SMALL_BYTES {
            let permits = bytes.min(self.own.small_bytes) as u32;
            (permits, all.map(|pools| &pools.small))
        } else {
            let permits = bytes.min(self.own.large_bytes) as u32;
            (permits, all.map(|pools| &pools.large))
        }
    }

    fn try_charge(&self, bytes: usize) -> Option<Charge> {
        let (permits, [own, address, whole]) = self.pools(bytes);
        Some(Charge {
            _own: own.clone().try_acquire_many_owned(permits).ok()?,
            _address: address.clone().try_acquire_many_owned(permits).ok()?,
            _whole: whole.clone().try_acquire_many_owned(permits).ok()?,
        })
    }

    /// Waits until `record` may hold `bytes` in all.
    pub(super) async fn grow(&self, record: &mut RecordCharge, bytes: usize) {
        let more = bytes.saturating_sub(record.bytes);
        if more == 0 || record.finishing.is_some() {
            return;
        }
        // A small step of a large record is still one of the large: their number has no other bound.
        let more = if record.bytes + more > SMALL_BYTES {
            more.max(SMALL_BYTES + 1)
        } else {
            more
        };
        if let Some(charge) = self.try_charge(more) {
            record.take(charge, bytes);
            return;
        }
        let (charge, finishing) = (self.charge(more), self.finishing.clone().acquire_owned());
        futures::pin_mut!(charge, finishing);
        match futures::future::select(charge, finishing).await {
            futures::future::Either::Left((charge, _)) => record.take(charge, bytes),
            futures::future::Either::Right((permit, _)) => record.finishing = Some(permit.expect(OPEN)),
        }
    }
}

impl RecordCharge {
    fn take(&mut self, charge: Charge, bytes: usize) {
        self.charges.push(charge);
        self.bytes = bytes;
    }

    /// Whether the record holds more than every connection has.
    pub(super) fn is_held(&self) -> bool {
        self.bytes > 0 || self.finishing.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    const LARGEST: usize = 100_000;

    fn budget() -> Budget {
        let env = firn_env::real(&std::env::temp_dir()).expect("an environment");
        Budget::new(&env, 16 * LARGEST, LARGEST)
    }

    fn share(budget: &Budget, last: u8) -> Share {
        budget.share([10, 0, 0, last].into(), LARGEST)
    }

    fn take_all(share: &Share) -> Vec<Charge> {
        std::iter::from_fn(|| share.charge(LARGEST).now_or_never()).collect()
    }

    #[test]
    fn neither_a_connection_nor_an_address_can_take_what_belongs_to_the_others() {
        let budget = budget();
        let all = budget.available_bytes();
        let connections: Vec<_> = (0..4).map(|_| share(&budget, 1)).collect();
        let mut held: Vec<_> = connections.iter().map(take_all).collect();
        let counts: Vec<_> = held.iter().map(Vec::len).collect();
        assert_eq!(
            counts,
            [2, 2, 1, 0],
            "a quarter of ten for a connection, half for all of the address"
        );
        let other = share(&budget, 2);
        held.push(take_all(&other));
        assert!(!held[4].is_empty(), "others still have theirs");
        drop(held);
        assert_eq!(budget.available_bytes(), all);
    }

    #[test]
    fn small_charges_get_through_when_large_ones_have_everything() {
        let budget = budget();
        let shares: Vec<_> = (0..8).map(|last| share(&budget, last)).collect();
        let held: Vec<_> = shares.iter().map(take_all).collect();
        assert!(shares[7].charge(LARGEST).now_or_never().is_none(), "all is taken");
        assert!(shares[7].charge(SMALL_BYTES).now_or_never().is_some());
        drop(held);
    }

    #[test]
    fn records_that_hold_everything_between_them_can_still_finish() {
        let budget = budget();
        let mut records: Vec<_> = (0..64)
            .map(|last| (share(&budget, last), RecordCharge::default()))
            .collect();
        for (share, record) in &mut records {
            let _ = share.grow(record, 2 * SMALL_BYTES).now_or_never();
        }
        // One after the other gets its rest, whatever the others hold.
        for _ in 0..64 {
            let ready = records
                .iter_mut()
                .position(|(share, record)| share.grow(record, LARGEST).now_or_never().is_some());
            records.remove(ready.expect("one of them can finish"));
        }
    }

    #[test]
    fn whoever_waits_is_known_for_as_long_as_it_waits() {
        let budget = budget();
        let share = share(&budget, 1);
        let held = take_all(&share);
        let now = budget.env.now();
        assert_eq!(budget.pressure().lasts(now), None);
        let mut waiting = Box::pin(share.charge(LARGEST));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(budget.pressure().begun().now_or_never().is_some());
        assert!(
            budget
                .pressure()
                .lasts(now.after(Duration::from_secs(5)))
                .is_some()
        );
        drop(waiting);
        assert_eq!(budget.pressure().lasts(now), None);
        drop(held);
    }

    #[test]
    fn a_charge_larger_than_a_share_takes_the_share_and_does_not_hang() {
        let share = share(&budget(), 1);
        assert!(share.charge(1 << 30).now_or_never().is_some());
    }
}

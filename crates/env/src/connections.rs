//! The connection table of a server: how many connections there may be, and which one gives way to a newcomer.
//!
//! A server that refuses newcomers while it is full can be locked by whoever opens connections and says nothing. Here a
//! newcomer is somebody's work until proven otherwise, and a connection that has never made a request is not:
//!
//! ```text
//! newcomer ─ room ───────────────────────────────────────────────────────────────> enters
//!    ├── its address is full ─ of that address: the oldest silent one, or the one idle longest ──> gives way
//!    └── the table is full ── the oldest silent one of the address with most of them, if it has more than a client opens at once,
//!                             or the oldest silent one of all,
//!                             or the one idle longest of the address with most connections ─────────> gives way
//!         nothing to give way ──────────────────────────────────────────────────────────────────> refused
//! ```
//!
//! *Silent* has never made a request; *idle* has none in flight. An address that has at least two connections more than the
//! newcomer's gives one up as soon as it is idle; otherwise only one that has been so for [`IDLE_MIN`] does. Thus whoever holds
//! many connections makes room for who holds few, and nobody's request in flight is cut off.
//!
//! Who comes from many addresses holds few on each, fewer than a client that has just connected: there, the address says
//! nothing, and age does. A newcomer is silent for the milliseconds until its first request, one of a crowd for as long as it
//! may: with `n` places and `r` newcomers a second everybody has `n / r` seconds to say something.

use crate::Monotonic;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// A connection that was used so lately may be about to be used again; those idle for longer are reopened unnoticed.
pub const IDLE_MIN: Duration = Duration::from_secs(10);

/// Silent connections of one address that are nothing unusual: what one client opens at once (`nconnect` of the Linux client ends
/// at 16).
pub const SILENT_TOGETHER: usize = 16;

/// All connections of a server.
#[derive(Clone, Debug)]
pub struct ConnectionTable {
    inner: Arc<Mutex<Inner>>,
    limit: usize,
}

/// A connection's entry in the table; leaves it when dropped.
#[derive(Debug)]
pub struct Place {
    table: ConnectionTable,
    address: IpAddr,
    number: u64,
    state: Arc<State>,
}

/// Keeps a connection from giving way while it lives: a request is in flight.
#[derive(Debug)]
pub struct InFlight(Arc<State>);

/// No connection could give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull {
    /// All connections.
    pub total: usize,
    /// Of them, those of the newcomer's address.
    pub of_address: usize,
}

#[derive(Debug, Default)]
struct State {
    spoken: AtomicBool,
    in_flight: AtomicUsize,
    last_request: AtomicU64,
    evicted: AtomicBool,
    eviction: Notify,
}

impl State {
    fn evict(&self) {
        self.evicted.store(true, Relaxed);
        self.eviction.notify_one();
    }

    fn is_idle(&self) -> bool {
        self.in_flight.load(Relaxed) == 0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    all: ByAddress,
    silent: ByAddress,
}

/// Connections by address, oldest first, and the addresses by how many they have.
#[derive(Debug, Default)]
struct ByAddress {
    of: BTreeMap<IpAddr, BTreeMap<u64, Arc<State>>>,
    /// The last has the most; of several, the one whose oldest is oldest.
    ranked: BTreeSet<(usize, Reverse<u64>, IpAddr)>,
    /// The first is the oldest of all: of each address, its oldest.
    aged: BTreeSet<(u64, IpAddr)>,
    total: usize,
}

impl ByAddress {
    fn rank(&self, address: IpAddr) -> Option<(usize, Reverse<u64>, IpAddr)> {
        let connections = self.of.get(&address)?;
        let (oldest, _) = connections.first_key_value()?;
        Some((connections.len(), Reverse(*oldest), address))
    }

    fn change(&mut self, address: IpAddr, change: impl FnOnce(&mut BTreeMap<u64, Arc<State>>)) {
        if let Some(rank) = self.rank(address) {
            self.ranked.remove(&rank);
            self.aged.remove(&(rank.1.0, address));
            self.total -= rank.0;
        }
        let connections = self.of.entry(address).or_default();
        change(connections);
        if connections.is_empty() {
            self.of.remove(&address);
        }
        if let Some(rank) = self.rank(address) {
            self.total += rank.0;
            self.aged.insert((rank.1.0, address));
            self.ranked.insert(rank);
        }
    }

    fn count(&self, address: IpAddr) -> usize {
        self.of.get(&address).map_or(0, BTreeMap::len)
    }

    fn oldest(&self, address: IpAddr) -> Option<u64> {
        self.of
            .get(&address)?
            .first_key_value()
            .map(|(number, _)| *number)
    }

    fn oldest_of_all(&self) -> Option<(IpAddr, u64)> {
        self.aged.first().map(|(number, address)| (*address, *number))
    }

    fn address_with_most(&self) -> Option<(usize, IpAddr)> {
        self.ranked.last().map(|(count, _, address)| (*count, *address))
    }

    /// Of those without a request in flight, the one whose last request is longest ago, if that is at least `idle`.
    fn idle_longest(&self, address: IpAddr, idle: Duration, now: Monotonic) -> Option<u64> {
        let idle_since = |state: &State| Monotonic(state.last_request.load(Relaxed));
        self.of
            .get(&address)?
            .iter()
            .filter(|(_, state)| state.is_idle() && now.since(idle_since(state)) >= idle)
            .min_by_key(|(_, state)| idle_since(state))
            .map(|(number, _)| *number)
    }
}

impl Inner {
    fn remove(&mut self, address: IpAddr, number: u64) -> Option<Arc<State>> {
        let mut state = None;
        self.all
            .change(address, |connections| state = connections.remove(&number));
        if state.is_some() {
            self.silent.change(address, |connections| {
                connections.remove(&number);
            });
        }
        state
    }

    /// The oldest silent connection of an address that has too many of them; without such an address, the oldest of all.
    fn silent_victim(&self) -> Option<(IpAddr, u64)> {
        let (count, address) = self.silent.address_with_most()?;
        if count > SILENT_TOGETHER {
            return self.silent.oldest(address).map(|number| (address, number));
        }
        self.silent.oldest_of_all()
    }

    fn evict(&mut self, address: IpAddr, number: Option<u64>) -> bool {
        let evicted = number.and_then(|number| self.remove(address, number));
        evicted.inspect(|state| state.evict()).is_some()
    }

    fn evict_at(&mut self, address: IpAddr, now: Monotonic) -> bool {
        let victim = self.silent.oldest(address);
        let victim = victim.or_else(|| self.all.idle_longest(address, IDLE_MIN, now));
        self.evict(address, victim)
    }

    fn evict_for(&mut self, newcomer: IpAddr, now: Monotonic) -> bool {
        if let Some((address, number)) = self.silent_victim() {
            return self.evict(address, Some(number));
        }
        let Some((count, address)) = self.all.address_with_most() else {
            return false;
        };
        let greedy = count > self.all.count(newcomer) + 1;
        let idle = if greedy { Duration::ZERO } else { IDLE_MIN };
        self.evict(address, self.all.idle_longest(address, idle, now))
    }
}

impl ConnectionTable {
    /// A table of at most `limit` connections.
    pub fn new(limit: usize) -> Self {
        Self {
            inner: Arc::default(),
            limit,
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic under this lock")
    }

    /// Connections now.
    pub fn len(&self) -> usize {
        self.inner().all.total
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Enters a connection from `address`, which may have `most` of them. Another may have to give way: its
    /// [`Place::evicted`] completes.
    ///
    /// # Errors
    /// If no other can.
    pub fn enter(&self, address: IpAddr, most: usize, now: Monotonic) -> Result<Place, TableFull> {
        let inner = &mut *self.inner();
        let mut room = inner.all.count(address) < most || inner.evict_at(address, now);
        room = room && (inner.all.total < self.limit || inner.evict_for(address, now));
        if !room {
            return Err(TableFull {
                total: inner.all.total,
                of_address: inner.all.count(address),
            });
        }
        let number = inner.next;
        inner.next += 1;
        let state = Arc::new(State::default());
        for connections in [&mut inner.all, &mut inner.silent] {
            connections.change(address, |of| {
                of.insert(number, state.clone());
            });
        }
        Ok(Place {
            table: self.clone(),
            address,
            number,
            state,
        })
    }
}

impl Place {
    /// The address it was entered for.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Notes a request; the connection stays while the result lives, and is no longer silent.
    pub fn request(&self, now: Monotonic) -> InFlight {
        self.state.last_request.store(now.0, Relaxed);
        self.state.in_flight.fetch_add(1, Relaxed);
        if !self.state.spoken.swap(true, Relaxed) {
            let number = self.number;
            self.table.inner().silent.change(self.address, |connections| {
                connections.remove(&number);
            });
        }
        InFlight(self.state.clone())
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.state.in_flight.load(Relaxed)
    }

    /// Completes when the connection has to give way: it is out of the table, and must end at once.
    pub async fn evicted(&self) {
        while !self.state.evicted.load(Relaxed) {
            self.state.eviction.notified().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.inner().remove(self.address, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic(seconds * 1_000_000_000)
    }

    fn is_evicted(place: &Place) -> bool {
        place.evicted().now_or_never().is_some()
    }

    #[test]
    fn the_oldest_silent_connection_of_the_address_with_too_many_gives_way() {
        let table = ConnectionTable::new(SILENT_TOGETHER + 2);
        let one = table.enter(address(1), 99, at(0)).expect("room");
        let many: Vec<_> = (0..=SILENT_TOGETHER)
            .map(|_| table.enter(address(2), 99, at(1)).expect("room"))
            .collect();
        let newcomer = table.enter(address(3), 99, at(2)).expect("one gives way");
        assert!(is_evicted(&many[0]) && !is_evicted(&many[1]) && !is_evicted(&one));
        assert_eq!(table.len(), SILENT_TOGETHER + 2);
        drop((one, many, newcomer));
        assert!(table.is_empty());
    }

    #[test]
    fn a_client_that_opens_several_at_once_is_not_the_first_to_go_in_a_crowd_of_many_addresses() {
        let places = 200;
        let table = ConnectionTable::new(places);
        let mut crowd: std::collections::VecDeque<_> = (0..places)
            .map(|number| {
                let from = IpAddr::from([10, 1, (number / 250) as u8, (number % 250) as u8]);
                table.enter(from, 99, at(0)).expect("room")
            })
            .collect();
        let client: Vec<_> = (0..8)
            .map(|_| table.enter(address(1), 99, at(1)).expect("the oldest goes"))
            .collect();
        // As many newcomers as there are places of others: by then it has made its requests.
        for number in 0..places - client.len() {
            let from = IpAddr::from([10, 2, (number / 250) as u8, (number % 250) as u8]);
            crowd.push_back(table.enter(from, 99, at(2)).expect("the oldest goes"));
            assert!(!client.iter().any(is_evicted), "after {number} newcomers");
        }
        assert!(crowd.iter().take(places).all(is_evicted), "the first came first");
    }

    #[test]
    fn a_full_address_gives_way_to_itself_and_takes_nothing_from_others() {
        let table = ConnectionTable::new(100);
        let other = table.enter(address(1), 2, at(0)).expect("room");
        let [first, second] = [(); 2].map(|()| table.enter(address(2), 2, at(0)).expect("room"));
        drop(second.request(at(5)));
        let third = table.enter(address(2), 2, at(6)).expect("the silent one goes");
        assert!(is_evicted(&first) && !is_evicted(&second) && !is_evicted(&other));
        let busy = third.request(at(7));
        let refused = TableFull {
            total: 3,
            of_address: 2,
        };
        assert_eq!(table.enter(address(2), 2, at(8)).err(), Some(refused));
        let fourth = table.enter(address(2), 2, at(20)).expect("the idle one goes");
        assert!(is_evicted(&second) && !is_evicted(&third) && !is_evicted(&fourth));
        drop(busy);
    }

    #[test]
    fn whoever_has_many_makes_room_for_who_has_few_but_for_requests_in_flight() {
        let table = ConnectionTable::new(4);
        let many: Vec<_> = (0..4)
            .map(|_| table.enter(address(1), 9, at(0)).expect("room"))
            .collect();
        let mut busy: Vec<_> = many.iter().map(|place| place.request(at(1))).collect();
        assert!(table.enter(address(2), 9, at(2)).is_err(), "all are busy");
        busy.remove(2);
        let newcomer = table.enter(address(2), 9, at(2)).expect("one is idle");
        assert!(is_evicted(&many[2]));
        drop(newcomer.request(at(3)));
        let second = table.enter(address(2), 9, at(3));
        assert!(second.is_err(), "the others are busy");
        busy.clear();
        let second = table.enter(address(2), 9, at(3)).expect("three against one");
        drop(second.request(at(3)));
        assert!(
            table.enter(address(2), 9, at(4)).is_err(),
            "two each: nobody is greedy, and nobody idle for long"
        );
        let later = table.enter(address(2), 9, at(60));
        assert!(later.is_ok(), "idle for long");
    }

    #[test]
    fn an_evicted_connection_leaves_once() {
        let table = ConnectionTable::new(1);
        let first = table.enter(address(1), 1, at(0)).expect("room");
        let second = table.enter(address(2), 1, at(0)).expect("the first gives way");
        drop(first);
        assert_eq!(table.len(), 1);
        drop(second);
        assert_eq!(table.len(), 0);
    }
}

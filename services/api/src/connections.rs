//! The connection table of a listener: which connections there are, of whom and in which phase, and which of them must go when
//! there is no room.
//!
//! Everybody who calls is accepted at once; nothing waits for a permit that a stranger may hold. What a connection may keep others
//! from is bounded by its phase:
//!
//! ```text
//!             TLS done          head read       body wanted       body whole      handler done     reply written
//! Handshake ───────────► First ──────────► Working ──────► Receiving ──────► Working ──────► Replying ──────► Idle
//!    10 s                 10 s               60 s    (skipped: no body)  30 s           20 s     │      │  75 s
//!                                             ▲───────────────────────────────────────────────────┴──────┘ head read
//! ```
//!
//! A connection that stays in a phase longer than its time ends. When the table, or what one address may have of it, is full, a
//! newcomer displaces a connection that waits for its client (any phase but Working): the oldest of its own address if that has
//! its share already; otherwise the oldest of the address with the most of them, if those are many, else the oldest of all. So a
//! flood displaces itself: from few places because they have many connections, from many places because honest clients need
//! theirs for milliseconds and so are the youngest. Only if all others are working is the newcomer refused.
//!
//! Addresses of IPv6 count by their /64, which is what one customer of a network is given.

use firn_env::Monotonic;
use futures::future::AbortHandle;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// An address with more waiting connections than this is one whose own go first when the table is full. Browsers and programs
/// that share an address have fewer at a moment; the more there are of those, the more honest ones would be among them.
const MANY: usize = 16;

/// How many connections a listener has at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// In all. Each takes a descriptor and, after its handshake, some 40 KiB.
    pub total: usize,
    /// Of one address, or of one /64 of IPv6.
    pub per_address: usize,
    /// Addresses without a share of their own: gateways, behind which there is everybody.
    pub gateways: Vec<IpAddr>,
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The TLS handshake is not finished.
    Handshake,
    /// Nothing was asked yet.
    First,
    /// The body of a request is on its way.
    Receiving,
    /// A reply is on its way.
    Replying,
    /// A reply was fetched, and nothing more was asked yet.
    Idle,
    /// The service is busy with a request, and the client waits.
    Working,
}

impl Phase {
    /// All of them.
    pub(crate) const ALL: [Self; 6] = [
        Self::Handshake,
        Self::First,
        Self::Receiving,
        Self::Replying,
        Self::Idle,
        Self::Working,
    ];

    /// Its name in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::First => "first",
            Self::Receiving => "receiving",
            Self::Replying => "replying",
            Self::Idle => "idle",
            Self::Working => "working",
        }
    }

    /// How long a connection may stay in it.
    fn limit(self) -> Duration {
        Duration::from_secs(match self {
            // Two round trips and a signature: seconds only on the worst of lines.
            Self::Handshake | Self::First => 10,
            // Above the router's own limit for bodies, which answers with a problem document.
            Self::Receiving => 30,
            Self::Replying => 20,
            // Longer than clients and gateways keep connections for the next request (60 s), so that they close first.
            Self::Idle => 75,
            // The slowest operations ask a cloud, which is given 20 s; gateways give up after 30 s.
            Self::Working => 60,
        })
    }

    /// Whether the service waits for the client in it, so that a newcomer may have the connection's place.
    fn waits_for_client(self) -> bool {
        match self {
            Self::Handshake | Self::First | Self::Receiving | Self::Replying | Self::Idle => true,
            Self::Working => false,
        }
    }
}

/// Why connections ended that did not end by themselves, counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// They made room for newcomers.
    pub(crate) displaced: u64,
    /// They stayed in a phase for too long.
    pub(crate) late: u64,
    /// They were not let in: all others were working.
    pub(crate) refused: u64,
}

impl Ended {
    pub(crate) fn sum(self) -> u64 {
        self.displaced + self.late + self.refused
    }
}

/// The table; clones are the same one.
#[derive(Clone)]
pub(crate) struct Connections(Arc<Mutex<Table>>);

struct Table {
    limits: ConnectionLimits,
    next: u64,
    all: HashMap<u64, Entry>,
    addresses: BTreeMap<IpAddr, Address>,
    /// Addresses by how many connections they have that can be displaced.
    heaviest: BTreeSet<(usize, IpAddr)>,
    /// All connections that can be displaced, the oldest in their phase first, and whose they are.
    oldest: BTreeMap<u64, IpAddr>,
    ended: Ended,
}

struct Entry {
    address: IpAddr,
    phase: Phase,
    /// Counts changes of phases, so that the oldest in a phase is known without a clock.
    order: u64,
    deadline: Monotonic,
    end: AbortHandle,
}

#[derive(Default)]
struct Address {
    count: usize,
    /// Connections that can be displaced, by their order.
    displaceable: BTreeMap<u64, u64>,
}

/// A connection's place in the table; it is given back when this is dropped.
pub(crate) struct Seat {
    connections: Connections,
    id: u64,
}

impl Connections {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        Self(Arc::new(Mutex::new(Table {
            limits,
            next: 0,
            all: HashMap::new(),
            addresses: BTreeMap::new(),
            heaviest: BTreeSet::new(),
            oldest: BTreeMap::new(),
            ended: Ended::default(),
        })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("no panic under this lock")
    }

    /// Gives a newcomer a place, in the phase in which it begins; `end` ends it. If need be another connection is ended for it;
    /// nothing if none can be.
    pub(crate) fn admit(
        &self,
        address: IpAddr,
        phase: Phase,
        now: Monotonic,
        end: AbortHandle,
    ) -> Option<Seat> {
        let mut table = self.table();
        let has_share = !table.limits.gateways.contains(&canonical(address));
        let address = counted(address);
        let own = table.addresses.get(&address).map_or(0, |address| address.count);
        let fits = if has_share && own >= table.limits.per_address {
            table.displace_of(address)
        } else if table.all.len() >= table.limits.total {
            table.displace()
        } else {
            true
        };
        if !fits {
            table.ended.refused += 1;
            return None;
        }
        table.next += 1;
        let id = table.next;
        table.addresses.entry(address).or_default().count += 1;
        let entry = Entry {
            address,
            phase,
            order: id,
            deadline: now.after(phase.limit()),
            end,
        };
        table.enlist(id, &entry);
        table.all.insert(id, entry);
        Some(Seat {
            connections: self.clone(),
            id,
        })
    }

    /// Ends the connection that would be displaced next, as when descriptors run out.
    pub(crate) fn displace(&self) {
        self.table().displace();
    }

    /// Ends connections that stayed in a phase for too long.
    pub(crate) fn reap(&self, now: Monotonic) {
        let mut table = self.table();
        let late: Vec<u64> = table
            .all
            .iter()
            .filter(|(_, entry)| entry.deadline <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            table.end(id);
            table.ended.late += 1;
        }
    }

    /// How many connections are in each phase, in the order of [`Phase::ALL`].
    pub(crate) fn phases(&self) -> [usize; 6] {
        let table = self.table();
        Phase::ALL.map(|phase| table.all.values().filter(|entry| entry.phase == phase).count())
    }

    /// What ended not by itself.
    pub(crate) fn ended(&self) -> Ended {
        self.table().ended
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.table().all.len()
    }
}

impl Seat {
    /// The connection goes on to another phase. Once it was ended this does nothing.
    pub(crate) fn enter(&self, phase: Phase, now: Monotonic) {
        let mut table = self.connections.table();
        let table = &mut *table;
        let Some(mut entry) = table.all.remove(&self.id) else {
            return;
        };
        table.delist(&entry);
        table.next += 1;
        entry.phase = phase;
        entry.order = table.next;
        entry.deadline = now.after(phase.limit());
        table.enlist(self.id, &entry);
        table.all.insert(self.id, entry);
    }

    /// The phase it is in; nothing once it was ended.
    pub(crate) fn phase(&self) -> Option<Phase> {
        self.connections
            .table()
            .all
            .get(&self.id)
            .map(|entry| entry.phase)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.connections.table().remove(self.id);
    }
}

impl Table {
    fn enlist(&mut self, id: u64, entry: &Entry) {
        if !entry.phase.waits_for_client() {
            return;
        }
        self.oldest.insert(entry.order, entry.address);
        let address = self.addresses.entry(entry.address).or_default();
        self.heaviest.remove(&(address.displaceable.len(), entry.address));
        address.displaceable.insert(entry.order, id);
        self.heaviest.insert((address.displaceable.len(), entry.address));
    }

    fn delist(&mut self, entry: &Entry) {
        self.oldest.remove(&entry.order);
        let Some(address) = self.addresses.get_mut(&entry.address) else {
            return;
        };
        self.heaviest.remove(&(address.displaceable.len(), entry.address));
        address.displaceable.remove(&entry.order);
        if !address.displaceable.is_empty() {
            self.heaviest.insert((address.displaceable.len(), entry.address));
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(entry) = self.all.remove(&id) else { return };
        self.delist(&entry);
        if let Some(address) = self.addresses.get_mut(&entry.address) {
            address.count -= 1;
            if address.count == 0 {
                self.addresses.remove(&entry.address);
            }
        }
    }

    fn end(&mut self, id: u64) {
        if let Some(entry) = self.all.get(&id) {
            entry.end.abort();
        }
        self.remove(id);
    }

    fn displace_of(&mut self, address: IpAddr) -> bool {
        let oldest = self
            .addresses
            .get(&address)
            .and_then(|address| address.displaceable.first_key_value());
        let Some((_, &id)) = oldest else {
            return false;
        };
        self.end(id);
        self.ended.displaced += 1;
        true
    }

    fn displace(&mut self) -> bool {
        let heavy = self.heaviest.last().filter(|(count, _)| *count > MANY);
        match heavy.map(|(_, address)| address).or(self.oldest.values().next()) {
            Some(&address) => self.displace_of(address),
            None => false,
        }
    }
}

/// An address of IPv4 that was written as one of IPv6 is the same.
pub(crate) fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// What an address counts as.
pub(crate) fn counted(address: IpAddr) -> IpAddr {
    match canonical(address) {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_env::sim::Simulation;
    use futures::future::AbortHandle;

    struct Guest {
        seat: Option<Seat>,
        end: AbortHandle,
    }

    impl Guest {
        fn is_there(&self) -> bool {
            self.seat.is_some() && !self.end.is_aborted()
        }

        fn enter(&self, phase: Phase, now: Monotonic) {
            self.seat.as_ref().expect("it was let in").enter(phase, now);
        }
    }

    fn connections(total: usize, per_address: usize) -> Connections {
        Connections::new(ConnectionLimits {
            total,
            per_address,
            gateways: vec![[10, 0, 0, 1].into()],
        })
    }

    fn calls(connections: &Connections, address: impl Into<IpAddr>, now: Monotonic) -> Guest {
        let (end, _) = AbortHandle::new_pair();
        let seat = connections.admit(address.into(), Phase::Handshake, now, end.clone());
        Guest { seat, end }
    }

    fn at(run: impl FnOnce(Monotonic)) {
        let simulation = Simulation::new(1);
        run(simulation.env().now());
    }

    #[test]
    fn a_flood_from_one_address_displaces_its_own_oldest_and_nobody_else() {
        at(|now| {
            let table = connections(100, 10);
            let other = calls(&table, [1, 1, 1, 1], now);
            let flood: Vec<_> = (0..1000).map(|_| calls(&table, [2, 2, 2, 2], now)).collect();
            assert!(other.is_there());
            assert_eq!(flood.iter().filter(|guest| guest.is_there()).count(), 10);
            assert!(flood[990..].iter().all(Guest::is_there), "the newest stay");
            assert_eq!(table.ended().displaced, 990);
            drop(flood);
            assert_eq!(table.len(), 1);
        });
    }

    #[test]
    fn a_flood_from_some_addresses_displaces_those_with_many_before_anybody_with_few() {
        at(|now| {
            let table = connections(100, 60);
            let honest = calls(&table, [1, 1, 1, 1], now);
            honest.enter(Phase::Idle, now);
            let flood: Vec<_> = (0..1000_u32)
                .map(|index| calls(&table, [2, 2, 2, u8::try_from(index % 4).unwrap()], now))
                .collect();
            assert_eq!(table.len(), 100);
            assert!(honest.is_there(), "the oldest of all, but of one who has one");
            drop(flood);
        });
    }

    #[test]
    fn a_flood_from_everywhere_displaces_the_oldest_so_that_who_is_quick_is_served() {
        at(|now| {
            let table = connections(100, 10);
            let mut flood = Vec::new();
            let stranger = |index: usize| {
                let [.., high, low] = index.to_be_bytes();
                calls(&table, [2, 2, high, low], now)
            };
            flood.extend((0..1000).map(stranger));
            for round in 1..50 {
                // Two at once from one address: the heaviest there is, and yet the youngest.
                let honest = [calls(&table, [1, 1, 1, 1], now), calls(&table, [1, 1, 1, 1], now)];
                flood.extend((round * 1000..round * 1000 + 90).map(stranger));
                assert!(honest.iter().all(Guest::is_there), "round {round}");
            }
            assert_eq!(table.ended().refused, 0);
        });
    }

    #[test]
    fn whoever_is_being_served_is_never_displaced_and_a_newcomer_is_refused_then() {
        at(|now| {
            let table = connections(3, 2);
            let working: Vec<_> = (0..2).map(|_| calls(&table, [1, 1, 1, 1], now)).collect();
            working.iter().for_each(|guest| guest.enter(Phase::Working, now));
            assert!(
                !calls(&table, [1, 1, 1, 1], now).is_there(),
                "its share is at work"
            );
            let third = calls(&table, [1, 1, 1, 2], now);
            third.enter(Phase::Working, now);
            assert!(!calls(&table, [1, 1, 1, 3], now).is_there());
            assert_eq!(table.ended().refused, 2);
            third.enter(Phase::Replying, now);
            assert!(
                calls(&table, [1, 1, 1, 3], now).is_there(),
                "a reply that nobody fetches gives way"
            );
            assert!(working.iter().all(Guest::is_there));
        });
    }

    #[test]
    fn each_phase_has_its_time() {
        at(|now| {
            let table = connections(10, 10);
            let guest = calls(&table, [1, 1, 1, 1], now);
            table.reap(now.after(Duration::from_secs(9)));
            assert!(guest.is_there());
            let then = now.after(Duration::from_secs(9));
            guest.enter(Phase::Idle, then);
            table.reap(then.after(Duration::from_secs(74)));
            assert!(guest.is_there());
            table.reap(then.after(Duration::from_secs(75)));
            assert!(!guest.is_there());
            assert_eq!((table.len(), table.ended().late), (0, 1));
            // What was ended stays ended, whatever its task still says.
            guest.enter(Phase::Working, then);
            assert_eq!(guest.seat.as_ref().and_then(Seat::phase), None);
        });
    }

    #[test]
    fn gateways_have_no_share_and_a_network_of_ipv6_has_one() {
        at(|now| {
            let table = connections(50, 2);
            let gateway: Vec<_> = (0..40).map(|_| calls(&table, [10, 0, 0, 1], now)).collect();
            assert!(gateway.iter().all(Guest::is_there));
            let network: Vec<_> = (0..5_u16)
                .map(|host| calls(&table, Ipv6Addr::new(0x2001, 0xdb8, 0, 7, host, 0, 0, 1), now))
                .collect();
            assert_eq!(network.iter().filter(|guest| guest.is_there()).count(), 2);
            let mapped = calls(&table, Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x0a00, 1), now);
            assert!(mapped.is_there() && gateway.iter().all(Guest::is_there));
        });
    }
}

//! Admission of connections: how many there may be, from where and of whom, before a node does anything for them.
//!
//! ```text
//! accepted ─→ handshake, of an address ─certificate→ open, of an owner ─→ served
//!                 │ too many: the oldest makes room       │ beyond its share: refused
//! ```
//!
//! Nobody is known before the handshake, so a connection costs its caller nothing until then: of those the oldest is closed for
//! a newcomer, first of the same address, so that who stays silent holds nobody up. (Half-open connections of TCP are treated
//! alike.) What is open counts for its owner, by thresholds that leave room for whoever comes next
//! ([`Budget`](firn_blockd_protocol::Budget)).

use firn_blockd_protocol::{Budget, Charge, Owner};
use firn_env::{Env, Monotonic};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::oneshot;
use tracing::warn;

/// Handshakes at once, beside the connections that are open: each has a socket and some kilobytes, and takes a millisecond of a processor once its caller goes on.
pub const HANDSHAKES_MAX: usize = 512;
/// Of these from one address. A machine that attaches some hundred disks at once has as many, and comes back for the rest.
const HANDSHAKES_OF_ADDRESS_MAX: usize = 128;
/// Between two warnings about connections that were closed or refused.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

struct Handshake {
    address: Owner,
    /// Closes it.
    close: oneshot::Sender<()>,
}

#[derive(Default)]
struct Handshakes {
    /// Since the start; the order of the keys is that of arrival.
    begun: u64,
    open: BTreeMap<u64, Handshake>,
    of_address: BTreeMap<Owner, usize>,
}

impl Handshakes {
    fn remove(&mut self, number: u64) -> Option<Handshake> {
        let handshake = self.open.remove(&number)?;
        if let Some(count) = self.of_address.get_mut(&handshake.address) {
            *count -= 1;
            if *count == 0 {
                self.of_address.remove(&handshake.address);
            }
        }
        Some(handshake)
    }

    /// The oldest, of one address or of all.
    fn oldest(&self, of: Option<&Owner>) -> Option<u64> {
        let mut open = self.open.iter();
        open.find(|(_, handshake)| of.is_none_or(|address| handshake.address == *address))
            .map(|(number, _)| *number)
    }
}

/// See the module.
pub(crate) struct Admission {
    env: Env,
    handshakes: Mutex<Handshakes>,
    open: Budget<Owner>,
    /// Handshakes that were closed for newcomers.
    pub(crate) evicted: AtomicU64,
    /// Connections beyond their owner's share.
    pub(crate) refused: AtomicU64,
    warned: Mutex<(Option<Monotonic>, u64)>,
}

/// A connection of whose caller nothing is known but the address.
pub(crate) struct Unknown {
    admission: Arc<Admission>,
    number: u64,
    /// Resolves when it must make room.
    closed: oneshot::Receiver<()>,
}

impl Unknown {
    /// Ends when this connection must make room for another.
    pub(crate) async fn evicted(&mut self) {
        // Its sender is dropped only with the entry of this connection.
        let _ = (&mut self.closed).await;
    }
}

impl Drop for Unknown {
    fn drop(&mut self) {
        self.admission.handshakes().remove(self.number);
    }
}

impl Admission {
    /// So many connections may be open.
    pub(crate) fn new(env: &Env, connections: usize) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            handshakes: Mutex::default(),
            open: Budget::new(connections),
            evicted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            warned: Mutex::default(),
        })
    }

    fn handshakes(&self) -> MutexGuard<'_, Handshakes> {
        self.handshakes.lock().expect("no panic under this lock")
    }

    /// Connections that are open or in their handshakes.
    pub(crate) fn handshaking(&self) -> usize {
        self.handshakes().open.len()
    }

    /// A connection was accepted; another one may have to go for it.
    pub(crate) fn arrived(self: &Arc<Self>, address: &str) -> Unknown {
        let address = Owner::at(address);
        let (close, closed) = oneshot::channel();
        let (number, evicted) = {
            let mut handshakes = self.handshakes();
            let of_address = handshakes.of_address.get(&address).copied().unwrap_or(0);
            let oldest = if of_address >= HANDSHAKES_OF_ADDRESS_MAX {
                handshakes.oldest(Some(&address))
            } else if handshakes.open.len() >= HANDSHAKES_MAX {
                handshakes.oldest(None)
            } else {
                None
            };
            let evicted = oldest.and_then(|oldest| handshakes.remove(oldest));
            handshakes.begun += 1;
            let number = handshakes.begun;
            *handshakes.of_address.entry(address.clone()).or_default() += 1;
            handshakes.open.insert(number, Handshake { address, close });
            (number, evicted)
        };
        if let Some(evicted) = evicted {
            self.evict(evicted);
        }
        Unknown {
            admission: self.clone(),
            number,
            closed,
        }
    }

    /// Evicts the oldest handshake, as when the process has no more file descriptors; false if there is none.
    pub(crate) fn evict_oldest(&self) -> bool {
        let oldest = {
            let mut handshakes = self.handshakes();
            let oldest = handshakes.oldest(None);
            oldest.and_then(|oldest| handshakes.remove(oldest))
        };
        oldest.map(|oldest| self.evict(oldest)).is_some()
    }

    fn evict(&self, handshake: Handshake) {
        self.evicted.fetch_add(1, Relaxed);
        // One that ended meanwhile has made room by itself.
        let _ = handshake.close.send(());
        self.warn(
            "it said nothing that made it known, and others came",
            &handshake.address,
        );
    }

    /// It is known who calls: the connection is open as long as this is held. Nothing if its owner has its share already.
    pub(crate) fn known(&self, unknown: Unknown, owner: &Owner) -> Option<Charge<Owner>> {
        drop(unknown);
        let open = self.open.try_charge(owner, 1);
        if open.is_none() {
            self.refused.fetch_add(1, Relaxed);
            self.warn("its owner has its share of this node's connections", owner);
        }
        open
    }

    /// One line a minute, however many there are.
    fn warn(&self, why: &str, whose: &Owner) {
        let now = self.env.now();
        let others = {
            let mut warned = self.warned.lock().expect("no panic under this lock");
            if warned.0.is_some_and(|at| now.since(at) < WARNING_INTERVAL) {
                warned.1 += 1;
                return;
            }
            warned.0 = Some(now);
            std::mem::take(&mut warned.1)
        };
        warn!(?whose, others, "a connection was closed: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_env::sim::Simulation;
    use futures::FutureExt;

    fn is_closed(unknown: &mut Unknown) -> bool {
        unknown.evicted().now_or_never().is_some()
    }

    #[test]
    fn the_oldest_of_an_address_makes_room_for_a_newcomer_from_there() {
        let admission = Admission::new(&Simulation::new(1).env(), 8);
        let mut quiet = admission.arrived("10.0.0.2:1");
        let mut flood: Vec<Unknown> = (0..HANDSHAKES_OF_ADDRESS_MAX)
            .map(|port| admission.arrived(&format!("10.0.0.1:{port}")))
            .collect();
        assert!(!flood.iter_mut().any(is_closed), "there is room for all");
        let mut newcomer = admission.arrived("10.0.0.1:65000");
        assert!(is_closed(&mut flood[0]) && !is_closed(&mut flood[1]));
        assert!(!is_closed(&mut newcomer) && !is_closed(&mut quiet));
        drop((quiet, flood, newcomer));
        assert_eq!(admission.handshaking(), 0);
        assert!(admission.handshakes().of_address.is_empty());
    }

    #[test]
    fn many_addresses_share_the_room_for_those_who_say_nothing() {
        let admission = Admission::new(&Simulation::new(1).env(), 8);
        let mut flood: Vec<Unknown> = (0..4 * HANDSHAKES_MAX)
            .map(|host| admission.arrived(&format!("10.0.{}.{}:7", host / 250, host % 250)))
            .collect();
        let closed = flood
            .iter_mut()
            .filter_map(|one| is_closed(one).then_some(()))
            .count();
        assert_eq!(
            (closed, admission.handshaking()),
            (3 * HANDSHAKES_MAX, HANDSHAKES_MAX)
        );
        assert_eq!(admission.evicted.load(Relaxed), 3 * HANDSHAKES_MAX as u64);
        assert_eq!(
            admission.warned.lock().unwrap().1,
            3 * HANDSHAKES_MAX as u64 - 1,
            "one line"
        );
    }

    #[test]
    fn one_owner_leaves_room_for_another_whatever_its_certificates() {
        let admission = Admission::new(&Simulation::new(1).env(), 9);
        let (greedy, other) = (Owner::Tenant([1; 16]), Owner::Tenant([2; 16]));
        let open = |owner| admission.known(admission.arrived("10.0.0.1:1"), owner);
        let held: Vec<_> = (0..20).filter_map(|_| open(&greedy)).collect();
        assert_eq!(held.len(), 5, "half, and the one that reaches it");
        assert!(open(&other).is_some());
        assert_eq!(admission.refused.load(Relaxed), 15);
    }

    #[test]
    fn an_address_is_a_host_or_a_subscriber() {
        assert_eq!(Owner::at("10.1.2.3:4"), Owner::at("10.1.2.3:5"));
        assert_eq!(
            Owner::at("[2001:db8:1:2:3::4]:5"),
            Owner::at("[2001:db8:1:2:ffff::1]:6")
        );
        assert_eq!(Owner::at("[::ffff:10.1.2.3]:5"), Owner::at("10.1.2.3:4"));
        assert_ne!(Owner::at("10.1.2.3:4"), Owner::at("10.1.2.4:4"));
        assert_eq!(Owner::at("node:7300"), Owner::at("node:7301"));
    }
}

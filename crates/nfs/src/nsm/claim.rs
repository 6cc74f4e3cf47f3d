//! A client's claim that it restarted, and whether it is believed: it costs the client all its locks.
//!
//! Only root of a machine that an export admits may claim anything (a port below 1024). A claim by stream is believed: the
//! handshake proves its address. By datagram, which is how Linux sends them, the address may be forged, so the machine is
//! called back:
//!
//! ```text
//! its status monitor has the claimed state number ─────────────────────> true      (SM_STAT, X/Open XNFS chapter 11)
//!    ├───────────────── another one ───────────────────────────────────> false
//!    └─ it runs none: nor a lock manager, says its port mapper ────────> true      (just booted, nothing mounted)
//!                     a lock manager, or nobody answers ───────────────> unproven
//! ```
//!
//! The number alone proves nothing, since anybody can ask for it: a claim of the number that the client's own LOCK calls carry
//! is of the incarnation that holds the locks, and false. An unproven claim is remembered, and believed when a LOCK of that
//! client carries the claimed number instead of its earlier one, which needs a handle that we signed. Locks that stay for too
//! long do no harm to data; locks that go too early do.

use super::{Host, Monitor, PROGRAM, VERSION, program::HostName};
use crate::{
    nlm::number,
    portmap::port_of,
    remote::{self, RemoteError},
    rpc::{Credential, Peer, Target, Transport},
    xdr::Decoder,
};
use bytes::Bytes;
use firn_env::Env;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};
use tracing::{debug, info};

/// SM_STAT.
const STATUS: u32 = 1;
/// `stat_succ`.
const SUCCESS: u32 = 0;
/// Machines called back at one time; a claim that finds no place is dropped, and comes again.
const CHECKS_MAX: usize = 16;

/// What is known of the incarnations of clients. Of clients on the list only.
#[derive(Debug, Default)]
pub(super) struct Claims {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    incarnations: BTreeMap<Host, Incarnation>,
    checking: BTreeSet<IpAddr>,
}

#[derive(Debug, Default)]
struct Incarnation {
    /// The state number that its last LOCK carried; 0: none did.
    of_locks: i32,
    /// A claim that could not be proven.
    unproven: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    True,
    False,
    Unproven,
}

impl Claims {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no panic under this lock")
    }

    /// Forgets clients that are not on the list.
    pub(super) fn keep(&self, listed: &BTreeSet<Host>) {
        self.known().incarnations.retain(|host, _| listed.contains(host));
    }

    /// Whether `state` is the number of the incarnation that holds the locks.
    fn is_present(&self, host: &Host, state: i32) -> bool {
        let known = self.known();
        let incarnation = known.incarnations.get(host);
        state != 0 && incarnation.is_some_and(|incarnation| incarnation.of_locks == state)
    }

    /// Begins to check a claim of `address`; `false` if one is being checked, or too many are.
    fn begin(&self, address: IpAddr) -> bool {
        let mut known = self.known();
        known.checking.len() < CHECKS_MAX && known.checking.insert(address)
    }
}

impl Monitor {
    /// Somebody at `peer` says that the machine called `name` restarted and now has number `state`. What is believed is done
    /// before this returns, if it came by stream; in the background otherwise.
    pub(crate) async fn claim_restarted(self: &Arc<Self>, peer: &Peer, name: &Bytes, state: i32) {
        match peer.transport {
            Transport::Tcp => self.client_restarted(peer.address, name, state).await,
            Transport::Udp => {
                let affected = self.affected(peer.address, name, state.cast_unsigned());
                let (monitor, name, address) = (self.clone(), name.clone(), peer.address);
                if affected.iter().all(|host| self.claims.is_present(host, state)) {
                    return;
                }
                self.check(address, name.clone(), state, async move |verdict| match verdict {
                    Verdict::True => monitor.client_restarted(address, &name, state).await,
                    Verdict::False => {}
                    Verdict::Unproven => {
                        let mut known = monitor.claims.known();
                        for host in affected {
                            known.incarnations.entry(host).or_default().unproven = Some(state);
                        }
                    }
                });
            }
        }
    }

    /// Somebody at `peer` says that `host` holds nothing any more (FREE_ALL); `release` makes it true.
    pub(crate) fn claim_free(
        self: &Arc<Self>,
        peer: &Peer,
        host: Host,
        state: i32,
        release: impl FnOnce(&Host) + Send + 'static,
    ) {
        match peer.transport {
            Transport::Tcp => release(&host),
            Transport::Udp if self.claims.is_present(&host, state) => {}
            Transport::Udp => {
                let (address, name) = (host.address, host.name.clone());
                self.check(address, name, state, async move |verdict| {
                    if verdict == Verdict::True {
                        release(&host);
                    }
                });
            }
        }
    }

    /// Notes the number that a LOCK of `host` carries, which holds a handle of ours. If it is what an unproven claim said, and
    /// another than before, the claim was true.
    pub(crate) async fn lock_carries(&self, host: &Host, state: i32) {
        let believed = {
            let mut known = self.claims.known();
            let incarnation = known.incarnations.entry(host.clone()).or_default();
            let before = std::mem::replace(&mut incarnation.of_locks, state);
            let claimed = incarnation.unproven.take_if(|claimed| *claimed == state);
            claimed.is_some() && before != 0 && before != state
        };
        if believed {
            self.client_restarted(host.address, &host.name, state).await;
        }
    }

    fn check<F: Future<Output = ()> + Send>(
        self: &Arc<Self>,
        address: IpAddr,
        name: Bytes,
        state: i32,
        then: impl FnOnce(Verdict) -> F + Send + 'static,
    ) {
        if !self.claims.begin(address) {
            return;
        }
        let monitor = self.clone();
        drop(self.env.spawn("lock restart check", async move {
            let verdict = verdict(&monitor.env, address, &name, state).await;
            let name = String::from_utf8_lossy(&name);
            info!(%address, %name, state, ?verdict, "restart of a client, said by datagram");
            then(verdict).await;
            monitor.claims.known().checking.remove(&address);
        }));
    }
}

/// Calls the machine back.
async fn verdict(env: &Env, address: IpAddr, name: &Bytes, state: i32) -> Verdict {
    let target = Target {
        program: PROGRAM,
        version: VERSION,
        credential: Credential::None,
    };
    match remote::call(env, address, &target, STATUS, &HostName::from(name.clone())).await {
        Ok(results) => match status(results) {
            Some(present) if present == state => Verdict::True,
            Some(_) => Verdict::False,
            None => Verdict::Unproven,
        },
        Err(RemoteError::NotRegistered) => {
            for transport in [Transport::Tcp, Transport::Udp] {
                match port_of(env, address, number::PROGRAM, number::VERSION, transport).await {
                    Ok(None) => {}
                    Ok(Some(_)) | Err(_) => return Verdict::Unproven,
                }
            }
            Verdict::True
        }
        Err(error) => {
            debug!(%address, %error, "a client could not be asked whether it restarted");
            Verdict::Unproven
        }
    }
}

/// The state number in a reply to SM_STAT, if its sender vouches for it.
fn status(mut results: Decoder) -> Option<i32> {
    let (result, state) = (results.u32().ok()?, results.u32().ok()?);
    (result == SUCCESS).then_some(state.cast_signed())
}

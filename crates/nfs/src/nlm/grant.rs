//! Telling a client that a lock it waited for is now its own: we call GRANTED at its lock manager.
//!
//! ```text
//! waiting ─ granted by the table ─> telling ─ client: granted ───────────────> settled
//!    │                                ├────── client: denied ─ unlock ───────> settled
//!    │                                ├────── client asks for it again or
//!    │                                │       unlocks or cancels it ─────────> settled
//!    └─ cancelled ─> settled          └────── tries used up ─────────────────> settled (unlocked only if surely not told)
//! ```
//!
//! The lock is the client's from the moment the table granted it, whether it knows or not. A client that heard GRANTED and
//! whose reply was lost believes to hold the lock; so after tries that may have arrived the lock stays, until the client
//! unlocks it or restarts. Only if every try surely never arrived is it given to the next: the client will ask again
//! (Linux does after 30 s).

use super::{LockStatus, NetObject, PROGRAM, StatusReply, TestCall, VERSION, WireLock, procedure::GRANTED};
use crate::{
    remote::{self, RemoteError},
    rpc::{Credential, Target},
    xdr::Decode,
};
use bytes::Bytes;
use firn_env::Env;
use firn_session::{ByteRange, LockOwner, LockRequest, LockTable, LockWaiter};
use firn_vfs::FileHandle;
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tracing::{debug, warn};

/// Pauses before each try.
const TRIES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(20),
];

/// Waiting and not yet settled requests. Bounded by the waiters of the lock table.
#[derive(Clone, Default)]
pub(super) struct Grants {
    open: Arc<Mutex<BTreeMap<Key, Arc<AtomicBool>>>>,
}

/// A request by owner first, so that those of one owner are together.
type Key = (LockOwner, FileHandle, ByteRange, bool);

fn key(request: &LockRequest) -> Key {
    let LockRequest {
        file,
        owner,
        range,
        exclusive,
    } = request;
    (owner.clone(), *file, *range, *exclusive)
}

impl Grants {
    fn open(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<AtomicBool>>> {
        self.open.lock().expect("no panic under this lock")
    }

    /// Waits in the background and tells the client.
    pub(super) fn deliver(
        &self,
        env: &Env,
        table: &LockTable,
        waiter: LockWaiter,
        address: IpAddr,
        lock: WireLock,
    ) {
        let settled = Arc::new(AtomicBool::new(false));
        let replaced = self.open().insert(key(waiter.request()), settled.clone());
        if let Some(earlier) = replaced {
            // Its lock was granted, then given up, and is now waited for again.
            earlier.store(true, Ordering::Release);
        }
        let grant = Grant {
            env: env.clone(),
            table: table.clone(),
            address,
            request: waiter.request().clone(),
            lock: own_copy(&lock),
            settled,
            grants: self.clone(),
        };
        drop(env.spawn("lock grant", grant.run(waiter)));
    }

    /// The client knows how this very request stands; whether it was open.
    pub(super) fn settle_exactly(&self, request: &LockRequest) -> bool {
        let settled = self.open().remove(&key(request));
        settled
            .inspect(|settled| settled.store(true, Ordering::Release))
            .is_some()
    }

    /// The client knows how requests of `owner` in `range` stand that no longer wait.
    pub(super) fn settle(&self, table: &LockTable, file: FileHandle, owner: &LockOwner, range: ByteRange) {
        let start: Key = (
            owner.clone(),
            FileHandle {
                file_system: 0,
                inode: 0,
            },
            ByteRange { first: 0, last: 0 },
            false,
        );
        self.open()
            .range(start..)
            .take_while(|((of, ..), _)| of == owner)
            .filter(|((_, at, of, _), _)| *at == file && of.overlaps(range))
            .filter(|((owner, file, range, exclusive), _)| {
                !table.is_waiting(&LockRequest {
                    file: *file,
                    owner: owner.clone(),
                    range: *range,
                    exclusive: *exclusive,
                })
            })
            .for_each(|(_, settled)| settled.store(true, Ordering::Release));
    }
}

/// A copy that shares nothing with the message it came in, which may be large.
fn own_copy(lock: &WireLock) -> WireLock {
    let copy = |object: &NetObject| NetObject::from(Bytes::copy_from_slice(&object.0));
    WireLock {
        caller: copy(&lock.caller),
        handle: copy(&lock.handle),
        owner: copy(&lock.owner),
        ..*lock
    }
}

struct Grant {
    env: Env,
    table: LockTable,
    address: IpAddr,
    request: LockRequest,
    lock: WireLock,
    settled: Arc<AtomicBool>,
    grants: Grants,
}

/// How the telling ended.
enum AfterCallback {
    /// The client has the lock, or has said what it wants, or may have heard of it.
    Keep,
    /// The client does not have it.
    Unlock,
}

impl Grant {
    async fn run(self, waiter: LockWaiter) {
        if waiter.await.is_ok() {
            self.env.fault_point("nlm.before_granted").await;
            if matches!(self.tell().await, AfterCallback::Unlock) && !self.is_settled() {
                let LockRequest {
                    file, owner, range, ..
                } = &self.request;
                self.table.unlock(*file, owner, *range);
            }
        }
        let mut open = self.grants.open();
        let key = key(&self.request);
        if open
            .get(&key)
            .is_some_and(|current| Arc::ptr_eq(current, &self.settled))
        {
            open.remove(&key);
        }
    }

    fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    async fn tell(&self) -> AfterCallback {
        let target = Target {
            program: PROGRAM,
            version: VERSION,
            credential: Credential::None,
        };
        let call = TestCall {
            cookie: Bytes::copy_from_slice(&self.env.random_bytes::<8>()).into(),
            exclusive: self.request.exclusive,
            lock: self.lock.clone(),
        };
        let mut may_have_heard = false;
        for pause in TRIES {
            self.env.sleep(pause).await;
            if self.is_settled() {
                return AfterCallback::Keep;
            }
            let called = remote::call(&self.env, self.address, &target, GRANTED, &call).await;
            let replied = called.and_then(|mut results| {
                StatusReply::decode(&mut results).map_err(|error| RemoteError::Unanswered(error.into()))
            });
            match replied.map(|reply| reply.status) {
                Ok(LockStatus::Granted) => return AfterCallback::Keep,
                // Its lock manager is just starting.
                Ok(LockStatus::GracePeriod) => {}
                Ok(status) => {
                    debug!(client = %self.address, ?status, "a granted lock is no longer wanted");
                    return AfterCallback::Unlock;
                }
                Err(error) => {
                    may_have_heard |= error.may_be_executed();
                    debug!(client = %self.address, %error, "could not tell of a granted lock yet");
                }
            }
        }
        if may_have_heard {
            warn!(client = %self.address, "did not confirm a lock it may know it has; it stays granted until the client unlocks it or restarts");
            AfterCallback::Keep
        } else {
            warn!(client = %self.address, "could not be told of a lock it waited for; the lock goes to the next");
            AfterCallback::Unlock
        }
    }
}

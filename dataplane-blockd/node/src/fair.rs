//! Fair queueing of disk I/O: permits are shared among tenants by deficit round robin, not among requests.
//!
//! Each tenant has a lane. A free permit goes to the lanes one after the other (deficit round robin): when it is served a lane may
//! spend one small request more, and what a request costs is its bytes and a fixed part for the disk's movement. So a tenant
//! with a thousand requests waiting gets as much as one with a single one, no more; and whoever is alone gets everything.
//! Permits are held while the disk works, so that what has not begun can still be overtaken.
//!
//! A round gives each lane no more than the smallest request costs: with more, a lane of small requests would have many of them
//! in a row, and whoever came in between would wait for all. A large request waits as many rounds as it is worth.
//!
//! A tenant that asks now and then does not wait for the round: its lane is *fresh* and goes first, once. When it is empty it
//! stays in the round until its turn comes there, and only then is it forgotten and can be fresh again; so nobody gets more by
//! asking in small portions. (The idea of new and old flows is that of FQ-CoDel, RFC 8290.)
//!
//! ```text
//! (none) ─asks→ fresh ─asked for more than a round gives, or empty→ in the round ─its turn, and nothing to do→ (none)
//! ```

use firn_blockd_protocol::TenantId;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
};
use tokio::sync::oneshot;

/// Bytes of the smallest request.
const SMALLEST_BYTES: u64 = 4096;
/// Requests waiting in one lane. A client has at most a thousand in flight on a connection.
const LANE_MAX: usize = 4096;

/// A tenant's lane is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many requests of this tenant are waiting")]
pub struct QueueFull;

#[derive(Default)]
struct Lane {
    waiting: VecDeque<(u64, oneshot::Sender<IoPermit>)>,
    deficit: u64,
}

struct Lanes {
    free: usize,
    lanes: BTreeMap<TenantId, Lane>,
    /// Lanes that were not there a moment ago, before all others.
    fresh: VecDeque<TenantId>,
    /// The others, in round-robin order.
    round: VecDeque<TenantId>,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct FairQueue {
    lanes: Arc<Mutex<Lanes>>,
    /// What a request costs beside its bytes.
    request_cost_bytes: u64,
}

/// The right to use the disk; given back when dropped.
pub struct IoPermit {
    /// Nothing once it was given back.
    queue: Option<FairQueue>,
}

impl Drop for IoPermit {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.give_back();
        }
    }
}

impl FairQueue {
    /// `permits` requests use the disk at once; each costs `request_cost_bytes` and its own.
    pub fn new(permits: usize, request_cost_bytes: u64) -> Self {
        Self {
            request_cost_bytes,
            lanes: Arc::new(Mutex::new(Lanes {
                free: permits.max(1),
                lanes: BTreeMap::new(),
                fresh: VecDeque::new(),
                round: VecDeque::new(),
            })),
        }
    }

    /// Requests waiting.
    pub fn waiting(&self) -> usize {
        self.lock().lanes.values().map(|lane| lane.waiting.len()).sum()
    }

    /// Whether this tenant has requests waiting.
    pub fn has_waiting(&self, tenant: TenantId) -> bool {
        let lanes = self.lock();
        let lane = lanes.lanes.get(&tenant);
        lane.is_some_and(|lane| !lane.waiting.is_empty())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Lanes> {
        self.lanes.lock().expect("no panic under this lock")
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub async fn permit(&self, tenant: TenantId, bytes: usize) -> Result<IoPermit, QueueFull> {
        let called = {
            let mut lanes = self.lock();
            if lanes.free > 0 && lanes.lanes.values().all(|lane| lane.waiting.is_empty()) {
                lanes.free -= 1;
                return Ok(IoPermit {
                    queue: Some(self.clone()),
                });
            }
            if !lanes.lanes.contains_key(&tenant) {
                lanes.fresh.push_back(tenant);
            }
            let lane = lanes.lanes.entry(tenant).or_insert_with(|| Lane {
                deficit: self.round_bytes(),
                ..Lane::default()
            });
            if lane.waiting.len() >= LANE_MAX {
                return Err(QueueFull);
            }
            let (call, called) = oneshot::channel();
            lane.waiting
                .push_back((bytes as u64 + self.request_cost_bytes, call));
            called
        };
        self.call_next();
        // The permit travels with the call: whoever is gone when it is called gives it back by dropping it.
        called.await.map_err(|_| QueueFull)
    }

    /// What a lane may spend more at each round.
    fn round_bytes(&self) -> u64 {
        self.request_cost_bytes + SMALLEST_BYTES
    }

    fn give_back(&self) {
        self.lock().free += 1;
        self.call_next();
    }

    fn call_next(&self) {
        let mut lanes = self.lock();
        let lanes = &mut *lanes;
        while lanes.free > 0 {
            let is_fresh = !lanes.fresh.is_empty();
            let queue = if is_fresh {
                &mut lanes.fresh
            } else {
                &mut lanes.round
            };
            let Some(tenant) = queue.front().copied() else {
                return;
            };
            let lane = lanes.lanes.get_mut(&tenant).expect("lanes in a queue exist");
            match lane.waiting.front() {
                None if is_fresh => {
                    // What is left over is not saved up.
                    lane.deficit = 0;
                    lanes.fresh.pop_front();
                    lanes.round.push_back(tenant);
                }
                None => {
                    lanes.lanes.remove(&tenant);
                    lanes.round.pop_front();
                }
                Some((cost, _)) if lane.deficit < *cost => {
                    if is_fresh {
                        lanes.fresh.pop_front();
                        lanes.round.push_back(tenant);
                    } else {
                        lane.deficit += self.round_bytes();
                        lanes.round.rotate_left(1);
                    }
                }
                Some((cost, _)) => {
                    lane.deficit -= *cost;
                    if let Some((_, call)) = lane.waiting.pop_front() {
                        let permit = IoPermit {
                            queue: Some(self.clone()),
                        };
                        match call.send(permit) {
                            Ok(()) => lanes.free -= 1,
                            // Nobody is there any more; it was never taken.
                            Err(mut permit) => permit.queue = None,
                        }
                    }
                }
            }
        }
    }
}

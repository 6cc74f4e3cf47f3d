//! Turns at the disk: tenants share it, not requests.
//!
//! Each tenant has a lane. A free turn goes to the lanes one after the other (deficit round robin): at its turn a lane may
//! spend [`QUANTUM_BYTES`] more, and what a request costs is its bytes and a fixed part for the disk's movement. So a tenant
//! with a thousand requests waiting gets as much as one with a single one, no more; and whoever is alone gets everything.
//! Turns are held while the disk works, so that what has not begun can still be overtaken.

use firn_blockd_protocol::TenantId;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
};
use tokio::sync::oneshot;

/// What a lane may spend at each round: one large request.
const QUANTUM_BYTES: u64 = 1 << 20;
/// What a request costs beside its bytes: a seek of 8 ms is worth a mebibyte at 128 MB/s; a solid disk does not seek, but
/// each of its requests takes a processor's time. This is between the two.
const REQUEST_COST_BYTES: u64 = 64 << 10;
/// Requests waiting in one lane. A client has at most a thousand in flight on a connection.
const LANE_MAX: usize = 4096;

/// A tenant's lane is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many requests of this tenant are waiting")]
pub struct QueueFull;

#[derive(Default)]
struct Lane {
    waiting: VecDeque<(u64, oneshot::Sender<Turn>)>,
    deficit: u64,
}

struct Lanes {
    free: usize,
    lanes: BTreeMap<TenantId, Lane>,
    /// Lanes with somebody waiting, in the order of their turns.
    round: VecDeque<TenantId>,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct FairQueue {
    lanes: Arc<Mutex<Lanes>>,
}

/// The right to use the disk; given back when dropped.
pub struct Turn {
    /// Nothing once it was given back.
    queue: Option<FairQueue>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.give_back();
        }
    }
}

impl FairQueue {
    /// `turns` requests use the disk at once.
    pub fn new(turns: usize) -> Self {
        Self {
            lanes: Arc::new(Mutex::new(Lanes {
                free: turns.max(1),
                lanes: BTreeMap::new(),
                round: VecDeque::new(),
            })),
        }
    }

    /// Requests waiting.
    pub fn waiting(&self) -> usize {
        self.lock().lanes.values().map(|lane| lane.waiting.len()).sum()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Lanes> {
        self.lanes.lock().expect("no panic under this lock")
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub async fn turn(&self, tenant: TenantId, bytes: usize) -> Result<Turn, QueueFull> {
        let called = {
            let mut lanes = self.lock();
            if lanes.free > 0 && lanes.round.is_empty() {
                lanes.free -= 1;
                return Ok(Turn {
                    queue: Some(self.clone()),
                });
            }
            let lane = lanes.lanes.entry(tenant).or_default();
            if lane.waiting.len() >= LANE_MAX {
                return Err(QueueFull);
            }
            let (call, called) = oneshot::channel();
            lane.waiting.push_back((bytes as u64 + REQUEST_COST_BYTES, call));
            if lane.waiting.len() == 1 {
                lanes.round.push_back(tenant);
            }
            called
        };
        self.call_next();
        // The turn travels with the call: whoever is gone when it is called gives it back by dropping it.
        called.await.map_err(|_| QueueFull)
    }

    fn give_back(&self) {
        self.lock().free += 1;
        self.call_next();
    }

    fn call_next(&self) {
        let mut lanes = self.lock();
        let lanes = &mut *lanes;
        while lanes.free > 0
            && let Some(tenant) = lanes.round.front().copied()
        {
            let lane = lanes.lanes.get_mut(&tenant).expect("lanes in the round exist");
            let Some((cost, _)) = lane.waiting.front() else {
                lanes.lanes.remove(&tenant);
                lanes.round.pop_front();
                continue;
            };
            if lane.deficit < *cost {
                lane.deficit += QUANTUM_BYTES;
                lanes.round.rotate_left(1);
                continue;
            }
            lane.deficit -= *cost;
            if let Some((_, call)) = lane.waiting.pop_front() {
                let turn = Turn {
                    queue: Some(self.clone()),
                };
                match call.send(turn) {
                    Ok(()) => lanes.free -= 1,
                    // Nobody is there any more; it was never taken.
                    Err(mut turn) => turn.queue = None,
                }
            }
            if lane.waiting.is_empty() {
                // What is left over is not saved up.
                lanes.lanes.remove(&tenant);
                lanes.round.pop_front();
            }
        }
    }
}

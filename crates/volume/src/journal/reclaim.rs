//! Reclaiming disk space for the journal from whoever keeps mere copies on the same disk: the cache.
//!
//! The journal is what an acknowledged write lives in; a cached object can be fetched again. So a journal that finds the disk
//! full evicts from the cache before it lets writers wait, and the complaint about a disk that is full all the same is logged
//! once a minute, however often the attempt is repeated.

use async_trait::async_trait;
use std::{fmt, sync::Arc};

/// Something on the journal's disk that can be given up.
#[async_trait]
pub trait Reclaim: Send + Sync {
    /// Gives up the least useful first, until the disk has `free_bytes` free or nothing is left; the space is free when this
    /// returns.
    async fn reclaim(&self, free_bytes: u64);
}

/// Whom a journal asks for space, if there is anybody.
#[derive(Clone, Default)]
pub struct Reclaimer(pub Option<Arc<dyn Reclaim>>);

impl fmt::Debug for Reclaimer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "a cache" } else { "nobody" })
    }
}

impl Reclaimer {
    pub(super) async fn reclaim(&self, free_bytes: u64) {
        if let Some(spare) = &self.0 {
            spare.reclaim(free_bytes).await;
        }
    }
}

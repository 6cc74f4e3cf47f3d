//! The engine of a disk, as whoever runs it sees it: a state machine without I/O.
//!
//! ```text
//! requests ─▶ write · zero · flush · sync · begin_growth ─▶ effects: stores to be made, answers to be given
//! replicas ─▶ stored ──────────────────────────────────────▶ effects
//! readers  ─▶ is_idle · lookup ────────────────────────────▶ from memory, or where it lies
//! ```
//!
//! An engine is called under one lock, by one runner; it never waits.

use crate::{
    log::{LogEngine, SLACK_BLOCKS_MIN},
    striped::StripedEngine,
    types::{Change, Effect, Lookup, RequestId, Ticket},
};
use bytes::Bytes;
use firn_blockd_nbd::DeviceError;
use std::{fmt::Debug, ops::Range};

/// Why a disk did not grow; nothing was changed, unless the disk itself failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrowError {
    /// Disks only grow.
    #[error("the disk has {has_blocks} blocks already; {blocks} is not more")]
    NotLarger {
        /// Its size.
        has_blocks: u64,
        /// What was asked.
        blocks: u64,
    },
    /// A log needs more physical blocks than virtual ones, and more than it had.
    #[error("{physical_blocks} physical blocks are too few; the least is {least_blocks}")]
    TooFewPhysical {
        /// What was asked.
        physical_blocks: u64,
        /// What would do.
        least_blocks: u64,
    },
    /// One step at a time.
    #[error("the disk is growing already; ask again when it has grown")]
    Growing,
    /// The disk failed. Whether it has grown shows at the next attach.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// See the module.
pub trait DiskEngine: Debug + Send + 'static {
    /// Blocks of the disk.
    fn blocks(&self) -> u64;
    /// Whether a crash leaves exactly a first part of the writes; if not, any part of an epoch.
    fn is_log(&self) -> bool;
    /// Whether all of these blocks lie in place and nothing of them is under way.
    fn is_idle(&self, blocks: Range<u64>) -> bool;
    /// Where to read a block.
    fn lookup(&self, block: u64) -> Lookup;

    /// Writes a run of blocks. `data` has the same number of bytes for each.
    fn write(
        &mut self,
        now_ms: u64,
        request: RequestId,
        blocks: Range<u64>,
        data: Bytes,
        durable: bool,
    ) -> Vec<Effect>;
    /// Makes a range of blocks read as zeroes. The caller bounds its length.
    fn zero(&mut self, now_ms: u64, request: RequestId, blocks: Range<u64>, durable: bool) -> Vec<Effect>;
    /// Ends the epoch, and is answered as the flush policy says.
    fn flush(&mut self, now_ms: u64, request: RequestId) -> Vec<Effect>;
    /// Ends the epoch, and is answered when all before is durable.
    fn sync(&mut self, now_ms: u64, request: RequestId) -> Vec<Effect>;
    /// A store is durable.
    fn stored(&mut self, now_ms: u64, ticket: Ticket, replica: usize) -> Vec<Effect>;

    /// Answers all that is held back by the bounds: whoever calls has made what it wrote safe in another way.
    fn answer_deferred(&mut self) -> Vec<Effect>;
    /// Bytes that are not durable.
    fn dirty_bytes(&self) -> u64;
    /// When the oldest write that is not durable arrived.
    fn oldest_ms(&self) -> Option<u64>;
    /// What was written and is not durable, in order.
    fn pending(&self) -> Vec<Change>;

    /// What is to be stored so that the next attach has nothing to reconcile; nothing if it has nothing already.
    fn leave_clean(&mut self) -> Option<Vec<Effect>>;
    /// Makes the disk larger; a log needs physical blocks for the new ones.
    ///
    /// # Errors
    /// If it would shrink, or cannot grow now; nothing was changed.
    fn begin_growth(
        &mut self,
        now_ms: u64,
        blocks: u64,
        physical_blocks: u64,
    ) -> Result<Vec<Effect>, GrowError>;
    /// Whether it still grows.
    fn is_growing(&self) -> bool;
}

/// What both engines do under the same names.
macro_rules! as_the_engine_does {
    () => {
        fn blocks(&self) -> u64 {
            Self::blocks(self)
        }

        fn lookup(&self, block: u64) -> Lookup {
            Self::lookup(self, block)
        }

        fn write(
            &mut self,
            now_ms: u64,
            request: RequestId,
            blocks: Range<u64>,
            data: Bytes,
            durable: bool,
        ) -> Vec<Effect> {
            Self::write(self, now_ms, request, blocks, data, durable)
        }

        fn zero(
            &mut self,
            now_ms: u64,
            request: RequestId,
            blocks: Range<u64>,
            durable: bool,
        ) -> Vec<Effect> {
            Self::zero(self, now_ms, request, blocks, durable)
        }

        fn flush(&mut self, now_ms: u64, request: RequestId) -> Vec<Effect> {
            Self::flush(self, now_ms, request)
        }

        fn sync(&mut self, now_ms: u64, request: RequestId) -> Vec<Effect> {
            Self::sync(self, now_ms, request)
        }

        fn stored(&mut self, now_ms: u64, ticket: Ticket, replica: usize) -> Vec<Effect> {
            Self::stored(self, now_ms, ticket, replica)
        }

        fn answer_deferred(&mut self) -> Vec<Effect> {
            Self::answer_deferred(self)
        }

        fn dirty_bytes(&self) -> u64 {
            Self::dirty_bytes(self)
        }

        fn oldest_ms(&self) -> Option<u64> {
            Self::oldest_ms(self)
        }

        fn pending(&self) -> Vec<Change> {
            Self::pending(self)
        }
    };
}

fn require_larger(has_blocks: u64, blocks: u64) -> Result<(), GrowError> {
    if blocks <= has_blocks {
        return Err(GrowError::NotLarger { has_blocks, blocks });
    }
    Ok(())
}

impl DiskEngine for StripedEngine {
    as_the_engine_does!();

    fn is_log(&self) -> bool {
        false
    }

    fn is_idle(&self, blocks: Range<u64>) -> bool {
        Self::is_idle(self, blocks)
    }

    fn leave_clean(&mut self) -> Option<Vec<Effect>> {
        (!self.is_clean()).then(|| self.drop_idle_regions())
    }

    fn begin_growth(
        &mut self,
        _now_ms: u64,
        blocks: u64,
        _physical_blocks: u64,
    ) -> Result<Vec<Effect>, GrowError> {
        require_larger(Self::blocks(self), blocks)?;
        self.grow(blocks);
        Ok(Vec::new())
    }

    fn is_growing(&self) -> bool {
        false
    }
}

impl DiskEngine for LogEngine {
    as_the_engine_does!();

    fn is_log(&self) -> bool {
        true
    }

    fn is_idle(&self, _blocks: Range<u64>) -> bool {
        false
    }

    fn leave_clean(&mut self) -> Option<Vec<Effect>> {
        None
    }

    fn begin_growth(
        &mut self,
        now_ms: u64,
        blocks: u64,
        physical_blocks: u64,
    ) -> Result<Vec<Effect>, GrowError> {
        require_larger(Self::blocks(self), blocks)?;
        let least_blocks = (self.physical_blocks() + 1).max(blocks + SLACK_BLOCKS_MIN);
        if physical_blocks < least_blocks {
            return Err(GrowError::TooFewPhysical {
                physical_blocks,
                least_blocks,
            });
        }
        if Self::is_growing(self) {
            return Err(GrowError::Growing);
        }
        Ok(self.grow(now_ms, blocks, physical_blocks))
    }

    fn is_growing(&self) -> bool {
        Self::is_growing(self)
    }
}

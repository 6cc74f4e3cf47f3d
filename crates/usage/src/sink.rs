//! Usage sink: the receiver of batches, as a sender sees it.

use crate::UsageBatch;
use async_trait::async_trait;

/// Why a batch was not received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// Unreachable, overloaded, or its reply was lost: **it may have received the batch**. Send it again, as often as
    /// it takes: each record counts once.
    #[error("the receiver of usage records is unavailable: {0}")]
    Unavailable(String),
    /// It will not take it from this sender (identity, format). The records stay in the spool; somebody has to look.
    #[error("the receiver refuses these usage records: {0}")]
    Refused(String),
}

/// Receives batches.
#[async_trait]
pub trait UsageSink: Send + Sync {
    /// Takes a batch. Success means that all of its records are kept durably at the receiver, now or from before, and
    /// that the sender may forget them.
    async fn accept(&self, batch: &UsageBatch) -> Result<(), SinkError>;
}

//! Giving a disk back.
//!
//! ```text
//! journal to nodes ──▶ everything durable ──▶ dirty-region log cleared ──▶ table: given back, clean
//!        └── nodes away too long ──┘               └── away: table: given back, unclean (the next attach looks at what is marked)
//!                    ▼
//!        not given back: whoever has it may try again, or end
//! ```

use crate::attach::AttachedDisk;
use firn_blockd_disk::journal::JournalingStatus;
use firn_blockd_nbd::DeviceError;
use firn_blockd_placement::PlacementError;
use std::{fmt, time::Duration};
use tracing::warn;

/// How long nodes are waited for unless somebody says otherwise: less than a service manager waits before it kills (90 s), and more
/// than a node takes to start, or to be declared dead.
pub const DETACH_LIMIT: Duration = Duration::from_secs(60);

/// Why a disk was not given back.
#[derive(Debug, thiserror::Error)]
pub enum DetachFailed {
    /// It was taken over, or the table cannot be reached.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// Nodes did not take everything in time. The disk is as it was: this may be tried again.
    #[error(transparent)]
    NodesAway(#[from] NodesAway),
}

/// What nodes do not have, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodesAway {
    /// How long they were waited for.
    pub waited: Duration,
    /// Bytes in memory that were not durable on nodes.
    pub dirty_bytes: u64,
    /// How the journal stands, if there is one.
    pub journal: Option<JournalingStatus>,
    /// What the last node that was asked said.
    pub trouble: Option<String>,
}

impl std::error::Error for NodesAway {}

impl fmt::Display for NodesAway {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.waited.as_secs();
        write!(
            formatter,
            "the disk is not detached: nodes did not take all of it within {seconds} s"
        )?;
        if let Some(trouble) = &self.trouble {
            write!(formatter, " ({trouble})")?;
        }
        match &self.journal {
            Some(journal) if journal.holds_all => write!(
                formatter,
                "; everything that was answered is safe, on nodes or in the local journal ({} bytes): detach again when nodes are \
                 back, or end the process and attach on this machine with this journal and --force",
                journal.used_bytes
            ),
            Some(_) | None => write!(
                formatter,
                "; what was answered as durable is safe, and {} bytes that were not are in memory only, lost when the process ends: \
                 detach again when nodes are back",
                self.dirty_bytes
            ),
        }
    }
}

impl AttachedDisk {
    /// Makes everything durable and gives the disk back: the next attach has nothing to reconcile. Nodes are waited for as long as
    /// [`DETACH_LIMIT`].
    ///
    /// # Errors
    /// [`DetachFailed`].
    pub async fn detach(&self) -> Result<(), DetachFailed> {
        self.detach_within(DETACH_LIMIT).await
    }

    /// The same, with another limit.
    ///
    /// # Errors
    /// [`DetachFailed`].
    pub async fn detach_within(&self, limit: Duration) -> Result<(), DetachFailed> {
        let began = self.env.now();
        let clean = match self.env.timeout(limit, self.everything_durable()).await {
            Err(_) => return Err(self.nodes_away(limit).into()),
            // Taken over: the table says by whom.
            Ok(Err(_)) => false,
            Ok(Ok(())) => {
                let left = limit.saturating_sub(self.env.now().since(began));
                match self.env.timeout(left, self.disk.detach()).await {
                    Ok(outcome) => outcome.is_ok(),
                    Err(_) => {
                        warn!(disk = %self.record.disk, "the dirty-region log is left to the next attach: nodes are away");
                        false
                    }
                }
            }
        };
        self.table
            .detach_disk(self.record.disk, self.fence, clean)
            .await?;
        Ok(())
    }

    async fn everything_durable(&self) -> Result<(), DeviceError> {
        // What the journal has is on nodes first.
        self.device.settle().await?;
        self.disk.sync().await
    }

    fn nodes_away(&self, waited: Duration) -> NodesAway {
        NodesAway {
            waited,
            dirty_bytes: self.disk.dirty_bytes(),
            journal: self.device.status(),
            trouble: self.replicas.trouble().map(|waiting| waiting.why),
        }
    }
}

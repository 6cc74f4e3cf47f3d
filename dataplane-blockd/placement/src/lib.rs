//! Placement of tracts, and the registry of nodes and disks: everything about a cluster of disk nodes that must be agreed on, in the
//! conditional-write table.
//!
//! It is a library without a process of its own: nodes register and beat through it, clients look rows and disks up, the
//! control plane creates disks, and whoever holds the coordinator's lease ([`Coordinator`]) changes rows when nodes die,
//! come or are drained.
//!
//! ```text
//! partition                 sort          holds
//! blockd/C/cluster          cluster       rows in each table; raised at every change of a row
//! blockd/C/cluster          coordinator   the coordinator's lease, and whom it takes for dead
//! blockd/C/cluster          capacity      tracts that survive a loss, tracts promised to disks
//! blockd/C/nodes            <node>        address, failure domain, capacity, state, heartbeat
//! blockd/C/rows/1…3         page-000000   64 rows of the table of that many copies, each with its version
//! blockd/C/disks            <disk>        size, copies, tenant, fence, attach, state
//! blockd/C/names/<tenant>   <name>        the disk of that name
//! ```
//!
//! Every node opens this table, so nothing else lies in it ([`Placement::move_from`] moves a cluster out of a shared one).
//!
//! **Which row.** A tract's row is (the disk's first eight bytes + the tract's index) modulo the table's length. Rows are
//! random, and neighbouring rows begin on different nodes, so that neighbouring tracts of a disk lie on different nodes and
//! any node's tracts are shared with all others: when it dies everybody re-replicates a little.
//!
//! **Room.** What is promised to disks fits what is left after the loss of the largest failure domain ([`Capacity`]), and what is
//! promised in a node's rows ([`Promises`]) fits the node: so what was promised can be delivered, and a write never waits for a frame.
//!
//! **The rules of a row** ([`rules`]): at least one active replica, always. A dead node leaves a row only if a living active
//! one stays, so the last copy is never given up. A new node joins, copies, and is made active by [`Placement::promote`]
//! under the version it copied. Every change raises the version, so (row, version) names one set of replicas for ever.

mod attach;
mod call;
mod capacity;
mod coordinator;
mod disk_table;
mod disks;
mod error;
mod keys;
mod moving;
mod nodes;
mod promises;
mod record;
mod rows;
pub mod rules;

pub use attach::Attachment;
pub use call::{DiskAnswer, DiskCall, DiskRefusal, MalformedRow};
pub use capacity::{Capacity, Deliverable, deliverable};
pub use coordinator::{Coordinator, CoordinatorSettings, Tick, Verdict};
pub use disk_table::{DiskLook, DiskTable};
pub use disks::{Attach, DiskRecord, DiskState, NewDisk};
pub use error::PlacementError;
pub use nodes::{NodeCondition, NodeRecord, NodeReport, NodeState, Registration};
pub use promises::Promises;
pub use rows::{Cluster, ROWS_AT_ONCE, ROWS_PER_PAGE, row_index};

use firn_env::Env;
use firn_table::Table;
use std::sync::Arc;

/// A cluster's part of the table; cheap to clone.
#[derive(Clone)]
pub struct Placement {
    env: Env,
    table: Arc<dyn Table>,
    /// `blockd/<cluster>`.
    prefix: Arc<str>,
}

impl Placement {
    /// The cluster of that name (1 to 64 letters, digits and hyphens).
    ///
    /// # Errors
    /// [`PlacementError::Name`].
    pub fn new(env: Env, table: Arc<dyn Table>, cluster: &str) -> Result<Self, PlacementError> {
        keys::check_name("cluster", cluster)?;
        Ok(Self {
            env,
            table,
            prefix: format!("blockd/{cluster}").into(),
        })
    }
}

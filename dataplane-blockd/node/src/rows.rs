//! Locator table cache of a node, and of disks' fences: copies of what the table says, and the gates that make them count.
//!
//! Every row has a gate. A write enters it shared and leaves when its content is shown; learning a newer version of the row
//! takes it alone. So from the moment the node knows a version, nothing under an earlier one comes after: whoever copies
//! from it then misses nothing that could still be acknowledged. A disk has such a gate for its fence.
//!
//! Whoever takes a disk over tells the nodes that are in the disk's rows then. A node that joins a row later was not told,
//! so for that row it believes only a record of the disk that it read after it had learned that it is in the row: what the
//! record says is then at least as new as every attach that may not have told it. Stretches of membership in rows are numbered as they
//! are learned, and a record remembers how many there were before it was read.

use firn_blockd_placement::{Cluster, DiskRecord, DiskState, Placement, PlacementError};
use firn_blockd_protocol::{
    DiskId, Fence, NodeId, Refusal, Replication, Row, RowIndex, RowVersion, TenantId, TractId,
};
use firn_env::{Env, Monotonic};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

/// The least time between two looks at the table for one row or disk on a client's word: a client that makes versions up
/// must not make us pay for them.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// How long a disk's record is believed when it says that the disk is gone or shorter than asked for.
const DISK_FRESH_FOR: Duration = Duration::from_secs(1);

/// Disks remembered, and gates of fences: some megabytes. Whoever names more makes the node read the table again.
const DISKS_MAX: usize = 16 << 10;

pub(crate) type RowName = (Replication, RowIndex);

struct RowCell {
    gate: Arc<RwLock<Option<Row>>>,
    /// The number of this node's membership epoch in the row; 0: it never was in it. Changes only while the gate is held alone.
    membership_epoch: AtomicU64,
    looked_at: Mutex<Option<Monotonic>>,
}

#[derive(Clone)]
struct CachedDisk {
    record: Option<DiskRecord>,
    at: Monotonic,
    /// Memberships in rows that this node had learned of before the record was read.
    membership_epochs: u64,
}

/// Whose a disk is, as far as a node has read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    /// Of the newest attach.
    pub(crate) fence: Fence,
    /// Memberships in rows that this node had learned of before it read so.
    pub(crate) membership_epochs: u64,
}

/// Where a tract lies, and whose it is.
pub(crate) struct Located {
    pub(crate) name: RowName,
    pub(crate) owner: Owner,
}

pub(crate) struct Rows {
    env: Env,
    node: NodeId,
    placement: Placement,
    cluster: Cluster,
    cells: Mutex<BTreeMap<RowName, Arc<RowCell>>>,
    disks: Mutex<BTreeMap<DiskId, CachedDisk>>,
    fences: Mutex<BTreeMap<DiskId, Arc<RwLock<()>>>>,
    /// Memberships in rows that this process has learned of.
    membership_epochs: AtomicU64,
}

/// A row held at one version.
pub(crate) struct Admitted {
    row: OwnedRwLockReadGuard<Option<Row>>,
    /// The number of this node's membership epoch in it.
    pub(crate) membership_epoch: u64,
}

impl Admitted {
    pub(crate) fn row(&self) -> &Row {
        self.row.as_ref().expect("admitted under a known row")
    }
}

impl Rows {
    pub(crate) fn new(env: &Env, node: NodeId, placement: Placement, cluster: Cluster) -> Self {
        Self {
            env: env.clone(),
            node,
            placement,
            cluster,
            cells: Mutex::default(),
            disks: Mutex::default(),
            fences: Mutex::default(),
            membership_epochs: AtomicU64::new(0),
        }
    }

    fn cell(&self, name: RowName) -> Arc<RowCell> {
        self.cells
            .lock()
            .expect("no panic under this lock")
            .entry(name)
            .or_insert_with(|| {
                Arc::new(RowCell {
                    gate: Arc::new(RwLock::new(None)),
                    membership_epoch: AtomicU64::new(0),
                    looked_at: Mutex::default(),
                })
            })
            .clone()
    }

    /// The gate of a disk's fence.
    pub(crate) fn fence_gate(&self, disk: DiskId) -> Arc<RwLock<()>> {
        let mut fences = self.fences.lock().expect("no panic under this lock");
        if fences.len() >= DISKS_MAX && !fences.contains_key(&disk) {
            // A gate that nobody holds and nobody waits at is as good as a new one.
            fences.retain(|_, gate| Arc::strong_count(gate) > 1);
        }
        fences.entry(disk).or_default().clone()
    }

    /// A row's number comes from outside, and a cell is kept for each.
    fn require_row(&self, name: RowName) -> Result<(), Refusal> {
        if name.1.0 < self.cluster.rows(name.0) {
            return Ok(());
        }
        Err(Refusal::Malformed(format!("there is no row {}", name.1.0)))
    }

    /// Takes note of a row; returns once nothing under an earlier version is under way. False: nothing new.
    pub(crate) async fn learn(&self, row: Row) -> bool {
        let cell = self.cell((row.replication, row.index));
        if let Ok(known) = cell.gate.try_read()
            && known.as_ref().is_some_and(|known| known.version >= row.version)
        {
            return false;
        }
        let mut known = cell.gate.write().await;
        let newer = known.as_ref().is_none_or(|known| known.version < row.version);
        if newer {
            let since = |row: &Row| row.replica(self.node).map(|replica| replica.since);
            let joined = since(&row);
            if joined.is_some() && joined != known.as_ref().and_then(since) {
                cell.membership_epoch
                    .store(self.membership_epochs.fetch_add(1, SeqCst) + 1, SeqCst);
            }
            *known = Some(row);
        }
        newer
    }

    /// The row as last learned.
    pub(crate) async fn known(&self, name: RowName) -> Option<Row> {
        self.cell(name).gate.read().await.clone()
    }

    /// Every row learned in which this node has a part, and those it had a part in when it learned of them.
    pub(crate) async fn all_known(&self) -> Vec<Row> {
        let cells: Vec<Arc<RowCell>> = self
            .cells
            .lock()
            .expect("no panic under this lock")
            .values()
            .cloned()
            .collect();
        let mut rows = Vec::new();
        for cell in cells {
            rows.extend(cell.gate.read().await.clone());
        }
        rows
    }

    /// Whether a row from the table concerns this node: it is in it, or knows it.
    pub(crate) fn concerns(&self, row: &Row) -> bool {
        row.replica(self.node).is_some()
            || self
                .cells
                .lock()
                .expect("no panic under this lock")
                .contains_key(&(row.replication, row.index))
    }

    /// Holds a row at exactly this version, looking it up if the node does not know that yet.
    pub(crate) async fn admit(&self, name: RowName, version: RowVersion) -> Result<Admitted, Refusal> {
        let cell = self.cell(name);
        for looked in [false, true] {
            let row = cell.gate.clone().read_owned().await;
            match &*row {
                Some(known) if known.version == version || firn_env::planted!("node.any_row_version") => {
                    if known.replica(self.node).is_none() {
                        return Err(Refusal::WrongRow {
                            newest: known.clone(),
                        });
                    }
                    let membership_epoch = cell.membership_epoch.load(SeqCst);
                    return Ok(Admitted {
                        row,
                        membership_epoch,
                    });
                }
                Some(known) if known.version > version || looked => {
                    return Err(Refusal::WrongRow {
                        newest: known.clone(),
                    });
                }
                Some(_) | None if looked => {
                    return Err(Refusal::NotServing("the row is not known here yet".into()));
                }
                Some(_) | None => {}
            }
            drop(row);
            self.look_up(name, &cell).await?;
        }
        Err(Refusal::Busy)
    }

    /// Makes sure that the node knows a row at least at this version.
    pub(crate) async fn reach(&self, name: RowName, version: RowVersion) -> Result<Row, Refusal> {
        self.require_row(name)?;
        let cell = self.cell(name);
        for looked in [false, true] {
            if let Some(known) = self.known(name).await
                && (known.version >= version || looked)
            {
                return Ok(known);
            }
            if !looked {
                self.look_up(name, &cell).await?;
            }
        }
        Err(Refusal::NotServing("the row is not known here yet".into()))
    }

    async fn look_up(&self, name: RowName, cell: &RowCell) -> Result<(), Refusal> {
        let now = self.env.now();
        {
            let mut looked_at = cell.looked_at.lock().expect("no panic under this lock");
            if looked_at.is_some_and(|at| now.since(at) < LOOK_AGAIN_AFTER) {
                return Err(Refusal::Busy);
            }
            *looked_at = Some(now);
        }
        let row = self
            .placement
            .row(name.0, name.1)
            .await
            .map_err(|error| Refusal::NotServing(error.to_string()))?;
        self.learn(row).await;
        Ok(())
    }

    /// The row of a tract of a disk that may be used, and is this tenant's if one is named. Another's disk is answered as
    /// one that does not exist.
    pub(crate) async fn tract_row(
        &self,
        tract: TractId,
        owner: Option<TenantId>,
    ) -> Result<Located, Refusal> {
        let (record, membership_epochs) = self.cached_disk(tract.disk, tract.index, 0).await?;
        if owner.is_some_and(|owner| owner != record.tenant) {
            return Err(Refusal::UnknownDisk);
        }
        if tract.index >= record.tracts {
            return Err(Refusal::OutOfRange {
                tracts: record.tracts,
            });
        }
        let replication = record
            .replication()
            .map_err(|error| Refusal::NotServing(error.to_string()))?;
        Ok(Located {
            name: (replication, self.cluster.row_of(replication, tract)),
            owner: Owner {
                fence: record.fence(),
                membership_epochs,
            },
        })
    }

    /// Whose a disk is, read after this node learned of a membership epoch.
    pub(crate) async fn owner(&self, tract: TractId, membership_epoch: u64) -> Result<Owner, Refusal> {
        let (record, membership_epochs) = self
            .cached_disk(tract.disk, tract.index, membership_epoch)
            .await?;
        Ok(Owner {
            fence: record.fence(),
            membership_epochs,
        })
    }

    /// A disk's record, new enough to say that it has tract `index` or not.
    pub(crate) async fn disk(&self, disk: DiskId, index: u32) -> Result<DiskRecord, Refusal> {
        Ok(self.cached_disk(disk, index, 0).await?.0)
    }

    /// The same, read after this node learned of a membership epoch; with the number of membership epochs it knew of when it read.
    async fn cached_disk(
        &self,
        disk: DiskId,
        index: u32,
        membership_epoch: u64,
    ) -> Result<(DiskRecord, u64), Refusal> {
        let now = self.env.now();
        let known = self
            .disks
            .lock()
            .expect("no panic under this lock")
            .get(&disk)
            .cloned();
        let usable = |record: &DiskRecord| record.state == DiskState::Ready && index < record.tracts;
        if let Some(known) = known
            && known.membership_epochs >= membership_epoch
            && (known.record.as_ref().is_some_and(usable) || now.since(known.at) < DISK_FRESH_FOR)
        {
            let ready = known
                .record
                .filter(|record| record.state == DiskState::Ready)
                .ok_or(Refusal::UnknownDisk)?;
            return Ok((ready, known.membership_epochs));
        }
        self.read_disk(disk).await
    }

    /// A disk's record as the table has it now; with the number of membership epochs this node knew of before.
    pub(crate) async fn read_disk(&self, disk: DiskId) -> Result<(DiskRecord, u64), Refusal> {
        let membership_epochs = self.membership_epochs();
        let record = match self.placement.disk(disk).await {
            Ok(record) => Some(record),
            Err(PlacementError::NoDisk(_)) => None,
            Err(error) => return Err(Refusal::NotServing(error.to_string())),
        };
        self.note_disk(disk, record.clone(), membership_epochs);
        let ready = record
            .filter(|record| record.state == DiskState::Ready)
            .ok_or(Refusal::UnknownDisk)?;
        Ok((ready, membership_epochs))
    }

    /// Memberships in rows that this node has learned of: to be asked before a record is read.
    pub(crate) fn membership_epochs(&self) -> u64 {
        self.membership_epochs.load(SeqCst)
    }

    /// Takes note of a record that was read when this node knew of `membership_epochs`. One that was overtaken on its way is forgotten.
    pub(crate) fn note_disk(&self, disk: DiskId, record: Option<DiskRecord>, membership_epochs: u64) {
        let at = self.env.now();
        let mut disks = self.disks.lock().expect("no panic under this lock");
        let fence = |record: &Option<DiskRecord>| record.as_ref().map(DiskRecord::fence);
        if let Some(known) = disks.get(&disk)
            && record.is_some()
            && fence(&known.record) > fence(&record)
        {
            return;
        }
        if disks.len() >= DISKS_MAX && !disks.contains_key(&disk) {
            // First one that is none, then the one that was read longest ago: it will be read again when it is asked for.
            let least = disks
                .iter()
                .min_by_key(|(_, known)| (known.record.is_some(), known.at))
                .map(|(disk, _)| *disk);
            least.map(|least| disks.remove(&least));
        }
        disks.insert(
            disk,
            CachedDisk {
                record,
                at,
                membership_epochs,
            },
        );
    }
}

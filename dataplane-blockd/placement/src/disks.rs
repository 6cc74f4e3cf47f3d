//! Disks: create, find, grow, delete.
//!
//! ```text
//! (nothing) ─create→ ready ─delete→ deleting ─after the nodes' grace time, by the coordinator→ (nothing)
//! ```
//!
//! A deleted disk's name and room are free at once; its record stays, so that nodes that were away learn of it and drop its
//! tracts. An identifier is never used again.

use crate::{
    Placement, PlacementError, keys,
    record::{self, ATTEMPTS, Outcome, Stored, unchanged},
};
use firn_blockd_protocol::{DiskId, Fence, Replication, TRACT_BYTES, TenantId};
use firn_table::Write;
use serde::{Deserialize, Serialize};

/// The most tracts of one disk, 1 PiB: far below what the tract's index could count, so that sums never overflow.
const MAX_TRACTS: u64 = 1 << 27;

/// Whether a disk is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = DiskTableState))]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum DiskState {
    /// It can be attached.
    Ready,
    /// It is gone for its owner; nodes drop its tracts.
    Deleting {
        /// Since when, in milliseconds since 1970.
        since_unix_ms: i64,
    },
}

/// Who has a disk attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = DiskTableAttach))]
pub struct Attach {
    /// For people: which machine and process.
    pub holder: String,
    /// Since when, in milliseconds since 1970.
    pub since_unix_ms: i64,
    /// The hash of the key that the attach was admitted with, where a service stands between its machine and the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Somebody wants it to end: its machine flushes and detaches when it sees this.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked_to_end: bool,
}

/// A disk in the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = DiskTableRecord))]
pub struct DiskRecord {
    /// Which.
    #[serde(with = "firn_ids::digits")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub disk: DiskId,
    /// Whose.
    #[serde(with = "firn_ids::digits")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub tenant: TenantId,
    /// Its name among its tenant's disks.
    pub name: String,
    /// What its user sees.
    pub size_bytes: u64,
    /// Tracts it may use on the nodes; the log-structured mode needs more than its size.
    pub tracts: u32,
    /// Copies of each tract.
    pub copies: u8,
    /// The client's own settings (mode, segment, sealing), opaque here.
    pub settings: String,
    /// When it was created, in milliseconds since 1970.
    pub created_unix_ms: i64,
    /// Whether it is there.
    pub state: DiskState,
    /// The fence of the newest attach; 0 before the first.
    pub fence: u32,
    /// Who has it now.
    pub attached: Option<Attach>,
    /// The last attach ended with everything flushed and settled, so replicas agree and nothing needs to be reconciled.
    pub clean: bool,
}

impl DiskRecord {
    /// Its copies.
    ///
    /// # Errors
    /// [`PlacementError::Damaged`] if the record says something impossible.
    pub fn replication(&self) -> Result<Replication, PlacementError> {
        Replication::new(self.copies).ok_or_else(|| PlacementError::Damaged {
            key: self.disk.hex().to_string(),
            reason: format!("{} copies", self.copies),
        })
    }

    /// The fence of the newest attach.
    pub fn fence(&self) -> Fence {
        Fence(self.fence)
    }

    /// The record of a disk that is there for its users.
    pub(crate) fn ready(self) -> Result<Self, PlacementError> {
        match self.state {
            DiskState::Ready => Ok(self),
            DiskState::Deleting { .. } => Err(PlacementError::Deleting(self.disk)),
        }
    }

    fn reserved_tracts(&self) -> u64 {
        u64::from(self.tracts) * u64::from(self.copies)
    }
}

/// A disk to be created.
#[derive(Clone, Debug)]
pub struct NewDisk {
    /// Whose.
    pub tenant: TenantId,
    /// Its name among its tenant's disks.
    pub name: String,
    /// What its user sees; a multiple of 4096.
    pub size_bytes: u64,
    /// Tracts to reserve for it; nothing: as many as hold its size.
    pub tracts: Option<u32>,
    /// Copies of each tract.
    pub replication: Replication,
    /// The client's own settings.
    pub settings: String,
}

impl Placement {
    /// Creates a disk: its name, its room and its record at once, or none of them.
    ///
    /// # Errors
    /// [`PlacementError`]; nothing was created, unless the table is [`PlacementError::Unavailable`]: then look for the name.
    pub async fn create_disk(&self, new: NewDisk) -> Result<DiskRecord, PlacementError> {
        self.create_disk_as(DiskId(self.env.random_bytes()), new).await
    }

    /// The same under an identifier that the caller chose, which was never used before. Creating it again changes nothing.
    ///
    /// # Errors
    /// As [`Placement::create_disk`]; [`PlacementError::Deleting`] if the disk was deleted or removed in the meantime.
    pub async fn create_disk_as(&self, disk: DiskId, new: NewDisk) -> Result<DiskRecord, PlacementError> {
        keys::check_name("disk", &new.name)?;
        let tracts = check_size(new.size_bytes, new.tracts)?;
        if new.settings.len() > 16 << 10 {
            return Err(PlacementError::Size {
                tracts: tracts.into(),
                reason: "its settings are longer than 16 KiB",
            });
        }
        let row = self
            .row(new.replication, firn_blockd_protocol::RowIndex(0))
            .await?;
        let rows = self.cluster().await?.rows(new.replication);
        if row.replicas.is_empty() {
            return Err(PlacementError::NotEnoughNodes {
                copies: new.replication.copies(),
            });
        }
        let record = DiskRecord {
            disk,
            tenant: new.tenant,
            name: new.name,
            size_bytes: new.size_bytes,
            tracts,
            copies: u8::try_from(new.replication.copies()).expect("at most three"),
            settings: new.settings,
            created_unix_ms: self.env.wall().as_millis(),
            state: DiskState::Ready,
            fence: 0,
            attached: None,
            clean: true,
        };
        let name_key = self.name_key(record.tenant, &record.name);
        for attempt in 0..ATTEMPTS {
            if let Some(known) = self.read::<DiskRecord>(&self.disk_key(disk)).await? {
                return match known.value.state {
                    DiskState::Ready => Ok(known.value),
                    DiskState::Deleting { .. } => Err(PlacementError::Deleting(disk)),
                };
            }
            if let Some(taken) = self.read::<NameRecord>(&name_key).await? {
                return Err(PlacementError::DiskExists {
                    name: record.name,
                    disk: taken.value.disk,
                });
            }
            let capacity = self.stored_capacity().await?;
            let reserved = capacity
                .as_ref()
                .map(|stored| stored.value)
                .unwrap_or_default()
                .reserve(record.tracts.into(), record.copies.into(), rows)?;
            let writes = vec![
                Write::Put {
                    key: self.disk_key(record.disk),
                    value: record::encode(&record),
                    condition: unchanged(None),
                },
                Write::Put {
                    key: name_key.clone(),
                    value: record::encode(&NameRecord { disk: record.disk }),
                    condition: unchanged(None),
                },
                Write::Put {
                    key: self.capacity_key(),
                    value: record::encode(&reserved),
                    condition: unchanged(capacity.map(|stored| stored.version)),
                },
            ];
            match self.transact(writes).await? {
                Outcome::Done => return Ok(record),
                Outcome::Conflict | Outcome::Unknown(_) => self.back_off(attempt).await,
            }
        }
        Err(PlacementError::Contention {
            what: "the cluster's capacity",
        })
    }

    /// A disk by its identifier.
    ///
    /// # Errors
    /// [`PlacementError::NoDisk`].
    pub async fn disk(&self, disk: DiskId) -> Result<DiskRecord, PlacementError> {
        Ok(self.stored_disk(disk).await?.value)
    }

    pub(crate) async fn stored_disk(&self, disk: DiskId) -> Result<Stored<DiskRecord>, PlacementError> {
        self.read(&self.disk_key(disk))
            .await?
            .ok_or_else(|| PlacementError::NoDisk(disk.to_string()))
    }

    /// A disk by its name.
    ///
    /// # Errors
    /// [`PlacementError::NoDisk`].
    pub async fn disk_named(&self, tenant: TenantId, name: &str) -> Result<DiskRecord, PlacementError> {
        keys::check_name("disk", name)?;
        match self.read::<NameRecord>(&self.name_key(tenant, name)).await? {
            Some(found) => self.disk(found.value.disk).await,
            None => Err(PlacementError::NoDisk(name.to_owned())),
        }
    }

    /// All disks (those being deleted included), or a tenant's.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub async fn disks(&self, tenant: Option<TenantId>) -> Result<Vec<DiskRecord>, PlacementError> {
        let all: Vec<Stored<DiskRecord>> = self.read_all(&self.partition("disks")).await?;
        Ok(all
            .into_iter()
            .map(|stored| stored.value)
            .filter(|record| tenant.is_none_or(|tenant| record.tenant == tenant))
            .collect())
    }

    /// Makes a disk larger; its client takes note when it looks next. `tracts` as for [`NewDisk`].
    ///
    /// # Errors
    /// [`PlacementError`]; nothing was changed, unless the table is unavailable.
    pub async fn grow_disk(
        &self,
        disk: DiskId,
        size_bytes: u64,
        tracts: Option<u32>,
    ) -> Result<DiskRecord, PlacementError> {
        let tracts = check_size(size_bytes, tracts)?;
        let cluster = self.cluster().await?;
        for attempt in 0..ATTEMPTS {
            let old = self.ready_disk(disk).await?;
            if (old.value.size_bytes, old.value.tracts) == (size_bytes, tracts) {
                return Ok(old.value);
            }
            if size_bytes < old.value.size_bytes || tracts < old.value.tracts {
                return Err(PlacementError::Size {
                    tracts: tracts.into(),
                    reason: "a disk does not shrink",
                });
            }
            let record = DiskRecord {
                size_bytes,
                tracts,
                ..old.value.clone()
            };
            let more = tracts - old.value.tracts;
            let rows = cluster.rows(old.value.replication()?);
            let capacity = self.stored_capacity().await?;
            let reserved = capacity
                .as_ref()
                .map(|stored| stored.value)
                .unwrap_or_default()
                .reserve(more.into(), record.copies.into(), rows)?;
            let writes = vec![
                Write::Put {
                    key: self.disk_key(disk),
                    value: record::encode(&record),
                    condition: unchanged(Some(old.version)),
                },
                Write::Put {
                    key: self.capacity_key(),
                    value: record::encode(&reserved),
                    condition: unchanged(capacity.map(|stored| stored.version)),
                },
            ];
            match self.transact(writes).await? {
                Outcome::Done => return Ok(record),
                Outcome::Conflict | Outcome::Unknown(_) => self.back_off(attempt).await,
            }
        }
        Err(PlacementError::Contention { what: "the disk" })
    }

    /// Deletes a disk that nobody has attached. Nodes drop its tracts in their own time. Again is fine.
    ///
    /// # Errors
    /// [`PlacementError::Attached`], and others.
    pub async fn delete_disk(&self, disk: DiskId) -> Result<(), PlacementError> {
        for attempt in 0..ATTEMPTS {
            let old = match self.ready_disk(disk).await {
                Ok(old) => old,
                Err(PlacementError::Deleting(_)) => return Ok(()),
                Err(error) => return Err(error),
            };
            if let Some(attach) = old.value.attached {
                return Err(PlacementError::Attached {
                    disk,
                    holder: attach.holder,
                });
            }
            match self.delete_ready(old).await? {
                Outcome::Done => return Ok(()),
                Outcome::Conflict | Outcome::Unknown(_) => self.back_off(attempt).await,
            }
        }
        Err(PlacementError::Contention { what: "the disk" })
    }

    /// Removes a disk for good, whoever has it attached: their fence is over. One that is not there is noted as deleted, so that
    /// a [`Placement::create_disk_as`] that is still on its way finds it so (for as long as deleted disks are remembered). Again
    /// is fine.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub async fn remove_disk(&self, tenant: TenantId, disk: DiskId) -> Result<(), PlacementError> {
        for attempt in 0..ATTEMPTS {
            let outcome = match self.ready_disk(disk).await {
                Ok(old) => self.delete_ready(old).await?,
                Err(PlacementError::Deleting(_)) => return Ok(()),
                Err(PlacementError::NoDisk(_)) => self.note_deleted(tenant, disk).await?,
                Err(error) => return Err(error),
            };
            match outcome {
                Outcome::Done => return Ok(()),
                Outcome::Conflict | Outcome::Unknown(_) => self.back_off(attempt).await,
            }
        }
        Err(PlacementError::Contention { what: "the disk" })
    }

    async fn note_deleted(&self, tenant: TenantId, disk: DiskId) -> Result<Outcome, PlacementError> {
        let record = DiskRecord {
            disk,
            tenant,
            name: disk.hex().to_string(),
            size_bytes: 0,
            tracts: 0,
            copies: 1,
            settings: String::new(),
            created_unix_ms: self.env.wall().as_millis(),
            state: DiskState::Deleting {
                since_unix_ms: self.env.wall().as_millis(),
            },
            fence: 1,
            attached: None,
            clean: true,
        };
        self.transact(vec![Write::Put {
            key: self.disk_key(disk),
            value: record::encode(&record),
            condition: unchanged(None),
        }])
        .await
    }

    /// Gives name and room back, and marks the record.
    async fn delete_ready(&self, old: Stored<DiskRecord>) -> Result<Outcome, PlacementError> {
        let freed = old.value.reserved_tracts();
        let name_key = self.name_key(old.value.tenant, &old.value.name);
        let name = self.table.get(&name_key).await?;
        let capacity = self.stored_capacity().await?;
        let record = DiskRecord {
            state: DiskState::Deleting {
                since_unix_ms: self.env.wall().as_millis(),
            },
            // Whoever was attached before can do nothing more either.
            fence: old.value.fence.saturating_add(1),
            attached: None,
            ..old.value
        };
        let mut writes = vec![Write::Put {
            key: self.disk_key(record.disk),
            value: record::encode(&record),
            condition: unchanged(Some(old.version)),
        }];
        if let Some(name) = name {
            writes.push(Write::Delete {
                key: name_key,
                version: name.version,
            });
        }
        if let Some(capacity) = capacity {
            let less = crate::Capacity {
                reserved_tracts: capacity.value.reserved_tracts.saturating_sub(freed),
                ..capacity.value
            };
            writes.push(Write::Put {
                key: self.capacity_key(),
                value: record::encode(&less),
                condition: unchanged(Some(capacity.version)),
            });
        }
        self.transact(writes).await
    }

    pub(crate) async fn ready_disk(&self, disk: DiskId) -> Result<Stored<DiskRecord>, PlacementError> {
        let stored = self.stored_disk(disk).await?;
        Ok(Stored {
            value: stored.value.ready()?,
            version: stored.version,
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct NameRecord {
    #[serde(with = "firn_ids::digits")]
    disk: DiskId,
}

fn check_size(size_bytes: u64, tracts: Option<u32>) -> Result<u32, PlacementError> {
    let needed = size_bytes.div_ceil(TRACT_BYTES);
    let reason = match tracts {
        _ if size_bytes == 0 || !size_bytes.is_multiple_of(4096) => {
            "its size must be a multiple of 4096 bytes"
        }
        _ if needed > MAX_TRACTS => "more than 1 PiB",
        Some(tracts) if u64::from(tracts) < needed => "fewer tracts than its size needs",
        Some(tracts) if u64::from(tracts) > MAX_TRACTS => "more than 1 PiB",
        Some(tracts) => return Ok(tracts),
        None => return Ok(u32::try_from(needed).expect("checked above")),
    };
    Err(PlacementError::Size {
        tracts: tracts.map_or(needed, u64::from),
        reason,
    })
}

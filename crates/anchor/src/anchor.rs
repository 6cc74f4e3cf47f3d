//! Families and their volumes.

use crate::{
    AnchorError, FamilyTuple, OwnerId, TupleError, TupleVersion, VolumeTuple, retry, tuple::check_name,
};
use bytes::Bytes;
use firn_env::Env;
use firn_format::{FamilyId, OwnershipEpoch, VolumeId, WriterId};
use firn_table::{Condition, Item, ItemKey, Table, TableError, Write};
use std::sync::Arc;

pub(crate) const FAMILY: &str = "family";
const VOLUME_PREFIX: &str = "volume/";
pub(crate) const NAME_PREFIX: &str = "name/";
/// Volumes listed with one request.
const VOLUMES_A_PAGE: usize = 1000;

/// The anchor of one family; cheap to clone.
#[derive(Clone)]
pub struct Anchor {
    pub(crate) table: Arc<dyn Table>,
    pub(crate) env: Env,
    family: FamilyId,
}

/// A volume as [`Anchor::volumes`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Which volume.
    pub volume: VolumeId,
    /// All that is known of it.
    pub tuple: VolumeTuple,
}

impl Anchor {
    /// An anchor that keeps the tuples of `family` in `table`. Makes no request.
    pub fn new(table: Arc<dyn Table>, env: Env, family: FamilyId) -> Self {
        Self { table, env, family }
    }

    /// The family.
    pub fn family(&self) -> FamilyId {
        self.family
    }

    /// Creates the family's tuple. Making the call again after [`TableError::Unavailable`] may answer that it exists.
    ///
    /// # Errors
    /// [`AnchorError::FamilyExists`], or what the table says.
    pub async fn create_family(&self) -> Result<(), AnchorError> {
        let tuple = FamilyTuple {
            next_writer: WriterId(1),
            created_at_ms: self.env.wall().as_millis(),
            change_id: self.env.random_bytes(),
        };
        let put = Write::Put {
            key: self.key(FAMILY),
            value: tuple.to_bytes(),
            condition: Condition::Absent,
        };
        let exists = || AnchorError::FamilyExists { family: self.family };
        self.create(vec![put], FAMILY, |item| {
            let found = FamilyTuple::from_bytes(&item.value)?;
            Ok(found.change_id == tuple.change_id)
        })
        .await?
        .map_err(|_| exists())
    }

    /// Creates a volume without an owner and without a root. A name belongs to one volume of the family.
    ///
    /// # Errors
    /// [`AnchorError::VolumeExists`], [`AnchorError::NameTaken`], [`AnchorError::Name`], [`AnchorError::NoSuchFamily`], or
    /// what the table says.
    pub async fn create_volume(&self, volume: VolumeId, name: &str) -> Result<(), AnchorError> {
        check_name(name)?;
        self.load_family().await?;
        let tuple = VolumeTuple {
            name: name.to_owned(),
            root: None,
            epoch: OwnershipEpoch(0),
            tenure: OwnershipEpoch(0),
            tenure_owner: OwnerId([0; 16]),
            grant: [0; 16],
            owner: None,
            taken_at_ms: self.env.wall().as_millis(),
            drained: false,
            retained: Vec::new(),
            change_id: self.env.random_bytes(),
        };
        let sort = volume_sort(volume);
        let writes = vec![
            Write::Put {
                key: self.key(&sort),
                value: tuple.to_bytes(),
                condition: Condition::Absent,
            },
            Write::Put {
                key: self.key(&format!("{NAME_PREFIX}{name}")),
                value: Bytes::copy_from_slice(&volume.0),
                condition: Condition::Absent,
            },
        ];
        let created = self
            .create(writes, &sort, |item| {
                let found = VolumeTuple::from_bytes(&item.value)?;
                Ok(found.change_id == tuple.change_id)
            })
            .await?;
        match created {
            Ok(()) => Ok(()),
            Err(0) => Err(AnchorError::VolumeExists { volume }),
            Err(_) => Err(AnchorError::NameTaken {
                name: name.to_owned(),
            }),
        }
    }

    /// All volumes of the family, in order of their ids.
    ///
    /// # Errors
    /// What the table says, or [`AnchorError::Damaged`].
    pub async fn volumes(&self) -> Result<Vec<VolumeEntry>, AnchorError> {
        let partition = self.partition();
        let mut volumes = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page = self
                .table
                .query(&partition, VOLUME_PREFIX, after.as_deref(), VOLUMES_A_PAGE)
                .await?;
            for item in &page.items {
                let sort = &item.key.sort;
                let volume =
                    VolumeId::from_hex(&sort[VOLUME_PREFIX.len()..]).map_err(|_| AnchorError::Damaged {
                        what: sort.clone(),
                        why: TupleError::Malformed {
                            what: "a sort key that names no volume",
                            offset: VOLUME_PREFIX.len(),
                        },
                    })?;
                volumes.push(VolumeEntry {
                    volume,
                    tuple: decode(sort, VolumeTuple::from_bytes(&item.value))?,
                });
            }
            // Each page begins after the last one's end, so this ends with the partition.
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(volumes),
            }
        }
    }

    /// The volume that has a name.
    ///
    /// # Errors
    /// What the table says, or [`AnchorError::Damaged`].
    pub async fn volume_named(&self, name: &str) -> Result<Option<VolumeId>, AnchorError> {
        check_name(name)?;
        let sort = format!("{NAME_PREFIX}{name}");
        match self.table.get(&self.key(&sort)).await? {
            None => Ok(None),
            Some(item) => match <[u8; 16]>::try_from(&item.value[..]) {
                Ok(bytes) => Ok(Some(VolumeId(bytes))),
                Err(_) => Err(AnchorError::Damaged {
                    what: sort,
                    why: TupleError::Malformed {
                        what: "not the 16 bytes of a volume id",
                        offset: 0,
                    },
                }),
            },
        }
    }

    /// A volume's tuple as it is now.
    ///
    /// # Errors
    /// [`AnchorError::NoSuchVolume`], [`AnchorError::Damaged`], or what the table says.
    pub async fn load(&self, volume: VolumeId) -> Result<(VolumeTuple, TupleVersion), AnchorError> {
        let sort = volume_sort(volume);
        match self.table.get(&self.key(&sort)).await? {
            Some(item) => Ok((decode(&sort, VolumeTuple::from_bytes(&item.value))?, item.version)),
            None => Err(AnchorError::NoSuchVolume {
                family: self.family,
                volume,
            }),
        }
    }

    pub(crate) async fn load_family(&self) -> Result<(FamilyTuple, TupleVersion), AnchorError> {
        match self.table.get(&self.key(FAMILY)).await? {
            Some(item) => Ok((
                decode(FAMILY, FamilyTuple::from_bytes(&item.value))?,
                item.version,
            )),
            None => Err(AnchorError::NoSuchFamily { family: self.family }),
        }
    }

    /// Makes items that must not be there yet. `Ok(Err(index))`: one was there before us. After a lost reply, `is_ours`
    /// looks at the item `sort` to tell our own creation from another's.
    pub(crate) async fn create(
        &self,
        writes: Vec<Write>,
        sort: &str,
        is_ours: impl Fn(&Item) -> Result<bool, TupleError>,
    ) -> Result<Result<(), usize>, AnchorError> {
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            match self.table.transact(writes.clone()).await {
                Ok(_) => return Ok(Ok(())),
                Err(TableError::ConditionFailed { index }) if last.is_none() => return Ok(Err(index)),
                Err(TableError::ConditionFailed { index }) => match self.table.get(&self.key(sort)).await {
                    Ok(Some(item)) if decode(sort, is_ours(&item))? => return Ok(Ok(())),
                    Ok(_) => return Ok(Err(index)),
                    Err(error @ TableError::Unavailable(_)) => last = Some(error),
                    Err(error) => return Err(error.into()),
                },
                Err(error @ TableError::Unavailable(_)) => last = Some(error),
                Err(error @ (TableError::Limit(_) | TableError::Refused(_))) => return Err(error.into()),
            }
        }
        Err(self.gave_up(sort, last))
    }

    pub(crate) fn gave_up(&self, what: &str, last: Option<TableError>) -> AnchorError {
        match last {
            Some(error) => error.into(),
            None => AnchorError::Contended {
                what: what.to_owned(),
                attempts: retry::ATTEMPTS,
            },
        }
    }

    pub(crate) fn partition(&self) -> String {
        format!("family/{}", self.family)
    }

    pub(crate) fn key(&self, sort: &str) -> ItemKey {
        ItemKey::new(self.partition(), sort)
    }
}

pub(crate) fn volume_sort(volume: VolumeId) -> String {
    format!("{VOLUME_PREFIX}{}", volume.hex())
}

pub(crate) fn decode<T>(sort: &str, result: Result<T, TupleError>) -> Result<T, AnchorError> {
    result.map_err(|why| AnchorError::Damaged {
        what: sort.to_owned(),
        why,
    })
}

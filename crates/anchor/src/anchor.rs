//! Families and their volumes.

use crate::{
    AnchorAnswer, AnchorBackend, AnchorCall, AnchorError, AnchorRole, FamilyTuple, MAX_LISTED, Obstacle,
    Root, StoredTuple, TableBackend, TupleError, TupleVersion, VolumeTuple, retry, tuple::check_name,
};
use bytes::Bytes;
use firn_env::Env;
use firn_format::{FamilyId, VolumeId};
use firn_table::{Table, TableError};
use std::sync::Arc;

pub(crate) const FAMILY: &str = "family";
pub(crate) const VOLUME_PREFIX: &str = "volume/";
pub(crate) const NAME_PREFIX: &str = "name/";

/// The anchor of one family, on a table or behind a service; cheap to clone.
#[derive(Clone)]
pub struct Anchor {
    backend: Arc<dyn AnchorBackend>,
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
        let backend = TableBackend::new(table, format!("family/{family}"));
        Self::over(Arc::new(backend), env, family)
    }

    /// The anchor of a family whose tuples a service keeps in the partition `kept` of its table, as the service's own components
    /// see it in their `role`. Makes no request.
    ///
    /// The partition does not say which family it is of, so a wrong `family` is not noticed here: before anything is judged, whoever
    /// cleans looks for a head in that family's log.
    pub fn within(
        table: Arc<dyn Table>,
        env: Env,
        family: FamilyId,
        kept: impl Into<String>,
        role: AnchorRole,
    ) -> Self {
        let backend = TableBackend::new(table, kept).for_role(role);
        Self::over(Arc::new(backend), env, family)
    }

    /// The anchor of `family`, whose calls `backend` answers. Makes no request.
    pub fn over(backend: Arc<dyn AnchorBackend>, env: Env, family: FamilyId) -> Self {
        Self { backend, env, family }
    }

    /// The family.
    pub fn family(&self) -> FamilyId {
        self.family
    }

    /// Creates the family's tuple.
    ///
    /// # Errors
    /// [`AnchorError::FamilyExists`], or what the table says. [In doubt](TableError::is_in_doubt) it may exist: making the call
    /// again may then answer that it does.
    pub async fn create_family(&self) -> Result<(), AnchorError> {
        let call = AnchorCall::CreateFamily {
            created_at_ms: self.env.wall().as_millis(),
            change_id: self.env.random_bytes(),
        };
        match self.create(call, FAMILY).await? {
            Ok(()) => Ok(()),
            Err(_) => Err(AnchorError::FamilyExists { family: self.family }),
        }
    }

    /// Creates a volume without an owner and without a root. A name belongs to one volume of the family.
    ///
    /// # Errors
    /// [`AnchorError::VolumeExists`], [`AnchorError::NameTaken`], [`AnchorError::Name`], [`AnchorError::NoSuchFamily`], or
    /// what the table says.
    pub async fn create_volume(&self, volume: VolumeId, name: &str) -> Result<(), AnchorError> {
        self.enter_volume(volume, name, None).await
    }

    pub(crate) async fn enter_volume(
        &self,
        volume: VolumeId,
        name: &str,
        root: Option<Root>,
    ) -> Result<(), AnchorError> {
        check_name(name)?;
        self.load_family().await?;
        let call = AnchorCall::CreateVolume {
            volume,
            name: name.to_owned(),
            grant: match &root {
                Some(_) => self.env.random_bytes(),
                None => [0; 16],
            },
            root,
            created_at_ms: self.env.wall().as_millis(),
            change_id: self.env.random_bytes(),
        };
        match self.create(call, &volume_sort(volume)).await? {
            Ok(()) => Ok(()),
            Err(Obstacle::Tuple | Obstacle::Member | Obstacle::Holder | Obstacle::Principal) => {
                Err(AnchorError::VolumeExists { volume })
            }
            Err(Obstacle::Name) => Err(AnchorError::NameTaken {
                name: name.to_owned(),
            }),
        }
    }

    /// All volumes of the family, in order of their ids.
    ///
    /// # Errors
    /// What the table says, or [`AnchorError::Damaged`].
    pub async fn volumes(&self) -> Result<Vec<VolumeEntry>, AnchorError> {
        let mut volumes: Vec<VolumeEntry> = Vec::new();
        loop {
            let after = volumes.last().map(|entry| entry.volume);
            let call = AnchorCall::Volumes {
                after,
                limit: MAX_LISTED,
            };
            let (tuples, more) = self.list(call, VOLUME_PREFIX, after.map(volume_sort)).await?;
            for StoredTuple {
                name: sort, content, ..
            } in tuples
            {
                let volume =
                    VolumeId::from_hex(&sort[VOLUME_PREFIX.len()..]).map_err(|_| AnchorError::Damaged {
                        what: sort.clone(),
                        why: TupleError::Malformed {
                            what: "a sort key that names no volume",
                            offset: VOLUME_PREFIX.len(),
                        },
                    })?;
                let tuple = decode(&sort, VolumeTuple::from_bytes(&content))?;
                volumes.push(VolumeEntry { volume, tuple });
            }
            // Each list begins after the last one's end, so this ends with the family.
            if !more {
                return Ok(volumes);
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
        let call = AnchorCall::VolumeNamed {
            name: name.to_owned(),
        };
        match self.tuple(call, &sort).await? {
            None => Ok(None),
            Some((content, _)) => match <[u8; 16]>::try_from(&content[..]) {
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
        match self.tuple(AnchorCall::Volume { volume }, &sort).await? {
            Some((content, version)) => Ok((decode(&sort, VolumeTuple::from_bytes(&content))?, version)),
            None => Err(AnchorError::NoSuchVolume {
                family: self.family,
                volume,
            }),
        }
    }

    pub(crate) async fn load_family(&self) -> Result<(FamilyTuple, TupleVersion), AnchorError> {
        match self.tuple(AnchorCall::Family {}, FAMILY).await? {
            Some((content, version)) => Ok((decode(FAMILY, FamilyTuple::from_bytes(&content))?, version)),
            None => Err(AnchorError::NoSuchFamily { family: self.family }),
        }
    }

    /// Makes tuples that must not be there yet. `Ok(Err(_))`: one was there before us. The call carries a mark, so our own
    /// creation is told from another's after a lost reply.
    async fn create(&self, call: AnchorCall, sort: &str) -> Result<Result<(), Obstacle>, AnchorError> {
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            match self.change(call.clone()).await {
                Ok(Ok(_)) => return Ok(Ok(())),
                Ok(Err(obstacle)) => return Ok(Err(obstacle)),
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(sort, last))
    }

    /// One tuple.
    pub(crate) async fn tuple(
        &self,
        call: AnchorCall,
        sort: &str,
    ) -> Result<Option<(Bytes, TupleVersion)>, TableError> {
        match self.backend.call(call).await? {
            AnchorAnswer::Tuple { tuple: None } => Ok(None),
            AnchorAnswer::Tuple { tuple: Some(tuple) } if tuple.name == sort => {
                Ok(Some((tuple.content, tuple.version)))
            }
            AnchorAnswer::Tuple { .. }
            | AnchorAnswer::Tuples { .. }
            | AnchorAnswer::Changed { .. }
            | AnchorAnswer::Conflict { .. } => Err(nonsense()),
        }
    }

    /// Tuples below a prefix and after a name, and whether there are more.
    pub(crate) async fn list(
        &self,
        call: AnchorCall,
        prefix: &str,
        after: Option<String>,
    ) -> Result<(Vec<StoredTuple>, bool), TableError> {
        let AnchorAnswer::Tuples { tuples, more } = self.backend.call(call).await? else {
            return Err(nonsense());
        };
        // A list that does not go forward would be read for ever.
        let fits = tuples.len() <= usize::from(MAX_LISTED)
            && !(more && tuples.is_empty())
            && tuples.is_sorted_by(|left, right| left.name < right.name)
            && tuples.iter().all(|tuple| {
                tuple.name.starts_with(prefix) && after.as_ref().is_none_or(|after| tuple.name > *after)
            });
        if fits { Ok((tuples, more)) } else { Err(nonsense()) }
    }

    /// Makes a change: the version that it left, or what stood in its way.
    pub(crate) async fn change(
        &self,
        call: AnchorCall,
    ) -> Result<Result<Option<TupleVersion>, Obstacle>, TableError> {
        match self.backend.call(call).await? {
            AnchorAnswer::Changed { version } => Ok(Ok(version)),
            AnchorAnswer::Conflict { with } => Ok(Err(with)),
            AnchorAnswer::Tuple { .. } | AnchorAnswer::Tuples { .. } => Err(nonsense()),
        }
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
}

/// An answer to another question: nothing is known of what happened.
pub(crate) fn nonsense() -> TableError {
    TableError::InvalidAnswer("the anchor's answer is not one to what was asked".into())
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

//! The handover record of a shared volume: whether its owner lives, and who waits to own it.
//!
//! A volume whose members write one after the other has, beside its tuple, an item of its own, so that neither heartbeats nor wants meet
//! the condition of a commit:
//!
//! ```text
//!  change \ by   a member                         the owner, under its epoch and grant        the record afterwards
//!  want          joins the end of the queue       (nothing: it has it)                        16 wants at most; one of each member
//!  withdraw      leaves the queue                 leaves the queue                            without its want
//!  beat          refused                          the epoch never falls                       beats + 1; without the want of the owner,
//!                                                                                             and without those before it
//! ```
//!
//! **A heartbeat is a change, not a time**: whoever waits sees that the count does not change, by its own clock ([`Anchor::takeover_from`] breaks
//! such an owner). **A want is a place in a queue**: an owner that sees one publishes and drains; the first of the queue takes the volume.
//! One that is dead costs a handover, and goes with the first beat of who took its turn.
//!
//! What members have of locks lies here too, since whoever has the volume grants them ([`locks`]).

pub(crate) mod locks;

use crate::{
    Anchor, AnchorCall, AnchorError, MemberLocks, OwnerId, Ownership, RecordedLock, TupleError, TupleVersion,
    Unfit,
    anchor::decode,
    layout::{self, Writer},
    retry, text,
    tuple::check_name,
};
use bytes::Bytes;
use firn_format::{OwnershipEpoch, VolumeId};
use serde::{Deserialize, Serialize};

pub(crate) const HANDOVER_PREFIX: &str = "handover/";
/// Without locks: as long as nobody has any, members of the version before read it.
const WITHOUT_LOCKS: u8 = 1;
const LAYOUT_VERSION: u8 = 2;
const HANDOVER_KIND: u8 = b'H';
const HAS_HEARTBEAT: u8 = 1;

/// Members that wait for one volume. More are told to come again: each of those before them has it for a second at least.
pub const MAX_WANTS: usize = 16;

/// That an owner lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Whose heart.
    pub owner: OwnerId,
    /// Under which epoch it owns the volume.
    pub epoch: OwnershipEpoch,
    /// Beats under this epoch, from 1.
    pub beats: u64,
}

/// A member that waits to own the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Who.
    pub member: OwnerId,
    /// What people call it.
    pub name: String,
    /// By its wall clock, milliseconds since 1970: for people.
    pub wanted_at_ms: i64,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HandoverRecord {
    /// The last sign of life of an owner; `None`: none ever gave one.
    pub heartbeat: Option<Heartbeat>,
    /// Who waits, the first first.
    pub wants: Vec<Want>,
    /// What members have of locks.
    pub locks: Vec<MemberLocks>,
    /// The last change's mark.
    pub change_id: [u8; 16],
}

/// A change of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HandoverChange {
    /// A member waits for the volume.
    Want {
        /// Which.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        member: OwnerId,
        /// What people call it.
        name: String,
        /// By its wall clock, milliseconds since 1970.
        wanted_at_ms: i64,
    },
    /// It does not wait any more.
    Withdraw {
        /// Which.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        member: OwnerId,
    },
    /// The owner lives.
    Beat {
        /// Who it is.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        owner: OwnerId,
        /// Of its ownership.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        epoch: OwnershipEpoch,
        /// Of its ownership.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        grant: [u8; 16],
    },
    /// What the clients of the owner have of locks, instead of what was recorded.
    RecordLocks {
        /// Who it is.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        owner: OwnerId,
        /// Of its ownership.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        epoch: OwnershipEpoch,
        /// Of its ownership.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        grant: [u8; 16],
        /// What people call it.
        name: String,
        /// All of them.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        locks: Vec<RecordedLock>,
    },
    /// What a member still has of what was recorded, and what it waits for.
    KeepLocks {
        /// Which.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        member: OwnerId,
        /// What people call it.
        name: String,
        /// All of them.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        locks: Vec<RecordedLock>,
    },
    /// The owner takes away what another member has.
    BreakLocks {
        /// Who the owner is.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        owner: OwnerId,
        /// Of its ownership.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        epoch: OwnershipEpoch,
        /// Of its ownership.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        grant: [u8; 16],
        /// Whose locks.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        member: OwnerId,
        /// Its count as it was seen.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        beats: u64,
        /// Only those of this file.
        #[serde(default, with = "text::option", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        inode: Option<u64>,
    },
}

impl HandoverChange {
    /// As whom the volume's owner makes it: its epoch and grant. `None`: any member may.
    pub(crate) fn by_owner(&self) -> Option<Beating> {
        let (owner, epoch, grant) = match self {
            Self::Want { .. } | Self::Withdraw { .. } | Self::KeepLocks { .. } => return None,
            Self::Beat { owner, epoch, grant }
            | Self::RecordLocks {
                owner, epoch, grant, ..
            }
            | Self::BreakLocks {
                owner, epoch, grant, ..
            } => (*owner, *epoch, *grant),
        };
        Some(Beating { owner, epoch, grant })
    }

    /// The record after the change.
    ///
    /// # Errors
    /// [`Unfit`]: it cannot be made of this record, by anybody.
    pub fn apply(&self, record: &HandoverRecord, change_id: [u8; 16]) -> Result<HandoverRecord, Unfit> {
        let mut changed = HandoverRecord {
            change_id,
            ..record.clone()
        };
        match self {
            Self::Want {
                member,
                name,
                wanted_at_ms,
            } => {
                check_name(name).map_err(|_| Unfit("the member's name is no name"))?;
                if record.place_of(*member).is_some() {
                    return Ok(changed);
                }
                if record.wants.len() >= MAX_WANTS {
                    return Err(Unfit("sixteen members wait already"));
                }
                changed.wants.push(Want {
                    member: *member,
                    name: name.clone(),
                    wanted_at_ms: *wanted_at_ms,
                });
            }
            Self::Withdraw { member } => changed.wants.retain(|want| want.member != *member),
            Self::Beat { owner, epoch, .. } => {
                let before = record.heartbeat.filter(|before| before.epoch >= *epoch);
                let beats = match before {
                    None => 1,
                    Some(before) if before.epoch == *epoch && before.owner == *owner => {
                        before.beats.saturating_add(1)
                    }
                    Some(_) => return Err(Unfit("a later owner has given a sign of life")),
                };
                changed.heartbeat = Some(Heartbeat {
                    owner: *owner,
                    epoch: *epoch,
                    beats,
                });
                if let Some(place) = record.place_of(*owner) {
                    changed.wants.drain(..=place);
                }
                if firn_env::planted!("anchor.beat_clears_queue") {
                    changed.wants.clear();
                }
            }
            Self::RecordLocks {
                owner, name, locks, ..
            } => changed.set_locks(*owner, name, locks, true)?,
            Self::KeepLocks { member, name, locks } => changed.set_locks(*member, name, locks, false)?,
            Self::BreakLocks {
                member, beats, inode, ..
            } => changed.break_locks(*member, *beats, *inode)?,
        }
        Ok(changed)
    }
}

impl HandoverRecord {
    /// At which place of the queue a member waits, from 0.
    pub fn place_of(&self, member: OwnerId) -> Option<usize> {
        self.wants.iter().position(|want| want.member == member)
    }

    /// Encodes.
    ///
    /// # Panics
    /// If more wait or have locks than may, which is checked before a record is built.
    pub fn to_bytes(&self) -> Bytes {
        assert!(self.wants.len() <= MAX_WANTS, "wants are refused before");
        let mut writer = Writer::default();
        writer.u8(match self.locks.is_empty() {
            true => WITHOUT_LOCKS,
            false => LAYOUT_VERSION,
        });
        writer.u8(HANDOVER_KIND);
        writer.u8(if self.heartbeat.is_some() {
            HAS_HEARTBEAT
        } else {
            0
        });
        writer.raw(&self.change_id);
        if let Some(heartbeat) = &self.heartbeat {
            writer.raw(&heartbeat.owner.0);
            writer.u64(heartbeat.epoch.0);
            writer.u64(heartbeat.beats);
        }
        writer.u8(self.wants.len() as u8);
        for want in &self.wants {
            writer.raw(&want.member.0);
            writer.i64(want.wanted_at_ms);
            writer.text(&want.name);
        }
        if !self.locks.is_empty() {
            locks::write(&self.locks, &mut writer);
        }
        writer.finish().into()
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one record of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TupleError> {
        let (mut reader, version) =
            layout::open_versions(bytes, WITHOUT_LOCKS, LAYOUT_VERSION, HANDOVER_KIND)?;
        let flags = reader.u8()?;
        if flags & !HAS_HEARTBEAT != 0 {
            return Err(TupleError::UnknownFlags { found: flags });
        }
        let change_id = reader.array()?;
        let heartbeat = match flags & HAS_HEARTBEAT {
            0 => None,
            _ => Some(Heartbeat {
                owner: OwnerId(reader.array()?),
                epoch: OwnershipEpoch(reader.u64()?),
                beats: reader.u64()?,
            }),
        };
        let count = usize::from(reader.u8()?);
        if count > MAX_WANTS {
            return Err(reader.malformed("too many wants"));
        }
        let mut wants: Vec<Want> = Vec::with_capacity(count);
        for _ in 0..count {
            let member = OwnerId(reader.array()?);
            if wants.iter().any(|want| want.member == member) {
                return Err(reader.malformed("a member that waits twice"));
            }
            wants.push(Want {
                member,
                wanted_at_ms: reader.i64()?,
                name: reader.text()?.to_owned(),
            });
        }
        let locks = match version {
            WITHOUT_LOCKS => Vec::new(),
            _ => locks::read(&mut reader)?,
        };
        reader.finish()?;
        Ok(Self {
            heartbeat,
            wants,
            locks,
            change_id,
        })
    }
}

impl Anchor {
    /// The handover record of a volume; the empty one, without a version, if it never had any. One read.
    ///
    /// # Errors
    /// [`AnchorError::Damaged`], or what the table says.
    pub async fn handover(
        &self,
        volume: VolumeId,
    ) -> Result<(HandoverRecord, Option<TupleVersion>), AnchorError> {
        let sort = handover_sort(volume);
        match self.tuple(AnchorCall::Handover { volume }, &sort).await? {
            None => Ok((HandoverRecord::default(), None)),
            Some((content, version)) => {
                let record = decode(&sort, HandoverRecord::from_bytes(&content))?;
                Ok((record, Some(version)))
            }
        }
    }

    /// Joins the queue of those who wait for the volume; who waits already keeps its place.
    ///
    /// # Errors
    /// [`AnchorError::Contended`] also if sixteen wait; otherwise as [`Anchor::handover`]. After a transient error it may wait: call again.
    pub async fn want(
        &self,
        volume: VolumeId,
        member: OwnerId,
        name: &str,
    ) -> Result<HandoverRecord, AnchorError> {
        check_name(name)?;
        let change = HandoverChange::Want {
            member,
            name: name.to_owned(),
            wanted_at_ms: self.env.wall().as_millis(),
        };
        let is_needless = |record: &HandoverRecord| record.place_of(member).is_some();
        self.change_handover(volume, change, is_needless).await
    }

    /// Leaves the queue.
    ///
    /// # Errors
    /// As [`Anchor::want`].
    pub async fn withdraw_want(&self, volume: VolumeId, member: OwnerId) -> Result<(), AnchorError> {
        let change = HandoverChange::Withdraw { member };
        let is_needless = |record: &HandoverRecord| record.place_of(member).is_none();
        self.change_handover(volume, change, is_needless).await.map(drop)
    }

    /// Gives a sign of life of the owner, and takes its own want, and those before it, out of the queue. Who waits now.
    ///
    /// # Errors
    /// [`AnchorError::Fenced`] if the ownership is over; otherwise as [`Anchor::handover`]. A beat whose answer was lost may come twice, which
    /// is no harm.
    pub async fn beat(&self, volume: VolumeId, beating: &Beating) -> Result<HandoverRecord, AnchorError> {
        let change = HandoverChange::Beat {
            owner: beating.owner,
            epoch: beating.epoch,
            grant: beating.grant,
        };
        let beaten = self.change_handover(volume, change, |_| false).await;
        self.of_owner(volume, beating, beaten).await
    }

    /// What became of an owner's change; one that was refused since another has the volume is fenced.
    async fn of_owner(
        &self,
        volume: VolumeId,
        beating: &Beating,
        changed: Result<HandoverRecord, AnchorError>,
    ) -> Result<HandoverRecord, AnchorError> {
        let error = match changed {
            Ok(record) => return Ok(record),
            Err(error) => error,
        };
        let (tuple, _) = self.load(volume).await?;
        let holds = tuple.epoch == beating.epoch
            && tuple.grant == beating.grant
            && tuple
                .owner
                .as_ref()
                .is_some_and(|owner| owner.id == beating.owner);
        match holds {
            true => Err(error),
            false => Err(crate::Fenced {
                volume,
                our_epoch: beating.epoch,
                epoch: tuple.epoch,
                owner: tuple.owner,
                taken_at_ms: tuple.taken_at_ms,
            }
            .into()),
        }
    }

    async fn change_handover(
        &self,
        volume: VolumeId,
        change: HandoverChange,
        is_needless: impl Fn(&HandoverRecord) -> bool,
    ) -> Result<HandoverRecord, AnchorError> {
        let (sort, change_id) = (handover_sort(volume), self.env.random_bytes());
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            let (record, seen) = match self.handover(volume).await {
                Ok(found) => found,
                Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if record.change_id == change_id || is_needless(&record) {
                return Ok(record);
            }
            let Ok(changed) = change.apply(&record, change_id) else {
                return Err(self.gave_up(&sort, None));
            };
            let call = AnchorCall::ChangeHandover {
                volume,
                seen,
                change: change.clone(),
                change_id,
            };
            match self.change(call).await {
                Ok(Ok(_)) => return Ok(changed),
                Ok(Err(_)) => last = None,
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(&sort, last))
    }
}

/// Of an ownership, what its heartbeats need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beating {
    /// Whose heart.
    pub owner: OwnerId,
    /// Its epoch.
    pub epoch: OwnershipEpoch,
    /// Its grant.
    pub grant: [u8; 16],
}

impl From<&Ownership> for Beating {
    fn from(ownership: &Ownership) -> Self {
        Self {
            owner: ownership.owner().id,
            epoch: ownership.epoch(),
            grant: ownership.grant(),
        }
    }
}

pub(crate) fn handover_sort(volume: VolumeId) -> String {
    format!("{HANDOVER_PREFIX}{}", volume.hex())
}

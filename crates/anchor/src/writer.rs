//! Owners of writer incarnations: what makes an unreferenced segment garbage, or work not committed yet.
//!
//! A segment that no root needs is either left over or about to be committed, and its age tells nothing: an edge may be
//! stalled for a week. What tells is whether its writer can still commit. So every incarnation is registered in the same
//! transaction that draws its number:
//!
//! ```text
//! tenure               can commit no more once …
//! owner (A, epoch)     volume A has a higher epoch, or nobody owns it
//! first root of A      volume A has a root
//! cleaner              it was ended: every commit of a cleaner checks that it was not
//! member M of A        M's record has a newer incarnation, or says that this one was broken
//! unknown              never (what says nothing of itself is left alone)
//! ```
//!
//! An item goes only after its writer's end. So an incarnation that was drawn once and has no item is over, too.

use crate::{
    Anchor, AnchorCall, AnchorError, MemberNumber, TupleError, TupleVersion,
    anchor::{FAMILY, decode},
    layout::{self, Writer},
    retry, text,
};
use bytes::Bytes;
use firn_format::{OwnershipEpoch, VolumeId, WriterId};
use firn_table::TableError;
use serde::{Deserialize, Serialize};

pub(crate) const LAYOUT_VERSION: u8 = 1;
const WRITER_KIND: u8 = b'W';
const ENDED: u8 = 1;
pub(crate) const WRITER_PREFIX: &str = "writer/";

const UNKNOWN: u8 = 0;
const OWNER: u8 = 1;
const FIRST_ROOT: u8 = 2;
const CLEANER: u8 = 3;
const MEMBER: u8 = 4;

/// For what an incarnation was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum WriterTenure {
    /// Nothing is known; its segments are never judged.
    Unknown,
    /// It commits roots of a volume under one ownership.
    Owner {
        /// The volume.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        volume: VolumeId,
        /// The ownership.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        epoch: OwnershipEpoch,
    },
    /// It commits the first root of a new branch: a clone, a salvage.
    FirstRoot {
        /// The branch.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        volume: VolumeId,
    },
    /// It moves what others wrote.
    Cleaner,
    /// It is a member of a volume that is shared by inode, or one incarnation of it.
    Member {
        /// The volume.
        #[serde(with = "text")]
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        volume: VolumeId,
        /// The member.
        member: MemberNumber,
    },
}

/// What is registered of an incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterTuple {
    /// For what it was drawn.
    pub tenure: WriterTenure,
    /// Whether somebody ended it: what it has not committed, it never will.
    pub ended: bool,
    /// By the wall clock of who drew it, milliseconds since 1970.
    pub drawn_at_ms: i64,
    /// Random, drawn for this state of the tuple: recognised after a lost reply.
    pub change_id: [u8; 16],
}

impl WriterTuple {
    /// Encodes.
    pub fn to_bytes(&self) -> Bytes {
        let mut writer = Writer::default();
        writer.u8(LAYOUT_VERSION);
        writer.u8(WRITER_KIND);
        writer.u8(if self.ended { ENDED } else { 0 });
        let (kind, volume, epoch) = match self.tenure {
            WriterTenure::Unknown => (UNKNOWN, [0; 16], 0),
            WriterTenure::Owner { volume, epoch } => (OWNER, volume.0, epoch.0),
            WriterTenure::FirstRoot { volume } => (FIRST_ROOT, volume.0, 0),
            WriterTenure::Cleaner => (CLEANER, [0; 16], 0),
            WriterTenure::Member { volume, member } => (MEMBER, volume.0, u64::from(member.0)),
        };
        writer.u8(kind);
        writer.raw(&volume);
        writer.u64(epoch);
        writer.i64(self.drawn_at_ms);
        writer.raw(&self.change_id);
        writer.finish().into()
    }

    /// Decodes.
    ///
    /// # Errors
    /// [`TupleError`] if the bytes are not exactly one writer tuple of a layout this build knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TupleError> {
        let mut reader = layout::open(bytes, LAYOUT_VERSION, WRITER_KIND)?;
        let flags = reader.u8()?;
        if flags & !ENDED != 0 {
            return Err(TupleError::UnknownFlags { found: flags });
        }
        let kind = reader.u8()?;
        let unknown = reader.malformed("a tenure of no known kind");
        let volume = VolumeId(reader.array()?);
        let epoch = OwnershipEpoch(reader.u64()?);
        let tenure = match kind {
            UNKNOWN => WriterTenure::Unknown,
            OWNER => WriterTenure::Owner { volume, epoch },
            FIRST_ROOT => WriterTenure::FirstRoot { volume },
            CLEANER => WriterTenure::Cleaner,
            MEMBER => WriterTenure::Member {
                volume,
                member: MemberNumber(u32::try_from(epoch.0).map_err(|_| unknown)?),
            },
            _ => return Err(unknown),
        };
        let tuple = Self {
            tenure,
            ended: flags & ENDED != 0,
            drawn_at_ms: reader.i64()?,
            change_id: reader.array()?,
        };
        reader.finish()?;
        Ok(tuple)
    }
}

impl Anchor {
    /// A writer incarnation that nobody had before and nobody will have, of unknown tenure: no cleaner ever judges what it
    /// leaves behind. One whose reply was lost is skipped for ever.
    ///
    /// # Errors
    /// As [`Anchor::next_writer_for`].
    pub async fn next_writer(&self) -> Result<WriterId, AnchorError> {
        self.next_writer_for(WriterTenure::Unknown).await
    }

    /// Like [`Anchor::next_writer`], but above `floor`: for an edge that knows of incarnations which a table restored from
    /// a backup has forgotten.
    ///
    /// # Errors
    /// As [`Anchor::next_writer_for`].
    pub async fn next_writer_above(&self, floor: WriterId) -> Result<WriterId, AnchorError> {
        self.draw_writer(WriterTenure::Unknown, floor).await
    }

    /// A writer incarnation that nobody had before and nobody will have, registered for what it will do.
    ///
    /// # Errors
    /// [`AnchorError::NoSuchFamily`], [`AnchorError::Contended`], or what the table says.
    pub async fn next_writer_for(&self, tenure: WriterTenure) -> Result<WriterId, AnchorError> {
        self.draw_writer(tenure, WriterId(0)).await
    }

    async fn draw_writer(&self, tenure: WriterTenure, floor: WriterId) -> Result<WriterId, AnchorError> {
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            let (tuple, version) = match self.load_family().await {
                Ok(loaded) => loaded,
                Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let exhausted = || AnchorError::Damaged {
                what: FAMILY.to_owned(),
                why: TupleError::Malformed {
                    what: "a writer count at its end",
                    offset: 3,
                },
            };
            let after_floor = floor.0.checked_add(1).ok_or_else(exhausted)?;
            let writer = tuple.next_writer.0.max(after_floor);
            let call = AnchorCall::DrawWriter {
                seen: version,
                writer: WriterId(writer),
                tenure,
                drawn_at_ms: self.env.wall().as_millis(),
                change_id: self.env.random_bytes(),
            };
            if writer == u64::MAX {
                return Err(exhausted());
            }
            match self.change(call).await {
                Ok(Ok(_)) => return Ok(WriterId(writer)),
                Ok(Err(_)) => last = None,
                Err(TableError::Unavailable(_)) if firn_env::planted!("anchor.writer_without_reply") => {
                    return Ok(WriterId(writer));
                }
                // If it happened, that number is lost and the next try takes the one after.
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(FAMILY, last))
    }

    /// What is registered of an incarnation. `None` for one that is over and was forgotten, and for one never drawn
    /// ([`Anchor::undrawn_writer`] tells which).
    ///
    /// # Errors
    /// [`AnchorError::Damaged`], or what the table says.
    pub async fn writer(&self, writer: WriterId) -> Result<Option<(WriterTuple, TupleVersion)>, AnchorError> {
        let sort = writer_sort(writer);
        match self.tuple(AnchorCall::Writer { writer }, &sort).await? {
            None => Ok(None),
            Some((content, version)) => {
                Ok(Some((decode(&sort, WriterTuple::from_bytes(&content))?, version)))
            }
        }
    }

    /// The incarnation drawn next: this one and all above it were never given to anybody.
    ///
    /// # Errors
    /// [`AnchorError::NoSuchFamily`], or what the table says.
    pub async fn undrawn_writer(&self) -> Result<WriterId, AnchorError> {
        Ok(self.load_family().await?.0.next_writer)
    }

    /// Ends a cleaner's incarnation, our own or that of one which has not been heard of: it can commit nothing more. Ending
    /// one that is over is fine.
    ///
    /// # Errors
    /// [`AnchorError::Contended`], or what the table says.
    pub async fn end_writer(&self, writer: WriterId) -> Result<(), AnchorError> {
        let sort = writer_sort(writer);
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            let seen = match self.writer(writer).await {
                Ok(Some((tuple, _))) if tuple.ended => return Ok(()),
                Ok(None) => return Ok(()),
                Ok(Some((_, version))) => version,
                Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            match self.change(AnchorCall::EndWriter { writer, seen }).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(_)) => last = None,
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(&sort, last))
    }
}

pub(crate) fn writer_sort(writer: WriterId) -> String {
    format!("{WRITER_PREFIX}{:016x}", writer.0)
}

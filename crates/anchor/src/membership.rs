//! Membership of a volume that is shared by inode: its members join, say that they are there, and commit.
//!
//! ```text
//! join ─▶ start ─▶ present ── beat, commit ──▶ present ── leave ──▶ away ── return ──▶ present
//!                     │ broken by another member
//!                     ▼
//!                  no incarnation ── start (with a new writer) ──▶ present
//! ```
//!
//! A [`Membership`] is one incarnation of a member, and the version of its record: **all that it changes is on that version**, so one call
//! of it is under way at a time, which `&mut` says. What becomes of a commit whose answer is lost is asked by [`Anchor::settle_member_commit`]: a
//! beat, *then* a look, since after the beat the request can no longer happen.
//!
//! Leases are changed in [`leases`], one conditional write each. Nothing here says when a lease may be used: that needs a root read that
//! began after the lease was seen (docs/leases.md).

pub(crate) mod call;
mod commit;
mod joining;
mod leases;
pub(crate) mod locks;
pub(crate) mod mail;

pub use commit::MemberCommitEnd;
pub use leases::SeenArena;

use crate::{
    Anchor, AnchorCall, AnchorError, MemberCall, MemberNumber, MemberTuple, MemberWriter, Obstacle, Presence,
    Root, SeenMember, StoredTuple, TupleError, TupleVersion, VolumeTuple, WriterTenure,
    anchor::{decode, nonsense},
    retry,
};
use firn_env::Monotonic;
use firn_format::{Location, Uid, Version, VolumeId, WriterId};
use firn_table::TableError;

pub(crate) fn member_prefix(volume: VolumeId) -> String {
    format!("member/{}/", volume.hex())
}

pub(crate) fn member_sort(volume: VolumeId, member: MemberNumber) -> String {
    format!("{}{:08x}", member_prefix(volume), member.0)
}

pub(crate) fn arena_prefix(volume: VolumeId) -> String {
    format!("arena/{}/", volume.hex())
}

pub(crate) fn arena_sort(volume: VolumeId, arena: u64) -> String {
    format!("{}{arena:016x}", arena_prefix(volume))
}

pub(crate) fn mail_sort(volume: VolumeId, member: MemberNumber) -> String {
    format!("mail/{}/{:08x}", volume.hex(), member.0)
}

/// A member as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberEntry {
    /// Which.
    pub member: MemberNumber,
    /// All that is known of it.
    pub tuple: MemberTuple,
    /// The version of its record.
    pub version: TupleVersion,
}

impl MemberEntry {
    /// The member that a tuple of a list is of.
    ///
    /// # Errors
    /// [`AnchorError::Damaged`]: the tuple is no member's of this volume.
    pub fn from_stored(volume: VolumeId, stored: &StoredTuple) -> Result<Self, AnchorError> {
        let prefix = member_prefix(volume);
        let number = match stored.name.starts_with(&prefix) {
            true => numbered(&stored.name, prefix.len(), 8)?,
            false => return Err(nonsense().into()),
        };
        Ok(Self {
            member: MemberNumber(u32::try_from(number).map_err(|_| nonsense())?),
            tuple: decode(&stored.name, MemberTuple::from_bytes(&stored.content))?,
            version: stored.version,
        })
    }
}

/// One incarnation of a member. Not `Clone`: what it changes is conditional on the version of its record.
#[derive(Debug)]
pub struct Membership {
    volume: VolumeId,
    member: MemberNumber,
    incarnation: WriterId,
    tuple: MemberTuple,
    version: TupleVersion,
    heard_at: Monotonic,
    /// The incarnations that its machine noted before it began them; `None`: it keeps no list.
    begun: Option<Vec<WriterId>>,
}

impl Membership {
    /// Of which volume.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Which member.
    pub fn member(&self) -> MemberNumber {
        self.member
    }

    /// The writer under which it puts segments.
    pub fn incarnation(&self) -> WriterId {
        self.incarnation
    }

    /// The record as it was seen last.
    pub fn tuple(&self) -> &MemberTuple {
        &self.tuple
    }

    /// When the last change of its record that was acknowledged was *sent*: leases are valid for 40 s from then.
    pub fn heard_at(&self) -> Monotonic {
        self.heard_at
    }

    /// A root of this member.
    pub fn next_root(
        &self,
        volume: &VolumeTuple,
        (uid, location): (Uid, Location),
        version: Version,
        commit_id: [u8; 16],
        committed_at_ms: i64,
    ) -> Root {
        Root {
            uid,
            location,
            version,
            epoch: volume.epoch,
            owner: self.tuple.edge,
            owner_name: self.tuple.name.clone(),
            commit_id,
            committed_at_ms,
            signature: None,
        }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn version(&self) -> TupleVersion {
        self.version
    }

    fn seen(&self) -> SeenMember {
        SeenMember {
            member: self.member,
            seen: self.version,
        }
    }

    fn others(&self) -> AnchorError {
        AnchorError::OthersMember {
            volume: self.volume,
            member: self.member,
        }
    }

    /// Refuses to start where another copy of the machine's state has started since.
    fn check_begun(&self) -> Result<(), AnchorError> {
        let Some(begun) = &self.begun else { return Ok(()) };
        check_begun(self.volume, self.member, &self.tuple, begun)
    }

    fn broken(&self) -> AnchorError {
        AnchorError::MemberBroken {
            volume: self.volume,
            member: self.member,
            incarnation: self.incarnation,
        }
    }
}

impl Anchor {
    /// A member's record. One read.
    ///
    /// # Errors
    /// [`AnchorError::NoSuchMember`], [`AnchorError::Damaged`], or what the table says.
    pub async fn member(
        &self,
        volume: VolumeId,
        member: MemberNumber,
    ) -> Result<(MemberTuple, TupleVersion), AnchorError> {
        let sort = member_sort(volume, member);
        let call = MemberCall::Member { member };
        match self.tuple(AnchorCall::Members { volume, call }, &sort).await? {
            Some((content, version)) => Ok((decode(&sort, MemberTuple::from_bytes(&content))?, version)),
            None => Err(AnchorError::NoSuchMember { volume, member }),
        }
    }

    /// All members of a volume, in order of their numbers; a query for each thousand.
    ///
    /// # Errors
    /// As [`Anchor::member`].
    pub async fn members(&self, volume: VolumeId) -> Result<Vec<MemberEntry>, AnchorError> {
        let prefix = member_prefix(volume);
        let mut members: Vec<MemberEntry> = Vec::new();
        loop {
            let after = members.last().map(|entry| entry.member);
            let call = MemberCall::Members {
                after,
                limit: crate::MAX_LISTED,
            };
            let beyond = after.map(|member| member_sort(volume, member));
            let (tuples, more) = self
                .list(AnchorCall::Members { volume, call }, &prefix, beyond)
                .await?;
            for stored in tuples {
                members.push(MemberEntry::from_stored(volume, &stored)?);
            }
            if !more {
                return Ok(members);
            }
        }
    }

    /// A new incarnation of a member, at a start and after a break: a writer is drawn for it, and what an earlier one still has under way is
    /// fenced. Its leases are asked for *after* this, and the root is read after that. For who keeps no list of what it began; see
    /// [`Self::start_member_as`].
    ///
    /// # Errors
    /// [`AnchorError::NoSuchMember`], [`AnchorError::Contended`], or what the table says. After a transient error it may have
    /// started: call again.
    pub async fn start_member(
        &self,
        volume: VolumeId,
        member: MemberNumber,
    ) -> Result<Membership, AnchorError> {
        let tenure = WriterTenure::Member { volume, member };
        let incarnation = self.next_writer_for(tenure).await?;
        self.start(volume, member, (incarnation, None)).await
    }

    /// Draws the writer of an incarnation that is to start. The machine notes it durably *before* [`Self::start_member_as`], among those that it has `begun`: so
    /// that at its next start it knows the one that the record names, whatever became of the answer. Before it stands the one that the record names now.
    ///
    /// # Errors
    /// [`AnchorError::StartedElsewhere`]: the record names one that is not among them. Otherwise as [`Self::start_member`].
    pub async fn draw_for_member(
        &self,
        volume: VolumeId,
        member: MemberNumber,
        begun: &[WriterId],
    ) -> Result<(Option<WriterId>, WriterId), AnchorError> {
        let (tuple, _) = self.member(volume, member).await?;
        check_begun(volume, member, &tuple, begun)?;
        let tenure = WriterTenure::Member { volume, member };
        Ok((tuple.record.newest(), self.next_writer_for(tenure).await?))
    }

    /// [`Self::start_member`] with a writer that was drawn before, by a machine that noted it. `begun` are all that it noted since the last start that succeeded, and that
    /// one.
    ///
    /// # Errors
    /// As [`Self::draw_for_member`], also if the other copy starts in this instant.
    pub async fn start_member_as(
        &self,
        volume: VolumeId,
        member: MemberNumber,
        incarnation: WriterId,
        begun: Vec<WriterId>,
    ) -> Result<Membership, AnchorError> {
        self.start(volume, member, (incarnation, Some(begun))).await
    }

    async fn start(
        &self,
        volume: VolumeId,
        member: MemberNumber,
        (incarnation, begun): (WriterId, Option<Vec<WriterId>>),
    ) -> Result<Membership, AnchorError> {
        let (tuple, version) = self.member(volume, member).await?;
        let mut starting = Membership {
            volume,
            member,
            incarnation,
            tuple,
            version,
            heard_at: self.env.now(),
            begun,
        };
        self.be_present(&mut starting, Presence::Start).await?;
        Ok(starting)
    }

    /// A sign of life.
    ///
    /// # Errors
    /// [`AnchorError::MemberBroken`], [`AnchorError::Contended`], or what the table says.
    pub async fn beat_member(&self, membership: &mut Membership) -> Result<(), AnchorError> {
        self.be_present(membership, Presence::Beat).await
    }

    /// Goes away: everything is published, and whoever wants a lease of the member takes it.
    ///
    /// # Errors
    /// As [`Anchor::beat_member`].
    pub async fn leave(&self, membership: &mut Membership) -> Result<(), AnchorError> {
        self.be_present(membership, Presence::Leave).await
    }

    /// Comes back. What the member still holds is asked of the arenas *after* this, and the root is read after that.
    ///
    /// # Errors
    /// As [`Anchor::beat_member`].
    pub async fn come_back(&self, membership: &mut Membership) -> Result<(), AnchorError> {
        self.be_present(membership, Presence::Return).await
    }

    async fn be_present(&self, membership: &mut Membership, change: Presence) -> Result<(), AnchorError> {
        let (volume, member) = (membership.volume, membership.member);
        let change_id = self.env.random_bytes();
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            let sent_at = self.env.now();
            if attempt > 0 {
                match self.look_at(membership).await {
                    Ok(()) => {}
                    Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                        last = Some(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                if membership.tuple.change_id == change_id {
                    // Of which try it was is not known: the first one's sending counts.
                    return Ok(());
                }
            }
            if change == Presence::Start {
                membership.check_begun()?;
            }
            let record = &membership.tuple.record;
            let is_own = record.incarnation == Some(membership.incarnation);
            // Also a start that others broke before its answer came.
            let is_over = record.writer(membership.incarnation) == MemberWriter::Over;
            if is_over || change != Presence::Start && !is_own {
                return Err(membership.broken());
            }
            match change {
                Presence::Leave if record.is_away => return Ok(()),
                Presence::Return if !record.is_away => return Ok(()),
                Presence::Start | Presence::Beat | Presence::Leave | Presence::Return => {}
            }
            let call = MemberCall::Presence {
                by: membership.seen(),
                change,
                incarnation: membership.incarnation,
                change_id,
            };
            match self.change(AnchorCall::Members { volume, call }).await {
                Ok(Ok(Some(version))) => {
                    let record = change
                        .of(membership.incarnation)
                        .apply(&membership.tuple.record)
                        .map_err(|why| TableError::Limit(format!("{member}: {why}")))?;
                    membership.tuple = MemberTuple {
                        record,
                        change_id,
                        ..membership.tuple.clone()
                    };
                    membership.version = version;
                    membership.heard_at = sent_at;
                    return Ok(());
                }
                Ok(Ok(None)) => return Err(nonsense().into()),
                Ok(Err(Obstacle::Principal)) => return Err(membership.others()),
                Ok(Err(_)) => last = None,
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(&member_sort(volume, member), last))
    }

    /// Looks at the own record, since somebody else may have written it.
    async fn look_at(&self, membership: &mut Membership) -> Result<(), AnchorError> {
        let (tuple, version) = self.member(membership.volume, membership.member).await?;
        (membership.tuple, membership.version) = (tuple, version);
        Ok(())
    }

    /// What an obstacle says of the member itself.
    async fn after(&self, membership: &mut Membership, obstacle: Obstacle) -> Result<(), AnchorError> {
        match obstacle {
            Obstacle::Principal => return Err(membership.others()),
            Obstacle::Member => {}
            Obstacle::Tuple | Obstacle::Name | Obstacle::Holder => return Ok(()),
        }
        self.look_at(membership).await?;
        match membership.tuple.record.incarnation == Some(membership.incarnation) {
            true => Ok(()),
            false => Err(membership.broken()),
        }
    }
}

/// Whether a machine knows the incarnation that its member's record names: it began it, and noted so before. What another copy of its state began it does not know.
fn check_begun(
    volume: VolumeId,
    member: MemberNumber,
    tuple: &MemberTuple,
    begun: &[WriterId],
) -> Result<(), AnchorError> {
    match tuple.record.newest() {
        Some(newest) if !begun.contains(&newest) && !firn_env::planted!("anchor.any_copy_starts") => {
            Err(AnchorError::StartedElsewhere {
                volume,
                member,
                name: tuple.name.clone(),
                incarnation: newest,
            })
        }
        Some(_) | None => Ok(()),
    }
}

/// The number at the end of a sort key.
fn numbered(sort: &str, from: usize, digits: usize) -> Result<u64, AnchorError> {
    let text = &sort[from..];
    let is_plain = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let number = is_plain.then(|| u64::from_str_radix(text, 16).ok()).flatten();
    number.ok_or_else(|| AnchorError::Damaged {
        what: sort.to_owned(),
        why: TupleError::Malformed {
            what: "a sort key that names no number",
            offset: from,
        },
    })
}

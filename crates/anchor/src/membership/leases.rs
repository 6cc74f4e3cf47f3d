//! Leases as members change them: read the arena, ask the rule, write on the version that was read.
//!
//! Who loses a race reads again and asks the rule again. An answer that is lost is found by the change's mark in the arena; **if it stays in doubt,
//! [beat](Anchor::beat_member) and look**: each change is conditional on the member's own record, so after the beat it will not happen any more.

use super::{MemberEntry, Membership, arena_prefix, arena_sort, numbered};
use crate::{
    Anchor, AnchorCall, AnchorError, Arena, ArenaChange, LeaseRange, LeaseRefusal, MAX_RETAINED_ROOTS,
    MemberCall, MemberNumber, Obstacle, SeenMember, SeenRange, TupleVersion,
    anchor::{decode, nonsense},
    retry,
};
use firn_format::VolumeId;

/// An arena as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenArena {
    /// Its leases.
    pub arena: Arena,
    /// The version of its record; `None`: it has none, so that everything in it is home's.
    pub version: Option<TupleVersion>,
}

/// What is done about a range.
enum Doing {
    Change(ArenaChange),
    TakeFromAbsent(MemberEntry),
    TakeFromNobody,
    Break(MemberEntry),
}

impl Anchor {
    /// The arena that an inode lies in. One read.
    ///
    /// # Errors
    /// [`AnchorError::Damaged`] (a newer build's says so), or what the table says.
    pub async fn arena(&self, volume: VolumeId, inode: u64) -> Result<SeenArena, AnchorError> {
        Ok(self.marked_arena(volume, inode).await?.0)
    }

    async fn marked_arena(
        &self,
        volume: VolumeId,
        inode: u64,
    ) -> Result<(SeenArena, Option<[u8; 16]>), AnchorError> {
        let arena = Arena::around(inode);
        let sort = arena_sort(volume, arena.number());
        let call = MemberCall::Arena {
            arena: arena.number(),
        };
        let found = self.tuple(AnchorCall::Members { volume, call }, &sort).await?;
        let Some((content, version)) = found else {
            return Ok((SeenArena { arena, version: None }, None));
        };
        let arena = decode(&sort, Arena::of_number(arena.number(), &content))?;
        let (_, mark) = decode(&sort, Arena::from_bytes(&content))?;
        let version = Some(version);
        Ok((SeenArena { arena, version }, Some(mark)))
    }

    /// All arenas of a volume that have a record, in order of their numbers; a query for each page. Who starts or comes back asks this *after* it is
    /// present.
    ///
    /// # Errors
    /// As [`Anchor::arena`].
    pub async fn arenas(&self, volume: VolumeId) -> Result<Vec<SeenArena>, AnchorError> {
        let prefix = arena_prefix(volume);
        let mut arenas: Vec<SeenArena> = Vec::new();
        loop {
            let after = arenas.last().map(|seen| seen.arena.number());
            let call = MemberCall::Arenas {
                after,
                limit: crate::MAX_LISTED,
            };
            let beyond = after.map(|arena| arena_sort(volume, arena));
            let (tuples, more) = self
                .list(AnchorCall::Members { volume, call }, &prefix, beyond)
                .await?;
            for stored in tuples {
                let number = numbered(&stored.name, prefix.len(), 16)?;
                arenas.push(SeenArena {
                    arena: decode(&stored.name, Arena::of_number(number, &stored.content))?,
                    version: Some(stored.version),
                });
            }
            if !more {
                return Ok(arenas);
            }
        }
    }

    /// Takes what is nobody's, waits for what another holds, waits no more, or gives what was published. The arena as this left it.
    ///
    /// # Errors
    /// [`AnchorError::Lease`]: the rule forbids it as the arena is now. [`AnchorError::MemberBroken`], [`AnchorError::MemberAway`],
    /// [`AnchorError::Contended`], or what the table says.
    pub async fn change_lease(
        &self,
        membership: &mut Membership,
        (inode, level): (u64, u8),
        change: ArenaChange,
    ) -> Result<Arena, AnchorError> {
        self.do_lease(membership, (inode, level), &Doing::Change(change))
            .await
    }

    /// Takes the lease of a member that is away or was broken. It is conditional on that member's record, so that one which comes back in this
    /// instant keeps what it has.
    ///
    /// # Errors
    /// As [`Anchor::change_lease`]; with [`LeaseRefusal::HolderPresent`] if the holder is there by now.
    pub async fn take_from_absent(
        &self,
        membership: &mut Membership,
        (inode, level): (u64, u8),
        holder: MemberNumber,
    ) -> Result<Arena, AnchorError> {
        let (tuple, version) = self.member(membership.volume, holder).await?;
        let absent = MemberEntry {
            member: holder,
            tuple,
            version,
        };
        self.do_lease(membership, (inode, level), &Doing::TakeFromAbsent(absent))
            .await
    }

    /// Takes what is home's, where that home has no member. It is conditional on there being none, so that one which joins in this instant and asks the arenas
    /// keeps what it has, or finds it taken.
    ///
    /// # Errors
    /// As [`Anchor::change_lease`]; with [`LeaseRefusal::HolderPresent`] if the home has a member by now.
    pub async fn take_from_nobody(
        &self,
        membership: &mut Membership,
        (inode, level): (u64, u8),
    ) -> Result<Arena, AnchorError> {
        self.do_lease(membership, (inode, level), &Doing::TakeFromNobody)
            .await
    }

    /// Takes the lease of a member that is there, and whose record has stood still since `silent` was read, for as long as the caller waited. The
    /// head root is retained for its journal, once.
    ///
    /// # Errors
    /// As [`Anchor::change_lease`]; with [`LeaseRefusal::HolderPresent`] if it gave a sign of life, and
    /// [`AnchorError::NoPlaceToRetain`] if the volume retains the most roots there can be.
    pub async fn break_member(
        &self,
        membership: &mut Membership,
        (inode, level): (u64, u8),
        silent: &MemberEntry,
    ) -> Result<Arena, AnchorError> {
        self.do_lease(membership, (inode, level), &Doing::Break(silent.clone()))
            .await
    }

    async fn do_lease(
        &self,
        membership: &mut Membership,
        (inode, level): (u64, u8),
        doing: &Doing,
    ) -> Result<Arena, AnchorError> {
        let (volume, member) = (membership.volume, membership.member);
        let refused = |why| AnchorError::Lease { volume, inode, why };
        let range = LeaseRange::around(inode, level)
            .ok_or_else(|| firn_table::TableError::Limit(format!("leases have no level {level}")))?;
        let change_id = self.env.random_bytes();
        let mut last = None;
        for attempt in 0..retry::ATTEMPTS {
            retry::BACKOFF.wait(&self.env, attempt).await;
            self.is_there(membership)?;
            let (seen, mark) = match self.marked_arena(volume, inode).await {
                Ok(found) => found,
                Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if mark == Some(change_id) {
                return Ok(seen.arena);
            }
            let changed = match doing {
                Doing::Change(change) => seen.arena.changed(*change, range, member),
                Doing::TakeFromAbsent(holder) => {
                    let absent = (holder.member, &holder.tuple.record);
                    seen.arena.taken_from_absent(range, member, absent)
                }
                Doing::TakeFromNobody => seen.arena.taken_from_nobody(range, member),
                Doing::Break(holder) => {
                    let silent = (holder.member, &holder.tuple.record);
                    seen.arena.broken(range, member, silent).map(|(arena, _)| arena)
                }
            };
            let changed = changed.map_err(refused)?;
            if changed == seen.arena {
                // Who waits keeps its place, and what nobody has to know is not written.
                return Ok(changed);
            }
            let call = match self
                .call_of(membership, doing, (inode, level, &seen), change_id)
                .await
            {
                Ok(call) => call,
                Err(AnchorError::Table(error)) if error.is_in_doubt() => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            match self.change(AnchorCall::Members { volume, call }).await {
                Ok(Ok(Some(_))) => return Ok(changed),
                Ok(Ok(None)) => return Err(nonsense().into()),
                Ok(Err(Obstacle::Holder)) => return Err(refused(LeaseRefusal::HolderPresent)),
                Ok(Err(obstacle)) => {
                    self.after(membership, obstacle).await?;
                    last = None;
                }
                Err(error) if error.is_in_doubt() => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.gave_up(&arena_sort(volume, Arena::around(inode).number()), last))
    }

    async fn call_of(
        &self,
        membership: &Membership,
        doing: &Doing,
        (inode, level, seen): (u64, u8, &SeenArena),
        change_id: [u8; 16],
    ) -> Result<MemberCall, AnchorError> {
        let by = membership.seen();
        let range = SeenRange {
            inode,
            level,
            seen: seen.version,
        };
        let seen_as = |holder: &MemberEntry| SeenMember {
            member: holder.member,
            seen: holder.version,
        };
        Ok(match doing {
            Doing::Change(change) => MemberCall::Lease {
                by,
                range,
                change: *change,
                change_id,
            },
            Doing::TakeFromAbsent(holder) => MemberCall::TakeFromAbsent {
                by,
                range,
                absent: seen_as(holder),
                change_id,
            },
            Doing::TakeFromNobody => MemberCall::TakeFromNobody { by, range, change_id },
            Doing::Break(holder) => {
                let (tuple, volume_seen) = self.load(membership.volume).await?;
                if tuple.retained_for_member(holder.member).is_none()
                    && tuple.retained.len() >= MAX_RETAINED_ROOTS
                {
                    let oldest = &tuple.retained[0];
                    let of = match oldest.member {
                        Some(member) => self.member(membership.volume, member).await?.0.name,
                        None => "an owner before it was shared".to_owned(),
                    };
                    return Err(AnchorError::NoPlaceToRetain {
                        volume: membership.volume,
                        silent: holder.tuple.name.clone(),
                        retained: tuple.retained.len(),
                        oldest: of,
                        since_ms: oldest.retained_at_ms,
                    });
                }
                MemberCall::Break {
                    by,
                    range,
                    silent: seen_as(holder),
                    volume_seen,
                    broken_at_ms: self.env.wall().as_millis(),
                    change_id,
                }
            }
        })
    }

    pub(super) fn is_there(&self, membership: &Membership) -> Result<(), AnchorError> {
        let record = &membership.tuple.record;
        if record.incarnation != Some(membership.incarnation) {
            return Err(membership.broken());
        }
        match record.is_away {
            true => Err(AnchorError::MemberAway {
                volume: membership.volume,
                member: membership.member,
            }),
            false => Ok(()),
        }
    }
}

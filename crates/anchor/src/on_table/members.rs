//! Calls of members on a table: the pure rules of arenas and records decide, one transaction writes what they say.
//!
//! Each write stands with what its failure means ([`Obstacle`]); a check of the member's own record goes with every change that does not write it
//! already ([`crate::membership::call`]).

mod leases;
mod locks;

use super::{TableBackend, limited, readable};
use crate::{
    AnchorAnswer, FamilyTuple, Mail, MemberCall, MemberChange, MemberCommit, MemberNumber, MemberRecord,
    MemberTuple, Obstacle, OwnerId, Presence, Root, SeenMember, TupleVersion, VolumeTuple, WriterTenure,
    WriterTuple,
    anchor::{FAMILY, volume_sort},
    mark::{ReadMark, commit_mark, family_mark, mail_mark, member_mark, volume_mark},
    membership::{arena_prefix, arena_sort, mail_sort, member_prefix, member_sort},
    tuple::check_name,
    writer::writer_sort,
};
use firn_format::{VolumeId, WriterId};
use firn_table::{Condition, TableError, Write};

/// A write, and what stands in the way if it cannot be made.
type Step = (Write, Obstacle);

/// What a change was decided on, or that it does not stand any more.
type Ground<T> = Result<T, Obstacle>;

impl TableBackend {
    pub(super) async fn members(
        &self,
        volume: VolumeId,
        call: MemberCall,
    ) -> Result<AnchorAnswer, TableError> {
        match call {
            MemberCall::Member { member } => self.answer(&member_sort(volume, member)).await,
            MemberCall::Members { after, limit } => {
                let after = after.map(|member| member_sort(volume, member));
                self.list(&member_prefix(volume), after, limit).await
            }
            MemberCall::Arena { arena } => self.answer(&arena_sort(volume, arena)).await,
            MemberCall::Arenas { after, limit } => {
                let after = after.map(|arena| arena_sort(volume, arena));
                self.list(&arena_prefix(volume), after, limit).await
            }
            MemberCall::Mail { member } => self.answer(&mail_sort(volume, member)).await,
            MemberCall::Join {
                seen,
                member,
                edge,
                name,
                drawn_at_ms,
                change_id,
            } => {
                let record = self.joining(edge, name, change_id)?;
                self.join(volume, seen, (member, record), drawn_at_ms).await
            }
            MemberCall::Presence {
                by,
                change,
                incarnation,
                change_id,
            } => self.presence(volume, by, change, incarnation, change_id).await,
            MemberCall::Commit {
                by,
                incarnation,
                seen,
                root,
                sequence,
            } => {
                self.commit_member(volume, by, incarnation, seen, (root, sequence))
                    .await
            }
            MemberCall::Lease {
                by,
                range,
                change,
                change_id,
            } => self.change_lease(volume, by, range, change, change_id).await,
            MemberCall::TakeFromAbsent {
                by,
                range,
                absent,
                change_id,
            } => self.take_from_absent(volume, by, range, absent, change_id).await,
            MemberCall::TakeFromNobody { by, range, change_id } => {
                self.take_from_nobody(volume, by, range, change_id).await
            }
            MemberCall::Break {
                by,
                range,
                silent,
                volume_seen,
                broken_at_ms,
                change_id,
            } => {
                let volume = (volume, volume_seen);
                self.break_member(volume, by, range, silent, (broken_at_ms, change_id))
                    .await
            }
            MemberCall::BumpMail {
                by,
                to,
                seen,
                change_id,
            } => self.bump_mail(volume, by, to, seen, change_id).await,
            MemberCall::Locks {
                by,
                seen,
                change,
                change_id,
            } => self.change_locks(volume, by, seen, (change, change_id)).await,
            MemberCall::ForgetRetained { by, seen, change_id } => {
                self.forget_for_member(volume, by, seen, change_id).await
            }
            MemberCall::GiveUp {
                by,
                broken,
                seen,
                given_up_at_ms,
                change_id,
            } => {
                self.give_up(volume, by, (broken, seen), (given_up_at_ms, change_id))
                    .await
            }
        }
    }

    fn joining(&self, edge: OwnerId, name: String, change_id: [u8; 16]) -> Result<MemberTuple, TableError> {
        check_name(&name).map_err(|error| limited(error.to_string()))?;
        Ok(MemberTuple {
            edge,
            name,
            principal: self.principal,
            record: MemberRecord::default(),
            change_id,
        })
    }

    async fn join(
        &self,
        volume: VolumeId,
        seen: TupleVersion,
        (member, record): (MemberNumber, MemberTuple),
        drawn_at_ms: i64,
    ) -> Result<AnchorAnswer, TableError> {
        let change_id = record.change_id;
        let mark = Some((family_mark as ReadMark, change_id));
        let Some(content) = self.content_at(FAMILY, seen).await? else {
            return self.already(FAMILY, mark, Obstacle::Tuple).await;
        };
        let family = readable(FAMILY, FamilyTuple::from_bytes(&content))?;
        let writer = WriterId(u64::from(member.0));
        if writer < family.next_writer || member.0 == u32::MAX {
            return Err(limited(format!("{member} was drawn before, or is past the end")));
        }
        // A volume that is shared by inode stays so; no condition is needed.
        let name = volume_sort(volume);
        let Some(item) = self.read(&name).await? else {
            return Err(limited(format!("there is no volume {volume}")));
        };
        if !readable(&name, VolumeTuple::from_bytes(&item.value))?.by_inode {
            return Err(limited(format!("volume {volume} is not shared by inode")));
        }
        let changed = FamilyTuple {
            next_writer: WriterId(writer.0 + 1),
            change_id,
            ..family
        };
        let registered = WriterTuple {
            tenure: WriterTenure::Member { volume, member },
            ended: false,
            drawn_at_ms,
            change_id,
        };
        let steps = vec![
            (self.put(FAMILY, changed.to_bytes(), Some(seen)), Obstacle::Tuple),
            (
                self.put(&writer_sort(writer), registered.to_bytes(), None),
                Obstacle::Tuple,
            ),
            (
                self.put(&member_sort(volume, member), record.to_bytes(), None),
                Obstacle::Member,
            ),
        ];
        self.steps(FAMILY, steps, mark).await
    }

    async fn presence(
        &self,
        volume: VolumeId,
        by: SeenMember,
        change: Presence,
        incarnation: WriterId,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        let sort = member_sort(volume, by.member);
        let mark = Some((member_mark as ReadMark, change_id));
        let me = match self.speaker(volume, by).await? {
            Ok(me) => me,
            Err(obstacle) => return self.already(&sort, mark, obstacle).await,
        };
        if change == Presence::Start {
            self.is_drawn_for(volume, by.member, incarnation).await?;
        }
        let change = change.of(incarnation);
        let record = self.changed(volume, by.member, &me, change)?;
        let changed = MemberTuple {
            record,
            change_id,
            ..me
        };
        let put = self.put(&sort, changed.to_bytes(), Some(by.seen));
        self.steps(&sort, vec![(put, Obstacle::Member)], mark).await
    }

    /// A log prefix is one member's: an incarnation that was drawn for another one, or for something else, is refused.
    async fn is_drawn_for(
        &self,
        volume: VolumeId,
        member: MemberNumber,
        incarnation: WriterId,
    ) -> Result<(), TableError> {
        let sort = writer_sort(incarnation);
        let item = self.read(&sort).await?;
        let drawn = match &item {
            Some(item) => Some(readable(&sort, WriterTuple::from_bytes(&item.value))?.tenure),
            None => None,
        };
        let is_own = drawn == Some(WriterTenure::Member { volume, member });
        match is_own || firn_env::planted!("anchor.any_writer_starts") {
            true => Ok(()),
            false => Err(limited(format!(
                "writer {incarnation} was not drawn for {member}"
            ))),
        }
    }

    async fn commit_member(
        &self,
        volume: VolumeId,
        by: SeenMember,
        incarnation: WriterId,
        seen: TupleVersion,
        (root, sequence): (Root, u64),
    ) -> Result<AnchorAnswer, TableError> {
        let (sort, volume_name) = (member_sort(volume, by.member), volume_sort(volume));
        let mark = Some((commit_mark as ReadMark, root.commit_id));
        let me = match self.speaker(volume, by).await? {
            Ok(me) => me,
            Err(obstacle) => return self.already(&sort, mark, obstacle).await,
        };
        let tuple = match self.volume_at(volume, seen).await? {
            Ok(tuple) => tuple,
            Err(obstacle) => return self.already(&sort, mark, obstacle).await,
        };
        let commit = MemberCommit {
            commit_id: root.commit_id,
            version: root.version,
            sequence,
        };
        let record = self.changed(
            volume,
            by.member,
            &me,
            MemberChange::Commit { incarnation, commit },
        )?;
        let committed = tuple
            .committed_by_member(&root, me.edge)
            .map_err(|why| limited(format!("this cannot be committed to volume {volume}: {why}")))?;
        let changed = MemberTuple {
            record,
            change_id: root.commit_id,
            ..me
        };
        let mut steps = vec![
            (
                self.put(&sort, changed.to_bytes(), Some(by.seen)),
                Obstacle::Member,
            ),
            (
                self.put(&volume_name, committed.to_bytes(), Some(seen)),
                Obstacle::Tuple,
            ),
        ];
        if firn_env::planted!("anchor.commit_without_own_record") {
            steps.remove(0);
        }
        self.steps(&sort, steps, mark).await
    }

    async fn bump_mail(
        &self,
        volume: VolumeId,
        by: SeenMember,
        to: MemberNumber,
        seen: Option<TupleVersion>,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        let sort = mail_sort(volume, to);
        let mark = Some((mail_mark as ReadMark, change_id));
        if let Err(obstacle) = self.present(volume, by).await? {
            return self.already(&sort, mark, obstacle).await;
        }
        let before = match seen {
            Some(seen) => match self.content_at(&sort, seen).await? {
                Some(content) => readable(&sort, Mail::from_bytes(&content))?,
                None => return self.already(&sort, mark, Obstacle::Tuple).await,
            },
            // Nobody fills the table with the mail of members that there are not.
            None if self.read(&member_sort(volume, to)).await?.is_none() => {
                return Err(limited(format!("volume {volume} has no {to}")));
            }
            None => Mail::default(),
        };
        let bumped = Mail {
            bumps: before.bumps.saturating_add(1),
            change_id,
        };
        let put = self.put(&sort, bumped.to_bytes(), seen);
        self.steps(&sort, vec![(put, Obstacle::Tuple)], mark).await
    }

    async fn forget_for_member(
        &self,
        volume: VolumeId,
        by: SeenMember,
        seen: TupleVersion,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        let sort = volume_sort(volume);
        let mark = Some((volume_mark as ReadMark, change_id));
        let ground = match self.present(volume, by).await? {
            Ok(_) => self.volume_at(volume, seen).await?,
            Err(obstacle) => Err(obstacle),
        };
        let tuple = match ground {
            Ok(tuple) => tuple,
            Err(obstacle) => return self.already(&sort, mark, obstacle).await,
        };
        let changed = tuple
            .forgetting_for(by.member, change_id)
            .map_err(|why| limited(format!("volume {volume}: {why}")))?;
        let steps = vec![
            (self.put(&sort, changed.to_bytes(), Some(seen)), Obstacle::Tuple),
            (self.unchanged(volume, by), Obstacle::Member),
        ];
        self.steps(&sort, steps, mark).await
    }

    async fn give_up(
        &self,
        volume: VolumeId,
        by: SeenMember,
        (broken, seen): (SeenMember, TupleVersion),
        (given_up_at_ms, change_id): (i64, [u8; 16]),
    ) -> Result<AnchorAnswer, TableError> {
        let sort = volume_sort(volume);
        let mark = Some((volume_mark as ReadMark, change_id));
        if let Err(obstacle) = self.present(volume, by).await? {
            return self.already(&sort, mark, obstacle).await;
        }
        let Some(member) = self.member_at(volume, broken).await? else {
            return self.already(&sort, mark, Obstacle::Holder).await;
        };
        let tuple = match self.volume_at(volume, seen).await? {
            Ok(tuple) => tuple,
            Err(obstacle) => return self.already(&sort, mark, obstacle).await,
        };
        let refused = |why: crate::Unfit| limited(format!("{} of volume {volume}: {why}", broken.member));
        if tuple.retained_for_member(broken.member).is_none() {
            return Err(refused(crate::Unfit("no root is retained for its journal")));
        }
        let record = member.record.given_up(given_up_at_ms).map_err(refused)?;
        let changed = tuple.forgetting_for(broken.member, change_id).map_err(refused)?;
        let given_up = MemberTuple {
            record,
            change_id,
            ..member
        };
        let theirs = member_sort(volume, broken.member);
        let steps = vec![
            (self.put(&sort, changed.to_bytes(), Some(seen)), Obstacle::Tuple),
            (
                self.put(&theirs, given_up.to_bytes(), Some(broken.seen)),
                Obstacle::Holder,
            ),
            (self.unchanged(volume, by), Obstacle::Member),
        ];
        self.steps(&sort, steps, mark).await
    }

    /// A member's tuple at a version; `None` if it is another one now.
    async fn member_at(
        &self,
        volume: VolumeId,
        member: SeenMember,
    ) -> Result<Option<MemberTuple>, TableError> {
        let sort = member_sort(volume, member.member);
        match self.content_at(&sort, member.seen).await? {
            Some(content) => readable(&sort, MemberTuple::from_bytes(&content)).map(Some),
            None => Ok(None),
        }
    }

    /// The tuple of the member that speaks, which must be the caller's own.
    async fn speaker(&self, volume: VolumeId, by: SeenMember) -> Result<Ground<MemberTuple>, TableError> {
        let at_version = self.member_at(volume, by).await?;
        let me = match &at_version {
            Some(me) => Some(me.clone()),
            // Whose record it is by now is nobody's business but its own.
            None => {
                let sort = member_sort(volume, by.member);
                let item = self.read(&sort).await?;
                item.map(|item| readable(&sort, MemberTuple::from_bytes(&item.value)))
                    .transpose()?
            }
        };
        let is_others = self
            .principal
            .is_some_and(|principal| me.is_some_and(|me| me.principal != Some(principal)));
        if is_others && !firn_env::planted!("anchor.members_speak_for_each_other") {
            return Ok(Err(Obstacle::Principal));
        }
        Ok(at_version.ok_or(Obstacle::Member))
    }

    /// The same of a member that has to be there.
    async fn present(&self, volume: VolumeId, by: SeenMember) -> Result<Ground<MemberTuple>, TableError> {
        let speaker = self.speaker(volume, by).await?;
        let is_absent = speaker.as_ref().is_ok_and(|me| me.record.is_absent());
        match is_absent && !firn_env::planted!("anchor.absent_members_act") {
            true => Err(limited(format!(
                "{} is away or was broken, and holds and waits for nothing",
                by.member
            ))),
            false => Ok(speaker),
        }
    }

    fn changed(
        &self,
        volume: VolumeId,
        member: MemberNumber,
        me: &MemberTuple,
        change: MemberChange,
    ) -> Result<MemberRecord, TableError> {
        change
            .apply(&me.record)
            .map_err(|why| limited(format!("{member} of volume {volume}: {why}")))
    }

    async fn volume_at(
        &self,
        volume: VolumeId,
        seen: TupleVersion,
    ) -> Result<Ground<VolumeTuple>, TableError> {
        let sort = volume_sort(volume);
        match self.content_at(&sort, seen).await? {
            Some(content) => readable(&sort, VolumeTuple::from_bytes(&content)).map(Ok),
            None => Ok(Err(Obstacle::Tuple)),
        }
    }

    fn unchanged(&self, volume: VolumeId, member: SeenMember) -> Write {
        Write::Check {
            key: self.key(&member_sort(volume, member.member)),
            condition: Condition::Version(member.seen),
        }
    }

    async fn steps(
        &self,
        sort: &str,
        steps: Vec<Step>,
        mark: Option<(ReadMark, [u8; 16])>,
    ) -> Result<AnchorAnswer, TableError> {
        let (writes, obstacles): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
        self.change_with(sort, writes, &obstacles, mark).await
    }
}

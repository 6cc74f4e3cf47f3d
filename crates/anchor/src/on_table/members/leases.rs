//! Changes of leases on a table: an arena is written together with a check of the member's own record, and of the holder's if it is taken from one.

use super::Step;
use crate::{
    AnchorAnswer, Arena, ArenaChange, LeaseRange, LeaseRefusal, MemberTuple, Obstacle, SeenMember, SeenRange,
    TupleVersion,
    anchor::volume_sort,
    mark::{ReadMark, arena_mark},
    membership::{arena_sort, member_sort},
    on_table::{TableBackend, limited, readable},
};
use bytes::Bytes;
use firn_format::VolumeId;
use firn_table::{Condition, TableError, Write};

type Mark = Option<(ReadMark, [u8; 16])>;

/// What a change of a lease begins with.
struct LeaseGround {
    range: LeaseRange,
    /// As it was seen.
    arena: Arena,
    /// Where the arena is in the table.
    sort: String,
    /// By what the change is recognised after a lost reply.
    mark: Mark,
}

impl TableBackend {
    pub(super) async fn change_lease(
        &self,
        volume: VolumeId,
        by: SeenMember,
        seen: SeenRange,
        change: ArenaChange,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        let lease = match self.lease_at(volume, by, &seen, change_id).await? {
            Ok(lease) => lease,
            Err(answered) => return Ok(answered),
        };
        let changed = lease.arena.changed(change, lease.range, by.member);
        let changed = changed.map_err(|why| refused(&seen, why))?;
        let mut steps = vec![self.arena_put(volume, &changed, &seen, change_id)];
        if !firn_env::planted!("anchor.lease_without_own_record") {
            steps.push((self.unchanged(volume, by), Obstacle::Member));
        }
        self.steps(&lease.sort, steps, lease.mark).await
    }

    pub(super) async fn take_from_absent(
        &self,
        volume: VolumeId,
        by: SeenMember,
        seen: SeenRange,
        absent: SeenMember,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        let lease = match self.lease_at(volume, by, &seen, change_id).await? {
            Ok(lease) => lease,
            Err(answered) => return Ok(answered),
        };
        let Some(holder) = self.member_at(volume, absent).await? else {
            return self.already(&lease.sort, lease.mark, Obstacle::Holder).await;
        };
        let holder = (absent.member, &holder.record);
        let changed = lease.arena.taken_from_absent(lease.range, by.member, holder);
        let changed = changed.map_err(|why| refused(&seen, why))?;
        let mut steps = vec![
            self.arena_put(volume, &changed, &seen, change_id),
            (self.unchanged(volume, by), Obstacle::Member),
        ];
        if !firn_env::planted!("anchor.take_on_any_version") {
            steps.push((self.unchanged(volume, absent), Obstacle::Holder));
        }
        self.steps(&lease.sort, steps, lease.mark).await
    }

    pub(super) async fn take_from_nobody(
        &self,
        volume: VolumeId,
        by: SeenMember,
        seen: SeenRange,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        let lease = match self.lease_at(volume, by, &seen, change_id).await? {
            Ok(lease) => lease,
            Err(answered) => return Ok(answered),
        };
        let Some(home) = lease.arena.home() else {
            return Err(limited(format!(
                "inode {} is in nobody's home: it is taken as such",
                seen.inode
            )));
        };
        let changed = lease.arena.taken_from_nobody(lease.range, by.member);
        let changed = changed.map_err(|why| refused(&seen, why))?;
        let mut steps = vec![
            self.arena_put(volume, &changed, &seen, change_id),
            (self.unchanged(volume, by), Obstacle::Member),
        ];
        if !firn_env::planted!("anchor.take_whether_or_not_a_member") {
            let none = Write::Check {
                key: self.key(&member_sort(volume, home)),
                condition: Condition::Absent,
            };
            steps.push((none, Obstacle::Holder));
        }
        self.steps(&lease.sort, steps, lease.mark).await
    }

    pub(super) async fn break_member(
        &self,
        (volume, volume_seen): (VolumeId, TupleVersion),
        by: SeenMember,
        seen: SeenRange,
        silent: SeenMember,
        (broken_at_ms, change_id): (i64, [u8; 16]),
    ) -> Result<AnchorAnswer, TableError> {
        if silent.member == by.member {
            return Err(limited("a member does not break itself".into()));
        }
        let lease = match self.lease_at(volume, by, &seen, change_id).await? {
            Ok(lease) => lease,
            Err(answered) => return Ok(answered),
        };
        let mut silent = silent;
        let any_version = firn_env::planted!("anchor.break_on_any_version");
        if any_version && let Some(item) = self.read(&member_sort(volume, silent.member)).await? {
            silent.seen = item.version;
        }
        let Some(holder) = self.member_at(volume, silent).await? else {
            return self.already(&lease.sort, lease.mark, Obstacle::Holder).await;
        };
        let tuple = match self.volume_at(volume, volume_seen).await? {
            Ok(tuple) => tuple,
            Err(obstacle) => return self.already(&lease.sort, lease.mark, obstacle).await,
        };
        let broken = (silent.member, &holder.record);
        let changed = lease.arena.broken(lease.range, by.member, broken);
        let (changed, record) = changed.map_err(|why| refused(&seen, why))?;
        let retaining = tuple
            .retaining_for(silent.member, broken_at_ms, change_id)
            .map_err(|why| {
                limited(format!(
                    "{} of volume {volume} cannot be broken: {why}",
                    silent.member
                ))
            })?;
        let broken = MemberTuple {
            record,
            change_id,
            ..holder
        };
        let steps = vec![
            self.arena_put(volume, &changed, &seen, change_id),
            (
                self.put(
                    &member_sort(volume, silent.member),
                    broken.to_bytes(),
                    Some(silent.seen),
                ),
                Obstacle::Holder,
            ),
            (
                self.put(&volume_sort(volume), retaining.to_bytes(), Some(volume_seen)),
                Obstacle::Tuple,
            ),
            (self.unchanged(volume, by), Obstacle::Member),
        ];
        self.steps(&lease.sort, steps, lease.mark).await
    }

    /// The lease that a present member changes; or the answer, if that stands already or the change finds an obstacle.
    async fn lease_at(
        &self,
        volume: VolumeId,
        by: SeenMember,
        seen: &SeenRange,
        change_id: [u8; 16],
    ) -> Result<Result<LeaseGround, AnchorAnswer>, TableError> {
        let range = seen
            .range()
            .ok_or_else(|| limited(format!("leases have no level {}", seen.level)))?;
        let number = Arena::around(seen.inode).number();
        let sort = arena_sort(volume, number);
        let mark: Mark = Some((arena_mark, change_id));
        let found = match (self.present(volume, by).await?, seen.seen) {
            (Err(obstacle), _) => Err(obstacle),
            (Ok(_), None) => Ok(Arena::around(seen.inode)),
            (Ok(_), Some(version)) => match self.content_at(&sort, version).await? {
                Some(content) => Ok(readable(&sort, Arena::of_number(number, &content))?),
                None => Err(Obstacle::Tuple),
            },
        };
        match found {
            Ok(arena) => Ok(Ok(LeaseGround {
                range,
                arena,
                sort,
                mark,
            })),
            Err(obstacle) => self.already(&sort, mark, obstacle).await.map(Err),
        }
    }

    fn arena_put(&self, volume: VolumeId, arena: &Arena, range: &SeenRange, change_id: [u8; 16]) -> Step {
        let content = Bytes::from(arena.to_bytes(&change_id));
        let put = self.put(&arena_sort(volume, arena.number()), content, range.seen);
        (put, Obstacle::Tuple)
    }
}

fn refused(seen: &SeenRange, why: LeaseRefusal) -> TableError {
    limited(format!("the lease of inode {}: {why}", seen.inode))
}

//! Changes of leases on a table: an arena is written together with a check of the member's own record, and of the holder's if it is taken from one.

use super::{Ground, Step};
use crate::{
    AnchorAnswer, Arena, ArenaChange, LeaseRange, MemberTuple, Obstacle, SeenMember, SeenRange, TupleVersion,
    anchor::volume_sort,
    mark::{ReadMark, arena_mark},
    membership::{arena_sort, member_sort},
    on_table::{TableBackend, limited, readable},
};
use bytes::Bytes;
use firn_format::VolumeId;
use firn_table::{Condition, TableError, Write};

impl TableBackend {
    pub(super) async fn change_lease(
        &self,
        volume: VolumeId,
        by: SeenMember,
        seen: SeenRange,
        change: ArenaChange,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        let range = range_of(&seen)?;
        let arena = self.arena_for(volume, by, &seen).await?;
        let (sort, mark) = (
            arena_sort(volume, arena_number(&seen)),
            Some((arena_mark as ReadMark, change_id)),
        );
        let arena = match arena {
            Ok(arena) => arena,
            Err(obstacle) => return self.already(&sort, mark, obstacle).await,
        };
        let changed = arena
            .changed(change, range, by.member)
            .map_err(|why| limited(format!("the lease of inode {}: {why}", seen.inode)))?;
        let mut steps = vec![self.arena_put(volume, &changed, &seen, change_id)];
        if !firn_env::planted!("anchor.lease_without_own_record") {
            steps.push((self.unchanged(volume, by), Obstacle::Member));
        }
        self.steps(&sort, steps, mark).await
    }

    pub(super) async fn take_from_absent(
        &self,
        volume: VolumeId,
        by: SeenMember,
        seen: SeenRange,
        absent: SeenMember,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        let range = range_of(&seen)?;
        let (sort, mark) = (
            arena_sort(volume, arena_number(&seen)),
            Some((arena_mark as ReadMark, change_id)),
        );
        let ground = match self.arena_for(volume, by, &seen).await? {
            Ok(arena) => self
                .member_at(volume, absent)
                .await?
                .map(|holder| (arena, holder))
                .ok_or(Obstacle::Holder),
            Err(obstacle) => Err(obstacle),
        };
        let (arena, holder) = match ground {
            Ok(ground) => ground,
            Err(obstacle) => return self.already(&sort, mark, obstacle).await,
        };
        let changed = arena
            .taken_from_absent(range, by.member, (absent.member, &holder.record))
            .map_err(|why| limited(format!("the lease of inode {}: {why}", seen.inode)))?;
        let mut steps = vec![
            self.arena_put(volume, &changed, &seen, change_id),
            (self.unchanged(volume, by), Obstacle::Member),
        ];
        if !firn_env::planted!("anchor.take_on_any_version") {
            steps.push((self.unchanged(volume, absent), Obstacle::Holder));
        }
        self.steps(&sort, steps, mark).await
    }

    pub(super) async fn take_from_nobody(
        &self,
        volume: VolumeId,
        by: SeenMember,
        seen: SeenRange,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        let range = range_of(&seen)?;
        let (sort, mark) = (
            arena_sort(volume, arena_number(&seen)),
            Some((arena_mark as ReadMark, change_id)),
        );
        let arena = match self.arena_for(volume, by, &seen).await? {
            Ok(arena) => arena,
            Err(obstacle) => return self.already(&sort, mark, obstacle).await,
        };
        let Some(home) = arena.home() else {
            return Err(limited(format!(
                "inode {} is in nobody's home: it is taken as such",
                seen.inode
            )));
        };
        let changed = arena
            .taken_from_nobody(range, by.member)
            .map_err(|why| limited(format!("the lease of inode {}: {why}", seen.inode)))?;
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
        self.steps(&sort, steps, mark).await
    }

    pub(super) async fn break_member(
        &self,
        (volume, volume_seen): (VolumeId, TupleVersion),
        by: SeenMember,
        seen: SeenRange,
        silent: SeenMember,
        (broken_at_ms, change_id): (i64, [u8; 16]),
    ) -> Result<AnchorAnswer, TableError> {
        let range = range_of(&seen)?;
        let (sort, mark) = (
            arena_sort(volume, arena_number(&seen)),
            Some((arena_mark as ReadMark, change_id)),
        );
        if silent.member == by.member {
            return Err(limited("a member does not break itself".into()));
        }
        let arena = match self.arena_for(volume, by, &seen).await? {
            Ok(arena) => arena,
            Err(obstacle) => return self.already(&sort, mark, obstacle).await,
        };
        let mut silent = silent;
        let any_version = firn_env::planted!("anchor.break_on_any_version");
        if any_version && let Some(item) = self.read(&member_sort(volume, silent.member)).await? {
            silent.seen = item.version;
        }
        let Some(holder) = self.member_at(volume, silent).await? else {
            return self.already(&sort, mark, Obstacle::Holder).await;
        };
        let tuple = match self.volume_at(volume, volume_seen).await? {
            Ok(tuple) => tuple,
            Err(obstacle) => return self.already(&sort, mark, obstacle).await,
        };
        let (changed, record) = arena
            .broken(range, by.member, (silent.member, &holder.record))
            .map_err(|why| limited(format!("the lease of inode {}: {why}", seen.inode)))?;
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
        self.steps(&sort, steps, mark).await
    }

    /// The arena that a present member changes.
    async fn arena_for(
        &self,
        volume: VolumeId,
        by: SeenMember,
        range: &SeenRange,
    ) -> Result<Ground<Arena>, TableError> {
        if let Err(obstacle) = self.present(volume, by).await? {
            return Ok(Err(obstacle));
        }
        let Some(seen) = range.seen else {
            return Ok(Ok(Arena::around(range.inode)));
        };
        let sort = arena_sort(volume, arena_number(range));
        match self.content_at(&sort, seen).await? {
            Some(content) => readable(&sort, Arena::of_number(arena_number(range), &content)).map(Ok),
            None => Ok(Err(Obstacle::Tuple)),
        }
    }

    fn arena_put(&self, volume: VolumeId, arena: &Arena, range: &SeenRange, change_id: [u8; 16]) -> Step {
        let content = Bytes::from(arena.to_bytes(&change_id));
        let put = self.put(&arena_sort(volume, arena.number()), content, range.seen);
        (put, Obstacle::Tuple)
    }
}

fn range_of(seen: &SeenRange) -> Result<LeaseRange, TableError> {
    let range = seen.range();
    range.ok_or_else(|| limited(format!("leases have no level {}", seen.level)))
}

fn arena_number(seen: &SeenRange) -> u64 {
    Arena::around(seen.inode).number()
}

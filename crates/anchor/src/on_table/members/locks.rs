//! Changes of what members have of locks, on a table: the handover record is written together with a check of the member's own record.

use crate::{
    ARENA_BITS, AnchorAnswer, Arena, HandoverRecord, LOCK_LEASE, LeaseRange, MemberLocksChange, Obstacle,
    SeenMember, TupleVersion,
    handover::handover_sort,
    mark::{ReadMark, handover_mark},
    membership::arena_sort,
    on_table::{TableBackend, limited, readable},
};
use firn_format::VolumeId;
use firn_table::TableError;

impl TableBackend {
    pub(super) async fn change_locks(
        &self,
        volume: VolumeId,
        by: SeenMember,
        seen: Option<TupleVersion>,
        (change, change_id): (MemberLocksChange, [u8; 16]),
    ) -> Result<AnchorAnswer, TableError> {
        let sort = handover_sort(volume);
        let mark = Some((handover_mark as ReadMark, change_id));
        let me = match self.present(volume, by).await? {
            Ok(me) => me,
            Err(obstacle) => return self.already(&sort, mark, obstacle).await,
        };
        // Read after the member's own record, which a break or a departure since then would have changed.
        if change.decides() && !self.decides_locks(volume, by).await? {
            return Err(limited(format!(
                "{} of volume {volume} does not hold the lease of locks",
                by.member
            )));
        }
        let record = match seen {
            None => HandoverRecord::default(),
            Some(seen) => match self.content_at(&sort, seen).await? {
                Some(content) => readable(&sort, HandoverRecord::from_bytes(&content))?,
                None => return self.already(&sort, mark, Obstacle::Tuple).await,
            },
        };
        let changed = change
            .apply(&record, &me, change_id)
            .map_err(|why| limited(format!("the locks of volume {volume}: {why}")))?;
        let mut steps = vec![(self.put(&sort, changed.to_bytes(), seen), Obstacle::Tuple)];
        if !firn_env::planted!("anchor.locks_without_own_record") {
            steps.push((self.unchanged(volume, by), Obstacle::Member));
        }
        self.steps(&sort, steps, mark).await
    }

    async fn decides_locks(&self, volume: VolumeId, by: SeenMember) -> Result<bool, TableError> {
        if firn_env::planted!("anchor.anybody_records_locks") {
            return Ok(true);
        }
        let number = LOCK_LEASE >> ARENA_BITS;
        let sort = arena_sort(volume, number);
        let Some(item) = self.read(&sort).await? else {
            return Ok(false);
        };
        let arena = readable(&sort, Arena::of_number(number, &item.value))?;
        let lease = LeaseRange::around(LOCK_LEASE, 0).expect("the lowest level");
        Ok(arena.holder(lease) == Ok(Some(by.member)))
    }
}

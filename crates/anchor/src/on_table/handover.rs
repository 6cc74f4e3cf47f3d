//! Changes of a volume's handover record on a table: checked against the volume's tuple, written on the version that was seen.

use super::{TableBackend, limited, readable};
use crate::{
    AnchorAnswer, HandoverChange, HandoverRecord, Obstacle, TupleVersion, VolumeTuple,
    anchor::volume_sort,
    handover::handover_sort,
    mark::{ReadMark, handover_mark},
};
use firn_format::VolumeId;
use firn_table::TableError;

impl TableBackend {
    pub(super) async fn change_handover(
        &self,
        volume: VolumeId,
        seen: Option<TupleVersion>,
        change: HandoverChange,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        let sort = handover_sort(volume);
        let mark = Some((handover_mark as ReadMark, change_id));
        let record = match seen {
            None => HandoverRecord::default(),
            Some(seen) => match self.content_at(&sort, seen).await? {
                Some(content) => readable(&sort, HandoverRecord::from_bytes(&content))?,
                None => return self.already(&sort, mark, Obstacle::Tuple).await,
            },
        };
        // Without a condition on the volume's tuple, which each commit changes: the beat of an owner that was fenced in this instant harms
        // nobody, since epochs never fall.
        let volume_name = volume_sort(volume);
        let Some(item) = self.read(&volume_name).await? else {
            return Err(limited(format!("there is no volume {volume}")));
        };
        let tuple = readable(&volume_name, VolumeTuple::from_bytes(&item.value))?;
        if tuple.by_inode && matches!(change, HandoverChange::KeepLocks { .. }) {
            return Err(limited(format!(
                "volume {volume} is shared by inode: its members say themselves what they have of locks"
            )));
        }
        if let Some(by) = change.by_owner() {
            let is_owner = tuple.owner.as_ref().is_some_and(|holder| holder.id == by.owner);
            let is_held = is_owner && tuple.epoch == by.epoch && tuple.grant == by.grant;
            let is_break = matches!(change, HandoverChange::BreakLocks { .. });
            let holds = is_held || (is_break && firn_env::planted!("anchor.break_by_anybody"));
            if !holds {
                return Err(limited(format!("volume {volume} is not owned under this grant")));
            }
        }
        let changed = change
            .apply(&record, change_id)
            .map_err(|why| limited(format!("the handover of volume {volume}: {why}")))?;
        let put = self.put(&sort, changed.to_bytes(), seen);
        self.change(&sort, vec![put], mark).await
    }
}

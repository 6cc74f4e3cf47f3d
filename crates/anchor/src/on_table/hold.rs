//! Changes of the hold on what is retired, as transactions of a table.

use super::{ReadMark, TableBackend, limited, readable, round_mark};
use crate::{
    AnchorAnswer, CleanerRound, Hold, HoldChange, MAX_RELEASED, Obstacle, SeenSegment, TupleVersion,
    cleaning::{self, DOOMED_PREFIX, ROUND, segment_sort},
    hold::HOLD,
    mark::hold_mark,
};
use firn_table::{Condition, TableError, Write};

impl TableBackend {
    pub(super) async fn change_hold(
        &self,
        (seen, round_seen): (Option<TupleVersion>, Option<TupleVersion>),
        change: HoldChange,
        changed_at_ms: i64,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        let is_end = change == HoldChange::End;
        let (sort, mark) = match is_end {
            true => (ROUND, Some((round_mark as ReadMark, change_id))),
            false => (HOLD, Some((hold_mark as ReadMark, change_id))),
        };
        let before = match seen {
            None => None,
            Some(seen) => match self.content_at(HOLD, seen).await? {
                Some(content) => Some((readable(HOLD, Hold::from_bytes(&content))?, seen)),
                None => return self.already(sort, mark, Obstacle::Tuple).await,
            },
        };
        let next = |before: &Hold, drops| Hold {
            pass: before.pass.saturating_add(1),
            drops,
            change_id,
            ..*before
        };
        let writes = match (change, before) {
            (HoldChange::Begin, None) => {
                let hold = Hold {
                    pass: 1,
                    drops: true,
                    since_ms: changed_at_ms,
                    change_id,
                };
                let Some(round) = self.round_held(round_seen, true, change_id).await? else {
                    return self.already(sort, mark, Obstacle::Tuple).await;
                };
                vec![self.put(HOLD, hold.to_bytes(), None), round]
            }
            (HoldChange::Drop | HoldChange::Restore, Some((before, seen))) => {
                let hold = next(&before, change == HoldChange::Drop);
                vec![self.put(HOLD, hold.to_bytes(), Some(seen))]
            }
            (HoldChange::End, Some((before, seen))) if !before.drops => {
                let Some(round) = self.round_held(round_seen, false, change_id).await? else {
                    return self.already(sort, mark, Obstacle::Tuple).await;
                };
                vec![round, self.delete(HOLD, seen)]
            }
            (HoldChange::End, Some(_)) => {
                return Err(limited(
                    "a hold ends once copies came back, not while they go".into(),
                ));
            }
            (HoldChange::Begin, Some(_)) => return Err(limited("a hold is in force".into())),
            (HoldChange::Drop | HoldChange::Restore | HoldChange::End, None) => {
                return Err(limited("there is no hold".into()));
            }
        };
        self.change(sort, writes, mark).await
    }

    /// The write of the round with its flag, or without; `None` if the one that was seen stands no more.
    async fn round_held(
        &self,
        seen: Option<TupleVersion>,
        is_held: bool,
        change_id: [u8; 16],
    ) -> Result<Option<Write>, TableError> {
        let before = match seen {
            None => CleanerRound::default(),
            Some(seen) => match self.content_at(ROUND, seen).await? {
                Some(content) => readable(ROUND, CleanerRound::from_bytes(&content))?,
                None => return Ok(None),
            },
        };
        let round = CleanerRound {
            round: before.round,
            change_id,
            is_held,
        };
        Ok(Some(self.put(ROUND, round.to_bytes(), seen)))
    }

    pub(super) async fn release_doomed(
        &self,
        hold: TupleVersion,
        segments: Vec<SeenSegment>,
        released_at_ms: i64,
    ) -> Result<AnchorAnswer, TableError> {
        if segments.is_empty() || segments.len() > MAX_RELEASED {
            return Err(limited(format!(
                "1 to {MAX_RELEASED} segments are released at once, not {}",
                segments.len()
            )));
        }
        let puts = segments.iter().map(|segment| {
            let sort = segment_sort(DOOMED_PREFIX, segment.segment);
            let doomed = cleaning::doomed_bytes(Some(released_at_ms));
            self.put(&sort, doomed, Some(segment.seen))
        });
        let check = Write::Check {
            key: self.key(HOLD),
            condition: Condition::Version(hold),
        };
        let writes = puts.chain([check]).collect();
        self.change("", writes, None).await
    }
}

//! Changes that cleaners make, as transactions of a table.

use super::{ReadMark, TableBackend, limited, readable, round_mark};
use crate::{
    AnchorAnswer, CleanerRound, Obstacle, RetireProposal, RetireSegment, RetiredSegment, RetirementRound,
    SeenSegment, TupleVersion,
    cleaning::{self, DOOMED_PREFIX, RETIRED_PREFIX, ROUND, retirement_segments, segment_sort},
    rounds::round_sort,
    writer::writer_sort,
};
use firn_format::WriterId;
use firn_table::{Condition, MAX_TRANSACTION_OPERATIONS, TableError, Write};

impl TableBackend {
    pub(super) async fn retire(
        &self,
        seen: Option<TupleVersion>,
        (mover, mover_seen): (WriterId, TupleVersion),
        segments: Vec<RetireSegment>,
        proposals: Vec<RetireProposal>,
        round: Option<RetirementRound>,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        // A cleaner that knows no rounds fills what a round would take.
        let operations = 2 + 2 * segments.len() + proposals.len() + usize::from(round.is_some());
        if operations > MAX_TRANSACTION_OPERATIONS {
            return Err(limited(format!(
                "a retirement with {} proposals has at most {} segments, not {}",
                proposals.len(),
                retirement_segments(proposals.len()),
                segments.len()
            )));
        }
        let retired = segments.iter().map(|segment| segment.segment);
        if let Some(round) = &round
            && !retired.eq(round.retired.iter().copied())
        {
            return Err(limited(
                "a round that tells of other segments than are retired".into(),
            ));
        }
        let mark = Some((round_mark as ReadMark, change_id));
        let before = match seen {
            None => CleanerRound::default(),
            Some(seen) => match self.content_at(ROUND, seen).await? {
                Some(content) => readable(ROUND, CleanerRound::from_bytes(&content))?,
                None => return self.already(ROUND, mark, Obstacle::Tuple).await,
            },
        };
        let next = CleanerRound {
            round: before.round.saturating_add(1),
            change_id,
            is_held: before.is_held,
        };
        let mut writes = vec![
            self.put(ROUND, next.to_bytes(), seen),
            Write::Check {
                key: self.key(&writer_sort(mover)),
                condition: Condition::Version(mover_seen),
            },
        ];
        if let Some(round) = round {
            writes.push(self.put(&round_sort(next.round), round.to_bytes(), None));
        }
        for RetireSegment { segment, retired } in &segments {
            writes.push(self.put(&segment_sort(RETIRED_PREFIX, *segment), retired.to_bytes(), None));
            let doomed = match next.is_held {
                true => cleaning::held_bytes(retired.retired_at_ms),
                false => cleaning::doomed_bytes(None),
            };
            writes.push(self.put(&segment_sort(DOOMED_PREFIX, *segment), doomed, None));
        }
        for RetireProposal {
            volume,
            seen,
            proposal,
        } in &proposals
        {
            match self.proposed(*volume, *seen, proposal).await? {
                Some(put) => writes.push(put),
                None => return self.already(ROUND, mark, Obstacle::Tuple).await,
            }
        }
        self.change(ROUND, writes, mark).await
    }

    pub(super) async fn see_doomed(
        &self,
        segments: Vec<SeenSegment>,
        seen_at_ms: i64,
    ) -> Result<AnchorAnswer, TableError> {
        if segments.is_empty() || segments.len() > MAX_TRANSACTION_OPERATIONS {
            return Err(limited(format!(
                "1 to {MAX_TRANSACTION_OPERATIONS} segments are seen at once, not {}",
                segments.len()
            )));
        }
        let writes = segments
            .iter()
            .map(|segment| {
                let sort = segment_sort(DOOMED_PREFIX, segment.segment);
                self.put(
                    &sort,
                    cleaning::doomed_bytes(Some(seen_at_ms)),
                    Some(segment.seen),
                )
            })
            .collect();
        self.change("", writes, None).await
    }

    pub(super) async fn change_retired(
        &self,
        segment: SeenSegment,
        retired: Option<RetiredSegment>,
    ) -> Result<AnchorAnswer, TableError> {
        let sort = segment_sort(RETIRED_PREFIX, segment.segment);
        let write = match retired {
            Some(retired) => self.put(&sort, retired.to_bytes(), Some(segment.seen)),
            None => self.delete(&sort, segment.seen),
        };
        self.change(&sort, vec![write], None).await
    }
}

//! The anchor's calls on a table: each becomes one read, or one conditional transaction.
//!
//! **What is checked** does not depend on who asks: a root's version rises and it is committed by the owner under its epoch and grant, an
//! epoch rises by one, a writer's number was never drawn, a round and a proposal count by one, lists are bounded. To check a change
//! the tuple that it was decided on has to be known; a version names one content for ever, so what was read or written once is
//! remembered by it ([`KnownTuples`]), and a commit costs no read. Whether it is still the current one the transaction's condition
//! says, nobody's memory.
//!
//! **Guards** are checks of other items that go into every transaction: what a service found true of the caller when it let it in is
//! still true in the instant of the write (decision 0080).

mod cleaning;
mod handover;
mod hold;
mod members;

use crate::{
    AnchorAnswer, AnchorBackend, AnchorCall, AnchorRole, CleaningAccount, CleaningNote, FamilyTuple,
    MAX_LISTED, Obstacle, OwnerId, PrincipalId, Proposal, Root, StoredTuple, TupleError, TupleVersion,
    VolumeChange, VolumeTuple, WriterTenure, WriterTuple,
    account::ACCOUNT,
    anchor::{FAMILY, NAME_PREFIX, VOLUME_PREFIX, volume_sort},
    cleaning::{DOOMED_PREFIX, RETIRED_PREFIX, ROUND, cursor_bytes, segment_sort},
    handover::handover_sort,
    hold::HOLD,
    known::KnownTuples,
    mark::{ReadMark, account_mark, family_mark, proposal_mark, round_mark, volume_mark},
    proposal::proposal_sort,
    rounds::{ROUND_PREFIX, round_sort},
    tuple::check_name,
    writer::writer_sort,
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_format::{OwnershipEpoch, VolumeId, WriterId};
use firn_table::{Condition, Item, ItemKey, Table, TableError, Write};
use std::sync::Arc;

/// One family's tuples in one partition of a table.
pub struct TableBackend {
    table: Arc<dyn Table>,
    partition: String,
    role: Option<AnchorRole>,
    principal: Option<PrincipalId>,
    guards: Vec<Write>,
    known: Arc<KnownTuples>,
}

impl TableBackend {
    /// Answers from this partition, whatever is asked. Makes no request.
    pub fn new(table: Arc<dyn Table>, partition: impl Into<String>) -> Self {
        Self {
            table,
            partition: partition.into(),
            role: None,
            principal: None,
            guards: Vec::new(),
            known: Arc::default(),
        }
    }

    /// Refuses what the role may not.
    #[must_use]
    pub fn for_role(self, role: AnchorRole) -> Self {
        let role = Some(role);
        Self { role, ..self }
    }

    /// Speaks for the members of this caller and of nobody else.
    #[must_use]
    pub fn for_principal(self, principal: PrincipalId) -> Self {
        let principal = Some(principal);
        Self { principal, ..self }
    }

    /// Changes nothing unless these hold as well: checks of items in other partitions.
    #[must_use]
    pub fn guarded(self, guards: Vec<Write>) -> Self {
        Self { guards, ..self }
    }

    /// Shares what is remembered of tuples with other backends over the same table.
    #[must_use]
    pub fn knowing(self, known: Arc<KnownTuples>) -> Self {
        Self { known, ..self }
    }

    fn key(&self, sort: &str) -> ItemKey {
        ItemKey::new(&*self.partition, sort)
    }

    async fn read(&self, sort: &str) -> Result<Option<Item>, TableError> {
        let item = self.table.get(&self.key(sort)).await?;
        if let Some(item) = &item {
            self.known.learn(&item.key, item.version, &item.value);
        }
        Ok(item)
    }

    async fn answer(&self, sort: &str) -> Result<AnchorAnswer, TableError> {
        let item = self.read(sort).await?;
        Ok(AnchorAnswer::Tuple {
            tuple: item.map(stored),
        })
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<String>,
        limit: u16,
    ) -> Result<AnchorAnswer, TableError> {
        if !(1..=MAX_LISTED).contains(&limit) {
            return Err(limited(format!(
                "lists have 1 to {MAX_LISTED} tuples, not {limit}"
            )));
        }
        let page = self
            .table
            .query(&self.partition, prefix, after.as_deref(), usize::from(limit))
            .await?;
        for item in &page.items {
            self.known.learn(&item.key, item.version, &item.value);
        }
        Ok(AnchorAnswer::Tuples {
            more: page.next.is_some() && !page.items.is_empty(),
            tuples: page.items.into_iter().map(stored).collect(),
        })
    }

    /// The content that a tuple had at a version; `None` if it has another one now.
    async fn content_at(&self, sort: &str, seen: TupleVersion) -> Result<Option<Bytes>, TableError> {
        let key = self.key(sort);
        if let Some(content) = self.known.content(&key, seen) {
            return Ok(Some(content));
        }
        let item = self.read(sort).await?;
        Ok(item.filter(|item| item.version == seen).map(|item| item.value))
    }

    /// Makes a change; after a conflict, one that carries a mark is looked for in the tuple `sort`.
    async fn change(
        &self,
        sort: &str,
        writes: Vec<Write>,
        mark: Option<(ReadMark, [u8; 16])>,
    ) -> Result<AnchorAnswer, TableError> {
        let obstacles: Vec<Obstacle> = (0..writes.len())
            .map(|index| {
                if index == 1 {
                    Obstacle::Name
                } else {
                    Obstacle::Tuple
                }
            })
            .collect();
        self.change_with(sort, writes, &obstacles, mark).await
    }

    /// The same of writes each of which says what stands in the way when it cannot be made.
    async fn change_with(
        &self,
        sort: &str,
        writes: Vec<Write>,
        obstacles: &[Obstacle],
        mark: Option<(ReadMark, [u8; 16])>,
    ) -> Result<AnchorAnswer, TableError> {
        let written: Vec<_> = writes
            .iter()
            .map(|write| match write {
                Write::Put { key, value, .. } => Some((key.clone(), value.clone())),
                Write::Delete { .. } | Write::Check { .. } => None,
            })
            .collect();
        let mut all = writes;
        all.extend(self.guards.iter().cloned());
        match self.table.transact(all).await {
            Ok(applied) => {
                for (write, version) in written.iter().zip(&applied) {
                    if let (Some((key, value)), Some(version)) = (write, version) {
                        self.known.learn(key, *version, value);
                    }
                }
                let version = applied.first().copied().flatten();
                Ok(AnchorAnswer::Changed { version })
            }
            Err(TableError::ConditionFailed { index }) if index < obstacles.len() => {
                self.already(sort, mark, obstacles[index]).await
            }
            Err(TableError::Unavailable(_)) if firn_env::planted!("anchor.doubt_is_done") => {
                Ok(AnchorAnswer::Changed {
                    version: Some(firn_table::ItemVersion(1)),
                })
            }
            Err(error) => Err(error),
        }
    }

    /// What is answered to a change whose ground is gone: it may be there already.
    async fn already(
        &self,
        sort: &str,
        mark: Option<(ReadMark, [u8; 16])>,
        with: Obstacle,
    ) -> Result<AnchorAnswer, TableError> {
        if let Some((mark_of, wanted)) = mark
            && let Some(item) = self.read(sort).await?
            && mark_of(&item.value)
                .is_ok_and(|found| found == wanted || firn_env::planted!("anchor.any_mark_is_ours"))
        {
            let version = Some(item.version);
            return Ok(AnchorAnswer::Changed { version });
        }
        Ok(AnchorAnswer::Conflict { with })
    }

    async fn create_volume(
        &self,
        volume: VolumeId,
        name: String,
        root: Option<Root>,
        grant: [u8; 16],
        created_at_ms: i64,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        check_name(&name).map_err(|error| limited(error.to_string()))?;
        let tuple = VolumeTuple {
            name,
            epoch: root.as_ref().map_or(OwnershipEpoch(0), |root| root.epoch),
            drained: root.is_some(),
            root,
            // Nobody's: a journal that is still somewhere belongs to a tenure the table has forgotten, and is salvaged.
            tenure: OwnershipEpoch(0),
            tenure_owner: OwnerId([0; 16]),
            grant,
            owner: None,
            taken_at_ms: created_at_ms,
            retained: Vec::new(),
            change_id,
            commits: 0,
            by_inode: false,
        };
        let sort = volume_sort(volume);
        let writes = vec![
            self.put(&sort, tuple.to_bytes(), None),
            self.put(
                &format!("{NAME_PREFIX}{}", tuple.name),
                Bytes::copy_from_slice(&volume.0),
                None,
            ),
        ];
        self.change(&sort, writes, Some((volume_mark, change_id))).await
    }

    async fn change_volume(
        &self,
        volume: VolumeId,
        seen: TupleVersion,
        change: VolumeChange,
    ) -> Result<AnchorAnswer, TableError> {
        let sort = volume_sort(volume);
        let mark = Some((volume_mark as ReadMark, change.change_id()));
        let mut seen = seen;
        if firn_env::planted!("anchor.change_on_any_version")
            && let Some(item) = self.read(&sort).await?
        {
            seen = item.version;
        }
        let Some(content) = self.content_at(&sort, seen).await? else {
            return self.already(&sort, mark, Obstacle::Tuple).await;
        };
        let tuple = readable(&sort, VolumeTuple::from_bytes(&content))?;
        let changed = change
            .apply(&tuple)
            .map_err(|why| limited(format!("this cannot be made of volume {volume}: {why}")))?;
        let put = self.put(&sort, changed.to_bytes(), Some(seen));
        self.change(&sort, vec![put], mark).await
    }

    async fn draw_writer(
        &self,
        seen: TupleVersion,
        writer: WriterId,
        tenure: WriterTenure,
        drawn_at_ms: i64,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        let mark = Some((family_mark as ReadMark, change_id));
        let Some(content) = self.content_at(FAMILY, seen).await? else {
            return self.already(FAMILY, mark, Obstacle::Tuple).await;
        };
        let family = readable(FAMILY, FamilyTuple::from_bytes(&content))?;
        let next = writer
            .0
            .checked_add(1)
            .ok_or_else(|| limited("a writer at the end of its numbers".into()))?;
        if writer < family.next_writer && !firn_env::planted!("anchor.writers_drawn_twice") {
            return Err(limited(format!("writer {writer} was drawn before")));
        }
        let changed = FamilyTuple {
            next_writer: WriterId(next),
            change_id,
            ..family
        };
        let registered = WriterTuple {
            tenure,
            ended: false,
            drawn_at_ms,
            change_id,
        };
        let writes = vec![
            self.put(FAMILY, changed.to_bytes(), Some(seen)),
            self.put(&writer_sort(writer), registered.to_bytes(), None),
        ];
        self.change(FAMILY, writes, mark).await
    }

    async fn end_writer(&self, writer: WriterId, seen: TupleVersion) -> Result<AnchorAnswer, TableError> {
        let sort = writer_sort(writer);
        let Some(content) = self.content_at(&sort, seen).await? else {
            return Ok(AnchorAnswer::Conflict {
                with: Obstacle::Tuple,
            });
        };
        let tuple = readable(&sort, WriterTuple::from_bytes(&content))?;
        let put = self.put(&sort, WriterTuple { ended: true, ..tuple }.to_bytes(), Some(seen));
        self.change(&sort, vec![put], None).await
    }

    /// The write of a proposal, if it comes next after the one that was seen; `None` if that one stands no more.
    async fn proposed(
        &self,
        volume: VolumeId,
        seen: Option<TupleVersion>,
        proposal: &Proposal,
    ) -> Result<Option<Write>, TableError> {
        let sort = proposal_sort(volume);
        let before = match seen {
            None => 0,
            Some(seen) => match self.content_at(&sort, seen).await? {
                Some(content) => readable(&sort, Proposal::from_bytes(&content))?.sequence,
                None => return Ok(None),
            },
        };
        if before.checked_add(1) != Some(proposal.sequence) {
            return Err(limited(format!(
                "proposal {} does not follow {before}",
                proposal.sequence
            )));
        }
        Ok(Some(self.put(&sort, proposal.to_bytes(), seen)))
    }

    async fn propose(
        &self,
        volume: VolumeId,
        seen: Option<TupleVersion>,
        proposal: Proposal,
    ) -> Result<AnchorAnswer, TableError> {
        let sort = proposal_sort(volume);
        let mark = Some((proposal_mark as ReadMark, proposal.change_id));
        match self.proposed(volume, seen, &proposal).await? {
            Some(put) => self.change(&sort, vec![put], mark).await,
            None => self.already(&sort, mark, Obstacle::Tuple).await,
        }
    }

    async fn note_cleaning(
        &self,
        seen: Option<TupleVersion>,
        note: &CleaningNote,
        change_id: [u8; 16],
    ) -> Result<AnchorAnswer, TableError> {
        let mark = Some((account_mark as ReadMark, change_id));
        let before = match seen {
            None => CleaningAccount::default(),
            Some(seen) => match self.content_at(ACCOUNT, seen).await? {
                Some(content) => readable(ACCOUNT, CleaningAccount::from_bytes(&content))?,
                None => return self.already(ACCOUNT, mark, Obstacle::Tuple).await,
            },
        };
        let changed = before
            .with(note, change_id)
            .map_err(|why| limited(format!("this cannot be noted: {why}")))?;
        let put = self.put(ACCOUNT, changed.to_bytes(), seen);
        self.change(ACCOUNT, vec![put], mark).await
    }

    fn put(&self, sort: &str, value: Bytes, seen: Option<TupleVersion>) -> Write {
        Write::Put {
            key: self.key(sort),
            value,
            condition: seen.map_or(Condition::Absent, Condition::Version),
        }
    }

    fn delete(&self, sort: &str, version: TupleVersion) -> Write {
        let key = self.key(sort);
        Write::Delete { key, version }
    }
}

#[async_trait]
impl AnchorBackend for TableBackend {
    async fn call(&self, call: AnchorCall) -> Result<AnchorAnswer, TableError> {
        if let Some(role) = self.role
            && !role.may(&call)
        {
            return Err(TableError::Refused(format!("{role:?} may not make this call")));
        }
        match call {
            AnchorCall::Family {} => self.answer(FAMILY).await,
            AnchorCall::Volume { volume } => self.answer(&volume_sort(volume)).await,
            AnchorCall::Volumes { after, limit } => {
                self.list(VOLUME_PREFIX, after.map(volume_sort), limit).await
            }
            AnchorCall::VolumeNamed { name } => {
                check_name(&name).map_err(|error| limited(error.to_string()))?;
                self.answer(&format!("{NAME_PREFIX}{name}")).await
            }
            AnchorCall::Writer { writer } => self.answer(&writer_sort(writer)).await,
            AnchorCall::Proposal { volume } => self.answer(&proposal_sort(volume)).await,
            AnchorCall::Handover { volume } => self.answer(&handover_sort(volume)).await,
            AnchorCall::CleanerRound {} => self.answer(ROUND).await,
            AnchorCall::Retired { segment } => self.answer(&segment_sort(RETIRED_PREFIX, segment)).await,
            AnchorCall::ListRetired { after, limit } => {
                let after = after.map(|segment| segment_sort(RETIRED_PREFIX, segment));
                self.list(RETIRED_PREFIX, after, limit).await
            }
            AnchorCall::ListDoomed { after, limit } => {
                let after = after.map(|segment| segment_sort(DOOMED_PREFIX, segment));
                self.list(DOOMED_PREFIX, after, limit).await
            }
            AnchorCall::Doomed { segment } => self.answer(&segment_sort(DOOMED_PREFIX, segment)).await,
            AnchorCall::ListRounds { after, limit } => {
                self.list(ROUND_PREFIX, Some(round_sort(after)), limit).await
            }
            AnchorCall::CleanerCursor { sweep } => self.answer(&sweep.sort()).await,
            AnchorCall::CleaningAccount {} => self.answer(ACCOUNT).await,
            AnchorCall::Hold {} => self.answer(HOLD).await,
            AnchorCall::CreateFamily {
                created_at_ms,
                change_id,
            } => {
                let tuple = FamilyTuple {
                    next_writer: WriterId(1),
                    created_at_ms,
                    change_id,
                };
                let put = self.put(FAMILY, tuple.to_bytes(), None);
                self.change(FAMILY, vec![put], Some((family_mark, change_id)))
                    .await
            }
            AnchorCall::CreateVolume {
                volume,
                name,
                root,
                grant,
                created_at_ms,
                change_id,
            } => {
                self.create_volume(volume, name, root, grant, created_at_ms, change_id)
                    .await
            }
            AnchorCall::ChangeVolume { volume, seen, change } => {
                self.change_volume(volume, seen, change).await
            }
            AnchorCall::ChangeHandover {
                volume,
                seen,
                change,
                change_id,
            } => self.change_handover(volume, seen, change, change_id).await,
            AnchorCall::DrawWriter {
                seen,
                writer,
                tenure,
                drawn_at_ms,
                change_id,
            } => {
                self.draw_writer(seen, writer, tenure, drawn_at_ms, change_id)
                    .await
            }
            AnchorCall::EndWriter { writer, seen } => self.end_writer(writer, seen).await,
            AnchorCall::Propose {
                volume,
                seen,
                proposal,
            } => self.propose(volume, seen, proposal).await,
            AnchorCall::Retire {
                seen,
                mover,
                mover_seen,
                segments,
                proposals,
                round,
                change_id,
            } => {
                let mover = (mover, mover_seen);
                self.retire(seen, mover, segments, proposals, round, change_id)
                    .await
            }
            AnchorCall::SeeDoomed { segments, seen_at_ms } => self.see_doomed(segments, seen_at_ms).await,
            AnchorCall::ForgetDoomed { segment } => {
                let sort = segment_sort(DOOMED_PREFIX, segment.segment);
                self.change(&sort, vec![self.delete(&sort, segment.seen)], None)
                    .await
            }
            AnchorCall::ChangeHold {
                seen,
                round,
                change,
                changed_at_ms,
                change_id,
            } => {
                self.change_hold((seen, round), change, changed_at_ms, change_id)
                    .await
            }
            AnchorCall::ReleaseDoomed {
                hold,
                segments,
                released_at_ms,
            } => self.release_doomed(hold, segments, released_at_ms).await,
            AnchorCall::ChangeRetired { segment, retired } => self.change_retired(segment, retired).await,
            AnchorCall::ForgetRound { round, seen } => {
                let sort = round_sort(round);
                self.change(&sort, vec![self.delete(&sort, seen)], None).await
            }
            AnchorCall::SetCleanerCursor { sweep, seen, after } => {
                let put = self.put(&sweep.sort(), cursor_bytes(after), seen);
                self.change(&sweep.sort(), vec![put], None).await
            }
            AnchorCall::NoteCleaning {
                seen,
                note,
                change_id,
            } => self.note_cleaning(seen, &note, change_id).await,
            AnchorCall::Members { volume, call } => self.members(volume, call).await,
        }
    }
}

fn stored(item: Item) -> StoredTuple {
    StoredTuple {
        name: item.key.sort,
        version: item.version,
        content: item.value,
    }
}

fn limited(why: String) -> TableError {
    TableError::Limit(why)
}

/// A change cannot be checked against a tuple that cannot be read; whoever reads it is told more.
fn readable<T>(sort: &str, read: Result<T, TupleError>) -> Result<T, TableError> {
    read.map_err(|why| limited(format!("the tuple {sort} cannot be read: {why}")))
}

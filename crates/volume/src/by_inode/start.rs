//! The start of a member: present, *then* the arenas, *then* the root, and its journal onto that.
//!
//! Its journal has a directory of its own, named after the member's number, whatever incarnation wrote it: a member that comes back after a crash holds what
//! it held, so what its journal has still stands on the leaves that are in the root. One that was broken does not; its journal is judged
//! before anything of it is shown (`judging`).
//!
//! **Numbers.** What was made here and lost (the disk is another one) may be known to clients by its handle: a start without a journal leaves out as many
//! numbers as could have been unpublished.

use super::{
    AdoptedRoot, ByInode, Shared,
    adoption::orphan_pointers,
    judging::{Judged, Judging, Newest},
    locking, run,
};
use crate::{
    checkpoint::{self, MemberSection},
    checkpointer::{CheckpointTimes, Checkpointer},
    cloud_durability::CloudWaits,
    config::VolumeConfig,
    error::VolumeError,
    gathering::ManifestGathering,
    journal::{Journal, JournalConfig, Replay, Sequence},
    load::{LoadedCheckpoint, load_newest, load_root},
    local::LocalState,
    objects::Objects,
    parts::{Parts, file_system_id},
    paths::name_damages,
    read_ahead::ReadAhead,
    record::Operation,
    rekey::Rekey,
    replay::{RecoveryReport, Replaying, load_for_replay},
    salvage::{SalvageReport, has_journal},
    serving::Serving,
    snapshots::Snapshots,
    state::State,
    usage::{UsageChanges, UsageMap},
    volume::{Inner, Volume},
};
use firn_anchor::{MemberNumber, RememberedRoot, SHAPE_LEASE};
use firn_env::{Disk, DiskError};
use firn_format::WriterId;
use firn_leases::{Beginning, Content, Member, MemberError, Starting};
use firn_session::LockTable;
use firn_vfs::{FileHandle, Timestamp, Vfs};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

/// Left out by a start without a journal: twice as many inodes as may wait for a root, frozen and not (`Cadence::INODES_HARD`).
const NUMBERS_LEFT_OUT: u64 = 1 << 18;

/// Why a member does not start.
#[derive(Debug, thiserror::Error)]
pub enum MemberStartError {
    /// As any start.
    #[error("{0}")]
    Volume(#[from] VolumeError),
    /// The anchor, or the root.
    #[error("{0}")]
    Member(#[from] MemberError),
    /// The office was broken long ago, and the root by which its journal would be judged was given up.
    #[error(
        "this office was broken, and what the volume kept to judge its journal by was given up at {given_up_at_ms} ms since 1970, since it did not come back: what the \
         journal in {directory} has and the volume has not can be put on no root any more. Nothing was changed. Keep that directory elsewhere, and start again: \
         the office goes on without it"
    )]
    GivenUp {
        /// When, by the clock of who gave it up.
        given_up_at_ms: i64,
        /// Where the journal is, in the state directory.
        directory: String,
    },
    /// The volume says which segments must exist, or has another thing that only an owner looks after.
    #[error(
        "the volume has {what}, which a volume that is shared by inode cannot have yet; nothing was changed"
    )]
    Unsupported {
        /// What.
        what: &'static str,
    },
}

/// What a member's start did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStartReport {
    /// What of its journal goes on.
    pub recovery: RecoveryReport,
    /// Where the rest is, if others had broken this member and taken what the rest stands on. A start that is interrupted before the judgement has ended is made
    /// anew and reports the same; the paths only as long as nothing of it was published.
    pub salvage: Option<SalvageReport>,
}

/// The directory of a member's journal.
fn directory(number: MemberNumber) -> String {
    format!("journal/member-{:08x}", number.0)
}

impl Volume {
    /// Starts a member of a volume that is shared by inode. One that was broken judges its journal first: what stands on nothing that was lost is published before this
    /// returns, and all of it is in a salvage clone if something was (docs/leases.md).
    ///
    /// # Errors
    /// [`MemberStartError`]; start again after a transient one.
    pub async fn open_by_inode(
        parts: Parts,
        config: VolumeConfig,
        number: MemberNumber,
    ) -> Result<(Self, MemberStartReport), MemberStartError> {
        Self::open_member(parts, config, number, None).await
    }

    /// The same, with the table in which clients here lock files: what they hold excludes clients of all offices, and what other offices hold those here (decision 0234). The table may be
    /// that of an earlier opening in this process.
    ///
    /// # Errors
    /// As [`Self::open_by_inode`].
    pub async fn open_by_inode_with_locks(
        parts: Parts,
        config: VolumeConfig,
        number: MemberNumber,
        locks: &LockTable,
    ) -> Result<(Self, MemberStartReport), MemberStartError> {
        Self::open_member(parts, config, number, Some(locks)).await
    }

    async fn open_member(
        parts: Parts,
        config: VolumeConfig,
        number: MemberNumber,
        locks: Option<&LockTable>,
    ) -> Result<(Self, MemberStartReport), MemberStartError> {
        let mut local = LocalState::load(&parts.env).await?;
        if let Some(tenure) = local.tenure
            && has_journal(&parts, &config, tenure).await?
        {
            return Err(VolumeError::SalvageFirst { tenure }.into());
        }
        let beginning = begin(&parts, &mut local, number).await?;
        let mut opened = None;
        let mut refused = None;
        let (of, with) = (&parts, &config);
        let mut is_given_up = false;
        let (found, why, given_up) = (&mut opened, &mut refused, &mut is_given_up);
        let open = |starting: Starting| async move {
            *given_up = starting.given_up_at_ms.is_some();
            let opening = Opening {
                parts: of.clone(),
                config: with.clone(),
                number,
                writer: starting.incarnation,
            };
            // On the heap, as are the steps of it that are large: an unoptimised build has no stack for all of them in each other.
            match Box::pin(opening.run(local, &starting)).await {
                Ok((inner, report)) => {
                    let content: Arc<dyn Content> = Arc::new(Shared(Arc::downgrade(&inner)));
                    *found = Some((inner, report));
                    Ok(content)
                }
                Err(error) => {
                    let text = error.to_string();
                    *why = Some(error);
                    Err(MemberError::Content(text))
                }
            }
        };
        let (anchor, env) = (parts.anchor.clone(), parts.env.clone());
        let starting = Member::start_with(anchor, env, parts.volume, beginning, open);
        let started = Box::pin(starting).await;
        let (member, retained) = match started {
            Ok(started) => started,
            Err(error) => {
                if let Some((inner, _)) = opened {
                    inner.journal.close().await;
                }
                if matches!(refused, Some(MemberStartError::GivenUp { .. })) {
                    // It publishes nothing, so nobody has to wait until it can be broken.
                    leave(&parts, number).await;
                }
                return Err(refused.unwrap_or(error.into()));
            }
        };
        let (inner, mut report) = opened.expect("a member starts with its content");
        let member = Arc::new(member);
        if inner.by_inode().member.set(member.clone()).is_err() {
            unreachable!("it was just made");
        }
        // Before that root says so, the next start would not know that what this one journals is its own.
        if (retained.is_some() || is_given_up)
            && let Err(error) = Box::pin(end_judgement(&inner, &member)).await
        {
            inner.journal.close().await;
            return Err(error.into());
        }
        // Who unlinked an open file holds it still; the others' are theirs to free.
        let own = |number: u64| {
            let is_home = number >> 32 == u64::from(member.number().0);
            member.holds(number).unwrap_or(is_home)
        };
        inner.lock().forget_orphans(own);
        inner.by_inode().last_call.note(inner.env.now());
        if let Some(table) = locks {
            // Before anything is given.
            inner
                .begin_locking(table, retained.is_some() || is_given_up)
                .await;
            inner.env.spawn("locks", locking::run(inner.clone()));
        }
        inner.env.spawn("member", run::run(inner.clone()));
        inner
            .env
            .spawn("read-back", checkpoint::read_back::run(inner.clone()));
        inner.env.spawn("damage namer", name_damages(inner.clone()));
        let volume = Self::new(inner);
        report.recovery.orphans_freed = volume.free_own_orphans().await;
        Ok((volume, report))
    }

    /// Frees what was unlinked and open here when the member stopped. What cannot be freed now is freed by the next start.
    async fn free_own_orphans(&self) -> u64 {
        let orphans = self.inner.lock().orphans();
        let mut freed = 0;
        for inode in orphans {
            let file = FileHandle {
                file_system: self.inner.file_system,
                inode,
            };
            self.inner.lock().retain(inode);
            match self.release(file).await {
                Ok(()) => freed += 1,
                Err(error) => {
                    tracing::warn!(inode, %error, "a file that was removed while it was open is not freed yet")
                }
            }
        }
        freed
    }
}

/// Draws the incarnation of a start, and notes it: *then* the anchor may hear of it. A copy of this machine's state that was made before knows nothing of it, and does not start
/// behind it.
async fn begin(
    parts: &Parts,
    local: &mut LocalState,
    member: MemberNumber,
) -> Result<Beginning, MemberStartError> {
    let drawn = parts
        .anchor
        .draw_for_member(parts.volume, member, &local.begun)
        .await;
    let (named, incarnation) = drawn.map_err(MemberError::from)?;
    local.note_begun(named, incarnation);
    if !firn_env::planted!("volume.begins_without_a_note") {
        let saved = local.save(&**parts.env.disk()).await;
        saved.map_err(VolumeError::from)?;
    }
    Ok(Beginning {
        member,
        incarnation,
        begun: local.begun.clone(),
    })
}

/// Goes away at once; if that fails, others break it after a minute.
async fn leave(parts: &Parts, number: MemberNumber) {
    let left = async {
        let mut local = LocalState::load(&parts.env).await?;
        let Beginning {
            member,
            incarnation,
            begun,
        } = begin(parts, &mut local, number).await?;
        let anchor = &parts.anchor;
        let started = anchor.start_member_as(parts.volume, member, incarnation, begun);
        let mut membership = started.await.map_err(MemberError::from)?;
        anchor.leave(&mut membership).await.map_err(MemberError::from)?;
        Ok::<_, MemberStartError>(())
    };
    if let Err(error) = left.await {
        tracing::warn!(%error, "an office that does not start is waited for until it can be broken");
    }
}

/// Publishes what goes on of a journal that was judged, and that all of it is done with; *then* the root is forgotten that was retained for it.
async fn end_judgement(inner: &Inner, member: &Member) -> Result<(), MemberError> {
    if !firn_env::planted!("volume.judged_before_published") {
        member.publish().await?;
    }
    inner.env.fault_point("by_inode.before_judged").await;
    member.judged().await?;
    inner.env.fault_point("by_inode.after_judged").await;
    Ok(())
}

/// A member whose incarnation is known, and whose volume is about to be opened.
struct Opening {
    parts: Parts,
    config: VolumeConfig,
    number: MemberNumber,
    writer: WriterId,
}

impl Opening {
    async fn run(
        self,
        mut local: LocalState,
        starting: &Starting,
    ) -> Result<(Arc<Inner>, MemberStartReport), MemberStartError> {
        let env = self.parts.env.clone();
        let tuple = &*starting.volume;
        match &mut local.seen {
            Some(seen) => {
                seen.observe(tuple).map_err(VolumeError::from)?;
            }
            None => local.seen = Some(RememberedRoot::new(self.parts.volume, tuple)),
        }
        let root = tuple.root.as_ref().ok_or(VolumeError::NotFormatted)?;
        let of = (self.parts.family(), self.parts.volume);
        let objects = self.parts.objects(&self.config).await?;
        let newest = load_newest(&objects, of, root).await?;
        if newest.checkpoint.manifest.is_some() {
            let what = "a manifest of its segments";
            return Err(MemberStartError::Unsupported { what });
        }
        let mut loaded = load_root(&objects, of, root).await?;
        let section = MemberSection::of(&newest.payload.members, self.number).cloned();
        let section = section.unwrap_or_else(|| MemberSection::new(self.number));
        let directory = directory(self.number);
        let is_new = is_absent(&**env.disk(), &directory).await?;
        let left_out = if is_new { NUMBERS_LEFT_OUT } else { 0 };
        let home = u64::from(self.number.0) << 32;
        let state = &mut loaded.state;
        state.begin_behind(section.covered);
        state.restore_completed(section.completed.clone());
        state.write_beside_others(home..home + (1 << 32), section.next_inode + left_out);
        let retained = tuple.retained_for_member(self.number);
        let judged = match (starting.given_up_at_ms, retained) {
            // Also if another root was retained since: it is not the one that the journal stands on.
            (Some(given_up_at_ms), _) => {
                let of = (&*directory, section.covered);
                self.refuse_journal(of, given_up_at_ms).await?;
                Judged::nothing()
            }
            (None, None) => Judged::default(),
            (None, Some(retained)) => {
                let judging = Judging {
                    parts: &self.parts,
                    config: &self.config,
                    objects: &objects,
                    number: self.number,
                    name: &starting.name,
                    owner: local.owner,
                    directory: &directory,
                    covered: section.covered,
                    leases: &starting.leases,
                };
                let root = Newest {
                    inode_map: newest.checkpoint.inode_map,
                    orphan_pointers: &loaded.orphan_pointers,
                };
                Box::pin(judging.judge(&retained.root, root)).await?
            }
        };
        let journal_config = JournalConfig {
            file_bytes: self.config.journal_file_bytes,
            capacity_bytes: self.config.journal_bytes,
            reserve_bytes: (self.config.journal_file_bytes / 4).min(16 << 20),
            reclaimer: objects.reclaimer(),
        };
        let (journal, replay) = Journal::open(
            &env,
            &self.parts.keys,
            self.parts.volume,
            self.writer,
            &directory,
            section.covered,
            journal_config,
        )
        .await
        .map_err(VolumeError::from)?;
        let adopted = AdoptedRoot {
            version: root.version,
            uid: root.uid,
            orphan_pointers: orphan_pointers(&objects, newest.checkpoint.orphans).await?,
            checkpoint: newest.checkpoint.clone(),
            payload: newest.payload.clone(),
            history: newest.history.clone(),
        };
        let replaying = Found {
            journal: journal.clone(),
            replay,
            is_broken: retained.is_some() || starting.given_up_at_ms.is_some(),
            judged,
        };
        let opening = self.replay(local, (newest, loaded.state), objects, adopted, replaying);
        let opened = Box::pin(opening).await;
        if opened.is_err() {
            journal.close().await;
        }
        opened
    }

    /// What is in a journal that can be judged no more is put on no root.
    async fn refuse_journal(
        &self,
        (directory, covered): (&str, Sequence),
        given_up_at_ms: i64,
    ) -> Result<(), MemberStartError> {
        let (env, keys) = (&self.parts.env, &self.parts.keys);
        if is_absent(&**env.disk(), directory).await? {
            return Ok(());
        }
        let found = Journal::read_only(env, keys, self.parts.volume, directory, covered);
        let mut found = found.await.map_err(VolumeError::from)?;
        let record = found.next().await.map_err(VolumeError::from)?;
        match record.is_none() || firn_env::planted!("volume.given_up_goes_on") {
            true => Ok(()),
            false => Err(MemberStartError::GivenUp {
                given_up_at_ms,
                directory: directory.to_owned(),
            }),
        }
    }

    async fn replay(
        self,
        mut local: LocalState,
        (newest, mut state): (LoadedCheckpoint, State),
        objects: Objects,
        adopted: AdoptedRoot,
        found: Found,
    ) -> Result<(Arc<Inner>, MemberStartReport), MemberStartError> {
        let Found {
            journal,
            mut replay,
            is_broken,
            judged,
        } = found;
        let env = self.parts.env.clone();
        let block_bytes = newest.payload.block_bytes;
        let mut recovery = RecoveryReport {
            version: adopted.version.0,
            ..RecoveryReport::default()
        };
        let packer = self.parts.packer(&self.config, &objects, self.writer);
        let mut replaying = Replaying {
            state: &mut state,
            objects: &objects,
            orphan_pointers: &mut Default::default(),
            journal: &journal,
            packer: &packer,
            block_bytes,
            version: adopted.version,
            usage: UsageChanges::default(),
            packs: false,
        };
        let Judged {
            verdict,
            salvage,
            has_records,
        } = judged;
        let mut goes_on = verdict.records();
        let (mut salvaged, mut made) = (BTreeSet::new(), BTreeSet::new());
        let judged = |operation: &Operation| {
            let goes_on = goes_on(operation);
            if !goes_on {
                salvaged.extend(verdict.touched(operation));
                if let Operation::Create { inode, .. } = operation {
                    made.insert(inode.number);
                }
            }
            goes_on
        };
        replaying.run(&mut replay, &mut recovery, judged).await?;
        // Clients of this office have seen changes of these that are only in the clone. What is lost was, or will be, advanced by who took it.
        for inode in salvaged {
            if inode == SHAPE_LEASE || verdict.is_lost(inode) || made.contains(&inode) {
                continue;
            }
            advance(&mut state, &objects, inode).await?;
        }
        if state.is_dirty() {
            // Its journal may have such a move.
            state.moved_directory();
        }
        state.renew_completed(Timestamp::from_nanos(env.wall().0));
        let clean = local.clean_verifier.take();
        (local.writer, local.shares_taken) = (Some(self.writer), 0);
        // It has started: those that were drawn before it never will.
        local.begun = vec![self.writer];
        local.save(&**env.disk()).await.map_err(VolumeError::from)?;
        // Another one after a break: what was unstable then may be gone.
        let verifier = clean.filter(|_| !is_broken).unwrap_or_else(|| env.random_bytes());
        let committed_at_ms = adopted.checkpoint.committed_at_ms;
        let times = CheckpointTimes {
            dirty_since: state.is_dirty().then(|| env.now()),
            last_commit_ms: Some(committed_at_ms),
            committed_to: MemberSection::of(&newest.payload.members, self.number)
                .map_or(Sequence(0), |section| section.covered),
            ..CheckpointTimes::default()
        };
        let usage = UsageMap::found(newest.checkpoint.usage, UsageChanges::default());
        let read_ahead = ReadAhead::new(&env, u64::from(block_bytes), objects.memory_capacity_bytes());
        let inner = Arc::new(Inner {
            volume: self.parts.volume,
            file_system: file_system_id(self.parts.volume),
            block_bytes: u64::from(block_bytes),
            replayed: state.completed(),
            state: Mutex::new(state),
            journal,
            objects,
            read_ahead,
            anchor: self.parts.anchor,
            serving: Serving::new(),
            checkpointer: Checkpointer::new(None, packer, local, times).of_member(),
            snapshots: Snapshots::new(self.parts.volume),
            rekey: Rekey::new(newest.payload.rekey),
            gathering: ManifestGathering::default(),
            cloud_waits: CloudWaits::default(),
            verifier,
            started: env.now(),
            follower: None,
            by_inode: Some(ByInode::new(self.number, adopted, usage, has_records)),
            config: self.config,
            env,
        });
        Ok((inner, MemberStartReport { recovery, salvage }))
    }
}

/// Advances the change attribute of an inode, if that exists.
async fn advance(state: &mut State, objects: &Objects, inode: u64) -> Result<(), VolumeError> {
    loop {
        match state.inode(inode) {
            Ok(None) => return Ok(()),
            Ok(Some(_)) => {
                state.advance(inode);
                return Ok(());
            }
            Err(missing) => load_for_replay(state, objects, missing).await?,
        }
    }
}

/// The journal of a start, and what was judged of it.
struct Found {
    journal: Journal,
    replay: Replay,
    /// Whether a root is retained for it.
    is_broken: bool,
    judged: Judged,
}

/// Whether there is nothing in a directory.
async fn is_absent(disk: &dyn Disk, directory: &str) -> Result<bool, VolumeError> {
    match disk.list(directory).await {
        Ok(names) => Ok(names.is_empty()),
        Err(DiskError::NotFound { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

//! A member of a volume that is shared by inode: the lease table, the anchor and the file system brought together in the order that the protocol demands.
//!
//! | | |
//! |---|---|
//! | acquire | for each inode, ascending: look at the arena, take, wait, take from the absent or break the silent; *then* read the root, adopt it, pin |
//! | publish | read the root, adopt, build on it, leaf check, commit; moved: again; in doubt: beat, then look |
//! | tend | a sign of life each 10 s; mail: publish, then give what others wait for and nothing pins; what is published also beside an upload |
//! | leave, come back | away with everything published; present, then the arenas, then the root |
//!
//! **One change of the member is under way at a time** (the anchor's rule), which the lock of [`Own`] makes so; a root is read under it as well, so that none
//! is adopted whose read began before an own commit. What is built is uploaded beside it: reads of the root and leases wait for no upload. A newer root that they adopt
//! ends one that could not be committed any more ([`commit_lease`] sees to it that each is in the end). What is asked for each change and read, [`LeaseTable`] and [`Validity`], needs only a short lock.
//!
//! **What is in doubt is fenced before anything else** ([`settle`](Member::settle)): a commit, a gift or a departure whose answer did not come is noted before it
//! is sent, so that also who drops the call in between leaves the note.

mod changes;
mod commit_lease;
mod locks;
mod publishing;

pub use locks::LastingPin;

use crate::{Content, LeaseTable, MemberError, validity::Validity};
use changes::{Unsettled, Watched};
use commit_lease::Line;
use firn_anchor::{
    Anchor, AnchorError, LEVEL_MAX, LeaseRange, LeaseRefusal, MemberNumber, Membership, RetainedRoot,
    TupleVersion, VolumeTuple,
};
use firn_env::{Env, Monotonic, WallTime};
use firn_format::{VolumeId, WriterId};
use publishing::{Doubt, alive};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// Who waits breaks a holder whose record has stood still for so long: half as long again as leases are valid, since clocks differ.
pub const BREAK_AFTER: Duration = Duration::from_secs(60);
/// A root that was retained for a broken member stays for so long at least, so that an office which is closed for a month loses nothing; only then, and only if all
/// places are taken, it is given up for the next member that has to be broken.
pub const RETAINED_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// A quarter of [`VALID_FOR`](crate::VALID_FOR): three may be lost.
const BEAT_EVERY: Duration = Duration::from_secs(10);
/// Between two looks of who waits for a lease, at first and later.
const LOOK_SOON: Duration = Duration::from_millis(100);
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How long is first.
const SOON: Duration = Duration::from_secs(1);
/// Between two calls of [`Member::tend`]: most of the time, and for a while after somebody waited for a lease.
const TEND_EVERY: Duration = Duration::from_secs(1);
const TEND_SOON: Duration = Duration::from_millis(200);
const ASKED_LATELY: Duration = Duration::from_secs(10);

/// What one task at a time changes.
struct Own {
    membership: Membership,
    /// The tuple that was adopted last.
    adopted: (Arc<VolumeTuple>, TupleVersion),
    /// A commit of which nobody knows whether it happened.
    doubt: Option<Doubt>,
    /// Another change of that kind.
    unsettled: Option<Unsettled>,
    /// Holders that were waited for.
    watched: BTreeMap<MemberNumber, Watched>,
    /// The mail that was answered last.
    mail: u64,
    /// When holders were woken.
    bumped: BTreeMap<MemberNumber, Monotonic>,
}

impl Own {
    fn is_away(&self) -> bool {
        self.membership.tuple().record.is_away
    }
}

/// See the module.
pub struct Member {
    anchor: Anchor,
    env: Env,
    volume: VolumeId,
    number: MemberNumber,
    incarnation: WriterId,
    content: Arc<dyn Content>,
    own: tokio::sync::Mutex<Own>,
    /// Who has this publishes; taken before `own`, and kept while what is built is uploaded, which `own` is not.
    publisher: tokio::sync::Mutex<()>,
    /// A newer root is about to be adopted: what is being built on the one before is given up.
    moved: tokio::sync::Notify,
    table: Mutex<LeaseTable>,
    validity: Mutex<Validity>,
    /// When others were last seen to wait for something, and that they are.
    news: tokio::sync::Notify,
    asked_at: Mutex<Option<Monotonic>>,
    /// How it stands to the lease of commits.
    line: Mutex<Line>,
    /// Whether another was broken when this one started, and has not come back: what was taken from that one is not known.
    starts_beside_broken: bool,
}

/// Which incarnation is to start.
pub struct Beginning {
    /// Of which member.
    pub member: MemberNumber,
    /// What was [drawn](Anchor::draw_for_member) for it.
    pub incarnation: WriterId,
    /// What this machine noted that it began, this one among them.
    pub begun: Vec<WriterId>,
}

/// A member that is present and has asked the arenas, and what it starts from.
pub struct Starting {
    /// The writer of this incarnation.
    pub incarnation: WriterId,
    /// What people call the member.
    pub name: String,
    /// The volume, by a read that began after the arenas were asked.
    pub volume: Arc<VolumeTuple>,
    /// What the arenas said.
    pub leases: LeaseTable,
    /// When the root by which the journal of this member would be judged was given up, milliseconds since 1970: then what the journal has and the volume has not must not
    /// be put on any root.
    pub given_up_at_ms: Option<i64>,
}

/// Inodes that stay held and usable until this is dropped.
pub struct Pins<'a> {
    member: &'a Member,
    inodes: Vec<u64>,
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        let mut table = self.member.table();
        self.inodes.iter().for_each(|inode| table.unpin(*inode));
    }
}

/// Which of the pinned inodes were taken from a member that was broken, and not changed since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FromBroken {
    /// Known to be.
    pub inodes: Vec<u64>,
    /// Any may be, since this member started after another was broken.
    pub any_may_be: bool,
}

/// A call that waits for an inode.
struct Waiting<'a> {
    member: &'a Member,
    inode: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.member.table().waits_no_more(self.inode);
    }
}

impl Pins<'_> {
    /// Of which inodes a member that was broken may have counted changes that are in no root. The first change here has to be told from all of them.
    pub fn from_broken(&self) -> FromBroken {
        let table = self.member.table();
        let known = self
            .inodes
            .iter()
            .copied()
            .filter(|inode| table.is_from_broken(*inode));
        FromBroken {
            inodes: known.collect(),
            any_may_be: self.member.starts_beside_broken,
        }
    }

    /// These were changed.
    pub fn changed(&self, inodes: &[u64]) {
        let mut table = self.member.table();
        inodes.iter().for_each(|inode| table.changed(*inode));
    }

    /// Whether what is pinned may still be used: asked again for each change and each answer, since a lease lapses while a request is under way.
    pub fn are_valid(&self) -> bool {
        self.member.is_valid()
    }
}

impl Member {
    /// Starts a member: present, *then* the arenas, *then* the root, which `content` adopts. A root that was retained means that it was broken: the journal is
    /// judged ([`judge`](crate::judge)) before anything of it is put into `content`, the verdict is made durable, and then the root is
    /// [forgotten](Self::judged). [`Self::tend`] gives signs of life meanwhile.
    ///
    /// # Errors
    /// [`MemberError`]; call again.
    pub async fn start(
        anchor: Anchor,
        env: Env,
        volume: VolumeId,
        number: MemberNumber,
        content: Arc<dyn Content>,
    ) -> Result<(Self, Option<RetainedRoot>), MemberError> {
        let adopt = |starting: Starting| async move {
            content.adopt(&starting.volume).await?;
            Ok(content)
        };
        let called_at = env.wall();
        let membership = anchor.start_member(volume, number).await?;
        Self::present(anchor, env, (membership, called_at), adopt).await
    }

    /// The same of an incarnation that this machine has noted, so that a copy of its state does not start beside it, and for a content that is opened at the root that is
    /// read, by the writer of this incarnation: its segments and its journal files are that writer's.
    /// While it opens, which takes as long as its journal is, signs of life are given.
    ///
    /// # Errors
    /// As [`Self::start`], and what `open` says.
    pub async fn start_with<F: Future<Output = Result<Arc<dyn Content>, MemberError>>>(
        anchor: Anchor,
        env: Env,
        volume: VolumeId,
        beginning: Beginning,
        open: impl FnOnce(Starting) -> F,
    ) -> Result<(Self, Option<RetainedRoot>), MemberError> {
        let Beginning {
            member,
            incarnation,
            begun,
        } = beginning;
        let called_at = env.wall();
        let membership = anchor.start_member_as(volume, member, incarnation, begun).await?;
        Self::present(anchor, env, (membership, called_at), open).await
    }

    async fn present<F: Future<Output = Result<Arc<dyn Content>, MemberError>>>(
        anchor: Anchor,
        env: Env,
        (mut membership, called_at): (Membership, WallTime),
        open: impl FnOnce(Starting) -> F,
    ) -> Result<(Self, Option<RetainedRoot>), MemberError> {
        let (volume, number) = (membership.volume(), membership.member());
        let mut validity = Validity::new(membership.heard_at(), called_at);
        let mut table = LeaseTable::new(number);
        for seen in anchor.arenas(volume).await? {
            table.see(&seen.arena);
        }
        let read = table.begin_root_read();
        let (tuple, version) = anchor.load(volume).await?;
        let tuple = Arc::new(tuple);
        let incarnation = membership.incarnation();
        let opening = open(Starting {
            incarnation,
            name: membership.tuple().name.clone(),
            volume: tuple.clone(),
            leases: table.clone(),
            given_up_at_ms: membership.tuple().record.given_up_at_ms,
        });
        let content = alive((&anchor, &env), &mut membership, &mut validity, opening).await?;
        table.adopted(read);
        for inode in table.exceptions() {
            table.taken_from_broken(inode);
        }
        let mut retained_roots = tuple.retained.iter();
        let starts_beside_broken = retained_roots.any(|retained| retained.member != Some(number));
        let retained = tuple.retained_for_member(number).cloned();
        let mail = anchor.mail(volume, number).await?;
        let own = Own {
            membership,
            adopted: (tuple, version),
            doubt: None,
            unsettled: None,
            watched: BTreeMap::new(),
            // Whoever waits since before the start is answered by the first look.
            mail: mail.wrapping_sub(1),
            bumped: BTreeMap::new(),
        };
        let member = Self {
            anchor,
            env,
            volume,
            number,
            incarnation,
            content,
            own: tokio::sync::Mutex::new(own),
            publisher: tokio::sync::Mutex::default(),
            moved: tokio::sync::Notify::new(),
            table: Mutex::new(table),
            validity: Mutex::new(validity),
            news: tokio::sync::Notify::new(),
            asked_at: Mutex::new(None),
            line: Mutex::default(),
            starts_beside_broken,
        };
        Ok((member, retained))
    }

    /// The journal of a broken member was judged, the verdict is durable, and what was to be salvaged is.
    ///
    /// # Errors
    /// [`MemberError`]; call again.
    pub async fn judged(&self) -> Result<(), MemberError> {
        let mut own = self.own.lock().await;
        let called_at = self.env.wall();
        let forgotten = self.anchor.forget_retained_for(&mut own.membership).await;
        self.heard(&own, called_at);
        forgotten.map_err(|error| self.told(error))
    }

    /// Since when a root is retained for a member that was broken, milliseconds since 1970 by the clock of who broke it; `None`: nothing is.
    ///
    /// # Errors
    /// [`MemberError::Anchor`].
    pub async fn retained_since_ms(&self, member: MemberNumber) -> Result<Option<i64>, MemberError> {
        let (tuple, _) = self.anchor.load(self.volume).await?;
        let retained = tuple.retained_for_member(member);
        Ok(retained.map(|retained| retained.retained_at_ms))
    }

    /// Gives up, as an administrator wants it, what a member that was broken has not published: a place for a root is free, and the member starts only once its journal
    /// was put away. `false`: it has come back, or nothing is retained for it.
    ///
    /// # Errors
    /// [`MemberError`]; call again.
    pub async fn give_up(&self, member: MemberNumber) -> Result<bool, MemberError> {
        let mut own = self.own.lock().await;
        let own = &mut *own;
        self.settle(own).await?;
        self.give_up_retained(own, member).await
    }

    /// Which member.
    pub fn number(&self) -> MemberNumber {
        self.number
    }

    /// The writer under which it puts segments.
    pub fn incarnation(&self) -> WriterId {
        self.incarnation
    }

    /// Whether the member holds an inode, by what it saw last.
    pub fn holds(&self, inode: u64) -> Option<bool> {
        self.table().holds(inode)
    }

    /// How many leases it holds beside its home, and for how many of what it holds others wait, by what it saw last.
    pub fn lease_counts(&self) -> (usize, usize) {
        self.table().counts()
    }

    /// Whether others wait for something that it holds and has not given yet, by what it saw last.
    pub fn is_asked_for(&self) -> bool {
        self.table().has_closed()
    }

    /// Whether an inode may be used, by what was seen last: it is held, and a root was adopted whose read began since. Asked together with [`Self::is_valid`].
    pub fn is_usable(&self, inode: u64) -> bool {
        self.table().is_usable(inode)
    }

    /// Whether leases may be used now.
    pub fn is_valid(&self) -> bool {
        self.validity().holds(&self.env)
    }

    fn table(&self) -> MutexGuard<'_, LeaseTable> {
        self.table
            .lock()
            .expect("no panic under the lock of the lease table")
    }

    fn validity(&self) -> MutexGuard<'_, Validity> {
        self.validity.lock().expect("no panic under this lock")
    }

    /// Reads the root by a read that begins now, and adopts it: what is read after that sees all that was committed before. With leases that lapsed it
    /// would not: what is unpublished here covers what others may have committed since they broke this member.
    ///
    /// # Errors
    /// [`MemberError::Lapsed`], or as [`Self::publish`].
    pub async fn catch_up(&self) -> Result<(), MemberError> {
        let mut own = self.own.lock().await;
        let own = &mut *own;
        self.settle(own).await?;
        self.refresh(own).await?;
        match self.is_valid() || firn_env::planted!("leases.reads_by_lapsed_lease") {
            true => Ok(()),
            false => Err(MemberError::Lapsed),
        }
    }

    /// A call that began at `called_at` has an answer.
    fn heard(&self, own: &Own, called_at: WallTime) {
        self.validity().renew(own.membership.heard_at(), called_at);
    }

    /// What the anchor refused. A member that was broken holds nothing, and does nothing any more.
    fn told(&self, error: AnchorError) -> MemberError {
        if matches!(error, AnchorError::MemberBroken { .. }) {
            self.validity().end();
            self.table().forget();
        }
        error.into()
    }

    /// What another was faster with is looked at again.
    fn lost_race<T>(&self, result: Result<T, AnchorError>) -> Result<Option<T>, MemberError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(AnchorError::Lease {
                why:
                    LeaseRefusal::HeldByOther
                    | LeaseRefusal::IsHeld
                    | LeaseRefusal::IsNobodys
                    | LeaseRefusal::HolderPresent
                    | LeaseRefusal::HolderAbsent
                    | LeaseRefusal::NotHeld
                    | LeaseRefusal::NobodyWaits
                    | LeaseRefusal::PartsHeldByOthers
                    | LeaseRefusal::PartsWanted
                    | LeaseRefusal::QueueFull,
                ..
            }) => Ok(None),
            Err(error) => Err(self.told(error)),
        }
    }

    /// Has the inodes held, usable and pinned, in ascending order of their numbers; waits as long as that takes. What is dropped meanwhile pins nothing, and may
    /// have joined a queue: then the lease comes, and is given to the next who waits.
    ///
    /// # Errors
    /// [`MemberError::Lapsed`], or what the anchor says; nothing is pinned then.
    pub async fn acquire(&self, inodes: &[u64]) -> Result<Pins<'_>, MemberError> {
        let mut ascending = inodes.to_vec();
        ascending.sort_unstable();
        ascending.dedup();
        let mut pins = Pins {
            member: self,
            inodes: Vec::new(),
        };
        for inode in ascending {
            let asked = self.env.now();
            let mut waiting = None;
            loop {
                if !self.is_valid() {
                    return Err(MemberError::Lapsed);
                }
                if self.table().pin(inode) || self.obtain(inode).await? {
                    pins.inodes.push(inode);
                    break;
                }
                waiting.get_or_insert_with(|| {
                    self.table().waits(inode);
                    Waiting { member: self, inode }
                });
                let is_first = self.env.now().since(asked) < SOON;
                self.env
                    .sleep(if is_first { LOOK_SOON } else { LOOK_AGAIN })
                    .await;
            }
        }
        match self.is_valid() {
            true => Ok(pins),
            false => Err(MemberError::Lapsed),
        }
    }

    /// Commits what is unpublished, on whatever others committed meanwhile.
    ///
    /// # Errors
    /// [`MemberError::LeafChanged`], or what the anchor says: a [broken](AnchorError::MemberBroken) member starts anew. After a transient error
    /// it may be committed: call again.
    pub async fn publish(&self) -> Result<(), MemberError> {
        let _publisher = self.publisher.lock().await;
        self.publish_and_give().await
    }

    /// When [`Self::tend`] is due again: who was asked for something lately will be so again.
    pub fn tend_after(&self) -> Duration {
        match self.is_asked_lately() {
            true => TEND_SOON,
            false => TEND_EVERY,
        }
    }

    /// What has to be done now and then, after [`Self::tend_after`] again: a sign of life, and what others wait for is given.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub async fn tend(&self) -> Result<(), MemberError> {
        {
            let mut own = self.own.lock().await;
            let own = &mut *own;
            if own.is_away() {
                return Ok(());
            }
            if self.env.now().since(own.membership.heard_at()) >= BEAT_EVERY {
                self.beat(own).await?;
            }
            self.settle(own).await?;
        }
        // Also of a publication that was dropped.
        self.leave_line_if_done().await?;
        self.answer_mail(true).await
    }

    /// Gives what others wait for and is published; beside an upload that is under way, which [`Self::tend`] would wait for.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub async fn give_published(&self) -> Result<(), MemberError> {
        match self.own.lock().await.is_away() || firn_env::planted!("leases.gives_behind_all") {
            true => Ok(()),
            false => self.answer_mail(false).await,
        }
    }

    /// Gives an inode of another's home back, which nobody waits for and which is not needed: an arena then has an exception less. `false`: it is pinned, or
    /// there is nothing to give.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub async fn give_home(&self, inode: u64) -> Result<bool, MemberError> {
        if self.is_away().await || self.holds(inode) != Some(true) {
            return Ok(false);
        }
        self.give(inode >> firn_anchor::ARENA_BITS, single(inode), true)
            .await
    }

    /// Goes away, with everything published: others take what they want. `false`: changes are under way.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub async fn leave(&self) -> Result<bool, MemberError> {
        let _publisher = self.publisher.lock().await;
        self.publish_and_give().await?;
        let mut own = self.own.lock().await;
        let own = &mut *own;
        self.settle(own).await?;
        {
            let mut table = self.table();
            let everything = LeaseRange::around(0, LEVEL_MAX).expect("the highest level");
            let arenas = table.arenas();
            let is_published = arenas
                .iter()
                .all(|arena| self.content.is_published(*arena, everything));
            if table.has_pins() || !is_published {
                return Ok(false);
            }
            table.forget();
        }
        own.unsettled = Some(Unsettled::Departure);
        self.anchor
            .leave(&mut own.membership)
            .await
            .map_err(|error| self.told(error))?;
        own.unsettled = None;
        Ok(true)
    }

    /// Whether it is away. Waits for a change of the member that is under way.
    pub async fn is_away(&self) -> bool {
        self.own.lock().await.is_away()
    }

    /// Comes back: present, *then* the arenas, *then* the root.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub async fn come_back(&self) -> Result<(), MemberError> {
        let mut own = self.own.lock().await;
        let own = &mut *own;
        self.settle(own).await?;
        let called_at = self.env.wall();
        let back = self.anchor.come_back(&mut own.membership).await;
        self.heard(own, called_at);
        back.map_err(|error| self.told(error))?;
        for seen in self.anchor.arenas(self.volume).await? {
            self.table().see(&seen.arena);
        }
        self.refresh(own).await
    }
}

/// The lease of one inode.
fn single(inode: u64) -> LeaseRange {
    LeaseRange::around(inode, 0).expect("the lowest level")
}

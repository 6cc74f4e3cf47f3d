//! An office of a history: one member over all its lives, its clients, and what befalls it.

use crate::{
    VOLUME,
    files::Files,
    world::{Leaves, Operation, Shared, lock},
};
use firn_anchor::{Anchor, AnchorError, MemberNumber};
use firn_env::Env;
use firn_leases::{Content, Member, MemberError, judge};
use firn_table::{FaultRates, MemoryTableClient};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};

const ACTIONS: u64 = 14;

/// Why a life of a member's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    NotStarted,
    Crashed,
    Broken,
    Done,
}

pub(crate) struct Office {
    pub(crate) env: Env,
    pub(crate) anchor: Anchor,
    pub(crate) client: Arc<MemoryTableClient>,
    pub(crate) number: MemberNumber,
    pub(crate) world: Shared,
    pub(crate) inodes: Vec<u64>,
    pub(crate) upload_ms: u64,
    /// The inodes of one member over which all fight; empty: it is not such a history.
    pub(crate) duel: Vec<u64>,
}

pub(crate) fn is_broken(error: &MemberError) -> bool {
    matches!(error, MemberError::Anchor(AnchorError::MemberBroken { .. }))
}

impl Office {
    pub(crate) async fn live(self) {
        let mut journal = Vec::new();
        let mut left = ACTIONS;
        loop {
            let files = Arc::new(Files {
                env: self.env.clone(),
                world: self.world.clone(),
                memory: Mutex::default(),
                upload_ms: self.upload_ms,
                uploads: AtomicU64::new(0),
            });
            let end = match self.start(&files, &journal).await {
                Some(member) => self.serve(&member, &files, &mut left).await,
                None => End::NotStarted,
            };
            // Who hears that it was broken in the moment in which it is cut off did not wait for the end of that.
            self.client.set_outage(false);
            if lock(&self.world).violation.is_some() {
                return;
            }
            journal = files.memory().journal.clone();
            match end {
                End::Done => return,
                End::NotStarted => lock(&self.world).count("starts that failed"),
                End::Crashed => lock(&self.world).count("crashes"),
                End::Broken => lock(&self.world).count("breaks"),
            }
        }
    }

    /// Starts, judges the journal and replays what goes on. `None`: begin again.
    pub(crate) async fn start(&self, files: &Arc<Files>, journal: &[u64]) -> Option<Member> {
        files.memory().journal = journal.to_vec();
        let content: Arc<dyn Content> = files.clone();
        let started = Member::start(
            self.anchor.clone(),
            self.env.clone(),
            VOLUME,
            self.number,
            content,
        )
        .await;
        let (member, retained) = match started {
            Ok(started) => started,
            Err(error) => {
                self.judge_error(&error);
                self.env.sleep(Duration::from_secs(1)).await;
                return None;
            }
        };
        let head = files.memory().base.clone();
        let ground = match &retained {
            Some(retained) => lock(&self.world).roots[&retained.root.uid].clone(),
            None => head.clone(),
        };
        let done: BTreeSet<u64> = ground.values().flatten().copied().collect();
        let unpublished: Vec<u64> = journal
            .iter()
            .copied()
            .filter(|number| !done.contains(number))
            .collect();
        let touched: Vec<Vec<u64>> = {
            let world = lock(&self.world);
            let of = |number: &u64| world.operations[number].touches.clone();
            unpublished.iter().map(of).collect()
        };
        let is_lost = |inode: u64| {
            let is_home = inode >> 32 == u64::from(self.number.0);
            let is_held = member.holds(inode).unwrap_or(is_home);
            let is_changed =
                head.get(&inode) != ground.get(&inode) && !firn_env::planted!("leases.lost_by_arenas_alone");
            retained.is_some() && (!is_held || is_changed)
        };
        let verdicts = judge(touched.iter().map(Vec::as_slice), is_lost);
        {
            let mut world = lock(&self.world);
            world
                .published
                .extend(journal.iter().filter(|number| done.contains(number)));
            let salvaged = unpublished
                .iter()
                .zip(&verdicts)
                .filter(|(_, goes_on)| !**goes_on);
            let salvaged: Vec<u64> = salvaged.map(|(number, _)| *number).collect();
            if retained.is_none() && !salvaged.is_empty() {
                world.violate("a member that was not broken salvages");
            }
            salvaged.iter().for_each(|_| world.count("salvaged"));
            world.salvaged.extend(salvaged);
        }
        self.is_clone_whole(&ground, &unpublished, &verdicts);
        files.memory().journal.clear();
        for (number, goes_on) in unpublished.iter().zip(verdicts) {
            if goes_on {
                files.put_in(*number);
            }
        }
        while retained.is_some() {
            match member.judged().await {
                Ok(()) => break,
                Err(error) if is_broken(&error) => return None,
                Err(error) => self.judge_error(&error),
            }
            self.env.sleep(Duration::from_secs(1)).await;
        }
        Some(member)
    }

    /// The clone has all of the journal: each operation that is only there stands in it on what it was done on.
    fn is_clone_whole(&self, ground: &Leaves, journal: &[u64], verdicts: &[bool]) {
        let mut clone = ground.clone();
        let mut world = lock(&self.world);
        for (number, goes_on) in journal.iter().zip(verdicts) {
            let operation = world.operations[number].clone();
            if *goes_on && firn_env::planted!("leases.tainted_alone_in_the_clone") {
                continue;
            }
            for inode in operation.touches {
                let leaf = clone.entry(inode).or_default();
                if !goes_on && *leaf != operation.on[&inode] {
                    let (is, was) = (leaf.clone(), &operation.on[&inode]);
                    let what = format!(
                        "S2: operation {number} was done on {was:?} of {inode}, and is salvaged on {is:?}"
                    );
                    world.violate(what);
                }
                leaf.push(*number);
            }
        }
    }

    pub(crate) fn judge_error(&self, error: &MemberError) {
        match error {
            MemberError::LeafChanged { inode } => {
                lock(&self.world).violate(format!("{} finds inode {inode} changed by another", self.number));
            }
            MemberError::Anchor(error)
                if !error.is_transient() && !is_broken(&MemberError::Anchor(error.clone())) =>
            {
                lock(&self.world).violate(format!("{} was told: {error}", self.number));
            }
            MemberError::Anchor(_) | MemberError::Content(_) | MemberError::Lapsed | MemberError::Away => {}
        }
    }

    pub(crate) async fn serve(&self, member: &Member, files: &Arc<Files>, left: &mut u64) -> End {
        let acting = Box::pin(async {
            while *left > 0 && !lock(&self.world).is_violated() {
                *left -= 1;
                if let Some(end) = self.act(member, files).await {
                    return end;
                }
            }
            self.finish(member, files).await
        });
        let tending = Box::pin(async {
            loop {
                self.env.sleep(Duration::from_secs(1)).await;
                match member.tend().await {
                    Ok(()) => {}
                    Err(error) if is_broken(&error) => return End::Broken,
                    Err(error) => self.judge_error(&error),
                }
            }
        });
        match futures::future::select(acting, tending).await {
            futures::future::Either::Left((end, _)) | futures::future::Either::Right((end, _)) => end,
        }
    }

    pub(crate) fn some(&self, count: u64) -> Vec<u64> {
        let any = |_| self.inodes[self.env.random_below(self.inodes.len() as u64) as usize];
        (0..count).map(any).collect()
    }

    async fn be_cut_off(&self, seconds: u64) {
        self.client.set_outage(true);
        self.env.sleep(Duration::from_secs(seconds)).await;
        self.client.set_outage(false);
    }

    /// One member makes changes that stand on each other in its home, and is not heard for long; the others break it for one inode, change that, and often
    /// give it home before it is back.
    async fn duel(&self, member: &Member, files: &Arc<Files>) -> Result<(), MemberError> {
        let home = &self.duel;
        let one = || home[self.env.random_below(home.len() as u64) as usize];
        if home[0] >> 32 == u64::from(self.number.0) {
            for _ in 0..2 + self.env.random_below(3) {
                self.operate(member, files, &[one(), one()], Duration::from_secs(5))
                    .await?;
            }
            self.be_cut_off(70 + self.env.random_below(110)).await;
            return Ok(());
        }
        let inode = one();
        if self
            .operate(member, files, &[inode], Duration::from_secs(200))
            .await?
        {
            member.publish().await?;
            if self.env.random_below(2) == 0 && member.give_home(inode).await? {
                lock(&self.world).count("given home");
            }
        }
        let seconds = self.env.random_below(120);
        self.env.sleep(Duration::from_secs(seconds)).await;
        Ok(())
    }

    pub(crate) async fn act(&self, member: &Member, files: &Arc<Files>) -> Option<End> {
        let ended = match self.env.random_below(20) {
            5.. if !self.duel.is_empty() => self.duel(member, files).await,
            0 => return Some(End::Crashed),
            1 | 2 => {
                self.be_cut_off(5 + self.env.random_below(180)).await;
                Ok(())
            }
            3 => {
                let leaves = member.leave().await;
                if matches!(leaves, Ok(true)) {
                    lock(&self.world).count("departures");
                    self.env
                        .sleep(Duration::from_secs(self.env.random_below(30)))
                        .await;
                    loop {
                        match member.come_back().await {
                            Ok(()) => break Ok(()),
                            Err(error) if is_broken(&error) => break Err(error),
                            Err(error) => self.judge_error(&error),
                        }
                        self.env.sleep(Duration::from_secs(1)).await;
                    }
                } else {
                    leaves.map(drop)
                }
            }
            4..=7 => member.publish().await,
            8 => {
                let given = member.give_home(self.some(1)[0]).await;
                if matches!(given, Ok(true)) {
                    lock(&self.world).count("given home");
                }
                given.map(drop)
            }
            9 => {
                self.env
                    .sleep(Duration::from_secs(self.env.random_below(8)))
                    .await;
                Ok(())
            }
            _ => {
                let some = self.some(1 + self.env.random_below(2));
                let done = self.operate(member, files, &some, Duration::from_secs(200)).await;
                done.map(drop)
            }
        };
        match ended {
            Ok(()) => None,
            Err(error) if is_broken(&error) => Some(End::Broken),
            Err(error) => {
                self.judge_error(&error);
                self.env.sleep(Duration::from_secs(1)).await;
                None
            }
        }
    }

    /// A client's change of some inodes; `false`: it waited too long.
    pub(crate) async fn operate(
        &self,
        member: &Member,
        files: &Arc<Files>,
        inodes: &[u64],
        timeout: Duration,
    ) -> Result<bool, MemberError> {
        let Ok(pins) = self.env.timeout(timeout, member.acquire(inodes)).await else {
            lock(&self.world).count("given up");
            return Ok(false);
        };
        let pins = pins?;
        self.env
            .sleep(Duration::from_millis(self.env.random_below(500)))
            .await;
        if !pins.are_valid() {
            return Err(MemberError::Lapsed);
        }
        let touches: BTreeSet<u64> = inodes.iter().copied().collect();
        let number = {
            let mut world = lock(&self.world);
            let memory = files.memory();
            let on: BTreeMap<u64, Vec<u64>> = touches
                .iter()
                .map(|inode| (*inode, memory.shown.get(inode).cloned().unwrap_or_default()))
                .collect();
            let number = world.operations.len() as u64 + 1;
            for (inode, seen) in &on {
                let missed = world.published.iter().find(|published| {
                    world.operations[published].touches.contains(inode) && !seen.contains(published)
                });
                if let Some(missed) = missed {
                    let what = format!(
                        "S3: operation {number} of inode {inode} at {} does not see {missed}",
                        self.number
                    );
                    world.violate(what);
                }
            }
            let touches = touches.into_iter().collect();
            world.operations.insert(number, Operation { touches, on });
            world.acknowledged.insert(number);
            world.count("operations");
            number
        };
        files.put_in(number);
        drop(pins);
        Ok(true)
    }

    /// Once nothing fails any more: everything that was begun is published, and every member changes every inode.
    pub(crate) async fn finish(&self, member: &Member, files: &Arc<Files>) -> End {
        self.client.set_outage(false);
        self.client.set_rates(FaultRates::default());
        while !lock(&self.world).is_violated() {
            let done = match self
                .operate(member, files, &self.inodes, Duration::from_secs(1200))
                .await
            {
                Ok(true) => member.publish().await,
                Ok(false) => {
                    lock(&self.world).violate(format!("progress: {} waits for ever", self.number));
                    return End::Done;
                }
                Err(error) => Err(error),
            };
            match done {
                Ok(()) => break,
                Err(error) if is_broken(&error) => return End::Broken,
                Err(error) => self.judge_error(&error),
            }
            self.env.sleep(Duration::from_secs(1)).await;
        }
        while !lock(&self.world).is_violated() {
            match member.leave().await {
                Ok(true) => return End::Done,
                Ok(false) => {}
                Err(error) if is_broken(&error) => return End::Broken,
                Err(error) => self.judge_error(&error),
            }
            self.env.sleep(Duration::from_secs(1)).await;
        }
        End::Done
    }
}

//! Random histories of several edges that fight over one volume through a table that throttles, loses replies and lets
//! writes land late, against a model: on the table themselves, and through a service before it that loses, repeats, delays and
//! reorders calls and restarts ([`service`](super::service)).
//!
//! The table shows every state the volume's tuple ever had: that is the truth. Beside it stands what each edge was told.
//! A history is sound if
//!
//! - each step of the truth is one of: ownership given (epoch raised, root retained if it was taken from another), drained,
//!   or a root committed by the owner under its epoch with a greater version;
//! - what an edge was told it committed is in the truth at that moment, once; what it was told is fenced or refused never
//!   is, not even later;
//! - no two ownerships, and no two writers, were given the same number.
//!
//! Edges crash in the middle of calls (the future is dropped) and stall for long (the future is not polled). The same seed
//! gives the same history. Each planted bug must be found, or the test proves nothing.

use super::{
    mutants::{MUTANTS, SERVICE_MUTANTS},
    service::Service,
    support::{Dice, step, world},
};
use crate::{Anchor, AnchorError, OwnerId, Ownership, RetainedRoot, Root, VolumeTuple};
use firn_env::mutants::planting;
use firn_format::{FamilyId, Location, OwnershipEpoch, SegmentId, Uid, Version, VolumeId, WriterId};
use firn_table::{FaultRates, MemoryTable, MemoryTableClient};
use futures::future::BoxFuture;
use std::{
    collections::{BTreeMap, BTreeSet},
    future::{Future, poll_fn},
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

const VOLUME: VolumeId = VolumeId([7; 16]);
const FAMILY: FamilyId = FamilyId([1; 16]);
const EDGES: u64 = 3;
const ACTIONS: u64 = 14;
const MAX_STEPS: usize = 200_000;

/// What an edge was told about a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reported {
    Committed,
    Never,
    Nothing,
}

#[derive(Default)]
struct Log {
    /// The states of the tuple, in order.
    truth: Vec<VolumeTuple>,
    told: BTreeMap<[u8; 16], Reported>,
    /// Epochs of the ownerships that were handed out.
    epochs: BTreeSet<OwnershipEpoch>,
    /// Grants that `acquire` (not `takeover`) handed out.
    acquired: BTreeSet<[u8; 16]>,
    writers: BTreeSet<WriterId>,
    violation: Option<String>,
    counts: Counts,
}

/// What the histories went through: shows that they are no idle ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    commits: u64,
    fenced: u64,
    in_doubt: u64,
    resolved: u64,
    takeovers: u64,
    refused: u64,
    drains: u64,
    crashes: u64,
}

impl Log {
    fn violate(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    fn is_committed(&self, commit_id: &[u8; 16]) -> bool {
        self.truth.iter().any(|tuple| {
            tuple
                .root
                .as_ref()
                .is_some_and(|root| root.commit_id == *commit_id)
        })
    }

    fn hand_out(&mut self, ownership: &Ownership) {
        if !self.epochs.insert(ownership.epoch()) {
            self.violate(format!("epoch {} was handed out twice", ownership.epoch()));
        }
    }
}

struct Edge {
    id: OwnerId,
    name: String,
    anchor: Anchor,
    client: Arc<MemoryTableClient>,
    dice: Arc<Dice>,
    log: Arc<Mutex<Log>>,
}

/// Polls `future` at most `polls` times, then drops it: a crash in the middle.
async fn crash_after<T>(polls: Option<u64>, future: impl Future<Output = T> + Send) -> Option<T> {
    let Some(mut left) = polls else {
        return Some(future.await);
    };
    let mut future = Box::pin(future);
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

impl Edge {
    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap()
    }

    async fn live(self) {
        let mut ownership = None;
        for _ in 0..ACTIONS {
            self.client.set_outage(self.dice.roll(12) == 0);
            let crash = (self.dice.roll(10) == 0).then(|| self.dice.roll(12));
            let action = self.dice.roll(100);
            ownership = match ownership.take() {
                _ if action < 8 => {
                    self.take_writer(crash).await;
                    ownership
                }
                None => self.obtain(action, crash).await,
                Some(held) => self.use_ownership(held, action, crash).await,
            };
        }
        self.client.set_outage(false);
        // Whatever is in doubt at the end is settled, so that it counts.
        if let Some(mut held) = ownership
            && let Some(root) = held.unresolved().cloned()
        {
            for _ in 0..20 {
                let told = self.tell(&root, Some(self.anchor.commit(&mut held, root.clone()).await));
                if told != Reported::Nothing {
                    self.log().counts.resolved += 1;
                    break;
                }
            }
        }
    }

    async fn take_writer(&self, crash: Option<u64>) {
        if let Some(Ok(writer)) = crash_after(crash, self.anchor.next_writer()).await
            && !self.log().writers.insert(writer)
        {
            self.log().violate(format!("writer {writer} was given twice"));
        }
    }

    async fn obtain(&self, action: u64, crash: Option<u64>) -> Option<Ownership> {
        if action < 70 {
            match crash_after(crash, self.anchor.acquire(VOLUME, self.id, &self.name)).await {
                Some(Ok(ownership)) => {
                    let mut log = self.log();
                    log.acquired.insert(ownership.tuple().grant);
                    log.hand_out(&ownership);
                    Some(ownership)
                }
                Some(Err(AnchorError::OwnedByOther { .. })) => {
                    self.log().counts.refused += 1;
                    None
                }
                Some(Err(error)) => self.unexpected(error),
                None => None,
            }
        } else {
            match crash_after(crash, self.anchor.takeover(VOLUME, self.id, &self.name)).await {
                Some(Ok(takeover)) => {
                    let mut log = self.log();
                    log.counts.takeovers += 1;
                    log.hand_out(&takeover.ownership);
                    Some(takeover.ownership)
                }
                Some(Err(AnchorError::TooManyRetained { .. })) | None => None,
                Some(Err(error)) => self.unexpected(error),
            }
        }
    }

    fn unexpected<T>(&self, error: AnchorError) -> Option<T> {
        if !error.is_transient() {
            self.log().violate(format!("{} was told: {error}", self.name));
        }
        None
    }

    async fn use_ownership(&self, mut held: Ownership, action: u64, crash: Option<u64>) -> Option<Ownership> {
        if let Some(root) = held.unresolved().cloned() {
            let result = crash_after(crash, self.anchor.commit(&mut held, root.clone())).await;
            return match self.tell(&root, result) {
                Reported::Nothing if crash.is_none() => Some(held),
                Reported::Committed => {
                    self.log().counts.resolved += 1;
                    Some(held)
                }
                Reported::Nothing | Reported::Never => None,
            };
        }
        if action < 75 {
            let current = held.root().map_or(0, |root| root.version.0);
            // Now and then a root that does not come next.
            let version = match self.dice.roll(10) {
                0 => current.max(1),
                beyond => current + 1 + beyond / 6,
            };
            let root = self.draw_root(&held, version);
            let result = crash_after(crash, self.anchor.commit(&mut held, root.clone())).await;
            let unfit = matches!(result, Some(Err(AnchorError::UnfitRoot { .. })));
            return match self.tell(&root, result) {
                Reported::Never if !unfit => None,
                Reported::Nothing if crash.is_some() => None,
                Reported::Never | Reported::Nothing | Reported::Committed => Some(held),
            };
        }
        if action < 83 {
            return match self.anchor.check(&held).await {
                Ok(()) => Some(held),
                Err(AnchorError::Fenced(_)) => None,
                Err(error) => self.unexpected(error).or(Some(held)),
            };
        }
        if action < 91 {
            return match crash_after(crash, self.anchor.drain(&mut held)).await {
                Some(Ok(())) => {
                    self.log().counts.drains += 1;
                    None
                }
                Some(Err(AnchorError::Fenced(_))) | None => None,
                Some(Err(error)) => self.unexpected(error).or(Some(held)),
            };
        }
        // A restart: what was held is forgotten.
        self.log().counts.crashes += 1;
        None
    }

    fn draw_root(&self, held: &Ownership, version: u64) -> Root {
        let mut commit_id = [0; 16];
        firn_env::Random::fill(&*self.dice, &mut commit_id);
        let mut uid = [0; 32];
        uid[..16].copy_from_slice(&commit_id);
        let location = Location {
            segment: SegmentId {
                writer: WriterId(1),
                sequence: version,
            },
            offset: 0,
            length: 1,
        };
        held.next_root(Uid(uid), location, Version(version), commit_id, 0)
    }

    /// Writes down what the edge was told, and checks it against the truth of this moment.
    fn tell(&self, root: &Root, result: Option<Result<(), AnchorError>>) -> Reported {
        let mut log = self.log();
        let told = match &result {
            Some(Ok(())) => Reported::Committed,
            Some(Err(AnchorError::Fenced(_))) => {
                log.counts.fenced += 1;
                Reported::Never
            }
            Some(Err(AnchorError::UnfitRoot { .. })) => Reported::Never,
            Some(Err(error)) if error.is_transient() => {
                log.counts.in_doubt += 1;
                Reported::Nothing
            }
            None => {
                log.counts.crashes += 1;
                Reported::Nothing
            }
            Some(Err(error)) => {
                log.violate(format!("{} was told: {error}", self.name));
                Reported::Nothing
            }
        };
        if told == Reported::Committed {
            log.counts.commits += 1;
            if !log.is_committed(&root.commit_id) {
                log.violate(format!(
                    "version {} was reported committed and is not",
                    root.version
                ));
            }
        }
        log.told.insert(root.commit_id, told);
        told
    }
}

/// How the edges reach the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Direct,
    Service,
}

/// Runs one history and returns what it went through, or what is wrong with it.
fn history(seed: u64, way: Way) -> Result<Log, String> {
    let dice = Dice::new(seed);
    let env = world(dice.clone());
    let table = MemoryTable::new();
    let log = Arc::new(Mutex::new(Log::default()));
    let service = Arc::new(Service::new(dice.clone()));
    let make_anchor = |client: Arc<MemoryTableClient>| match way {
        Way::Direct => Anchor::new(client, env.clone(), FAMILY),
        Way::Service => Anchor::over(Arc::new(service.reached_by(client)), env.clone(), FAMILY),
    };

    let watched = log.clone();
    table.watch(move |key, value| {
        if key.sort.starts_with("volume/") {
            let value = value.expect("volumes are not deleted");
            let tuple = VolumeTuple::from_bytes(value).unwrap();
            watched.lock().unwrap().truth.push(tuple);
        }
    });
    let setup = make_anchor(table.connect(&env));
    super::support::run(setup.create_family()).unwrap();
    super::support::run(setup.create_volume(VOLUME, "contended")).unwrap();
    service.become_unreliable();

    let rates = FaultRates {
        throttle_per_mille: dice.roll(100) as u32,
        lose_reply_per_mille: dice.roll(250) as u32,
        late_per_mille: dice.roll(150) as u32,
        late_requests: 1 + dice.roll(40),
        delay: Duration::from_millis(1)..=Duration::from_millis(20),
    };
    let mut edges: Vec<(BoxFuture<'_, ()>, usize)> = (0..EDGES)
        .map(|number| {
            let client = table.connect(&env);
            client.set_rates(rates.clone());
            let edge = Edge {
                id: OwnerId([number as u8 + 1; 16]),
                name: format!("edge {number}"),
                anchor: make_anchor(client.clone()),
                client,
                dice: dice.clone(),
                log: log.clone(),
            };
            let life: BoxFuture<'_, ()> = Box::pin(edge.live());
            (life, 0)
        })
        .collect();

    for now in 0..MAX_STEPS {
        if edges.is_empty() || log.lock().unwrap().violation.is_some() {
            break;
        }
        let chosen = dice.roll(edges.len() as u64) as usize;
        let (life, stalled_until) = &mut edges[chosen];
        if *stalled_until > now {
            continue;
        }
        if dice.roll(100) == 0 {
            *stalled_until = now + dice.roll(600) as usize;
        }
        if step(life).is_some() {
            drop(edges.swap_remove(chosen));
        }
    }
    let unfinished = edges.len();
    drop(edges);
    table.settle();
    drop(setup);

    let log = std::mem::take(&mut *log.lock().unwrap());
    if let Some(violation) = log.violation {
        return Err(violation);
    }
    if unfinished > 0 {
        return Err(format!("{unfinished} edges did not end within {MAX_STEPS} steps"));
    }
    for steps in log.truth.windows(2) {
        check_step(&steps[0], &steps[1], &log)?;
    }
    check_reported(&log)?;
    Ok(log)
}

fn check_step(before: &VolumeTuple, after: &VolumeTuple, log: &Log) -> Result<(), String> {
    let ensure = |holds: bool, what: &str| {
        if holds {
            Ok(())
        } else {
            Err(format!("{what}:\n  {before:?}\n  {after:?}"))
        }
    };
    if after.grant != before.grant {
        let new_owner = after.owner.as_ref().ok_or("ownership was given to nobody")?.id;
        ensure(
            after.epoch.0 == before.epoch.0 + 1,
            "ownership was given without raising the epoch by one",
        )?;
        ensure(
            after.root == before.root,
            "a giving of ownership changed the root",
        )?;
        let same_holder = before.tenure_owner == new_owner && before.tenure.0 > 0;
        let tenure = if same_holder { before.tenure } else { after.epoch };
        ensure(after.tenure == tenure, "the tenure is wrong")?;
        let from_other = before.owner.as_ref().filter(|owner| owner.id != new_owner);
        if from_other.is_some() {
            ensure(
                !log.acquired.contains(&after.grant),
                "a volume was acquired from its owner",
            )?;
        }
        let mut retained = before.retained.clone();
        if let (true, Some(root)) = (from_other.is_some(), &before.root) {
            retained.push(RetainedRoot {
                fenced_epoch: before.epoch,
                tenure: before.tenure,
                retained_at_ms: after.retained.last().map_or(0, |last| last.retained_at_ms),
                root: root.clone(),
                member: None,
            });
            ensure(after.retained == retained, "a takeover did not retain the root")?;
        }
        return ensure(
            after.retained.starts_with(&before.retained),
            "a retained root was lost",
        );
    }
    ensure(after.retained == before.retained, "retained roots changed")?;
    ensure(
        after.root != before.root || after.commits == before.commits,
        "a commit was counted that was none",
    )?;
    ensure(after.epoch == before.epoch, "the epoch changed under an owner")?;
    if after.root != before.root {
        let root = after.root.as_ref().ok_or("the root vanished")?;
        let owner = before
            .owner
            .as_ref()
            .ok_or("a root was committed to a volume without an owner")?;
        ensure(after.owner == before.owner, "a commit changed the owner")?;
        ensure(
            root.owner == owner.id && root.epoch == after.epoch,
            "a root was committed by another than the owner",
        )?;
        let grows = before.root.as_ref().is_none_or(|old| root.version > old.version);
        ensure(grows, "a version did not grow")?;
        return ensure(
            after.commits == before.commits + 1,
            "a commit was not counted once",
        );
    }
    ensure(
        after.owner == before.owner || (after.owner.is_none() && after.drained),
        "the owner changed",
    )
}

fn check_reported(log: &Log) -> Result<(), String> {
    let mut committed = BTreeMap::<[u8; 16], u64>::new();
    let mut previous = None;
    for root in log.truth.iter().map(|tuple| tuple.root.as_ref()) {
        let id = root.map(|root| root.commit_id);
        if id != previous
            && let Some(id) = id
        {
            *committed.entry(id).or_default() += 1;
        }
        previous = id;
    }
    for (id, told) in &log.told {
        let times = committed.get(id).copied().unwrap_or(0);
        match told {
            Reported::Committed if times != 1 => {
                return Err(format!("a reported commit happened {times} times"));
            }
            Reported::Never if times != 0 => {
                return Err("a commit that was reported fenced or refused happened".into());
            }
            Reported::Committed | Reported::Never | Reported::Nothing => {}
        }
    }
    Ok(())
}

fn first_failure(mutant: &str, way: Way, histories: u64) -> Option<(u64, String)> {
    let violated = |seed| history(seed, way).err().map(|violation| (seed, violation));
    planting(Some(mutant), || (0..histories).find_map(violated))
}

#[test]
fn histories_with_lost_and_late_replies_stalls_crashes_and_takeovers_are_sound() {
    are_sound(Way::Direct, 1500);
}

/// `FIRN_ANCHOR_HISTORIES` sets how many; `FIRN_SEED` runs one alone.
#[test]
fn histories_through_a_service_that_loses_repeats_delays_and_reorders_calls_and_restarts_are_sound() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("FIRN_SEED") {
        history(seed, Way::Service).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        return;
    }
    are_sound(Way::Service, number("FIRN_ANCHOR_HISTORIES").unwrap_or(2000));
}

fn are_sound(way: Way, histories: u64) {
    let mut total = Counts::default();
    for seed in 0..histories {
        let log = history(seed, way).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        let Counts {
            commits,
            fenced,
            in_doubt,
            resolved,
            takeovers,
            refused,
            drains,
            crashes,
        } = log.counts;
        total.commits += commits;
        total.fenced += fenced;
        total.in_doubt += in_doubt;
        total.resolved += resolved;
        total.takeovers += takeovers;
        total.refused += refused;
        total.drains += drains;
        total.crashes += crashes;
    }
    println!("{way:?}: {histories} histories: {total:?}");
    for (what, count) in [
        ("commits", total.commits),
        ("fenced commits", total.fenced),
        ("commits in doubt", total.in_doubt),
        ("resolved doubts", total.resolved),
        ("takeovers", total.takeovers),
        ("refused acquisitions", total.refused),
        ("drains", total.drains),
        ("crashes", total.crashes),
    ] {
        assert!(
            count >= histories / 10,
            "only {count} {what} in {histories} histories"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in [3, 77, 4096] {
        for way in [Way::Direct, Way::Service] {
            let (one, two) = (history(seed, way).unwrap(), history(seed, way).unwrap());
            assert_eq!(one.truth, two.truth);
            assert_eq!(one.told, two.told);
        }
    }
    let truth = |seed| history(seed, Way::Direct).unwrap().truth;
    assert_ne!(truth(1), truth(2));
}

#[test]
fn every_planted_bug_is_found() {
    for (way, mutants) in [
        (Way::Direct, &MUTANTS[..]),
        (Way::Service, &MUTANTS),
        (Way::Service, &SERVICE_MUTANTS),
    ] {
        for mutant in mutants {
            let (seed, violation) =
                first_failure(mutant, way, 500).unwrap_or_else(|| panic!("{mutant} was not found ({way:?})"));
            println!(
                "{mutant} ({way:?}): seed {seed}: {}",
                violation.lines().next().unwrap_or_default()
            );
        }
    }
}

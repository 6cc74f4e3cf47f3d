//! One history: edges, a cleaner, meters and instances that restart, all from one seed.

use crate::{
    model::{Counts, Model, Told},
    wire::{Caller, INSTANCES, Services},
};
use async_trait::async_trait;
use firn_anchor::{
    Anchor, AnchorError, AnchorRole, Beating, CleaningNote, HandoverRecord, Listing, OwnerId, Ownership,
    Root, VolumeTuple,
};
use firn_anchor_service::{CommitMeter, Ledger};
use firn_env::{Env, Task, sim::Simulation};
use firn_format::{FamilyId, Location, SegmentId, Uid, Version, VolumeId, WriterId};
use firn_identity::{TenantId, TenantVolume};
use firn_table::{FaultRates, ItemKey, MemoryTable};
use firn_usage::{Meter, UsageBatch};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

const FAMILY: FamilyId = FamilyId([5; 16]);
const VOLUMES: [VolumeId; 2] = [VolumeId([1; 16]), VolumeId([2; 16])];
const EDGES: u8 = 3;
const ACTIONS: usize = 12;
const NAMED: TenantVolume = TenantVolume {
    tenant: TenantId([1; 16]),
    volume: VOLUMES[0],
};

/// What sound histories went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    edges: Counts,
    restarts: u64,
    lost: u64,
    late: u64,
    doubled: u64,
    counted_commits: u64,
    cleaner_requests: u64,
}

impl Passed {
    pub fn each(&self) -> [(&'static str, u64); 15] {
        let edges = &self.edges;
        [
            ("commits", edges.commits),
            ("commits in doubt", edges.in_doubt),
            ("refused commits", edges.never),
            ("takeovers", edges.takeovers),
            ("refused acquisitions", edges.refused),
            ("drains", edges.drains),
            ("crashes", edges.crashes),
            ("wants", edges.wants),
            ("heartbeats", edges.beats),
            ("restarts", self.restarts),
            ("lost messages", self.lost),
            ("late calls", self.late),
            ("calls that came twice", self.doubled),
            ("commits on the bill", self.counted_commits),
            ("cleaner's requests on the bill", self.cleaner_requests),
        ]
    }

    pub fn add(&mut self, other: Self) {
        let edges = &mut self.edges;
        for (sum, more) in [
            (&mut edges.commits, other.edges.commits),
            (&mut edges.in_doubt, other.edges.in_doubt),
            (&mut edges.never, other.edges.never),
            (&mut edges.takeovers, other.edges.takeovers),
            (&mut edges.refused, other.edges.refused),
            (&mut edges.drains, other.edges.drains),
            (&mut edges.crashes, other.edges.crashes),
            (&mut edges.wants, other.edges.wants),
            (&mut edges.beats, other.edges.beats),
            (&mut self.restarts, other.restarts),
            (&mut self.lost, other.lost),
            (&mut self.late, other.late),
            (&mut self.doubled, other.doubled),
            (&mut self.counted_commits, other.counted_commits),
            (&mut self.cleaner_requests, other.cleaner_requests),
        ] {
            *sum += more;
        }
    }
}

struct Edge {
    env: Env,
    anchor: Anchor,
    id: OwnerId,
    name: String,
    model: Arc<Mutex<Model>>,
}

fn key_of(volume: VolumeId) -> ItemKey {
    ItemKey::new(NAMED.roots_partition(), format!("volume/{}", volume.hex()))
}

impl Edge {
    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap()
    }

    fn chance(&self, percent: u64) -> bool {
        self.env.random_below(100) < percent
    }

    /// `None`: the edge died meanwhile, and has forgotten all it held.
    async fn unless_it_dies<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        if !self.chance(8) {
            return Some(work.await);
        }
        let lives = Duration::from_millis(self.env.random_below(300));
        let done = self.env.timeout(lives, work).await.ok();
        if done.is_none() {
            self.model().counts.crashes += 1;
        }
        done
    }

    fn expect_transient(&self, error: &AnchorError) {
        if !error.is_transient() {
            self.model().violate(format!("{} was told: {error}", self.name));
        }
    }

    async fn live(self) {
        let mut held: Option<Ownership> = None;
        for _ in 0..ACTIONS {
            // Some stall for longer than anything is late.
            let most_ms = if self.chance(10) { 8000 } else { 200 };
            let waits = Duration::from_millis(self.env.random_below(most_ms));
            self.env.sleep(waits).await;
            held = match held.take() {
                None => self.obtain().await,
                Some(held) => self.use_it(held).await,
            };
        }
        // Whatever is in doubt at the end is settled, so that it is judged.
        if let Some(mut held) = held {
            for _ in 0..20 {
                let Some(root) = held.unresolved().cloned() else {
                    break;
                };
                let answer = self.anchor.commit(&mut held, root.clone()).await;
                self.tell(&root, &answer);
            }
        }
    }

    async fn obtain(&self) -> Option<Ownership> {
        let volume = VOLUMES[usize::from(self.chance(25))];
        if self.chance(50) {
            let waits = self.anchor.want(volume, self.id, &self.name);
            match self.unless_it_dies(waits).await? {
                Ok(_) => self.model().counts.wants += 1,
                Err(error) => self.expect_transient(&error),
            }
            if self.chance(20) {
                let leaves = self.anchor.withdraw_want(volume, self.id);
                if let Err(error) = self.unless_it_dies(leaves).await? {
                    self.expect_transient(&error);
                }
            }
        }
        if self.chance(65) {
            match self
                .unless_it_dies(self.anchor.acquire(volume, self.id, &self.name))
                .await?
            {
                Ok(held) => {
                    self.model().hand_out(key_of(volume), held.epoch());
                    return Some(held);
                }
                Err(AnchorError::OwnedByOther { .. }) => self.model().counts.refused += 1,
                Err(error) => self.expect_transient(&error),
            }
            return None;
        }
        match self
            .unless_it_dies(self.anchor.takeover(volume, self.id, &self.name))
            .await?
        {
            Ok(taken) => {
                let mut model = self.model();
                model.counts.takeovers += 1;
                model.hand_out(key_of(volume), taken.ownership.epoch());
                Some(taken.ownership)
            }
            Err(AnchorError::TooManyRetained { .. }) => None,
            Err(error) => {
                self.expect_transient(&error);
                None
            }
        }
    }

    async fn use_it(&self, mut held: Ownership) -> Option<Ownership> {
        if held.unresolved().is_none() && self.chance(10) {
            return match self.unless_it_dies(self.anchor.drain(&mut held)).await? {
                Ok(()) => {
                    self.model().counts.drains += 1;
                    None
                }
                Err(AnchorError::Fenced(_)) => None,
                Err(error) => {
                    self.expect_transient(&error);
                    Some(held)
                }
            };
        }
        if self.chance(30) {
            let beating = Beating::from(&held);
            match self
                .unless_it_dies(self.anchor.beat(held.volume(), &beating))
                .await?
            {
                Ok(_) => self.model().counts.beats += 1,
                Err(AnchorError::Fenced(_)) => {}
                Err(error) => self.expect_transient(&error),
            }
        }
        let root = match held.unresolved() {
            Some(root) => root.clone(),
            None => self.draw_root(&held),
        };
        let answer = self
            .unless_it_dies(self.anchor.commit(&mut held, root.clone()))
            .await?;
        self.tell(&root, &answer);
        match answer {
            Err(AnchorError::Fenced(_)) => None,
            // Now and then it restarts, and forgets what it held.
            Ok(()) | Err(_) => (!self.chance(8)).then_some(held),
        }
    }

    fn draw_root(&self, held: &Ownership) -> Root {
        let current = held.root().map_or(0, |root| root.version.0);
        // Now and then one that does not come next, and one that skips.
        let version = match self.env.random_below(10) {
            0 => current.max(1),
            1 => current + 3,
            _ => current + 1,
        };
        let place = Location {
            segment: SegmentId {
                writer: WriterId(1),
                sequence: version,
            },
            offset: 0,
            length: 100,
        };
        let (id, now_ms) = (self.env.random_bytes(), self.env.wall().as_millis());
        held.next_root(Uid([7; 32]), place, Version(version), id, now_ms)
    }

    fn tell(&self, root: &Root, answer: &Result<(), AnchorError>) {
        let told = match answer {
            Ok(()) => Some(Told::Committed),
            Err(AnchorError::Fenced(_) | AnchorError::UnfitRoot { .. }) => Some(Told::Never),
            Err(error) => {
                self.expect_transient(error);
                None
            }
        };
        self.model().tell(root, told);
    }
}

/// By source and number.
type Records = BTreeMap<(String, u64), (Meter, u64)>;

/// A ledger that takes each number once, may be away before or after that, and notices a number with two contents.
#[derive(Clone)]
struct Book {
    env: Env,
    records: Arc<Mutex<Records>>,
    model: Arc<Mutex<Model>>,
}

impl Book {
    fn sum(&self, wanted: Meter) -> u64 {
        let records = self.records.lock().unwrap();
        let counts = records.values().filter(|(meter, _)| *meter == wanted);
        counts.map(|(_, quantity)| quantity).sum()
    }
}

#[async_trait]
impl Ledger for Book {
    async fn accept(&self, batch: &UsageBatch) -> Result<(), String> {
        let travels = Duration::from_millis(self.env.random_below(20));
        self.env.sleep(travels).await;
        if self.env.random_below(4) == 0 {
            return Err("away".into());
        }
        for record in batch.records() {
            let key = (record.source.to_string(), record.sequence);
            let counted = (record.observation.meter, record.observation.quantity);
            let kept = *self.records.lock().unwrap().entry(key).or_insert(counted);
            if kept != counted {
                let what = "a usage record has two contents under one number";
                self.model.lock().unwrap().violate(what);
            }
        }
        if self.env.random_below(4) == 0 {
            return Err("the receipt was lost".into());
        }
        Ok(())
    }
}

/// Follows what one instance answered, as a host does, and looks at everything now and then.
async fn count(env: Env, services: Arc<Services>, number: usize, meter: CommitMeter, book: Book) {
    loop {
        env.sleep(Duration::from_millis(500)).await;
        let instance = services.instance(number);
        let mut due = instance.take_committed();
        if env.random_below(8) == 0 {
            due.insert(NAMED);
        }
        for volume in due {
            if meter.settle(volume, &book).await.is_err() {
                instance.put_back(volume);
            }
        }
    }
}

/// Takes the service away now and then, for longer than a call is tried.
async fn outages(env: Env, services: Arc<Services>) {
    loop {
        let fair = Duration::from_millis(env.random_below(20_000));
        env.sleep(fair).await;
        services.be_away(true);
        let away = Duration::from_millis(env.random_below(20_000));
        env.sleep(away).await;
        services.be_away(false);
    }
}

/// Notes what it sent; gives the sum of what was surely noted, and of what may have been.
async fn clean(env: Env, anchor: Anchor, sure: Arc<AtomicU64>, possible: Arc<AtomicU64>) {
    for _ in 0..6 {
        let note = CleaningNote {
            requests: 1 + env.random_below(30),
            listing: Some(Listing {
                after: None,
                until: None,
                bytes: 1_000_000_000 + env.random_below(1_000_000_000),
            }),
            noted_at_ms: env.wall().as_millis(),
        };
        let requests = note.requests;
        possible.fetch_add(requests, Ordering::SeqCst);
        if anchor.note_cleaning(note).await.is_ok() {
            sure.fetch_add(requests, Ordering::SeqCst);
        }
        let waits = Duration::from_millis(env.random_below(2000));
        env.sleep(waits).await;
    }
}

/// Runs one; gives what it went through.
///
/// # Errors
/// What was wrong.
pub fn history(seed: u64) -> Result<Passed, String> {
    let simulation = Simulation::new(seed);
    let env = simulation.machine("everybody").env();
    simulation
        .run(lives(env, seed))
        .unwrap_or_else(|error| Err(error.to_string()))
}

async fn lives(env: Env, seed: u64) -> Result<Passed, String> {
    let table = MemoryTable::new();
    let model = Arc::new(Mutex::new(Model::default()));
    let watched = model.clone();
    table.watch(move |key, value| {
        if key.sort.starts_with("volume/") {
            let tuple = VolumeTuple::from_bytes(value.expect("volumes are not deleted")).unwrap();
            watched.lock().unwrap().observe(key, tuple);
        } else if key.sort.starts_with("handover/") {
            let record = HandoverRecord::from_bytes(value.expect("records are not deleted")).unwrap();
            watched.lock().unwrap().observe_handover(key, record);
        }
    });
    let rates = FaultRates {
        throttle_per_mille: 30,
        lose_reply_per_mille: 60,
        late_per_mille: 30,
        late_requests: 1 + seed % 20,
        delay: Duration::from_millis(1)..=Duration::from_millis(10),
    };
    let setup_table = table.connect(&env);
    let partition = NAMED.roots_partition();
    let setup = Anchor::within(setup_table, env.clone(), FAMILY, partition, AnchorRole::Edge);
    setup.create_family().await.map_err(|error| error.to_string())?;
    for (volume, name) in VOLUMES.into_iter().zip(["main", "clone"]) {
        let created = setup.create_volume(volume, name).await;
        created.map_err(|error| error.to_string())?;
    }
    let services = Services::new(&env, &table, rates.clone());
    services.be_bad(true);
    let book = Book {
        env: env.clone(),
        records: Arc::default(),
        model: model.clone(),
    };
    let meter = || {
        let client = table.connect(&env);
        client.set_rates(rates.clone());
        CommitMeter::new(env.clone(), client)
    };
    let meters: Vec<_> = (0..INSTANCES)
        .map(|number| {
            let counting = count(env.clone(), services.clone(), number, meter(), book.clone());
            env.spawn("meter", counting)
        })
        .collect();
    let reached = |role| {
        let caller = Caller::new(&services, NAMED, role);
        Anchor::over(Arc::new(caller), env.clone(), FAMILY)
    };
    let weather = env.spawn("weather", outages(env.clone(), services.clone()));
    let (sure, possible) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let cleaner = reached(AnchorRole::Cleaner);
    let cleaning = clean(env.clone(), cleaner, sure.clone(), possible.clone());
    let mut tasks = vec![env.spawn("cleaner", cleaning)];
    for number in 0..EDGES {
        let edge = Edge {
            env: env.clone(),
            anchor: reached(AnchorRole::Edge),
            id: OwnerId([number + 1; 16]),
            name: format!("edge {number}"),
            model: model.clone(),
        };
        tasks.push(env.spawn("edge", edge.live()));
    }
    for task in tasks {
        task.await.map_err(|error| error.to_string())?;
    }
    weather.abort();
    // What is late comes now, or never.
    env.sleep(Duration::from_secs(10)).await;
    meters.iter().for_each(Task::abort);
    table.settle();
    let last = CommitMeter::new(env.clone(), table.connect(&env));
    for attempt in 0.. {
        match last.settle(NAMED, &book).await {
            Ok(0) => break,
            _ if attempt == 100 => return Err("the meter does not come to an end".into()),
            Ok(_) | Err(_) => {}
        }
    }
    let (account, _) = setup
        .cleaning_account()
        .await
        .map_err(|error| error.to_string())?;
    let model = std::mem::take(&mut *model.lock().unwrap());
    let commits = model.commits();
    let edges = model.end()?;
    let noted = sure.load(Ordering::SeqCst)..=possible.load(Ordering::SeqCst);
    if !noted.contains(&account.requests) {
        return Err(format!("{} requests are noted of {noted:?}", account.requests));
    }
    for (meter, made) in [
        (Meter::ROOT_COMMITS, commits),
        (Meter::CLEANER_OPERATIONS, account.requests),
        (Meter::STORED_BYTE_HOURS, account.stored_byte_hours()),
    ] {
        let charged = book.sum(meter);
        if charged != made {
            return Err(format!("{charged} of {made} {meter:?} are in the ledger"));
        }
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    Ok(Passed {
        edges,
        restarts: count(&services.restarts),
        lost: count(&services.lost),
        late: count(&services.late),
        doubled: count(&services.doubled),
        counted_commits: commits,
        cleaner_requests: account.requests,
    })
}

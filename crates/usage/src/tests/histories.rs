//! Random histories of a source that is killed and loses power, before a receiver whose replies get lost, whose requests
//! arrive late and twice.
//!
//! Each observation has a quantity of its own, by which it is known. A history is sound if
//!
//! - what was acknowledged is received, once the source lives long enough;
//! - nothing is received under two names, and no name stands for two observations.
//!
//! Beside the histories, one recorded life is cut at every moment of its disk. Each planted bug must be found.

use super::mutants::MUTANTS;
use crate::{
    Delivery, DeliveryPolicy, Incarnation, Meter, Observation, ResourceName, SinkError, SourceId, Spool,
    SpoolConfig, TenantName, UsageBatch, UsageSink,
};
use async_trait::async_trait;
use firn_env::{
    Env,
    mutants::planting,
    sim::{DiskImage, RecordingDisk, Simulation},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

const DIRECTORY: &str = "usage";
const LIVES: u64 = 6;

#[derive(Default)]
struct World {
    next_quantity: u64,
    acknowledged: BTreeSet<u64>,
    received: BTreeMap<(Incarnation, u64), Observation>,
    names: BTreeMap<u64, (Incarnation, u64)>,
    violation: Option<String>,
    duplicates: u64,
}

impl World {
    fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    fn receive(&mut self, batch: &UsageBatch) {
        for record in batch.records() {
            let name = (record.incarnation, record.sequence);
            let quantity = record.observation.quantity;
            match self.received.get(&name) {
                Some(known) if *known == record.observation => self.duplicates += 1,
                Some(known) => self.violate(format!("{name:?} is {} and {quantity}", known.quantity)),
                None => {
                    self.received.insert(name, record.observation);
                    if let Some(other) = self.names.insert(quantity, name) {
                        self.violate(format!("{quantity} is received as {other:?} and {name:?}"));
                    }
                }
            }
        }
    }

    fn observe(&mut self, count: u64) -> Vec<Observation> {
        (0..count)
            .map(|_| {
                self.next_quantity += 1;
                Observation {
                    tenant: TenantName::new("acme").unwrap(),
                    resource: ResourceName::new(&format!("volume/{:0100}", self.next_quantity % 7)).unwrap(),
                    meter: Meter::ROOT_COMMITS,
                    quantity: self.next_quantity,
                    from_ms: 1_767_225_600_000,
                    duration_ms: 0,
                }
            })
            .collect()
    }

    fn check(&self) -> Result<(), String> {
        if let Some(violation) = &self.violation {
            return Err(violation.clone());
        }
        match self
            .acknowledged
            .iter()
            .find(|quantity| !self.names.contains_key(quantity))
        {
            Some(lost) => Err(format!("{lost} was acknowledged and never received")),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Default)]
struct SharedWorld(Arc<Mutex<World>>);

impl SharedWorld {
    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().expect("no panic under this lock")
    }
}

/// The way to the receiver from one life of the source; the receiver itself lives on.
struct BadRoad {
    env: Env,
    receiver: Env,
    world: SharedWorld,
}

#[async_trait]
impl UsageSink for BadRoad {
    async fn accept(&self, batch: &UsageBatch) -> Result<(), SinkError> {
        let lost = || Err(SinkError::Unavailable("no reply".into()));
        self.env
            .sleep(Duration::from_micros(self.env.random_below(4000)))
            .await;
        match self.env.random_below(10) {
            0 => return lost(),
            1 => {
                self.world.lock().receive(batch);
                return lost();
            }
            2 => {
                // Received long after the sender gave it up.
                let (world, receiver, batch) = (self.world.clone(), self.receiver.clone(), batch.clone());
                self.receiver.spawn("late batch", async move {
                    receiver
                        .sleep(Duration::from_millis(receiver.random_below(2000)))
                        .await;
                    world.lock().receive(&batch);
                });
                return lost();
            }
            _ => self.world.lock().receive(batch),
        }
        self.env
            .sleep(Duration::from_micros(self.env.random_below(4000)))
            .await;
        Ok(())
    }
}

fn config() -> SpoolConfig {
    SpoolConfig {
        max_bytes: 1 << 20,
        file_bytes: 2048,
    }
}

fn policy() -> DeliveryPolicy {
    DeliveryPolicy {
        linger: Duration::from_millis(5),
        try_limit: Duration::from_millis(50),
        first_pause: Duration::from_millis(5),
        longest_pause: Duration::from_millis(40),
        attempts: 100,
    }
}

async fn open(env: &Env) -> Result<Spool, String> {
    let source = SourceId::new("node/1").unwrap();
    Spool::open(env, DIRECTORY, source, config())
        .await
        .map_err(|error| format!("it does not open: {error}"))
}

/// One life of the source.
async fn live(env: Env, road: Arc<BadRoad>, world: SharedWorld) {
    let spool = match open(&env).await {
        Ok(spool) => spool,
        Err(violation) => return world.lock().violate(violation),
    };
    env.spawn("delivery", Delivery::new(&spool, road, policy()).run());
    for _ in 0..3 {
        let (env, spool, world) = (env.clone(), spool.clone(), world.clone());
        env.clone().spawn("observer", async move {
            for _ in 0..1000 {
                let observations = {
                    let count = 1 + env.random_below(6);
                    world.lock().observe(count)
                };
                let quantities: Vec<_> = observations
                    .iter()
                    .map(|observation| observation.quantity)
                    .collect();
                match spool.append(observations).await {
                    Ok(_) => world.lock().acknowledged.extend(quantities),
                    Err(error) => return world.lock().violate(format!("append: {error}")),
                }
                env.sleep(Duration::from_micros(env.random_below(30_000))).await;
            }
        });
    }
}

fn history(seed: u64, mutant: Option<&str>) -> Result<u64, String> {
    planting(mutant, || lives(seed))
}

fn lives(seed: u64) -> Result<u64, String> {
    let simulation = Simulation::new(seed);
    let machine = simulation.machine("node");
    let controller = simulation.env();
    let outcome = simulation.run(async move {
        let world = SharedWorld::default();
        for life in 0..LIVES {
            let env = if life == 0 {
                machine.env()
            } else {
                machine.restart()
            };
            let road = Arc::new(BadRoad {
                env: env.clone(),
                receiver: controller.clone(),
                world: world.clone(),
            });
            env.spawn("life", live(env.clone(), road, world.clone()));
            let length = Duration::from_micros(controller.random_below(200_000));
            controller.sleep(length).await;
            if controller.random_below(2) == 0 {
                machine.crash();
            } else {
                // The disk still shows what a power cut would lose, and may lose in the next life.
                machine.kill();
            }
        }
        let env = machine.restart();
        let spool = open(&env).await?;
        let road = Arc::new(BadRoad {
            env: env.clone(),
            receiver: controller.clone(),
            world: world.clone(),
        });
        Delivery::new(&spool, road, policy())
            .deliver_pending()
            .await
            .map_err(|error| format!("delivery: {error}"))?;
        controller.sleep(Duration::from_secs(5)).await;
        let world = world.lock();
        world.check()?;
        Ok(world.duplicates + world.received.len() as u64)
    });
    outcome.map_err(|error| error.to_string())?
}

#[test]
fn what_is_acknowledged_is_received_once_through_kills_power_cuts_and_lost_replies() {
    let mut received = 0;
    for seed in 0..60 {
        received += history(seed, None).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
    assert!(
        received > 3000,
        "idle histories prove nothing: {received} records"
    );
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in [3, 14] {
        assert_eq!(history(seed, None), history(seed, None));
    }
}

#[test]
fn every_planted_bug_is_found() {
    for mutant in MUTANTS {
        let found = (0..300).find(|seed| history(*seed, Some(mutant)).is_err());
        assert!(found.is_some(), "{mutant} was not noticed in 300 histories");
    }
}

/// Keeps everything, at once.
#[derive(Clone)]
struct GoodRoad(SharedWorld);

#[async_trait]
impl UsageSink for GoodRoad {
    async fn accept(&self, batch: &UsageBatch) -> Result<(), SinkError> {
        self.0.lock().receive(batch);
        Ok(())
    }
}

#[test]
fn a_life_cut_at_any_moment_of_its_disk_keeps_what_was_acknowledged_and_no_number_is_given_twice() {
    let simulation = Simulation::new(11);
    let machine = simulation.machine("node");
    let env = machine.env();
    let (disk, recording) = RecordingDisk::new(env.disk().clone(), DiskImage::default());
    let env = env.with_disk(Arc::new(disk));
    let marks = recording.clone();
    let observations = simulation
        .run(async move {
            let world = SharedWorld::default();
            let spool = open(&env).await.unwrap();
            let mut delivery = Delivery::new(&spool, Arc::new(GoodRoad(world.clone())), policy());
            let mut appended = Vec::new();
            for round in 0..14 {
                let observations = world.lock().observe(1 + round % 5);
                let numbers = spool.append(observations.clone()).await.unwrap();
                appended.extend(observations);
                marks.mark(numbers.end);
                if round % 4 == 3 {
                    delivery.deliver_pending().await.unwrap();
                }
            }
            appended
        })
        .unwrap();
    let mut replay = recording.replay();
    let mut moments = 0;
    loop {
        for draw in 0..3 {
            let image = replay.crash_any(draw);
            let acknowledged_before = replay.marks().last().copied().unwrap_or(1);
            let after = Simulation::new(draw);
            let machine = after.machine("node");
            machine.disk().restore(&image);
            let env = machine.env();
            let expected = observations.clone();
            after
                .run(async move {
                    let world = SharedWorld::default();
                    let spool = open(&env).await.unwrap();
                    let status = spool.status();
                    assert!(status.next_sequence >= acknowledged_before, "{status:?}");
                    let more = Observation {
                        quantity: 1_000_000,
                        ..expected[0].clone()
                    };
                    assert_eq!(
                        spool.append(vec![more]).await.unwrap().start,
                        status.next_sequence
                    );
                    let sink = Arc::new(GoodRoad(world.clone()));
                    Delivery::new(&spool, sink, policy())
                        .deliver_pending()
                        .await
                        .unwrap();
                    let world = world.lock();
                    assert_eq!(world.violation, None);
                    // What is left is a run of what was appended that ends where the new one begins.
                    for ((_, sequence), observation) in &world.received {
                        if *sequence < status.next_sequence {
                            assert_eq!(observation, &expected[*sequence as usize - 1]);
                        }
                    }
                })
                .unwrap();
            moments += 1;
        }
        if !replay.step() {
            break;
        }
    }
    assert!(moments > 200, "{moments}");
}

//! Folds side by side: many tenants whose records lie in many shards, folded by groups at once, by several processes, and by ones that die. Each tenant's sum
//! is held against an independent one.

use super::world::{START_MS, batch, observation, source, tenant};
use crate::{Billing, BillingError, Hour, Reporter, layout};
use async_trait::async_trait;
use firn_env::{
    Env,
    sim::{Limits, Seeded, Simulation},
};
use firn_table::{
    Applied, Condition, FaultRates, Item, ItemKey, MemoryTable, Page, Table, TableError, Write,
};
use firn_usage::{Incarnation, Meter};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

const TENANTS: u64 = 60;
/// Streams of one tenant, each in a shard of its own as a rule.
const STREAMS: u64 = 3;
/// Streams that name all tenants.
const WIDE: u64 = 2;
const RECORDS: u64 = 4;

/// A table that counts what is in flight, and what did not meet its conditions.
struct Watched {
    inner: Arc<dyn Table>,
    in_flight: AtomicUsize,
    most: AtomicUsize,
    requests: AtomicUsize,
    conflicts: AtomicUsize,
}

impl Watched {
    fn new(inner: Arc<dyn Table>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            in_flight: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            conflicts: AtomicUsize::new(0),
        })
    }

    async fn carry<T>(&self, request: impl Future<Output = Result<T, TableError>>) -> Result<T, TableError> {
        self.requests.fetch_add(1, Relaxed);
        let now = self.in_flight.fetch_add(1, Relaxed) + 1;
        self.most.fetch_max(now, Relaxed);
        let answer = request.await;
        self.in_flight.fetch_sub(1, Relaxed);
        let is_conflict = matches!(answer, Err(TableError::ConditionFailed { .. }));
        self.conflicts.fetch_add(usize::from(is_conflict), Relaxed);
        answer
    }
}

#[async_trait]
impl Table for Watched {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        self.carry(self.inner.get(key)).await
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        self.carry(self.inner.query(partition, prefix, after, limit))
            .await
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        if writes.iter().all(|write| write.key().partition == layout::LAYOUT) {
            // The note that there are shards, which each process writes at first.
            return self.inner.transact(writes).await;
        }
        self.carry(self.inner.transact(writes)).await
    }
}

/// A table far away, by another connection for each machine.
fn far(env: &Env, table: &MemoryTable) -> Arc<Watched> {
    let client = table.connect(env);
    client.set_rates(FaultRates {
        delay: Duration::from_micros(500)..=Duration::from_millis(3),
        ..FaultRates::default()
    });
    Watched::new(client)
}

/// `test` makes its machines, and gives what is to run on them.
fn simulated<F, T>(seed: u64, test: impl FnOnce(&Simulation) -> F) -> T
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let limits = Limits {
        time: Duration::from_secs(86_400),
        steps: 3_000_000,
    };
    let simulation = Simulation::with_limits(seed, limits);
    simulation.run(test(&simulation)).unwrap()
}

fn name(number: u64) -> String {
    format!("tenant-{number:02}")
}

/// Received and not folded: of each tenant chunks in several shards, and chunks that name all. Gives the independent sums.
async fn backlog(billing: &Billing) -> BTreeMap<u64, (u128, u64)> {
    let mut sums: BTreeMap<u64, (u128, u64)> = BTreeMap::new();
    let mut random = Seeded::new(33, 0);
    let mut drawn = |number: u64| {
        let quantity = random.below(1 << 40);
        let sum = sums.entry(number).or_default();
        *sum = (sum.0 + u128::from(quantity), sum.1 + 1);
        let when = START_MS + random.below(2) * 3_600_000;
        observation(&name(number), "volume/1", Meter::NODE_OPERATIONS, quantity, when)
    };
    let mut batches = Vec::new();
    for number in 0..TENANTS {
        for stream in 0..STREAMS {
            let from = format!("node/{number}/{stream}");
            let records = (0..RECORDS).map(|_| drawn(number)).collect();
            batches.push((from, records));
        }
    }
    for stream in 0..WIDE {
        batches.insert(
            0,
            (format!("api/{stream}"), (0..TENANTS).map(&mut drawn).collect()),
        );
    }
    for (from, records) in batches {
        let reporter = Reporter::service(source(&from));
        billing
            .accept(&reporter, &batch(&from, 1, 1, records))
            .await
            .unwrap();
    }
    sums
}

/// Whether each tenant has what it should have.
async fn check(billing: &Billing, sums: &BTreeMap<u64, (u128, u64)>) -> Result<(), String> {
    for (number, expected) in sums {
        let totals = billing
            .totals(&tenant(&name(*number)), Hour(0), Hour(u32::MAX))
            .await
            .map_err(|error| error.to_string())?;
        let found = totals.values().fold((0, 0), |(quantity, records), totals| {
            (quantity + totals.quantity, records + totals.records)
        });
        if found != *expected {
            return Err(format!("{} has {found:?}, not {expected:?}", name(*number)));
        }
    }
    Ok(())
}

async fn hour_later(env: &Env) {
    env.sleep(Duration::from_secs(2 * 3600)).await;
}

/// One process folds all; says what is wrong with the bill, or with how it went about it.
pub(super) fn fold_alone() -> Result<(), String> {
    simulated(1, |simulation| {
        let env = simulation.env();
        async move {
            let table = MemoryTable::new();
            hour_later(&env).await;
            let watched = far(&env, &table);
            let billing = Billing::new(&env, watched.clone()).spread(true);
            let sums = backlog(&billing).await;
            watched.most.store(0, Relaxed);
            billing.fold_all().await.map_err(|error| error.to_string())?;
            check(&billing, &sums).await?;
            let (most, conflicts) = (watched.most.load(Relaxed), watched.conflicts.load(Relaxed));
            if most != crate::fold::SIDE_BY_SIDE || conflicts > 0 {
                return Err(format!(
                    "{most} requests in flight, {conflicts} conflicts with itself"
                ));
            }
            Ok(())
        }
    })
}

#[test]
fn a_process_that_folds_alone_never_meets_itself_and_has_so_many_requests_in_flight_and_no_more() {
    assert_eq!(fold_alone(), Ok(()));
}

/// (requests, conflicts) of so many processes that fold the same backlog from the same moment on.
fn fold_together(processes: usize) -> (usize, usize) {
    simulated(2, move |simulation| {
        let env = simulation.env();
        let machines: Vec<_> = (0..processes)
            .map(|number| simulation.machine(&format!("api-{number}")))
            .collect();
        async move {
            let table = MemoryTable::new();
            hour_later(&env).await;
            let sums = backlog(&Billing::new(&env, table.connect(&env)).spread(true)).await;
            let mut tasks = Vec::new();
            let mut tables = Vec::new();
            for machine in machines {
                let env = machine.env();
                let watched = far(&env, &table);
                tables.push(watched.clone());
                let billing = Billing::new(&env, watched).spread(true);
                let pause = env.clone();
                tasks.push(env.spawn("fold", async move {
                    // As passes are repeated: one that lost too often is followed by another.
                    for _ in 0..50 {
                        match billing.fold_all().await {
                            Err(BillingError::Unavailable(_)) => pause.sleep(Duration::from_millis(20)).await,
                            done => return done.map(drop),
                        }
                    }
                    panic!("it never ends");
                }));
            }
            for task in tasks {
                task.await.unwrap().unwrap();
            }
            let billing = Billing::new(&env, table.connect(&env));
            assert_eq!(billing.fold_all().await.unwrap(), 0);
            check(&billing, &sums).await.unwrap();
            let sum = |count: fn(&Watched) -> &AtomicUsize| {
                tables.iter().map(|table| count(table).load(Relaxed)).sum()
            };
            (sum(|table| &table.requests), sum(|table| &table.conflicts))
        }
    })
}

#[test]
fn processes_that_fold_the_same_at_once_count_each_record_once_and_ask_no_more_than_each_of_them_alone() {
    let (alone, conflicts) = fold_together(1);
    assert_eq!(conflicts, 0);
    for processes in [2, 4] {
        let (requests, conflicts) = fold_together(processes);
        println!("{processes} processes: {requests} requests, alone {alone}; {conflicts} conflicts");
        assert!(conflicts > 0, "they never met");
        assert!(
            requests <= processes * alone * 5 / 4,
            "{requests} requests, alone {alone}"
        );
    }
}

#[test]
fn a_fold_that_dies_between_any_two_of_its_transactions_leaves_nothing_out_and_counts_nothing_twice() {
    let mut deaths = 0;
    for point in ["billing.fold.before_transact", "billing.fold.after_transact"] {
        for hit in 1.. {
            let died = simulated(3, move |simulation| {
                let env = simulation.env();
                let machine = simulation.machine("api");
                async move {
                    let table = MemoryTable::new();
                    hour_later(&env).await;
                    let sums = backlog(&Billing::new(&env, table.connect(&env)).spread(true)).await;
                    machine.crash_at(point, hit);
                    let env = machine.env();
                    let billing = Billing::new(&env, far(&env, &table)).spread(true);
                    let died = env
                        .spawn("fold", async move { billing.fold_all().await })
                        .await
                        .is_err();
                    let env = if died { machine.restart() } else { machine.env() };
                    machine.faults().disarm();
                    let billing = Billing::new(&env, table.connect(&env));
                    billing.fold_all().await.unwrap();
                    check(&billing, &sums).await.unwrap();
                    died
                }
            });
            if !died {
                break;
            }
            deaths += 1;
        }
    }
    assert!(deaths > 20, "{deaths}");
}

#[test]
fn an_hour_that_cannot_be_read_keeps_its_own_tenant_waiting_and_nobody_else() {
    simulated(4, |simulation| {
        let env = simulation.env();
        async move {
            let table = MemoryTable::new();
            hour_later(&env).await;
            let client = table.connect(&env);
            let billing = Billing::new(&env, client.clone()).spread(true);
            let hours = [START_MS, START_MS + 3_600_000].map(Hour::of_ms);
            let mut broken = Vec::new();
            for hour in hours {
                let write = Write::Put {
                    key: layout::hour_key(&tenant(&name(7)), hour, 0),
                    value: "not an hour".into(),
                    condition: Condition::Absent,
                };
                broken.push(write.key().clone());
                client.transact(vec![write]).await.unwrap();
            }
            let mut sums = backlog(&billing).await;
            let error = billing.fold_all().await.unwrap_err();
            assert!(matches!(error, BillingError::Item { .. }), "{error}");
            let own = sums.remove(&7).unwrap();
            // Chunks that name all go up to it, and on when it can be read.
            let narrow = |number: &u64| *number < 7;
            let before: BTreeMap<_, _> = sums
                .clone()
                .into_iter()
                .filter(|(number, _)| narrow(number))
                .collect();
            check(&billing, &before).await.unwrap();
            for number in 8..TENANTS {
                let totals = billing
                    .totals(&tenant(&name(number)), Hour(0), Hour(u32::MAX))
                    .await
                    .unwrap();
                let records: u64 = totals.values().map(|totals| totals.records).sum();
                assert_eq!(records, STREAMS * RECORDS, "tenant {number}");
            }
            for key in broken {
                let version = client.get(&key).await.unwrap().unwrap().version;
                client
                    .transact(vec![Write::Delete { key, version }])
                    .await
                    .unwrap();
            }
            billing.fold_all().await.unwrap();
            sums.insert(7, own);
            check(&billing, &sums).await.unwrap();
        }
    });
}

#[test]
fn a_partition_in_which_much_waits_does_not_keep_the_others_waiting() {
    simulated(5, |simulation| {
        let env = simulation.env();
        async move {
            let table = MemoryTable::new();
            let billing = Billing::new(&env, table.connect(&env)).spread(true);
            hour_later(&env).await;
            let flood = Reporter::service(source("node/flood"));
            for sequence in 1..=300 {
                let record = observation("acme", "volume/1", Meter::NODE_OPERATIONS, 1, START_MS);
                billing
                    .accept(&flood, &batch("node/flood", 1, sequence, vec![record]))
                    .await
                    .unwrap();
            }
            let late = Reporter::service(source("node/late"));
            let record = observation("beta", "volume/1", Meter::NODE_OPERATIONS, 1, START_MS);
            billing
                .accept(&late, &batch("node/late", 1, 1, vec![record]))
                .await
                .unwrap();
            billing.fold(2).await.unwrap();
            let totals = billing
                .totals(&tenant("beta"), Hour(0), Hour(u32::MAX))
                .await
                .unwrap();
            assert_eq!(totals.len(), 1, "it was last, and of another partition");
        }
    });
}

/// A table whose owner has asked one partition before anything came to it, or to which another fold is faster: it goes to work once an hour was looked at.
struct Meanwhile {
    inner: Arc<dyn Table>,
    asked_before: Option<String>,
    faster: Mutex<Option<Billing>>,
}

#[async_trait]
impl Table for Meanwhile {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        self.inner.get(key).await
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        if self.asked_before.as_deref() == Some(partition) {
            return Ok(Page::default());
        }
        let page = self.inner.query(partition, prefix, after, limit).await;
        if partition.starts_with(layout::HOURS) {
            let faster = self.faster.lock().unwrap().take();
            if let Some(faster) = faster {
                assert_eq!(faster.fold_all().await.unwrap(), 1);
            }
        }
        page
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        self.inner.transact(writes).await
    }
}

/// Two processes that fold one tenant at once, each what came to another shard; says what is wrong with its hour afterwards.
pub(super) fn two_folds_of_one_tenant() -> Result<(), String> {
    simulated(6, |simulation| {
        let env = simulation.env();
        async move {
            let table: Arc<dyn Table> = MemoryTable::new().connect(&env);
            hour_later(&env).await;
            let calm = Billing::new(&env, table.clone()).spread(true);
            let shard =
                |from: &str| layout::pending_key(true, 0, &format!("{from}|{}", Incarnation(1)), 1).partition;
            let first = "node/0".to_owned();
            let other = (1..)
                .map(|number| format!("node/{number}"))
                .find(|name| shard(name) != shard(&first))
                .unwrap();
            for (from, quantity) in [(&"api/1".to_owned(), 1), (&first, 5), (&other, 7)] {
                let record = observation("acme", "volume/1", Meter::NODE_OPERATIONS, quantity, START_MS);
                let reporter = Reporter::service(source(from));
                calm.accept(&reporter, &batch(from, 1, 1, vec![record]))
                    .await
                    .unwrap();
                if quantity == 1 {
                    // The tenant is in its shard, and its hour is begun.
                    assert_eq!(calm.fold_all().await.unwrap(), 1);
                }
            }
            let asked_before = Meanwhile {
                inner: table.clone(),
                asked_before: Some(shard(&first)),
                faster: Mutex::default(),
            };
            let faster = Billing::new(&env, Arc::new(asked_before)).spread(true);
            let slower = Meanwhile {
                inner: table,
                asked_before: Some(shard(&other)),
                faster: Mutex::new(Some(faster)),
            };
            let folding = Billing::new(&env, Arc::new(slower)).spread(true);
            folding.fold_all().await.map_err(|error| error.to_string())?;
            let totals = calm
                .totals(&tenant("acme"), Hour(0), Hour(u32::MAX))
                .await
                .unwrap();
            let found: Vec<_> = totals
                .values()
                .map(|totals| (totals.quantity, totals.records))
                .collect();
            if found == [(13, 3)] {
                Ok(())
            } else {
                Err(format!("the hour holds {found:?}"))
            }
        }
    })
}

#[test]
fn of_two_folds_that_add_to_one_hour_at_once_neither_is_lost() {
    assert_eq!(two_folds_of_one_tenant(), Ok(()));
}

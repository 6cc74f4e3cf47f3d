//! The request budget in virtual time: clients do not wait behind work in the background, which goes on all the same.

use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{Env, mutants::planting, sim::Simulation};
use firn_store::{
    BackgroundPolicy, ListPage, ObjectInfo, ObjectKey, PutMode, RequestBudget, RetryPolicy, Retrying, Store,
    StoreError, UploadLimit, UploadRule, UploadSchedule,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// What a request takes on the line.
const TAKES: Duration = Duration::from_millis(10);

/// A line that carries one request after the other, whoever asks.
struct Line {
    env: Env,
    one: tokio::sync::Mutex<()>,
    served: AtomicU64,
    waiting: AtomicU64,
    most: AtomicU64,
}

impl Line {
    fn new(env: &Env) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            one: tokio::sync::Mutex::new(()),
            served: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            most: AtomicU64::new(0),
        })
    }

    /// How many came before this one.
    async fn serve(&self) -> u64 {
        let waiting = self.waiting.fetch_add(1, Relaxed) + 1;
        self.most.fetch_max(waiting, Relaxed);
        let _one = self.one.lock().await;
        self.env.sleep(TAKES).await;
        self.waiting.fetch_sub(1, Relaxed);
        self.served.fetch_add(1, Relaxed)
    }
}

#[async_trait]
impl Store for Line {
    async fn put(&self, _: &ObjectKey, _: Vec<Bytes>, _: PutMode) -> Result<(), StoreError> {
        self.serve().await;
        Ok(())
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.get_range(key, 0, 8).await
    }

    async fn get_range(&self, _: &ObjectKey, _: u64, _: u64) -> Result<Bytes, StoreError> {
        Ok(Bytes::copy_from_slice(&self.serve().await.to_le_bytes()))
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        Err(StoreError::NotFound { key: key.clone() })
    }

    async fn delete(&self, _: &ObjectKey) -> Result<(), StoreError> {
        Ok(())
    }

    async fn list(&self, _: &str, _: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        Ok(ListPage::default())
    }
}

/// A store and the same for the background, over one line.
struct Stores {
    env: Env,
    line: Arc<Line>,
    budget: Arc<RequestBudget>,
    clients: Arc<Retrying>,
    background: Arc<Retrying>,
    asked: Arc<AtomicU64>,
}

impl Stores {
    fn new(env: &Env, policy: BackgroundPolicy, upload: Option<UploadRule>) -> Self {
        let (line, budget) = (Line::new(env), RequestBudget::new(env, policy));
        let retries = RetryPolicy {
            try_deadline_ms: 3_600_000,
            try_deadline_max_ms: 3_600_000,
            ..RetryPolicy::default()
        };
        let schedule = UploadSchedule {
            rules: upload.into_iter().collect(),
            ..UploadSchedule::default()
        };
        let clients = Retrying::new(env, line.clone(), retries)
            .with_upload_limit(Arc::new(UploadLimit::new(env, schedule)))
            .with_budget(budget.clone());
        Self {
            env: env.clone(),
            background: Arc::new(clients.background()),
            clients: Arc::new(clients),
            line,
            budget,
            asked: Arc::default(),
        }
    }

    /// So many challenges at once, as of an audit.
    fn challenge(&self, count: u64) -> Vec<firn_env::Task<()>> {
        let challenges = (0..count).map(|_| {
            let (store, asked) = (self.background.clone(), self.asked.clone());
            self.env.spawn("challenge", async move {
                asked.fetch_add(1, Relaxed);
                store.get_range(&key(), 0, 36_000).await.expect("an answer");
            })
        });
        challenges.collect()
    }

    /// A client's read: how many requests were served before it since it was asked for.
    async fn read(&self) -> u64 {
        let before = self.line.served.load(Relaxed);
        let read = self
            .clients
            .get_range(&key(), 0, 36_000)
            .await
            .expect("an answer");
        u64::from_le_bytes(read[..].try_into().expect("eight bytes")) - before
    }
}

fn key() -> ObjectKey {
    ObjectKey::new("a")
}

fn simulate<T: Send + 'static, F: Future<Output = T> + Send + 'static>(scenario: impl FnOnce(Env) -> F) -> T {
    let simulation = Simulation::new(11);
    simulation.run(scenario(simulation.env())).expect("it ends")
}

/// What was served before a client's first read among a thousand challenges, and before one of its later reads.
fn before_reads(policy: BackgroundPolicy) -> (u64, u64) {
    simulate(|env| async move {
        let stores = Stores::new(&env, policy, None);
        let challenges = stores.challenge(1000);
        while stores.asked.load(Relaxed) < 1000 {
            env.sleep(TAKES / 10).await;
        }
        let first = stores.read().await;
        // As one that reads on: what was in flight by then is over, and no more was begun but a few.
        while stores.budget.statistics().in_flight > 4 {
            stores.read().await;
        }
        let second = stores.read().await;
        for challenge in challenges {
            challenge.await.expect("all are answered");
        }
        (first, second)
    })
}

#[test]
fn a_clients_read_does_not_wait_behind_a_thousand_challenges() {
    let (first, second) = before_reads(BackgroundPolicy::default());
    println!(
        "1,000 challenges at once: {first} requests before a client's first read, {second} before each once those are over"
    );
    assert!(first <= 64 && second <= 4, "{first}, {second}");
    let planted = Some("store.background_as_foreground");
    let (without, _) = planting(planted, || before_reads(BackgroundPolicy::default()));
    println!("without the budget: {without}");
    // But for those that the line carried while the rest were asked for.
    assert!(without > 950, "the mechanism does nothing: {without}");
    // Thousands under way are a choice: then a client that comes to an idle edge waits for those.
    let many = BackgroundPolicy {
        requests_at_once: 4096,
        ..BackgroundPolicy::default()
    };
    let (first, _) = before_reads(many);
    assert!(first > 950, "{first}");
}

#[test]
fn while_clients_ask_a_few_challenges_go_on_and_no_more() {
    simulate(|env| async move {
        let stores = Stores::new(&env, BackgroundPolicy::default(), None);
        let counted = stores.budget.foreground();
        let mut challenges = stores.challenge(100);
        env.sleep(5 * TAKES).await;
        let seen = stores.budget.statistics();
        assert_eq!(
            (seen.in_flight, seen.waiting, seen.foreground),
            (4, 100 - 9 + 1, 1),
            "{seen:?}"
        );
        assert_eq!(stores.line.most.load(Relaxed), 4);
        drop(counted);
        env.sleep(5 * TAKES).await;
        assert_eq!(stores.budget.statistics().in_flight, 4, "a client may come back");
        // One after the other on this line: it is quiet after a second.
        challenges.extend(stores.challenge(200));
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(stores.budget.statistics().in_flight, 64);
        // Who gives up is passed by, and its place is another's.
        for challenge in &challenges {
            challenge.abort();
        }
        env.sleep(TAKES).await;
        let seen = stores.budget.statistics();
        assert_eq!((seen.in_flight, seen.waiting), (0, 0), "{seen:?}");
        for challenge in stores.challenge(70) {
            challenge.await.expect("answered");
        }
    });
}

#[test]
fn bytes_of_the_background_keep_their_rate_and_clients_do_not_pay() {
    simulate(|env| async move {
        let policy = BackgroundPolicy {
            bytes_per_second: Some(36_000),
            ..BackgroundPolicy::default()
        };
        let stores = Stores::new(&env, policy, None);
        let began = env.now();
        let challenges = stores.challenge(31);
        env.sleep(Duration::from_secs(1)).await;
        let asked = env.now();
        stores.read().await;
        assert!(env.now().since(asked) < Duration::from_millis(100));
        for challenge in challenges {
            challenge.await.expect("answered");
        }
        let took = env.now().since(began);
        assert!(took >= Duration::from_secs(30), "{took:?}");
    });
}

#[test]
fn an_upload_of_the_mirror_does_not_go_before_those_of_clients() {
    simulate(|env| async move {
        let rule: UploadRule = "8 Mbit/s".parse().expect("a rule");
        let stores = Stores::new(&env, BackgroundPolicy::default(), Some(rule));
        let put = |store: &Arc<Retrying>| {
            let store = store.clone();
            env.spawn("put", async move {
                let parts = vec![Bytes::from(vec![0; 1 << 20])];
                store.put(&key(), parts, PutMode::Overwrite).await.expect("put");
            })
        };
        let mirrored: Vec<_> = (0..50).map(|_| put(&stores.background)).collect();
        env.sleep(Duration::from_millis(100)).await;
        let began = env.now();
        for uploaded in (0..5).map(|_| put(&stores.clients)).collect::<Vec<_>>() {
            uploaded.await.expect("put");
        }
        let took = env.now().since(began);
        println!("five uploads of 1 MiB at 8 Mbit/s beside fifty of the mirror: {took:?}");
        // Five of their own, what was owed before, and one of the mirror at most.
        assert!(took <= Duration::from_secs(8), "{took:?}");
        for put in mirrored {
            put.await.expect("the mirror gets its turn");
        }
    });
}

#[test]
fn a_policy_that_cannot_be_meant_is_refused() {
    for (text, why) in [
        ("requests_at_once = 0", "between 1 and 4096"),
        ("requests_at_once = 5000", "between 1 and 4096"),
        ("requests_at_once = 2\nbeside_clients = 3", "beside_clients"),
        ("bytes_per_second = 10", "1024 at least"),
    ] {
        let policy: BackgroundPolicy = toml::from_str(text).expect("a policy");
        assert!(policy.check().expect_err(text).contains(why), "{text}");
    }
    BackgroundPolicy::default().check().expect("what is usual");
}

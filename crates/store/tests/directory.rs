//! The directory store: the same as a store in memory as long as nothing breaks, and nothing half-done when it does.

use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{
    DirectoryEntry, Disk, DiskError, DiskFile, DiskLock, Env, FaultAction, FileStatus, OpenMode,
    sim::{Machine, Simulation},
};
use firn_store::{DirectoryStore, MemoryStore, ObjectKey, PutMode, Store, StoreError, conformance};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(name)
}

async fn open(env: &Env) -> DirectoryStore {
    DirectoryStore::open(env, "store").await.expect("it opens")
}

fn simulate<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    seed: u64,
    scenario: impl FnOnce(Machine, Env) -> F,
) -> T {
    let simulation = Simulation::new(seed);
    let machine = simulation.machine("office");
    let world = simulation.env();
    simulation
        .run(scenario(machine, world))
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}

#[test]
fn it_conforms_on_the_simulated_disk() {
    simulate(1, |machine, _| async move {
        let env = machine.env();
        conformance::check(&env, Arc::new(open(&env).await)).await;
    });
}

#[derive(Clone, Debug)]
enum Operation {
    Put(usize, u8, PutMode),
    Get(usize),
    Range(usize, u64, u64),
    Head(usize),
    Delete(usize),
    List(String, Option<usize>),
}

/// No name is a directory in another: that a directory cannot hold both is the one difference, tested by itself.
const NAMES: [&str; 9] = [
    "a/1",
    "a/10",
    "a/2/x",
    "a-",
    "a.b/c",
    "b",
    "b0/deep/er/1",
    "b0/deep/er/2",
    "c",
];

fn operation() -> impl Strategy<Value = Operation> {
    let name = 0..NAMES.len();
    let mode = prop_oneof![Just(PutMode::Create), Just(PutMode::Overwrite)];
    prop_oneof![
        3 => (name.clone(), any::<u8>(), mode).prop_map(|(name, salt, mode)| Operation::Put(name, salt, mode)),
        1 => name.clone().prop_map(Operation::Get),
        1 => (name.clone(), 0..300_u64, 0..300_u64).prop_map(|(name, offset, length)| Operation::Range(name, offset, length)),
        1 => name.clone().prop_map(Operation::Head),
        2 => name.clone().prop_map(Operation::Delete),
        2 => ("(a|b|c|a/|a/1|a/2/|b0/deep/|b0/de|)", proptest::option::of(name))
            .prop_map(|(prefix, after)| Operation::List(prefix, after)),
    ]
}

/// What an operation answers, without times.
async fn apply(store: &dyn Store, operation: &Operation) -> Result<String, String> {
    let at = |name: &usize| key(NAMES[*name]);
    let result = match operation {
        Operation::Put(name, salt, mode) => {
            let parts = vec![
                Bytes::from(vec![*salt; usize::from(*salt)]),
                Bytes::from_static(b"end"),
            ];
            store.put(&at(name), parts, *mode).await.map(|()| String::new())
        }
        Operation::Get(name) => store.get(&at(name)).await.map(|bytes| format!("{bytes:?}")),
        Operation::Range(name, offset, length) => {
            let range = store.get_range(&at(name), *offset, *length).await;
            range.map(|bytes| format!("{bytes:?}"))
        }
        Operation::Head(name) => store
            .head(&at(name))
            .await
            .map(|info| info.size_bytes.to_string()),
        Operation::Delete(name) => store.delete(&at(name)).await.map(|()| String::new()),
        Operation::List(prefix, after) => {
            store
                .list(prefix, after.as_ref().map(at).as_ref())
                .await
                .map(|page| {
                    let objects = page
                        .objects
                        .iter()
                        .map(|object| (object.key.as_str(), object.size_bytes));
                    format!("{:?} {}", objects.collect::<Vec<_>>(), page.more)
                })
        }
    };
    result.map_err(|error| error.to_string())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn it_answers_as_a_store_in_memory_does(operations in proptest::collection::vec(operation(), 1..40)) {
        simulate(7, |machine, _| async move {
            let env = machine.env();
            let memory = MemoryStore::new(&env);
            let directory = open(&env).await;
            for operation in &operations {
                let expected = apply(&memory, operation).await;
                assert_eq!(apply(&directory, operation).await, expected, "{operation:?}");
            }
        });
    }
}

/// What is known of one name, as its only writer knows it.
#[derive(Clone, Debug, Default)]
struct Known {
    /// What the name may show after a crash; `None` is absence.
    possible: BTreeSet<Option<u64>>,
}

type Ledger = Arc<Mutex<BTreeMap<String, Known>>>;

fn content(version: u64) -> Bytes {
    Bytes::from(
        [
            version.to_le_bytes().to_vec(),
            vec![version as u8; 1000 + (version % 3000) as usize],
        ]
        .concat(),
    )
}

fn version(content: &Bytes) -> u64 {
    let number = content.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let number = number.expect("an object is never shorter than its number");
    assert!(
        *content == self::content(number),
        "an object shows what nobody wrote"
    );
    number
}

/// Writes, replaces and removes its own objects until the machine crashes, and keeps the ledger.
async fn work(env: Env, store: Arc<DirectoryStore>, ledger: Ledger, worker: u64) {
    for step in 0..20 {
        let name = format!("w{worker}/d{}/{}", env.random_below(3), env.random_below(3));
        let version = worker * 1_000_000 + step;
        let note = |possible: &[Option<u64>], replace: bool| {
            let mut ledger = ledger.lock().expect("no panic under this lock");
            let known = ledger.entry(name.clone()).or_insert_with(|| Known {
                possible: BTreeSet::from([None]),
            });
            if replace {
                known.possible.clear();
            }
            known.possible.extend(possible);
        };
        let mode = match env.random_below(4) {
            0 => {
                note(&[None], false);
                store.delete(&key(&name)).await.expect("a healthy disk removes");
                note(&[None], true);
                continue;
            }
            1 => PutMode::Overwrite,
            _ => PutMode::Create,
        };
        note(&[Some(version)], false);
        match store.put(&key(&name), vec![content(version)], mode).await {
            Ok(()) => note(&[Some(version)], true),
            Err(StoreError::AlreadyExists { .. }) => {
                let seen = self::version(&store.get(&key(&name)).await.expect("it exists already"));
                assert_ne!(seen, version);
                // An answer as good as any other: it has to survive.
                note(&[Some(seen)], true);
            }
            Err(error) => panic!("a healthy disk writes: {error}"),
        }
    }
}

/// Runs workers until a crash, opens the store again and compares. Returns whether the crash came before the workers' end.
fn crash_and_check(seed: u64) -> bool {
    simulate(seed, move |machine, world| async move {
        let env = machine.env();
        let store = Arc::new(open(&env).await);
        let ledger = Ledger::default();
        // A quarter of the histories ends anywhere, the others at a fault point.
        let power = seed.is_multiple_of(4).then(|| {
            let (machine, delay) = (machine.clone(), world.random_below(100_000));
            let clock = world.clone();
            world.spawn("power", async move {
                clock.sleep(Duration::from_micros(delay)).await;
                machine.crash();
            })
        });
        if power.is_none() {
            machine.crash_at_any(1 + world.random_below(200));
        }
        let workers: Vec<_> = (1..=4)
            .map(|worker| env.spawn("worker", work(env.clone(), store.clone(), ledger.clone(), worker)))
            .collect();
        for worker in workers {
            let _ = worker.await;
        }
        let crashed = !machine.is_running();
        if let Some(power) = power {
            power.abort();
        }
        machine.faults().disarm();
        machine.crash();
        let env = machine.restart();
        let store = open(&env).await;
        let ledger = ledger.lock().expect("no panic under this lock").clone();
        for (name, known) in &ledger {
            let shown = match store.get(&key(name)).await {
                Ok(content) => Some(version(&content)),
                Err(StoreError::NotFound { .. }) => None,
                Err(error) => panic!("{name}: {error}"),
            };
            assert!(
                known.possible.contains(&shown),
                "seed {seed}: {name} shows {shown:?}, not {known:?}"
            );
        }
        let listed = store.list("", None).await.expect("it lists").objects;
        assert!(
            listed
                .iter()
                .all(|object| ledger.contains_key(object.key.as_str())),
            "{listed:?}"
        );
        crashed
    })
}

#[test]
fn after_a_crash_every_name_shows_what_was_acknowledged_or_was_under_way() {
    let crashes = (0..400).filter(|seed| crash_and_check(*seed)).count();
    assert!(crashes > 300, "only {crashes} of 400 runs were cut short");
}

#[test]
fn it_exists_already_is_as_durable_as_a_put() {
    // The first creator stops between naming the object and syncing the name; the second is told that it exists.
    for seed in 0..50 {
        simulate(seed, |machine, world| async move {
            let env = machine.env();
            let (first, second) = (Arc::new(open(&env).await), open(&env).await);
            let stalled = first.clone();
            // Both know the directory, so that making it durable does not make the name durable by the way.
            for (store, name) in [(&*first, "a/b/x"), (&second, "a/b/y")] {
                let made = store.put(&key(name), vec!["x".into()], PutMode::Create).await;
                made.expect("healthy");
            }
            machine
                .disk()
                .configure(|options| options.sync_latency = Duration::from_secs(3600));
            let put = env.spawn("first", async move {
                stalled
                    .put(&key("a/b/c"), vec!["content".into()], PutMode::Create)
                    .await
            });
            // The temporary file's sync is what takes an hour; then comes the link, then an hour for the directory.
            loop {
                world.sleep(Duration::from_secs(1)).await;
                if second.head(&key("a/b/c")).await.is_ok() {
                    break;
                }
            }
            put.abort();
            machine
                .disk()
                .configure(|options| options.sync_latency = Duration::from_millis(1));
            let told = second
                .put(&key("a/b/c"), vec!["content".into()], PutMode::Create)
                .await;
            assert!(matches!(told, Err(StoreError::AlreadyExists { .. })), "{told:?}");
            machine.crash();
            let env = machine.restart();
            let content = open(&env).await.get(&key("a/b/c")).await;
            assert_eq!(content.expect("what exists already is durable"), "content");
        });
    }
}

/// A disk whose directories cannot be synced while a switch is on.
struct UnsyncableDirectories {
    inner: Arc<dyn Disk>,
    on: Arc<AtomicBool>,
}

#[async_trait]
impl Disk for UnsyncableDirectories {
    async fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.inner.open(path, mode).await
    }
    async fn create_directory(&self, path: &str) -> Result<(), DiskError> {
        self.inner.create_directory(path).await
    }
    async fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.inner.list(directory).await
    }
    async fn entries(&self, directory: &str) -> Result<Vec<DirectoryEntry>, DiskError> {
        self.inner.entries(directory).await
    }
    async fn status(&self, path: &str) -> Result<FileStatus, DiskError> {
        self.inner.status(path).await
    }
    async fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.inner.remove(path).await
    }
    async fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.inner.rename(from, to).await
    }
    async fn link(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.inner.link(from, to).await
    }
    async fn sync_directory(&self, path: &str) -> Result<(), DiskError> {
        if self.on.load(Ordering::Relaxed) {
            return Err(DiskError::Io {
                path: path.to_owned(),
                message: "input/output error".into(),
            });
        }
        self.inner.sync_directory(path).await
    }
    async fn free_bytes(&self) -> Result<u64, DiskError> {
        self.inner.free_bytes().await
    }
    async fn lock(&self, path: &str) -> Result<Box<dyn DiskLock>, DiskError> {
        self.inner.lock(path).await
    }
}

#[test]
fn a_file_that_cannot_be_synced_is_written_anew_and_not_named() {
    simulate(3, |machine, _| async move {
        let env = machine.env();
        let store = open(&env).await;
        machine
            .disk()
            .configure(|options| options.sync_failures = 1_000_000);
        let failed = store.put(&key("d/1"), vec!["1".into()], PutMode::Create).await;
        assert!(
            matches!(failed, Err(StoreError::Unavailable { .. })),
            "{failed:?}"
        );
        machine.disk().configure(|options| options.sync_failures = 0);
        assert!(matches!(
            store.get(&key("d/1")).await,
            Err(StoreError::NotFound { .. })
        ));
        store
            .put(&key("d/1"), vec!["1".into()], PutMode::Create)
            .await
            .expect("healthy again");
    });
}

#[test]
fn a_directory_that_could_not_be_synced_ends_all_writing_until_the_store_is_opened_anew() {
    simulate(3, |machine, _| async move {
        let on = Arc::new(AtomicBool::new(false));
        let env = machine.env();
        let env = env.with_disk(Arc::new(UnsyncableDirectories {
            inner: env.disk().clone(),
            on: on.clone(),
        }));
        for operation in ["put", "delete"] {
            let store = open(&env).await;
            let object = key(&format!("d/{operation}"));
            store
                .put(&object, vec!["1".into()], PutMode::Create)
                .await
                .expect("healthy");
            on.store(true, Ordering::Relaxed);
            let failed = match operation {
                "put" => store.put(&object, vec!["2".into()], PutMode::Overwrite).await,
                _ => store.delete(&object).await,
            };
            assert!(
                matches!(failed, Err(StoreError::Unavailable { .. })),
                "{failed:?}"
            );
            on.store(false, Ordering::Relaxed);
            // A sync that succeeds now would prove nothing about the name that was lost.
            for result in [
                store.delete(&object).await,
                store
                    .put(&key("d/other"), vec!["3".into()], PutMode::Create)
                    .await,
                store.put(&object, vec!["3".into()], PutMode::Create).await,
            ] {
                let error = result.expect_err("the directory cannot be trusted");
                assert!(
                    error.is_transient() && error.to_string().contains("then restart"),
                    "{error}"
                );
            }
            store.list("", None).await.expect("reading goes on");
        }
        open(&env)
            .await
            .put(&key("d/other"), vec!["3".into()], PutMode::Create)
            .await
            .expect("opened anew");
    });
}

#[test]
fn a_full_disk_is_unavailable_leaves_nothing_behind_and_heals() {
    simulate(4, |machine, _| async move {
        let env = machine.env();
        let store = open(&env).await;
        machine
            .disk()
            .configure(|options| options.capacity_bytes = 100_000);
        let large = Bytes::from(vec![7; 200_000]);
        let full = store
            .put(&key("large"), vec![large.clone()], PutMode::Create)
            .await;
        assert!(
            matches!(&full, Err(StoreError::Unavailable { detail, .. }) if detail.contains("disk is full")),
            "{full:?}"
        );
        assert!(matches!(
            store.get(&key("large")).await,
            Err(StoreError::NotFound { .. })
        ));
        assert_eq!(
            env.disk().list("store/+incoming").await.expect("it lists"),
            [""; 0]
        );
        machine
            .disk()
            .configure(|options| options.capacity_bytes = 1_000_000);
        store
            .put(&key("large"), vec![large], PutMode::Create)
            .await
            .expect("space returned");
    });
}

#[tokio::test]
async fn a_directory_that_is_not_mounted_is_no_empty_store() {
    let directory = tempfile::tempdir().expect("a directory");
    let (root, away) = (directory.path().join("store"), directory.path().join("away"));
    std::fs::create_dir(&root).expect("a directory");
    let env = firn_env::real(&root).expect("an environment");
    let store = open(&env).await;
    let put = async |name| store.put(&key(name), vec!["x".into()], PutMode::Create).await;
    put("a/b").await.expect("healthy");
    std::fs::rename(&root, &away).expect("renamed");
    // Nothing is there, or an empty place where something is mounted at other times.
    for _ in 0..2 {
        let unavailable =
            |error: StoreError| assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
        unavailable(store.get(&key("a/b")).await.expect_err("away"));
        unavailable(store.head(&key("a/b")).await.expect_err("away"));
        unavailable(store.list("a/", None).await.expect_err("away"));
        unavailable(put("c/d").await.expect_err("away"));
        let _ = std::fs::create_dir(&root);
    }
    std::fs::remove_dir_all(&root).expect("removed");
    std::fs::rename(&away, &root).expect("renamed");
    assert_eq!(store.get(&key("a/b")).await.expect("back"), "x");
    put("c/d").await.expect("back");
}

#[test]
fn an_object_and_objects_below_it_cannot_both_be_held() {
    // The kernel's own answers are what matters here.
    let directory = tempfile::tempdir().expect("a temporary directory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let env = firn_env::real(directory.path()).expect("the directory is there");
        let store = open(&env).await;
        store
            .put(&key("a/b"), vec!["x".into()], PutMode::Create)
            .await
            .expect("created");
        for (name, mode) in [
            ("a", PutMode::Create),
            ("a", PutMode::Overwrite),
            ("a/b/c", PutMode::Create),
            ("a/b/c/d", PutMode::Overwrite),
        ] {
            let refused = store.put(&key(name), vec!["y".into()], mode).await;
            assert!(
                matches!(&refused, Err(StoreError::Invalid { .. })),
                "{name}: {refused:?}"
            );
        }
        assert!(matches!(
            store.get(&key("a")).await,
            Err(StoreError::NotFound { .. })
        ));
        assert!(matches!(
            store.head(&key("a")).await,
            Err(StoreError::NotFound { .. })
        ));
        assert!(matches!(
            store.get(&key("a/b/c")).await,
            Err(StoreError::NotFound { .. })
        ));
        store.delete(&key("a")).await.expect("no such object");
        store.delete(&key("a/b/c")).await.expect("no such object");
        assert_eq!(store.get(&key("a/b")).await.expect("untouched"), "x");
        let long = format!("a/{}", "n".repeat(256));
        let refused = store.put(&key(&long), vec!["y".into()], PutMode::Create).await;
        assert!(
            matches!(&refused, Err(StoreError::Invalid { detail, .. }) if detail.contains("255")),
            "{refused:?}"
        );
    });
}

#[test]
fn what_was_never_named_is_removed_once_nobody_can_be_writing_it() {
    simulate(6, |machine, world| async move {
        let env = machine.env();
        let store = open(&env).await;
        // The put comes to this point and never further, as if its process had been killed there.
        let stop = FaultAction::Crash(Box::new(|| ()));
        machine.faults().arm("store.directory.after_sync", 1, stop);
        let name = key("a");
        let put = store.put(&name, vec!["x".into()], PutMode::Create);
        env.timeout(Duration::from_secs(1), put)
            .await
            .expect_err("it stopped for ever");
        let left = || async { env.disk().list("store/+incoming").await.expect("it lists").len() };
        // Another process may be writing it, for all this one knows.
        open(&env).await;
        assert_eq!(left().await, 1);
        world.sleep(Duration::from_secs(3700)).await;
        open(&env).await;
        assert_eq!(left().await, 0);
    });
}

#[test]
fn two_processes_that_create_one_name_agree_who_did() {
    for seed in 0..100 {
        simulate(seed, |machine, _| async move {
            let env = machine.env();
            let stores = [Arc::new(open(&env).await), Arc::new(open(&env).await)];
            let creators: Vec<_> = (0..6_u64)
                .map(|number| {
                    let store = stores[number as usize % 2].clone();
                    env.spawn("creator", async move {
                        let made = store
                            .put(&key("d/one"), vec![content(number)], PutMode::Create)
                            .await;
                        made.is_ok().then_some(number)
                    })
                })
                .collect();
            let mut winners = Vec::new();
            for creator in creators {
                winners.extend(creator.await.expect("a creator returns"));
            }
            assert_eq!(winners.len(), 1, "{winners:?}");
            let shown = version(&stores[0].get(&key("d/one")).await.expect("one of them made it"));
            assert_eq!(shown, winners[0]);
        });
    }
}

//! The one suite of rules, on every store of this crate.

use firn_env::Env;
use firn_store::{
    DirectoryStore, FaultConfig, Faulty, MemoryStore, Metered, RetryPolicy, Retrying, Stack, StackConfig,
    Store, conformance,
};
use std::sync::Arc;

fn environment() -> (tempfile::TempDir, Env) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let env = firn_env::real(directory.path()).expect("the directory is there");
    (directory, env)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_memory_store_conforms() {
    let (_directory, env) = environment();
    conformance::check(&env, Arc::new(MemoryStore::new(&env))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_that_keeps_versions_conforms_below_all_layers() {
    let (_directory, env) = environment();
    let backend = Arc::new(MemoryStore::keeping_versions(&env));
    let faulty = Faulty::new(&env, backend.clone(), FaultConfig::default()).expect("no faults make sense");
    let stack = Stack::new(&env, Arc::new(faulty), StackConfig::default());
    assert!(stack.store.keeps_versions().await.expect("it is told"));
    conformance::check(&env, stack.store).await;
    assert!(backend.stored_bytes() > 0, "what was deleted plainly is kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_directory_store_conforms() {
    let (_directory, env) = environment();
    let store = DirectoryStore::open(&env, "").await.expect("it opens");
    conformance::check(&env, Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_directory_stores_on_one_directory_conform_as_one() {
    let (directory, env) = environment();
    let open = || async {
        // Another environment is what another process would have.
        let env = firn_env::real(directory.path()).expect("the directory is there");
        Arc::new(DirectoryStore::open(&env, "deep/inside").await.expect("it opens"))
    };
    let store = TakesTurns {
        stores: [open().await, open().await],
        turn: Default::default(),
    };
    conformance::check(&env, Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_layers_without_faults_conform() {
    let (_directory, env) = environment();
    let backend = Arc::new(MemoryStore::new(&env));
    let faulty = Faulty::new(&env, backend.clone(), FaultConfig::default()).expect("no faults make sense");
    let stack = Stack::new(&env, Arc::new(faulty), StackConfig::default());
    conformance::check(&env, stack.store).await;
    let usage = stack.meter.usage();
    assert!(usage.puts > 1000 && usage.deletes > 1000 && usage.lists > 10);
    assert_eq!(usage.failures, 0);
    assert_eq!(stack.retrying.statistics().retries, 0);
    assert_eq!(backend.stored_bytes(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_request_at_a_time_is_enough_to_conform() {
    let (_directory, env) = environment();
    let metered = Arc::new(Metered::new(Arc::new(MemoryStore::new(&env))));
    let policy = RetryPolicy {
        reads_at_once: 1,
        writes_at_once: 1,
        ..RetryPolicy::default()
    };
    conformance::check(&env, Arc::new(Retrying::new(&env, metered, policy))).await;
}

/// Sends one request here and the next there, as two edges on one store do.
struct TakesTurns {
    stores: [Arc<DirectoryStore>; 2],
    turn: std::sync::atomic::AtomicUsize,
}

impl TakesTurns {
    fn next(&self) -> &DirectoryStore {
        let turn = self.turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        &self.stores[turn % 2]
    }
}

#[async_trait::async_trait]
impl Store for TakesTurns {
    async fn put(
        &self,
        key: &firn_store::ObjectKey,
        parts: Vec<bytes::Bytes>,
        mode: firn_store::PutMode,
    ) -> Result<(), firn_store::StoreError> {
        self.next().put(key, parts, mode).await
    }
    async fn get(&self, key: &firn_store::ObjectKey) -> Result<bytes::Bytes, firn_store::StoreError> {
        self.next().get(key).await
    }
    async fn get_range(
        &self,
        key: &firn_store::ObjectKey,
        offset: u64,
        length: u64,
    ) -> Result<bytes::Bytes, firn_store::StoreError> {
        self.next().get_range(key, offset, length).await
    }
    async fn head(
        &self,
        key: &firn_store::ObjectKey,
    ) -> Result<firn_store::ObjectInfo, firn_store::StoreError> {
        self.next().head(key).await
    }
    async fn delete(&self, key: &firn_store::ObjectKey) -> Result<(), firn_store::StoreError> {
        self.next().delete(key).await
    }
    async fn list(
        &self,
        prefix: &str,
        after: Option<&firn_store::ObjectKey>,
    ) -> Result<firn_store::ListPage, firn_store::StoreError> {
        self.next().list(prefix, after).await
    }
}

//! Cost of the log for each call, in processor time of the process (with the task that writes), over the model of a file system:
//!
//!     cargo test --release -p firn-access-log --test cost -- --ignored --nocapture

use firn_access_log::{AccessLog, AccessLogOptions, Protocol, UserNames, Who};
use firn_env::{Env, RealDisk, println};
use firn_vfs::{
    Caller, CreateMode, Credentials, MemoryOptions, MemoryVfs, Name, SetAttributes, Vfs, VfsError,
};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

const READS: u64 = 1_000_000;
const REMOVALS: u64 = 200_000;

struct Nobody;

impl UserNames for Nobody {
    fn name_of(&self, _: u32) -> Option<String> {
        None
    }
}

fn processor_nanoseconds() -> i64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Nanoseconds for each of `count` calls.
async fn of_calls<F: Future<Output = ()>>(count: u64, mut call: impl FnMut() -> F) -> f64 {
    let began = processor_nanoseconds();
    for _ in 0..count {
        call().await;
    }
    (processor_nanoseconds() - began) as f64 / count as f64
}

async fn measured(env: &Env, vfs: &dyn Vfs, log: Option<&AccessLog>) -> (f64, f64) {
    let caller = Caller::new(Credentials::root());
    let name = Name::new("file").expect("a name");
    let (file, _) = vfs.lookup(&caller, vfs.root(), &name).await.expect("there");
    let read = of_calls(READS, || async {
        vfs.read(&caller, file, 0, 4096).await.expect("read");
    });
    let read = read.await;
    let missing = Name::new("missing").expect("a name");
    let began = processor_nanoseconds();
    for number in 0..REMOVALS {
        let removed = vfs.remove(&caller, vfs.root(), &missing).await;
        assert_eq!(removed.expect_err("missing"), VfsError::NotFound);
        // At a pace that the writer can keep.
        while log.is_some_and(|log| log.status().waiting > 8000) {
            env.sleep(std::time::Duration::from_millis(1)).await;
        }
        if number % 1000 == 0 {
            env.yield_now().await;
        }
    }
    if let Some(log) = log {
        log.flush().await;
    }
    (read, (processor_nanoseconds() - began) as f64 / REMOVALS as f64)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn cost_of_a_call() {
    let directory = tempfile::tempdir().expect("a directory");
    let env = firn_env::real(directory.path()).expect("an environment");
    let model: Arc<dyn Vfs> = Arc::new(MemoryVfs::new(&env, MemoryOptions::default()));
    let caller = Caller::new(Credentials::root());
    let name = Name::new("file").expect("a name");
    let mode = CreateMode::Guarded(SetAttributes::default());
    model
        .create(&caller, model.root(), &name, mode)
        .await
        .expect("made");
    let options = AccessLogOptions {
        disk: Arc::new(RealDisk::open(directory.path()).expect("a disk")),
        file_bytes_max: 16 << 20,
        files_max: 8,
        syslog: None,
        version: "0".into(),
    };
    let log = AccessLog::start(&env, options, Arc::new(Nobody));
    let who = Who {
        protocol: Protocol::Nfs,
        address: Some([10, 0, 0, 7].into()),
        uid: Some(1001),
        effective_uid: Some(1001),
    };
    let recorded = log.recorder("main", Some("/export")).view(model.clone(), who);
    for _ in 0..3 {
        let (read, removal) = measured(&env, &*model, None).await;
        let (logged_read, logged_removal) = measured(&env, &recorded, Some(&log)).await;
        println!(
            "a read {:.0} ns more ({read:.0} without the log), a change {:.0} ns more ({removal:.0} without), lost {}",
            logged_read - read,
            logged_removal - removal,
            log.status().lost
        );
    }
    log.end().await;
}

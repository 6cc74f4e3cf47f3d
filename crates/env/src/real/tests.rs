//! Tasks under a runtime that ends.

use super::real;
use crate::{Env, OpenMode};
use std::{
    future::Future,
    sync::{
        Arc,
        mpsc::{self, Sender},
    },
    time::Duration,
};

/// Says at the end of a task whether it was a panic.
struct Ended(Sender<bool>);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::panicking());
    }
}

/// Ends a runtime while one of its threads is inside a task, which then goes on to `rest`; returns whether that panicked.
fn panics_in_a_runtime_that_ends<F>(rest: impl FnOnce(Env) -> F + Send + 'static) -> bool
where
    F: Future<Output = ()> + Send,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (begun, has_begun) = mpsc::channel();
    let (go_on, told) = mpsc::channel();
    let (ended, has_ended) = mpsc::channel();
    runtime.spawn(async move {
        let _ended = Ended(ended);
        let env = real(&std::env::temp_dir()).unwrap();
        begun.send(()).unwrap();
        told.recv().unwrap();
        rest(env).await;
    });
    let limit = Duration::from_secs(60);
    has_begun.recv_timeout(limit).unwrap();
    runtime.shutdown_background();
    go_on.send(()).unwrap();
    has_ended.recv_timeout(limit).unwrap()
}

#[test]
fn work_that_an_ending_runtime_drops_is_no_panic() {
    assert!(!panics_in_a_runtime_that_ends(|env| async move {
        env.compute(|| ()).await;
        unreachable!("nothing begins in a runtime that ends");
    }));
}

/// A sync that was never made must not look like one that failed, which ends the program.
#[test]
fn a_call_of_the_disk_that_an_ending_runtime_drops_has_no_answer() {
    assert!(!panics_in_a_runtime_that_ends(|env| async move {
        let answer = env.disk().open("absent", OpenMode::Read).await.map(|_| ());
        unreachable!("nothing begins in a runtime that ends: {answer:?}");
    }));
}

/// Whatever else the machine does: of a thousand sleeps of a tenth of a millisecond some do not wait for a timer's next millisecond.
#[tokio::test]
async fn a_precise_sleep_does_not_wait_for_the_next_millisecond() {
    let env = real(&std::env::temp_dir()).unwrap();
    let wanted = Duration::from_micros(100);
    let mut precise = 0;
    for _ in 0..1000 {
        let began = env.now();
        env.sleep_precisely(wanted).await;
        let took = env.now().since(began);
        assert!(took >= wanted, "{took:?}");
        precise += u32::from(took < Duration::from_micros(500));
    }
    assert!(precise >= 20, "{precise} of 1000");
    let began = env.now();
    env.sleep_precisely(Duration::from_millis(5)).await;
    assert!(env.now().since(began) >= Duration::from_millis(5));
}

#[tokio::test]
#[should_panic(expected = "in the middle of it")]
async fn a_panic_of_work_is_one_of_its_caller() {
    let env = real(&std::env::temp_dir()).unwrap();
    env.compute(|| panic!("in the middle of it")).await
}

/// The process of the test below.
#[tokio::test]
#[ignore = "it ends its process"]
async fn an_essential_task_panics() {
    let env = real(&std::env::temp_dir()).unwrap();
    drop(env.spawn_essential("doomed", async { panic!("a failed sync") }));
    env.sleep(Duration::from_secs(60)).await;
}

#[test]
fn a_panic_of_an_essential_task_ends_the_process() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "real::tests::an_essential_task_panics"])
        .output()
        .unwrap();
    assert_eq!(child.status.code(), Some(crate::ESSENTIAL_PANICKED), "{child:?}");
}

/// Or its syncs would never be waited for in place at queue depth 1.
#[tokio::test]
async fn the_disk_of_an_environment_looks_at_its_requests() {
    let env = real(&std::env::temp_dir()).unwrap();
    let holders = Arc::strong_count(env.queue_depth());
    assert_eq!(holders, 2, "the environment and its disk");
    let other = env.with_disk(env.disk().clone());
    assert!(Arc::ptr_eq(env.queue_depth(), other.queue_depth()));
}

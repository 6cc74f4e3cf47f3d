//! Calls in flight that share the task of their connection's reader.
//!
//! A call that waits for the journal is woken on the thread that wrote it, and its reply leaves from there. As a task of its
//! own it would be handed to another thread and back, which takes longer than a sync of a fast disk (decision 0030).

use crate::Env;
use futures::task::{ArcWake, AtomicWaker};
use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    pin_mut,
    stream::FuturesUnordered,
    task::{Context, Poll, waker},
};
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::Waker,
};

/// Polled by whoever waits [`beside`](Calls::beside) them. Dropped, they go on as a task: what a client asked for happens
/// though its connection has ended.
pub struct Calls {
    env: Env,
    name: &'static str,
    running: FuturesUnordered<BoxFuture<'static, ()>>,
    doorbell: Arc<Doorbell>,
    /// Of the doorbell.
    waker: Waker,
}

/// Wakes the reader's task when a call can go on, but not while that task is looking at its calls.
///
/// The set of futures wakes its task whenever all of them have been polled, to be fair to others. A task that is woken while
/// it runs is offered to the next thread. For a client that makes one call at a time that would wake a thread for each,
/// which finds nothing to do. With several calls in flight it is welcome: that thread goes on reading while this one syncs.
#[derive(Default)]
struct Doorbell {
    task: AtomicWaker,
    looking: AtomicBool,
    rung: AtomicBool,
}

impl ArcWake for Doorbell {
    fn wake_by_ref(doorbell: &Arc<Self>) {
        if doorbell.looking.load(SeqCst) {
            doorbell.rung.store(true, SeqCst);
            // Still looking: whoever looks stops doing so before it asks whether there was a ring, and so hears this one.
            if doorbell.looking.load(SeqCst) {
                return;
            }
        }
        doorbell.task.wake();
    }
}

impl Calls {
    /// None yet; `name` is that of the task that they become if they outlive this.
    pub fn new(env: &Env, name: &'static str) -> Self {
        let doorbell = Arc::new(Doorbell::default());
        Self {
            env: env.clone(),
            name,
            running: FuturesUnordered::new(),
            waker: waker(doorbell.clone()),
            doorbell,
        }
    }

    /// Begins a call here and now: most end at once, from memory. What has to wait is taken over.
    pub fn begin(&mut self, mut call: BoxFuture<'static, ()>) {
        if call.as_mut().now_or_never().is_none() {
            self.running.push(call);
        }
    }

    /// Waits for `future` while calls go on. Whatever the future waits for may depend on one of them.
    pub async fn beside<T>(&mut self, future: impl Future<Output = T>) -> T {
        pin_mut!(future);
        std::future::poll_fn(|context| {
            self.run(context);
            future.as_mut().poll(context)
        })
        .await
    }

    /// Lets every call go on that can.
    fn run(&mut self, context: &mut Context<'_>) {
        if self.running.is_empty() {
            return;
        }
        self.doorbell.task.register(context.waker());
        // The first look may end with the ring that says that all were looked at; one in the second is of a call that can go
        // on, or wants to let others run first.
        for _ in 0..2 {
            self.doorbell.looking.store(true, SeqCst);
            let mut calls = Context::from_waker(&self.waker);
            while let Poll::Ready(Some(())) = self.running.poll_next_unpin(&mut calls) {}
            self.doorbell.looking.store(false, SeqCst);
            if !self.doorbell.rung.swap(false, SeqCst) {
                return;
            }
            if self.running.len() > 1 {
                break;
            }
        }
        context.waker().wake_by_ref();
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        if !self.running.is_empty() {
            let running = std::mem::take(&mut self.running);
            drop(self.env.spawn(self.name, running.collect::<()>()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Calls, SeqCst};
    use futures::{FutureExt, channel::oneshot, future};
    use std::sync::{Arc, atomic::AtomicUsize};

    fn calls() -> Calls {
        Calls::new(&crate::real(&std::env::temp_dir()).unwrap(), "calls")
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_waited_for_may_depend_on_a_call() {
        let mut calls = calls();
        let (go, started) = oneshot::channel::<()>();
        let (done, waiting) = oneshot::channel::<()>();
        let call = async move {
            started.await.unwrap();
            done.send(()).unwrap();
        };
        calls.begin(call.boxed());
        let env = calls.env.clone();
        let waker = calls.env.spawn("waker", async move {
            env.yield_now().await;
            go.send(()).unwrap();
        });
        calls.beside(waiting).await.unwrap();
        waker.await.unwrap();
        assert!(calls.running.is_empty());
    }

    #[tokio::test]
    async fn a_call_that_lets_others_run_comes_to_its_end() {
        let mut calls = calls();
        for count in [1, 3] {
            let ended = Arc::new(AtomicUsize::new(0));
            for _ in 0..count {
                let ended = ended.clone();
                let call = async move {
                    for _ in 0..1000 {
                        tokio::task::consume_budget().await;
                        // Wakes itself at once, as the set of calls does.
                        let mut again = true;
                        future::poll_fn(|context| {
                            context.waker().wake_by_ref();
                            match std::mem::take(&mut again) {
                                true => std::task::Poll::Pending,
                                false => std::task::Poll::Ready(()),
                            }
                        })
                        .await;
                    }
                    ended.fetch_add(1, SeqCst);
                };
                calls.begin(call.boxed());
            }
            let all = future::poll_fn(|context| {
                context.waker().wake_by_ref();
                match ended.load(SeqCst) == count {
                    true => std::task::Poll::Ready(()),
                    false => std::task::Poll::Pending,
                }
            });
            calls.beside(all).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_ring_is_lost_among_threads() {
        let mut calls = calls();
        for round in 0..2000 {
            let (go, started) = oneshot::channel::<()>();
            let (done, waiting) = oneshot::channel::<()>();
            let call = async move {
                started.await.unwrap();
                done.send(()).unwrap();
            };
            calls.begin(call.boxed());
            let env = calls.env.clone();
            let ringer = env.clone().spawn("ringer", async move {
                let ring = move || {
                    for _ in 0..round % 50 {
                        std::hint::spin_loop();
                    }
                    go.send(()).unwrap();
                };
                env.compute(ring).await;
            });
            // Would wait for ever after a lost ring.
            calls.beside(waiting).await.unwrap();
            ringer.await.unwrap();
        }
    }

    #[tokio::test]
    async fn calls_outlive_their_connection() {
        let mut calls = calls();
        let (go, started) = oneshot::channel::<()>();
        let (done, waiting) = oneshot::channel::<()>();
        let call = async move {
            started.await.unwrap();
            done.send(()).unwrap();
        };
        calls.begin(call.boxed());
        calls.beside(future::ready(())).await;
        drop(calls);
        go.send(()).unwrap();
        waiting.await.unwrap();
    }
}

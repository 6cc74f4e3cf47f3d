//! Concurrent tasks, independent of the executor that runs them.

use futures::{channel::oneshot, future::BoxFuture};
use std::{
    any::Any,
    convert::Infallible,
    future::{self, Future},
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    task::{Context, Poll},
};

/// Something that runs futures.
pub trait Tasks: Send + Sync {
    /// Starts `future`; the returned closure ends it at its next await.
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn Fn() + Send + Sync>;
    /// Runs blocking or CPU-bound work off the executor's own threads (in place, under simulation). An executor that is ending
    /// may drop it instead.
    fn spawn_compute(&self, work: Box<dyn FnOnce() + Send>);
    /// A task without which the process must not go on has panicked: ends the process. Under simulation a panic is the crash of
    /// its machine anyway.
    fn essential_panicked(&self, name: &'static str, payload: Box<dyn Any + Send>) -> Infallible {
        let _ = name;
        panic::resume_unwind(payload)
    }
    /// Completes after every task that is ready now has run once.
    fn yield_now(&self) -> BoxFuture<'static, ()> {
        let mut yielded = false;
        Box::pin(std::future::poll_fn(move |context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }))
    }
}

/// The task was aborted, panicked, or its machine crashed before it returned a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task ended without a result")]
pub struct TaskEnded;

/// A started task; awaiting it yields its result.
pub struct Task<T> {
    result: oneshot::Receiver<T>,
    abort: Box<dyn Fn() + Send + Sync>,
}

impl<T: Send + 'static> Task<T> {
    pub(crate) fn start(
        tasks: &dyn Tasks,
        name: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Self {
        let (sender, result) = oneshot::channel();
        let abort = tasks.spawn(
            name,
            Box::pin(async move {
                // A dropped receiver means nobody wants the result; that is the caller's choice.
                let _ = sender.send(future.await);
            }),
        );
        Self { result, abort }
    }
}

impl<T> Task<T> {
    /// Ends the task at its next await. What it holds is dropped.
    pub fn abort(&self) {
        (self.abort)();
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, TaskEnded>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.result).poll(context).map_err(|_| TaskEnded)
    }
}

pub(crate) async fn compute<T: Send + 'static>(
    tasks: &dyn Tasks,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, result) = oneshot::channel();
    tasks.spawn_compute(Box::new(move || {
        // A dropped receiver means that the caller was ended: nobody wants the result.
        let _ = sender.send(panic::catch_unwind(AssertUnwindSafe(work)));
    }));
    match result.await {
        Ok(Ok(value)) => value,
        Ok(Err(payload)) => panic::resume_unwind(payload),
        // Only an executor that is ending drops work before it is done. It is about to drop the caller as well, whom nothing
        // that could be said here would help.
        Err(oneshot::Canceled) => future::pending().await,
    }
}

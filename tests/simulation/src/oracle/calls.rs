//! Attribution of changes to calls: what the engine applies is known to belong to the call that it is working for.

use std::{cell::Cell, future::poll_fn, pin::pin};

thread_local! {
    /// The call in whose task the engine runs just now.
    static CURRENT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs `future` so that what the engine applies in it is known to belong to call `id`.
pub async fn in_call<T>(id: u64, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    poll_fn(|context| {
        let before = CURRENT.replace(Some(id));
        let poll = future.as_mut().poll(context);
        CURRENT.set(before);
        poll
    })
    .await
}

/// The call that is running, if any.
pub fn current_call() -> Option<u64> {
    CURRENT.get()
}

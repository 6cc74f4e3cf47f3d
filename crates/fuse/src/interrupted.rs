//! Interruption of a waiting request (FUSE_INTERRUPT): its process got a signal.

use futures::FutureExt;
use tokio::sync::Notify;

/// A waiting request's way to hear that it is to give up.
#[derive(Default)]
pub(crate) struct Interrupted(Notify);

impl Interrupted {
    /// The process got a signal.
    pub(crate) fn signal(&self) {
        self.0.notify_one();
    }

    /// Whether the process got a signal that was not heard yet.
    pub(crate) fn is_signalled(&self) -> bool {
        self.wait().now_or_never().is_some()
    }

    /// Completes when the process got a signal.
    pub(crate) async fn wait(&self) {
        self.0.notified().await;
    }
}

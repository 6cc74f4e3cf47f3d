//! Interruption of a waiting request (FUSE_INTERRUPT): its process got a signal.

use tokio::sync::Notify;

/// A waiting request's way to hear that it is to give up.
#[derive(Default)]
pub(crate) struct Interrupted(Notify);

impl Interrupted {
    /// The process got a signal.
    pub(crate) fn signal(&self) {
        self.0.notify_one();
    }

    /// Completes when the process got a signal.
    pub(crate) async fn wait(&self) {
        self.0.notified().await;
    }
}

//! [`Elsewhere`]: news of what other edges changed in the volume, for those here who cache of it (the kernel of a mount).
//!
//! A follower tells at each adoption which inodes differ between the two roots, a member at each change of its role which differ between what it
//! showed last and what it shows now. Whoever cares takes all that is new at once, so what waits is bounded: more than [`FILES_MAX`] inodes become
//! "anything". While nobody listens nothing is gathered, and a follower compares only what it has in memory itself.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::Notify;

/// Inodes that are named one by one; as many as an adoption finds one by one.
pub(crate) const FILES_MAX: usize = 4096;

/// What is no longer as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedElsewhere {
    /// Inodes of the volume: content, attributes, and entries of directories.
    Files(BTreeSet<u64>),
    /// Nobody knows what: anything.
    Anything,
}

/// See the module; cheap to clone, all clones are one.
#[derive(Clone, Default)]
pub struct Elsewhere {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    news: Mutex<Option<ChangedElsewhere>>,
    told: Notify,
    /// Taken by the listener, and not dropped from every cache yet.
    in_hand: AtomicBool,
    passed_on: Notify,
    is_heard: AtomicBool,
}

impl Elsewhere {
    fn news(&self) -> MutexGuard<'_, Option<ChangedElsewhere>> {
        self.inner.news.lock().expect("no panic under this lock")
    }

    /// From now on somebody listens.
    pub fn listen(&self) {
        self.inner.is_heard.store(true, Ordering::Release);
    }

    pub(crate) fn is_heard(&self) -> bool {
        self.inner.is_heard.load(Ordering::Acquire)
    }

    /// `None`: anything may have changed.
    pub(crate) fn tell(&self, changed: Option<BTreeSet<u64>>) {
        if !self.is_heard() || changed.as_ref().is_some_and(BTreeSet::is_empty) {
            return;
        }
        let mut news = self.news();
        *news = Some(match (news.take(), changed) {
            (None, Some(files)) => ChangedElsewhere::Files(files),
            (Some(ChangedElsewhere::Files(mut known)), Some(files)) => {
                known.extend(files);
                match known.len() > FILES_MAX {
                    true => ChangedElsewhere::Anything,
                    false => ChangedElsewhere::Files(known),
                }
            }
            (Some(ChangedElsewhere::Anything), _) | (_, None) => ChangedElsewhere::Anything,
        });
        drop(news);
        self.inner.told.notify_one();
    }

    /// All that changed since the last time; waits until something did. That it asks says that what it took before is in no cache any more. One
    /// listener at a time.
    pub async fn next(&self) -> ChangedElsewhere {
        loop {
            {
                let mut news = self.news();
                self.inner.in_hand.store(news.is_some(), Ordering::Release);
                if let Some(news) = news.take() {
                    return news;
                }
            }
            self.inner.passed_on.notify_waiters();
            self.inner.told.notified().await;
        }
    }
}

impl Elsewhere {
    fn is_passed_on(&self) -> bool {
        let news = self.news();
        news.is_none() && !self.inner.in_hand.load(Ordering::Acquire)
    }

    /// Waits until everything told is in no cache any more.
    pub(crate) async fn passed_on(&self) {
        loop {
            let passed_on = self.inner.passed_on.notified();
            futures::pin_mut!(passed_on);
            passed_on.as_mut().enable();
            if !self.is_heard() || self.is_passed_on() {
                return;
            }
            passed_on.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn files(numbers: impl IntoIterator<Item = u64>) -> Option<BTreeSet<u64>> {
        Some(numbers.into_iter().collect())
    }

    #[test]
    fn news_are_gathered_while_somebody_listens_and_become_anything_when_they_are_many() {
        let elsewhere = Elsewhere::default();
        elsewhere.tell(files([1]));
        assert_eq!(elsewhere.next().now_or_never(), None, "nobody listened");
        elsewhere.listen();
        elsewhere.tell(files([]));
        assert_eq!(elsewhere.next().now_or_never(), None);
        assert_eq!(elsewhere.passed_on().now_or_never(), Some(()));
        elsewhere.tell(files([1, 2]));
        elsewhere.tell(files([2, 3]));
        assert_eq!(elsewhere.passed_on().now_or_never(), None, "nobody has taken it");
        let taken = elsewhere.next().now_or_never();
        assert_eq!(taken, files([1, 2, 3]).map(ChangedElsewhere::Files));
        assert_eq!(
            elsewhere.passed_on().now_or_never(),
            None,
            "it is taken, and not passed on"
        );
        assert_eq!(elsewhere.next().now_or_never(), None);
        assert_eq!(elsewhere.passed_on().now_or_never(), Some(()));
        elsewhere.tell(files(0..FILES_MAX as u64));
        elsewhere.tell(files([FILES_MAX as u64]));
        elsewhere.tell(files([7]));
        assert_eq!(elsewhere.next().now_or_never(), Some(ChangedElsewhere::Anything));
        elsewhere.tell(None);
        assert_eq!(elsewhere.next().now_or_never(), Some(ChangedElsewhere::Anything));
    }
}

//! Summaries: reads, writes and listings of one file by one client, summed up to one event.
//!
//! A summary ends when its client leaves the file alone for five seconds, after a minute at the latest, or when the table of them is full: then
//! the oldest goes.

use crate::event::{Detail, Event, Located, Outcome, Share, Who};
use firn_env::{Monotonic, WallTime};
use firn_vfs::FileHandle;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

/// Summaries at once, at some 300 bytes.
const SUMMARIES_MAX: usize = 8192;
/// After so long without a further call.
const IDLE: Duration = Duration::from_secs(5);
/// After so long in any case.
const LONGEST: Duration = Duration::from_secs(60);

/// What is summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Read,
    Write,
    List,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::List => "list",
        }
    }
}

/// Whose summary of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) share: u32,
    pub(crate) who: Who,
    pub(crate) file: FileHandle,
    pub(crate) kind: Kind,
}

struct Summary {
    number: u64,
    share: Arc<Share>,
    path: Located,
    first: WallTime,
    last: WallTime,
    began: Monotonic,
    touched: Monotonic,
    calls: u64,
    bytes: u64,
}

impl Summary {
    fn event(self, key: &Key) -> Event {
        Event {
            at: self.first,
            until: Some(self.last),
            operation: key.kind.name(),
            outcome: Outcome::Done,
            who: key.who,
            share: self.share,
            path: Some(self.path),
            to: None,
            inode: Some(key.file.inode),
            sum: Some((self.calls, self.bytes)),
            detail: Detail::None,
        }
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Summaries {
    open: HashMap<Key, Summary>,
    /// In the order of their beginnings; with some that ended.
    order: VecDeque<(Key, u64)>,
    next: u64,
}

impl Summaries {
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Adds a call. `begin` tells whose and where, if it is the first; gives the summary that had to go for it.
    pub(crate) fn add(
        &mut self,
        key: Key,
        (now, at): (Monotonic, WallTime),
        bytes: u64,
        begin: impl FnOnce() -> (Arc<Share>, Located),
    ) -> Option<Event> {
        if let Some(summary) = self.open.get_mut(&key) {
            summary.calls += 1;
            summary.bytes += bytes;
            summary.last = at;
            summary.touched = now;
            return None;
        }
        let gone = if self.open.len() >= SUMMARIES_MAX {
            self.oldest()
        } else {
            None
        };
        let (share, path) = begin();
        let number = self.next;
        self.next += 1;
        self.order.push_back((key, number));
        self.open.insert(
            key,
            Summary {
                number,
                share,
                path,
                first: at,
                last: at,
                began: now,
                touched: now,
                calls: 1,
                bytes,
            },
        );
        gone
    }

    fn oldest(&mut self) -> Option<Event> {
        while let Some((key, number)) = self.order.pop_front() {
            if self
                .open
                .get(&key)
                .is_some_and(|summary| summary.number == number)
                && let Some(summary) = self.open.remove(&key)
            {
                return Some(summary.event(&key));
            }
        }
        None
    }

    /// Ends those that are due at `now`, or all; in the order in which they began.
    pub(crate) fn end(&mut self, now: Monotonic, all: bool) -> Vec<Event> {
        let mut ended = Vec::new();
        let order = std::mem::take(&mut self.order);
        for (key, number) in order {
            let Some(summary) = self.open.get(&key).filter(|summary| summary.number == number) else {
                continue;
            };
            let is_due = now.since(summary.touched) >= IDLE || now.since(summary.began) >= LONGEST;
            if !all && !is_due {
                self.order.push_back((key, number));
                continue;
            }
            if let Some(summary) = self.open.remove(&key) {
                ended.push(summary.event(&key));
            }
        }
        ended
    }
}

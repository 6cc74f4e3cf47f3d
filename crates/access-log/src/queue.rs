//! The queue between clients and the writer: bounded by events and bytes; what finds it full is counted.

use crate::event::Event;
use firn_env::WallTime;
use std::collections::VecDeque;

/// Events that wait: a second of 16,000 changes.
const EVENTS_MAX: usize = 16_384;
/// Memory of them, with their paths.
const BYTES_MAX: usize = 16 << 20;

/// Events that were not written, in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) count: u64,
    pub(crate) first: WallTime,
    pub(crate) last: WallTime,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Queue {
    events: VecDeque<Event>,
    bytes: usize,
    lost: Option<Lost>,
}

impl Queue {
    /// Takes an event, or counts it as lost; whether it was taken.
    pub(crate) fn push(&mut self, event: Event) -> bool {
        let bytes = event.bytes();
        // Whoever is behind what was lost is lost too, so that the count stands where it belongs in the log.
        if self.lost.is_some() || self.events.len() >= EVENTS_MAX || self.bytes + bytes > BYTES_MAX {
            let lost = self.lost.get_or_insert(Lost {
                count: 0,
                first: event.at,
                last: event.at,
            });
            lost.count += 1;
            lost.last = event.at;
            return false;
        }
        self.bytes += bytes;
        self.events.push_back(event);
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.lost.is_none()
    }

    /// The next events, at most `limit`; what was lost after them, once all of them are taken.
    pub(crate) fn take(&mut self, limit: usize) -> (Vec<Event>, Option<Lost>) {
        let count = self.events.len().min(limit);
        let events: Vec<Event> = self.events.drain(..count).collect();
        self.bytes -= events.iter().map(Event::bytes).sum::<usize>();
        let lost = if self.events.is_empty() {
            self.lost.take()
        } else {
            None
        };
        (events, lost)
    }
}

//! Single flight: GETs under way. Who needs their bytes waits for them, whoever started them.

use super::{Fetcher, Outcome, Refusal, State, Waiting, range_of};
use crate::objects::pieces::{assemble, cover};
use bytes::Bytes;
use firn_format::{Location, SegmentId};
use futures::{FutureExt, channel::oneshot};
use std::{ops::Range, sync::Arc};

/// Bytes under way ahead of their readers: half of what may be under way at all, the rest is for those who wait.
const AHEAD_BYTES_MAX: u64 = 32 << 20;

/// GETs under way that together bring an object.
pub(in crate::objects) struct InFlightGets(Vec<Waiting>);

impl InFlightGets {
    /// Waits for them and puts the object together.
    ///
    /// # Errors
    /// What one of them was refused; [`Refusal::Skipped`] says nothing about the store.
    pub(in crate::objects) async fn bytes(self, location: &Location) -> Result<Bytes, Refusal> {
        let mut parts = Vec::with_capacity(self.0.len());
        for outcome in self.0 {
            let fetched = outcome.await.unwrap_or(Err(Refusal::Skipped))?;
            parts.push((fetched.offset, fetched.bytes));
        }
        assemble(&mut parts, location).ok_or(Refusal::Short)
    }
}

/// A GET that was announced.
pub(super) struct InFlightGet {
    pub(super) number: u64,
    pub(super) range: Range<u32>,
    pub(super) outcome: Waiting,
}

/// A GET that was promised and not started.
pub(super) struct PlannedGet {
    pub(super) number: u64,
    pub(super) range: Range<u32>,
    pub(super) outcome: oneshot::Sender<Outcome>,
    /// Nobody has asked for its bytes.
    pub(super) is_ahead: bool,
}

impl Fetcher {
    /// Whether the object's bytes were fetched a moment ago or are on their way.
    pub(in crate::objects) fn is_under_way(&self, location: &Location) -> bool {
        let state = self.lock();
        let need = range_of(location);
        let gets = state.in_flight.get(&location.segment).into_iter().flatten();
        let gets = gets.map(|get| (&get.range, &()));
        state.windows.get(location).is_some() || !cover(gets, &need).is_empty()
    }

    /// Starts fetching bytes that nobody has asked for yet; whoever does waits for them. `false`, and nothing was started, if
    /// enough of that is under way: what the line carries in a second, and [`AHEAD_BYTES_MAX`] at most.
    pub(in crate::objects) fn fetch_ahead(self: &Arc<Self>, segment: SegmentId, range: Range<u32>) -> bool {
        let length = u64::from(range.end - range.start);
        let piece_bytes = {
            let mut state = self.lock();
            let allowed = state.link.ahead_bytes().min(AHEAD_BYTES_MAX);
            if state.ahead_bytes > 0 && state.ahead_bytes + length > allowed {
                return false;
            }
            state.ahead_bytes += length;
            state.link.ahead_piece_bytes()
        };
        let mut at = range.start;
        while at < range.end {
            let end = at.saturating_add(piece_bytes).min(range.end);
            let (mut planned, _) = self.promise(segment, at..end);
            planned.is_ahead = true;
            self.start(segment, planned, Vec::new());
            at = end;
        }
        true
    }

    /// The GETs under way that bring the object; `None` if they do not.
    pub(in crate::objects) fn under_way(&self, location: &Location) -> Option<InFlightGets> {
        let waiting = self.join(location.segment, &range_of(location));
        (!waiting.is_empty()).then_some(InFlightGets(waiting))
    }

    /// The GETs under way that together bring what is needed; none if they do not.
    pub(super) fn join(&self, segment: SegmentId, need: &Range<u32>) -> Vec<Waiting> {
        let mut state = self.lock();
        let gets = state.in_flight.get(&segment).map_or(&[][..], |gets| &gets[..]);
        let waiting = cover(gets.iter().map(|get| (&get.range, &get.outcome)), need);
        if !waiting.is_empty() {
            state.counters.shared_gets += 1;
        }
        waiting
    }

    /// Announces a GET, so that others wait for it rather than fetch the same.
    pub(super) fn promise(&self, segment: SegmentId, range: Range<u32>) -> (PlannedGet, Waiting) {
        let (outcome, receiver) = oneshot::channel();
        let waiting = receiver.shared();
        let mut state = self.lock();
        state.next_get += 1;
        let number = state.next_get;
        state.in_flight.entry(segment).or_default().push(InFlightGet {
            number,
            range: range.clone(),
            outcome: waiting.clone(),
        });
        (
            PlannedGet {
                number,
                range,
                outcome,
                is_ahead: false,
            },
            waiting,
        )
    }
}

/// A GET is no longer under way.
pub(super) fn land(state: &mut State, segment: SegmentId, number: u64) {
    if let Some(gets) = state.in_flight.get_mut(&segment) {
        gets.retain(|get| get.number != number);
        if gets.is_empty() {
            state.in_flight.remove(&segment);
        }
    }
}

//! Figures of a member, for `status` and `/metrics`.

use super::Inner;
use crate::salvage::SalvageReport;
use firn_env::{Monotonic, WallTime};
use std::time::Duration;

/// Salvages that are remembered.
const SALVAGES_MAX: usize = 8;

/// What a member is at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MemberRole {
    /// Nothing yet, or between two terms.
    #[default]
    Changing,
    /// It reads what another changes, or what nobody does.
    Following,
    /// The same, and it waits to own the volume.
    Waiting,
    /// It owns the volume.
    Owning,
    /// The same, and it publishes in order to give it.
    Giving,
}

/// How long handovers took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HandoverTimes {
    /// From a client's wish to the volume at hand, the last time.
    pub last_wait: Option<Duration>,
    /// The longest of these.
    pub longest_wait: Duration,
    /// All of them together.
    pub waits: Duration,
    /// From the decision to give to the volume given, the last time.
    pub last_gift: Option<Duration>,
    /// Of that, with clients held up.
    pub last_closed: Option<Duration>,
}

/// What was salvaged from this member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// The clone's name.
    pub clone: String,
    /// Acknowledged changes in it.
    pub records: u64,
    /// The paths of what they changed; a thousand at most.
    pub paths: Vec<String>,
    /// Paths beyond those.
    pub paths_more: u64,
    /// When, milliseconds since 1970.
    pub at_ms: i64,
}

/// A moment of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// What it is.
    pub role: MemberRole,
    /// Others that wait for the volume, as the owner knows it.
    pub waiting: usize,
    /// Whether the owner that is waited for is one that gives the volume; `None`: not known.
    pub owner_shares: Option<bool>,
    /// Since the last acknowledged heartbeat was sent.
    pub beat_ago: Option<Duration>,
    /// Whether the lease holds; `None`: not the owner.
    pub lease_holds: Option<bool>,
    /// Times that it took the volume.
    pub taken: u64,
    /// Times that it gave the volume.
    pub given: u64,
    /// Times that it took the volume over from an owner that was gone.
    pub breaks: u64,
    /// Times that the volume was taken over from it.
    pub broken: u64,
    /// Times that locks of a silent office were broken here.
    pub lock_breaks: u64,
    /// Locks of clients here that were broken elsewhere.
    pub locks_lost: u64,
    /// How long handovers took.
    pub times: HandoverTimes,
    /// What was salvaged, the newest last.
    pub salvaged: Vec<Salvaged>,
    /// Why the anchor cannot be asked, while the volume is waited for.
    pub away: Option<String>,
    /// Why the anchor refuses this edge, if it does: its clients are refused then.
    pub denied: Option<String>,
}

#[derive(Default)]
pub(super) struct Figures {
    role: MemberRole,
    pub waiting: usize,
    pub owner_shares: Option<bool>,
    pub away: Option<String>,
    pub denied: Option<String>,
    pub breaks: u64,
    pub lock_breaks: u64,
    pub locks_lost: u64,
    taken: u64,
    given: u64,
    broken: u64,
    wanted_at: Option<Monotonic>,
    gives_since: Option<Monotonic>,
    closed_since: Option<Monotonic>,
    times: HandoverTimes,
    salvaged: Vec<Salvaged>,
}

impl Figures {
    pub fn began(&mut self, now: Monotonic, is_owner: bool) {
        self.away = None;
        if let Some(since) = self.gives_since.take() {
            self.given += 1;
            self.times.last_gift = Some(now.since(since));
            self.times.last_closed = self.closed_since.take().map(|since| now.since(since));
        }
        if !is_owner {
            self.role = MemberRole::Following;
            self.waiting = 0;
            return;
        }
        self.role = MemberRole::Owning;
        self.taken += 1;
        self.owner_shares = None;
        if let Some(since) = self.wanted_at.take() {
            let wait = now.since(since);
            self.times.last_wait = Some(wait);
            self.times.longest_wait = self.times.longest_wait.max(wait);
            self.times.waits += wait;
        }
    }

    pub fn ended(&mut self) {
        self.role = MemberRole::Changing;
    }

    pub fn wants(&mut self, now: Monotonic) {
        self.role = MemberRole::Waiting;
        self.wanted_at.get_or_insert(now);
    }

    pub fn wants_no_more(&mut self) {
        self.role = MemberRole::Following;
        (self.wanted_at, self.owner_shares, self.away) = (None, None, None);
    }

    pub fn gives(&mut self, now: Monotonic) {
        self.role = MemberRole::Giving;
        self.gives_since = Some(now);
    }

    pub fn gate_closed(&mut self, now: Monotonic) {
        self.closed_since = Some(now);
    }

    pub fn salvaged(&mut self, report: &SalvageReport, now: WallTime) {
        self.broken += 1;
        if self.salvaged.len() >= SALVAGES_MAX {
            self.salvaged.remove(0);
        }
        self.salvaged.push(Salvaged {
            clone: report.name.clone(),
            records: report.recovery.records,
            paths: report.paths.clone(),
            paths_more: report.paths_more,
            at_ms: now.as_millis(),
        });
    }
}

impl Inner {
    pub(super) fn status(&self) -> MemberStatus {
        let env = &self.parts.env;
        let at_hand = self.gate.at_hand();
        let lease = at_hand.as_ref().and_then(|served| served.owning.as_ref());
        let figures = self.figures();
        MemberStatus {
            role: figures.role,
            waiting: figures.waiting,
            owner_shares: figures.owner_shares,
            beat_ago: lease.map(|lease| lease.age(env.now())),
            lease_holds: lease.map(|lease| lease.holds(env)),
            taken: figures.taken,
            given: figures.given,
            breaks: figures.breaks,
            broken: figures.broken,
            lock_breaks: figures.lock_breaks,
            locks_lost: figures.locks_lost,
            times: figures.times,
            salvaged: figures.salvaged.clone(),
            away: figures.away.clone(),
            denied: figures.denied.clone(),
        }
    }
}

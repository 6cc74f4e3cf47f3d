//! A volume that several edges write, one after the other: what the configuration says of it, and how it stands.

use crate::{
    durability::WrittenOnDisconnect,
    following::{self, FollowingPart, WrittenStaleReads},
    report::span,
    snapshot::OwnerPart,
};
use firn_quantity::Span;
use firn_volume::{Member, MemberOptions, MemberRole, MemberStatus, Salvaged};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Paths that `status` shows of a salvage; the log has more.
const PATHS_SHOWN: usize = 20;

/// How a volume is shared, if it is.
pub fn options(
    shared: bool,
    follow: bool,
    freshness: Option<Span>,
    stale_reads: Option<WrittenStaleReads>,
    on_disconnect: Option<WrittenOnDisconnect>,
) -> Result<Option<MemberOptions>, String> {
    if !shared {
        return Ok(None);
    }
    if follow {
        return Err(
            "volume.follow: a volume is followed or shared, not both: leave one of the two out".into(),
        );
    }
    let follow = following::options(true, freshness, stale_reads)?.unwrap_or_default();
    Ok(Some(MemberOptions {
        follow,
        serves_lapsed: on_disconnect == Some(WrittenOnDisconnect::Accept),
        ..MemberOptions::default()
    }))
}

/// A member of a shared volume as `status` and `/metrics` show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedPart {
    /// `owning`, `giving`, `following`, `waiting`, or `changing` between two of them.
    pub role: String,
    /// Other edges that wait for the volume, as its owner knows.
    pub waiting: u64,
    /// Whether the owner that is waited for is one that gives; absent: not known.
    pub owner_shares: Option<bool>,
    /// Since the last acknowledged heartbeat was sent.
    pub beat_age_ms: Option<u64>,
    /// Whether that is young enough to answer clients by.
    pub lease_holds: Option<bool>,
    /// Times that this edge took the volume, gave it, took it over, and lost it to a takeover.
    pub taken: u64,
    pub given: u64,
    pub breaks: u64,
    pub broken: u64,
    /// Times that locks of a silent office were broken here; locks of clients here that were broken elsewhere.
    #[serde(default)]
    pub lock_breaks: u64,
    #[serde(default)]
    pub locks_lost: u64,
    /// From a client's wish to change something to the volume at hand.
    pub last_wait_ms: Option<u64>,
    pub longest_wait_ms: u64,
    pub waits_ms: u64,
    /// From the decision to give to the volume given, and how much of that clients were held up.
    pub last_gift_ms: Option<u64>,
    pub last_closed_ms: Option<u64>,
    /// What was salvaged from this edge.
    pub salvaged: Vec<SalvagedPart>,
    /// Why the anchor cannot be asked, while the volume is waited for.
    pub away: Option<String>,
    /// Why the anchor refuses this edge, if it does: its clients are refused then.
    #[serde(default)]
    pub denied: Option<String>,
}

/// A salvage clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SalvagedPart {
    pub clone: String,
    pub records: u64,
    pub paths: Vec<String>,
    pub paths_more: u64,
    pub at_ms: i64,
}

impl From<Salvaged> for SalvagedPart {
    fn from(salvaged: Salvaged) -> Self {
        Self {
            clone: salvaged.clone,
            records: salvaged.records,
            paths: salvaged.paths,
            paths_more: salvaged.paths_more,
            at_ms: salvaged.at_ms,
        }
    }
}

impl SharedPart {
    pub fn new(member: &Member) -> Self {
        let MemberStatus {
            role,
            waiting,
            owner_shares,
            beat_ago,
            lease_holds,
            taken,
            given,
            breaks,
            broken,
            lock_breaks,
            locks_lost,
            times,
            salvaged,
            away,
            denied,
        } = member.status();
        let role = match role {
            MemberRole::Owning => "owning",
            MemberRole::Giving => "giving",
            MemberRole::Following => "following",
            MemberRole::Waiting => "waiting",
            MemberRole::Changing => "changing",
        };
        Self {
            role: role.into(),
            waiting: waiting as u64,
            owner_shares,
            beat_age_ms: beat_ago.map(millis),
            lease_holds,
            taken,
            given,
            breaks,
            broken,
            lock_breaks,
            locks_lost,
            last_wait_ms: times.last_wait.map(millis),
            longest_wait_ms: millis(times.longest_wait),
            waits_ms: millis(times.waits),
            last_gift_ms: times.last_gift.map(millis),
            last_closed_ms: times.last_closed.map(millis),
            salvaged: salvaged.into_iter().map(SalvagedPart::from).collect(),
            away,
            denied,
        }
    }

    /// For people.
    pub fn line(&self) -> String {
        let state = match (self.role.as_str(), self.waiting) {
            ("owning", 0) => "this edge owns the volume for now; nobody waits for it".into(),
            ("owning", waiting) => format!("this edge owns the volume for now; {waiting} wait for it"),
            ("giving", _) => "this edge publishes what it has, and gives the volume".into(),
            ("following", _) => {
                "this edge reads; the volume is asked for when a client changes something".into()
            }
            ("waiting", _) => "a client here waits to change something; the volume was asked for".into(),
            (other, _) => other.to_owned(),
        };
        let waited = self.last_wait_ms.map_or_else(String::new, |last| {
            format!(
                "; the last wait for it took {}, the longest {}",
                span(last),
                span(self.longest_wait_ms)
            )
        });
        format!(
            "{state}; taken {}, given {} times{waited}",
            self.taken, self.given
        )
    }

    /// What is wrong, and what that means.
    pub fn troubles(&self) -> Vec<String> {
        let mut troubles = Vec::new();
        if let Some(denied) = &self.denied {
            troubles.push(format!(
                "the anchor refuses this edge ({denied}); its clients get \"permission denied\". What they were acknowledged and the cloud does not \
                 have stays in the journal here"
            ));
        } else if self.lease_holds == Some(false) {
            troubles.push(
                "no heartbeat reaches the anchor: clients wait, and in a minute others may take the volume over".into(),
            );
        }
        if let Some(away) = &self.away {
            troubles.push(format!("the anchor cannot be asked for the volume: {away}"));
        }
        if self.owner_shares == Some(false) {
            troubles.push(
                "the owner does not give the volume: its configuration lacks `shared = true`, or it is an older version. Clients that \
                 change something here wait"
                    .into(),
            );
        }
        if self.locks_lost > 0 {
            troubles.push(format!(
                "{} locks of clients here were broken since the start, while other offices could not hear this edge: programs on mounts that had them were \
                 not told",
                self.locks_lost
            ));
        }
        for salvaged in &self.salvaged {
            let shown: Vec<_> = salvaged
                .paths
                .iter()
                .take(PATHS_SHOWN)
                .map(String::as_str)
                .collect();
            let more = (salvaged.paths.len() - shown.len()) as u64 + salvaged.paths_more;
            let and_more = match more {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            troubles.push(format!(
                "another office took the volume over: {} changes that it had not seen are in the clone {}: {}{and_more}",
                salvaged.records,
                salvaged.clone,
                shown.join(", ")
            ));
        }
        troubles
    }
}

/// Of a status page: whose the volume is, and how this edge stands to it.
pub fn rows(
    owner: &OwnerPart,
    following: Option<&FollowingPart>,
    shared: Option<&SharedPart>,
) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    match following {
        None => rows.push(("Owner", format!("{}, epoch {}", owner.name, owner.epoch))),
        Some(following) => {
            let owner = match owner.name.as_str() {
                "" => "nobody",
                name => name,
            };
            let follows = match shared {
                Some(_) => "this edge follows",
                None => "this edge follows, and only reads",
            };
            rows.push(("Owner", format!("{owner}; {follows}")));
            rows.push(("Follows", following.line()));
            rows.extend(following.trouble().map(|trouble| ("", trouble)));
        }
    }
    if let Some(shared) = shared {
        rows.push(("Shared", shared.line()));
        rows.extend(shared.troubles().into_iter().map(|trouble| ("", trouble)));
    }
    rows
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_followed_or_shared_and_what_is_of_neither_is_refused() {
        let wait = Some(WrittenOnDisconnect::Wait);
        assert_eq!(
            options(false, false, None, None, wait).map(|options| options.is_some()),
            Ok(false)
        );
        assert!(options(true, true, None, None, None).is_err());
        let shared = options(true, false, None, Some(WrittenStaleReads::Allow), wait);
        let shared = shared.expect("fine").expect("shared");
        assert!(!shared.serves_lapsed);
        assert_eq!(shared.follow.stale_reads, firn_volume::StaleReads::Allow);
        let accepting = options(true, false, None, None, Some(WrittenOnDisconnect::Accept));
        assert!(accepting.expect("fine").expect("shared").serves_lapsed);
    }
}

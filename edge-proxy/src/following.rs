//! Following a volume that another edge owns: what the configuration says of it, and how it stands.

use crate::report::span;
use firn_env::Env;
use firn_quantity::Span;
use firn_volume::{FollowOptions, FollowStatus, StaleReads};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The longest freshness: who wants to see less reads a snapshot.
const FRESHNESS_MAX: Duration = Duration::from_secs(3600);

/// What becomes of reads while the newest root cannot be read.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum WrittenStaleReads {
    Allow,
    Wait,
}

impl From<WrittenStaleReads> for StaleReads {
    fn from(written: WrittenStaleReads) -> Self {
        match written {
            WrittenStaleReads::Allow => Self::Allow,
            WrittenStaleReads::Wait => Self::Wait,
        }
    }
}

/// How a volume is followed, if it is.
pub fn options(
    follow: bool,
    freshness: Option<Span>,
    stale_reads: Option<WrittenStaleReads>,
) -> Result<Option<FollowOptions>, String> {
    if !follow {
        return match (freshness, stale_reads) {
            (None, None) => Ok(None),
            _ => Err(
                "volume.freshness and volume.stale_reads are of volumes with follow = true or shared = true"
                    .into(),
            ),
        };
    }
    let default = FollowOptions::default();
    let options = FollowOptions {
        freshness: freshness.map_or(default.freshness, |freshness| freshness.0),
        stale_reads: stale_reads.map_or(default.stale_reads, StaleReads::from),
    };
    if options.freshness > FRESHNESS_MAX {
        return Err("volume.freshness must be at most 1 h".into());
    }
    Ok(Some(options))
}

/// A follower as `status` and `/metrics` show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowingPart {
    /// The version that is served.
    pub version: u64,
    /// Since it was committed, by the owner's clock and this machine's.
    pub committed_age_ms: u64,
    /// Since the root was last read: what is served was the newest then.
    pub root_age_ms: u64,
    /// How old that may be when a request comes.
    pub freshness_ms: u64,
    /// What becomes of reads while the newest root cannot be read: `allow` or `wait`.
    pub stale_reads: String,
    pub adoptions: u64,
    pub root_reads: u64,
    /// Entries that adoptions dropped from memory.
    pub dropped_entries: u64,
    /// Reads of the root since an object of the one at hand was gone.
    pub refreshes: u64,
    /// Answers by an older root than the freshness allows.
    pub stale_answers: u64,
    /// Roots that were not adopted since they contradict what was seen.
    pub alarms: u64,
    /// Why the newest root cannot be read, if it cannot.
    pub away: Option<String>,
    /// Whether that is since the anchor refuses this edge: its clients are refused then.
    #[serde(default)]
    pub is_denied: bool,
}

impl FollowingPart {
    pub fn new(env: &Env, status: &FollowStatus) -> Self {
        let committed_age = env.wall().as_millis().saturating_sub(status.committed_at_ms);
        Self {
            version: status.version,
            committed_age_ms: committed_age.max(0).unsigned_abs(),
            root_age_ms: millis(status.root_read_ago),
            freshness_ms: millis(status.options.freshness),
            stale_reads: match status.options.stale_reads {
                StaleReads::Allow => "allow".into(),
                StaleReads::Wait => "wait".into(),
            },
            adoptions: status.adoptions,
            root_reads: status.root_reads,
            dropped_entries: status.dropped_entries,
            refreshes: status.refreshes,
            stale_answers: status.stale_answers,
            alarms: status.alarms,
            away: status.away.clone(),
            is_denied: status.denied.is_some(),
        }
    }

    /// For people.
    pub fn line(&self) -> String {
        format!(
            "version {}, committed {} ago; root read {} ago, {} times; {} adopted; fresh to {} while clients ask; stale reads: {}",
            self.version,
            span(self.committed_age_ms),
            span(self.root_age_ms),
            self.root_reads,
            self.adoptions,
            span(self.freshness_ms),
            self.stale_reads
        )
    }

    /// While the newest root cannot be read: why, and what that means.
    pub fn trouble(&self) -> Option<String> {
        let away = self.away.as_ref()?;
        if self.is_denied {
            return Some(format!(
                "the anchor refuses this edge ({away}); its clients get \"permission denied\", and nothing is lost"
            ));
        }
        let reads = match self.stale_reads.as_str() {
            "allow" => format!("reads are answered by the one of {} ago", span(self.root_age_ms)),
            _ => "reads wait".into(),
        };
        Some(format!("the newest root cannot be read ({away}); {reads}"))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freshness_is_of_followers_and_has_an_end() {
        let span = |seconds| Some(Span(Duration::from_secs(seconds)));
        assert_eq!(options(false, None, None), Ok(None));
        assert!(options(false, span(1), None).is_err());
        assert!(options(false, None, Some(WrittenStaleReads::Allow)).is_err());
        let followed = options(true, None, None).expect("fine").expect("followed");
        assert_eq!(followed, FollowOptions::default());
        let strict = options(true, span(0), Some(WrittenStaleReads::Allow))
            .expect("fine")
            .expect("followed");
        assert_eq!(
            (strict.freshness, strict.stale_reads),
            (Duration::ZERO, StaleReads::Allow)
        );
        assert!(options(true, span(3601), None).is_err());
    }
}

//! Retention policy of snapshots, by tiers (grandfather-father-son).
//!
//! A policy governs the snapshots it made itself, whose names begin with [`AUTOMATIC`]; what a person made is a person's to
//! delete. Of its own it keeps
//!
//! - the newest `last`,
//! - and in tiers the newest of each of the latest `hourly` hours, `daily` days, `weekly` weeks (ISO, from Monday) and
//!   `monthly` months in which there is one, by the calendar of the volume's time zone.
//!
//! Periods in which nothing was written have no snapshot and take no place on the tiers. On the day on which clocks go back an
//! hour comes twice: they are two hours. Everything here is pure; who asks gives the time.

use super::info::SnapshotInfo;
use jiff::{
    Timestamp,
    civil::{Date, ISOWeekDate},
    tz::{Offset, TimeZone},
};
use std::{collections::BTreeSet, time::Duration};

/// How the names of a policy's snapshots begin; the time of the snapshot follows.
pub const AUTOMATIC: &str = "auto-";

/// What a policy keeps; see the module.
#[derive(Clone, Debug, PartialEq)]
pub struct RetentionPolicy {
    last: u32,
    hourly: u32,
    daily: u32,
    weekly: u32,
    monthly: u32,
    zone: TimeZone,
    /// A snapshot is made with the first commit after so long; `None`: time makes none.
    every: Option<Duration>,
    /// A snapshot is made with the first commit after so many bytes were written; `None`: bytes make none.
    after_bytes: Option<u64>,
}

/// How many snapshots are kept on each tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionTiers {
    /// The newest so many.
    pub last: u32,
    /// The newest of each of so many hours.
    pub hourly: u32,
    /// The newest of each of so many days.
    pub daily: u32,
    /// The newest of each of so many weeks.
    pub weekly: u32,
    /// The newest of each of so many months.
    pub monthly: u32,
}

/// A policy that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// It keeps nothing.
    #[error(
        "the policy keeps no snapshot at all: it would delete each that it makes. Set at least one of last, hourly, daily, weekly, monthly; nothing was changed"
    )]
    KeepsNothing,
    /// It makes nothing.
    #[error("the policy makes no snapshot: set `every`, `after_written`, or both; nothing was changed")]
    MakesNothing,
    /// It keeps more than a volume may have.
    #[error("the policy keeps up to {kept} snapshots, more than half of the {SNAPSHOTS} a volume can have; nothing was changed", SNAPSHOTS = crate::state::SNAPSHOTS_MAX)]
    KeepsTooMany {
        /// All tiers together.
        kept: u64,
    },
    /// Nobody knows the zone.
    #[error("{zone:?} is no time zone of the IANA database (such as Europe/Zurich); nothing was changed")]
    UnknownZone {
        /// As it was given.
        zone: String,
    },
}

/// The hour by the clock on the wall, told from the one that comes again when clocks go back.
type Hour = (Date, i8, Offset);

impl RetentionPolicy {
    /// A policy by the calendar of `zone` (a name of the IANA database; the one this build carries, so that all edges agree).
    ///
    /// # Errors
    /// If it would make or keep nothing, or the zone is unknown.
    pub fn new(
        tiers: RetentionTiers,
        zone: &str,
        every: Option<Duration>,
        after_bytes: Option<u64>,
    ) -> Result<Self, PolicyError> {
        let RetentionTiers {
            last,
            hourly,
            daily,
            weekly,
            monthly,
        } = tiers;
        let kept: u64 = [last, hourly, daily, weekly, monthly]
            .into_iter()
            .map(u64::from)
            .sum();
        if kept == 0 {
            return Err(PolicyError::KeepsNothing);
        }
        if kept > crate::state::SNAPSHOTS_MAX as u64 / 2 {
            return Err(PolicyError::KeepsTooMany { kept });
        }
        if every.is_none() && after_bytes.is_none() {
            return Err(PolicyError::MakesNothing);
        }
        let zone = TimeZone::get(zone).map_err(|_| PolicyError::UnknownZone {
            zone: zone.to_owned(),
        })?;
        Ok(Self {
            last,
            hourly,
            daily,
            weekly,
            monthly,
            zone,
            every,
            after_bytes,
        })
    }

    /// Whether it is time for a snapshot, so long and so many bytes written after the last.
    pub fn is_due(&self, since_last: Duration, written_bytes: u64) -> bool {
        written_bytes > 0
            && (self.every.is_some_and(|every| since_last >= every)
                || self.after_bytes.is_some_and(|bytes| written_bytes >= bytes))
    }

    /// The name of a snapshot made at `now_ms` (milliseconds since 1970): in universal time, so that it sorts and never repeats.
    pub fn name(&self, now_ms: i64) -> String {
        let time = Timestamp::from_millisecond(now_ms).unwrap_or(Timestamp::UNIX_EPOCH);
        format!("{AUTOMATIC}{time:.3}")
    }

    /// The snapshots of this policy that are kept no longer, as of `now_ms`. Never one that is protected, nor one whose commit
    /// is under way, nor one that a person made.
    pub fn expired<'a>(&self, snapshots: &'a [SnapshotInfo], now_ms: i64) -> Vec<&'a SnapshotInfo> {
        let mut own: Vec<&SnapshotInfo> = snapshots
            .iter()
            .filter(|snapshot| snapshot.name.starts_with(AUTOMATIC.as_bytes()) && snapshot.version.is_some())
            .collect();
        own.sort_by_key(|snapshot| std::cmp::Reverse((snapshot.created_ms, snapshot.version)));
        let kept = self.kept(&own);
        own.into_iter()
            .filter(|snapshot| !kept.contains(&snapshot.id) && snapshot.protected_until_ms <= now_ms)
            .collect()
    }

    /// Of the snapshots, newest first, the ids of those that a tier keeps.
    fn kept(&self, own: &[&SnapshotInfo]) -> BTreeSet<u64> {
        let mut kept: BTreeSet<u64> = own.iter().take(self.last as usize).map(|one| one.id).collect();
        let mut hours = Tier::<Hour>::new(self.hourly);
        let mut days = Tier::<Date>::new(self.daily);
        let mut weeks = Tier::<(i16, i8)>::new(self.weekly);
        let mut months = Tier::<(i16, i8)>::new(self.monthly);
        for snapshot in own {
            let Ok(time) = Timestamp::from_millisecond(snapshot.created_ms) else {
                // A clock gone wild; what nobody can place is kept.
                kept.insert(snapshot.id);
                continue;
            };
            let local = time.to_zoned(self.zone.clone());
            let date = local.date();
            let week: ISOWeekDate = date.iso_week_date();
            let on_a_tier = [
                hours.takes((date, local.hour(), local.offset())),
                days.takes(date),
                weeks.takes((week.year(), week.week())),
                months.takes((date.year(), date.month())),
            ];
            if on_a_tier.contains(&true) {
                kept.insert(snapshot.id);
            }
        }
        kept
    }
}

/// Keeps the first of each of so many periods.
struct Tier<Period> {
    left: u32,
    current: Option<Period>,
}

impl<Period: PartialEq> Tier<Period> {
    fn new(periods: u32) -> Self {
        Self {
            left: periods,
            current: None,
        }
    }

    fn takes(&mut self, period: Period) -> bool {
        if self.left == 0 || self.current.as_ref() == Some(&period) {
            return false;
        }
        self.left -= 1;
        self.current = Some(period);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    fn policy(tiers: RetentionTiers, zone: &str) -> RetentionPolicy {
        RetentionPolicy::new(tiers, zone, Some(Duration::from_secs(3600)), None).expect("a policy")
    }

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().expect("a time").as_millisecond()
    }

    fn snapshots(times: impl IntoIterator<Item = i64>) -> Vec<SnapshotInfo> {
        let one = |(id, created_ms): (usize, i64)| SnapshotInfo {
            id: id as u64 + 1,
            name: format!("{AUTOMATIC}{id}").into_bytes().into(),
            created_ms,
            protected_until_ms: 0,
            files: 1,
            used_bytes: 0,
            version: Some(id as u64 + 1),
        };
        times.into_iter().enumerate().map(one).collect()
    }

    /// What is left after applying the policy, as times.
    fn left(policy: &RetentionPolicy, all: &[SnapshotInfo], now_ms: i64) -> Vec<String> {
        let gone: Vec<u64> = policy.expired(all, now_ms).iter().map(|one| one.id).collect();
        all.iter()
            .filter(|one| !gone.contains(&one.id))
            .map(|one| {
                Timestamp::from_millisecond(one.created_ms)
                    .expect("a time")
                    .to_string()
            })
            .collect()
    }

    #[test]
    fn the_hour_that_comes_twice_is_two_hours_and_the_one_that_is_left_out_is_none() {
        let hourly = policy(
            RetentionTiers {
                hourly: 4,
                ..RetentionTiers::default()
            },
            "Europe/Zurich",
        );
        // On 2026-10-25 clocks go from 03:00 summer time back to 02:00: 00:xx and 01:xx UTC are both 02:xx.
        let first = at("2026-10-24T22:10:00Z");
        let all = snapshots((0..10).map(|half| first + half * HOUR_MS / 2));
        assert_eq!(
            left(&hourly, &all, first + 6 * HOUR_MS),
            [
                "2026-10-24T23:40:00Z",
                "2026-10-25T00:40:00Z",
                "2026-10-25T01:40:00Z",
                "2026-10-25T02:40:00Z"
            ]
        );
        // On 2026-03-29 they go from 02:00 to 03:00: the hours of 00:xx and 01:xx UTC are 01:xx and 03:xx.
        let first = at("2026-03-28T23:10:00Z");
        let all = snapshots((0..8).map(|half| first + half * HOUR_MS / 2));
        assert_eq!(left(&hourly, &all, first + 6 * HOUR_MS).len(), 4);
    }

    #[test]
    fn days_end_at_midnight_of_the_zone_also_when_they_have_23_or_25_hours() {
        let daily = policy(
            RetentionTiers {
                daily: 3,
                ..RetentionTiers::default()
            },
            "America/New_York",
        );
        for (first, expected) in [
            // 2026-03-08 has 23 hours: midnight moves from 05:00Z to 04:00Z.
            (
                "2026-03-07T05:30:00Z",
                [
                    "2026-03-08T04:30:00Z",
                    "2026-03-09T03:30:00Z",
                    "2026-03-10T03:30:00Z",
                ],
            ),
            // 2026-11-01 has 25 hours: midnight moves from 04:00Z to 05:00Z.
            (
                "2026-10-31T04:30:00Z",
                [
                    "2026-11-01T03:30:00Z",
                    "2026-11-02T04:30:00Z",
                    "2026-11-03T04:30:00Z",
                ],
            ),
        ] {
            let first = at(first);
            let last = at(expected[2]);
            let all = snapshots(
                (0..)
                    .map(|hour| first + hour * HOUR_MS)
                    .take_while(|time| *time <= last),
            );
            assert_eq!(left(&daily, &all, last), expected);
        }
    }

    #[test]
    fn weeks_begin_on_monday_and_months_on_the_first_and_tiers_share_snapshots() {
        let tiers = RetentionTiers {
            last: 2,
            weekly: 2,
            monthly: 2,
            ..RetentionTiers::default()
        };
        let policy = policy(tiers, "UTC");
        // Daily snapshots at noon from January to Thursday, 2026-03-05.
        let first = at("2026-01-01T12:00:00Z");
        let all = snapshots((0..64).map(|day| first + day * 24 * HOUR_MS));
        assert_eq!(
            left(&policy, &all, first + 64 * 24 * HOUR_MS),
            [
                "2026-02-28T12:00:00Z",
                "2026-03-01T12:00:00Z",
                "2026-03-04T12:00:00Z",
                "2026-03-05T12:00:00Z"
            ]
        );
    }

    #[test]
    fn what_is_protected_or_made_by_a_person_or_not_committed_is_never_deleted() {
        let policy = policy(
            RetentionTiers {
                last: 1,
                ..RetentionTiers::default()
            },
            "UTC",
        );
        let mut all = snapshots((0..5).map(|hour| hour * HOUR_MS));
        all[0].protected_until_ms = 100 * HOUR_MS;
        all[1].name = "before the migration".into();
        all[2].version = None;
        let gone: Vec<u64> = policy
            .expired(&all, 10 * HOUR_MS)
            .iter()
            .map(|one| one.id)
            .collect();
        assert_eq!(gone, [4]);
        let gone: Vec<u64> = policy
            .expired(&all, 100 * HOUR_MS)
            .iter()
            .map(|one| one.id)
            .collect();
        assert_eq!(gone, [4, 1]);
    }

    #[test]
    fn policies_that_keep_or_make_nothing_are_refused() {
        let every = Some(Duration::from_secs(3600));
        let one = RetentionTiers {
            last: 1,
            ..RetentionTiers::default()
        };
        assert_eq!(
            RetentionPolicy::new(RetentionTiers::default(), "UTC", every, None),
            Err(PolicyError::KeepsNothing)
        );
        assert_eq!(
            RetentionPolicy::new(one, "UTC", None, None),
            Err(PolicyError::MakesNothing)
        );
        assert!(matches!(
            RetentionPolicy::new(one, "Mars/Olympus", every, None),
            Err(PolicyError::UnknownZone { .. })
        ));
        let many = RetentionTiers {
            hourly: 900,
            ..RetentionTiers::default()
        };
        assert_eq!(
            RetentionPolicy::new(many, "UTC", every, None),
            Err(PolicyError::KeepsTooMany { kept: 900 })
        );
    }

    #[test]
    fn a_snapshot_is_due_by_time_or_by_bytes_and_never_if_nothing_was_written() {
        let one = RetentionTiers {
            last: 1,
            ..RetentionTiers::default()
        };
        let policy =
            RetentionPolicy::new(one, "UTC", Some(Duration::from_secs(60)), Some(1000)).expect("a policy");
        assert!(!policy.is_due(Duration::from_secs(600), 0));
        assert!(!policy.is_due(Duration::from_secs(59), 999));
        assert!(policy.is_due(Duration::from_secs(60), 1));
        assert!(policy.is_due(Duration::ZERO, 1000));
    }
}

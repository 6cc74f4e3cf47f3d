//! The upload limit: how much of an office's line Firn may take, and when.
//!
//! A schedule is a list of rules such as `Mon-Fri 08:00-18:00 10 Mbit/s`; the first that covers the present moment holds,
//! and where none does there is no limit. Times are those of the office's time zone, summer time included: the database of
//! zones is compiled in, so that all edges of an office agree.
//!
//! The limit is a token bucket of bits that may run into debt: an upload starts as soon as nothing is owed and then owes
//! its whole size, so uploads of any size pass and the average over a few of them is the rate. Uploads are admitted in the
//! order they came.

use firn_env::{Env, Monotonic};
use jiff::{
    Timestamp,
    tz::{Offset, TimeZone},
};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, sync::Mutex, time::Duration};
use tokio::sync::Semaphore;

const DAY_MINUTES: u32 = 24 * 60;
const WEEK_MINUTES: u32 = 7 * DAY_MINUTES;

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// The slowest limit: a 4 MiB segment then takes nine minutes, and the journal of a busy office fills.
const RATE_MIN_BITS_PER_SECOND: u64 = 64_000;

/// Unused allowance is kept this long: enough to start the next upload at once, too little for a burst to be felt.
const BURST: Duration = Duration::from_millis(500);

/// How long a waiter sleeps before it looks at the schedule and the clock again.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// A rule that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "upload rule {text:?}: {problem}; write for example \"Mon-Fri 08:00-18:00 10 Mbit/s\", \"Sat,Sun unlimited\" or \"2 Mbit/s\""
)]
pub struct RuleError {
    /// What was written.
    pub text: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// One line of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UploadRule {
    /// Bit 0 is Monday.
    days: u8,
    from_minute: u32,
    /// At most a day; a window that passes midnight belongs to the day it starts on.
    length_minutes: u32,
    /// `None`: no limit.
    bits_per_second: Option<u64>,
}

impl UploadRule {
    /// A limit at all times.
    pub fn always(bits_per_second: u64) -> Self {
        Self {
            days: 0x7f,
            from_minute: 0,
            length_minutes: DAY_MINUTES,
            bits_per_second: Some(bits_per_second.max(RATE_MIN_BITS_PER_SECOND)),
        }
    }

    fn covers(&self, minute_of_week: u32) -> bool {
        (0..7).filter(|day| self.days & (1 << day) != 0).any(|day| {
            let start = day * DAY_MINUTES + self.from_minute;
            (minute_of_week + WEEK_MINUTES - start) % WEEK_MINUTES < self.length_minutes
        })
    }
}

impl FromStr for UploadRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let fail = |problem| RuleError {
            text: text.to_owned(),
            problem,
        };
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let bits_per_second = match words.pop() {
            None => return Err(fail("it is empty")),
            Some("unlimited") => None,
            Some(last) => {
                // "10 Mbit/s" and "10Mbit/s" are both in use.
                let number_end = last.find(|c: char| !c.is_ascii_digit()).unwrap_or(last.len());
                let (number, unit) = match number_end {
                    0 => (words.pop().ok_or_else(|| fail("the rate has no number"))?, last),
                    _ => last.split_at(number_end),
                };
                let number: u64 = number.parse().map_err(|_| fail("the rate is no whole number"))?;
                let unit = match unit {
                    "kbit/s" => 1_000,
                    "Mbit/s" => 1_000_000,
                    "Gbit/s" => 1_000_000_000,
                    _ => return Err(fail("the rate's unit is none of kbit/s, Mbit/s, Gbit/s")),
                };
                let rate = number
                    .checked_mul(unit)
                    .filter(|rate| *rate <= 1_000_000_000_000)
                    .ok_or_else(|| fail("the rate is above 1000 Gbit/s"))?;
                if rate < RATE_MIN_BITS_PER_SECOND {
                    return Err(fail("the rate is below 64 kbit/s, at which nothing gets through"));
                }
                Some(rate)
            }
        };
        let mut rule = Self {
            days: 0x7f,
            from_minute: 0,
            length_minutes: DAY_MINUTES,
            bits_per_second,
        };
        if let Some(days) = words.first().filter(|word| !word.contains(':')) {
            rule.days = parse_days(days).map_err(fail)?;
            words.remove(0);
        }
        match words[..] {
            [] => {}
            [hours] => (rule.from_minute, rule.length_minutes) = parse_hours(hours).map_err(fail)?,
            _ => return Err(fail("there are words too many")),
        }
        Ok(rule)
    }
}

fn parse_days(text: &str) -> Result<u8, &'static str> {
    let day = |name: &str| {
        DAYS.iter()
            .position(|known| *known == name)
            .ok_or("a day is none of Mon, Tue, Wed, Thu, Fri, Sat, Sun")
    };
    let mut days = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut at, last) = (day(first)?, day(last)?);
        days |= 1 << last;
        while at != last {
            days |= 1 << at;
            at = (at + 1) % 7;
        }
    }
    Ok(days)
}

fn parse_hours(text: &str) -> Result<(u32, u32), &'static str> {
    const PROBLEM: &str = "the hours are not written like 08:00-18:00";
    let minute = |text: &str| {
        let (hours, minutes) = text.split_once(':').ok_or(PROBLEM)?;
        let number = |digits: &str| match digits.len() {
            2 => digits.parse::<u32>().map_err(|_| PROBLEM),
            _ => Err(PROBLEM),
        };
        match (number(hours)?, number(minutes)?) {
            (24, 0) => Ok(DAY_MINUTES),
            (hours, minutes) if hours < 24 && minutes < 60 => Ok(hours * 60 + minutes),
            _ => Err(PROBLEM),
        }
    };
    let (from, to) = text.split_once('-').ok_or(PROBLEM)?;
    let (from, to) = (minute(from)? % DAY_MINUTES, minute(to)?);
    match (to + DAY_MINUTES - from) % DAY_MINUTES {
        0 => Ok((from, DAY_MINUTES)),
        length => Ok((from, length)),
    }
}

/// What reads back to the same rule.
impl fmt::Display for UploadRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.days != 0x7f {
            let names = (0..7)
                .filter(|day| self.days & (1 << day) != 0)
                .map(|day| DAYS[day]);
            write!(formatter, "{} ", names.collect::<Vec<_>>().join(","))?;
        }
        if (self.from_minute, self.length_minutes) != (0, DAY_MINUTES) {
            let to = (self.from_minute + self.length_minutes) % DAY_MINUTES;
            let clock = |minute: u32| format!("{:02}:{:02}", minute / 60, minute % 60);
            write!(formatter, "{}-{} ", clock(self.from_minute), clock(to))?;
        }
        match self.bits_per_second {
            None => formatter.write_str("unlimited"),
            Some(rate) if rate % 1_000_000 == 0 => write!(formatter, "{} Mbit/s", rate / 1_000_000),
            Some(rate) => write!(formatter, "{} kbit/s", rate / 1_000),
        }
    }
}

impl TryFrom<String> for UploadRule {
    type Error = RuleError;

    fn try_from(text: String) -> Result<Self, RuleError> {
        text.parse()
    }
}

impl From<UploadRule> for String {
    fn from(rule: UploadRule) -> Self {
        rule.to_string()
    }
}

/// When how much may be uploaded.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WrittenSchedule")]
pub struct UploadSchedule {
    /// By whose clock the rules are meant.
    pub time_zone: TimeZone,
    /// The first rule that covers the present moment holds; without one there is no limit.
    pub rules: Vec<UploadRule>,
}

/// A schedule as it stands in a configuration.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WrittenSchedule {
    time_zone: Option<String>,
    /// Local time minus UTC, as earlier versions wanted it: it knows no summer time.
    utc_offset_minutes: Option<i32>,
    rules: Vec<UploadRule>,
}

impl TryFrom<WrittenSchedule> for UploadSchedule {
    type Error = String;

    fn try_from(written: WrittenSchedule) -> Result<Self, String> {
        let time_zone = match (written.time_zone, written.utc_offset_minutes) {
            (Some(_), Some(_)) => {
                return Err("time_zone and utc_offset_minutes contradict each other; keep time_zone".into());
            }
            (Some(name), None) => TimeZone::get(&name)
                .map_err(|_| format!("{name:?} is no time zone; write for example \"Europe/Zurich\""))?,
            (None, Some(minutes)) => minutes
                .checked_mul(60)
                .and_then(|seconds| Offset::from_seconds(seconds).ok())
                .map(TimeZone::fixed)
                .ok_or_else(|| format!("no place is {minutes} minutes from UTC"))?,
            (None, None) => TimeZone::UTC,
        };
        Ok(Self {
            time_zone,
            rules: written.rules,
        })
    }
}

impl Default for UploadSchedule {
    fn default() -> Self {
        Self {
            time_zone: TimeZone::UTC,
            rules: Vec::new(),
        }
    }
}

impl UploadSchedule {
    /// The limit at a moment in milliseconds since 1970; `None` is no limit.
    pub fn bits_per_second_at(&self, wall_ms: i64) -> Option<u64> {
        if self.rules.is_empty() {
            return None;
        }
        // A clock beyond the years of the calendar is taken for its nearest end.
        let moment = Timestamp::from_millisecond(wall_ms).unwrap_or(if wall_ms < 0 {
            Timestamp::MIN
        } else {
            Timestamp::MAX
        });
        let local = self.time_zone.to_datetime(moment);
        let part = |value: i8| u32::from(value.unsigned_abs());
        let minute_of_week = part(local.weekday().to_monday_zero_offset()) * DAY_MINUTES
            + part(local.hour()) * 60
            + part(local.minute());
        self.rules
            .iter()
            .find(|rule| rule.covers(minute_of_week))
            .and_then(|rule| rule.bits_per_second)
    }
}

struct Bucket {
    /// In bit-nanoseconds per second, so that no rounding adds up: one bit is 10⁹ of them. Negative: owed.
    credit: i128,
    filled_at: Monotonic,
}

const CREDIT_PER_BIT: i128 = 1_000_000_000;

/// Admits uploads at the pace of a schedule.
pub struct UploadLimit {
    env: Env,
    schedule: UploadSchedule,
    bucket: Mutex<Bucket>,
    /// One permit, handed out in order: the one at the head of the queue.
    permit: Semaphore,
}

impl UploadLimit {
    /// A limit that starts with nothing owed.
    pub fn new(env: &Env, schedule: UploadSchedule) -> Self {
        Self {
            env: env.clone(),
            schedule,
            bucket: Mutex::new(Bucket {
                credit: 0,
                filled_at: env.now(),
            }),
            permit: Semaphore::new(1),
        }
    }

    /// Completes when `bytes` may be sent. A caller that stops waiting owes nothing.
    pub async fn admit(&self, bytes: u64) {
        if self.schedule.rules.is_empty() {
            return;
        }
        let _permit = self
            .permit
            .acquire()
            .await
            .expect("the semaphore is never closed");
        while let Some(wait) = self.try_admit(bytes) {
            self.env.sleep(wait.min(LOOK_AGAIN)).await;
        }
    }

    /// Takes the bytes' worth, or says how long until nothing is owed at the present rate.
    fn try_admit(&self, bytes: u64) -> Option<Duration> {
        let rate = self.schedule.bits_per_second_at(self.env.wall().as_millis());
        let now = self.env.now();
        let mut bucket = self.bucket.lock().expect("no panic under this lock");
        let elapsed = now.since(bucket.filled_at);
        bucket.filled_at = now;
        let Some(rate) = rate else {
            bucket.credit = 0;
            return None;
        };
        let earned = i128::from(rate) * elapsed.as_nanos() as i128;
        let most = i128::from(rate) * BURST.as_nanos() as i128;
        bucket.credit = (bucket.credit + earned).min(most);
        if bucket.credit >= 0 {
            bucket.credit -= i128::from(bytes) * 8 * CREDIT_PER_BIT;
            return None;
        }
        let wait_nanos = (-bucket.credit).unsigned_abs().div_ceil(u128::from(rate));
        Some(Duration::from_nanos(
            u64::try_from(wait_nanos).unwrap_or(u64::MAX),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(text: &str) -> UploadRule {
        text.parse().expect("a valid rule")
    }

    /// Milliseconds of Monday 2026-11-02 00:00 UTC plus days, hours and minutes.
    fn at(days: i64, hours: i64, minutes: i64) -> i64 {
        1_793_577_600_000 + ((days * 24 + hours) * 60 + minutes) * 60_000
    }

    #[test]
    fn office_hours_are_limited_and_nights_and_weekends_are_not() {
        let schedule = UploadSchedule {
            time_zone: TimeZone::fixed(jiff::tz::offset(1)),
            rules: vec![rule("Mon-Fri 08:00-18:00 10 Mbit/s"), rule("Sat 2Mbit/s")],
        };
        let rate = |days, hours, minutes| schedule.bits_per_second_at(at(days, hours, minutes));
        assert_eq!(rate(0, 6, 59), None);
        assert_eq!(rate(0, 7, 0), Some(10_000_000));
        assert_eq!(rate(4, 16, 59), Some(10_000_000));
        assert_eq!(rate(4, 17, 0), None);
        assert_eq!(rate(4, 23, 0), Some(2_000_000), "Saturday has begun locally");
        assert_eq!(rate(6, 12, 0), None);
    }

    #[test]
    fn office_hours_follow_summer_time() {
        let schedule = UploadSchedule {
            time_zone: TimeZone::get("Europe/Zurich").expect("a zone"),
            rules: vec![rule("Mon-Fri 08:00-18:00 10 Mbit/s")],
        };
        let limited = |text: &str| {
            let moment: Timestamp = text.parse().expect("a time");
            schedule.bits_per_second_at(moment.as_millisecond()).is_some()
        };
        // Winter: an hour ahead of UTC; summer: two.
        assert!(!limited("2026-01-05T06:59:00Z") && limited("2026-01-05T07:00:00Z"));
        assert!(!limited("2026-07-06T05:59:00Z") && limited("2026-07-06T06:00:00Z"));
        assert!(limited("2026-07-06T15:59:00Z") && !limited("2026-07-06T16:00:00Z"));
        assert!(limited("2026-01-05T16:59:00Z"));
    }

    #[test]
    fn a_schedule_names_its_zone_and_an_older_ones_offset_is_still_read() {
        let read = |text: &str| toml::from_str::<UploadSchedule>(text);
        let named = read("time_zone = \"Europe/Zurich\"\nrules = [\"1 Mbit/s\"]").expect("a schedule");
        assert_eq!(named.time_zone.iana_name(), Some("Europe/Zurich"));
        let offset =
            read("utc_offset_minutes = 330\nrules = [\"09:00-10:00 1 Mbit/s\"]").expect("a schedule");
        assert!(
            offset.bits_per_second_at(at(0, 3, 30)).is_some()
                && offset.bits_per_second_at(at(0, 3, 29)).is_none()
        );
        for (wrong, why) in [
            ("time_zone = \"Mars/Olympus\"", "no time zone"),
            ("utc_offset_minutes = 99999999", "from UTC"),
            ("time_zone = \"UTC\"\nutc_offset_minutes = 0", "contradict"),
            ("zone = \"UTC\"", "unknown field"),
        ] {
            let error = read(wrong).expect_err(wrong).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_window_over_midnight_belongs_to_the_day_it_starts_on() {
        let schedule = UploadSchedule {
            time_zone: TimeZone::UTC,
            rules: vec![rule("Sun 22:00-06:00 1 Mbit/s")],
        };
        assert_eq!(schedule.bits_per_second_at(at(6, 23, 0)), Some(1_000_000));
        assert_eq!(schedule.bits_per_second_at(at(7, 5, 59)), Some(1_000_000));
        assert_eq!(schedule.bits_per_second_at(at(7, 6, 0)), None);
        assert_eq!(schedule.bits_per_second_at(at(5, 23, 0)), None);
    }

    #[test]
    fn the_first_rule_that_covers_the_moment_holds() {
        let schedule = UploadSchedule {
            time_zone: TimeZone::UTC,
            rules: vec![rule("12:00-13:00 unlimited"), rule("512 kbit/s")],
        };
        assert_eq!(schedule.bits_per_second_at(at(2, 12, 30)), None);
        assert_eq!(schedule.bits_per_second_at(at(2, 13, 0)), Some(512_000));
    }

    #[test]
    fn a_rule_that_cannot_be_understood_says_why_and_shows_a_right_one() {
        for (text, problem) in [
            ("", "empty"),
            ("fast", "no number"),
            ("Mon 10", "unit"),
            ("Moon 10 Mbit/s", "a day"),
            ("8-18 10 Mbit/s", "a day"),
            ("08:00-25:00 10 Mbit/s", "hours"),
            ("08:00 10 Mbit/s", "hours"),
            ("1 kbit/s", "below"),
            ("99999999999999999 Gbit/s", "above"),
            ("Mon 08:00-09:00 often 1 Mbit/s", "too many"),
        ] {
            let error = text.parse::<UploadRule>().expect_err(text).to_string();
            assert!(
                error.contains(problem) && error.contains("Mon-Fri 08:00"),
                "{error}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_printed_rule_reads_back(
            days in 1..128_u8, from in 0..DAY_MINUTES, length in 1..=DAY_MINUTES, kbit in proptest::option::of(64..10_000_000_u64),
        ) {
            let rule = UploadRule {
                days,
                from_minute: from,
                length_minutes: length,
                bits_per_second: kbit.map(|kbit| kbit * 1000),
            };
            prop_assert_eq!(rule.to_string().parse::<UploadRule>(), Ok(rule));
        }

        #[test]
        fn any_text_is_a_rule_or_an_error(text in "[MonFri0-9:, /kbits-]{0,40}") {
            let _ = text.parse::<UploadRule>();
        }
    }
}

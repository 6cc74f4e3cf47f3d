//! Hours and months of UTC: the grain of roll-ups and of invoices.
//!
//! Time here is what a record says in milliseconds since 1970; leap seconds do not exist in it. The calendar is Gregorian (jiff).

use jiff::{
    SignedDuration,
    civil::{Date, DateTime},
};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

const HOUR_MS: u64 = 3_600_000;
/// 9999-12-31T23, the last hour the calendar has; a record that claims a later one counts in it.
const LAST_HOUR: u32 = 70_389_527;
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// An hour, counted from 1970-01-01T00 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hour(pub u32);

/// A month, counted from January of the year 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Month(u32);

/// A text that is no month or hour.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no {1}")]
pub struct CalendarError(String, &'static str);

impl Hour {
    /// The hour in which a moment lies.
    pub fn of_ms(ms: u64) -> Self {
        Self(u32::try_from(ms / HOUR_MS).unwrap_or(u32::MAX))
    }

    fn civil(self) -> DateTime {
        EPOCH
            .checked_add(SignedDuration::from_hours(i64::from(self.0.min(LAST_HOUR))))
            .expect("an hour up to the last one")
    }

    fn of_civil(time: DateTime) -> Option<Self> {
        u32::try_from(time.duration_since(EPOCH).as_hours())
            .ok()
            .map(Self)
    }

    /// Its first millisecond.
    pub fn start_ms(self) -> u64 {
        u64::from(self.0) * HOUR_MS
    }

    /// Its month.
    pub fn month(self) -> Month {
        let start = self.civil();
        Month(start.year().unsigned_abs() as u32 * 12 + u32::from(start.month().unsigned_abs()) - 1)
    }
}

/// `2026-11-21T15`
impl fmt::Display for Hour {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.civil().strftime("%Y-%m-%dT%H"))
    }
}

impl FromStr for Hour {
    type Err = CalendarError;

    fn from_str(text: &str) -> Result<Self, CalendarError> {
        let parse = || {
            let (date, hour) = text.split_once('T')?;
            let date: Date = date.parse().ok()?;
            let parsed = Self::of_civil(date.at(hour.parse().ok().filter(|hour| *hour < 24)?, 0, 0, 0))?;
            // One spelling for each.
            (parsed.to_string() == text).then_some(parsed)
        };
        parse().ok_or_else(|| CalendarError(text.to_owned(), "hour such as 2026-11-21T15"))
    }
}

impl Month {
    /// A month of the years 1970 to 9999.
    pub fn new(year: u32, month: u32) -> Option<Self> {
        ((1970..=9999).contains(&year) && (1..=12).contains(&month)).then(|| Self(year * 12 + month - 1))
    }

    /// The month in which a moment lies.
    pub fn of_ms(ms: u64) -> Self {
        Hour::of_ms(ms).month()
    }

    /// The one after it.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Its first hour.
    pub fn first_hour(self) -> Hour {
        let date = i16::try_from(self.0 / 12)
            .ok()
            .and_then(|year| Date::new(year, (self.0 % 12 + 1) as i8, 1).ok());
        // After the last month of the calendar comes the hour after its last.
        date.and_then(|date| Hour::of_civil(date.at(0, 0, 0, 0)))
            .unwrap_or(Hour(LAST_HOUR + 1))
    }

    /// How many hours it has.
    pub fn hours(self) -> u32 {
        self.next().first_hour().0 - self.first_hour().0
    }
}

/// `2026-11`
impl fmt::Display for Month {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:04}-{:02}", self.0 / 12, self.0 % 12 + 1)
    }
}

impl FromStr for Month {
    type Err = CalendarError;

    fn from_str(text: &str) -> Result<Self, CalendarError> {
        let parse = || {
            let (year, month) = text.split_once('-')?;
            let parsed = Self::new(year.parse().ok()?, month.parse().ok()?)?;
            (parsed.to_string() == text).then_some(parsed)
        };
        parse().ok_or_else(|| CalendarError(text.to_owned(), "month such as 2026-11"))
    }
}

impl TryFrom<String> for Month {
    type Error = CalendarError;

    fn try_from(text: String) -> Result<Self, CalendarError> {
        text.parse()
    }
}

impl From<Month> for String {
    fn from(month: Month) -> Self {
        month.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates_are_where_calendars_have_them() {
        for (ms, hour) in [
            (0, "1970-01-01T00"),
            (951_782_400_000, "2000-02-29T00"),
            (1_767_225_599_999, "2025-12-31T23"),
            (1_767_225_600_000, "2026-01-01T00"),
            (4_107_542_400_000, "2100-03-01T00"),
            (253_402_300_799_999, "9999-12-31T23"),
        ] {
            assert_eq!(Hour::of_ms(ms).to_string(), hour);
        }
        let february = Month::new(2028, 2).unwrap();
        assert_eq!((february.hours(), february.next().hours()), (29 * 24, 31 * 24));
        assert_eq!(Month::new(2100, 2).unwrap().hours(), 28 * 24);
    }

    #[test]
    fn every_hour_lies_in_its_month_and_reads_back() {
        for hour in (0..700_000).step_by(7) {
            let hour = Hour(hour);
            let month = hour.month();
            assert!(
                month.first_hour() <= hour && hour < month.next().first_hour(),
                "{hour}"
            );
            assert_eq!(hour.to_string().parse(), Ok(hour));
            assert_eq!(month.to_string().parse(), Ok(month));
        }
        for text in ["", "2026-13", "2026-00", "26-01", "2026-1", "+026-01", "1969-12"] {
            assert!(text.parse::<Month>().is_err(), "{text:?}");
        }
        for text in [
            "2026-02-29T00",
            "2026-01-01T24",
            "2026-01-00T00",
            "2026-01-01 00",
            "2026-01-01T00:00",
        ] {
            assert!(text.parse::<Hour>().is_err(), "{text:?}");
        }
    }
}

//! Hours and months of UTC: the grain of roll-ups and of invoices.
//!
//! Time here is what a record says in milliseconds since 1970; leap seconds do not exist in it. The calendar is Gregorian,
//! by Hinnant's method of counting years from March, so that a leap day is the last of its year.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

const HOUR_MS: u64 = 3_600_000;

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

/// Days from 1970-01-01 to the first of a month.
fn days_before(year: i64, month: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Year, month and day of a day counted from 1970-01-01.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

impl Hour {
    /// The hour in which a moment lies.
    pub fn of_ms(ms: u64) -> Self {
        Self(u32::try_from(ms / HOUR_MS).unwrap_or(u32::MAX))
    }

    /// Its first millisecond.
    pub fn start_ms(self) -> u64 {
        u64::from(self.0) * HOUR_MS
    }

    /// Its month.
    pub fn month(self) -> Month {
        let (year, month, _) = date(i64::from(self.0 / 24));
        Month((year * 12 + month - 1) as u32)
    }
}

/// `2026-11-21T15`
impl fmt::Display for Hour {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date(i64::from(self.0 / 24));
        write!(formatter, "{year:04}-{month:02}-{day:02}T{:02}", self.0 % 24)
    }
}

impl FromStr for Hour {
    type Err = CalendarError;

    fn from_str(text: &str) -> Result<Self, CalendarError> {
        let parse = || {
            let month: Month = text.get(..7)?.parse().ok()?;
            let day: u32 = text.get(8..10)?.parse().ok()?;
            let hour: u32 = text.get(11..13)?.parse().ok()?;
            let parsed = Self(month.first_hour().0 + day.checked_sub(1)? * 24 + hour);
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
        let days = days_before(i64::from(self.0 / 12), i64::from(self.0 % 12 + 1));
        Hour(u32::try_from(days * 24).unwrap_or(0))
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

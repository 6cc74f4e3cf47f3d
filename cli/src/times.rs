//! Times: the service's are seconds since 1970; people read them in their own time zone and as a distance from now, programs as
//! RFC 3339.

use jiff::{Timestamp, tz::TimeZone};
use serde_json::Value;

/// Members of the service's answers that are times.
const MEMBERS: [&str; 11] = [
    "asked",
    "at",
    "bucket_proved",
    "created",
    "deleted",
    "expires",
    "invitation_expires",
    "last_seen",
    "renew_after",
    "since",
    "taken",
];

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// The time that a member of this name holds, if it holds one.
pub fn time_of(member: &str, value: &Value) -> Option<Timestamp> {
    if !MEMBERS.contains(&member) {
        return None;
    }
    Timestamp::from_second(i64::try_from(value.as_u64()?).ok()?).ok()
}

/// Milliseconds since 1970 as RFC 3339, to the second.
pub fn of_millis(millis: i64) -> Option<String> {
    let time = Timestamp::from_second(millis.div_euclid(1000)).ok()?;
    Some(time.to_string())
}

/// Such as `2026-11-23 09:14 (3 minutes ago)`, by this machine's clock and in its time zone.
pub fn told(time: Timestamp) -> String {
    told_from(time, Timestamp::now(), &TimeZone::system())
}

fn told_from(time: Timestamp, now: Timestamp, zone: &TimeZone) -> String {
    let local = time.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M");
    format!("{local} ({})", distance(time.as_second() - now.as_second()))
}

/// In the largest unit of which there are two, so that it is at most half of a unit wrong.
fn distance(seconds: i64) -> String {
    let length = seconds.abs();
    let (count, unit) = match length {
        0..MINUTE => {
            return if seconds > 0 {
                "in less than a minute"
            } else {
                "just now"
            }
            .to_owned();
        }
        _ if length < 2 * HOUR => (length / MINUTE, "minute"),
        _ if length < 2 * DAY => (length / HOUR, "hour"),
        _ => (length / DAY, "day"),
    };
    let plural = if count == 1 { "" } else { "s" };
    if seconds > 0 {
        format!("in {count} {unit}{plural}")
    } else {
        format!("{count} {unit}{plural} ago")
    }
}

/// The same document with every time as RFC 3339.
pub fn stamped(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                let value = match time_of(name, value) {
                    Some(time) => Value::String(time.to_string()),
                    None => stamped(value),
                };
                (name.clone(), value)
            };
            Value::Object(members.iter().map(member).collect())
        }
        Value::Array(items) => items.iter().map(stamped).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_local_and_relative() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let told = |offset: i64| {
            told_from(
                Timestamp::from_second(1_700_000_000 + offset).unwrap(),
                now,
                &zone,
            )
        };
        assert_eq!(told(0), "2023-11-14 23:13 (just now)");
        assert_eq!(told(-90), "2023-11-14 23:11 (1 minute ago)");
        assert_eq!(told(-119 * 60), "2023-11-14 21:14 (119 minutes ago)");
        assert_eq!(told(2 * 3600), "2023-11-15 01:13 (in 2 hours)");
        assert_eq!(told(-3 * 86_400), "2023-11-11 23:13 (3 days ago)");
        assert_eq!(told(59), "2023-11-14 23:14 (in less than a minute)");
    }

    #[test]
    fn programs_read_rfc_3339_and_nothing_else_is_touched() {
        let document =
            json!({ "items": [{ "created": 1_700_000_000, "size_bytes": 1_700_000_000, "deleted": null }] });
        let stamped = stamped(&document);
        assert_eq!(
            stamped,
            json!({ "items": [{ "created": "2023-11-14T22:13:20Z", "size_bytes": 1_700_000_000, "deleted": null }] })
        );
        // What is one already, or beyond the calendar, stays.
        assert_eq!(super::stamped(&stamped), stamped);
        assert_eq!(
            super::stamped(&json!({ "at": u64::MAX })),
            json!({ "at": u64::MAX })
        );
    }
}

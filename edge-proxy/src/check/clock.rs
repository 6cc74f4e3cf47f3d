//! Fitness of the clock: against the `Date` of every server that the edge will ask.
//!
//! The date has a resolution of a second and is somewhere between request and answer; clouds refuse signatures of five minutes ago
//! (DynamoDB) or fifteen (S3), and clients see the edge's clock in the times of files.

use super::{
    Subject,
    hosts::{self, Host},
};
use crate::finding::Finding;
use crate::joined::Joined;
use jiff::fmt::rfc2822::DateTimeParser;
use std::time::Duration;

const SUBJECT: &str = "clock";
/// What the measurement itself may be wrong by, and `make` and friends do not care about.
const OFF_FINE_MS: i64 = 3_000;
/// From here on signatures are refused.
const OFF_REFUSED_MS: i64 = 5 * 60_000;
const ASKING: Duration = Duration::from_secs(10);
const SET_IT: &str =
    "set this machine's clock and keep it set: systemctl enable --now systemd-timesyncd, or chrony";

pub async fn look(subject: &Subject<'_>) -> Vec<Finding> {
    let hosts = hosts::all(subject);
    if hosts.is_empty() {
        return vec![Finding::not_seen(
            SUBJECT,
            "store and table are on this machine: there is no other clock to compare with",
        )];
    }
    let mut found = Vec::new();
    for host in &hosts {
        found.push(offset(subject, host).await);
    }
    found
}

async fn offset(subject: &Subject<'_>, host: &Host) -> Finding {
    let what = format!("{} {}", host.what, host.base);
    let client = match client(host) {
        Ok(client) => client,
        Err(why) => return Finding::not_seen(SUBJECT, format!("{what}: {why}")),
    };
    let env = subject.env;
    let before = env.wall().as_millis();
    let asked = env.timeout(ASKING, client.get(&host.base).send()).await;
    let after = env.wall().as_millis();
    let answer = match asked {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            return Finding::not_seen(
                SUBJECT,
                format!(
                    "{what} did not say what time it is: {error}{}",
                    cause.unwrap_or_default()
                ),
            );
        }
        Err(_) => return Finding::not_seen(SUBJECT, format!("{what} did not say what time it is in time")),
    };
    let date = answer.headers().get("date").and_then(|date| date.to_str().ok());
    let Some(theirs) = date.and_then(milliseconds) else {
        return Finding::not_seen(SUBJECT, format!("{what} answers without a date"));
    };
    // The middle of the second that it names, against the middle of the exchange.
    let ahead = (before + after) / 2 - (theirs + 500);
    let shown = crate::report::span(ahead.unsigned_abs());
    let said = match ahead.abs() <= OFF_FINE_MS {
        true => format!("{what}: as far as its seconds tell the same time"),
        false if ahead > 0 => format!("this machine is {shown} ahead of {what}"),
        false => format!("this machine is {shown} behind {what}"),
    };
    let finding = if ahead.abs() <= OFF_FINE_MS {
        Finding::fine(SUBJECT, said)
    } else if ahead.abs() < OFF_REFUSED_MS {
        Finding::hurts(
            SUBJECT,
            format!("{said}: times of files are wrong by as much"),
            SET_IT,
        )
    } else {
        Finding::fails(
            SUBJECT,
            format!("{said}: clouds refuse requests that are signed so"),
            SET_IT,
        )
    };
    finding.figure("ahead_ms", ahead)
}

fn client(host: &Host) -> Result<reqwest::Client, String> {
    if let Some(config) = &host.certificate {
        // An anchor of its own has other files; its bucket tells the time as well.
        let joined = Joined::load(config).map_err(|failure| failure.to_string())?;
        return joined.client(config).map_err(|failure| failure.to_string());
    }
    let builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(ASKING)
        .user_agent(concat!("firn-edge/", env!("CARGO_PKG_VERSION")));
    builder.build().map_err(|error| error.to_string())
}

/// An HTTP date as milliseconds since the epoch.
fn milliseconds(date: &str) -> Option<i64> {
    let parsed = DateTimeParser::new().parse_timestamp(date).ok()?;
    Some(parsed.as_millisecond())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_date_of_http_is_read() {
        assert_eq!(super::milliseconds("Thu, 01 Jan 1970 00:01:00 GMT"), Some(60_000));
        assert_eq!(super::milliseconds("yesterday"), None);
    }
}

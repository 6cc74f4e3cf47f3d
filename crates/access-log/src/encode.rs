//! Lines: events as JSON objects. Keys are added, never renamed.

use crate::event::{Detail, Event};
use firn_env::WallTime;
use firn_vfs::{SetAttributes, SetTime};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::net::IpAddr;

/// An operation, in the order in which its keys stand.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    event: &'a str,
    result: &'a str,
    protocol: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effective_uid: Option<u32>,
    volume: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    export: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(flatten)]
    detail: Map<String, Value>,
}

/// RFC 3339, in UTC, to the microsecond.
pub(crate) fn time(at: WallTime) -> String {
    let nanoseconds = i128::from(at.0);
    Timestamp::from_nanosecond(nanoseconds).map_or_else(|_| at.0.to_string(), |time| format!("{time:.6}"))
}

/// The line of an event, whose paths and user's name were found.
pub(crate) fn line(event: &Event, user: Option<&str>, path: Option<&str>, to: Option<&str>) -> Vec<u8> {
    let who = &event.who;
    let line = Line {
        time: time(event.at),
        until: event.until.map(time),
        event: event.operation,
        result: event.outcome.text(),
        protocol: who.protocol.name(),
        client: who.address,
        uid: who.uid,
        user,
        effective_uid: who.effective_uid.filter(|uid| who.uid != Some(*uid)),
        volume: &event.share.volume,
        export: event.share.export.as_deref(),
        path,
        to,
        inode: event.inode,
        calls: event.sum.map(|(calls, _)| calls),
        // Listings have none.
        bytes: event
            .sum
            .map(|(_, bytes)| bytes)
            .filter(|_| event.operation != "list"),
        detail: detail(&event.detail),
    };
    ended(serde_json::to_vec(&line))
}

/// A line that the log says of itself.
pub(crate) fn own(at: WallTime, event: &str, more: Value) -> Vec<u8> {
    let mut line = Map::new();
    line.insert("time".into(), time(at).into());
    line.insert("event".into(), event.into());
    if let Value::Object(more) = more {
        line.extend(more);
    }
    ended(serde_json::to_vec(&line))
}

fn ended(line: serde_json::Result<Vec<u8>>) -> Vec<u8> {
    let mut line = line.expect("texts and numbers are JSON");
    line.push(b'\n');
    line
}

fn detail(detail: &Detail) -> Map<String, Value> {
    let text = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes));
    let (key, value) = match detail {
        Detail::None => return Map::new(),
        Detail::Attributes(set) => ("set", attributes(set)),
        Detail::Xattr(name) => ("attribute", text(name)),
        Detail::Target(target) => ("target", text(target)),
        Detail::Open { read, write } => (
            "for",
            match (read, write) {
                (true, true) => "read and write",
                (false, true) => "write",
                (_, false) => "read",
            }
            .into(),
        ),
    };
    Map::from_iter([(key.to_owned(), value)])
}

fn attributes(set: &SetAttributes) -> Value {
    let mut map = Map::new();
    if let Some(mode) = set.mode {
        map.insert("mode".into(), format!("{mode:04o}").into());
    }
    let numbers = [
        ("uid", set.uid.map(u64::from)),
        ("gid", set.gid.map(u64::from)),
        ("size", set.size_bytes),
    ];
    for (key, value) in numbers {
        if let Some(value) = value {
            map.insert(key.into(), value.into());
        }
    }
    for (key, time) in [("accessed", set.accessed), ("modified", set.modified)] {
        match time {
            SetTime::Keep => {}
            SetTime::Now => {
                map.insert(key.into(), "now".into());
            }
            SetTime::To(to) => {
                map.insert(key.into(), json!(to.seconds));
            }
        }
    }
    Value::Object(map)
}

//! Meters: what can be counted, each with its unit.
//!
//! A meter travels as a number. A number this build does not know is kept, added up and shown as `meter-N`, so that a newer
//! sender loses nothing at an older receiver; a price book that does not name it makes the invoice say so.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Meter(pub u16);

/// number, name, unit, what one unit is. Numbers and names are for ever.
const KNOWN: [(u16, &str, &str, &str); 12] = [
    (
        1,
        "root-commits",
        "commits",
        "a new root of a volume, as the anchor saw it",
    ),
    (
        2,
        "stored-byte-hours",
        "byte-hours",
        "a byte the cleaner found in the bucket, for an hour",
    ),
    (
        3,
        "disk-byte-hours",
        "byte-hours",
        "a byte of a provisioned disk, for an hour",
    ),
    (
        4,
        "node-operations",
        "operations",
        "a request that a block node served",
    ),
    (5, "api-operations", "operations", "a request that the API served"),
    (
        6,
        "cleaner-operations",
        "operations",
        "a request that the cleaner sent to the bucket",
    ),
    (7, "edge-hours", "hours", "an enrolled edge, for an hour"),
    (
        8,
        "edge-operations",
        "operations",
        "a file operation that an edge served",
    ),
    (
        9,
        "edge-bytes-up",
        "bytes",
        "a byte that an edge sent to the bucket",
    ),
    (
        10,
        "edge-bytes-down",
        "bytes",
        "a byte that an edge fetched from the bucket",
    ),
    (
        11,
        "node-bytes",
        "bytes",
        "a byte that a block node wrote or read for a disk",
    ),
    (
        12,
        "edge-requests",
        "requests",
        "a request that an edge sent to the bucket",
    ),
];

impl Meter {
    /// A new root of a volume.
    pub const ROOT_COMMITS: Self = Self(1);
    /// Bytes in the bucket, times hours.
    pub const STORED_BYTE_HOURS: Self = Self(2);
    /// Provisioned bytes of disks, times hours.
    pub const DISK_BYTE_HOURS: Self = Self(3);
    /// Requests that block nodes served.
    pub const NODE_OPERATIONS: Self = Self(4);
    /// Requests that the API served.
    pub const API_OPERATIONS: Self = Self(5);
    /// Requests that the cleaner sent to the bucket.
    pub const CLEANER_OPERATIONS: Self = Self(6);
    /// Hours of enrolled edges.
    pub const EDGE_HOURS: Self = Self(7);
    /// File operations that an edge served (advisory).
    pub const EDGE_OPERATIONS: Self = Self(8);
    /// Bytes that an edge sent to the bucket (advisory).
    pub const EDGE_BYTES_UP: Self = Self(9);
    /// Bytes that an edge fetched from the bucket (advisory).
    pub const EDGE_BYTES_DOWN: Self = Self(10);

    /// Bytes that block nodes wrote and read.
    pub const NODE_BYTES: Self = Self(11);
    /// Requests that an edge sent to the bucket (advisory).
    pub const EDGE_REQUESTS: Self = Self(12);

    /// All meters that this build knows.
    pub fn known() -> impl Iterator<Item = Self> {
        KNOWN.iter().map(|(number, ..)| Self(*number))
    }

    fn entry(self) -> Option<&'static (u16, &'static str, &'static str, &'static str)> {
        KNOWN.iter().find(|(number, ..)| *number == self.0)
    }

    /// What one unit is called.
    pub fn unit(self) -> &'static str {
        self.entry().map_or("units", |entry| entry.2)
    }

    /// What one unit is, in words.
    pub fn meaning(self) -> &'static str {
        self.entry()
            .map_or("a meter that this build does not know", |entry| entry.3)
    }

    /// The meter of that name, `meter-N` included.
    pub fn named(name: &str) -> Option<Self> {
        if let Some((number, ..)) = KNOWN.iter().find(|(_, known, ..)| *known == name) {
            return Some(Self(*number));
        }
        let meter = Self(name.strip_prefix("meter-")?.parse().ok()?);
        // One spelling for each.
        (meter.to_string() == name).then_some(meter)
    }
}

impl fmt::Display for Meter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Some((_, name, ..)) => formatter.pad(name),
            None => formatter.pad(&format!("meter-{}", self.0)),
        }
    }
}

impl TryFrom<String> for Meter {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::named(&name).ok_or_else(|| format!("{name:?} is no meter"))
    }
}

impl From<Meter> for String {
    fn from(meter: Meter) -> Self {
        meter.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_meter_has_one_name_known_or_not() {
        for meter in Meter::known().chain([Meter(0), Meter(13), Meter(65535)]) {
            assert_eq!(Meter::named(&meter.to_string()), Some(meter));
        }
        for name in [
            "",
            "meter-",
            "meter-1",
            "meter-007",
            "meter-65536",
            "meter--1",
            "root commits",
        ] {
            assert_eq!(Meter::named(name), None, "{name:?}");
        }
    }
}

//! Disk settings, for its client: mode, shape, key check. The table keeps them beside the disk and does not read them.
//!
//! ```json
//! {"version":1,"shape":{"in_place":{"segment_tracts":8,"unit_blocks":32}},"mode":"write-back","key_check":"…"}
//! {"version":1,"shape":{"log":{"block_bytes":4096,"physical_blocks":40960}},"mode":"log","key_check":"…"}
//! ```

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use data_encoding::HEXLOWER;
use firn_blockd_disk::{SEGMENT_TRACTS_MAX, UNIT_BLOCKS_MAX};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

const VERSION: u32 = 1;
/// The blocks that a log may have, in bytes.
const LOG_BLOCK_BYTES: std::ops::RangeInclusive<u32> = 4096..=65_536;

/// When writes and flushes are answered, by the names of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A write is answered when durable.
    WriteThrough,
    /// A write is answered from memory, a flush when durable.
    WriteBack,
    /// As `WriteBack`; with ordered flushes, a flush only orders.
    FlushEpoch,
    /// A log.
    Log,
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::WriteThrough => "write-through",
            Self::WriteBack => "write-back",
            Self::FlushEpoch => "flush-epoch",
            Self::Log => "log",
        })
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::WriteThrough, Self::WriteBack, Self::FlushEpoch, Self::Log]
            .into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| format!("{text} is none of write-through, write-back, flush-epoch, log"))
    }
}

/// How a disk lies on tracts. Decided when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Each block has its place.
    InPlace {
        /// Tracts over which neighbouring units are spread.
        segment_tracts: u32,
        /// Blocks of a unit, which lie together. Disks from before there were units have one block each.
        #[serde(default = "one_block")]
        unit_blocks: u32,
    },
    /// Each write goes to a new place.
    Log {
        /// Bytes of a block.
        block_bytes: u32,
        /// Physical blocks.
        physical_blocks: u64,
    },
}

/// Blocks of a unit of new disks: 128 KiB, as the paper's blocks. A disk that seeks for 8 ms and moves 128 MB/s reads one in
/// an eighth of the time that it takes to get there, so that wide segments pay; smaller ones would only seek.
pub const UNIT_BLOCKS: u32 = 32;

fn one_block() -> u32 {
    1
}

impl Shape {
    /// In place, over segments of so many tracts.
    pub fn in_place(segment_tracts: u32) -> Self {
        Self::InPlace {
            segment_tracts,
            unit_blocks: UNIT_BLOCKS,
        }
    }

    /// Bytes of a block of the disk.
    pub fn block_bytes(self) -> u32 {
        match self {
            Self::InPlace { .. } => 4096,
            Self::Log { block_bytes, .. } => block_bytes,
        }
    }

    /// Whether a disk of this shape can be attached in this mode.
    pub fn allows(self, mode: Mode) -> bool {
        matches!(self, Self::Log { .. }) == (mode == Mode::Log)
    }

    /// Physical blocks that a log of so many should have: a quarter more, which leaves a log room to go round.
    pub fn physical_for(blocks: u64) -> u64 {
        blocks + (blocks / 4).max(64)
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSettings {
    version: u32,
    /// How it lies on tracts.
    pub shape: Shape,
    /// In which mode it is attached if nothing else is said.
    pub mode: Mode,
    /// Of the disk's key, by [`key_check`]; nothing if whoever created the disk did not have the key.
    pub key_check: Option<String>,
    /// The snapshot that is being written to it. Until that has come to its end the disk is nobody's to use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restoring: Option<String>,
}

/// Why settings are none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Not as written above.
    #[error("the disk's settings cannot be read: {0}")]
    Unreadable(String),
    /// Of a later build.
    #[error("the disk's settings are of version {0}; use a newer firn-blockd")]
    Later(u32),
    /// Values that make no disk.
    #[error("{0}")]
    Impossible(String),
}

impl DiskSettings {
    /// Settings for a new disk.
    ///
    /// # Errors
    /// [`SettingsError::Impossible`].
    pub fn new(shape: Shape, mode: Mode, key_check: Option<String>) -> Result<Self, SettingsError> {
        let settings = Self {
            version: VERSION,
            shape,
            mode,
            key_check,
            restoring: None,
        };
        settings.check()?;
        Ok(settings)
    }

    /// The same disk, waiting for a snapshot or not any more.
    #[must_use]
    pub fn with_restoring(self, restoring: Option<String>) -> Self {
        Self { restoring, ..self }
    }

    /// The same disk, whose key is the one of this [check](key_check).
    #[must_use]
    pub fn with_key_check(self, check: String) -> Self {
        Self {
            key_check: Some(check),
            ..self
        }
    }

    /// Reads what [`DiskSettings::to_text`] wrote.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        let settings: Self =
            serde_json::from_str(text).map_err(|error| SettingsError::Unreadable(error.to_string()))?;
        if settings.version != VERSION {
            return Err(SettingsError::Later(settings.version));
        }
        settings.check()?;
        Ok(settings)
    }

    /// Its text.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("settings have string keys")
    }

    fn check(&self) -> Result<(), SettingsError> {
        let impossible = |why: String| Err(SettingsError::Impossible(why));
        if !self.shape.allows(self.mode) {
            return impossible(format!(
                "mode {} does not fit a disk that {}",
                self.mode,
                match self.shape {
                    Shape::InPlace { .. } => "is written in place",
                    Shape::Log { .. } => "is a log",
                }
            ));
        }
        match self.shape {
            Shape::InPlace { segment_tracts, .. } if !(1..=SEGMENT_TRACTS_MAX).contains(&segment_tracts) => {
                impossible(format!(
                    "a segment has 1 to {SEGMENT_TRACTS_MAX} tracts, not {segment_tracts}"
                ))
            }
            Shape::InPlace { unit_blocks, .. }
                if !unit_blocks.is_power_of_two() || unit_blocks > UNIT_BLOCKS_MAX =>
            {
                impossible(format!(
                    "a unit has a power of two of blocks, up to {UNIT_BLOCKS_MAX}, not {unit_blocks}"
                ))
            }
            Shape::Log { block_bytes, .. }
                if !LOG_BLOCK_BYTES.contains(&block_bytes) || !block_bytes.is_power_of_two() =>
            {
                impossible(format!(
                    "a log has blocks of 4096, 8192, 16384, 32768 or 65536 bytes, not {block_bytes}"
                ))
            }
            Shape::InPlace { .. } | Shape::Log { .. } => Ok(()),
        }
    }
}

struct CheckLength;

impl KeyType for CheckLength {
    fn len(&self) -> usize {
        8
    }
}

/// Tells a disk's key from another without telling the key: a disk that is written in place cannot notice a wrong key by
/// itself, and would be ruined by it.
pub fn key_check(key: &[u8; 32]) -> String {
    let mut check = [0; 8];
    Salt::new(HKDF_SHA256, b"firn disk")
        .extract(key)
        .expand(&[b"firn disk key check"], CheckLength)
        .and_then(|okm| okm.fill(&mut check))
        .expect("eight bytes are within what HKDF-SHA256 can give");
    HEXLOWER.encode(&check)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_back_and_nonsense_is_refused() {
        let shape = Shape::Log {
            block_bytes: 8192,
            physical_blocks: 100,
        };
        let settings = DiskSettings::new(shape, Mode::Log, Some(key_check(&[1; 32]))).unwrap();
        assert_eq!(DiskSettings::parse(&settings.to_text()), Ok(settings.clone()));
        let unfinished = settings.clone().with_restoring(Some("daily".into()));
        assert_eq!(DiskSettings::parse(&unfinished.to_text()), Ok(unfinished));
        assert!(DiskSettings::new(shape, Mode::WriteBack, None).is_err());
        assert!(DiskSettings::new(Shape::in_place(129), Mode::WriteBack, None).is_err());
        let before =
            r#"{"version":1,"shape":{"in_place":{"segment_tracts":8}},"mode":"write-back","key_check":null}"#;
        let shape = DiskSettings::parse(before).unwrap().shape;
        assert_eq!(
            shape,
            Shape::InPlace {
                segment_tracts: 8,
                unit_blocks: 1
            },
            "disks keep their layout"
        );
        let odd = Shape::Log {
            block_bytes: 5000,
            physical_blocks: 100,
        };
        assert!(DiskSettings::new(odd, Mode::Log, None).is_err());
        let later = settings.to_text().replace("\"version\":1", "\"version\":2");
        assert_eq!(DiskSettings::parse(&later), Err(SettingsError::Later(2)));
        assert!(matches!(
            DiskSettings::parse(""),
            Err(SettingsError::Unreadable(_))
        ));
        assert_ne!(key_check(&[1; 32]), key_check(&[2; 32]));
    }

    #[test]
    fn modes_are_named_as_on_the_command_line() {
        for mode in [Mode::WriteThrough, Mode::WriteBack, Mode::FlushEpoch, Mode::Log] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("write_back".parse::<Mode>().is_err());
    }
}

//! A message that asks for work: which family, and whether to do it or only to look.
//!
//! ```json
//! {"family": "0123456789abcdef0123456789abcdef", "plan": false}
//! {"family": "0123456789abcdef0123456789abcdef", "volume": "ten_…/vol_…"}
//! ```
//!
//! A volume is named where the service keeps its roots and its bucket (`FIRN_CLEANER_ROOTS=service`).

use crate::Target;
use firn_format::FamilyId;
use firn_identity::TenantVolume;
use serde::Deserialize;

/// A message is some seventy bytes; what is longer is something else.
pub const MAX_WORK_BYTES: usize = 4096;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Work {
    /// What to clean.
    pub target: Target,
    /// Only to tell what would be done.
    pub plan: bool,
}

/// Why a message asks for nothing that can be done. Sending it again helps in no case.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// Longer than [`MAX_WORK_BYTES`].
    #[error(
        "the message has {bytes} bytes and at most {MAX_WORK_BYTES} are read; it should be {{\"family\": \"<32 hexadecimal digits>\"}}"
    )]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Not the JSON object that is expected.
    #[error("the message is not {{\"family\": \"<32 hexadecimal digits>\"}}: {0}")]
    Malformed(#[from] serde_json::Error),
    /// No family's name.
    #[error("\"family\" is {given:?}, and a family is named by 32 hexadecimal digits")]
    Family {
        /// What is there instead, shortened.
        given: String,
    },
    /// No volume's name.
    #[error("\"volume\" is {given:?}, and a volume is named with its tenant: ten_…/vol_…")]
    Volume {
        /// What is there instead, shortened.
        given: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    family: String,
    volume: Option<String>,
    #[serde(default)]
    plan: bool,
}

fn shortened(given: &str) -> String {
    given.chars().take(64).collect()
}

impl Work {
    /// Reads a message.
    ///
    /// # Errors
    /// [`WorkError`], which says what is expected.
    pub fn parse(message: &[u8]) -> Result<Self, WorkError> {
        if message.len() > MAX_WORK_BYTES {
            return Err(WorkError::TooLong { bytes: message.len() });
        }
        let Message { family, volume, plan } = serde_json::from_slice(message)?;
        let volume = volume
            .map(|volume| {
                volume.parse::<TenantVolume>().map_err(|_| WorkError::Volume {
                    given: shortened(&volume),
                })
            })
            .transpose()?;
        let family = family.parse::<FamilyId>().map_err(|_| WorkError::Family {
            given: shortened(&family),
        })?;
        Ok(Self {
            target: Target { volume, family },
            plan,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_a_family() {
        let work = Work::parse(br#"{"family":"00112233445566778899aabbccddeeff"}"#).expect("a message");
        assert_eq!(work.target.family.to_string(), "00112233445566778899aabbccddeeff");
        assert!(!work.plan);
        let work =
            Work::parse(br#"{"plan":true,"family":"00112233445566778899aabbccddeeff"}"#).expect("a message");
        assert!(work.plan);
        assert_eq!(work.target.volume, None);
        let named = format!("ten_{}/vol_{}", "01".repeat(16), "02".repeat(16));
        let message = format!(r#"{{"family":"00112233445566778899aabbccddeeff","volume":"{named}"}}"#);
        let work = Work::parse(message.as_bytes()).expect("a message");
        assert_eq!(work.target.volume.expect("a volume").to_string(), named);
    }

    #[test]
    fn what_asks_for_nothing_is_refused_with_what_was_expected() {
        let too_long = vec![b' '; MAX_WORK_BYTES + 1];
        let deep = "[".repeat(MAX_WORK_BYTES);
        let cases: [(&[u8], &str); 11] = [
            (b"", "EOF"),
            (b"{}", "missing field `family`"),
            (b"[1,2]", "is not"),
            (b"\xff\xfe", "is not"),
            (b"{\"family\":7}", "is not"),
            (b"{\"family\":\"main\"}", "\"main\", and a family is named by"),
            (b"{\"family\":\"../../../etc\"}", "32 hexadecimal digits"),
            (
                b"{\"family\":\"00112233445566778899aabbccddeeff\",\"delete\":true}",
                "unknown field `delete`",
            ),
            (
                b"{\"family\":\"00112233445566778899aabbccddeeff\",\"volume\":\"vol_1\"}",
                "\"vol_1\", and a volume is named",
            ),
            (&too_long, "4097 bytes"),
            (deep.as_bytes(), "is not"),
        ];
        for (message, said) in cases {
            let error = Work::parse(message).expect_err("no work").to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}

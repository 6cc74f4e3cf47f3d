//! Failure of a command: one message for a person, one code for a program.

use firn_anchor::{AnchorError, TupleError};
use firn_volume::{VolumeError, objects::ReadError};
use std::fmt;

/// Why a command failed: what happened, what is safe, what to do.
#[derive(Debug)]
pub struct Failure {
    message: String,
    code: u8,
    is_passing: bool,
}

impl Failure {
    /// Anything that may succeed when tried again.
    pub fn new(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: 1,
            is_passing: false,
        }
    }

    /// The command line or the configuration is wrong.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: 2,
            is_passing: false,
        }
    }

    /// This edge was fenced.
    pub fn fenced(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: 4,
            is_passing: false,
        }
    }

    /// The journal or the engine failed; a restart recovers.
    pub fn stopped(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: 5,
            is_passing: false,
        }
    }

    /// It works, and something will hurt.
    pub fn hurting(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: 7,
            is_passing: false,
        }
    }

    /// The store lost or altered what it had acknowledged.
    pub fn damaged(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: 6,
            is_passing: false,
        }
    }

    /// The same with one more sentence.
    #[must_use]
    pub(crate) fn because(mut self, why: impl fmt::Display) -> Self {
        self.message = format!("{}. {why}", self.message);
        self
    }

    /// Whether the cloud failed in a way that often passes by itself.
    pub(crate) fn is_passing(&self) -> bool {
        self.is_passing
    }

    /// What the process ends with.
    pub fn exit_code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

/// Whether the same opening may succeed a moment later without anybody's help.
fn is_passing(error: &VolumeError) -> bool {
    match error {
        VolumeError::Anchor(error) => error.is_transient() && !error.is_invalid_answer(),
        VolumeError::Read(error) => matches!(error, ReadError::Unavailable { .. }),
        _ => false,
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        let code = match &error {
            // What a newer build wrote is as unreadable the next time.
            VolumeError::NewerLocalState { .. } | VolumeError::NewerCheckpoint { .. } => 2,
            VolumeError::Anchor(AnchorError::Damaged {
                why: TupleError::UnknownVersion { .. } | TupleError::UnknownFlags { .. },
                ..
            }) => 2,
            VolumeError::Anchor(AnchorError::OwnedByOther { .. }) => 3,
            VolumeError::CheckpointLost { .. } | VolumeError::LevelTwoLost(_) => 6,
            VolumeError::Anchor(AnchorError::Fenced(_)) | VolumeError::SalvageFirst { .. } => 4,
            _ => 1,
        };
        Self {
            message: error.to_string(),
            code,
            is_passing: is_passing(&error),
        }
    }
}

impl From<AnchorError> for Failure {
    fn from(error: AnchorError) -> Self {
        VolumeError::from(error).into()
    }
}

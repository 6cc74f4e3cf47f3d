//! What a command ends with when it does not succeed: one message for a person, one code for a program.

use firn_anchor::AnchorError;
use firn_volume::VolumeError;
use std::fmt;

/// Why a command failed: what happened, what is safe, what to do.
#[derive(Debug)]
pub struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// Anything that may succeed when tried again.
    pub fn new(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: 1,
        }
    }

    /// The command line or the configuration is wrong.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: 2,
        }
    }

    /// This edge was fenced.
    pub fn fenced(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: 4,
        }
    }

    /// The journal or the engine failed; a restart recovers.
    pub fn stopped(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: 5,
        }
    }

    /// The store lost or altered what it had acknowledged.
    pub fn damaged(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: 6,
        }
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

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        let code = match &error {
            VolumeError::Anchor(AnchorError::OwnedByOther { .. }) => 3,
            VolumeError::CheckpointLost { .. } | VolumeError::LevelTwoLost(_) => 6,
            VolumeError::Anchor(AnchorError::Fenced(_)) | VolumeError::SalvageFirst { .. } => 4,
            _ => 1,
        };
        Self {
            message: error.to_string(),
            code,
        }
    }
}

impl From<AnchorError> for Failure {
    fn from(error: AnchorError) -> Self {
        VolumeError::from(error).into()
    }
}

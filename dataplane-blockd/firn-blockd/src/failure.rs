//! Failure of a command: one message for a person, one code for a program.

use firn_blockd_client::{AttachFailed, DetachFailed};
use firn_blockd_nbd::DeviceError;
use firn_blockd_placement::PlacementError;
use firn_blockd_snapshot::SnapshotError;
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
        Self::with_code(message, 1)
    }

    /// The command line or the configuration is wrong.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::with_code(message, 2)
    }

    /// Another attach has the disk.
    pub fn fenced(message: impl fmt::Display) -> Self {
        Self::with_code(message, 4)
    }

    fn with_code(message: impl fmt::Display, code: u8) -> Self {
        Self {
            message: message.to_string(),
            code,
        }
    }

    /// Whether trying again is of no use.
    pub fn is_usage(&self) -> bool {
        self.code == 2
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

impl From<PlacementError> for Failure {
    fn from(error: PlacementError) -> Self {
        match &error {
            PlacementError::Attached { holder, .. } => Self::with_code(
                format!(
                    "the disk is attached by {holder}; detach it there, or attach with --force, which ends that attach"
                ),
                3,
            ),
            PlacementError::NoCluster => {
                Self::usage("the table has no cluster of this name; set it up with: firn-blockd init")
            }
            PlacementError::NotEnoughNodes { copies } => Self::new(format!(
                "{copies} copies need as many running nodes; start more, and look with: firn-blockd status"
            )),
            PlacementError::Fenced { .. } | PlacementError::Superseded(_) => Self::fenced(error),
            _ => Self::new(error),
        }
    }
}

impl From<SnapshotError> for Failure {
    fn from(error: SnapshotError) -> Self {
        match &error {
            SnapshotError::Device(DeviceError::Fenced) => Self::fenced(error),
            SnapshotError::Name(_) | SnapshotError::Exists(_) | SnapshotError::NotFound(_) => {
                Self::usage(error)
            }
            _ => Self::new(error),
        }
    }
}

impl From<DetachFailed> for Failure {
    fn from(error: DetachFailed) -> Self {
        match error {
            DetachFailed::Placement(error) => error.into(),
            DetachFailed::NodesAway(error) => Self::new(error),
        }
    }
}

impl From<AttachFailed> for Failure {
    fn from(error: AttachFailed) -> Self {
        match error {
            AttachFailed::Placement(error) => error.into(),
            error @ (AttachFailed::WrongKey
            | AttachFailed::WrongMode { .. }
            | AttachFailed::Settings(_)
            | AttachFailed::NothingToJournal
            | AttachFailed::NotNew
            | AttachFailed::Unfinished { .. }) => Self::usage(error),
            error @ (AttachFailed::Layout(_)
            | AttachFailed::Journal(_)
            | AttachFailed::Resume(_)
            | AttachFailed::Recovery(_)
            | AttachFailed::Grow(_)) => Self::new(error),
        }
    }
}

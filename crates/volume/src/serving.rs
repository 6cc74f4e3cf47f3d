//! The serving state of a volume: what requests are refused by, and what its tasks end with.

use firn_env::Watched;
use firn_vfs::VfsError;

/// How the volume stands towards the outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServingState {
    /// It serves.
    Serving,
    /// It is being stopped; new requests are told to try again.
    Stopping,
    /// Another edge owns it (I8): nothing is served any more.
    Fenced,
    /// Others went on without this member by inode: nothing is served until the volume is opened again, which judges its journal. Clients are told to try again.
    Broken(String),
    /// The journal failed: nothing is acknowledged any more; the process must restart and recover.
    Failed(String),
}

impl ServingState {
    /// Nothing is served any more, for good.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Serving | Self::Stopping => false,
            Self::Fenced | Self::Broken(_) | Self::Failed(_) => true,
        }
    }
}

/// What clients of a member are told until the volume is opened again.
pub(crate) const BROKEN: VfsError = VfsError::TryAgain {
    reason: "others went on without this office, which could not be heard: the volume is opened again",
};

/// See the module.
pub(crate) struct Serving(Watched<ServingState>);

impl Serving {
    pub fn new() -> Self {
        Self(Watched::new(ServingState::Serving))
    }

    pub fn now(&self) -> ServingState {
        self.0.get()
    }

    /// Refuses if the volume does not serve.
    pub fn check(&self) -> Result<(), VfsError> {
        match self.now() {
            ServingState::Serving => Ok(()),
            ServingState::Stopping => Err(VfsError::TryAgain {
                reason: "the edge is stopping",
            }),
            ServingState::Broken(_) => Err(BROKEN),
            ServingState::Fenced => Err(VfsError::Fenced),
            ServingState::Failed(reason) => Err(VfsError::Io(reason)),
        }
    }

    /// Refuses once the volume does not serve any more for good.
    pub fn check_not_ended(&self) -> Result<(), VfsError> {
        match self.now() {
            ServingState::Serving | ServingState::Stopping => Ok(()),
            ServingState::Broken(_) => Err(BROKEN),
            ServingState::Fenced => Err(VfsError::Fenced),
            ServingState::Failed(reason) => Err(VfsError::Io(reason)),
        }
    }

    /// Fenced and failed are final.
    pub fn set(&self, state: ServingState) {
        self.0.set_unless(state, ServingState::is_final);
    }

    /// Waits until nothing is served any more, for good.
    pub async fn ended(&self) -> ServingState {
        self.0.wait_for(ServingState::is_final).await
    }
}

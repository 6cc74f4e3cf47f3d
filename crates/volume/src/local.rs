//! What an edge remembers of its volume on its own disk, besides journal and cache: one small file, replaced atomically.
//!
//! - who it is (`owner`, drawn once), so that after a restart the anchor knows it again;
//! - the tenure (the epoch since which it has owned the volume without a break) its journal belongs to, so that a journal is
//!   never replayed on another owner's root (I8);
//! - the newest root it saw, so that a rolled-back anchor is noticed;
//! - after a clean stop the write verifier, so that clients need not send their unstable writes again.

use crate::{
    codec::{Decoder, Encoder},
    error::VolumeError,
};
use bytes::Bytes;
use firn_anchor::{OwnerId, RememberedRoot};
use firn_env::{Disk, DiskError, Env, OpenMode};
use firn_format::OwnershipEpoch;

const VERSION: u8 = 1;
const FILE: &str = "state";
const NEW_FILE: &str = "state.new";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalState {
    pub owner: OwnerId,
    /// The tenure the journal directory belongs to; `None`: no journal.
    pub tenure: Option<OwnershipEpoch>,
    /// The newest root seen.
    pub seen: Option<RememberedRoot>,
    /// Set by a clean stop, cleared at the next start.
    pub clean_verifier: Option<[u8; 8]>,
}

impl LocalState {
    /// Reads the file, or draws a new identity if there is none.
    pub async fn load(env: &Env) -> Result<Self, VolumeError> {
        match env.disk().open(FILE, OpenMode::Read).await {
            Ok(file) => {
                let bytes = file.read_at(0, 4096).await?;
                Self::decode(bytes).map_err(VolumeError::LocalState)
            }
            Err(DiskError::NotFound { .. }) => {
                let state = Self {
                    owner: OwnerId(env.random_bytes()),
                    tenure: None,
                    seen: None,
                    clean_verifier: None,
                };
                state.save(&**env.disk()).await?;
                Ok(state)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces the file; durable (level 1) when it returns.
    pub async fn save(&self, disk: &dyn Disk) -> Result<(), DiskError> {
        match disk.remove(NEW_FILE).await {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let file = disk.open(NEW_FILE, OpenMode::CreateNew).await?;
        file.write_at(0, vec![self.encode()]).await?;
        file.sync_data().await?;
        disk.rename(NEW_FILE, FILE).await?;
        disk.sync_directory("").await
    }

    fn encode(&self) -> Bytes {
        let mut out = Encoder::new(VERSION);
        out.raw(&self.owner.0);
        out.option(self.tenure, |out, epoch| {
            out.u64(epoch.0);
        });
        out.option(self.seen.as_ref(), |out, seen| {
            out.bytes(&seen.to_bytes());
        });
        out.option(self.clean_verifier, |out, verifier| {
            out.raw(&verifier);
        });
        let checksum = blake3::hash(&out.snapshot());
        out.raw(&checksum.as_bytes()[..8]);
        out.finish()
    }

    fn decode(bytes: Bytes) -> Result<Self, crate::codec::DecodeError> {
        let body = bytes.slice(..bytes.len().saturating_sub(8));
        let checksum = bytes.slice(body.len()..);
        let intact = blake3::hash(&body).as_bytes()[..8] == checksum[..];
        let mut input = Decoder::new(body, VERSION, "local state file")?;
        if !intact {
            return Err(input.error());
        }
        let owner = OwnerId(input.array()?);
        let tenure = input.option(|input| Ok(OwnershipEpoch(input.u64()?)))?;
        let seen = input.option(|input| {
            let bytes = input.bytes()?;
            RememberedRoot::from_bytes(&bytes).map_err(|_| input.error())
        })?;
        let clean_verifier = input.option(Decoder::array)?;
        input.finish()?;
        Ok(Self {
            owner,
            tenure,
            seen,
            clean_verifier,
        })
    }
}

/// Where the journal of a tenure is.
pub fn journal_directory(tenure: OwnershipEpoch) -> String {
    format!("journal/{:016x}", tenure.0)
}

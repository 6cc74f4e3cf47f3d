//! Local state of an edge's volume on its own disk, besides journal and cache: one small file, replaced atomically.
//!
//! - who it is (`owner`, drawn once), so that after a restart the anchor knows it again;
//! - the tenure (the epoch since which it has owned the volume without a break) its journal belongs to, so that a journal is
//!   never replayed on another owner's root (I8);
//! - the newest root it saw, so that a rolled-back anchor is noticed; a copy of its checkpoint lies beside
//!   ([`crate::kept_checkpoint`]), so that the volume can be served while the cloud is away ([`crate::detached`]);
//! - the writer incarnation of the last start that had the cloud, and how many of its inode numbers starts without it took;
//! - after a clean stop the write verifier, so that clients need not send their unstable writes again.
//!
//! - as a member by inode the incarnations that it noted before it began them: the member's record names one of these, or another copy of this state
//!   has started since ([`firn_anchor::AnchorError::StartedElsewhere`]).
//!
//! Version 2 added the writer; version 1 had none, and no start without the cloud goes out from it. Version 3 added what a member began, and is written
//! where there is such a thing only.

use crate::{
    codec::{Decoder, Encoder},
    error::VolumeError,
    kept_checkpoint,
};
use bytes::Bytes;
use firn_anchor::{OwnerId, RememberedRoot};
use firn_env::{Disk, DiskError, Env, OpenMode};
use firn_format::{OwnershipEpoch, WriterId};

pub(crate) const VERSION: u8 = 3;
/// Without what a member began.
pub(crate) const OWNERS_VERSION: u8 = 2;
pub(crate) const OLDEST_VERSION: u8 = 1;
const FILE: &str = "state";
const NEW_FILE: &str = "state.new";

/// Incarnations that are remembered: the one that the record named, and starts behind it that failed. If one of more than these were to land late it would be taken for a copy's.
const BEGUN_MAX: usize = 16;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalState {
    pub owner: OwnerId,
    /// The tenure the journal directory belongs to; `None`: no journal.
    pub tenure: Option<OwnershipEpoch>,
    /// The newest root seen.
    pub seen: Option<RememberedRoot>,
    /// Set by a clean stop, cleared before the next start serves.
    pub clean_verifier: Option<[u8; 8]>,
    /// The incarnation of the last start that had the cloud.
    pub writer: Option<WriterId>,
    /// Shares of its inode numbers that starts without the cloud have taken since.
    pub shares_taken: u64,
    /// As a member by inode: the incarnation that started last, and those that were drawn since, oldest first.
    pub begun: Vec<WriterId>,
}

impl LocalState {
    /// Reads the file, if there is one.
    pub async fn find(env: &Env) -> Result<Option<Self>, VolumeError> {
        match env.disk().open(FILE, OpenMode::Read).await {
            Ok(file) => {
                let bytes = file.read_at(0, 4096).await?;
                match newer_version(&bytes) {
                    Some(found) => Err(VolumeError::NewerLocalState { found, read: VERSION }),
                    None => Self::decode(bytes).map(Some).map_err(VolumeError::LocalState),
                }
            }
            Err(DiskError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the file, or draws a new identity if there is none.
    pub async fn load(env: &Env) -> Result<Self, VolumeError> {
        match Self::find(env).await? {
            Some(state) => Ok(state),
            None => {
                let state = Self {
                    owner: OwnerId(env.random_bytes()),
                    tenure: None,
                    seen: None,
                    clean_verifier: None,
                    writer: None,
                    shares_taken: 0,
                    begun: Vec::new(),
                };
                state.save(&**env.disk()).await?;
                Ok(state)
            }
        }
    }

    /// Adds an incarnation that is about to start, behind the one that the record names now; to be saved before the anchor hears of it.
    pub fn note_begun(&mut self, named: Option<WriterId>, incarnation: WriterId) {
        let place = self.begun.iter().position(|begun| Some(*begun) == named);
        self.begun.drain(..place.unwrap_or(0));
        if self.begun.len() >= BEGUN_MAX {
            self.begun.remove(1);
        }
        self.begun.push(incarnation);
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

    /// Remembers `self.seen` with a copy of its checkpoint. When it returns, the journal may be trimmed up to what that checkpoint
    /// covers: either both are durable (level 1), or, if the disk refused, there is no copy any more, so that no start without the
    /// cloud goes out from an older root whose journal is gone.
    ///
    /// `false`: there is no copy, and whether the rest was saved is not known.
    ///
    /// # Errors
    /// If neither could be done; then the journal must keep what it has.
    pub async fn remember(&self, disk: &dyn Disk, copy: Option<&Bytes>) -> Result<bool, DiskError> {
        let version = self
            .seen
            .as_ref()
            .and_then(RememberedRoot::root)
            .map(|root| root.version);
        let kept = async {
            if let (Some(version), Some(copy)) = (version, copy) {
                kept_checkpoint::keep(disk, version, copy).await?;
            }
            self.save(disk).await?;
            kept_checkpoint::forget_others(disk, version).await
        };
        let Err(error) = kept.await else { return Ok(true) };
        tracing::warn!(%error, "cannot remember the newest root locally; until that succeeds, no start without the cloud is possible");
        kept_checkpoint::forget(disk).await?;
        // What was removed may have made room.
        if let Err(error) = self.save(disk).await {
            tracing::debug!(%error, "the newest root is still not remembered");
        }
        Ok(false)
    }

    fn encode(&self) -> Bytes {
        let mut out = Encoder::new(match self.begun.is_empty() {
            true => OWNERS_VERSION,
            false => VERSION,
        });
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
        out.option(self.writer, |out, writer| {
            out.u64(writer.0);
        });
        out.u64(self.shares_taken);
        if !self.begun.is_empty() {
            out.u8(self.begun.len() as u8);
            for incarnation in &self.begun {
                out.u64(incarnation.0);
            }
        }
        let checksum = blake3::hash(out.as_slice());
        out.raw(&checksum.as_bytes()[..8]);
        out.finish()
    }

    fn decode(bytes: Bytes) -> Result<Self, crate::codec::DecodeError> {
        let body = bytes.slice(..bytes.len().saturating_sub(8));
        let checksum = bytes.slice(body.len()..);
        let intact = blake3::hash(&body).as_bytes()[..8] == checksum[..];
        let (mut input, version) = Decoder::versions(&body, OLDEST_VERSION, VERSION, "local state file")?;
        if !intact {
            return Err(input.error());
        }
        let owner = OwnerId(input.array()?);
        let tenure = input.option(|input| Ok(OwnershipEpoch(input.u64()?)))?;
        let seen = input.option(|input| {
            let bytes = input.bytes()?;
            RememberedRoot::from_bytes(&bytes).map_err(|_| input.error())
        })?;
        let clean_verifier = input.option(|input| input.array())?;
        let (mut writer, mut shares_taken) = (None, 0);
        if version >= 2 {
            writer = input.option(|input| Ok(WriterId(input.u64()?)))?;
            shares_taken = input.u64()?;
        }
        let mut begun = Vec::new();
        if version > OWNERS_VERSION {
            let count = usize::from(input.u8()?);
            if !(1..=BEGUN_MAX).contains(&count) {
                return Err(input.error());
            }
            for _ in 0..count {
                begun.push(WriterId(input.u64()?));
            }
        }
        input.finish()?;
        Ok(Self {
            owner,
            tenure,
            seen,
            clean_verifier,
            writer,
            shares_taken,
            begun,
        })
    }
}

/// The version of a file that is whole and that a newer build wrote.
fn newer_version(bytes: &[u8]) -> Option<u8> {
    let (body, checksum) = bytes.split_last_chunk::<8>()?;
    let is_whole = blake3::hash(body).as_bytes()[..8] == checksum[..];
    body.first()
        .copied()
        .filter(|version| is_whole && *version > VERSION)
}

/// Where the journal of a tenure is.
pub fn journal_directory(tenure: OwnershipEpoch) -> String {
    format!("journal/{:016x}", tenure.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_version_is_told_from_damage() {
        let mut out = Encoder::new(VERSION + 1);
        out.raw(b"whatever a later build keeps");
        let checksum = blake3::hash(out.as_slice());
        out.raw(&checksum.as_bytes()[..8]);
        let mut bytes = out.finish().to_vec();
        assert_eq!(newer_version(&bytes), Some(VERSION + 1));
        bytes[3] ^= 1;
        assert_eq!(newer_version(&bytes), None, "damaged");
    }

    #[test]
    fn what_an_earlier_build_wrote_is_read_and_has_no_writer() {
        let state = LocalState {
            owner: OwnerId([7; 16]),
            tenure: Some(OwnershipEpoch(3)),
            seen: None,
            clean_verifier: Some([9; 8]),
            writer: Some(WriterId(5)),
            shares_taken: 2,
            begun: Vec::new(),
        };
        let bytes = state.encode();
        assert_eq!(bytes[0], OWNERS_VERSION, "an owner's is as ever");
        assert_eq!(LocalState::decode(bytes), Ok(state.clone()));
        let mut of_member = state.clone();
        for incarnation in 0..40 {
            of_member.note_begun(Some(WriterId(7)), WriterId(incarnation));
        }
        assert_eq!(of_member.begun.len(), BEGUN_MAX);
        assert_eq!(
            of_member.begun.first(),
            Some(&WriterId(7)),
            "what the record names stays"
        );
        assert_eq!(of_member.begun.last(), Some(&WriterId(39)));
        let bytes = of_member.encode();
        assert_eq!(bytes[0], VERSION);
        assert_eq!(LocalState::decode(bytes), Ok(of_member));

        let mut out = Encoder::new(OLDEST_VERSION);
        out.raw(&state.owner.0).u8(1).u64(3).u8(0).u8(1).raw(&[9; 8]);
        let checksum = blake3::hash(out.as_slice());
        out.raw(&checksum.as_bytes()[..8]);
        let read = LocalState::decode(out.finish());
        let expected = LocalState {
            writer: None,
            shares_taken: 0,
            ..state
        };
        assert_eq!(read, Ok(expected));
    }
}

//! Checks of what an edge calls that a volume was granted to for writing: beyond what the anchor checks of every edge.
//!
//! | call | refused | since |
//! |---|---|---|
//! | commit | the checkpoint lies in a segment of a writer that was not drawn for this volume and this ownership | an older checkpoint would be the newest again, or another's log stand for one's own |
//! | draw a writer | for no ownership, for an ownership that is not the present one | segments of such writers are judged by nobody: the owner would pay for them for ever |
//! | take, commit, drain of another volume | unless it is a salvage clone | the grant is of one volume, and not of its clones |
//! | create | a family; a volume that is no salvage clone | the same |
//! | share by inode, members | always | what such a member commits is not checked here yet |
//!
//! What a checkpoint holds is sealed, and nobody here can look into it: a writer that leaves snapshots out, or writes nonsense into files, is
//! not found here (docs/threat-model.md). Each check reads one tuple; tenures of writers never change, and the others are checked anew by the anchor in
//! the transaction.

use super::served::Served;
use crate::{
    endpoint::Call,
    problem::{Code, Problem},
};
use firn_anchor::{
    AnchorAnswer, AnchorCall, AnchorRole, PrincipalId, Root, StoredTuple, VolumeChange, VolumeTuple,
    WriterTenure, WriterTuple,
};
use firn_anchor_service::Admitted;
use firn_identity::{TenantVolume, VolumeId};

/// What names of volumes begin with that an edge makes of what it could not commit.
const SALVAGE: &str = "salvage-";

fn refused(why: &str) -> Problem {
    Problem::new(Code::NotAllowed, format!("{why}; nothing was changed"))
}

/// A volume's tuples, for reading.
struct Tuples<'a> {
    call: &'a Call,
    volume: TenantVolume,
}

impl Tuples<'_> {
    async fn read(&self, asked: AnchorCall) -> Result<Option<StoredTuple>, Problem> {
        let admitted = Admitted {
            volume: self.volume,
            role: AnchorRole::Observer,
            // Who reads is no member.
            principal: PrincipalId([0; 16]),
            guards: Vec::new(),
            granted: None,
        };
        match self.call.app.anchor().answer(admitted, asked).await? {
            AnchorAnswer::Tuple { tuple } => Ok(tuple),
            AnchorAnswer::Tuples { .. } | AnchorAnswer::Changed { .. } | AnchorAnswer::Conflict { .. } => {
                Err(Problem::internal("one tuple was asked for"))
            }
        }
    }

    async fn volume(&self, volume: VolumeId) -> Result<Option<VolumeTuple>, Problem> {
        let found = self.read(AnchorCall::Volume { volume }).await?;
        let decoded = found.map(|found| VolumeTuple::from_bytes(&found.content));
        decoded.transpose().map_err(Problem::internal)
    }

    /// A clone that an edge makes of what it could not commit, by its name.
    async fn is_salvage(&self, volume: VolumeId) -> Result<bool, Problem> {
        let found = self.volume(volume).await?;
        Ok(found.is_some_and(|found| found.name.starts_with(SALVAGE)))
    }

    /// Whether the root's checkpoint lies in a segment whose writer was drawn to commit it.
    async fn is_by_its_writer(&self, volume: VolumeId, root: &Root) -> Result<bool, Problem> {
        let writer = root.location.segment.writer;
        let found = self.read(AnchorCall::Writer { writer }).await?;
        let found = found.map(|found| WriterTuple::from_bytes(&found.content));
        let tenure = found
            .transpose()
            .map_err(Problem::internal)?
            .map(|found| found.tenure);
        Ok(match tenure {
            Some(WriterTenure::Owner { volume: of, epoch }) => of == volume && epoch == root.epoch,
            Some(WriterTenure::FirstRoot { volume: of }) => of == volume,
            Some(WriterTenure::Unknown | WriterTenure::Cleaner | WriterTenure::Member { .. }) | None => false,
        })
    }
}

/// Refuses what an edge with a grant may not call, whatever it is to the volume.
pub(super) async fn check(call: &Call, served: &Served, asked: &AnchorCall) -> Result<(), Problem> {
    if served.access.is_none() || asked.is_read() {
        return Ok(());
    }
    let granted = served.volume.record.volume.id;
    let tuples = Tuples {
        call,
        volume: TenantVolume {
            tenant: served.owner,
            volume: granted,
        },
    };
    match asked {
        AnchorCall::CreateFamily { .. } => Err(refused("a volume is made by its owner's edges")),
        AnchorCall::CreateVolume { name, .. } if !name.starts_with(SALVAGE) => Err(refused(
            "the grant is of one volume; clones are made by its owner's edges",
        )),
        AnchorCall::ChangeVolume { volume, change, .. } => {
            if *volume != granted && !tuples.is_salvage(*volume).await? {
                return Err(refused("the grant is of one volume, and not of its clones"));
            }
            match change {
                VolumeChange::Commit { root, .. } if !tuples.is_by_its_writer(*volume, root).await? => {
                    Err(refused(
                        "the root's checkpoint is not in the log of a writer that was drawn for this ownership",
                    ))
                }
                VolumeChange::Commit { .. }
                | VolumeChange::Take { .. }
                | VolumeChange::Drain { .. }
                | VolumeChange::ForgetRetained { .. } => Ok(()),
                VolumeChange::ShareByInode { .. } => {
                    Err(refused("who writes a volume is said by its owner's edges"))
                }
            }
        }
        AnchorCall::DrawWriter { tenure, .. } => {
            let is_due = match tenure {
                WriterTenure::Owner { volume, epoch } => {
                    let is_its = *volume == granted || tuples.is_salvage(*volume).await?;
                    let tuple = tuples.volume(*volume).await?;
                    is_its && tuple.is_some_and(|tuple| tuple.epoch == *epoch)
                }
                WriterTenure::FirstRoot { volume } => *volume != granted,
                WriterTenure::Unknown | WriterTenure::Cleaner | WriterTenure::Member { .. } => false,
            };
            match is_due {
                true => Ok(()),
                false => Err(refused(
                    "a writer is drawn for the volume's present ownership, or for a salvage clone",
                )),
            }
        }
        AnchorCall::ChangeHandover { volume, .. } if *volume != granted => {
            Err(refused("the grant is of one volume, and not of its clones"))
        }
        AnchorCall::Members { .. } => Err(refused(
            "members of a volume that many write are its owner's edges only",
        )),
        _ => Ok(()),
    }
}

//! Opening the volume: with the cloud, or, while that is away and this machine remembers enough, without it.
//!
//! ```text
//! can be served detached? ──no──▶ with the cloud, or the start fails
//!   │ yes
//! store and table answer? ──no──▶ detached, or the start fails
//!   │ yes
//! with the cloud ──fails──▶ do they still answer? ──no──▶ detached, or the start fails
//! ```

use crate::{
    by_inode::{self, ByInode, ByInodeOptions},
    config::Config,
    detached::Detached,
    failure::Failure,
    identity::Identity,
    outage::{Away, look},
    parts::Outside,
    rings::{KeyRings, open_kept},
    snapshot::OwnerPart,
};
use firn_session::LockTable;
use firn_volume::{FollowOptions, Member, Parts, Term, Volume, VolumeError};
use std::{fmt::Display, sync::Arc, time::Duration};

/// Openings with a cloud that answers and fails all the same for a moment.
const ATTEMPTS: u32 = 3;
/// Between them.
const PAUSE: Duration = Duration::from_secs(2);

/// A volume that is served from now on.
pub struct Opened {
    pub parts: Parts,
    pub volume: Volume,
    pub volume_name: String,
    pub owner: OwnerPart,
    pub mode: Mode,
}

/// How it is served.
pub enum Mode {
    /// It is ours, and its key rings are followed.
    Owned(Box<KeyRings>),
    /// It is another edge's, and its roots are followed.
    Following(Box<KeyRings>),
    /// It is shared, and followed or owned for a term.
    Member(Box<MemberTerm>),
    /// It is nobody's, and written beside other edges.
    ByInode(Box<ByInode>),
    /// Without the cloud.
    Detached(Arc<Detached>),
}

/// A term of a member of a shared volume.
#[derive(Clone)]
pub struct MemberTerm {
    pub member: Member,
    pub term: Term,
}

/// Opens the volume of the state directory, whose lock the caller holds; `locks` is the table of its clients.
///
/// # Errors
/// [`Failure`], among them that another edge took the volume over. What was acknowledged is then in the journal or in a salvage
/// clone.
pub async fn open(config: &Config, outside: &Outside, locks: &LockTable) -> Result<Opened, Failure> {
    let identity = || Identity::load(&config.volume.state_directory);
    if let Some(options) = config.volume.follow {
        return following(config, outside, identity()?, options).await;
    }
    if let Some(options) = config.volume.by_inode {
        return beside_others(config, outside, (options, locks)).await;
    }
    let of = (&identity()?).into();
    let detachable = Volume::check_detachable(&outside.env).await;
    if detachable.is_ok() {
        let away = look(outside, config, of).await;
        if away.is_away() {
            let opened = detached(config, outside, identity()?, &away).await;
            return opened.map_err(|why| refused(&away, &why));
        }
    }
    for attempt in 1.. {
        let error = match owned(config, outside, identity()?).await {
            Ok(opened) => return Ok(opened),
            Err(error) if error.exit_code() == 1 => error,
            Err(error) => return Err(error),
        };
        let away = look(outside, config, of).await;
        match &detachable {
            Ok(()) if away.is_away() => {
                let opened = detached(config, outside, identity()?, &away).await;
                return opened.map_err(|why| refused(&away, &why));
            }
            Err(why) if away.is_away() => return Err(refused(&away, why)),
            Ok(()) | Err(_) if attempt < ATTEMPTS && error.is_passing() => {
                tracing::warn!(%error, "the volume could not be opened; tried again");
                outside.env.sleep(PAUSE).await;
            }
            Ok(()) | Err(_) => return Err(error),
        }
    }
    unreachable!("the last attempt returns")
}

/// Of a volume that others write, too.
async fn beside_others(
    config: &Config,
    outside: &Outside,
    with: (ByInodeOptions, &LockTable),
) -> Result<Opened, Failure> {
    for attempt in 1.. {
        let identity = Identity::load(&config.volume.state_directory)?;
        match by_inode::open(config, outside, identity, with).await {
            Err(error) if error.is_passing() && attempt < ATTEMPTS => {
                tracing::warn!(%error, "the volume could not be opened; tried again");
                outside.env.sleep(PAUSE).await;
            }
            opened => return opened,
        }
    }
    unreachable!("the last attempt returns")
}

/// What an edge says that cannot start, neither with the cloud nor without.
fn refused(away: &Away, why: &dyn Display) -> Failure {
    Failure::new(format!(
        "{}. {why}. Nothing was changed, and everything acknowledged is in the journal (level 1). Bring back what is away, and start \
         again",
        away.words()
    ))
}

async fn detached(
    config: &Config,
    outside: &Outside,
    identity: Identity,
    away: &Away,
) -> Result<Opened, Failure> {
    let keys = open_kept(&config.volume.state_directory, &identity)?;
    let detached = Arc::new(Detached::new(&outside.env, (&identity).into(), away));
    let parts = Parts {
        store: detached.store(outside),
        ..outside.parts(identity.family, identity.volume, keys)
    };
    let (volume, report) = Volume::open_detached(parts.clone(), config.volume_config()?).await?;
    tracing::warn!(
        ?report,
        away = away.words(),
        "serving without the cloud: reads come from the journal and the cache, and what is in neither is answered with \"try again \
         later\"; writes are safe in the journal (level 1). Nothing is to be done here: the edge goes on by itself when store and \
         table answer"
    );
    Ok(Opened {
        parts,
        volume,
        volume_name: config.volume.name.clone(),
        owner: OwnerPart {
            name: config.volume.edge_name.clone(),
            epoch: report.epoch.0,
        },
        mode: Mode::Detached(detached),
    })
}

/// Of a volume that another edge owns.
async fn following(
    config: &Config,
    outside: &Outside,
    identity: Identity,
    options: FollowOptions,
) -> Result<Opened, Failure> {
    let volume_id = identity.volume;
    let (parts, rings) = outside.own_parts(config, identity).await?;
    let volume = match Volume::follow(parts.clone(), config.volume_config()?, options).await {
        Ok(volume) => volume,
        Err(error @ (VolumeError::NotDrained | VolumeError::SalvageFirst { .. })) => {
            return Err(Failure::usage(format!(
                "volume.follow: {error}. Nothing was changed. Leave `follow` out, start it, drain it (or let it salvage), then follow"
            )));
        }
        Err(error) => return Err(error.into()),
    };
    let (tuple, _) = parts.anchor.load(volume_id).await?;
    tracing::info!("following the volume; it is read only here");
    Ok(Opened {
        parts,
        volume,
        volume_name: tuple.name,
        owner: OwnerPart {
            name: tuple.owner.map(|owner| owner.name).unwrap_or_default(),
            epoch: tuple.epoch.0,
        },
        mode: Mode::Following(Box::new(rings)),
    })
}

async fn owned(config: &Config, outside: &Outside, identity: Identity) -> Result<Opened, Failure> {
    let volume_id = identity.volume;
    let (parts, rings) = outside.own_parts(config, identity).await?;
    let volume = match Volume::open(parts.clone(), config.volume_config()?).await {
        Ok((volume, recovery)) => {
            tracing::info!(?recovery, "volume open");
            volume
        }
        Err(VolumeError::SalvageFirst { tenure }) => {
            let salvaged = Volume::salvage(&parts, &config.volume_config()?).await?;
            let detail = salvaged.map_or_else(
                || "its journal had nothing that the volume has not".to_owned(),
                |clone| {
                    format!(
                        "its {} acknowledged changes are in the clone {}",
                        clone.recovery.records, clone.name
                    )
                },
            );
            return Err(Failure::fenced(format!(
                "another edge took the volume over (this one had it since epoch {tenure}); {detail}. This edge serves nothing"
            )));
        }
        Err(error) => return Err(error.into()),
    };
    // Asked once: an idle edge asks the table nothing, and a takeover fences this one.
    let tuple = match parts.anchor.load(volume_id).await {
        Ok((tuple, _)) => tuple,
        Err(error) => {
            // Whoever opens it again finds the journal closed.
            volume.stop().await?;
            return Err(error.into());
        }
    };
    Ok(Opened {
        parts,
        volume,
        volume_name: tuple.name,
        owner: OwnerPart {
            name: tuple.owner.map(|owner| owner.name).unwrap_or_default(),
            epoch: tuple.epoch.0,
        },
        mode: Mode::Owned(Box::new(rings)),
    })
}

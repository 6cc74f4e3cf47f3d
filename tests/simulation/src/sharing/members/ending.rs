//! The end of a history: all is well, each office changes something, and what was acknowledged is looked for.

use super::{
    Shared,
    client::{file_name, make_file, number_in},
    office::Office,
};
use crate::sharing::world::{VOLUME, World};
use firn_env::{Env, sim::DiskImage};
use firn_format::VolumeId;
use firn_vfs::{Vfs, VfsError};
use firn_volume::{FollowOptions, FollowerVfs, Volume};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// What each office may take to change something once all is well: a minute until an owner that is gone is taken over, and what else is slow. Below the
/// time after which an idle owner gives the volume by itself.
const PROGRESS: Duration = Duration::from_secs(200);
/// How long nobody asks anything, at the end.
const IDLE: Duration = Duration::from_secs(3600);

/// Heals, looks for progress, and judges what is there.
pub async fn judge(env: &Env, world: &World, offices: &[Arc<Office>], shared: &Shared) {
    for office in offices {
        office.heal();
    }
    // What a client at the one office keeps the volume by does not keep the others from it.
    for (turn, office) in offices.iter().chain(offices).enumerate() {
        let began = env.now();
        let mut is_made = false;
        while !is_made && env.now().since(began) < PROGRESS {
            is_made = make_file(office).await;
            if !is_made {
                env.sleep(Duration::from_secs(1)).await;
            }
        }
        if !is_made || env.now().since(began) > PROGRESS {
            shared.fail(format!(
                "turn {turn}: office {} could not change anything for {PROGRESS:?} though all was well: {:?}",
                office.number,
                office.member().map(|member| member.status())
            ));
            return;
        }
    }
    // Idle owners give the volume up.
    env.sleep(Duration::from_secs(400)).await;
    for office in offices {
        if let Some(member) = office.member() {
            let status = member.status();
            shared.add("takes", status.taken);
            shared.add("breaks", status.breaks);
        }
    }
    let Some(in_volume) = files_of(world, VOLUME, shared).await else {
        return;
    };
    let mut salvaged = BTreeSet::new();
    for clone in clones(world).await {
        shared.count("salvage clones");
        salvaged.extend(files_of(world, clone, shared).await.unwrap_or_default());
    }
    let ledger = shared.ledger();
    let lost: Vec<_> = ledger
        .files
        .iter()
        .filter(|file| !in_volume.contains(file) && !salvaged.contains(file))
        .collect();
    let untold: Vec<_> = ledger
        .files
        .iter()
        .filter(|file| !in_volume.contains(file) && !ledger.paths.contains(&format!("/w{file}")))
        .collect();
    let put_aside: Vec<_> = ledger
        .files_in_cloud
        .iter()
        .filter(|file| !in_volume.contains(file))
        .collect();
    let put_aside = format!("{put_aside:?}");
    shared.add("files at level 2", ledger.files_in_cloud.len() as u64);
    let (lost, untold) = (format!("{lost:?}"), format!("{untold:?}"));
    let doubles: Vec<_> = ledger.exclusive.iter().filter(|(_, made)| **made > 1).collect();
    let doubles = format!("{doubles:?}");
    drop(ledger);
    if put_aside != "[]" {
        shared.fail(format!(
            "acknowledged at level 2 and not in the volume: {put_aside}"
        ));
    }
    if lost != "[]" {
        shared.fail(format!(
            "acknowledged and neither in the volume nor salvaged: {lost}"
        ));
    }
    if untold != "[]" && shared.counted("power cuts") == 0 && shared.counted("crashes") == 0 {
        shared.fail(format!("salvaged, and no path was told: {untold}"));
    }
    if doubles != "[]" && shared.counted("salvage clones") == 0 {
        shared.fail(format!("created exclusively by two offices: {doubles}"));
    }
}

/// An hour without a request.
pub async fn silence(env: &Env, world: &World, shared: &Shared) {
    env.sleep(Duration::from_secs(60)).await;
    let before = world.requests();
    env.sleep(IDLE).await;
    let asked = world.requests() - before;
    if asked > 0 {
        shared.fail(format!("{asked} requests while nobody asked anything"));
    }
}

/// The volumes beside the one: what was salvaged.
async fn clones(world: &World) -> Vec<VolumeId> {
    let parts = world.parts(world.auditor());
    let listed = world.auditor().machine.env().spawn("auditor", async move {
        let volumes = parts.anchor.volumes().await.expect("the line is fair");
        volumes.into_iter().map(|entry| entry.volume).collect::<Vec<_>>()
    });
    let listed = listed.await.expect("the machine is up");
    listed.into_iter().filter(|volume| *volume != VOLUME).collect()
}

/// The numbers of the files in a volume.
async fn files_of(world: &World, volume: VolumeId, shared: &Shared) -> Option<BTreeSet<u64>> {
    let place = world.auditor();
    place.machine.crash();
    place.machine.disk().restore(&DiskImage::default());
    place.machine.restart();
    let parts = firn_volume::Parts {
        volume,
        ..world.parts(place)
    };
    let numbers = shared.ledger().next;
    let config = world.config.clone();
    let read = place.machine.env().spawn("auditor", async move {
        let options = FollowOptions::default();
        let followed = Volume::follow(parts, config, options).await;
        let vfs = FollowerVfs::new(followed.map_err(|error| VfsError::Io(error.to_string()))?);
        let mut found = BTreeSet::new();
        for number in 1..=numbers {
            let name = file_name(number);
            match number_in(&vfs as &dyn Vfs, &name).await? {
                Some(content) if content == number => {
                    found.insert(number);
                }
                _ => {}
            }
        }
        Ok::<_, VfsError>(found)
    });
    match read.await {
        Ok(Ok(found)) => Some(found),
        other => {
            shared.fail(format!("{volume} cannot be read at the end: {other:?}"));
            None
        }
    }
}

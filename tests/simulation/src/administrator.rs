//! The administrator: makes, reads and deletes snapshots, clones them, restores from them, rotates keys and rekeys while clients work.

use crate::{
    client::Work,
    history::{History, Home, judge, on},
    judged::Judged,
    rekeying::RATES,
    system::{Running, SnapshotRefusal},
    tree::Tree,
};
use firn_env::{Env, TaskEnded, sim::Seeded};
use firn_vfs::VfsError;
use std::{sync::Arc, time::Duration};

/// Snapshots at one time: each is read whole after each stop.
const SNAPSHOTS_MAX: usize = 4;

/// The judge's name for the calls that a restore makes.
const RESTORER: usize = 9_999;

/// Clocks jump by seconds while an edge lives.
const CLOCK_SLACK_MS: i64 = 120_000;

/// Lasts as long as the clients of a life.
pub(crate) async fn administer(
    history: Arc<History>,
    home: Home,
    running: Arc<dyn Running>,
    work: Work,
    mut random: Seeded,
) {
    let machine = history.system.edge(home.edge);
    if !machine.is_running() {
        return;
    }
    // Its clock can be read even when the machine has gone down meanwhile.
    let (incarnation, clock) = (machine.incarnation(), machine.env());
    let mut number = 0;
    while !work.is_over() && machine.is_running() && machine.incarnation() == incarnation {
        let longest = *random.pick(&[Duration::from_millis(20), Duration::from_secs(2)]);
        let pause = random.duration(Duration::ZERO, longest);
        // The pause ends with the work.
        let _ = history.env.timeout(pause, work.over()).await;
        if work.is_over() {
            return;
        }
        if random.chance(1, 6) {
            let (rotates, rate) = (random.chance(1, 2), *random.pick(&RATES));
            if rekey(&history, &home, &running, rotates, rate).await.is_err() {
                return;
            }
        }
        if begins_manifest(&history, &home, &running).await.is_err() {
            return;
        }
        let there = running.snapshots();
        let chosen = if there.is_empty() { 0 } else { random.below(8) };
        let done = match chosen {
            0..2 if there.len() < SNAPSHOTS_MAX => {
                number += 1;
                let name = format!("s{}-{number}-{}", home.edge, random.below(1_000_000));
                let until_ms = if random.chance(1, 3) {
                    clock.wall().as_millis() + random.between(0, 7_200_000) as i64
                } else {
                    0
                };
                create(&history, &home, &running, &name, until_ms).await
            }
            2 if !there.is_empty() => {
                delete(&history, &home, &clock, &running, random.pick(&there).clone()).await
            }
            3 if !there.is_empty() && history.clones.have_room() => {
                number += 1;
                let name = format!("c{}-{number}-{}", home.edge, random.below(1_000_000));
                make_clone(&history, &home, &running, random.pick(&there).clone(), &name).await
            }
            4 if !there.is_empty() => {
                number += 1;
                let target = format!("restored-{}-{number}-{}", home.edge, random.below(1_000_000));
                let (id, name, _) = random.pick(&there).clone();
                let restored = restore(&history, &home, &running, (id, &name), &target, &mut random).await;
                restored.map(drop)
            }
            _ if !there.is_empty() => {
                let (id, name, _) = random.pick(&there).clone();
                look(&history, &home, &running, id, &name).await
            }
            _ => Ok(()),
        };
        if done.is_err() {
            return;
        }
    }
}

/// Of a volume of today, if it has none yet: asked for again whenever something is administered, as who is not sure does.
async fn begins_manifest(
    history: &Arc<History>,
    home: &Home,
    running: &Arc<dyn Running>,
) -> Result<(), TaskEnded> {
    let machine = history.system.edge(home.edge);
    let serving = running.clone();
    let begun = on(
        &machine,
        "manifest",
        async move { serving.begin_manifest().await },
    )
    .await?;
    match begun {
        Ok(true) => history.count("manifests begun"),
        Ok(false) => {}
        Err(reason) => history.say(|| format!("no manifest: {reason}")),
    }
    Ok(())
}

async fn rekey(
    history: &Arc<History>,
    home: &Home,
    running: &Arc<dyn Running>,
    rotates: bool,
    bytes_per_second: u64,
) -> Result<(), TaskEnded> {
    let machine = history.system.edge(home.edge);
    let serving = running.clone();
    let started = on(&machine, "rekey", async move {
        serving.rekey(rotates, bytes_per_second).await
    })
    .await?;
    match started {
        Ok(()) => history.count("rekeys"),
        Err(reason) => history.say(|| format!("no rekey: {reason}")),
    }
    Ok(())
}

async fn create(
    history: &Arc<History>,
    home: &Home,
    running: &Arc<dyn Running>,
    name: &str,
    until_ms: i64,
) -> Result<(), TaskEnded> {
    let machine = history.system.edge(home.edge);
    let (serving, wanted) = (running.clone(), name.to_owned());
    history.say(|| format!("snapshot {name} wanted"));
    let made = on(&machine, "snapshot", async move {
        serving.create_snapshot(&wanted, until_ms).await
    })
    .await?;
    match made {
        Ok(id) => {
            history.count("snapshots made");
            judge(&home.oracle).snapshot_acknowledged(id);
        }
        Err(SnapshotRefusal::Trouble(reason)) => history.say(|| format!("no snapshot {name}: {reason}")),
        Err(refusal) => history.fail(format!("snapshot {name} was refused: {refusal:?}")),
    }
    Ok(())
}

async fn delete(
    history: &Arc<History>,
    home: &Home,
    clock: &Env,
    running: &Arc<dyn Running>,
    (id, name, until_ms): (u64, String, i64),
) -> Result<(), TaskEnded> {
    let machine = history.system.edge(home.edge);
    let before_ms = clock.wall().as_millis();
    let (serving, unwanted) = (running.clone(), name.clone());
    let deleted = on(&machine, "delete snapshot", async move {
        serving.delete_snapshot(&unwanted).await
    })
    .await?;
    let now_ms = clock.wall().as_millis().max(before_ms);
    match deleted {
        Ok(()) => {
            if until_ms > now_ms + CLOCK_SLACK_MS {
                history.fail(format!(
                    "snapshot {name} was deleted, and is protected until {until_ms}"
                ));
            }
            history.count("snapshots deleted");
            judge(&home.oracle).deletion_acknowledged(id);
        }
        Err(SnapshotRefusal::Protected) => {
            if until_ms < before_ms - CLOCK_SLACK_MS {
                history.fail(format!(
                    "snapshot {name} cannot be deleted, though its protection has ended"
                ));
            }
            history.count("snapshots protected");
        }
        Err(SnapshotRefusal::Trouble(reason)) => {
            history.say(|| format!("snapshot {name} stays: {reason}"));
        }
        Err(refusal) => history.fail(format!("snapshot {name} cannot be deleted: {refusal:?}")),
    }
    Ok(())
}

async fn make_clone(
    history: &Arc<History>,
    home: &Home,
    running: &Arc<dyn Running>,
    (id, snapshot, _): (u64, String, i64),
    name: &str,
) -> Result<(), TaskEnded> {
    let machine = history.system.edge(home.edge);
    let (serving, of, wanted) = (running.clone(), snapshot.clone(), name.to_owned());
    history.say(|| format!("clone {name} of snapshot {snapshot} wanted"));
    let made = on(&machine, "clone", async move {
        serving.clone_snapshot(&of, &wanted).await
    })
    .await?;
    match made {
        Ok(branch) => {
            history.count("clones made");
            let oracle = judge(&home.oracle).of_clone(id);
            match oracle {
                Some(oracle) => history.clones.add(history, branch, oracle),
                None => history.fail(format!("snapshot {snapshot} was cloned and never made")),
            }
        }
        Err(SnapshotRefusal::Trouble(reason)) => history.say(|| format!("no clone {name}: {reason}")),
        Err(refusal) => history.fail(format!("clone {name} was refused: {refusal:?}")),
    }
    Ok(())
}

/// Restores something of a snapshot to a new name in the root directory; whether it was done.
pub(crate) async fn restore(
    history: &Arc<History>,
    home: &Home,
    running: &Arc<dyn Running>,
    (id, snapshot): (u64, &str),
    target: &str,
    random: &mut Seeded,
) -> Result<bool, TaskEnded> {
    let machine = history.system.edge(home.edge);
    let Some(tree) = judge(&home.oracle).snapshot_tree(id) else {
        history.fail(format!("snapshot {snapshot} is listed and was never made"));
        return Ok(false);
    };
    let paths: Vec<Vec<u8>> = tree.nodes.keys().cloned().collect();
    let from = random.pick(&paths).clone();
    history.say(|| {
        format!(
            "restore {:?} of {snapshot} to {target}",
            String::from_utf8_lossy(&from)
        )
    });
    let live = Judged::new(running.vfs(), home.oracle.clone(), RESTORER);
    let (serving, name, to) = (running.clone(), snapshot.to_owned(), target.to_owned());
    let before = judge(&home.oracle).newest();
    let source = from.clone();
    let restored = on(&machine, "restore", async move {
        serving.restore(&live, &name, &source, to.as_bytes()).await
    })
    .await?;
    match restored {
        Ok(()) => {
            history.count("restores");
            judge(&home.oracle).restored(before, RESTORER, &tree.below(&from), target);
            return Ok(true);
        }
        Err(SnapshotRefusal::Trouble(reason)) => history.say(|| format!("not restored: {reason}")),
        Err(refusal) => history.fail(format!("restoring {target}: {refusal:?}")),
    }
    Ok(false)
}

async fn look(
    history: &Arc<History>,
    home: &Home,
    running: &Arc<dyn Running>,
    id: u64,
    name: &str,
) -> Result<(), TaskEnded> {
    let machine = history.system.edge(home.edge);
    let Some(vfs) = running.snapshot(name) else {
        history.fail(format!("snapshot {name} is listed and cannot be read"));
        return Ok(());
    };
    match on(&machine, "read snapshot", async move { Tree::read(&*vfs).await }).await? {
        Ok(tree) => judge(&home.oracle).check_snapshot(id, &tree, "while it is served"),
        Err((path, error)) => match error {
            VfsError::TryAgain { .. } | VfsError::Fenced | VfsError::Io(_) => {
                history.say(|| format!("snapshot {name} cannot be read now: {path}: {error}"));
            }
            error => history.fail(format!("snapshot {name}, {path}: {error:?}")),
        },
    }
    Ok(())
}

//! The administrator: makes, reads and deletes snapshots while clients work.

use crate::{
    client::Work,
    history::{History, Home, judge, on},
    system::{Running, SnapshotRefusal},
    tree::Tree,
};
use firn_env::{
    TaskEnded,
    sim::{Machine, Seeded},
};
use firn_vfs::VfsError;
use std::{sync::Arc, time::Duration};

/// Snapshots at one time: each is read whole after each stop.
const SNAPSHOTS_MAX: usize = 4;

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
    let incarnation = machine.incarnation();
    let mut number = 0;
    while !work.is_over() && machine.is_running() && machine.incarnation() == incarnation {
        let pause = random.duration(Duration::ZERO, Duration::from_secs(2));
        // The pause ends with the work.
        let _ = history.env.timeout(pause, work.over()).await;
        if work.is_over() {
            return;
        }
        let there = running.snapshots();
        let done = match random.below(5) {
            0..2 if there.len() < SNAPSHOTS_MAX => {
                number += 1;
                let name = format!("s{}-{number}-{}", home.edge, random.below(1_000_000));
                let until_ms = if random.chance(1, 3) {
                    let Ok(now_ms) = wall_ms(&machine) else { return };
                    now_ms + random.between(0, 7_200_000) as i64
                } else {
                    0
                };
                create(&history, &home, &running, &name, until_ms).await
            }
            2 if !there.is_empty() => delete(&history, &home, &running, random.pick(&there).clone()).await,
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

/// What the edge's clock says, if it runs.
fn wall_ms(machine: &Machine) -> Result<i64, TaskEnded> {
    if machine.is_running() {
        Ok(machine.env().wall().as_millis())
    } else {
        Err(TaskEnded)
    }
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
    running: &Arc<dyn Running>,
    (id, name, until_ms): (u64, String, i64),
) -> Result<(), TaskEnded> {
    let machine = history.system.edge(home.edge);
    let before_ms = wall_ms(&machine)?;
    let (serving, unwanted) = (running.clone(), name.clone());
    let deleted = on(&machine, "delete snapshot", async move {
        serving.delete_snapshot(&unwanted).await
    })
    .await?;
    // The edge may have gone down after it answered.
    let now_ms = wall_ms(&machine)?.max(before_ms);
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

//! Moving from one edge to another: by an orderly drain, or by force while the first one still lives (I8).

use crate::{
    client::Work,
    history::{History, Home, judge, on},
    life::{Life, LifeEnd},
    oracle::Stop,
    outage::Owner,
    system::{Branch, Running, StartError, Weather},
};
use firn_env::{TaskEnded, sim::Seeded};
use firn_vfs::VfsError;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Tries of a step that faults may fail.
const TRIES_MAX: usize = 30;

/// Drains an edge and goes on on the other.
pub(crate) async fn drain(
    history: &Arc<History>,
    home: &Home,
    running: &Arc<dyn Running>,
    work: &Work,
) -> LifeEnd {
    let machine = history.system.edge(home.edge);
    let serving = running.clone();
    history.system.set_weather(home.edge, Weather::Fair);
    let drained = on(&machine, "drain", async move { serving.drain().await }).await;
    work.stop();
    work.done().await;
    let crashed = LifeEnd::Stopped {
        stop: Stop::Crash,
        verifier: home.verifier,
        edge: home.edge,
    };
    match drained {
        Ok(Ok(())) => {}
        Ok(Err(reason)) => {
            history.say(|| format!("not drained: {reason}"));
            machine.crash();
            return crashed;
        }
        Err(TaskEnded) => return crashed,
    }
    let newest = judge(&home.oracle).newest();
    judge(&home.oracle).committed(newest);
    machine.crash();
    history.count("drains");
    LifeEnd::Moved(Home {
        edge: other(home.edge),
        branch: home.branch,
        oracle: home.oracle.clone(),
        stop: Stop::Clean,
        verifier: None,
        born: true,
    })
}

fn other(edge: usize) -> usize {
    1 - edge.min(1)
}

/// Another edge takes over while this one lives, perhaps without the cloud. Afterwards the first must find out, and what it
/// acknowledged meanwhile must all be in the clone it salvages.
pub(crate) async fn by_force(
    life: &Life,
    history: &Arc<History>,
    home: &Home,
    running: &Arc<dyn Running>,
    work: &Work,
    random: &mut Seeded,
) -> LifeEnd {
    let machine = history.system.edge(home.edge);
    let cut_off = random.chance(2, 3);
    if cut_off {
        history.system.set_weather(home.edge, Weather::CutOff);
    }
    life.some_time(history, work, random).await;
    if !machine.is_running() {
        return LifeEnd::Stopped {
            stop: Stop::Crash,
            verifier: home.verifier,
            edge: home.edge,
        };
    }
    // The second edge may not just start, and takes over.
    let winner = other(home.edge);
    if random.chance(1, 2) && !is_refused(history, winner).await {
        return LifeEnd::GaveUp;
    }
    if !take(history, winner, random).await {
        return LifeEnd::GaveUp;
    }
    history.count("takeovers");
    // From here on there are two lines of history.
    let mut moved = Home {
        edge: winner,
        branch: home.branch,
        oracle: Arc::new(Mutex::new(judge(&home.oracle).fork())),
        stop: Stop::Takeover,
        verifier: None,
        born: true,
    };
    let Some(second) = history.open(&mut moved, random).await else {
        return LifeEnd::GaveUp;
    };
    let taken_over_at = judge(&moved.oracle).newest();
    let second_work = life.work(history, &moved, &second, random);
    life.some_time(history, &second_work, random).await;
    // The first one finds out; without the cloud it does not ask before it is opened anew.
    history.system.set_weather(home.edge, Weather::Fair);
    if machine.is_running() && !running.is_detached() {
        must_be_fenced(history, home, running).await;
    }
    work.stop();
    work.done().await;
    history.collect(&home.oracle);
    machine.crash();
    // It may have lost its power in the outage, and start again, not knowing what happened meanwhile.
    let mut lost = Home {
        stop: Stop::Crash,
        ..home.clone()
    };
    if let Some(again) = history.open_in_outage(&mut lost, Owner::Another, random).await {
        let more = life.work(history, &lost, &again, random);
        life.some_time(history, &more, random).await;
        more.stop();
        more.done().await;
        history.collect(&lost.oracle);
        history.count("starts without the cloud after a takeover");
        machine.crash();
    }
    history.system.set_weather(home.edge, Weather::Fair);
    second_work.stop();
    second_work.done().await;
    // Often it comes back while the second one serves, which it must not disturb.
    if running.is_detached() && !is_refused(history, home.edge).await {
        return LifeEnd::GaveUp;
    }
    // Or only when that has left; what it has in its journal belongs to another past.
    let returns = random.chance(1, 3) && drained(history, &moved, &second).await;
    if returns && !must_salvage_first(history, home, &moved).await {
        return LifeEnd::GaveUp;
    }
    if !salvaged(history, home, taken_over_at, random).await {
        return LifeEnd::GaveUp;
    }
    history.collect(&moved.oracle);
    history.system.edge(winner).crash();
    if returns {
        moved.edge = home.edge;
        moved.stop = Stop::Clean;
        moved.verifier = None;
        history.count("returns after a takeover");
        return LifeEnd::Moved(moved);
    }
    moved.stop = Stop::Crash;
    LifeEnd::Moved(moved)
}

/// An edge that asks without force is told who has the file system.
async fn is_refused(history: &Arc<History>, edge: usize) -> bool {
    let machine = history.system.edge(edge);
    history.system.set_weather(edge, Weather::Fair);
    if !machine.is_running() {
        machine.restart();
    }
    let system = history.system.clone();
    let started = on(&machine, "start", async move {
        system.start(edge, Branch::HEAD).await
    })
    .await;
    machine.kill();
    match started {
        Ok(Err(StartError::Owned(_) | StartError::SalvageFirst | StartError::Later(_))) | Err(TaskEnded) => {
            true
        }
        Ok(Ok(_)) => {
            history.fail("an edge was given what another one owns");
            false
        }
        Ok(Err(error)) => {
            history.fail(format!(
                "an edge that asks for what another one owns is told {error:?}"
            ));
            false
        }
    }
}

/// Makes an edge the owner, however often it crashes on the way.
async fn take(history: &Arc<History>, edge: usize, random: &mut Seeded) -> bool {
    let machine = history.system.edge(edge);
    history.system.set_weather(edge, Weather::Fair);
    for _ in 0..TRIES_MAX {
        if !machine.is_running() {
            machine.restart();
        }
        if random.chance(1, 6) {
            machine.crash_at_any(random.between(1, 5));
        }
        let system = history.system.clone();
        let taken = on(&machine, "takeover", async move { system.takeover(edge).await }).await;
        machine.faults().disarm();
        match taken {
            Ok(Ok(())) => return true,
            Ok(Err(StartError::SalvageFirst)) => {
                // It was the loser of an earlier takeover.
                history.fail("takeover: an edge that was salvaged still has a journal");
                return false;
            }
            Ok(Err(StartError::Later(_) | StartError::Owned(_))) => {
                history.env.sleep(Duration::from_secs(1)).await;
            }
            Ok(Err(StartError::Broken(reason))) => {
                history.fail(format!("takeover: {reason}"));
                return false;
            }
            Err(TaskEnded) => history.after_crash(&machine, "takeover"),
        }
    }
    history.fail("takeover: never done");
    false
}

/// Drains an edge; false if it does not end well, which happens when its machine went down.
pub(crate) async fn drained(history: &Arc<History>, home: &Home, running: &Arc<dyn Running>) -> bool {
    let machine = history.system.edge(home.edge);
    let serving = running.clone();
    if !matches!(
        on(&machine, "drain", async move { serving.drain().await }).await,
        Ok(Ok(()))
    ) {
        return false;
    }
    let newest = judge(&home.oracle).newest();
    judge(&home.oracle).committed(newest);
    true
}

/// The loser starts again when nobody has the file system: if it has a journal, that must not be replayed on it.
async fn must_salvage_first(history: &Arc<History>, home: &Home, moved: &Home) -> bool {
    let machine = history.system.edge(home.edge);
    if !machine.is_running() {
        machine.restart();
    }
    machine.faults().set_observer(|_, _| {});
    let (system, edge) = (history.system.clone(), home.edge);
    let started = on(&machine, "start", async move {
        system.start(edge, Branch::HEAD).await
    })
    .await;
    let right = match started {
        Ok(Err(StartError::SalvageFirst | StartError::Later(_))) | Err(TaskEnded) => true,
        // It had nothing of its own. Then it must show what the winner left.
        Ok(Ok(running)) => match history.read_tree(&machine, &running).await {
            Ok(Some(tree)) => {
                judge(&moved.oracle).time_passes();
                judge(&moved.oracle).recovered(Stop::Clean, &tree, &[], None);
                history.collect(&moved.oracle);
                true
            }
            Ok(None) => false,
            Err(TaskEnded) => true,
        },
        Ok(Err(error)) => {
            history.fail(format!("the loser of a takeover starts again: {error:?}"));
            false
        }
    };
    machine.crash();
    right
}

/// Once it reaches the cloud again, a fenced edge must notice at its next commit, and serve nothing after.
async fn must_be_fenced(history: &Arc<History>, home: &Home, running: &Arc<dyn Running>) {
    let machine = history.system.edge(home.edge);
    let serving = running.clone();
    let synced = on(&machine, "sync", async move { serving.sync().await });
    match history.env.timeout(Duration::from_secs(3600), synced).await {
        // It had nothing to commit, and so no reason to look.
        Ok(Ok(Ok(()))) if !running.is_fenced() => {
            history.say(|| "the fenced edge had nothing to commit".into());
            return;
        }
        Ok(Ok(_)) => {}
        Ok(Err(TaskEnded)) => return,
        Err(_) => return history.fail("the fenced edge does not find out in an hour of fair weather"),
    }
    if !running.is_fenced() {
        return history.fail("the fenced edge failed otherwise than by finding out");
    }
    let vfs = running.vfs();
    let answer = on(&machine, "call", async move { vfs.attributes(vfs.root()).await }).await;
    match answer {
        Ok(Err(VfsError::Fenced)) | Err(TaskEnded) => {}
        Ok(other) => history.fail(format!("the fenced edge still serves: {other:?}")),
    }
}

/// The loser's acknowledged changes are in the clone, or were committed before the takeover.
async fn salvaged(history: &Arc<History>, home: &Home, taken_over_at: usize, random: &mut Seeded) -> bool {
    let machine = history.system.edge(home.edge);
    for attempt in 0..TRIES_MAX {
        if !machine.is_running() {
            machine.restart();
        }
        if attempt < 5 && random.chance(1, 3) {
            machine.crash_at_any(random.between(1, 10));
        }
        let (system, edge) = (history.system.clone(), home.edge);
        let clone = on(&machine, "salvage", async move { system.salvage(edge).await }).await;
        machine.faults().disarm();
        match clone {
            Ok(Ok(Some(branch))) => {
                history.count("salvages");
                return judge_clone(history, home, branch).await;
            }
            Ok(Ok(None)) => {
                let floor = judge(&home.oracle).floor();
                if floor > taken_over_at {
                    history.fail(format!(
                        "nothing was salvaged, though {floor} changes were acknowledged and {taken_over_at} taken over"
                    ));
                    return false;
                }
                return true;
            }
            Ok(Err(StartError::Later(_))) => history.env.sleep(Duration::from_secs(1)).await,
            Ok(Err(error)) => {
                history.fail(format!("salvage: {error:?}"));
                return false;
            }
            Err(TaskEnded) => history.after_crash(&machine, "salvage"),
        }
    }
    history.fail("salvage: never done");
    false
}

async fn judge_clone(history: &Arc<History>, home: &Home, branch: Branch) -> bool {
    // On a machine that never saw it: the clone is in the cloud.
    let edge = history.system.clone_reader();
    let machine = history.system.edge(edge);
    history.forget_everything(&machine);
    let system = history.system.clone();
    let opened = on(
        &machine,
        "open clone",
        async move { system.start(edge, branch).await },
    )
    .await;
    let running = match opened {
        Ok(Ok(running)) => running,
        other => {
            let why = other.map(|result| result.err());
            history.fail(format!("the salvage clone does not open: {why:?}"));
            return false;
        }
    };
    match history.read_tree(&machine, &running).await {
        Ok(Some(tree)) => {
            let mut oracle = judge(&home.oracle);
            oracle.time_passes();
            oracle.recovered(Stop::Crash, &tree, &[], None);
            oracle.begins_anew();
            // It is a branch like any other from now on.
            if history.clones.have_room() {
                history.clones.add(history, branch, oracle.fork());
            }
        }
        Ok(None) => return false,
        Err(TaskEnded) => {
            history.after_crash(&machine, "reading the clone");
            history.fail("the machine went down while the clone was read");
            return false;
        }
    }
    history.collect(&home.oracle);
    machine.crash();
    true
}

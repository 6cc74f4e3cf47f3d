//! A machine whose clock jumps: what can undo a bad cleaner stays as long as it is to stay by the second store's clock.

mod world;

use firn_env::{
    mutants::planting,
    sim::{Machine, Simulation},
};
use firn_store::Store;
use std::{future::Future, time::Duration};
use world::{
    HOUR, KEEP, World,
    held::{AFTER, DROP, copies, length},
};

const JUMP: Duration = Duration::from_secs(30 * 24 * 3600);

fn jump(machine: &Machine, is_ahead: bool) {
    let nanos = JUMP.as_nanos() as i64;
    machine.jump_wall(if is_ahead { nanos } else { -nanos });
}

/// A mirror on a machine of its own, beside stores with a clock of theirs.
fn with_clocks<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    scenario: impl FnOnce(Machine, World) -> F + Send + 'static,
) -> T {
    let simulation = Simulation::new(5);
    let (machine, stores) = (simulation.machine("mirror"), simulation.env());
    let run = async move {
        let world = World::of((&machine.env(), &stores), |second| second).await;
        scenario(machine, world).await
    };
    simulation.run(run).expect("it ends")
}

/// A retired segment, marked a day ago, and one comparison of a machine that believes that a month has gone by since.
fn compared_ahead(starts_ahead: bool) -> Result<u64, String> {
    with_clocks(move |machine, mut world| async move {
        let retired = world.put(1).await;
        world.mirror.check().await.unwrap();
        world.compare().await;
        world.retire(1, false).await;
        world.first.delete(&retired).await.unwrap();
        world.compare().await;
        world.env.sleep(24 * HOUR).await;
        jump(&machine, true);
        if starts_ahead {
            world = world.another();
        }
        let found = world.compare().await;
        if !world.has(&retired).await {
            return Err("it is deleted a month early".into());
        }
        assert_eq!((found.waiting, found.deleted), (1, 0));
        let told = world.mirror.status().clock_ahead_ms.expect("it is told");
        assert!(told.abs_diff(JUMP.as_millis() as i64) < 1000, "{told} ms");
        jump(&machine, false);
        for hour in 24..200 {
            world.compare().await;
            assert_eq!(world.mirror.status().clock_ahead_ms, None);
            if !world.has(&retired).await {
                return Ok(hour);
            }
            world.env.sleep(HOUR).await;
        }
        Err("it is never deleted".into())
    })
}

#[test]
fn a_clock_that_jumps_ahead_and_back_deletes_nothing_early() {
    let keep_hours = KEEP.as_secs() / 3600;
    for starts_ahead in [false, true] {
        assert_eq!(compared_ahead(starts_ahead), Ok(keep_hours));
        planting(Some("mirror.local_clock_alone"), || compared_ahead(starts_ahead)).unwrap_err();
    }
}

/// While copies go, a retired member leaves its group and is released to the cleaners `keep_deleted` after it was retired.
fn passed_ahead() -> Result<u64, String> {
    with_clocks(|machine, world| async move {
        let world = world.kept(DROP, |second| second);
        for sequence in 1..=4 {
            world.put_of(sequence, length(sequence)).await;
        }
        world.compare().await;
        // None of them is cold by the store's clock.
        jump(&machine, true);
        world.mirror.group().await.unwrap();
        if world.mirror.parity().status().members > 0 {
            return Err("what is minutes old is called cold".into());
        }
        jump(&machine, false);
        world.env.sleep(2 * AFTER).await;
        world.mirror.group().await.unwrap();
        assert!(copies(&world).is_empty());
        // A large one, so that its group is written without it once it is due.
        world.retire(3, false).await;
        world.mirror.group().await.unwrap();
        jump(&machine, true);
        world.mirror.group().await.unwrap();
        let members = world.mirror.parity().status().members;
        jump(&machine, false);
        match members {
            4 => {}
            other => return Err(format!("{} left a month early", 4 - other)),
        }
        for hour in 0..200 {
            world.mirror.group().await.unwrap();
            if world.mirror.parity().status().members < 4 {
                return Ok(hour);
            }
            world.env.sleep(HOUR).await;
        }
        Err("it never leaves".into())
    })
}

#[test]
fn a_clock_that_jumps_ahead_and_back_lets_no_member_go_early() {
    assert_eq!(passed_ahead(), Ok(KEEP.as_secs() / 3600));
    planting(Some("mirror.local_clock_alone"), passed_ahead).unwrap_err();
}

#[test]
fn a_clock_that_is_behind_has_deletions_wait_until_it_is_set() {
    with_clocks(|machine, world| async move {
        let retired = world.put(1).await;
        world.compare().await;
        world.retire(1, false).await;
        world.first.delete(&retired).await.unwrap();
        world.compare().await;
        jump(&machine, false);
        world.env.sleep(KEEP + HOUR).await;
        world.compare().await;
        assert!(world.has(&retired).await);
        let told = world.mirror.status().clock_ahead_ms.expect("it is told");
        assert!(told < 0, "{told} ms");
        jump(&machine, true);
        world.compare().await;
        assert!(!world.has(&retired).await);
    });
}

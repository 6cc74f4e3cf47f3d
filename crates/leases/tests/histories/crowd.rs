//! Members that always want the same: an inode, of which each wait ends in one use at least; and the root, which many replace one after the other.

use crate::{
    FAMILY, prepare,
    slow_uplink::{office, with_offices},
};
use firn_anchor::Anchor;
use firn_env::{mutants::planting, sim::Simulation};
use firn_table::MemoryTable;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// How often both together used an inode that each wants again as soon as it has used it, in a minute; each looks at its mail ten times as often as who waits looks at the arena.
fn uses(bug: Option<&'static str>) -> u64 {
    with_offices(bug, Duration::from_millis(50), |env, offices| async move {
        let mut wanting = Vec::new();
        for (member, _) in offices {
            let (tended, at) = (Arc::clone(&member), env.clone());
            let tending = env.spawn("tend", async move {
                loop {
                    tended.tend().await.unwrap();
                    at.sleep(Duration::from_millis(10)).await;
                }
            });
            let at = env.clone();
            wanting.push(async move {
                let (began, mut uses) = (at.now(), 0_u64);
                let using = async {
                    while at.now().since(began) < Duration::from_secs(60) {
                        drop(member.acquire(&[1]).await.unwrap());
                        uses += 1;
                        at.sleep(Duration::from_millis(5)).await;
                    }
                };
                let _ = at.timeout(Duration::from_secs(60), using).await;
                tending.abort();
                uses
            });
        }
        futures::future::join_all(wanting).await.into_iter().sum()
    })
}

#[test]
fn what_was_waited_for_is_used_before_it_goes_on() {
    let sound = uses(None);
    let passed_on = uses(Some("leases.gives_what_was_waited_for"));
    println!("{sound} uses in a minute, and {passed_on} if it goes on at once");
    assert!(sound >= 60 && passed_on * 2 < sound, "{sound} and {passed_on}");
}

/// What each of so many members commits in a minute in which it publishes without end, over lines of 30 ms, and how many roots all of them built.
fn commits_of(bug: Option<&'static str>, count: usize) -> (Vec<u64>, u64) {
    let minute = Duration::from_secs(60);
    let (commits, builds): (Vec<u64>, Vec<u64>) = planting(bug, move || {
        let simulation = Arc::new(Simulation::new(9));
        let inside = simulation.clone();
        let ran = simulation.run(async move {
            let (table, env) = (MemoryTable::new(), inside.env());
            let anchor = Anchor::new(table.connect(&env), env.clone(), FAMILY);
            let numbers = prepare(&anchor, &env, &Arc::default(), count).await.unwrap();
            let mut lives = Vec::new();
            for number in numbers {
                let (member, content) = office(&inside, &table, number, Duration::from_millis(40)).await;
                content.is_busy.store(true, Ordering::Relaxed);
                // It knows its arena, as one that has changed something does.
                drop(member.acquire(&[u64::from(number.0) << 32]).await.unwrap());
                let at = env.clone();
                lives.push(async move {
                    let began = at.now();
                    while at.now().since(began) < minute {
                        content.is_dirty.store(true, Ordering::Relaxed);
                        let _ = member.publish().await;
                        if at.now().since(began).as_millis() % 5 == 0 {
                            let _ = member.tend().await;
                        }
                    }
                    let count = |counted: &std::sync::atomic::AtomicU64| counted.load(Ordering::Relaxed);
                    (count(&content.commits), count(&content.uploads))
                });
            }
            futures::future::join_all(lives).await
        });
        ran.unwrap().into_iter().unzip()
    });
    let builds = builds.iter().sum();
    println!(
        "{count} members, {bug:?}: {:.2} commits a second, {commits:?}; {} of {builds} roots in vain",
        commits.iter().sum::<u64>() as f64 / 60.0,
        builds - commits.iter().sum::<u64>()
    );
    (commits, builds)
}

#[test]
fn many_that_publish_all_the_time_go_one_after_the_other() {
    let sum = |commits: &[u64]| commits.iter().sum::<u64>();
    let two = sum(&commits_of(None, 2).0);
    for count in [8, 16] {
        let (commits, builds) = commits_of(None, count);
        let (least, most) = (commits.iter().min().unwrap(), commits.iter().max().unwrap());
        assert!(*least > 0 && *most <= 3 * least, "{commits:?}");
        assert!((builds - sum(&commits)) * 10 <= builds, "{commits:?} of {builds}");
        assert!(sum(&commits) * 10 >= two * 9, "{commits:?} and {two}");
    }
    let (commits, builds) = commits_of(Some("leases.no_commit_lease"), 16);
    assert!((builds - sum(&commits)) * 2 > builds, "{commits:?} of {builds}");
}

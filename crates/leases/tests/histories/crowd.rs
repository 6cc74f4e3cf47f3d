//! Members that always want to commit: many replace the root one after the other.

use crate::{FAMILY, prepare, slow_uplink::office};
use firn_anchor::Anchor;
use firn_env::{mutants::planting, sim::Simulation};
use firn_table::MemoryTable;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

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

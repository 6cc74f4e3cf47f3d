//! Two members that always want the same: each wait ends in one use at least.

use crate::slow_uplink::with_offices;
use std::{sync::Arc, time::Duration};

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

//! The task of a member: it publishes when a checkpoint is due or wanted, gives signs of life, and gives what others wait for.
//!
//! | | |
//! |---|---|
//! | each second, five times a second as long as others wait for leases, or woken | publish if it is due by the cadence, or somebody waits for level 2 |
//! | then | tend: a beat if the last is 10 s old, the mail; of an office in which nobody asks anything neither, since it goes away |
//! | beside both | what others want and is published is given, as often |
//! | each five minutes | adopt the newest root: a cleaner deletes what only older ones need, an hour after it is not needed any more |
//! | broken, or a leaf changed | the service ends; the journal stays as it is |
//! | anything else that fails | again after a second: what was acknowledged is in the journal |
//!

use crate::{config::Cadence, volume::Inner};
use firn_anchor::AnchorError;
use firn_env::Monotonic;
use firn_leases::{Member, MemberError};
use futures::future::{Either, select};
use std::{pin::pin, sync::Arc, time::Duration};

/// Between two tries of what failed.
const TICK: Duration = Duration::from_secs(1);

/// Between two looks at the root of a member that asks for nothing: a fraction of a cleaner's grace, and $0.001 a month.
const ADOPTS_EVERY: Duration = Duration::from_secs(300);

/// Runs until the volume stops serving.
pub(super) async fn run(inner: Arc<Inner>) {
    let work = pin!(work(&inner));
    let ended = pin!(inner.serving.ended());
    let over = pin!(inner.checkpointer.over());
    match select(work, select(ended, over)).await {
        Either::Left(((), _)) | Either::Right(_) => {}
    }
}

async fn work(inner: &Inner) {
    let member = inner.by_inode().member().clone();
    let mut failures = 0_u32;
    let mut looked = inner.env.now();
    let mut left_at = None;
    let mut tended = None;
    loop {
        let woken = inner.checkpointer.woken();
        let mut woken = pin!(woken);
        woken.as_mut().enable();
        let mut done = Ok(());
        if is_due(inner) {
            inner.checkpointer.begin();
            done = beside(inner, &member, member.publish()).await;
            // Who waits looks again, also where there was nothing to publish.
            inner.checkpointer.tell_committed();
        }
        // Also where that failed: a member that gives no sign of life is broken.
        // What is awaited is published before the mail is looked at once more.
        let now = inner.env.now();
        let goes_on = done.is_ok() && inner.checkpointer.is_wanted();
        let is_tend_due = tended.is_none_or(|tended: Monotonic| now.since(tended) >= member.tend_after());
        if !done.as_ref().is_err_and(ends) && (is_tend_due || !goes_on) {
            tended = Some(now);
            done = done.and(beside(inner, &member, member.tend()).await);
        }
        if done.is_ok() {
            done = inner.leave_if_idle(&mut left_at).await;
        }
        // Away it asks for nothing, and reads the root when it comes back.
        if done.is_ok() && member.is_valid() && inner.env.now().since(looked) >= ADOPTS_EVERY {
            looked = inner.env.now();
            if !firn_env::planted!("volume.adopts_when_asked") {
                done = member.catch_up().await;
            }
        }
        match done {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                if ends(&error) {
                    inner.end_member(&error);
                    return;
                }
                inner.checkpointer.times().last_error = Some(error.to_string());
                if failures.is_power_of_two() {
                    tracing::warn!(%error, failures, "not published yet; everything acknowledged is in the journal");
                }
                inner.env.sleep(TICK).await;
                continue;
            }
        }
        if inner.checkpointer.is_wanted() {
            continue;
        }
        // Either the time is up, or somebody wants something.
        let _ = inner.env.timeout(member.tend_after(), woken).await;
    }
}

/// Something that may take as long as an upload; what others want and is published is given meanwhile.
async fn beside<T>(inner: &Inner, member: &Member, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        let urgency = &inner.checkpointer.packer.progress.urgency;
        urgency.set_recalled(member.is_asked_for());
        if let Ok(done) = inner.env.timeout(member.tend_after(), work.as_mut()).await {
            return done;
        }
        let giving = pin!(member.give_published());
        match select(work.as_mut(), giving).await {
            Either::Left((done, giving)) => {
                // A gift that is under way is not given up. What is wrong the work finds, too, or the next look.
                let _ = giving.await;
                return done;
            }
            Either::Right(_) => {}
        }
    }
}

/// Whether a member with this error is over.
fn ends(error: &MemberError) -> bool {
    match error {
        MemberError::LeafChanged { .. } | MemberError::Anchor(AnchorError::MemberBroken { .. }) => true,
        MemberError::Anchor(_) | MemberError::Content(_) | MemberError::Lapsed | MemberError::Away => false,
    }
}

fn is_due(inner: &Inner) -> bool {
    if inner.checkpointer.is_wanted() {
        return true;
    }
    let since = inner.checkpointer.times().dirty_since;
    let waited = since.map_or(Duration::ZERO, |since| inner.env.now().since(since));
    let state = inner.lock();
    let cadence: &Cadence = &inner.config.cadence;
    state.is_dirty() && (cadence.is_due(&state) || waited >= cadence.limit(&state))
}

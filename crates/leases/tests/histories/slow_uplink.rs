//! A member over a slow uplink: what it reads and takes while it uploads, and that it publishes beside one that commits more often than it uploads.

use crate::{FAMILY, prepare};
use async_trait::async_trait;
use firn_anchor::{Anchor, LeaseRange, MemberNumber, VolumeTuple};
use firn_env::{Env, mutants::planting, sim::Simulation};
use firn_format::{Location, SegmentId, Uid, WriterId};
use firn_leases::{Build, Built, Content, Member, MemberError};
use firn_table::{FaultRates, MemoryTable};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// One way to the table.
const LINE: Duration = Duration::from_millis(15);

/// What a file system over an uplink needs for each root.
pub(crate) struct Uplink {
    env: Env,
    upload: Duration,
    pub(crate) is_dirty: AtomicBool,
    pub(crate) uploads: AtomicU64,
    pub(crate) commits: AtomicU64,
    /// Clients change something again as soon as they are answered.
    pub(crate) is_busy: AtomicBool,
    /// Of its segments.
    writer: OnceLock<WriterId>,
}

#[async_trait]
impl Content for Uplink {
    async fn adopt(&self, _: &VolumeTuple) -> Result<(), MemberError> {
        Ok(())
    }

    async fn build(&self, _: &VolumeTuple) -> Result<Build, MemberError> {
        if !self.is_dirty.load(Ordering::Relaxed) {
            return Ok(Build::Nothing);
        }
        self.env.sleep(self.upload).await;
        let sequence = self.uploads.fetch_add(1, Ordering::Relaxed) + 1;
        let segment = SegmentId {
            writer: *self.writer.get().unwrap(),
            sequence,
        };
        let location = Location {
            segment,
            offset: 0,
            length: 1,
        };
        Ok(Build::Root(Built {
            uid: Uid(self.env.random_bytes()),
            location,
            sequence,
        }))
    }

    fn is_published(&self, _: u64, _: LeaseRange) -> bool {
        !self.is_dirty.load(Ordering::Relaxed)
    }

    fn is_awaited(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed)
    }

    async fn committed(&self, _: &Built) {
        self.is_dirty.store(false, Ordering::Relaxed);
        self.commits.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) async fn office(
    simulation: &Simulation,
    table: &MemoryTable,
    number: MemberNumber,
    upload: Duration,
) -> (Arc<Member>, Arc<Uplink>) {
    let env = simulation.machine("office").env();
    let client = table.connect(&env);
    client.set_rates(FaultRates {
        delay: LINE..=LINE,
        ..FaultRates::default()
    });
    let anchor = Anchor::new(client, env.clone(), FAMILY);
    let content = Arc::new(Uplink {
        env: env.clone(),
        upload,
        is_dirty: AtomicBool::new(false),
        uploads: AtomicU64::new(0),
        commits: AtomicU64::new(0),
        is_busy: AtomicBool::new(false),
        writer: OnceLock::new(),
    });
    let started = Member::start(anchor, env, crate::VOLUME, number, content.clone()).await;
    let member = Arc::new(started.unwrap().0);
    content.writer.set(member.incarnation()).unwrap();
    (member, content)
}

/// Runs something on two offices, of which the first has the slow uplink.
pub(crate) fn with_offices<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    bug: Option<&'static str>,
    upload: Duration,
    run: impl FnOnce(Env, [(Arc<Member>, Arc<Uplink>); 2]) -> F + Send + 'static,
) -> T {
    planting(bug, move || {
        let simulation = Arc::new(Simulation::new(7));
        let inside = simulation.clone();
        let ran = simulation.run(async move {
            let table = MemoryTable::new();
            let env = inside.env();
            let anchor = Anchor::new(table.connect(&env), env.clone(), FAMILY);
            let numbers = prepare(&anchor, &env, &Arc::default(), 2).await.unwrap();
            let slow = office(&inside, &table, numbers[0], upload).await;
            let fast = office(&inside, &table, numbers[1], Duration::from_millis(50)).await;
            run(env, [slow, fast]).await
        });
        ran.unwrap()
    })
}

/// How long a read of the newest root and a lease take while an upload of 30 s is under way, and how often was committed when that has ended.
fn beside_an_upload(bug: Option<&'static str>) -> (Duration, Duration, u64) {
    with_offices(
        bug,
        Duration::from_secs(30),
        |env, [(slow, content), _]| async move {
            content.is_dirty.store(true, Ordering::Relaxed);
            let publishing = slow.clone();
            let published = env.spawn("publish", async move { publishing.publish().await });
            env.sleep(Duration::from_secs(5)).await;
            let asked = env.now();
            slow.catch_up().await.unwrap();
            let read = env.now().since(asked);
            let asked = env.now();
            // The root directory is nobody's home.
            drop(slow.acquire(&[1]).await.unwrap());
            let taken = env.now().since(asked);
            published.await.unwrap().unwrap();
            (read, taken, content.commits.load(Ordering::Relaxed))
        },
    )
}

#[test]
fn reads_and_leases_wait_for_no_upload() {
    let (read, taken, commits) = beside_an_upload(None);
    println!("beside an upload of 30 s: a read {read:?}, a lease {taken:?}");
    assert!(
        read < Duration::from_secs(1) && taken < Duration::from_secs(1),
        "{read:?} {taken:?}"
    );
    assert_eq!(commits, 1);
    let (read, ..) = beside_an_upload(Some("leases.builds_under_the_lock"));
    assert!(read > Duration::from_secs(20), "{read:?}");
}

/// When an office that uploads for 20 s has published once, three times over, beside one that commits each second, and how often that one has committed meanwhile.
fn beside_a_busy_office(bug: Option<&'static str>) -> (Option<Duration>, u64) {
    with_offices(
        bug,
        Duration::from_secs(20),
        |env, [(slow, content), (fast, other)]| async move {
            let (work, at) = (other.clone(), env.clone());
            let busy = env.spawn("busy", async move {
                loop {
                    work.is_dirty.store(true, Ordering::Relaxed);
                    fast.publish().await.unwrap();
                    fast.tend().await.unwrap();
                    at.sleep(Duration::from_secs(1)).await;
                }
            });
            let began = env.now();
            let three_times = async {
                for _ in 0..3 {
                    content.is_dirty.store(true, Ordering::Relaxed);
                    while slow.publish().await.is_err() {}
                }
            };
            let done = env.timeout(Duration::from_secs(2000), three_times).await;
            busy.abort();
            let took = done.is_ok().then(|| env.now().since(began));
            (took, other.commits.load(Ordering::Relaxed))
        },
    )
}

#[test]
fn who_uploads_longer_than_others_pause_publishes_in_its_turn() {
    let (took, commits) = beside_a_busy_office(None);
    println!(
        "three publications of 20 s beside an office that commits each second: {took:?}, and {commits} commits there"
    );
    // Two tries that are lost, and one that is not, each time.
    assert!(
        took.is_some_and(|took| took < Duration::from_secs(250)),
        "{took:?}"
    );
    assert!(commits > 30, "the other is not kept from its own: {commits}");
    let (never, _) = beside_a_busy_office(Some("leases.no_commit_lease"));
    assert_eq!(never, None);
}

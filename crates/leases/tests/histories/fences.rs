//! Guards against calls in doubt, each with the guard taken out as well: what is in doubt happens no more once its member goes on, and a member that is only slow is not broken.

use crate::{FAMILY, VOLUME, prepare};
use async_trait::async_trait;
use firn_anchor::{Anchor, LeaseRange, MemberNumber, VolumeTuple};
use firn_env::{Env, mutants::planting, sim::Simulation};
use firn_format::{Location, SegmentId, Uid, WriterId};
use firn_leases::{Build, Built, Content, Member, MemberError};
use firn_table::{Fault, MemoryTable, MemoryTableClient};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// A content of nothing but what a test wants to happen at the next build.
struct Scripted {
    env: Env,
    client: Arc<MemoryTableClient>,
    /// Faults that the requests after the next build meet.
    faults: Mutex<Vec<Fault>>,
    /// How long the next build takes, of something that is unpublished.
    upload: Mutex<Option<Duration>>,
}

#[async_trait]
impl Content for Scripted {
    async fn adopt(&self, _: &VolumeTuple) -> Result<(), MemberError> {
        Ok(())
    }

    async fn build(&self, _: &VolumeTuple) -> Result<Build, MemberError> {
        let faults = std::mem::take(&mut *self.faults.lock().unwrap());
        self.client.script(faults);
        let upload = self.upload.lock().unwrap().take();
        let Some(upload) = upload else {
            return Ok(Build::Nothing);
        };
        self.env.sleep(upload).await;
        let segment = SegmentId {
            writer: WriterId(1),
            sequence: 2,
        };
        let location = Location {
            segment,
            offset: 0,
            length: 1,
        };
        Ok(Build::Root(Built {
            uid: Uid([2; 32]),
            location,
            sequence: 2,
        }))
    }

    fn is_published(&self, _: u64, _: LeaseRange) -> bool {
        // What arms the faults is to be built first.
        self.faults.lock().unwrap().is_empty()
    }

    async fn committed(&self, _: &Built) {}
}

/// Two members; the inode is the first one's.
struct Offices {
    table: MemoryTable,
    anchor: Anchor,
    numbers: Vec<MemberNumber>,
    inode: u64,
    first: Arc<Member>,
    content: Arc<Scripted>,
    second: Arc<Member>,
}

impl Offices {
    async fn open(simulation: Arc<Simulation>) -> Self {
        let table = MemoryTable::new();
        let env = simulation.env();
        let anchor = Anchor::new(table.connect(&env), env.clone(), FAMILY);
        let numbers = prepare(&anchor, &env, &Arc::default(), 2).await.unwrap();
        let start = async |number: MemberNumber| {
            let env = simulation.machine("office").env();
            let client = table.connect(&env);
            let content = Arc::new(Scripted {
                env: env.clone(),
                client: client.clone(),
                faults: Mutex::default(),
                upload: Mutex::default(),
            });
            let anchor = Anchor::new(client, env.clone(), FAMILY);
            let started = Member::start(anchor, env, VOLUME, number, content.clone()).await;
            (Arc::new(started.unwrap().0), content)
        };
        let (first, content) = start(numbers[0]).await;
        let (second, _) = start(numbers[1]).await;
        let inode = u64::from(numbers[0].0) << 32;
        Self {
            table,
            anchor,
            numbers,
            inode,
            first,
            content,
            second,
        }
    }

    /// The request after the next build comes late, and what is asked after it has no answer.
    fn doubt(&self, before: usize) {
        let late = Fault::Late { requests: 1 << 40 };
        let mut faults = vec![Fault::None; before];
        faults.push(late);
        faults.extend(vec![Fault::Throttle; 7]);
        *self.content.faults.lock().unwrap() = faults;
    }

    async fn holder(&self) -> Option<MemberNumber> {
        let seen = self.anchor.arena(VOLUME, self.inode).await.unwrap();
        seen.arena
            .holder(LeaseRange::around(self.inode, 0).unwrap())
            .unwrap()
    }
}

/// Runs it on two members, with a guard taken out or not.
fn on_two<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    bug: Option<&str>,
    run: impl FnOnce(Offices, Env) -> F + Send + 'static,
) -> T {
    planting(bug, || {
        let simulation = Arc::new(Simulation::new(1));
        let inner = simulation.clone();
        let ran = simulation.run(async move {
            let env = inner.env();
            run(Offices::open(inner).await, env).await
        });
        ran.unwrap()
    })
}

/// Whether a member still holds what it uses after its gift was given up and came late.
fn keeps_what_it_uses(bug: Option<&str>) -> bool {
    on_two(bug, |offices, env| async move {
        let (second, inode) = (offices.second.clone(), offices.inode);
        env.spawn("waits", async move {
            let _pins = second.acquire(&[inode]).await;
        });
        env.sleep(Duration::from_secs(2)).await;
        // The arena is read before the gift.
        offices.doubt(1);
        assert!(offices.first.tend().await.is_err(), "the gift is in doubt");
        let pins = offices.first.acquire(&[inode]).await.unwrap();
        offices.table.settle();
        assert!(pins.are_valid());
        offices.holder().await == Some(offices.numbers[0])
    })
}

#[test]
fn a_gift_that_comes_late_gives_nothing_away_that_is_used_again() {
    assert!(keeps_what_it_uses(None));
    assert!(!keeps_what_it_uses(Some("leases.gift_in_doubt_without_beat")));
}

/// Whether a member is still there after its departure was given up and came late.
fn is_there(bug: Option<&str>) -> bool {
    on_two(bug, |offices, _| async move {
        offices.doubt(0);
        assert!(offices.first.leave().await.is_err(), "the departure is in doubt");
        let pins = offices.first.acquire(&[offices.inode]).await.unwrap();
        offices.table.settle();
        assert!(pins.are_valid());
        let (tuple, _) = offices.anchor.member(VOLUME, offices.numbers[0]).await.unwrap();
        !tuple.record.is_away
    })
}

#[test]
fn a_departure_that_comes_late_sends_nobody_away_who_uses_leases() {
    assert!(is_there(None));
    assert!(!is_there(Some("leases.gift_in_doubt_without_beat")));
}

/// What becomes of a member whose upload takes two minutes and a half, while another waits for what it holds.
fn uploads(bug: Option<&str>) -> Result<(), MemberError> {
    on_two(bug, |offices, env| async move {
        *offices.content.upload.lock().unwrap() = Some(Duration::from_secs(150));
        let (second, inode) = (offices.second.clone(), offices.inode);
        let waiting = async move {
            loop {
                // The other one tends itself too, and breaks whom it does not hear.
                let _ = env
                    .timeout(Duration::from_secs(5), second.acquire(&[inode]))
                    .await;
                let _ = second.tend().await;
                env.sleep(Duration::from_secs(1)).await;
            }
        };
        let publishing = Box::pin(offices.first.publish());
        match futures::future::select(publishing, Box::pin(waiting)).await {
            futures::future::Either::Left((published, _)) => published,
            futures::future::Either::Right((never, _)) => never,
        }
    })
}

#[test]
fn a_member_that_uploads_for_minutes_is_not_broken() {
    uploads(None).unwrap();
    let broken = uploads(Some("leases.silent_while_building")).unwrap_err();
    assert!(broken.to_string().contains("incarnation"), "{broken}");
}

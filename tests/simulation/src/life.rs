//! One life of an edge: clients at work in changing weather, until it is stopped in some way.

use crate::{
    administrator::administer,
    client::{Client, Work},
    history::{History, Home, judge, on},
    oracle::Stop,
    system::{Running, System, Weather},
    takeover,
    workload::Workload,
};
use firn_env::{
    TaskEnded,
    sim::{Machine, Seeded},
};
use firn_vfs::Durability;
use std::{sync::Arc, time::Duration};

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The power fails at some time.
    PowerCut,
    /// The process is killed at some time.
    Kill,
    /// The machine stops at a fault point.
    FaultPoint(&'static str, u64),
    /// Syncs of the disk begin to fail.
    FailingSyncs,
    /// An orderly stop while clients work.
    CleanStop,
    /// All is quiet for an hour, then the power fails.
    QuietHour,
    /// The cloud is away for an hour (I7): clients are slowed down, nothing fails, and all goes on by itself.
    LongOutage,
    /// Drained, and started on another edge.
    Drain,
    /// Another edge takes over, by force.
    Takeover,
}

/// One life.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) ending: Ending,
    pub(crate) clients: usize,
    pub(crate) calls: u64,
    pub(crate) pause: Duration,
    pub(crate) changing_weather: bool,
    pub(crate) full_disk: bool,
    pub(crate) failing_reads: bool,
    workload: Workload,
    pub(crate) administered: bool,
    /// So many of four clients are answered at level 2.
    in_cloud: u64,
}

/// What follows.
pub(crate) enum LifeEnd {
    /// The machine is down.
    Stopped {
        stop: Stop,
        verifier: Option<[u8; 8]>,
        edge: usize,
    },
    /// The file system lives elsewhere now.
    Moved(Home),
    /// Something went wrong that was reported.
    GaveUp,
}

impl Life {
    pub(crate) fn draw(system: &dyn System, workload: &Workload, random: &mut Seeded) -> Self {
        let several = system.edges() > 1;
        let ending = match random.below(20) {
            0..5 => Ending::PowerCut,
            5..7 => Ending::Kill,
            7..13 => {
                let points = system.fault_points();
                Ending::FaultPoint(points[random.index(points.len())], random.between(1, 4))
            }
            13 => Ending::FailingSyncs,
            14 => Ending::CleanStop,
            15 if several => Ending::LongOutage,
            16 if several => Ending::QuietHour,
            17 if several => Ending::Drain,
            18 | 19 if several => Ending::Takeover,
            _ => Ending::PowerCut,
        };
        Self {
            ending,
            clients: if random.chance(1, 8) {
                8
            } else {
                random.between(1, 4) as usize
            },
            calls: if random.chance(1, 6) {
                random.between(90, 400)
            } else {
                random.between(5, 90)
            },
            pause: *random.pick(&[
                Duration::from_micros(200),
                Duration::from_millis(5),
                Duration::from_millis(100),
            ]),
            changing_weather: random.chance(1, 2),
            full_disk: several && random.chance(1, 10),
            // A journal that cannot be read back is a reason to give up: only where the edge may.
            failing_reads: matches!(ending, Ending::PowerCut | Ending::Kill) && random.chance(1, 6),
            workload: workload.clone(),
            administered: system.has_snapshots() && random.chance(1, 2),
            // Those who are wait for the cloud at each call, so that others do more.
            in_cloud: *random.pick(&[0, 0, 0, 1, 2, 4]),
        }
    }

    /// Of a file system that was started without the cloud: it ends without it, mostly by a clean stop, as when the cloud is back.
    pub(crate) fn detach(&mut self) {
        self.ending = match self.ending {
            Ending::QuietHour | Ending::LongOutage | Ending::Drain | Ending::FaultPoint(..) => {
                Ending::CleanStop
            }
            other => other,
        };
        self.administered = false;
    }

    /// Starts the clients of this life.
    pub(crate) fn work(
        &self,
        history: &Arc<History>,
        home: &Home,
        running: &Arc<dyn Running>,
        random: &mut Seeded,
    ) -> Work {
        let work = Work::new(self.calls);
        for number in 0..self.clients {
            let client = Client {
                number: number + home.edge * 100,
                machine: history.system.edge(home.edge),
                incarnation: history.system.edge(home.edge).incarnation(),
                running: running.clone(),
                oracle: home.oracle.clone(),
                workload: self.workload.clone(),
                pause: self.pause,
                random: Seeded::new(random.draw(), 0),
                history: history.clone(),
                retained: Vec::new(),
                durability: match random.chance(self.in_cloud, 4) {
                    true => Durability::Cloud,
                    false => Durability::Journal,
                },
                may_be_fenced: self.ending == Ending::Takeover,
                may_fail: self.ending == Ending::FailingSyncs || self.failing_reads,
            };
            work.start(client);
        }
        if self.administered {
            let (history, home, running) = (history.clone(), home.clone(), running.clone());
            let random = Seeded::new(random.draw(), 0);
            work.help(
                &history.clone(),
                administer(history, home, running, work.clone(), random),
            );
        }
        work
    }

    pub(crate) async fn live(
        &self,
        history: &Arc<History>,
        home: &Home,
        running: Arc<dyn Running>,
        random: &mut Seeded,
    ) -> LifeEnd {
        let machine = history.system.edge(home.edge);
        match self.ending {
            Ending::FaultPoint(name, hit) => machine.crash_at(name, hit),
            Ending::FailingSyncs => machine.disk().configure(|disk| disk.sync_failures = 100_000),
            Ending::LongOutage => {
                let weather = *random.pick(&[Weather::NoStore, Weather::NoTable, Weather::CutOff]);
                history.system.set_weather(home.edge, weather);
            }
            _ => {}
        }
        if self.failing_reads {
            machine.disk().configure(|disk| disk.read_failures = 50_000);
        }
        let work = self.work(history, home, &running, random);
        let changing = self.changing_weather && self.ending != Ending::LongOutage;
        let weather = changing.then(|| {
            let (history, random) = (history.clone(), Seeded::new(random.draw(), 0));
            let (work, edge, full) = (work.clone(), home.edge, self.full_disk);
            history
                .env
                .clone()
                .spawn("weather", change_weather(history, work, edge, full, random))
        });
        let end = self.end(history, home, &running, &work, random).await;
        work.stop();
        work.done().await;
        if let Some(weather) = weather {
            // Only a history that fails ends it early.
            let _ = weather.await;
        }
        machine.faults().disarm();
        history.after_crash(&machine, "a life");
        end
    }

    async fn end(
        &self,
        history: &Arc<History>,
        home: &Home,
        running: &Arc<dyn Running>,
        work: &Work,
        random: &mut Seeded,
    ) -> LifeEnd {
        let machine = history.system.edge(home.edge);
        let crashed = LifeEnd::Stopped {
            stop: Stop::Crash,
            verifier: home.verifier,
            edge: home.edge,
        };
        match self.ending {
            Ending::PowerCut | Ending::Kill => {
                self.some_time(history, work, random).await;
                self.maybe_sync(history, home, running, random).await;
                if self.ending == Ending::Kill {
                    machine.kill();
                } else {
                    machine.crash();
                }
                crashed
            }
            Ending::FaultPoint(..) => {
                work.done_or_down(history, &machine).await;
                if machine.is_running() {
                    // Checkpoints pass most points.
                    self.sync(history, home, running).await;
                }
                machine.crash();
                crashed
            }
            Ending::FailingSyncs => {
                work.done_or_down(history, &machine).await;
                machine.crash();
                crashed
            }
            Ending::CleanStop => {
                self.some_time(history, work, random).await;
                let serving = running.clone();
                match on(&machine, "stop", async move { serving.stop().await }).await {
                    Ok(Ok(())) => {
                        work.stop();
                        work.done().await;
                        machine.kill();
                        LifeEnd::Stopped {
                            stop: Stop::Clean,
                            verifier: home.verifier,
                            edge: home.edge,
                        }
                    }
                    Ok(Err(reason)) => {
                        history.say(|| format!("no clean stop: {reason}"));
                        machine.crash();
                        crashed
                    }
                    Err(TaskEnded) => crashed,
                }
            }
            Ending::LongOutage => {
                self.some_time(history, work, random).await;
                history.env.sleep(Duration::from_secs(3600)).await;
                history.system.set_weather(home.edge, Weather::Fair);
                if machine.is_running() && !self.sync(history, home, running).await {
                    history.fail(
                        "after an hour without the cloud, ten minutes of fair weather bring nothing there",
                    );
                }
                history.count("long outages");
                judge(&home.oracle).time_passes();
                machine.crash();
                crashed
            }
            Ending::QuietHour => {
                work.done_or_down(history, &machine).await;
                history.system.set_weather(home.edge, Weather::Fair);
                work.stop();
                if machine.is_running() && self.sync(history, home, running).await {
                    history.check_idle(&machine).await;
                    judge(&home.oracle).time_passes();
                }
                machine.crash();
                crashed
            }
            Ending::Drain => {
                self.some_time(history, work, random).await;
                takeover::drain(history, home, running, work).await
            }
            Ending::Takeover => takeover::by_force(self, history, home, running, work, random).await,
        }
    }

    /// Until the clients are done or, more often, a little earlier.
    pub(crate) async fn some_time(&self, history: &Arc<History>, work: &Work, random: &mut Seeded) {
        let expected = self.pause * u32::try_from(self.calls).unwrap_or(u32::MAX) / self.clients as u32;
        let wait = random.duration(Duration::ZERO, expected.max(Duration::from_millis(1)) * 2);
        // The limit only says when the life ends.
        let _ = history.env.timeout(wait, work.done()).await;
    }

    async fn maybe_sync(
        &self,
        history: &Arc<History>,
        home: &Home,
        running: &Arc<dyn Running>,
        random: &mut Seeded,
    ) {
        if random.chance(1, 4) {
            self.sync(history, home, running).await;
        }
    }

    /// Waits for the cloud; true if everything applied before is there.
    async fn sync(&self, history: &Arc<History>, home: &Home, running: &Arc<dyn Running>) -> bool {
        let machine = history.system.edge(home.edge);
        let newest = judge(&home.oracle).newest();
        let serving = running.clone();
        let synced = on(&machine, "sync", async move { serving.sync().await });
        match history.env.timeout(Duration::from_secs(600), synced).await {
            Ok(Ok(Ok(()))) => {
                judge(&home.oracle).committed(newest);
                true
            }
            Ok(Ok(Err(reason))) => {
                if running.is_fenced() {
                    history.fail("fenced at a sync, though nobody took over");
                }
                history.say(|| format!("not synced: {reason}"));
                false
            }
            Ok(Err(TaskEnded)) | Err(_) => false,
        }
    }
}

async fn change_weather(history: Arc<History>, work: Work, edge: usize, full_disk: bool, mut random: Seeded) {
    let machine: Machine = history.system.edge(edge);
    while !work.is_over() {
        let pause = random.duration(Duration::from_millis(10), Duration::from_secs(5));
        // The pause ends with the work.
        let _ = history.env.timeout(pause, work.over()).await;
        if work.is_over() {
            break;
        }
        let weather = *random.pick(&[
            Weather::Fair,
            Weather::Rough,
            Weather::Rough,
            Weather::NoStore,
            Weather::NoTable,
            Weather::CutOff,
        ]);
        history.say(|| format!("weather of edge {edge}: {weather:?}"));
        history.system.set_weather(edge, weather);
        if random.chance(1, 6) {
            history.system.spoil_cache(edge, false);
        }
        if random.chance(1, 12) && machine.is_running() {
            machine.jump_wall(random.between(0, 20_000_000_000) as i64 - 10_000_000_000);
        }
        if full_disk && random.chance(1, 2) {
            let disk = machine.disk();
            let used = (1 << 40) - disk.free_bytes();
            let left = random.below(200_000);
            history.say(|| format!("the disk of edge {edge} has {left} bytes left"));
            history.count("full disks");
            disk.configure(|options| options.capacity_bytes = used + left);
            history
                .env
                .sleep(random.duration(Duration::ZERO, Duration::from_secs(20)))
                .await;
            disk.configure(|options| options.capacity_bytes = 1 << 40);
        }
        if matches!(weather, Weather::Fair | Weather::Rough) {
            continue;
        }
        let outage = random.duration(Duration::from_millis(100), Duration::from_secs(60));
        let _ = history.env.timeout(outage, work.over()).await;
        history.system.set_weather(edge, Weather::Rough);
    }
    history.system.set_weather(edge, Weather::Fair);
}

//! An office of a history of locks: one member over all its lives, and what befalls it. Its clients outlive its process.

use super::{BACK_WITHIN, Book, History, book};
use crate::{by_inode::offices::patient, world::World};
use firn_anchor::{Anchor, MemberNumber};
use firn_env::{
    Env, Monotonic,
    sim::{Machine, Seeded},
};
use firn_session::{LockError, LockLimits, LockTable};
use firn_table::{FaultRates, MemoryTableClient};
use firn_volume::{
    ByInodeLocks, ByInodeVfs, LostLocks, MemberStartError, Parts, ServingState, Volume, VolumeError,
};
use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// How long clients have to take their locks again.
const GRACE: Duration = Duration::from_secs(20);

pub struct Office {
    pub place: usize,
    number: MemberNumber,
    machine: Machine,
    world: Arc<World>,
    book: Arc<Mutex<Book>>,
    rates: FaultRates,
    freshness: Duration,
    life: Mutex<Life>,
}

#[derive(Default)]
struct Life {
    /// As long as it serves, and of which opening.
    serves: Option<Serving>,
    openings: u64,
    table: Option<LockTable>,
    is_cut_off: bool,
    /// Its clients have not all asked for their locks again.
    is_asked_again: bool,
    client: Option<Arc<MemoryTableClient>>,
}

/// What clients see of an office.
#[derive(Clone)]
pub struct Serving {
    pub volume: Volume,
    pub vfs: Arc<ByInodeVfs>,
    pub table: LockTable,
    pub opening: u64,
    pub env: Env,
}

impl Office {
    pub fn new(
        (place, number): (usize, MemberNumber),
        machine: Machine,
        world: Arc<World>,
        book: Arc<Mutex<Book>>,
        (rates, freshness): (FaultRates, Duration),
    ) -> Self {
        Self {
            place,
            number,
            machine,
            world,
            book,
            rates,
            freshness,
            life: Mutex::default(),
        }
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().expect("no panic under this lock")
    }

    /// What clients see, while it serves.
    pub fn serves(&self) -> Option<Serving> {
        self.life().serves.clone()
    }

    /// The table of its process, also where the volume is opened again.
    pub fn table(&self) -> Option<LockTable> {
        self.life().table.clone()
    }

    /// Whether nobody can have broken it: what its clients hold counts.
    pub fn may_use_what_it_holds(&self) -> bool {
        let is_known = self.machine.is_running() && !self.life().is_asked_again;
        let serves = self.serves().filter(|_| is_known);
        serves.is_some_and(|serving| {
            let member = serving.volume.member_by_inode();
            member.is_some_and(|member| member.is_valid())
                && serving.volume.status().serving_state == ServingState::Serving
        })
    }

    /// Nothing fails any more.
    pub fn heal(&self) {
        if let Some(client) = &self.life().client {
            client.set_outage(false);
            client.set_rates(FaultRates::default());
        }
    }

    pub fn status(&self) -> ByInodeLocks {
        let status = self.serves().and_then(|serving| serving.volume.by_inode_status());
        status.and_then(|status| status.locks).unwrap_or_default()
    }

    /// Whether nothing that it asks reaches the anchor.
    pub fn is_cut_off(&self) -> bool {
        self.life().is_cut_off
    }

    fn cut_off(&self, is_cut_off: bool) {
        let mut life = self.life();
        life.is_cut_off = is_cut_off;
        if let Some(client) = &life.client {
            client.set_outage(is_cut_off);
        }
    }

    /// The parts of a new process, or of the one that goes on.
    fn parts(&self, env: &Env) -> Parts {
        let parts = self.world.parts_in(env);
        let client = self.world.table().connect(env);
        if !book(&self.book).is_calm {
            client.set_rates(self.rates.clone());
        }
        let mut life = self.life();
        life.client = Some(client.clone());
        life.is_cut_off = false;
        drop(life);
        let anchor = Anchor::new(client, env.clone(), parts.anchor.family());
        Parts { anchor, ..parts }
    }

    /// Opens the volume, and takes out of the book what clients hear that they have lost.
    async fn open(&self, table: &LockTable) -> Option<LostLocks> {
        let env = self.machine.env();
        let parts = self.parts(&env);
        let config = firn_volume::VolumeConfig {
            wait_limit: Duration::from_secs(20),
            ..patient()
        };
        loop {
            let (parts, config, number, of) = (parts.clone(), config.clone(), self.number, table.clone());
            let opening = env.spawn("open", async move {
                Volume::open_by_inode_with_locks(parts, config, number, &of).await
            });
            let volume = match opening.await {
                Err(_) => return None,
                Ok(Ok((volume, report))) => {
                    if report.salvage.is_some() {
                        book(&self.book).count("salvage clones");
                    }
                    volume
                }
                Ok(Err(MemberStartError::Member(_))) => {
                    env.sleep(Duration::from_secs(1)).await;
                    continue;
                }
                Ok(Err(MemberStartError::Volume(VolumeError::Anchor(error)))) if error.is_transient() => {
                    env.sleep(Duration::from_secs(1)).await;
                    continue;
                }
                Ok(Err(error)) => {
                    book(&self.book).violate(format!("{} does not start: {error}", self.number));
                    return None;
                }
            };
            let lost = volume.lost_locks().expect("it has a table");
            while let Ok(()) = self.hear(&env, &lost, Duration::from_millis(1)).await {}
            let mut life = self.life();
            life.openings += 1;
            life.table = Some(table.clone());
            life.is_asked_again = table.in_grace();
            life.serves = Some(Serving {
                vfs: Arc::new(ByInodeVfs::new(volume.clone(), self.freshness)),
                volume,
                table: table.clone(),
                opening: life.openings,
                env: env.clone(),
            });
            return Some(lost);
        }
    }

    /// Takes out of the book what clients hear that they have lost, if they hear anything within `limit`.
    async fn hear(&self, env: &Env, lost: &LostLocks, limit: Duration) -> Result<(), ()> {
        let heard = env.timeout(limit, lost.next()).await.map_err(drop)?;
        let mut book = book(&self.book);
        for broken in heard {
            let is_it = |of: &super::Hold| {
                of.office == self.place && of.request.owner == broken.owner && of.request.file == broken.file
            };
            book.holds.retain(|_, hold| !is_it(hold));
            book.count("locks lost");
        }
        Ok(())
    }

    /// Clients ask for their locks again.
    async fn reclaim(&self, history: &History, table: &LockTable, heard_until: Option<Monotonic>) {
        let env = history.env.clone();
        let began = env.now();
        let held: Vec<(u64, super::Hold)> = {
            let book = history.book();
            let own = book.holds.iter().filter(|(_, hold)| hold.office == self.place);
            own.map(|(number, hold)| (*number, hold.clone())).collect()
        };
        let is_certain = heard_until.is_some_and(|end| began.since(end) < BACK_WITHIN);
        for (number, hold) in held {
            let taken = loop {
                if !history.book().holds.contains_key(&number) {
                    // It was given back, or its client has heard that it is lost.
                    break Ok(false);
                }
                match table.reclaim(&hold.request) {
                    Err(LockError::Away) if env.now().since(began) < GRACE => {
                        env.sleep(Duration::from_millis(100)).await;
                    }
                    other => break other.map(|()| true),
                }
            };
            match taken {
                Ok(false) => {}
                Ok(true) => {
                    history.has(&hold, Some(number));
                    history.book().count("locks taken again after a restart");
                }
                Err(LockError::Away) => drop(history.book().holds.remove(&number)),
                Err(error) => {
                    let mut book = history.book();
                    book.holds.remove(&number);
                    book.count("locks not had again after a restart");
                    if is_certain {
                        book.violate(format!("a restart in place loses {hold:?}: {error}"));
                    }
                }
            }
        }
    }
}

/// Lives until it is aborted.
pub async fn live(history: &History, place: usize, is_calm: bool, mut weather: Seeded) {
    let office = &history.offices[place];
    let (env, mut heard_until, mut reclaims) = (history.env.clone(), None, false);
    loop {
        if history.book().violation.is_some() {
            return;
        }
        let before = office.life().table.clone();
        let table = before.unwrap_or_else(|| {
            let table = LockTable::new(LockLimits::default());
            if reclaims {
                table.start_grace();
            }
            table
        });
        let Some(lost) = office.open(&table).await else {
            if history.book().violation.is_none() {
                // Its machine went down, which nobody but this one does.
                history.book().violate("an office ends while it opens");
            }
            return;
        };
        if reclaims {
            office.reclaim(history, &table, heard_until).await;
            table.end_grace();
            office.life().is_asked_again = false;
            reclaims = false;
        }
        let end = serve(history, office, &lost, is_calm, &mut weather).await;
        heard_until = office.may_use_what_it_holds().then(|| env.now());
        let machine = &office.machine;
        match end {
            End::Broken => {
                history.book().count("breaks");
                let serving = office.life().serves.take().expect("it served");
                let stopping = serving
                    .env
                    .spawn("stop", async move { drop(serving.volume.stop().await) });
                let _ = stopping.await;
                history.book().forget_counters();
                env.sleep(Duration::from_secs(2)).await;
                if weather.chance(1, 3) {
                    office.life().table = None;
                    machine.kill();
                    machine.restart();
                    history.book().holds.retain(|_, hold| hold.office != place);
                }
            }
            End::Died | End::Stopped => {
                let serving = office.life().serves.take().expect("it served");
                office.life().table = None;
                if matches!(end, End::Stopped) {
                    let within = Duration::from_secs(20);
                    let volume = serving.volume.clone();
                    let stopping = serving.env.spawn("stop", async move {
                        let _ = volume.leave_by_inode(within).await;
                    });
                    let _ = stopping.await;
                    history.book().count("stops");
                }
                match weather.chance(1, 2) {
                    true => machine.crash(),
                    false => machine.kill(),
                }
                reclaims = weather.chance(3, 4);
                if !reclaims {
                    history.book().holds.retain(|_, hold| hold.office != place);
                }
                let away = match weather.below(4) {
                    0 => weather.duration(Duration::from_secs(20), Duration::from_secs(150)),
                    _ => weather.duration(Duration::ZERO, Duration::from_secs(6)),
                };
                env.sleep(away).await;
                machine.restart();
                history.book().count("crashes");
            }
        }
    }
}

enum End {
    Broken,
    Died,
    Stopped,
}

/// Serves until something befalls it.
async fn serve(
    history: &History,
    office: &Office,
    lost: &LostLocks,
    is_calm: bool,
    weather: &mut Seeded,
) -> End {
    let env = &history.env;
    let serving = office.serves().expect("it serves");
    let mut is_cut_off = false;
    let mut next = env
        .now()
        .after(weather.duration(Duration::ZERO, Duration::from_secs(60)));
    loop {
        let _ = office.hear(env, lost, Duration::from_millis(500)).await;
        if let ServingState::Broken(why) | ServingState::Failed(why) = serving.volume.status().serving_state {
            office.cut_off(false);
            if !why.contains("incarnation") {
                history.book().violate(format!("an office ended: {why}"));
            }
            return End::Broken;
        }
        if history.book().is_calm {
            office.heal();
            continue;
        }
        if env.now() < next {
            continue;
        }
        next = env
            .now()
            .after(weather.duration(Duration::from_secs(10), Duration::from_secs(90)));
        if is_cut_off {
            office.cut_off(false);
            is_cut_off = false;
            continue;
        }
        match weather.below(if is_calm { 40 } else { 8 }) {
            0 | 1 => return End::Died,
            2 => return End::Stopped,
            3..=5 if !is_calm => {
                office.cut_off(true);
                is_cut_off = true;
                next = env
                    .now()
                    .after(weather.duration(Duration::from_secs(5), Duration::from_secs(140)));
            }
            _ => {}
        }
    }
}

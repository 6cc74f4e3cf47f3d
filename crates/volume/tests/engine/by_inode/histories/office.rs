//! An office of a history: one member over all its lives, its client, and what befalls it.

use super::{Places, Shared, Where, lock};
use crate::{
    by_inode::offices::patient,
    files::name,
    world::{World, root},
};
use bytes::Bytes;
use firn_anchor::{Anchor, MemberNumber};
use firn_env::{
    Env,
    sim::{Machine, Seeded},
};
use firn_table::{FaultRates, MemoryTableClient};
use firn_vfs::{AT_END, CreateMode, FileHandle, SetAttributes, Stability, Vfs, VfsError};
use firn_volume::{MemberStartError, Parts, ServingState, Volume, VolumeConfig, VolumeError};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// What an office does in its lives all together, before it only finishes.
const ACTIONS: u64 = 14;

/// Why a life of an office's process ended.
enum End {
    Crashed,
    /// The volume serves no more.
    Ended,
    Done,
}

pub struct Office {
    machine: Machine,
    world: Arc<World>,
    number: MemberNumber,
    told: Shared,
    places: Places,
    rates: FaultRates,
    seed: (u64, u64),
}

/// One life of its process.
struct Life {
    env: Env,
    number: MemberNumber,
    client: Arc<MemoryTableClient>,
    told: Shared,
    places: Places,
    chosen: Seeded,
}

impl Office {
    pub fn new(
        machine: Machine,
        world: Arc<World>,
        number: MemberNumber,
        told: Shared,
        places: Places,
        rates: FaultRates,
        seed: (u64, u64),
    ) -> Self {
        Self {
            machine,
            world,
            number,
            told,
            places,
            rates,
            seed,
        }
    }

    fn config(&self) -> VolumeConfig {
        VolumeConfig {
            wait_limit: Duration::from_secs(200),
            ..patient()
        }
    }

    pub async fn live(self) {
        let mut actions = ACTIONS;
        let mut chosen = Seeded::new(self.seed.0, 100 + self.seed.1);
        // Of what this office acknowledged, what is not known to be in a root.
        let mine = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
        loop {
            if lock(&self.told).violation.is_some() {
                return;
            }
            let env = self.machine.env();
            let client = self.world.table().connect(&env);
            client.set_rates(self.rates.clone());
            let parts = self.world.parts_in(&env);
            let anchor = Anchor::new(client.clone(), env.clone(), parts.anchor.family());
            let parts = Parts { anchor, ..parts };
            let life = Life {
                env: env.clone(),
                number: self.number,
                client,
                told: self.told.clone(),
                places: self.places.clone(),
                chosen: Seeded::new(chosen.draw(), 1),
            };
            let some = chosen.below(actions + 1);
            actions -= some;
            let is_last = actions == 0;
            let (config, number, own) = (self.config(), self.number, mine.clone());
            let lived = env.spawn("office", async move {
                life.live(parts, config, number, (some, is_last), &own).await
            });
            let ended = lived.await;
            let mut told = lock(&self.told);
            match ended {
                Ok(End::Done) => return,
                Ok(End::Crashed) | Err(_) => {
                    told.count("crashes");
                    self.machine.crash();
                }
                // The process may go on, and open the volume again.
                Ok(End::Ended) if chosen.chance(1, 2) => {
                    told.count("broken offices that went on");
                    continue;
                }
                Ok(End::Ended) => self.machine.kill(),
            }
            drop(told);
            self.machine.restart();
        }
    }
}

impl Life {
    async fn live(
        mut self,
        parts: Parts,
        config: VolumeConfig,
        number: MemberNumber,
        (actions, is_last): (u64, bool),
        mine: &std::sync::Mutex<BTreeSet<u64>>,
    ) -> End {
        let volume = loop {
            match Volume::open_by_inode(parts.clone(), config.clone(), number).await {
                Ok((volume, report)) => {
                    if let Some(salvage) = report.salvage {
                        {
                            let mut told = lock(&self.told);
                            told.count("salvage clones");
                            told.salvaged.insert(salvage.volume, number);
                        }
                        self.what_went_on(&volume, mine).await;
                    }
                    break volume;
                }
                Err(error) if is_transient(&error) => {
                    lock(&self.told).count("starts that failed");
                    self.env.sleep(Duration::from_secs(1)).await;
                }
                Err(error) => {
                    lock(&self.told).violate(format!("{number} does not start: {error}"));
                    return End::Done;
                }
            }
        };
        let end = self.serve(&volume, (actions, is_last), mine).await;
        if matches!(end, End::Ended) {
            // It was broken, and its process may go on.
            let stopped = volume.stop().await;
            stopped.expect("a healthy disk takes it");
        }
        end
    }

    /// What a judgement let go on was published before anybody was served; the rest is not in the volume any more.
    async fn what_went_on(&self, volume: &Volume, mine: &std::sync::Mutex<BTreeSet<u64>>) {
        let mine = std::mem::take(&mut *mine.lock().unwrap());
        for number in mine {
            let place = lock(&self.told).acknowledged[&number];
            let is_there = contents(volume, place)
                .await
                .is_ok_and(|seen| seen.contains(&number));
            let mut told = lock(&self.told);
            told.count(if is_there { "went on" } else { "salvaged" });
            told.published.extend(Some(number).filter(|_| is_there));
        }
    }

    async fn serve(
        &mut self,
        volume: &Volume,
        (actions, is_last): (u64, bool),
        mine: &std::sync::Mutex<BTreeSet<u64>>,
    ) -> End {
        for _ in 0..actions {
            self.act(volume, mine).await;
            if let Some(end) = self.ended(volume) {
                return end;
            }
        }
        if !is_last {
            return End::Crashed;
        }
        self.client.set_outage(false);
        self.client.set_rates(FaultRates::default());
        self.finish(volume, mine).await
    }

    fn ended(&self, volume: &Volume) -> Option<End> {
        let (ServingState::Broken(why) | ServingState::Failed(why)) = volume.status().serving_state else {
            return None;
        };
        let mut told = lock(&self.told);
        match why.contains("incarnation") {
            true => told.count("breaks"),
            false => told.violate(format!("an office ended: {why}")),
        }
        Some(End::Ended)
    }

    async fn act(&mut self, volume: &Volume, mine: &std::sync::Mutex<BTreeSet<u64>>) {
        match self.chosen.below(20) {
            0 | 1 => {
                self.client.set_outage(true);
                let seconds = 5 + self.chosen.below(180);
                self.env.sleep(Duration::from_secs(seconds)).await;
                self.client.set_outage(false);
            }
            2 => {
                let member = volume.member_by_inode().expect("a member");
                if let Ok(true) = member.leave().await {
                    lock(&self.told).count("departures");
                    let seconds = self.chosen.below(30);
                    self.env.sleep(Duration::from_secs(seconds)).await;
                    while member.come_back().await.is_err() && self.ended(volume).is_none() {
                        self.env.sleep(Duration::from_secs(1)).await;
                    }
                }
            }
            3..=5 => {
                self.publish(volume, mine).await;
            }
            6 => {
                let seconds = self.chosen.below(8);
                self.env.sleep(Duration::from_secs(seconds)).await;
            }
            7 => self.look(volume).await,
            8..=10 => self.relocate(volume).await,
            11..=13 => {
                let within = *self
                    .chosen
                    .pick(&[&self.places.directories[..], &self.places.moved[..]].concat());
                self.change(volume, Where::Directory(within), mine).await;
            }
            _ => {
                let cell = *self.chosen.pick(&self.places.cells);
                self.change(volume, Where::Cell(cell), mine).await;
            }
        }
    }

    /// Everything that was acknowledged here is at level 2, unless that takes too long.
    async fn publish(&self, volume: &Volume, mine: &std::sync::Mutex<BTreeSet<u64>>) -> bool {
        let before: BTreeSet<u64> = mine.lock().unwrap().clone();
        let synced = self.env.timeout(Duration::from_secs(60), volume.sync()).await;
        let is_published = matches!(synced, Ok(Ok(())));
        if is_published {
            let mut told = lock(&self.told);
            told.count("publications");
            mine.lock().unwrap().retain(|number| !before.contains(number));
            told.published.extend(before);
        }
        is_published
    }

    /// A client's change of one place; whether it was acknowledged.
    async fn change(&self, volume: &Volume, place: Where, mine: &std::sync::Mutex<BTreeSet<u64>>) -> bool {
        let (number, published) = {
            let mut told = lock(&self.told);
            told.begun += 1;
            let begun = told.begun;
            told.begun_by.insert(begun, self.number);
            let published = told
                .published
                .iter()
                .filter(|one| told.acknowledged[one] == place);
            (told.begun, published.copied().collect::<Vec<_>>())
        };
        let made = match place {
            Where::Cell(cell) => {
                let data = vec![Bytes::copy_from_slice(&number.to_be_bytes())];
                let written = volume
                    .write(&root(), cell, AT_END, data, Stability::FileSync)
                    .await;
                written.map(drop)
            }
            Where::Directory(within) => {
                let mode = CreateMode::Guarded(SetAttributes::default());
                let made = volume
                    .create(&root(), within, &name(&format!("{number}")), mode)
                    .await;
                match made {
                    // What the file has stands on that it was made.
                    Ok(made) => {
                        let data = vec![Bytes::copy_from_slice(&number.to_be_bytes())];
                        let caller = root();
                        let written = volume.write(&caller, made.handle, 0, data, Stability::FileSync);
                        written.await.map(drop)
                    }
                    Err(error) => Err(error),
                }
            }
        };
        match made {
            Ok(()) => {}
            Err(VfsError::TryAgain { .. } | VfsError::Io(_)) => return false,
            Err(error) => {
                lock(&self.told).violate(format!("change {number} of {place:?}: {error}"));
                return false;
            }
        }
        {
            let mut told = lock(&self.told);
            told.count("changes");
            told.acknowledged.insert(number, place);
            mine.lock().unwrap().insert(number);
        }
        let seen = contents(volume, place).await;
        self.holds(place, seen, published.into_iter().chain([number]));
        true
    }

    fn holds(&self, place: Where, seen: Result<Vec<u64>, VfsError>, wanted: impl IntoIterator<Item = u64>) {
        // Whoever cannot be answered is told to come again.
        let Ok(seen) = seen else { return };
        for number in wanted {
            if !seen.contains(&number) {
                lock(&self.told).violate(format!("S3: {place:?} shows {seen:?}, without {number}"));
            }
        }
    }

    /// A read behind a read of the root.
    async fn look(&mut self, volume: &Volume) {
        let place = match self.chosen.chance(1, 2) {
            true => Where::Cell(*self.chosen.pick(&self.places.cells)),
            false => Where::Directory(*self.chosen.pick(&self.places.directories)),
        };
        let published: Vec<u64> = {
            let told = lock(&self.told);
            let published = told
                .published
                .iter()
                .filter(|one| told.acknowledged[one] == place);
            published.copied().collect()
        };
        if volume.catch_up().await.is_ok() {
            self.holds(place, contents(volume, place).await, published);
        }
    }

    /// Moves a directory to wherever it is not yet.
    async fn relocate(&mut self, volume: &Volume) {
        let which = self.chosen.index(self.places.moved.len());
        let moved = self.places.moved[which];
        let to = *self
            .chosen
            .pick(&[&self.places.directories[..], &self.places.moved[..]].concat());
        let called = name(&format!("m{which}"));
        let Ok((from, _)) = volume.parent(&root(), moved).await else {
            return;
        };
        if to == moved || from == to {
            return;
        }
        match volume.rename(&root(), from, &called, to, &called).await {
            Ok(_) => lock(&self.told).count("moves"),
            Err(
                VfsError::TryAgain { .. }
                | VfsError::Io(_)
                // It was moved meanwhile, or what it is to be moved into is below it.
                | VfsError::NotFound
                | VfsError::InvalidArgument,
            ) => {}
            Err(error) => lock(&self.told).violate(format!("a directory is moved: {error}")),
        }
    }

    /// Once nothing fails any more: everybody changes everything, and it is published.
    async fn finish(&self, volume: &Volume, mine: &std::sync::Mutex<BTreeSet<u64>>) -> End {
        let cells = self.places.cells.iter().map(|cell| Where::Cell(*cell));
        let directories = self
            .places
            .directories
            .iter()
            .map(|within| Where::Directory(*within));
        let began = self.env.now();
        for place in cells.chain(directories) {
            while !self.change(volume, place, mine).await {
                if let Some(end) = self.ended(volume) {
                    return end;
                }
                if self.env.now().since(began) > Duration::from_secs(4000) {
                    lock(&self.told).violate("progress: a change is never made");
                    return End::Done;
                }
                self.env.sleep(Duration::from_secs(1)).await;
            }
        }
        let member = volume.member_by_inode().expect("a member");
        loop {
            if let Some(end) = self.ended(volume) {
                return end;
            }
            if self.publish(volume, mine).await && matches!(member.leave().await, Ok(true)) {
                return End::Done;
            }
            if self.env.now().since(began) > Duration::from_secs(8000) {
                lock(&self.told).violate("progress: what was changed is never published");
                return End::Done;
            }
            self.env.sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Whether a start is worth another try.
fn is_transient(error: &MemberStartError) -> bool {
    match error {
        MemberStartError::Member(_) => true,
        // The clone's.
        MemberStartError::Volume(VolumeError::Anchor(error)) => error.is_transient(),
        MemberStartError::Volume(_)
        | MemberStartError::GivenUp { .. }
        | MemberStartError::Unsupported { .. } => false,
    }
}

/// Whether the file of a change that made one has what was written to it.
pub async fn is_whole(volume: &Volume, within: FileHandle, number: u64) -> Result<bool, VfsError> {
    let (file, _) = volume
        .lookup(&root(), within, &name(&format!("{number}")))
        .await?;
    Ok(numbers_in(volume, file).await? == [number])
}

/// The numbers of the changes that a place shows.
pub async fn contents(volume: &Volume, place: Where) -> Result<Vec<u64>, VfsError> {
    match place {
        Where::Cell(cell) => numbers_in(volume, cell).await,
        Where::Directory(within) => Ok(names_in(volume, within)
            .await?
            .iter()
            .filter_map(|(name, _)| name.parse().ok())
            .collect()),
    }
}

async fn numbers_in(volume: &Volume, cell: FileHandle) -> Result<Vec<u64>, VfsError> {
    let mut bytes = Vec::new();
    loop {
        let read = volume.read(&root(), cell, bytes.len() as u64, 1 << 16).await?;
        bytes.extend(read.data.concat());
        if read.end_of_file {
            break;
        }
    }
    let numbers = bytes.chunks(8).map(|number| {
        let mut whole = [0; 8];
        whole[..number.len()].copy_from_slice(number);
        u64::from_be_bytes(whole)
    });
    Ok(numbers.collect())
}

/// What stands in a directory.
pub async fn names_in(volume: &Volume, within: FileHandle) -> Result<Vec<(String, FileHandle)>, VfsError> {
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let page = volume
            .read_directory(&root(), within, cookie, 1000, false)
            .await?;
        for entry in &page.entries {
            cookie = entry.cookie;
            let text = String::from_utf8_lossy(&entry.name).into_owned();
            if text != "." && text != ".." {
                names.push((text, entry.handle));
            }
        }
        if page.end {
            return Ok(names);
        }
    }
}

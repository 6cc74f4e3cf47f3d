//! A follower and its client: it reads files, lists the directory, looks into snapshots, and holds every answer against the ledger.

use super::{
    Shared,
    ledger::{Kept, NAMES, SIZES},
    owner::{filled, root},
    world::{Line, Place, World},
};
use firn_env::{Env, Monotonic, sim::Seeded};
use firn_vfs::{FileHandle, Name, Vfs, VfsError};
use firn_volume::{FollowOptions, FollowerVfs, ServingState, StaleReads, Volume, VolumeError};
use std::{sync::Arc, time::Duration};

/// Reads of one follower.
const READS: u64 = 200;
/// How long a read may be told to try again once all is well.
const PROGRESS: Duration = Duration::from_secs(60);

/// The name of a file.
pub fn file_name(name: usize) -> Name {
    Name::new(format!("file{name}").into_bytes()).expect("a name")
}

/// What stands under a name in a directory.
pub async fn content_of(vfs: &dyn Vfs, directory: FileHandle, name: usize) -> Result<Option<u64>, VfsError> {
    let (file, _) = match vfs.lookup(&root(), directory, &file_name(name)).await {
        Err(VfsError::NotFound) => return Ok(None),
        found => found?,
    };
    let bytes = vfs.read(&root(), file, 0, 1 << 20).await?.data.concat();
    if bytes.is_empty() {
        return Ok(Some(0));
    }
    let number = bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
    if bytes == filled(number, SIZES[name]) {
        Ok(Some(number))
    } else {
        Err(VfsError::Io(format!("{} bytes that nobody wrote", bytes.len())))
    }
}

/// Something that was read.
#[derive(Debug)]
enum Seen {
    Content(usize, Option<u64>),
    Names(Vec<bool>),
    InSnapshot(Kept, usize, Option<u64>),
}

/// See the module.
pub struct Reader {
    env: Env,
    world: Arc<World>,
    shared: Arc<Shared>,
    number: usize,
    random: Seeded,
    options: FollowOptions,
    volume: Option<Volume>,
    /// The prefix that it has read.
    seen: usize,
}

impl Reader {
    pub fn new(env: &Env, world: Arc<World>, shared: Arc<Shared>, number: usize, mut random: Seeded) -> Self {
        let options = FollowOptions {
            freshness: *random.pick(&[
                Duration::ZERO,
                Duration::from_millis(20),
                Duration::from_millis(500),
                Duration::from_secs(600),
            ]),
            stale_reads: *random.pick(&[StaleReads::Allow, StaleReads::Wait]),
        };
        Self {
            env: env.clone(),
            world,
            shared,
            number,
            random,
            options,
            volume: None,
            seen: 0,
        }
    }

    fn place(&self) -> &Place {
        self.world.follower(self.number)
    }

    /// The follower's part of the history.
    pub async fn read_on(mut self) {
        self.start().await;
        let mut kept = None;
        for _ in 0..READS {
            if self.shared.is_over() {
                break;
            }
            let pause = match self.random.below(20) {
                0 => self
                    .random
                    .duration(Duration::from_secs(60), Duration::from_secs(900)),
                1..=8 => self.random.duration(Duration::ZERO, Duration::from_millis(20)),
                _ => self.random.duration(Duration::ZERO, Duration::from_secs(2)),
            };
            self.env.sleep(pause).await;
            match self.random.below(30) {
                0 => self.place().set_line(Line::Rough),
                1 => self.place().set_line(Line::NoStore),
                2 => self.place().set_line(Line::NoTable),
                3..=6 => self.place().set_line(Line::Fair),
                7 => {
                    self.place().machine.crash();
                    self.place().machine.restart();
                    self.place().set_line(Line::Fair);
                    self.shared.count("power cuts of followers");
                    self.start().await;
                }
                8 => kept = self.world.item(&self.env).await,
                9 if kept.is_some() => {
                    self.place().set_line(Line::Fair);
                    self.be_lied_to(kept.take()).await;
                }
                _ => self.read(false).await,
            }
        }
        self.place().set_line(Line::Fair);
        self.until_current().await;
    }

    /// Once all is well, everything that is committed is seen within a bound.
    async fn until_current(&mut self) {
        let (began, end) = (self.env.now(), self.env.now().after(PROGRESS));
        while self.env.now() < end {
            self.env.sleep(Duration::from_millis(500)).await;
        }
        for _ in 0..8 {
            self.read(true).await;
        }
        let stands = self.volume.as_ref().map(|volume| volume.status().serving_state);
        if stands != Some(ServingState::Serving) {
            let lasted = self.env.now().since(began);
            self.shared.fail(format!(
                "follower {} is {stands:?} after {lasted:?} of fair weather",
                self.number
            ));
        }
    }

    async fn on_machine<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.place().machine.env().spawn("follower", work).await.ok()
    }

    async fn open(&self) -> Option<Result<Volume, VolumeError>> {
        let (parts, config, options) = (
            self.world.parts(self.place()),
            self.world.config.clone(),
            self.options,
        );
        self.on_machine(async move { Volume::follow(parts, config, options).await })
            .await
    }

    /// Starts to follow, as often as it takes.
    async fn start(&mut self) {
        self.volume = None;
        for _ in 0..100 {
            match self.open().await {
                Some(Ok(volume)) => {
                    self.volume = Some(volume);
                    return;
                }
                Some(Err(VolumeError::Anchor(error))) if error.is_transient() => {}
                Some(Err(VolumeError::Read(_) | VolumeError::CheckpointLost { .. })) => {}
                Some(Err(error)) => {
                    self.shared
                        .fail(format!("follower {} does not start: {error}", self.number));
                    return;
                }
                None => return,
            }
            self.env.sleep(Duration::from_secs(2)).await;
        }
        self.shared
            .fail(format!("follower {} does not start", self.number));
    }

    /// The anchor shows an old root for a while. A newer one was adopted before, so that is noticed, and what was seen stays seen.
    async fn be_lied_to(&mut self, lie: Option<firn_table::Item>) {
        // Longer than it waits before it asks an anchor again that was away.
        self.env.sleep(Duration::from_secs(30)).await;
        self.read(true).await;
        let adopted = self
            .volume
            .as_ref()
            .and_then(|volume| volume.status().following)
            .map(|status| status.version);
        let shown = lie
            .as_ref()
            .and_then(|item| firn_anchor::VolumeTuple::from_bytes(&item.value).ok());
        let shown = shown.and_then(|tuple| tuple.root).map(|root| root.version.0);
        if shown.is_none() || shown >= adopted {
            return;
        }
        self.place().lie(lie);
        self.env
            .sleep(self.options.freshness + Duration::from_secs(1))
            .await;
        self.shared.count("old roots shown");
        self.read(false).await;
        let stands = self.volume.as_ref().map(|volume| volume.status().serving_state);
        if !matches!(stands, Some(ServingState::Failed(_))) {
            self.shared.fail(format!(
                "follower {} was shown an old root and is {stands:?}",
                self.number
            ));
        }
        self.place().lie(None);
        self.start().await;
    }

    /// One read; `must` it succeed?
    async fn read(&mut self, must: bool) {
        let Some(volume) = self.volume.clone() else { return };
        let arrived = self.env.now();
        let freshness = self.options.freshness;
        let is_before = |at: Monotonic| match freshness.is_zero() {
            true => at <= arrived,
            false => at.after(freshness) < arrived,
        };
        let (low, snapshots) = {
            let ledger = self.shared.ledger();
            let low = ledger.published_at(is_before);
            let listed = ledger.snapshots.iter().filter(|kept| is_before(kept.made_at));
            (low, listed.cloned().collect::<Vec<_>>())
        };
        let what = self.random.below(8);
        let name = self.random.index(NAMES);
        let snapshot = (!snapshots.is_empty()).then(|| snapshots[self.random.index(snapshots.len())].clone());
        let of = volume.clone();
        let env = self.env.clone();
        let asked = self.on_machine(async move {
            let vfs = FollowerVfs::new(of.clone());
            let version = || of.status().following.map(|following| following.version);
            let end = env.now().after(PROGRESS);
            loop {
                let before = version();
                let seen = match (what, &snapshot) {
                    (0, _) => names(&vfs).await.map(Seen::Names),
                    (1, Some(kept)) => in_snapshot(&vfs, kept, name)
                        .await
                        .map(|content| Seen::InSnapshot(kept.clone(), name, content)),
                    _ => content_of(&vfs, Vfs::root(&vfs), name)
                        .await
                        .map(|content| Seen::Content(name, content)),
                };
                match seen {
                    // Of two versions: it may be right in neither.
                    Ok(_) | Err(VfsError::Stale) if before != version() => {}
                    Err(VfsError::TryAgain { .. }) if must && env.now() < end => {
                        env.sleep(Duration::from_secs(1)).await;
                    }
                    seen => return seen,
                }
            }
        });
        let Some(answer) = asked.await else { return };
        let is_away = volume
            .status()
            .following
            .is_some_and(|following| following.away.is_some());
        let is_failed = matches!(volume.status().serving_state, ServingState::Failed(_));
        let may_be_stale = is_away && self.options.stale_reads == StaleReads::Allow;
        match answer {
            Ok(seen) => {
                self.shared.count("reads");
                let low = if may_be_stale {
                    self.seen
                } else {
                    low.max(self.seen)
                };
                self.judge(&seen, low);
            }
            // A snapshot that is newer than what is known.
            Err(VfsError::NotFound) if may_be_stale => {}
            Err(VfsError::TryAgain { .. }) if !must => self.shared.count("reads told to try again"),
            Err(_)
                if is_failed
                    && self
                        .place()
                        .lie
                        .lock()
                        .expect("no panic under this lock")
                        .is_some() =>
            {
                self.shared.count("alarms");
            }
            Err(error) => self.shared.fail(format!("follower {}: {error}", self.number)),
        }
    }

    fn judge(&mut self, seen: &Seen, low: usize) {
        let ledger = self.shared.ledger();
        let right = match seen {
            Seen::Content(name, content) => ledger.earliest(low, |tree| tree[*name] == *content),
            Seen::Names(names) => ledger.earliest(low, |tree| {
                tree.iter().zip(names).all(|(is, seen)| is.is_some() == *seen)
            }),
            Seen::InSnapshot(kept, name, content) => (kept.tree[*name] == *content).then_some(self.seen),
        };
        let all = ledger.len();
        drop(ledger);
        match right {
            Some(prefix) => self.seen = self.seen.max(prefix),
            None => self.shared.fail(format!(
                "follower {} ({:?}) saw {seen:?}, which is in no version from change {low} to {all}; it had seen {}",
                self.number, self.options, self.seen
            )),
        }
    }
}

async fn names(vfs: &dyn Vfs) -> Result<Vec<bool>, VfsError> {
    let page = vfs.read_directory(&root(), vfs.root(), 0, 1000, false).await?;
    let has = |name: usize| {
        let name = file_name(name);
        page.entries.iter().any(|entry| entry.name == name.as_bytes())
    };
    Ok((0..NAMES).map(has).collect())
}

async fn in_snapshot(vfs: &dyn Vfs, kept: &Kept, name: usize) -> Result<Option<u64>, VfsError> {
    let named = |text: &str| Name::new(text.as_bytes().to_vec()).expect("a name");
    let (directory, _) = vfs.lookup(&root(), vfs.root(), &named(".snapshots")).await?;
    let (directory, _) = vfs.lookup(&root(), directory, &named(&kept.name)).await?;
    content_of(vfs, directory, name).await
}

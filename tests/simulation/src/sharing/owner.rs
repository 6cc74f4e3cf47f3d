//! The owner of the volume, on one machine after the other: it changes files, commits, loses power, gives the volume up, is taken over.

use super::{
    Shared,
    ledger::{Change, Kept, NAMES, SIZES, Tree},
    reader::{content_of, file_name},
    world::{OWNERS, World},
};
use bytes::Bytes;
use firn_env::{
    Env,
    sim::{DiskImage, Seeded},
};
use firn_vfs::{Caller, CreateMode, Credentials, FileHandle, SetAttributes, Stability, Vfs, VfsError};
use firn_volume::{FormatOptions, Volume, VolumeError};
use std::{sync::Arc, time::Duration};

const STEPS: u64 = 60;

/// A request of root's that nobody repeats.
pub fn root() -> Caller {
    Caller::new(Credentials::root())
}

/// The bytes of a file that is full of a number.
pub fn filled(number: u64, size: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(size).collect()
}

/// See the module.
pub struct Owner {
    env: Env,
    world: Arc<World>,
    shared: Arc<Shared>,
    random: Seeded,
    at: usize,
    volume: Volume,
    next: u64,
}

impl Owner {
    /// Makes the volume.
    pub async fn format(env: &Env, world: Arc<World>, shared: Arc<Shared>, random: Seeded) -> Self {
        let place = world.owner(0);
        let (parts, config) = (world.parts(place), world.config.clone());
        let made = place.machine.env().spawn("format", async move {
            parts.anchor.create_family().await.expect("a new family");
            let made = Volume::format(&parts, "volume", FormatOptions::default(), &config).await;
            made.expect("it is made");
            Volume::open(parts, config).await.expect("it opens").0
        });
        let volume = made.await.expect("the machine is up");
        Self {
            env: env.clone(),
            world,
            shared,
            random,
            at: 0,
            volume,
            next: 0,
        }
    }

    /// The owner's part of the history.
    pub async fn change_on(&mut self) {
        for _ in 0..STEPS {
            let pause = match self.random.below(12) {
                0 => self
                    .random
                    .duration(Duration::from_secs(60), Duration::from_secs(600)),
                1..=4 => self.random.duration(Duration::ZERO, Duration::from_millis(20)),
                _ => self.random.duration(Duration::ZERO, Duration::from_secs(2)),
            };
            self.env.sleep(pause).await;
            match self.random.below(20) {
                0 => self.lose_power(None).await,
                1 => {
                    let hit = self.random.between(1, 40);
                    self.lose_power(Some(hit)).await;
                }
                2 => self.give_up().await,
                3 => self.be_taken_over().await,
                4 => self.snapshot().await,
                5..=9 => self.sync().await,
                _ => self.change().await,
            }
        }
        self.sync().await;
    }

    /// Runs something on the owner's machine; `None`: the machine went down meanwhile.
    async fn on_machine<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let env = self.world.owner(self.at).machine.env();
        env.spawn("office", work).await.ok()
    }

    async fn change(&mut self) {
        let tree = self.shared.ledger().tree();
        let name = self.random.index(NAMES);
        let other = self.random.index(NAMES);
        self.next += 1;
        let number = self.next;
        match (tree[name], self.random.below(6)) {
            (None, _) => {
                self.make(Change(vec![(name, Some(0))]), move |volume| async move {
                    let mode = CreateMode::Guarded(SetAttributes::default());
                    volume
                        .create(&root(), volume.root(), &file_name(name), mode)
                        .await
                        .map(drop)
                })
                .await;
                self.fill(name, number).await;
            }
            (Some(_), 0) => {
                self.make(Change(vec![(name, None)]), move |volume| async move {
                    volume
                        .remove(&root(), volume.root(), &file_name(name))
                        .await
                        .map(drop)
                })
                .await;
            }
            // Files of one name have one size.
            (Some(content), 1) if other != name && content == 0 => {
                let change = Change(vec![(name, None), (other, Some(content))]);
                self.make(change, move |volume| async move {
                    let (from, to) = (file_name(name), file_name(other));
                    let directory = volume.root();
                    volume
                        .rename(&root(), directory, &from, directory, &to)
                        .await
                        .map(drop)
                })
                .await;
            }
            (Some(_), 2) => {
                self.make(Change(vec![(name, Some(0))]), move |volume| async move {
                    let file = find(&volume, name).await?;
                    let change = SetAttributes {
                        size_bytes: Some(0),
                        ..SetAttributes::default()
                    };
                    volume.set_attributes(&root(), file, change, None).await.map(drop)
                })
                .await;
            }
            (Some(_), _) => self.fill(name, number).await,
        }
    }

    async fn fill(&self, name: usize, number: u64) {
        self.make(Change(vec![(name, Some(number))]), move |volume| async move {
            let file = find(&volume, name).await?;
            let data = vec![Bytes::from(filled(number, SIZES[name]))];
            volume
                .write(&root(), file, 0, data, Stability::FileSync)
                .await
                .map(drop)
        })
        .await;
    }

    /// Makes a change, as often as it takes.
    async fn make<F>(&self, change: Change, call: impl Fn(Volume) -> F + Send + Sync + Clone + 'static)
    where
        F: Future<Output = Result<(), VfsError>> + Send,
    {
        self.shared.ledger().begin(change.clone());
        let (env, volume) = (self.env.clone(), self.volume.clone());
        let made = self.on_machine(async move {
            loop {
                match call(volume.clone()).await {
                    Err(VfsError::TryAgain { .. }) => env.sleep(Duration::from_millis(200)).await,
                    other => return other,
                }
            }
        });
        match made.await {
            Some(Ok(())) => self.shared.count("changes"),
            other => self
                .shared
                .fail(format!("the owner could not make {change:?}: {other:?}")),
        }
    }

    async fn sync(&mut self) {
        let volume = self.volume.clone();
        match self.on_machine(async move { volume.sync().await }).await {
            Some(Ok(())) => {
                let now = self.env.now();
                self.shared.ledger().publish(now);
                self.shared.count("commits");
            }
            other => self.shared.fail(format!("the owner could not commit: {other:?}")),
        }
    }

    async fn snapshot(&mut self) {
        self.next += 1;
        let name = format!("s{}", self.next);
        let tree = self.shared.ledger().tree();
        let (volume, asked) = (self.volume.clone(), name.clone());
        let made = self.on_machine(async move { volume.snapshot_create(asked, 0).await.map(drop) });
        match made.await {
            Some(Ok(())) => {
                let now = self.env.now();
                let mut ledger = self.shared.ledger();
                ledger.publish(now);
                ledger.snapshots.push(Kept {
                    name,
                    tree,
                    made_at: now,
                });
                drop(ledger);
                self.shared.count("snapshots");
            }
            other => self.shared.fail(format!("no snapshot was made: {other:?}")),
        }
    }

    /// Loses power, in the middle of a commit or when nothing is asked, and starts again.
    async fn lose_power(&mut self, hit: Option<u64>) {
        let machine = self.world.owner(self.at).machine.clone();
        if let Some(hit) = hit {
            machine.crash_at_any(hit);
            let volume = self.volume.clone();
            self.on_machine(async move { volume.sync().await }).await;
            machine.faults().disarm();
        }
        if machine.is_running() {
            machine.crash();
        }
        machine.restart();
        self.shared.count("power cuts of owners");
        self.open().await;
    }

    /// Opens the volume on the present machine.
    async fn open(&mut self) {
        let place = self.world.owner(self.at);
        let (parts, config, env) = (
            self.world.parts(place),
            self.world.config.clone(),
            self.env.clone(),
        );
        let opened = self.on_machine(async move {
            loop {
                match Volume::open(parts.clone(), config.clone()).await {
                    Ok((volume, _)) => return Ok(volume),
                    Err(VolumeError::Anchor(error)) if error.is_transient() => {}
                    Err(error) => return Err(error),
                }
                env.sleep(Duration::from_secs(1)).await;
            }
        });
        match opened.await {
            Some(Ok(volume)) => self.volume = volume,
            other => self.shared.fail(format!(
                "the owner does not start: {:?}",
                other.map(|opened| opened.err())
            )),
        }
    }

    /// Drains the volume, and another machine opens it.
    async fn give_up(&mut self) {
        let volume = self.volume.clone();
        let drained = self.on_machine(async move { volume.drain().await }).await;
        if !matches!(drained, Some(Ok(()))) {
            self.shared
                .fail(format!("the owner could not drain: {drained:?}"));
        }
        let now = self.env.now();
        self.shared.ledger().publish(now);
        self.shared.count("drains");
        self.at = (self.at + 1) % OWNERS;
        self.open().await;
    }

    /// Another machine takes the volume by force; what was not committed is lost to it.
    async fn be_taken_over(&mut self) {
        let machine = &self.world.owner(self.at).machine;
        machine.crash();
        machine.disk().restore(&DiskImage::default());
        machine.restart();
        self.at = (self.at + 1) % OWNERS;
        let place = self.world.owner(self.at);
        let (parts, config) = (self.world.parts(place), self.world.config.clone());
        let taken = self.on_machine(async move {
            match Volume::takeover(&parts, &config).await {
                // The table is not rolled back here for owners.
                Err(VolumeError::StaleTable(stale)) if stale.is_in_doubt() => {
                    Volume::accept_rollback(&parts, &config).await.map(drop)
                }
                taken => taken.map(drop),
            }
        });
        match taken.await {
            Some(Ok(())) => self.shared.count("takeovers"),
            other => self.shared.fail(format!("no takeover: {other:?}")),
        }
        self.open().await;
        let volume = self.volume.clone();
        let tree: Option<Result<Tree, VfsError>> = self
            .on_machine(async move {
                let mut tree = [None; NAMES];
                for (name, content) in tree.iter_mut().enumerate() {
                    *content = content_of(&volume, volume.root(), name).await?;
                }
                Ok(tree)
            })
            .await;
        match tree {
            Some(Ok(tree)) if self.shared.ledger().cut(&tree) => {}
            other => self.shared.fail(format!("after a takeover there is {other:?}")),
        }
    }
}

async fn find(volume: &Volume, name: usize) -> Result<FileHandle, VfsError> {
    let found = volume.lookup(&root(), volume.root(), &file_name(name)).await?;
    Ok(found.0)
}

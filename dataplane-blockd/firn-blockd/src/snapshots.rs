//! `snapshot`, `snapshot list`, `snapshot delete`, `restore`.
//!
//! Whoever has a disk attached takes its snapshots: the request goes to that process, which goes on by itself; the command
//! only watches. A disk that nobody has attached is attached for the time it takes. A restore writes to a disk of its own,
//! which nobody can attach until all of it is written; one that was interrupted is done again on the same disk.

use crate::{
    admin::{self, Command, Reply, SnapshotEnd, SnapshotStatus},
    cluster::Outside,
    config::Config,
    disks::{self, Create, holder},
    failure::Failure,
    security::Secret,
};
use clap::{Args, Subcommand};
use firn_blockd_client::{Attachable, AttachedDisk, DiskSettings, Mode, attach};
use firn_blockd_disk::journal::Journaled;
use firn_blockd_nbd::AnyAlignment;
use firn_blockd_placement::{DiskRecord, DiskState, PlacementError};
use firn_blockd_protocol::DiskId;
use firn_blockd_snapshot::{
    Catalogue, Progress, Root, SNAPSHOT_TRACT_BYTES, SnapshotError, SnapshotGate, delete, restore, take,
};
use firn_env::{Env, eprintln, println};
use firn_quantity::Size;
use firn_store::{Stack, StackConfig, Store, StoreUrl};
use firn_store_cloud::Credentials;
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use zeroize::Zeroizing;

/// Between two looks at how it goes.
const LOOK: Duration = Duration::from_millis(500);
/// Looks between two lines for people.
const LOOKS_A_LINE: u64 = 10;

/// A disk's snapshots.
#[derive(Args)]
pub struct Of {
    /// The disk's name, or its identifier if it was deleted.
    pub disk: String,
    /// The file with the disk's key.
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
}

/// A snapshot to be taken, or what else is to be done with those there are.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct SnapshotArguments {
    #[command(subcommand)]
    what: Option<Existing>,
    /// The disk's name; behind `--` if it is list or delete.
    #[arg(required = true)]
    disk: Option<String>,
    /// The snapshot's name.
    #[arg(required = true)]
    name: Option<String>,
    /// The file with the disk's key, if nobody has the disk attached.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

/// What is done with snapshots that exist.
#[derive(Subcommand)]
enum Existing {
    /// Lists a disk's snapshots, the newest first.
    List(Of),
    /// Deletes a snapshot, and gives back the room of what no other snapshot of the disk needs. Interrupted: say it again.
    Delete(Delete),
}

/// A snapshot to be deleted.
#[derive(Args)]
struct Delete {
    #[command(flatten)]
    of: Of,
    /// The snapshot's name.
    snapshot: String,
}

/// A snapshot to be taken.
struct Snapshot {
    disk: String,
    name: String,
    key: Option<PathBuf>,
}

/// A disk to be made from a snapshot.
#[derive(Args)]
pub struct Restore {
    #[command(flatten)]
    pub of: Of,
    /// The snapshot's name.
    pub snapshot: String,
    /// The new disk's name.
    #[arg(long)]
    pub into: String,
    /// The file with the new disk's key, made if it is not there; another than the old disk's.
    #[arg(long, value_name = "FILE")]
    pub new_key: PathBuf,
    /// The new disk's size; by default that of the snapshot.
    #[arg(long)]
    pub size: Option<Size>,
    /// Copies of each block: 1 to 3, on different nodes.
    #[arg(long, default_value_t = 2)]
    pub replication: u8,
    /// The new disk's mode; by default the old one's.
    #[arg(long)]
    pub mode: Option<Mode>,
    /// The new disk's role.
    #[arg(long, value_enum)]
    pub role: Option<disks::Role>,
}

/// Where one disk's snapshots are, and its key.
#[derive(Clone)]
pub struct Place {
    store: Option<StoreUrl>,
    disk: DiskId,
    key: Zeroizing<[u8; 32]>,
}

impl Place {
    pub fn new(store: Option<StoreUrl>, disk: DiskId, key: &[u8; 32]) -> Self {
        Self {
            store,
            disk,
            key: Zeroizing::new(*key),
        }
    }

    /// The same disk's in this store, if one is named.
    pub fn or_at(&self, store: Option<&str>) -> Result<Self, Failure> {
        let mut place = self.clone();
        if let Some(store) = store {
            place.store = Some(store.parse().map_err(Failure::usage)?);
        }
        place.url()?;
        Ok(place)
    }

    fn url(&self) -> Result<&StoreUrl, Failure> {
        self.store.as_ref().ok_or_else(|| {
            Failure::usage("the configuration names no store for snapshots: set [client] snapshots")
        })
    }

    pub async fn open(&self, env: &Env) -> Result<Catalogue, Failure> {
        let backend = firn_store_cloud::open(env, self.url()?, &Credentials::Environment)
            .await
            .map_err(Failure::usage)?;
        let store: Arc<dyn Store> = Stack::new(env, backend, StackConfig::default()).store;
        Ok(Catalogue::new(store, self.disk, &self.key))
    }
}

/// The snapshots of a disk that is attached by this process: one at a time.
#[derive(Default)]
pub struct Taking {
    last: Mutex<Option<Arc<Begun>>>,
}

struct Begun {
    name: String,
    progress: Progress,
    ended: Mutex<Option<SnapshotEnd>>,
}

/// Whoever waits for a snapshot must not wait for ever: one whose task ends without a word has failed.
struct Ending(Arc<Begun>);

impl Drop for Ending {
    fn drop(&mut self) {
        let mut ended = self.0.ended.lock().expect("no panic under this lock");
        ended.get_or_insert_with(|| {
            SnapshotEnd::Failed("its task ended before it was taken; the log of the attach says why".into())
        });
    }
}

impl Taking {
    /// Begins one and returns.
    pub fn begin(
        &self,
        env: &Env,
        place: &Place,
        gate: &SnapshotGate<Journaled>,
        name: &str,
        settings: &str,
    ) -> Result<(), SnapshotError> {
        let mut last = self.last.lock().expect("no panic under this lock");
        let under_way = last
            .as_ref()
            .is_some_and(|begun| begun.ended.lock().expect("no panic under this lock").is_none());
        if under_way {
            return Err(SnapshotError::Busy);
        }
        let begun = Arc::new(Begun {
            name: name.to_owned(),
            progress: Progress::default(),
            ended: Mutex::default(),
        });
        *last = Some(begun.clone());
        let (env, place, gate, settings) = (env.clone(), place.clone(), gate.clone(), settings.to_owned());
        let spawning = env.clone();
        drop(spawning.spawn("snapshot", async move {
            let _ending = Ending(begun.clone());
            let taken = async {
                let catalogue = place.open(&env).await?;
                take(&env, &catalogue, &gate, &begun.name, &settings, &begun.progress)
                    .await
                    .map_err(Failure::from)
            };
            let end = match taken.await {
                Ok(_) => SnapshotEnd::Taken,
                Err(error) => {
                    tracing::warn!(%error, snapshot = begun.name, "no snapshot was taken");
                    SnapshotEnd::Failed(error.to_string())
                }
            };
            *begun.ended.lock().expect("no panic under this lock") = Some(end);
        }));
        Ok(())
    }

    /// How the last one goes.
    pub fn status(&self) -> Option<SnapshotStatus> {
        let last = self.last.lock().expect("no panic under this lock");
        last.as_ref().map(|begun| SnapshotStatus {
            name: begun.name.clone(),
            done_tracts: begun.progress.done.load(Relaxed),
            total_tracts: begun.progress.total.load(Relaxed),
            stored_bytes: begun.progress.bytes.load(Relaxed),
            ended: begun.ended.lock().expect("no panic under this lock").clone(),
        })
    }
}

/// Where the configuration says that the snapshots of a disk are.
fn place_of(config: &Config, disk: DiskId, key: &Secret) -> Result<Place, Failure> {
    Place::new(config.client()?.snapshots.clone(), disk, key.expose()).or_at(None)
}

/// Tells people how far it is until it is done.
pub async fn watched<T>(
    env: &Env,
    what: &str,
    parts: &str,
    progress: &Progress,
    work: impl Future<Output = T>,
) -> T {
    let telling = async {
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        loop {
            env.sleep(LOOK * LOOKS_A_LINE as u32).await;
            // How many there will be is not known of everything.
            let total = match load(&progress.total) {
                0 => String::new(),
                total => format!(" of {total}"),
            };
            eprintln!(
                "{what}: {}{total} {parts}, {}",
                load(&progress.done),
                Size(load(&progress.bytes))
            );
        }
    };
    let (work, telling) = (std::pin::pin!(work), std::pin::pin!(telling));
    match futures::future::select(work, telling).await {
        futures::future::Either::Left((done, _)) => done,
        futures::future::Either::Right((never, _)) => never,
    }
}

/// `firn-blockd snapshot`, with what comes behind it.
pub async fn snapshot(config: &Config, wanted: SnapshotArguments) -> Result<(), Failure> {
    match wanted {
        SnapshotArguments {
            what: Some(Existing::List(of)),
            ..
        } => list(config, &of).await,
        SnapshotArguments {
            what: Some(Existing::Delete(wanted)),
            ..
        } => delete_one(config, &wanted).await,
        SnapshotArguments {
            what: None,
            disk: Some(disk),
            name: Some(name),
            key,
        } => take_one(config, &Snapshot { disk, name, key }).await,
        SnapshotArguments { what: None, .. } => {
            Err(Failure::usage("say which disk, and a name for the snapshot"))
        }
    }
}

async fn take_one(config: &Config, wanted: &Snapshot) -> Result<(), Failure> {
    let client = config.client()?;
    let name = wanted.name.clone();
    let command = Command::Snapshot { name, store: None };
    let asked = admin::ask(&client.state_directory, &wanted.disk, command).await?;
    if asked.is_some() {
        return watch(&client.state_directory, &wanted.disk, &wanted.disk, &wanted.name).await;
    }
    let outside = Outside::open(config, &client.state_directory).await?;
    let record = outside.disk(client.tenant, &wanted.disk).await?;
    if let Some(attach) = &record.attached {
        return Err(Failure::new(format!(
            "disk {} is attached by {}; take the snapshot there, or detach it first",
            wanted.disk,
            holder(&attach.holder)
        )));
    }
    let Some(key) = &wanted.key else {
        return Err(Failure::usage(format!(
            "nobody has disk {} attached: say --key FILE, and it is attached for the snapshot",
            wanted.disk
        )));
    };
    let key = Secret::read(key)?;
    let catalogue = place_of(config, record.disk, &key)?.open(&outside.env).await?;
    let access = outside.operator.client(client.capability_seconds)?;
    let attachable = Attachable::new(record.disk, *key.expose(), "firn-blockd snapshot");
    let attached = attach(&outside.env, &outside.placement, &access, attachable).await?;
    let taken = take_of(&outside.env, &attached, &catalogue, &wanted.name).await;
    attached.detach().await?;
    told(&wanted.name, &wanted.disk, taken?);
    Ok(())
}

/// Takes a snapshot of a disk that was attached for it; gives how many bytes were new.
pub async fn take_of(
    env: &Env,
    attached: &AttachedDisk,
    catalogue: &Catalogue,
    name: &str,
) -> Result<u64, Failure> {
    let gate = SnapshotGate::new(attached.disk.clone(), SNAPSHOT_TRACT_BYTES);
    let (progress, settings) = (Progress::default(), &attached.record().settings);
    let taking = take(env, catalogue, &gate, name, settings, &progress);
    Ok(watched(env, "snapshot", "tracts", &progress, taking)
        .await?
        .stored_bytes)
}

/// Says that a snapshot is there.
pub fn told(name: &str, disk: &str, stored_bytes: u64) {
    println!(
        "snapshot {name} of disk {disk} is taken; {} were new",
        Size(stored_bytes)
    );
}

/// Watches the snapshot that the process takes which has the disk attached, and `socket` as its name here.
pub async fn watch(directory: &Path, socket: &str, disk: &str, name: &str) -> Result<(), Failure> {
    let env = crate::cluster::environment(directory)?;
    for look in 1.. {
        let gone = || {
            Failure::new(format!(
                "disk {disk} is not attached any more; whether the snapshot was taken shows the list of its snapshots"
            ))
        };
        let status = match admin::ask(directory, socket, Command::Status).await? {
            Some(Reply::Status { status }) => status,
            _ => return Err(gone()),
        };
        let Some(snapshot) = status.snapshot.filter(|snapshot| snapshot.name == name) else {
            return Err(gone());
        };
        match snapshot.ended {
            Some(SnapshotEnd::Taken) => {
                told(name, disk, snapshot.stored_bytes);
                return Ok(());
            }
            Some(SnapshotEnd::Failed(why)) => return Err(Failure::new(why)),
            None if look % LOOKS_A_LINE == 0 => eprintln!(
                "snapshot: {} of {} tracts, {} stored (interrupt this as you like, it goes on)",
                snapshot.done_tracts,
                snapshot.total_tracts,
                Size(snapshot.stored_bytes)
            ),
            None => {}
        }
        env.sleep(LOOK).await;
    }
    unreachable!("the loop ends by itself")
}

/// The disk of a name, or of an identifier if it is gone.
async fn disk_of(config: &Config, outside: &Outside, of: &Of) -> Result<DiskId, Failure> {
    match outside.disk(config.client()?.tenant, &of.disk).await {
        Ok(record) => Ok(record.disk),
        Err(error) => Ok(of
            .disk
            .parse()
            .or_else(|_| DiskId::from_hex(&of.disk))
            .map_err(|_| error)?),
    }
}

/// What a disk's settings call the snapshot that it is made of.
pub fn source_of(disk: DiskId, snapshot: &str) -> String {
    format!("{}/{snapshot}", disk.hex())
}

/// The catalogue of a disk.
async fn catalogue_of(config: &Config, outside: &Outside, of: &Of) -> Result<Catalogue, Failure> {
    let disk = disk_of(config, outside, of).await?;
    let key = Secret::read(&of.key)?;
    place_of(config, disk, &key)?.open(&outside.env).await
}

/// `firn-blockd snapshots`.
pub async fn list(config: &Config, of: &Of) -> Result<(), Failure> {
    let outside = Outside::open(config, &config.client()?.state_directory).await?;
    let catalogue = catalogue_of(config, &outside, of).await?;
    println!("{:<32} {:>12}  taken (seconds since 1970)", "name", "size");
    for snapshot in catalogue.list().await? {
        println!(
            "{:<32} {:>12}  {}",
            snapshot.name,
            Size(snapshot.size_bytes),
            snapshot.taken_unix_ms / 1000
        );
    }
    Ok(())
}

/// `firn-blockd snapshot delete`.
async fn delete_one(config: &Config, wanted: &Delete) -> Result<(), Failure> {
    let client = config.client()?;
    let outside = Outside::open(config, &client.state_directory).await?;
    let disk = disk_of(config, &outside, &wanted.of).await?;
    // A restore says in the table what it reads, from before its first look until it is complete or its disk is deleted.
    let source = source_of(disk, &wanted.snapshot);
    for record in outside.placement.disks(Some(client.tenant)).await? {
        let settings = DiskSettings::parse(&record.settings);
        if record.state == DiskState::Ready
            && settings.is_ok_and(|settings| settings.restoring.as_ref() == Some(&source))
        {
            return Err(Failure::new(format!(
                "disk {} is being made from snapshot {}; let that end, say the restore again if it was interrupted, or delete that disk",
                record.name, wanted.snapshot
            )));
        }
    }
    let key = Secret::read(&wanted.of.key)?;
    let catalogue = place_of(config, disk, &key)?.open(&outside.env).await?;
    delete_from(&outside.env, &catalogue, &wanted.of.disk, &wanted.snapshot).await
}

/// Deletes a snapshot of the disk that is called so, and says what that gave back.
pub async fn delete_from(env: &Env, catalogue: &Catalogue, disk: &str, name: &str) -> Result<(), Failure> {
    let progress = Progress::default();
    let deleting = delete(env, catalogue, name, &progress);
    let deleted = watched(env, "delete", "objects", &progress, deleting).await?;
    if !deleted.existed && deleted.objects == 0 {
        return Err(SnapshotError::NotFound(name.to_owned()).into());
    }
    println!(
        "snapshot {name} of disk {disk} is deleted; {} in {} objects were given back",
        Size(deleted.bytes),
        deleted.objects
    );
    Ok(())
}

/// `firn-blockd restore`.
pub async fn restore_disk(config: &Config, wanted: &Restore) -> Result<(), Failure> {
    let client = config.client()?;
    let outside = Outside::open(config, &client.state_directory).await?;
    let catalogue = catalogue_of(config, &outside, &wanted.of).await?;
    let root = catalogue.root(&wanted.snapshot).await?;
    let record = find_or_create(config, &outside, wanted, &root).await?;
    let key = Secret::read(&wanted.new_key)?;
    let access = outside.operator.client(client.capability_seconds)?;
    let attachable = Attachable {
        restoring: Some(source_of(root.disk, &wanted.snapshot)),
        ..Attachable::new(record.disk, *key.expose(), "firn-blockd restore")
    };
    let mut attached = attach(&outside.env, &outside.placement, &access, attachable).await?;
    let written = write_back(&outside.env, &mut attached, &catalogue, &wanted.snapshot).await;
    attached.detach().await?;
    let written_bytes = written?;
    println!(
        "disk {} ({}) holds snapshot {}; {} were written",
        record.name,
        record.disk.hex(),
        wanted.snapshot,
        Size(written_bytes)
    );
    Ok(())
}

/// Writes a snapshot to the disk that was attached for it, which is like any other then; gives how many bytes were written.
pub async fn write_back(
    env: &Env,
    attached: &mut AttachedDisk,
    catalogue: &Catalogue,
    name: &str,
) -> Result<u64, Failure> {
    let progress = Progress::default();
    let disk = AnyAlignment::new(attached.disk.clone());
    let restoring = restore(catalogue, name, &disk, &progress);
    let restored = watched(env, "restore", "tracts", &progress, restoring).await?;
    attached.finish_restore().await?;
    Ok(restored.written_bytes)
}

/// The disk to restore into: a new one, or one whose restore from the same snapshot was interrupted.
async fn find_or_create(
    config: &Config,
    outside: &Outside,
    wanted: &Restore,
    root: &Root,
) -> Result<DiskRecord, Failure> {
    let tenant = config.client()?.tenant;
    let source = source_of(root.disk, &wanted.snapshot);
    match outside.placement.disk_named(tenant, &wanted.into).await {
        Ok(record) => {
            let settings = DiskSettings::parse(&record.settings).map_err(Failure::new)?;
            if settings.restoring.as_ref() == Some(&source) {
                return Ok(record);
            }
            Err(Failure::usage(format!(
                "a disk named {} exists; a snapshot is restored into a new one",
                wanted.into
            )))
        }
        Err(PlacementError::NoDisk(_)) => {
            let old = DiskSettings::parse(&root.settings).map_err(Failure::new)?;
            let size = wanted.size.unwrap_or(Size(root.size_bytes));
            if size.0 < root.size_bytes {
                return Err(SnapshotError::TooSmall {
                    snapshot_bytes: root.size_bytes,
                    disk_bytes: size.0,
                }
                .into());
            }
            let create = Create {
                name: wanted.into.clone(),
                size,
                replication: wanted.replication,
                mode: wanted.mode.unwrap_or(old.mode),
                segment: None,
                role: wanted.role,
                log_block: match old.shape {
                    firn_blockd_client::Shape::Log { block_bytes, .. } => block_bytes,
                    firn_blockd_client::Shape::InPlace { .. } => 4096,
                },
                key: wanted.new_key.clone(),
            };
            let mut new = disks::new_disk(&outside.env, tenant, &create)?;
            let settings = DiskSettings::parse(&new.settings).map_err(Failure::new)?;
            new.settings = settings.with_restoring(Some(source)).to_text();
            Ok(outside.placement.create_disk(new).await?)
        }
        Err(error) => Err(error.into()),
    }
}

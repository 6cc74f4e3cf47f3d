//! The commands about disks: `create`, `list`, `attach`, `detach`, `grow`, `delete`.

use crate::{
    admin::{self, Command, Reply},
    cluster::{Outside, until_stopped},
    config::Config,
    failure::Failure,
    journal,
    kernel::KernelDevice,
    security::Secret,
    served::{Served, Serving, nbd_address},
    snapshots::Place,
    tls::TlsFiles,
};
use clap::{Args, ValueEnum};
use firn_blockd_client::{
    Attachable, AttachedDisk, DETACH_LIMIT, DiskSettings, Mode, ReplicaOptions, Shape, attach, key_check,
    replication, tracts_for,
};
use firn_blockd_disk::{FlushPolicy, journal::JournalOptions};
use firn_blockd_nbd::Limits;
use firn_blockd_placement::{DiskRecord, DiskState, NewDisk, Placement};
use firn_blockd_protocol::{TRACT_BYTES, TenantId};
use firn_env::{Env, println};
use firn_quantity::Size;
use firn_store::StoreUrl;
use futures::future::{Either, select};
use std::{
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

/// What a new disk is to be.
#[derive(Args)]
pub struct Create {
    /// Its name.
    pub name: String,
    /// Its size, such as 10GiB.
    #[arg(long)]
    pub size: Size,
    /// Copies of each block: 1 to 3, on different nodes.
    #[arg(long, default_value_t = 2)]
    pub replication: u8,
    /// write-through, write-back, flush-epoch, or log; between the first three it can be chosen at each attach.
    #[arg(long, default_value = "write-back")]
    pub mode: Mode,
    /// Tracts of 8 MiB over which neighbouring blocks are spread, 1 to 128; by default as many as the disk has.
    #[arg(long, conflicts_with = "role")]
    pub segment: Option<u32>,
    /// The segment by what its user does: more disks work for heavier use.
    #[arg(long, value_enum)]
    pub role: Option<Role>,
    /// Bytes of a block of a log: 4096 to 65536. As large as what is written.
    #[arg(long, default_value_t = 4096)]
    pub log_block: u32,
    /// The file with the disk's key, made if it is not there. Whoever loses it loses the disk's content.
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
}

/// How much a disk's user asks of it. Each role has twice the segment of the one before, as the paper's users have twice the
/// rate (5, 10, 20 and 40 operations a second).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Mail and documents: segments of 16 tracts.
    Light,
    /// An office's desktop: 32.
    Normal,
    /// A programmer's: 64.
    Power,
    /// Servers and databases: 128.
    Heavy,
}

impl Role {
    fn segment_tracts(self) -> u32 {
        match self {
            Self::Light => 16,
            Self::Normal => 32,
            Self::Power => 64,
            Self::Heavy => 128,
        }
    }
}

/// When a flush is answered.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Flush {
    /// When everything before it is durable on all replicas.
    Durable,
    /// At once: it only orders. After a crash a tail may be gone, never a middle.
    Ordered,
}

/// How a disk is attached by whoever runs its cluster.
#[derive(Args)]
pub struct AttachHow {
    /// The file with the disk's key.
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// Where NBD clients connect: unix:/path or tcp:host:port.
    #[arg(long)]
    pub nbd: String,
    #[command(flatten)]
    pub options: AttachOptions,
}

/// How a disk is attached by anybody.
#[derive(Args)]
pub struct AttachOptions {
    /// The mode, if another than the disk's own.
    #[arg(long)]
    pub mode: Option<Mode>,
    /// When a flush is answered.
    #[arg(long, value_enum, default_value = "durable")]
    pub flush: Flush,
    /// With ordered flushes: nothing more is answered while the oldest write that is not durable is older than this.
    #[arg(long, default_value_t = 1000, value_name = "MS")]
    pub lag_ms: u64,
    /// Bytes answered and not durable before writers wait.
    #[arg(long, default_value = "64MiB")]
    pub dirty: Size,
    /// How many seconds nodes that are away are waited for, in each of five attempts to attach.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub attach_timeout_s: u64,
    /// A directory for what is written while nodes are away: it is answered from there, up to --journal-size, and given to them
    /// when they are back. FUA and durable flushes wait for nodes all the same.
    #[arg(long, value_name = "DIRECTORY")]
    pub journal: Option<PathBuf>,
    /// Bytes that the journal may have.
    #[arg(long, default_value = "1GiB", requires = "journal")]
    pub journal_size: Size,
    /// How long the oldest write waits for nodes before the journal begins.
    #[arg(long, default_value_t = 2000, value_name = "MS", requires = "journal")]
    pub journal_after_ms: u64,
    /// How many seconds nodes may be away before writes fail; without it they never do.
    #[arg(long, value_name = "SECONDS", requires = "journal")]
    pub disconnected_seconds: Option<u64>,
    /// How many seconds a detach, or the end of this process, waits for nodes to take all that was written.
    #[arg(long, default_value_t = DETACH_LIMIT.as_secs(), value_name = "SECONDS")]
    pub detach_seconds: u64,
    /// NBD clients at once; more wait to be accepted.
    #[arg(long, default_value_t = Limits::default().connections as u32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub nbd_connections: u32,
    /// Takes the disk from whoever has it. They can do nothing more with it.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub tls: TlsFiles,
}

/// Creates a disk in the table.
pub async fn create_disk(
    env: &Env,
    placement: &Placement,
    tenant: TenantId,
    wanted: &Create,
) -> Result<DiskRecord, Failure> {
    let new = new_disk(env, tenant, wanted)?;
    Ok(placement.create_disk(new).await?)
}

/// The disk that the command line asks for; its key is made if there is none.
pub fn new_disk(env: &Env, tenant: TenantId, wanted: &Create) -> Result<NewDisk, Failure> {
    let key = if wanted.key.exists() {
        Secret::read(&wanted.key)?
    } else {
        Secret::create(env, &wanted.key)?
    };
    let size_bytes = wanted.size.0;
    let shape = match wanted.mode {
        Mode::Log if wanted.role.or(wanted.segment.map(|_| Role::Normal)).is_some() => {
            return Err(Failure::usage(
                "a log is spread over all its tracts: it has neither --role nor --segment",
            ));
        }
        Mode::Log => Shape::Log {
            block_bytes: wanted.log_block,
            physical_blocks: Shape::physical_for(size_bytes / u64::from(wanted.log_block.max(1))),
        },
        Mode::WriteThrough | Mode::WriteBack | Mode::FlushEpoch => {
            let tracts = u32::try_from(size_bytes.div_ceil(TRACT_BYTES)).unwrap_or(u32::MAX);
            Shape::in_place(match wanted.role {
                Some(role) => role.segment_tracts(),
                None => wanted.segment.unwrap_or(tracts.clamp(1, 128)),
            })
        }
    };
    let settings =
        DiskSettings::new(shape, wanted.mode, Some(key_check(key.expose()))).map_err(Failure::usage)?;
    check_size(size_bytes, shape.block_bytes())?;
    Ok(NewDisk {
        tenant,
        name: wanted.name.clone(),
        size_bytes,
        tracts: Some(tracts_for(&settings, size_bytes)?),
        replication: replication(wanted.replication).map_err(Failure::usage)?,
        settings: settings.to_text(),
    })
}

/// Whether a disk of such blocks can have this size; if not, the error names the nearest sizes that it can have.
pub fn check_size(size_bytes: u64, block_bytes: u32) -> Result<(), Failure> {
    let block = u64::from(block_bytes.max(4096));
    if size_bytes > 0 && size_bytes.is_multiple_of(block) {
        return Ok(());
    }
    let below = size_bytes / block * block;
    let above = below.saturating_add(block);
    let fits = match below {
        0 => format!("{above}B is the least"),
        _ => format!("{below}B and {above}B would do"),
    };
    Err(Failure::usage(format!(
        "{size_bytes} bytes are no size for this disk: it must be a multiple of {block} bytes; {fits}"
    )))
}

/// `firn-blockd create`.
pub async fn create(config: &Config, wanted: &Create) -> Result<(), Failure> {
    let client = config.client()?;
    let outside = Outside::open(config, &client.state_directory).await?;
    let record = create_disk(&outside.env, &outside.placement, client.tenant, wanted).await?;
    println!(
        "disk {} ({}): {}, {} copies; its key is in {}",
        record.name,
        record.disk.hex(),
        Size(record.size_bytes),
        record.copies,
        wanted.key.display()
    );
    Ok(())
}

/// `firn-blockd list`.
pub async fn list(config: &Config) -> Result<(), Failure> {
    let client = config.client()?;
    let outside = Outside::open(config, &client.state_directory).await?;
    let mut disks = outside.placement.disks(Some(client.tenant)).await?;
    disks.sort_by(|one, other| one.name.cmp(&other.name));
    println!(
        "{:<24} {:>12} {:>6}  {:<14} attached by",
        "name", "size", "copies", "mode"
    );
    for disk in disks {
        let mode =
            DiskSettings::parse(&disk.settings).map_or("?".into(), |settings| settings.mode.to_string());
        let attached = match (&disk.state, &disk.attached) {
            (DiskState::Deleting { .. }, _) => "(being deleted)".into(),
            (DiskState::Ready, Some(attach)) => holder(&attach.holder).to_owned(),
            (DiskState::Ready, None) => "-".into(),
        };
        println!(
            "{:<24} {:>12} {:>6}  {mode:<14} {attached}",
            disk.name,
            Size(disk.size_bytes),
            disk.copies
        );
    }
    Ok(())
}

/// What a person wants to see of a holder: without the mark of the call.
pub fn holder(text: &str) -> &str {
    text.split_once('#').map_or(text, |(holder, _)| holder)
}

/// How to attach, from the command line.
pub fn attachable(record: &DiskRecord, key: &Secret, how: &AttachOptions) -> Result<Attachable, Failure> {
    let journal = match &how.journal {
        Some(directory) => Some(JournalOptions {
            after: Duration::from_millis(how.journal_after_ms),
            give_up: how.disconnected_seconds.map(Duration::from_secs),
            ..journal::options(directory, how.journal_size.0)?
        }),
        None => None,
    };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let holder = format!("{}, process {}", host.trim(), std::process::id());
    Ok(Attachable {
        mode: how.mode,
        flush: match how.flush {
            Flush::Durable => FlushPolicy::Durable,
            Flush::Ordered => FlushPolicy::Ordered {
                lag_ms_max: how.lag_ms,
            },
        },
        dirty_bytes_max: how.dirty.0,
        force: how.force,
        replicas: ReplicaOptions {
            deadline_after: Duration::from_secs(how.attach_timeout_s),
            ..ReplicaOptions::default()
        },
        journal,
        ..Attachable::new(record.disk, *key.expose(), &holder)
    })
}

/// What a disk is called where it is served.
pub struct Exported<'a> {
    /// Its name, which is the export's and the admin socket's.
    pub name: &'a str,
    /// Where NBD clients connect.
    pub nbd: &'a str,
    /// Where the admin socket is.
    pub state_directory: &'a Path,
    /// The kernel's device that is to have it.
    pub device: Option<&'a KernelDevice>,
}

/// How an attached disk is served.
pub fn serving(
    exported: &Exported<'_>,
    wanted: &Attachable,
    how: &AttachOptions,
    snapshots: Option<&StoreUrl>,
) -> Result<Serving, Failure> {
    Ok(Serving {
        name: exported.name.to_owned(),
        nbd: exported.nbd.to_owned(),
        flush: wanted.flush,
        dirty_bytes_max: wanted.dirty_bytes_max,
        detach_limit: Duration::from_secs(how.detach_seconds),
        connections: how.nbd_connections as usize,
        tls: how.tls.read()?,
        snapshots: Place::new(snapshots.cloned(), wanted.disk, &wanted.key),
    })
}

/// Serves an attached disk until the process is asked to end, somebody wants the disk back, or it is detached.
pub async fn serve(
    env: &Env,
    attached: AttachedDisk,
    serving: Serving,
    exported: &Exported<'_>,
) -> Result<(), Failure> {
    let name = exported.name;
    let socket = admin::socket(exported.state_directory, name);
    let asked = attached.asked_to_end();
    let salvaged = attached.salvaged.clone();
    let (served, admin) = Served::start(env, attached, serving, &socket).await?;
    if let Some(aside) = salvaged {
        println!(
            "disk {name}: another attach had it since this journal was used; what it holds was put aside in {aside}: \
             look at it with firn-blockd journal show"
        );
    }
    let plugged = match exported.device {
        Some(device) => served.plug(device).await,
        None => Ok(()),
    };
    let outcome = match plugged {
        Ok(()) => {
            if let Some(device) = exported.device {
                println!("disk {name} is {device}");
            }
            println!("disk {name} is served at {}", served.address());
            until_over(&served, name, asked).await
        }
        Err(error) => Over::Stop(Err(error)),
    };
    served.unplug().await;
    let outcome = match outcome {
        Over::Stop(why) => served.detach().await.and(why),
        Over::Detached => Ok(()),
        // There is nothing to give back.
        Over::Lost(fenced) => Err(fenced),
    };
    admin.abort();
    // If it cannot be removed, the next attach replaces it.
    let _ = std::fs::remove_file(&socket);
    outcome
}

/// Why a disk is served no longer.
enum Over {
    /// It is to be given back; then the command ends so.
    Stop(Result<(), Failure>),
    /// It is given back.
    Detached,
    /// Another has it.
    Lost(Failure),
}

async fn until_over(served: &Served, name: &str, asked: impl Future<Output = ()>) -> Over {
    let (stopped, ended, lost, asked) = (
        pin!(until_stopped()),
        pin!(served.ended()),
        pin!(served.taken_over()),
        pin!(asked),
    );
    match select(select(stopped, ended), select(lost, asked)).await {
        Either::Left((Either::Left((stopped, _)), _)) => {
            println!("disk {name} is being detached: what was written goes to its nodes");
            Over::Stop(stopped)
        }
        Either::Left((Either::Right(((), _)), _)) => Over::Detached,
        Either::Right((Either::Left((fenced, _)), _)) => Over::Lost(fenced),
        Either::Right((Either::Right(((), _)), _)) => {
            println!("disk {name} is wanted back by somebody of its tenant: it is being detached");
            Over::Stop(Ok(()))
        }
    }
}

/// `firn-blockd attach`.
pub async fn attach_disk(config: &Config, name: &str, how: &AttachHow) -> Result<(), Failure> {
    let client = config.client()?;
    nbd_address(&how.nbd)?;
    how.options.tls.read()?;
    let outside = Outside::open(config, &client.state_directory).await?;
    let record = outside.disk(client.tenant, name).await?;
    let access = outside.operator.client(client.capability_seconds)?;
    let wanted = attachable(&record, &Secret::read(&how.key)?, &how.options)?;
    let exported = Exported {
        name,
        nbd: &how.nbd,
        state_directory: &client.state_directory,
        device: None,
    };
    let serving = serving(&exported, &wanted, &how.options, client.snapshots.as_ref())?;
    let attached = attach(&outside.env, &outside.placement, &access, wanted).await?;
    serve(&outside.env, attached, serving, &exported).await
}

/// Prints what an attached disk answered; an error if it is not attached on this machine.
fn answered(reply: Option<Reply>, name: &str) -> Result<(), Failure> {
    match reply {
        Some(Reply::Done { text }) => {
            println!("{text}");
            Ok(())
        }
        Some(other) => Err(Failure::new(format!(
            "the disk answered something else: {other:?}"
        ))),
        None => Err(Failure::new(format!(
            "disk {name} is not attached on this machine (by this state directory); firn-blockd list says where it is"
        ))),
    }
}

/// `firn-blockd detach`.
pub async fn detach(config: &Config, name: &str) -> Result<(), Failure> {
    let directory = &config.client()?.state_directory;
    answered(admin::ask(directory, name, Command::Detach).await?, name)
}

/// `firn-blockd grow`: through whoever has it attached here, or in the table, for the next attach.
pub async fn grow(config: &Config, name: &str, size: Size) -> Result<(), Failure> {
    let client = config.client()?;
    check_size(size.0, 0)?;
    let asked = admin::ask(
        &client.state_directory,
        name,
        Command::Grow { size_bytes: size.0 },
    )
    .await?;
    if asked.is_some() {
        return answered(asked, name);
    }
    let outside = Outside::open(config, &client.state_directory).await?;
    let record = outside.disk(client.tenant, name).await?;
    if let Some(attach) = &record.attached {
        return Err(Failure::new(format!(
            "disk {name} is attached by {}; grow it there, or detach it first",
            holder(&attach.holder)
        )));
    }
    let settings = DiskSettings::parse(&record.settings).map_err(Failure::new)?;
    check_size(size.0, settings.shape.block_bytes())?;
    if size.0 < record.size_bytes {
        return Err(Failure::usage(format!(
            "disk {name} has {} bytes and does not shrink; name more than that",
            record.size_bytes
        )));
    }
    let tracts = tracts_for(&settings, size.0)?;
    let record = outside
        .placement
        .grow_disk(record.disk, size.0, Some(tracts))
        .await?;
    println!("disk {name} has {}", Size(record.size_bytes));
    Ok(())
}

/// `firn-blockd delete`.
pub async fn delete(config: &Config, name: &str) -> Result<(), Failure> {
    let client = config.client()?;
    let outside = Outside::open(config, &client.state_directory).await?;
    let record = outside.disk(client.tenant, name).await?;
    outside.placement.delete_disk(record.disk).await?;
    println!("disk {name} is deleted; nodes give its tracts up within the hour");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_does_not_fit_names_those_that_do() {
        assert!(check_size(20 << 30, 4096).is_ok() && check_size(4096, 0).is_ok());
        let wrong = |bytes, block| check_size(bytes, block).expect_err("it does not fit").to_string();
        assert!(wrong(10_000, 4096).contains("8192B and 12288B would do"));
        assert!(wrong(1, 65536).contains("65536B is the least"));
        assert_eq!(
            check_size(0, 4096).expect_err("nothing is no size").exit_code(),
            2
        );
    }
}

//! `firn disk snapshot` and `firn disk restore`: snapshots of a disk in a store of the customer's, and new disks made of them.
//!
//! ```text
//! create    the process that has the disk attached here takes it; nobody has: a ticket, and firn-blockd attaches the disk for it
//! restore   the service makes a disk ─▶ ticket ─▶ firn-blockd writes the snapshot to it; until that is done nobody can attach it
//! ```
//!
//! This program links no disk engine: it becomes `firn-blockd`, as with an attach. What a snapshot holds is sealed with the disk's
//! key, so the store sees no more than the nodes do.

use super::{Context, ask, attach, wait_for};
use crate::{
    arguments::{DiskSnapshot, RestoreDisk, SnapshotsOf, Wait},
    failure::{Exit, Failure, of_file},
    screen::{field, note, told},
    session::Session,
};
use firn_identity::DiskId;
use firn_quantity::Size;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Sizes of disks are multiples of a tract.
const TRACT_BYTES: u64 = 8 << 20;
/// How long a new disk is waited for: its nodes may have to be started first.
const DISK_SECONDS: u64 = 900;

/// A disk, where its snapshots are, and the program that deals with them.
struct Snapshots<'a> {
    program: PathBuf,
    state: PathBuf,
    store: String,
    of: &'a SnapshotsOf,
    disk: Value,
}

/// The store that is named, or the one that was named before.
fn store(state: &Path, of: &SnapshotsOf) -> Result<String, Failure> {
    let kept = state.join("snapshot-store");
    match &of.store {
        Some(store) => {
            fs::create_dir_all(state).map_err(of_file(state))?;
            fs::write(&kept, store).map_err(of_file(&kept))?;
            Ok(store.clone())
        }
        None => fs::read_to_string(&kept)
            .map(|store| store.trim().to_owned())
            .map_err(|_| {
                Failure::usage("no store for snapshots was named yet")
                    .next("name one with --store s3://BUCKET/PREFIX; it is remembered")
            }),
    }
}

impl<'a> Snapshots<'a> {
    async fn of(session: &Session, disk: &str, of: &'a SnapshotsOf) -> Result<Self, Failure> {
        let program = attach::program()?;
        let state = session.directory().join("disks");
        let found = match session.find("disks", disk).await {
            // A disk may be gone that has snapshots.
            Err(failure) if failure.exit == Exit::NotFound && disk.parse::<DiskId>().is_ok() => {
                json!({ "id": disk, "name": disk })
            }
            found => found?,
        };
        Ok(Self {
            program,
            store: store(&state, of)?,
            state,
            of,
            disk: found,
        })
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(["tenant-snapshot", what, "--state"])
            .arg(&self.state)
            .args([
                "--disk",
                &field(&self.disk, "id"),
                "--name",
                &field(&self.disk, "name"),
            ])
            .args(["--store", &self.store]);
        if let Some(key) = &self.of.key {
            command.arg("--key").arg(key);
        }
        command
    }

    /// What there is, the newest first.
    fn list(&self) -> Result<Vec<Value>, Failure> {
        let output = self
            .command("list")
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .map_err(attach::failed)?;
        if !output.status.success() {
            let exit = match output.status.code() {
                Some(2) => Exit::Usage,
                _ => Exit::Failed,
            };
            return Err(Failure::new(exit, "the snapshots were not listed"));
        }
        serde_json::from_slice(&output.stdout).map_err(|_| {
            Failure::failed("firn-blockd lists snapshots in another way; is it of this version?")
        })
    }
}

pub async fn run(context: &Context, command: DiskSnapshot) -> Result<(), Failure> {
    let session = context.session().await?;
    match command {
        DiskSnapshot::Create {
            disk,
            snapshot,
            of,
            service,
        } => {
            let snapshots = Snapshots::of(&session, &disk, &of).await?;
            let mut command = snapshots.command("take");
            command.arg(&snapshot);
            let ticket = if snapshots.disk["attached"].is_null() {
                command.arg("--by-ticket");
                Some(attach::ticket(&session, &snapshots.disk, service.as_deref()).await?)
            } else {
                None
            };
            attach::become_with(command, ticket.as_ref().map(|ticket| &***ticket))
        }
        DiskSnapshot::List { disk, of } => {
            let snapshots = Snapshots::of(&session, &disk, &of).await?;
            let listed = snapshots.list()?;
            context.screen.show(&Value::Array(listed), |listed| {
                let row = |snapshot: &Value| {
                    ["name", "size_bytes", "taken"]
                        .map(|path| told(snapshot, path))
                        .into()
                };
                let rows: Vec<_> = listed.as_array().into_iter().flatten().map(row).collect();
                context.screen.table(&["name", "size", "taken"], &[1], &rows)
            })
        }
        DiskSnapshot::Delete {
            disk,
            snapshot,
            of,
            sure,
        } => {
            let snapshots = Snapshots::of(&session, &disk, &of).await?;
            let name = field(&snapshots.disk, "name");
            ask(
                &sure,
                &format!("Snapshot {snapshot} of disk {name} will be deleted"),
            )?;
            let mut command = snapshots.command("delete");
            command.arg(&snapshot);
            attach::become_with(command, None)
        }
    }
}

pub async fn restore(context: &Context, wanted: RestoreDisk) -> Result<(), Failure> {
    let session = context.session().await?;
    let snapshots = Snapshots::of(&session, &wanted.disk, &wanted.of).await?;
    let listed = snapshots.list()?;
    let Some(snapshot) = listed
        .iter()
        .find(|snapshot| snapshot["name"] == *wanted.snapshot)
    else {
        return Err(Failure::new(
            Exit::NotFound,
            format!(
                "disk {} has no snapshot {}",
                field(&snapshots.disk, "name"),
                wanted.snapshot
            ),
        )
        .next("firn disk snapshot list shows them"));
    };
    let least = snapshot["size_bytes"].as_u64().unwrap_or(0);
    let size = match wanted.size {
        Some(Size(size)) if size < least => {
            return Err(Failure::usage(format!(
                "the snapshot has {}, and the new disk would have {}",
                Size(least),
                Size(size)
            )));
        }
        Some(Size(size)) => size,
        None => least.div_ceil(TRACT_BYTES) * TRACT_BYTES,
    };
    let disk = new_disk(&session, &wanted, size).await?;
    let mut command = snapshots.command("restore");
    command.arg(&wanted.snapshot);
    if let Some(key) = &wanted.new_key {
        command.arg("--new-key").arg(key);
    }
    let ticket = attach::ticket(&session, &disk, wanted.service.as_deref()).await?;
    attach::become_with(command, Some(&ticket))
}

/// The disk to restore into, once it can be attached. One of this name that is there already may be of a restore that was interrupted:
/// firn-blockd sees whether it is, and touches no other.
async fn new_disk(session: &Session, wanted: &RestoreDisk, size: u64) -> Result<Value, Failure> {
    let body = json!({ "name": wanted.into, "size_bytes": size, "replicas": wanted.replicas });
    match session.post("disks", &body).await {
        Ok(change) => {
            let wait = Wait {
                wait: true,
                timeout: DISK_SECONDS,
            };
            wait_for(session, &field(&change, "operation.id"), &wanted.into, &wait).await?;
        }
        Err(failure) if failure.exit == Exit::Conflict => {
            note(&format!(
                "A disk named {} is there: if its restore was interrupted, it goes on.",
                wanted.into
            ));
        }
        Err(failure) => return Err(failure),
    }
    session.find("disks", &wanted.into).await
}

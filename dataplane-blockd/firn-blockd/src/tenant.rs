//! A tenant's machine and its disk: `firn-blockd attach-by-ticket`, which `firn disk attach` becomes.
//!
//! ```text
//! firn ── ticket ──▶ this process ── certificate ──▶ service: attach, capabilities, rows      ([`ServiceTable`])
//!                         │     └──── capability ──▶ nodes: blocks
//!                         └ NBD ◀── file system
//! ```

use crate::{
    cluster,
    disks::{AttachOptions, Exported, attachable, serve, serving},
    failure::Failure,
    kernel::KernelDevice,
    security::Secret,
    served::nbd_address,
    service_table::ServiceTable,
    ticket::Ticket,
};
use clap::Args;
use firn_blockd_client::{DiskSettings, attach};
use firn_blockd_placement::{DiskRecord, DiskTable as _};
use firn_env::{Env, println};
use firn_quantity::Size;
use std::path::PathBuf;

/// What of an attach is the machine's own matter.
#[derive(Args)]
pub struct ByTicket {
    /// Where disks' keys, sockets and journals of this user are.
    #[arg(long, value_name = "DIRECTORY")]
    state: PathBuf,
    /// Where NBD clients connect: unix:/path or tcp:host:port; by default a socket in the state directory.
    #[arg(long)]
    nbd: Option<String>,
    /// The kernel's device that is to have the disk, such as /dev/nbd0.
    #[arg(long, value_name = "DEVICE")]
    device: Option<PathBuf>,
    /// The file with the disk's key; by default one in the state directory.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    #[command(flatten)]
    options: AttachOptions,
}

/// The disk's key: of this machine if it is there, made if nobody has ever attached the disk, and asked for otherwise.
pub fn disk_key(
    env: &Env,
    path: &std::path::Path,
    record: &DiskRecord,
    name: &str,
) -> Result<Secret, Failure> {
    if path.exists() {
        return Secret::read(path);
    }
    let settings = DiskSettings::parse(&record.settings).map_err(Failure::new)?;
    if settings.key_check.is_some() {
        return Err(Failure::usage(format!(
            "disk {name} is sealed with a key that is not on this machine: carry its file from where the disk was first attached to \
             {}, or name it with --key; nothing was attached",
            path.display()
        )));
    }
    let key = Secret::create(env, path)?;
    println!(
        "disk {name} has a new key in {}: keep a copy, without it nobody reads the disk",
        path.display()
    );
    Ok(key)
}

/// `firn-blockd attach-by-ticket`.
pub async fn attach_by_ticket(wanted: &ByTicket) -> Result<(), Failure> {
    // Whoever gives the ticket writes it whole before this process begins.
    let ticket = Ticket::read(std::io::stdin().lock())?;
    let name = &*ticket.name;
    wanted.options.tls.read()?;
    let env = cluster::environment(&wanted.state)?;
    let nbd = match &wanted.nbd {
        Some(nbd) => nbd.clone(),
        None => {
            let state = std::path::absolute(&wanted.state).map_err(Failure::usage)?;
            format!("unix:{}", state.join(format!("{}.sock", ticket.disk)).display())
        }
    };
    nbd_address(&nbd)?;
    let device = match &wanted.device {
        Some(device) => Some(KernelDevice::find(device)?),
        None => None,
    };
    let table = ServiceTable::new(&env, &ticket)?;
    let record = table.disk(ticket.disk).await?;
    let path = match &wanted.key {
        Some(path) => path.clone(),
        None => wanted.state.join(format!("{}.key", ticket.disk)),
    };
    let key = disk_key(&env, &path, &record, name)?;
    let attachable = attachable(&record, &key, &wanted.options)?;
    let id = ticket.disk.to_string();
    let exported = Exported {
        name: &id,
        nbd: &nbd,
        state_directory: &wanted.state,
        device: device.as_ref(),
    };
    let serving = serving(&exported, &attachable, &wanted.options, None)?;
    println!("disk {name}: attaching, its nodes are asked what the attach before left");
    let attached = attach(&env, &table, &table.access()?, attachable).await?;
    println!(
        "disk {name} ({}) is attached, attach {}; {} regions were made equal. Ctrl-C detaches it",
        Size(attached.record().size_bytes),
        attached.fence.0,
        attached.reconciled_regions
    );
    let renewing = env.spawn_essential("renew", table.keep_renewing(attached.fence));
    let outcome = serve(&env, attached, serving, &exported).await;
    renewing.abort();
    if outcome.is_ok() {
        println!("disk {name} is detached; everything is durable");
    }
    outcome
}

//! The set `protocol`: the NFS server before a file system in memory, in a process of its own; no engine and no disk.

use crate::{
    edge::{connect, create, read, write},
    figures::{Figures, Row},
    process,
};
use anyhow::{Context, Result};
use firn_nfs::{
    ClientNetwork, ClientRule, Export, Exports, HandleKey, NfsService, PortMapping, ServiceConfig, Squash,
};
use firn_vfs::{MemoryOptions, MemoryVfs};
use std::{io, process::Stdio, sync::Arc};
use tokio::io::{AsyncBufReadExt, BufReader};

/// What the server keeps in memory.
const LARGE_BYTES: u64 = 256 << 20;
const GIB: f64 = (1_u64 << 30) as f64;
const SMALL_CALLS: u64 = 20_000;
const EXPORT: &str = "/";

/// Serves until its standard input ends.
pub async fn serve() -> Result<()> {
    let env = firn_env::real(&std::env::temp_dir())?;
    let vfs = Arc::new(MemoryVfs::new(&env, MemoryOptions::default()));
    let rule = ClientRule {
        squash: Squash::None,
        require_privileged_port: false,
        ..ClientRule::read_write(ClientNetwork::Everyone)
    };
    let export = Export::new(EXPORT, vfs, vec![rule])?;
    let exports = Exports::new(HandleKey::new(&[0; 32]), [export])?;
    let config = ServiceConfig {
        address: "127.0.0.1:0".into(),
        port_mapping: PortMapping::None,
        ..ServiceConfig::default()
    };
    let service = NfsService::start(&env, config, Arc::new(exports), Vec::new()).await?;
    println!("{}", service.address());
    tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink())).await??;
    service.shutdown().await;
    Ok(())
}

/// Measures all rows.
pub async fn measure() -> Result<Figures> {
    let mut server = tokio::process::Command::new(std::env::current_exe()?)
        .arg("--serve-memory")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("starting the server")?;
    let id = server.id().context("the server has ended")?;
    let mut lines = BufReader::new(server.stdout.take().context("no standard output")?).lines();
    let address = lines.next_line().await?.context("the server gave no address")?;
    let env = firn_env::real(&std::env::temp_dir())?;
    let (client, root) = connect(&env, &address, EXPORT).await?;
    let large = create(&client, &root, "large").await?;
    let gib = LARGE_BYTES as f64 / GIB;
    let mut rows = Vec::new();

    let before = process::counts(id)?;
    write(&client, &large, LARGE_BYTES).await?;
    rows.push((
        "protocol write-sequential",
        Row::between("GiB", gib, before, process::counts(id)?),
    ));
    let before = process::counts(id)?;
    read(&client, &large, LARGE_BYTES).await?;
    rows.push((
        "protocol read-sequential",
        Row::between("GiB", gib, before, process::counts(id)?),
    ));
    let before = process::counts(id)?;
    for _ in 0..SMALL_CALLS {
        let asked = client.get_attributes(&large).await?;
        asked.map_err(|failed| anyhow::anyhow!("GETATTR: {failed:?}"))?;
    }
    rows.push((
        "protocol getattr",
        Row::between("call", SMALL_CALLS as f64, before, process::counts(id)?),
    ));
    drop(client);
    drop(server.stdin.take());
    server.wait().await?;
    Figures::measured(rows)
}

//! Serves a disk in memory over NBD, to try clients on and to measure the server by itself:
//!
//!     cargo run --release -p firn-blockd-nbd --example serve_memory -- unix:/tmp/nbd.sock --mib 1024
//!     nbdinfo 'nbd+unix:///?socket=/tmp/nbd.sock'

use clap::Parser;
use firn_blockd_nbd::{Export, Exports, Limits, MemoryDevice, Server};
use std::{path::Path, sync::Arc, time::Duration};

/// A disk in memory over NBD. It is gone when the program ends.
#[derive(Parser)]
struct Arguments {
    /// `unix:/path` or `host:port`.
    address: String,
    /// Size of the disk.
    #[arg(long, default_value_t = 1024)]
    mib: u64,
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let arguments = Arguments::parse();
    let env = firn_env::real(Path::new(".")).map_err(std::io::Error::other)?;
    let exports = Arc::new(Exports::new());
    let device = Arc::new(MemoryDevice::new(arguments.mib << 20));
    exports.insert("", Export::new(device, "a disk in memory"));
    let server = Server::new(env, exports, None, Limits::default());
    let listening = server.listen(&arguments.address).await?;
    println!("listening on {}", listening.address());
    tokio::signal::ctrl_c().await?;
    server.stop(Duration::from_secs(5)).await;
    Ok(())
}

//! Serves an empty file system in memory, to try clients against: `memory_server PORT [PORTMAP_PORT | unix:SOCKET]`.
//!
//! With PORTMAP_PORT it answers itself where its programs are; with `unix:/run/rpcbind.sock` it tells the rpcbind there.
//!
//! Exports `/` to everyone with root as root and any source port. Without a port mapper, mount with
//! `mount -t nfs -o vers=3,tcp,nolock,port=PORT,mountport=PORT,mountproto=tcp HOST:/ /mnt`.

use firn_nfs::{
    ClientNetwork, ClientRule, Export, Exports, HandleKey, NfsService, PortMapping, ServiceConfig, Squash,
};
use firn_vfs::{MemoryOptions, MemoryVfs};
use std::sync::Arc;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let nfs_port: u16 = arguments
        .next()
        .map_or(2049, |text| text.parse().expect("a port number"));
    let port_mapping = match arguments.next() {
        None => PortMapping::None,
        Some(socket) if socket.starts_with("unix:") => PortMapping::Register(socket),
        Some(port) => PortMapping::Serve(format!("[::]:{port}")),
    };
    let env = firn_env::real(&std::env::temp_dir()).expect("the temporary directory opens");
    let vfs = Arc::new(MemoryVfs::new(&env, MemoryOptions::default()));
    let rule = ClientRule {
        squash: Squash::None,
        require_privileged_port: false,
        ..ClientRule::read_write(ClientNetwork::Everyone)
    };
    let export = Export::new("/", vfs, vec![rule]).expect("`/` is a path");
    // Always the same key: handles survive a restart, though the files do not.
    let exports = Exports::new(HandleKey::new(&[0; 32]), [export]).expect("one export");
    let config = ServiceConfig {
        address: format!("[::]:{nfs_port}"),
        port_mapping,
        ..ServiceConfig::default()
    };
    let service = NfsService::start(&env, config, Arc::new(exports), Vec::new()).await;
    let service = service.unwrap_or_else(|error| panic!("{error}"));
    println!("serving / on {}", service.address());
    tokio::signal::ctrl_c().await.expect("signals can be awaited");
    for one in service.statistics().iter().filter(|one| one.calls > 0) {
        println!(
            "{:8} {:12} {:9} calls {:7} failed {:4} refused, mean {} µs",
            one.program,
            one.procedure,
            one.calls,
            one.failed,
            one.refused,
            one.latency_sum_us / one.calls
        );
    }
    service.shutdown().await;
}

//! Serves an empty file system in memory *with locks*, to try clients against: `lock_server DIRECTORY [GRACE_SECONDS]`.
//!
//! Exports `/export` to everyone on the standard ports (so it needs root, or a network namespace): mount it with
//! `mount -t nfs -o vers=3,proto=tcp HOST:/export /mnt`. What a restart must know about locks is kept in DIRECTORY. The
//! files are not kept, but `/export/lock` is there at every start under the same handle, so that locks on it can outlive
//! the server.

use firn_nfs::{
    ClientNetwork, ClientRule, Export, Exports, HandleKey, NfsService, PortMapping, ServiceConfig, Squash,
    nlm::LockService, nsm::MonitorConfig,
};
use firn_session::{LockLimits, LockTable};
use firn_vfs::{Caller, CreateMode, Credentials, MemoryOptions, MemoryVfs, Name, SetAttributes, Vfs};
use std::{path::Path, sync::Arc, time::Duration};

#[tokio::main]
async fn main() {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let mut arguments = std::env::args().skip(1);
    let directory = arguments
        .next()
        .expect("usage: lock_server DIRECTORY [GRACE_SECONDS]");
    let grace = arguments.next().map_or(45, |text| text.parse().expect("seconds"));
    let env = firn_env::real(Path::new(&directory)).expect("the directory opens");
    let options = MemoryOptions {
        root_mode: 0o777,
        ..MemoryOptions::default()
    };
    let vfs = Arc::new(MemoryVfs::new(&env, options));
    let root = Caller::new(Credentials::root());
    let attributes = SetAttributes {
        mode: Some(0o666),
        ..SetAttributes::default()
    };
    let name = Name::new("lock").expect("a name");
    vfs.create(&root, vfs.root(), &name, CreateMode::Unchecked(attributes))
        .await
        .expect("root creates");
    let rule = ClientRule {
        squash: Squash::None,
        require_privileged_port: false,
        ..ClientRule::read_write(ClientNetwork::Everyone)
    };
    let export = Export::new("/export", vfs, vec![rule]).expect("a path");
    // Always the same key, so that handles survive a restart.
    let exports = Arc::new(Exports::new(HandleKey::new(&[0; 32]), [export]).expect("one export"));
    let monitor = MonitorConfig {
        name: "server".into(),
        grace: Duration::from_secs(grace),
        ..MonitorConfig::default()
    };
    let table = LockTable::new(LockLimits::default());
    let locks = LockService::start(&env, exports.clone(), table, monitor)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let config = ServiceConfig {
        mount_address: Some("[::]:20048".into()),
        port_mapping: PortMapping::Serve("[::]:111".into()),
        ..ServiceConfig::default()
    };
    let service = NfsService::start(&env, config, exports, locks.programs()).await;
    let service = service.unwrap_or_else(|error| panic!("{error}"));
    locks.announce();
    println!("serving /export on {}", service.address());
    tokio::signal::ctrl_c().await.expect("signals can be awaited");
    println!("{:?}", locks.status());
    service.shutdown().await;
}

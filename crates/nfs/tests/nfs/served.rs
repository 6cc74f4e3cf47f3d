//! A service on free ports of the loopback interface, and clients of it.

use firn_env::Env;
use firn_nfs::{
    ClientNetwork, ClientRule, Export, Exports, HandleKey, NfsService, PortMapping, ServiceConfig, Squash,
    WireHandle,
    client::NfsClient,
    rpc::Credential,
    v3::{
        Status,
        types::{CreateHow, Failed, Made, NewAttributes, WccData},
    },
};
use firn_vfs::{MemoryOptions, MemoryVfs, Vfs};
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

pub const TIMEOUT: Duration = Duration::from_secs(20);
pub const KEY: [u8; 32] = [7; 32];

pub fn env() -> Env {
    firn_env::real(&std::env::temp_dir()).unwrap()
}

pub fn memory(file_system: u64) -> Arc<MemoryVfs> {
    let options = MemoryOptions {
        file_system,
        root_mode: 0o777,
        ..MemoryOptions::default()
    };
    Arc::new(MemoryVfs::new(&env(), options))
}

/// Everyone may do everything, as whom they say they are.
pub fn open_rule() -> ClientRule {
    ClientRule {
        squash: Squash::None,
        require_privileged_port: false,
        ..ClientRule::read_write(ClientNetwork::Everyone)
    }
}

pub fn root() -> Credential {
    Credential::sys("test", 0, 0, vec![])
}

pub fn user(uid: u32) -> Credential {
    Credential::sys("test", uid, uid, vec![])
}

pub struct Served {
    pub env: Env,
    pub service: NfsService,
}

impl Served {
    pub async fn start(exports: impl IntoIterator<Item = Export>) -> Self {
        Self::with(ServiceConfig::default(), exports).await
    }

    /// Free ports are taken instead of the configured ones.
    pub async fn with(config: ServiceConfig, exports: impl IntoIterator<Item = Export>) -> Self {
        let env = env();
        let exports = Arc::new(Exports::new(HandleKey::new(&KEY), exports).unwrap());
        let config = ServiceConfig {
            address: "127.0.0.1:0".into(),
            port_mapping: PortMapping::None,
            ..config
        };
        let service = NfsService::start(&env, config, exports, vec![]).await.unwrap();
        Self { env, service }
    }

    pub async fn client(&self, credential: Credential) -> NfsClient {
        let address = self.service.address();
        NfsClient::connect(&self.env, address, credential, TIMEOUT)
            .await
            .unwrap()
    }

    /// A client whose connection comes from `source`.
    pub async fn client_from(&self, source: IpAddr, credential: Credential) -> NfsClient {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(source, 0)).unwrap();
        let stream = socket
            .connect(self.service.address().parse().unwrap())
            .await
            .unwrap();
        NfsClient::over(&self.env, Box::new(stream), credential, TIMEOUT)
    }
}

/// One open export at `/`, a client with root's credential, and the root directory's handle.
pub struct Simple {
    pub served: Served,
    pub vfs: Arc<MemoryVfs>,
    pub client: NfsClient,
    pub root: WireHandle,
}

pub async fn simple() -> Simple {
    let vfs = memory(1);
    simple_on(vfs).await
}

pub async fn simple_on(vfs: Arc<MemoryVfs>) -> Simple {
    let served =
        Served::start([Export::new("/", vfs.clone() as Arc<dyn Vfs>, vec![open_rule()]).unwrap()]).await;
    let client = served.client(root()).await;
    let root = client.mount("/").await.unwrap().unwrap().handle;
    Simple {
        served,
        vfs,
        client,
        root,
    }
}

impl Simple {
    /// Makes a file and returns its handle.
    pub async fn file(&self, name: &str) -> WireHandle {
        let made = self
            .client
            .create(&self.root, name, guarded(0o644))
            .await
            .unwrap()
            .unwrap();
        made.file.unwrap()
    }

    pub async fn directory(&self, name: &str) -> WireHandle {
        let made = self
            .client
            .make_directory(&self.root, name, mode(0o755))
            .await
            .unwrap()
            .unwrap();
        made.file.unwrap()
    }
}

pub fn mode(mode: u32) -> NewAttributes {
    NewAttributes {
        mode: Some(mode),
        ..NewAttributes::default()
    }
}

pub fn guarded(bits: u32) -> CreateHow {
    CreateHow::Guarded(mode(bits))
}

/// The status of a failed procedure.
#[track_caller]
pub fn status<S: std::fmt::Debug, F>(answer: Result<S, Failed<F>>) -> Status {
    match answer {
        Ok(success) => panic!("should have failed, gave {success:?}"),
        Err(failed) => failed.status,
    }
}

#[track_caller]
pub fn handle(made: Made) -> WireHandle {
    made.file.expect("a handle comes with the new file")
}

/// The directory did not change, and the client can see so.
#[track_caller]
pub fn shows_no_change(wcc: &WccData) {
    let (before, after) = (
        wcc.before.as_ref().expect("before"),
        wcc.after.as_ref().expect("after"),
    );
    assert_eq!(
        (before.size_bytes, before.modified, before.changed),
        (after.size_bytes, after.modified, after.changed)
    );
}

/// One change, told from the instant before to the instant after.
#[track_caller]
pub fn shows_change(wcc: &WccData) {
    let (before, after) = (
        wcc.before.as_ref().expect("before"),
        wcc.after.as_ref().expect("after"),
    );
    assert!(before.changed < after.changed, "{wcc:?}");
}

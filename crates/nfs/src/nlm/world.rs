//! A simulated site for the tests of locks: one server, and clients with a lock manager and a status monitor of their own,
//! found through their port mappers as the real ones are.

use super::{
    CancelCall, LockCall, LockService, LockStatus, NetObject, PROGRAM, StatusReply, TestCall, TestReply,
    UnlockCall, VERSION, WireLock,
};
use crate::{
    exports::{ClientRule, Export, Exports, Squash},
    handle::HandleKey,
    nsm::{self, MonitorConfig, StatusChange},
    portmap::{Mapping, PortMapper},
    rpc::{
        CallError, Client, Credential, Program, Programs, Refusal, Reply, Request, Server, ServerLimits,
        Target, Transport,
    },
    xdr::{Decode, Decoder, Encode},
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{
    Env,
    sim::{Machine, Simulation},
};
use firn_session::{LockLimits, LockTable};
use firn_vfs::{
    Caller, CreateMode, Credentials, FileHandle, MemoryOptions, MemoryVfs, Name, SetAttributes, Vfs,
};
use std::{
    future::Future,
    ops::RangeInclusive,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::mpsc;

const SERVER_PORT: u16 = 2049;
const CLIENT_PORT: u16 = 4045;

/// Runs a test in a simulated site.
pub(crate) fn simulate<T, F>(seed: u64, test: impl FnOnce(World) -> F) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let simulation = Arc::new(Simulation::new(seed));
    let world = World::new(&simulation);
    simulation
        .run(test(world))
        .expect("the simulation ends by itself")
}

/// The site.
#[derive(Clone)]
pub(crate) struct World {
    simulation: std::sync::Weak<Simulation>,
    pub(crate) server: Machine,
    vfs: Arc<MemoryVfs>,
    rule: ClientRule,
    read_only_for: Option<String>,
    pub(crate) config: MonitorConfig,
}

/// A running server; ends with the machine.
pub(crate) struct Running {
    pub(crate) locks: LockService,
    pub(crate) table: LockTable,
    _server: Arc<Server>,
}

impl World {
    fn new(simulation: &Arc<Simulation>) -> Self {
        let options = MemoryOptions {
            root_mode: 0o777,
            ..MemoryOptions::default()
        };
        Self {
            server: simulation.machine("server"),
            vfs: Arc::new(MemoryVfs::new(&simulation.env(), options)),
            rule: ClientRule {
                squash: Squash::None,
                require_privileged_port: false,
                ..ClientRule::read_write("10.0.0.0/8".parse().expect("a network"))
            },
            read_only_for: None,
            config: MonitorConfig::default(),
            simulation: Arc::downgrade(simulation),
        }
    }

    pub(crate) fn simulation(&self) -> Arc<Simulation> {
        self.simulation.upgrade().expect("the simulation runs the test")
    }

    /// From now on `address` may only read.
    pub(crate) fn read_only_for(&mut self, address: String) {
        self.read_only_for = Some(address);
    }

    pub(crate) fn exports(&self) -> Exports {
        let mut rules = vec![self.rule.clone()];
        rules.extend(self.read_only_for.iter().map(|address| ClientRule {
            network: address.parse().expect("an address"),
            read_only: true,
            ..self.rule.clone()
        }));
        let export = Export::new("/data", self.vfs.clone(), rules).expect("a good export");
        Exports::new(HandleKey::new(&[7; 32]), [export]).expect("one export")
    }

    /// The handle clients have of a file.
    pub(crate) fn handle(&self, file: FileHandle) -> NetObject {
        let exports = self.exports();
        let export = exports.iter().next().expect("one export").clone();
        exports.sign(&export, file).0.into()
    }

    /// Makes a file owned by user 1000 with `mode`.
    pub(crate) async fn file(&self, name: &str, mode: u32) -> FileHandle {
        let attributes = SetAttributes {
            mode: Some(mode),
            uid: Some(1000),
            ..SetAttributes::default()
        };
        let name = Name::new(name.to_owned()).expect("a name");
        let mode = CreateMode::Unchecked(attributes);
        let created = self.vfs.create(&root(), self.vfs.root(), &name, mode).await;
        created.expect("root creates").handle
    }

    pub(crate) async fn remove(&self, name: &str) {
        let name = Name::new(name.to_owned()).expect("a name");
        let removed = self.vfs.remove(&root(), self.vfs.root(), &name).await;
        removed.expect("root removes");
    }

    pub(crate) fn root(&self) -> FileHandle {
        self.vfs.root()
    }

    /// Starts the server on its machine.
    pub(crate) async fn start(&self) -> Running {
        let env = self.server.env();
        let table = LockTable::new(LockLimits::default());
        let exports = Arc::new(self.exports());
        let locks = LockService::start(&env, exports, table.clone(), self.config.clone())
            .await
            .expect("the disk is healthy");
        let server = Server::new(&env, ServerLimits::default());
        let address = format!("0.0.0.0:{SERVER_PORT}");
        let programs = Arc::new(Programs::new(locks.programs()));
        server.listen(&address, programs).await.expect("a free port");
        locks.announce();
        Running {
            locks,
            table,
            _server: server,
        }
    }

    /// `kill -9` and a new start.
    pub(crate) async fn restart(&self) -> Running {
        self.server.kill();
        self.server.restart();
        self.start().await
    }

    /// A datagram of root in the name of `client`, whoever sent it.
    pub(crate) async fn datagram_of(
        &self,
        client: &TestClient,
        running: &Running,
        program: u32,
        procedure: u32,
        arguments: &impl Encode,
    ) -> Result<Reply, Refusal> {
        let mut body = crate::xdr::Encoder::new();
        arguments.encode(&mut body);
        let request = Request {
            peer: crate::rpc::Peer {
                address: client.address().parse().expect("an address"),
                port: 700,
                transport: Transport::Udp,
            },
            transaction: 1,
            version: if program == PROGRAM { VERSION } else { nsm::VERSION },
            procedure,
            credential: Credential::None,
            arguments: Decoder::new(body.into_bytes()),
            message: Bytes::new(),
        };
        let programs = running.locks.programs();
        let program = programs.iter().find(|served| served.number() == program);
        program.expect("it is served").call(request).await
    }

    pub(crate) async fn sleep(&self, seconds: u64) {
        self.simulation().env().sleep(Duration::from_secs(seconds)).await;
    }

    pub(crate) async fn client(&self, name: &str) -> TestClient {
        let machine = self.simulation().machine(name);
        TestClient::start(machine, name).await
    }
}

fn root() -> Caller {
    Caller::new(Credentials::root())
}

/// What a client's lock manager does when told of a granted lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OnGranted {
    Reply(LockStatus),
    ReplyAfter(Duration, LockStatus),
    Silence,
}

/// A client machine with a lock manager and a status monitor.
pub(crate) struct TestClient {
    pub(crate) machine: Machine,
    name: String,
    pub(crate) on_granted: Arc<Mutex<OnGranted>>,
    pub(crate) granted: mpsc::UnboundedReceiver<TestCall>,
    pub(crate) results: mpsc::UnboundedReceiver<(u32, Decoder)>,
    pub(crate) notices: mpsc::UnboundedReceiver<StatusChange>,
    /// What its status monitor says is its state number, if it says so at all.
    pub(crate) state: Arc<Mutex<Option<i32>>>,
    /// The user its calls are made for.
    pub(crate) credential: Credential,
}

impl TestClient {
    async fn start(machine: Machine, name: &str) -> Self {
        machine.use_privileged_ports(true);
        let env = machine.env();
        let state = Arc::new(Mutex::new(None));
        let on_granted = Arc::new(Mutex::new(OnGranted::Reply(LockStatus::Granted)));
        let (granted_sender, granted) = mpsc::unbounded_channel();
        let (results_sender, results) = mpsc::unbounded_channel();
        let (notices_sender, notices) = mpsc::unbounded_channel();
        let lock_manager = ClientLockManager {
            env: env.clone(),
            on_granted: on_granted.clone(),
            granted: granted_sender,
            results: results_sender,
        };
        let monitor = ClientMonitor {
            notices: notices_sender,
            state: state.clone(),
        };
        let mapping = |program, version| Mapping {
            program,
            version,
            transport: Transport::Tcp,
            port: CLIENT_PORT,
        };
        let mappings = vec![mapping(PROGRAM, VERSION), mapping(nsm::PROGRAM, nsm::VERSION)];
        let mapper: Arc<dyn Program> = Arc::new(PortMapper::new(&env, mappings));
        let server = Server::new(&env, ServerLimits::default());
        let programs: [Arc<dyn Program>; 2] = [Arc::new(lock_manager), Arc::new(monitor)];
        server
            .listen("0.0.0.0:111", Arc::new(Programs::new([mapper])))
            .await
            .expect("a free port");
        server
            .listen(
                &format!("0.0.0.0:{CLIENT_PORT}"),
                Arc::new(Programs::new(programs)),
            )
            .await
            .expect("a free port");
        Self {
            machine,
            name: name.to_owned(),
            on_granted,
            granted,
            results,
            notices,
            state,
            credential: Credential::sys(name, 1000, 1000, vec![]),
        }
    }

    pub(crate) fn address(&self) -> String {
        self.machine.address()
    }

    pub(crate) fn on_granted(&self, what: OnGranted) {
        *self.on_granted.lock().expect("no panic under this lock") = what;
    }

    pub(crate) async fn call(
        &self,
        program: u32,
        procedure: u32,
        arguments: &(impl Encode + Sync),
    ) -> Result<Decoder, CallError> {
        let address = format!("server:{SERVER_PORT}");
        let client = Client::connect(&self.machine.env(), &address, Duration::from_secs(10)).await?;
        let target = Target {
            program,
            version: if program == PROGRAM { VERSION } else { nsm::VERSION },
            credential: self.credential.clone(),
        };
        client.call(&target, procedure, arguments).await
    }

    pub(crate) fn wire_lock(
        &self,
        handle: &NetObject,
        process: i32,
        first: u64,
        length_bytes: u64,
    ) -> WireLock {
        WireLock {
            caller: (&*self.name).into(),
            handle: handle.clone(),
            owner: (&*format!("{process}@{}", self.name)).into(),
            process,
            offset: first,
            length_bytes,
        }
    }

    pub(crate) async fn status(&self, procedure: u32, call: &(impl Encode + Sync)) -> LockStatus {
        let mut results = self.call(PROGRAM, procedure, call).await.expect("answered");
        let reply = StatusReply::decode(&mut results).expect("a status");
        assert_eq!(reply.cookie, cookie());
        reply.status
    }

    pub(crate) fn lock_call(lock: WireLock) -> LockCall {
        LockCall {
            cookie: cookie(),
            block: false,
            exclusive: true,
            lock,
            reclaim: false,
            state: 3,
        }
    }

    pub(crate) async fn lock(&self, lock: &WireLock) -> LockStatus {
        self.status(2, &Self::lock_call(lock.clone())).await
    }

    pub(crate) async fn lock_waiting(&self, lock: &WireLock) -> LockStatus {
        let call = LockCall {
            block: true,
            ..Self::lock_call(lock.clone())
        };
        self.status(2, &call).await
    }

    pub(crate) async fn reclaim(&self, lock: &WireLock) -> LockStatus {
        let call = LockCall {
            reclaim: true,
            ..Self::lock_call(lock.clone())
        };
        self.status(2, &call).await
    }

    pub(crate) async fn cancel(&self, lock: &WireLock) -> LockStatus {
        let call = CancelCall {
            cookie: cookie(),
            block: true,
            exclusive: true,
            lock: lock.clone(),
        };
        self.status(3, &call).await
    }

    pub(crate) async fn unlock(&self, lock: &WireLock) -> LockStatus {
        let call = UnlockCall {
            cookie: cookie(),
            lock: lock.clone(),
        };
        self.status(4, &call).await
    }

    pub(crate) async fn test(&self, lock: &WireLock) -> TestReply {
        let call = TestCall {
            cookie: cookie(),
            exclusive: true,
            lock: lock.clone(),
        };
        let mut results = self.call(PROGRAM, 1, &call).await.expect("answered");
        TestReply::decode(&mut results).expect("a reply to TEST")
    }

    /// Says that this machine restarted, as `name`.
    pub(crate) async fn notify(&self, name: &str, state: i32) {
        let change = StatusChange {
            name: name.into(),
            state,
        };
        self.call(nsm::PROGRAM, nsm::NOTIFY, &change)
            .await
            .expect("answered");
    }
}

pub(crate) fn cookie() -> NetObject {
    Bytes::from_static(b"cookie").into()
}

struct ClientLockManager {
    env: Env,
    on_granted: Arc<Mutex<OnGranted>>,
    granted: mpsc::UnboundedSender<TestCall>,
    results: mpsc::UnboundedSender<(u32, Decoder)>,
}

#[async_trait]
impl Program for ClientLockManager {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn name(&self) -> &'static str {
        "client nlm"
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn procedure_name(&self, _: u32, _: u32) -> Option<&'static str> {
        Some("ANY")
    }

    async fn call(&self, mut request: Request) -> Result<Reply, Refusal> {
        if request.procedure != 5 {
            // A test that does not look at results has dropped the receiver.
            let _ = self.results.send((request.procedure, request.arguments));
            return Ok(Reply::success(&()));
        }
        let call = TestCall::decode(&mut request.arguments)?;
        let cookie = call.cookie.clone();
        let _ = self.granted.send(call);
        let what = *self.on_granted.lock().expect("no panic under this lock");
        let status = match what {
            OnGranted::Reply(status) => status,
            OnGranted::ReplyAfter(delay, status) => {
                self.env.sleep(delay).await;
                status
            }
            OnGranted::Silence => return Err(Refusal::Silence),
        };
        Ok(Reply::success(&StatusReply { cookie, status }))
    }
}

struct ClientMonitor {
    notices: mpsc::UnboundedSender<StatusChange>,
    state: Arc<Mutex<Option<i32>>>,
}

#[async_trait]
impl Program for ClientMonitor {
    fn number(&self) -> u32 {
        nsm::PROGRAM
    }

    fn name(&self) -> &'static str {
        "client nsm"
    }

    fn versions(&self) -> RangeInclusive<u32> {
        nsm::VERSION..=nsm::VERSION
    }

    fn procedure_name(&self, _: u32, _: u32) -> Option<&'static str> {
        Some("ANY")
    }

    async fn call(&self, mut request: Request) -> Result<Reply, Refusal> {
        if request.procedure == 1 {
            let state = *self.state.lock().expect("no panic under this lock");
            let mut body = crate::xdr::Encoder::new();
            body.u32(u32::from(state.is_none()));
            body.u32(state.unwrap_or(0).cast_unsigned());
            return Ok(Reply { body, failed: false });
        }
        assert_eq!(request.procedure, nsm::NOTIFY);
        let change = StatusChange::decode(&mut request.arguments)?;
        let _ = self.notices.send(change);
        Ok(Reply::success(&()))
    }
}

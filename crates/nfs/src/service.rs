//! The whole service on its ports: NFS, MOUNT and further programs on one, the port mapper on another.
//!
//! All programs share one port, by streams and by datagrams, so that a firewall needs one hole (two with the port
//! mapper's). NFS itself, and its ACLs, are served by stream only: over datagrams it corrupts data when fragment numbers wrap.
//!
//! ```text
//! port 2049 tcp: nfs nfsacl mount + further   udp: mount + further   (MOUNT on a port of its own as well, if wanted)
//! port 111  tcp, udp: portmap          or the same told to a running rpcbind, or neither (clients name the ports)
//! ```

use crate::{
    exports::Exports,
    mount::MountProgram,
    portmap::{self, Mapping, PortMapper, RPCBIND_SOCKET, Registration, RegistrationError},
    rpc::{
        PeerRules, ProcedureStatistics, Program, Programs, Server, ServerLimits, SlowCalls, Transport, Turned,
    },
    v3::{NfsProgram, acl::AclProgram},
};
use firn_env::Env;
use std::{io, net::IpAddr, sync::Arc, time::Duration};
use tracing::{info, warn};

/// The most that a WRITE has beside its data: RPC head, credential, verifier, handle.
const CALL_HEAD_BYTES: usize = 4096;

/// How clients find our ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortMapping {
    /// They must be told: `mount -o port=…,mountport=…`, and locks find no server.
    None,
    /// We answer on this address ourselves (usually `[::]:111`).
    Serve(String),
    /// The rpcbind behind this socket answers for us (usually [`RPCBIND_SOCKET`]).
    Register(String),
    /// We answer on this address; if it is taken, the rpcbind on this machine answers for us.
    Auto(String),
}

/// Where and within which limits to serve.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// Where everything but the port mapper listens, such as `[::]:2049`.
    pub address: String,
    /// Where MOUNT listens as well, for sites whose firewalls and mount options name a port of its own (20048).
    pub mount_address: Option<String>,
    /// How clients find it.
    pub port_mapping: PortMapping,
    /// What clients may use.
    pub limits: ServerLimits,
    /// The largest READ and WRITE.
    pub io_max_bytes: u32,
    /// Calls that take as long or longer are logged with what they waited for; `None` logs none.
    pub slow_call: Option<Duration>,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            address: "[::]:2049".into(),
            mount_address: None,
            port_mapping: PortMapping::Auto("[::]:111".into()),
            limits: ServerLimits::default(),
            io_max_bytes: 1 << 20,
            slow_call: Some(Duration::from_secs(1)),
        }
    }
}

/// Why the service does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A port cannot be had.
    #[error("cannot listen on {address}: {error}{}", hint(.error))]
    Listen {
        /// The address.
        address: String,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// The port mapper of this machine does not take our programs.
    #[error(transparent)]
    Registration(#[from] RegistrationError),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (is another NFS server running here? stop it, or choose another port)",
        io::ErrorKind::PermissionDenied => " (ports below 1024 need root or CAP_NET_BIND_SERVICE)",
        _ => "",
    }
}

/// Whoever may use an export may connect, and nobody else.
struct ExportRules {
    exports: Arc<Exports>,
    connections_per_client: usize,
}

impl PeerRules for ExportRules {
    fn connections_for(&self, address: IpAddr) -> Option<usize> {
        self.exports.connections_for(address, self.connections_per_client)
    }
}

/// A running service.
pub struct NfsService {
    server: Arc<Server>,
    address: String,
    programs: Vec<Arc<Programs>>,
    nfs: Arc<NfsProgram>,
    mount: Arc<MountProgram>,
    registration: Option<Registration>,
    slow_calls: Option<Arc<SlowCalls>>,
}

impl NfsService {
    /// Serves `exports`, and `further` programs (locks and their notices) by stream and datagram.
    ///
    /// # Errors
    /// If a port cannot be had or the port mapper does not cooperate.
    pub async fn start(
        env: &Env,
        config: ServiceConfig,
        exports: Arc<Exports>,
        further: Vec<Arc<dyn Program>>,
    ) -> Result<Self, ServiceError> {
        let limits = ServerLimits {
            record_bytes: config
                .limits
                .record_bytes
                .max(config.io_max_bytes as usize + CALL_HEAD_BYTES),
            ..config.limits
        };
        let rules = ExportRules {
            exports: exports.clone(),
            connections_per_client: limits.connections_per_client,
        };
        let slow_calls = config.slow_call.map(|limit| Arc::new(SlowCalls::new(limit)));
        let logged = |programs: Programs| match &slow_calls {
            Some(slow_calls) => Arc::new(programs.with_slow_calls(slow_calls.clone())),
            None => Arc::new(programs),
        };
        let server = Server::for_peers(env, limits, Arc::new(rules));
        let nfs = Arc::new(NfsProgram::new(env, exports.clone(), config.io_max_bytes));
        let mount = Arc::new(MountProgram::new(env, exports));
        let mut service = Self {
            server,
            nfs: nfs.clone(),
            mount: mount.clone(),
            registration: None,
            slow_calls: slow_calls.clone(),
            programs: Vec::new(),
            address: config.address,
        };
        let mut mappings = Vec::new();
        if let Some(address) = config.mount_address {
            // First, since port mappers name the first port of a program.
            let programs = logged(Programs::new([mount.clone() as Arc<dyn Program>]));
            service
                .listen(&address, programs.clone(), programs, &mut mappings)
                .await?;
        }
        let by_datagram: Vec<Arc<dyn Program>> =
            [mount as Arc<dyn Program>].into_iter().chain(further).collect();
        let acl = Arc::new(AclProgram::new(nfs.clone()));
        let streams = logged(Programs::new(
            [nfs as Arc<dyn Program>, acl]
                .into_iter()
                .chain(by_datagram.iter().cloned()),
        ));
        let datagrams = logged(Programs::new(by_datagram));
        let address = std::mem::take(&mut service.address);
        service.address = service
            .listen(&address, streams, datagrams, &mut mappings)
            .await?;
        service.map_ports(env, config.port_mapping, mappings).await?;
        info!(address = service.address, "serving NFS");
        Ok(service)
    }

    /// Serves by stream and by datagram on one port, adds to `mappings` what is not there yet, and returns the address.
    async fn listen(
        &mut self,
        address: &str,
        streams: Arc<Programs>,
        datagrams: Arc<Programs>,
        mappings: &mut Vec<Mapping>,
    ) -> Result<String, ServiceError> {
        let refused = |error| ServiceError::Listen {
            address: address.to_owned(),
            error,
        };
        let bound = self
            .server
            .listen(address, streams.clone())
            .await
            .map_err(refused)?;
        // The same port, also where the configuration left its choice to the system.
        self.server
            .listen_datagram(&bound, datagrams.clone())
            .await
            .map_err(refused)?;
        for (programs, transport) in [(&streams, Transport::Tcp), (&datagrams, Transport::Udp)] {
            for mapping in mappings_of(programs, transport, port(&bound)) {
                let same = |known: &Mapping| (known.program, known.transport) == (mapping.program, transport);
                let known = mappings
                    .iter()
                    .any(|known| same(known) && known.port != mapping.port);
                if !known {
                    mappings.push(mapping);
                }
            }
        }
        for programs in [streams, datagrams] {
            if !self
                .programs
                .iter()
                .any(|counted| Arc::ptr_eq(counted, &programs))
            {
                self.programs.push(programs);
            }
        }
        Ok(bound)
    }

    async fn map_ports(
        &mut self,
        env: &Env,
        how: PortMapping,
        mappings: Vec<Mapping>,
    ) -> Result<(), ServiceError> {
        match how {
            PortMapping::None => Ok(()),
            PortMapping::Serve(address) => self.serve_port_mapper(env, &address, mappings).await,
            PortMapping::Register(socket) => {
                self.registration = Some(Registration::register(env, &socket, mappings).await?);
                Ok(())
            }
            PortMapping::Auto(address) => {
                match self.serve_port_mapper(env, &address, mappings.clone()).await {
                    Err(ServiceError::Listen { error, .. }) if error.kind() == io::ErrorKind::AddrInUse => {
                        warn!(
                            address,
                            "another port mapper is running; our programs are registered with it"
                        );
                        self.registration =
                            Some(Registration::register(env, RPCBIND_SOCKET, mappings).await?);
                        Ok(())
                    }
                    served => served,
                }
            }
        }
    }

    async fn serve_port_mapper(
        &mut self,
        env: &Env,
        address: &str,
        mut mappings: Vec<Mapping>,
    ) -> Result<(), ServiceError> {
        let mapper = Arc::new(PortMapper::new(env, Vec::new()));
        let programs = Arc::new(Programs::new([mapper.clone() as Arc<dyn Program>]));
        self.listen(address, programs.clone(), programs, &mut mappings)
            .await?;
        mapper.set(mappings);
        Ok(())
    }

    /// Recognises retransmissions of requests that a volume had completed before it came: to be called before its exports serve it.
    pub fn recover(&self, volume: &dyn firn_vfs::Vfs) {
        self.nfs.recover(volume);
    }

    /// The address of everything but the port mapper.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.server.connections()
    }

    /// Peers that were not served.
    pub fn turned(&self) -> Turned {
        self.server.turned()
    }

    /// Who mounted what, as far as it is known.
    pub fn mounted(&self) -> Vec<(IpAddr, String)> {
        self.mount.mounted()
    }

    /// Calls that took longer than is usual ([`ServiceConfig::slow_call`]).
    pub fn slow_calls(&self) -> u64 {
        self.slow_calls
            .as_ref()
            .map_or(0, |slow_calls| slow_calls.total())
    }

    /// Calls of NFS that were recognised as sent before and not executed again.
    pub fn retransmissions(&self) -> u64 {
        self.nfs.retransmissions()
    }

    /// What was counted per procedure; programs served by stream and by datagram appear twice.
    pub fn statistics(&self) -> Vec<ProcedureStatistics> {
        self.programs
            .iter()
            .flat_map(|programs| programs.statistics())
            .collect()
    }

    /// Takes no more calls, answers those in flight, and withdraws from the port mapper. Returns whether all were answered
    /// in time.
    pub async fn shutdown(self) -> bool {
        if let Some(registration) = self.registration {
            registration.withdraw().await;
        }
        self.server.shutdown().await
    }
}

fn mappings_of(programs: &Programs, transport: Transport, port: u16) -> Vec<Mapping> {
    let of_program = |(program, versions): (u32, std::ops::RangeInclusive<u32>)| {
        versions.map(move |version| Mapping {
            program,
            version,
            transport,
            port,
        })
    };
    programs.list().flat_map(of_program).collect()
}

/// The port of an address as listeners give it; simulated networks may have none.
fn port(address: &str) -> u16 {
    address
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse().ok())
        .unwrap_or(portmap::PORT)
}

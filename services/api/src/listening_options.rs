//! The options that say how the service is reached, and how often what may be asked of it.

use firn_api::{CONNECTIONS, CONNECTIONS_PER_ADDRESS, Limits, Listening, RequestRate};
use firn_telemetry::{Traces, TracesError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Descriptors for everything but connections: the table, the spool, mail, the cloud, metrics.
const OTHER_DESCRIPTORS: u64 = 256;

#[derive(clap::Args)]
pub struct ListeningOptions {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:7400")]
    listen: SocketAddr,
    /// A DNS name or address for the service's own certificate; may be given several times.
    #[arg(long = "name", default_value = "localhost")]
    names: Vec<String>,
    /// Serves plain HTTP: only behind a gateway on the same machine. Edges then need tokens.
    #[arg(long)]
    plain: bool,
    /// Where to listen for edges, nodes and the service's components only, who show certificates: a crowd of strangers takes
    /// nothing from them.
    #[arg(long, value_name = "ADDRESS")]
    listen_internal: Option<SocketAddr>,
    /// Where to serve /metrics and /healthz, over plain HTTP.
    #[arg(long, value_name = "ADDRESS")]
    listen_metrics: Option<SocketAddr>,
    /// Export spans of requests to this collector of OpenTelemetry's: OTLP over HTTP.
    #[arg(long, value_name = "URL")]
    traces: Option<String>,
    /// So many of a hundred requests.
    #[arg(long, value_name = "N", default_value_t = 1.0, requires = "traces")]
    traces_percent: f64,
    /// Connections at most, of each listener; lowered to what the limit of open files allows.
    #[arg(long, value_name = "N", default_value_t = CONNECTIONS, value_parser = counted)]
    connections: usize,
    /// Connections of one address at most.
    #[arg(long, value_name = "N", default_value_t = CONNECTIONS_PER_ADDRESS, value_parser = counted)]
    connections_per_address: usize,
    /// The address of a gateway: it may have as many connections as there are, and names the callers' addresses. May be given
    /// several times; with --plain this machine's own addresses are gateways.
    #[arg(long = "gateway", value_name = "ADDRESS")]
    gateways: Vec<IpAddr>,
    /// What this instance is called among those that serve the same table.
    #[arg(long, default_value = "1")]
    instance: String,
}

#[derive(clap::Args)]
pub struct LimitOptions {
    /// Requests a second of one tenant, in the long run.
    #[arg(long, default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    tenant_rate: u32,
    /// Requests of one tenant at once, after a rest.
    #[arg(long, default_value = "500", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    tenant_burst: u32,
    /// Requests a second of one address without token and certificate, in the long run.
    #[arg(long, default_value = "50", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    stranger_rate: u32,
    /// The same at once, after a rest.
    #[arg(long, default_value = "200", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    stranger_burst: u32,
    /// Sign-ups from one address within an hour.
    #[arg(long, default_value = "30", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    sign_ups_per_address: u32,
    /// Sign-ups from everywhere within an hour.
    #[arg(long, default_value = "1800", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    sign_ups: u32,
}

fn counted(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=1_000_000).contains(count))
        .ok_or_else(|| "a number from 1 to 1000000".into())
}

impl ListeningOptions {
    /// The export of spans, if it is wanted.
    pub fn traces(&self) -> Result<Option<Traces>, TracesError> {
        let (name, version) = ("firn-api", env!("CARGO_PKG_VERSION"));
        let start = |endpoint: &String| Traces::start(name, version, endpoint, self.traces_percent);
        self.traces.as_ref().map(start).transpose()
    }

    pub fn listening(self) -> Listening {
        let mut gateways = self.gateways;
        if self.plain {
            gateways.extend([
                IpAddr::from(Ipv4Addr::LOCALHOST),
                IpAddr::from(Ipv6Addr::LOCALHOST),
            ]);
        }
        let listeners = 1 + usize::from(self.listen_internal.is_some());
        Listening {
            internal: self.listen_internal,
            metrics: self.listen_metrics,
            connections: with_descriptors(self.connections, listeners),
            connections_per_address: self.connections_per_address,
            gateways,
            ..Listening::new(self.listen, (!self.plain).then_some(self.names), self.instance)
        }
    }
}

impl LimitOptions {
    pub fn limits(&self) -> Limits {
        Limits {
            tenant: Some(RequestRate {
                per_second: self.tenant_rate,
                burst: self.tenant_burst,
            }),
            stranger: RequestRate {
                per_second: self.stranger_rate,
                burst: self.stranger_burst,
            },
            sign_ups_per_address: self.sign_ups_per_address,
            sign_ups: self.sign_ups,
        }
    }
}

/// Raises the limit of open files as far as this process may, and gives how many connections each listener can then have.
fn with_descriptors(wanted: usize, listeners: usize) -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current;
    limit.current = limit.maximum;
    if setrlimit(Resource::Nofile, limit).is_err() {
        limit.current = before;
    }
    let Some(descriptors) = limit.current else {
        return wanted;
    };
    let each =
        usize::try_from(descriptors.saturating_sub(OTHER_DESCRIPTORS)).unwrap_or(usize::MAX) / listeners;
    if each < wanted {
        tracing::warn!(
            descriptors,
            connections = each.max(1),
            "the limit of open files (ulimit -n, LimitNOFILE=) allows fewer connections than --connections says"
        );
    }
    wanted.min(each).max(1)
}

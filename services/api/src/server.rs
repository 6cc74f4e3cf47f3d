//! The service at work: its listeners ([`listener`](crate::listener)) and what goes on beside them.
//!
//! Four tasks run beside the connections: revocations of other instances are read every two seconds, and open sagas are driven
//! when woken and every ten seconds, so that those of a crashed instance go on; what has expired is swept away every hour; and
//! bills are kept (`upkeep.rs`). What this instance counts goes through a spool on its own disk.

use crate::{
    app::App,
    connections::ConnectionLimits,
    listener::{Door, Open},
    metering, metrics,
    record::Recorder,
    router::router,
    saga,
    sweep::sweep,
    upkeep,
};
use axum::Router;
use firn_billing::{BillingSink, Reporter};
use firn_env::Task;
use firn_identity::{
    CertificateDer, ClientCertificates, PeerIdentity, PeerKind, SigningKey, TlsIdentity, certificate_request,
    server_config,
};
use firn_usage::{Delivery, DeliveryPolicy, SourceId, Spool, SpoolConfig};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Connections of tenants, unless said otherwise: some 160 MiB when all are in use.
pub const CONNECTIONS: usize = 4096;
/// Of one address: an office behind one, with every browser's six.
pub const CONNECTIONS_PER_ADDRESS: usize = 256;
/// Several monitoring systems at once.
const METRICS_CONNECTIONS: usize = 64;
const METRICS_CONNECTIONS_PER_ADDRESS: usize = 16;
const SWEEP_PERIOD: Duration = Duration::from_secs(3600);
const SAGA_PERIOD: Duration = Duration::from_secs(10);

/// Why the service stopped or did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        error: io::Error,
    },
    /// The spool of what this instance counts cannot be opened.
    #[error("the spool of usage records: {0}")]
    Usage(String),
    /// The certificate could not be made.
    #[error("the service's own certificate: {0}")]
    Certificate(String),
}

/// How the service is reached.
#[derive(Clone, Debug)]
pub struct Listening {
    /// Address and port for everybody; port 0 asks for any.
    pub address: SocketAddr,
    /// DNS names and addresses for the certificate; `None`: plain HTTP, for behind a gateway.
    pub tls_names: Option<Vec<String>>,
    /// What this instance is called among those that serve the same table: letters, digits, hyphens.
    pub instance: String,
    /// Address and port for edges, nodes and the service's components only: nobody else's connections take their place.
    pub internal: Option<SocketAddr>,
    /// Address and port for `/metrics` and `/healthz` over plain HTTP.
    pub metrics: Option<SocketAddr>,
    /// Connections of tenants at most, and as many of the internal listener.
    pub connections: usize,
    /// Of one address at most.
    pub connections_per_address: usize,
    /// Addresses of gateways: they have no share of their own, and what they say of a caller's address is believed.
    pub gateways: Vec<IpAddr>,
}

impl Listening {
    /// With the usual limits, and for everybody only.
    pub fn new(address: SocketAddr, tls_names: Option<Vec<String>>, instance: impl Into<String>) -> Self {
        Self {
            address,
            tls_names,
            instance: instance.into(),
            internal: None,
            metrics: None,
            connections: CONNECTIONS,
            connections_per_address: CONNECTIONS_PER_ADDRESS,
            gateways: Vec::new(),
        }
    }

    fn limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            total: self.connections.max(1),
            per_address: self.connections_per_address.max(1),
            gateways: self.gateways.clone(),
        }
    }
}

/// Where the service listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// For everybody.
    pub tenants: SocketAddr,
    /// For edges, nodes and components.
    pub internal: Option<SocketAddr>,
    /// For monitoring.
    pub metrics: Option<SocketAddr>,
}

/// Serves until `stop` completes; tells the address it listens on through `ready`.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(
    app: &App,
    listening: &Listening,
    ready: impl FnOnce(Bound),
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    serve_recorded(app, listening, None, ready, stop).await
}

/// The same, with a record of all requests.
///
/// # Errors
/// [`ServeError`].
pub async fn serve_recorded(
    app: &App,
    listening: &Listening,
    recorder: Option<Recorder>,
    ready: impl FnOnce(Bound),
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let tenants = listen(listening.address).await?;
    let internal = listen_if_asked(listening.internal).await?;
    let metrics = listen_if_asked(listening.metrics).await?;
    let bound = Bound {
        tenants: tenants.1,
        internal: internal.as_ref().map(|(_, address)| *address),
        metrics: metrics.as_ref().map(|(_, address)| *address),
    };
    let (spool, delivery) = open_spool(app, &listening.instance).await?;
    let deliverer = app.env().spawn("usage delivery", delivery.run());
    let upkeep = app.env().spawn("upkeep", upkeep::run(app.clone(), spool.clone()));
    let follower = app.clone();
    let refresher = app.env().spawn("revocations", async move {
        follower.follow_revocations().await;
    });
    let driver = app.env().spawn("sagas", drive(app.clone()));
    let sweeper = app.env().spawn("sweep", keep_swept(app.clone()));
    let router: Router = match recorder {
        None => router(app),
        Some(recorder) => router(app).layer(axum::middleware::from_fn(move |request, next| {
            recorder.clone().pass(request, next)
        })),
    };
    let mut doors = Vec::new();
    let tls = match (&listening.tls_names, &internal) {
        (None, None) => None,
        (names, _) => Some(Tls::start(app, names.as_deref().unwrap_or_default())?),
    };
    let acceptor = |clients| tls.as_ref().map(|tls| tls.acceptor(app, clients)).transpose();
    doors.push(Door {
        name: "tenants",
        listener: tenants.0,
        tls: match &listening.tls_names {
            Some(_) => acceptor(ClientCertificates::Optional)?,
            None => None,
        },
        limits: listening.limits(),
        hears_gateways: true,
        router: router.clone(),
    });
    if let Some((listener, _)) = internal {
        doors.push(Door {
            name: "internal",
            listener,
            tls: acceptor(ClientCertificates::Required)?,
            limits: listening.limits(),
            // A gateway passes bytes through here, so nothing that stands in a header is its word.
            hears_gateways: false,
            router,
        });
    }
    let mut open: Vec<Open> = doors.into_iter().map(|door| door.open(app.env())).collect();
    if let Some((listener, _)) = metrics {
        let seen = open
            .iter()
            .map(|open| (open.name, open.connections.clone()))
            .collect();
        let door = Door {
            name: "metrics",
            listener,
            tls: None,
            limits: ConnectionLimits {
                total: METRICS_CONNECTIONS,
                per_address: METRICS_CONNECTIONS_PER_ADDRESS,
                gateways: Vec::new(),
            },
            hears_gateways: false,
            router: metrics::router(app, seen),
        };
        open.push(door.open(app.env()));
    }
    ready(bound);
    stop.await;
    futures::future::join_all(open.into_iter().map(Open::close)).await;
    if let Some(tls) = tls {
        tls.renewal.abort();
    }
    upkeep.abort();
    // What was counted in the last minute is durable before the process ends; its delivery is the next start's.
    if let Err(error) = metering::record_operations(app, &spool).await {
        tracing::warn!(%error, "the last minute's requests are not charged");
    }
    deliverer.abort();
    refresher.abort();
    driver.abort();
    sweeper.abort();
    Ok(())
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServeError> {
    let listener = firn_env::listen_tcp(&address.to_string()).await;
    listener
        .and_then(|listener| Ok((listener.local_addr()?, listener)))
        .map(|(address, listener)| (listener, address))
        .map_err(|error| ServeError::Listen {
            address: address.to_string(),
            error,
        })
}

async fn listen_if_asked(
    address: Option<SocketAddr>,
) -> Result<Option<(TcpListener, SocketAddr)>, ServeError> {
    match address {
        Some(address) => listen(address).await.map(Some),
        None => Ok(None),
    }
}

/// The spool of this instance, and what carries it into the ledger.
async fn open_spool(app: &App, instance: &str) -> Result<(Spool, Delivery), ServeError> {
    let failed = |error: &dyn std::fmt::Display| ServeError::Usage(error.to_string());
    let source = SourceId::new(&format!("api/{instance}")).map_err(|error| failed(&error))?;
    let spool = Spool::open(app.env(), "usage", source.clone(), SpoolConfig::default())
        .await
        .map_err(|error| failed(&error))?;
    let sink = Arc::new(BillingSink::new(app.billing().clone(), Reporter::service(source)));
    let delivery = Delivery::new(&spool, sink, DeliveryPolicy::default());
    Ok((spool, delivery))
}

async fn keep_swept(app: App) {
    loop {
        app.env().sleep(SWEEP_PERIOD).await;
        match sweep(&app).await {
            Ok(removed) => tracing::info!(removed, "expired items were swept away"),
            Err(problem) => tracing::warn!(%problem, "the sweep stopped; the next one goes on"),
        }
    }
}

async fn drive(app: App) {
    loop {
        if let Err(problem) = saga::drive_all(&app).await {
            tracing::warn!(%problem, "open sagas could not be read");
        }
        // Woken or not: either way it is time to look again.
        let _ = app.env().timeout(SAGA_PERIOD, app.sagas_woken()).await;
    }
}

/// The service's own certificate, renewed for as long as it serves.
struct Tls {
    identity: TlsIdentity,
    renewal: Task<()>,
}

impl Tls {
    fn start(app: &App, names: &[String]) -> Result<Self, ServeError> {
        let (key, issued) = own_certificate(app, names).map_err(ServeError::Certificate)?;
        let identity =
            TlsIdentity::new(&key, &issued).map_err(|error| ServeError::Certificate(error.to_string()))?;
        let renewal = renew(app.clone(), identity.clone(), names.to_vec());
        Ok(Self {
            identity,
            renewal: app.env().spawn("renewal", renewal),
        })
    }

    fn acceptor(&self, app: &App, clients: ClientCertificates) -> Result<TlsAcceptor, ServeError> {
        let authorities: [CertificateDer<'static>; 1] = [app.authority().certificate().clone()];
        let config = server_config(app.env(), &self.identity, &authorities, clients)
            .map_err(|error| ServeError::Certificate(error.to_string()))?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn own_certificate(
    app: &App,
    names: &[String],
) -> Result<(SigningKey, firn_identity::IssuedCertificate), String> {
    let key = SigningKey::from_seed(app.env().random_bytes());
    let name = PeerIdentity {
        trust_domain: app.trust_domain().to_owned(),
        kind: PeerKind::Service("api".into()),
    };
    let request = certificate_request(&key, &name);
    let issued = app
        .authority()
        .issue(&request, &name, names, app.now(), &mut app.entropy())
        .map_err(|error| error.to_string())?;
    Ok((key, issued))
}

/// Renews the service's own certificate when half of its time is over.
async fn renew(app: App, identity: TlsIdentity, names: Vec<String>) {
    loop {
        app.env().sleep(Duration::from_secs(3600)).await;
        if app.now() < identity.renew_after() {
            continue;
        }
        let renewed = own_certificate(&app, &names)
            .and_then(|(key, issued)| identity.renew(&key, &issued).map_err(|error| error.to_string()));
        if let Err(error) = renewed {
            tracing::error!(
                error,
                "the service's certificate could not be renewed; the old one stays in use"
            );
        }
    }
}

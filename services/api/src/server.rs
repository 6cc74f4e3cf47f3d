//! The listening end: TLS 1.3 with optional client certificates, or plain HTTP behind a gateway on the same machine.
//!
//! Four tasks run beside the connections: revocations of other instances are read every two seconds, and open sagas are driven
//! when woken and every ten seconds, so that those of a crashed instance go on; what has expired is swept away every hour; and
//! bills are kept (`upkeep.rs`). What this instance counts goes through a spool on its own disk.

use crate::{app::App, metering, record::Recorder, router::router, saga, sweep::sweep, upkeep};
use axum::serve::{IncomingStream, Listener};
use firn_billing::{Billing, BillingSink, Reporter};
use firn_env::Env;
use firn_identity::{
    CertificateDer, ClientCertificates, PeerIdentity, PeerKind, SigningKey, TlsIdentity, certificate_request,
    server_config,
};
use firn_usage::{Delivery, DeliveryPolicy, SourceId, Spool, SpoolConfig};
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::sync::{Semaphore, mpsc};

/// Handshakes at a time: more would only make each slower.
const HANDSHAKES: usize = 256;
/// A client that does not finish its handshake by then is gone or hostile.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
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
    /// Address and port; port 0 asks for any.
    pub address: SocketAddr,
    /// DNS names and addresses for the certificate; `None`: plain HTTP, for behind a gateway.
    pub tls_names: Option<Vec<String>>,
    /// What this instance is called among those that serve the same table: letters, digits, hyphens.
    pub instance: String,
}

/// Serves until `stop` completes; tells the address it listens on through `ready`.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(
    app: &App,
    listening: &Listening,
    ready: impl FnOnce(SocketAddr),
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
    ready: impl FnOnce(SocketAddr),
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    #[allow(
        clippy::disallowed_methods,
        reason = "axum wants tokio's own listener; nothing deterministic runs here"
    )]
    let listener = tokio::net::TcpListener::bind(listening.address)
        .await
        .and_then(|listener| Ok((listener.local_addr()?, listener)));
    let failed = |error| ServeError::Listen {
        address: listening.address.to_string(),
        error,
    };
    let (address, listener) = listener.map_err(failed)?;
    let (spool, delivery) = open_spool(app, &listening.instance).await?;
    let deliverer = app.env().spawn("usage delivery", delivery.run());
    let upkeep = app.env().spawn("upkeep", upkeep::run(app.clone(), spool.clone()));
    let follower = app.clone();
    let refresher = app.env().spawn("revocations", async move {
        follower.follow_revocations().await;
    });
    let driver = app.env().spawn("sagas", drive(app.clone()));
    let sweeper = app.env().spawn("sweep", keep_swept(app.clone()));
    let router = match recorder {
        None => router(app),
        Some(recorder) => router(app).layer(axum::middleware::from_fn(move |request, next| {
            recorder.clone().pass(request, next)
        })),
    };
    ready(address);
    let served = match &listening.tls_names {
        None => axum::serve(listener, router).with_graceful_shutdown(stop).await,
        Some(names) => {
            let listener = TlsListener::start(app, listener, address, names)?;
            let service = router
                .layer(axum::middleware::from_fn(show_peer))
                .into_make_service_with_connect_info::<Peer>();
            axum::serve(listener, service).with_graceful_shutdown(stop).await
        }
    };
    upkeep.abort();
    // What was counted in the last minute is durable before the process ends; its delivery is the next start's.
    if let Err(error) = metering::record_operations(app, &spool).await {
        tracing::warn!(%error, "the last minute's requests are not charged");
    }
    deliverer.abort();
    refresher.abort();
    driver.abort();
    sweeper.abort();
    served.map_err(failed)
}

/// The spool of this instance, and what carries it into the ledger.
async fn open_spool(app: &App, instance: &str) -> Result<(Spool, Delivery), ServeError> {
    let failed = |error: &dyn std::fmt::Display| ServeError::Usage(error.to_string());
    let source = SourceId::new(&format!("api/{instance}")).map_err(|error| failed(&error))?;
    let spool = Spool::open(app.env(), "usage", source.clone(), SpoolConfig::default())
        .await
        .map_err(|error| failed(&error))?;
    let ledger = Arc::new(Billing::new(app.env(), app.table().clone()));
    let sink = Arc::new(BillingSink::new(ledger, Reporter::service(source)));
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

/// Who is at the other end of a connection, as its certificate says.
#[derive(Clone, Debug)]
struct Peer(Option<PeerIdentity>);

/// Hands the peer's name to the router. It comes from the connection only, never from a header.
async fn show_peer(
    axum::extract::ConnectInfo(peer): axum::extract::ConnectInfo<Peer>,
    mut request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    if let Some(peer) = peer.0 {
        request.extensions_mut().insert(peer);
    }
    next.run(request).await
}

type TlsStream = tokio_rustls::server::TlsStream<tokio::net::TcpStream>;

/// Accepts connections whose handshake is done, so that a slow one holds nobody up.
struct TlsListener {
    address: SocketAddr,
    accepted: mpsc::Receiver<(TlsStream, SocketAddr)>,
}

impl TlsListener {
    fn start(
        app: &App,
        listener: tokio::net::TcpListener,
        address: SocketAddr,
        names: &[String],
    ) -> Result<Self, ServeError> {
        let failed = |error: &dyn std::fmt::Display| ServeError::Certificate(error.to_string());
        let identity = own_identity(app, names).map_err(|error| failed(&error))?;
        let authorities: [CertificateDer<'static>; 1] = [app.authority().certificate().clone()];
        let config = server_config(app.env(), &identity, &authorities, ClientCertificates::Optional)
            .map_err(|error| failed(&error))?;
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let (sender, accepted) = mpsc::channel(HANDSHAKES);
        let env = app.env().clone();
        app.env()
            .spawn("renewal", renew(app.clone(), identity, names.to_vec()));
        app.env().spawn("accept", accept(env, listener, acceptor, sender));
        Ok(Self { address, accepted })
    }
}

fn own_identity(app: &App, names: &[String]) -> Result<TlsIdentity, String> {
    let (key, issued) = own_certificate(app, names)?;
    TlsIdentity::new(&key, &issued).map_err(|error| error.to_string())
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

async fn accept(
    env: Env,
    listener: tokio::net::TcpListener,
    acceptor: tokio_rustls::TlsAcceptor,
    sender: mpsc::Sender<(TlsStream, SocketAddr)>,
) {
    let room = Arc::new(Semaphore::new(HANDSHAKES));
    while !sender.is_closed() {
        let permit = room
            .clone()
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely: waiting is all that helps.
                tracing::warn!(%error, "a connection could not be accepted");
                env.sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (acceptor, sender, clock) = (acceptor.clone(), sender.clone(), env.clone());
        env.spawn("handshake", async move {
            let _permit = permit;
            if let Ok(Ok(stream)) = clock.timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
                // A closed channel means that the service stops.
                let _ = sender.send((stream, peer)).await;
            }
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.accepted.recv().await {
            Some(accepted) => accepted,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}

impl axum::extract::connect_info::Connected<IncomingStream<'_, TlsListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TlsListener>) -> Self {
        let certificates = stream.io().get_ref().1.peer_certificates();
        let name =
            certificates.and_then(|certificates| PeerIdentity::of_certificate(certificates.first()?).ok());
        Self(name)
    }
}

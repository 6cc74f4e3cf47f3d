//! A process of its own as host: mutual TLS, and a file of grants that says whose calls are answered.
//!
//! ```text
//! connection ── TLS 1.3, client certificate of the authority ──▶ PeerIdentity ── grants ──▶ role ──▶ AnchorService
//! ```
//!
//! A connection without a certificate ends in its handshake. Connections are bounded, and one that has not asked for anything gives way to
//! a newcomer ([`ConnectionTable`]): strangers who say nothing keep nobody from committing. Each has ten seconds for its handshake, a
//! minute between requests, and twenty seconds for a request.

pub use crate::metrics::HostFigures;
use crate::{AnchorService, CallerName, GrantsError, Refusal, Visit, grants::GrantsFile};
use axum::{
    Extension, Json, Router,
    body::{Body, to_bytes},
    extract::{Path as PathOf, Request, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::post,
};
use firn_anchor::AnchorAnswer;
use firn_env::{Env, LogLimiter, Place};
use firn_identity::{CertificateDer, PeerIdentity};
use firn_table::Table;
use futures::future::{Either, select};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use std::{
    path::{Path, PathBuf},
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
const IDLE_LIMIT: Duration = Duration::from_secs(60);
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
const PEM_BYTES_MAX: u64 = 1 << 20;

/// What a host needs.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// The service's private key and certificate, PEM; read again when replaced.
    pub identity: PathBuf,
    /// The certificates of the authority that callers' certificates come from, PEM.
    pub authority: PathBuf,
    /// Who may reach which volume as what; read again when replaced.
    pub grants: PathBuf,
}

/// Why a host cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file that cannot be read.
    #[error("{path}: {why}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The grants.
    #[error(transparent)]
    Grants(#[from] GrantsError),
}

struct Host {
    env: Env,
    service: AnchorService,
    grants: GrantsFile,
    figures: Arc<HostFigures>,
}

/// Serves on `listener` for ever; end it by dropping the future.
///
/// # Errors
/// [`HostError`] if a file is not what it should be at the start; later the last good one stays in use.
pub async fn serve(
    env: &Env,
    options: &HostOptions,
    figures: Arc<HostFigures>,
    table: Arc<dyn Table>,
    listener: TcpListener,
) -> Result<(), HostError> {
    let host = Arc::new(Host {
        env: env.clone(),
        service: AnchorService::new(table),
        grants: GrantsFile::open(&options.grants)?,
        figures: figures.clone(),
    });
    let mut tls = Tls::open(options)?;
    let router = Router::new()
        .route("/v1/anchor/{tenant}/{volume}", post(call))
        .with_state(host);
    let (table, full) = (&figures.connections, LogLimiter::default());
    loop {
        let (stream, address) = match listener.accept().await {
            Ok((stream, peer)) => (stream, peer.ip().to_canonical()),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                env.sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // Many edges may be behind one address, so that it may have all places; who has many gives way first.
        let Ok(place) = table.enter(address, figures.limit, env.now()) else {
            figures.turned_away.fetch_add(1, Relaxed);
            if let Some(count) = full.count(env.now()) {
                tracing::warn!(
                    connections = figures.limit,
                    count,
                    "connections were refused: all there may be are being answered"
                );
            }
            continue;
        };
        let (acceptor, router, inner) = (tls.acceptor(options), router.clone(), env.clone());
        drop(env.spawn("connection", async move {
            let conversation = pin!(converse(&inner, stream, acceptor, router, &place));
            match select(conversation, pin!(place.evicted())).await {
                Either::Left(((), _)) => {}
                Either::Right(_) => tracing::debug!(%address, "a connection gave way to another"),
            }
        }));
    }
}

async fn converse(env: &Env, stream: TcpStream, acceptor: TlsAcceptor, router: Router, place: &Place) {
    // Answers are written whole; waiting for more would only delay them.
    let _ = stream.set_nodelay(true);
    // A client that fails its handshake has no request to be answered.
    let Ok(Ok(stream)) = env.timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await else {
        return;
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let peer = certificate.and_then(|certificate| PeerIdentity::of_certificate(certificate).ok());
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Body::new);
        if let Some(peer) = &peer {
            request.extensions_mut().insert(peer.clone());
        }
        let in_flight = place.request(env.now());
        let reply = router.clone().oneshot(request);
        async move {
            let reply = reply.await;
            drop(in_flight);
            reply
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_LIMIT)
        .serve_connection(TokioIo::new(stream), service);
    // What a client does to its own connection is its own matter.
    let _ = connection.await;
}

async fn call(
    State(host): State<Arc<Host>>,
    PathOf((tenant, volume)): PathOf<(String, String)>,
    peer: Option<Extension<PeerIdentity>>,
    request: Request,
) -> Response {
    let began = host.env.now();
    let answered = answer(&host, &tenant, &volume, peer.map(|Extension(peer)| peer), request);
    let answered = host.env.timeout(REQUEST_LIMIT, answered).await;
    let answered = answered.unwrap_or_else(|_| Err(Refusal::new(408, "body_timeout", "it took too long")));
    host.figures.count(&answered, host.env.now().since(began));
    match answered {
        Ok(answer) => Json(answer).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let json = [(CONTENT_TYPE, "application/json")];
        (status, json, self.body()).into_response()
    }
}

async fn answer(
    host: &Host,
    tenant: &str,
    volume: &str,
    peer: Option<PeerIdentity>,
    request: Request,
) -> Result<AnchorAnswer, Refusal> {
    let peer = peer.ok_or_else(|| {
        let why = "the client's certificate does not hold exactly one Firn name";
        Refusal::new(401, "certificate_refused", why)
    })?;
    let visit = Visit::admit(&host.grants.current(), CallerName::Peer(peer), tenant, volume)?;
    let limit = visit.call_bytes();
    let body = to_bytes(request.into_body(), limit)
        .await
        .map_err(|error| Refusal::new(413, "body_too_large", format!("{limit} bytes at most: {error}")))?;
    visit.answer(&host.service, &body).await
}

/// The service's own certificate, and the authority of its callers.
struct Tls {
    acceptor: TlsAcceptor,
    written: SystemTime,
}

fn file(path: &Path) -> Result<(SystemTime, Vec<u8>), HostError> {
    let failed = |why: String| HostError::File {
        path: path.to_owned(),
        why,
    };
    let metadata = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if metadata.len() > PEM_BYTES_MAX {
        return Err(failed(format!("{} bytes are no certificate", metadata.len())));
    }
    let written = metadata.modified().map_err(|error| failed(error.to_string()))?;
    Ok((
        written,
        std::fs::read(path).map_err(|error| failed(error.to_string()))?,
    ))
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, HostError> {
    let failed = |why: String| HostError::File {
        path: path.to_owned(),
        why,
    };
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let read = read.map_err(|error| failed(error.to_string()))?;
    if read.is_empty() {
        return Err(failed("there is no certificate in it".into()));
    }
    Ok(read)
}

impl Tls {
    fn open(options: &HostOptions) -> Result<Self, HostError> {
        let (written, identity) = file(&options.identity)?;
        let failed = |path: &Path, why: String| HostError::File {
            path: path.to_owned(),
            why,
        };
        let chain = certificates(&options.identity, &identity)?;
        let key = PrivateKeyDer::from_pem_slice(&identity)
            .map_err(|error| failed(&options.identity, error.to_string()))?;
        let (_, authority) = file(&options.authority)?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&options.authority, &authority)? {
            roots
                .add(certificate)
                .map_err(|error| failed(&options.authority, error.to_string()))?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| failed(&options.authority, error.to_string()))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .and_then(|config| {
                config
                    .with_client_cert_verifier(verifier)
                    .with_single_cert(chain, key)
            })
            .map_err(|error| failed(&options.identity, error.to_string()))?;
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            written,
        })
    }

    /// With the newest certificate that can be used.
    fn acceptor(&mut self, options: &HostOptions) -> TlsAcceptor {
        let written = std::fs::metadata(&options.identity).and_then(|metadata| metadata.modified());
        if written.is_ok_and(|written| written != self.written) {
            match Self::open(options) {
                Ok(newer) => *self = newer,
                Err(error) => {
                    tracing::error!(%error, "the new certificate cannot be used; the old one stays in use")
                }
            }
        }
        self.acceptor.clone()
    }
}

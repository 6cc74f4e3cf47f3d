//! Transport between clients and nodes: mutual TLS 1.3, where each end checks the name in the other's certificate.
//!
//! A client that looks for node N accepts only a certificate that says N, whoever listens at the address. A node accepts
//! whoever the authority knows and learns the name: a capability may be bound to it, and only a node's name lets one copy.
//!
//! [`Transport::plain`] is for simulations, whose networks nobody can read: TLS would make their traces differ.

use crate::NodeId;
use firn_env::{ByteStream, Env};
use firn_identity::{
    CertificateDer, ClientCertificates, Expected, PeerIdentity, PeerKind, TlsError, TlsIdentity,
    client_config, server_config,
};
use rustls::pki_types::ServerName;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A handshake is two messages each way; a client that takes longer keeps a connection for nothing.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where it called from.
    pub address: String,
    /// The name in its certificate, verified; nothing on plain connections.
    pub identity: Option<PeerIdentity>,
}

/// Whose connections and memory count together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// All edges of a tenant.
    Tenant([u8; 16]),
    /// A node.
    Node(NodeId),
    /// A service, by its name.
    Service(String),
    /// Whoever calls from there: before it is known who calls, and where there are no certificates.
    Address(String),
}

impl Owner {
    /// Whoever calls from `address`, whatever the port. Of an IPv6 address the first 64 bits count, since whoever has one has
    /// all that begin so.
    pub fn at(address: &str) -> Self {
        let host = match address.parse() {
            Ok(SocketAddr::V4(address)) => address.ip().to_string(),
            Ok(SocketAddr::V6(address)) => match address.ip().to_ipv4_mapped() {
                Some(mapped) => mapped.to_string(),
                None => {
                    let [first, second, third, fourth, ..] = address.ip().segments();
                    format!("{first:x}:{second:x}:{third:x}:{fourth:x}::/64")
                }
            },
            // Names of simulated machines.
            Err(_) => address
                .rsplit_once(':')
                .map_or(address, |(host, _)| host)
                .to_owned(),
        };
        Self::Address(host)
    }
}

impl Peer {
    /// With whom it shares what it may use.
    pub fn owner(&self) -> Owner {
        match self.identity.as_ref().map(|identity| &identity.kind) {
            Some(
                PeerKind::Edge { tenant, .. }
                | PeerKind::Attachment { tenant, .. }
                | PeerKind::TenantNode { tenant, .. },
            ) => Owner::Tenant(tenant.0),
            Some(PeerKind::Node(node)) => Owner::Node(*node),
            Some(PeerKind::Service(name)) => Owner::Service(name.clone()),
            None => Owner::at(&self.address),
        }
    }
}

impl From<String> for Peer {
    fn from(address: String) -> Self {
        Self {
            address,
            identity: None,
        }
    }
}

/// One end's way to talk; cheap to clone.
#[derive(Clone)]
pub struct Transport(Option<Arc<Mutual>>);

struct Mutual {
    env: Env,
    identity: TlsIdentity,
    authorities: Vec<CertificateDer<'static>>,
    trust_domain: String,
    acceptor: TlsAcceptor,
}

impl Transport {
    /// Bytes as they are: whoever listens on the network reads and changes them.
    pub fn plain() -> Self {
        Self(None)
    }

    /// TLS 1.3 with this certificate, speaking only to those whom `authorities` know in this trust domain.
    ///
    /// # Errors
    /// [`TlsError`] if an authority's certificate is none.
    pub fn mutual(
        env: &Env,
        identity: TlsIdentity,
        authorities: Vec<CertificateDer<'static>>,
        trust_domain: &str,
    ) -> Result<Self, TlsError> {
        let config = server_config(env, &identity, &authorities, ClientCertificates::Required)?;
        Ok(Self(Some(Arc::new(Mutual {
            env: env.clone(),
            identity,
            authorities,
            trust_domain: trust_domain.to_owned(),
            acceptor: Arc::new(config).into(),
        }))))
    }

    /// Connects to `node` at `address`, and to nobody else who may listen there.
    ///
    /// # Errors
    /// If nobody listens, or somebody else does.
    pub async fn dial(&self, env: &Env, node: NodeId, address: &str) -> io::Result<Box<dyn ByteStream>> {
        let stream = env.network().connect(address).await?;
        let Some(mutual) = &self.0 else {
            return Ok(stream);
        };
        // A node calls nodes of its own cluster; whoever else calls is a client, and nodes that have clients are the fleet's.
        let beside = mutual.identity.name().and_then(|own| own.kind.beside(node));
        let expected = Expected::Peer(PeerIdentity {
            trust_domain: mutual.trust_domain.clone(),
            kind: beside.unwrap_or(PeerKind::Node(node)),
        });
        let config = client_config(env, &mutual.identity, &mutual.authorities, expected)
            .map_err(|error| io::Error::other(error.to_string()))?;
        // The verifier looks at the name in the certificate; this one is only sent.
        let name = ServerName::try_from("node.firn").expect("a constant that is a name");
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        Ok(Box::new(stream))
    }

    /// Takes a connection that was accepted; returns once it is known who called.
    ///
    /// # Errors
    /// If the caller shows no certificate of the trust domain, or takes too long.
    pub async fn accept(
        &self,
        stream: Box<dyn ByteStream>,
        address: String,
    ) -> io::Result<(Box<dyn ByteStream>, Peer)> {
        let Some(mutual) = &self.0 else {
            return Ok((stream, address.into()));
        };
        let handshake = mutual.acceptor.accept(stream);
        let stream = mutual
            .env
            .timeout(HANDSHAKE_LIMIT, handshake)
            .await
            .map_err(|late| io::Error::new(io::ErrorKind::TimedOut, late.to_string()))??;
        let certificates = stream.get_ref().1.peer_certificates();
        let identity = certificates
            .and_then(<[_]>::first)
            .ok_or_else(|| io::Error::other("the peer showed no certificate"))
            .and_then(|certificate| {
                PeerIdentity::of_certificate(certificate).map_err(|error| io::Error::other(error.to_string()))
            })?;
        if identity.trust_domain != mutual.trust_domain {
            return Err(io::Error::other(format!(
                "{identity} is not of {}",
                mutual.trust_domain
            )));
        }
        let peer = Peer {
            address,
            identity: Some(identity),
        };
        Ok((Box::new(stream), peer))
    }
}

//! The certificate under which a disk is served over NBD.

use crate::failure::Failure;
use clap::Args;
use firn_blockd_nbd::{Tls, TlsPolicy};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::path::{Path, PathBuf};

/// TLS 1.3 for NBD clients. Once there is a certificate, nobody is served without TLS.
#[derive(Args, Clone, Debug, Default)]
pub struct TlsFiles {
    /// The server's certificate and those above it, as PEM. With it, NBD clients must use TLS.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<PathBuf>,
    /// The certificate's private key, as PEM.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,
    /// Only clients with a certificate signed by one of these are let in, as PEM; otherwise anybody who reaches the port is.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_clients: Option<PathBuf>,
}

impl TlsFiles {
    /// Nothing if no certificate was given.
    pub fn read(&self) -> Result<Option<Tls>, Failure> {
        let (Some(certificate), Some(key)) = (&self.tls_certificate, &self.tls_key) else {
            return Ok(None);
        };
        let chain = certificates(certificate)?;
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| Failure::usage(format!("the key {}: {error}", key.display())))?;
        let policy = match &self.tls_clients {
            Some(authorities) => TlsPolicy::ClientsOf(certificates(authorities)?),
            None => TlsPolicy::AnyClient,
        };
        Tls::new(chain, private, policy).map(Some).map_err(Failure::usage)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let wrong = |error: &dyn std::fmt::Display| {
        Failure::usage(format!("the certificates {}: {error}", path.display()))
    };
    let read: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(|error| wrong(&error))?
        .collect();
    let read = read.map_err(|error| wrong(&error))?;
    if read.is_empty() {
        return Err(wrong(&"there is none in it"));
    }
    Ok(read)
}

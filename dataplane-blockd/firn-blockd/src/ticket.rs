//! A ticket: all that a machine must know to attach one disk of a tenant's, as `firn disk attach` gives it to this program.
//!
//! It comes as JSON on standard input, so that the key in it is neither among a process's arguments nor in its environment. The key
//! was made for this attach and lives as long; the disk's own key, with which data is sealed, is in a file of the machine and never
//! part of a ticket.

use crate::failure::Failure;
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_blockd_protocol::{DiskId, TenantId};
use firn_identity::{CertificateDer, IssuedCertificate, SigningKey, UnixTime};
use serde::{Deserialize, Deserializer};
use std::io::Read;
use zeroize::Zeroizing;

const TICKET_BYTES_MAX: u64 = 64 << 10;

/// See the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ticket {
    /// Where the service is reached: https only.
    pub server: String,
    /// The authority of the service's own certificate, PEM; absent: those that this machine knows.
    pub server_authority: Option<String>,
    /// Whose disk.
    pub tenant: TenantId,
    /// Which.
    pub disk: DiskId,
    /// What the tenant calls it.
    pub name: String,
    /// The seed of the signing key, base64.
    #[serde(deserialize_with = "secret")]
    key: Zeroizing<String>,
    /// The key's certificate.
    pub certificate: Certified,
    /// What is shown when the disk is attached.
    pub grant: String,
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Zeroizing<String>, D::Error> {
    String::deserialize(deserializer).map(Zeroizing::new)
}

/// A certificate as the service gives it.
#[derive(Deserialize)]
pub struct Certified {
    certificate: String,
    authority: String,
    expires: u64,
    renew_after: u64,
}

fn decoded(what: &str, text: &str) -> Result<Vec<u8>, Failure> {
    STANDARD_NO_PAD
        .decode(text)
        .map_err(|_| Failure::usage(format!("the ticket's {what} is not base64")))
}

impl Certified {
    /// The certificate with its times.
    ///
    /// # Errors
    /// If it is not base64.
    pub fn issued(&self) -> Result<IssuedCertificate, Failure> {
        Ok(IssuedCertificate {
            certificate: CertificateDer::from(decoded("certificate", &self.certificate)?),
            expires: UnixTime(self.expires),
            renew_after: UnixTime(self.renew_after),
        })
    }

    /// The authority of the nodes' certificates.
    ///
    /// # Errors
    /// If it is not base64.
    pub fn authority(&self) -> Result<CertificateDer<'static>, Failure> {
        Ok(CertificateDer::from(decoded("authority", &self.authority)?))
    }
}

impl Ticket {
    /// Reads a ticket to its end.
    ///
    /// # Errors
    /// If it is none.
    pub fn read(from: impl Read) -> Result<Self, Failure> {
        let mut text = Zeroizing::new(Vec::new());
        from.take(TICKET_BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(|error| Failure::usage(format!("standard input: {error}")))?;
        serde_json::from_slice(&text).map_err(|error| {
            Failure::usage(format!(
                "standard input holds no ticket: {error}; firn disk attach gives one"
            ))
        })
    }

    /// The key.
    ///
    /// # Errors
    /// If it is none.
    pub fn signing_key(&self) -> Result<SigningKey, Failure> {
        let seed = Zeroizing::new(decoded("key", &self.key)?);
        let seed: [u8; 32] = seed[..]
            .try_into()
            .map_err(|_| Failure::usage("the ticket's key has not 32 bytes"))?;
        Ok(SigningKey::from_seed(seed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_ticket_is_told_so() {
        for text in ["", "{}", "nonsense", r#"{"server":"https://x"}"#] {
            let failure = Ticket::read(text.as_bytes()).err().expect("it is none");
            assert_eq!(failure.exit_code(), 2, "{text}");
            assert!(failure.to_string().contains("firn disk attach"), "{failure}");
        }
    }
}

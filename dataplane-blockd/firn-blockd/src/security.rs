//! Security of a cluster from its one secret: the authority of its certificates and the signer of its capabilities.
//!
//! Whoever has the secret is the operator. A process that has it makes its own certificate when it starts and a new one
//! before that ends; the name in it says whether it is a node, and which, or a client. Clusters whose certificates come from
//! an API give nodes and clients certificates instead of the secret.

use crate::failure::Failure;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use firn_blockd_client::{Access, IssuedHere};
use firn_blockd_node::{CapabilityAuthenticator, Security};
use firn_blockd_protocol::{NodeId, Transport};
use firn_env::Env;
use firn_identity::{
    CapabilityIssuer, CapabilityVerifier, CertificateAuthority, HolderHash, PeerIdentity, PeerKind,
    SigningKey, TlsIdentity, UnixTime, certificate_request,
};
use std::{fs, io::Write, os::unix::fs::OpenOptionsExt, path::Path, sync::Arc, time::Duration};
use zeroize::Zeroizing;

/// Between two looks at whether the certificate should be renewed; it lasts for days.
const RENEWAL_LOOK: Duration = Duration::from_secs(3600);
/// The authority's certificate is the same in all processes, whenever they start: 2025-01-01.
const AUTHORITY_SINCE: UnixTime = UnixTime(1_735_689_600);

/// 32 secret bytes, in a file as 64 hexadecimal digits.
pub struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    /// Reads a file that [`Secret::create`] wrote.
    ///
    /// # Errors
    /// If it is none.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!(
                "cannot read the secret {}: {error}; make one with: firn-blockd secret {}",
                path.display(),
                path.display()
            ))
        })?;
        let text = Zeroizing::new(text);
        let digits = text.trim().as_bytes();
        let mut bytes = Zeroizing::new([0; 32]);
        let read = digits.len() == 64 && HEXLOWER_PERMISSIVE.decode_mut(digits, &mut *bytes).is_ok();
        if !read {
            return Err(Failure::usage(format!(
                "{} is not 64 hexadecimal digits",
                path.display()
            )));
        }
        Ok(Self(bytes))
    }

    /// Makes a new one in a new file that only its owner can read.
    ///
    /// # Errors
    /// If the file is there, or cannot be written.
    pub fn create(env: &Env, path: &Path) -> Result<Self, Failure> {
        let bytes = Zeroizing::new(env.random_bytes::<32>());
        let text = Zeroizing::new(HEXLOWER.encode(&*bytes));
        let written = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.write_all(b"\n")?;
                file.sync_all()
            });
        written.map_err(|error| Failure::usage(format!("cannot make {}: {error}", path.display())))?;
        Ok(Self(bytes))
    }

    /// The bytes.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

/// A cluster's operator.
pub struct Operator {
    env: Env,
    authority: CertificateAuthority,
    issuer: CapabilityIssuer,
}

impl Operator {
    /// From the cluster's secret.
    ///
    /// # Errors
    /// If the trust domain is no name.
    pub fn new(env: &Env, secret: &Secret, trust_domain: &str) -> Result<Self, Failure> {
        let authority = CertificateAuthority::from_seed(*secret.expose(), trust_domain, AUTHORITY_SINCE)
            .map_err(Failure::usage)?;
        // Another use of the secret, and so another seed: certificates tell nothing of it.
        let issuer = CapabilityIssuer::from_seed(derived(secret));
        Ok(Self::with(env, authority, issuer))
    }

    /// From an authority and a signer of capabilities that somebody else has too: the control plane's.
    pub fn with(env: &Env, authority: CertificateAuthority, issuer: CapabilityIssuer) -> Self {
        Self {
            env: env.clone(),
            authority,
            issuer,
        }
    }

    /// A transport under a name, whose certificate is renewed for as long as the process lives.
    fn transport(self: &Arc<Self>, kind: PeerKind) -> Result<(Transport, PeerIdentity), Failure> {
        let name = PeerIdentity {
            trust_domain: self.authority.trust_domain().to_owned(),
            kind,
        };
        let key = SigningKey::from_seed(self.env.random_bytes());
        let identity = TlsIdentity::new(&key, &self.issue(&key, &name)?).map_err(Failure::new)?;
        let authorities = vec![self.authority.certificate().clone()];
        let transport = Transport::mutual(&self.env, identity.clone(), authorities, &name.trust_domain)
            .map_err(Failure::new)?;
        let (operator, renewed) = (self.clone(), name.clone());
        drop(self.env.spawn_essential("renew certificate", async move {
            loop {
                operator.env.sleep(RENEWAL_LOOK).await;
                if UnixTime::from_wall(operator.env.wall()) < identity.renew_after() {
                    continue;
                }
                let done = operator
                    .issue(&key, &renewed)
                    .and_then(|issued| identity.renew(&key, &issued).map_err(Failure::new));
                if let Err(error) = done {
                    tracing::warn!(%error, "the certificate was not renewed");
                }
            }
        }));
        Ok((transport, name))
    }

    fn issue(
        &self,
        key: &SigningKey,
        name: &PeerIdentity,
    ) -> Result<firn_identity::IssuedCertificate, Failure> {
        let request = certificate_request(key, name);
        let mut entropy = |bytes: &mut [u8]| {
            for chunk in bytes.chunks_mut(32) {
                let random: [u8; 32] = self.env.random_bytes();
                chunk.copy_from_slice(&random[..chunk.len()]);
            }
        };
        let now = UnixTime::from_wall(self.env.wall());
        self.authority
            .issue(&request, name, &[], now, &mut entropy)
            .map_err(Failure::new)
    }

    /// What a node needs.
    ///
    /// # Errors
    /// If its certificate cannot be made.
    pub fn node(self: &Arc<Self>, node: NodeId) -> Result<Security, Failure> {
        let (transport, _) = self.transport(PeerKind::Node(node))?;
        let verifier = CapabilityVerifier::new([self.issuer.public()]);
        Ok(Security {
            transport,
            authenticator: Arc::new(CapabilityAuthenticator::new(verifier)),
            capability: Arc::new(|| None),
        })
    }

    /// What a client needs, for capabilities of so many seconds.
    ///
    /// # Errors
    /// If its certificate cannot be made.
    ///
    /// Its capabilities are good for itself only.
    pub fn client(self: &Arc<Self>, capability_seconds: u64) -> Result<Access, Failure> {
        let instance = format!("blockd-client-{:016x}", self.env.random_u64());
        let (transport, name) = self.transport(PeerKind::Service(instance))?;
        let holder = HolderHash::of(&name);
        let issued = IssuedHere::new(&self.env, self.issuer.clone(), Some(holder), capability_seconds);
        Ok(Access {
            transport,
            capabilities: Arc::new(issued),
        })
    }
}

struct SeedLength;

impl KeyType for SeedLength {
    fn len(&self) -> usize {
        32
    }
}

/// The seed of the capabilities' signer.
fn derived(secret: &Secret) -> [u8; 32] {
    let mut seed = [0; 32];
    Salt::new(HKDF_SHA256, b"firn blockd operator")
        .extract(secret.expose())
        .expand(&[b"capabilities"], SeedLength)
        .and_then(|okm| okm.fill(&mut seed))
        .expect("32 bytes are within what HKDF-SHA256 can give");
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_back_and_nothing_else_is_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let env = firn_env::real(directory.path()).expect("it can be opened");
        let path = directory.path().join("secret");
        let made = Secret::create(&env, &path).expect("it is new");
        assert_eq!(Secret::read(&path).expect("it is there").expose(), made.expose());
        assert!(Secret::create(&env, &path).is_err(), "a secret is never replaced");
        for nonsense in ["", "ab", &"zz".repeat(32), &"ab".repeat(33)] {
            fs::write(&path, nonsense).expect("it can be written");
            assert!(Secret::read(&path).is_err(), "{nonsense:?}");
        }
        assert_ne!(derived(&made), *made.expose());
    }
}

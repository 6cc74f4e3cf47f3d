//! An anchor as a process, with its authority, grants and table in one directory.

use crate::{DOMAIN, service};
use firn_anchor_service::{HttpsAnchor, PemClients};
use firn_env::Env;
use firn_identity::{
    CertificateAuthority, PeerIdentity, SigningKey, TenantVolume, UnixTime, certificate_request, pem,
};
use std::{
    ffi::OsString,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// An authority's directory, and the anchor that runs in it.
pub struct Place {
    pub env: Env,
    pub root: PathBuf,
    authority: CertificateAuthority,
    pub child: Option<Child>,
    pub address: Option<SocketAddr>,
    /// Where its figures are, once it has started.
    metrics: Option<String>,
    /// More of the command line.
    pub options: Vec<String>,
    /// The table's address.
    pub table: String,
    /// Credentials of the table.
    pub environment: Vec<(String, String)>,
}

impl Place {
    pub fn new(root: &Path, seed: u8) -> Self {
        let env = firn_env::real(root).unwrap();
        let now = UnixTime::from_wall(env.wall());
        let authority = CertificateAuthority::from_seed([seed; 32], DOMAIN, now.minus(3600)).unwrap();
        fs::write(
            root.join("authority.pem"),
            &*pem("CERTIFICATE", authority.certificate()),
        )
        .unwrap();
        let place = Self {
            env,
            root: root.to_owned(),
            authority,
            child: None,
            address: None,
            metrics: None,
            options: match other_build() {
                // That of the release before has no metrics.
                Some(_) => Vec::new(),
                None => vec!["--listen-metrics".into(), "127.0.0.1:0".into()],
            },
            table: format!("redb:{}", root.join("roots.redb").display()),
            environment: Vec::new(),
        };
        place.issue(&service("anchor"), "anchor.pem");
        place.grant(&[]);
        place
    }

    /// Key and certificate of somebody, in a file.
    pub fn issue(&self, name: &PeerIdentity, file: &str) -> PathBuf {
        let key = SigningKey::from_seed(self.env.random_bytes());
        let addresses = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let env = self.env.clone();
        let mut entropy =
            move |bytes: &mut [u8]| bytes.copy_from_slice(&env.random_bytes::<16>()[..bytes.len()]);
        let issued = self
            .authority
            .issue(
                &certificate_request(&key, name),
                name,
                &addresses,
                UnixTime::from_wall(self.env.wall()),
                &mut entropy,
            )
            .unwrap();
        let path = self.root.join(file);
        let text = [
            pem("PRIVATE KEY", &key.to_pkcs8()).as_str(),
            pem("CERTIFICATE", &issued.certificate).as_str(),
        ]
        .concat();
        fs::write(&path, text).unwrap();
        path
    }

    pub fn grant(&self, grants: &[(&PeerIdentity, TenantVolume, &str)]) {
        let text: String = grants
            .iter()
            .map(|(name, volume, role)| {
                format!("[[grant]]\nname = \"{name}\"\nvolume = \"{volume}\"\nrole = \"{role}\"\n")
            })
            .collect();
        let newer = self.root.join("grants.toml.new");
        fs::write(&newer, text).unwrap();
        fs::rename(newer, self.root.join("grants.toml")).unwrap();
    }

    pub fn start(&mut self) {
        self.spawn(Stdio::piped());
        let mut line = String::new();
        let output = self.child.as_mut().unwrap().stdout.take().unwrap();
        let mut output = BufReader::new(output);
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("firn-anchor listens on ").expect(&line);
        self.address = Some(address.parse().unwrap());
        if other_build().is_some() {
            return;
        }
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line
            .strip_prefix("metrics at http://")
            .and_then(|rest| rest.trim().strip_suffix("/metrics"));
        self.metrics = Some(address.expect(&line).to_owned());
    }

    /// A figure, as Prometheus asks for it; with labels if it has such.
    pub fn figure(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.metrics.as_ref().unwrap()).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
    }

    pub fn spawn(&mut self, output: Stdio) {
        let listen = self
            .address
            .map_or("127.0.0.1:0".to_owned(), |address| address.to_string());
        let child = Command::new(other_build().unwrap_or_else(|| env!("CARGO_BIN_EXE_firn-anchor").into()))
            .args(["--listen", &listen, "--table"])
            .arg(&self.table)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .arg("--identity")
            .arg(self.root.join("anchor.pem"))
            .arg("--authority")
            .arg(self.root.join("authority.pem"))
            .arg("--grants")
            .arg(self.root.join("grants.toml"))
            .arg("--directory")
            .arg(&self.root)
            .args(&self.options)
            .stdout(output)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn reached(&self, identity: &Path, volume: TenantVolume) -> HttpsAnchor<PemClients> {
        let clients = PemClients::new(identity, self.root.join("authority.pem"));
        let url = format!(
            "https://localhost:{}/v1/anchor/{volume}",
            self.address.unwrap().port()
        );
        HttpsAnchor::new(url, clients)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Another build that is tried by the same tests.
fn other_build() -> Option<OsString> {
    std::env::var_os("FIRN_ANCHOR")
}

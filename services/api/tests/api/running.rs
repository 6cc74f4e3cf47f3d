//! The program as a process, and a person's client.
#![allow(dead_code, reason = "each test file uses a part of it")]

use axum::http::StatusCode;
use firn_identity::CertificateDer;
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs, version::TLS13},
};

pub const DOMAIN: &str = "firn.test";

pub struct Program {
    process: Child,
    pub address: SocketAddr,
    /// For machines, and for monitoring; if they were asked for.
    pub others: Vec<SocketAddr>,
}

pub fn firn_api(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn-api"));
    command.args(arguments);
    command
}

impl Program {
    pub fn start(directory: &Path, table: &str) -> Self {
        Self::instance(directory, table, "1")
    }

    /// One of several that serve the same table; each has a state of its own.
    pub fn instance(directory: &Path, table: &str, instance: &str) -> Self {
        Self::with(directory, table, instance, &[])
    }

    /// The same with more options.
    pub fn with(directory: &Path, table: &str, instance: &str, more: &[&str]) -> Self {
        let path = |name: &str| directory.join(name).to_str().unwrap().to_owned();
        let mut process = firn_api(&["serve", "--listen", "127.0.0.1:0", "--trust-domain", DOMAIN])
            .args([
                "--table",
                table,
                "--state",
                &path(if instance == "1" { "state" } else { instance }),
                "--instance",
                instance,
                "--secret",
                &path("secret"),
            ])
            .args(more)
            .env("AWS_ACCESS_KEY_ID", "firntest")
            .env("AWS_SECRET_ACCESS_KEY", "firntest")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let listeners = 1 + more
            .iter()
            .filter(|option| option.starts_with("--listen-"))
            .count();
        let mut addresses: Vec<SocketAddr> = BufReader::new(process.stdout.take().unwrap())
            .lines()
            .take(listeners)
            .map(|line| {
                let line = line.unwrap();
                let (_, address) = line.rsplit_once(" on ").expect("it says where");
                address.parse().unwrap()
            })
            .collect();
        Self {
            process,
            address: addresses.remove(0),
            others: addresses,
        }
    }

    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub async fn ask(
        &self,
        client: &ClientConfig,
        method: &str,
        path: &str,
        token: &str,
        body: Value,
    ) -> (StatusCode, Value) {
        let mut stream = connect(client, self.address).await.unwrap();
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let kind = if body.is_empty() {
            ""
        } else {
            "Content-Type: application/json\r\n"
        };
        let authorization = if token.is_empty() {
            String::new()
        } else {
            format!("Authorization: Bearer {token}\r\n")
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{kind}{authorization}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // The end of the connection without a farewell is an error to TLS; the length of the body tells that all is here.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a whole head");
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_str(body).unwrap()
        };
        (StatusCode::from_u16(status).unwrap(), body)
    }
}

/// A connection whose handshake is done.
pub async fn connect(
    client: &ClientConfig,
    address: SocketAddr,
) -> std::io::Result<TlsStream<tokio::net::TcpStream>> {
    #[allow(clippy::disallowed_methods, reason = "a client outside the service")]
    let stream = tokio::net::TcpStream::connect(address).await?;
    let connector = TlsConnector::from(Arc::new(client.clone()));
    connector.connect("localhost".try_into().unwrap(), stream).await
}

/// Trusts the authority and shows no certificate, as a person's client does.
pub fn anonymous(authority: &CertificateDer<'static>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

pub fn letter(directory: &Path, label: &str) -> String {
    let mut letters: Vec<PathBuf> = fs::read_dir(directory.join("state/mail"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    letters.sort();
    let text = fs::read_to_string(letters.last().expect("a letter")).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{label}: ")));
    line.expect("the letter says so").to_owned()
}

pub fn base64(bytes: &[u8]) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
    STANDARD_NO_PAD.encode(bytes)
}

pub fn unbase64(value: &Value) -> Vec<u8> {
    use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
    STANDARD_NO_PAD.decode(value.as_str().unwrap()).unwrap()
}

pub fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

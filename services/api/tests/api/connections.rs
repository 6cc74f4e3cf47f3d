//! Connections that say nothing, or little: whoever means well is served beside them.

use crate::running::{DOMAIN, Program, anonymous, connect, firn_api};
use axum::http::StatusCode;
use firn_api::MasterSecret;
use serde_json::Value;
use std::{fs, net::SocketAddr, path::Path, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::rustls::ClientConfig;

/// A program, and a client that trusts it.
fn program(directory: &Path, more: &[&str]) -> (Program, ClientConfig) {
    let secret = directory.join("secret");
    assert!(
        firn_api(&["new-secret", secret.to_str().unwrap()])
            .status()
            .unwrap()
            .success()
    );
    let master = MasterSecret::new(fs::read(&secret).unwrap().as_slice().try_into().unwrap());
    let person = anonymous(master.authority(DOMAIN).unwrap().certificate());
    let table = format!("redb:{}", directory.join("api.redb").display());
    (Program::with(directory, &table, "1", more), person)
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "clients outside the service")]
async fn a_thousand_silent_connections_do_not_keep_anybody_from_being_served() {
    let directory = tempfile::tempdir().unwrap();
    let (program, person) = program(directory.path(), &[]);
    // As many as a listener's backlog takes while nothing is accepted.
    let calls = (0..1250).map(|_| tokio::net::TcpStream::connect(program.address));
    let silent: Vec<_> = futures::future::join_all(calls).await;
    assert!(silent.iter().all(Result::is_ok));
    // Far longer than a request takes on the slowest machine, and shorter than so many silent handshakes took when 256 of them
    // at a time were waited for, each for ten seconds.
    let served = tokio::time::timeout(
        Duration::from_secs(20),
        program.ask(&person, "GET", "/healthz", "", Value::Null),
    );
    let (status, _) = served.await.expect("served while strangers are silent");
    assert_eq!(status, StatusCode::OK);
    drop(silent);
    program.kill();
}

/// What somebody who means ill may leave half done, from an address of their own; gives the connection, to be kept.
#[allow(clippy::disallowed_methods, reason = "a client outside the service")]
async fn leave_half_done(address: SocketAddr, person: &ClientConfig, number: u8) -> Box<dyn std::any::Any> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 1, number % 8 + 1], 0).into()).unwrap();
    let mut plain = socket.connect(address).await.unwrap();
    // Whether the service still takes it is not this client's matter: it may have been displaced.
    match number % 5 {
        0 => Box::new(plain),
        1 => {
            let _ = plain.write_all(b"\x16\x03\x01\x02\x00\x01").await;
            Box::new(plain)
        }
        kind => {
            let Ok(mut stream) = connect(person, address).await else {
                return Box::new(plain);
            };
            let said: &[u8] = match kind {
                2 => b"",
                3 => b"GET /healthz HTTP/1.1\r\nHost: ",
                _ => {
                    b"POST /v1/signups HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
                }
            };
            let _ = stream.write_all(said).await;
            let _ = stream.flush().await;
            Box::new(stream)
        }
    }
}

async fn metrics(address: SocketAddr) -> String {
    #[allow(clippy::disallowed_methods, reason = "a client outside the service")]
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

fn sum(metrics: &str, beginning: &str) -> u64 {
    metrics
        .lines()
        .filter_map(|line| {
            line.strip_prefix(beginning)?
                .rsplit(' ')
                .next()?
                .parse::<u64>()
                .ok()
        })
        .sum()
}

#[tokio::test]
async fn connections_of_every_unfinished_kind_give_way_to_whoever_asks_and_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let options = [
        "--connections",
        "48",
        "--connections-per-address",
        "16",
        "--listen-internal",
        "127.0.0.1:0",
        "--listen-metrics",
        "127.0.0.1:0",
    ];
    let (program, person) = program(directory.path(), &options);
    let [internal, monitoring] = program.others[..] else {
        panic!("two more listeners: {:?}", program.others);
    };
    let mut kept = Vec::new();
    for number in 0..200 {
        kept.push(leave_half_done(program.address, &person, number).await);
        if number % 20 == 0 {
            let (status, _) = program.ask(&person, "GET", "/healthz", "", Value::Null).await;
            assert_eq!(status, StatusCode::OK, "after {number}");
        }
    }
    let seen = metrics(monitoring).await;
    let there = sum(&seen, "firn_api_connections{listener=\"tenants\"");
    assert!(there <= 48, "{there} connections: {seen}");
    let ended = sum(&seen, "firn_api_connections_ended_total{listener=\"tenants\"");
    assert!(ended >= 100, "{seen}");
    let answered = sum(&seen, "firn_api_requests_total{outcome=\"answered\"");
    assert!(answered >= 10, "each question above: {seen}");
    assert_eq!(sum(&seen, "firn_api_requests_total{outcome=\"failed\""), 0);
    assert_eq!(
        sum(&seen, "firn_api_connections_ended_total{listener=\"internal\""),
        0
    );
    drop(kept);

    // Whoever shows no certificate is no machine: the handshake, or the first read after it, fails.
    let refused = async {
        let mut stream = connect(&person, internal).await?;
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            .await?;
        stream.read_u8().await
    };
    assert!(refused.await.is_err());
    program.kill();
}

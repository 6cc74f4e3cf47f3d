//! Administration of a running edge.

use crate::machine::{Cloud, Machine, free_port, status};
use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::{fs::PermissionsExt, net::UnixStream},
};

/// What a GET answers, headers and all.
pub fn http(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: edge\r\nConnection: close\r\n\r\n"
    )
    .expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_made_served_watched_committed_and_given_up() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    let metrics = free_port();
    edge.configure(
        &cloud,
        "a",
        "main",
        &format!("[metrics]\nlisten = \"127.0.0.1:{metrics}\""),
    );
    edge.succeed(&["check-config"]);
    let said = edge.fail(1, &["status"]);
    assert!(said.contains("no firn-edge is running"), "{said}");
    edge.format();
    edge.start(&[]);

    let files = edge.client().await;
    files.write("letter", b"Dear reader").await;
    let before = status(&edge);
    assert_eq!(before["format"], 1);
    assert_eq!(before["volume"]["state"], "serving");
    assert_eq!(before["owner"]["name"], "a");
    assert_eq!(before["uncommitted"]["level"], 1);
    assert_eq!(before["uncommitted"]["bytes"], 11);
    assert!(before["nfs"]["connections"].as_u64() >= Some(1));
    let text = edge.succeed(&["status"]);
    assert!(text.contains("level 1 (journal)"), "{text}");
    assert!(
        edge.succeed(&["top", "--interval", "1", "--count", "1"])
            .contains("PROCEDURE")
    );

    let answer = http(metrics, "/metrics");
    assert!(answer.contains("\nfirn_dirty_bytes 11\n"), "{answer}");
    assert!(
        answer.contains("firn_rpc_calls_total{program=\"nfs\",procedure=\"WRITE\"} 1\n"),
        "{answer}"
    );
    assert!(http(metrics, "/healthz").starts_with("HTTP/1.1 200"));

    let said = edge.succeed(&["sync"]);
    assert!(said.contains("level 2"), "{said}");
    let after = status(&edge);
    assert_eq!(after["uncommitted"]["level"], 2);
    let grown = |key: &str| after["store"][key].as_u64() > before["store"][key].as_u64();
    assert!(grown("requests") && grown("nanodollars"), "{after}");
    assert!(edge.succeed(&["verify"]).starts_with("whole: 2 files"));

    let said = edge.succeed(&["drain"]);
    assert!(said.contains("no owner"), "{said}");
    let ended = edge.child.take().expect("it ran").wait().expect("an end");
    assert!(ended.success(), "{ended:?}");
    let said = edge.fail(1, &["status"]);
    assert!(said.contains("no firn-edge is running"), "{said}");

    // Whoever has the keys can serve it now, without force.
    let mut other = Machine::new(&cloud, "b", "main");
    let identity = edge.state.join("identity");
    other.succeed(&["join", "--identity", identity.to_str().expect("a path")]);
    other.start(&[]);
    assert_eq!(
        other.client().await.read("letter").await.as_deref(),
        Some(&b"Dear reader"[..])
    );
    assert_eq!(status(&other)["owner"]["name"], "b");
    other.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_socket_is_the_owners_alone_and_survives_what_it_does_not_understand() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let socket = edge.state.join("admin.sock");
    let mode = std::fs::metadata(&socket)
        .expect("the socket")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let ask = |line: &[u8]| {
        let mut stream = UnixStream::connect(&socket).expect("a connection");
        let _ = stream.write_all(line);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let answer = ask(b"{\"version\":2,\"command\":\"status\"}\n");
    assert!(answer.contains("speaks version 1"), "{answer}");
    let answer = ask(b"{\"version\":1,\"command\":\"format_disk\"}\n");
    assert!(answer.contains("\"reply\":\"error\""), "{answer}");
    let endless = ask(&vec![b'x'; 1 << 20]);
    assert!(endless.len() < 4096, "{endless}");
    assert_eq!(status(&edge)["volume"]["state"], "serving");
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_segment_is_reported_with_the_name_of_its_file() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    edge.succeed(&["sync"]);
    let before = cloud.segments();
    // Nothing for a compressor, and larger than everything else that the commit writes.
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let data: Vec<u8> = std::iter::repeat_with(|| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as u8
    })
    .take(300_000)
    .collect();
    files.write("ledger", &data).await;
    files.write("letter", b"Dear reader").await;
    edge.succeed(&["sync"]);
    let new: Vec<_> = cloud
        .segments()
        .into_iter()
        .filter(|path| !before.contains(path))
        .collect();
    let largest = new
        .iter()
        .max_by_key(|path| std::fs::metadata(path).expect("a segment").len());
    let largest = largest.expect("a new segment");
    let mut bytes = std::fs::read(largest).expect("the segment");
    bytes[100_000] ^= 1;
    std::fs::write(largest, bytes).expect("the damage");

    let said = edge.fail(6, &["verify"]);
    assert!(said.contains("damaged: /ledger: "), "{said}");
    assert!(!said.contains("/letter"), "{said}");
    edge.stop();
}

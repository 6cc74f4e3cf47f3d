//! A server on a local socket of the real system.

use firn_blockd_nbd::{Exports, Limits, Server};
use std::{io::ErrorKind, os::unix::net::UnixListener, sync::Arc, time::Duration};

fn server(directory: &std::path::Path) -> Server {
    let env = firn_env::real(directory).unwrap();
    Server::new(env, Arc::new(Exports::new()), None, Limits::default())
}

#[tokio::test]
async fn a_socket_that_was_left_behind_is_replaced_and_one_in_use_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let address = format!("unix:{}", path.display());
    // As a killed process leaves it: the file is there, nobody listens.
    drop(UnixListener::bind(&path).unwrap());
    let first = server(directory.path());
    assert_eq!(first.listen(&address).await.unwrap().address(), address);
    let second = server(directory.path());
    let refused = second.listen(&address).await.map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
    first.stop(Duration::ZERO).await;
    // The listener ends with its task, which takes the socket away.
    for _ in 0..1000 {
        if !path.exists() {
            break;
        }
        tokio::task::yield_now().await;
    }
    second.listen(&address).await.unwrap();
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    let refused = server(directory.path())
        .listen(&format!("unix:{}", path.display()))
        .await;
    assert!(refused.is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
}

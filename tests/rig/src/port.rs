//! A port for a server that a test will start, end and start again.

use std::{
    io,
    net::TcpListener,
    sync::atomic::{AtomicU16, Ordering::Relaxed},
};

/// Below the ports that the kernel gives to whoever calls somebody (from 32768 on, on Linux): one of those is taken by a stranger's call as soon
/// as its server is killed.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port of 127.0.0.1 that nobody has now, and that no call of anybody's will take. Processes begin at places of their own.
///
/// # Errors
/// If none of these ports is free.
pub fn free_port() -> io::Result<u16> {
    let mine = (std::process::id() * 97 % u32::from(COUNT)) as u16;
    for _ in 0..COUNT {
        let port = FIRST + (mine + NEXT.fetch_add(1, Relaxed) % COUNT) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AddrInUse,
        "every port for tests is taken",
    ))
}

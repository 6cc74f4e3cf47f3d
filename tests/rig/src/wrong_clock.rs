//! A way to an HTTP server whose `Date` is an hour off: all else that it says goes through as it is.

#![allow(
    clippy::disallowed_methods,
    reason = "a way between real programs; nothing deterministic runs here"
)]

use anyhow::Result;
use std::net::SocketAddr;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// The largest head of a reply that is looked at.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// See the module. Dropped, it is closed. Of each connection the first reply is changed.
pub struct WrongClock {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl WrongClock {
    /// A line to `target` (`host:port`).
    pub async fn to(target: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let target = target.to_owned();
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let target = target.clone();
                tokio::spawn(async move {
                    // Who is cut off asks again.
                    let _ = carry(near, &target).await;
                });
            }
        });
        Ok(Self { address, accepting })
    }

    /// Where to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for WrongClock {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn carry(near: TcpStream, target: &str) -> Result<()> {
    let far = TcpStream::connect(target).await?;
    let (mut near_read, mut near_write) = near.into_split();
    let (mut far_read, mut far_write) = far.into_split();
    let going = tokio::spawn(async move { tokio::io::copy(&mut near_read, &mut far_write).await });
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
        if far_read.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    shift(&mut head);
    near_write.write_all(&head).await?;
    tokio::io::copy(&mut far_read, &mut near_write).await?;
    going.abort();
    Ok(())
}

/// Changes the hour in the `Date` of a reply by one: back, but for the first of a day.
fn shift(head: &mut [u8]) {
    let lower = head.to_ascii_lowercase();
    let Some(at) = lower.windows(8).position(|line| line == b"\r\ndate: ") else {
        return;
    };
    // "Tue, 15 Nov 1994 08:12:31 GMT"
    let Some(hour) = head.get_mut(at + 8 + 17..at + 8 + 19) else {
        return;
    };
    let value = (hour[0] - b'0') * 10 + (hour[1] - b'0');
    let changed = if value == 0 { 1 } else { value - 1 };
    (hour[0], hour[1]) = (b'0' + changed / 10, b'0' + changed % 10);
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_hour_is_changed_and_nothing_else() {
        let mut head = b"HTTP/1.1 200 OK\r\nDate: Tue, 15 Nov 1994 08:12:31 GMT\r\n\r\n".to_vec();
        super::shift(&mut head);
        assert_eq!(
            head,
            b"HTTP/1.1 200 OK\r\nDate: Tue, 15 Nov 1994 07:12:31 GMT\r\n\r\n"
        );
        let mut head = b"HTTP/1.1 200 OK\r\ndate: Tue, 15 Nov 1994 00:12:31 GMT\r\n\r\n".to_vec();
        super::shift(&mut head);
        assert!(head.ends_with(b"1994 01:12:31 GMT\r\n\r\n"));
        let mut head = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        super::shift(&mut head);
        assert_eq!(head, b"HTTP/1.1 200 OK\r\n\r\n");
    }
}

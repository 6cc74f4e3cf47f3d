//! A target: where it is, and how it is spoken to.

use anyhow::{Context, Result};
use std::{net::SocketAddr, str::FromStr};

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// NFS version 3 over TCP.
    Nfs,
    /// HTTP/1.1 without TLS.
    Http,
    /// HTTP/1.1 within TLS.
    Https,
    /// What disk nodes are spoken to with, within TLS. The clients that work are those of a disk that lies on the node.
    Node,
}

/// All of them, by their names.
const NAMES: [(&str, Protocol); 4] = [
    ("nfs", Protocol::Nfs),
    ("http", Protocol::Http),
    ("https", Protocol::Https),
    ("node", Protocol::Node),
];

/// A request that announces a mebibyte.
const POST: &[u8] = b"POST / HTTP/1.1\r\nhost: firn\r\ncontent-length: 1048576\r\n\r\n";

impl Protocol {
    /// Whether there is a handshake of TLS before anything else.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Node)
    }

    /// What a connection sends that goes no further: enough to make the server expect a mebibyte, or the rest of a handshake.
    pub fn opening(self) -> Vec<u8> {
        match self {
            // A handshake record of 16 KiB that begins with a ClientHello (RFC 8446 §5.1).
            Self::Https | Self::Node => vec![22, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xfb, 3, 3],
            Self::Nfs | Self::Http => self.request(),
        }
    }

    /// The beginning of a request that announces a mebibyte; where there is TLS, what is said within.
    pub fn request(self) -> Vec<u8> {
        match self {
            // The marker of a record of 1 MiB (RFC 5531 §11), and the head of a call.
            Self::Nfs => [(1_u32 << 31 | 1 << 20), 7, 0, 2, 100_003, 3, 7, 0, 0, 0, 0]
                .iter()
                .flat_map(|word| word.to_be_bytes())
                .collect(),
            // A node closes what has no certificate before it reads: whatever comes is as good.
            Self::Http | Self::Https | Self::Node => POST.to_vec(),
        }
    }
}

impl FromStr for Protocol {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = NAMES.iter().find(|(name, _)| *name == text);
        Ok(found
            .with_context(|| format!("{text} is no protocol that is known here: nfs, http, https, node"))?
            .1)
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = NAMES.iter().find(|(_, protocol)| protocol == self);
        out.write_str(name.map_or("?", |(name, _)| name))
    }
}

/// `PROTOCOL://HOST:PORT[/PATH][#PROCESS,…]`: the export or the page that clients ask for, or the socket of a disk; and the processes
/// whose memory is watched.
#[derive(Clone, Debug)]
pub struct Target {
    /// How it is spoken to.
    pub protocol: Protocol,
    /// Where it is.
    pub address: SocketAddr,
    /// The export, the page, or the socket.
    pub path: String,
    /// The server's processes, if they are on this machine.
    pub processes: Vec<u32>,
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (protocol, rest) = text
            .split_once("://")
            .context("write a target as PROTOCOL://HOST:PORT/PATH")?;
        let (rest, processes) = rest.split_once('#').unwrap_or((rest, ""));
        let processes = processes.split(',').filter(|process| !process.is_empty());
        let processes: Result<_, _> = processes.map(str::parse).collect();
        let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Self {
            protocol: protocol.parse()?,
            address: address
                .parse()
                .with_context(|| format!("{address} is no address and port"))?,
            path: format!("/{path}"),
            processes: processes.context("a process after # is no number")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_url_with_a_process() {
        let target: Target = "nfs://127.0.0.1:2049/export#17,18".parse().expect("a target");
        assert_eq!(
            (target.protocol, &*target.path, &*target.processes),
            (Protocol::Nfs, "/export", &[17, 18][..])
        );
        let target: Target = "http://127.0.0.1:80".parse().expect("a target");
        assert_eq!(
            (target.protocol, &*target.path, &*target.processes),
            (Protocol::Http, "/", &[][..])
        );
        for wrong in [
            "127.0.0.1:1",
            "ftp://127.0.0.1:1",
            "nfs://nowhere",
            "nfs://127.0.0.1:1/a#b",
        ] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }
}

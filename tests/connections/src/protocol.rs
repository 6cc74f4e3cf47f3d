//! A target: where it is, and how it is spoken to.

use anyhow::{Context, Result, bail};
use std::{net::SocketAddr, str::FromStr};

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// NFS version 3 over TCP.
    Nfs,
    /// HTTP/1.1 without TLS.
    Http,
    /// TLS, whatever is within.
    Tls,
}

impl Protocol {
    /// What a connection sends that goes no further: enough to make the server expect a mebibyte, or the rest of a handshake.
    pub fn opening(self) -> Vec<u8> {
        match self {
            // The marker of a record of 1 MiB (RFC 5531 §11), and the head of a call.
            Self::Nfs => [(1_u32 << 31 | 1 << 20), 7, 0, 2, 100_003, 3, 7, 0, 0, 0, 0]
                .iter()
                .flat_map(|word| word.to_be_bytes())
                .collect(),
            Self::Http => b"POST / HTTP/1.1\r\nhost: firn\r\ncontent-length: 1048576\r\n\r\n".to_vec(),
            // A handshake record of 16 KiB that begins with a ClientHello (RFC 8446 §5.1).
            Self::Tls => vec![22, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xfb, 3, 3],
        }
    }
}

impl FromStr for Protocol {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "nfs" => Self::Nfs,
            "http" => Self::Http,
            "tls" => Self::Tls,
            other => bail!("{other} is no protocol that is known here: nfs, http, tls"),
        })
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Nfs => "nfs",
            Self::Http => "http",
            Self::Tls => "tls",
        })
    }
}

/// `PROTOCOL://HOST:PORT[/PATH][#PROCESS]`: the export or the page that clients ask for, and the process whose memory is
/// watched.
#[derive(Clone, Debug)]
pub struct Target {
    /// How it is spoken to.
    pub protocol: Protocol,
    /// Where it is.
    pub address: SocketAddr,
    /// The export or the page.
    pub path: String,
    /// The server's process, if it is on this machine.
    pub process: Option<u32>,
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (protocol, rest) = text
            .split_once("://")
            .context("write a target as PROTOCOL://HOST:PORT/PATH")?;
        let (rest, process) = match rest.split_once('#') {
            Some((rest, process)) => (
                rest,
                Some(process.parse().context("the process after # is no number")?),
            ),
            None => (rest, None),
        };
        let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Self {
            protocol: protocol.parse()?,
            address: address
                .parse()
                .with_context(|| format!("{address} is no address and port"))?,
            path: format!("/{path}"),
            process,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_url_with_a_process() {
        let target: Target = "nfs://127.0.0.1:2049/export#17".parse().expect("a target");
        assert_eq!(
            (target.protocol, &*target.path, target.process),
            (Protocol::Nfs, "/export", Some(17))
        );
        let target: Target = "http://127.0.0.1:80".parse().expect("a target");
        assert_eq!(
            (target.protocol, &*target.path, target.process),
            (Protocol::Http, "/", None)
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

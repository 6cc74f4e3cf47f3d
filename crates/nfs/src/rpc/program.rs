//! RPC program: the trait that a protocol implements to be served, and what a call hands it.

use super::{AuthStatus, Credential};
use crate::xdr::{Decoder, Encode, Encoder, XdrError};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
};

/// How a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// In records on a byte stream.
    Tcp,
    /// One message a datagram.
    Udp,
}

/// Who sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer {
    /// The address; IPv4 addresses mapped into IPv6 are shown as IPv4.
    pub address: IpAddr,
    /// The source port.
    pub port: u16,
    /// How it came.
    pub transport: Transport,
}

impl Peer {
    /// From the text an [`firn_env::Listener`] gives. A name that is no address (simulated networks have such) becomes a
    /// private IPv6 address derived from it, so that different names stay different clients.
    pub fn parse(text: &str, transport: Transport) -> Self {
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return Self {
                address: socket.ip().to_canonical(),
                port: socket.port(),
                transport,
            };
        }
        let (host, port) = text.rsplit_once(':').unwrap_or((text, "0"));
        let mut octets = [0; 16];
        octets[0] = 0xfd;
        octets[1..].copy_from_slice(&blake3::hash(host.as_bytes()).as_bytes()[..15]);
        Self {
            address: Ipv6Addr::from(octets).into(),
            port: port.parse().unwrap_or(0),
            transport,
        }
    }

    /// Whether the source port is one that only root may bind on a Unix client.
    pub fn has_privileged_port(&self) -> bool {
        self.port < 1024
    }
}

/// One call of a program.
#[derive(Clone, Debug)]
pub struct Request {
    /// Who sent it.
    pub peer: Peer,
    /// The caller's transaction id.
    pub transaction: u32,
    /// The program version asked for, one of [`Program::versions`].
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// Who the caller says it is.
    pub credential: Credential,
    /// The procedure's arguments.
    pub arguments: Decoder,
    /// Header after the transaction id, and arguments: equal in a retransmission.
    pub message: Bytes,
}

/// The results of a call that was executed.
#[derive(Debug)]
pub struct Reply {
    /// In XDR.
    pub body: Encoder,
    /// Whether the results tell of a failure (for the statistics only).
    pub failed: bool,
}

impl Reply {
    /// Results of a call that did what was asked.
    pub fn success(results: &impl Encode) -> Self {
        let mut body = Encoder::new();
        results.encode(&mut body);
        Self { body, failed: false }
    }

    /// Results that tell why the call did not do what was asked.
    pub fn failure(results: &impl Encode) -> Self {
        Self {
            failed: true,
            ..Self::success(results)
        }
    }
}

/// Why a call was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The program has no such procedure.
    ProcedureUnavailable,
    /// The arguments are not what the procedure takes.
    GarbageArguments,
    /// The server cannot execute it, through no fault of the caller.
    SystemError,
    /// The credential does not do.
    Authentication(AuthStatus),
    /// No reply at all: the caller will ask again, or must not know.
    Silence,
}

impl From<XdrError> for Refusal {
    fn from(_: XdrError) -> Self {
        Self::GarbageArguments
    }
}

/// A remote program: a set of numbered procedures.
#[async_trait]
pub trait Program: Send + Sync {
    /// The program number.
    fn number(&self) -> u32;
    /// A short name for logs and statistics, such as `nfs`.
    fn name(&self) -> &'static str;
    /// The versions served.
    fn versions(&self) -> RangeInclusive<u32>;
    /// The name of a procedure for statistics; `None` if there is none of that number.
    fn procedure_name(&self, version: u32, procedure: u32) -> Option<&'static str>;
    /// An upper estimate of the size of the reply, by which memory in flight is bounded before the call is executed.
    /// Must be cheap.
    fn reply_bytes(&self, _request: &Request) -> usize {
        1024
    }
    /// What a call is about, such as an export and a file, for a log line about it; called seldom.
    fn subject(&self, _procedure: u32, _arguments: Decoder) -> Option<String> {
        None
    }
    /// Executes a call. The future runs to its end even if the caller's connection is lost meanwhile.
    async fn call(&self, request: Request) -> Result<Reply, Refusal>;
}

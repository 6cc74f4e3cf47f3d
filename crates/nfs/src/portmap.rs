//! Port mapper: which program listens on which port. Answered ourselves, registered with a running rpcbind, or asked of a client.
//!
//! Linux finds lock services through the port mapper, in both directions: the client asks ours for NLM and NSM, and we ask
//! the client's where to call its lock manager back. Where nobody listens on port 111 we serve the [`PortMapper`] program
//! there; where rpcbind runs already, [`Registration`] tells it about our programs through its local socket.
//!
//! Version 2 is the port mapper (RFC 1833 §3), versions 3 and 4 are rpcbind (§2), which names transports by text and
//! addresses universally: `h1.h2.h3.h4.p1.p2`, the port as two decimal bytes.

mod program;
mod query;
mod registration;

pub use program::PortMapper;
pub use query::port_of;
pub use registration::{RPCBIND_SOCKET, Registration, RegistrationError};

use crate::{
    rpc::Transport,
    xdr::{Opaque, xdr_struct},
};

/// The port mapper's program number.
pub const PROGRAM: u32 = 100_000;
/// The port mapper's port.
pub const PORT: u16 = 111;
/// Longest transport name, universal address or owner in a message.
const TEXT_MAX_BYTES: usize = 255;

type Text = Opaque<TEXT_MAX_BYTES>;

/// A program that listens on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mapping {
    /// The program number.
    pub program: u32,
    /// The version.
    pub version: u32,
    /// How it is reached.
    pub transport: Transport,
    /// The port.
    pub port: u16,
}

xdr_struct! {
    /// A mapping of version 2.
    struct WireMapping {
        program: u32,
        version: u32,
        /// 6 TCP, 17 UDP.
        protocol: u32,
        port: u32,
    }

    /// A mapping of versions 3 and 4.
    struct WireBinding {
        program: u32,
        version: u32,
        network: Text,
        address: Text,
        owner: Text,
    }
}

const PROTOCOL_TCP: u32 = 6;
const PROTOCOL_UDP: u32 = 17;

fn protocol_number(transport: Transport) -> u32 {
    match transport {
        Transport::Tcp => PROTOCOL_TCP,
        Transport::Udp => PROTOCOL_UDP,
    }
}

/// The names of a transport over IPv4 and over IPv6, each with the address that means "any".
fn networks(transport: Transport) -> [(&'static str, &'static str); 2] {
    match transport {
        Transport::Tcp => [("tcp", "0.0.0.0"), ("tcp6", "::")],
        Transport::Udp => [("udp", "0.0.0.0"), ("udp6", "::")],
    }
}

fn universal_address(host: &str, port: u16) -> String {
    format!("{host}.{}.{}", port >> 8, port & 0xff)
}

/// Host and port of a universal address.
fn parse_universal(address: &[u8]) -> Option<(&str, u16)> {
    let text = std::str::from_utf8(address).ok()?;
    let (rest, low) = text.rsplit_once('.')?;
    let (host, high) = rest.rsplit_once('.')?;
    let (high, low): (u8, u8) = (high.parse().ok()?, low.parse().ok()?);
    Some((host, u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn universal_addresses_convert_both_ways() {
        for (host, port) in [
            ("0.0.0.0", 2049),
            ("::", 111),
            ("192.0.2.1", 65_535),
            ("fe80::1", 0),
        ] {
            assert_eq!(
                parse_universal(universal_address(host, port).as_bytes()),
                Some((host, port))
            );
        }
    }

    #[test]
    fn what_is_no_universal_address_is_refused() {
        for text in ["", "8.1", "0.0.0.0.256.1", "0.0.0.0.1.-1"] {
            assert_eq!(parse_universal(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_universal(&[0xff, b'.', b'1', b'.', b'1']), None);
    }
}

//! Client networks: who an export rule is about.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// A set of client addresses: everyone, or those that share a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClientNetwork {
    /// Every address, IPv4 or IPv6.
    Everyone,
    /// An IPv4 prefix.
    V4 {
        /// The address; bits behind the prefix are zero.
        address: Ipv4Addr,
        /// 0 to 32.
        prefix_bits: u8,
    },
    /// An IPv6 prefix.
    V6 {
        /// The address; bits behind the prefix are zero.
        address: Ipv6Addr,
        /// 0 to 128.
        prefix_bits: u8,
    },
}

/// The text is no client network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no client network: write `*`, an address, or address/bits with nothing behind the bits (such as {example})"
)]
pub struct NetworkSyntax {
    text: String,
    example: &'static str,
}

impl ClientNetwork {
    /// Whether `address` belongs to it. IPv4 addresses mapped into IPv6 count as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self, address.to_canonical()) {
            (Self::Everyone, _) => true,
            (Self::V4 { address, prefix_bits }, IpAddr::V4(candidate)) => {
                masked_v4(candidate, *prefix_bits) == *address
            }
            (Self::V6 { address, prefix_bits }, IpAddr::V6(candidate)) => {
                masked_v6(candidate, *prefix_bits) == *address
            }
            (Self::V4 { .. }, IpAddr::V6(_)) | (Self::V6 { .. }, IpAddr::V4(_)) => false,
        }
    }

    /// Whether all addresses of `other` belong to it.
    pub fn includes(&self, other: &Self) -> bool {
        let begins_in_it = match other {
            Self::Everyone => *self == Self::Everyone,
            Self::V4 { address, .. } => self.contains((*address).into()),
            Self::V6 { address, .. } => self.contains((*address).into()),
        };
        begins_in_it && self.specificity() <= other.specificity()
    }

    /// How narrow it is: of several that contain an address, the one with the highest number is meant.
    pub fn specificity(&self) -> u16 {
        match self {
            Self::Everyone => 0,
            Self::V4 { prefix_bits, .. } | Self::V6 { prefix_bits, .. } => 1 + u16::from(*prefix_bits),
        }
    }
}

fn masked_v4(address: Ipv4Addr, prefix_bits: u8) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix_bits)).unwrap_or(0);
    Ipv4Addr::from_bits(address.to_bits() & mask)
}

fn masked_v6(address: Ipv6Addr, prefix_bits: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix_bits)).unwrap_or(0);
    Ipv6Addr::from_bits(address.to_bits() & mask)
}

impl FromStr for ClientNetwork {
    type Err = NetworkSyntax;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let syntax = || NetworkSyntax {
            text: text.to_owned(),
            example: "10.0.0.0/8",
        };
        if text == "*" {
            return Ok(Self::Everyone);
        }
        let (address, bits) = text
            .split_once('/')
            .map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| syntax())?;
        let widest = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = bits.map_or(Ok(widest), str::parse).map_err(|_| syntax())?;
        if prefix_bits > widest {
            return Err(syntax());
        }
        // Bits behind the prefix are a typing error more often than a wish.
        match address {
            IpAddr::V4(address) if masked_v4(address, prefix_bits) == address => {
                Ok(Self::V4 { address, prefix_bits })
            }
            IpAddr::V6(address) if masked_v6(address, prefix_bits) == address => {
                Ok(Self::V6 { address, prefix_bits })
            }
            IpAddr::V4(_) | IpAddr::V6(_) => Err(syntax()),
        }
    }
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everyone => out.write_str("*"),
            Self::V4 { address, prefix_bits } => write!(out, "{address}/{prefix_bits}"),
            Self::V6 { address, prefix_bits } => write!(out, "{address}/{prefix_bits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> ClientNetwork {
        text.parse().expect("a network")
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_prefix_contains_its_addresses_and_no_others() {
        assert!(network("10.1.0.0/16").contains(address("10.1.255.1")));
        assert!(!network("10.1.0.0/16").contains(address("10.2.0.1")));
        assert!(network("0.0.0.0/0").contains(address("192.0.2.1")));
        assert!(network("192.0.2.7").contains(address("192.0.2.7")));
        assert!(!network("192.0.2.7").contains(address("192.0.2.6")));
        assert!(network("2001:db8::/32").contains(address("2001:db8:1::1")));
        assert!(!network("2001:db8::/32").contains(address("2001:db9::1")));
        assert!(network("::/0").contains(address("::1")));
    }

    #[test]
    fn ipv4_over_an_ipv6_socket_is_ipv4() {
        assert!(network("10.0.0.0/8").contains(address("::ffff:10.0.0.1")));
        assert!(!network("::/0").contains(address("::ffff:10.0.0.1")));
        assert!(network("*").contains(address("::ffff:10.0.0.1")));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in [
            "",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "::/129",
            "office",
            "10.0.0.0/",
            "10.0.0.0/x",
            "/8",
        ] {
            assert!(text.parse::<ClientNetwork>().is_err(), "{text}");
        }
    }

    #[test]
    fn text_and_network_convert_both_ways() {
        for text in ["*", "10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32"] {
            assert_eq!(network(text).to_string(), text);
        }
    }
}

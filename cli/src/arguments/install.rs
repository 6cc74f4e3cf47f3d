//! The command line of what is printed for a machine that becomes an edge.

use clap::{Args, ValueEnum};
use std::{net::IpAddr, path::PathBuf};

/// `firn edge install`.
#[derive(Debug, Args)]
pub struct Install {
    /// What the edge is called. One that was invited on this machine and has not joined yet is taken up, else it is invited.
    pub name: String,
    /// A volume that it will serve; may be given several times. Needed where it is not invited yet.
    #[arg(long = "volume", value_name = "VOLUME")]
    pub volumes: Vec<String>,
    /// A network whose machines may mount, such as 10.1.0.0/16; may be given several times.
    #[arg(long, value_name = "NETWORK", required = true, value_parser = network)]
    pub clients: Vec<String>,
    /// The directory in which the packages lie there (with --container: the image, and the program firn).
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    pub packages: String,
    /// For a machine with podman or docker instead of Debian's packages.
    #[arg(long)]
    pub container: bool,
    /// Where a volume lies, as volume.store of an edge, if the service does not keep it: URL, or VOLUME=URL where there are several.
    #[arg(long = "store", value_name = "[VOLUME=]URL")]
    pub stores: Vec<String>,
    /// Whose credentials open the stores: the service's, or the office's own in /etc/firn/credentials. By default the service's for what it
    /// keeps, and the office's for --store.
    #[arg(long, value_enum)]
    pub credentials: Option<Credentials>,
    /// Writes the join secret into this new file instead of showing it.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

/// As `volume.credentials` of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Credentials {
    Service,
    Environment,
}

fn network(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is no network; write it as 10.1.0.0/16 or fd00:1::/64");
    let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let bits: u8 = bits.parse().map_err(|_| wrong())?;
    let bits_max = if address.is_ipv4() { 32 } else { 128 };
    if bits > bits_max {
        return Err(wrong());
    }
    Ok(format!("{address}/{bits}"))
}

#[cfg(test)]
mod tests {
    use super::network;

    #[test]
    fn a_network_is_an_address_with_the_bits_that_count() {
        assert_eq!(network("10.1.0.0/16").as_deref(), Ok("10.1.0.0/16"));
        assert_eq!(network("FD00:1::/64").as_deref(), Ok("fd00:1::/64"));
        for wrong in [
            "",
            "10.1.0.0",
            "10.1.0.0/33",
            "10.1/16",
            "office/24",
            "10.0.0.0/8; reboot",
            "::/129",
        ] {
            assert!(network(wrong).is_err(), "{wrong}");
        }
    }
}

//! Fitness of the way to each host: its name, IPv4 and IPv6, what a connection takes, and the MTU of the interface it leaves by.

use super::{
    Subject,
    hosts::{self, Host},
};
use crate::finding::Finding;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

const SUBJECT: &str = "network";
/// Three SYNs have been lost.
const CONNECTING: Duration = Duration::from_secs(7);
/// Addresses of one name that are tried: large providers give a dozen of each kind.
const ADDRESSES_MAX: usize = 4;
/// A connection that takes longer makes each request for what is not cached felt.
const FAR: Duration = Duration::from_millis(300);
/// The least that IPv6 allows, and below what any tunnel leaves.
const MTU_LEAST: u32 = 1280;

pub async fn look(subject: &Subject<'_>) -> Vec<Finding> {
    let hosts = hosts::all(subject);
    if hosts.is_empty() {
        return vec![Finding::fine(
            SUBJECT,
            "store and table are on this machine: no other is asked",
        )];
    }
    let mut found = Vec::new();
    for host in &hosts {
        found.push(way(subject, host).await);
    }
    found
}

/// A proxy that requests to other machines go through.
fn proxy(address: &str) -> Option<String> {
    let is_own =
        address.starts_with("127.") || address.starts_with("[::1]") || address.starts_with("localhost");
    let names = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let set = names
        .iter()
        .find(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    set.filter(|_| !is_own).map(|name| (*name).to_owned())
}

async fn way(subject: &Subject<'_>, host: &Host) -> Finding {
    let what = format!("{} {}", host.what, host.base);
    let Some(address) = host.address() else {
        return Finding::not_seen(SUBJECT, format!("{what}: no host"));
    };
    if let Some(variable) = proxy(&address) {
        return Finding::not_seen(
            SUBJECT,
            format!("{what}: {variable} names a proxy, which knows the way"),
        );
    }
    let env = subject.env;
    let began = env.now();
    let looked_up = env
        .timeout(CONNECTING, tokio::net::lookup_host(address.clone()))
        .await;
    let addresses: Vec<SocketAddr> = match looked_up {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(error)) => return unknown(&what, &error),
        Err(elapsed) => return unknown(&what, &elapsed),
    };
    let resolving = env.now().since(began);
    let (mut ways, mut failures) = (Vec::new(), Vec::new());
    let mut nearest: Option<(Duration, SocketAddr)> = None;
    for (version, is_of) in [
        ("IPv4", SocketAddr::is_ipv4 as fn(&SocketAddr) -> bool),
        ("IPv6", SocketAddr::is_ipv6),
    ] {
        let mut failed = None;
        for address in addresses
            .iter()
            .filter(|address| is_of(address))
            .take(ADDRESSES_MAX)
        {
            let began = env.now();
            let connected = env
                .timeout(CONNECTING, env.network().connect(&address.to_string()))
                .await;
            let took = env.now().since(began);
            match connected {
                Ok(Ok(_)) => {
                    ways.push(format!("{version} {:.1} ms", took.as_secs_f64() * 1e3));
                    if nearest.is_none_or(|(least, _)| took < least) {
                        nearest = Some((took, *address));
                    }
                    failed = None;
                    break;
                }
                Ok(Err(error)) => failed = Some(format!("{version} {address}: {error}")),
                Err(_) => {
                    failed = Some(format!(
                        "{version} {address}: no answer within {} s",
                        CONNECTING.as_secs()
                    ));
                }
            }
        }
        failures.extend(failed);
    }
    let Some((took, address)) = nearest else {
        let to_do = match addresses.iter().any(SocketAddr::is_ipv4) {
            true => "check route, DNS and what the firewalls on the way let out (TCP to this port)",
            false => {
                "the host has only IPv6 addresses: give this machine IPv6, or use an endpoint that has IPv4"
            }
        };
        return Finding::fails(SUBJECT, format!("{what}: {}", failures.join("; ")), to_do);
    };
    let mtu = mtu(address.ip());
    let shown = mtu.as_ref().map_or(String::new(), |(interface, mtu)| {
        format!(", by {interface} with an MTU of {mtu}")
    });
    let said = format!(
        "{what}: a connection takes {}{shown}, its name {:.1} ms",
        ways.join(", "),
        resolving.as_secs_f64() * 1e3
    );
    let finding = if let Some((interface, small)) = mtu.as_ref().filter(|(_, mtu)| *mtu < MTU_LEAST) {
        Finding::hurts(
            SUBJECT,
            format!("{said}: less than {MTU_LEAST} is no MTU of a healthy line ({small})"),
            format!("ip link set {interface} mtu 1500, or what the line really carries"),
        )
    } else if !failures.is_empty() {
        Finding::hurts(
            SUBJECT,
            format!("{said}; but {}", failures.join("; ")),
            "mend that route, or remove the address from this machine: requests that try it first lose time",
        )
    } else if took > FAR {
        Finding::hurts(
            SUBJECT,
            format!("{said}: whatever is not cached waits as long"),
            "use a region that is nearer, or a larger limits.disk_cache",
        )
    } else {
        Finding::fine(SUBJECT, said)
    };
    finding
        .figure("connect_us", took.as_micros() as u64)
        .figure("mtu_bytes", mtu.map(|(_, mtu)| mtu))
}

fn unknown(what: &str, error: &dyn std::fmt::Display) -> Finding {
    Finding::fails(
        SUBJECT,
        format!("{what}: its name is not known: {error}"),
        "correct the name, or /etc/resolv.conf",
    )
}

/// The interface that packets to `to` leave by, with its MTU.
fn mtu(to: IpAddr) -> Option<(String, u32)> {
    let interface = match to {
        _ if to.is_loopback() => "lo".to_owned(),
        IpAddr::V4(to) => interface_v4(&std::fs::read_to_string("/proc/net/route").ok()?, to)?,
        // The routes of IPv6 name many; the one of the default route is the one of other machines.
        IpAddr::V6(_) => interface_v6(&std::fs::read_to_string("/proc/net/ipv6_route").ok()?)?,
    };
    let mtu = std::fs::read_to_string(format!("/sys/class/net/{interface}/mtu")).ok()?;
    Some((interface, mtu.trim().parse().ok()?))
}

fn interface_v4(routes: &str, to: Ipv4Addr) -> Option<String> {
    let bits = u32::from_ne_bytes(to.octets());
    let parsed = routes.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
        Some(((*fields.first()?).to_owned(), number(1)?, number(7)?))
    });
    parsed
        .filter(|(_, destination, mask)| bits & mask == *destination)
        .max_by_key(|(_, _, mask)| mask.count_ones())
        .map(|(interface, _, _)| interface)
}

fn interface_v6(routes: &str) -> Option<String> {
    let any = "0".repeat(32);
    let mut lines = routes
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let default =
        lines.find(|fields| fields.first() == Some(&any.as_str()) && fields.last() != Some(&"lo"))?;
    default.last().map(|name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_route_names_the_interface() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                      eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                      tun0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n";
        assert_eq!(
            interface_v4(routes, [10, 1, 2, 3].into()).as_deref(),
            Some("tun0")
        );
        assert_eq!(interface_v4(routes, [9, 9, 9, 9].into()).as_deref(), Some("eth0"));
        assert_eq!(interface_v4("Iface\n", [9, 9, 9, 9].into()), None);
    }
}

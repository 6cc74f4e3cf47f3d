//! Asking another host's port mapper.

use super::{PORT, PROGRAM, WireMapping, program::GET_PORT, protocol_number};
use crate::rpc::{CallError, Client, Credential, Target, Transport, call_datagram};
use firn_env::Env;
use std::{net::IpAddr, net::SocketAddr, time::Duration};

/// Datagrams sent before TCP is tried.
const TRIES: u32 = 3;
/// Between them; a port mapper on the same site answers within milliseconds.
const INTERVAL: Duration = Duration::from_secs(1);

/// The port on which `host` serves a program; `None` if its port mapper knows no such program.
///
/// Asks by datagram first, as every port mapper listens for these, then over TCP, for networks that drop datagrams.
///
/// # Errors
/// If the host's port mapper does not answer.
pub async fn port_of(
    env: &Env,
    host: IpAddr,
    program: u32,
    version: u32,
    transport: Transport,
) -> Result<Option<u16>, CallError> {
    let asked = WireMapping {
        program,
        version,
        protocol: protocol_number(transport),
        port: 0,
    };
    let target = Target {
        program: PROGRAM,
        version: 2,
        credential: Credential::None,
    };
    let address = SocketAddr::new(host, PORT).to_string();
    let by_datagram = call_datagram(env, &address, &target, GET_PORT, &asked, TRIES, INTERVAL).await;
    let mut results = match by_datagram {
        Err(CallError::TimedOut(_) | CallError::Io(_)) => {
            let client = Client::connect(env, &address, INTERVAL * TRIES).await?;
            client.call(&target, GET_PORT, &asked).await?
        }
        answered => answered?,
    };
    // Zero means "not registered"; more than a port is a broken port mapper, which comes to the same.
    Ok(u16::try_from(results.u32()?).ok().filter(|port| *port != 0))
}

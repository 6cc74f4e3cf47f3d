//! Calling a program on a client: its port mapper says where, then by stream, or by datagram where it listens to no other.
//!
//! For locks it matters whether a call that brought no reply may have been executed; [`RemoteError`] tells.

use crate::{
    portmap::port_of,
    rpc::{CallError, Client, Target, Transport, call_datagram},
    xdr::{Decoder, Encode},
};
use firn_env::Env;
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// How long one try waits for a reply. Lock managers and status monitors answer from memory.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Datagrams sent within that time.
const DATAGRAMS: u32 = 3;

/// A call of a client's program that brought no results.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteError {
    /// The client's port mapper does not answer, so the program was not called.
    #[error("its port mapper: {0}")]
    PortMapper(#[source] CallError),
    /// The program does not run there.
    #[error("its port mapper knows no such program")]
    NotRegistered,
    /// The program was not called, or did not execute the call.
    #[error("not delivered: {0}")]
    NotExecuted(#[source] CallError),
    /// The program may have executed the call.
    #[error("not answered: {0}")]
    Unanswered(#[source] CallError),
}

impl RemoteError {
    /// Whether the call may have been executed.
    pub(crate) fn may_be_executed(&self) -> bool {
        match self {
            Self::Unanswered(_) => true,
            Self::PortMapper(_) | Self::NotRegistered | Self::NotExecuted(_) => false,
        }
    }

    fn of_call(error: CallError) -> Self {
        match error {
            CallError::Refused(_) => Self::NotExecuted(error),
            CallError::Io(_) | CallError::TimedOut(_) | CallError::Malformed(_) => Self::Unanswered(error),
        }
    }
}

/// Calls a procedure of `target` on `host`.
pub(crate) async fn call(
    env: &Env,
    host: IpAddr,
    target: &Target,
    procedure: u32,
    arguments: &(impl Encode + Sync),
) -> Result<Decoder, RemoteError> {
    let port = |transport| port_of(env, host, target.program, target.version, transport);
    let by_stream = port(Transport::Tcp).await.map_err(RemoteError::PortMapper)?;
    let mut failed = None;
    if let Some(port) = by_stream {
        let address = SocketAddr::new(host, port).to_string();
        match Client::connect(env, &address, TIMEOUT).await {
            Ok(client) => {
                let called = client.call(target, procedure, arguments).await;
                return called.map_err(RemoteError::of_call);
            }
            Err(error) => failed = Some(error),
        }
    }
    let by_datagram = port(Transport::Udp).await.map_err(RemoteError::PortMapper)?;
    let Some(port) = by_datagram else {
        return Err(failed.map_or(RemoteError::NotRegistered, RemoteError::NotExecuted));
    };
    let address = SocketAddr::new(host, port).to_string();
    let interval = TIMEOUT / DATAGRAMS;
    let called = call_datagram(env, &address, target, procedure, arguments, DATAGRAMS, interval).await;
    called.map_err(RemoteError::of_call)
}

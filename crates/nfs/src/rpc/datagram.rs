//! Calls by datagram: one message each, no connection, no order, no retransmission by us.
//!
//! Anybody can send a datagram in another's name, and the reply goes to that other. So strangers get no reply at all, and
//! nobody one that is much larger than the call: who wants a list asks by stream, where the address is proven.

use super::{
    Peer, PeerRules, Programs, Transport,
    dispatch::{Accepted, AcceptedCall, refusal},
};
use bytes::Bytes;
use firn_env::{DatagramSocket, Env, LogLimiter, RequestInFlight};
use futures::{FutureExt, future, pin_mut};
use std::{io, sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tracing::{debug, warn};

/// The largest datagram, and so the largest call.
const RECEIVE_BYTES: usize = 65_536;
/// The largest reply: what IPv4 carries after the IP and UDP heads.
const SEND_MAX_BYTES: usize = 65_507;
/// How many times larger than the call a reply may be. MNT with its handle is the largest that clients ask for: twice.
const AMPLIFICATION_MAX: usize = 3;
/// Calls executed at once; further ones wait in the socket's buffer, and are lost when that is full, as UDP allows.
const CALLS: usize = 64;
/// The pause after a failed receive, so that a broken socket does not spin.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Whose datagrams are read.
pub(super) struct Door {
    pub(super) rules: Arc<dyn PeerRules>,
    pub(super) strangers: Arc<LogLimiter>,
}

/// Where a reply goes, and how large it may be.
struct Caller {
    socket: Arc<dyn DatagramSocket>,
    address: String,
    call_bytes: usize,
    transaction: u32,
}

pub(super) async fn serve(
    env: Env,
    socket: Arc<dyn DatagramSocket>,
    programs: Arc<Programs>,
    door: Door,
    mut stop: watch::Receiver<bool>,
) {
    let slots = Arc::new(Semaphore::new(CALLS));
    let source = env.queue_depth().source();
    let mut buffer = vec![0; RECEIVE_BYTES];
    loop {
        let slot = slots
            .clone()
            .acquire_owned()
            .await
            .expect("slots are never closed");
        let received = {
            let (receiving, stopping) = (socket.receive(&mut buffer), stop.wait_for(|stop| *stop));
            pin_mut!(receiving, stopping);
            match future::select(stopping, receiving).await {
                future::Either::Left(_) => break,
                future::Either::Right((received, _)) => received,
            }
        };
        let (length, sender) = match received {
            Ok(received) => received,
            Err(error) => {
                // Linux reports here that an earlier reply found no listener; nothing is wrong with the socket then.
                if error.kind() != io::ErrorKind::ConnectionRefused {
                    debug!(%error, "a datagram could not be received");
                    env.sleep(ERROR_PAUSE).await;
                }
                continue;
            }
        };
        let peer = Peer::parse(&sender, Transport::Udp);
        if door.rules.connections_for(peer.address).is_none() {
            if let Some(count) = door.strangers.count(env.now()) {
                warn!(address = %peer.address, count, "nothing is exported to this address; its datagram was not answered");
            }
            continue;
        }
        let Some((transaction, _)) = buffer[..length].split_first_chunk() else {
            continue;
        };
        let caller = Caller {
            socket: socket.clone(),
            address: sender,
            call_bytes: length,
            transaction: u32::from_be_bytes(*transaction),
        };
        match programs.accept(Bytes::copy_from_slice(&buffer[..length]), peer) {
            Accepted::NotACall => {}
            Accepted::Answered(reply) => caller.send(reply.into_bytes()).await,
            Accepted::Call(call) => {
                let mut answer = Box::pin(answer(env.clone(), call, caller, (slot, source.request())));
                if answer.as_mut().now_or_never().is_none() {
                    drop(env.spawn("rpc datagram call", answer));
                }
            }
        }
    }
    // Calls in flight hold the other slots.
    let _ = slots.acquire_many(CALLS as u32).await;
}

async fn answer(env: Env, call: AcceptedCall, caller: Caller, held: (OwnedSemaphorePermit, RequestInFlight)) {
    if let Some(reply) = call.execute(&env).await {
        caller.send(reply.into_bytes()).await;
    }
    drop(held);
}

impl Caller {
    async fn send(&self, reply: Bytes) {
        let most = SEND_MAX_BYTES.min(AMPLIFICATION_MAX * self.call_bytes);
        let reply = if reply.len() > most {
            debug!(
                bytes = reply.len(),
                to = self.address,
                "a reply is too large for a datagram; by stream it would be sent"
            );
            refusal(self.transaction)
        } else {
            reply
        };
        // Lost or unsendable is the same to the caller: it asks again.
        if let Err(error) = self.socket.send(&reply, &self.address).await {
            debug!(%error, to = self.address, "a reply could not be sent");
        }
    }
}

//! Calls by datagram: one message each, no connection, no order, no retransmission by us.

use super::{
    Peer, Programs, Transport,
    dispatch::{Accepted, AcceptedCall},
};
use bytes::Bytes;
use firn_env::{DatagramSocket, Env};
use futures::{FutureExt, future, pin_mut};
use std::{io, sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tracing::debug;

/// The largest datagram, and so the largest call.
const RECEIVE_BYTES: usize = 65_536;
/// The largest reply: what IPv4 carries after the IP and UDP heads.
const SEND_MAX_BYTES: usize = 65_507;
/// Calls executed at once; further ones wait in the socket's buffer, and are lost when that is full, as UDP allows.
const CALLS: usize = 64;
/// The pause after a failed receive, so that a broken socket does not spin.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

pub(super) async fn serve(
    env: Env,
    socket: Arc<dyn DatagramSocket>,
    programs: Arc<Programs>,
    mut stop: watch::Receiver<bool>,
) {
    let slots = Arc::new(Semaphore::new(CALLS));
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
        let message = Bytes::copy_from_slice(&buffer[..length]);
        match programs.accept(message, Peer::parse(&sender, Transport::Udp)) {
            Accepted::NotACall => {}
            Accepted::Answered(reply) => send(&*socket, reply.into_bytes(), &sender).await,
            Accepted::Call(call) => {
                let mut answer = Box::pin(answer(env.clone(), call, socket.clone(), sender, slot));
                if answer.as_mut().now_or_never().is_none() {
                    drop(env.spawn("rpc datagram call", answer));
                }
            }
        }
    }
    // Calls in flight hold the other slots.
    let _ = slots.acquire_many(CALLS as u32).await;
}

async fn answer(
    env: Env,
    call: AcceptedCall,
    socket: Arc<dyn DatagramSocket>,
    sender: String,
    slot: OwnedSemaphorePermit,
) {
    if let Some(reply) = call.execute(&env).await {
        send(&*socket, reply.into_bytes(), &sender).await;
    }
    drop(slot);
}

async fn send(socket: &dyn DatagramSocket, reply: Bytes, to: &str) {
    if reply.len() > SEND_MAX_BYTES {
        debug!(bytes = reply.len(), to, "a reply is too large for a datagram");
        return;
    }
    // Lost or unsendable is the same to the caller: it asks again.
    if let Err(error) = socket.send(&reply, to).await {
        debug!(%error, to, "a reply could not be sent");
    }
}

//! The simulated network: byte streams between machines, with latency, partitions and resets.
//!
//! A stream's direction is a queue of chunks, each with the time at which it arrives; chunks keep their order. A partition
//! holds arrivals back until it heals, as TCP's retransmissions do. A machine that stops resets its connections. Reads
//! and writes are cut at random places, so that nobody relies on message boundaries.

pub(super) mod state;

use super::{
    executor::{Core, Shared, Sleep},
    handle::Handle,
};
use crate::{Listener, Network, network::ByteStream};
use async_trait::async_trait;
use bytes::{Buf, Bytes};
use state::{CONNECT_TIMEOUT, Connection, ListenerState, WINDOW_BYTES, address_of};
use std::{
    future::poll_fn,
    io::{self, ErrorKind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[async_trait]
impl Network for Handle {
    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>> {
        let mut core = self.shared.core();
        if !core.is_alive(self.machine, self.incarnation) {
            return Err(stopped());
        }
        let (machine, asked) = core.network.resolve(self.machine, address)?;
        if machine != self.machine {
            return Err(io::Error::from(ErrorKind::AddrNotAvailable));
        }
        let port = if asked == 0 {
            core.network.free_port()
        } else {
            asked
        };
        if core.network.listeners.contains_key(&(machine, port)) {
            return Err(io::Error::from(ErrorKind::AddrInUse));
        }
        core.network
            .listeners
            .insert((machine, port), ListenerState::default());
        Ok(Box::new(SimulatedListener {
            shared: self.shared.clone(),
            machine,
            incarnation: self.incarnation,
            port,
        }))
    }

    async fn connect(&self, address: &str) -> io::Result<Box<dyn ByteStream>> {
        let (machine, port) = self.shared.core().network.resolve(self.machine, address)?;
        let started = self.shared.core().now;
        loop {
            let latency = {
                let mut core = self.shared.core();
                let now = core.now;
                core.network.arrival(now) - now
            };
            self.sleep_for(Duration::from_nanos(latency)).await;
            if let Some(outcome) = self.try_connect(machine, port, started) {
                return outcome;
            }
            self.sleep_for(Duration::from_secs(1)).await;
        }
    }
}

impl Handle {
    /// `None`: the machine cannot be reached, and it is too early to give up.
    fn try_connect(
        &self,
        machine: usize,
        port: u16,
        started: u64,
    ) -> Option<io::Result<Box<dyn ByteStream>>> {
        let mut core = self.shared.core();
        let reachable = core.machines[machine].running && !core.network.is_cut(self.machine, machine);
        if reachable {
            return Some(match core.network.open(self.machine, machine, port) {
                Some(id) => Ok(Box::new(Stream::new(&self.shared, id, 0, self))),
                None => Err(io::Error::from(ErrorKind::ConnectionRefused)),
            });
        }
        let waited = Duration::from_nanos(core.now - started);
        (waited >= CONNECT_TIMEOUT).then(|| Err(io::Error::from(ErrorKind::TimedOut)))
    }
}

fn stopped() -> io::Error {
    io::Error::other("this machine is down")
}

struct SimulatedListener {
    shared: Arc<Shared>,
    machine: usize,
    incarnation: u64,
    port: u16,
}

#[async_trait]
impl Listener for SimulatedListener {
    async fn accept(&self) -> io::Result<(Box<dyn ByteStream>, String)> {
        let (id, peer) = poll_fn(|context| {
            let mut core = self.shared.core();
            if !core.is_alive(self.machine, self.incarnation) {
                return Poll::Pending;
            }
            let Some(listener) = core.network.listeners.get_mut(&(self.machine, self.port)) else {
                return Poll::Ready(Err(stopped()));
            };
            match listener.waiting.pop_front() {
                Some(waiting) => Poll::Ready(Ok(waiting)),
                None => {
                    listener.accepting = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await?;
        let handle = Handle {
            shared: self.shared.clone(),
            machine: self.machine,
            incarnation: self.incarnation,
        };
        Ok((Box::new(Stream::new(&self.shared, id, 1, &handle)), peer))
    }

    fn address(&self) -> String {
        format!("{}:{}", address_of(self.machine), self.port)
    }
}

impl Drop for SimulatedListener {
    fn drop(&mut self) {
        let mut core = self.shared.core();
        if core.is_alive(self.machine, self.incarnation) {
            let network = &mut core.network;
            let unaccepted = network.listeners.remove(&(self.machine, self.port));
            for (id, _) in unaccepted.into_iter().flat_map(|listener| listener.waiting) {
                if let Some(connection) = network.connections.get_mut(&id) {
                    connection.reset = true;
                    connection.wake();
                }
            }
        }
    }
}

/// One end of a connection.
struct Stream {
    shared: Arc<Shared>,
    id: u64,
    end: usize,
    machine: usize,
    incarnation: u64,
    arrival: Option<Pin<Box<Sleep>>>,
}

impl Stream {
    fn new(shared: &Arc<Shared>, id: u64, end: usize, handle: &Handle) -> Self {
        Self {
            shared: shared.clone(),
            id,
            end,
            machine: handle.machine,
            incarnation: handle.incarnation,
            arrival: None,
        }
    }
}

fn connection(core: &mut Core, id: u64) -> io::Result<&mut Connection> {
    match core.network.connections.get_mut(&id) {
        Some(connection) if !connection.reset => Ok(connection),
        _ => Err(io::Error::from(ErrorKind::ConnectionReset)),
    }
}

enum Read {
    Done,
    At(u64),
    Waiting,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let outcome = {
                let shared = self.shared.clone();
                let mut core = shared.core();
                if !core.is_alive(self.machine, self.incarnation) {
                    return Poll::Pending;
                }
                let now = core.now;
                let cut = core.network.random.draw();
                let ends = connection(&mut core, self.id)?.ends;
                let partitioned = core.network.is_cut(ends[0], ends[1]);
                let pipe = &mut connection(&mut core, self.id)?.pipes[1 - self.end];
                match pipe.chunks.front_mut() {
                    _ if buffer.remaining() == 0 => Read::Done,
                    Some((arrival, chunk)) if *arrival <= now && !partitioned => {
                        let most = chunk.len().min(buffer.remaining());
                        // Half of the reads gets all there is, the others less.
                        let count = if cut & 1 == 0 {
                            most
                        } else {
                            1 + (cut >> 1) as usize % most
                        };
                        buffer.put_slice(&chunk[..count]);
                        chunk.advance(count);
                        pipe.in_flight_bytes -= count;
                        if chunk.is_empty() {
                            pipe.chunks.pop_front();
                        }
                        if let Some(waker) = pipe.writer.take() {
                            waker.wake();
                        }
                        Read::Done
                    }
                    Some((arrival, _)) if !partitioned => Read::At(*arrival),
                    None if pipe.finished && !partitioned => Read::Done,
                    _ => {
                        pipe.reader = Some(context.waker().clone());
                        Read::Waiting
                    }
                }
            };
            match outcome {
                Read::Done => return Poll::Ready(Ok(())),
                Read::Waiting => return Poll::Pending,
                Read::At(arrival) => {
                    let now = self.shared.core().now;
                    let (shared, machine, incarnation) =
                        (self.shared.clone(), self.machine, self.incarnation);
                    let wait = Duration::from_nanos(arrival.saturating_sub(now));
                    let sleep = self
                        .arrival
                        .insert(Box::pin(Sleep::new(shared, machine, incarnation, wait)));
                    if sleep.as_mut().poll(context).is_pending() {
                        // A reset must wake the reader as well.
                        let waker = context.waker().clone();
                        let mut core = self.shared.core();
                        connection(&mut core, self.id)?.pipes[1 - self.end].reader = Some(waker);
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut core = self.shared.core();
        if !core.is_alive(self.machine, self.incarnation) {
            return Poll::Pending;
        }
        let now = core.now;
        let cut = core.network.random.draw();
        let arrival = core.network.arrival(now);
        let connection = connection(&mut core, self.id)?;
        if connection.closed[1 - self.end] || connection.closed[self.end] {
            return Poll::Ready(Err(io::Error::from(ErrorKind::BrokenPipe)));
        }
        let pipe = &mut connection.pipes[self.end];
        let room = WINDOW_BYTES - pipe.in_flight_bytes;
        if room == 0 {
            pipe.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let most = room.min(bytes.len());
        if most == 0 {
            return Poll::Ready(Ok(0));
        }
        let count = if cut & 3 != 0 {
            most
        } else {
            1 + (cut >> 2) as usize % most
        };
        pipe.last_arrival = pipe.last_arrival.max(arrival);
        pipe.chunks
            .push_back((pipe.last_arrival, Bytes::copy_from_slice(&bytes[..count])));
        pipe.in_flight_bytes += count;
        let reader = pipe.reader.take();
        core.mix(count as u64);
        drop(core);
        if let Some(waker) = reader {
            waker.wake();
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut core = self.shared.core();
        let connection = connection(&mut core, self.id)?;
        let pipe = &mut connection.pipes[self.end];
        pipe.finished = true;
        if let Some(waker) = pipe.reader.take() {
            waker.wake();
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.core().network.close(self.id, self.end);
    }
}

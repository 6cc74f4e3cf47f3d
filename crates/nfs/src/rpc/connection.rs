//! One connection: a reader, a writer, and the calls in flight between them.
//!
//! ```text
//! stream → reader ──(slot, request bytes, reply bytes)──→ call ──→ queue → writer → stream
//! ```
//!
//! The reader takes, in this order, request bytes for each fragment, a slot and reply bytes for each call, and waits when
//! one of them is used up: that stops reading, and TCP stops the client. All three are given back only when the reply is
//! written (or there is none), so a client that does not read its replies stops being read. Replies leave in the order in
//! which calls end. A call survives its connection: what a client asked for happens though it has gone.
//!
//! Small calls run where they were read: most end at once, from memory; the others share the reader's task ([`calls`]).
//!
//! [`calls`]: super::calls
//!
//! A watchdog ends connections that are idle, that stop in the middle of a record, or that take no replies.

use super::{
    Peer, Programs,
    budget::{Charge, Share},
    calls::Calls,
    dispatch::{Accepted, AcceptedCall},
    record::{RecordError, RecordReader, Step, marker, write_all_vectored},
};
use crate::xdr::Encoder;
use bytes::Bytes;
use firn_env::{ByteStream, Env, Monotonic};
use futures::{FutureExt, future, pin_mut};
use std::{
    io::IoSlice,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
};
use tracing::debug;

/// Calls and replies up to this size run in the reader's own task. Larger ones copy for so long that reading
/// on in parallel is worth a task.
const INLINE_MAX_BYTES: usize = 32 << 10;
/// Segments in one vectored write: the kernel takes up to 1024, and half of a reply's are small.
const WRITE_SEGMENTS: usize = 256;
/// Enough for one write to fill a socket buffer.
const WRITE_BYTES: usize = 1 << 20;

/// What a connection may use.
pub(super) struct Allowance {
    pub(super) record_bytes: usize,
    pub(super) calls: usize,
    pub(super) requests: Share,
    pub(super) replies: Share,
    pub(super) idle: Duration,
    pub(super) stall: Duration,
    pub(super) drain: Duration,
}

/// A reply on its way out, with everything it holds.
struct Outgoing {
    marker: [u8; 4],
    segments: Vec<Bytes>,
    _held: Held,
}

/// What a call holds until its reply is written.
struct Held {
    _slot: OwnedSemaphorePermit,
    _request: Vec<Charge>,
    _reply: Charge,
}

/// Progress as the watchdog sees it, in nanoseconds of the monotonic clock.
#[derive(Default)]
struct Activity {
    last_call: AtomicU64,
    last_reply: AtomicU64,
    /// Since when the rest of a record has been awaited; zero while none is.
    record_began: AtomicU64,
    /// Zero while nothing is being written.
    write_began: AtomicU64,
}

impl Activity {
    fn awaits_rest_of_record(&self, inside: bool, now: Monotonic) {
        if !inside {
            self.record_began.store(0, Relaxed);
        } else if self.record_began.load(Relaxed) == 0 {
            self.record_began.store(now.0.max(1), Relaxed);
        }
    }
}

/// Serves a connection until it ends or `stop` becomes true, then lets the calls in flight end and their replies leave.
pub(super) async fn serve(
    env: Env,
    stream: Box<dyn ByteStream>,
    peer: Peer,
    programs: Arc<Programs>,
    allowance: Allowance,
    mut stop: watch::Receiver<bool>,
) {
    let activity = Arc::new(Activity::default());
    activity.last_call.store(env.now().0, Relaxed);
    let (read_half, write_half) = tokio::io::split(stream);
    // Each reply in the queue holds a slot, so sending never finds it full; two more for refusals in between.
    let (queue, outgoing) = mpsc::channel(allowance.calls + 2);
    let mut writer = env.spawn(
        "rpc writer",
        write_replies(env.clone(), write_half, outgoing, activity.clone()),
    );
    let slots = Arc::new(Semaphore::new(allowance.calls));
    {
        let reading = read_calls(
            &env, read_half, peer, &programs, &allowance, &slots, queue, &activity,
        );
        let stopping = stop.wait_for(|stop| *stop);
        let watching = watch_activity(&env, &allowance, &slots, &activity);
        pin_mut!(reading, stopping, watching);
        match future::select(future::select(reading, stopping), watching).await {
            future::Either::Left((future::Either::Left((ended, _)), _)) => match ended {
                Ok(()) => debug!(?peer, "connection closed by the client"),
                Err(error) => debug!(?peer, %error, "connection closed"),
            },
            future::Either::Left((future::Either::Right(_), _)) => {
                debug!(?peer, "connection closed by shutdown");
            }
            future::Either::Right((reason, _)) => {
                debug!(?peer, reason, "connection closed");
                writer.abort();
            }
        }
    }
    // The reader's end of the queue is gone; the writer ends after the last call in flight.
    if env.timeout(allowance.drain, &mut writer).await.is_err() {
        debug!(?peer, "replies left unsent");
        writer.abort();
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "the parts of one connection, borrowed separately"
)]
async fn read_calls(
    env: &Env,
    stream: impl AsyncRead + Unpin,
    peer: Peer,
    programs: &Arc<Programs>,
    allowance: &Allowance,
    slots: &Arc<Semaphore>,
    queue: mpsc::Sender<Outgoing>,
    activity: &Activity,
) -> Result<(), RecordError> {
    let mut records = RecordReader::new(stream, allowance.record_bytes);
    let mut charges = Vec::new();
    let mut calls = Calls::new(env);
    loop {
        let next = records.next(|inside| activity.awaits_rest_of_record(inside, env.now()));
        let step = calls.beside(next).await?;
        // What follows may wait for other calls to end, which is our doing and not the client's.
        activity.record_began.store(0, Relaxed);
        let message = match step {
            None => return Ok(()),
            Some(Step::NeedInput) => continue,
            Some(Step::Fragment { bytes }) => {
                charges.push(calls.beside(allowance.requests.charge(bytes)).await);
                continue;
            }
            Some(Step::Record(message)) => message,
        };
        activity.last_call.store(env.now().0, Relaxed);
        let slot = calls.beside(slots.clone().acquire_owned()).await;
        let slot = slot.expect("slots are never closed");
        let request = std::mem::take(&mut charges);
        let request_bytes = message.len();
        match programs.accept(message, peer) {
            Accepted::NotACall => return Ok(()),
            Accepted::Answered(reply) => {
                let held = Held {
                    _slot: slot,
                    _request: request,
                    _reply: calls.beside(allowance.replies.charge(reply.len())).await,
                };
                // A closed queue means the writer met an error; the reader meets it next.
                let _ = calls.beside(queue.send(Outgoing::new(reply, held))).await;
            }
            Accepted::Call(call) => {
                let reply_bytes = call.reply_bytes();
                let held = Held {
                    _slot: slot,
                    _request: request,
                    _reply: calls.beside(allowance.replies.charge(reply_bytes)).await,
                };
                let answer = answer(env.clone(), call, held, queue.clone());
                if request_bytes <= INLINE_MAX_BYTES && reply_bytes <= INLINE_MAX_BYTES {
                    let mut answer = answer.boxed();
                    if answer.as_mut().now_or_never().is_none() {
                        calls.push(answer);
                    }
                } else {
                    drop(env.spawn("rpc call", answer));
                }
            }
        }
    }
}

async fn answer(env: Env, call: AcceptedCall, held: Held, queue: mpsc::Sender<Outgoing>) {
    if let Some(reply) = call.execute(&env).await {
        // A closed queue: the connection was lost, the client will ask again on another.
        let _ = queue.send(Outgoing::new(reply, held)).await;
    }
}

impl Outgoing {
    fn new(reply: Encoder, held: Held) -> Self {
        Self {
            marker: marker(reply.len()),
            segments: reply.into_segments(),
            _held: held,
        }
    }
}

async fn write_replies(
    env: Env,
    mut stream: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Outgoing>,
    activity: Arc<Activity>,
) {
    let mut batch = Vec::new();
    while let Some(first) = queue.recv().await {
        let (mut segments, mut bytes) = (0, 0);
        let mut next = Some(first);
        while let Some(reply) = next {
            segments += reply.segments.len() + 1;
            bytes += reply.segments.iter().map(Bytes::len).sum::<usize>();
            batch.push(reply);
            let room = segments < WRITE_SEGMENTS && bytes < WRITE_BYTES;
            next = if room { queue.try_recv().ok() } else { None };
        }
        activity.write_began.store(env.now().0.max(1), Relaxed);
        let written = {
            let mut slices: Vec<IoSlice<'_>> = batch
                .iter()
                .flat_map(|reply| {
                    std::iter::once(&reply.marker[..])
                        .chain(reply.segments.iter().map(|segment| &segment[..]))
                })
                .map(IoSlice::new)
                .collect();
            write_all_vectored(&mut stream, &mut slices).await
        };
        activity.write_began.store(0, Relaxed);
        activity.last_reply.store(env.now().0, Relaxed);
        batch.clear();
        if written.is_err() {
            return;
        }
    }
    // A peer that is gone already needs no goodbye.
    let _ = stream.shutdown().await;
}

/// Returns why the connection must be ended.
async fn watch_activity(
    env: &Env,
    allowance: &Allowance,
    slots: &Semaphore,
    activity: &Activity,
) -> &'static str {
    let interval = (allowance.stall.min(allowance.idle) / 4).max(Duration::from_millis(10));
    loop {
        env.sleep(interval).await;
        let now = env.now();
        let age = |moment: u64| now.since(Monotonic(moment));
        let write_began = activity.write_began.load(Relaxed);
        if write_began != 0 && age(write_began) > allowance.stall {
            return "the client takes no replies";
        }
        let record_began = activity.record_began.load(Relaxed);
        if record_began != 0 && age(record_began) > allowance.stall {
            return "a record was not completed in time";
        }
        let in_flight = allowance.calls - slots.available_permits();
        let last = activity
            .last_call
            .load(Relaxed)
            .max(activity.last_reply.load(Relaxed));
        if in_flight == 0 && record_began == 0 && age(last) > allowance.idle {
            return "idle";
        }
    }
}

//! One connection: a reader, a writer, and the calls in flight between them.
//!
//! ```text
//! accepted ─ first record ─> stream → reader ──(slot, request bytes, reply bytes)──→ call ──→ queue → writer → stream
//! ```
//!
//! Until its first record is complete a connection has a few hundred bytes and a short limit, so that those that never say
//! anything cost little and not for long. Then the reader takes request bytes as a record comes in, a slot and reply bytes for
//! each call, and waits when one of them is used up: that stops reading, and TCP stops the client. All three are given back
//! only when the reply is written (or there is none), so a client that does not read its replies stops being read. Replies
//! leave in the order in which calls end. A call survives its connection: what a client asked for happens though it has gone.
//!
//! Small calls run where they were read: most end at once, from memory; the others share the reader's task ([`calls`]).
//!
//! [`calls`]: firn_env::Calls
//!
//! A watchdog ends connections that are idle, or too slow ([`activity`](super::activity)); the server ends those that have to
//! give way to others.

use super::{
    Peer, Programs,
    activity::{Activity, Pace},
    budget::{Budget, Charge, RecordCharge, Share},
    dispatch::{Accepted, AcceptedCall},
    record::{RecordError, RecordReader, Step, marker, write_all_vectored},
};
use crate::xdr::Encoder;
use bytes::Bytes;
use firn_env::{ByteStream, Calls, Env, InFlight, Monotonic, Place, RequestInFlight};
use futures::{FutureExt, future, pin_mut};
use std::{io::IoSlice, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt, ReadHalf},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
};
use tracing::debug;

/// Calls and replies up to this size run in the reader's own task. Larger ones copy for so long that reading on in parallel is worth a
/// task, if there is something to read: waking another thread takes as long as a good part of a mebibyte.
const INLINE_MAX_BYTES: usize = 32 << 10;
/// Segments in one vectored write: the kernel takes up to 1024, and half of a reply's are small.
const WRITE_SEGMENTS: usize = 256;
/// Enough for one write to fill a socket buffer.
const WRITE_BYTES: usize = 1 << 20;

type Stream = Box<dyn ByteStream>;

/// What a connection may use.
pub(super) struct Allowance {
    pub(super) record_bytes: usize,
    pub(super) calls: usize,
    pub(super) requests: Budget,
    pub(super) replies: Budget,
    pub(super) silent: Duration,
    pub(super) idle: Duration,
    pub(super) stall: Duration,
    pub(super) drain: Duration,
}

/// A connection as the server hands it over.
pub(super) struct Accepting {
    pub(super) env: Env,
    pub(super) peer: Peer,
    pub(super) programs: Arc<Programs>,
    pub(super) allowance: Allowance,
    pub(super) place: Place,
    pub(super) activity: Arc<Activity>,
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
    _request: (RecordCharge, Option<Charge>),
    _reply: Charge,
    _in_flight: (InFlight, RequestInFlight),
}

/// The receiving side.
struct Incoming {
    records: RecordReader<ReadHalf<Stream>>,
    requests: Share,
    /// Of the record that is being received.
    charge: RecordCharge,
}

/// Serves a connection until it ends, has to give way, or `stop` becomes true; then lets the calls in flight end and their
/// replies leave.
pub(super) async fn serve(accepting: Accepting, stream: Stream, mut stop: watch::Receiver<bool>) {
    let Accepting {
        env,
        peer,
        allowance,
        place,
        activity,
        ..
    } = &accepting;
    let (read_half, write_half) = tokio::io::split(stream);
    let mut incoming = Incoming {
        records: RecordReader::new(read_half, allowance.record_bytes),
        requests: allowance.requests.share(peer.address, allowance.record_bytes),
        charge: RecordCharge::default(),
    };
    let first = {
        let reading = incoming.next(env, activity, None);
        let stopping = stop.wait_for(|stop| *stop);
        let ending = ended_by_others(place, activity);
        let watching = watch_first(env, allowance, activity);
        pin_mut!(reading, stopping, ending, watching);
        let ended = future::select(future::select(ending, watching), stopping);
        match future::select(reading, ended).await {
            future::Either::Left((Ok(Some(first)), _)) => first,
            future::Either::Left((ended, _)) => {
                debug!(?peer, error = ?ended.err(), "connection closed before its first call");
                return;
            }
            future::Either::Right(_) => {
                debug!(?peer, "connection without a call closed");
                return;
            }
        }
    };
    // On the heap, and only now: silent connections are many.
    Box::pin(serve_calls(&accepting, incoming, write_half, first, stop)).await;
}

async fn serve_calls(
    accepting: &Accepting,
    incoming: Incoming,
    write_half: impl AsyncWrite + Send + Unpin + 'static,
    first: Bytes,
    mut stop: watch::Receiver<bool>,
) {
    let Accepting {
        env,
        peer,
        allowance,
        place,
        activity,
        ..
    } = accepting;
    // Each reply in the queue holds a slot, so sending never finds it full; two more for refusals in between.
    let (queue, outgoing) = mpsc::channel(allowance.calls + 2);
    let mut writer = env.spawn(
        "rpc writer",
        write_replies(env.clone(), write_half, outgoing, activity.clone()),
    );
    let slots = Arc::new(Semaphore::new(allowance.calls));
    {
        let reading = read_calls(accepting, incoming, first, &slots, queue);
        let stopping = stop.wait_for(|stop| *stop);
        let watching = watch_activity(env, allowance, &slots, activity);
        let ending = ended_by_others(place, activity);
        pin_mut!(reading, stopping, watching, ending);
        let cut = future::select(watching, ending).map(|cut| cut.factor_first().0);
        match future::select(future::select(reading, stopping), cut).await {
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

impl Incoming {
    /// The next record; `None` at the orderly end. Calls of `beside` go on meanwhile.
    async fn next(
        &mut self,
        env: &Env,
        activity: &Activity,
        mut beside: Option<&mut Calls>,
    ) -> Result<Option<Bytes>, RecordError> {
        loop {
            let next = self
                .records
                .next(|received| activity.record.has(received, env.now()));
            let step = match &mut beside {
                Some(calls) => calls.beside(next).await?,
                None => next.await?,
            };
            match step {
                None => return Ok(None),
                Some(Step::NeedInput) => {}
                Some(Step::Full { wanted_bytes }) => {
                    let began = (activity.record.pause(), env.now());
                    let growing = self.requests.grow(&mut self.charge, wanted_bytes);
                    match &mut beside {
                        Some(calls) => calls.beside(growing).await,
                        None => growing.await,
                    }
                    activity.record.resume(began.0, env.now().since(began.1));
                    self.records.grant(wanted_bytes);
                }
                Some(Step::Record(message)) => {
                    activity.record.end();
                    return Ok(Some(message));
                }
            }
        }
    }
}

async fn read_calls(
    accepting: &Accepting,
    mut incoming: Incoming,
    first: Bytes,
    slots: &Arc<Semaphore>,
    queue: mpsc::Sender<Outgoing>,
) -> Result<(), RecordError> {
    let Accepting {
        env,
        peer,
        programs,
        allowance,
        place,
        activity,
    } = accepting;
    let replies = allowance.replies.share(peer.address, allowance.record_bytes);
    let mut calls = Calls::new(env, "rpc calls");
    let source = env.queue_depth().source();
    let mut next = Some(first);
    while let Some(message) = next.take() {
        let now = env.now();
        activity.call(now);
        let in_flight = (place.request(now), source.request());
        let slot = calls.beside(slots.clone().acquire_owned()).await;
        let slot = slot.expect("slots are never closed");
        let received = std::mem::take(&mut incoming.charge);
        let small = if received.is_held() {
            None
        } else {
            // It was received at the connection's own cost; now that another may follow it, it counts.
            Some(calls.beside(incoming.requests.charge(message.len())).await)
        };
        let request_bytes = message.len();
        let (accepted, reply_bytes) = match programs.accept(message, *peer) {
            Accepted::NotACall => return Ok(()),
            Accepted::Answered(reply) => {
                let bytes = reply.len();
                (Err(reply), bytes)
            }
            Accepted::Call(call) => {
                let bytes = call.reply_bytes();
                (Ok(call), bytes)
            }
        };
        let held = Held {
            _slot: slot,
            _request: (received, small),
            _reply: calls.beside(replies.charge(reply_bytes)).await,
            _in_flight: in_flight,
        };
        match accepted {
            Err(reply) => {
                // A closed queue means the writer met an error; the reader meets it next.
                let _ = calls.beside(queue.send(Outgoing::new(reply, held))).await;
            }
            Ok(call) => {
                let answer = answer(env.clone(), call, held, queue.clone());
                let is_small = request_bytes <= INLINE_MAX_BYTES && reply_bytes <= INLINE_MAX_BYTES;
                if is_small || !incoming.records.has_more() {
                    calls.begin(answer.boxed());
                } else {
                    drop(env.spawn("rpc call", answer));
                }
            }
        }
        next = incoming.next(env, activity, Some(&mut calls)).await?;
    }
    Ok(())
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
        activity.writing.begin(env.now());
        let written = {
            let mut slices: Vec<IoSlice<'_>> = batch
                .iter()
                .flat_map(|reply| {
                    std::iter::once(&reply.marker[..])
                        .chain(reply.segments.iter().map(|segment| &segment[..]))
                })
                .map(IoSlice::new)
                .collect();
            write_all_vectored(&mut stream, &mut slices, |bytes| {
                activity.writing.moved(bytes, env.now());
            })
            .await
        };
        activity.writing.end();
        activity.reply(env.now());
        batch.clear();
        if written.is_err() {
            return;
        }
    }
    // A peer that is gone already needs no goodbye.
    let _ = stream.shutdown().await;
}

/// Completes when the server wants the connection to end.
async fn ended_by_others(place: &Place, activity: &Activity) -> &'static str {
    let (evicted, ended) = (place.evicted(), activity.ended());
    pin_mut!(evicted, ended);
    match future::select(evicted, ended).await {
        future::Either::Left(_) => "it gives way to another",
        future::Either::Right(_) => "it is slow, and others wait for the memory it holds",
    }
}

/// Completes when the first record is not there in time.
async fn watch_first(env: &Env, allowance: &Allowance, activity: &Activity) {
    let (silent, stall) = (allowance.silent, allowance.stall);
    let accepted = env.now();
    loop {
        env.sleep(interval(silent.min(stall))).await;
        let (now, received) = (env.now(), activity.record.bytes());
        let late = Pace::ordinary(silent).is_missed(accepted, received, now);
        let slow = activity.is_slow(Pace::ordinary(stall), now).is_some();
        if (late || slow) && !activity.record.is_paused() {
            return;
        }
    }
}

fn interval(limit: Duration) -> Duration {
    (limit / 4).max(Duration::from_millis(10))
}

/// Returns why the connection must be ended.
async fn watch_activity(
    env: &Env,
    allowance: &Allowance,
    slots: &Semaphore,
    activity: &Activity,
) -> &'static str {
    let pace = Pace::ordinary(allowance.stall);
    loop {
        env.sleep(interval(allowance.stall.min(allowance.idle))).await;
        let now: Monotonic = env.now();
        if let Some(reason) = activity.is_slow(pace, now) {
            return reason;
        }
        let in_flight = allowance.calls - slots.available_permits();
        let inside = activity.record.is_going_on();
        if in_flight == 0 && !inside && activity.quiet_for(now) > allowance.idle {
            return "idle";
        }
    }
}

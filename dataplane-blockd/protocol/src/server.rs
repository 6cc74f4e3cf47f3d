//! The node's end of a connection.
//!
//! ```text
//! stream → reader ──(request permit, byte permits)──→ session.call ──→ queue → writer → stream
//! ```
//!
//! The first frame must be a hello. After it the reader takes a permit for each request and its bytes (its own data, or what
//! its reply may carry) before it reads on; when they are used up it stops reading, and TCP stops the client. Permits come
//! back when the reply is written, so a client that does not take its replies is not read from either. The same bytes are charged
//! to the memory that all connections share ([`Budget`](crate::Budget)): those of a large frame when its first 16 KiB have
//! arrived, since a header that only announces them costs its sender nothing. Replies leave in the order in which requests end.
//! A request that was read happens even if its connection is lost meanwhile.
//!
//! A connection ends when the client hangs up, breaks the framing, stops in the middle of a frame, takes no replies, or says
//! nothing at all for too long. A request that cannot be understood is refused and ends nothing.

use crate::{
    Account, Charge, Frame, HelloReply, NodeId, Owner, PREVIOUS_VERSION, PROTOCOL_VERSION, Peer, Refusal,
    Reply, Request,
    cursor::DecodeError,
    frame::{FIRST_BYTES, FrameError, FrameReader},
    limits::{MAX_DATA_BYTES, MESSAGE_OVERHEAD_BYTES},
    message::{decode_request, encode_refusal, encode_reply, versions},
};
use async_trait::async_trait;
use firn_env::{ByteStream, Env, Monotonic, Watched};
use futures::{FutureExt, future, pin_mut};
use std::{
    io::{self, IoSlice},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tracing::debug;

/// Requests up to this size are tried at once in the reader's own task; larger ones copy for so long that reading on
/// beside them is worth a task.
const INLINE_MAX_BYTES: usize = 32 << 10;
/// Frames in one vectored write.
const WRITE_FRAMES: usize = 64;

/// What a node answers on one connection. Calls run at once; each may wait as long as it must.
#[async_trait]
pub trait Session: Send + Sync + 'static {
    /// Does what is asked. Never called with a hello.
    async fn call(&self, request: Request) -> Result<Reply, Refusal>;
}

/// A node, as its connections see it.
pub trait Service: Send + Sync + 'static {
    /// Who it is.
    fn node(&self) -> NodeId;
    /// Which start of it.
    fn incarnation(&self) -> u64;
    /// The memory that the connections of `peer` share with all others.
    fn memory(&self, peer: &Peer) -> Account<Owner>;
    /// A new connection from `peer`.
    fn open(&self, peer: &Peer) -> Arc<dyn Session>;
}

/// What one connection may use.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Requests in flight.
    pub requests: u32,
    /// Bytes in flight, by [`Request::in_flight_bytes`].
    pub bytes: u32,
    /// The longest a connection may be silent with nothing in flight.
    pub idle: Duration,
    /// The longest the rest of a frame, or the client's taking of a reply, may take.
    pub stall: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            requests: 256,
            bytes: 16 << 20,
            idle: Duration::from_secs(300),
            stall: Duration::from_secs(30),
        }
    }
}

/// What a connection has done, for metrics; shared by all connections of a node.
#[derive(Debug, Default)]
pub struct ServerUsage {
    /// Requests taken.
    pub requests: AtomicU64,
    /// Of these, refused.
    pub refused: AtomicU64,
    /// Frames that were no requests.
    pub malformed: AtomicU64,
    /// Connections open now.
    pub connections: AtomicU64,
}

/// What a request holds until its reply is written: of its connection a request and bytes, and memory of all.
type Held = (OwnedSemaphorePermit, OwnedSemaphorePermit, Charge<Owner>);

/// A reply on its way out, with what its request holds.
struct Outgoing {
    frame: Frame,
    _held: Option<Held>,
}

/// Moments as the watchdog sees them, in nanoseconds of the monotonic clock; zero: not now.
#[derive(Default)]
struct Activity {
    frame_began: AtomicU64,
    write_began: AtomicU64,
    last: AtomicU64,
}

impl Activity {
    /// A part of a frame is there, or a hello is due: the rest must come soon.
    fn awaits_rest(&self, due: bool, now: Monotonic) {
        if !due {
            self.frame_began.store(0, Relaxed);
        } else if self.frame_began.load(Relaxed) == 0 {
            self.frame_began.store(now.0.max(1), Relaxed);
        }
    }
}

/// Serves one connection until it ends or `stop` becomes true.
pub async fn serve(
    env: Env,
    stream: Box<dyn ByteStream>,
    peer: impl Into<Peer>,
    service: Arc<dyn Service>,
    limits: ServerLimits,
    usage: Arc<ServerUsage>,
    stop: Watched<bool>,
) {
    let peer = peer.into();
    usage.connections.fetch_add(1, Relaxed);
    let activity = Arc::new(Activity::default());
    activity.last.store(env.now().0.max(1), Relaxed);
    let (read_half, write_half) = tokio::io::split(stream);
    let requests = Arc::new(Semaphore::new(limits.requests as usize));
    // Each reply holds a permit but those to frames that are no requests, which wait for their turn.
    let (queue, outgoing) = mpsc::channel(limits.requests as usize + 1);
    let mut writer = env.spawn(
        "blockd writer",
        write_replies(env.clone(), write_half, outgoing, activity.clone()),
    );
    {
        let reading = read_requests(
            &env, read_half, &peer, &service, &limits, &requests, &usage, queue, &activity,
        );
        let stopping = stop.wait_for(|stop| *stop);
        let watching = watch_activity(&env, &limits, &requests, &activity);
        pin_mut!(reading, stopping, watching);
        match future::select(future::select(reading, stopping), watching).await {
            future::Either::Left((future::Either::Left((why, _)), _)) => {
                debug!(peer = peer.address, why, "connection closed")
            }
            future::Either::Left((future::Either::Right(_), _)) => {
                debug!(peer = peer.address, "connection closed by stop")
            }
            future::Either::Right((why, _)) => {
                debug!(peer = peer.address, why, "connection closed");
                writer.abort();
            }
        }
    }
    // The reader's end of the queue is gone: the writer ends behind the last request in flight.
    if env.timeout(limits.stall, &mut writer).await.is_err() {
        writer.abort();
    }
    usage.connections.fetch_sub(1, Relaxed);
}

#[expect(
    clippy::too_many_arguments,
    reason = "the parts of one connection, borrowed separately"
)]
async fn read_requests(
    env: &Env,
    stream: impl AsyncRead + Unpin,
    peer: &Peer,
    service: &Arc<dyn Service>,
    limits: &ServerLimits,
    requests: &Arc<Semaphore>,
    usage: &Arc<ServerUsage>,
    queue: mpsc::Sender<Outgoing>,
    activity: &Activity,
) -> String {
    let mut frames = FrameReader::new(stream);
    let memory = service.memory(peer);
    let bytes = Arc::new(Semaphore::new(limits.bytes as usize));
    let mut session: Option<Arc<dyn Session>> = None;
    loop {
        let greeted = session.is_some();
        let awaits = |inside| activity.awaits_rest(inside || !greeted, env.now());
        let whole = async {
            let Some(length) = frames.begin(awaits).await? else {
                return Ok(None);
            };
            let charge = match length {
                ..=FIRST_BYTES => None,
                _ if !greeted => {
                    return Err(FrameError::Decode(DecodeError::Invalid {
                        field: "the length of a hello",
                        value: length as u64,
                    }));
                }
                _ => {
                    // That it waits is not the client's fault; when it may go on, its time begins anew.
                    activity.awaits_rest(false, env.now());
                    Some(memory.charge(length + MESSAGE_OVERHEAD_BYTES).await)
                }
            };
            Ok(frames.next(awaits).await?.map(|frame| (frame, charge)))
        };
        let (frame, charge) = match whole.await {
            Ok(Some(read)) => read,
            Ok(None) => return "the client hung up".into(),
            Err(error) => {
                usage.malformed.fetch_add(1, Relaxed);
                return error.to_string();
            }
        };
        activity.frame_began.store(0, Relaxed);
        activity.last.store(env.now().0.max(1), Relaxed);
        usage.requests.fetch_add(1, Relaxed);
        let (number, operation) = (frame.header.request, frame.header.operation);
        // A reply is written in the version of its request.
        let version = frame.header.version;
        let answered = match decode_request(&frame) {
            Ok(Request::Hello { lowest, highest, .. }) if session.is_none() => {
                let common = [PROTOCOL_VERSION, PREVIOUS_VERSION]
                    .into_iter()
                    .find(|version| (lowest..=highest).contains(version));
                if let Some(common) = common {
                    session = Some(service.open(peer));
                    encode_reply(
                        version.clamp(PREVIOUS_VERSION, PROTOCOL_VERSION),
                        number,
                        &Reply::Hello(HelloReply {
                            version: common,
                            node: service.node(),
                            incarnation: service.incarnation(),
                            requests_in_flight: limits.requests,
                            bytes_in_flight: limits.bytes,
                        }),
                    )
                } else {
                    usage.refused.fetch_add(1, Relaxed);
                    encode_refusal(version, number, operation, &versions())
                }
            }
            Ok(Request::Hello { .. }) => {
                usage.refused.fetch_add(1, Relaxed);
                encode_refusal(
                    version,
                    number,
                    operation,
                    &Refusal::Malformed("hello was said before".into()),
                )
            }
            Err(refusal) => {
                usage.malformed.fetch_add(1, Relaxed);
                encode_refusal(version, number, operation, &refusal)
            }
            Ok(request) => match &session {
                None => {
                    usage.refused.fetch_add(1, Relaxed);
                    let refusal = Refusal::Malformed("the first request must be hello".into());
                    encode_refusal(version, number, operation, &refusal)
                }
                Some(session) => {
                    let needed = request.in_flight_bytes();
                    let most = limits.bytes as usize;
                    assert!(
                        most >= MAX_DATA_BYTES + MESSAGE_OVERHEAD_BYTES,
                        "one request fits"
                    );
                    let request_permit = requests.clone().acquire_owned().await.expect("never closed");
                    let byte_permits = bytes
                        .clone()
                        .acquire_many_owned(u32::try_from(needed).expect("bounded by its decoder"))
                        .await
                        .expect("never closed");
                    let charge = match charge {
                        Some(charge) => charge,
                        None => memory.charge(needed).await,
                    };
                    let mut answer = Box::pin(answer(
                        session.clone(),
                        (version, number, operation),
                        request,
                        (request_permit, byte_permits, charge),
                        queue.clone(),
                        usage.clone(),
                    ));
                    if needed > INLINE_MAX_BYTES || answer.as_mut().now_or_never().is_none() {
                        drop(env.spawn("blockd request", answer));
                    }
                    continue;
                }
            },
        };
        let outgoing = Outgoing {
            frame: answered,
            _held: None,
        };
        if queue.send(outgoing).await.is_err() {
            return "the client takes no replies".into();
        }
    }
}

async fn answer(
    session: Arc<dyn Session>,
    (version, number, operation): (u8, u64, u8),
    request: Request,
    held: Held,
    queue: mpsc::Sender<Outgoing>,
    usage: Arc<ServerUsage>,
) {
    let frame = match session.call(request).await {
        Ok(reply) => encode_reply(version, number, &reply),
        Err(refusal) => {
            usage.refused.fetch_add(1, Relaxed);
            encode_refusal(version, number, operation, &refusal)
        }
    };
    // A closed queue: the connection was lost, the client will ask again on another.
    let _ = queue
        .send(Outgoing {
            frame,
            _held: Some(held),
        })
        .await;
}

async fn write_replies(
    env: Env,
    mut stream: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Outgoing>,
    activity: Arc<Activity>,
) {
    let mut held = Vec::new();
    let mut frames = Vec::new();
    while let Some(first) = queue.recv().await {
        let mut next = Some(first);
        while let Some(outgoing) = next {
            frames.push(outgoing.frame);
            held.push(outgoing._held);
            next = if frames.len() < WRITE_FRAMES {
                queue.try_recv().ok()
            } else {
                None
            };
        }
        activity.write_began.store(env.now().0.max(1), Relaxed);
        let written = write_frames(&mut stream, &frames).await;
        activity.write_began.store(0, Relaxed);
        activity.last.store(env.now().0.max(1), Relaxed);
        frames.clear();
        held.clear();
        if written.is_err() {
            return;
        }
    }
    // A peer that is gone already needs no goodbye.
    let _ = stream.shutdown().await;
}

/// Writes frames with as few system calls as the stream allows.
pub(crate) async fn write_frames(stream: &mut (impl AsyncWrite + Unpin), frames: &[Frame]) -> io::Result<()> {
    let heads: Vec<_> = frames.iter().map(Frame::head).collect();
    let mut slices: Vec<IoSlice<'_>> = heads
        .iter()
        .zip(frames)
        .flat_map(|(head, frame)| [&head[..], &frame.data[..]])
        .filter(|bytes| !bytes.is_empty())
        .map(IoSlice::new)
        .collect();
    let mut slices = &mut slices[..];
    while !slices.is_empty() {
        let written = stream.write_vectored(slices).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut slices, written);
    }
    stream.flush().await
}

/// Returns why the connection must be ended.
async fn watch_activity(
    env: &Env,
    limits: &ServerLimits,
    requests: &Semaphore,
    activity: &Activity,
) -> &'static str {
    let interval = (limits.stall.min(limits.idle) / 4).max(Duration::from_millis(10));
    loop {
        env.sleep(interval).await;
        let now = env.now();
        let age = |moment: &AtomicU64| match moment.load(Relaxed) {
            0 => Duration::ZERO,
            moment => now.since(Monotonic(moment)),
        };
        if age(&activity.write_began) > limits.stall {
            return "the client takes no replies";
        }
        if age(&activity.frame_began) > limits.stall {
            return "a frame was not completed in time";
        }
        let in_flight = limits.requests as usize - requests.available_permits();
        if in_flight == 0 && age(&activity.last) > limits.idle {
            return "idle";
        }
    }
}

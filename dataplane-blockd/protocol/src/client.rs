//! The client's end of a connection: many calls in flight, each with a deadline, within the bounds the node gave.
//!
//! ```text
//! call ──(permits, number)──→ queue ──→ writer ──→ stream ──→ reader ──(number)──→ the waiting call
//! ```
//!
//! A call takes a request permit and byte permits before it is sent and gives them back when its reply is there, so that a
//! connection never holds more than `hello` agreed on, whoever calls. A call that is dropped stays in flight: its request
//! may still happen, and its permits come back with its reply. When the connection is lost every call in flight fails with
//! [`CallError::Lost`]: its request may or may not have happened, and may be sent again on another connection, since all
//! requests can be repeated.

use crate::{
    DecodeError, Frame, HelloReply, NodeId, PREVIOUS_VERSION, PROTOCOL_VERSION, Refusal, Reply, Request,
    Transport,
    frame::FrameReader,
    limits::{MAX_BYTES_IN_FLIGHT, MAX_DATA_BYTES, MAX_REQUESTS_IN_FLIGHT, MESSAGE_OVERHEAD_BYTES},
    message::{decode_reply, encode_request, is_spoken},
    server::write_frames,
};
use firn_env::{ByteStream, Env, Task};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
};
use tracing::debug;

/// Why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The node said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The connection ended first. The request may have happened.
    #[error("the connection to the node was lost: {0}")]
    Lost(String),
    /// No reply in time. The request may have happened, or happen still.
    #[error("no reply within {} ms", limit.as_millis())]
    Late {
        /// The limit that was set.
        limit: Duration,
    },
    /// The node answered with something that is no answer to this request. The connection is given up.
    #[error("the node does not keep to the protocol: {0}")]
    Protocol(String),
}

/// How a connection is opened and used.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// The program and its version, for the node's logs.
    pub program: String,
    /// Refuse to speak to any other node than this.
    pub expect: Option<NodeId>,
    /// The longest a call waits for its reply, the wait for permits included.
    pub call_limit: Duration,
    /// The longest connecting and `hello` take.
    pub open_limit: Duration,
    /// Use at most so many bytes in flight, however many the node allows.
    pub bytes_in_flight: u32,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            program: concat!("firn-blockd/", env!("CARGO_PKG_VERSION")).into(),
            expect: None,
            call_limit: Duration::from_secs(10),
            open_limit: Duration::from_secs(5),
            bytes_in_flight: MAX_BYTES_IN_FLIGHT,
        }
    }
}

/// A reply on its way to its caller, with the permits its request holds.
struct Waiting {
    answer: oneshot::Sender<Result<Reply, CallError>>,
    request: crate::Operation,
    _permits: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

#[derive(Default)]
struct Calls {
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// Why no more calls are taken.
    ended: Option<CallError>,
}

struct Shared {
    calls: Mutex<Calls>,
}

impl Shared {
    fn calls(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.calls.lock().expect("no panic under this lock")
    }

    fn end(&self, why: CallError) {
        let waiting = {
            let mut calls = self.calls();
            calls.ended.get_or_insert_with(|| why.clone());
            std::mem::take(&mut calls.waiting)
        };
        for call in waiting.into_values() {
            // Whoever gave up waiting needs no news.
            let _ = call.answer.send(Err(why.clone()));
        }
    }
}

/// A connection to one node. All methods may be called at once by many tasks.
pub struct Connection {
    env: Env,
    shared: Arc<Shared>,
    queue: mpsc::Sender<Frame>,
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    hello: HelloReply,
    call_limit: Duration,
    tasks: [Task<()>; 2],
}

impl Drop for Connection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.shared.end(CallError::Lost("closed by its owner".into()));
    }
}

impl Connection {
    /// Connects to `address` and says hello, on a network that nobody else can read.
    ///
    /// # Errors
    /// [`CallError`]; nothing was asked of the node.
    pub async fn open(env: &Env, address: &str, options: ConnectionOptions) -> Result<Self, CallError> {
        Self::dial(env, &Transport::plain(), NodeId([0; 16]), address, options).await
    }

    /// Connects to `node` at `address` over `transport` and says hello.
    ///
    /// # Errors
    /// [`CallError`]; nothing was asked of the node.
    pub async fn dial(
        env: &Env,
        transport: &Transport,
        node: NodeId,
        address: &str,
        options: ConnectionOptions,
    ) -> Result<Self, CallError> {
        let limit = options.open_limit;
        let opening = async {
            let stream = transport
                .dial(env, node, address)
                .await
                .map_err(|error| CallError::Lost(format!("{address}: {error}")))?;
            Self::over(env, stream, options).await
        };
        match env.timeout(limit, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(CallError::Late { limit }),
        }
    }

    /// Says hello over a stream that is connected already, such as one with TLS.
    ///
    /// # Errors
    /// As [`Connection::open`].
    pub async fn over(
        env: &Env,
        stream: Box<dyn ByteStream>,
        options: ConnectionOptions,
    ) -> Result<Self, CallError> {
        let (read_half, mut write_half) = tokio::io::split(stream);
        let mut frames = FrameReader::new(read_half);
        let hello = Request::Hello {
            lowest: PREVIOUS_VERSION,
            highest: PROTOCOL_VERSION,
            program: options.program,
        };
        let lost = |error: std::io::Error| CallError::Lost(error.to_string());
        // In the lowest version, which a node of the version before answers as well.
        let greeting = encode_request(PREVIOUS_VERSION, 0, &hello).to_bytes();
        write_half.write_all(&greeting).await.map_err(lost)?;
        // Over TLS, what was written may still wait in a buffer.
        write_half.flush().await.map_err(lost)?;
        let frame = match frames.next(|_| ()).await {
            Ok(Some(frame)) => frame,
            Ok(None) => return Err(CallError::Lost("the node hung up".into())),
            Err(error) => return Err(CallError::Lost(error.to_string())),
        };
        let hello = match decode_reply(&frame).map_err(protocol)?? {
            Reply::Hello(hello) => hello,
            other => {
                return Err(CallError::Protocol(format!(
                    "{:?} in reply to hello",
                    other.operation()
                )));
            }
        };
        if options.expect.is_some_and(|node| node != hello.node) {
            return Err(CallError::Refused(Refusal::WrongNode));
        }
        let least = u32::try_from(MAX_DATA_BYTES + MESSAGE_OVERHEAD_BYTES).expect("a small constant");
        if !is_spoken(hello.version) || hello.requests_in_flight == 0 || hello.bytes_in_flight < least {
            return Err(CallError::Protocol(
                "the node offers a version or bounds nobody can work with".into(),
            ));
        }
        let requests = hello.requests_in_flight.min(MAX_REQUESTS_IN_FLIGHT) as usize;
        let bytes = hello
            .bytes_in_flight
            .min(MAX_BYTES_IN_FLIGHT)
            .min(options.bytes_in_flight.max(least)) as usize;
        let shared = Arc::new(Shared {
            calls: Mutex::default(),
        });
        let (queue, outgoing) = mpsc::channel(requests);
        let writer = env.spawn(
            "blockd client writer",
            write(write_half, outgoing, shared.clone()),
        );
        let reader = env.spawn("blockd client reader", read(frames, shared.clone()));
        Ok(Self {
            env: env.clone(),
            shared,
            queue,
            requests: Arc::new(Semaphore::new(requests)),
            bytes: Arc::new(Semaphore::new(bytes)),
            hello,
            call_limit: options.call_limit,
            tasks: [writer, reader],
        })
    }

    /// What the node said of itself.
    pub fn hello(&self) -> HelloReply {
        self.hello
    }

    /// Whether calls can still be made.
    pub fn is_open(&self) -> bool {
        self.shared.calls().ended.is_none()
    }

    /// Calls in flight.
    pub fn in_flight(&self) -> usize {
        self.shared.calls().waiting.len()
    }

    /// Asks the node and waits for its reply.
    ///
    /// # Errors
    /// [`CallError`]. After everything but [`CallError::Refused`] the request may have happened.
    pub async fn call(&self, request: Request) -> Result<Reply, CallError> {
        let limit = self.call_limit;
        match self.env.timeout(limit, self.call_unlimited(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::Late { limit }),
        }
    }

    async fn call_unlimited(&self, request: Request) -> Result<Reply, CallError> {
        let bytes = u32::try_from(request.in_flight_bytes()).expect("requests are bounded");
        let closed = |_| CallError::Lost("the connection is closed".into());
        let request_permit = self.requests.clone().acquire_owned().await.map_err(closed)?;
        let byte_permits = self
            .bytes
            .clone()
            .acquire_many_owned(bytes)
            .await
            .map_err(closed)?;
        let (answer, answered) = oneshot::channel();
        let number = {
            let mut calls = self.shared.calls();
            if let Some(why) = &calls.ended {
                return Err(why.clone());
            }
            calls.next += 1;
            let number = calls.next;
            calls.waiting.insert(
                number,
                Waiting {
                    answer,
                    request: request.operation(),
                    _permits: (request_permit, byte_permits),
                },
            );
            number
        };
        // Each frame in the queue holds a request permit, so there is always room.
        if self
            .queue
            .try_send(encode_request(self.hello.version, number, &request))
            .is_err()
        {
            self.shared
                .end(CallError::Lost("the connection is closed".into()));
        }
        match answered.await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::Lost("the connection is closed".into())),
        }
    }
}

fn protocol(error: DecodeError) -> CallError {
    CallError::Protocol(error.to_string())
}

async fn write(mut stream: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Frame>, shared: Arc<Shared>) {
    let mut batch = Vec::new();
    while let Some(first) = queue.recv().await {
        batch.push(first);
        while batch.len() < 64
            && let Ok(next) = queue.try_recv()
        {
            batch.push(next);
        }
        if let Err(error) = write_frames(&mut stream, &batch).await {
            shared.end(CallError::Lost(error.to_string()));
            return;
        }
        batch.clear();
    }
}

async fn read(mut frames: FrameReader<impl AsyncRead + Unpin>, shared: Arc<Shared>) {
    let why = loop {
        let frame = match frames.next(|_| ()).await {
            Ok(Some(frame)) => frame,
            Ok(None) => break CallError::Lost("the node hung up".into()),
            Err(error) => break CallError::Lost(error.to_string()),
        };
        let answer = match decode_reply(&frame) {
            Ok(answer) => answer,
            Err(error) => break protocol(error),
        };
        let Some(waiting) = shared.calls().waiting.remove(&frame.header.request) else {
            break CallError::Protocol(format!(
                "a reply to request {}, which nobody made",
                frame.header.request
            ));
        };
        if let Ok(reply) = &answer
            && reply.operation() != waiting.request
        {
            let why = CallError::Protocol(format!(
                "{:?} in reply to {:?}",
                reply.operation(),
                waiting.request
            ));
            let _ = waiting.answer.send(Err(why.clone()));
            break why;
        }
        // Whoever gave up waiting needs no news.
        let _ = waiting.answer.send(answer.map_err(CallError::Refused));
    };
    debug!(%why, "connection to a node ended");
    shared.end(why);
}

//! A small RPC client: many calls in flight over one stream, or one call by datagram.
//!
//! Used for what a server must call itself (granted locks, restart notices, registration with a port mapper) and by the
//! NFS test client. A stream has two tasks: a writer that owns the sending half, fed through a bounded channel so that a
//! caller that gives up never leaves half a record on the wire, and a reader that hands each reply to the call that waits
//! for its transaction id.

use super::{
    AuthStatus, CallHeader, Credential,
    message::ReplyStatus,
    record::{RecordReader, Step, marker, write_all_vectored},
};
use crate::xdr::{Decoder, Encode, Encoder, XdrError};
use bytes::Bytes;
use firn_env::{ByteStream, Env, Task};
use std::{
    collections::BTreeMap,
    io::{self, IoSlice},
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::{mpsc, oneshot},
};

/// Calls handed to the writer and not yet sent.
const QUEUE: usize = 64;
/// The largest reply accepted: the largest READ and room for its head.
const REPLY_MAX_BYTES: usize = (4 << 20) + 4096;
/// The largest datagram.
const DATAGRAM_MAX_BYTES: usize = 65_536;

/// A call that brought no results.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection could not be made or broke. Whether the call was executed is unknown.
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    /// No reply came in time. Whether the call was executed is unknown.
    #[error("no reply within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The reply is not the XDR it should be.
    #[error("malformed reply: {0}")]
    Malformed(#[from] XdrError),
    /// The server did not execute the call.
    #[error("refused: {0}")]
    Refused(#[from] CallRefused),
}

/// Why a server did not execute a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallRefused {
    /// It has no such program.
    #[error("program unavailable")]
    ProgramUnavailable,
    /// It has the program in these versions only.
    #[error("only versions {} to {} are served", .0.start(), .0.end())]
    ProgramMismatch(RangeInclusive<u32>),
    /// The program has no such procedure.
    #[error("procedure unavailable")]
    ProcedureUnavailable,
    /// It could not decode the arguments.
    #[error("arguments not understood")]
    GarbageArguments,
    /// It failed.
    #[error("system error")]
    SystemError,
    /// It speaks another version of RPC.
    #[error("RPC version mismatch")]
    RpcMismatch,
    /// The credential was refused.
    #[error("authentication refused: {0:?}")]
    Authentication(AuthStatus),
}

/// A program and version to call, and as whom.
#[derive(Clone, Debug)]
pub struct Target {
    /// The program number.
    pub program: u32,
    /// The version.
    pub version: u32,
    /// Who calls.
    pub credential: Credential,
}

type Waiting = Arc<Mutex<Option<BTreeMap<u32, oneshot::Sender<Bytes>>>>>;

/// Calls over one stream. Cheap calls may overlap; replies may come in any order.
pub struct Client {
    env: Env,
    transaction: AtomicU32,
    /// `None` once the connection is lost.
    waiting: Waiting,
    sender: mpsc::Sender<Encoder>,
    reader: Task<()>,
    timeout: Duration,
}

impl Client {
    /// Connects to `address`; each call waits at most `timeout` for its reply.
    ///
    /// # Errors
    /// If the connection cannot be made within `timeout`.
    pub async fn connect(env: &Env, address: &str, timeout: Duration) -> Result<Self, CallError> {
        match env.timeout(timeout, env.network().connect(address)).await {
            Ok(stream) => Ok(Self::over(env, stream?, timeout)),
            Err(elapsed) => Err(CallError::TimedOut(elapsed.limit)),
        }
    }

    /// Calls over a connected stream.
    pub fn over(env: &Env, stream: Box<dyn ByteStream>, timeout: Duration) -> Self {
        let (read_half, write_half) = tokio::io::split(stream);
        let (sender, queue) = mpsc::channel(QUEUE);
        let waiting = Waiting::new(Mutex::new(Some(BTreeMap::new())));
        drop(env.spawn("rpc client writer", send_calls(write_half, queue)));
        let reader = env.spawn(
            "rpc client reader",
            receive_replies(RecordReader::new(read_half, REPLY_MAX_BYTES), waiting.clone()),
        );
        Self {
            env: env.clone(),
            transaction: AtomicU32::new(env.random_u64() as u32),
            waiting,
            sender,
            reader,
            timeout,
        }
    }

    /// Calls a procedure and returns its results.
    ///
    /// # Errors
    /// See [`CallError`]; also when the connection is lost while the call waits.
    pub async fn call(
        &self,
        target: &Target,
        procedure: u32,
        arguments: &impl Encode,
    ) -> Result<Decoder, CallError> {
        let mut body = Encoder::new();
        arguments.encode(&mut body);
        self.call_encoded(self.next_transaction(), target, procedure, body)
            .await
    }

    /// A transaction id that this connection has not used lately.
    pub fn next_transaction(&self) -> u32 {
        self.transaction.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls with a given transaction id: the same one again is a retransmission.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call_encoded(
        &self,
        transaction: u32,
        target: &Target,
        procedure: u32,
        arguments: Encoder,
    ) -> Result<Decoder, CallError> {
        let (reply_sender, reply) = oneshot::channel();
        match self.waiting.lock().expect("no panic under this lock").as_mut() {
            Some(waiting) => waiting.insert(transaction, reply_sender),
            None => return Err(connection_lost()),
        };
        let forget = Forget {
            waiting: &self.waiting,
            transaction,
        };
        let exchange = async {
            let message = encode_call(transaction, target, procedure, arguments);
            self.sender.send(message).await.map_err(|_| connection_lost())?;
            reply.await.map_err(|_| connection_lost())
        };
        let reply = match self.env.timeout(self.timeout, exchange).await {
            Ok(reply) => reply?,
            Err(elapsed) => return Err(CallError::TimedOut(elapsed.limit)),
        };
        drop(forget);
        decode_reply(reply).map(|(_, results)| results)?
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The writer ends with its channel.
        self.reader.abort();
    }
}

/// Removes the entry of a call that gave up.
struct Forget<'a> {
    waiting: &'a Waiting,
    transaction: u32,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.lock().expect("no panic under this lock").as_mut() {
            waiting.remove(&self.transaction);
        }
    }
}

fn connection_lost() -> CallError {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}

fn encode_call(transaction: u32, target: &Target, procedure: u32, arguments: Encoder) -> Encoder {
    let mut message = Encoder::new();
    CallHeader {
        transaction,
        program: target.program,
        version: target.version,
        procedure,
        credential: target.credential.clone(),
    }
    .encode(&mut message);
    message.append(arguments);
    message
}

/// The transaction id of a reply, and its results or the refusal.
fn decode_reply(reply: Bytes) -> Result<(u32, Result<Decoder, CallError>), XdrError> {
    let mut input = Decoder::new(reply);
    let (transaction, status) = ReplyStatus::decode(&mut input)?;
    let refused = |refusal: CallRefused| Err(refusal.into());
    let results = match status {
        ReplyStatus::Success => Ok(input),
        ReplyStatus::ProgramUnavailable => refused(CallRefused::ProgramUnavailable),
        ReplyStatus::ProgramMismatch(range) => refused(CallRefused::ProgramMismatch(range)),
        ReplyStatus::ProcedureUnavailable => refused(CallRefused::ProcedureUnavailable),
        ReplyStatus::GarbageArguments => refused(CallRefused::GarbageArguments),
        ReplyStatus::SystemError => refused(CallRefused::SystemError),
        ReplyStatus::RpcMismatch => refused(CallRefused::RpcMismatch),
        ReplyStatus::Authentication(status) => refused(CallRefused::Authentication(status)),
    };
    Ok((transaction, results))
}

async fn send_calls(mut stream: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Encoder>) {
    while let Some(message) = queue.recv().await {
        let head = marker(message.len());
        let segments = message.into_segments();
        let mut slices: Vec<IoSlice<'_>> = std::iter::once(&head[..])
            .chain(segments.iter().map(|segment| &segment[..]))
            .map(IoSlice::new)
            .collect();
        if write_all_vectored(&mut stream, &mut slices, |_| {})
            .await
            .is_err()
        {
            // The reader sees the same connection fail and tells the callers.
            return;
        }
    }
    // A peer that is gone already needs no goodbye.
    let _ = stream.shutdown().await;
}

async fn receive_replies(mut records: RecordReader<impl tokio::io::AsyncRead + Unpin>, waiting: Waiting) {
    loop {
        match records.next(|_| {}).await {
            Ok(Some(Step::Record(record))) if record.len() >= 4 => {
                let transaction = u32::from_be_bytes([record[0], record[1], record[2], record[3]]);
                let mut waiting = waiting.lock().expect("no panic under this lock");
                // A reply nobody waits for is one whose call gave up.
                if let Some(caller) = waiting.as_mut().and_then(|calls| calls.remove(&transaction)) {
                    let _ = caller.send(record);
                }
            }
            Ok(Some(Step::Full { wanted_bytes })) => records.grant(wanted_bytes),
            Ok(Some(Step::NeedInput)) => {}
            Ok(Some(Step::Record(_)) | None) | Err(_) => {
                // Dropping the senders wakes every caller with "connection lost".
                waiting.lock().expect("no panic under this lock").take();
                return;
            }
        }
    }
}

/// Calls a procedure by datagram, sending it `tries` times in all, `interval` apart, under one transaction id.
///
/// # Errors
/// See [`CallError`].
pub async fn call_datagram(
    env: &Env,
    address: &str,
    target: &Target,
    procedure: u32,
    arguments: &impl Encode,
    tries: u32,
    interval: Duration,
) -> Result<Decoder, CallError> {
    let unspecified = if address.starts_with('[') {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let socket = env.network().bind_datagram(unspecified).await?;
    // Simulated networks have names; so may callers, who then take an answer from anywhere.
    let (host, port) = match address.parse::<SocketAddr>() {
        Ok(address) => (Some(address.ip()), address.port()),
        Err(_) => (None, 0),
    };
    let transaction = env.random_u64() as u32;
    let mut body = Encoder::new();
    arguments.encode(&mut body);
    let message = encode_call(transaction, target, procedure, body).into_bytes();
    let mut buffer = vec![0; DATAGRAM_MAX_BYTES];
    for _ in 0..tries {
        socket.send(&message, address).await?;
        let reply = env.timeout(interval, async {
            loop {
                let (length, from) = socket.receive(&mut buffer).await?;
                // Whoever guesses the transaction id must not answer in the server's place.
                if host.is_some_and(|host| from.parse() != Ok(SocketAddr::new(host, port))) {
                    continue;
                }
                // Anything else is a late reply or a stray; the time limit bounds the loop.
                if let Ok((answered, results)) = decode_reply(Bytes::copy_from_slice(&buffer[..length]))
                    && answered == transaction
                {
                    return results;
                }
            }
        });
        if let Ok(results) = reply.await {
            return results;
        }
    }
    Err(CallError::TimedOut(interval * tries))
}

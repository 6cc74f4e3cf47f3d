//! The transmission phase: requests in, replies out, as many at once as the limits allow.
//!
//! The reader takes room for a request *before* it reads its payload or starts it, and the room is given back when the reply
//! has been written: a client that sends without reading is held back by its own full socket, and a connection's memory is
//! bounded by [`Limits`](crate::Limits). Each request that has to wait is a task of its own, so a slow one holds no other up. The writer sends
//! whatever is done, several replies in one call if they wait.
//!
//! A request whose task dies (a bug in a device) is still answered, with an I/O error: a client must not wait for ever.

use crate::{
    device::BlockDevice,
    execute::{Terms, execute, is_payload_welcome},
    limits::Limits,
    reply::{Outcome, Style, encode},
    request::{COMPACT_BYTES, EXTENDED_BYTES, Request},
    wire::{ErrorCode, PAYLOAD_BYTES_MAX, cmd},
};
use bytes::{Buf, Bytes, BytesMut};
use firn_env::{ByteStream, Env};
use futures::{
    FutureExt,
    future::{Either, select},
};
use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};

/// Requests are read through a buffer of this size; larger payloads go past it.
const READ_BUFFER_BYTES: usize = 32 << 10;
/// Longest payload that is skipped so that the request can be refused politely. A client that sends more is cut off.
const SKIP_BYTES_MAX: u64 = 2 * PAYLOAD_BYTES_MAX as u64;
/// Requests up to this size are tried at once by the reader; larger ones copy for so long that reading on beside them is worth a
/// task.
const IN_PLACE_BYTES: usize = 32 << 10;
/// What a request costs besides its data: its task, header and extents.
const REQUEST_COST_BYTES: u32 = 1 << 10;
/// Buffers given to the socket in one call.
const BUFFERS_AT_ONCE: usize = 64;

/// One reply on its way out, with the room that it holds.
struct Reply {
    buffers: VecDeque<Bytes>,
    _room: OwnedSemaphorePermit,
}

/// The duty to answer a request, whatever happens.
struct Answer {
    style: Style,
    request: Request,
    /// Taken when answered.
    duty: Option<(mpsc::OwnedPermit<Reply>, OwnedSemaphorePermit)>,
}

impl Answer {
    fn send(mut self, outcome: Outcome) {
        self.put(outcome);
    }

    fn put(&mut self, outcome: Outcome) {
        if let Some((place, room)) = self.duty.take() {
            let buffers = encode(self.style, self.request.cookie, self.request.offset, outcome);
            place.send(Reply {
                buffers: buffers.into(),
                _room: room,
            });
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.put(Outcome::failed(
            ErrorCode::Io,
            "the request was given up; whether it was done is not known",
        ));
    }
}

pub(crate) struct Transmission<'a> {
    pub(crate) env: &'a Env,
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) terms: Terms,
    pub(crate) limits: Limits,
    /// Asked before each request.
    pub(crate) is_shutting_down: &'a (dyn Fn() -> bool + Send + Sync),
}

impl Transmission<'_> {
    /// Serves until the client leaves; all requests that were begun are then done.
    pub(crate) async fn run(&self, stream: Box<dyn ByteStream>) -> io::Result<()> {
        let (reader, writer) = tokio::io::split(stream);
        let (sender, receiver) = mpsc::channel(self.limits.requests);
        let reading = pin!(self.read_requests(BufReader::with_capacity(READ_BUFFER_BYTES, reader), sender));
        let writing = pin!(write_replies(writer, receiver));
        match select(reading, writing).await {
            // What is still being done is answered; the writer ends with the last answer.
            Either::Left((read, writing)) => writing.await.and(read),
            Either::Right((written, _)) => written,
        }
    }

    async fn read_requests(
        &self,
        mut reader: BufReader<impl AsyncRead + Unpin>,
        replies: mpsc::Sender<Reply>,
    ) -> io::Result<()> {
        let room = Arc::new(Semaphore::new(self.limits.bytes as usize));
        while let Some(request) = self.header(&mut reader).await? {
            if request.command == cmd::DISC {
                return Ok(());
            }
            if request.payload_bytes > SKIP_BYTES_MAX {
                return Err(violation("a payload of absurd length"));
            }
            let geometry = self.device.geometry();
            let welcome = is_payload_welcome(&geometry, &request);
            let data_bytes = match request.command {
                _ if !welcome => 0,
                cmd::READ => request.length.min(geometry.payload_bytes_max.into()),
                _ => request.payload_bytes,
            };
            let cost = (data_bytes as u32 + REQUEST_COST_BYTES).min(self.limits.bytes);
            let held = room
                .clone()
                .acquire_many_owned(cost)
                .await
                .expect("the semaphore is never closed");
            // The writer is gone only if the connection is.
            let Ok(place) = replies.clone().reserve_owned().await else {
                return Ok(());
            };
            let payload = if welcome {
                read_payload(&mut reader, request.payload_bytes as usize).await?
            } else {
                skip(&mut reader, request.payload_bytes).await?;
                Bytes::new()
            };
            let answer = Answer {
                style: self.terms.style,
                request,
                duty: Some((place, held)),
            };
            if !welcome {
                answer.send(Outcome::failed(
                    ErrorCode::Invalid,
                    "longer than the largest payload",
                ));
            } else if (self.is_shutting_down)() {
                answer.send(Outcome::failed(ErrorCode::ShuttingDown, "the server is stopping"));
            } else {
                let (device, terms) = (self.device.clone(), self.terms);
                let work = async move {
                    let outcome = execute(&*device, terms, &answer.request, payload).await;
                    answer.send(outcome);
                };
                self.begin(data_bytes as usize, work);
            }
        }
        Ok(())
    }

    /// Does a request's work: a short request is tried at once, for a write that is answered from memory has no need of a task.
    fn begin(&self, data_bytes: usize, work: impl Future<Output = ()> + Send + 'static) {
        let mut work = Box::pin(work);
        if data_bytes <= IN_PLACE_BYTES {
            // A device that panics ends its request, as it would end a task: what is dropped is answered.
            match catch_unwind(AssertUnwindSafe(|| work.as_mut().now_or_never())) {
                Ok(Some(())) | Err(_) => return,
                Ok(None) => {}
            }
        }
        drop(self.env.spawn("nbd request", work));
    }

    /// The next header, or nothing if the client has closed its side between requests.
    async fn header(&self, reader: &mut BufReader<impl AsyncRead + Unpin>) -> io::Result<Option<Request>> {
        async fn fill<const N: usize>(
            reader: &mut BufReader<impl AsyncRead + Unpin>,
        ) -> io::Result<Option<[u8; N]>> {
            let mut bytes = [0; N];
            let first = reader.read(&mut bytes).await?;
            if first == 0 {
                return Ok(None);
            }
            reader.read_exact(&mut bytes[first..]).await?;
            Ok(Some(bytes))
        }
        let request = if self.terms.style == Style::Extended {
            fill::<EXTENDED_BYTES>(reader)
                .await?
                .map(|bytes| Request::decode_extended(&bytes))
        } else {
            fill::<COMPACT_BYTES>(reader)
                .await?
                .map(|bytes| Request::decode_compact(&bytes))
        };
        request
            .transpose()
            .map_err(|_| violation("wrong magic before a request"))
    }
}

fn violation(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

async fn read_payload(reader: &mut (impl AsyncRead + Unpin), length: usize) -> io::Result<Bytes> {
    let mut payload = BytesMut::with_capacity(length);
    let mut limited = reader.take(length as u64);
    while payload.len() < length {
        if limited.read_buf(&mut payload).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(payload.freeze())
}

async fn skip(reader: &mut (impl AsyncRead + Unpin), length: u64) -> io::Result<()> {
    let skipped = tokio::io::copy(&mut reader.take(length), &mut tokio::io::sink()).await?;
    if skipped < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

async fn write_replies(
    mut writer: impl AsyncWrite + Unpin,
    mut replies: mpsc::Receiver<Reply>,
) -> io::Result<()> {
    let mut waiting: VecDeque<Reply> = VecDeque::new();
    while let Some(first) = replies.recv().await {
        waiting.push_back(first);
        let mut buffers = waiting.back().map_or(0, |reply| reply.buffers.len());
        while buffers < BUFFERS_AT_ONCE
            && let Ok(next) = replies.try_recv()
        {
            buffers += next.buffers.len();
            waiting.push_back(next);
        }
        write_all(&mut writer, &mut waiting).await?;
        writer.flush().await?;
    }
    // The client is told properly that this was all, under TLS too.
    let _ = writer.shutdown().await;
    Ok(())
}

async fn write_all(writer: &mut (impl AsyncWrite + Unpin), waiting: &mut VecDeque<Reply>) -> io::Result<()> {
    while !waiting.is_empty() {
        let mut slices = [io::IoSlice::new(&[]); BUFFERS_AT_ONCE];
        let mut used = 0;
        let all = waiting.iter().flat_map(|reply| &reply.buffers);
        for (slice, buffer) in slices.iter_mut().zip(all.filter(|buffer| !buffer.is_empty())) {
            *slice = io::IoSlice::new(buffer);
            used += 1;
        }
        let mut written = if used == 0 {
            0
        } else {
            match writer.write_vectored(&slices[..used]).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => written,
            }
        };
        while let Some(reply) = waiting.front_mut() {
            while let Some(buffer) = reply.buffers.front_mut() {
                let now = written.min(buffer.len());
                buffer.advance(now);
                written -= now;
                if !buffer.is_empty() {
                    break;
                }
                reply.buffers.pop_front();
            }
            if !reply.buffers.is_empty() {
                break;
            }
            waiting.pop_front();
        }
    }
    Ok(())
}

//! One connection to the kernel: requests are read, carried out and answered.
//!
//! The last request that the kernel has waiting is carried out where it was read, most of them to their end: for a process that makes
//! one call at a time there is no other thread to wake (decision 0030). One that another follows, or that moves much data, has a task of its own.
//!
//! A request that has to wait (for a lock, for the cloud) can be interrupted: when its process gets a signal, the kernel sends
//! INTERRUPT with the request's number. Only waiting is given up, in which nothing has been changed; a change under way is
//! finished and answered.

use crate::{
    abi::{self, IN_HEADER_BYTES, OUT_HEADER_BYTES},
    errno::Failure,
    interrupted::Interrupted,
    operations::Operations,
    reply::{self, Reply},
    request::{self, Header, Operation},
    traffic::{Traffic, TrafficCounts},
};
use bytes::Bytes;
use firn_env::{Calls, Env, Monotonic, RequestInFlight, RequestSource};
use futures::{
    FutureExt,
    future::{BoxFuture, Either, select},
};
use rustix::io::Errno;
use std::{
    collections::HashMap,
    io::{self, IoSlice},
    os::fd::OwnedFd,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Notify,
};

/// The largest write, the kernel's own limit for one request (256 pages).
pub(crate) const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Room for a request: a write with its header, or the 64 KiB of an extended attribute with theirs.
const BUFFER_BYTES: usize = WRITE_BYTES_MAX as usize + 4096;
/// Reads and writes of pages that the kernel has under way without a process that waits for each.
const IN_BACKGROUND: u16 = 64;
/// Requests carried out at one moment, those that wait for a lock not counted; then no more are read. Each other one is a process (or
/// one of [`IN_BACKGROUND`]), so this is reached by thousands of processes that all wait for the cloud.
const IN_FLIGHT_MAX: usize = 4096;
/// A request that moves more data has a task of its own.
const INLINE_MAX_BYTES: usize = 32 << 10;
/// Before something that could not be served is tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// See the module.
pub(crate) struct Connection {
    env: Env,
    device: AsyncFd<OwnedFd>,
    operations: Operations,
    waiting: Mutex<HashMap<u64, Arc<Interrupted>>>,
    in_flight: AtomicUsize,
    /// Of all requests of this mount.
    source: RequestSource,
    finished: Notify,
    traffic: Traffic,
}

/// What the kernel had to say.
enum Read {
    Request(Bytes),
    Nothing,
    Unmounted,
}

/// How much data a request moves, beside [`INLINE_MAX_BYTES`].
enum Size {
    Small,
    Large,
}

/// Counts a request that is carried out.
struct InFlight<'a> {
    connection: &'a Connection,
    unique: u64,
    counts: bool,
    _of_process: Option<RequestInFlight>,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.connection.waiting().remove(&self.unique);
        if self.counts {
            self.connection.in_flight.fetch_sub(1, Ordering::AcqRel);
            self.connection.finished.notify_one();
        }
    }
}

impl Connection {
    /// Over a device that was mounted.
    pub(crate) fn new(env: &Env, device: OwnedFd, operations: Operations) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` gives the same open descriptor as long as it lives, and `AsyncFd` keeps it until it has
        // deregistered it.
        let device = unsafe { AsyncFd::register_with_interest(device, Interest::READABLE) }?;
        Ok(Self {
            env: env.clone(),
            device,
            operations,
            waiting: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            source: env.queue_depth().source(),
            finished: Notify::new(),
            traffic: Traffic::default(),
        })
    }

    pub(crate) fn operations(&self) -> &Operations {
        &self.operations
    }

    /// Requests since the mount.
    pub(crate) fn requests(&self) -> u64 {
        self.traffic.requests()
    }

    /// What was asked, and how it was answered.
    pub(crate) fn traffic(&self) -> TrafficCounts {
        self.traffic.counts()
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Arc<Interrupted>>> {
        self.waiting.lock().expect("no panic under this lock")
    }

    /// Serves until the file system is unmounted.
    ///
    /// # Errors
    /// If the kernel cannot be read from any more.
    pub(crate) async fn serve(self: Arc<Self>) -> io::Result<()> {
        let mut buffer = Vec::new();
        let mut calls = Calls::new(&self.env, "mount requests");
        // Read, and not begun: another may follow it.
        let mut last: Option<BoxFuture<'static, ()>> = None;
        loop {
            let request = match self.read(&mut buffer)? {
                Read::Request(request) => request,
                Read::Unmounted => return Ok(()),
                Read::Nothing => {
                    match last.take() {
                        Some(call) => calls.begin(call),
                        None => drop(calls.beside(self.device.readable()).await?),
                    }
                    continue;
                }
            };
            if let Some(call) = last.take() {
                drop(self.env.spawn("mount request", call));
            }
            self.traffic.read(request.len());
            match self.take(request, self.env.now()) {
                Some((Size::Small, call)) => last = Some(call),
                Some((Size::Large, call)) => drop(self.env.spawn("mount request", call)),
                None => {}
            }
            // Others are let run, and what waits for the journal as well, however many requests there are.
            calls.beside(tokio::task::consume_budget()).await;
            while self.in_flight.load(Ordering::Acquire) >= IN_FLIGHT_MAX {
                if let Some(call) = last.take() {
                    calls.begin(call);
                    continue;
                }
                calls.beside(self.finished.notified()).await;
            }
        }
    }

    /// The next request, if there is one.
    fn read(&self, buffer: &mut Vec<u8>) -> io::Result<Read> {
        buffer.clear();
        buffer.reserve_exact(BUFFER_BYTES);
        loop {
            let read = self.device.try_io(Interest::READABLE, |device| {
                Ok(rustix::io::read(device, rustix::buffer::spare_capacity(buffer))?)
            });
            match read {
                Ok(length) if length < IN_HEADER_BYTES => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "half a request"));
                }
                // A large one takes the buffer with it, so that its data need not be copied.
                Ok(length) if length > BUFFER_BYTES / 2 => {
                    return Ok(Read::Request(std::mem::take(buffer).into()));
                }
                Ok(_) => return Ok(Read::Request(Bytes::copy_from_slice(buffer))),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => return Ok(Read::Nothing),
                    // The process was killed before its request was read.
                    Some(Errno::NOENT | Errno::INTR) => {}
                    Some(Errno::NODEV | Errno::CONNABORTED) => return Ok(Read::Unmounted),
                    _ if error.kind() == io::ErrorKind::WouldBlock => return Ok(Read::Nothing),
                    _ => return Err(error),
                },
            }
        }
    }

    /// What carries a request out, if that takes more than a moment. Interrupts find it from now on: they are read after it.
    fn take(self: &Arc<Self>, request: Bytes, began: Monotonic) -> Option<(Size, BoxFuture<'static, ()>)> {
        let (header, operation) = match request::decode(request) {
            Ok(decoded) => decoded,
            Err(error) => {
                // Without a header there is nobody to tell.
                tracing::error!(%error, "a request of the kernel was dropped");
                return None;
            }
        };
        match operation {
            Operation::Forget { nodes } => {
                for (node, lookups) in nodes {
                    self.operations.nodes().forget(node, lookups);
                }
            }
            Operation::Interrupt { unique } => {
                if let Some(waiting) = self.waiting().get(&unique) {
                    waiting.signal();
                }
            }
            Operation::Init {
                major,
                minor,
                max_readahead,
                flags,
            } => {
                let reply = init(major, minor, max_readahead, flags);
                self.answer((header.unique, began), reply.map_err(Failure::Error));
            }
            operation => {
                let interrupted = Arc::new(Interrupted::default());
                self.waiting().insert(header.unique, interrupted.clone());
                let counts = !matches!(operation, Operation::SetLock { waits: true, .. });
                if counts {
                    self.in_flight.fetch_add(1, Ordering::AcqRel);
                }
                let size = if operation.data_bytes() > INLINE_MAX_BYTES {
                    Size::Large
                } else {
                    Size::Small
                };
                let of_process = counts.then(|| self.source.request());
                let connection = self.clone();
                let call = async move {
                    let _in_flight = InFlight {
                        connection: &connection,
                        unique: header.unique,
                        counts,
                        _of_process: of_process,
                    };
                    connection
                        .carry_out((&header, began), operation, &interrupted)
                        .await;
                };
                return Some((size, call.boxed()));
            }
        }
        None
    }

    async fn carry_out(
        &self,
        (header, began): (&Header, Monotonic),
        operation: Operation,
        interrupted: &Interrupted,
    ) {
        let request = (header.unique, began);
        let recorded = self.operations.recorded_for(header);
        let operations = recorded.as_ref().unwrap_or(&self.operations);
        loop {
            let result = operations.execute(header, operation.clone(), interrupted).await;
            if result != Err(Failure::TryAgain) {
                return self.answer(request, result);
            }
            let pause = pin!(self.env.sleep(TRY_AGAIN_AFTER));
            if let Either::Right(_) = select(pause, pin!(interrupted.wait())).await {
                return self.answer(request, Err(Errno::INTR.into()));
            }
        }
    }

    fn answer(&self, (unique, began): (u64, Monotonic), result: Result<Reply, Failure>) {
        let body_bytes = match &result {
            Ok(Reply::Nothing) => return,
            Ok(Reply::Empty) | Err(_) => 0,
            Ok(Reply::Structure(body)) => body.len(),
            Ok(Reply::Data(parts)) => parts.iter().map(Bytes::len).sum(),
        };
        let took = self.env.now().since(began);
        self.traffic
            .answered(result.is_err(), OUT_HEADER_BYTES + body_bytes, took);
        let written = match result {
            Ok(Reply::Nothing | Reply::Empty) => self.write(&reply::header(unique, 0, 0), &[]),
            Ok(Reply::Structure(body)) => self.write(&reply::header(unique, 0, body_bytes), &[body]),
            Ok(Reply::Data(parts)) => self.write(&reply::header(unique, 0, body_bytes), &parts),
            Err(Failure::Error(error)) => self.write(&reply::header(unique, error.raw_os_error(), 0), &[]),
            Err(Failure::TryAgain) => self.write(&reply::header(unique, Errno::AGAIN.raw_os_error(), 0), &[]),
        };
        match written {
            // The process was killed, or the file system unmounted, meanwhile.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::PERM | Errno::CONNABORTED) => {}
            Err(error) => tracing::error!(%error, "the kernel refused a reply"),
        }
    }

    fn write(&self, header: &[u8], parts: &[Bytes]) -> Result<(), Errno> {
        let mut slices = Vec::with_capacity(parts.len() + 1);
        slices.push(IoSlice::new(header));
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        // The kernel takes a message whole or not at all.
        rustix::io::writev(self.device.get_ref(), &slices).map(drop)
    }

    /// Tells the kernel something unasked. Blocks while the kernel writes back or waits for what it is told about.
    pub(crate) fn notify(&self, code: i32, body: &[Bytes]) -> Result<(), Errno> {
        let length = body.iter().map(Bytes::len).sum();
        self.write(&reply::header(0, -code, length), body)
    }
}

/// Agrees with the kernel on what is used.
fn init(major: u32, minor: u32, max_readahead: u32, flags: u64) -> Result<Reply, Errno> {
    let lacking = abi::init::NEEDED & !flags;
    if major != abi::MAJOR || minor < abi::MINOR_MIN || lacking != 0 {
        tracing::error!(
            "this kernel speaks FUSE {major}.{minor} without {lacking:#x}: the mount cannot be used"
        );
        return Err(Errno::PROTO);
    }
    Ok(Reply::Structure(reply::init(
        minor.min(abi::MINOR),
        max_readahead,
        flags & abi::init::WANTED,
        WRITE_BYTES_MAX,
        IN_BACKGROUND,
    )))
}

//! The duplicate request cache: a call that is sent twice is executed once.
//!
//! A client that gets no reply (the connection broke, the server was restarted) sends its call again with the same
//! transaction id. Executed again, REMOVE would say that the file does not exist and RENAME would hit the wrong file. So
//! the replies of calls that are not idempotent are kept for a while:
//!
//! ```text
//! state      retransmission              left by
//! (absent)   executed                    begin → running
//! running    waits for the same reply    finish → done; dropped without a reply → (absent)
//! done       gets the same reply         age, count or bytes → (absent)
//! recovered  gets a reply made anew      age, count or bytes → (absent)
//! ```
//!
//! A restart empties the cache, but the volume's journal names the requests whose changes it made durable: these are
//! `recovered`. Their reply is made again from the call itself, which the retransmission repeats, the created file, which
//! the journal remembers, and attributes as they are now. What is not in the journal did not happen and is executed.

use crate::rpc::{Credential, Request};
use bytes::Bytes;
use firn_env::{Env, Monotonic};
use firn_vfs::{CompletedRequest, FileHandle, RequestId};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Mutex,
    time::Duration,
};
use tokio::sync::oneshot;

/// Twice the longest time between two attempts of Linux to reconnect (300 s). Long enough for every retransmission, short
/// enough that a program that always begins with the same transaction ids does not meet its own calls of an earlier run.
const KEEP: Duration = Duration::from_secs(600);
/// What an entry takes beside its reply.
const ENTRY_BYTES: usize = 128;
/// Retransmissions that wait for one running call. A client sends one a minute at most.
const WAITING_MAX: usize = 8;
/// Of a WRITE only so much is hashed for its checksum, beside its length: the head and the first data tell two apart.
const CHECKSUM_DATA_BYTES: usize = 512;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct DuplicateLimits {
    /// Replies.
    pub count: usize,
    /// Their bytes, with a fixed amount for each entry.
    pub bytes: usize,
}

/// A reply that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptReply {
    /// The results.
    pub body: Bytes,
    /// Whether they tell of a failure.
    pub failed: bool,
}

/// What to do with a call.
pub enum Begin<'a> {
    /// Execute it and [`Execution::finish`].
    New(Execution<'a>),
    /// It is being executed: wait for its reply. An error means that there will be none.
    Running(oneshot::Receiver<KeptReply>),
    /// It was executed: this is the reply.
    Done(KeptReply),
    /// It was executed before the last start, and created this.
    Recovered(Option<FileHandle>),
    /// It is being executed and enough wait for it: no reply.
    Crowded,
}

enum Entry {
    Running(Vec<oneshot::Sender<KeptReply>>),
    Done(KeptReply),
    Recovered(Option<FileHandle>),
}

impl Entry {
    fn bytes(&self) -> usize {
        match self {
            Self::Done(reply) => ENTRY_BYTES + reply.body.len(),
            Self::Running(_) | Self::Recovered(_) => ENTRY_BYTES,
        }
    }
}

#[derive(Default)]
struct State {
    entries: BTreeMap<RequestId, Entry>,
    /// Those done or recovered, oldest first, each once. Running ones are bounded by the calls in flight.
    order: VecDeque<(Monotonic, RequestId)>,
    bytes: usize,
}

impl State {
    fn keep(&mut self, now: Monotonic, id: RequestId, entry: Entry, limits: DuplicateLimits) {
        self.bytes += entry.bytes();
        self.order.push_back((now, id));
        self.entries.insert(id, entry);
        while self.order.len() > limits.count || self.bytes > limits.bytes {
            self.drop_oldest();
        }
    }

    fn drop_expired(&mut self, now: Monotonic) {
        while self
            .order
            .front()
            .is_some_and(|(kept, _)| now.since(*kept) > KEEP)
        {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, id)) = self.order.pop_front()
            && let Some(entry) = self.entries.remove(&id)
        {
            self.bytes -= entry.bytes();
        }
    }
}

/// Replies of calls that must not be executed twice.
pub struct DuplicateCache {
    env: Env,
    limits: DuplicateLimits,
    state: Mutex<State>,
}

impl DuplicateCache {
    /// A cache that knows the requests `completed` before the start, oldest first.
    pub fn new(
        env: &Env,
        limits: DuplicateLimits,
        completed: impl IntoIterator<Item = CompletedRequest>,
    ) -> Self {
        let cache = Self {
            env: env.clone(),
            limits,
            state: Mutex::default(),
        };
        cache.recover(completed);
        cache
    }

    /// Adds requests that are known to be completed, oldest first; of those that it knows, it knows more.
    pub fn recover(&self, completed: impl IntoIterator<Item = CompletedRequest>) {
        let mut state = self.state.lock().expect("no panic under this lock");
        for done in completed {
            if !state.entries.contains_key(&done.request) {
                state.keep(
                    self.env.now(),
                    done.request,
                    Entry::Recovered(done.created),
                    self.limits,
                );
            }
        }
    }

    /// Decides what to do with a call.
    pub fn begin(&self, id: RequestId) -> Begin<'_> {
        let mut state = self.state.lock().expect("no panic under this lock");
        state.drop_expired(self.env.now());
        match state.entries.get_mut(&id) {
            None => {
                state.entries.insert(id, Entry::Running(Vec::new()));
                Begin::New(Execution { cache: self, id })
            }
            Some(Entry::Running(waiting)) if waiting.len() >= WAITING_MAX => Begin::Crowded,
            Some(Entry::Running(waiting)) => {
                let (sender, receiver) = oneshot::channel();
                waiting.push(sender);
                Begin::Running(receiver)
            }
            Some(Entry::Done(reply)) => Begin::Done(reply.clone()),
            Some(Entry::Recovered(created)) => Begin::Recovered(*created),
        }
    }

    /// Replies kept, and their bytes as limited.
    #[cfg(test)]
    fn size(&self) -> (usize, usize) {
        let state = self.state.lock().expect("no panic under this lock");
        (state.order.len(), state.bytes)
    }
}

/// A call being executed. Dropped without a reply, it never happened as far as the cache knows.
pub struct Execution<'a> {
    cache: &'a DuplicateCache,
    id: RequestId,
}

impl Execution<'_> {
    /// Keeps the reply for retransmissions, and gives it to those that wait.
    pub fn finish(self, reply: &KeptReply) {
        let mut state = self.cache.state.lock().expect("no panic under this lock");
        if let Some(Entry::Running(waiting)) = state.entries.remove(&self.id) {
            for waiter in waiting {
                // One that waits no more has lost its connection.
                let _ = waiter.send(reply.clone());
            }
        }
        let entry = Entry::Done(reply.clone());
        state.keep(self.cache.env.now(), self.id, entry, self.cache.limits);
    }
}

impl Drop for Execution<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.state.lock().expect("no panic under this lock");
        if matches!(state.entries.get(&self.id), Some(Entry::Running(_))) {
            state.entries.remove(&self.id);
        }
    }
}

/// What tells a call from all others but its own retransmissions. `whole` takes the whole message into the checksum;
/// otherwise only its beginning and length.
pub fn request_id(request: &Request, whole: bool) -> RequestId {
    let flavour = match request.credential {
        Credential::None => 0u8,
        Credential::Sys(_) => 1,
    };
    let mut client = blake3::Hasher::new();
    match request.peer.address {
        std::net::IpAddr::V4(address) => client.update(&address.octets()),
        std::net::IpAddr::V6(address) => client.update(&address.octets()),
    };
    client.update(&[flavour]);
    let client = client.finalize();
    let message = &request.message;
    let checked = if whole {
        message.len()
    } else {
        message.len().min(CHECKSUM_DATA_BYTES)
    };
    let mut checksum = blake3::Hasher::new();
    checksum.update(&(message.len() as u64).to_be_bytes());
    checksum.update(&message[..checked]);
    let checksum = checksum.finalize();
    RequestId {
        client: u64::from_be_bytes(std::array::from_fn(|byte| client.as_bytes()[byte])),
        transaction: request.transaction,
        checksum: u32::from_be_bytes(std::array::from_fn(|byte| checksum.as_bytes()[byte])),
    }
}

#[cfg(test)]
mod tests;

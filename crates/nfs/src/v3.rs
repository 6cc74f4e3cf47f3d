//! NFS version 3 (RFC 1813): the program and its 22 procedures.
//!
//! Each procedure is a method that takes the decoded call and gives the results to encode; this file is the way there:
//! decoding, the duplicate request cache, and the common steps (whose file is it, may it be changed, what are its
//! attributes when something failed).
//!
//! Weak cache consistency: a change reports the attributes right before and after it, taken by the file system at the
//! instant of the change. A refusal changed nothing, so it reports one set of attributes as both.

pub mod acl;
mod change;
mod convert;
mod crossing;
mod data;
mod directory;
mod inquire;
mod procedure;
mod replay;
mod status;
pub mod types;

pub use procedure::Procedure;
pub use status::Status;

use crate::{
    duplicates::{Begin, DuplicateCache, DuplicateLimits, KeptReply, request_id},
    exports::{Admitted, Exports},
    handle::WireHandle,
    rpc::{Credential, Peer, Program, Refusal, Reply, Request},
    xdr::{Decode, Decoder, Encode, Encoder},
};
use async_trait::async_trait;
use firn_env::Env;
use firn_vfs::{Attributes, Caller, Name, RequestId, VfsError};
use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use types::{Failed, FileAttributes, ReadCall, ReadDirectoryCall, ReadDirectoryPlusCall, WccData, WireName};

/// The NFS program number.
pub const PROGRAM: u32 = 100_003;
/// The version served.
pub const VERSION: u32 = 3;

/// Changes remembered for retransmission: at 2,000 changes a second some 8 s, several times a reconnection.
const CHANGES: DuplicateLimits = DuplicateLimits {
    count: 16_384,
    bytes: 8 << 20,
};
/// Writes remembered for retransmission. Apart from the changes, which they would push out; fewer, because a write done
/// twice does harm only if another came in between.
const WRITES: DuplicateLimits = DuplicateLimits {
    count: 4096,
    bytes: 2 << 20,
};
/// What a reply without file data or directory entries takes at most.
const SMALL_REPLY_BYTES: usize = 1024;

/// The NFSv3 program.
pub struct NfsProgram {
    exports: Arc<Exports>,
    changes: DuplicateCache,
    writes: DuplicateCache,
    retransmissions: AtomicU64,
    io_max_bytes: u32,
}

/// One call, as its procedure sees it.
struct Call {
    peer: Peer,
    credential: Credential,
    request: Option<RequestId>,
}

/// A file of a call, and who calls.
struct Target {
    admitted: Admitted,
    caller: Caller,
}

impl Target {
    fn vfs(&self) -> &dyn firn_vfs::Vfs {
        self.admitted.vfs()
    }

    /// Refuses changes to a read-only export.
    fn writable(&self) -> Result<(), VfsError> {
        if self.admitted.read_only {
            self.admitted.refused_as_read_only();
            Err(VfsError::ReadOnly)
        } else {
            Ok(())
        }
    }

    fn same_export(&self, other: &Self) -> bool {
        self.admitted.export.id() == other.admitted.export.id()
    }

    /// The attributes as they are now, if they can be had.
    async fn attributes(&self) -> Option<Attributes> {
        self.vfs().attributes(self.admitted.file).await.ok()
    }

    async fn wire_attributes(&self) -> Option<FileAttributes> {
        self.attributes().await.as_ref().map(Into::into)
    }

    /// A refusal that shows the file's attributes.
    async fn refused(&self, error: impl Into<Status>) -> Failed<Option<FileAttributes>> {
        Failed {
            status: error.into(),
            body: self.wire_attributes().await,
        }
    }

    /// A refusal that shows that the file was not changed.
    async fn unchanged(&self, error: impl Into<Status>) -> Failed<WccData> {
        Failed {
            status: error.into(),
            body: WccData::unchanged(self.attributes().await.as_ref()),
        }
    }
}

/// A refusal without attributes, where not even the file is known.
fn refused<F: Default>(error: impl Into<Status>) -> Failed<F> {
    Failed {
        status: error.into(),
        body: F::default(),
    }
}

/// Checks a name. An empty one or one with `/` or NUL is refused as RFC 1813 §3.2 says; `.` and `..` get `dots`.
fn name(wire: WireName, dots: Status) -> Result<Name, Status> {
    Name::new(wire.0).map_err(|error| match error {
        VfsError::Exists => dots,
        VfsError::InvalidArgument => Status::AccessDenied,
        other => other.into(),
    })
}

/// The reply of a procedure.
fn reply<S: Encode, F: Encode>(result: Result<S, Failed<F>>) -> Reply {
    if let Err(failed) = &result {
        assert!(failed.status != Status::Ok, "a failure has a status that says so");
    }
    let mut body = Encoder::new();
    result.encode(&mut body);
    Reply {
        body,
        failed: result.is_err(),
    }
}

impl NfsProgram {
    /// Serves `exports`; no READ or WRITE is larger than `io_max_bytes`, whatever the volume would do. Retransmissions of
    /// requests that the volumes had completed before their last start are recognised.
    pub fn new(env: &Env, exports: Arc<Exports>, io_max_bytes: u32) -> Self {
        // Two exports may show one volume; its requests are wanted once.
        let volumes: BTreeMap<_, _> = exports
            .iter()
            .filter_map(|export| export.vfs())
            .map(|vfs| (vfs.root(), vfs))
            .collect();
        let completed = volumes.values().flat_map(|vfs| vfs.completed_requests());
        Self {
            changes: DuplicateCache::new(env, CHANGES, completed),
            writes: DuplicateCache::new(env, WRITES, []),
            retransmissions: AtomicU64::new(0),
            exports,
            io_max_bytes,
        }
    }

    /// Recognises retransmissions of requests that a volume had completed before it came: to be called before its exports serve it.
    pub fn recover(&self, volume: &dyn firn_vfs::Vfs) {
        self.changes.recover(volume.completed_requests());
    }

    /// Calls that were recognised as sent before and not executed again.
    pub fn retransmissions(&self) -> u64 {
        self.retransmissions.load(Ordering::Relaxed)
    }

    fn target(&self, call: &Call, handle: &WireHandle) -> Result<Target, Status> {
        let admitted = self.exports.admit(&handle.0, &call.peer, &call.credential)?;
        Ok(Target {
            caller: Caller {
                credentials: admitted.credentials.clone(),
                request: call.request,
                durability: admitted.export.durability(),
            },
            admitted,
        })
    }

    async fn execute(
        &self,
        call: &Call,
        procedure: Procedure,
        mut arguments: Decoder,
    ) -> Result<Reply, Refusal> {
        let input = &mut arguments;
        Ok(match procedure {
            Procedure::Null => Reply::success(&()),
            Procedure::GetAttributes => reply(self.get_attributes(call, WireHandle::decode(input)?).await),
            Procedure::SetAttributes => reply(self.set_attributes(call, Decode::decode(input)?).await),
            Procedure::Lookup => reply(self.lookup(call, Decode::decode(input)?).await),
            Procedure::Access => reply(self.access(call, Decode::decode(input)?).await),
            Procedure::ReadLink => reply(self.read_link(call, WireHandle::decode(input)?).await),
            Procedure::Read => reply(self.read(call, Decode::decode(input)?).await),
            Procedure::Write => {
                let write = types::WriteCall::decode(input)?;
                if write.count as usize != write.data.len() {
                    return Err(Refusal::GarbageArguments);
                }
                reply(self.write(call, write).await)
            }
            Procedure::Create => reply(self.create(call, Decode::decode(input)?).await),
            Procedure::MakeDirectory => reply(self.make_directory(call, Decode::decode(input)?).await),
            Procedure::MakeSymlink => reply(self.make_symlink(call, Decode::decode(input)?).await),
            Procedure::MakeNode => reply(self.make_node(call, Decode::decode(input)?).await),
            Procedure::Remove => reply(self.remove(call, Decode::decode(input)?).await),
            Procedure::RemoveDirectory => reply(self.remove_directory(call, Decode::decode(input)?).await),
            Procedure::Rename => reply(self.rename(call, Decode::decode(input)?).await),
            Procedure::Link => reply(self.link(call, Decode::decode(input)?).await),
            Procedure::ReadDirectory => reply(self.read_directory(call, Decode::decode(input)?).await),
            Procedure::ReadDirectoryPlus => {
                reply(self.read_directory_plus(call, Decode::decode(input)?).await)
            }
            Procedure::FileSystemStatus => {
                reply(self.file_system_status(call, WireHandle::decode(input)?).await)
            }
            Procedure::FileSystemInformation => reply(
                self.file_system_information(call, WireHandle::decode(input)?)
                    .await,
            ),
            Procedure::PathConfiguration => {
                reply(self.path_configuration(call, WireHandle::decode(input)?).await)
            }
            Procedure::Commit => reply(self.commit(call, Decode::decode(input)?).await),
        })
    }

    /// Executes a call at most once, however often it is sent.
    async fn execute_once(
        &self,
        cache: &DuplicateCache,
        id: RequestId,
        call: Call,
        procedure: Procedure,
        arguments: Decoder,
    ) -> Result<Reply, Refusal> {
        let begin = cache.begin(id);
        if !matches!(begin, Begin::New(_)) {
            self.retransmissions.fetch_add(1, Ordering::Relaxed);
        }
        let kept = match begin {
            Begin::New(execution) => {
                let reply = self.execute(&call, procedure, arguments).await?;
                let failed = reply.failed;
                let body = reply.body.into_bytes();
                let kept = KeptReply { body, failed };
                match failure(&kept) {
                    // Not an answer: asked again, the call must be tried again.
                    Some(Status::Jukebox) => {}
                    // What it changed is in the journal, so the next start knows it when it is sent again.
                    Some(Status::Unanswered) => return Err(Refusal::Silence),
                    _ => execution.finish(&kept),
                }
                kept
            }
            Begin::Running(waiting) => waiting.await.map_err(|_| Refusal::Silence)?,
            Begin::Done(kept) => kept,
            Begin::Recovered(created) => return self.replay(&call, procedure, arguments, created).await,
            Begin::Crowded => return Err(Refusal::Silence),
        };
        let mut body = Encoder::with_capacity(0);
        body.raw(kept.body);
        Ok(Reply {
            body,
            failed: kept.failed,
        })
    }
}

/// Why the call failed, if it did.
fn failure(reply: &KeptReply) -> Option<Status> {
    let decode = |body| Status::decode(&mut Decoder::new(body)).ok();
    reply.failed.then(|| decode(reply.body.clone())).flatten()
}

#[async_trait]
impl Program for NfsProgram {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn name(&self) -> &'static str {
        "nfs"
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn procedure_name(&self, _version: u32, procedure: u32) -> Option<&'static str> {
        Procedure::from_number(procedure).map(Procedure::name)
    }

    fn reply_bytes(&self, request: &Request) -> usize {
        let mut arguments = request.arguments.clone();
        let asked = match Procedure::from_number(request.procedure) {
            Some(Procedure::Read) => ReadCall::decode(&mut arguments).map_or(0, |call| call.count),
            Some(Procedure::ReadDirectory) => {
                ReadDirectoryCall::decode(&mut arguments).map_or(0, |call| call.count)
            }
            Some(Procedure::ReadDirectoryPlus) => {
                ReadDirectoryPlusCall::decode(&mut arguments).map_or(0, |call| call.maximum_count)
            }
            _ => 0,
        };
        SMALL_REPLY_BYTES + asked.min(self.io_max_bytes) as usize
    }

    fn subject(&self, procedure: u32, mut arguments: Decoder) -> Option<String> {
        // All but NULL begin with the handle of a file or directory.
        Procedure::from_number(procedure).filter(|procedure| *procedure != Procedure::Null)?;
        self.exports.subject(&WireHandle::decode(&mut arguments).ok()?.0)
    }

    async fn call(&self, request: Request) -> Result<Reply, Refusal> {
        let procedure = Procedure::from_number(request.procedure).ok_or(Refusal::ProcedureUnavailable)?;
        // All but NULL begin with the handle of a file or directory; what is none is refused below.
        if procedure != Procedure::Null
            && let Ok(handle) = WireHandle::decode(&mut request.arguments.clone())
        {
            self.exports.count(&handle.0);
        }
        let is_write = procedure == Procedure::Write;
        let id = (is_write || procedure.is_change()).then(|| request_id(&request, !is_write));
        let call = Call {
            peer: request.peer,
            // A write's retransmission after a restart is harmless: unstable data is sent again anyway.
            request: id.filter(|_| !is_write),
            credential: request.credential,
        };
        match id {
            None => self.execute(&call, procedure, request.arguments).await,
            Some(id) => {
                let cache = if is_write { &self.writes } else { &self.changes };
                self.execute_once(cache, id, call, procedure, request.arguments)
                    .await
            }
        }
    }
}

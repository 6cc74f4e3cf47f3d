//! NLM version 4, the network lock manager of NFSv3.
//!
//! Each call is turned into one on the [`LockTable`] that all protocols share; what is added here is the protocol: who the
//! owner is, which files may be locked, and that a client is on the durable list of [`nsm`](crate::nsm) before it holds
//! anything.
//!
//! ```text
//! LOCK ─> handle, range, permission ─> client on the list (fsync, first time only) ─> lock table ─> GRANTED | DENIED | …
//!                                                                                        └─> BLOCKED, and later we call
//!                                                                                            GRANTED at the client (grant)
//! ```
//!
//! An owner is the client (address and name), its number for the process and its opaque name for it. The `_MSG` procedures
//! are the same calls answered by a call of ours instead of a reply. A lock needs permission to read (or ownership), as on
//! Linux; a file that is gone, or not a regular one, cannot be locked, but always be unlocked.

mod grant;
pub(crate) mod number;
mod procedure;
mod service;
#[cfg(test)]
mod tests;
mod types;
#[cfg(test)]
pub(crate) mod world;

pub use number::{PROGRAM, VERSION};
pub use procedure::NlmProgram;
pub use service::{LockService, LockServiceStatus};
pub use types::{
    CallerName, CancelCall, FreeAllCall, LockCall, LockStatus, NetObject, ShareCall, ShareReply, StatusReply,
    TestCall, TestReply, UnlockCall, WireHolder, WireLock,
};

use crate::{
    exports::{Admitted, Exports, HandleError},
    nsm::{Host, ListError, Monitor},
    rpc::{Refusal, Request},
};
use bytes::{BufMut, Bytes, BytesMut};
use firn_env::Env;
use firn_session::{
    ByteRange, LockError, LockHolder, LockOwner, LockProtocol, LockRequest, LockTable, Locked, ShareMode,
};
use firn_vfs::{AccessMask, Caller, FileKind, VfsError};
use grant::Grants;
use std::{sync::Arc, time::Duration};
use tracing::{debug, warn};

/// Longest owner taken. Real ones have some dozen bytes; a lock keeps its owner in memory.
const OWNER_BYTES_MAX: usize = 255;
/// Longest client name taken, as long as a DNS name.
const NAME_BYTES_MAX: usize = 255;

/// How long a call waits for the volume that another office has: longer than most handovers, and less than clients wait before they send a call
/// again. Then its client is told to ask again, which Linux does after 5 s.
const HANDOVER_WITHIN: Duration = Duration::from_secs(5);
/// Between two looks whether it has come.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Locks as the clients of NLM use them.
struct LockManager {
    env: Env,
    exports: Arc<Exports>,
    table: LockTable,
    monitor: Arc<Monitor>,
    grants: Grants,
}

/// A call's file, client and owner, checked.
struct Subject {
    admitted: Admitted,
    host: Host,
    owner: LockOwner,
}

impl LockManager {
    fn subject(
        &self,
        request: &Request,
        caller: &CallerName,
        handle: &NetObject,
        owner: &NetObject,
        process: Option<i32>,
    ) -> Result<Subject, LockStatus> {
        let admitted = self
            .exports
            .admit(&handle.0, &request.peer, &request.credential)
            .map_err(|error| {
                debug!(client = %request.peer.address, %error, "lock call refused");
                match error {
                    HandleError::Forged | HandleError::ExportGone => LockStatus::StaleHandle,
                    HandleError::ClientDenied => LockStatus::Failed,
                    // The one status on which clients ask again later.
                    HandleError::Away => LockStatus::GracePeriod,
                }
            })?;
        if caller.0.len() > NAME_BYTES_MAX || owner.0.len() > OWNER_BYTES_MAX {
            return Err(LockStatus::Failed);
        }
        let host = Host {
            address: request.peer.address,
            // Copies: a slice would keep the whole message in memory as long as the lock.
            name: Bytes::copy_from_slice(&caller.0),
        };
        let owner = LockOwner {
            client: host.lock_client(),
            owner: owner_bytes(owner, process),
        };
        Ok(Subject {
            admitted,
            host,
            owner,
        })
    }

    fn lock_subject(&self, request: &Request, lock: &WireLock) -> Result<(Subject, ByteRange), LockStatus> {
        let process = Some(lock.process);
        let subject = self.subject(request, &lock.caller, &lock.handle, &lock.owner, process)?;
        Ok((subject, range(lock)?))
    }

    /// Whether the file can be locked by this caller.
    async fn check_file(&self, subject: &Subject, exclusive: bool) -> Result<(), LockStatus> {
        let Admitted {
            file,
            credentials,
            read_only,
            ..
        } = &subject.admitted;
        if exclusive && *read_only {
            return Err(LockStatus::ReadOnly);
        }
        let caller = Caller::new(credentials.clone());
        let asked = AccessMask {
            read: true,
            modify: true,
            ..AccessMask::default()
        };
        let checked = subject.admitted.vfs().check_access(&caller, *file, asked).await;
        let (granted, attributes) = checked.map_err(|error| match error {
            VfsError::Stale | VfsError::NotFound => LockStatus::StaleHandle,
            // The one status on which clients ask again later.
            VfsError::TryAgain { .. } => LockStatus::GracePeriod,
            error => {
                debug!(%error, "file to be locked not found");
                LockStatus::Failed
            }
        })?;
        let owner = credentials.uid == attributes.uid;
        if attributes.kind != FileKind::Regular || !(owner || granted.read || granted.modify) {
            return Err(LockStatus::Failed);
        }
        Ok(())
    }

    async fn test(&self, request: &Request, call: &TestCall) -> Result<(), (LockStatus, Option<WireHolder>)> {
        let none = |status| (status, None);
        let (subject, range) = self.lock_subject(request, &call.lock).map_err(none)?;
        self.check_file(&subject, call.exclusive).await.map_err(none)?;
        let asked = LockRequest {
            file: subject.admitted.file,
            owner: subject.owner,
            range,
            exclusive: call.exclusive,
        };
        let tested = self.once_decided(|| self.table.test(&asked)).await;
        tested.map_err(|error| match error {
            LockError::Conflict(holder) => (LockStatus::Denied, Some(wire_holder(&holder))),
            error => (status_of(&error), None),
        })
    }

    async fn lock(
        self: &Arc<Self>,
        request: &Request,
        call: &LockCall,
        monitored: bool,
    ) -> Result<LockStatus, LockStatus> {
        let (subject, range) = self.lock_subject(request, &call.lock)?;
        self.check_file(&subject, call.exclusive).await?;
        if self.table.in_grace() && !call.reclaim {
            // Before the disk is bothered; the table decides again below.
            return Err(LockStatus::GracePeriod);
        }
        let Subject {
            admitted,
            host,
            owner,
        } = subject;
        let presence = if monitored {
            Some(
                self.monitor
                    .enter(&host)
                    .await
                    .map_err(|error| unlisted(&error))?,
            )
        } else {
            None
        };
        if presence.is_some() {
            self.monitor.lock_carries(&host, call.state).await;
        }
        self.env.fault_point("nlm.before_lock").await;
        let asked = LockRequest {
            file: admitted.file,
            owner,
            range,
            exclusive: call.exclusive,
        };
        let outcome = if call.reclaim {
            self.monitor.reclaimed(&host);
            let reclaimed = self.once_decided(|| self.table.reclaim(&asked)).await;
            reclaimed.map(|()| LockStatus::Granted)
        } else if call.block {
            self.lock_or_wait(&host, &asked, &call.lock)
        } else {
            let locked = self.once_decided(|| self.table.lock(&asked)).await;
            locked.map(|()| LockStatus::Granted)
        };
        drop(presence);
        outcome.map_err(|error| {
            debug!(client = %host.address, %error, "lock refused");
            status_of(&error)
        })
    }

    /// Asks the table until it can decide: while another office has the volume, for as long as a call may take.
    async fn once_decided(&self, ask: impl Fn() -> Result<(), LockError>) -> Result<(), LockError> {
        let end = self.env.now().after(HANDOVER_WITHIN);
        loop {
            match ask() {
                Err(LockError::Away) if self.env.now() < end => self.env.sleep(ASK_AGAIN).await,
                decided => return decided,
            }
        }
    }

    fn lock_or_wait(
        self: &Arc<Self>,
        host: &Host,
        asked: &LockRequest,
        lock: &WireLock,
    ) -> Result<LockStatus, LockError> {
        match self.table.lock_or_wait(asked)? {
            Locked::Now => {
                // If it was granted before and the client has not heard of it, it hears it now.
                self.grants.settle_exactly(asked);
                Ok(LockStatus::Granted)
            }
            Locked::AlreadyWaiting => Ok(LockStatus::Blocked),
            Locked::Later(waiter) => {
                self.grants
                    .deliver(&self.env, &self.table, waiter, host.address, lock.clone());
                Ok(LockStatus::Blocked)
            }
        }
    }

    fn cancel(&self, request: &Request, call: &CancelCall) -> Result<LockStatus, LockStatus> {
        let (subject, range) = self.lock_subject(request, &call.lock)?;
        let asked = LockRequest {
            file: subject.admitted.file,
            owner: subject.owner,
            range,
            exclusive: call.exclusive,
        };
        if self.table.cancel(&asked) {
            return Ok(LockStatus::Granted);
        }
        if self.grants.settle_exactly(&asked) {
            // Granted after the client had given up: it does not know, so it holds nothing.
            self.table.unlock(asked.file, &asked.owner, asked.range);
            return Ok(LockStatus::Granted);
        }
        Err(LockStatus::Denied)
    }

    fn unlock(&self, request: &Request, call: &UnlockCall) -> Result<LockStatus, LockStatus> {
        let (subject, range) = self.lock_subject(request, &call.lock)?;
        let file = subject.admitted.file;
        self.table.unlock(file, &subject.owner, range);
        // What is no longer waiting after that was granted, and is now either unlocked or known to the client, which asks
        // again for what it still wants.
        self.grants.settle(&self.table, file, &subject.owner, range);
        Ok(LockStatus::Granted)
    }

    async fn share(&self, request: &Request, call: &ShareCall) -> Result<LockStatus, LockStatus> {
        let subject = self.subject(request, &call.caller, &call.handle, &call.owner, None)?;
        let mode = ShareMode {
            read: call.access & 1 != 0,
            write: call.access & 2 != 0,
            deny_read: call.deny & 1 != 0,
            deny_write: call.deny & 2 != 0,
        };
        self.check_file(&subject, mode.write).await?;
        if self.table.in_grace() && !call.reclaim {
            return Err(LockStatus::GracePeriod);
        }
        let entered = self.monitor.enter(&subject.host).await;
        let presence = entered.map_err(|error| unlisted(&error))?;
        let file = subject.admitted.file;
        let shared = if call.reclaim {
            self.monitor.reclaimed(&subject.host);
            self.table.reclaim_share(file, &subject.owner, mode)
        } else {
            self.table.share(file, &subject.owner, mode)
        };
        drop(presence);
        shared
            .map(|()| LockStatus::Granted)
            .map_err(|error| status_of(&error))
    }

    fn unshare(&self, request: &Request, call: &ShareCall) -> Result<LockStatus, LockStatus> {
        let subject = self.subject(request, &call.caller, &call.handle, &call.owner, None)?;
        // One that is gone already is what was asked for.
        self.table.unshare(subject.admitted.file, &subject.owner);
        Ok(LockStatus::Granted)
    }

    fn free_all(&self, request: &Request, call: &FreeAllCall) -> Result<(), Refusal> {
        self.exports.admit_machine(&request.peer)?;
        let host = Host {
            address: request.peer.address,
            name: Bytes::copy_from_slice(&call.caller.0),
        };
        let table = self.table.clone();
        let release = move |host: &Host| table.release_client(&host.lock_client());
        self.monitor.claim_free(&request.peer, host, call.state, release);
        Ok(())
    }

    /// Whether the handle in a call is one of ours, and for its sender: whoever gets a call of ours for an answer.
    fn knows(&self, request: &Request, handle: &NetObject) -> bool {
        let admitted = self.exports.admit(&handle.0, &request.peer, &request.credential);
        admitted.is_ok()
    }
}

/// The bytes of an owner in the lock table: the process number (not of shares, which have none), and the client's words.
fn owner_bytes(owner: &NetObject, process: Option<i32>) -> Bytes {
    let mut bytes = BytesMut::with_capacity(4 + owner.0.len());
    bytes.put_i32(process.unwrap_or(0));
    bytes.put_slice(&owner.0);
    bytes.freeze()
}

fn wire_holder(holder: &LockHolder) -> WireHolder {
    let bytes = &holder.owner.owner;
    // Owners of other protocols are nobody an NLM client knows.
    let (process, owner) = match (holder.owner.client.protocol, bytes.split_first_chunk::<4>()) {
        (LockProtocol::Nlm, Some((process, _))) => (i32::from_be_bytes(*process), bytes.slice(4..)),
        (
            LockProtocol::Nlm
            | LockProtocol::Nfs4
            | LockProtocol::Smb
            | LockProtocol::Local
            | LockProtocol::Office,
            _,
        ) => (0, Bytes::new()),
    };
    WireHolder {
        exclusive: holder.exclusive,
        process,
        owner: owner.into(),
        offset: holder.range.first,
        length_bytes: holder.range.length_bytes(),
    }
}

/// Offsets are signed on the clients, so that a range must end below 2^63.
fn range(lock: &WireLock) -> Result<ByteRange, LockStatus> {
    const LAST_MAX: u64 = i64::MAX as u64;
    let range = ByteRange::of_length(lock.offset, lock.length_bytes).ok_or(LockStatus::TooBig)?;
    let ends_in_time = lock.length_bytes == 0 || range.last <= LAST_MAX;
    if lock.offset > LAST_MAX || !ends_in_time {
        return Err(LockStatus::TooBig);
    }
    Ok(range)
}

fn status_of(error: &LockError) -> LockStatus {
    match error {
        LockError::Conflict(_) | LockError::GraceOver | LockError::Cancelled => LockStatus::Denied,
        // The one status on which clients ask again later.
        LockError::Grace | LockError::Away => LockStatus::GracePeriod,
        LockError::Deadlock { .. } => LockStatus::Deadlock,
        // The client's program gets ENOLCK.
        LockError::TooMany => LockStatus::NoLocks,
    }
}

fn unlisted(error: &ListError) -> LockStatus {
    warn!(%error, "a lock was refused because its client could not be told of a restart");
    LockStatus::NoLocks
}

//! NLM's procedures: decode, do, reply; or, for the `_MSG` forms, decode, acknowledge, do, and call back with the result.

use super::{
    CancelCall, FreeAllCall, LockCall, LockManager, LockStatus, NetObject, PROGRAM, ShareCall, ShareReply,
    StatusReply, TestCall, TestReply, UnlockCall, VERSION,
};
use crate::{
    remote,
    rpc::{Credential, Program, Refusal, Reply, Request, Target},
    xdr::{Decode, Decoder, Encode, XdrError},
};
use async_trait::async_trait;
use std::{net::IpAddr, ops::RangeInclusive, sync::Arc};
use tokio::sync::Semaphore;
use tracing::debug;

const NULL: u32 = 0;
const TEST: u32 = 1;
const LOCK: u32 = 2;
const CANCEL: u32 = 3;
const UNLOCK: u32 = 4;
pub(super) const GRANTED: u32 = 5;
const TEST_MSG: u32 = 6;
const LOCK_MSG: u32 = 7;
const CANCEL_MSG: u32 = 8;
const UNLOCK_MSG: u32 = 9;
const GRANTED_MSG: u32 = 10;
const TEST_RES: u32 = 11;
const LOCK_RES: u32 = 12;
const CANCEL_RES: u32 = 13;
const UNLOCK_RES: u32 = 14;
const GRANTED_RES: u32 = 15;
const SHARE: u32 = 20;
const UNSHARE: u32 = 21;
const NM_LOCK: u32 = 22;
const FREE_ALL: u32 = 23;

/// Results on their way by call at once. One that finds no place is dropped: the caller asks again.
const ANSWERS: usize = 64;
/// A TEST's reply can carry two objects of a kilobyte.
const REPLY_BYTES: usize = 2400;

/// The NLM program.
pub struct NlmProgram {
    manager: Arc<LockManager>,
    answers: Arc<Semaphore>,
}

impl NlmProgram {
    pub(super) fn new(manager: Arc<LockManager>) -> Self {
        Self {
            manager,
            answers: Arc::new(Semaphore::new(ANSWERS)),
        }
    }

    async fn test(&self, request: &Request) -> Result<TestReply, Refusal> {
        let call = TestCall::decode(&mut request.arguments.clone())?;
        let result = self.manager.test(request, &call).await;
        let cookie = call.cookie;
        Ok(TestReply { cookie, result })
    }

    async fn lock(&self, request: &Request, monitored: bool) -> Result<StatusReply, Refusal> {
        let call = LockCall::decode(&mut request.arguments.clone())?;
        let status = merge(self.manager.lock(request, &call, monitored).await);
        let cookie = call.cookie;
        Ok(StatusReply { cookie, status })
    }

    fn cancel(&self, request: &Request) -> Result<StatusReply, Refusal> {
        let call = CancelCall::decode(&mut request.arguments.clone())?;
        let status = merge(self.manager.cancel(request, &call));
        let cookie = call.cookie;
        Ok(StatusReply { cookie, status })
    }

    fn unlock(&self, request: &Request) -> Result<StatusReply, Refusal> {
        let call = UnlockCall::decode(&mut request.arguments.clone())?;
        let status = merge(self.manager.unlock(request, &call));
        let cookie = call.cookie;
        Ok(StatusReply { cookie, status })
    }

    async fn share(&self, request: &Request, unshare: bool) -> Result<ShareReply, Refusal> {
        let call = ShareCall::decode(&mut request.arguments.clone())?;
        if call.access > 3 || call.deny > 3 {
            return Err(Refusal::GarbageArguments);
        }
        let status = merge(if unshare {
            self.manager.unshare(request, &call)
        } else {
            self.manager.share(request, &call).await
        });
        Ok(ShareReply {
            cookie: call.cookie,
            status,
            sequence: 0,
        })
    }

    /// Whether the caller of a `_MSG` procedure is called back: only with a handle of ours, or anybody could make us call others.
    fn knows(
        &self,
        request: &Request,
        handle: impl FnOnce(&mut Decoder) -> Result<NetObject, XdrError>,
    ) -> Result<bool, Refusal> {
        let handle = handle(&mut request.arguments.clone())?;
        Ok(self.manager.knows(request, &handle))
    }

    /// Sends a result by a call of its own, to the caller's lock manager.
    fn answer(&self, to: IpAddr, procedure: u32, result: impl Encode + Send + Sync + 'static) {
        let Ok(place) = self.answers.clone().try_acquire_owned() else {
            debug!(client = %to, "too many results on their way; one was dropped");
            return;
        };
        let env = self.manager.env.clone();
        let target = Target {
            program: PROGRAM,
            version: VERSION,
            credential: Credential::None,
        };
        drop(self.manager.env.spawn("lock result", async move {
            if let Err(error) = remote::call(&env, to, &target, procedure, &result).await {
                debug!(client = %to, %error, "a result could not be sent");
            }
            drop(place);
        }));
    }
}

fn merge(result: Result<LockStatus, LockStatus>) -> LockStatus {
    result.unwrap_or_else(|refused| refused)
}

fn reply_status(reply: &StatusReply) -> Reply {
    match reply.status {
        LockStatus::Granted | LockStatus::Blocked | LockStatus::Denied => Reply::success(reply),
        LockStatus::NoLocks
        | LockStatus::GracePeriod
        | LockStatus::Deadlock
        | LockStatus::ReadOnly
        | LockStatus::StaleHandle
        | LockStatus::TooBig
        | LockStatus::Failed => Reply::failure(reply),
    }
}

#[async_trait]
impl Program for NlmProgram {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn name(&self) -> &'static str {
        "nlm"
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn procedure_name(&self, _version: u32, procedure: u32) -> Option<&'static str> {
        const NAMES: [&str; 16] = [
            "NULL",
            "TEST",
            "LOCK",
            "CANCEL",
            "UNLOCK",
            "GRANTED",
            "TEST_MSG",
            "LOCK_MSG",
            "CANCEL_MSG",
            "UNLOCK_MSG",
            "GRANTED_MSG",
            "TEST_RES",
            "LOCK_RES",
            "CANCEL_RES",
            "UNLOCK_RES",
            "GRANTED_RES",
        ];
        match procedure {
            SHARE => Some("SHARE"),
            UNSHARE => Some("UNSHARE"),
            NM_LOCK => Some("NM_LOCK"),
            FREE_ALL => Some("FREE_ALL"),
            procedure => NAMES.get(procedure as usize).copied(),
        }
    }

    fn reply_bytes(&self, _request: &Request) -> usize {
        REPLY_BYTES
    }

    async fn call(&self, request: Request) -> Result<Reply, Refusal> {
        let peer = request.peer.address;
        let done = || Ok(Reply::success(&()));
        match request.procedure {
            NULL => done(),
            TEST => Ok(Reply::success(&self.test(&request).await?)),
            LOCK => Ok(reply_status(&self.lock(&request, true).await?)),
            CANCEL => Ok(reply_status(&self.cancel(&request)?)),
            UNLOCK => Ok(reply_status(&self.unlock(&request)?)),
            TEST_MSG => {
                let answered =
                    self.knows(&request, |arguments| Ok(TestCall::decode(arguments)?.lock.handle))?;
                let result = self.test(&request).await?;
                if answered {
                    self.answer(peer, TEST_RES, result);
                }
                done()
            }
            LOCK_MSG => {
                let answered =
                    self.knows(&request, |arguments| Ok(LockCall::decode(arguments)?.lock.handle))?;
                let result = self.lock(&request, true).await?;
                if answered {
                    self.answer(peer, LOCK_RES, result);
                }
                done()
            }
            CANCEL_MSG => {
                let answered = self.knows(&request, |arguments| {
                    Ok(CancelCall::decode(arguments)?.lock.handle)
                })?;
                let result = self.cancel(&request)?;
                if answered {
                    self.answer(peer, CANCEL_RES, result);
                }
                done()
            }
            UNLOCK_MSG => {
                let answered = self.knows(&request, |arguments| {
                    Ok(UnlockCall::decode(arguments)?.lock.handle)
                })?;
                let result = self.unlock(&request)?;
                if answered {
                    self.answer(peer, UNLOCK_RES, result);
                }
                done()
            }
            GRANTED => {
                // We wait for no lock of another server.
                let call = TestCall::decode(&mut request.arguments.clone())?;
                let status = LockStatus::Denied;
                Ok(reply_status(&StatusReply {
                    cookie: call.cookie,
                    status,
                }))
            }
            // Results of calls we do not make in this form.
            GRANTED_MSG | TEST_RES | LOCK_RES | CANCEL_RES | UNLOCK_RES | GRANTED_RES => done(),
            SHARE => Ok(Reply::success(&self.share(&request, false).await?)),
            UNSHARE => Ok(Reply::success(&self.share(&request, true).await?)),
            NM_LOCK => Ok(reply_status(&self.lock(&request, false).await?)),
            FREE_ALL => {
                let call = FreeAllCall::decode(&mut request.arguments.clone())?;
                self.manager.free_all(&request, &call)?;
                done()
            }
            _ => Err(Refusal::ProcedureUnavailable),
        }
    }
}

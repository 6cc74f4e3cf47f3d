//! Locks, by fcntl and by flock, in the table of all protocols.
//!
//! A flock is a lock of the whole file by the open file, as NFS clients make it one: so it meets the locks of those, and, other
//! than on a local disk, locks by fcntl too.

use super::{Operations, Outcome};
use crate::{
    abi,
    errno::Failure,
    interrupted::Interrupted,
    reply::{self, Reply},
    request::Lock,
};
use firn_session::{ByteRange, LockError, LockRequest, Locked};
use futures::future::{Either, select};
use rustix::io::Errno;
use std::{pin::pin, time::Duration};

/// The end of a lock that has none: the largest signed offset.
const TO_THE_END: u64 = i64::MAX as u64;

/// Before what cannot be queued for is asked for again: the end of the grace period, the same request of another thread, or the volume that another
/// office has.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

impl Operations {
    fn lock_request(&self, node: u64, lock: &Lock) -> Result<LockRequest, Failure> {
        let flock = lock.flags & abi::LOCK_FLOCK != 0;
        let last = if lock.end >= TO_THE_END {
            u64::MAX
        } else {
            lock.end
        };
        let range = ByteRange {
            first: lock.start,
            last,
        };
        if lock.start > last {
            return Err(Errno::INVAL.into());
        }
        Ok(LockRequest {
            file: self.handle(node)?,
            owner: self.lock_owner(lock.owner),
            range: if flock { ByteRange::ALL } else { range },
            exclusive: lock.kind == abi::F_WRLCK,
        })
    }

    /// Asks the table until it can decide, or a signal comes.
    async fn once_decided(
        &self,
        interrupted: &Interrupted,
        ask: impl Fn() -> Result<(), LockError> + Send + Sync,
    ) -> Result<Result<(), LockError>, Failure> {
        loop {
            match ask() {
                Err(LockError::Away) => {
                    let pause = pin!(self.env.sleep(ASK_AGAIN_AFTER));
                    if let Either::Right(_) = select(pause, pin!(interrupted.wait())).await {
                        return Err(Errno::INTR.into());
                    }
                }
                decided => return Ok(decided),
            }
        }
    }

    pub(super) async fn get_lock(&self, node: u64, lock: &Lock, interrupted: &Interrupted) -> Outcome {
        let request = self.lock_request(node, lock)?;
        let tested = self
            .once_decided(interrupted, || self.locks.test(&request))
            .await?;
        let holder = match tested {
            Ok(()) => return Ok(Reply::Structure(reply::lock(lock.start, lock.end, abi::F_UNLCK))),
            Err(LockError::Conflict(holder)) => holder,
            Err(error) => return Err(error.into()),
        };
        let kind = if holder.exclusive {
            abi::F_WRLCK
        } else {
            abi::F_RDLCK
        };
        let last = holder.range.last.min(TO_THE_END);
        Ok(Reply::Structure(reply::lock(holder.range.first, last, kind)))
    }

    pub(super) async fn set_lock(
        &self,
        node: u64,
        lock: &Lock,
        waits: bool,
        interrupted: &Interrupted,
    ) -> Outcome {
        let request = self.lock_request(node, lock)?;
        if lock.kind == abi::F_UNLCK {
            self.locks.unlock(request.file, &request.owner, request.range);
            return Ok(Reply::Empty);
        }
        self.locking_opens.asked(request.file, lock.handle, lock.owner);
        if !waits {
            let locked = self
                .once_decided(interrupted, || self.locks.lock(&request))
                .await?;
            return Ok(locked.map(|()| Reply::Empty)?);
        }
        loop {
            match self.locks.lock_or_wait(&request) {
                Ok(Locked::Now) => return Ok(Reply::Empty),
                Ok(Locked::Later(waiter)) => {
                    // Dropped at a signal, the waiter leaves the queue or gives the lock back.
                    return match select(waiter, pin!(interrupted.wait())).await {
                        Either::Left((granted, _)) => Ok(granted.map(|()| Reply::Empty)?),
                        Either::Right(_) => Err(Errno::INTR.into()),
                    };
                }
                Ok(Locked::AlreadyWaiting) | Err(LockError::Grace) => {
                    let pause = pin!(self.env.sleep(ASK_AGAIN_AFTER));
                    if let Either::Right(_) = select(pause, pin!(interrupted.wait())).await {
                        return Err(Errno::INTR.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

//! The structures of NLM version 4 (X/Open XNFS, chapters 10 and 14).

use crate::xdr::{Decode, Decoder, Encode, Encoder, Opaque, XdrError, xdr_enum, xdr_struct};

/// Handles, owners and cookies on the wire (`netobj`).
pub type NetObject = Opaque<1024>;
/// Names of machines on the wire (`LM_MAXSTRLEN`).
pub type CallerName = Opaque<1024>;

xdr_enum! {
    /// What came of a request (`nlm4_stats`).
    pub enum LockStatus {
        /// Done.
        Granted = 0,
        /// A conflicting lock is held, or there was nothing to cancel.
        Denied = 1,
        /// No room for another lock.
        NoLocks = 2,
        /// Not yet: GRANTED will be called.
        Blocked = 3,
        /// Only reclaims are served now.
        GracePeriod = 4,
        /// Waiting would be for ever.
        Deadlock = 5,
        /// The export is read-only.
        ReadOnly = 6,
        /// The handle names no file.
        StaleHandle = 7,
        /// The range ends beyond the largest file.
        TooBig = 8,
        /// Cannot be done at all.
        Failed = 9,
    }
}

xdr_struct! {
    /// A lock asked about (`nlm4_lock`).
    pub struct WireLock {
        /// The client's name for itself.
        pub caller: CallerName,
        /// The file's NFS handle.
        pub handle: NetObject,
        /// The client's name for the process.
        pub owner: NetObject,
        /// The process's number on the client.
        pub process: i32,
        /// The first byte.
        pub offset: u64,
        /// 0: to the end.
        pub length_bytes: u64,
    }

    /// A lock in the way (`nlm4_holder`).
    pub struct WireHolder {
        /// For writing.
        pub exclusive: bool,
        /// As in [`WireLock`].
        pub process: i32,
        /// As in [`WireLock`].
        pub owner: NetObject,
        /// The first byte.
        pub offset: u64,
        /// 0: to the end.
        pub length_bytes: u64,
    }

    /// TEST and GRANTED.
    pub struct TestCall {
        /// Repeated in the reply.
        pub cookie: NetObject,
        /// For writing.
        pub exclusive: bool,
        /// The lock.
        pub lock: WireLock,
    }

    /// LOCK and NM_LOCK.
    pub struct LockCall {
        /// Repeated in the reply.
        pub cookie: NetObject,
        /// Whether to wait for it.
        pub block: bool,
        /// For writing.
        pub exclusive: bool,
        /// The lock.
        pub lock: WireLock,
        /// Whether it was held before we restarted.
        pub reclaim: bool,
        /// The client's state number.
        pub state: i32,
    }

    /// CANCEL.
    pub struct CancelCall {
        /// Repeated in the reply.
        pub cookie: NetObject,
        /// As in the LOCK meant.
        pub block: bool,
        /// As in the LOCK meant.
        pub exclusive: bool,
        /// As in the LOCK meant.
        pub lock: WireLock,
    }

    /// UNLOCK.
    pub struct UnlockCall {
        /// Repeated in the reply.
        pub cookie: NetObject,
        /// What to unlock.
        pub lock: WireLock,
    }

    /// The reply to LOCK, CANCEL, UNLOCK and GRANTED.
    pub struct StatusReply {
        /// Of the call.
        pub cookie: NetObject,
        /// What came of it.
        pub status: LockStatus,
    }

    /// SHARE and UNSHARE.
    pub struct ShareCall {
        /// Repeated in the reply.
        pub cookie: NetObject,
        /// The client's name for itself.
        pub caller: CallerName,
        /// The file's NFS handle.
        pub handle: NetObject,
        /// The client's name for the process.
        pub owner: NetObject,
        /// Denied to others: 1 reading, 2 writing.
        pub deny: u32,
        /// Wanted: 1 reading, 2 writing.
        pub access: u32,
        /// Whether it was held before we restarted.
        pub reclaim: bool,
    }

    /// The reply to SHARE and UNSHARE.
    pub struct ShareReply {
        /// Of the call.
        pub cookie: NetObject,
        /// What came of it.
        pub status: LockStatus,
        /// Unused.
        pub sequence: i32,
    }

    /// FREE_ALL.
    pub struct FreeAllCall {
        /// The client's name for itself.
        pub caller: CallerName,
        /// Its state number.
        pub state: i32,
    }
}

/// The reply to TEST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestReply {
    /// Of the call.
    pub cookie: NetObject,
    /// `Ok`: the lock can be had. `Denied` comes with the lock in the way.
    pub result: Result<(), (LockStatus, Option<WireHolder>)>,
}

impl Encode for TestReply {
    fn encode(&self, out: &mut Encoder) {
        self.cookie.encode(out);
        match &self.result {
            Ok(()) => LockStatus::Granted.encode(out),
            Err((LockStatus::Denied, Some(holder))) => {
                LockStatus::Denied.encode(out);
                holder.encode(out);
            }
            // Without a holder there is no such reply; "failed" is the closest there is.
            Err((LockStatus::Denied, None)) => LockStatus::Failed.encode(out),
            Err((status, _)) => status.encode(out),
        }
    }
}

impl Decode for TestReply {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        let cookie = NetObject::decode(input)?;
        let result = match LockStatus::decode(input)? {
            LockStatus::Granted => Ok(()),
            LockStatus::Denied => Err((LockStatus::Denied, Some(WireHolder::decode(input)?))),
            status => Err((status, None)),
        };
        Ok(Self { cookie, result })
    }
}

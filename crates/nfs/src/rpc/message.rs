//! The head of calls and replies, and the credentials in it.
//!
//! ```text
//! call  = xid | CALL 0  | rpc version 2 | program | version | procedure | credential | verifier | arguments
//! reply = xid | REPLY 1 | ACCEPTED 0 | verifier | status | results, or the version range of a mismatch
//!                       | DENIED 1   | RPC_MISMATCH 0 low high, or AUTH_ERROR 1 status
//! credential, verifier = flavour | opaque, at most 400 bytes
//! ```

use super::Refusal;
use crate::xdr::{Array, Decode, Decoder, Encode, Encoder, Opaque, XdrError, xdr_enum, xdr_struct};
use bytes::Bytes;
use std::ops::RangeInclusive;

/// The only RPC version there is.
const RPC_VERSION: u32 = 2;
/// RFC 5531 §8.2.
const AUTH_BODY_MAX_BYTES: usize = 400;
const CALL: u32 = 0;
const REPLY: u32 = 1;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
/// Supplementary groups that AUTH_SYS carries (RFC 5531 appendix A).
pub const GROUPS_MAX: usize = 16;

xdr_enum! {
    /// Why a credential was refused (RFC 5531 §9).
    pub enum AuthStatus {
        /// Malformed or of an unknown flavour.
        BadCredential = 1,
        /// Must begin a new session.
        RejectedCredential = 2,
        /// The verifier is malformed.
        BadVerifier = 3,
        /// The verifier has expired or was replayed.
        RejectedVerifier = 4,
        /// Not good enough for this call.
        TooWeak = 5,
    }
}

xdr_struct! {
    /// The credential of AUTH_SYS: a Unix user as the client says it is (RFC 5531 appendix A).
    pub struct AuthSys {
        /// Arbitrary.
        pub stamp: u32,
        /// The client's host name.
        pub machine: Opaque<255>,
        /// User.
        pub uid: u32,
        /// Primary group.
        pub gid: u32,
        /// Supplementary groups.
        pub groups: Array<u32, GROUPS_MAX>,
    }
}

/// Who a caller says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// AUTH_NONE: it does not say.
    None,
    /// AUTH_SYS.
    Sys(AuthSys),
}

impl Credential {
    /// AUTH_SYS for `uid` and `gid` from `machine`.
    pub fn sys(machine: &str, uid: u32, gid: u32, groups: Vec<u32>) -> Self {
        Self::Sys(AuthSys {
            stamp: 0,
            machine: machine.into(),
            uid,
            gid,
            groups: Array(groups),
        })
    }

    fn flavour(&self) -> u32 {
        match self {
            Self::None => AUTH_NONE,
            Self::Sys(_) => AUTH_SYS,
        }
    }
}

/// The head of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallHeader {
    /// Chosen by the caller; the reply repeats it.
    pub transaction: u32,
    /// The program called.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// Who calls.
    pub credential: Credential,
}

/// A message that cannot be dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It is no RPC call at all; there is nobody to answer.
    #[error("not an RPC call: {0}")]
    NotACall(#[from] XdrError),
    /// A call in another version of RPC.
    #[error("RPC version is not 2")]
    RpcMismatch {
        /// To be repeated in the reply.
        transaction: u32,
    },
    /// A call whose credential or verifier is malformed or of an unknown flavour.
    #[error("credential refused: {status:?}")]
    Authentication {
        /// To be repeated in the reply.
        transaction: u32,
        /// The reason for the caller.
        status: AuthStatus,
    },
}

impl CallHeader {
    /// Reads the head of a call and leaves `input` at the arguments.
    ///
    /// # Errors
    /// If it is no call, or one that must be refused before anything else is known.
    pub fn decode(input: &mut Decoder) -> Result<Self, HeaderError> {
        let transaction = input.u32()?;
        let kind = input.u32()?;
        if kind != CALL {
            return Err(XdrError::UnknownValue { value: kind }.into());
        }
        if input.u32()? != RPC_VERSION {
            return Err(HeaderError::RpcMismatch { transaction });
        }
        let (program, version, procedure) = (input.u32()?, input.u32()?, input.u32()?);
        let refused = |status| HeaderError::Authentication { transaction, status };
        let (flavour, body) = decode_auth(input).map_err(|_| refused(AuthStatus::BadCredential))?;
        let credential = match flavour {
            AUTH_NONE => Credential::None,
            AUTH_SYS => {
                let parsed = AuthSys::decode(&mut Decoder::new(body));
                Credential::Sys(parsed.map_err(|_| refused(AuthStatus::BadCredential))?)
            }
            _ => return Err(refused(AuthStatus::BadCredential)),
        };
        decode_auth(input).map_err(|_| refused(AuthStatus::BadVerifier))?;
        Ok(Self {
            transaction,
            program,
            version,
            procedure,
            credential,
        })
    }
}

impl Encode for CallHeader {
    fn encode(&self, out: &mut Encoder) {
        for word in [
            self.transaction,
            CALL,
            RPC_VERSION,
            self.program,
            self.version,
            self.procedure,
            self.credential.flavour(),
        ] {
            out.u32(word);
        }
        match &self.credential {
            Credential::None => out.opaque(&[]),
            Credential::Sys(sys) => {
                let mut body = Encoder::new();
                sys.encode(&mut body);
                out.opaque(&body.into_bytes());
            }
        }
        out.u32(AUTH_NONE);
        out.opaque(&[]);
    }
}

fn decode_auth(input: &mut Decoder) -> Result<(u32, Bytes), XdrError> {
    Ok((input.u32()?, input.opaque(AUTH_BODY_MAX_BYTES)?))
}

/// Why a call was not executed, as its reply says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplyStatus {
    Success,
    ProgramUnavailable,
    ProgramMismatch(RangeInclusive<u32>),
    ProcedureUnavailable,
    GarbageArguments,
    SystemError,
    RpcMismatch,
    Authentication(AuthStatus),
}

impl ReplyStatus {
    /// `None` if there is to be no reply.
    pub(crate) fn from_refusal(refusal: Refusal) -> Option<Self> {
        match refusal {
            Refusal::ProcedureUnavailable => Some(Self::ProcedureUnavailable),
            Refusal::GarbageArguments => Some(Self::GarbageArguments),
            Refusal::SystemError => Some(Self::SystemError),
            Refusal::Authentication(status) => Some(Self::Authentication(status)),
            Refusal::Silence => None,
        }
    }

    /// Appends the head of a reply; the results follow a success.
    pub(crate) fn encode(&self, transaction: u32, out: &mut Encoder) {
        out.u32(transaction);
        out.u32(REPLY);
        let accepted = |out: &mut Encoder, status: u32| {
            for word in [0, AUTH_NONE, 0, status] {
                out.u32(word);
            }
        };
        match self {
            Self::Success => accepted(out, 0),
            Self::ProgramUnavailable => accepted(out, 1),
            Self::ProgramMismatch(range) => {
                accepted(out, 2);
                out.u32(*range.start());
                out.u32(*range.end());
            }
            Self::ProcedureUnavailable => accepted(out, 3),
            Self::GarbageArguments => accepted(out, 4),
            Self::SystemError => accepted(out, 5),
            Self::RpcMismatch => {
                for word in [1, 0, RPC_VERSION, RPC_VERSION] {
                    out.u32(word);
                }
            }
            Self::Authentication(status) => {
                for word in [1, 1, *status as u32] {
                    out.u32(word);
                }
            }
        }
    }

    /// Reads the head of a reply and leaves `input` at the results.
    pub(crate) fn decode(input: &mut Decoder) -> Result<(u32, Self), XdrError> {
        let transaction = input.u32()?;
        let unknown = |value| Err(XdrError::UnknownValue { value });
        match input.u32()? {
            REPLY => {}
            value => return unknown(value),
        }
        let status = match input.u32()? {
            0 => {
                decode_auth(input)?;
                match input.u32()? {
                    0 => Self::Success,
                    1 => Self::ProgramUnavailable,
                    2 => Self::ProgramMismatch(input.u32()?..=input.u32()?),
                    3 => Self::ProcedureUnavailable,
                    4 => Self::GarbageArguments,
                    5 => Self::SystemError,
                    value => return unknown(value),
                }
            }
            1 => match input.u32()? {
                0 => {
                    input.u64()?;
                    Self::RpcMismatch
                }
                1 => Self::Authentication(AuthStatus::decode(input)?),
                value => return unknown(value),
            },
            value => return unknown(value),
        };
        Ok((transaction, status))
    }
}

//! From a message to the program it calls, and from its answer to the bytes of a reply.

use super::{
    CallHeader, HeaderError, Peer, ProcedureStatistics, Program, Reply, Request, SlowCalls,
    message::ReplyStatus,
    slow_calls::CallSeen,
    statistics::{Counters, Ending, Statistics},
};
use crate::xdr::{Decoder, Encoder};
use bytes::Bytes;
use firn_env::{Env, Operation};
use std::{collections::BTreeMap, net::SocketAddr, ops::RangeInclusive, sync::Arc};
use tracing::{Instrument, debug};

/// The head of a reply that tells of success.
const HEAD_BYTES: usize = 24;
/// What results without file data mostly fit in.
const COPIED_BYTES: usize = 1024;

/// A set of programs served together, with their statistics.
pub struct Programs {
    by_number: BTreeMap<u32, Vec<Arc<dyn Program>>>,
    statistics: Statistics,
    slow_calls: Option<Arc<SlowCalls>>,
}

/// A message as the server received it.
pub(super) enum Accepted {
    /// To be executed.
    Call(AcceptedCall),
    /// Answered without being executed.
    Answered(Encoder),
    /// No RPC call: there is nobody to answer.
    NotACall,
}

/// A call whose program is known.
pub(super) struct AcceptedCall {
    program: Arc<dyn Program>,
    counters: Option<Arc<Counters>>,
    slow_calls: Option<Arc<SlowCalls>>,
    request: Request,
    message_bytes: usize,
}

impl Programs {
    /// A set of programs; one number may occur several times with different versions.
    pub fn new(programs: impl IntoIterator<Item = Arc<dyn Program>>) -> Self {
        let mut by_number: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for program in programs {
            by_number.entry(program.number()).or_default().push(program);
        }
        let statistics = Statistics::new(by_number.values().flatten());
        Self {
            by_number,
            statistics,
            slow_calls: None,
        }
    }

    /// The same, with a log of slow calls.
    #[must_use]
    pub fn with_slow_calls(mut self, slow_calls: Arc<SlowCalls>) -> Self {
        self.slow_calls = Some(slow_calls);
        self
    }

    /// Number and versions of each program.
    pub fn list(&self) -> impl Iterator<Item = (u32, RangeInclusive<u32>)> {
        self.by_number
            .values()
            .flatten()
            .map(|program| (program.number(), program.versions()))
    }

    /// What was counted for each procedure.
    pub fn statistics(&self) -> Vec<ProcedureStatistics> {
        self.statistics.snapshot()
    }

    pub(super) fn accept(&self, message: Bytes, peer: Peer) -> Accepted {
        let answered = |transaction, status: ReplyStatus| {
            debug!(?peer, ?status, "call refused");
            let mut out = Encoder::new();
            status.encode(transaction, &mut out);
            Accepted::Answered(out)
        };
        let mut input = Decoder::new(message.clone());
        let header = match CallHeader::decode(&mut input) {
            Ok(header) => header,
            Err(HeaderError::NotACall(error)) => {
                debug!(?peer, %error, "not an RPC call");
                return Accepted::NotACall;
            }
            Err(HeaderError::RpcMismatch { transaction }) => {
                return answered(transaction, ReplyStatus::RpcMismatch);
            }
            Err(HeaderError::Authentication { transaction, status }) => {
                return answered(transaction, ReplyStatus::Authentication(status));
            }
        };
        let Some(candidates) = self.by_number.get(&header.program) else {
            return answered(header.transaction, ReplyStatus::ProgramUnavailable);
        };
        let chosen = candidates
            .iter()
            .find(|program| program.versions().contains(&header.version));
        let Some(program) = chosen else {
            let low = candidates.iter().map(|program| *program.versions().start()).min();
            let high = candidates.iter().map(|program| *program.versions().end()).max();
            let range = low.unwrap_or(0)..=high.unwrap_or(0);
            return answered(header.transaction, ReplyStatus::ProgramMismatch(range));
        };
        Accepted::Call(AcceptedCall {
            program: program.clone(),
            counters: self
                .statistics
                .counters(header.program, header.version, header.procedure)
                .cloned(),
            slow_calls: self.slow_calls.clone(),
            message_bytes: message.len(),
            request: Request {
                peer,
                transaction: header.transaction,
                version: header.version,
                procedure: header.procedure,
                credential: header.credential,
                arguments: input,
                // A header was decoded, so there are at least the four bytes of the transaction id.
                message: message.slice(4..),
            },
        })
    }
}

impl AcceptedCall {
    pub(super) fn reply_bytes(&self) -> usize {
        self.program.reply_bytes(&self.request)
    }

    /// Executes the call; `None` if there is to be no reply.
    pub(super) async fn execute(self, env: &Env) -> Option<Encoder> {
        let began = env.now();
        let (transaction, procedure, peer) = (
            self.request.transaction,
            self.request.procedure,
            self.request.peer,
        );
        let seen = self
            .slow_calls
            .map(|slow_calls| (slow_calls, CallSeen::of(&self.request)));
        let operation = Operation::new();
        // What is logged on the way down to the store stands with the call, if somebody listens to such detail.
        let span = tracing::debug_span!(
            "call",
            client = %SocketAddr::new(peer.address, peer.port),
            program = self.program.name(),
            procedure = self.program.procedure_name(self.request.version, procedure).unwrap_or("unknown"),
            xid = format_args!("{transaction:08x}"),
        );
        let (out, ending) = match operation
            .run(self.program.call(self.request))
            .instrument(span)
            .await
        {
            Ok(Reply { body, failed }) => {
                // Small results are copied behind the head; of large ones most is by reference.
                let mut out = Encoder::with_capacity(HEAD_BYTES + body.len().min(COPIED_BYTES));
                ReplyStatus::Success.encode(transaction, &mut out);
                out.append(body);
                (out, if failed { Ending::Failed } else { Ending::Success })
            }
            Err(refusal) => {
                debug!(
                    ?peer,
                    program = self.program.name(),
                    procedure,
                    ?refusal,
                    "call refused"
                );
                let mut out = Encoder::with_capacity(HEAD_BYTES);
                if let Some(status) = ReplyStatus::from_refusal(refusal) {
                    status.encode(transaction, &mut out);
                }
                (out, Ending::Refused)
            }
        };
        let now = env.now();
        let took = now.since(began);
        if let Some((slow_calls, call)) = seen {
            slow_calls.ended(&*self.program, call, &operation, now, took);
        }
        if let Some(counters) = self.counters {
            counters.record(ending, self.message_bytes, out.len(), took);
        }
        (!out.is_empty()).then_some(out)
    }
}

/// The reply that says that a call could not be done, 24 bytes.
pub(super) fn refusal(transaction: u32) -> Bytes {
    let mut out = Encoder::new();
    ReplyStatus::SystemError.encode(transaction, &mut out);
    out.into_bytes()
}

//! The log of slow calls: who asked for what, how long it took, and what it waited for.

use super::{Peer, Program, Request};
use crate::xdr::Decoder;
use firn_env::{LogLimiter, Monotonic, Operation};
use std::time::Duration;

/// Lines a minute; a store that hangs makes every call slow.
const LINES_A_MINUTE: u32 = 10;

/// Logs calls that take at least as long as a limit.
#[derive(Debug)]
pub struct SlowCalls {
    limit: Duration,
    lines: LogLimiter,
}

/// What has to be remembered of a call to tell of it when it has ended.
pub(super) struct CallSeen {
    peer: Peer,
    transaction: u32,
    version: u32,
    procedure: u32,
    arguments: Decoder,
}

impl CallSeen {
    pub(super) fn of(request: &Request) -> Self {
        Self {
            peer: request.peer,
            transaction: request.transaction,
            version: request.version,
            procedure: request.procedure,
            arguments: request.arguments.clone(),
        }
    }
}

impl SlowCalls {
    /// Calls that take `limit` or longer are slow.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            lines: LogLimiter::lines(LINES_A_MINUTE),
        }
    }

    /// Slow calls since the start, logged or not.
    pub fn total(&self) -> u64 {
        self.lines.total()
    }

    /// Looks at a call that has ended.
    pub(super) fn ended(
        &self,
        program: &dyn Program,
        call: CallSeen,
        operation: &Operation,
        now: Monotonic,
        took: Duration,
    ) {
        if took < self.limit {
            return;
        }
        let Some(slow_calls) = self.lines.count(now) else {
            return;
        };
        let subject = program.subject(call.procedure, call.arguments);
        tracing::warn!(
            client = %std::net::SocketAddr::new(call.peer.address, call.peer.port),
            program = program.name(),
            procedure = program.procedure_name(call.version, call.procedure).unwrap_or("unknown"),
            xid = format_args!("{:08x}", call.transaction),
            subject,
            took = format_args!("{took:.2?}"),
            waited = %operation.waits(),
            slow_calls,
            "slow call"
        );
    }
}

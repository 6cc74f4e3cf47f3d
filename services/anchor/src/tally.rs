//! Counts of calls, in the words of a table's meter.

use firn_anchor::{AnchorAnswer, AnchorCall};
use firn_table::{TableError, TableUsage};
use std::sync::Mutex;

/// Calls since the start.
#[derive(Default)]
pub(crate) struct Tally(Mutex<TableUsage>);

impl Tally {
    pub(crate) fn usage(&self) -> TableUsage {
        *self.0.lock().expect("no panic under this lock")
    }

    pub(crate) fn count(&self, call: &AnchorCall, answer: &Result<AnchorAnswer, TableError>) {
        let mut usage = self.0.lock().expect("no panic under this lock");
        match call {
            AnchorCall::Volumes { .. }
            | AnchorCall::ListRetired { .. }
            | AnchorCall::ListDoomed { .. }
            | AnchorCall::ListRounds { .. } => {
                usage.queries += 1;
            }
            AnchorCall::Members { call, .. } if call.is_list() => usage.queries += 1,
            call if call.is_read() => usage.gets += 1,
            _ => usage.transactions += 1,
        }
        match answer {
            Err(error) if error.is_in_doubt() => usage.unavailable += 1,
            Ok(AnchorAnswer::Conflict { .. }) => usage.condition_failures += 1,
            Ok(_) | Err(_) => {}
        }
    }
}

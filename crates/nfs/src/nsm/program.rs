//! NSM as a program others call (X/Open XNFS, chapter 11).
//!
//! Of its procedures only NOTIFY is for other machines. MON and UNMON are for a lock manager on the monitor's own machine;
//! ours calls the [`Monitor`] directly, so nobody else may: whoever asks is told that the host is not monitored.

use super::{Monitor, NOTIFY, PROGRAM, VERSION};
use crate::{
    exports::Exports,
    rpc::{Program, Refusal, Reply, Request},
    xdr::{Decode, Opaque, xdr_struct},
};
use async_trait::async_trait;
use std::{ops::RangeInclusive, sync::Arc};

const NULL: u32 = 0;
const STATUS: u32 = 1;
const MONITOR: u32 = 2;
const UNMONITOR: u32 = 3;
const UNMONITOR_ALL: u32 = 4;
const SIMULATE_CRASH: u32 = 5;
/// `stat_fail`: the host is not monitored.
const NOT_MONITORED: u32 = 1;

pub(super) type HostName = Opaque<1024>;

xdr_struct! {
    /// A machine restarted (`stat_chge`).
    pub struct StatusChange {
        /// What it calls itself.
        pub name: HostName,
        /// Its state number now.
        pub state: i32,
    }

    struct CallBack {
        name: HostName,
        program: u32,
        version: u32,
        procedure: u32,
    }

    struct MonitorCall {
        host: HostName,
        call_back: CallBack,
        private: [u8; 16],
    }

    struct UnmonitorCall {
        host: HostName,
        call_back: CallBack,
    }

    struct StatusReply {
        result: u32,
        state: i32,
    }
}

/// The NSM program.
pub struct NsmProgram {
    monitor: Arc<Monitor>,
    exports: Arc<Exports>,
}

impl NsmProgram {
    /// Passes notices of machines that `exports` admit to `monitor`.
    pub fn new(monitor: Arc<Monitor>, exports: Arc<Exports>) -> Self {
        Self { monitor, exports }
    }
}

#[async_trait]
impl Program for NsmProgram {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn name(&self) -> &'static str {
        "nsm"
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn procedure_name(&self, _version: u32, procedure: u32) -> Option<&'static str> {
        const NAMES: [&str; 7] = [
            "NULL",
            "STAT",
            "MON",
            "UNMON",
            "UNMON_ALL",
            "SIMU_CRASH",
            "NOTIFY",
        ];
        NAMES.get(procedure as usize).copied()
    }

    async fn call(&self, mut request: Request) -> Result<Reply, Refusal> {
        let arguments = &mut request.arguments;
        let state = self.monitor.state();
        let not_monitored = StatusReply {
            result: NOT_MONITORED,
            state,
        };
        match request.procedure {
            // A crash cannot be simulated from outside.
            NULL | SIMULATE_CRASH => Ok(Reply::success(&())),
            STATUS => {
                HostName::decode(arguments)?;
                Ok(Reply::failure(&not_monitored))
            }
            MONITOR => {
                MonitorCall::decode(arguments)?;
                Ok(Reply::failure(&not_monitored))
            }
            UNMONITOR => {
                UnmonitorCall::decode(arguments)?;
                Ok(Reply::success(&state))
            }
            UNMONITOR_ALL => {
                CallBack::decode(arguments)?;
                Ok(Reply::success(&state))
            }
            NOTIFY => {
                let change = StatusChange::decode(arguments)?;
                self.exports.admit_machine(&request.peer)?;
                self.monitor
                    .claim_restarted(&request.peer, &change.name.0, change.state)
                    .await;
                Ok(Reply::success(&()))
            }
            _ => Err(Refusal::ProcedureUnavailable),
        }
    }
}

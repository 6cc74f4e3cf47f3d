//! The access log (file access auditing): which client did what with which file, from where, and how it ended.
//!
//! ```text
//! protocol ─▶ RecordedVfs ─▶ vfs          a view for each call: it knows the client, the call does not
//!                 │ operation: one event        reads, writes, listings: summed up by client and file
//!                 ▼
//!          bounded queue ─▶ one task: paths, names of users, JSON ─▶ access.log, rotated
//! ```
//!
//! Clients never wait for it. What finds the queue full (the disk is full or slow) is counted, and the count is the first line that can
//! be written again, a figure of the status, and a metric. Lines are level 0 for a second at most, then in the kernel's memory, and synced
//! every five seconds: a killed edge loses a second of them, a power cut six; the next start says that the log was cut off.
//!
//! A copy of each line may go to the machine's syslog ([`syslog`]), which is not waited for either.
//!
//! - [`AccessLog`]: the log of a process; [`Recorder`]: its end for one export or mount; [`Who`]: a client.

mod encode;
mod event;
mod file;
mod layer;
mod log;
mod names;
mod queue;
mod summary;
mod syslog;
#[cfg(test)]
mod tests;
mod writer;

pub use event::{Protocol, Who};
pub use layer::{RecordedVfs, Recorder};
pub use log::{AccessLog, AccessLogOptions, AccessLogStatus, Paths, Resolving, UserNames};
pub use syslog::SyslogStatus;

//! Host of the cleaner, the part that all clouds share: settings from the environment, store and table, bounded runs, answers.
//!
//! A host is a program that a cloud starts next to the bucket: when a timer fires, or when a message in a queue names a family
//! that has work. The hosts differ in how they are called (`services/cleaner-lambda`, `services/cleaner-functions`);
//! everything else is here, so that both can be judged by reading one page each.
//!
//! ```text
//! environment ── Settings ── Host ─┬─ clean(Work)      one family, from a queue or by hand
//!                                  ├─ clean_all()      every family there is, from a timer
//!                                  ├─ audit()          a sample of what must be there
//!                                  └─ mirror()         the family's copy in a second store, and repairs from it
//! ```
//!
//! No run waits for another: a process runs one at a time, so that its memory is bounded by the limits of one; and any number
//! of processes may run at once, since the cleaner is made for that.

mod anchor_at;
mod families;
mod host;
mod log;
mod settings;
mod target;
mod work;

pub use anchor_at::AnchorAt;
pub use host::{Cleaned, Failed, Grouped, Host, HostError, Mirrored, Round, Second};
pub use log::start_log;
pub use settings::{PREFIX, RootsAt, Settings, SettingsError};
pub use target::Target;
pub use work::{MAX_WORK_BYTES, Work, WorkError};

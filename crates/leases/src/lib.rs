//! Leases by inode, on a member's side: what it holds and may use, how it gets and gives it, and how it commits beside others.
//!
//! ```text
//! change ─▶ Member::acquire (pins, ascending) ─▶ the file system's own change ─▶ unpin
//!              │ take, want, take from the absent, break          │ unpublished
//!              ▼                                                   ▼
//!           anchor: arenas ◀── give, once published ─────── Member::publish: build on the adopted root, leaf check, commit
//! ```
//!
//! [`LeaseTable`] is the table in memory, without I/O: granted, usable, pinned. [`Member`] brings it and the anchor together, in the order that
//! docs/leases.md demands. What a file system has to do for it is [`Content`]: adopt a root with its own changes kept, and build the next one.
//!
//! It keeps, with a content that keeps its part:
//!
//! - **S1** in every root each inode is the work of the member that held it then;
//! - **S2** what is committed is never lost nor reordered; what was acknowledged from the journal is committed, or salvaged whole;
//! - **S3** what is done under a lease sees all that was acknowledged as committed before;
//! - **S4** no two members commit changes of one inode that were made from the same state.
//!
//! `tests/histories` holds these four against random histories of two to five members, with a content that is a list of
//! operations for each inode, and requires that each rule which is left out is noticed. Ranges wider than one inode are taken and wanted of arenas that are half full.
//! Locks of files are decided by who holds one of the leases (decision 0234); what stands here of it is that lease and who falls.

mod content;
mod error;
mod judgement;
mod member;
mod table;
mod validity;

pub use content::{Build, Built, Content};
pub use error::MemberError;
pub use judgement::{Judgement, judge};
pub use member::{BREAK_AFTER, Beginning, FromBroken, LastingPin, Member, Pins, RETAINED_FOR, Starting};
pub use table::{LeaseTable, RootRead};
pub use validity::VALID_FOR;

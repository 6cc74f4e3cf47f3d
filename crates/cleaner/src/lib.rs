//! The cleaner: garbage collection of the log, by compaction, next to the bucket and without keys.
//!
//! A volume's log only grows; what was overwritten or deleted stays in its segments. The cleaner moves what is still needed
//! out of segments that are mostly garbage, leaves a note where it went, and deletes them. It can neither read nor forge
//! anything: objects are sealed, their hashes do not cover where they lie, and this crate cannot even depend on the sealing
//! one. A malicious cleaner could destroy, not deceive.
//!
//! ```text
//! delete what was retired long enough ago
//! see the round                                   → retirements of all cleaners stand in one order
//! read what every branch needs                    → branches: heads, one list of retained roots each
//! list a part of the log, choose by cost-benefit  → victims; what should be there and is not → missing
//! look each object up at its place                → judge (tenure: whose work may be about to be committed)
//! write what is live into our own log, bottom-up  → relocate: verified, grouped by file, heads rewritten above it
//! put forwarding records; retire, and propose     → one transaction, conditional on the round that was seen
//! forget records that nothing leads to            → deletion
//! ```
//!
//! Any number of cleaners may run at once, die anywhere, and wake after a year: the only step that changes what others see
//! is the transaction, and it is refused if anything was retired since the cleaner began to look. See decisions 0031 to 0033.
//!
//! The same reading without keys makes audits: proof by sampling that the bucket has what all roots need ([`audit()`]).

mod audit;
mod branches;
mod deletion;
mod error;
mod judge;
mod limits;
mod lookup;
mod missing;
mod notes;
mod objects;
mod own_log;
mod reachability;
mod reading;
mod relocate;
mod report;
mod run;
mod tenure;
mod victims;

pub use audit::{
    AuditPlace, AuditProgress, AuditReport, AuditRequest, DEFAULT_CHALLENGES, Detection, GatheringAudit,
    MAX_CHALLENGES, ManifestAudit, MustExist, SecondAudit, SecondDamage, SecondToAudit, VolumeAudit, audit,
    must_exist,
};
pub use branches::has_head;
pub use error::{CleanError, Damage, Misread};
pub use limits::Limits;
pub use notes::CleaningNotes;
pub use report::{DamagedFile, Named, Plan, Report};
pub use run::{Beyond, Cleaner, Repair, clean_once, plan};

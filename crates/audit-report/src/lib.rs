//! Signed reports of audits: what a volume's owner says that a bucket still has, in a form that anybody can check with the owner's public key.
//! Pure: no I/O, no clock, and the secret key stays where it is.
//!
//! ```text
//! file      report LF {"signature":"<128 hex digits>"} LF
//! report    one line of JSON, fields in one order, no space between them, integers and texts only: one spelling for each report
//! message   "firn 1 audit report\n" | report                what is signed (Ed25519), and of which BLAKE3 is the report's hash
//! version   1, or 2 if a second store was audited as well (`audited.second`): each report has the oldest version that can say it
//! chain     sequence 1, 2, 3 … of a volume; each report has the hash of the one before it
//! ```
//!
//! So a report cannot be altered, and none can be taken out of the middle, without the owner's key. A signature that is right says that
//! the holder of the key which the report names made it; whose key that is must be known from elsewhere (an ownership statement, or a
//! word of the volume's owner). What the end of a chain was is known to who has seen it: nobody can tell from the reports alone that the
//! newest were removed.

mod chain;
mod hex;
mod report;
mod signed;

pub use chain::{Break, breaks};
pub use report::{
    AskedBy, Audited, AuditedRoot, AuditedSecond, AuditedVolume, Cost, DamageNamed, DetectionTold, NewReport,
    Outcome, Report, SecondDamageNamed, Signer,
};
pub use signed::{MAX_REPORT_BYTES, ReportError, SignedReport};

/// The newest version of the form that this build writes and reads.
pub const VERSION: u32 = 2;

/// That of a report which says nothing of a second store: builds of before read it.
pub(crate) const VERSION_OF_ONE_STORE: u32 = 1;

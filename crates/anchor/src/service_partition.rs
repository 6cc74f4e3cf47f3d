//! A family whose roots a service keeps for its edges, as a cleaner reaches them: one partition of the service's table, all of which
//! it reads, and of which it writes what cleaners write.
//!
//! ```text
//! family, writer/…                            its own incarnations
//! cleaner, cleaner-cursor/…, retired/…, doomed/…, proposal/…
//! refused: volume/…, name/…, other partitions
//! ```
//!
//! The cleaner writes nothing else anyway. Its credentials cannot tell one item of a partition from another (those of DynamoDB go by
//! partition), so that it could not is said here, where a fault of ours would meet it.

use crate::{
    Anchor,
    anchor::FAMILY,
    cleaning::{CURSOR_PREFIX, DOOMED_PREFIX, RETIRED_PREFIX, ROUND},
    proposal::PROPOSAL_PREFIX,
    writer::WRITER_PREFIX,
};
use firn_env::Env;
use firn_format::FamilyId;
use firn_table::{Table, Within};
use std::sync::Arc;

impl Anchor {
    /// A cleaner's anchor of a family that lies in the partition `kept` of `table`. Makes no request.
    ///
    /// The partition does not say which family it is of, so a wrong `family` is not noticed here: before anything is judged, whoever
    /// cleans looks for a head in that family's log.
    pub fn for_cleaner_within(table: Arc<dyn Table>, env: Env, family: FamilyId, kept: &str) -> Self {
        let known = Self::new(table.clone(), env.clone(), family).partition();
        let within = Within::new(table, known, kept).writing_only(is_cleaners);
        Self::new(Arc::new(within), env, family)
    }
}

fn is_cleaners(sort: &str) -> bool {
    let prefixes = [
        WRITER_PREFIX,
        CURSOR_PREFIX,
        RETIRED_PREFIX,
        DOOMED_PREFIX,
        PROPOSAL_PREFIX,
    ];
    sort == FAMILY || sort == ROUND || prefixes.iter().any(|prefix| sort.starts_with(prefix))
}

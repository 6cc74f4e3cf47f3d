//! Every planted bug must be caught.

use crate::history;
use firn_blockd_disk::{Mutant, Planted};

/// Histories within which a planted bug must be caught.
pub const SEEDS_MAX: u64 = 20_000;

/// The first seed that catches a bug, and what it says.
pub fn caught(mutant: Mutant) -> Option<(u64, String)> {
    (1..=SEEDS_MAX).find_map(|seed| {
        let failure =
            std::panic::catch_unwind(|| history::run(seed, Planted::new(Some(mutant)), false).failure);
        match failure {
            Ok(failure) => failure.map(|failure| (seed, failure)),
            // An assertion of the engine's own counts as well.
            Err(_) => Some((seed, "an assertion of the disk".to_owned())),
        }
    })
}

//! Cleaning notes: records for the bill that hosts of the cleaner leave in the anchor. Requests to the bucket as its meter counts
//! them, tries included, and what the listing found.

use firn_anchor::{Anchor, AnchorError, CleaningNote, Listing};
use firn_env::Env;
use firn_store::Meter;

/// Notes what passes a meter, each request once.
pub struct CleaningNotes {
    meter: Meter,
    noted: u64,
}

impl CleaningNotes {
    /// Notes what passes from now on.
    pub fn new(meter: Meter) -> Self {
        let noted = meter.usage().requests();
        Self { meter, noted }
    }

    /// Notes what was sent since the last note, and what was found; gives the note, if there was anything to note.
    ///
    /// # Errors
    /// As [`Anchor::note_cleaning`]. Whether it was taken is in doubt then, so the same is not noted again: in the payer's favour.
    pub async fn note(
        &mut self,
        env: &Env,
        anchor: &Anchor,
        listing: Option<Listing>,
    ) -> Result<Option<CleaningNote>, AnchorError> {
        let sent = self.meter.usage().requests();
        let note = CleaningNote {
            requests: sent - self.noted,
            listing,
            noted_at_ms: env.wall().as_millis(),
        };
        self.noted = sent;
        if note.requests == 0 && note.listing.is_none() {
            return Ok(None);
        }
        anchor.note_cleaning(note.clone()).await?;
        Ok(Some(note))
    }
}

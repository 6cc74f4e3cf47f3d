//! Errors of billing.

use crate::{Month, price::BookError};
use firn_table::TableError;
use firn_usage::BatchError;

/// Why a request about money was not done. Unless it says otherwise, nothing was changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BillingError {
    /// The table did not answer, or others changed the same items all the time. **It may have happened**: repeat it; all
    /// requests of this crate may be repeated.
    #[error("billing is unavailable: {0}; repeat the request, nothing counts twice")]
    Unavailable(String),
    /// The table refuses, or was asked what it cannot do.
    #[error("the table of billing refuses: {0}")]
    Table(TableError),
    /// An item that this build cannot read.
    #[error("the billing item {key} cannot be read: {what}; nothing was changed")]
    Item {
        /// Where.
        key: String,
        /// Why.
        what: String,
    },
    /// A batch from outside is none.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The sender reports under a name that is not its own.
    #[error("{identity} reported usage as {source_name}; nothing was taken")]
    NotYourSource {
        /// Who it was proved to be.
        identity: String,
        /// Who it said it was.
        source_name: String,
    },
    /// Too many gaps: what fills the oldest has to come first.
    #[error("{source_name} has {holes} gaps in its numbers; send the oldest missing records first")]
    TooManyGaps {
        /// Whose.
        source_name: String,
        /// How many.
        holes: usize,
    },
    /// A sum or product beyond 128 bits.
    #[error("{0} does not fit 128 bits; nothing was charged")]
    Overflow(&'static str),
    /// A price book that is none.
    #[error(transparent)]
    Book(#[from] BookError),
    /// No book of this name is in force in that month.
    #[error("no price book {name:?} is in force in {month}")]
    NoBook {
        /// Which.
        name: String,
        /// When.
        month: Month,
    },
    /// A book's version is for ever.
    #[error("price book {name:?} has another version for {effective} already; publish a later one")]
    BookExists {
        /// Which.
        name: String,
        /// From when.
        effective: Month,
    },
    /// Prices change at the beginning of a month that has not begun.
    #[error("prices from {effective} on would change months that have begun; the earliest is {earliest}")]
    BookTooEarly {
        /// From when they were to be.
        effective: Month,
        /// From when they can be.
        earliest: Month,
    },
    /// A month that is not over, grace included, cannot be closed.
    #[error("{month} can be closed from {hours} hours after its end on")]
    NotOver {
        /// Which.
        month: Month,
        /// The grace.
        hours: u64,
    },
    /// A month that is closed stays as it is.
    #[error("{0} is closed: what is owed for it changes by credit lines of a later month only")]
    Closed(Month),
    /// Nothing of that name.
    #[error("there is no {0}")]
    Unknown(String),
    /// The same id with other content.
    #[error("{0} exists with other content; choose another id")]
    Conflict(String),
    /// A value that makes no sense.
    #[error("{0}")]
    Invalid(String),
}

impl From<TableError> for BillingError {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Unavailable(why) | TableError::InvalidAnswer(why) => Self::Unavailable(why),
            TableError::ConditionFailed { .. } => Self::Unavailable("others changed the same items".into()),
            TableError::Limit(_) | TableError::Refused(_) => Self::Table(error),
        }
    }
}

impl From<firn_quantity::Overflow> for BillingError {
    fn from(overflow: firn_quantity::Overflow) -> Self {
        Self::Overflow(overflow.0)
    }
}

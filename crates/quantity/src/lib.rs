//! Quantities as people write and read them: one parser, one set of units and one way to print each, for all programs.
//!
//! ```text
//! Size    bytes            "10 GiB", "10GiB", "500 MB"      a whole number and its unit; at most 64 bits
//! Span    milliseconds     "30 s", "5min"                   likewise
//! Money   10⁻⁹ of a unit   "12.50", "0.0000004"             at most nine decimals; exact, checked, never floating point
//! ```

mod money;
mod size;
mod span;
mod units;

pub use money::{Dollars, Money, Overflow, Rate, RateError};
pub use size::Size;
pub use span::Span;
pub use units::ParseQuantityError;

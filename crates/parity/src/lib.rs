//! Parity groups: what lets segments that every store has lost be computed from others. Pure: no I/O, no clock, no keys.
//!
//! ```text
//! column 0   | segment | segment   | segment |            segments end to end, each within one column
//! column 1   | segment       | segment |                  a column that has ended goes on as zeros
//! …
//! column 31  | segment | segment     |
//! parity 0‥2 |------------------------------|             as long as the longest column
//!            0    64 KiB    128 KiB  …                    rows: each by itself a word of 32 + 3 of a Reed-Solomon code
//! ```
//!
//! Of a row any three of its 35 pieces may be lost. The code is linear, so a segment that comes or goes is added to the parities alone
//! ([`Coder::add`]), without reading the rest of the group. The group object ([`Group`]) says which segment lies where, and has the hash of every
//! column's and parity's row: what is read to restore a row is checked before it is used, since one wrong piece would spoil all.
//!
//! 32 columns and three parities: 9.4 % more bytes for any three losses, and a row of a lost segment costs 32 reads. 64 KiB: a hash is
//! a two-thousandth of it, and the usual object is two or three rows.

mod code;
mod group;
mod layout;
mod names;

pub use code::{Coder, restore};
pub use group::{
    GROUP_VERSION, Group, GroupHead, HEAD_USUAL_BYTES, MAX_GROUP_BYTES, Member, Piece, RowHash, row_hash,
};
pub use layout::Layout;
pub use names::{GroupName, Part, groups_prefix};

/// Columns of a group.
pub const COLUMNS: usize = 32;
/// Parities of a group: as many pieces of a row may be lost.
pub const PARITIES: usize = 3;
/// Bytes of a column's piece of a row.
pub const ROW_BYTES: usize = 64 << 10;
/// Rows of a group at most: columns of 16 MiB, so that the largest segment fits, and the three parities take 48 MiB of memory.
pub const ROWS_MAX: usize = 256;
/// Members of a group at most. A full group of an edge's segments has some 96: each is closed once it has 4 MiB or a little more, so three fit a column.
pub const MEMBERS_MAX: usize = 4096;

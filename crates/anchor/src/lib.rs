//! Roots, ownership epochs and writer incarnations over the table.

//! The code: Reed-Solomon over a row's 32 columns, with three parities.
//!
//! Columns that a group does not have are zeros, so that one comes later without a change to the others. A row is encoded by itself: no
//! piece depends on how long a column is.

use crate::{COLUMNS, PARITIES};
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

/// Computes what columns add to the parities of their row.
pub struct Coder {
    encoder: ReedSolomonEncoder,
    zeros: Vec<u8>,
}

impl Coder {
    /// For rows of `row_bytes` bytes, an even number.
    ///
    /// # Panics
    /// If it is odd or zero.
    pub fn new(row_bytes: usize) -> Self {
        Self {
            encoder: ReedSolomonEncoder::new(COLUMNS, PARITIES, row_bytes)
                .expect("32 and 3 of an even length are within the code's limits"),
            zeros: vec![0; row_bytes],
        }
    }

    /// Adds what `columns` hold to `parities`; those not named are zeros. What was added once is subtracted by the same call, and a change is the
    /// exclusive or of old and new.
    ///
    /// # Panics
    /// If a piece is not as long as the row, or a column is named twice.
    pub fn add(&mut self, columns: &[(usize, &[u8])], parities: [&mut [u8]; PARITIES]) {
        let mut pieces = [&self.zeros[..]; COLUMNS];
        for (column, piece) in columns {
            assert!(
                pieces[*column].as_ptr() == self.zeros.as_ptr(),
                "a column is named once"
            );
            pieces[*column] = piece;
        }
        for piece in pieces {
            let added = self.encoder.add_original_shard(piece);
            added.expect("a piece is as long as its row");
        }
        let encoded = self.encoder.encode().expect("all columns were added");
        for (parity, more) in parities.into_iter().zip(encoded.recovery_iter()) {
            assert!(parity.len() == more.len(), "a parity is as long as its row");
            parity.iter_mut().zip(more).for_each(|(sum, more)| *sum ^= more);
        }
    }
}

/// The columns of a row that are not among `columns`, from those and `parities`; `None` if more than three of all are missing. What is given must be
/// right: one wrong piece makes all that is restored wrong.
pub fn restore(columns: &[(usize, &[u8])], parities: &[(usize, &[u8])]) -> Option<Vec<(usize, Vec<u8>)>> {
    let (_, first) = columns.first().or(parities.first())?;
    let mut decoder = ReedSolomonDecoder::new(COLUMNS, PARITIES, first.len()).ok()?;
    for (column, piece) in columns {
        decoder.add_original_shard(*column, piece).ok()?;
    }
    // No more than are needed: the work grows with what is missing, not with what is there.
    for (parity, piece) in parities.iter().take(COLUMNS.saturating_sub(columns.len())) {
        decoder.add_recovery_shard(*parity, piece).ok()?;
    }
    let restored = decoder.decode().ok()?;
    Some(
        restored
            .restored_original_iter()
            .map(|(column, piece)| (column, piece.to_vec()))
            .collect(),
    )
}

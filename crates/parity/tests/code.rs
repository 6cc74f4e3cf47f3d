//! The code by what it is for: whatever three pieces of a row are lost, they are computed again.

use firn_parity::{COLUMNS, Coder, PARITIES, ROW_BYTES, restore};
use proptest::prelude::*;

/// Some bytes, other ones for each seed.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

fn encoded(columns: &[Vec<u8>], row_bytes: usize) -> [Vec<u8>; PARITIES] {
    let mut parities = [(); PARITIES].map(|()| vec![0; row_bytes]);
    let given: Vec<_> = columns.iter().map(Vec::as_slice).enumerate().collect();
    Coder::new(row_bytes).add(&given, parities.each_mut().map(Vec::as_mut_slice));
    parities
}

/// All sets of at most `most` of the numbers below `of`.
fn patterns(of: usize, most: usize) -> Vec<Vec<usize>> {
    let mut found = vec![Vec::new()];
    let mut start = 0;
    for _ in 0..most {
        let end = found.len();
        for at in start..end {
            let next = found[at].last().map_or(0, |last| last + 1);
            for more in next..of {
                let mut longer = found[at].clone();
                longer.push(more);
                found.push(longer);
            }
        }
        start = end;
    }
    found
}

/// Columns beyond those of a small group are zeros, and known to be.
fn every_loss_is_restored(present: usize, row_bytes: usize) {
    let columns: Vec<_> = (0..COLUMNS)
        .map(|column| match column < present {
            true => noise(column as u64 + 1, row_bytes),
            false => vec![0; row_bytes],
        })
        .collect();
    let parities = encoded(&columns, row_bytes);
    for lost in patterns(present + PARITIES, PARITIES) {
        let is_lost = |at: usize| lost.contains(&at);
        let left: Vec<_> = (0..COLUMNS)
            .filter(|column| !is_lost(*column) || *column >= present)
            .map(|column| (column, columns[column].as_slice()))
            .collect();
        let left_parities: Vec<_> = (0..PARITIES)
            .filter(|parity| !is_lost(present + parity))
            .map(|parity| (parity, parities[parity].as_slice()))
            .collect();
        let restored = restore(&left, &left_parities).expect("at most three are lost");
        let expected: Vec<_> = lost
            .iter()
            .filter(|at| **at < present)
            .map(|at| (*at, columns[*at].clone()))
            .collect();
        assert!(restored == expected, "{present} columns, without {lost:?}");
    }
}

#[test]
fn every_loss_of_three_in_a_full_group_is_restored() {
    every_loss_is_restored(COLUMNS, 64);
}

#[test]
fn every_loss_of_three_in_small_groups_is_restored() {
    for present in 1..=6 {
        every_loss_is_restored(present, 64);
    }
    every_loss_is_restored(3, ROW_BYTES);
}

#[test]
fn four_losses_are_too_many_and_are_told() {
    let columns: Vec<_> = (0..COLUMNS).map(|column| noise(column as u64, 64)).collect();
    let parities = encoded(&columns, 64);
    let parities: Vec<_> = parities.iter().map(Vec::as_slice).enumerate().collect();
    let left: Vec<_> = columns.iter().map(Vec::as_slice).enumerate().skip(4).collect();
    assert_eq!(restore(&left, &parities), None);
    assert_eq!(restore(&left[1..], &parities), None);
    assert_eq!(restore(&[], &[]), None);
    let left: Vec<_> = columns.iter().map(Vec::as_slice).enumerate().skip(3).collect();
    assert_eq!(restore(&left, &parities[..2]), None, "one parity is lost as well");
    assert!(restore(&left, &parities).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever comes and goes in whatever order, the parities are those of what is there at the end.
    #[test]
    fn joining_and_leaving_is_as_encoding_anew(changes in prop::collection::vec((0..COLUMNS, any::<u64>()), 1..40)) {
        let mut columns = vec![vec![0; 128]; COLUMNS];
        let mut parities = encoded(&columns, 128);
        let mut coder = Coder::new(128);
        for (column, seed) in changes {
            // A third leave.
            let new = if seed % 3 == 0 { vec![0; 128] } else { noise(seed, 128) };
            let change: Vec<u8> = columns[column].iter().zip(&new).map(|(old, new)| old ^ new).collect();
            coder.add(&[(column, &change)], parities.each_mut().map(Vec::as_mut_slice));
            columns[column] = new;
        }
        prop_assert_eq!(parities, encoded(&columns, 128));
    }
}

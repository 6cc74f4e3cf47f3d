//! The bytes of the hold, and of what it flags: golden vectors, and whatever nobody wrote is refused.

use crate::{
    CleanerRound, Hold, TupleError,
    cleaning::{doomed_bytes, held_bytes, read_doomed},
};
use firn_format::{SegmentId, WriterId};

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

fn hold(drops: bool) -> Hold {
    Hold {
        pass: 3,
        drops,
        since_ms: 4,
        change_id: [5; 16],
    }
}

fn doomed(bytes: &[u8]) -> Result<crate::DoomedSegment, TupleError> {
    let segment = SegmentId {
        writer: WriterId(1),
        sequence: 1,
    };
    read_doomed(segment, firn_table::ItemVersion(1), bytes)
}

#[test]
fn a_hold_and_what_is_held_are_these_bytes() {
    let expected = concat!(
        "0300000000000000",
        "0400000000000000",
        "05050505050505050505050505050505"
    );
    for (drops, begin) in [(false, "014b00"), (true, "014b01")] {
        let bytes = hold(drops).to_bytes();
        assert_eq!(hex(&bytes), format!("{begin}{expected}"));
        assert_eq!(Hold::from_bytes(&bytes), Ok(hold(drops)));
    }
    let round = CleanerRound {
        round: 1,
        change_id: [2; 16],
        is_held: true,
    };
    let expected = concat!("014301", "0100000000000000", "02020202020202020202020202020202");
    assert_eq!(hex(&round.to_bytes()), expected);
    assert_eq!(CleanerRound::from_bytes(&round.to_bytes()), Ok(round));
    assert_eq!(hex(&doomed_bytes(None)), "0144000000000000000000");
    assert_eq!(hex(&doomed_bytes(Some(6))), "0144010600000000000000");
    assert_eq!(hex(&held_bytes(6)), "0144020600000000000000");
    assert_eq!(doomed(&held_bytes(6)).unwrap().held_since_ms, Some(6));
}

/// What a build that knows no hold reads: the flags that it knows are those of before.
#[test]
fn what_is_cut_or_flagged_by_a_newer_build_is_refused() {
    let flags = |bytes: &[u8], flags: u8| {
        let mut flagged = bytes.to_vec();
        flagged[2] = flags;
        flagged
    };
    let whole = hold(true).to_bytes();
    for end in 0..whole.len() {
        Hold::from_bytes(&whole[..end]).unwrap_err();
    }
    Hold::from_bytes(&[&whole[..], &[0]].concat()).unwrap_err();
    for unknown in 2..=255 {
        let error = Hold::from_bytes(&flags(&whole, unknown)).unwrap_err();
        assert_eq!(error, TupleError::UnknownFlags { found: unknown });
    }
    let whole = held_bytes(6);
    for end in 0..whole.len() {
        doomed(&whole[..end]).unwrap_err();
    }
    doomed(&[&whole[..], &[0]].concat()).unwrap_err();
    doomed(&flags(&whole, 3)).unwrap_err();
    for unknown in 4..=255 {
        let error = doomed(&flags(&whole, unknown)).unwrap_err();
        assert_eq!(error, TupleError::UnknownFlags { found: unknown });
    }
}

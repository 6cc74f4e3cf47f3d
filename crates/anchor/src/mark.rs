//! The marks of tuples: random, drawn for a change, by which it is recognised when its answer was lost.

use crate::{
    CleanerRound, CleaningAccount, FamilyTuple, HandoverRecord, Hold, Proposal, TupleError, VolumeTuple,
};

/// Reads a tuple's mark.
pub(crate) type ReadMark = fn(&[u8]) -> Result<[u8; 16], TupleError>;

pub(crate) fn volume_mark(bytes: &[u8]) -> Result<[u8; 16], TupleError> {
    VolumeTuple::from_bytes(bytes).map(|tuple| tuple.change_id)
}

pub(crate) fn family_mark(bytes: &[u8]) -> Result<[u8; 16], TupleError> {
    FamilyTuple::from_bytes(bytes).map(|tuple| tuple.change_id)
}

pub(crate) fn proposal_mark(bytes: &[u8]) -> Result<[u8; 16], TupleError> {
    Proposal::from_bytes(bytes).map(|proposal| proposal.change_id)
}

pub(crate) fn round_mark(bytes: &[u8]) -> Result<[u8; 16], TupleError> {
    CleanerRound::from_bytes(bytes).map(|round| round.change_id)
}

pub(crate) fn account_mark(bytes: &[u8]) -> Result<[u8; 16], TupleError> {
    CleaningAccount::from_bytes(bytes).map(|account| account.change_id)
}

pub(crate) fn handover_mark(bytes: &[u8]) -> Result<[u8; 16], TupleError> {
    HandoverRecord::from_bytes(bytes).map(|record| record.change_id)
}

pub(crate) fn hold_mark(bytes: &[u8]) -> Result<[u8; 16], TupleError> {
    Hold::from_bytes(bytes).map(|hold| hold.change_id)
}

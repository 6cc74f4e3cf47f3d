//! The marks of tuples: random, drawn for a change, by which it is recognised when its answer was lost.

use crate::{
    Arena, CleanerRound, CleaningAccount, FamilyTuple, HandoverRecord, Hold, Mail, MemberTuple, Proposal,
    TupleError, VolumeTuple,
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

pub(crate) fn member_mark(bytes: &[u8]) -> Result<[u8; 16], TupleError> {
    MemberTuple::from_bytes(bytes).map(|tuple| tuple.change_id)
}

/// Of the last commit: it stands in the member's record after later signs of life.
pub(crate) fn commit_mark(bytes: &[u8]) -> Result<[u8; 16], TupleError> {
    let commit = MemberTuple::from_bytes(bytes)?.record.last_commit;
    Ok(commit.map_or([0; 16], |commit| commit.commit_id))
}

pub(crate) fn arena_mark(bytes: &[u8]) -> Result<[u8; 16], TupleError> {
    Arena::from_bytes(bytes).map(|(_, change_id)| change_id)
}

pub(crate) fn mail_mark(bytes: &[u8]) -> Result<[u8; 16], TupleError> {
    Mail::from_bytes(bytes).map(|mail| mail.change_id)
}

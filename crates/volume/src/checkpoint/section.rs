//! The sections of a checkpoint's payload that belong to one member each, in a volume that is shared by inode.
//!
//! The rest of the payload is everybody's. A commit takes all sections over from the root that it is built on and replaces the own one, so what a member
//! restarts from is what it committed last, whoever committed since.

use super::payload::{decode_completed, encode_completed};
use crate::{
    codec::{DecodeError, Decoder, Encoder},
    journal::Sequence,
};
use firn_anchor::MemberNumber;
use firn_vfs::{CompletedRequest, Timestamp};

/// What one member restarts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSection {
    /// Whose it is.
    pub member: MemberNumber,
    /// The next inode number of its home.
    pub next_inode: u64,
    /// The last record of its journal that is in this root.
    pub covered: Sequence,
    /// Requests that it answered lately, with when.
    pub completed: Vec<(Timestamp, CompletedRequest)>,
}

/// Bytes of a section without requests.
const SECTION_BYTES: usize = 24;

impl MemberSection {
    /// Of a member that has committed nothing.
    pub fn new(member: MemberNumber) -> Self {
        Self {
            member,
            next_inode: u64::from(member.0) << 32,
            covered: Sequence(0),
            completed: Vec::new(),
        }
    }

    /// The section of a member among those of a root, in ascending order of their numbers.
    pub fn of(sections: &[Self], member: MemberNumber) -> Option<&Self> {
        let found = sections.binary_search_by_key(&member, |section| section.member);
        found.ok().map(|at| &sections[at])
    }

    /// Puts it in the place of the member's section before.
    pub fn put(self, sections: &mut Vec<Self>) {
        match sections.binary_search_by_key(&self.member, |section| section.member) {
            Ok(at) => sections[at] = self,
            Err(at) => sections.insert(at, self),
        }
    }

    pub(super) fn encode_all(sections: &[Self], out: &mut Encoder) {
        out.u32(sections.len() as u32);
        for section in sections {
            out.u32(section.member.0)
                .u64(section.next_inode)
                .u64(section.covered.0);
            encode_completed(out, &section.completed);
        }
    }

    pub(super) fn decode_all(input: &mut Decoder<'_>) -> Result<Vec<Self>, DecodeError> {
        let count = input.count(SECTION_BYTES)?;
        let mut sections: Vec<Self> = Vec::with_capacity(count);
        for _ in 0..count {
            let section = Self {
                member: MemberNumber(input.u32()?),
                next_inode: input.u64()?,
                covered: Sequence(input.u64()?),
                completed: decode_completed(input)?,
            };
            // Who looks one up goes by their order.
            if sections.last().is_some_and(|last| last.member >= section.member) {
                return Err(input.error());
            }
            sections.push(section);
        }
        Ok(sections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{checkpoint::CheckpointPayload, rekey::RekeyState, state::VolumeCounters};

    fn payload(members: Vec<MemberSection>) -> CheckpointPayload {
        CheckpointPayload {
            counters: VolumeCounters::new([7; 32]),
            block_bytes: 4096,
            covered: Sequence(9),
            completed: Vec::new(),
            snapshots: Vec::new(),
            history: Vec::new(),
            rekey: RekeyState::default(),
            members,
        }
    }

    fn section(member: u32, covered: u64) -> MemberSection {
        MemberSection {
            covered: Sequence(covered),
            ..MemberSection::new(MemberNumber(member))
        }
    }

    #[test]
    fn sections_are_replaced_and_found_by_member_and_a_volume_without_any_is_written_as_before() {
        let mut sections = Vec::new();
        for (member, covered) in [(5, 1), (3, 2), (9, 3), (5, 4)] {
            section(member, covered).put(&mut sections);
        }
        assert_eq!(sections, [section(3, 2), section(5, 4), section(9, 3)]);
        assert_eq!(
            MemberSection::of(&sections, MemberNumber(5)),
            Some(&section(5, 4))
        );
        assert_eq!(MemberSection::of(&sections, MemberNumber(4)), None);
        let written = payload(sections.clone()).encode();
        assert_eq!(written[0], 4);
        assert_eq!(CheckpointPayload::decode(written), Ok(payload(sections)));
        assert_eq!(payload(Vec::new()).encode()[0], 3);
    }

    #[test]
    fn sections_out_of_order_are_no_payload() {
        let written = payload(vec![section(5, 1), section(3, 1)]).encode();
        assert!(CheckpointPayload::decode(written).is_err());
        let twice = payload(vec![section(5, 1), section(5, 1)]).encode();
        assert!(CheckpointPayload::decode(twice).is_err());
    }
}

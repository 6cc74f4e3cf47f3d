//! Names of a group's objects.
//!
//! ```text
//! parity/<family>/<group>/<generation>/parity-0 ‥ parity-2      put first
//! parity/<family>/<group>/<generation>/group                    put last: from then on the generation is the group
//! ```
//!
//! Outside the family's own prefix, where whoever compares two stores would take them for members. All are created and never replaced; a
//! change is a new generation.

use crate::PARITIES;
use firn_format::FamilyId;
use std::fmt;

/// Which object of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The group object.
    Group,
    /// One of the parities.
    Parity(u8),
}

/// The name of one object of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupName {
    /// Whose segments.
    pub family: FamilyId,
    /// Random, drawn when the group was made.
    pub group: u64,
    /// Grows with each change.
    pub generation: u64,
    /// Which of its objects.
    pub part: Part,
}

/// Where the groups of a family lie.
pub fn groups_prefix(family: &FamilyId) -> String {
    format!("parity/{family}/")
}

impl fmt::Display for GroupName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            family,
            group,
            generation,
            part,
        } = self;
        write!(formatter, "parity/{family}/{group:016x}/{generation:016x}/")?;
        match part {
            Part::Group => formatter.write_str("group"),
            Part::Parity(number) => write!(formatter, "parity-{number}"),
        }
    }
}

impl GroupName {
    /// Reads a name back, as a listing gives it; `None` for any other text.
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('/');
        let ("parity", family, group, generation, part, None) = (
            parts.next()?,
            parts.next()?,
            parts.next()?,
            parts.next()?,
            parts.next()?,
            parts.next(),
        ) else {
            return None;
        };
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let parsed = Self {
            family: family.parse().ok()?,
            group: number(group)?,
            generation: number(generation)?,
            part: match part.strip_prefix("parity-") {
                Some(parity) => Part::Parity(parity.parse().ok().filter(|at| usize::from(*at) < PARITIES)?),
                None => Part::Group,
            },
        };
        // One spelling for each name.
        (parsed.to_string() == name).then_some(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_and_nothing_else_is() {
        let name = GroupName {
            family: FamilyId([0xab; 16]),
            group: 0x1234,
            generation: 7,
            part: Part::Parity(2),
        };
        let text = name.to_string();
        assert_eq!(
            text,
            format!(
                "parity/{}/0000000000001234/0000000000000007/parity-2",
                "ab".repeat(16)
            )
        );
        assert!(text.starts_with(&groups_prefix(&name.family)));
        assert_eq!(GroupName::parse(&text), Some(name));
        let group = GroupName {
            part: Part::Group,
            ..name
        };
        assert_eq!(GroupName::parse(&group.to_string()), Some(group));
        for other in [
            text.replace("parity-2", "parity-3"),
            text.replace("parity-2", "parity-02"),
            text.replace("parity-2", "groups"),
            text.replace("0000000000000007", "7"),
            text.replace("0000000000001234", "00000000000012-4"),
            format!("{text}/"),
            text.to_uppercase(),
            String::new(),
        ] {
            assert_eq!(GroupName::parse(&other), None, "{other}");
        }
    }
}

//! Shares of an edge's limits: each volume gets its part of every bound, so that all together keep the bounds that stand in the file,
//! whatever each of them does.
//!
//! ```text
//! of the file × share / sum of the shares     memory_cache disk_cache journal dirty_memory uploads, cleaner.memory
//! as it is, for each volume                   quota segment fetch checkpoint_*
//! one for all, by whoever is first            upload_limit, background (crate::parts::Common)
//! ```

use super::{CleanerSection, LimitsSection};
use firn_quantity::Size;

/// A share of more says nothing that a smaller one of the others does not.
const SHARE_MAX: u32 = 1000;

/// The shares of all volumes.
pub struct Shares(Vec<u64>);

impl Shares {
    pub fn new(written: impl Iterator<Item = Option<u32>>) -> Result<Self, String> {
        let checked = written.map(|share| match share.unwrap_or(1) {
            share @ 1..=SHARE_MAX => Ok(u64::from(share)),
            share => Err(format!(
                "[[volume]]: share must be between 1 and {SHARE_MAX}, not {share}"
            )),
        });
        checked.collect::<Result<_, _>>().map(Self)
    }

    /// The part of `whole` that the volume number `at` gets; the parts together are at most the whole.
    fn part(&self, at: usize, whole: u64) -> u64 {
        let sum: u64 = self.0.iter().sum();
        let part = u128::from(whole) * u128::from(self.0[at]) / u128::from(sum.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// The limits of the volume number `at`.
    pub fn of(&self, at: usize, whole: &LimitsSection) -> Result<LimitsSection, String> {
        if self.0.len() == 1 {
            return Ok(whole.clone());
        }
        let size = |whole: Size| Size(self.part(at, whole.0));
        let spare = whole.uploads.checked_sub(self.0.len()).ok_or_else(|| {
            format!(
                "limits.uploads is {}, and {} volumes share it: each needs one at least",
                whole.uploads,
                self.0.len()
            )
        })?;
        // One each, and of what is left the share.
        let uploads = 1 + usize::try_from(self.part(at, spare as u64)).unwrap_or(0);
        Ok(LimitsSection {
            memory_cache: size(whole.memory_cache),
            disk_cache: size(whole.disk_cache),
            journal: size(whole.journal),
            dirty_memory: size(whole.dirty_memory),
            uploads,
            ..whole.clone()
        })
    }

    /// The cleaner's bounds for the volume number `at`.
    pub fn of_cleaner(&self, at: usize, whole: &CleanerSection) -> CleanerSection {
        CleanerSection {
            memory: if self.0.len() == 1 || whole.every.is_none() {
                whole.memory
            } else {
                Size(self.part(at, whole.memory.0))
            },
            ..whole.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_together_are_at_most_the_whole_and_each_gets_its_share() {
        let whole = LimitsSection {
            uploads: 7,
            ..LimitsSection::default()
        };
        let shares = Shares::new([None, Some(5), Some(3)].into_iter()).expect("shares");
        let parts: Vec<_> = (0..3).map(|at| shares.of(at, &whole).expect("limits")).collect();
        let sum = |of: &dyn Fn(&LimitsSection) -> u64| parts.iter().map(of).sum::<u64>();
        for (sum, whole) in [
            (sum(&|limits| limits.memory_cache.0), whole.memory_cache.0),
            (sum(&|limits| limits.disk_cache.0), whole.disk_cache.0),
            (sum(&|limits| limits.journal.0), whole.journal.0),
            (sum(&|limits| limits.dirty_memory.0), whole.dirty_memory.0),
            (sum(&|limits| limits.uploads as u64), whole.uploads as u64),
        ] {
            assert!(sum <= whole && sum + 3 > whole, "{sum} of {whole}");
        }
        assert_eq!(
            parts[1].journal.0,
            whole.journal.0 / 9 * 5 + whole.journal.0 % 9 * 5 / 9
        );
        assert_eq!(
            parts.iter().map(|limits| limits.uploads).collect::<Vec<_>>(),
            [1, 3, 2]
        );
    }

    #[test]
    fn one_volume_has_the_whole_and_more_volumes_than_uploads_are_refused() {
        let whole = LimitsSection::default();
        let only = Shares::new([Some(7)].into_iter()).expect("a share");
        let limits = only.of(0, &whole).expect("limits");
        assert_eq!(format!("{limits:?}"), format!("{whole:?}"));
        let many = Shares::new(std::iter::repeat_n(None, whole.uploads + 1)).expect("shares");
        let error = many.of(0, &whole).expect_err("too many");
        assert!(error.contains("each needs one"), "{error}");
        assert!(Shares::new([Some(0)].into_iter()).is_err());
    }
}

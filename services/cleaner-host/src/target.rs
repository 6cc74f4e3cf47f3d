//! Target of one run: what it cleans.

use crate::RootsAt;
use firn_format::FamilyId;
use firn_identity::TenantVolume;
use std::fmt;

/// A family, and where it is not known by its own name, whose volume it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// For roots that the service keeps. Families of two tenants may have one id, by malice: so they stay apart.
    pub volume: Option<TenantVolume>,
    /// Which family.
    pub family: FamilyId,
}

impl Target {
    /// What is asked for, as these settings have it; nothing if they do not have it.
    pub(crate) fn resolve(self, roots: RootsAt, families: &[FamilyId]) -> Option<Self> {
        let Self { volume, family } = self;
        let volume = match (roots, volume) {
            (RootsAt::Table, None) => None,
            (RootsAt::Service, Some(volume)) => Some(volume),
            (RootsAt::Volume(own), asked)
                if families == [family] && asked.is_none_or(|asked| asked == own) =>
            {
                Some(own)
            }
            (RootsAt::Table, Some(_)) | (RootsAt::Service, None) | (RootsAt::Volume(_), _) => return None,
        };
        Some(Self { volume, family })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(volume) = &self.volume {
            write!(formatter, "{volume}/")?;
        }
        self.family.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_identity::{TenantId, VolumeId};

    #[test]
    fn work_is_taken_for_what_the_settings_have_and_for_nothing_else() {
        let volume = |tenant: u8| TenantVolume {
            tenant: TenantId([tenant; 16]),
            volume: VolumeId([9; 16]),
        };
        let (family, other) = (FamilyId([1; 16]), FamilyId([2; 16]));
        let asked = |volume, family| Target { volume, family };
        let own = RootsAt::Volume(volume(1));
        for (roots, families, target, expected) in [
            (RootsAt::Table, &[][..], asked(None, family), Some(None)),
            (RootsAt::Table, &[], asked(Some(volume(1)), family), None),
            (RootsAt::Service, &[], asked(None, family), None),
            (
                RootsAt::Service,
                &[],
                asked(Some(volume(2)), family),
                Some(Some(volume(2))),
            ),
            (own, &[family], asked(None, family), Some(Some(volume(1)))),
            (
                own,
                &[family],
                asked(Some(volume(1)), family),
                Some(Some(volume(1))),
            ),
            (own, &[family], asked(Some(volume(2)), family), None),
            (own, &[family], asked(None, other), None),
        ] {
            let resolved = target.resolve(roots, families).map(|target| target.volume);
            assert_eq!(resolved, expected, "{roots:?} {target}");
        }
    }
}

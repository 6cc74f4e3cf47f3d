//! A volume with its tenant, by the name under which the service's own components find what it keeps of it.
//!
//! ```text
//! text                            ten_…/vol_…
//! objects of a managed volume     <bucket>/ten_…/vol_…/<family>/…
//! its roots, in the table         partition anchor/ten_…/vol_…
//! ```

use crate::{TenantId, VolumeId};
use std::{fmt, str::FromStr};

/// One volume of one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantVolume {
    /// Whose it is.
    pub tenant: TenantId,
    /// Which one.
    pub volume: VolumeId,
}

/// A text that is no [`TenantVolume`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not TENANT/VOLUME, such as ten_0123456789abcdef0123456789abcdef/vol_0123456789abcdef0123456789abcdef"
)]
pub struct BadTenantVolume;

impl TenantVolume {
    /// The partition in which the service keeps the roots of this volume for the edges that serve it.
    pub fn roots_partition(&self) -> String {
        format!("anchor/{self}")
    }
}

impl fmt::Display for TenantVolume {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.tenant, self.volume)
    }
}

impl FromStr for TenantVolume {
    type Err = BadTenantVolume;

    fn from_str(text: &str) -> Result<Self, BadTenantVolume> {
        let (tenant, volume) = text.split_once('/').ok_or(BadTenantVolume)?;
        Ok(Self {
            tenant: tenant.parse().map_err(|_| BadTenantVolume)?,
            volume: volume.parse().map_err(|_| BadTenantVolume)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_named_with_its_tenant_and_by_nothing_shorter_or_longer() {
        let named = TenantVolume {
            tenant: TenantId([1; 16]),
            volume: VolumeId([2; 16]),
        };
        let text = format!("ten_{}/vol_{}", "01".repeat(16), "02".repeat(16));
        assert_eq!(named.to_string(), text);
        assert_eq!(text.parse(), Ok(named));
        assert_eq!(named.roots_partition(), format!("anchor/{text}"));
        let (tenant, volume) = text.split_once('/').expect("two parts");
        for wrong in [
            "",
            tenant,
            volume,
            &format!("{volume}/{tenant}"),
            &format!("{text}/"),
            &format!("/{text}"),
            &text.to_uppercase(),
        ] {
            assert_eq!(wrong.parse::<TenantVolume>(), Err(BadTenantVolume), "{wrong}");
        }
    }
}

//! Grants as an edge's configuration names them: whose volume it is, if another tenant's.
//!
//! The service says who may reach a volume, and is not believed about whose keys open it: key rings of a granted volume are those that its owner
//! signed, and who that is stands in the configuration, where `firn share accept` had it put.

use firn_identity::TenantId;
use firn_seal::TenantPublic;
use std::str::FromStr;

/// Whose volume it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeOwner {
    pub tenant: TenantId,
    /// What its key rings are signed with.
    pub key: TenantPublic,
}

/// What `volume.owner` and `volume.owner_key` say; both or neither. `is_by_service`: the roots are asked of the service that gives the grant.
pub fn owner(
    tenant: Option<TenantId>,
    key: Option<HexKey>,
    is_by_service: bool,
) -> Result<Option<VolumeOwner>, String> {
    match (tenant, key) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) if !is_by_service => Err(
            "volume.owner: a volume of another tenant is reached by the service that both use: anchor = \"service\""
                .into(),
        ),
        (Some(tenant), Some(key)) => Ok(Some(VolumeOwner {
            tenant,
            key: TenantPublic::from_bytes(key.0),
        })),
        (Some(_), None) | (None, Some(_)) => {
            Err("volume.owner and volume.owner_key go together: firn share accept prints both".into())
        }
    }
}

/// 32 bytes as hex digits.
#[derive(Clone, Copy, Debug)]
pub struct HexKey(pub [u8; 32]);

impl FromStr for HexKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "the tenant's key has not 64 hex digits";
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digit = |digit: u8| (digit as char).to_digit(16).ok_or(wrong);
            *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).map_err(|_| wrong)?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_has_a_key_and_is_reached_by_the_service() {
        let (tenant, key) = (Some(TenantId([1; 16])), Some(HexKey([2; 32])));
        assert_eq!(owner(None, None, false), Ok(None));
        let known = owner(tenant, key, true).expect("fine").expect("an owner");
        assert_eq!(known.key.to_bytes(), [2; 32]);
        for (tenant, key, is_by_service) in [(tenant, None, true), (None, key, true), (tenant, key, false)] {
            assert!(owner(tenant, key, is_by_service).is_err());
        }
    }

    #[test]
    fn a_tenants_key_is_read_exactly() {
        let text = format!("{}ff", "00".repeat(31));
        assert_eq!(text.parse::<HexKey>().expect("a key").0[31], 255);
        for wrong in ["", "00", &"0g".repeat(32), &"é".repeat(32), &"00".repeat(33)] {
            assert!(wrong.parse::<HexKey>().is_err(), "{wrong}");
        }
    }
}

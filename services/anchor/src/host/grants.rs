//! Grants: which certificate reaches which volume's tuples, and as what.
//!
//! ```toml
//! [[grant]]
//! name = "spiffe://firn.example/tenant/ten_…/edge/edg_…"      # as its certificate says
//! volume = "ten_…/vol_…"
//! role = "edge"                                               # edge, cleaner, observer
//! ```
//!
//! An edge is granted volumes of its own tenant only; what cleans is a service (`spiffe://firn.example/service/cleaner`).

use firn_anchor::AnchorRole;
use firn_identity::{PeerIdentity, PeerKind, TenantVolume};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::SystemTime,
};

/// Some ten thousand grants.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A file that is none of grants.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}")]
pub struct GrantsError {
    path: PathBuf,
    why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default)]
    grant: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    volume: String,
    role: RoleName,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RoleName {
    Edge,
    Cleaner,
    Observer,
}

/// Who may reach what.
#[derive(Debug, Default)]
pub struct Grants(BTreeMap<(PeerIdentity, TenantVolume), AnchorRole>);

impl Grants {
    /// Reads them.
    ///
    /// # Errors
    /// Why the text is none of grants.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text: Text = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut grants = BTreeMap::new();
        for Entry { name, volume, role } in text.grant {
            let peer =
                PeerIdentity::parse(&name).map_err(|_| format!("{name:?} is no name of a certificate"))?;
            let volume: TenantVolume = volume.parse().map_err(|error| format!("{volume:?}: {error}"))?;
            let role = match (role, &peer.kind) {
                (RoleName::Observer, _) => AnchorRole::Observer,
                (RoleName::Cleaner, PeerKind::Service(_)) => AnchorRole::Cleaner,
                (RoleName::Edge, PeerKind::Edge { tenant, .. }) if *tenant == volume.tenant => {
                    AnchorRole::Edge
                }
                (RoleName::Edge, _) => return Err(format!("{name} is no edge of the tenant of {volume}")),
                (RoleName::Cleaner, _) => {
                    return Err(format!("{name} is no service, and only services clean"));
                }
            };
            if grants.insert((peer, volume), role).is_some() {
                return Err(format!("{name} has two grants of {volume}"));
            }
        }
        Ok(Self(grants))
    }

    /// As what a peer may reach a volume's tuples; `None`: not at all.
    pub fn role(&self, peer: &PeerIdentity, volume: TenantVolume) -> Option<AnchorRole> {
        self.0.get(&(peer.clone(), volume)).copied()
    }
}

/// Grants that follow their file.
pub(super) struct GrantsFile {
    path: PathBuf,
    read: Mutex<(SystemTime, Arc<Grants>)>,
}

fn read(path: &Path) -> Result<(SystemTime, Grants), GrantsError> {
    let failed = |why: String| GrantsError {
        path: path.to_owned(),
        why,
    };
    let metadata = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if metadata.len() > FILE_BYTES_MAX {
        return Err(failed(format!(
            "{} bytes are too many for grants",
            metadata.len()
        )));
    }
    let written = metadata.modified().map_err(|error| failed(error.to_string()))?;
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    Ok((written, Grants::parse(&text).map_err(failed)?))
}

impl GrantsFile {
    pub(super) fn open(path: &Path) -> Result<Self, GrantsError> {
        let (written, grants) = read(path)?;
        Ok(Self {
            path: path.to_owned(),
            read: Mutex::new((written, Arc::new(grants))),
        })
    }

    /// The grants as the file has them now. One that cannot be read grants nothing: what was taken away must not go on.
    pub(super) fn current(&self) -> Arc<Grants> {
        let mut known = self.read.lock().expect("no panic under this lock");
        let written = std::fs::metadata(&self.path).and_then(|metadata| metadata.modified());
        if written.as_ref().is_ok_and(|written| *written == known.0) {
            return known.1.clone();
        }
        match read(&self.path) {
            Ok((written, grants)) => *known = (written, Arc::new(grants)),
            Err(error) => {
                tracing::error!(%error, "the grants cannot be read, so nobody is let in");
                return Arc::default();
            }
        }
        known.1.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: &str = "ten_01010101010101010101010101010101";
    const OTHER: &str = "ten_02020202020202020202020202020202";
    const VOLUME: &str = "vol_03030303030303030303030303030303";
    const EDGE: &str = "edg_04040404040404040404040404040404";

    fn grant(name: &str, volume: &str, role: &str) -> String {
        format!("[[grant]]\nname = {name:?}\nvolume = {volume:?}\nrole = {role:?}\n")
    }

    #[test]
    fn a_grant_is_for_one_name_and_one_volume_and_what_is_none_is_refused() {
        let (edge, cleaner) = (
            format!("spiffe://firn.example/tenant/{TENANT}/edge/{EDGE}"),
            "spiffe://firn.example/service/cleaner".to_owned(),
        );
        let volume = format!("{TENANT}/{VOLUME}");
        let text = grant(&edge, &volume, "edge") + &grant(&cleaner, &volume, "cleaner");
        let grants = Grants::parse(&text).expect("grants");
        let role = |name: &str, volume: &str| {
            grants.role(
                &PeerIdentity::parse(name).expect("a name"),
                volume.parse().expect("a volume"),
            )
        };
        assert_eq!(role(&edge, &volume), Some(AnchorRole::Edge));
        assert_eq!(role(&cleaner, &volume), Some(AnchorRole::Cleaner));
        assert_eq!(role(&edge, &format!("{OTHER}/{VOLUME}")), None);
        assert_eq!(role(&edge.replace("example", "test"), &volume), None);
        for (text, why) in [
            (
                grant(&edge, &format!("{OTHER}/{VOLUME}"), "edge"),
                "no edge of the tenant",
            ),
            (grant(&cleaner, &volume, "edge"), "no edge of the tenant"),
            (grant(&edge, &volume, "cleaner"), "no service"),
            (grant(&edge, &volume, "owner"), "unknown variant"),
            (grant("edge", &volume, "edge"), "no name of a certificate"),
            (grant(&edge, VOLUME, "edge"), "TENANT/VOLUME"),
            (grant(&edge, &volume, "edge").repeat(2), "two grants"),
            ("[[grants]]\n".into(), "unknown field"),
        ] {
            let error = Grants::parse(&text).expect_err("no grants");
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(Grants::parse("").expect("nothing").0.is_empty());
    }
}

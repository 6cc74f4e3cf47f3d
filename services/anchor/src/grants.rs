//! Grants: which certificate, or which user or role of AWS, reaches which volume's tuples, and as what.
//!
//! ```toml
//! [[grant]]
//! name = "spiffe://firn.example/tenant/ten_…/edge/edg_…"      # as its certificate says
//! volume = "ten_…/vol_…"
//! role = "edge"                                               # edge, cleaner, observer
//! ```
//!
//! An edge with a certificate is granted volumes of its own tenant only; what cleans is a service (`spiffe://firn.example/service/cleaner`).
//! AWS knows no tenants: users and roles (`arn:aws:iam::ACCOUNT:user/NAME`) have what they are granted.

use firn_anchor::{AnchorRole, PrincipalId};
use firn_identity::{PeerIdentity, PeerKind, TenantVolume};
use serde::Deserialize;
use std::{collections::BTreeMap, fmt, path::PathBuf};
#[cfg(feature = "host")]
use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::SystemTime,
};

/// Some ten thousand grants.
#[cfg(feature = "host")]
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

/// A user or a role of AWS, without the path of a role, which a session's name does not have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AwsPrincipal(String);

impl AwsPrincipal {
    /// As a grant names it: `arn:aws:iam::ACCOUNT:user/…` or `arn:aws:iam::ACCOUNT:role/…`.
    fn named(arn: &str) -> Option<Self> {
        let (head, name) = arn.split_once('/')?;
        let last = name.rsplit('/').next().filter(|last| !last.is_empty())?;
        let (partition, kind) = head.strip_prefix("arn:")?.split_once(":iam::")?;
        let (account, kind) = kind.split_once(':')?;
        let is_account = account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit());
        match kind {
            "user" if is_account => Some(Self(arn.to_owned())),
            "role" if is_account => Some(Self(format!("arn:{partition}:iam::{account}:role/{last}"))),
            _ => None,
        }
    }

    /// As AWS names who made a request: a user, or a session of a role. An account's root user is nobody here.
    pub fn of_caller(arn: &str) -> Option<Self> {
        let Some((partition, session)) = arn
            .strip_prefix("arn:")
            .and_then(|rest| rest.split_once(":sts::"))
        else {
            return Self::named(arn).filter(|_| arn.contains(":user/"));
        };
        let (account, session) = session.split_once(":assumed-role/")?;
        let (role, _) = session.split_once('/')?;
        Self::named(&format!("arn:{partition}:iam::{account}:role/{role}"))
    }
}

/// Who calls, as the host came to know it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallerName {
    /// By its certificate.
    Peer(PeerIdentity),
    /// By its signature, which AWS checked.
    Aws(AwsPrincipal),
}

impl CallerName {
    /// What members' records are bound to: a hash of the name, so that a renewed certificate speaks for the same members.
    pub fn principal(&self) -> PrincipalId {
        let hash = blake3::hash(self.to_string().as_bytes());
        let mut principal = [0; 16];
        principal.copy_from_slice(&hash.as_bytes()[..16]);
        PrincipalId(principal)
    }

    fn parse(text: &str) -> Option<Self> {
        match text.starts_with("arn:") {
            true => AwsPrincipal::named(text).map(Self::Aws),
            false => PeerIdentity::parse(text).map(Self::Peer).ok(),
        }
    }
}

impl fmt::Display for CallerName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer(peer) => peer.fmt(formatter),
            Self::Aws(AwsPrincipal(arn)) => formatter.write_str(arn),
        }
    }
}

/// Who may reach what.
#[derive(Debug, Default)]
pub struct Grants(BTreeMap<(CallerName, TenantVolume), AnchorRole>);

impl Grants {
    /// Reads them.
    ///
    /// # Errors
    /// Why the text is none of grants.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text: Text = toml::from_str(text).map_err(|error| error.to_string())?;
        Self::of(text.grant)
    }

    /// Reads a list of JSON, with the keys of the file.
    ///
    /// # Errors
    /// Why the text is none of grants.
    pub fn from_json(text: &str) -> Result<Self, String> {
        Self::of(serde_json::from_str(text).map_err(|error| error.to_string())?)
    }

    fn of(entries: Vec<Entry>) -> Result<Self, String> {
        let mut grants = BTreeMap::new();
        for Entry { name, volume, role } in entries {
            let caller = CallerName::parse(&name).ok_or_else(|| {
                format!("{name:?} is no name of a certificate, nor of a user or role of AWS")
            })?;
            let volume: TenantVolume = volume.parse().map_err(|error| format!("{volume:?}: {error}"))?;
            let kind = match &caller {
                CallerName::Peer(peer) => Some(&peer.kind),
                CallerName::Aws(_) => None,
            };
            let role = match (role, kind) {
                (RoleName::Observer, _) => AnchorRole::Observer,
                (RoleName::Cleaner, None | Some(PeerKind::Service(_))) => AnchorRole::Cleaner,
                (RoleName::Edge, None) => AnchorRole::Edge,
                (RoleName::Edge, Some(PeerKind::Edge { tenant, .. })) if *tenant == volume.tenant => {
                    AnchorRole::Edge
                }
                (RoleName::Edge, _) => return Err(format!("{name} is no edge of the tenant of {volume}")),
                (RoleName::Cleaner, _) => {
                    return Err(format!("{name} is no service, and only services clean"));
                }
            };
            if grants.insert((caller, volume), role).is_some() {
                return Err(format!("{name} has two grants of {volume}"));
            }
        }
        Ok(Self(grants))
    }

    /// As what a caller may reach a volume's tuples; `None`: not at all.
    pub fn role(&self, caller: &CallerName, volume: TenantVolume) -> Option<AnchorRole> {
        self.0.get(&(caller.clone(), volume)).copied()
    }
}

/// Grants that follow their file.
#[cfg(feature = "host")]
pub(crate) struct GrantsFile {
    path: PathBuf,
    read: Mutex<(SystemTime, Arc<Grants>)>,
}

#[cfg(feature = "host")]
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

#[cfg(feature = "host")]
impl GrantsFile {
    pub(crate) fn open(path: &Path) -> Result<Self, GrantsError> {
        let (written, grants) = read(path)?;
        Ok(Self {
            path: path.to_owned(),
            read: Mutex::new((written, Arc::new(grants))),
        })
    }

    /// The grants as the file has them now. One that cannot be read grants nothing: what was taken away must not go on.
    pub(crate) fn current(&self) -> Arc<Grants> {
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
                &CallerName::parse(name).expect("a name"),
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
            (
                grant("arn:aws:iam::1:user/office", &volume, "edge"),
                "nor of a user",
            ),
            (
                grant("arn:aws:iam::000000000000:root", &volume, "edge"),
                "nor of a user",
            ),
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

    #[test]
    fn users_of_aws_are_known_by_their_names_and_roles_by_their_sessions() {
        let role = "arn:aws:iam::000000000000:role/firn/cleaner";
        let session = "arn:aws:sts::000000000000:assumed-role/cleaner/i-0123";
        assert_eq!(AwsPrincipal::of_caller(session), AwsPrincipal::named(role));
        let user = "arn:aws:iam::000000000000:user/firn/office";
        assert_eq!(AwsPrincipal::of_caller(user), AwsPrincipal::named(user));
        assert_ne!(AwsPrincipal::of_caller(user), AwsPrincipal::of_caller(session));
        for nobody in [
            role,
            "arn:aws:iam::000000000000:root",
            "arn:aws:sts::000000000000:federated-user/office",
            "arn:aws:sts::000000000000:assumed-role/cleaner",
            "office",
            "",
        ] {
            assert_eq!(AwsPrincipal::of_caller(nobody), None, "{nobody}");
        }
    }
}

//! The profile: one private file with what this machine keeps between commands. Where the service is, who is logged in, which
//! keys are pinned, and the newest of everything that must not go back (rollback protection).

use crate::{
    failure::{Exit, Failure, of_file},
    pins::{PinnedInvitation, PinnedVolume},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{IsTerminal as _, Read as _, Write as _},
    path::{Path, PathBuf},
};
use zeroize::{Zeroize, Zeroizing};

const VERSION: u16 = 2;
const OLDEST_VERSION: u16 = 1;
/// Far more than any profile has.
const MAX_BYTES: u64 = 4 << 20;

/// The profile.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    version: u16,
    pub server: String,
    /// PEM of the authority to trust; none: the system's.
    pub authority: Option<String>,
    pub tenant: String,
    /// The tenant's public signing key, 64 hex digits. It never changes.
    pub tenant_key: String,
    pub api_key: String,
    /// The key of audit heads, once one was seen.
    #[serde(default)]
    pub audit_key: Option<String>,
    /// The newest audit entry that was verified: sequence and hash.
    #[serde(default)]
    pub audit_head: Option<(u64, String)>,
    /// What was seen of each volume's keys, by the volume's id.
    #[serde(default)]
    pub volumes: BTreeMap<String, PinnedVolume>,
    /// Edges that were invited here and not approved yet, by their ids.
    #[serde(default)]
    pub invitations: BTreeMap<String, PinnedInvitation>,
    /// Keys of edges that were proved here when they were approved, 64 hex digits, by the edges' ids.
    #[serde(default)]
    pub edges: BTreeMap<String, String>,
    /// Keys of other tenants as they were told when a volume was shared with them, by VOLUME/TENANT.
    #[serde(default)]
    pub grants: BTreeMap<String, String>,
    /// Version 1: the generation of the newest key ring seen of each volume.
    #[serde(default, skip_serializing)]
    key_rings: BTreeMap<String, u64>,
    /// Version 1: join secrets of edges.
    #[serde(default, skip_serializing)]
    join_secrets: BTreeMap<String, String>,
}

impl Drop for Profile {
    fn drop(&mut self) {
        self.api_key.zeroize();
    }
}

impl Profile {
    pub fn new(
        server: String,
        authority: Option<String>,
        tenant: String,
        tenant_key: String,
        api_key: String,
    ) -> Self {
        Self {
            version: VERSION,
            server,
            authority,
            tenant,
            tenant_key,
            api_key,
            audit_key: None,
            audit_head: None,
            volumes: BTreeMap::new(),
            invitations: BTreeMap::new(),
            edges: BTreeMap::new(),
            grants: BTreeMap::new(),
            key_rings: BTreeMap::new(),
            join_secrets: BTreeMap::new(),
        }
    }

    /// Takes over what a profile of version 1 says in its own way; the next save writes the present version.
    fn migrate(&mut self) {
        for (volume, generation) in std::mem::take(&mut self.key_rings) {
            self.volumes.entry(volume).or_insert(PinnedVolume {
                generation,
                ..PinnedVolume::default()
            });
        }
        for (edge, secret) in std::mem::take(&mut self.join_secrets) {
            self.invitations.entry(edge).or_insert(PinnedInvitation {
                secret,
                volumes: None,
            });
        }
        self.version = VERSION;
    }

    /// Where the profile lies, unless the command line says.
    pub fn default_path() -> Result<PathBuf, Failure> {
        let from = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        if let Some(path) = from("FIRN_PROFILE") {
            return Ok(path);
        }
        from("XDG_CONFIG_HOME")
            .or_else(|| from("APPDATA"))
            .or_else(|| from("HOME").map(|home| home.join(".config")))
            .map(|directory| directory.join("firn").join("profile.json"))
            .ok_or_else(|| Failure::usage("no place for a profile: set HOME, or give --profile"))
    }

    /// The profile of somebody who is logged in.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let nobody = || Failure::new(Exit::Credentials, "nobody is logged in");
        let Some(profile) = Self::read(path)? else {
            return Err(nobody().next("run: firn login --server URL --tenant ID   (or firn signup)"));
        };
        if !profile.is_logged_in() {
            return Err(nobody().next(format!(
                "run: firn login --server {} --tenant {}",
                profile.server, profile.tenant
            )));
        }
        Ok(profile)
    }

    /// Whether there is a key to log in with. Without one the profile remembers what was seen of the service.
    pub fn is_logged_in(&self) -> bool {
        !self.api_key.is_empty()
    }

    /// Forgets the key, and nothing else.
    pub fn log_out(&mut self) {
        self.api_key.zeroize();
    }

    /// Where what was seen of this tenant is kept while another one is logged in.
    pub fn kept_path(path: &Path, tenant: &str) -> PathBuf {
        let name: String = tenant
            .chars()
            .filter(|letter| letter.is_ascii_alphanumeric() || *letter == '_')
            .collect();
        path.with_extension(format!("{name}.json"))
    }

    /// The profile as it is, if there is one.
    pub fn read(path: &Path) -> Result<Option<Self>, Failure> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(of_file(path)(error)),
        };
        let mut text = Zeroizing::new(String::new());
        file.take(MAX_BYTES)
            .read_to_string(&mut text)
            .map_err(of_file(path))?;
        let mut profile: Self = serde_json::from_str(&text).map_err(|error| {
            Failure::usage(format!("{} is no profile: {error}", path.display()))
                .next("move it away and log in again")
        })?;
        if !(OLDEST_VERSION..=VERSION).contains(&profile.version) {
            return Err(Failure::usage(format!(
                "{} has version {}, this build reads {OLDEST_VERSION} to {VERSION}",
                path.display(),
                profile.version
            ))
            .next("use the newer firn"));
        }
        profile.migrate();
        Ok(Some(profile))
    }

    /// Replaces the file whole, so that a crash leaves the old one or the new one.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(of_file(directory))?;
        }
        let text = Zeroizing::new(
            serde_json::to_string_pretty(self).map_err(|error| Failure::failed(error.to_string()))?,
        );
        let next = path.with_extension(format!("new-{}", std::process::id()));
        let mut file = private_file(&next)?;
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&next, path))
            .map_err(of_file(path))
    }
}

/// A new file that only its owner reads.
pub fn private_file(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map_err(of_file(path))
}

/// Reads a secret of one line from a file, or from standard input if none is named. What a person types at a terminal is not
/// shown.
pub fn read_secret(path: Option<&Path>, what: &str) -> Result<Zeroizing<String>, Failure> {
    let mut text = Zeroizing::new(String::new());
    match path {
        Some(path) => {
            let file = File::open(path).map_err(of_file(path))?;
            file.take(4096).read_to_string(&mut text).map_err(of_file(path))?;
        }
        None => {
            crate::screen::note(&format!("{what}:"));
            let failed = |error: std::io::Error| Failure::usage(format!("standard input: {error}"));
            if std::io::stdin().is_terminal() {
                text = Zeroizing::new(rpassword::read_password().map_err(failed)?);
            } else {
                std::io::stdin().read_line(&mut text).map_err(failed)?;
            }
        }
    }
    let trimmed = Zeroizing::new(text.trim().to_owned());
    if trimmed.is_empty() {
        return Err(Failure::usage(format!("no {what} was given")));
    }
    Ok(trimmed)
}

/// Writes a secret that is shown once into a new file, or to standard output.
pub fn give_secret(path: Option<&Path>, secret: &str) -> Result<Option<PathBuf>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let mut file = private_file(path)?;
    file.write_all(format!("{secret}\n").as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(of_file(path))?;
    Ok(Some(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_of_version_1_is_read_and_written_as_version_2() {
        let text = r#"{"version":1,"server":"https://s","authority":null,"tenant":"ten_1","tenant_key":"00","api_key":"k",
            "key_rings":{"vol_1":7},"join_secrets":{"edge_1":"secret"}}"#;
        let mut profile: Profile = serde_json::from_str(text).unwrap();
        profile.migrate();
        assert_eq!(profile.volumes["vol_1"].generation, 7);
        assert_eq!(profile.volumes["vol_1"].family, None);
        assert_eq!(profile.invitations["edge_1"].secret, "secret");
        assert_eq!(profile.invitations["edge_1"].volumes, None);
        let written = serde_json::to_string(&profile).unwrap();
        assert!(written.contains(r#""version":2"#) && !written.contains("join_secrets"));
        let again: Profile = serde_json::from_str(&written).unwrap();
        assert_eq!(again.volumes, profile.volumes);
    }
}

//! Names of users for the access log: those of this machine's `/etc/passwd`, before them those of SMB's table, and a domain's.

use super::domain_names::DomainNames;
use crate::{accounts, config::EdgeConfig, smb};
use firn_access_log::UserNames;
use firn_env::{Env, Monotonic};
use std::{collections::HashMap, path::PathBuf, sync::Mutex, time::Duration};

/// Files are read anew after so long.
const READ_EVERY: Duration = Duration::from_secs(60);

/// See the module.
pub struct Users {
    env: Env,
    state_directories: Vec<PathBuf>,
    domain: Option<DomainNames>,
    known: Mutex<Option<(Monotonic, HashMap<u32, String>)>>,
}

impl Users {
    pub fn new(env: &Env, edge: &EdgeConfig) -> Self {
        let directories = edge
            .volumes
            .iter()
            .map(|config| config.volume.state_directory.clone());
        // Users are those of the one volume that is shared.
        let mut domains = edge.volumes.iter().filter_map(|config| {
            DomainNames::start(env, config.volume.state_directory.clone(), config.smb.as_ref()?)
        });
        Self {
            env: env.clone(),
            state_directories: directories.collect(),
            domain: domains.next(),
            known: Mutex::new(None),
        }
    }

    fn read(&self) -> HashMap<u32, String> {
        let mut names = HashMap::new();
        // Of several names of a number the first counts, as for `getpwuid`.
        for account in accounts::accounts() {
            names.entry(account.uid).or_insert(account.name);
        }
        for directory in &self.state_directories {
            names.extend(smb::user_names(directory));
        }
        names
    }
}

impl UserNames for Users {
    fn name_of(&self, uid: u32) -> Option<String> {
        if let Some(domain) = self.domain.as_ref().filter(|domain| domain.owns(uid)) {
            return domain.name_of(uid);
        }
        let now = self.env.now();
        let mut known = self.known.lock().expect("no panic under this lock");
        if known.as_ref().is_none_or(|(at, _)| now.since(*at) >= READ_EVERY) {
            *known = Some((now, self.read()));
        }
        known.as_ref().and_then(|(_, names)| names.get(&uid).cloned())
    }
}

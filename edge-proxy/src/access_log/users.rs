//! Names of users for the access log: those of this machine's `/etc/passwd`, and before them those of SMB.

use crate::{accounts, smb};
use firn_access_log::UserNames;
use firn_env::{Env, Monotonic};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

/// Files are read anew after so long.
const READ_EVERY: Duration = Duration::from_secs(60);

/// See the module.
pub struct Users {
    env: Env,
    state_directories: Vec<PathBuf>,
    known: Mutex<Option<(Monotonic, HashMap<u32, String>)>>,
}

impl Users {
    pub fn new<'a>(env: &Env, state_directories: impl Iterator<Item = &'a Path>) -> Self {
        Self {
            env: env.clone(),
            state_directories: state_directories.map(Path::to_owned).collect(),
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
        let now = self.env.now();
        let mut known = self.known.lock().expect("no panic under this lock");
        if known.as_ref().is_none_or(|(at, _)| now.since(*at) >= READ_EVERY) {
            *known = Some((now, self.read()));
        }
        known.as_ref().and_then(|(_, names)| names.get(&uid).cloned())
    }
}

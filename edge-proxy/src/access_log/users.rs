//! Names of users for the access log: those of this machine's `/etc/passwd`, and before them those of SMB.

use crate::smb;
use firn_access_log::UserNames;
use firn_env::{Env, Monotonic};
use std::{
    collections::HashMap,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

const PASSWD: &str = "/etc/passwd";
/// Some 20,000 users; the rest goes without names.
const PASSWD_BYTES_MAX: u64 = 1 << 20;
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
        let mut bytes = Vec::new();
        // A machine without the file, or with a damaged one, has numbers only.
        let _ = File::open(PASSWD).and_then(|file| file.take(PASSWD_BYTES_MAX).read_to_end(&mut bytes));
        let mut names = of_passwd(&String::from_utf8_lossy(&bytes));
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

/// Of several names of a number the first counts, as for `getpwuid`.
fn of_passwd(text: &str) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(uid)) = (fields.next(), fields.nth(1))
            && let Ok(uid) = uid.parse()
            && !name.is_empty()
        {
            names.entry(uid).or_insert_with(|| name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_number_has_the_first_name_of_the_table_and_damage_is_passed_over() {
        let names = super::of_passwd(
            "root:x:0:0::/:/bin/sh\ntoor:x:0:0:::\n::1:1\n+\nalice:x:1001:1001:::\nbob:x:many:1",
        );
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort();
        assert_eq!(names, [(0, "root".into()), (1001, "alice".into())]);
    }
}

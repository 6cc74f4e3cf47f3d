//! The table of SMB's users: name, uid, gid and further groups; passwords are Samba's (`passdb.tdb`).
//!
//! smbd works as these numbers on the volume, so they are those that NFS clients use for the same people. It sees no other accounts: the
//! files that stand for `/etc/passwd` and `/etc/group` in its namespace are made of this table. The table is replaced as a whole, by a
//! rename; those two are rewritten in place, for smbd holds them by bind mounts.

use super::paths::Paths;
use crate::failure::Failure;
use firn_nfs::NOBODY;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File},
    io::Write as _,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

/// Users in all: an office has hundreds.
pub const USERS_MAX: usize = 4096;
/// Further groups of one user; Linux takes more, old tools do not.
const GROUPS_MAX: usize = 64;
/// Longest name that Linux's tools take.
const NAME_BYTES_MAX: usize = 32;

/// Names that the accounts' files have anyway.
const SYSTEM: [&str; 3] = ["root", "nobody", "nogroup"];

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    #[serde(rename = "user", default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<User>,
}

/// Whoever may log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// Further groups, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, u32>,
}

/// Whether users and groups may be named so.
///
/// # Errors
/// What is wrong.
pub fn check_name(name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.".contains(&byte);
    let begins = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if !begins || name.len() > NAME_BYTES_MAX || !name.bytes().all(fits) {
        return Err(format!(
            "{name:?} cannot be a name: 1 to {NAME_BYTES_MAX} lower case letters, digits, or `_-.`, beginning with a letter"
        ));
    }
    if SYSTEM.contains(&name) || is_made_up(name) {
        return Err(format!("the name {name} is taken"));
    }
    Ok(())
}

/// Names that are given here to numbers.
fn is_made_up(name: &str) -> bool {
    name.starts_with("firn-")
}

/// The user whom everybody is who uses an export that squashes all.
pub fn anonymous_name(uid: u32) -> String {
    if uid == NOBODY {
        "nobody".into()
    } else {
        format!("firn-user-{uid}")
    }
}

/// The group of a number that the table names by nothing.
pub fn group_name(gid: u32) -> String {
    if gid == NOBODY {
        "nogroup".into()
    } else {
        format!("firn-group-{gid}")
    }
}

impl Table {
    /// The table as it is on the disk; empty if there is none yet.
    ///
    /// # Errors
    /// If it cannot be read or understood.
    pub fn load(paths: &Paths) -> Result<Self, Failure> {
        let path = paths.users();
        match fs::read_to_string(&path) {
            Ok(text) => {
                toml::from_str(&text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Failure::new(format!("cannot read {}: {error}", path.display()))),
        }
    }

    /// Replaces the table on the disk.
    ///
    /// # Errors
    /// If the disk does not take it; the old one is there then.
    pub fn store(&self, paths: &Paths) -> Result<(), Failure> {
        let path = paths.users();
        let text = toml::to_string(self).map_err(Failure::new)?;
        replace(&path, text.as_bytes()).map_err(|error| {
            Failure::new(format!(
                "cannot write {}: {error}; nothing was changed",
                path.display()
            ))
        })
    }

    pub fn find(&self, name: &str) -> Option<&User> {
        self.users.iter().find(|user| user.name == name)
    }

    /// Adds a user.
    ///
    /// # Errors
    /// What is wrong with it, beside those that are there.
    pub fn add(&mut self, user: User) -> Result<(), String> {
        check_name(&user.name)?;
        if user.uid == 0 || user.gid == 0 || user.groups.values().any(|gid| *gid == 0) {
            return Err("nobody is root over SMB: neither the user nor a group may be 0".into());
        }
        if user.uid == u32::MAX || user.gid == u32::MAX || user.groups.values().any(|gid| *gid == u32::MAX) {
            return Err(format!("{} means no user and no group", u32::MAX));
        }
        if self.users.len() >= USERS_MAX || user.groups.len() > GROUPS_MAX {
            return Err(format!(
                "at most {USERS_MAX} users are possible, and {GROUPS_MAX} groups of each"
            ));
        }
        for other in &self.users {
            if other.name == user.name {
                return Err(format!("{} exists already", user.name));
            }
            if other.uid == user.uid {
                return Err(format!("uid {} is {}'s already", user.uid, other.name));
            }
        }
        for (name, gid) in &user.groups {
            check_name(name)?;
            for (known, known_gid) in self
                .users
                .iter()
                .flat_map(|other| &other.groups)
                .chain(&user.groups)
            {
                if (known == name) != (known_gid == gid) {
                    return Err(format!("group {name} cannot be {gid}: {known} is {known_gid}"));
                }
            }
        }
        self.users.push(user);
        self.users.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(())
    }

    /// The files of accounts: users and groups of the table, what Samba itself needs, and those whom exports turn everybody into.
    pub fn accounts(&self, anonymous: &[(u32, u32)]) -> (String, String) {
        let nowhere = "/:/usr/sbin/nologin";
        let mut passwd = format!("root:x:0:0:root:{nowhere}\nnobody:x:{NOBODY}:{NOBODY}:nobody:{nowhere}\n");
        let mut groups: BTreeMap<u32, (String, Vec<&str>)> = BTreeMap::new();
        groups.insert(0, ("root".into(), Vec::new()));
        groups.insert(NOBODY, (group_name(NOBODY), Vec::new()));
        for user in &self.users {
            let _ = writeln!(passwd, "{}:x:{}:{}::{nowhere}", user.name, user.uid, user.gid);
            for (name, gid) in &user.groups {
                groups
                    .entry(*gid)
                    .or_insert_with(|| (name.clone(), Vec::new()))
                    .1
                    .push(&user.name);
            }
        }
        // A number may have two names: the first that is found is shown, and both lead to it.
        let mut made_up: Vec<u32> = anonymous
            .iter()
            .map(|(uid, _)| *uid)
            .filter(|uid| *uid != NOBODY)
            .collect();
        made_up.sort_unstable();
        made_up.dedup();
        for uid in made_up {
            let gid = anonymous
                .iter()
                .find(|(other, _)| *other == uid)
                .map_or(NOBODY, |(_, gid)| *gid);
            let _ = writeln!(passwd, "{}:x:{uid}:{gid}::{nowhere}", anonymous_name(uid));
        }
        let mut group = String::new();
        for (gid, (name, members)) in &groups {
            let _ = writeln!(group, "{name}:x:{gid}:{}", members.join(","));
        }
        let unnamed = self
            .users
            .iter()
            .map(|user| user.gid)
            .filter(|gid| !groups.contains_key(gid));
        // What a configuration names has its made-up name in any case.
        let mut unnamed: Vec<u32> = unnamed.chain(anonymous.iter().map(|(_, gid)| *gid)).collect();
        unnamed.sort_unstable();
        unnamed.dedup();
        for gid in unnamed.into_iter().filter(|gid| *gid != NOBODY) {
            let _ = writeln!(group, "{}:x:{gid}:", group_name(gid));
        }
        (passwd, group)
    }
}

/// Writes the files of accounts where smbd sees them. In place: it holds them by bind mounts, which a rename would leave with the old
/// ones. Additions are one write; of a shorter file a reader may meet old lines at the end once more.
///
/// # Errors
/// What the disk says.
pub fn write_accounts(paths: &Paths, (passwd, group): &(String, String)) -> std::io::Result<()> {
    for (path, text) in [(paths.passwd(), passwd), (paths.group(), group)] {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o644)
            .open(&path)?;
        // The umask of a service would keep smbd's users from their own names.
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)?;
    }
    Ok(())
}

/// Replaces a file at once, for root only.
pub fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    replace_with(path, content, 0o600)
}

/// Replaces a file at once that everybody may read who gets to it.
pub fn replace_for_all(path: &Path, content: &[u8]) -> std::io::Result<()> {
    replace_with(path, content, 0o644)
}

fn replace_with(path: &Path, content: &[u8], mode: u32) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut file = File::options()
        .create_new(true)
        .write(true)
        .mode(mode)
        .open(&new)?;
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, uid: u32, gid: u32, groups: &[(&str, u32)]) -> User {
        User {
            name: name.into(),
            uid,
            gid,
            groups: groups.iter().map(|(name, gid)| ((*name).into(), *gid)).collect(),
        }
    }

    #[test]
    fn what_cannot_be_a_user_is_said_and_not_added() {
        let mut table = Table::default();
        table
            .add(user("alice", 1000, 1000, &[("staff", 50)]))
            .expect("fine");
        for (wrong, said) in [
            (user("alice", 1001, 1001, &[]), "exists already"),
            (user("bob", 1000, 1001, &[]), "alice's already"),
            (user("bob", 0, 1001, &[]), "nobody is root"),
            (user("bob", 1001, 1001, &[("wheel", 0)]), "nobody is root"),
            (user("bob", u32::MAX, 1001, &[]), "means no user"),
            (user("root", 1001, 1001, &[]), "taken"),
            (user("firn-x", 1001, 1001, &[]), "taken"),
            (user("Bob", 1001, 1001, &[]), "cannot be a name"),
            (user("bob:x", 1001, 1001, &[]), "cannot be a name"),
            (user("bob", 1001, 1001, &[("staff", 51)]), "staff is 50"),
            (user("bob", 1001, 1001, &[("crew", 50)]), "staff is 50"),
        ] {
            let error = table.add(wrong).expect_err(said);
            assert!(error.contains(said), "{error}");
        }
        assert_eq!(table.users.len(), 1);
    }

    #[test]
    fn the_files_of_accounts_have_the_table_and_what_samba_needs() {
        let mut table = Table::default();
        table
            .add(user("bob", 1001, 1001, &[("staff", 50)]))
            .expect("fine");
        table
            .add(user("alice", 1000, 50, &[("staff", 50)]))
            .expect("fine");
        let (passwd, group) = table.accounts(&[(7, 8), (NOBODY, NOBODY)]);
        assert_eq!(
            passwd
                .lines()
                .map(|line| line.split("::").next().unwrap_or(line))
                .collect::<Vec<_>>(),
            [
                "root:x:0:0:root:/:/usr/sbin/nologin",
                "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin",
                "alice:x:1000:50",
                "bob:x:1001:1001",
                "firn-user-7:x:7:8",
            ]
        );
        assert_eq!(
            group.lines().collect::<Vec<_>>(),
            [
                "root:x:0:",
                "staff:x:50:alice,bob",
                "nogroup:x:65534:",
                "firn-group-8:x:8:",
                "firn-group-1001:x:1001:"
            ]
            .into_iter()
            .collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_table_survives_the_disk() {
        let directory = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(directory.path());
        paths.make().expect("made");
        assert_eq!(Table::load(&paths).expect("none yet"), Table::default());
        let mut table = Table::default();
        table
            .add(user("alice", 1000, 1000, &[("staff", 50)]))
            .expect("fine");
        table.store(&paths).expect("stored");
        assert_eq!(Table::load(&paths).expect("read"), table);
        write_accounts(&paths, &table.accounts(&[])).expect("written");
        write_accounts(&paths, &Table::default().accounts(&[])).expect("written");
        let passwd = fs::read_to_string(paths.passwd()).expect("read");
        assert_eq!(passwd.lines().count(), 2, "{passwd}");
    }
}

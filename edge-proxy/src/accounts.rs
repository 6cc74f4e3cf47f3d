//! The accounts of this machine, as its files name them: `/etc/passwd` and `/etc/group`.
//!
//! Read as files, bounded, and never through the C library: what that asks may hang, and this process serves others.

use std::{collections::BTreeMap, fs::File, io::Read};

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// Some 20,000 users; the rest goes without names.
const BYTES_MAX: u64 = 1 << 20;

/// A line of `/etc/passwd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    /// None if the line has no number there.
    pub gid: Option<u32>,
}

/// The accounts, in the order of the file. A machine without the file, or with a damaged one, has none.
pub fn accounts() -> Vec<Account> {
    accounts_of(&read(PASSWD))
}

/// The groups of which a user is a member beside the own one, with their names.
pub fn groups_of(user: &str) -> BTreeMap<u32, String> {
    memberships(&read(GROUP), user)
}

fn read(path: &str) -> String {
    let mut bytes = Vec::new();
    let _ = File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn accounts_of(text: &str) -> Vec<Account> {
    let account = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        Some(Account {
            name: name.to_owned(),
            uid: fields.nth(1)?.parse().ok()?,
            gid: fields.next().and_then(|gid| gid.parse().ok()),
        })
    };
    text.lines().filter_map(account).collect()
}

fn memberships(text: &str, user: &str) -> BTreeMap<u32, String> {
    let membership = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let gid = fields.nth(1)?.parse().ok()?;
        let is_member = fields.next()?.split(',').any(|member| member == user);
        is_member.then(|| (gid, name.to_owned()))
    };
    text.lines().filter_map(membership).collect()
}

/// A line in the form of `/etc/passwd`, of whatever table.
pub fn account_of_line(line: &str) -> Option<Account> {
    accounts_of(line).pop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_passed_over() {
        let account = |name: &str, uid, gid| Account {
            name: name.into(),
            uid,
            gid,
        };
        assert_eq!(
            accounts_of("root:x:0:0::/:/bin/sh\n::1:1\n+\nalice:x:1001:x:::\nbob:x:many:1\ncarol:x:7"),
            [
                account("root", 0, Some(0)),
                account("alice", 1001, None),
                account("carol", 7, None)
            ]
        );
    }

    #[test]
    fn a_user_is_in_the_groups_that_list_the_name() {
        let groups = memberships(
            "staff:x:3000:bob,alice\nplans:x:3001:alicia\nnone:x:\nmine:x:many:alice",
            "alice",
        );
        assert_eq!(groups, BTreeMap::from([(3000, "staff".into())]));
    }
}

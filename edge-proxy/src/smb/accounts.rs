//! Accounts as SMB knows them: users of the table, and users of the domain, of whom winbindd is asked by Samba's own tool.
//!
//! A question to winbindd is a process of its own and may have to wait for a controller, so it has an end.

use super::{domain::DomainSection, paths::Paths, section::SmbSection, tools, users::Table};
use crate::accounts::account_of_line;
use firn_env::Env;
use std::{collections::BTreeMap, path::Path};

/// How long winbindd may take for an answer.
const ANSWER_SECONDS: u32 = 10;
/// What it says of who is not there.
const UNKNOWN: [&str; 4] = [
    "WBC_ERR_DOMAIN_NOT_FOUND",
    "WBC_ERR_UNKNOWN_USER",
    "WBC_ERR_UNKNOWN_GROUP",
    "WBC_ERR_NOT_MAPPED",
];

/// Whoever logs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// Further groups, with names where the table has them.
    pub groups: BTreeMap<u32, Option<String>>,
    pub is_of_domain: bool,
}

/// By what an account is sought.
#[derive(Clone, Copy, Debug)]
pub enum Sought<'a> {
    Name(&'a str),
    Uid(u32),
}

/// The tables of an edge that shares a volume.
pub struct Accounts<'a> {
    env: &'a Env,
    paths: Paths,
    domain: Option<&'a DomainSection>,
}

impl<'a> Accounts<'a> {
    pub fn new(env: &'a Env, state_directory: &Path, smb: &'a SmbSection) -> Self {
        Self {
            env,
            paths: Paths::new(state_directory),
            domain: smb.domain.as_ref(),
        }
    }

    /// The account, if there is one.
    ///
    /// # Errors
    /// If a table cannot be read, or winbindd does not answer.
    pub async fn find(&self, sought: Sought<'_>) -> Result<Option<Account>, String> {
        let of_domain = match (sought, self.domain) {
            (Sought::Name(name), Some(domain)) => domain.account(name)?.is_some(),
            (Sought::Name(_), None) => false,
            (Sought::Uid(uid), domain) => domain.is_some_and(|domain| domain.owns(uid)),
        };
        if of_domain {
            return self.find_in_domain(sought).await;
        }
        let table = Table::load(&self.paths).map_err(|error| error.to_string())?;
        let is_sought = |name: &str, uid: u32| match sought {
            Sought::Name(wanted) => wanted == name,
            Sought::Uid(wanted) => wanted == uid,
        };
        let found = table
            .users
            .into_iter()
            .find(|user| is_sought(&user.name, user.uid));
        Ok(found.map(|user| Account {
            name: user.name,
            uid: user.uid,
            gid: user.gid,
            groups: user
                .groups
                .into_iter()
                .map(|(name, gid)| (gid, Some(name)))
                .collect(),
            is_of_domain: false,
        }))
    }

    async fn find_in_domain(&self, sought: Sought<'_>) -> Result<Option<Account>, String> {
        let line = match sought {
            Sought::Name(name) => self.ask(&["--user-info", name]).await?,
            Sought::Uid(uid) => self.ask(&["--uid-info", &uid.to_string()]).await?,
        };
        let Some((account, gid)) = line
            .and_then(|line| account_of_line(line.trim()))
            .and_then(|account| account.gid.map(|gid| (account, gid)))
        else {
            return Ok(None);
        };
        let groups = self
            .ask(&["--user-groups", &account.name])
            .await?
            .unwrap_or_default();
        let gids = groups.lines().filter_map(|line| line.trim().parse().ok());
        Ok(Some(Account {
            name: account.name,
            uid: account.uid,
            gid,
            groups: gids
                .filter(|other| *other != gid)
                .map(|gid| (gid, None))
                .collect(),
            is_of_domain: true,
        }))
    }

    /// Whether an entry of a share's `users` means this account: its name, or a group of which it is a member.
    ///
    /// # Errors
    /// If winbindd does not answer.
    pub async fn is_meant(&self, account: &Account, entry: &str) -> Result<bool, String> {
        let Some(group) = entry.strip_prefix('@') else {
            return Ok(entry.eq_ignore_ascii_case(&account.name));
        };
        let of_domain = match self.domain {
            Some(domain) => domain.account(group)?.is_some(),
            None => false,
        };
        if !of_domain {
            let mut names = account.groups.values().flatten();
            return Ok(names.any(|name| name == group));
        }
        let line = self.ask(&["--group-info", group]).await?.unwrap_or_default();
        let gid: Option<u32> = line.trim().split(':').nth(2).and_then(|gid| gid.parse().ok());
        Ok(gid.is_some_and(|gid| account.gid == gid || account.groups.contains_key(&gid)))
    }

    /// The name of a user of the domain.
    ///
    /// # Errors
    /// If winbindd does not answer.
    pub async fn domain_name_of(&self, uid: u32) -> Result<Option<String>, String> {
        let line = self.ask(&["--uid-info", &uid.to_string()]).await?;
        Ok(line
            .and_then(|line| account_of_line(line.trim()))
            .map(|account| account.name))
    }

    /// What winbindd says; none of what it does not know.
    async fn ask(&self, question: &[&str]) -> Result<Option<String>, String> {
        let asked = tools::run_within(
            self.env,
            &self.paths,
            ANSWER_SECONDS,
            "wbinfo",
            question,
            String::new(),
        );
        match asked.await {
            Ok(said) => Ok(Some(said)),
            Err(error) if UNKNOWN.iter().any(|unknown| error.contains(unknown)) => Ok(None),
            Err(error) => Err(format!("winbindd does not say who this is: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::users::User;

    #[tokio::test]
    async fn users_of_the_table_are_found_by_name_and_number_and_their_groups_are_meant() {
        let directory = tempfile::tempdir().expect("a directory");
        let env = firn_env::real(directory.path()).expect("an environment");
        let paths = Paths::new(directory.path());
        paths.make().expect("directories");
        let mut table = Table::default();
        let user = User {
            name: "alice".into(),
            uid: 1001,
            gid: 100,
            groups: BTreeMap::from([("staff".into(), 3000)]),
        };
        table.add(user).expect("fine");
        table.store(&paths).expect("stored");
        let smb = SmbSection::default();
        let accounts = Accounts::new(&env, directory.path(), &smb);
        let by_name = accounts.find(Sought::Name("alice")).await.expect("read");
        let by_uid = accounts.find(Sought::Uid(1001)).await.expect("read");
        assert_eq!(by_name, by_uid);
        let alice = by_name.expect("there");
        assert_eq!(alice.groups, BTreeMap::from([(3000, Some("staff".into()))]));
        for (entry, is_meant) in [
            ("alice", true),
            ("@staff", true),
            ("bob", false),
            ("@alice", false),
        ] {
            assert_eq!(accounts.is_meant(&alice, entry).await, Ok(is_meant), "{entry}");
        }
        assert_eq!(accounts.find(Sought::Name("bob")).await, Ok(None));
    }
}

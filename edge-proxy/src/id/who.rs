//! The accounts that the tables of this edge have under a name or a number.
//!
//! NFS clients send numbers, which their own tables gave them; over SMB a name logs in, which this edge's tables turn into numbers. So one
//! person may be two here, and that is said.

use super::{
    Question,
    explanation::{AccountLine, GroupLine},
};
use crate::{
    accounts,
    smb::{Account, Accounts, Sought},
    volumes::Volumes,
};
use firn_nfs::rpc::GROUPS_MAX;
use std::collections::BTreeSet;

/// See the module.
pub struct Who {
    pub accounts: Vec<AccountLine>,
    pub notes: Vec<String>,
    /// As an NFS client sends it.
    pub sent: Sent,
    /// As SMB has it, and why not if winbindd did not answer.
    pub of_smb: Result<Option<Account>, String>,
}

/// What an NFS client sends (AUTH_SYS).
pub struct Sent {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Groups for which there is no room.
    pub left_out: Vec<u32>,
}

/// Who it is.
///
/// # Errors
/// If no table has the name.
pub async fn find(volumes: &Volumes, question: &Question) -> Result<Who, String> {
    let uid: Option<u32> = question.user.parse().ok();
    let mut found: Vec<AccountLine> = of_machine(volumes, question, uid).await;
    let mut notes = Vec::new();
    let of_smb = of_smb(volumes, &question.user, uid).await;
    match &of_smb {
        Ok(Some(account)) => found.push(line_of(account)),
        Ok(None) => {}
        Err(why) => notes.push(why.clone()),
    }
    let uids: BTreeSet<u32> = found.iter().map(|account| account.uid).collect();
    if uids.len() > 1 {
        notes.push(format!(
            "{} is {} users here: over NFS the number counts that the client sends, over SMB the one of SMB's table",
            question.user,
            uids.len()
        ));
    }
    let base = found.first();
    let Some(uid) = uid.or(base.map(|account| account.uid)) else {
        return Err(match notes.first() {
            Some(why) => format!("nobody is found as {}: {why}", question.user),
            None => format!(
                "no table of this edge has {}: ask with the uid that the client sends, and --gid and --groups",
                question.user
            ),
        });
    };
    if found.is_empty() {
        notes.push(format!(
            "uid {uid} is in no table here; a client may send it all the same, with the groups of its own tables: say them by --gid and --groups"
        ));
    }
    let gid = question.gid.or(base.map(|account| account.gid)).unwrap_or(uid);
    let of_table = base.map(|account| account.groups.iter().map(|group| group.gid).collect());
    let groups: Vec<u32> = question.groups.clone().or(of_table).unwrap_or_default();
    Ok(Who {
        sent: Sent::new(uid, gid, groups),
        accounts: found,
        notes,
        of_smb,
    })
}

impl Sent {
    /// Linux's clients send the lowest numbers.
    fn new(uid: u32, gid: u32, mut groups: Vec<u32>) -> Self {
        groups.sort_unstable();
        groups.dedup();
        let left_out = groups.split_off(groups.len().min(GROUPS_MAX));
        Self {
            uid,
            gid,
            groups,
            left_out,
        }
    }
}

async fn of_machine(volumes: &Volumes, question: &Question, uid: Option<u32>) -> Vec<AccountLine> {
    let user = question.user.clone();
    let look = move || {
        let is_meant = |account: &accounts::Account| match uid {
            Some(uid) => account.uid == uid,
            None => account.name == user,
        };
        let account = accounts::accounts().into_iter().find(is_meant)?;
        let groups = accounts::groups_of(&account.name);
        Some((account, groups))
    };
    let found = volumes.env.compute(look).await;
    let line =
        |(account, groups): (accounts::Account, std::collections::BTreeMap<u32, String>)| AccountLine {
            table: "passwd".into(),
            uid: account.uid,
            gid: account.gid.unwrap_or(account.uid),
            name: Some(account.name),
            groups: groups
                .into_iter()
                .map(|(gid, name)| GroupLine {
                    gid,
                    name: Some(name),
                })
                .collect(),
        };
    found.map(line).into_iter().collect()
}

async fn of_smb(volumes: &Volumes, user: &str, uid: Option<u32>) -> Result<Option<Account>, String> {
    let Some((config, smb)) = volumes.sharing() else {
        return Ok(None);
    };
    let accounts = Accounts::new(&volumes.env, &config.volume.state_directory, smb);
    let sought = uid.map_or(Sought::Name(user), Sought::Uid);
    accounts.find(sought).await
}

fn line_of(account: &Account) -> AccountLine {
    AccountLine {
        table: if account.is_of_domain { "domain" } else { "smb" }.into(),
        name: Some(account.name.clone()),
        uid: account.uid,
        gid: account.gid,
        groups: account
            .groups
            .iter()
            .map(|(gid, name)| GroupLine {
                gid: *gid,
                name: name.clone(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_sends_the_lowest_groups_that_fit() {
        let sent = Sent::new(1001, 100, (3000..3020).rev().collect());
        assert_eq!(sent.groups, (3000..3016).collect::<Vec<_>>());
        assert_eq!(sent.left_out, [3016, 3017, 3018, 3019]);
    }
}

//! The verdict of SMB: the share, its networks and users, the user that it forces, and the walk.

use super::{
    Wish,
    explanation::{Explanation, Refusal},
    nfs::words,
    walk::Walk,
    who::Who,
};
use crate::{
    config::{Config, ExportSection},
    smb::{self, Account, Accounts, Encryption, ShareSection, SmbSection},
    volumes::Volumes,
};
use firn_nfs::Export;
use firn_vfs::{Caller, Credentials, Vfs};
use firn_volume::SNAPSHOTS_DIRECTORY;
use std::sync::Arc;

/// Where Samba keeps Windows' own ACL of a file, by which it refuses beyond what POSIX says.
const NT_ACL: &[u8] = b"security.NTACL";

/// The verdict of SMB; none if the path is not shared.
///
/// # Errors
/// For people, if there is no such share.
pub async fn explain(volumes: &Volumes, who: &Who, wish: &Wish) -> Result<Option<Explanation>, String> {
    let Some((config, section)) = volumes.sharing() else {
        return match &wish.share {
            Some(_) => Err("this edge shares nothing over SMB: its configuration has no [smb]".into()),
            None => Ok(None),
        };
    };
    let Some(asked) = Asked::find(volumes, config, wish)? else {
        return Ok(None);
    };
    let title = format!(
        "over SMB: {} {} of the share {} from {}",
        wish.access.word(),
        asked.path,
        asked.share.share,
        wish.from
    );
    let mut out = Explanation::new("smb", title);
    asked
        .explain(&mut out, volumes, (config, section), who, wish)
        .await;
    Ok(Some(out))
}

/// What is asked about.
struct Asked<'a> {
    export: &'a ExportSection,
    share: &'a ShareSection,
    /// From the root of the share, beginning with `/`.
    path: String,
    /// None while the volume is away.
    vfs: Option<Arc<dyn Vfs>>,
}

impl<'a> Asked<'a> {
    fn find(volumes: &Volumes, config: &'a Config, wish: &Wish) -> Result<Option<Self>, String> {
        let exports = volumes.nfs.exports();
        let of_path = wish.share.is_none().then(|| exports.find(&wish.path)).flatten();
        let is_asked = |(export, share): &(&ExportSection, &ShareSection)| match (&wish.share, of_path) {
            (Some(name), _) => share.share.eq_ignore_ascii_case(name),
            (None, Some((found, _))) => Export::checked_path(&export.path) == Ok(found.path()),
            (None, None) => false,
        };
        let Some((export, share)) = smb::shared(config).find(is_asked) else {
            let all: Vec<&str> = smb::shared(config)
                .map(|(_, share)| share.share.as_str())
                .collect();
            return match &wish.share {
                Some(name) => Err(format!("there is no share {name}, but {}", all.join(", "))),
                None => Ok(None),
            };
        };
        let rest = of_path.map_or(wish.path.as_str(), |(_, rest)| rest);
        let served = exports.find(&export.path).and_then(|(export, _)| export.vfs());
        Ok(Some(Self {
            export,
            share,
            path: format!("/{}", rest.replace('\\', "/").trim_matches('/')),
            vfs: served,
        }))
    }

    async fn explain(
        &self,
        out: &mut Explanation,
        volumes: &Volumes,
        (config, section): (&Config, &SmbSection),
        who: &Who,
        wish: &Wish,
    ) {
        match volumes.smb_part() {
            Some(part) if !part.is_serving() => {
                let why = part.reason.unwrap_or_else(|| part.state.clone());
                out.refuses("SMB", format!("it is not served: {why}"), Refusal::Later);
            }
            _ => out.passes("SMB", "it is served"),
        }
        self.share(out, section, wish);
        let accounts = Accounts::new(&volumes.env, &config.volume.state_directory, section);
        let Some(account) = self.user(out, &accounts, who).await else {
            return;
        };
        let credentials = self.forced(out, &account);
        let Some(vfs) = &self.vfs else {
            out.refuses("volume", "it is not served now", Refusal::Later);
            return;
        };
        if self.path.split('/').nth(1) == Some(SNAPSHOTS_DIRECTORY) {
            let text =
                format!("{SNAPSHOTS_DIRECTORY} is not shown over SMB, where snapshots are Previous Versions");
            out.refuses("snapshots", text, Refusal::NotFound);
        }
        let read_only = smb::is_read_only(self.export).then(|| {
            format!(
                "the export {} has read_only_clients alone, so its share is read-only",
                self.export.path
            )
        });
        Walk {
            vfs: &**vfs,
            path: &self.path,
            caller: &credentials,
            access: wish.access,
            read_only,
        }
        .explain(out)
        .await;
        if has_nt_acl(&**vfs, &self.path).await {
            out.says(
                "Windows ACL",
                "the file has one of Windows' own, which Samba asks as well and may refuse by: smbcacls shows it",
            );
        }
    }

    fn share(&self, out: &mut Explanation, section: &SmbSection, wish: &Wish) {
        let networks: Vec<_> = smb::networks(self.export).collect();
        let shown: Vec<String> = networks.iter().map(ToString::to_string).collect();
        let (shown, path) = (shown.join(", "), &self.export.path);
        match networks.iter().any(|network| network.contains(wish.from)) {
            true => out.passes("share", format!("of {path}, for {shown}")),
            false => {
                let text = format!("of {path}, and {} is in none of {shown}", wish.from);
                out.refuses("share", text, Refusal::Denied);
            }
        }
        out.says(
            "encryption",
            match section.encryption {
                Encryption::Required => {
                    "required: a client that cannot encrypt (SMB 2, or told not to) is refused"
                }
                Encryption::Desired => "desired: a client that cannot encrypt is served in the clear",
            },
        );
    }

    /// Who logs in, if that person may use the share.
    async fn user(&self, out: &mut Explanation, accounts: &Accounts<'_>, who: &Who) -> Option<Account> {
        let account = match &who.of_smb {
            Ok(Some(account)) => account.clone(),
            Ok(None) => {
                let text = "nobody of that name or number can log in: firn-edge smb user add, or a user of the domain";
                out.refuses("user", text, Refusal::Unknown);
                return None;
            }
            Err(why) => {
                out.refuses("user", why, Refusal::Unknown);
                return None;
            }
        };
        let users = &self.share.users;
        if users.is_empty() {
            out.passes(
                "user",
                format!("{}: the share names no users, so all may", account.name),
            );
            return Some(account);
        }
        for entry in users {
            match accounts.is_meant(&account, entry).await {
                Ok(false) => {}
                Ok(true) => {
                    out.passes(
                        "user",
                        format!("{}: meant by {entry:?} of the share's users", account.name),
                    );
                    return Some(account);
                }
                Err(why) => out.says("user", why),
            }
        }
        let text = format!(
            "{} is none of the share's users: {}",
            account.name,
            users.join(", ")
        );
        out.refuses("user", text, Refusal::Denied);
        Some(account)
    }

    /// As whom smbd works.
    fn forced(&self, out: &mut Explanation, account: &Account) -> Credentials {
        match smb::forced_user(self.export) {
            Some((uid, gid)) => {
                let forced = Credentials {
                    uid,
                    gid,
                    groups: Vec::new(),
                };
                let text = format!("{}: squash = \"all\" makes everybody this user", words(&forced));
                out.passes("caller", text);
                forced
            }
            None => {
                let own = Credentials {
                    uid: account.uid,
                    gid: account.gid,
                    groups: account.groups.keys().copied().collect(),
                };
                out.passes("caller", words(&own));
                own
            }
        }
    }
}

async fn has_nt_acl(vfs: &dyn Vfs, path: &str) -> bool {
    let root = Caller::new(Credentials::root());
    let mut file = vfs.root();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let Ok(name) = firn_vfs::Name::new(name.as_bytes().to_vec()) else {
            return false;
        };
        match vfs.lookup(&root, file, &name).await {
            Ok((found, _)) => file = found,
            Err(_) => return false,
        }
    }
    vfs.get_xattr(&root, file, NT_ACL).await.is_ok()
}

//! Lock commands of the admin socket.

use super::{
    Reply,
    server::{Admin, Replies},
};
use crate::locks::{LINES_MAX, LockCommand, LockLine};
use firn_session::{HeldLock, LockClient, LockProtocol, ShareMode};
use firn_vfs::{FileHandle, Vfs as _};
use std::collections::{BTreeMap, btree_map::Entry};

impl Admin {
    pub(super) async fn locks(&self, client: &mut Replies, command: LockCommand) -> std::io::Result<()> {
        let reply = match command {
            LockCommand::List { path } => {
                let (locks, all) = self.held(path.as_deref()).await;
                Reply::Locks {
                    locks: locks.into_iter().map(|(line, _)| line).collect(),
                    all,
                    in_grace: self.observed.nfs().table().in_grace(),
                }
            }
            LockCommand::Break { path, client } => self.break_locks(&path, client.as_deref()).await,
        };
        client.send(&reply).await
    }

    /// What is held in the file at `path`, or in all, with the client of each; and how many there are in all.
    async fn held(&self, path: Option<&str>) -> (Vec<(LockLine, HeldLock)>, u64) {
        let volume = &self.observed.volume;
        let file_system = volume.root().file_system;
        let refreshed = match self.observed.member() {
            Some(member) => member.refresh_locks().await.map_err(|error| error.to_string()),
            None => volume.refresh_locks().await.map_err(|error| error.to_string()),
        };
        if let Err(error) = refreshed {
            tracing::warn!(error, "locks of other offices are listed as they were known last");
        }
        // The path is found from the file: the file of a path may have several.
        let limit = if path.is_some() { usize::MAX } else { LINES_MAX };
        let (held, all) = self.observed.nfs().table().held_in(file_system, limit);
        let mut paths: BTreeMap<FileHandle, String> = BTreeMap::new();
        let mut lines = Vec::new();
        for lock in held {
            let file = lock.file;
            if let Entry::Vacant(unknown) = paths.entry(file) {
                let found = volume.path_of(file.inode).await;
                unknown.insert(found.unwrap_or_else(|| format!("#{}", file.inode)));
            }
            let is_asked = path.is_none_or(|path| paths[&file] == path || format!("#{}", file.inode) == path);
            if is_asked && lines.len() < LINES_MAX {
                lines.push((line(paths[&file].clone(), &lock), lock));
            }
        }
        let all = if path.is_some() { lines.len() } else { all };
        (lines, all as u64)
    }

    async fn break_locks(&self, path: &str, client: Option<&str>) -> Reply {
        let (held, _) = self.held(Some(path)).await;
        let mut broken: BTreeMap<(FileHandle, LockClient), String> = BTreeMap::new();
        for (line, lock) in held {
            if client.is_none_or(|client| line.client == client) {
                broken.insert((lock.file, lock.holder.owner.client), line.client);
            }
        }
        if broken.is_empty() {
            return Reply::Error {
                text: format!("nothing was broken: no such lock is held in {path}"),
            };
        }
        for (file, client) in broken.keys() {
            if let Some((office, name)) = client.as_office() {
                let broken = match self.observed.member() {
                    Some(member) => {
                        let broken = member.break_locks(office, file.inode).await;
                        broken.map_err(|error| error.to_string())
                    }
                    None => {
                        let broken = self.observed.volume.break_locks(office, file.inode).await;
                        broken.map_err(|error| error.to_string())
                    }
                };
                if let Err(error) = broken {
                    return Reply::Error {
                        text: format!("the locks of office {name} in {path} were not broken: {error}"),
                    };
                }
                tracing::warn!(
                    path,
                    office = name,
                    "an administrator broke locks of another office"
                );
                continue;
            }
            let owners = self.observed.nfs().break_locks(*file, client);
            tracing::warn!(path, client = %words(client), owners = owners.len(), "an administrator broke locks");
        }
        let names: Vec<String> = broken.into_values().collect();
        Reply::Done {
            text: format!(
                "broken: the locks of {} in {path}. Who held them was not told and may write on",
                names.join(", ")
            ),
        }
    }
}

/// A client as the list names it.
fn words(client: &LockClient) -> String {
    if let Some((_, name)) = client.as_office() {
        return name;
    }
    String::from_utf8_lossy(&client.name).trim_end().to_owned()
}

fn line(path: String, lock: &HeldLock) -> LockLine {
    let owner = &lock.holder.owner;
    let client = words(&owner.client);
    let protocol = match owner.client.protocol {
        LockProtocol::Nlm | LockProtocol::Nfs4 => "nfs",
        LockProtocol::Smb => "smb",
        LockProtocol::Local => "local",
        LockProtocol::Office => "office",
    };
    LockLine {
        path,
        inode: lock.file.inode,
        protocol: protocol.into(),
        process: process(owner.client.protocol, &owner.owner),
        // Of Samba's private mount the directory says nothing.
        client: if protocol == "smb" {
            "SMB clients".into()
        } else {
            client
        },
        kind: match lock.share {
            Some(share) => denied(share).into(),
            None if lock.holder.exclusive => "write".into(),
            None => "read".into(),
        },
        first: lock.holder.range.first,
        last: Some(lock.holder.range.last).filter(|last| *last != u64::MAX),
        waiting: lock.waiting as u64,
    }
}

fn denied(share: ShareMode) -> &'static str {
    match (share.deny_read, share.deny_write) {
        (false, false) => "deny none",
        (true, false) => "deny read",
        (false, true) => "deny write",
        (true, true) => "deny all",
    }
}

/// Linux's clients send the process number and the host's name as text, after four bytes of number.
fn process(protocol: LockProtocol, owner: &[u8]) -> Option<String> {
    let text = owner.get(4..).filter(|_| protocol == LockProtocol::Nlm)?;
    let is_text = !text.is_empty() && text.len() <= 64 && text.iter().all(u8::is_ascii_graphic);
    is_text.then(|| String::from_utf8_lossy(text).into_owned())
}

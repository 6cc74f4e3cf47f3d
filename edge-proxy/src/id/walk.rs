//! The walk from the root of a volume to a file, as whoever asks: each directory's search permission, then what was asked of the file.
//!
//! Looked up as root, so that what lies behind a closed directory is told too; judged by the rules of the file system ([`rules`]), and at the end
//! by the answer that the engine gives the caller itself ([`Vfs::check_access`]), which is what counts.

use super::{
    Access,
    explanation::{Explanation, Refusal},
};
use firn_vfs::{
    AccessMask, Acl, Attributes, Caller, Credentials, FileHandle, FileKind, Name, Vfs, VfsError,
    rules::{self, EXECUTE, READ, Subject, WRITE},
};

/// What somebody wants to do.
pub struct Walk<'a> {
    pub vfs: &'a dyn Vfs,
    /// From the root of the volume.
    pub path: &'a str,
    /// After squashing.
    pub caller: &'a Credentials,
    pub access: Access,
    /// Why changes are refused, if they are.
    pub read_only: Option<String>,
}

/// A file as it is now.
struct Seen {
    handle: FileHandle,
    path: String,
    attributes: Attributes,
    acl: Acl,
}

impl Seen {
    async fn of(vfs: &dyn Vfs, handle: FileHandle, path: String) -> Result<Self, VfsError> {
        let root = Caller::new(Credentials::root());
        let attributes = vfs.attributes(handle).await?;
        let acl = match attributes.kind {
            FileKind::Symlink => Acl::default(),
            _ => vfs.get_acl(&root, handle).await?.0,
        };
        Ok(Self {
            handle,
            path,
            attributes,
            acl,
        })
    }

    fn subject(&self) -> Subject<'_> {
        Subject::new(&self.attributes, Some(&self.acl))
    }

    fn is_directory(&self) -> bool {
        self.attributes.kind == FileKind::Directory
    }

    /// Whose it is, and its mode.
    fn owner(&self) -> String {
        let Attributes { uid, gid, mode, .. } = self.attributes;
        let acl = if self.acl.entries.is_empty() {
            ""
        } else {
            ", with an ACL"
        };
        format!("of uid {uid} and gid {gid}, mode {mode:04o}{acl}")
    }

    /// Judges permissions of this file.
    fn judge(&self, out: &mut Explanation, caller: &Credentials, wanted: u8, deed: &str) -> bool {
        let verdict = rules::verdict(self.subject(), caller, wanted);
        let owner = self.owner();
        match verdict.is_allowed() {
            true => out.passes(&*self.path, format!("{verdict} let it {deed} ({owner})")),
            false => {
                let lacks = rules::Letters(wanted & !verdict.granted);
                let text = format!("{verdict} do not let it {deed}, which needs {lacks} ({owner})");
                out.refuses(&self.path, text, Refusal::Denied);
            }
        }
        verdict.is_allowed()
    }
}

impl Walk<'_> {
    /// Adds the steps.
    pub async fn explain(&self, out: &mut Explanation) {
        if let Err(error) = self.steps(out).await {
            let refusal = match error {
                VfsError::NotFound | VfsError::Stale | VfsError::NameTooLong => Refusal::NotFound,
                VfsError::NotDirectory => Refusal::NotDirectory,
                _ => Refusal::Later,
            };
            out.refuses("volume", error.to_string(), refusal);
        }
    }

    async fn steps(&self, out: &mut Explanation) -> Result<(), VfsError> {
        let root = Caller::new(Credentials::root());
        let mut parent: Option<Seen> = None;
        let mut seen = Seen::of(self.vfs, self.vfs.root(), "/".into()).await?;
        let names: Vec<&str> = self.path.split('/').filter(|name| !name.is_empty()).collect();
        for (at, text) in names.iter().enumerate() {
            match seen.attributes.kind {
                FileKind::Directory => {}
                FileKind::Symlink => return self.link(out, &seen).await,
                _ => {
                    out.refuses(&seen.path, "it is no directory", Refusal::NotDirectory);
                    return Ok(());
                }
            }
            seen.judge(out, self.caller, EXECUTE, "search");
            let name = match Name::new(text.as_bytes().to_vec()) {
                Ok(name) => name,
                Err(_) => {
                    out.refuses(
                        &seen.path,
                        format!("{text:?} is no name that is looked up"),
                        Refusal::NotFound,
                    );
                    return Ok(());
                }
            };
            let (handle, _) = match self.vfs.lookup(&root, seen.handle, &name).await {
                Err(VfsError::NotFound) => {
                    self.missing(out, &seen, text, at + 1 == names.len());
                    return Ok(());
                }
                found => found?,
            };
            let path = format!("{}/{text}", seen.path.trim_end_matches('/'));
            parent = Some(std::mem::replace(
                &mut seen,
                Seen::of(self.vfs, handle, path).await?,
            ));
        }
        self.refuse_change(out);
        match self.access {
            Access::Delete => self.delete(out, parent.as_ref(), &seen).await,
            Access::Read | Access::Write | Access::Execute => self.access(out, &seen).await,
        }
    }

    fn refuse_change(&self, out: &mut Explanation) {
        if let Some(why) = self.read_only.as_deref().filter(|_| self.access.is_change()) {
            out.refuses("read-only", why, Refusal::ReadOnly);
        }
    }

    /// The last name, or one before it, is not there.
    fn missing(&self, out: &mut Explanation, directory: &Seen, name: &str, is_last: bool) {
        if self.access != Access::Write || !is_last {
            out.refuses(
                &directory.path,
                format!("{name:?} is not in it"),
                Refusal::NotFound,
            );
            return;
        }
        out.says(
            &*directory.path,
            format!("{name:?} is not in it: it would be made"),
        );
        self.refuse_change(out);
        directory.judge(out, self.caller, WRITE | EXECUTE, "make a name");
    }

    async fn link(&self, out: &mut Explanation, link: &Seen) -> Result<(), VfsError> {
        let root = Caller::new(Credentials::root());
        let (target, _) = self.vfs.read_link(&root, link.handle).await?;
        let target = String::from_utf8_lossy(&target).into_owned();
        let text = format!(
            "a symbolic link to {target:?}: clients follow it on their own side, so ask about the path to which it leads"
        );
        out.refuses(&link.path, text, Refusal::NotDirectory);
        Ok(())
    }

    async fn access(&self, out: &mut Explanation, file: &Seen) -> Result<(), VfsError> {
        let (wanted, deed) = match (self.access, file.is_directory()) {
            (Access::Read, true) => (READ, "list"),
            (Access::Read, false) => (READ, "read"),
            (Access::Write, true) => (WRITE | EXECUTE, "make and remove names"),
            (Access::Write, false) => (WRITE, "write"),
            (Access::Execute, true) => (EXECUTE, "search"),
            (Access::Execute | Access::Delete, _) => (EXECUTE, "execute"),
        };
        let is_granted = file.judge(out, self.caller, wanted, deed);
        let goes_on = match self.access {
            Access::Read => rules::may_read(file.subject(), self.caller).is_ok(),
            Access::Write => rules::may_write(file.subject(), self.caller).is_ok(),
            Access::Execute | Access::Delete => false,
        };
        if !is_granted && goes_on {
            out.says(
                &*file.path,
                "a program that has it open already goes on: READ and WRITE are granted to the owner, READ to whoever may execute",
            );
        }
        let asked = AccessMask {
            read: self.access == Access::Read,
            modify: self.access == Access::Write,
            execute: self.access == Access::Execute && !file.is_directory(),
            lookup: self.access == Access::Execute && file.is_directory(),
            ..AccessMask::default()
        };
        self.held_against(out, file, asked, is_granted).await
    }

    async fn delete(
        &self,
        out: &mut Explanation,
        parent: Option<&Seen>,
        file: &Seen,
    ) -> Result<(), VfsError> {
        let Some(directory) = parent else {
            out.refuses("/", "the root of a volume cannot be removed", Refusal::NotOwner);
            return Ok(());
        };
        let is_granted = directory.judge(out, self.caller, WRITE | EXECUTE, "remove names");
        let deletion = rules::deletion(directory.subject(), &file.attributes, self.caller);
        if deletion.is_sticky {
            let text = format!(
                "its sticky bit lets only the owner of {} (uid {}) and its own (uid {}) remove that",
                file.path, file.attributes.uid, directory.attributes.uid
            );
            out.refuses(&directory.path, text, Refusal::NotOwner);
        }
        let asked = AccessMask {
            delete: true,
            ..AccessMask::default()
        };
        self.held_against(out, directory, asked, is_granted).await
    }

    /// What the engine answers the caller.
    async fn held_against(
        &self,
        out: &mut Explanation,
        file: &Seen,
        asked: AccessMask,
        is_granted: bool,
    ) -> Result<(), VfsError> {
        let caller = Caller::new(self.caller.clone());
        let (granted, _) = self.vfs.check_access(&caller, file.handle, asked).await?;
        let is_snapshot = file.handle.file_system != self.vfs.root().file_system;
        match (granted == asked, is_granted) {
            (false, true) if is_snapshot => {
                out.refuses(
                    &file.path,
                    "it is in a snapshot, which nobody changes",
                    Refusal::ReadOnly,
                );
            }
            (answer, judged) if answer != judged => {
                out.refuses(
                    &file.path,
                    "it was changed while this was asked: ask again",
                    Refusal::Later,
                );
            }
            _ => {}
        }
        Ok(())
    }
}

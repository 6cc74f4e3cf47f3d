//! [`RecordedVfs`]: a file system as one client uses it, whose operations go to the log.
//!
//! A call whose future is dropped (a client that went away) may have changed something, so it is recorded too, with the result `unknown`.

use crate::{
    event::{Detail, Event, Located, Outcome, Share, Who},
    log::AccessLog,
    summary::{Key, Kind},
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_vfs::{
    AccessMask, Acl, Attributes, Caller, ChangedAttributes, CreateMode, Created, DirectoryPage, FileHandle,
    FileKind, Name, ReadReply, Removed, Renamed, SetAttributes, Stability, Timestamp, Vfs, VfsError,
    VfsLayer, WriteReply, XattrMode,
};
use std::sync::Arc;

/// The log's end for one export or mount. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    log: AccessLog,
    share: Arc<Share>,
    /// Only renames are followed.
    is_quiet: bool,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Recorder")
            .field("volume", &self.share.volume)
            .field("export", &self.share.export)
            .finish_non_exhaustive()
    }
}

/// What an operation is about.
#[derive(Clone, Copy)]
enum Subject<'a> {
    File(FileHandle),
    Entry(FileHandle, &'a Name),
}

impl Recorder {
    pub(crate) fn new(log: &AccessLog, share: Arc<Share>, is_quiet: bool) -> Self {
        Self {
            log: log.clone(),
            share,
            is_quiet,
        }
    }

    /// `vfs` as a client uses it.
    pub fn view(&self, vfs: Arc<dyn Vfs>, who: Who) -> RecordedVfs {
        RecordedVfs {
            below: vfs,
            recorder: self.clone(),
            who,
        }
    }

    /// A client mounts a path, or is refused with an error that POSIX names so.
    pub fn mounted(&self, who: Who, path: &str, refused: Option<&'static str>) {
        let path = Located {
            above: None,
            below: path.into(),
        };
        self.unnamed(
            who,
            "mount",
            Some(path),
            refused.map_or(Outcome::Done, Outcome::Refused),
        );
    }

    /// A client used a handle of an export that its rules refuse it.
    pub fn turned_away(&self, who: Who) {
        self.unnamed(who, "access", None, Outcome::Refused("EACCES"));
    }

    /// An event about no file.
    fn unnamed(&self, who: Who, operation: &'static str, path: Option<Located>, outcome: Outcome) {
        if self.is_quiet {
            return;
        }
        self.log.shared.push(Event {
            at: self.log.shared.wall(),
            until: None,
            operation,
            outcome,
            who,
            share: self.share.clone(),
            path,
            to: None,
            inode: None,
            sum: None,
            detail: Detail::None,
        });
    }
}

/// See the module.
pub struct RecordedVfs {
    below: Arc<dyn Vfs>,
    recorder: Recorder,
    who: Who,
}

/// A change under way, recorded when it ended, or when nobody knows whether it did.
struct Pending<'a> {
    vfs: &'a RecordedVfs,
    draft: Option<Draft<'a>>,
}

struct Draft<'a> {
    operation: &'static str,
    subject: Subject<'a>,
    to: Option<Subject<'a>>,
    detail: Detail,
    inode: Option<u64>,
}

impl<'a> Draft<'a> {
    fn new(operation: &'static str, subject: Subject<'a>) -> Self {
        Self {
            operation,
            subject,
            to: None,
            detail: Detail::None,
            inode: match subject {
                Subject::File(file) => Some(file.inode),
                Subject::Entry(..) => None,
            },
        }
    }

    fn with(self, detail: Detail) -> Self {
        Self { detail, ..self }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take()
            && !firn_env::planted!("accesslog.dropped_call_is_silent")
        {
            self.vfs.record(draft, Outcome::Unknown);
        }
    }
}

impl RecordedVfs {
    /// A file was opened.
    pub fn opened(&self, file: FileHandle, read: bool, write: bool) {
        let draft = Draft::new("open", Subject::File(file));
        self.record(draft.with(Detail::Open { read, write }), Outcome::Done);
    }

    /// A change was refused because the export is read-only for this client.
    pub fn refused_as_read_only(&self, file: FileHandle) {
        let draft = Draft::new("change", Subject::File(file));
        self.record(draft, Outcome::Refused("EROFS"));
    }

    fn located(&self, subject: Subject<'_>) -> Located {
        let root = self.below.root();
        let mut names = self.recorder.log.shared.names();
        match subject {
            Subject::File(file) => names.locate(root, file, None),
            Subject::Entry(directory, name) => names.locate(root, directory, Some(name)),
        }
    }

    fn record(&self, draft: Draft<'_>, outcome: Outcome) {
        if self.recorder.is_quiet {
            return;
        }
        let shared = &self.recorder.log.shared;
        shared.push(Event {
            at: shared.wall(),
            until: None,
            operation: draft.operation,
            outcome,
            who: self.who,
            share: self.recorder.share.clone(),
            path: Some(self.located(draft.subject)),
            to: draft.to.map(|to| self.located(to)),
            inode: draft.inode,
            sum: None,
            detail: draft.detail,
        });
    }

    /// Records a refusal, unless the call is asked again.
    fn refused(&self, operation: &'static str, subject: Subject<'_>, error: &VfsError) {
        if let Some(outcome) = Outcome::of(error) {
            self.record(Draft::new(operation, subject), outcome);
        }
    }

    /// The same of what is only worth a line if a permission was lacking.
    fn denied(&self, operation: &'static str, subject: Subject<'_>, error: &VfsError) {
        if matches!(error, VfsError::AccessDenied | VfsError::NotPermitted) {
            self.refused(operation, subject, error);
        }
    }

    /// Adds a call to a summary.
    fn sum(&self, kind: Kind, file: FileHandle, bytes: u64) {
        if self.recorder.is_quiet {
            return;
        }
        let shared = &self.recorder.log.shared;
        let key = Key {
            share: self.recorder.share.number,
            who: self.who,
            file,
            kind,
        };
        let at = (shared.env.now(), shared.wall());
        let begin = || (self.recorder.share.clone(), self.located(Subject::File(file)));
        let gone = shared.summaries().add(key, at, bytes, begin);
        match gone {
            Some(event) => shared.push(event),
            // The writer ends it when its time has come.
            None => shared.some.notify_one(),
        }
    }

    /// Carries a change out and records it; `done` is told of what it made before that.
    async fn recorded<T>(
        &self,
        draft: Draft<'_>,
        work: impl Future<Output = Result<T, VfsError>>,
        done: impl FnOnce(&T) -> Option<FileHandle>,
    ) -> Result<T, VfsError> {
        let mut pending = Pending {
            vfs: self,
            draft: Some(draft),
        };
        let result = work.await;
        let Some(mut draft) = pending.draft.take() else {
            return result;
        };
        let outcome = match &result {
            Ok(made) => {
                if let Some(file) = done(made) {
                    draft.inode = Some(file.inode);
                }
                Some(Outcome::Done)
            }
            Err(error) => Outcome::of(error),
        };
        if let Some(outcome) = outcome {
            self.record(draft, outcome);
        }
        result
    }

    fn learn(&self, file: FileHandle, directory: FileHandle, name: &Name) {
        if self.recorder.is_quiet {
            return;
        }
        self.recorder
            .log
            .shared
            .names()
            .learn(file, directory, name.bytes());
    }

    fn forget(&self, directory: FileHandle, name: &Name) -> Option<FileHandle> {
        let mut names = self.recorder.log.shared.names();
        let file = names.file(directory, name);
        names.removed(directory, name);
        file
    }

    async fn made(
        &self,
        (operation, detail): (&'static str, Detail),
        directory: FileHandle,
        name: &Name,
        work: impl Future<Output = Result<Created, VfsError>>,
    ) -> Result<Created, VfsError> {
        let draft = Draft::new(operation, Subject::Entry(directory, name)).with(detail);
        self.recorded(draft, work, |made| {
            self.learn(made.handle, directory, name);
            Some(made.handle)
        })
        .await
    }

    async fn changed<T>(
        &self,
        operation: &'static str,
        file: FileHandle,
        detail: Detail,
        work: impl Future<Output = Result<T, VfsError>>,
    ) -> Result<T, VfsError> {
        let draft = Draft::new(operation, Subject::File(file)).with(detail);
        self.recorded(draft, work, |_| None).await
    }
}

#[async_trait]
impl VfsLayer for RecordedVfs {
    fn below(&self) -> &dyn Vfs {
        &*self.below
    }

    async fn lookup(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(FileHandle, Attributes), VfsError> {
        let found = self.below.lookup(caller, directory, name).await;
        match &found {
            Ok((file, _)) => self.learn(*file, directory, name),
            Err(error) => self.denied("lookup", Subject::Entry(directory, name), error),
        }
        found
    }
    async fn check_access(
        &self,
        caller: &Caller,
        file: FileHandle,
        asked: AccessMask,
    ) -> Result<(AccessMask, Attributes), VfsError> {
        let checked = self.below.check_access(caller, file, asked).await;
        // Clients ask for everything at once: what lacks a part is no refusal.
        if let Ok((granted, _)) = &checked
            && asked != AccessMask::default()
            && *granted == AccessMask::default()
        {
            self.refused("access", Subject::File(file), &VfsError::AccessDenied);
        }
        checked
    }
    async fn read_link(&self, caller: &Caller, file: FileHandle) -> Result<(Bytes, Attributes), VfsError> {
        let read = self.below.read_link(caller, file).await;
        if let Err(error) = &read {
            self.denied("readlink", Subject::File(file), error);
        }
        read
    }
    async fn read(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        length_bytes: u32,
    ) -> Result<ReadReply, VfsError> {
        let read = self.below.read(caller, file, offset, length_bytes).await;
        match &read {
            Ok(reply) => {
                let bytes: usize = reply.data.iter().map(Bytes::len).sum();
                self.sum(Kind::Read, file, bytes as u64);
            }
            Err(error) => self.refused("read", Subject::File(file), error),
        }
        read
    }
    async fn write(
        &self,
        caller: &Caller,
        file: FileHandle,
        offset: u64,
        data: Vec<Bytes>,
        stability: Stability,
    ) -> Result<WriteReply, VfsError> {
        let bytes: usize = data.iter().map(Bytes::len).sum();
        let mut pending = Pending {
            vfs: self,
            draft: Some(Draft::new("write", Subject::File(file))),
        };
        let written = self.below.write(caller, file, offset, data, stability).await;
        pending.draft = None;
        match &written {
            Ok(_) => self.sum(Kind::Write, file, bytes as u64),
            Err(error) => self.refused("write", Subject::File(file), error),
        }
        written
    }
    async fn set_attributes(
        &self,
        caller: &Caller,
        file: FileHandle,
        change: SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<ChangedAttributes, VfsError> {
        let detail = Detail::Attributes(change.clone());
        let work = self.below.set_attributes(caller, file, change, guard);
        self.changed("setattr", file, detail, work).await
    }
    async fn create(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        mode: CreateMode,
    ) -> Result<Created, VfsError> {
        let work = self.below.create(caller, directory, name, mode);
        self.made(("create", Detail::None), directory, name, work).await
    }
    async fn make_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        let work = self.below.make_directory(caller, directory, name, attributes);
        self.made(("mkdir", Detail::None), directory, name, work).await
    }
    async fn make_symlink(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        target: Bytes,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        let detail = Detail::Target(target.to_vec());
        let work = self
            .below
            .make_symlink(caller, directory, name, target, attributes);
        self.made(("symlink", detail), directory, name, work).await
    }
    async fn make_node(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        kind: FileKind,
        attributes: SetAttributes,
    ) -> Result<Created, VfsError> {
        let work = self.below.make_node(caller, directory, name, kind, attributes);
        self.made(("mknod", Detail::None), directory, name, work).await
    }
    async fn link(
        &self,
        caller: &Caller,
        file: FileHandle,
        directory: FileHandle,
        name: &Name,
    ) -> Result<(Attributes, ChangedAttributes), VfsError> {
        let draft = Draft {
            to: Some(Subject::Entry(directory, name)),
            ..Draft::new("link", Subject::File(file))
        };
        self.recorded(draft, self.below.link(caller, file, directory, name), |_| None)
            .await
    }
    async fn remove(&self, caller: &Caller, directory: FileHandle, name: &Name) -> Result<Removed, VfsError> {
        let draft = Draft::new("remove", Subject::Entry(directory, name));
        let work = self.below.remove(caller, directory, name);
        self.recorded(draft, work, |_| self.forget(directory, name)).await
    }
    async fn remove_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
    ) -> Result<Removed, VfsError> {
        let draft = Draft::new("rmdir", Subject::Entry(directory, name));
        let work = self.below.remove_directory(caller, directory, name);
        self.recorded(draft, work, |_| self.forget(directory, name)).await
    }
    async fn rename(
        &self,
        caller: &Caller,
        from_directory: FileHandle,
        from_name: &Name,
        to_directory: FileHandle,
        to_name: &Name,
    ) -> Result<Renamed, VfsError> {
        let (from, to) = ((from_directory, from_name), (to_directory, to_name));
        let draft = Draft {
            to: Some(Subject::Entry(to.0, to.1)),
            ..Draft::new("rename", Subject::Entry(from.0, from.1))
        };
        let work = self.below.rename(caller, from.0, from.1, to.0, to.1);
        self.recorded(draft, work, |_| {
            let mut names = self.recorder.log.shared.names();
            if !firn_env::planted!("accesslog.renames_are_not_followed") {
                names.renamed(from, to);
            }
            names.file(to.0, to.1)
        })
        .await
    }
    async fn read_directory(
        &self,
        caller: &Caller,
        directory: FileHandle,
        cookie: u64,
        limit: u32,
        with_attributes: bool,
    ) -> Result<DirectoryPage, VfsError> {
        let read = self
            .below
            .read_directory(caller, directory, cookie, limit, with_attributes)
            .await;
        match &read {
            Ok(_) if self.recorder.is_quiet => {}
            Ok(page) => {
                // Its handles may be used without a lookup.
                let mut names = self.recorder.log.shared.names();
                for entry in page.entries.iter().filter(|_| with_attributes) {
                    if !matches!(&entry.name[..], b"." | b"..") {
                        names.learn(entry.handle, directory, entry.name.clone());
                    }
                }
                drop(names);
                self.sum(Kind::List, directory, 0);
            }
            Err(error) => self.denied("list", Subject::File(directory), error),
        }
        read
    }
    async fn set_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
        value: Bytes,
        mode: XattrMode,
    ) -> Result<ChangedAttributes, VfsError> {
        let work = self.below.set_xattr(caller, file, name, value, mode);
        self.changed("setxattr", file, Detail::Xattr(name.to_vec()), work)
            .await
    }
    async fn remove_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
    ) -> Result<ChangedAttributes, VfsError> {
        let work = self.below.remove_xattr(caller, file, name);
        self.changed("removexattr", file, Detail::Xattr(name.to_vec()), work)
            .await
    }
    async fn set_acl(
        &self,
        caller: &Caller,
        file: FileHandle,
        access: Option<Acl>,
        default: Option<Acl>,
    ) -> Result<ChangedAttributes, VfsError> {
        let work = self.below.set_acl(caller, file, access, default);
        self.changed("setacl", file, Detail::None, work).await
    }
}

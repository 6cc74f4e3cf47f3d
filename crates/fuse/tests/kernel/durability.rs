//! Durability of what a process changes, by what the file system behind the mount is asked for.

use crate::world::{World, world_over};
use async_trait::async_trait;
use firn_vfs::{
    Caller, ChangedAttributes, CreateMode, Created, Durability, FileHandle, MemoryVfs, Name, SetAttributes,
    Timestamp, Vfs, VfsError, VfsLayer, XattrMode,
};
use std::{
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// The model, and how durable each change was wanted.
struct Asked {
    below: Arc<MemoryVfs>,
    asked: Arc<Mutex<Vec<(&'static str, Durability)>>>,
}

impl Asked {
    fn note(&self, call: &'static str, caller: &Caller) {
        self.asked
            .lock()
            .expect("no panic under this lock")
            .push((call, caller.durability));
    }
}

#[async_trait]
impl VfsLayer for Asked {
    fn below(&self) -> &dyn Vfs {
        &*self.below
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        mode: CreateMode,
    ) -> Result<Created, VfsError> {
        self.note("create", caller);
        self.below.create(caller, directory, name, mode).await
    }

    async fn set_attributes(
        &self,
        caller: &Caller,
        file: FileHandle,
        change: SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<ChangedAttributes, VfsError> {
        self.note("set attributes", caller);
        self.below.set_attributes(caller, file, change, guard).await
    }

    async fn set_xattr(
        &self,
        caller: &Caller,
        file: FileHandle,
        name: &[u8],
        value: bytes::Bytes,
        mode: XattrMode,
    ) -> Result<ChangedAttributes, VfsError> {
        self.note("set xattr", caller);
        self.below.set_xattr(caller, file, name, value, mode).await
    }

    async fn settle(&self, caller: &Caller) -> Result<(), VfsError> {
        self.note("settle", caller);
        self.below.settle(caller).await
    }

    async fn commit(&self, caller: &Caller, file: FileHandle) -> Result<ChangedAttributes, VfsError> {
        self.note("commit", caller);
        self.below.commit(caller, file).await
    }
}

/// A mount, and what was asked for since the last look.
struct Watched {
    world: World,
    asked: Arc<Mutex<Vec<(&'static str, Durability)>>>,
}

impl Watched {
    fn new() -> Option<Self> {
        let asked = Arc::<Mutex<Vec<_>>>::default();
        let told = asked.clone();
        let world = world_over(false, move |below| Arc::new(Asked { below, asked: told }))?;
        Some(Self { world, asked })
    }

    fn asked(&self) -> Vec<(&'static str, Durability)> {
        std::mem::take(&mut *self.asked.lock().expect("no panic under this lock"))
    }
}

#[test]
fn a_file_that_is_made_waits_for_its_close_alone() {
    let Some(watched) = Watched::new() else { return };
    let path = watched.world.path("new");
    let file = File::create_new(&path).expect("made");
    file.set_permissions(Permissions::from_mode(0o600))
        .expect("changed");
    rustix::fs::fsetxattr(&file, c"user.kind", b"draft", rustix::fs::XattrFlags::empty()).expect("set");
    let changes = [
        ("create", Durability::Memory),
        ("set attributes", Durability::Memory),
        ("set xattr", Durability::Memory),
    ];
    assert_eq!(watched.asked(), changes);
    drop(file);
    assert_eq!(watched.asked(), [("settle", Durability::Journal)]);
    // Closed: there is no later call that could wait.
    fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("changed");
    assert_eq!(watched.asked(), [("set attributes", Durability::Journal)]);
    // Nothing changed: nothing to wait for.
    drop(File::options().append(true).open(&path).expect("opened"));
    assert_eq!(watched.asked(), []);
}

#[test]
fn an_fsync_does_for_the_close() {
    let Some(watched) = Watched::new() else { return };
    let file = File::create_new(watched.world.path("synced")).expect("made");
    file.sync_all().expect("synced");
    drop(file);
    let expected = [("create", Durability::Memory), ("commit", Durability::Journal)];
    assert_eq!(watched.asked(), expected);
    drop(File::create_new(watched.world.path("again")).expect("made"));
    watched.asked();
    // A directory's covers names in it whose files are open still.
    let _open = File::create_new(watched.world.path("open")).expect("made");
    File::open(watched.world.path(""))
        .expect("opened")
        .sync_all()
        .expect("synced");
    let expected = [("create", Durability::Memory), ("settle", Durability::Journal)];
    assert_eq!(watched.asked(), expected);
}

#[test]
fn what_another_changes_after_the_flush_is_settled_with_the_last_close() {
    let Some(watched) = Watched::new() else { return };
    let path = watched.world.path("shared");
    let file = File::create_new(&path).expect("made");
    let again = file.try_clone().expect("a second descriptor of one open");
    drop(again);
    assert_eq!(
        watched.asked(),
        [("create", Durability::Memory), ("settle", Durability::Journal)]
    );
    // By name, by whoever: it is open for writing.
    fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("changed");
    assert_eq!(watched.asked(), [("set attributes", Durability::Memory)]);
    drop(file);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut asked = Vec::new();
    while asked.is_empty() {
        assert!(Instant::now() < deadline, "nobody settled it");
        thread::sleep(Duration::from_millis(5));
        asked = watched.asked();
    }
    assert_eq!(asked, [("settle", Durability::Journal)]);
}

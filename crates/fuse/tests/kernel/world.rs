//! A mounted model, and another protocol's way to it.

use bytes::Bytes;
use firn_env::Env;
use firn_fuse::{Mount, MountOptions};
use firn_session::{
    AnnouncingVfs, ByteRange, Changes, LockClient, LockLimits, LockOwner, LockProtocol, LockRequest,
    LockTable, Origin,
};
use firn_vfs::{Caller, Credentials, FileHandle, MemoryOptions, MemoryVfs, Name, Stability, Vfs};
use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::{Arc, LazyLock},
};

/// A mounted model, and another protocol's way to it.
pub struct World {
    pub runtime: tokio::runtime::Runtime,
    /// The mount's.
    pub env: Env,
    pub directory: tempfile::TempDir,
    pub model: Arc<MemoryVfs>,
    /// As NFS sees it.
    pub other: AnnouncingVfs,
    pub locks: LockTable,
    pub changes: Changes,
    pub mount: Option<Mount>,
}

/// `None` only where the kernel has no FUSE; that is said.
pub fn world() -> Option<World> {
    world_with(false)
}

/// The same whose mount may answer smbd's questions.
pub fn world_with(case_index: bool) -> Option<World> {
    world_over(case_index, |model| model)
}

/// The same whose mount has the model behind what `mounted` makes of it.
pub fn world_over(case_index: bool, mounted: impl FnOnce(Arc<MemoryVfs>) -> Arc<dyn Vfs>) -> Option<World> {
    if !firn_fuse::is_available() {
        eprintln!("SKIPPED: this machine has no /dev/fuse, nothing about mounts was tested");
        return None;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let directory = tempfile::tempdir().expect("a directory");
    let _entered = runtime.enter();
    let env = firn_env::real(directory.path()).expect("an environment");
    let options = MemoryOptions {
        root_mode: 0o777,
        ..MemoryOptions::default()
    };
    let model = Arc::new(MemoryVfs::new(&env, options));
    let changes = Changes::new(&env);
    let locks = LockTable::new(LockLimits::default());
    let path = directory.path().join("mnt");
    fs::create_dir(&path).expect("a directory");
    let options = MountOptions {
        path,
        source: "firn:test".into(),
        read_only: false,
        allow_other: true,
        protocol: LockProtocol::Local,
        case_index,
        access_log: None,
        durability: firn_vfs::Durability::Journal,
        cached_for: None,
        on_failed_sync: None,
    };
    let mount = Mount::start(
        &env,
        options,
        mounted(model.clone()),
        locks.clone(),
        &changes,
        Origin(1),
    );
    let mount = runtime.block_on(mount).expect("a mount");
    drop(_entered);
    Some(World {
        other: AnnouncingVfs::new(model.clone(), changes.clone(), Origin::NFS),
        changes,
        model,
        locks,
        mount: Some(mount),
        directory,
        env,
        runtime,
    })
}

impl World {
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("mnt").join(name)
    }

    pub fn root(&self) -> FileHandle {
        self.model.root()
    }

    pub fn find(&self, path: &str) -> FileHandle {
        let mut at = self.root();
        for part in path.split('/') {
            at = self
                .runtime
                .block_on(self.model.lookup(root(), at, &name(part)))
                .expect("it is there")
                .0;
        }
        at
    }

    /// Requests of the kernel so far.
    pub fn requests(&self) -> u64 {
        self.mount.as_ref().map_or(0, |mount| mount.status().requests)
    }

    /// By the other protocol.
    pub fn write(&self, file: FileHandle, data: &'static [u8]) {
        let data = vec![Bytes::from_static(data)];
        let written = self.other.write(root(), file, 0, data, Stability::FileSync);
        self.runtime.block_on(written).expect("written");
    }

    pub fn nlm(&self, file: FileHandle, exclusive: bool) -> LockRequest {
        let client = LockClient {
            protocol: LockProtocol::Nlm,
            name: Bytes::from_static(b"client"),
        };
        LockRequest {
            file,
            owner: LockOwner {
                client,
                owner: Bytes::from_static(b"process"),
            },
            range: ByteRange::ALL,
            exclusive,
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            let path = self.path("");
            self.runtime.block_on(mount.unmount());
            let table = fs::read_to_string("/proc/mounts").expect("the table of mounts");
            assert!(
                !table.contains(path.to_str().expect("text").trim_end_matches('/')),
                "unmounted"
            );
        }
    }
}

static ROOT: LazyLock<Caller> = LazyLock::new(|| Caller::new(Credentials::root()));

pub fn root() -> &'static Caller {
    &ROOT
}

pub fn name(text: &str) -> Name {
    Name::new(Bytes::copy_from_slice(text.as_bytes())).expect("a name")
}

/// A shell command; its output.
pub fn shell(command: &str) -> String {
    let output = Command::new("sh")
        .args(["-c", command])
        .output()
        .expect("a shell");
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

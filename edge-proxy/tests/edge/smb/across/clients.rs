//! One client of each protocol, with the same few calls.

use super::super::agent::{Agent, Refused};
use crate::machine::{Files, TIMEOUT};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use firn_nfs::{
    WireHandle,
    v3::{
        Status,
        types::{CreateHow, Entry, NewAttributes, StableHow},
    },
};
use rustix::fs::XattrFlags;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fmt, fs,
    os::unix::fs::{FileExt as _, PermissionsExt as _, chown},
    path::PathBuf,
    time::{Duration, Instant},
};

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Nfs,
    Smb,
    Fuse,
}

pub const ALL: [By; 3] = [By::Nfs, By::Smb, By::Fuse];

impl fmt::Display for By {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Nfs => "NFS",
            Self::Smb => "SMB",
            Self::Fuse => "FUSE",
        })
    }
}

/// A file that a client has open; of NFS its handle, since the protocol has no opens.
pub enum Held {
    Nfs(WireHandle),
    Smb(u64),
    Fuse(fs::File),
}

impl Held {
    fn by(&self) -> By {
        match self {
            Self::Nfs(_) => By::Nfs,
            Self::Smb(_) => By::Smb,
            Self::Fuse(_) => By::Fuse,
        }
    }
}

fn encoded(data: &[u8]) -> String {
    STANDARD.encode(data)
}

fn decoded(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().expect("text")).expect("base64")
}

/// The three clients.
pub struct Clients {
    pub nfs: Files,
    pub smb: Agent,
    pub mount: PathBuf,
    /// As whom SMB comes; NFS says so, too, and what the mount makes is given to it.
    pub uid: u32,
    /// Open over SMB and on the mount; see [`Clients::settled`].
    markers: Option<[Held; 2]>,
    settled: u64,
}

/// What tells that one mount has heard of all that was done on the other.
const MARKER: &str = "settled";

fn text(status: &Status) -> Refused {
    format!("{status:?}")
}

impl Clients {
    pub async fn new(nfs: Files, smb: Agent, mount: PathBuf, uid: u32) -> Self {
        let mut all = Self {
            nfs,
            smb,
            mount,
            uid,
            markers: None,
            settled: 0,
        };
        all.put(By::Fuse, MARKER, &[0; 8]).await.expect("written");
        let by_smb = loop {
            // It hears of the file, and of whose it is, some milliseconds later.
            match all.open(By::Smb, MARKER).await {
                Ok(held) => break held,
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let on_the_mount = all.open(By::Fuse, MARKER).await.expect("open");
        all.markers = Some([by_smb, on_the_mount]);
        all
    }

    /// After something was done: SMB and the mount are two mounts of the edge, and one hears of what is done on the other some milliseconds
    /// later, in order. So it waits until a mark made there now is read here, through a descriptor whose content the kernel had before.
    pub async fn settled(&mut self, by: By) {
        let (here, there) = match by {
            By::Smb => (0, 1),
            By::Fuse => (1, 0),
            // Its client was answered once both had heard of it.
            By::Nfs => return,
        };
        let Some(markers) = self.markers.take() else {
            return;
        };
        self.settled += 1;
        let mark = self.settled.to_le_bytes();
        self.read(&markers[there]).await.expect("read");
        self.do_write(&markers[here], &mark, 0).await.expect("written");
        let began = Instant::now();
        while self.read(&markers[there]).await.expect("read") != mark {
            assert!(began.elapsed() < TIMEOUT, "the other mount never hears of it");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.markers = Some(markers);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mount.join(name)
    }

    pub async fn handle(&self, name: &str) -> Result<WireHandle, Refused> {
        let found = self.nfs.client().lookup(self.nfs.root(), name).await;
        match found.expect("an answer") {
            Ok(found) => Ok(found.file),
            Err(failed) => Err(text(&failed.status)),
        }
    }

    /// Makes a file, or writes it anew.
    pub async fn put(&mut self, by: By, name: &str, data: &[u8]) -> Result<(), Refused> {
        let done = self.do_put(by, name, data).await;
        self.settled(by).await;
        done
    }

    async fn do_put(&mut self, by: By, name: &str, data: &[u8]) -> Result<(), Refused> {
        match by {
            By::Nfs => {
                let attributes = NewAttributes {
                    mode: Some(0o666),
                    size_bytes: Some(0),
                    ..NewAttributes::default()
                };
                let how = CreateHow::Unchecked(attributes);
                let made = self.nfs.client().create(self.nfs.root(), name, how).await;
                let made = made.expect("an answer").map_err(|failed| text(&failed.status))?;
                self.write(&Held::Nfs(made.file.expect("its handle")), data, 0)
                    .await
            }
            By::Smb => self.smb.call(json!(["put", name, encoded(data)])).map(drop),
            By::Fuse => {
                let path = self.path(name);
                let work = fs::write(&path, data)
                    .and_then(|()| chown(&path, Some(self.uid), Some(self.uid)))
                    .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o666)));
                work.map_err(|error| error.to_string())
            }
        }
    }

    pub async fn get(&mut self, by: By, name: &str) -> Result<Vec<u8>, Refused> {
        match by {
            By::Nfs => {
                let handle = self.handle(name).await?;
                self.read(&Held::Nfs(handle)).await
            }
            By::Smb => self.smb.call(json!(["get", name])).map(|data| decoded(&data)),
            By::Fuse => fs::read(self.path(name)).map_err(|error| error.to_string()),
        }
    }

    pub async fn rename(&mut self, by: By, old: &str, new: &str) -> Result<(), Refused> {
        let done = self.do_rename(by, old, new).await;
        self.settled(by).await;
        done
    }

    async fn do_rename(&mut self, by: By, old: &str, new: &str) -> Result<(), Refused> {
        match by {
            By::Nfs => {
                let entry = |name: &str| Entry {
                    directory: self.nfs.root().clone(),
                    name: name.into(),
                };
                let renamed = self.nfs.client().rename(entry(old), entry(new)).await;
                let renamed = renamed.expect("an answer");
                renamed.map(drop).map_err(|failed| text(&failed.status))
            }
            By::Smb => self.smb.call(json!(["rename", old, new])).map(drop),
            By::Fuse => fs::rename(self.path(old), self.path(new)).map_err(|error| error.to_string()),
        }
    }

    pub async fn remove(&mut self, by: By, name: &str) -> Result<(), Refused> {
        let done = self.do_remove(by, name).await;
        self.settled(by).await;
        done
    }

    async fn do_remove(&mut self, by: By, name: &str) -> Result<(), Refused> {
        match by {
            By::Nfs => {
                let removed = self.nfs.client().remove(self.nfs.root(), name).await;
                let removed = removed.expect("an answer");
                removed.map(drop).map_err(|failed| text(&failed.status))
            }
            By::Smb => self.smb.call(json!(["remove", name])).map(drop),
            By::Fuse => fs::remove_file(self.path(name)).map_err(|error| error.to_string()),
        }
    }

    pub async fn names(&mut self, by: By) -> BTreeSet<String> {
        let mut names = self.all_names(by).await;
        names.remove(MARKER);
        names
    }

    async fn all_names(&mut self, by: By) -> BTreeSet<String> {
        match by {
            By::Nfs => {
                let (mut names, mut cookie, mut verifier) = (BTreeSet::new(), 0, Default::default());
                loop {
                    let part = self
                        .nfs
                        .client()
                        .read_directory(self.nfs.root(), cookie, verifier, 4096)
                        .await;
                    let part = part.expect("an answer").expect("a list");
                    verifier = part.verifier;
                    for entry in part.entries {
                        cookie = entry.cookie;
                        names.insert(String::from_utf8_lossy(&entry.name.0).into_owned());
                    }
                    if part.end {
                        break;
                    }
                }
                names.retain(|name| !matches!(&**name, "." | ".."));
                names
            }
            By::Smb => {
                let names = self.smb.call(json!(["names"])).expect("a list");
                serde_json::from_value(names).expect("names")
            }
            By::Fuse => fs::read_dir(&self.mount)
                .expect("a list")
                .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
                .collect(),
        }
    }

    pub async fn open(&mut self, by: By, name: &str) -> Result<Held, Refused> {
        match by {
            By::Nfs => self.handle(name).await.map(Held::Nfs),
            By::Smb => {
                let handle = self.smb.call(json!(["open", name]))?;
                Ok(Held::Smb(handle.as_u64().expect("a handle")))
            }
            By::Fuse => {
                let opened = fs::File::options().read(true).write(true).open(self.path(name));
                opened.map(Held::Fuse).map_err(|error| error.to_string())
            }
        }
    }

    pub async fn read(&mut self, held: &Held) -> Result<Vec<u8>, Refused> {
        match held {
            Held::Nfs(handle) => {
                let read = self.nfs.client().read(handle, 0, 1 << 20).await;
                let read = read.expect("an answer");
                read.map(|read| read.data.to_vec())
                    .map_err(|failed| text(&failed.status))
            }
            Held::Smb(handle) => self.smb.call(json!(["read", handle])).map(|data| decoded(&data)),
            Held::Fuse(file) => {
                let mut data = vec![0; 1 << 20];
                let length = file.read_at(&mut data, 0).map_err(|error| error.to_string())?;
                data.truncate(length);
                Ok(data)
            }
        }
    }

    pub async fn write(&mut self, held: &Held, data: &[u8], offset: u64) -> Result<(), Refused> {
        let done = self.do_write(held, data, offset).await;
        self.settled(held.by()).await;
        done
    }

    async fn do_write(&mut self, held: &Held, data: &[u8], offset: u64) -> Result<(), Refused> {
        match held {
            Held::Nfs(handle) => {
                let data = Bytes::copy_from_slice(data);
                let client = self.nfs.client();
                let written = client.write(handle, offset, data, StableHow::FileSync).await;
                let written = written.expect("an answer");
                written.map(drop).map_err(|failed| text(&failed.status))
            }
            Held::Smb(handle) => self
                .smb
                .call(json!(["write", handle, encoded(data), offset]))
                .map(drop),
            Held::Fuse(file) => file.write_all_at(data, offset).map_err(|error| error.to_string()),
        }
    }

    pub async fn resize(&mut self, held: &Held, length: u64) -> Result<(), Refused> {
        let done = self.do_resize(held, length).await;
        self.settled(held.by()).await;
        done
    }

    async fn do_resize(&mut self, held: &Held, length: u64) -> Result<(), Refused> {
        match held {
            Held::Nfs(handle) => {
                let attributes = NewAttributes {
                    size_bytes: Some(length),
                    ..NewAttributes::default()
                };
                let set = self.nfs.client().set_attributes(handle, attributes, None).await;
                let set = set.expect("an answer");
                set.map(drop).map_err(|failed| text(&failed.status))
            }
            Held::Smb(_) => Err("Samba's library has no such call".into()),
            Held::Fuse(file) => file.set_len(length).map_err(|error| error.to_string()),
        }
    }

    pub fn close(&mut self, held: Held) {
        match held {
            Held::Smb(handle) => {
                self.smb.call(json!(["close", handle])).expect("closed");
            }
            // NFS has nothing to close.
            Held::Nfs(_) | Held::Fuse(_) => {}
        }
    }

    /// Extended attribute of the mount's, as text.
    pub fn attribute(&self, name: &str, attribute: &str) -> Option<Vec<u8>> {
        let mut value = vec![0; 1024];
        let length = rustix::fs::getxattr(self.path(name), attribute, &mut value[..]).ok()?;
        value.truncate(length);
        Some(value)
    }

    pub async fn set_attribute(&mut self, name: &str, attribute: &str, value: &[u8]) {
        rustix::fs::setxattr(self.path(name), attribute, value, XattrFlags::empty()).expect("set");
        self.settled(By::Fuse).await;
    }

    /// On the mount.
    pub async fn set_mode(&mut self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).expect("set");
        self.settled(By::Fuse).await;
    }

    /// Waits for something that the kernel tells the edge a moment after the call.
    pub fn soon(condition: impl Fn() -> bool) -> bool {
        let began = Instant::now();
        while !condition() {
            if began.elapsed() > TIMEOUT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

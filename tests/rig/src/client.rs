//! NFS client of the tests, in terms of the `nfs3_client` crate, which knows nothing of Firn.

use anyhow::{Context, Result, bail, ensure};
use nfs3_client::{
    MountClient, Nfs3Client,
    nfs3_types::{
        mount::dirpath,
        nfs3::{
            COMMIT3args, CREATE3args, LOOKUP3args, MKDIR3args, Nfs3Option, Nfs3Result, READ3args,
            READDIRPLUS3args, READLINK3args, REMOVE3args, RENAME3args, SETATTR3args, SYMLINK3args,
            WRITE3args, cookieverf3, createhow3, diropargs3, fattr3, filename3, ftype3, nfs_fh3, nfspath3,
            sattr3, stable_how, symlinkdata3,
        },
        rpc::{auth_unix, opaque_auth},
        xdr_codec::Opaque,
    },
    tokio::TokioIo,
};
use std::{future::Future, net::SocketAddr, time::Duration};
use tokio::net::TcpStream;

/// What one READ or WRITE carries.
const IO_BYTES: usize = 256 << 10;

/// A server that is alive answers within this.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How the server knows a file.
pub type FileHandle = nfs_fh3;

/// Between two tries of a call that the server puts off.
const LATER: Duration = Duration::from_millis(500);

/// A directory entry with what is known of it.
pub struct Listed {
    /// Its name.
    pub name: Vec<u8>,
    /// Its file.
    pub handle: FileHandle,
    /// The file's attributes.
    pub attributes: fattr3,
}

impl Listed {
    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.attributes.type_, ftype3::NF3DIR)
    }

    /// Whether it is a symbolic link.
    pub fn is_link(&self) -> bool {
        matches!(self.attributes.type_, ftype3::NF3LNK)
    }
}

/// One connection; calls go one after the other.
pub struct Client {
    nfs: Nfs3Client<TokioIo<TcpStream>>,
    /// The export's root.
    pub root: FileHandle,
    /// How often the server asked to try again later (NFS3ERR_JUKEBOX).
    pub jukebox_replies: u64,
}

/// The answer to a call; `None` if the server asks to try again later.
async fn answer<S, E: std::fmt::Debug, R>(
    what: &'static str,
    call: impl Future<Output = Result<Nfs3Result<S, E>, R>>,
) -> Result<Option<S>>
where
    R: std::error::Error + Send + Sync + 'static,
{
    let answer = tokio::time::timeout(TIMEOUT, call).await;
    match answer.with_context(|| format!("{what}: no answer in {} s", TIMEOUT.as_secs()))?? {
        Nfs3Result::Ok(value) => Ok(Some(value)),
        Nfs3Result::Err((status, _)) => match format!("{status:?}") {
            later if later.contains("JUKEBOX") => Ok(None),
            other => bail!("{what}: {other}"),
        },
    }
}

fn taken<S, T>(value: S, with: impl FnOnce(S) -> T) -> T {
    with(value)
}

/// What a call is answered in the end: it is sent anew for as long as the server asks for that, as clients do.
macro_rules! answered {
    ($client:ident, $what:literal, $call:expr, $with:expr) => {
        loop {
            match answer($what, $call).await {
                Ok(Some(value)) => break Ok(taken(value, $with)),
                Ok(None) => {
                    $client.jukebox_replies += 1;
                    tokio::time::sleep(LATER).await;
                }
                Err(error) => break Err(error),
            }
        }
    };
}

fn place<'a>(directory: &nfs_fh3, name: &'a [u8]) -> diropargs3<'a> {
    diropargs3 {
        dir: directory.clone(),
        name: filename3(Opaque::borrowed(name)),
    }
}

fn attributes(mode: u32) -> sattr3 {
    sattr3 {
        mode: Nfs3Option::Some(mode),
        ..sattr3::default()
    }
}

async fn connect(address: SocketAddr) -> Result<TokioIo<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(stream))
}

impl Client {
    /// Mounts `export`; MOUNT and NFS are on one port, so no port mapper is asked.
    pub async fn mount(address: SocketAddr, export: &str) -> Result<Self> {
        let credential = || {
            opaque_auth::auth_unix(&auth_unix {
                machinename: Opaque::borrowed(b"firn-rig"),
                ..auth_unix::default()
            })
        };
        let mut mount =
            MountClient::new_with_auth(connect(address).await?, credential(), opaque_auth::default());
        let path = dirpath(Opaque::borrowed(export.as_bytes()));
        let mounted = tokio::time::timeout(TIMEOUT, mount.mnt(path)).await??;
        Ok(Self {
            nfs: Nfs3Client::new_with_auth(connect(address).await?, credential(), opaque_auth::default()),
            root: nfs_fh3 {
                data: mounted.fhandle.0,
            },
            jukebox_replies: 0,
        })
    }

    /// The file of a name.
    pub async fn lookup(&mut self, directory: &nfs_fh3, name: &[u8]) -> Result<nfs_fh3> {
        let call = LOOKUP3args {
            what: place(directory, name),
        };
        answered!(self, "LOOKUP", self.nfs.lookup(&call), |found| found.object)
    }

    /// Makes a directory; one that is there is taken as it is.
    pub async fn make_directory(&mut self, directory: &nfs_fh3, name: &[u8]) -> Result<nfs_fh3> {
        let call = MKDIR3args {
            where_: place(directory, name),
            attributes: attributes(0o755),
        };
        match answered!(self, "MKDIR", self.nfs.mkdir(&call), |made| made.obj) {
            Ok(Nfs3Option::Some(handle)) => Ok(handle),
            Ok(Nfs3Option::None) => self.lookup(directory, name).await,
            Err(error) if error.to_string().contains("EXIST") => self.lookup(directory, name).await,
            Err(error) => Err(error),
        }
    }

    /// Makes a symbolic link; one that is there is taken as it is.
    pub async fn make_link(&mut self, directory: &nfs_fh3, name: &[u8], target: &[u8]) -> Result<()> {
        let call = SYMLINK3args {
            where_: place(directory, name),
            symlink: symlinkdata3 {
                symlink_attributes: sattr3::default(),
                symlink_data: nfspath3(Opaque::borrowed(target)),
            },
        };
        match answered!(self, "SYMLINK", self.nfs.symlink(&call), drop) {
            Err(error) if !error.to_string().contains("EXIST") => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes a whole file. When this returns, the server has promised that it survives its own death.
    pub async fn write_file(
        &mut self,
        directory: &nfs_fh3,
        name: &[u8],
        mode: u32,
        data: &[u8],
    ) -> Result<()> {
        let how = createhow3::UNCHECKED(sattr3 {
            size: Nfs3Option::Some(0),
            ..attributes(mode)
        });
        let call = CREATE3args {
            where_: place(directory, name),
            how,
        };
        let file = match answered!(self, "CREATE", self.nfs.create(&call), |made| made.obj)? {
            Nfs3Option::Some(handle) => handle,
            Nfs3Option::None => self.lookup(directory, name).await?,
        };
        self.write(&file, 0, data).await
    }

    /// Writes into a file that is there. When this returns, the server has promised that it survives its own death.
    pub async fn write(&mut self, file: &nfs_fh3, at: u64, data: &[u8]) -> Result<()> {
        // As clients do: what fits into one call is written through, more is written and then committed.
        let stable = if data.len() <= IO_BYTES {
            stable_how::FILE_SYNC
        } else {
            stable_how::UNSTABLE
        };
        let mut offset = 0;
        let mut verifier = None;
        while offset < data.len() {
            let chunk = &data[offset..data.len().min(offset + IO_BYTES)];
            let call = WRITE3args {
                file: file.clone(),
                offset: at + offset as u64,
                count: chunk.len() as u32,
                stable,
                data: Opaque::borrowed(chunk),
            };
            let written = answered!(self, "WRITE", self.nfs.write(&call), |written| written)?;
            ensure!(written.count > 0, "WRITE: the server took nothing");
            ensure!(
                stable == stable_how::UNSTABLE || written.committed == stable_how::FILE_SYNC,
                "WRITE: the server did not write through"
            );
            let before = verifier.get_or_insert(written.verf.0);
            ensure!(
                *before == written.verf.0,
                "the server restarted between two writes"
            );
            offset += written.count as usize;
        }
        if stable == stable_how::UNSTABLE {
            let call = COMMIT3args {
                file: file.clone(),
                offset: 0,
                count: 0,
            };
            let committed = answered!(self, "COMMIT", self.nfs.commit(&call), |done| done.verf.0)?;
            ensure!(
                Some(committed) == verifier,
                "the server restarted before the commit"
            );
        }
        Ok(())
    }

    /// Makes a file shorter or longer.
    pub async fn resize(&mut self, file: &nfs_fh3, size_bytes: u64) -> Result<()> {
        let call = SETATTR3args {
            object: file.clone(),
            new_attributes: sattr3 {
                size: Nfs3Option::Some(size_bytes),
                ..sattr3::default()
            },
            guard: Nfs3Option::None,
        };
        answered!(self, "SETATTR", self.nfs.setattr(&call), drop)
    }

    /// Removes a file.
    pub async fn remove(&mut self, directory: &nfs_fh3, name: &[u8]) -> Result<()> {
        let call = REMOVE3args {
            object: place(directory, name),
        };
        answered!(self, "REMOVE", self.nfs.remove(&call), drop)
    }

    /// Gives a file of a directory another name there.
    pub async fn rename(&mut self, directory: &nfs_fh3, from: &[u8], to: &[u8]) -> Result<()> {
        let call = RENAME3args {
            from: place(directory, from),
            to: place(directory, to),
        };
        answered!(self, "RENAME", self.nfs.rename(&call), drop)
    }

    /// Reads a whole file and returns its checksum and length.
    pub async fn checksum(&mut self, file: &nfs_fh3) -> Result<(blake3::Hash, u64)> {
        let mut hasher = blake3::Hasher::new();
        let length_bytes = self
            .read_through(file, |bytes| {
                hasher.update(bytes);
            })
            .await?;
        Ok((hasher.finalize(), length_bytes))
    }

    /// All of a small file.
    pub async fn content(&mut self, file: &nfs_fh3) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        self.read_through(file, |bytes| content.extend_from_slice(bytes))
            .await?;
        Ok(content)
    }

    /// Reads a whole file, call by call; its length.
    async fn read_through(&mut self, file: &nfs_fh3, mut take: impl FnMut(&[u8])) -> Result<u64> {
        let mut offset = 0;
        loop {
            let call = READ3args {
                file: file.clone(),
                offset,
                count: IO_BYTES as u32,
            };
            let read = answered!(self, "READ", self.nfs.read(&call), |read| read)?;
            take(&read.data.0);
            offset += read.data.0.len() as u64;
            if read.eof {
                return Ok(offset);
            }
            ensure!(!read.data.0.is_empty(), "READ: nothing, and not the end");
        }
    }

    /// The target of a link.
    pub async fn read_link(&mut self, link: &nfs_fh3) -> Result<Vec<u8>> {
        let call = READLINK3args {
            symlink: link.clone(),
        };
        answered!(self, "READLINK", self.nfs.readlink(&call), |read| {
            read.data.0.0.into_owned()
        })
    }

    /// Everything in a directory but itself and its parent.
    pub async fn list(&mut self, directory: &nfs_fh3) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let mut from = (0, cookieverf3([0; 8]));
        loop {
            let call = READDIRPLUS3args {
                dir: directory.clone(),
                cookie: from.0,
                cookieverf: from.1,
                dircount: 32 << 10,
                maxcount: 256 << 10,
            };
            let page = answered!(self, "READDIRPLUS", self.nfs.readdirplus(&call), |page| page)?;
            let entries = page.reply.entries.into_inner();
            ensure!(
                page.reply.eof || !entries.is_empty(),
                "READDIRPLUS: nothing, and not the end"
            );
            from = (entries.last().map_or(0, |entry| entry.cookie), page.cookieverf);
            for entry in entries {
                let name = entry.name.0.0.into_owned();
                if name == b"." || name == b".." {
                    continue;
                }
                let (Nfs3Option::Some(handle), Nfs3Option::Some(attributes)) =
                    (entry.name_handle, entry.name_attributes)
                else {
                    bail!("READDIRPLUS: no handle for {}", String::from_utf8_lossy(&name));
                };
                listed.push(Listed {
                    name,
                    handle,
                    attributes,
                });
            }
            if page.reply.eof {
                return Ok(listed);
            }
        }
    }
}
